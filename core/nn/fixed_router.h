/*
 * fixed_router.h: the integer router (NUMERICS section 7). Nothing here computes with floats: a logit comes in as the
 * bits of its float32, weights go out in Q16.16.
 */
#ifndef COLIBRI_FIXED_ROUTER_H
#define COLIBRI_FIXED_ROUTER_H

#include "blob/view.h"

/* A float32 times 65536, to the nearest integer, ties to even, saturated. Not for NaN. */
int32_t colibri_fixed_logit(uint32_t bits);
/* The chosen experts in ascending order and their weights in units of 2^-16, before the scale; returns the widest
 * distance that a weight was made of, in the same units. The layer has a span. */
uint32_t colibri_fixed_route(const colibri_description *d, const int32_t *logit, uint32_t *chosen, uint32_t *weight);

#endif
