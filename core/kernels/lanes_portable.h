/*
 * lanes_portable.h: the lane primitives of rows_template.inc and mix_template.inc in plain C: what every
 * instruction set means by them.
 */
#ifndef COLIBRI_LANES_PORTABLE_H
#define COLIBRI_LANES_PORTABLE_H

#include "kernels/kernels.h"

/* A sanitizer checks every operation of every lane: inlined into each other they take a compiler four minutes. */
#if defined(__SANITIZE_ADDRESS__)
#define COLIBRI_LANE1_INLINE static __attribute__((noinline, unused))
#else
#define COLIBRI_LANE1_INLINE COLIBRI_INLINE
#endif

typedef struct colibri_lane1_floats {
    float v[16];
} colibri_lane1_floats;
typedef struct colibri_lane1_ints {
    int32_t v[16];
} colibri_lane1_ints;

/* A primitive that makes one value a lane out of the lanes of its operands. */
#define COLIBRI_LANE1(type, name, operands, expression) \
    COLIBRI_LANE1_INLINE colibri_lane1_##type colibri_lane1_##name operands \
    { \
        colibri_lane1_##type result; \
        for (int i = 0; i < 16; i++) { \
            result.v[i] = (expression); \
        } \
        return result; \
    }
#define COLIBRI_TWO(type) (colibri_lane1_##type a, colibri_lane1_##type b)

COLIBRI_LANE1(floats, set, (float x), x)
COLIBRI_LANE1(floats, load, (const float *p), p[i])
COLIBRI_LANE1(floats, add, COLIBRI_TWO(floats), a.v[i] + b.v[i])
COLIBRI_LANE1(floats, sub, COLIBRI_TWO(floats), a.v[i] - b.v[i])
COLIBRI_LANE1(floats, mul, COLIBRI_TWO(floats), a.v[i] * b.v[i])
COLIBRI_LANE1(floats, div, COLIBRI_TWO(floats), a.v[i] / b.v[i])
COLIBRI_LANE1(floats, max, COLIBRI_TWO(floats), a.v[i] > b.v[i] ? a.v[i] : b.v[i])
COLIBRI_LANE1(floats, min, COLIBRI_TWO(floats), a.v[i] < b.v[i] ? a.v[i] : b.v[i])
COLIBRI_LANE1(floats, load_halves, (const uint16_t *p), colibri_half_to_float(p[i]))
COLIBRI_LANE1(floats, load_scales, (const uint16_t *p), colibri_widen(p[i]))
COLIBRI_LANE1(floats, load_bytes, (const int8_t *p), (float)p[i])
COLIBRI_LANE1(floats, from_bits, (colibri_lane1_ints a), colibri_float((uint32_t)a.v[i]))
COLIBRI_LANE1(floats, to_float, (colibri_lane1_ints a), (float)a.v[i])
COLIBRI_LANE1(ints, int_set, (int32_t x), x)
COLIBRI_LANE1(ints, bits, (colibri_lane1_floats a), (int32_t)colibri_bits(a.v[i]))
COLIBRI_LANE1(ints, int_add, COLIBRI_TWO(ints), (int32_t)((uint32_t)a.v[i] + (uint32_t)b.v[i]))
COLIBRI_LANE1(ints, int_and, COLIBRI_TWO(ints), a.v[i] & b.v[i])
COLIBRI_LANE1(ints, int_max, COLIBRI_TWO(ints), a.v[i] > b.v[i] ? a.v[i] : b.v[i])
COLIBRI_LANE1(ints, shift_left_23, (colibri_lane1_ints a), (int32_t)((uint32_t)a.v[i] << 23))

#undef COLIBRI_TWO
#undef COLIBRI_LANE1

COLIBRI_LANE1_INLINE void colibri_lane1_store(float *p, colibri_lane1_floats a)
{
    for (int i = 0; i < 16; i++) {
        p[i] = a.v[i];
    }
}

COLIBRI_LANE1_INLINE void colibri_lane1_store_halves(uint16_t *p, colibri_lane1_floats a)
{
    for (int i = 0; i < 16; i++) {
        p[i] = colibri_half_from_float(a.v[i]);
    }
}

COLIBRI_LANE1_INLINE void colibri_lane1_store_bytes(int8_t *p, colibri_lane1_ints a)
{
    for (int i = 0; i < 16; i++) {
        p[i] = (int8_t)a.v[i];
    }
}

COLIBRI_LANE1_INLINE int32_t colibri_lane1_int_top(colibri_lane1_ints a)
{
    int32_t top = a.v[0];
    for (int i = 1; i < 16; i++) {
        top = a.v[i] > top ? a.v[i] : top;
    }
    return top;
}

COLIBRI_LANE1_INLINE int32_t colibri_lane1_int_total(colibri_lane1_ints a)
{
    int32_t total = 0;
    for (int i = 0; i < 16; i++) {
        total += a.v[i];
    }
    return total;
}

COLIBRI_LANE1_INLINE void colibri_lane1_ahead(const uint8_t *p)
{
    (void)p;
}

#endif
