/*
 * pool.h: the tiny allocator. One arena that only grows, in regions; the same calls size a plan (no memory behind
 * them) and carve a pool, so the two cannot differ. Offsets only: a carved pool may lie anywhere.
 */
#ifndef COLIBRI_POOL_H
#define COLIBRI_POOL_H

#include "base/base.h"

enum { COLIBRI_POOL_ALIGN = 64 };

typedef struct colibri_arena {
    uint64_t used;
    uint64_t offset[COLIBRI_REGION_ROOM];
    uint64_t bytes[COLIBRI_REGION_ROOM];
    uint32_t region;
    int32_t bad;                                /* a size did not fit in 64 bits */
} colibri_arena;

void colibri_arena_begin(colibri_arena *arena);
/* Regions are opened in ascending order, each once. */
void colibri_arena_region(colibri_arena *arena, uint32_t region);
/* Offset of count * bytes bytes, 64-byte aligned; a request of nothing takes nothing. */
uint64_t colibri_arena_take(colibri_arena *arena, uint64_t count, uint64_t bytes);

#endif
