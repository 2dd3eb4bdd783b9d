/*
 * level_portable.c: the reference: every kernel in plain C. See kernels.h. What other levels compute equals this
 * bit for bit; it is also what runs where no other level is compiled in.
 */
#include "kernels/lanes_portable.h"

#define LEVEL(name) colibri_portable_##name
#define LANE(name) colibri_lane1_##name
#define LEVEL_MIX_ROWS 0u
#include "kernels/rows_template.inc"
#include "kernels/mix_template.inc"
#include "kernels/level_end.inc"

static void colibri_dot_f32(const float *tile, uint32_t columns, const float *x, float out[16])
{
    float acc[16] = {0};
    for (uint32_t c = 0; c < columns; c++) {
        float v = x[c];
        for (int r = 0; r < 16; r++) {
            acc[r] = acc[r] + tile[16u * (uint64_t)c + (uint32_t)r] * v;
        }
    }
    for (int r = 0; r < 16; r++) {
        out[r] = acc[r];
    }
}

/* A line holds 2 columns x 16 rows: the half of row r, column c at 16c + r, as in a K tile of the cache. */
static void colibri_dot_f16(const uint16_t *tile, uint32_t columns, const float *x, float out[16])
{
    float acc[16] = {0};
    for (uint32_t c = 0; c < columns; c++) {
        const uint16_t *column = tile + 16u * (uint64_t)c;
        float v = x[c];
        for (int r = 0; r < 16; r++) {
            acc[r] = acc[r] + colibri_half_to_float(column[r]) * v;
        }
    }
    for (int r = 0; r < 16; r++) {
        out[r] = acc[r];
    }
}

/* acc = acc + (float)idot * (ws * xs) */
static void colibri_scale_in(float acc[16], const int32_t idot[16], const uint16_t *scales, float d)
{
    for (int r = 0; r < 16; r++) {
        acc[r] = acc[r] + (float)idot[r] * (colibri_widen(scales[r]) * d);
    }
}

/* The four bytes of a row are read as one word: lanes of shifts and products, which compilers turn into vectors where
 * gathering single bytes stays scalar (2.4 times faster with clang). */

/* |idot| <= 32 * 127 * 127 = 516,128 */
static void colibri_group_q8(const int8_t *lines, const int8_t *q, int32_t idot[16])
{
    for (int r = 0; r < 16; r++) {
        idot[r] = 0;
    }
    for (int j = 0; j < 8; j++) {
        const colibri_row_word *w = (const colibri_row_word *)(const void *)(lines + 64 * j);
        for (int k = 0; k < 4; k++) {
            const int32_t x = q[4 * j + k];
            for (int r = 0; r < 16; r++) {
                idot[r] += ((int32_t)(w[r] << (24 - 8 * k)) >> 24) * x;
            }
        }
    }
}

/* Nibbles enter as 0..15, the offset of 8 as the start value: |idot| <= 32 * 15 * 127 + 8 * 32 * 127 = 93,472 */
static void colibri_group_q4(const uint8_t *lines, const colibri_group *group, int32_t idot[16])
{
    for (int r = 0; r < 16; r++) {
        idot[r] = group->start;
    }
    for (int j = 0; j < 4; j++) {
        const colibri_row_word *w = (const colibri_row_word *)(const void *)(lines + 64 * j);
        const int8_t *x = group->q + 8 * j;
        for (int k = 0; k < 4; k++) {
            const int32_t low = x[k];
            const int32_t high = x[4 + k];
            for (int r = 0; r < 16; r++) {
                idot[r] += (int32_t)(w[r] >> (8 * k) & 15u) * low + (int32_t)(w[r] >> (8 * k + 4) & 15u) * high;
            }
        }
    }
}

static void colibri_dot_q8(const uint8_t *tile, uint32_t columns, const colibri_activation *row, float out[16])
{
    float acc[16] = {0};
    uint32_t groups = colibri_groups(columns);
    for (uint32_t g = 0; g < groups; g++) {
        const uint8_t *pair = tile + (uint64_t)(g / 2u) * COLIBRI_PAIR_Q8_BYTES;
        int32_t idot[16];
        colibri_group_q8((const int8_t *)pair + 512u * (g & 1u), row->groups[g].q, idot);
        colibri_scale_in(acc, idot, (const uint16_t *)(const void *)(pair + 1024) + 16u * (g & 1u), row->groups[g].d);
    }
    for (int r = 0; r < 16; r++) {
        out[r] = acc[r];
    }
}

static void colibri_dot_q4(const uint8_t *tile, uint32_t columns, const colibri_activation *row, float out[16])
{
    float acc[16] = {0};
    uint32_t groups = colibri_groups(columns);
    for (uint32_t g = 0; g < groups; g++) {
        const uint8_t *pair = tile + (uint64_t)(g / 2u) * COLIBRI_PAIR_Q4_BYTES;
        int32_t idot[16];
        colibri_group_q4(pair + 256u * (g & 1u), &row->groups[g], idot);
        colibri_scale_in(acc, idot, (const uint16_t *)(const void *)(pair + 512) + 16u * (g & 1u), row->groups[g].d);
    }
    for (int r = 0; r < 16; r++) {
        out[r] = acc[r];
    }
}

void colibri_portable_products(const colibri_product *p)
{
    for (uint32_t i = 0; i < p->row_count; i++) {
        const colibri_activation *row = &p->rows[i];
        for (uint32_t t = 0; t < p->tile_count; t++) {
            const uint8_t *tile = (const uint8_t *)p->tiles + t * p->tile_bytes;
            float *out = p->out + i * p->out_stride + 16u * t;
            const void *lines = tile;
            switch (p->kind) {
            case COLIBRI_KIND_F32: colibri_dot_f32((const float *)lines, p->columns, row->x, out); break;
            case COLIBRI_KIND_F16: colibri_dot_f16((const uint16_t *)lines, p->columns, row->x, out); break;
            case COLIBRI_KIND_Q8: colibri_dot_q8(tile, p->columns, row, out); break;
            default: colibri_dot_q4(tile, p->columns, row, out); break;
            }
        }
    }
}
