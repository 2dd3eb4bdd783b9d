/*
 * level_neon.c: the kernels for every ARM64 processor (Advanced SIMD of ARMv8-A, no dot products); see kernels.h.
 */
#include "kernels/kernels.h"

#if COLIBRI_HAS_ARM

#include "kernels/lanes_neon.h"

/* Products of bytes are 16 bits wide, two rows of a tile to a register: {a: rows 0 and 1 of a quarter, b: 2 and 3}.
 * q4: a lane adds up 8 products of the group in 16 bits, |.| <= 8 * 15 * 127 = 15,240, then two lanes in 16 bits
 *     (30,480), then two in 32.
 * q8: two products, |.| <= 2 * 127 * 127 = 32,258, then 32 bits. */
typedef struct colibri_mlal_q4_sum {
    int16x8_t a, b;
} colibri_mlal_q4_sum;
typedef struct colibri_mlal_q8_sum {
    int32x4_t a, b;
} colibri_mlal_q8_sum;

/* Two quads, each four times. */
typedef struct colibri_mlal_quads {
    int8x16_t a, b;
} colibri_mlal_quads;

COLIBRI_INLINE colibri_mlal_quads colibri_mlal_quads_of(int8x16_t x, uint32_t step)
{
    int32x4_t words = vreinterpretq_s32_s8(x), a, b;
    colibri_mlal_quads quads;
    if (step % 2u == 0u) {
        a = vdupq_laneq_s32(words, 0);
        b = vdupq_laneq_s32(words, 1);
    } else {
        a = vdupq_laneq_s32(words, 2);
        b = vdupq_laneq_s32(words, 3);
    }
    __asm__("" : "+w"(a), "+w"(b));             /* once, not for every use */
    quads.a = vreinterpretq_s8_s32(a);
    quads.b = vreinterpretq_s8_s32(b);
    return quads;
}

COLIBRI_INLINE colibri_mlal_q4_sum colibri_mlal_q4_begin(int32x4_t start)
{
    colibri_mlal_q4_sum zero = {vdupq_n_s16(0), vdupq_n_s16(0)};
    (void)start;
    return zero;
}

/* The empty instruction keeps the order: left alone, the compilers load and unpack a whole group at once and save
 * registers on the stack. */
COLIBRI_INLINE void colibri_mlal_q4_dot(colibri_mlal_q4_sum *dots, int8x16_t w, int8x16_t v,
                                        colibri_mlal_quads x, uint32_t step)
{
    if (step == 0u) {
        dots->a = vmull_s8(vget_low_s8(w), vget_low_s8(x.a));
        dots->b = vmull_high_s8(w, x.a);
    } else {
        dots->a = vmlal_s8(dots->a, vget_low_s8(w), vget_low_s8(x.a));
        dots->b = vmlal_high_s8(dots->b, w, x.a);
    }
    dots->a = vmlal_s8(dots->a, vget_low_s8(v), vget_low_s8(x.b));
    dots->b = vmlal_high_s8(dots->b, v, x.b);
    __asm__ volatile("" : "+w"(dots->a), "+w"(dots->b));
}

COLIBRI_INLINE int32x4_t colibri_mlal_q4_end(colibri_mlal_q4_sum dots, int32x4_t start)
{
    return vpadalq_s16(start, vpaddq_s16(dots.a, dots.b));
}

COLIBRI_INLINE colibri_mlal_q8_sum colibri_mlal_q8_begin(void)
{
    colibri_mlal_q8_sum zero = {vdupq_n_s32(0), vdupq_n_s32(0)};
    return zero;
}

COLIBRI_INLINE void colibri_mlal_q8_dot(colibri_mlal_q8_sum *dots, int8x16_t w, int8x16_t v,
                                        colibri_mlal_quads x, uint32_t step)
{
    int16x8_t a = vmlal_s8(vmull_s8(vget_low_s8(w), vget_low_s8(x.a)), vget_low_s8(v), vget_low_s8(x.b));
    int16x8_t b = vmlal_high_s8(vmull_high_s8(w, x.a), v, x.b);
    dots->a = step == 0u ? vpaddlq_s16(a) : vpadalq_s16(dots->a, a);
    dots->b = step == 0u ? vpaddlq_s16(b) : vpadalq_s16(dots->b, b);
    __asm__ volatile("" : "+w"(dots->a), "+w"(dots->b));
}

COLIBRI_INLINE int32x4_t colibri_mlal_q8_end(colibri_mlal_q8_sum dots)
{
    return vpaddq_s32(dots.a, dots.b);
}

enum { colibri_mlal_q8_pairs = 0 };

#define LEVEL(name) colibri_neon_##name
#define LANE(name) colibri_laneq_##name
#define DOT(name) colibri_mlal_##name
#define LEVEL_OWN_MIX
#define LEVEL_MIX_ROWS 4u
#define LEVEL_MIX_COLUMNS 1u
#define LEVEL_MIX_LONG 4u
#include "kernels/rows_template.inc"
#include "kernels/tiles_arm.inc"
#include "kernels/floats_arm.inc"
#include "kernels/mix_arm.inc"
#include "kernels/mix_template.inc"

void colibri_neon_products(const colibri_product *p)
{
    switch (p->kind) {
    case COLIBRI_KIND_F32: colibri_neon_f32_strips(p); break;
    case COLIBRI_KIND_F16: colibri_neon_f16_strips(p); break;
    case COLIBRI_KIND_Q8: colibri_neon_q8_strips(p); break;
    default: colibri_neon_q4_strips(p); break;
    }
}

#include "kernels/level_end.inc"

#endif
