/*
 * ffn.c: the gated product of a feed-forward network, h = silu(gate . x) * (up . x), in groups of 32 columns: the
 * groups a quantized down matrix reads, so that a unit always makes whole groups.
 */
#include "nn/session.h"

/* Columns group * 32 .. of the product, for up to COLIBRI_ROWS_AT_ONCE rows of the norm buffer: rows[i] goes to row
 * out_rows[i] of ffn->out. seen: the strip was used for other rows just before. */
void colibri_gated_rows(colibri_session *s, const colibri_gated *ffn, uint32_t group, const uint32_t *rows,
                        const uint32_t *out_rows, uint32_t count, uint32_t seen, uint32_t worker)
{
    colibri_strip gate = colibri_strip_at(s, ffn->gate, ffn->base, group);
    colibri_strip up = colibri_strip_at(s, ffn->up, ffn->base, group);
    colibri_activation x[COLIBRI_ROWS_AT_ONCE] = {{0, 0}};
    float g[COLIBRI_ROWS_AT_ONCE][COLIBRI_STRIP_ROWS], u[COLIBRI_ROWS_AT_ONCE][COLIBRI_STRIP_ROWS];
    for (uint32_t i = 0; i < count; i++) {
        x[i] = colibri_buffer_row(s, &s->layout.norm, rows[i]);
    }
    colibri_strip_times(s, &gate, x, count, seen, g);
    colibri_strip_times(s, &up, x, count, seen, u);
    for (uint32_t i = 0; i < count; i++) {
        colibri_activation h = colibri_buffer_row(s, &ffn->out, out_rows[i]);
        int bad = colibri_gate(s->kernel, g[i], u[i], gate.lanes);
        if (!ffn->out.quantized) {
            colibri_copy((float *)(uintptr_t)h.x + gate.first, g[i], gate.lanes * 4u);
        } else if (!bad) {
            bad = colibri_quantize_row(s->kernel, g[i], gate.lanes, (colibri_group *)(uintptr_t)h.groups + group);
        }
        if (bad) {
            colibri_fault(s, worker);
        }
    }
}
