/*
 * lanes_neon.h: the lane primitives of rows_template.inc and mix_template.inc for ARM64 Advanced SIMD: 16 lanes are
 * four registers. Baseline ARMv8-A only, so that level_dotprod.c can use the same.
 */
#ifndef COLIBRI_LANES_NEON_H
#define COLIBRI_LANES_NEON_H

#include <arm_neon.h>

typedef struct colibri_laneq_floats {
    float32x4_t a, b, c, d;
} colibri_laneq_floats;
typedef struct colibri_laneq_ints {
    int32x4_t a, b, c, d;
} colibri_laneq_ints;

/* A primitive that does the same to all four quarters: `expression` with a quarter's letter or number. */
#define COLIBRI_LANEQ(type, name, operands, expression) \
    COLIBRI_INLINE colibri_laneq_##type colibri_laneq_##name operands \
    { \
        colibri_laneq_##type result; \
        result.a = expression(a, 0); \
        result.b = expression(b, 1); \
        result.c = expression(c, 2); \
        result.d = expression(d, 3); \
        return result; \
    }
#define COLIBRI_TWO(type) (colibri_laneq_##type x, colibri_laneq_##type y)

#define COLIBRI_Q(k, i) vdupq_n_f32(x)
COLIBRI_LANEQ(floats, set, (float x), COLIBRI_Q)
#undef COLIBRI_Q
#define COLIBRI_Q(k, i) vaddq_f32(x.k, y.k)
COLIBRI_LANEQ(floats, add, COLIBRI_TWO(floats), COLIBRI_Q)
#undef COLIBRI_Q
#define COLIBRI_Q(k, i) vsubq_f32(x.k, y.k)
COLIBRI_LANEQ(floats, sub, COLIBRI_TWO(floats), COLIBRI_Q)
#undef COLIBRI_Q
#define COLIBRI_Q(k, i) vmulq_f32(x.k, y.k)
COLIBRI_LANEQ(floats, mul, COLIBRI_TWO(floats), COLIBRI_Q)
#undef COLIBRI_Q
#define COLIBRI_Q(k, i) vdivq_f32(x.k, y.k)
COLIBRI_LANEQ(floats, div, COLIBRI_TWO(floats), COLIBRI_Q)
#undef COLIBRI_Q
/* Of a NaN they give a NaN where `a > b ? a : b` gives b: whoever calls has looked, or looks, at the bits. The sign of
 * a zero may differ too; no caller's result depends on it. */
#define COLIBRI_Q(k, i) vmaxq_f32(x.k, y.k)
COLIBRI_LANEQ(floats, max, COLIBRI_TWO(floats), COLIBRI_Q)
#undef COLIBRI_Q
#define COLIBRI_Q(k, i) vminq_f32(x.k, y.k)
COLIBRI_LANEQ(floats, min, COLIBRI_TWO(floats), COLIBRI_Q)
#undef COLIBRI_Q
#define COLIBRI_Q(k, i) vreinterpretq_f32_s32(x.k)
COLIBRI_LANEQ(floats, from_bits, (colibri_laneq_ints x), COLIBRI_Q)
#undef COLIBRI_Q
#define COLIBRI_Q(k, i) vcvtq_f32_s32(x.k)
COLIBRI_LANEQ(floats, to_float, (colibri_laneq_ints x), COLIBRI_Q)
#undef COLIBRI_Q
#define COLIBRI_Q(k, i) vdupq_n_s32(x)
COLIBRI_LANEQ(ints, int_set, (int32_t x), COLIBRI_Q)
#undef COLIBRI_Q
#define COLIBRI_Q(k, i) vreinterpretq_s32_f32(x.k)
COLIBRI_LANEQ(ints, bits, (colibri_laneq_floats x), COLIBRI_Q)
#undef COLIBRI_Q
#define COLIBRI_Q(k, i) vaddq_s32(x.k, y.k)
COLIBRI_LANEQ(ints, int_add, COLIBRI_TWO(ints), COLIBRI_Q)
#undef COLIBRI_Q
#define COLIBRI_Q(k, i) vandq_s32(x.k, y.k)
COLIBRI_LANEQ(ints, int_and, COLIBRI_TWO(ints), COLIBRI_Q)
#undef COLIBRI_Q
#define COLIBRI_Q(k, i) vmaxq_s32(x.k, y.k)
COLIBRI_LANEQ(ints, int_max, COLIBRI_TWO(ints), COLIBRI_Q)
#undef COLIBRI_Q
#define COLIBRI_Q(k, i) vshlq_n_s32(x.k, 23)
COLIBRI_LANEQ(ints, shift_left_23, (colibri_laneq_ints x), COLIBRI_Q)
#undef COLIBRI_Q

#undef COLIBRI_TWO
#undef COLIBRI_LANEQ

/* Memory. `ld1` and `st1` of several registers ask for the alignment of an element alone and are one instruction; of
 * single registers compilers make 16 byte loads under -mstrict-align (bare metal), unless the alignment is known. */

