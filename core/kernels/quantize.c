/*
 * quantize.c: float32 to q8 and q4 weight groups, and a row of a tile back to float32. See kernels.h; formulas in
 * NUMERICS section 2. Not on the hot path: one implementation for all levels.
 */
#include "kernels/kernels.h"

static uint32_t colibri_group_amax(const float *x, uint32_t count)
{
    uint32_t amax = 0;
    for (uint32_t i = 0; i < count; i++) {
        uint32_t m = colibri_magnitude(x[i]);
        amax = m > amax ? m : amax;
    }
    return amax;
}

static int32_t colibri_clamp_round(float value, float low, float high)
{
    float v = value < low ? low : value;
    v = v > high ? high : v;
    return (int32_t)colibri_round_even(v);
}

/* Upper 16 bits of a float32, magnitude rounded up. */
static uint16_t colibri_up16(float value)
{
    uint32_t bits = colibri_bits(value);
    return (uint16_t)((bits & 0x80000000u) >> 16 | ((bits & 0x7FFFFFFFu) + 0xFFFFu) >> 16);
}

int colibri_q8_group(const float *w, uint32_t count, int8_t *q, uint16_t *scale)
{
    uint32_t amax = colibri_group_amax(w, count);
    if (amax >= COLIBRI_INFINITY_BITS) {
        return 1;
    }
    *scale = colibri_up16(colibri_float(amax) / 127.0f);
    float s = colibri_widen(*scale);
    for (uint32_t i = 0; i < count; i++) {
        q[i] = (int8_t)(*scale != 0u ? colibri_clamp_round(w[i] / s, -127.0f, 127.0f) : 0);
    }
    return 0;
}

int colibri_q8_lane(const float *x, uint32_t columns, void *tile, uint32_t lane)
{
    uint32_t groups = colibri_groups(columns);
    for (uint32_t g = 0; g < groups; g++) {
        uint32_t first = g * COLIBRI_GROUP;
        uint32_t count = columns - first < COLIBRI_GROUP ? columns - first : COLIBRI_GROUP;
        uint8_t *pair = (uint8_t *)tile + (uint64_t)(g / 2u) * COLIBRI_PAIR_Q8_BYTES;
        int8_t *lines = (int8_t *)pair + 512u * (g & 1u);
        int8_t q[COLIBRI_GROUP] = {0};
        if (colibri_q8_group(x + first, count, q, (uint16_t *)(void *)(pair + 1024) + 16u * (g & 1u) + lane)) {
            return 1;
        }
        for (uint32_t i = 0; i < COLIBRI_GROUP; i++) {
            lines[64u * (i / 4u) + 4u * lane + i % 4u] = q[i];
        }
    }
    return 0;
}

/* Squared error of a group under a scale, float32 in column order; q is written. */
static float colibri_q4_try(const float *w, uint32_t count, float s, int8_t *q)
{
    float error = 0.0f;
    for (uint32_t i = 0; i < count; i++) {
        int32_t v = s == 0.0f ? 0 : colibri_clamp_round(w[i] / s, -8.0f, 7.0f);
        float e = w[i] - (float)v * s;
        q[i] = (int8_t)v;
        error = error + e * e;
    }
    return error;
}

typedef struct colibri_q4_best {
    float error;
    uint16_t scale;
    int8_t q[COLIBRI_GROUP];
} colibri_q4_best;

static void colibri_q4_consider(const float *w, uint32_t count, float exact, colibri_q4_best *best)
{
    int8_t q[COLIBRI_GROUP];
    uint16_t scale = colibri_up16(exact);
    float error = colibri_q4_try(w, count, colibri_widen(scale), q);
    if (error < best->error) {
        best->error = error;
        best->scale = scale;
        colibri_copy(best->q, q, count);
    }
}

int colibri_q4_group(const float *w, uint32_t count, int8_t *q, uint16_t *scale)
{
    static const float divisors[14] = {6.2f, 6.4f, 6.6f, 6.8f, 7.0f, 7.2f, 7.4f, 7.6f, 7.8f,
                                       8.2f, 8.4f, 8.6f, 8.8f, 9.0f};
    colibri_q4_best best;
    float m = 0.0f;
    for (uint32_t i = 0; i < count; i++) {
        if (colibri_magnitude(w[i]) > colibri_magnitude(m)) {
            m = w[i];
        }
    }
    if (colibri_magnitude(m) >= COLIBRI_INFINITY_BITS) {
        return 1;
    }
    if (m == 0.0f) {
        *scale = 0;
        colibri_fill(q, 0, count);
        return 0;
    }
    best.scale = colibri_up16(m / -8.0f);
    best.error = colibri_q4_try(w, count, colibri_widen(best.scale), best.q);
    for (int k = 0; k < 14; k++) {
        colibri_q4_consider(w, count, m / -divisors[k], &best);
        colibri_q4_consider(w, count, m / divisors[k], &best);
    }
    float wq = 0.0f, qq = 0.0f;                 /* one refit on the winner's q */
    for (uint32_t i = 0; i < count; i++) {
        wq = wq + w[i] * (float)best.q[i];
        qq = qq + (float)best.q[i] * (float)best.q[i];
    }
    if (qq > 0.0f) {
        colibri_q4_consider(w, count, wq / qq, &best);
    }
    *scale = best.scale;
    colibri_copy(q, best.q, count);
    return 0;
}

void colibri_tile_row(uint32_t kind, const void *tile, uint32_t columns, uint32_t lane, float *out)
{
    const uint8_t *bytes = tile;
    for (uint32_t c = 0; c < columns; c++) {
        uint32_t g = c / COLIBRI_GROUP, i = c % COLIBRI_GROUP;
        const uint8_t *pair;
        uint32_t nibbles;
        switch (kind) {
        case COLIBRI_KIND_F32:
            out[c] = ((const float *)tile)[16u * (uint64_t)c + lane];
            break;
        case COLIBRI_KIND_F16:
            out[c] = colibri_half_to_float(((const uint16_t *)tile)[16u * (uint64_t)c + lane]);
            break;
        case COLIBRI_KIND_Q8:
            pair = bytes + (uint64_t)(g / 2u) * COLIBRI_PAIR_Q8_BYTES;
            out[c] = (float)((const int8_t *)pair)[512u * (g & 1u) + 64u * (i / 4u) + 4u * lane + i % 4u] *
                     colibri_widen(((const uint16_t *)(const void *)(pair + 1024))[16u * (g & 1u) + lane]);
            break;
        default:
            pair = bytes + (uint64_t)(g / 2u) * COLIBRI_PAIR_Q4_BYTES;
            nibbles = pair[256u * (g & 1u) + 64u * (i / 8u) + 4u * lane + i % 4u];
            out[c] = (float)((int32_t)((i & 4u) ? nibbles >> 4 : nibbles & 15u) - 8) *
                     colibri_widen(((const uint16_t *)(const void *)(pair + 512))[16u * (g & 1u) + lane]);
            break;
        }
    }
}
