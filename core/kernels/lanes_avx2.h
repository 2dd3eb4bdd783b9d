/*
 * lanes_avx2.h: the lane primitives of rows_template.inc, mix_template.inc and tiles_template.inc for AVX2 with
 * F16C: 16 lanes are two registers. Included inside the target region of level_avx2.c and level_avx_vnni.c; the
 * integer dots of plain AVX2 stand at the end, those of AVX-VNNI in level_avx_vnni.c.
 */
#ifndef COLIBRI_LANES_AVX2_H
#define COLIBRI_LANES_AVX2_H

typedef struct colibri_lane256_floats {
    __m256 a, b;
} colibri_lane256_floats;
typedef struct colibri_lane256_ints {
    __m256i a, b;
} colibri_lane256_ints;

/* A primitive that does the same to both halves. */
#define COLIBRI_LANE256(type, name, operands, first, second) \
    COLIBRI_INLINE colibri_lane256_##type colibri_lane256_##name operands \
    { \
        colibri_lane256_##type result; \
        result.a = first; \
        result.b = second; \
        return result; \
    }
#define COLIBRI_TWO(type) (colibri_lane256_##type x, colibri_lane256_##type y)

COLIBRI_LANE256(floats, set, (float x), _mm256_set1_ps(x), _mm256_set1_ps(x))
COLIBRI_LANE256(floats, load, (const float *p), _mm256_loadu_ps(p), _mm256_loadu_ps(p + 8))
COLIBRI_LANE256(floats, add, COLIBRI_TWO(floats), _mm256_add_ps(x.a, y.a), _mm256_add_ps(x.b, y.b))
COLIBRI_LANE256(floats, sub, COLIBRI_TWO(floats), _mm256_sub_ps(x.a, y.a), _mm256_sub_ps(x.b, y.b))
COLIBRI_LANE256(floats, mul, COLIBRI_TWO(floats), _mm256_mul_ps(x.a, y.a), _mm256_mul_ps(x.b, y.b))
COLIBRI_LANE256(floats, div, COLIBRI_TWO(floats), _mm256_div_ps(x.a, y.a), _mm256_div_ps(x.b, y.b))
COLIBRI_LANE256(floats, max, COLIBRI_TWO(floats), _mm256_max_ps(x.a, y.a), _mm256_max_ps(x.b, y.b))
COLIBRI_LANE256(floats, min, COLIBRI_TWO(floats), _mm256_min_ps(x.a, y.a), _mm256_min_ps(x.b, y.b))
COLIBRI_LANE256(floats, from_bits, (colibri_lane256_ints x), _mm256_castsi256_ps(x.a), _mm256_castsi256_ps(x.b))
COLIBRI_LANE256(floats, to_float, (colibri_lane256_ints x), _mm256_cvtepi32_ps(x.a), _mm256_cvtepi32_ps(x.b))
COLIBRI_LANE256(ints, int_set, (int32_t x), _mm256_set1_epi32(x), _mm256_set1_epi32(x))
COLIBRI_LANE256(ints, bits, (colibri_lane256_floats x), _mm256_castps_si256(x.a), _mm256_castps_si256(x.b))
COLIBRI_LANE256(ints, int_add, COLIBRI_TWO(ints), _mm256_add_epi32(x.a, y.a), _mm256_add_epi32(x.b, y.b))
COLIBRI_LANE256(ints, int_and, COLIBRI_TWO(ints), _mm256_and_si256(x.a, y.a), _mm256_and_si256(x.b, y.b))
COLIBRI_LANE256(ints, int_max, COLIBRI_TWO(ints), _mm256_max_epi32(x.a, y.a), _mm256_max_epi32(x.b, y.b))
COLIBRI_LANE256(ints, shift_left_23, (colibri_lane256_ints x), _mm256_slli_epi32(x.a, 23), _mm256_slli_epi32(x.b, 23))

COLIBRI_INLINE __m128i colibri_lane256_sixteen(const void *p)
{
    return _mm_loadu_si128((const __m128i *)p);
}

COLIBRI_INLINE __m256i colibri_lane256_thirty_two(const uint8_t *p)
{
    return _mm256_loadu_si256((const __m256i *)(const void *)p);
}

COLIBRI_INLINE __m256 colibri_lane256_widen(__m128i scales)
{
    return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(scales), 16));
}

COLIBRI_INLINE __m256 colibri_lane256_from_bytes(__m128i bytes)
{
    return _mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(bytes));
}

COLIBRI_LANE256(floats, load_halves, (const uint16_t *p), _mm256_cvtph_ps(colibri_lane256_sixteen(p)),
                _mm256_cvtph_ps(colibri_lane256_sixteen(p + 8)))
