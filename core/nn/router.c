/*
 * router.c: which experts a row goes to and with what weights (NUMERICS section 7). float32 logits by the f32 tile
 * kernel on the unquantized norm output; chosen experts are kept in ascending order, which is the order their outputs
 * are added in. How the best are found is choose.c's; the integer router is fixed_router.c's, from the logits' bits on.
 */
#include "nn/fixed_router.h"
#include "nn/session.h"

/* Logits to scores, in place. */
static void colibri_router_scores(uint32_t kernel, uint32_t score, float *z, uint32_t experts)
{
    if (score == COLIBRI_ROUTER_SOFTMAX) {
        float most = z[0];
        for (uint32_t e = 1; e < experts; e++) {
            most = z[e] > most ? z[e] : most;
        }
        float sum = colibri_exp_sum(kernel, z, experts, most);
        for (uint32_t e = 0; e < experts; e++) {
            z[e] = z[e] / sum;
        }
    } else if (score == COLIBRI_ROUTER_SIGMOID) {
        for (uint32_t e = 0; e < experts; e++) {
            z[e] = colibri_sigmoid(z[e]);
        }
    } else if (score == COLIBRI_ROUTER_SQRT_SOFTPLUS) {
        for (uint32_t e = 0; e < experts; e++) {
            z[e] = colibri_sqrt_softplus(z[e]);
        }
    }
}

/* The sparse mixer's weight of expert i: its share among the experts that come behind it in the order of the choice
 * and are near it. The chosen ones before it are out, so that the weights need not add up to 1. */
static float colibri_sparse_mixer(const float *z, uint32_t experts, uint32_t i, float jitter)
{
    float total = 0.0f;
    float limit = 2.0f * jitter;
    for (uint32_t e = 0; e < experts; e++) {
        float magnitude = z[e] < 0.0f ? -z[e] : z[e];
        float factor = magnitude > z[i] ? magnitude : z[i];
        int before = z[e] > z[i] || (z[e] == z[i] && e < i);
        if (!before && !(z[i] - z[e] > limit * factor)) {
            total = total + colibri_exp(z[e] - z[i]);
        }
    }
    return 1.0f / total;
}

/* What the weights of the chosen experts are divided by; in ascending index order, from +0. */
static float colibri_router_total(const colibri_description *d, float *weight)
{
    float total = 0.0f;
    float most = weight[0];
    for (uint32_t i = 1; i < d->top_k; i++) {
        most = weight[i] > most ? weight[i] : most;
    }
    for (uint32_t i = 0; i < d->top_k; i++) {
        if (d->renormalise == COLIBRI_RENORMALISE_SOFTMAX) {
            weight[i] = colibri_exp(weight[i] - most);
        }
        total = total + (d->renormalise == COLIBRI_RENORMALISE_ROOT ? weight[i] * weight[i] : weight[i]);
    }
    total = d->renormalise == COLIBRI_RENORMALISE_ROOT ? colibri_sqrt(total) : total;
    total = d->router_eps != 0.0f ? total + d->router_eps : total;
    return d->router_sum_min > 0.0f && total < d->router_sum_min ? d->router_sum_min : total;
}

/* 1 if a weight is not finite: what they are divided by may be 0 where scores are. */
static int colibri_router_weights(const colibri_description *d, const float *score, float sum, const uint32_t *chosen,
                                  float *weight)
{
    int bad = 0;
    for (uint32_t i = 0; i < d->top_k; i++) {
        weight[i] = d->router_score == COLIBRI_ROUTER_SOFTMAX ? score[chosen[i]] / sum : score[chosen[i]];
        if (d->router_score == COLIBRI_ROUTER_SPARSE_MIXER) {
            weight[i] = colibri_sparse_mixer(score, d->experts, chosen[i], d->router_jitter);
        }
    }
    if (d->renormalise != COLIBRI_RENORMALISE_NONE) {
        float total = colibri_router_total(d, weight);
        for (uint32_t i = 0; i < d->top_k; i++) {
            weight[i] = weight[i] / total;
        }
    }
    for (uint32_t i = 0; i < d->top_k; i++) {
        weight[i] = weight[i] * d->router_scale;
        bad |= colibri_magnitude(weight[i]) >= COLIBRI_INFINITY_BITS;
    }
    return bad;
}

/* The choice by score or logit plus bias, or in groups: scores stay what weights are made of, and the numbers of the
 * choice are made beside them, in the second half of the row. 1 if one of them is not finite. */
