/*
 * levels_test.c: every function of kernels.h at one level against the portable level, bit for bit, over shapes and
 * values that models rarely have. It needs no libc: levels_test(kernel) returns 0, or the number of the function that
 * differs, and levels_result[] then holds the shape. levels_main.c makes a program of it.
 * Numbers that a kernel may not look at are NaN, bytes it may not write are a pattern that is compared as well.
 */
#include "kernels/kernels.h"

#include "levels_test.h"

uint32_t levels_result[8];

enum { MOST_COLUMNS = 2048, MOST_TILES = 3, ROWS = COLIBRI_ROWS_AT_ONCE, PATTERN = 0x5A };

static uint32_t state;

static uint32_t draw(void)
{
    state = state * 1664525u + 1013904223u;
    return state >> 8 ^ state << 24;
}

static uint32_t below(uint32_t n)
{
    return (uint32_t)((uint64_t)(draw() & 0xFFFFFFu) * n >> 24);
}

/* Kinds of numbers. 0: around 1; 1: every exponent up to 2^20, zeros of both signs, subnormals; 2: large and small */
static float number(uint32_t mode)
{
    uint32_t sign = draw() & 0x80000000u, fraction = draw() & 0x7FFFFFu;
    if (mode == 0u) {
        return colibri_float(sign | (125u + below(4)) << 23 | fraction);
    }
    if (mode == 1u) {
        uint32_t kind = below(16);
        return colibri_float(sign | (kind == 0u ? 0u : kind == 1u ? fraction : below(148) << 23 | fraction));
    }
    return colibri_float(sign | (below(2) ? 187u : 40u + below(40)) << 23 | fraction);
}

static void numbers(float *x, uint32_t count, uint32_t mode)
{
    for (uint32_t i = 0; i < count; i++) {
        x[i] = number(mode);
    }
}

/* 0 if the bits are the same, or both are NaN */
static int differ(float a, float b)
{
    return colibri_bits(a) != colibri_bits(b) &&
           !(colibri_magnitude(a) > COLIBRI_INFINITY_BITS && colibri_magnitude(b) > COLIBRI_INFINITY_BITS);
}

static int differ_floats(const float *a, const float *b, uint32_t count)
{
    for (uint32_t i = 0; i < count; i++) {
        if (differ(a[i], b[i])) {
            return 1;
        }
    }
    return 0;
}

static int differ_bytes(const void *a, const void *b, uint64_t count)
{
    for (uint64_t i = 0; i < count; i++) {
        if (((const uint8_t *)a)[i] != ((const uint8_t *)b)[i]) {
            return 1;
        }
    }
    return 0;
}

static uint32_t fails(uint32_t function, uint32_t a, uint32_t b, uint32_t c, uint32_t d, uint32_t e)
{
    levels_result[0] = function;
    levels_result[1] = a;
    levels_result[2] = b;
    levels_result[3] = c;
    levels_result[4] = d;
    levels_result[5] = e;
    return function;
}

/* --- the calls, kept apart so that vector registers can be watched over each (ARM64) --- */

typedef struct call {
    uint32_t function, kernel, n, kind;
    int status;
    const void *request;                /* a product or a mixture, or a span of scores */
    const float *x, *w, *w2;            /* w2: a bias, or null */
    float *y, value;
    void *bytes;
} call;

static __attribute__((noinline)) void make(call *c)
{
    switch (c->function) {
    case PRODUCTS: colibri_products(c->kernel, c->request); break;
    case QUANTIZE: c->status = colibri_quantize_row(c->kernel, c->x, c->n, c->bytes); break;
    case NORM: c->status = colibri_rms_norm(c->kernel, c->y, c->x, c->w, c->n, 1.0e-5f); break;
    case GATE: c->status = colibri_gate(c->kernel, c->y, c->x, c->n); break;
    case GATE_AS: c->status = colibri_gate_as(c->kernel, c->y, c->x, c->n, (uint32_t)c->kind, 7.0f); break;
    case LAYER_NORM: c->status = colibri_layer_norm(c->kernel, c->y, c->x, c->w, c->w2, c->n, 1.0e-5f); break;
    case ADD_SCALED: colibri_add_scaled(c->kernel, c->y, c->x, c->value, c->n); break;
    case EXP_SUM: c->value = colibri_exp_sum(c->kernel, c->y, c->n, c->value); break;
    case AMAX: c->status = (int)colibri_amax_bits(c->kernel, c->x, c->n); break;
    case SOFTEN: c->status = colibri_soften(c->kernel, c->y, c->request, &c->value); break;
    case MIX: colibri_mix(c->kernel, c->request); break;
    case MIX_LATENT: colibri_mix_latent(c->kernel, c->request); break;
    case SOFTEN_CHOSEN:
        c->status = colibri_soften_chosen(c->kernel, c->y, c->request, &c->value);
        break;
    case ADD_POSITIVE: colibri_add_positive(c->kernel, c->y, c->x, -0.375f, c->value, c->n); break;
    case HALVES: colibri_store_halves(c->kernel, c->bytes, c->x, c->n); break;
    default: break;
    }
}

