/*
 * level_avx_vnni.c: the kernels for x86-64 with AVX2, F16C and AVX-VNNI; see kernels.h. The functions carry their
 * instruction set with them, so that one library holds every level and the port chooses.
 */
#include "kernels/kernels.h"

#if COLIBRI_HAS_X86

#include "kernels/x86_headers.h"

#if defined(__clang__)
#pragma clang attribute push(__attribute__((target("avx2,f16c,avxvnni"))), apply_to = function)
#else
#pragma GCC push_options
#pragma GCC target("avx2,f16c,avxvnni")
#endif

#include "kernels/lanes_avx2.h"

/* The dot of four unsigned by four signed bytes in one instruction; q8 weights enter as w + 128, whose excess q8_begin
 * takes off beforehand. */
typedef colibri_lane256_ints colibri_vnni_q4_sum;
typedef colibri_lane256_ints colibri_vnni_q8_sum;
typedef __m256i colibri_vnni_quad;

COLIBRI_INLINE colibri_lane256_ints colibri_vnni_q8_weights(colibri_lane256_line x)
{
    x.a = _mm256_xor_si256(x.a, _mm256_set1_epi8((char)-128));
    x.b = _mm256_xor_si256(x.b, _mm256_set1_epi8((char)-128));
    return x;
}

COLIBRI_INLINE __m256i colibri_vnni_quad_load(const int8_t *p)
{
    return colibri_lane256_four(p);
}

COLIBRI_INLINE colibri_lane256_ints colibri_vnni_q4_begin(const colibri_group *x)
{
    return colibri_lane256_int_set(x->start);
}

COLIBRI_INLINE colibri_lane256_ints colibri_vnni_q4_dot(colibri_lane256_ints dots, colibri_lane256_ints w, __m256i quad)
{
    dots.a = _mm256_dpbusd_avx_epi32(dots.a, w.a, quad);
    dots.b = _mm256_dpbusd_avx_epi32(dots.b, w.b, quad);
    return dots;
}

COLIBRI_INLINE colibri_lane256_ints colibri_vnni_q4_end(colibri_lane256_ints dots, const colibri_group *x)
{
    (void)x;
    return dots;
}

COLIBRI_INLINE colibri_lane256_ints colibri_vnni_q8_begin(const colibri_group *x)
{
    return colibri_lane256_int_set(16 * x->start);
}

COLIBRI_INLINE colibri_lane256_ints colibri_vnni_q8_dot(colibri_lane256_ints dots, colibri_lane256_ints w, __m256i quad)
{
    return colibri_vnni_q4_dot(dots, w, quad);
}

COLIBRI_INLINE colibri_lane256_ints colibri_vnni_q8_end(colibri_lane256_ints dots, const colibri_group *x)
{
    (void)x;
    return dots;
}

#define LEVEL(name) colibri_avx_vnni_##name
#define LANE(name) colibri_lane256_##name
#define DOT(name) colibri_vnni_##name
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