static int colibri_select(const colibri_session *s, const colibri_layer *layer, float *z, uint32_t *chosen)
{
    const colibri_description *d = &layer->d;
    const float *bias = d->router_bias ? colibri_vector_at(s, &layer->router_bias) : 0;
    float *value = z + s->layout.router_stride / 2u;
    int by_logit = d->router_bias == COLIBRI_ROUTER_BIAS_CHOICE || d->router_choice == COLIBRI_CHOICE_BY_LOGIT;
    if (!by_logit) {
        colibri_router_scores(s->kernel, d->router_score, z, d->experts);
    }
    colibri_copy(value, z, d->experts * 4u);
    if (by_logit) {
        colibri_router_scores(s->kernel, d->router_score, z, d->experts);
    }
    if (d->router_bias == COLIBRI_ROUTER_BIAS_CHOICE || d->router_bias == COLIBRI_ROUTER_BIAS_SCORE) {
        for (uint32_t e = 0; e < d->experts; e++) {
            value[e] = value[e] + bias[e];
        }
    }
    if (colibri_amax_bits(s->kernel, value, d->experts) >= COLIBRI_INFINITY_BITS) {
        return 1;
    }
    if (d->router_groups) {
        colibri_choose_in_groups(value, d, chosen);
    } else {
        colibri_choose(value, d->experts, d->top_k, chosen);
    }
    return 0;
}

int colibri_route_by_token(const colibri_session *s, const colibri_layer *layer, uint32_t row)
{
    const colibri_description *d = &layer->d;
    uint32_t *chosen = colibri_pool_words(s, layer->chosen) + (uint64_t)row * d->top_k;
    const float *listed = colibri_vector_at(s, &layer->token_routes) +
                          (uint64_t)colibri_row_at(s, row)->token * d->top_k;
    if (!colibri_routes_are_experts(listed, d->top_k, d->experts)) {
        return 1;
    }
    for (uint32_t i = 0; i < d->top_k; i++) {
        chosen[i] = (uint32_t)listed[i];
    }
    return 0;
}

/* The same by integers: logits to Q16.16 in their place, experts and weights by fixed_router.c. The weights' way back
 * to float32 is exact but for the scale. */
static int colibri_route_fixed(colibri_session *s, const colibri_layer *layer, uint32_t row, const float *z)
{
    const colibri_description *d = &layer->d;
    uint32_t *chosen = colibri_pool_words(s, layer->chosen) + (uint64_t)row * d->top_k;
    float *weight = colibri_pool_floats(s, layer->chosen_weight) + (uint64_t)row * d->top_k;
    uint32_t *part = (uint32_t *)(void *)weight;
    int32_t *logit = (int32_t *)(void *)(uintptr_t)z;
    uint32_t experts = d->experts;                  /* by itself, or what is stored could change it */
    int bad = 0;
    for (uint32_t e = 0; e < experts; e++) {
        logit[e] = colibri_fixed_logit(colibri_bits(z[e]));
    }
    colibri_pool_words(s, layer->spread)[row] = colibri_fixed_route(d, logit, chosen, part);
    for (uint32_t i = 0; i < d->top_k; i++) {
        weight[i] = (float)(int32_t)part[i] * (1.0f / 65536.0f) * d->router_scale;
        bad |= colibri_magnitude(weight[i]) >= COLIBRI_INFINITY_BITS;
    }
    return bad;
}

/* Weights below the limit become 0, which leaves the expert out of the pass list; the best one stays. */
static void colibri_skip_light(float *weight, uint32_t count, float below)
{
    uint32_t best = 0;
    for (uint32_t i = 1; i < count; i++) {
        best = weight[i] > weight[best] ? i : best;
    }
    for (uint32_t i = 0; i < count; i++) {
        weight[i] = i != best && weight[i] < below ? 0.0f : weight[i];
    }
}

