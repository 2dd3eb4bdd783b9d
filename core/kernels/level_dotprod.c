/*
 * level_dotprod.c: the kernels for ARM64 with the dot product instructions of ARMv8.2; see kernels.h. The functions
 * carry their instruction set with them, so that one library holds every level and the port chooses.
 */
#include "kernels/kernels.h"

#if COLIBRI_HAS_ARM

#include "kernels/lanes_neon.h"         /* outside the region: level_neon.c uses it too, in the one-file build */

#if defined(__ARM_FEATURE_DOTPROD)
/* the build's own flags say it already */
#elif defined(__clang__)
#pragma clang attribute push(__attribute__((target("dotprod"))), apply_to = function)
#else
#pragma GCC push_options
#pragma GCC target("arch=armv8.2-a+dotprod")
#endif

/* Signed by signed bytes, four products to a lane: nibbles 0 .. 15 and q8 weights enter as they are. */
typedef int32x4_t colibri_sdot_q4_sum;
typedef int32x4_t colibri_sdot_q8_sum;

COLIBRI_INLINE int32x4_t colibri_sdot_q4_begin(int32x4_t start)
{
    return start;
}

COLIBRI_INLINE int32x4_t colibri_sdot_q4_end(int32x4_t dots, int32x4_t start)
{
    (void)start;
    return dots;
}

COLIBRI_INLINE int32x4_t colibri_sdot_q8_begin(void)
{
    return vdupq_n_s32(0);
}

COLIBRI_INLINE int32x4_t colibri_sdot_q8_end(int32x4_t dots)
{
    return dots;
}

typedef int8x16_t colibri_sdot_quads;

COLIBRI_INLINE int8x16_t colibri_sdot_quads_of(int8x16_t x, uint32_t step)
{
    (void)step;
    return x;
}

/* The empty instruction keeps the order: left alone, the compilers load and unpack a whole group at once and save
 * registers on the stack. */
COLIBRI_INLINE void colibri_sdot_q8_dot(int32x4_t *dots, int8x16_t w, int8x16_t v, int8x16_t x, uint32_t step)
{
    if (step % 2u == 0u) {
        *dots = vdotq_laneq_s32(vdotq_laneq_s32(*dots, w, x, 0), v, x, 1);
    } else {
        *dots = vdotq_laneq_s32(vdotq_laneq_s32(*dots, w, x, 2), v, x, 3);
    }
    __asm__ volatile("" : "+w"(*dots));
}

COLIBRI_INLINE void colibri_sdot_q4_dot(int32x4_t *dots, int8x16_t w, int8x16_t v, int8x16_t x, uint32_t step)
{
    colibri_sdot_q8_dot(dots, w, v, x, step);
}

enum { colibri_sdot_q8_pairs = 1 };

#define LEVEL(name) colibri_dotprod_##name
#define DOT(name) colibri_sdot_##name
#define COLIBRI_TEMPLATE COLIBRI_INLINE
#include "kernels/tiles_arm.inc"
#include "kernels/level_end.inc"

#if defined(__ARM_FEATURE_DOTPROD)
#elif defined(__clang__)
#pragma clang attribute pop
#else
#pragma GCC pop_options
#endif

void colibri_dotprod_products(const colibri_product *p)
{
    switch (p->kind) {
    case COLIBRI_KIND_Q8: colibri_dotprod_q8_strips(p); break;
    case COLIBRI_KIND_Q4: colibri_dotprod_q4_strips(p); break;
    default: colibri_neon_products(p); break;
    }
}

/* Nothing else has integer dots in it. */

int colibri_dotprod_quantize_row(const float *x, uint32_t columns, colibri_group *groups)
{
    return colibri_neon_quantize_row(x, columns, groups);
}

int colibri_dotprod_rms_norm(float *y, const float *x, const float *w, uint32_t n, float eps)
{
    return colibri_neon_rms_norm(y, x, w, n, eps);
}

int colibri_dotprod_gate(float *g, const float *u, uint32_t n)
{
    return colibri_neon_gate(g, u, n);
}

int colibri_dotprod_gate_as(float *g, const float *u, uint32_t n, uint32_t kind, float limit)
{
    return colibri_neon_gate_as(g, u, n, kind, limit);
}

int colibri_dotprod_layer_norm(float *y, const float *x, const float *w, const float *b, uint32_t n, float eps)
{
    return colibri_neon_layer_norm(y, x, w, b, n, eps);
}

void colibri_dotprod_add_scaled(float *y, const float *x, float w, uint32_t n)
{
    colibri_neon_add_scaled(y, x, w, n);
}

float colibri_dotprod_exp_sum(float *z, uint32_t n, float most)
{
    return colibri_neon_exp_sum(z, n, most);
}

uint32_t colibri_dotprod_amax_bits(const float *x, uint32_t n)
{
    return colibri_neon_amax_bits(x, n);
}

int colibri_dotprod_soften(float *s, const colibri_score_span *span, float *sum)
{
    return colibri_neon_soften(s, span, sum);
}

int colibri_dotprod_soften_chosen(float *s, const colibri_score_span *span, float *sum)
{
    return colibri_neon_soften_chosen(s, span, sum);
}

void colibri_dotprod_add_positive(float *y, const float *x, float scale, float w, uint32_t n)
{
    colibri_neon_add_positive(y, x, scale, w, n);
}

void colibri_dotprod_mix_latent(const colibri_mixture *m)
{
    colibri_neon_mix_latent(m);
}

void colibri_dotprod_mix(const colibri_mixture *m)
{
    colibri_neon_mix(m);
}

void colibri_dotprod_store_halves(uint16_t *half, const float *x, uint32_t n)
{
    colibri_neon_store_halves(half, x, n);
}

#endif