#if defined(__aarch64__)

/* Calls with known numbers in the vector registers a callee has to keep (the low halves of v8 .. v15): 0 if they still
 * stand there afterwards. */
static __attribute__((noinline)) uint64_t keeps(void (*function)(call *), call *c)
{
    uint64_t kept[8], numbers8[8] = {0x0123456789ABCDEFu, 2, 3, 4, 5, 6, 7, 0xFEDCBA9876543210u}, wrong = 0;
    register const uint64_t *from __asm__("x19") = numbers8;
    register uint64_t *to __asm__("x20") = kept;
    register void (*f)(call *) __asm__("x21") = function;
    register call *argument __asm__("x22") = c;
    __asm__ volatile("ldp d8, d9, [%0]\n ldp d10, d11, [%0, #16]\n ldp d12, d13, [%0, #32]\n ldp d14, d15, [%0, #48]\n"
                     "mov x0, %3\n blr %2\n"
                     "stp d8, d9, [%1]\n stp d10, d11, [%1, #16]\n stp d12, d13, [%1, #32]\n stp d14, d15, [%1, #48]\n"
                     : : "r"(from), "r"(to), "r"(f), "r"(argument)
                     : "x0", "x1", "x2", "x3", "x4", "x5", "x6", "x7", "x8", "x9", "x10", "x11", "x12", "x13", "x14",
                       "x15", "x16", "x17", "x18", "x30", "v0", "v1", "v2", "v3", "v4", "v5", "v6", "v7", "v8", "v9",
                       "v10", "v11", "v12", "v13", "v14", "v15", "v16", "v17", "v18", "v19", "v20", "v21", "v22",
                       "v23", "v24", "v25", "v26", "v27", "v28", "v29", "v30", "v31", "memory", "cc");
    for (int i = 0; i < 8; i++) {
        wrong |= kept[i] ^ numbers8[i];
    }
    return wrong;
}

/* What the watch has to notice. */
static void spoil(call *c)
{
    (void)c;
    __asm__ volatile("fmov d11, xzr");
}

#else

static uint64_t keeps(void (*function)(call *), call *c)
{
    function(c);
    return 0;
}

#endif

static uint32_t spoiled;                /* a function that did not keep its registers */

/* At the level under test, then at the portable one. */
static void run(call *c)
{
    levels_result[7]++;
    if (keeps(make, c)) {
        spoiled = c->function;
    }
}

/* --- products --- */

static uint8_t tiles[MOST_TILES * MOST_COLUMNS * 64 + 4096] __attribute__((aligned(64)));
static float x[ROWS][MOST_COLUMNS + 4] __attribute__((aligned(16)));
static colibri_group groups_of[ROWS * (MOST_COLUMNS / 32 + 1)] __attribute__((aligned(16)));    /* rows side by side */
static float found[ROWS][16 * MOST_TILES + 16] __attribute__((aligned(16)));
static float right[ROWS][16 * MOST_TILES + 16] __attribute__((aligned(16)));
static colibri_activation rows[ROWS];

