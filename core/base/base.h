/*
 * base.h: what every room of the core stands on: the public types, checked arithmetic, bits of floats.
 * Knows nothing of blobs, pools or models.
 */
#ifndef COLIBRI_BASE_H
#define COLIBRI_BASE_H

#include "colibri.h"

#if defined(__FAST_MATH__) || defined(__FINITE_MATH_ONLY__) && __FINITE_MATH_ONLY__
#error "Colibri's bits need IEEE arithmetic: build without -ffast-math and its parts"
#endif
#if defined(__BYTE_ORDER__) && __BYTE_ORDER__ != __ORDER_LITTLE_ENDIAN__
#error "Colibri blobs and sessions are little-endian"
#endif
#if defined(__FLT_EVAL_METHOD__) && __FLT_EVAL_METHOD__ != 0
#error "Colibri's bits need float operations evaluated as float (no x87)"
#endif

#define COLIBRI_ASSERT_SIZE(type, bytes) \
    typedef char colibri_assert_##type[(sizeof(type) == (bytes)) ? 1 : -1]

enum { COLIBRI_NONE = -1 };                     /* as uint32_t: no layer, no expert, no slot */
#define COLIBRI_NO 0xFFFFFFFFu

static inline uint64_t colibri_round_up(uint64_t n, uint64_t multiple)
{
    return (n + (multiple - 1u)) / multiple * multiple;
}

/* sum and product that remember an overflow in *bad (never cleared here) */
static inline uint64_t colibri_add(uint64_t a, uint64_t b, int *bad)
{
    uint64_t sum = a + b;
    if (sum < a) {
        *bad = 1;
    }
    return sum;
}

/* By halves: the obvious division test becomes a 128-bit multiply from a compiler library on some targets. */
static inline uint64_t colibri_mul(uint64_t a, uint64_t b, int *bad)
{
    uint64_t a_high = a >> 32, a_low = a & 0xFFFFFFFFu;
    uint64_t b_high = b >> 32, b_low = b & 0xFFFFFFFFu;
    uint64_t middle = a_high * b_low + a_low * b_high;      /* one of the two is 0 unless it overflows anyway */
    if ((a_high && b_high) || middle >> 32) {
        *bad = 1;
    }
    return colibri_add(middle << 32, a_low * b_low, bad);
}

static inline uint64_t colibri_round_up_checked(uint64_t n, uint64_t multiple, int *bad)
{
    uint64_t more = colibri_add(n, multiple - 1u, bad);
    return more / multiple * multiple;
}

/* Bits of a float32 and back. A union: well defined in C99 (6.5.2.3), no aliasing question. */
static inline uint32_t colibri_bits(float value)
{
    union { float f; uint32_t u; } both;
    both.f = value;
    return both.u;
}

static inline float colibri_float(uint32_t bits)
{
    union { float f; uint32_t u; } both;
    both.u = bits;
    return both.f;
}

/* Magnitude bits: ordered like |value|; 0x7F800000 and above is an infinity or NaN. */
static inline uint32_t colibri_magnitude(float value)
{
    return colibri_bits(value) & 0x7FFFFFFFu;
}

#define COLIBRI_INFINITY_BITS 0x7F800000u

/* A weight scale is the upper half of a float32: exact widening by a shift. */
static inline float colibri_widen(uint16_t scale)
{
    return colibri_float((uint32_t)scale << 16);
}

/* the CRC32C of two stretches in a row, from theirs: times(first, power(bytes of the second)) ^ second (checksum.c) */
uint32_t colibri_crc_times(uint32_t a, uint32_t b);
uint32_t colibri_crc_power(uint64_t bytes);

/* memory, by our own names (mem.c); mem* of C stay weak for what compilers call by themselves */
void colibri_copy(void *to, const void *from, uint64_t bytes);
void colibri_fill(void *to, uint8_t value, uint64_t bytes);

/* record a refusal; returns status so that callers can `return colibri_refuse(...)` */
static inline int32_t colibri_refuse(colibri_detail *detail, int32_t status, uint32_t section, uint32_t field,
                                     uint32_t index, uint64_t offset, uint64_t expected, uint64_t found)
{
    if (detail) {
        detail->status = status;
        detail->section = section;
        detail->field = field;
        detail->index = index;
        detail->offset = offset;
        detail->expected = expected;
        detail->found = found;
    }
    return status;
}

#endif
