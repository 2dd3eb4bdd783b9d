/*
 * lanes_avx512.h: the lane primitives of rows_template.inc and tiles_template.inc for AVX-512 with VNNI: 16 float lanes
 * are one register. Included inside the target region of level_avx512.c.
 */
#ifndef COLIBRI_LANES_AVX512_H
#define COLIBRI_LANES_AVX512_H

typedef __m512 colibri_lane512_floats;
typedef __m512i colibri_lane512_ints;

/* --- floats --- */

COLIBRI_INLINE __m512 colibri_lane512_set(float x)
{
    return _mm512_set1_ps(x);
}

COLIBRI_INLINE __m512 colibri_lane512_load(const float *p)
{
    return _mm512_loadu_ps(p);
}

COLIBRI_INLINE void colibri_lane512_store(float *p, __m512 a)
{
    _mm512_storeu_ps(p, a);
}

COLIBRI_INLINE __m512 colibri_lane512_add(__m512 a, __m512 b)
{
    return _mm512_add_ps(a, b);
}

COLIBRI_INLINE __m512 colibri_lane512_sub(__m512 a, __m512 b)
{
    return _mm512_sub_ps(a, b);
}

COLIBRI_INLINE __m512 colibri_lane512_mul(__m512 a, __m512 b)
{
    return _mm512_mul_ps(a, b);
}

COLIBRI_INLINE __m512 colibri_lane512_div(__m512 a, __m512 b)
{
    return _mm512_div_ps(a, b);
}

COLIBRI_INLINE __m512 colibri_lane512_max(__m512 a, __m512 b)
{
    return _mm512_max_ps(a, b);
}

COLIBRI_INLINE __m512 colibri_lane512_min(__m512 a, __m512 b)
{
    return _mm512_min_ps(a, b);
}

COLIBRI_INLINE __m512 colibri_lane512_load_halves(const uint16_t *p)
{
    return _mm512_cvtph_ps(_mm256_loadu_si256((const __m256i *)(const void *)p));
}

COLIBRI_INLINE __m512 colibri_lane512_load_scales(const uint16_t *p)
{
    __m256i s = _mm256_loadu_si256((const __m256i *)(const void *)p);
    return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(s), 16));
}

COLIBRI_INLINE __m512 colibri_lane512_load_bytes(const int8_t *p)
{
    return _mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(_mm_loadu_si128((const __m128i *)(const void *)p)));
}

/* Nearest-even; what would be beyond 65504 saturates, NaN stays NaN. */
COLIBRI_INLINE void colibri_lane512_store_halves(uint16_t *p, __m512 a)
{
    __m512 most = _mm512_set1_ps(65504.0f), least = _mm512_set1_ps(-65504.0f);
    __m512 b = _mm512_min_ps(most, _mm512_max_ps(least, a));    /* of a NaN, min and max give their second operand */
    _mm256_storeu_si256((__m256i *)(void *)p, _mm512_cvtps_ph(b, _MM_FROUND_TO_NEAREST_INT));
}

/* --- ints --- */

COLIBRI_INLINE __m512i colibri_lane512_int_set(int32_t x)
{
    return _mm512_set1_epi32(x);
}

COLIBRI_INLINE __m512i colibri_lane512_bits(__m512 a)
{
    return _mm512_castps_si512(a);
}

COLIBRI_INLINE __m512 colibri_lane512_from_bits(__m512i a)
{
    return _mm512_castsi512_ps(a);
}

COLIBRI_INLINE __m512i colibri_lane512_int_add(__m512i a, __m512i b)
{
    return _mm512_add_epi32(a, b);
}

COLIBRI_INLINE __m512i colibri_lane512_int_and(__m512i a, __m512i b)
{
    return _mm512_and_si512(a, b);
}

COLIBRI_INLINE __m512i colibri_lane512_int_max(__m512i a, __m512i b)
{
    return _mm512_max_epi32(a, b);
}

COLIBRI_INLINE __m512i colibri_lane512_shift_left_23(__m512i a)
{
    return _mm512_slli_epi32(a, 23);
}

COLIBRI_INLINE __m512 colibri_lane512_to_float(__m512i a)
{
    return _mm512_cvtepi32_ps(a);
}

COLIBRI_INLINE int32_t colibri_lane512_int_top(__m512i a)
{
    return _mm512_reduce_max_epi32(a);
}

COLIBRI_INLINE int32_t colibri_lane512_int_total(__m512i a)
{
    return _mm512_reduce_add_epi32(a);
}

/* The low byte of every lane. */
COLIBRI_INLINE void colibri_lane512_store_bytes(int8_t *p, __m512i a)
{
    _mm_storeu_si128((__m128i *)(void *)p, _mm512_cvtepi32_epi8(a));
}

/* --- a line of 16 rows x 4 columns against 4 activations --- */

typedef __m512i colibri_lane512_line;
typedef __m512i colibri_lane512_weights;
typedef __m512i colibri_dot512_quad;
typedef __m512i colibri_dot512_q4_sum;
typedef __m512i colibri_dot512_q8_sum;

COLIBRI_INLINE void colibri_lane512_ahead(const uint8_t *p)
{
    _mm_prefetch((const char *)p, _MM_HINT_T0);
}

/* For what is used a little later: into the second level, so that it does not push out what is used now. */
COLIBRI_INLINE void colibri_lane512_soon(const uint8_t *p)
{
    _mm_prefetch((const char *)p, _MM_HINT_T1);
}

COLIBRI_INLINE __m512i colibri_lane512_line_load(const uint8_t *p)
{
    return _mm512_loadu_si512((const void *)p);
}

COLIBRI_INLINE __m512i colibri_lane512_q4_low(__m512i line)
{
    return _mm512_and_si512(line, _mm512_set1_epi8(15));
}

COLIBRI_INLINE __m512i colibri_lane512_q4_high(__m512i line)
{
    return _mm512_and_si512(_mm512_srli_epi16(line, 4), _mm512_set1_epi8(15));
}

/* The dot takes one unsigned operand: w + 128, whose excess q8_begin takes off beforehand. */
COLIBRI_INLINE __m512i colibri_dot512_q8_weights(__m512i line)
{
    return _mm512_xor_si512(line, _mm512_set1_epi8((char)-128));
}

COLIBRI_INLINE __m512i colibri_dot512_quad_load(const int8_t *p)
{
    return _mm512_set1_epi32((int32_t)*(const colibri_row_word *)(const void *)p);
}

COLIBRI_INLINE __m512i colibri_dot512_q4_begin(const colibri_group *x)
{
    return _mm512_set1_epi32(x->start);
}

COLIBRI_INLINE __m512i colibri_dot512_q4_dot(__m512i sum, __m512i w, __m512i quad)
{
    return _mm512_dpbusd_epi32(sum, w, quad);
}

COLIBRI_INLINE __m512i colibri_dot512_q4_end(__m512i dots, const colibri_group *x)
{
    (void)x;
    return dots;
}

COLIBRI_INLINE __m512i colibri_dot512_q8_begin(const colibri_group *x)
{
    return _mm512_slli_epi32(_mm512_set1_epi32(x->start), 4);
}

COLIBRI_INLINE __m512i colibri_dot512_q8_dot(__m512i sum, __m512i w, __m512i quad)
{
    return _mm512_dpbusd_epi32(sum, w, quad);
}

COLIBRI_INLINE __m512i colibri_dot512_q8_end(__m512i dots, const colibri_group *x)
{
    (void)x;
    return dots;
}

#endif
