/*
 * lanes_simd128.h: the lane primitives of rows_template.inc and mix_template.inc for WebAssembly SIMD: 16 lanes are
 * four vectors. Only operations with one answer on every engine: of the relaxed ones none is here.
 */
#ifndef COLIBRI_LANES_SIMD128_H
#define COLIBRI_LANES_SIMD128_H

#include <wasm_simd128.h>

typedef struct colibri_lane128_floats {
    v128_t v[4];
} colibri_lane128_floats;
typedef struct colibri_lane128_ints {
    v128_t v[4];
} colibri_lane128_ints;

/* A constant that stays in a register or on the stack: compilers put wasm constants beside each use, and engines
 * make each of them anew there, out of three instructions. */
COLIBRI_INLINE v128_t colibri_lane128_keep(v128_t x)
{
    __asm__("" : "+r"(x));
    return x;
}

COLIBRI_INLINE v128_t colibri_lane128_same(float x)
{
    return __builtin_constant_p(x) ? colibri_lane128_keep(wasm_f32x4_splat(x)) : wasm_f32x4_splat(x);
}

/* A primitive that does the same to all four quarters; i is the quarter. */
#define COLIBRI_LANE128(type, name, operands, expression) \
    COLIBRI_INLINE colibri_lane128_##type colibri_lane128_##name operands \
    { \
        colibri_lane128_##type result; \
        for (int i = 0; i < 4; i++) { \
            result.v[i] = (expression); \
        } \
        return result; \
    }
#define COLIBRI_TWO(type) (colibri_lane128_##type a, colibri_lane128_##type b)

/* Exact: sign and magnitude to their places, then 2^112 for the exponent's other bias, which makes subnormals right as
 * well. An exponent of 31 stands at 2^16 after that and becomes the one of infinities and NaN. */
COLIBRI_INLINE v128_t colibri_lane128_widen_halves(v128_t half)
{
    v128_t mask = colibri_lane128_keep(wasm_u32x4_const_splat(0x8FFFE000u));
    v128_t placed = wasm_v128_and(wasm_i32x4_shl(half, 13), mask);
    v128_t value = wasm_f32x4_mul(placed, colibri_lane128_keep(wasm_i32x4_const_splat(0x77800000)));
    v128_t exponent = colibri_lane128_keep(wasm_i32x4_const_splat(0x0F800000));
    v128_t special = wasm_i32x4_eq(wasm_v128_and(placed, exponent), exponent);
    return wasm_v128_or(value, wasm_v128_and(special, colibri_lane128_keep(wasm_i32x4_const_splat(0x7F800000))));
}

/* colibri_half_from_float on four lanes, for everything but NaN. */
COLIBRI_INLINE v128_t colibri_lane128_narrow_halves(v128_t x)
{
    v128_t sign = wasm_v128_and(wasm_u32x4_shr(x, 16), wasm_i32x4_const_splat(0x8000));
    v128_t m = wasm_v128_and(x, wasm_i32x4_const_splat(0x7FFFFFFF));
    m = wasm_i32x4_min(m, wasm_i32x4_const_splat(0x477FE000));          /* 65504 */
    v128_t odd = wasm_v128_and(wasm_u32x4_shr(m, 13), wasm_i32x4_const_splat(1));
    v128_t normal = wasm_i32x4_add(wasm_i32x4_add(m, odd), wasm_i32x4_const_splat(0xFFF - 0x38000000));
    v128_t tiny = wasm_i32x4_sub(wasm_f32x4_add(m, wasm_f32x4_const_splat(0.5f)), wasm_i32x4_const_splat(0x3F000000));
    v128_t below = wasm_i32x4_lt(m, wasm_i32x4_const_splat(0x38800000));        /* 2^-14 */
    return wasm_v128_or(sign, wasm_v128_bitselect(tiny, wasm_u32x4_shr(normal, 13), below));
}

/* Quarter i of 16 signed bytes. */
COLIBRI_INLINE v128_t colibri_lane128_four_bytes(const int8_t *p)
{
    return wasm_i32x4_extend_low_i16x8(wasm_i16x8_extend_low_i8x16(wasm_v128_load32_zero(p)));
}