COLIBRI_INLINE colibri_laneq_floats colibri_laneq_load(const float *p)
{
    float32x4x4_t four = vld1q_f32_x4(p);
    colibri_laneq_floats result = {four.val[0], four.val[1], four.val[2], four.val[3]};
    return result;
}

COLIBRI_INLINE void colibri_laneq_store(float *p, colibri_laneq_floats x)
{
    float32x4x4_t four = {{x.a, x.b, x.c, x.d}};
    vst1q_f32_x4(p, four);
}

/* Eight scales, 16 bits each, become the upper halves of eight floats: interleaved with zeros. */
COLIBRI_INLINE float32x4_t colibri_laneq_widen_low(uint16x8_t scales)
{
    return vreinterpretq_f32_u16(vzip1q_u16(vdupq_n_u16(0), scales));
}

COLIBRI_INLINE float32x4_t colibri_laneq_widen_high(uint16x8_t scales)
{
    return vreinterpretq_f32_u16(vzip2q_u16(vdupq_n_u16(0), scales));
}

COLIBRI_INLINE colibri_laneq_floats colibri_laneq_load_scales(const uint16_t *p)
{
    uint16x8x2_t two = vld1q_u16_x2(p);
    colibri_laneq_floats result;
    result.a = colibri_laneq_widen_low(two.val[0]);
    result.b = colibri_laneq_widen_high(two.val[0]);
    result.c = colibri_laneq_widen_low(two.val[1]);
    result.d = colibri_laneq_widen_high(two.val[1]);
    return result;
}

COLIBRI_INLINE colibri_laneq_floats colibri_laneq_load_halves(const uint16_t *p)
{
    uint16x8x2_t two = vld1q_u16_x2(p);
    float16x8_t first = vreinterpretq_f16_u16(two.val[0]), second = vreinterpretq_f16_u16(two.val[1]);
    colibri_laneq_floats result;
    result.a = vcvt_f32_f16(vget_low_f16(first));
    result.b = vcvt_high_f32_f16(first);
    result.c = vcvt_f32_f16(vget_low_f16(second));
    result.d = vcvt_high_f32_f16(second);
    return result;
}

COLIBRI_INLINE colibri_laneq_floats colibri_laneq_load_bytes(const int8_t *p)
{
    int8x8x2_t two = vld1_s8_x2(p);
    int16x8_t first = vmovl_s8(two.val[0]), second = vmovl_s8(two.val[1]);
    colibri_laneq_floats result;
    result.a = vcvtq_f32_s32(vmovl_s16(vget_low_s16(first)));
    result.b = vcvtq_f32_s32(vmovl_high_s16(first));
    result.c = vcvtq_f32_s32(vmovl_s16(vget_low_s16(second)));
    result.d = vcvtq_f32_s32(vmovl_high_s16(second));
    return result;
}

/* Nearest-even; what would be beyond 65504 saturates. */
COLIBRI_INLINE float32x4_t colibri_laneq_half_range(float32x4_t x)
{
    return vminq_f32(vmaxq_f32(x, vdupq_n_f32(-65504.0f)), vdupq_n_f32(65504.0f));
}

COLIBRI_INLINE void colibri_laneq_store_halves(uint16_t *p, colibri_laneq_floats x)
{
    float16x4_t a = vcvt_f16_f32(colibri_laneq_half_range(x.a)), c = vcvt_f16_f32(colibri_laneq_half_range(x.c));
    uint16x8x2_t two;
    two.val[0] = vreinterpretq_u16_f16(vcvt_high_f16_f32(a, colibri_laneq_half_range(x.b)));
    two.val[1] = vreinterpretq_u16_f16(vcvt_high_f16_f32(c, colibri_laneq_half_range(x.d)));
    vst1q_u16_x2(p, two);
}

/* The low byte of every lane. */
COLIBRI_INLINE void colibri_laneq_store_bytes(int8_t *p, colibri_laneq_ints x)
{
    int16x8_t first = vuzp1q_s16(vreinterpretq_s16_s32(x.a), vreinterpretq_s16_s32(x.b));
    int16x8_t second = vuzp1q_s16(vreinterpretq_s16_s32(x.c), vreinterpretq_s16_s32(x.d));
    int8x8x2_t two;
    two.val[0] = vmovn_s16(first);
    two.val[1] = vmovn_s16(second);
    vst1_s8_x2(p, two);
}

COLIBRI_INLINE int32_t colibri_laneq_int_top(colibri_laneq_ints x)
{
    return vmaxvq_s32(vmaxq_s32(vmaxq_s32(x.a, x.b), vmaxq_s32(x.c, x.d)));
}

COLIBRI_INLINE int32_t colibri_laneq_int_total(colibri_laneq_ints x)
{
    return vaddvq_s32(vaddq_s32(vaddq_s32(x.a, x.b), vaddq_s32(x.c, x.d)));
}

/* No hints: these processors follow a stream on their own, and a hint is an instruction for every 64 bytes. */
COLIBRI_INLINE void colibri_laneq_ahead(const uint8_t *p)
{
    (void)p;
}

#endif
