/*
 * tape.c: the op tape. A model is a flat array of small ops; an op is a number of units; running the model is walking
 * the array. Dispatch by switch, so that the worst-case stack is a static fact.
 */
#include "nn/session.h"

/* The ops of one layer in order; returns how many. ops may be a scratch array of 24. */
uint32_t colibri_tape_layer_ops(const colibri_description *d, colibri_op *ops, uint32_t layer)
{
    static const uint8_t attention[] = {COLIBRI_OP_ATTENTION_NORM, COLIBRI_OP_QKV, COLIBRI_OP_PLACE, COLIBRI_OP_ATTEND,
                                        COLIBRI_OP_QUANTIZE, COLIBRI_OP_PROJECT, COLIBRI_OP_FFN_NORM};
    uint32_t n = 0;
    for (uint32_t i = 0; i < sizeof attention; i++) {
        ops[n++].kind = attention[i];
    }
    if (d->ffn == COLIBRI_FFN_DENSE) {
        ops[n++].kind = COLIBRI_OP_DENSE_UP;
        ops[n++].kind = COLIBRI_OP_DENSE_DOWN;
    } else {
        ops[n++].kind = COLIBRI_OP_ROUTE;
        ops[n++].kind = COLIBRI_OP_EXPERT_UP;
        ops[n++].kind = COLIBRI_OP_EXPERT_DOWN;
        if (d->shared_ff) {
            ops[n++].kind = COLIBRI_OP_SHARED_UP;
            ops[n++].kind = COLIBRI_OP_SHARED_DOWN;
        }
        ops[n++].kind = COLIBRI_OP_COMBINE;
    }
    for (uint32_t i = 0; i < n; i++) {
        ops[i].layer = layer;
    }
    return n;
}

static colibri_op *colibri_tape_at(const colibri_session *s, uint32_t index)
{
    return (colibri_op *)(void *)colibri_pool_at(s, s->layout.tape) + index;
}

static void colibri_tape_put(const colibri_session *s, uint32_t index, uint32_t kind)
{
    colibri_op *op = colibri_tape_at(s, index);
    op->kind = kind;
    op->layer = 0;
}

void colibri_tape_build(colibri_session *s)
{
    uint32_t n = 0;
    colibri_tape_put(s, n++, COLIBRI_OP_EMBED);
    for (uint32_t l = 0; l < s->view.layers; l++) {
        n += colibri_tape_layer_ops(&colibri_layer_at(s, l)->d, colibri_tape_at(s, n), l);
    }
    colibri_tape_put(s, n++, COLIBRI_OP_FINAL_NORM);
    colibri_tape_put(s, n++, COLIBRI_OP_HEAD);
}

uint32_t colibri_op_units(const colibri_session *s, const colibri_op *op)
{
    const colibri_layer *layer = colibri_layer_at(s, op->layer);
    switch (op->kind) {
    case COLIBRI_OP_QKV: return colibri_tiles(layer->q.rows) + 2u * colibri_tiles(layer->k.rows);
    case COLIBRI_OP_ATTEND: return s->row_count * layer->d.heads;
    case COLIBRI_OP_PROJECT:
    case COLIBRI_OP_DENSE_DOWN:
    case COLIBRI_OP_EXPERT_DOWN:
    case COLIBRI_OP_SHARED_DOWN: return colibri_tiles(s->view.hidden);
    case COLIBRI_OP_DENSE_UP:
    case COLIBRI_OP_SHARED_UP: return colibri_groups(layer->gate.rows);
    case COLIBRI_OP_EXPERT_UP: return (s->pass_end - s->pass_first) * colibri_groups(layer->d.ff);
    case COLIBRI_OP_FINAL_NORM: return s->logit_count;
    case COLIBRI_OP_HEAD: return s->logit_count ? colibri_tiles(s->view.vocab) : 0u;
    default: return s->row_count;               /* EMBED, norms, PLACE, QUANTIZE, ROUTE, COMBINE */
    }
}

