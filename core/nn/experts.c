/*
 * experts.c: the experts op. First, serially, the pass list: the distinct experts of the batch in ascending order with
 * the rows each one serves; which of them make a pass and lie where is slots.c's. Then units run and never wait. Fewer
 * slots than distinct experts: several passes, in ascending expert order, so that every row still adds its experts in
 * ascending order.
 */
#include "nn/session.h"

/* Left out by the limits? */
static int colibri_pair_skipped(const colibri_session *s, const colibri_layer *layer, uint32_t pair)
{
    return s->limits.skip_below > 0.0f && colibri_pool_floats(s, layer->chosen_weight)[pair] == 0.0f;
}

/* Pairs are row * top_k + k. Listed expert by expert, rows ascending, by counting: O(experts + rows * top_k), since no
 * budget bounds this serial piece. The router's logits are done with; the counts take their place. */
void colibri_pass_list(colibri_session *s, const colibri_layer *layer)
{
    const uint32_t *chosen = colibri_pool_words(s, layer->chosen);
    uint32_t *first_pair = colibri_pool_words(s, s->layout.first_pair);
    uint32_t *pairs = colibri_pool_words(s, s->layout.pairs);
    uint32_t *count = colibri_pool_words(s, s->layout.router_logits);
    uint32_t total = s->row_count * layer->d.top_k;
    uint32_t listed = 0;
    colibri_fill(count, 0, 4u * (uint64_t)layer->d.experts);
    for (uint32_t p = 0; p < total; p++) {
        count[chosen[p]] += !colibri_pair_skipped(s, layer, p);
    }
    s->distinct_count = 0;
    for (uint32_t e = 0; e < layer->d.experts; e++) {
        if (count[e]) {
            colibri_distinct_at(s, s->distinct_count)->expert = e;
            colibri_distinct_at(s, s->distinct_count)->slot = COLIBRI_NO;
            first_pair[s->distinct_count++] = listed;
            listed += count[e];
            count[e] = listed - count[e];       /* from here on: where this expert's next pair goes */
        }
    }
    first_pair[s->distinct_count] = listed;
    for (uint32_t p = 0; p < total; p++) {
        if (!colibri_pair_skipped(s, layer, p)) {
            pairs[count[chosen[p]]++] = p;
        }
    }
    s->pass_first = 0;
    s->pass_end = 0;
}

/* --- units --- */

static const uint8_t *colibri_run_at(const colibri_session *s, const colibri_layer *layer, const colibri_distinct *d)
{
    const uint8_t *override = colibri_override_run(s, layer, d->expert);
    if (override) {
        return override;
    }
    if (d->slot != COLIBRI_NO) {
        return colibri_pool_at(s, s->layout.slot_data + d->slot * s->layout.slot_bytes);
    }
    return s->view.blob + layer->expert_offset + d->expert * layer->d.expert_run;
}

/* Units first .. first + count - 1: expert by expert, groups ascending. */
void colibri_expert_up(colibri_session *s, uint32_t layer_index, uint32_t first, uint32_t count, uint32_t worker)
{
    const colibri_layer *layer = colibri_layer_at(s, layer_index);
    uint32_t groups = colibri_strips(layer->d.ff);
    const uint32_t *first_pair = colibri_pool_words(s, s->layout.first_pair);
    colibri_gated ffn;
    ffn.gate = &layer->expert_gate;
    ffn.up = &layer->expert_up;
    ffn.weight = colibri_pool_floats(s, layer->chosen_weight);
    ffn.weight = layer->d.router_weight_on == COLIBRI_ROUTER_ON_INPUT ? ffn.weight : 0;
    ffn.activation = layer->d.activation;
    ffn.limit = layer->d.swiglu_limit;
    ffn.out = colibri_gated_buffer(s, layer->d.ff, layer->expert_down.kind);
    ffn.top_k = layer->d.top_k;
    while (count) {
        uint32_t index = s->pass_first + first / groups, group = first % groups;
        uint32_t part = groups - group < count ? groups - group : count;
        uint32_t expert = colibri_distinct_at(s, index)->expert;
        ffn.base = colibri_run_at(s, layer, colibri_distinct_at(s, index));
        ffn.gate_bias = colibri_bias_at(s, &layer->ffn_gate_bias, expert, layer->d.ff);
        ffn.up_bias = colibri_bias_at(s, &layer->ffn_up_bias, expert, layer->d.ff);
        ffn.pairs = colibri_pool_words(s, s->layout.pairs) + first_pair[index];
        ffn.rows = first_pair[index + 1u] - first_pair[index];
        colibri_gated_groups(s, &ffn, group, part, worker);
        first += part;
        count -= part;
    }
}

/* y = y + w * (out + bias) for one strip of one expert, all its rows; w = 1 where it met the input. bias: or null. */
static void colibri_expert_strip(colibri_session *s, const colibri_layer *layer, const colibri_strip *strip,
                                 const float *bias, const colibri_buffer *in, const uint32_t *pairs, uint32_t rows)
{
    int on_input = layer->d.router_weight_on == COLIBRI_ROUTER_ON_INPUT;
    const float *weight = colibri_pool_floats(s, layer->chosen_weight);
    for (uint32_t i = 0; i < rows; i += COLIBRI_ROWS_AT_ONCE) {
        uint32_t count = colibri_rows_at_once(rows - i);
        colibri_activation h[COLIBRI_ROWS_AT_ONCE] = {{0, 0}};
        float acc[COLIBRI_ROWS_AT_ONCE][COLIBRI_STRIP_ROWS];
        for (uint32_t k = 0; k < count; k++) {
            h[k] = colibri_buffer_row(s, in, pairs[i + k]);
        }
        colibri_strip_times(s, strip, h, count, i != 0u, acc[0]);
        for (uint32_t k = 0; k < count; k++) {
            float *y = colibri_mixed_at(s, pairs[i + k] / layer->d.top_k) + strip->first;
            for (uint32_t r = 0; bias && r < strip->lanes; r++) {
                acc[k][r] = acc[k][r] + bias[strip->first + r];
            }
            colibri_add_scaled(s->kernel, y, acc[k], on_input ? 1.0f : weight[pairs[i + k]], strip->lanes);
        }
    }
}

/* Strips first .. first + count - 1 of hidden: for every expert of the pass, ascending, all of them, which is one
 * stretch of its matrix. */
void colibri_expert_down(colibri_session *s, uint32_t layer_index, uint32_t first, uint32_t count)
{
    const colibri_layer *layer = colibri_layer_at(s, layer_index);
    const uint32_t *first_pair = colibri_pool_words(s, s->layout.first_pair);
    const uint32_t *pairs = colibri_pool_words(s, s->layout.pairs);
    colibri_buffer in = colibri_gated_buffer(s, layer->d.ff, layer->expert_down.kind);
    for (uint32_t d = s->pass_first; d < s->pass_end; d++) {
        const uint8_t *run = colibri_run_at(s, layer, colibri_distinct_at(s, d));
        const float *bias = colibri_bias_at(s, &layer->ffn_down_bias, colibri_distinct_at(s, d)->expert,
                                            s->view.hidden);
        for (uint32_t unit = first; unit < first + count; unit++) {
            colibri_strip strip = colibri_strip_at(s, &layer->expert_down, run, unit, 1);
            colibri_expert_strip(s, layer, &strip, bias, &in, pairs + first_pair[d],
                                 first_pair[d + 1u] - first_pair[d]);
        }
    }
}
