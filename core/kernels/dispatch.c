/*
 * dispatch.c: from a level's number to its functions, by switch; which levels are here, which one AUTO means, and the
 * known vectors a level has to get right before a session uses it.
 */
#include "kernels/kernels.h"

#if COLIBRI_HAS_X86
#define COLIBRI_CASES_X86(call, name, arguments) \
    case COLIBRI_KERNEL_AVX2: call(colibri_avx2_##name arguments); \
    case COLIBRI_KERNEL_AVX_VNNI: call(colibri_avx_vnni_##name arguments); \
    case COLIBRI_KERNEL_AVX512: call(colibri_avx512_##name arguments);
#else
#define COLIBRI_CASES_X86(call, name, arguments)
#endif
#if COLIBRI_HAS_ARM
#define COLIBRI_CASES_ARM(call, name, arguments) \
    case COLIBRI_KERNEL_NEON: call(colibri_neon_##name arguments); \
    case COLIBRI_KERNEL_DOTPROD: call(colibri_dotprod_##name arguments);
#else
#define COLIBRI_CASES_ARM(call, name, arguments)
#endif
#if COLIBRI_HAS_SIMD128
#define COLIBRI_CASES_SIMD128(call, name, arguments) \
    case COLIBRI_KERNEL_SIMD128: call(colibri_simd128_##name arguments);
#else
#define COLIBRI_CASES_SIMD128(call, name, arguments)
#endif
#if COLIBRI_HAS_RELAXED
#define COLIBRI_CASES_RELAXED(call, name, arguments) \
    case COLIBRI_KERNEL_RELAXED: call(colibri_relaxed_##name arguments);
#else
#define COLIBRI_CASES_RELAXED(call, name, arguments)
#endif
#define COLIBRI_GIVE(value) return value
#define COLIBRI_DO(value) value; break
#define COLIBRI_DISPATCH(call, name, arguments) \
    switch (kernel) { \
    COLIBRI_CASES_X86(call, name, arguments) \
    COLIBRI_CASES_ARM(call, name, arguments) \
    COLIBRI_CASES_SIMD128(call, name, arguments) \
    COLIBRI_CASES_RELAXED(call, name, arguments) \
    default: call(colibri_portable_##name arguments); \
    }

void colibri_products(uint32_t kernel, const colibri_product *p)
{
    COLIBRI_DISPATCH(COLIBRI_DO, products, (p))
}

int colibri_quantize_row(uint32_t kernel, const float *x, uint32_t columns, colibri_group *groups)
{
    COLIBRI_DISPATCH(COLIBRI_GIVE, quantize_row, (x, columns, groups))
}

int colibri_rms_norm(uint32_t kernel, float *y, const float *x, const float *w, uint32_t n, float eps)
{
    COLIBRI_DISPATCH(COLIBRI_GIVE, rms_norm, (y, x, w, n, eps))
}

int colibri_gate(uint32_t kernel, float *g, const float *u, uint32_t n)
{
    COLIBRI_DISPATCH(COLIBRI_GIVE, gate, (g, u, n))
}

void colibri_add_scaled(uint32_t kernel, float *y, const float *x, float w, uint32_t n)
{
    COLIBRI_DISPATCH(COLIBRI_DO, add_scaled, (y, x, w, n))
}

float colibri_exp_sum(uint32_t kernel, float *z, uint32_t n, float most)
{
    COLIBRI_DISPATCH(COLIBRI_GIVE, exp_sum, (z, n, most))
}

uint32_t colibri_amax_bits(uint32_t kernel, const float *x, uint32_t n)
{
    COLIBRI_DISPATCH(COLIBRI_GIVE, amax_bits, (x, n))
}

int colibri_soften(uint32_t kernel, float *s, const colibri_score_span *span, float *sum)
{
    COLIBRI_DISPATCH(COLIBRI_GIVE, soften, (s, span, sum))
}

void colibri_mix(uint32_t kernel, const colibri_mixture *m)
{
    COLIBRI_DISPATCH(COLIBRI_DO, mix, (m))
}

void colibri_store_halves(uint32_t kernel, uint16_t *half, const float *x, uint32_t n)
{
    COLIBRI_DISPATCH(COLIBRI_DO, store_halves, (half, x, n))
}

/* --- which levels there are --- */

uint32_t colibri_kernels(void)
{
    uint32_t mask = 1u << COLIBRI_KERNEL_PORTABLE;
#if COLIBRI_HAS_X86
    mask |= 1u << COLIBRI_KERNEL_AVX2 | 1u << COLIBRI_KERNEL_AVX_VNNI | 1u << COLIBRI_KERNEL_AVX512;
#endif
#if COLIBRI_HAS_ARM
    mask |= 1u << COLIBRI_KERNEL_NEON | 1u << COLIBRI_KERNEL_DOTPROD;
#endif
#if COLIBRI_HAS_SIMD128
    mask |= 1u << COLIBRI_KERNEL_SIMD128;
#endif
#if COLIBRI_HAS_RELAXED
    mask |= 1u << COLIBRI_KERNEL_RELAXED;
#endif
    return mask;
}

static uint32_t colibri_kernel_auto(void)
{
#if COLIBRI_HAS_RELAXED
    return COLIBRI_KERNEL_RELAXED;
#elif COLIBRI_HAS_SIMD128
    return COLIBRI_KERNEL_SIMD128;
#elif COLIBRI_HAS_ARM && defined(__ARM_FEATURE_DOTPROD)
    return COLIBRI_KERNEL_DOTPROD;
#elif COLIBRI_HAS_ARM
    return COLIBRI_KERNEL_NEON;
#elif COLIBRI_HAS_X86 && defined(__AVX512VNNI__) && defined(__AVX512BW__) && defined(__AVX512VL__)
    return COLIBRI_KERNEL_AVX512;
#elif COLIBRI_HAS_X86 && defined(__AVXVNNI__)
    return COLIBRI_KERNEL_AVX_VNNI;
#elif COLIBRI_HAS_X86 && defined(__AVX2__) && defined(__F16C__)
    return COLIBRI_KERNEL_AVX2;
#else
    return COLIBRI_KERNEL_PORTABLE;
#endif
}

uint32_t colibri_kernel_resolve(uint32_t kernel)
{
    uint32_t level = kernel == COLIBRI_KERNEL_AUTO ? colibri_kernel_auto() : kernel;
    return level < 32u && (colibri_kernels() >> level & 1u) != 0u ? level : 0u;
}

/* --- known vectors --- */

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

/* A product of two tiles with five rows, at this level and at the portable one. */
static uint32_t colibri_probe_products(uint32_t kernel, uint32_t kind)
{
    uint8_t bytes[2 * COLIBRI_PAIR_Q8_BYTES + COLIBRI_LINE_BYTES];
    colibri_group groups[2 * COLIBRI_PROBE_ROWS];
    float found[COLIBRI_PROBE_ROWS * 32], right[COLIBRI_PROBE_ROWS * 32];
    colibri_activation rows[COLIBRI_PROBE_ROWS];
    uint8_t *tile = bytes + (COLIBRI_LINE_BYTES - (uintptr_t)bytes % COLIBRI_LINE_BYTES) % COLIBRI_LINE_BYTES;
    uint64_t pair = kind == COLIBRI_KIND_Q4 ? COLIBRI_PAIR_Q4_BYTES : COLIBRI_PAIR_Q8_BYTES;
    colibri_probe_fill(tile, pair, pair - COLIBRI_LINE_BYTES, groups);
    colibri_copy(tile + pair, tile, pair);
    for (uint32_t r = 0; r < COLIBRI_PROBE_ROWS; r++) {
        rows[r].x = 0;
        rows[r].groups = groups + 2u * r;
    }
    colibri_product p = {tile, pair, kind, COLIBRI_PROBE_COLUMNS, 2, COLIBRI_PROBE_ROWS, 0, 0, rows, found, 32};
    colibri_products(kernel, &p);
    p.out = right;
    colibri_products(COLIBRI_KERNEL_PORTABLE, &p);
    uint32_t different = 0;
    for (uint32_t i = 0; i < COLIBRI_PROBE_ROWS * 32u; i++) {
        different |= colibri_bits(found[i]) ^ colibri_bits(right[i]);
    }
    return different != 0u;
}

/* exp, division and quantization of numbers of many sizes, a subnormal among them. */
static uint32_t colibri_probe_rows(uint32_t kernel)
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
    return colibri_probe_rows(kernel) ? 13u : 0u;
}