/* Weights of a kind. mode 3: the largest integers; else bytes as they come. Scales have both signs. */
static void fill_tiles(uint32_t kind, uint64_t bytes, uint32_t mode)
{
    uint64_t pair = kind == COLIBRI_KIND_Q4 ? COLIBRI_PAIR_Q4_BYTES : COLIBRI_PAIR_Q8_BYTES;
    for (uint64_t i = 0; i < bytes / 4u; i++) {
        if (kind == COLIBRI_KIND_F32) {
            ((float *)(void *)tiles)[i] = number(mode);
        } else if (kind == COLIBRI_KIND_F16) {
            uint16_t a = (uint16_t)draw(), b = colibri_half_from_float(number(mode));
            ((uint16_t *)(void *)tiles)[2u * i] = (a & 0x7C00u) == 0x7C00u ? (uint16_t)(a & 0x83FFu) : a;
            ((uint16_t *)(void *)tiles)[2u * i + 1u] = b;
        } else if (4u * i % pair < pair - 64u) {
            for (uint32_t k = 0; k < 4u; k++) {
                uint8_t byte = (uint8_t)draw();
                if (kind == COLIBRI_KIND_Q4) {
                    byte = mode == 3u ? (below(2) ? 0xFF : 0) : byte;
                } else {
                    byte = mode == 3u ? (below(2) ? 127 : 129) : byte == 128u ? 127 : byte;
                }
                tiles[4u * i + k] = byte;
            }
        } else {
            for (uint32_t k = 0; k < 2u; k++) {
                uint32_t b = colibri_bits(number(mode == 3u ? 0u : mode));
                ((uint16_t *)(void *)tiles)[2u * i + k] = (uint16_t)(b >> 16);
            }
        }
    }
}

static void fill_rows(uint32_t columns, uint32_t mode)
{
    uint32_t groups = colibri_groups(columns);
    for (uint32_t r = 0; r < ROWS; r++) {
        numbers(x[r], columns, mode);
        for (uint32_t i = 0; i < 4u; i++) {
            x[r][columns + i] = colibri_float(0x7FC00000u);
        }
        rows[r].x = x[r];
        rows[r].groups = groups_of + r * groups;
        for (uint32_t g = 0; g < groups; g++) {
            colibri_group *group = groups_of + r * groups + g;
            group->start = 0;
            for (uint32_t i = 0; i < 32u; i++) {
                int32_t v = mode == 3u ? (below(2) ? 127 : -127) : (int32_t)below(255) - 127;
                group->q[i] = (int8_t)(32u * g + i < columns ? v : 0);
                group->start -= 8 * group->q[i];
            }
            group->d = below(9) == 0u ? 0.0f : colibri_float(colibri_magnitude(number(mode)));
        }
    }
}

static uint32_t test_products(uint32_t kernel, uint32_t kind, uint32_t columns, uint32_t mode)
{
    uint64_t tile_bytes = colibri_tile_bytes(kind, columns);
    colibri_product p = {.tiles = tiles, .tile_bytes = tile_bytes, .kind = kind, .columns = columns,
                         .tile_count = MOST_TILES, .row_count = ROWS, .seen = mode & 1u, .rows = rows, .out = right[0],
                         .out_stride = 16 * MOST_TILES + 16};
    call c = {.function = PRODUCTS, .kernel = kernel, .request = &p};
    fill_tiles(kind, MOST_TILES * tile_bytes, mode);
    fill_rows(columns, mode == 3u && kind != COLIBRI_KIND_Q4 && kind != COLIBRI_KIND_Q8 ? 0u : mode);
    colibri_products(COLIBRI_KERNEL_PORTABLE, &p);
    p.out = found[0];
    for (p.tile_count = 1; p.tile_count <= MOST_TILES; p.tile_count++) {
        for (p.row_count = 1; p.row_count <= ROWS; p.row_count++) {
            colibri_fill(found, PATTERN, sizeof found);
            run(&c);
            for (uint32_t r = 0; r < ROWS; r++) {
                uint32_t made = r < p.row_count ? 16u * p.tile_count : 0u;
                for (uint32_t i = 0; i < 16u * MOST_TILES + 16u; i++) {
                    if (i < made ? differ(found[r][i], right[r][i]) : colibri_bits(found[r][i]) != 0x5A5A5A5Au) {
                        return fails(PRODUCTS, kind, columns, p.tile_count, p.row_count, 1000u * mode + 100u * r + i);
                    }
                }
            }
        }
    }
    return 0;
}

/* --- rows --- */

static const uint32_t counts[] = {1, 2, 15, 16, 17, 31, 32, 33, 64, 95, 96, 576, 2048};
enum { COUNTS = sizeof counts / sizeof counts[0], LONG = MOST_COLUMNS + 64 };
static float a[LONG] __attribute__((aligned(16))), b[LONG] __attribute__((aligned(16)));
static float y[2][LONG] __attribute__((aligned(16)));
static colibri_group codes[2][LONG / 32] __attribute__((aligned(16)));
static uint16_t halves[2][LONG] __attribute__((aligned(16)));