/* From a row's logits to its experts and weights; 1 if something is not finite. */
static int colibri_route_row(colibri_session *s, const colibri_layer *layer, uint32_t row, float *z)
{
    const colibri_description *d = &layer->d;
    uint32_t *chosen = colibri_pool_words(s, layer->chosen) + (uint64_t)row * d->top_k;
    float *weight = colibri_pool_floats(s, layer->chosen_weight) + (uint64_t)row * d->top_k;
    float sum = 1.0f;
    if (d->router_span) {
        return colibri_route_fixed(s, layer, row, z);
    }
    if (d->router_by_token) {
        colibri_router_scores(s->kernel, d->router_score, z, d->experts);
        if (colibri_route_by_token(s, layer, row)) {
            return 1;
        }
    } else if (colibri_router_selects(d)) {
        if (colibri_select(s, layer, z, chosen)) {
            return 1;
        }
    } else if (d->router_score == COLIBRI_ROUTER_SOFTMAX) {     /* on the logits: only the chosen ones are divided */
        colibri_choose(z, d->experts, d->top_k, chosen);
        float most = z[chosen[0]];                              /* the largest of all is among them */
        for (uint32_t i = 1; i < d->top_k; i++) {
            most = z[chosen[i]] > most ? z[chosen[i]] : most;
        }
        sum = colibri_exp_sum(s->kernel, z, d->experts, most);
    } else {
        colibri_router_scores(s->kernel, d->router_score, z, d->experts);
        colibri_choose(z, d->experts, d->top_k, chosen);
    }
    int bad = colibri_router_weights(d, z, sum, chosen, weight);
    if (s->limits.skip_below > 0.0f) {
        colibri_skip_light(weight, d->top_k, s->limits.skip_below);
    }
    return bad;
}

/* The shared expert's gate of a few rows; 1 if one is not finite. */
static int colibri_shared_gates(colibri_session *s, const colibri_layer *layer, const colibri_activation *rows,
                                uint32_t first, uint32_t count)
{
    float acc[COLIBRI_ROWS_AT_ONCE][COLIBRI_STRIP_ROWS];
    colibri_strip strip = colibri_strip_at(s, &layer->shared_switch, 0, 0, 1);
    int bad = 0;
    colibri_strip_times(s, &strip, rows, count, 0, acc[0]);
    for (uint32_t i = 0; i < count; i++) {      /* exp's clamp must not be the first to see it */
        bad |= colibri_magnitude(acc[i][0]) >= COLIBRI_INFINITY_BITS;
        colibri_pool_floats(s, s->layout.shared_switch)[first + i] = colibri_sigmoid(acc[i][0]);
    }
    return bad;
}

/* Not inlined: two callers, and the whole router in it. */
__attribute__((noinline)) int colibri_route(colibri_session *s, const colibri_layer *layer,
                                            const colibri_activation *rows, uint32_t first, uint32_t count)
{
    float *z = colibri_pool_floats(s, s->layout.router_logits) + (uint64_t)first * s->layout.router_stride;
    int bad = 0;
    colibri_product p = {colibri_weight_at(s, &layer->router), layer->router.tile_bytes, COLIBRI_KIND_F32,
                         s->view.hidden, colibri_tiles(layer->d.experts), count, first != 0u, 0, rows, z,
                         s->layout.router_stride};
    colibri_products(s->kernel, &p);
    for (uint32_t i = 0; i < count; i++) {
        if (layer->d.router_bias == COLIBRI_ROUTER_BIAS_LOGIT) {
            colibri_add_scaled(s->kernel, z + (uint64_t)i * s->layout.router_stride,
                               colibri_vector_at(s, &layer->router_bias), 1.0f, layer->d.experts);
        }
        bad |= colibri_amax_bits(s->kernel, z + (uint64_t)i * s->layout.router_stride, layer->d.experts) >=
               COLIBRI_INFINITY_BITS;
    }
    for (uint32_t i = 0; i < count && !bad; i++) {
        bad |= colibri_route_row(s, layer, first + i, z + (uint64_t)i * s->layout.router_stride);
    }
    return bad;
}

/* Unit: rows unit * COLIBRI_ROWS_AT_ONCE .. of the batch. */
void colibri_route_rows(colibri_session *s, const colibri_layer *layer, uint32_t unit, uint32_t worker)
{
    uint32_t first = unit * COLIBRI_ROWS_AT_ONCE;
    uint32_t count = colibri_rows_at_once(s->row_count - first);
    colibri_activation rows[COLIBRI_ROWS_AT_ONCE];
    for (uint32_t i = 0; i < count; i++) {
        rows[i] = colibri_buffer_row(s, &s->layout.norm, first + i);
        colibri_fill(colibri_mixed_at(s, first + i), 0, (uint64_t)s->view.hidden * 4u);
    }
    int bad = colibri_route(s, layer, rows, first, count);
    if (layer->d.shared_gate) {
        bad |= colibri_shared_gates(s, layer, rows, first, count);
    }
    if (bad) {
        colibri_fault(s, worker);
    }
}