COLIBRI_LANE256(floats, load_scales, (const uint16_t *p), colibri_lane256_widen(colibri_lane256_sixteen(p)),
                colibri_lane256_widen(colibri_lane256_sixteen(p + 8)))
COLIBRI_LANE256(floats, load_bytes, (const int8_t *p), colibri_lane256_from_bytes(colibri_lane256_sixteen(p)),
                colibri_lane256_from_bytes(_mm_srli_si128(colibri_lane256_sixteen(p), 8)))

COLIBRI_INLINE void colibri_lane256_store(float *p, colibri_lane256_floats x)
{
    _mm256_storeu_ps(p, x.a);
    _mm256_storeu_ps(p + 8, x.b);
}

/* Nearest-even; what would be beyond 65504 saturates: of a NaN, min and max give their second operand. */
COLIBRI_INLINE void colibri_lane256_store_halves(uint16_t *p, colibri_lane256_floats x)
{
    __m256 most = _mm256_set1_ps(65504.0f), least = _mm256_set1_ps(-65504.0f);
    __m128i a = _mm256_cvtps_ph(_mm256_min_ps(most, _mm256_max_ps(least, x.a)), _MM_FROUND_TO_NEAREST_INT);
    __m128i b = _mm256_cvtps_ph(_mm256_min_ps(most, _mm256_max_ps(least, x.b)), _MM_FROUND_TO_NEAREST_INT);
    _mm_storeu_si128((__m128i *)(void *)p, a);
    _mm_storeu_si128((__m128i *)(void *)(p + 8), b);
}

/* The low byte of every lane; they are within -128 .. 127, so that packing does not saturate. */
COLIBRI_INLINE void colibri_lane256_store_bytes(int8_t *p, colibri_lane256_ints x)
{
    __m256i words = _mm256_permute4x64_epi64(_mm256_packs_epi32(x.a, x.b), 0xD8);
    __m128i bytes = _mm_packs_epi16(_mm256_castsi256_si128(words), _mm256_extracti128_si256(words, 1));
    _mm_storeu_si128((__m128i *)(void *)p, bytes);
}

COLIBRI_INLINE int32_t colibri_lane256_int_top(colibri_lane256_ints x)
{
    __m256i both = _mm256_max_epi32(x.a, x.b);
    __m128i four = _mm_max_epi32(_mm256_castsi256_si128(both), _mm256_extracti128_si256(both, 1));
    four = _mm_max_epi32(four, _mm_shuffle_epi32(four, 0x4E));
    return _mm_cvtsi128_si32(_mm_max_epi32(four, _mm_shuffle_epi32(four, 0xB1)));
}

COLIBRI_INLINE int32_t colibri_lane256_int_total(colibri_lane256_ints x)
{
    __m256i both = _mm256_add_epi32(x.a, x.b);
    __m128i four = _mm_add_epi32(_mm256_castsi256_si128(both), _mm256_extracti128_si256(both, 1));
    four = _mm_add_epi32(four, _mm_shuffle_epi32(four, 0x4E));
    return _mm_cvtsi128_si32(_mm_add_epi32(four, _mm_shuffle_epi32(four, 0xB1)));
}

COLIBRI_INLINE void colibri_lane256_ahead(const uint8_t *p)
{
    _mm_prefetch((const char *)p, _MM_HINT_T0);
}

/* For what is used a little later: into the second level, so that it does not push out what is used now. */
COLIBRI_INLINE void colibri_lane256_soon(const uint8_t *p)
{
    _mm_prefetch((const char *)p, _MM_HINT_T1);
}

/* --- a line of 16 rows x 4 columns against 4 activations --- */

typedef colibri_lane256_ints colibri_lane256_line;
typedef colibri_lane256_ints colibri_lane256_weights;

COLIBRI_LANE256(ints, line_load, (const uint8_t *p), colibri_lane256_thirty_two(p), colibri_lane256_thirty_two(p + 32))
COLIBRI_LANE256(ints, q4_low, (colibri_lane256_line x), _mm256_and_si256(x.a, _mm256_set1_epi8(15)),
                _mm256_and_si256(x.b, _mm256_set1_epi8(15)))
COLIBRI_LANE256(ints, q4_high, (colibri_lane256_line x),
                _mm256_and_si256(_mm256_srli_epi16(x.a, 4), _mm256_set1_epi8(15)),
                _mm256_and_si256(_mm256_srli_epi16(x.b, 4), _mm256_set1_epi8(15)))

COLIBRI_INLINE __m256i colibri_lane256_four(const int8_t *p)
{
    return _mm256_set1_epi32((int32_t)*(const colibri_row_word *)(const void *)p);
}

#undef COLIBRI_TWO
#undef COLIBRI_LANE256

#endif
