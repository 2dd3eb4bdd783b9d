/*
 * ffn.c: the gated product of a feed-forward network, h = silu(gate . x) * (up . x), in groups of 32 columns: the
 * groups a quantized down matrix reads, so that a unit always makes whole groups.
 */
#include "nn/session.h"

/* x[count] becomes columns first .. of a row: float where the row has floats, else one quantized group. */
int colibri_quantize_into(const colibri_activation *a, uint32_t first, const float *x, uint32_t count)
{
    uint32_t g = first / COLIBRI_GROUP;
    return colibri_quantize_row(x, count, (int8_t *)(uintptr_t)a->q + first, (float *)(uintptr_t)a->d + g,
                                (int32_t *)(uintptr_t)a->sum + g);
}

/* Two tiles of a matrix: 32 outputs, those behind the last row unspecified. */
static void colibri_two_tiles(const colibri_session *s, const colibri_weight *w, const uint8_t *base, uint32_t group,
                              const colibri_activation *x, float out[32])
{
    const uint8_t *tile = (base ? base + w->offset : colibri_weight_at(s, w)) + 2u * group * w->tile_bytes;
    colibri_tile_dot(w->kind, tile, w->columns, x, out);
    if (2u * group + 1u < colibri_tiles(w->rows)) {
        colibri_tile_dot(w->kind, tile + w->tile_bytes, w->columns, x, out + 16);
    }
}

void colibri_gated_group(colibri_session *s, const colibri_weight *gate, const colibri_weight *up, const uint8_t *base,
                         const colibri_buffer *out, uint32_t group, uint32_t row, uint64_t out_row, uint32_t worker)
{
    uint32_t first = group * COLIBRI_GROUP;
    uint32_t count = gate->rows - first < COLIBRI_GROUP ? gate->rows - first : COLIBRI_GROUP;
    colibri_activation x = colibri_buffer_row(s, &s->layout.norm, row);
    colibri_activation h = colibri_buffer_row(s, out, out_row);
    float g[32], u[32];
    colibri_two_tiles(s, gate, base, group, &x, g);
    colibri_two_tiles(s, up, base, group, &x, u);
    for (uint32_t i = 0; i < count; i++) {
        if (colibri_magnitude(g[i]) >= COLIBRI_INFINITY_BITS) {     /* exp's clamp must not be the first to see it */
            colibri_fault(s, worker);
            return;
        }
        g[i] = colibri_silu(g[i]) * u[i];
    }
    if (!out->quantized) {
        colibri_copy((float *)(uintptr_t)h.x + first, g, count * 4u);
    } else if (colibri_quantize_into(&h, first, g, count)) {
        colibri_fault(s, worker);
    }
}