COLIBRI_LANE128(floats, set, (float x), colibri_lane128_same(x))
COLIBRI_LANE128(floats, load, (const float *p), wasm_v128_load(p + 4 * i))
COLIBRI_LANE128(floats, add, COLIBRI_TWO(floats), wasm_f32x4_add(a.v[i], b.v[i]))
COLIBRI_LANE128(floats, sub, COLIBRI_TWO(floats), wasm_f32x4_sub(a.v[i], b.v[i]))
COLIBRI_LANE128(floats, mul, COLIBRI_TWO(floats), wasm_f32x4_mul(a.v[i], b.v[i]))
COLIBRI_LANE128(floats, div, COLIBRI_TWO(floats), wasm_f32x4_div(a.v[i], b.v[i]))
/* the pseudo-maximum is a comparison and a choice: b < a ? a : b */
COLIBRI_LANE128(floats, max, COLIBRI_TWO(floats), wasm_f32x4_pmax(b.v[i], a.v[i]))
COLIBRI_LANE128(floats, min, COLIBRI_TWO(floats), wasm_f32x4_pmin(b.v[i], a.v[i]))
COLIBRI_LANE128(floats, load_halves, (const uint16_t *p), colibri_lane128_widen_halves(wasm_i32x4_load16x4(p + 4 * i)))
COLIBRI_LANE128(floats, load_scales, (const uint16_t *p), wasm_i32x4_shl(wasm_u32x4_load16x4(p + 4 * i), 16))
COLIBRI_LANE128(floats, load_bytes, (const int8_t *p), wasm_f32x4_convert_i32x4(colibri_lane128_four_bytes(p + 4 * i)))
COLIBRI_LANE128(floats, from_bits, (colibri_lane128_ints a), a.v[i])
COLIBRI_LANE128(ints, int_set, (int32_t x), colibri_lane128_keep(wasm_i32x4_splat(x)))
COLIBRI_LANE128(ints, bits, (colibri_lane128_floats a), a.v[i])
COLIBRI_LANE128(ints, int_add, COLIBRI_TWO(ints), wasm_i32x4_add(a.v[i], b.v[i]))
COLIBRI_LANE128(ints, int_and, COLIBRI_TWO(ints), wasm_v128_and(a.v[i], b.v[i]))
COLIBRI_LANE128(ints, int_max, COLIBRI_TWO(ints), wasm_i32x4_max(a.v[i], b.v[i]))
COLIBRI_LANE128(ints, shift_left_23, (colibri_lane128_ints a), wasm_i32x4_shl(a.v[i], 23))

#undef COLIBRI_TWO
#undef COLIBRI_LANE128

COLIBRI_INLINE void colibri_lane128_store(float *p, colibri_lane128_floats a)
{
    for (int i = 0; i < 4; i++) {
        wasm_v128_store(p + 4 * i, a.v[i]);
    }
}

COLIBRI_INLINE void colibri_lane128_store_halves(uint16_t *p, colibri_lane128_floats a)
{
    for (int i = 0; i < 2; i++) {
        v128_t low = colibri_lane128_narrow_halves(a.v[2 * i]);
        wasm_v128_store(p + 8 * i, wasm_u16x8_narrow_i32x4(low, colibri_lane128_narrow_halves(a.v[2 * i + 1])));
    }
}

/* The low byte of every lane; they are within -128 .. 127, so that narrowing does not saturate. */
COLIBRI_INLINE void colibri_lane128_store_bytes(int8_t *p, colibri_lane128_ints a)
{
    v128_t low = wasm_i16x8_narrow_i32x4(a.v[0], a.v[1]);
    wasm_v128_store(p, wasm_i8x16_narrow_i16x8(low, wasm_i16x8_narrow_i32x4(a.v[2], a.v[3])));
}

COLIBRI_INLINE int32_t colibri_lane128_int_top(colibri_lane128_ints a)
{
    v128_t four = wasm_i32x4_max(wasm_i32x4_max(a.v[0], a.v[1]), wasm_i32x4_max(a.v[2], a.v[3]));
    four = wasm_i32x4_max(four, wasm_i32x4_shuffle(four, four, 2, 3, 0, 1));
    return wasm_i32x4_extract_lane(wasm_i32x4_max(four, wasm_i32x4_shuffle(four, four, 1, 0, 3, 2)), 0);
}

COLIBRI_INLINE int32_t colibri_lane128_int_total(colibri_lane128_ints a)
{
    v128_t four = wasm_i32x4_add(wasm_i32x4_add(a.v[0], a.v[1]), wasm_i32x4_add(a.v[2], a.v[3]));
    four = wasm_i32x4_add(four, wasm_i32x4_shuffle(four, four, 2, 3, 0, 1));
    return wasm_i32x4_extract_lane(wasm_i32x4_add(four, wasm_i32x4_shuffle(four, four, 1, 0, 3, 2)), 0);
}

/* WebAssembly has no hint to fetch ahead. */
COLIBRI_INLINE void colibri_lane128_ahead(const uint8_t *p)
{
    (void)p;
}

#endif
