/*
 * choice.c: the known vectors a level has to get right before a session uses it, and which of several right ones is the
 * fastest here. No level changes a bit, so the choice is free.
 */
#include "base/fpenv.h"
#include "kernels/kernels.h"

enum { COLIBRI_PROBE_COLUMNS = 64, COLIBRI_PROBE_ROWS = 5 };

/* Activations and weights with every extreme: -127, 127, 0, all nibbles, scales of both signs. */
static void colibri_probe_fill(uint8_t *tile, uint64_t bytes, uint64_t scales_at, colibri_group *groups)
{
    uint32_t state = 12345;
    for (uint64_t i = 0; i < bytes; i++) {
        state = state * 1664525u + 1013904223u;
        tile[i] = (uint8_t)(state >> 24);
        tile[i] = scales_at == 1024u && tile[i] == 0x80u ? 0x7F : tile[i];      /* a q8 weight is never -128 */
    }
    for (uint32_t i = 0; i < 32u; i++) {
        uint16_t scale = (uint16_t)(0x3C00u + 37u * i + ((i & 3u) == 3u ? 0x8000u : 0u));
        ((uint16_t *)(void *)(tile + scales_at))[i] = scale;
    }
    for (uint32_t g = 0; g < 2u * COLIBRI_PROBE_ROWS; g++) {
        groups[g].start = 0;
        groups[g].d = 0.0078125f * (float)(int32_t)(g + 1u);
        for (uint32_t i = 0; i < COLIBRI_GROUP; i++) {
            state = state * 1664525u + 1013904223u;
            int32_t q = (i & 1u) != 0u ? 127 : (i & 2u) != 0u ? -127 : (int32_t)(state >> 24) - 127;
            groups[g].q[i] = (int8_t)(q > 127 ? 127 : q);
            groups[g].start -= 8 * groups[g].q[i];
        }
    }
}

/* A tile that is used twice, five rows, and what products of them need. */
typedef struct colibri_probe_set {
    uint8_t bytes[COLIBRI_PAIR_Q8_BYTES + COLIBRI_LINE_BYTES];
    colibri_group groups[2 * COLIBRI_PROBE_ROWS];
    colibri_activation rows[COLIBRI_PROBE_ROWS];
    float out[COLIBRI_PROBE_ROWS * 32];
    colibri_product p;
} colibri_probe_set;

static void colibri_probe_make(colibri_probe_set *set, uint32_t kind)
{
    uint64_t pair = kind == COLIBRI_KIND_Q4 ? COLIBRI_PAIR_Q4_BYTES : COLIBRI_PAIR_Q8_BYTES;
    uint64_t skew = (COLIBRI_LINE_BYTES - (uintptr_t)set->bytes % COLIBRI_LINE_BYTES) % COLIBRI_LINE_BYTES;
    uint8_t *tile = set->bytes + skew;
    colibri_probe_fill(tile, pair, pair - COLIBRI_LINE_BYTES, set->groups);
    for (uint32_t r = 0; r < COLIBRI_PROBE_ROWS; r++) {
        set->rows[r].x = 0;
        set->rows[r].groups = set->groups + 2u * r;
    }
    set->p = (colibri_product){tile, 0, kind, COLIBRI_PROBE_COLUMNS, 2, COLIBRI_PROBE_ROWS, 0, 0, set->rows,
                               set->out, 32};
}

/* A product of two tiles with five rows, at this level and at the portable one. */
static __attribute__((noinline)) uint32_t colibri_probe_products(uint32_t kernel, uint32_t kind)
{
    colibri_probe_set set;
    float right[COLIBRI_PROBE_ROWS * 32];
    colibri_probe_make(&set, kind);
    colibri_products(COLIBRI_KERNEL_PORTABLE, &set.p);
    colibri_copy(right, set.out, sizeof right);
    colibri_products(kernel, &set.p);
    uint32_t different = 0;
    for (uint32_t i = 0; i < COLIBRI_PROBE_ROWS * 32u; i++) {
        different |= colibri_bits(set.out[i]) ^ colibri_bits(right[i]);
    }
    return different != 0u;
}