/* The k-th of some numbers that are not finite. */
static float not_finite(uint32_t k)
{
    static const uint32_t bits[4] = {0x7F800000u, 0xFF800000u, 0x7FC00000u, 0xFF800001u};
    return colibri_float(bits[k % 4u]);
}

static void patterns(void)
{
    colibri_fill(y, PATTERN, sizeof y);
    colibri_fill(codes, PATTERN, sizeof codes);
    colibri_fill(halves, PATTERN, sizeof halves);
}

static uint32_t test_quantize(uint32_t kernel, uint32_t n, uint32_t mode, uint32_t bad)
{
    call c[2];
    patterns();
    numbers(a, n, mode);
    if (mode == 1u && n > 32u) {                                /* the smallest group that is not zero */
        colibri_fill(a, 0, 128);
        a[below(32)] = colibri_float(0x0D800000u - below(2));
    }
    if (bad) {
        a[below(n)] = not_finite(bad);
    }
    for (uint32_t k = 0; k < 2u; k++) {
        c[k] = (call){.function = QUANTIZE, .kernel = k ? COLIBRI_KERNEL_PORTABLE : kernel, .n = n, .x = a,
                      .bytes = codes[k]};
        run(&c[k]);
    }
    if (c[0].status != c[1].status || c[1].status != (bad != 0u)) {
        return fails(QUANTIZE, n, mode, bad, 0, 0);
    }
    return !bad && differ_bytes(codes[0], codes[1], sizeof codes[0]) ? fails(QUANTIZE, n, mode, 0, 1, 0) : 0;
}

/* Norm, gate and scaled addition; `bad` puts a number that is not finite somewhere. place: y is x (norm). */
static uint32_t test_row(uint32_t kernel, uint32_t function, uint32_t n, uint32_t mode, uint32_t bad)
{
    call c[2];
    patterns();
    numbers(a, n, mode);
    numbers(b, n, mode == 2u ? 0u : mode);
    numbers(y[0], n, function == GATE && mode == 0u ? 1u : mode);
    if (bad) {
        float *where = function == GATE ? y[0] : a;
        where[below(n)] = not_finite(bad);
    }
    if (function == NORM && (mode & 1u)) {
        colibri_copy(y[0], a, 4u * (uint64_t)n);                /* in place */
    }
    colibri_copy(y[1], y[0], sizeof y[0]);
    for (uint32_t k = 0; k < 2u; k++) {
        c[k] = (call){.function = function, .kernel = k ? COLIBRI_KERNEL_PORTABLE : kernel, .n = n, .x = a, .w = b,
                      .y = y[k], .value = b[0]};
        c[k].x = function == NORM && (mode & 1u) ? y[k] : a;
        run(&c[k]);
    }
    int plain = function == ADD_SCALED || function == ADD_POSITIVE;
    if (c[0].status != c[1].status || (bad && !plain && c[1].status != 1)) {
        return fails(function, n, mode, bad, 0, 0);
    }
    if (c[1].status != 0 && !plain) {
        return 0;                                               /* flagged: the row is unspecified */
    }
    return differ_floats(y[0], y[1], LONG) ? fails(function, n, mode, bad, 1, 0) : 0;
}

/* The other gated products and LayerNorm, with and without a bias. */
static uint32_t test_more(uint32_t kernel, uint32_t function, uint32_t n, uint32_t mode, uint32_t bad)
{
    uint32_t first = function == GATE_AS ? COLIBRI_ACTIVATION_CLAMPED : 0u;
    uint32_t last = function == GATE_AS ? COLIBRI_ACTIVATION_GELU_ERF : 1u;
    for (uint32_t kind = first; kind <= last; kind++) {
        call c[2];
        patterns();
        numbers(a, n, mode);
        numbers(b, n, mode == 2u ? 0u : mode);
        numbers(y[0], n, mode);
        if (bad) {
            float *where = function == GATE_AS && (bad & 1u) ? y[0] : a;
            where[below(n)] = not_finite(bad);
        }
        colibri_copy(y[1], y[0], sizeof y[0]);
        for (uint32_t k = 0; k < 2u; k++) {
            c[k] = (call){.function = function, .kernel = k ? COLIBRI_KERNEL_PORTABLE : kernel, .n = n, .x = a, .w = b,
                          .w2 = kind ? b + 8 : 0, .y = y[k], .kind = kind};
            run(&c[k]);
        }
        if (c[0].status != c[1].status || (bad && c[1].status != 1)) {
            return fails(function, n, mode, bad, kind, 0);
        }
        if (c[1].status == 0 && differ_floats(y[0], y[1], LONG)) {
            return fails(function, n, mode, bad, kind, 1);
        }
    }
    return 0;
}

