/*
 * tape.c: the op tape. A model is a flat array of small ops; an op is a number of units; running the model is walking
 * the array. Dispatch by switch, so that the worst-case stack is a static fact.
 */
#include "nn/session.h"

/* The ops of one layer in order; returns how many. ops may be a scratch array of 24. */
uint32_t colibri_tape_layer_ops(const colibri_description *d, colibri_op *ops, uint32_t layer)
{
    static const uint8_t attention[] = {
        COLIBRI_OP_ATTENTION_NORM, COLIBRI_OP_QKV, COLIBRI_OP_LATENT, COLIBRI_OP_QUERY, COLIBRI_OP_PLACE,
        COLIBRI_OP_INDEX, COLIBRI_OP_INDEX_PLACE, COLIBRI_OP_INDEX_CHOOSE, COLIBRI_OP_ABSORB, COLIBRI_OP_ATTEND,
        COLIBRI_OP_EXPAND, COLIBRI_OP_QUANTIZE, COLIBRI_OP_PROJECT, COLIBRI_OP_FFN_NORM};
    uint32_t n = 0;
    for (uint32_t i = 0; i < sizeof attention; i++) {
        int of_latent = attention[i] == COLIBRI_OP_ABSORB || attention[i] == COLIBRI_OP_EXPAND;
        int of_queries = attention[i] == COLIBRI_OP_LATENT || attention[i] == COLIBRI_OP_QUERY;
        int of_index = attention[i] >= COLIBRI_OP_INDEX && attention[i] <= COLIBRI_OP_INDEX_CHOOSE;
        if (attention[i] == COLIBRI_OP_FFN_NORM && (d->post_norms & COLIBRI_POST_NORM_ATTENTION)) {
            ops[n++].kind = COLIBRI_OP_ADD_ATTENTION;
        }
        if ((!of_latent || d->attention == COLIBRI_ATTENTION_MLA) && (!of_queries || d->q_latent) &&
            (!of_index || d->index_heads)) {
            ops[n++].kind = attention[i];
        }
    }
    if (d->ffn == COLIBRI_FFN_DENSE) {
        ops[n++].kind = COLIBRI_OP_DENSE_UP;
        ops[n++].kind = COLIBRI_OP_DENSE_DOWN;
        if (d->post_norms & COLIBRI_POST_NORM_FFN) {
            ops[n++].kind = COLIBRI_OP_COMBINE;
        }
    } else {
        ops[n++].kind = COLIBRI_OP_ROUTE;
        ops[n++].kind = COLIBRI_OP_LEASE;
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

static uint32_t colibri_blocks(uint32_t count, uint32_t block)
{
    return (count + (block - 1u)) / block;
}

/* What the attention norm goes into first: q, or the latent that q is made of. */
static const colibri_weight *colibri_first_projection(const colibri_layer *layer)
{
    return layer->q_a.rows ? &layer->q_a : &layer->q;
}

uint32_t colibri_op_units(const colibri_session *s, const colibri_op *op)
{
    const colibri_layer *layer = colibri_layer_at(s, op->layer);
    switch (op->kind) {
    case COLIBRI_OP_QKV:
        return colibri_strips(colibri_first_projection(layer)->rows) + colibri_strips(layer->k.rows) +
               colibri_strips(layer->v.rows) + colibri_strips(layer->head_gate.rows);
    case COLIBRI_OP_QUERY: return colibri_strips(layer->q.rows);
    case COLIBRI_OP_INDEX:
        return colibri_strips(layer->index_q.rows) + colibri_strips(layer->d.index_dim) +
               colibri_strips(layer->d.index_heads);
    case COLIBRI_OP_ABSORB: return colibri_strips(layer->d.latent) * layer->d.heads;
    case COLIBRI_OP_EXPAND: return colibri_strips(layer->d.v_dim) * layer->d.heads;
    case COLIBRI_OP_ATTEND:
        if (colibri_convolution(layer)) {
            return s->row_count;
        }
        return colibri_blocks(s->row_count, colibri_attend_rows(layer)) * layer->d.kv_heads *
               colibri_attend_parts(layer);
    case COLIBRI_OP_PROJECT:
    case COLIBRI_OP_DENSE_DOWN:
    case COLIBRI_OP_EXPERT_DOWN:
    case COLIBRI_OP_SHARED_DOWN: return colibri_strips(s->view.hidden);
    case COLIBRI_OP_DENSE_UP:
    case COLIBRI_OP_SHARED_UP: return colibri_strips(layer->gate.rows);
    case COLIBRI_OP_ROUTE: return colibri_blocks(s->row_count, COLIBRI_ROWS_AT_ONCE);
    case COLIBRI_OP_LEASE: return colibri_pass_pieces(s, op->layer);
    case COLIBRI_OP_EXPERT_UP: return (s->pass_end - s->pass_first) * colibri_strips(layer->d.ff);
    case COLIBRI_OP_FINAL_NORM: return s->logit_count;
    case COLIBRI_OP_HEAD: return s->logit_count ? colibri_strips(s->view.vocab) : 0u;
    default: return s->row_count;               /* EMBED, norms, LATENT, PLACE, INDEX_PLACE .. */
    }
}

/* Multiply-adds with weights, without padding. Experts are counted at ROUTE: top_k a row, whatever the passes. */
uint64_t colibri_op_macs(const colibri_session *s, const colibri_op *op)
{
    const colibri_layer *layer = colibri_layer_at(s, op->layer);
    uint64_t rows = s->row_count;
    uint64_t hidden = s->view.hidden;
    switch (op->kind) {
    case COLIBRI_OP_QKV:
        return rows * hidden * ((uint64_t)colibri_first_projection(layer)->rows + layer->k.rows + layer->v.rows +
                                layer->head_gate.rows);
    case COLIBRI_OP_QUERY: return rows * layer->q.rows * layer->q.columns;
    case COLIBRI_OP_INDEX:
        return rows * ((uint64_t)layer->index_q.rows * layer->d.q_latent +
                       hidden * ((uint64_t)layer->d.index_dim + layer->d.index_heads));
    case COLIBRI_OP_ABSORB: return rows * layer->k_up.rows * layer->k_up.columns;
    case COLIBRI_OP_EXPAND: return rows * layer->v_up.rows * layer->v_up.columns;
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

/* --- units that are a row or a strip of one matrix --- */

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

typedef struct colibri_norm_weights {
    uint32_t kind;                              /* colibri_norm */
    float eps;
    const colibri_weight *w, *bias;
} colibri_norm_weights;

/* x to row `row` of the norm buffer, quantized too where some matrix wants it so. */
static void colibri_norm_row(colibri_session *s, const float *x, const colibri_norm_weights *norm, uint32_t row,
                             uint32_t worker)
{
    colibri_activation a = colibri_buffer_row(s, &s->layout.norm, row);
    float *y = (float *)(uintptr_t)a.x;
    const float *w = colibri_vector_at(s, norm->w);
    const float *bias = norm->bias->rows ? colibri_vector_at(s, norm->bias) : 0;
    int bad;
    if (norm->kind == COLIBRI_NORM_RMS) {
        bad = colibri_rms_norm(s->kernel, y, x, w, s->view.hidden, norm->eps);
    } else {
        bad = colibri_layer_norm(s->kernel, y, x, w, bias, s->view.hidden, norm->eps);
    }
    if (!bad && s->layout.norm.quantized) {
        bad = colibri_quantize_row(s->kernel, a.x, s->view.hidden, (colibri_group *)(uintptr_t)a.groups);
    }
    if (bad) {
        colibri_fault(s, worker);
    }
}

/* What was attended, gated where heads have gates, as o wants it. */
static void colibri_quantize_attended(colibri_session *s, const colibri_layer *layer, uint32_t row, uint32_t worker)
{
    colibri_activation a = colibri_buffer_row(s, &s->layout.attended, row);
    int bad = layer->head_gate.rows ? colibri_gate_heads(s, layer, row) : 0;
    if (!bad && colibri_kind_quantized(layer->o.kind)) {
        bad = colibri_quantize_row(s->kernel, a.x, layer->o.columns, (colibri_group *)(uintptr_t)a.groups);
    }
    if (bad) {
        colibri_fault(s, worker);
    }
}

/* Rows first .. first + count - 1 of a buffer times a strip. */
static void colibri_strip_rows(const colibri_session *s, const colibri_strip *strip, const colibri_buffer *in,
                               uint32_t first, uint32_t count,
                               float out[COLIBRI_ROWS_AT_ONCE][COLIBRI_STRIP_ROWS])
{
    colibri_activation rows[COLIBRI_ROWS_AT_ONCE];
    for (uint32_t i = 0; i < count; i++) {
        rows[i] = colibri_buffer_row(s, in, first + i);
    }
    colibri_strip_times(s, strip, rows, count, first != 0u, out[0]);
}

/* The strip's part of a bias, zero where there is none. */
static const float *colibri_strip_bias(const colibri_session *s, const colibri_strip *strip, const colibri_weight *bias)
{
    return bias->rows ? colibri_vector_at(s, bias) + strip->first : 0;
}

/* Where a projection's outputs go: `place` floats into the rows of qkv, or of the index. */
typedef struct colibri_target {
    uint64_t offset, stride, place;
} colibri_target;

static colibri_target colibri_qkv_target(const colibri_session *s, uint32_t place)
{
    colibri_target target = {s->layout.qkv, s->layout.qkv_stride, place};
    return target;
}

/* A strip of a projection for every row, plus its bias. */
static void colibri_projection_strip(colibri_session *s, const colibri_weight *w, const colibri_weight *bias,
                                     const colibri_buffer *in, colibri_target to, uint32_t unit)
{
    colibri_strip strip = colibri_strip_at(s, w, 0, unit, 1);
    const float *add = bias ? colibri_strip_bias(s, &strip, bias) : 0;
    for (uint32_t row = 0; row < s->row_count; row += COLIBRI_ROWS_AT_ONCE) {
        uint32_t count = colibri_rows_at_once(s->row_count - row);
        float acc[COLIBRI_ROWS_AT_ONCE][COLIBRI_STRIP_ROWS];
        colibri_strip_rows(s, &strip, in, row, count, acc);
        for (uint32_t i = 0; i < count; i++) {
            float *out = colibri_pool_floats(s, to.offset + (row + i) * to.stride) + to.place + strip.first;
            for (uint32_t r = 0; r < strip.lanes; r++) {
                out[r] = add ? acc[i][r] + add[r] : acc[i][r];
            }
        }
    }
}

/* One strip of q, k, v or gates. The latent of the queries lies behind q and k. */
static void colibri_qkv_strip(colibri_session *s, const colibri_layer *layer, uint32_t unit)
{
    const colibri_weight *w = colibri_first_projection(layer);
    const colibri_weight *bias = &layer->q_bias;
    uint32_t q_strips = colibri_strips(w->rows);
    uint32_t k_strips = colibri_strips(layer->k.rows);
    uint32_t place = layer->q_a.rows ? layer->q.rows + layer->k.rows : 0u;
    uint32_t v_end = q_strips + k_strips + colibri_strips(layer->v.rows);
    if (unit >= v_end) {
        unit -= v_end;
        w = &layer->head_gate;
        bias = 0;
        place = layer->q.rows + layer->k.rows + layer->v.rows;
    } else if (unit >= q_strips + k_strips) {
        unit -= q_strips + k_strips;
        w = &layer->v;
        bias = &layer->v_bias;
        place = layer->q.rows + layer->k.rows;
    } else if (unit >= q_strips) {
        unit -= q_strips;
        w = &layer->k;
        bias = &layer->k_bias;
        place = layer->q.rows;
    }
    colibri_projection_strip(s, w, bias, &s->layout.norm, colibri_qkv_target(s, place), unit);
}

/* One strip of the index queries, the index key or the weights of the index heads. */
static void colibri_index_strip(colibri_session *s, const colibri_layer *layer, uint32_t unit)
{
    const colibri_weight *parts[] = {&layer->index_q, &layer->index_k, &layer->index_weight};
    colibri_target to = {s->layout.index, s->layout.index_stride, 0};
    uint32_t part = 0;
    for (; part < 2u && unit >= colibri_strips(parts[part]->rows); part++) {
        unit -= colibri_strips(parts[part]->rows);
        to.place += parts[part]->rows;
    }
    colibri_projection_strip(s, parts[part], 0, part ? &s->layout.norm : &s->layout.latent, to, unit);
}

/* y onto the residual: x = x + y, times the residual multiplier if there is one. */
static void colibri_add_residual(const colibri_session *s, const colibri_layer *layer, uint32_t row, uint32_t first,
                                 const float *y, uint32_t count)
{
    float *x = colibri_residual_at(s, row) + first;
    for (uint32_t r = 0; r < count; r++) {
        x[r] = x[r] + (layer->d.has_residual_multiplier ? y[r] * layer->d.residual_multiplier : y[r]);
    }
}

/* One strip of a matrix back to the residual: x = x + (acc + bias); or aside, where a norm of it is added later. */
static void colibri_residual_strip(colibri_session *s, const colibri_layer *layer, const colibri_weight *w,
                                   const colibri_weight *bias, const colibri_buffer *in, uint32_t aside, uint32_t unit)
{
    colibri_strip strip = colibri_strip_at(s, w, 0, unit, 1);
    const float *add = colibri_strip_bias(s, &strip, bias);
    for (uint32_t row = 0; row < s->row_count; row += COLIBRI_ROWS_AT_ONCE) {
        uint32_t count = colibri_rows_at_once(s->row_count - row);
        float acc[COLIBRI_ROWS_AT_ONCE][COLIBRI_STRIP_ROWS];
        colibri_strip_rows(s, &strip, in, row, count, acc);
        for (uint32_t i = 0; i < count; i++) {
            for (uint32_t r = 0; add && r < strip.lanes; r++) {
                acc[i][r] = acc[i][r] + add[r];
            }
            if (aside) {
                colibri_copy(colibri_mixed_at(s, row + i) + strip.first, acc[i], strip.lanes * 4u);
            } else {
                colibri_add_residual(s, layer, row + i, strip.first, acc[i], strip.lanes);
            }
        }
    }
}

/* The shared expert's output onto the mixture: y = y + gate * out, or + out. */
static void colibri_shared_down_strip(colibri_session *s, const colibri_layer *layer, uint32_t unit)
{
    colibri_buffer in = colibri_gated_buffer(s, layer->down.columns, layer->down.kind);
    colibri_strip strip = colibri_strip_at(s, &layer->down, 0, unit, 1);
    for (uint32_t row = 0; row < s->row_count; row += COLIBRI_ROWS_AT_ONCE) {
        uint32_t count = colibri_rows_at_once(s->row_count - row);
        float acc[COLIBRI_ROWS_AT_ONCE][COLIBRI_STRIP_ROWS];
        colibri_strip_rows(s, &strip, &in, row, count, acc);
        for (uint32_t i = 0; i < count; i++) {
            float *y = colibri_mixed_at(s, row + i) + strip.first;
            float gate = layer->d.shared_gate ? colibri_pool_floats(s, s->layout.shared_switch)[row + i] : 1.0f;
            colibri_add_scaled(s->kernel, y, acc[i], gate, strip.lanes);        /* times 1 changes no bit */
        }
    }
}

/* What was gathered aside onto the residual, through a norm of its own where there is one. */
static void colibri_combine_row(colibri_session *s, const colibri_layer *layer, const colibri_weight *norm,
                                uint32_t row, uint32_t worker)
{
    float *y = colibri_mixed_at(s, row);
    if (norm->rows && colibri_rms_norm(s->kernel, y, y, colibri_vector_at(s, norm), s->view.hidden, layer->d.eps)) {
        colibri_fault(s, worker);
    }
    colibri_add_residual(s, layer, row, 0, y, s->view.hidden);
}

/* c * tanh(z / c) = c * (2 sigmoid(2 z / c) - 1); not for what is not finite. */
static float colibri_soft_cap(float z, float c)
{
    return c * (2.0f * colibri_sigmoid(2.0f * (z / c)) - 1.0f);
}

static void colibri_head_strip(colibri_session *s, uint32_t unit, uint32_t worker)
{
    colibri_strip strip = colibri_strip_at(s, &s->head, 0, unit, 1);
    const float *add = colibri_strip_bias(s, &strip, &s->head_bias);
    for (uint32_t row = 0; row < s->logit_count; row += COLIBRI_ROWS_AT_ONCE) {
        uint32_t count = colibri_rows_at_once(s->logit_count - row);
        float acc[COLIBRI_ROWS_AT_ONCE][COLIBRI_STRIP_ROWS];
        colibri_strip_rows(s, &strip, &s->layout.norm, row, count, acc);
        for (uint32_t i = 0; i < count; i++) {
            float *out = colibri_pool_floats(s, s->layout.logits + (row + i) * s->layout.logit_stride) + strip.first;
            for (uint32_t r = 0; r < strip.lanes; r++) {
                float z = add ? acc[i][r] + add[r] : acc[i][r];
                out[r] = s->view.has_multipliers & 2u ? z * s->view.logit_multiplier : z;
            }
            if (colibri_amax_bits(s->kernel, out, strip.lanes) >= COLIBRI_INFINITY_BITS) {
                colibri_fault(s, worker);
            }
            for (uint32_t r = 0; (s->view.has_multipliers & 4u) && r < strip.lanes; r++) {
                out[r] = colibri_soft_cap(out[r], s->view.logit_softcap);
            }
        }
    }
}

static void colibri_final_norm_row(colibri_session *s, uint32_t index, uint32_t worker)
{
    uint32_t row = colibri_pool_words(s, s->layout.logit_row)[index];
    colibri_norm_weights norm = {s->view.final_norm, s->view.final_eps, &s->final_norm, &s->final_norm_bias};
    colibri_norm_row(s, colibri_residual_at(s, row), &norm, index, worker);
}

/* Groups of a dense or shared FFN's gated product, for every row. */
static void colibri_up_groups(colibri_session *s, const colibri_layer *layer, uint32_t first, uint32_t count,
                              uint32_t worker)
{
    colibri_gated ffn;
    ffn.gate = &layer->gate;
    ffn.up = &layer->up;
    ffn.base = 0;
    ffn.weight = 0;
    ffn.gate_bias = 0;
    ffn.up_bias = 0;
    if (layer->d.ffn == COLIBRI_FFN_DENSE) {    /* a shared expert has no biases */
        ffn.gate_bias = colibri_bias_at(s, &layer->ffn_gate_bias, 0, layer->d.ff);
        ffn.up_bias = colibri_bias_at(s, &layer->ffn_up_bias, 0, layer->d.ff);
    }
    ffn.activation = layer->d.activation;
    ffn.limit = layer->d.swiglu_limit;
    ffn.out = colibri_gated_buffer(s, layer->down.columns, layer->down.kind);
    ffn.pairs = 0;
    ffn.top_k = 0;
    ffn.rows = s->row_count;
    colibri_gated_groups(s, &ffn, first, count, worker);
}

static void colibri_unit_run(colibri_session *s, const colibri_op *op, uint32_t unit, uint32_t worker)
{
    const colibri_layer *layer = colibri_layer_at(s, op->layer);
    colibri_norm_weights norm = {layer->d.norm, layer->d.eps, &layer->attention_norm, &layer->attention_norm_bias};
    colibri_buffer gated;
    switch (op->kind) {
    case COLIBRI_OP_EMBED: colibri_embed_row(s, unit); break;
    case COLIBRI_OP_ATTENTION_NORM:
        colibri_norm_row(s, colibri_residual_at(s, unit), &norm, unit, worker);
        break;
    case COLIBRI_OP_QKV: colibri_qkv_strip(s, layer, unit); break;
    case COLIBRI_OP_LATENT: colibri_latent_norm(s, layer, unit, worker); break;
    case COLIBRI_OP_QUERY:
        colibri_projection_strip(s, &layer->q, 0, &s->layout.latent, colibri_qkv_target(s, 0), unit);
        break;
    case COLIBRI_OP_INDEX: colibri_index_strip(s, layer, unit); break;
    case COLIBRI_OP_INDEX_PLACE: colibri_index_place(s, layer, unit, worker); break;
    case COLIBRI_OP_INDEX_CHOOSE: colibri_index_choose(s, layer, unit, worker); break;
    case COLIBRI_OP_PLACE:
        if (colibri_latent(layer)) {
            colibri_place_latent(s, layer, unit, worker);
        } else if (colibri_convolution(layer)) {
            colibri_place_convolved(s, layer, unit, worker);
        } else {
            colibri_place_row(s, layer, unit, worker);
        }
        break;
    case COLIBRI_OP_ABSORB: colibri_absorb(s, layer, unit); break;
    case COLIBRI_OP_EXPAND: colibri_expand(s, layer, unit); break;
    case COLIBRI_OP_ATTEND:
        if (colibri_convolution(layer)) {
            colibri_convolve(s, layer, unit);
        } else {
            colibri_attend(s, layer, unit, worker);
        }
        break;
    case COLIBRI_OP_QUANTIZE: colibri_quantize_attended(s, layer, unit, worker); break;
    case COLIBRI_OP_PROJECT:
        colibri_residual_strip(s, layer, &layer->o, &layer->o_bias, &s->layout.attended,
                               layer->d.post_norms & COLIBRI_POST_NORM_ATTENTION, unit);
        break;
    case COLIBRI_OP_FFN_NORM:
        norm.w = &layer->ffn_norm;
        norm.bias = &layer->ffn_norm_bias;
        colibri_norm_row(s, colibri_residual_at(s, unit), &norm, unit, worker);
        break;
    case COLIBRI_OP_DENSE_DOWN:
        gated = colibri_gated_buffer(s, layer->down.columns, layer->down.kind);
        colibri_residual_strip(s, layer, &layer->down, &layer->ffn_down_bias, &gated,
                               layer->d.post_norms & COLIBRI_POST_NORM_FFN, unit);
        break;
    case COLIBRI_OP_ROUTE: colibri_route_rows(s, layer, unit, worker); break;
    case COLIBRI_OP_LEASE: colibri_pass_sum(s, layer, unit); break;
    case COLIBRI_OP_SHARED_DOWN: colibri_shared_down_strip(s, layer, unit); break;
    case COLIBRI_OP_COMBINE: colibri_combine_row(s, layer, &layer->post_ffn_norm, unit, worker); break;
    case COLIBRI_OP_ADD_ATTENTION:
        colibri_combine_row(s, layer, &layer->post_attention_norm, unit, worker);
        break;
    case COLIBRI_OP_FINAL_NORM: colibri_final_norm_row(s, unit, worker); break;
    default: colibri_head_strip(s, unit, worker); break;
    }
}

/* A range of units; ops whose units are parts of a longer stretch of memory take it as a whole. */
void colibri_op_run(colibri_session *s, const colibri_op *op, uint32_t worker, uint32_t first, uint32_t count)
{
    switch (op->kind) {
    case COLIBRI_OP_DENSE_UP:
    case COLIBRI_OP_SHARED_UP: colibri_up_groups(s, colibri_layer_at(s, op->layer), first, count, worker); break;
    case COLIBRI_OP_EXPERT_UP: colibri_expert_up(s, op->layer, first, count, worker); break;
    case COLIBRI_OP_EXPERT_DOWN: colibri_expert_down(s, op->layer, first, count); break;
    default:
        for (uint32_t unit = first; unit < first + count; unit++) {
            colibri_unit_run(s, op, unit, worker);
        }
        break;
    }
}
