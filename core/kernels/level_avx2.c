/*
 * level_avx2.c: the kernels for x86-64 with AVX2 and F16C; see kernels.h. The functions carry their instruction set
 * with them, so that one library holds every level and the port chooses.
 */
#include "kernels/kernels.h"

#if COLIBRI_HAS_X86

#include "kernels/x86_headers.h"

#if defined(__clang__)
#pragma clang attribute push(__attribute__((target("avx2,f16c"))), apply_to = function)
#else
#pragma GCC push_options
#pragma GCC target("avx2,f16c")
#endif

#include "kernels/lanes_avx2.h"

/* The dots of bytes: unsigned times signed, two neighbours added in 16 bits, then all in 32.
 * q4: |two neighbours| <= 2 * 15 * 127 = 3,810, so the 8 lines of a group fit in 16 bits: 30,480; they are widened
 * once. q8: |x| is the unsigned operand and the weight takes its sign: 2 * 127 * 127 = 32,258 fits, widened at
 * every line. */
typedef colibri_lane256_ints colibri_dot256_q4_sum;
typedef colibri_lane256_ints colibri_dot256_q8_sum;
typedef struct colibri_dot256_quad {
    __m256i x, magnitude;
} colibri_dot256_quad;

COLIBRI_INLINE colibri_lane256_ints colibri_dot256_q8_weights(colibri_lane256_line x)
{
    return x;
}

COLIBRI_INLINE colibri_dot256_quad colibri_dot256_quad_load(const int8_t *p)
{
    colibri_dot256_quad quad;
    quad.x = colibri_lane256_four(p);
    quad.magnitude = _mm256_abs_epi8(quad.x);
    return quad;
}

COLIBRI_INLINE colibri_lane256_ints colibri_dot256_q4_begin(const colibri_group *x)
{
    (void)x;
    return colibri_lane256_int_set(0);
}

COLIBRI_INLINE colibri_lane256_ints colibri_dot256_q4_dot(colibri_lane256_ints dots, colibri_lane256_ints w,
                                                           colibri_dot256_quad quad)
{
    dots.a = _mm256_add_epi16(dots.a, _mm256_maddubs_epi16(w.a, quad.x));
    dots.b = _mm256_add_epi16(dots.b, _mm256_maddubs_epi16(w.b, quad.x));
    return dots;
}

COLIBRI_INLINE colibri_lane256_ints colibri_dot256_q4_end(colibri_lane256_ints dots, const colibri_group *x)
{
    __m256i one = _mm256_set1_epi16(1), begin = _mm256_set1_epi32(x->start);
    dots.a = _mm256_add_epi32(begin, _mm256_madd_epi16(dots.a, one));
    dots.b = _mm256_add_epi32(begin, _mm256_madd_epi16(dots.b, one));
    return dots;
}

COLIBRI_INLINE colibri_lane256_ints colibri_dot256_q8_begin(const colibri_group *x)
{
    (void)x;
    return colibri_lane256_int_set(0);
}

COLIBRI_INLINE colibri_lane256_ints colibri_dot256_q8_dot(colibri_lane256_ints dots, colibri_lane256_ints w,
                                                           colibri_dot256_quad quad)
{
    __m256i one = _mm256_set1_epi16(1);
    __m256i a = _mm256_maddubs_epi16(quad.magnitude, _mm256_sign_epi8(w.a, quad.x));
    __m256i b = _mm256_maddubs_epi16(quad.magnitude, _mm256_sign_epi8(w.b, quad.x));
    dots.a = _mm256_add_epi32(dots.a, _mm256_madd_epi16(a, one));
    dots.b = _mm256_add_epi32(dots.b, _mm256_madd_epi16(b, one));
    return dots;
}

COLIBRI_INLINE colibri_lane256_ints colibri_dot256_q8_end(colibri_lane256_ints dots, const colibri_group *x)
{
    (void)x;
    return dots;
}

#define LEVEL(name) colibri_avx2_##name
#define LANE(name) colibri_lane256_##name
#define DOT(name) colibri_dot256_##name
#define LEVEL_ROWS 4u
#define LEVEL_FLOAT_ROWS 4u
#define LEVEL_MIX_ROWS 4u
#define LEVEL_MIX_COLUMNS 1u
#define LEVEL_MIX_LONG 4u
#include "kernels/rows_template.inc"
#include "kernels/mix_template.inc"
#include "kernels/tiles_template.inc"
#include "kernels/level_end.inc"

#if defined(__clang__)
#pragma clang attribute pop
#else
#pragma GCC pop_options
#endif

#endif