static uint32_t test_sums(uint32_t kernel, uint32_t n, uint32_t mode, uint32_t bad)
{
    call c[2], m[2];
    patterns();
    numbers(a, n, mode);
    numbers(y[0], n, mode == 2u ? 0u : mode);
    float most = y[0][0];
    for (uint32_t i = 1; i < n; i++) {
        most = y[0][i] > most ? y[0][i] : most;
    }
    if (bad) {
        a[below(n)] = not_finite(bad);
    }
    colibri_copy(y[1], y[0], sizeof y[0]);
    for (uint32_t k = 0; k < 2u; k++) {
        uint32_t level = k ? COLIBRI_KERNEL_PORTABLE : kernel;
        c[k] = (call){.function = EXP_SUM, .kernel = level, .n = n, .y = y[k], .value = most};
        m[k] = (call){.function = AMAX, .kernel = level, .n = n, .x = a};
        run(&c[k]);
        run(&m[k]);
    }
    if (differ(c[0].value, c[1].value) || differ_floats(y[0], y[1], LONG)) {
        return fails(EXP_SUM, n, mode, bad, 0, 0);
    }
    if (m[0].status != m[1].status || (bad && (uint32_t)m[1].status < COLIBRI_INFINITY_BITS)) {
        return fails(AMAX, n, mode, bad, (uint32_t)m[0].status, (uint32_t)m[1].status);
    }
    return 0;
}

static uint32_t test_halves(uint32_t kernel, uint32_t n, uint32_t mode)
{
    call c[2];
    patterns();
    for (uint32_t i = 0; i < n; i++) {
        uint32_t bits = draw() ^ draw() << 9;                   /* every number but NaN */
        bits = mode == 1u ? (bits & 0x80000000u) | (0x33000000u + (bits & 0x7FFFFFFFu) % 0x14800000u) : bits;
        a[i] = (bits & 0x7FFFFFFFu) > COLIBRI_INFINITY_BITS ? 65520.0f : colibri_float(bits);
        a[i] = below(20) == 0u ? not_finite(i & 1u) : a[i];
        a[i] = mode == 2u ? colibri_half_to_float((uint16_t)(draw() & 0xFBFFu)) * (1.0f + 0.00048828125f) : a[i];
    }
    for (uint32_t k = 0; k < 2u; k++) {
        c[k] = (call){.function = HALVES, .kernel = k ? COLIBRI_KERNEL_PORTABLE : kernel, .n = n, .x = a,
                      .bytes = halves[k]};
        run(&c[k]);
    }
    return differ_bytes(halves[0], halves[1], sizeof halves[0]) ? fails(HALVES, n, mode, 0, 0, 0) : 0;
}

/* Scores from a position in the first tile to one in the last. */
static uint32_t test_soften(uint32_t kernel, uint32_t first, uint32_t last, uint32_t mode, uint32_t bad)
{
    call c[2];
    colibri_score_span span = {3u * 16u, 48u + first, 48u + last, mode == 2u ? -0.125f : 0.125f, last & 1u, number(0),
                               0};
    for (uint32_t i = 0; i < LONG; i++) {
        y[0][i] = i >= first && i <= last ? number(mode == 2u ? 0u : mode) : colibri_float(0x7FC00000u);
    }
    if (bad) {
        y[0][first + below(last - first + 1u)] = not_finite(bad);
    }
    colibri_copy(y[1], y[0], sizeof y[0]);
    for (uint32_t k = 0; k < 2u; k++) {
        c[k] = (call){.function = SOFTEN, .kernel = k ? COLIBRI_KERNEL_PORTABLE : kernel, .y = y[k], .request = &span};
        run(&c[k]);
    }
    if (c[0].status != c[1].status || c[1].status != (bad != 0u)) {
        return fails(SOFTEN, first, last, mode, bad, 0);
    }
    if (!bad && (differ(c[0].value, c[1].value) || differ_floats(y[0] + first, y[1] + first, last - first + 1u))) {
        return fails(SOFTEN, first, last, mode, bad, 1);
    }
    return 0;
}

