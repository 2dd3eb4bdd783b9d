/*
 * fixed_router.h: the integer router (NUMERICS section 7). Nothing here computes with floats: a logit comes in as the
 * bits of its float32, weights go out in Q16.16.
 */
#ifndef COLIBRI_FIXED_ROUTER_H
#define COLIBRI_FIXED_ROUTER_H

#include "blob/view.h"

/* A float32 times 65536, to the nearest integer, ties to even, saturated. Not for NaN. Without branches: compilers make
 * vector operations of a loop over logits. */
static inline int32_t colibri_fixed_logit(uint32_t bits)
{
    uint32_t exponent = bits >> 23 & 255u, negative = 0u - (bits >> 31);
    uint32_t mantissa = (bits & 0x7FFFFFu) | 0x800000u;         /* value = mantissa * 2^(exponent - 150) */
    uint32_t right = exponent < 134u ? 134u - exponent : 0u;
    uint32_t left = exponent > 134u ? exponent - 134u : 0u;
    right = right < 25u ? right : 25u;                          /* less than half a unit */
    left = left < 8u ? left : 8u;
    uint32_t half = (1u << right) >> 1;
    uint32_t odd = mantissa >> right & 1u;
    uint32_t more = right ? half - 1u + odd : 0u;
    uint32_t magnitude = left < 8u ? ((mantissa + more) >> right) << left : 0x7FFFFFFFu - negative;
    return (int32_t)((magnitude ^ negative) - negative);
}

/* The chosen experts in ascending order and their weights in units of 2^-16, before the scale; returns the widest
 * distance that a weight was made of, in the same units. The layer has a span. */
uint32_t colibri_fixed_route(const colibri_description *d, const int32_t *logit, uint32_t *chosen, uint32_t *weight);

#endif
