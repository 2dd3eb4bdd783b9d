/*
 * pack.c: matrices to tiles and back, for converters (colibri_pack, colibri_unpack of colibri.h). Lives beside the
 * kernels because they and the tiles must agree; the engine itself never packs a matrix.
 */
#include "base/fpenv.h"
#include "kernels/kernels.h"

uint64_t colibri_packed_bytes(uint32_t kind, uint32_t rows, uint32_t columns)
{
    int bad = 0;
    (void)colibri_mul(colibri_tile_bytes(kind, columns), colibri_tiles(rows), &bad);
    return bad ? 0 : colibri_matrix_bytes(kind, rows, columns);
}

static void colibri_pack_float(uint32_t kind, uint32_t lane, uint32_t columns, const float *w, void *tile)
{
    for (uint32_t c = 0; c < columns; c++) {
        if (kind == COLIBRI_KIND_F32) {
            ((float *)tile)[16u * (uint64_t)c + lane] = w[c];
        } else {
            ((uint16_t *)tile)[16u * (uint64_t)c + lane] = colibri_half_from_float(w[c]);
        }
    }
}

static int colibri_finite_row(const float *w, uint32_t columns)
{
    for (uint32_t c = 0; c < columns; c++) {
        if (colibri_magnitude(w[c]) >= COLIBRI_INFINITY_BITS) {
            return 0;
        }
    }
    return 1;
}

static void colibri_pack_q4_row(uint32_t lane, uint32_t columns, const float *w, uint8_t *tile)
{
    uint32_t groups = colibri_groups(columns);
    for (uint32_t g = 0; g < groups; g++) {
        uint32_t first = g * COLIBRI_GROUP;
        uint32_t count = columns - first < COLIBRI_GROUP ? columns - first : COLIBRI_GROUP;
        uint8_t *pair = tile + (uint64_t)(g / 2u) * COLIBRI_PAIR_Q4_BYTES;
        uint8_t *lines = pair + 256u * (g & 1u);
        int8_t q[COLIBRI_GROUP] = {0};
        (void)colibri_q4_group(w + first, count, q, (uint16_t *)(void *)(pair + 512) + 16u * (g & 1u) + lane);
        for (uint32_t j = 0; j < 4u; j++) {
            for (uint32_t k = 0; k < 4u; k++) {
                uint32_t low = (uint32_t)(q[8u * j + k] + 8), high = (uint32_t)(q[8u * j + 4u + k] + 8);
                lines[64u * j + 4u * lane + k] = (uint8_t)(low | high << 4);
            }
        }
    }
}

static void colibri_pack_tiles(uint32_t kind, uint32_t rows, uint32_t columns, const float *source, uint8_t *out)
{
    uint64_t tile_bytes = colibri_tile_bytes(kind, columns);
    for (uint32_t t = 0; t < colibri_tiles(rows); t++) {
        uint8_t *tile = out + t * tile_bytes;
        colibri_fill(tile, kind == COLIBRI_KIND_Q4 ? 0x88 : 0, tile_bytes);
        if (kind == COLIBRI_KIND_Q4) {
            for (uint64_t at = 512; at < tile_bytes; at += COLIBRI_PAIR_Q4_BYTES) {
                colibri_fill(tile + at, 0, COLIBRI_LINE_BYTES);
            }
        }
        for (uint32_t lane = 0; lane < 16u && t * 16u + lane < rows; lane++) {
            const float *w = source + (uint64_t)(t * 16u + lane) * columns;
            if (kind == COLIBRI_KIND_Q8) {
                (void)colibri_q8_lane(w, columns, tile, lane);
            } else if (kind == COLIBRI_KIND_Q4) {
                colibri_pack_q4_row(lane, columns, w, tile);
            } else {
                colibri_pack_float(kind, lane, columns, w, tile);
            }
        }
    }
}

int32_t colibri_pack(uint32_t kind, uint32_t rows, uint32_t columns, const float *source, void *destination)
{
    if (!source || !destination || !colibri_kind_known(kind) || !colibri_packed_bytes(kind, rows, columns)) {
        return COLIBRI_ERROR_ARGUMENT;
    }
    for (uint32_t r = 0; r < rows; r++) {       /* before anything is written */
        if (!colibri_finite_row(source + (uint64_t)r * columns, columns)) {
            return COLIBRI_ERROR_NOT_FINITE;
        }
    }
    uint64_t host = colibri_fpenv_enter();
    colibri_pack_tiles(kind, rows, columns, source, destination);
    colibri_fpenv_leave(host);
    return COLIBRI_OK;
}

int32_t colibri_unpack(uint32_t kind, uint32_t rows, uint32_t columns, const void *source, float *destination)
{
    if (!source || !destination || !colibri_kind_known(kind) || !colibri_packed_bytes(kind, rows, columns)) {
        return COLIBRI_ERROR_ARGUMENT;
    }
    uint64_t host = colibri_fpenv_enter();
    uint64_t tile_bytes = colibri_tile_bytes(kind, columns);
    for (uint32_t r = 0; r < rows; r++) {
        colibri_tile_row(kind, (const uint8_t *)source + r / 16u * tile_bytes, columns, r % 16u,
                         destination + (uint64_t)r * columns);
    }
    colibri_fpenv_leave(host);
    return COLIBRI_OK;
}
