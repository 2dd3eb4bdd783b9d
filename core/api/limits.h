/*
 * limits.h: what plan, start and step share: the caller's limits checked once, the text room's share of the pool, and
 * what happens to swapped experts.
 */
#ifndef COLIBRI_LIMITS_H
#define COLIBRI_LIMITS_H

#include "nn/session.h"

int32_t colibri_check_limits(const colibri_view *view, const colibri_limits *limits, colibri_detail *detail);
/* limits -> layout and regions; the only way to a pool's size */
int32_t colibri_layout_of(const colibri_view *view, const colibri_limits *limits, colibri_layout *layout,
                          colibri_arena *arena, colibri_detail *detail);
/* bytes the tokenizer and the sampler work in (text.c) */
int32_t colibri_text_plan(const colibri_view *view, const colibri_limits *limits, uint64_t *bytes,
                          colibri_detail *detail);
void colibri_text_begin(colibri_session *s);
/* swap.c: no overrides yet; and, with the tape at its start: those that are ready take their places */
void colibri_swaps_begin(colibri_session *s);
void colibri_swaps_take(colibri_session *s);

#endif
