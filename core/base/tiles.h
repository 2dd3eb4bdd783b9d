/*
 * tiles.h: the geometry of weight tiles (NUMERICS section 2): what the blob's checks, the plan and the kernels
 * must agree on. A tile is 16 output rows; its bytes are one aligned stream over the columns.
 */
#ifndef COLIBRI_TILES_H
#define COLIBRI_TILES_H

#include "base/base.h"

enum {
    COLIBRI_PAIR_Q4_BYTES = 576,        /* two groups of 16 rows x 32 columns: 8 lines and 64 bytes of scales */
    COLIBRI_PAIR_Q8_BYTES = 1088,       /* two groups of 16 rows x 32 columns: 16 lines and 64 bytes of scales */
    COLIBRI_LINE_BYTES = 64
};

static inline int colibri_kind_known(uint32_t kind)
{
    return kind == COLIBRI_KIND_F32 || kind == COLIBRI_KIND_F16 || kind == COLIBRI_KIND_Q8 ||
           kind == COLIBRI_KIND_Q4;
}

static inline int colibri_kind_quantized(uint32_t kind)
{
    return kind == COLIBRI_KIND_Q8 || kind == COLIBRI_KIND_Q4;
}

static inline uint32_t colibri_groups(uint32_t columns)
{
    return columns / COLIBRI_GROUP + (columns % COLIBRI_GROUP != 0u);
}

/* Bytes of one tile of `columns` columns; a multiple of 64, below 2^39 for any u32. */
static inline uint64_t colibri_tile_bytes(uint32_t kind, uint32_t columns)
{
    uint64_t pairs = ((uint64_t)colibri_groups(columns) + 1u) / 2u;
    switch (kind) {
    case COLIBRI_KIND_F32: return (uint64_t)columns * COLIBRI_LINE_BYTES;
    case COLIBRI_KIND_F16: return ((uint64_t)columns + 1u) / 2u * COLIBRI_LINE_BYTES;
    case COLIBRI_KIND_Q8: return pairs * COLIBRI_PAIR_Q8_BYTES;
    case COLIBRI_KIND_Q4: return pairs * COLIBRI_PAIR_Q4_BYTES;
    default: return 0;
    }
}

static inline uint32_t colibri_tiles(uint32_t rows)
{
    return rows / COLIBRI_TILE_ROWS + (rows % COLIBRI_TILE_ROWS != 0u);
}

/* Bytes of a whole matrix; below 2^55 while rows and columns stay below 2^26 (the blob's limit). */
static inline uint64_t colibri_matrix_bytes(uint32_t kind, uint32_t rows, uint32_t columns)
{
    return colibri_tile_bytes(kind, columns) * colibri_tiles(rows);
}

#endif
