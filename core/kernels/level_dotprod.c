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
#define LANE(name) colibri_laneq_##name
#define DOT(name) colibri_sdot_##name
#define LEVEL_OWN_MIX
#define LEVEL_MIX_ROWS 4u
#define LEVEL_MIX_COLUMNS 1u
#define LEVEL_MIX_LONG 4u
#include "kernels/rows_template.inc"
#include "kernels/tiles_arm.inc"
#include "kernels/mix_arm.inc"
#include "kernels/mix_template.inc"
#include "kernels/level_end.inc"

#if defined(__ARM_FEATURE_DOTPROD)
#elif defined(__clang__)
#pragma clang attribute pop
#else
#pragma GCC pop_options
#endif

#endif
