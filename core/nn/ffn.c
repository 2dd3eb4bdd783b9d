/*
 * ffn.c: the gated product of a feed-forward network, h = silu(gate . x) * (up . x) or another colibri_activation_kind,
 * in groups of 32 columns: the groups a quantized down matrix reads, so that a unit always makes whole groups.
 */
#include "nn/session.h"

/* Row i of the network: where it reads from in the norm buffer. */
static uint32_t colibri_gated_row(const colibri_gated *ffn, uint32_t i)
{
    return ffn->pairs ? ffn->pairs[i] / ffn->top_k : i;
}

/* Columns first .. of gate and up of one pair, or row: its weight and the biases where there are some, then the
 * product. */
static int colibri_activate(const colibri_session *s, const colibri_gated *ffn, uint32_t pair, uint32_t first,
                            uint32_t count, float *g, float *u)
{
    for (uint32_t r = 0; ffn->weight && r < count; r++) {
        g[r] = g[r] * ffn->weight[pair];
        u[r] = u[r] * ffn->weight[pair];
    }
    for (uint32_t r = 0; ffn->gate_bias && r < count; r++) {
        g[r] = g[r] + ffn->gate_bias[first + r];
    }
    for (uint32_t r = 0; ffn->up_bias && r < count; r++) {
        u[r] = u[r] + ffn->up_bias[first + r];
    }
    if (ffn->activation == COLIBRI_ACTIVATION_SILU) {
        return colibri_gate(s->kernel, g, u, count);
    }
    return colibri_gate_as(s->kernel, g, u, count, ffn->activation, ffn->limit);
}

/* The gated product of g and u becomes columns first .. of row i's output. */
static void colibri_gated_put(colibri_session *s, const colibri_gated *ffn, uint32_t i, float *g, float *u,
                              uint32_t first, uint32_t count, uint32_t worker)
{
    uint32_t pair = ffn->pairs ? ffn->pairs[i] : i;
    colibri_activation h = colibri_buffer_row(s, &ffn->out, pair);
    int bad = colibri_activate(s, ffn, pair, first, count, g, u);
    if (!ffn->out.quantized) {
        colibri_copy((float *)(uintptr_t)h.x + first, g, count * 4u);
    } else if (!bad) {
        bad = colibri_quantize_row(s->kernel, g, count, (colibri_group *)(uintptr_t)h.groups + first / COLIBRI_GROUP);
    }
    if (bad) {
        colibri_fault(s, worker);
    }
}

/* One group for many rows: a strip of gate and one of up, eight rows at a time. */
static void colibri_gated_many(colibri_session *s, const colibri_gated *ffn, uint32_t group, uint32_t worker)
{
    colibri_strip gate = colibri_strip_at(s, ffn->gate, ffn->base, group, 1);
    colibri_strip up = colibri_strip_at(s, ffn->up, ffn->base, group, 1);
    for (uint32_t i = 0; i < ffn->rows; i += COLIBRI_ROWS_AT_ONCE) {
        uint32_t count = colibri_rows_at_once(ffn->rows - i);
        colibri_activation x[COLIBRI_ROWS_AT_ONCE] = {{0, 0}};
        float g[COLIBRI_ROWS_AT_ONCE][COLIBRI_STRIP_ROWS], u[COLIBRI_ROWS_AT_ONCE][COLIBRI_STRIP_ROWS];
        for (uint32_t k = 0; k < count; k++) {
            x[k] = colibri_buffer_row(s, &s->layout.norm, colibri_gated_row(ffn, i + k));
        }
        colibri_strip_times(s, &gate, x, count, i != 0u, g[0]);
        colibri_strip_times(s, &up, x, count, i != 0u, u[0]);
        for (uint32_t k = 0; k < count; k++) {
            colibri_gated_put(s, ffn, i + k, g[k], u[k], gate.first, gate.lanes, worker);
        }
    }
}

/* Up to COLIBRI_ROWS_AT_ONCE groups for one row: memory decides here, and it likes long stretches: all of the gate
 * matrix that is wanted, then all of up. */
static void colibri_gated_one(colibri_session *s, const colibri_gated *ffn, uint32_t group, uint32_t groups,
                              uint32_t worker)
{
    colibri_strip gate = colibri_strip_at(s, ffn->gate, ffn->base, group, groups);
    colibri_strip up = colibri_strip_at(s, ffn->up, ffn->base, group, groups);
    colibri_activation x = colibri_buffer_row(s, &s->layout.norm, colibri_gated_row(ffn, 0));
    float g[COLIBRI_ROWS_AT_ONCE * COLIBRI_STRIP_ROWS], u[COLIBRI_ROWS_AT_ONCE * COLIBRI_STRIP_ROWS];
    colibri_strip_times(s, &gate, &x, 1, 0, g);
    colibri_strip_times(s, &up, &x, 1, 0, u);
    colibri_gated_put(s, ffn, 0, g, u, gate.first, gate.lanes, worker);
}

void colibri_gated_groups(colibri_session *s, const colibri_gated *ffn, uint32_t first, uint32_t count, uint32_t worker)
{
    uint32_t step = ffn->rows == 1u ? COLIBRI_ROWS_AT_ONCE : 1u;
    for (uint32_t g = 0; g < count; g += step) {
        if (step == 1u) {
            colibri_gated_many(s, ffn, first + g, worker);
        } else {
            colibri_gated_one(s, ffn, first + g, colibri_rows_at_once(count - g), worker);
        }
    }
}