/* Multiply-adds with weights, without padding. Experts are counted at ROUTE: top_k a row, whatever the passes. */
uint64_t colibri_op_macs(const colibri_session *s, const colibri_op *op)
{
    const colibri_layer *layer = colibri_layer_at(s, op->layer);
    uint64_t rows = s->row_count;
    uint64_t hidden = s->view.hidden;
    switch (op->kind) {
    case COLIBRI_OP_QKV: return rows * hidden * ((uint64_t)layer->q.rows + layer->k.rows + layer->v.rows);
    case COLIBRI_OP_PROJECT: return rows * hidden * layer->o.columns;
    case COLIBRI_OP_DENSE_UP:
    case COLIBRI_OP_SHARED_UP: return rows * hidden * 2u * layer->gate.rows;
    case COLIBRI_OP_DENSE_DOWN:
    case COLIBRI_OP_SHARED_DOWN: return rows * hidden * layer->down.columns;
    case COLIBRI_OP_ROUTE:
        return rows * hidden * (layer->d.experts + 3u * (uint64_t)layer->d.top_k * layer->d.ff + layer->d.shared_gate);
    case COLIBRI_OP_HEAD: return s->logit_count * hidden * s->view.vocab;
    default: return 0;
    }
}

/* --- units that are a row or a tile of one matrix --- */

static void colibri_embed_row(colibri_session *s, uint32_t row)
{
    uint32_t token = colibri_row_at(s, row)->token;
    float *x = colibri_residual_at(s, row);
    const uint8_t *tile = colibri_weight_at(s, &s->embed) + token / COLIBRI_TILE_ROWS * s->embed.tile_bytes;
    colibri_tile_row(s->embed.kind, tile, s->view.hidden, token % COLIBRI_TILE_ROWS, x);
    if (s->view.has_multipliers & 1u) {
        for (uint32_t c = 0; c < s->view.hidden; c++) {
            x[c] = x[c] * s->view.embed_multiplier;
        }
    }
}

/* x to row `row` of the norm buffer, quantized too where some matrix wants it so. */
static void colibri_norm_row(colibri_session *s, const float *x, const colibri_weight *w, float eps, uint32_t row,
                             uint32_t worker)
{
    colibri_activation a = colibri_buffer_row(s, &s->layout.norm, row);
    int bad = colibri_rms_norm((float *)(uintptr_t)a.x, x, colibri_vector_at(s, w), s->view.hidden, eps);
    if (!bad && s->layout.norm.quantized) {
        bad = colibri_quantize_row(a.x, s->view.hidden, (int8_t *)(uintptr_t)a.q, (float *)(uintptr_t)a.d,
                                   (int32_t *)(uintptr_t)a.sum);
    }
    if (bad) {
        colibri_fault(s, worker);
    }
}

static void colibri_quantize_attended(colibri_session *s, const colibri_layer *layer, uint32_t row, uint32_t worker)
{
    colibri_activation a = colibri_buffer_row(s, &s->layout.attended, row);
    if (!colibri_kind_quantized(layer->o.kind)) {
        return;
    }
    if (colibri_quantize_row(a.x, layer->o.columns, (int8_t *)(uintptr_t)a.q, (float *)(uintptr_t)a.d,
                             (int32_t *)(uintptr_t)a.sum)) {
        colibri_fault(s, worker);
    }
}

/* One tile of q, k or v for every row, plus its bias. */
static void colibri_qkv_tile(colibri_session *s, const colibri_layer *layer, uint32_t unit)
{
    uint32_t q_tiles = colibri_tiles(layer->q.rows);
    uint32_t k_tiles = colibri_tiles(layer->k.rows);
    const colibri_weight *w = &layer->q;
    const colibri_weight *bias = &layer->q_bias;
    uint32_t first = 0;
    if (unit >= q_tiles + k_tiles) {
        unit -= q_tiles + k_tiles;
        w = &layer->v;
        bias = &layer->v_bias;
        first = layer->q.rows + layer->k.rows;
    } else if (unit >= q_tiles) {
        unit -= q_tiles;
        w = &layer->k;
        bias = &layer->k_bias;
        first = layer->q.rows;
    }
    uint32_t lanes = w->rows - unit * 16u < 16u ? w->rows - unit * 16u : 16u;
    const uint8_t *tile = colibri_weight_at(s, w) + unit * w->tile_bytes;
    for (uint32_t row = 0; row < s->row_count; row++) {
        colibri_activation a = colibri_buffer_row(s, &s->layout.norm, row);
        float *out = colibri_qkv_at(s, row) + first + unit * 16u;
        float acc[16];
        colibri_tile_dot(w->kind, tile, w->columns, &a, acc);
        for (uint32_t r = 0; r < lanes; r++) {
            out[r] = bias->rows ? acc[r] + colibri_vector_at(s, bias)[unit * 16u + r] : acc[r];
        }
    }
}