/* The same over chosen positions, one at least: what is not chosen is no number. */
static uint32_t test_soften_chosen(uint32_t kernel, uint32_t first, uint32_t last, uint32_t mode, uint32_t bad)
{
    call c[2];
    uint16_t chosen[LONG / 16 + 1];
    colibri_score_span span = {3u * 16u, 48u + first, 48u + last, mode == 2u ? -0.125f : 0.125f, 0, 0.0f,
                               chosen};
    uint32_t one = first + below(last - first + 1u), dense = below(4);
    for (uint32_t t = 0; t < sizeof chosen / sizeof chosen[0]; t++) {
        chosen[t] = (uint16_t)(dense == 3u ? 0xFFFFu : below(65536) & (dense ? 0xFFFFu : below(65536)));
        chosen[t] |= (uint16_t)(t == one / 16u ? 1u << one % 16u : 0u);
    }
    for (uint32_t i = 0; i < LONG; i++) {
        int used = i >= first && i <= last && (chosen[i / 16u] >> i % 16u & 1u) != 0;
        y[0][i] = used ? number(mode == 2u ? 0u : mode) : not_finite(1u + below(3));
    }
    if (bad) {
        y[0][one] = not_finite(bad);
    }
    colibri_copy(y[1], y[0], sizeof y[0]);
    for (uint32_t k = 0; k < 2u; k++) {
        c[k] = (call){.function = SOFTEN_CHOSEN, .kernel = k ? COLIBRI_KERNEL_PORTABLE : kernel, .y = y[k],
                      .request = &span};
        run(&c[k]);
    }
    if (c[0].status != c[1].status || c[1].status != (bad != 0u)) {
        return fails(SOFTEN_CHOSEN, first, last, mode, bad, 0);
    }
    uint32_t whole = (last / 16u + 1u) * 16u;
    if (!bad && (differ(c[0].value, c[1].value) || differ_floats(y[0], y[1], whole))) {
        return fails(SOFTEN_CHOSEN, first, last, mode, bad, 1);
    }
    for (uint32_t i = 0; !bad && dense == 3u && i < whole; i++) {       /* all chosen: what soften gives */
        y[0][i] = number(mode == 2u ? 0u : mode);
        y[1][i] = y[0][i];
    }
    if (!bad && dense == 3u) {
        c[0] = (call){.function = SOFTEN_CHOSEN, .kernel = kernel, .y = y[0], .request = &span};
        c[1] = (call){.function = SOFTEN, .kernel = kernel, .y = y[1], .request = &span};
        run(&c[0]);
        run(&c[1]);
        if (differ(c[0].value, c[1].value) || differ_floats(y[0] + first, y[1] + first, last - first + 1u)) {
            return fails(SOFTEN_CHOSEN, first, last, mode, bad, 2);
        }
    }
    return 0;
}

/* --- the mixture --- */

enum { MOST_DIM = 256, MOST_RING = 24, SPAN = 16 * MOST_RING };
static uint8_t plane[MOST_RING * (16 * MOST_DIM * 4 + 1024)] __attribute__((aligned(64)));
static float scores[ROWS][SPAN] __attribute__((aligned(64)));
static float mixed[2][ROWS * MOST_DIM + 64] __attribute__((aligned(16)));

/* Which positions the rows see. 0: the same; 1: each one more; 2: a window that moves; 3: nothing in common */
static void windows(colibri_mixture *m, uint32_t how, uint32_t start, uint32_t length)
{
    for (uint32_t r = 0; r < ROWS; r++) {
        m->first[r] = start + (how == 2u ? r : how == 3u ? 21u * r : 0u);
        m->last[r] = (how == 3u ? m->first[r] + 4u : start + length - 1u) + (how == 1u || how == 2u ? r : 0u);
        m->sum[r] = colibri_float(colibri_magnitude(number(0)));
    }
}

static int seen(const colibri_mixture *m, uint32_t position)
{
    for (uint32_t r = 0; r < m->row_count; r++) {
        if (position >= m->first[r] && position <= m->last[r]) {
            return 1;
        }
    }
    return 0;
}