/* exp, division and quantization of numbers of many sizes, a subnormal among them. */
static __attribute__((noinline)) uint32_t colibri_probe_rows(uint32_t kernel)
{
    float x[2][32], u[32];
    colibri_group group[2];
    for (uint32_t i = 0; i < 32u; i++) {
        x[0][i] = x[1][i] = ((float)(int32_t)i - 15.5f) * 1.37f;
        u[i] = colibri_float(0x3F000000u + 40503u * i);
    }
    u[7] = 1.0e-39f;
    uint32_t different = 0;
    for (uint32_t k = 0; k < 2u; k++) {
        uint32_t level = k ? COLIBRI_KERNEL_PORTABLE : kernel;
        different |= (uint32_t)colibri_gate(level, x[k], u, 32);
        different |= (uint32_t)colibri_quantize_row(level, x[k], 32, &group[k]);
    }
    for (uint32_t i = 0; i < 32u; i++) {
        different |= colibri_bits(x[0][i]) ^ colibri_bits(x[1][i]);
        different |= group[0].q[i] != group[1].q[i];
    }
    different |= colibri_bits(group[0].d) ^ colibri_bits(group[1].d);
    return different != 0u || group[0].start != group[1].start;
}

/* The check value of the CRC, continued, and at an odd address. */
static uint32_t colibri_probe_sum(uint32_t kernel)
{
    static const uint8_t digits[20] = "0123456789123456789";
    uint32_t before = 0x12345678u;
    return colibri_crc(kernel, 0, digits + 1, 9) != 0xE3069283u ||
           colibri_crc(kernel, before, digits, sizeof digits) != colibri_crc32c(before, digits, sizeof digits);
}

uint32_t colibri_kernel_probe(uint32_t kernel)
{
    if (kernel == COLIBRI_KERNEL_PORTABLE) {
        return 0;
    }
    if (colibri_probe_products(kernel, COLIBRI_KIND_Q4)) {
        return 11;
    }
    if (colibri_probe_products(kernel, COLIBRI_KIND_Q8)) {
        return 12;
    }
    if (colibri_probe_rows(kernel)) {
        return 13;
    }
    return colibri_probe_sum(kernel) ? 14u : 0u;
}

/* --- the fastest --- */

enum { COLIBRI_CHOICE_ROUNDS = 5, COLIBRI_CHOICE_PRODUCTS = 64 };

/* Nanoseconds of the best round: products of one row and of five with q4 tiles, as decode and prefill have them. */
static uint64_t colibri_kernel_time(uint32_t kernel, colibri_probe_set *set, colibri_clock_hook clock, void *user)
{
    uint64_t best = UINT64_MAX;
    for (uint32_t round = 0; round < COLIBRI_CHOICE_ROUNDS; round++) {
        uint64_t begun = clock(user);           /* hooks are called with the host's float control */
        uint64_t host = colibri_fpenv_enter();
        for (uint32_t i = 0; i < COLIBRI_CHOICE_PRODUCTS; i++) {
            set->p.row_count = i % 2u == 0u ? 1u : COLIBRI_PROBE_ROWS;
            colibri_products(kernel, &set->p);
        }
        colibri_fpenv_leave(host);
        uint64_t taken = clock(user) - begun;
        best = taken < best ? taken : best;
    }
    return best;
}

/* The fastest of levels that are right. Apart from the probe, so that its stack and this one's do not add up. */
static __attribute__((noinline)) uint32_t colibri_kernel_race(uint32_t levels, colibri_clock_hook clock, void *user)
{
    colibri_probe_set set;
    uint32_t chosen = COLIBRI_KERNEL_PORTABLE;
    uint64_t least = UINT64_MAX;
    colibri_probe_make(&set, COLIBRI_KIND_Q4);
    for (uint32_t level = COLIBRI_KERNEL_PORTABLE; level < 32u; level++) {
        if (levels >> level & 1u) {
            uint64_t taken = clock ? colibri_kernel_time(level, &set, clock, user) : 32u - level;
            chosen = taken < least ? level : chosen;
            least = taken < least ? taken : least;
        }
    }
    return chosen;
}

uint32_t colibri_fastest_kernel(uint32_t levels, colibri_clock_hook clock, void *user)
{
    uint32_t right = 0;
    uint64_t host = colibri_fpenv_enter();
    for (uint32_t level = COLIBRI_KERNEL_PORTABLE; level < 32u; level++) {
        if ((levels & colibri_kernels()) >> level & 1u && colibri_kernel_probe(level) == 0u) {
            right |= 1u << level;
        }
    }
    colibri_fpenv_leave(host);
    return colibri_kernel_race(right, clock, user);
}
