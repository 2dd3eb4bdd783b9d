/*
 * convolve.c: the short convolution (NUMERICS section 6): a layer that sees its last few positions with fixed weights
 * a channel instead of scores. What it sees are rows of the cache's V plane, so window, ring and rewind are those of
 * attention; there is no K plane. Q gates what comes out, K what goes in.
 */
#include "nn/session.h"

/* A row's k times v into the cache. */
void colibri_place_convolved(colibri_session *s, const colibri_layer *layer, uint32_t row, uint32_t worker)
{
    uint32_t channels = layer->d.head_dim;
    float *k = colibri_qkv_at(s, row) + channels;
    const float *v = k + channels;
    for (uint32_t c = 0; c < channels; c++) {
        k[c] = k[c] * v[c];
    }
    /* a cache of halves would make an infinity 65504 */
    int bad = colibri_amax_bits(s->kernel, k, channels) >= COLIBRI_INFINITY_BITS;
    if (!bad) {
        bad = colibri_cache_value(s, layer, colibri_row_at(s, row), 0, k);
    }
    if (bad) {
        colibri_fault(s, worker);
    }
}

/* One tap: y = y + w * v for every channel, the weights `step` apart; a q8 row's v is q * scale: (w * scale) * q. */
static void colibri_tap(const colibri_session *s, const uint8_t *tile, uint32_t lane, uint32_t channels, const float *w,
                        uint32_t step, float *y)
{
    uint64_t row = (uint64_t)channels * lane;
    switch (s->limits.kv_kind) {
    case COLIBRI_KV_F32:
        for (uint32_t c = 0; c < channels; c++) {
            y[c] = y[c] + w[(uint64_t)step * c] * ((const float *)(const void *)tile)[row + c];
        }
        break;
    case COLIBRI_KV_F16:
        for (uint32_t c = 0; c < channels; c++) {
            float v = colibri_half_to_float(((const uint16_t *)(const void *)tile)[row + c]);
            y[c] = y[c] + w[(uint64_t)step * c] * v;
        }
        break;
    default:
        for (uint32_t c = 0; c < channels; c++) {
            uint16_t scale = ((const uint16_t *)(const void *)tile)[16u * (c / COLIBRI_GROUP) + lane];
            float v = (float)((const int8_t *)tile)[colibri_round_up(channels, 64) + row + c];
            y[c] = y[c] + (w[(uint64_t)step * c] * colibri_float((uint32_t)scale << 16)) * v;
        }
        break;
    }
}

/* A row: its taps in ascending positions, the bias, then times the gate. */
void colibri_convolve(colibri_session *s, const colibri_layer *layer, uint32_t row)
{
    const colibri_row_state *state = colibri_row_at(s, row);
    uint32_t channels = layer->d.head_dim, taps = layer->d.window;
    const float *gate = colibri_qkv_at(s, row), *w = colibri_vector_at(s, &layer->taps);
    float *y = (float *)(uintptr_t)colibri_buffer_row(s, &s->layout.attended, row).x;
    uint32_t first = state->position + 1u > taps ? state->position + 1u - taps : 0u;
    colibri_fill(y, 0, channels * 4u);
    for (uint32_t p = first; p <= state->position; p++) {
        const uint8_t *tile = colibri_value_tile(s, layer, state->sequence, 0, p / COLIBRI_TILE_ROWS);
        colibri_tap(s, tile, p % COLIBRI_TILE_ROWS, channels, w + (taps - 1u - (state->position - p)), taps, y);
    }
    for (uint32_t c = 0; c < channels; c++) {
        y[c] = layer->taps_bias.rows ? y[c] + colibri_vector_at(s, &layer->taps_bias)[c] : y[c];
        y[c] = gate[c] * y[c];
    }
}
