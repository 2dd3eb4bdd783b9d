/* pool.c: see pool.h. */
#include "pool/pool.h"

void colibri_arena_begin(colibri_arena *arena)
{
    colibri_fill(arena, 0, sizeof *arena);
}

void colibri_arena_region(colibri_arena *arena, uint32_t region)
{
    arena->region = region;
    arena->offset[region] = arena->used;
}

uint64_t colibri_arena_take(colibri_arena *arena, uint64_t count, uint64_t bytes)
{
    int bad = 0;
    uint64_t at = arena->used;
    uint64_t size = colibri_round_up_checked(colibri_mul(count, bytes, &bad), COLIBRI_POOL_ALIGN, &bad);
    arena->used = colibri_add(at, size, &bad);
    arena->bytes[arena->region] = arena->used - arena->offset[arena->region];
    arena->bad |= bad;
    return at;
}
