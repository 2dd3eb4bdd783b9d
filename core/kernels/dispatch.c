/*
 * dispatch.c: from a level's number to its functions, by switch; which levels are here and which one AUTO means.
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

int colibri_gate_as(uint32_t kernel, float *g, const float *u, uint32_t n, uint32_t kind, float limit)
{
    COLIBRI_DISPATCH(COLIBRI_GIVE, gate_as, (g, u, n, kind, limit))
}

int colibri_layer_norm(uint32_t kernel, float *y, const float *x, const float *w, const float *b, uint32_t n, float eps)
{
    COLIBRI_DISPATCH(COLIBRI_GIVE, layer_norm, (y, x, w, b, n, eps))
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

int colibri_soften_chosen(uint32_t kernel, float *s, const colibri_score_span *span, float *sum)
{
    COLIBRI_DISPATCH(COLIBRI_GIVE, soften_chosen, (s, span, sum))
}

void colibri_add_positive(uint32_t kernel, float *y, const float *x, float scale, float w, uint32_t n)
{
    COLIBRI_DISPATCH(COLIBRI_DO, add_positive, (y, x, scale, w, n))
}

void colibri_mix(uint32_t kernel, const colibri_mixture *m)
{
    COLIBRI_DISPATCH(COLIBRI_DO, mix, (m))
}

void colibri_mix_latent(uint32_t kernel, const colibri_mixture *m)
{
    COLIBRI_DISPATCH(COLIBRI_DO, mix_latent, (m))
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