/* One tile of a matrix back to the residual: x = x + (acc + bias), times the residual multiplier if there is one. */
static void colibri_residual_tile(colibri_session *s, const colibri_layer *layer, const colibri_weight *w,
                                  const colibri_weight *bias, const colibri_buffer *in, uint32_t unit)
{
    uint32_t lanes = w->rows - unit * 16u < 16u ? w->rows - unit * 16u : 16u;
    const uint8_t *tile = colibri_weight_at(s, w) + unit * w->tile_bytes;
    for (uint32_t row = 0; row < s->row_count; row++) {
        colibri_activation a = colibri_buffer_row(s, in, row);
        float *x = colibri_residual_at(s, row) + unit * 16u;
        float acc[16];
        colibri_tile_dot(w->kind, tile, w->columns, &a, acc);
        for (uint32_t r = 0; r < lanes; r++) {
            float y = bias && bias->rows ? acc[r] + colibri_vector_at(s, bias)[unit * 16u + r] : acc[r];
            x[r] = x[r] + (layer->d.has_residual_multiplier ? y * layer->d.residual_multiplier : y);
        }
    }
}

/* The shared expert's output onto the mixture: y = y + gate * out, or + out. */
static void colibri_shared_down_tile(colibri_session *s, const colibri_layer *layer, uint32_t unit)
{
    const colibri_weight *w = &layer->down;
    colibri_buffer in = colibri_gated_buffer(s, w->columns, w->kind);
    uint32_t lanes = w->rows - unit * 16u < 16u ? w->rows - unit * 16u : 16u;
    const uint8_t *tile = colibri_weight_at(s, w) + unit * w->tile_bytes;
    for (uint32_t row = 0; row < s->row_count; row++) {
        colibri_activation a = colibri_buffer_row(s, &in, row);
        float *y = colibri_pool_floats(s, s->layout.mixed) + (uint64_t)row * s->view.hidden + unit * 16u;
        float gate = colibri_pool_floats(s, s->layout.shared_switch)[row];
        float acc[16];
        colibri_tile_dot(w->kind, tile, w->columns, &a, acc);
        for (uint32_t r = 0; r < lanes; r++) {
            y[r] = y[r] + (layer->d.shared_gate ? gate * acc[r] : acc[r]);
        }
    }
}

static void colibri_combine_row(colibri_session *s, const colibri_layer *layer, uint32_t row)
{
    const float *y = colibri_pool_floats(s, s->layout.mixed) + (uint64_t)row * s->view.hidden;
    float *x = colibri_residual_at(s, row);
    for (uint32_t c = 0; c < s->view.hidden; c++) {
        x[c] = x[c] + (layer->d.has_residual_multiplier ? y[c] * layer->d.residual_multiplier : y[c]);
    }
}

static void colibri_head_tile(colibri_session *s, uint32_t unit, uint32_t worker)
{
    const colibri_weight *w = &s->head;
    uint32_t lanes = w->rows - unit * 16u < 16u ? w->rows - unit * 16u : 16u;
    const uint8_t *tile = colibri_weight_at(s, w) + unit * w->tile_bytes;
    for (uint32_t i = 0; i < s->logit_count; i++) {
        colibri_activation a = colibri_buffer_row(s, &s->layout.norm, i);
        float *out = colibri_pool_floats(s, s->layout.logits + i * s->layout.logit_stride) + unit * 16u;
        float acc[16];
        uint32_t most = 0;
        colibri_tile_dot(w->kind, tile, w->columns, &a, acc);
        for (uint32_t r = 0; r < lanes; r++) {
            out[r] = s->view.has_multipliers & 2u ? acc[r] * s->view.logit_multiplier : acc[r];
            most = colibri_magnitude(out[r]) > most ? colibri_magnitude(out[r]) : most;
        }
        if (most >= COLIBRI_INFINITY_BITS) {
            colibri_fault(s, worker);
        }
    }
}