/* V where some row looks, NaN elsewhere. */
static void fill_plane(const colibri_mixture *m, uint32_t end, uint32_t mode)
{
    uint32_t dim = m->head_dim, scale_bytes = (dim + 63u) & ~63u;
    for (uint32_t p = m->base; p < end; p++) {
        uint8_t *tile = plane + (uint64_t)(p / 16u % m->ring) * m->tile_bytes;
        int used = seen(m, p);
        for (uint32_t i = 0; i < dim; i++) {
            uint32_t at = (p & 15u) * dim + i;
            if (m->kind == COLIBRI_KV_F32) {
                ((float *)(void *)tile)[at] = used ? number(mode) : colibri_float(0x7FC00000u);
            } else if (m->kind == COLIBRI_KV_F16) {
                ((uint16_t *)(void *)tile)[at] = used ? colibri_half_from_float(number(mode)) : 0x7E00;
            } else {
                ((int8_t *)tile)[scale_bytes + at] = (int8_t)((int32_t)below(255) - 127);
                uint32_t bits = used ? colibri_bits(number(mode)) : 0x7FC00000u;
                ((uint16_t *)(void *)tile)[16u * (i / 32u) + (p & 15u)] = (uint16_t)(bits >> 16);
            }
        }
    }
}

/* Latents in K tiles with a rope key behind them: numbers where some row looks, NaN elsewhere. */
enum { ROPE_KEY = 8 };
static void fill_keys(const colibri_mixture *m, uint32_t end, uint32_t mode)
{
    for (uint32_t p = m->base; p < end; p++) {
        uint8_t *tile = plane + (uint64_t)(p / 16u % m->ring) * m->tile_bytes;
        uint32_t lane = p & 15u;
        int used = seen(m, p);
        for (uint32_t i = 0; i < m->head_dim + ROPE_KEY; i++) {
            int there = used && i < m->head_dim;        /* the rope key is nobody's value */
            if (m->kind == COLIBRI_KV_F32) {
                ((float *)(void *)tile)[16u * i + lane] = there ? number(mode) : colibri_float(0x7FC00000u);
            } else if (m->kind == COLIBRI_KV_F16) {
                ((uint16_t *)(void *)tile)[16u * i + lane] = there ? colibri_half_from_float(number(mode)) : 0x7E00;
            } else {
                uint8_t *pair = tile + i / 64u * COLIBRI_PAIR_Q8_BYTES;
                uint32_t bits = used ? colibri_bits(number(mode)) : 0x7FC00000u;
                pair[i % 64u / 4u * 64u + 4u * lane + i % 4u] = (uint8_t)((int32_t)below(255) - 127);
                ((uint16_t *)(void *)(pair + 1024))[16u * (i % 64u / 32u) + lane] = (uint16_t)(bits >> 16);
            }
        }
    }
}

static uint32_t test_mix(uint32_t kernel, uint32_t latent, uint32_t kind, uint32_t dim, uint32_t how, uint32_t mode)
{
    static const uint32_t bytes_of[3] = {4, 2, 1};
    static const uint32_t kind_of[3] = {COLIBRI_KIND_F32, COLIBRI_KIND_F16, COLIBRI_KIND_Q8};
    uint32_t start = 1000u + below(40), length = 1u + below(90);
    colibri_mixture m = {.plane = plane, .kind = kind, .head_dim = dim, .stride = SPAN, .scores = scores[0]};
    call c = {.function = latent ? MIX_LATENT : MIX, .request = &m};
    windows(&m, how, start, length);
    uint32_t end = (how == 3u ? start + 21u * ROWS : start + length + ROWS) + 16u;
    m.base = start & ~15u;
    m.ring = (end - m.base) / 16u + 1u;
    m.tile_bytes = ((kind == COLIBRI_KV_Q8 ? (dim + 63u) & ~63u : 0u) + 16u * dim * bytes_of[kind] + 63u) & ~63u;
    if (latent) {
        m.tile_bytes = colibri_tile_bytes(kind_of[kind], dim + ROPE_KEY);
    }
    for (m.row_count = 1; m.row_count <= ROWS; m.row_count++) {
        if (latent) {
            fill_keys(&m, end, mode);
        } else {
            fill_plane(&m, end, mode);
        }
        for (uint32_t r = 0; r < m.row_count; r++) {
            for (uint32_t i = 0; i < SPAN; i++) {
                int used = m.base + i >= m.first[r] && m.base + i <= m.last[r];
                scores[r][i] = used ? colibri_float(colibri_magnitude(number(mode))) : colibri_float(0x7FC00000u);
            }
        }
        colibri_fill(mixed, PATTERN, sizeof mixed);
        for (uint32_t k = 0; k < 2u; k++) {
            for (uint32_t r = 0; r < ROWS; r++) {
                m.out[r] = mixed[k] + 16u + r * dim;            /* side by side, as heads are */
            }
            c.kernel = k ? COLIBRI_KERNEL_PORTABLE : kernel;
            run(&c);
        }
        if (differ_floats(mixed[0], mixed[1], ROWS * MOST_DIM + 64)) {
            return fails(c.function, kind, dim, 10u * how + mode, m.row_count, length);
        }
    }
    return 0;
}

