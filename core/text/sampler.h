/*
 * sampler.h: one token from a row of logits (docs/NUMERICS.md section 8). Knows no session; the caller gives
 * logits, scratch and the ids to penalise. The same inputs give the same token on every target.
 *
 *  1. l = logit; for an id in `recent`, once: l > 0 ? l / penalty : l * penalty
 *  2. temperature 0: the largest l, the lowest id among equals. Else candidates are taken in the order (l
 *     descending, id ascending), e = exp((l - l of the first) / temperature)
 *  3. top_k:  the first k
 *  4. top_p:  the shortest beginning whose running sum of e is >= top_p * S. S = sum of e over what top_k
 *     left, in candidate order; without top_k over the whole row, in sum16 order by id
 *  5. min_p:  e >= min_p (e of the first is 1); the first always stays
 *  6. C = running sum of e at the last candidate left, or S where nothing was cut off; the token is the first
 *     whose running sum exceeds u * C (the last one if rounding lets none)
 *  7. u = upper 24 bits of mix(mix(seed + G) ^ (sequence << 32 | position)) / 2^24; G = 0x9E3779B97F4A7C15
 *     (2^64 / golden ratio), mix = the finaliser of splitmix64 (Steele, Lea, Flood 2014)
 */
#ifndef COLIBRI_SAMPLER_H
#define COLIBRI_SAMPLER_H

#include "colibri.h"

/* Bytes of scratch (4-byte aligned) for rows of `vocab` logits. */
uint64_t colibri_sampler_scratch(uint32_t vocab);

/* The 64 bits that decide the draw at one place. */
uint64_t colibri_sampler_bits(uint64_t seed, uint32_t sequence, uint32_t position);

/* ARGUMENT: a parameter outside its range; TOKEN: an id in `recent` beyond the row; NOT_FINITE: a logit. */
int32_t colibri_sampler_draw(const float *logits, uint32_t vocab, const colibri_sampling *sampling,
                             const uint32_t *recent, uint32_t recent_count, void *scratch, uint32_t *token);

#endif