static void colibri_final_norm_row(colibri_session *s, uint32_t index, uint32_t worker)
{
    uint32_t row = colibri_pool_words(s, s->layout.logit_row)[index];
    colibri_norm_row(s, colibri_residual_at(s, row), &s->final_norm, s->view.final_eps, index, worker);
}

/* A group of a dense or shared FFN's gated product, for every row. */
static void colibri_up_group(colibri_session *s, const colibri_layer *layer, uint32_t group, uint32_t worker)
{
    colibri_buffer out = colibri_gated_buffer(s, layer->down.columns, layer->down.kind);
    for (uint32_t row = 0; row < s->row_count; row++) {
        colibri_gated_group(s, &layer->gate, &layer->up, 0, &out, group, row, row, worker);
    }
}

static void colibri_unit_run(colibri_session *s, const colibri_op *op, uint32_t unit, uint32_t worker)
{
    const colibri_layer *layer = colibri_layer_at(s, op->layer);
    colibri_buffer gated;
    switch (op->kind) {
    case COLIBRI_OP_EMBED: colibri_embed_row(s, unit); break;
    case COLIBRI_OP_ATTENTION_NORM:
        colibri_norm_row(s, colibri_residual_at(s, unit), &layer->attention_norm, layer->d.eps, unit, worker);
        break;
    case COLIBRI_OP_QKV: colibri_qkv_tile(s, layer, unit); break;
    case COLIBRI_OP_PLACE: colibri_place_row(s, layer, unit, worker); break;
    case COLIBRI_OP_ATTEND: colibri_attend(s, layer, unit / layer->d.heads, unit % layer->d.heads, worker); break;
    case COLIBRI_OP_QUANTIZE: colibri_quantize_attended(s, layer, unit, worker); break;
    case COLIBRI_OP_PROJECT:
        colibri_residual_tile(s, layer, &layer->o, &layer->o_bias, &s->layout.attended, unit);
        break;
    case COLIBRI_OP_FFN_NORM:
        colibri_norm_row(s, colibri_residual_at(s, unit), &layer->ffn_norm, layer->d.eps, unit, worker);
        break;
    case COLIBRI_OP_DENSE_UP:
    case COLIBRI_OP_SHARED_UP: colibri_up_group(s, layer, unit, worker); break;
    case COLIBRI_OP_DENSE_DOWN:
        gated = colibri_gated_buffer(s, layer->down.columns, layer->down.kind);
        colibri_residual_tile(s, layer, &layer->down, 0, &gated, unit);
        break;
    case COLIBRI_OP_ROUTE: colibri_route_row(s, layer, unit, worker); break;
    case COLIBRI_OP_EXPERT_UP: colibri_expert_up(s, op->layer, unit, worker); break;
    case COLIBRI_OP_EXPERT_DOWN: colibri_expert_down(s, op->layer, unit); break;
    case COLIBRI_OP_SHARED_DOWN: colibri_shared_down_tile(s, layer, unit); break;
    case COLIBRI_OP_COMBINE: colibri_combine_row(s, layer, unit); break;
    case COLIBRI_OP_FINAL_NORM: colibri_final_norm_row(s, unit, worker); break;
    default: colibri_head_tile(s, unit, worker); break;
    }
}

void colibri_op_run(colibri_session *s, const colibri_op *op, uint32_t worker, uint32_t first, uint32_t count)
{
    for (uint32_t unit = first; unit < first + count; unit++) {
        colibri_unit_run(s, op, unit, worker);
    }
}