#include "levels_sums.h"

/* --- all --- */

static uint32_t all_rows(uint32_t kernel)
{
    for (uint32_t i = 0; i < COUNTS; i++) {
        for (uint32_t round = 0; round < 24u; round++) {
            uint32_t n = counts[i], mode = round % 3u, bad = round % 8u == 7u ? 1u + round / 8u : 0u;
            if (test_quantize(kernel, n, mode, bad) || test_row(kernel, NORM, n, mode, bad) ||
                test_row(kernel, GATE, n, mode, bad) || test_more(kernel, GATE_AS, n, mode, bad) ||
                test_more(kernel, LAYER_NORM, n, mode, bad) || test_row(kernel, ADD_SCALED, n, mode, bad) ||
                test_row(kernel, ADD_POSITIVE, n, mode, 0) ||
                test_sums(kernel, n, mode, bad) || test_halves(kernel, n, mode)) {
                return 1;
            }
        }
    }
    for (uint32_t first = 0; first < 18u; first++) {
        for (uint32_t last = first; last < 70u; last++) {
            uint32_t bad = last % 7u == 6u ? last % 4u : 0u;
            if (test_soften(kernel, first, last, last % 3u, bad) ||
                test_soften_chosen(kernel, first, last, last % 3u, bad)) {
                return 1;
            }
        }
    }
    return 0;
}

static uint32_t all_products(uint32_t kernel)
{
    static const uint32_t columns[] = {1, 2, 3, 5, 31, 32, 33, 64, 95, 96, 576, 2048};
    static const uint32_t kinds[] = {COLIBRI_KIND_F32, COLIBRI_KIND_F16, COLIBRI_KIND_Q8, COLIBRI_KIND_Q4};
    for (uint32_t k = 0; k < 4u; k++) {
        for (uint32_t i = 0; i < sizeof columns / sizeof columns[0]; i++) {
            for (uint32_t mode = 0; mode < 4u; mode++) {
                if (test_products(kernel, kinds[k], columns[i], mode)) {
                    return 1;
                }
            }
        }
    }
    return 0;
}

static uint32_t all_mixtures(uint32_t kernel)
{
    static const uint32_t dims[] = {1, 8, 16, 20, 33, 40, 64, 80, 96, 128, 256};
    for (uint32_t i = 0; i < sizeof dims / sizeof dims[0]; i++) {
        for (uint32_t kind = COLIBRI_KV_F32; kind <= COLIBRI_KV_Q8; kind++) {
            for (uint32_t how = 0; how < 8u; how++) {
                if (test_mix(kernel, 0, kind, dims[i], how % 4u, how / 4u) ||
                    test_mix(kernel, 1, kind, dims[i], how % 4u, how / 4u)) {
                    return 1;
                }
            }
        }
    }
    return 0;
}

uint32_t levels_test(uint32_t kernel)
{
    state = 2463534242u;
    colibri_fill(levels_result, 0, sizeof levels_result);
#if defined(__aarch64__)
    call nothing = {.function = 0};
    if (keeps(make, &nothing) || !keeps(spoil, &nothing)) {
        return fails(REGISTERS, 0, 0, 0, 0, 0);
    }
#endif
    if (colibri_kernel_resolve(kernel) != kernel || colibri_kernel_probe(kernel)) {
        return fails(PROBE, kernel, colibri_kernel_probe(kernel), 0, 0, 0);
    }
    if (all_rows(kernel) || all_products(kernel) || all_mixtures(kernel) || all_crcs(kernel)) {
        return levels_result[0];
    }
    return spoiled ? fails(REGISTERS, spoiled, 0, 0, 0, 0) : 0;
}
