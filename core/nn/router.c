/*
 * router.c: which experts a row goes to and with what weights (NUMERICS section 7). float32 logits by the f32 tile
 * kernel on the unquantized norm output; ties to the lower index; chosen experts are kept in ascending order, which
 * is the order their outputs are added in.
 */
#include "nn/session.h"

static int colibri_router_logits(const colibri_session *s, const colibri_layer *layer, const colibri_activation *x,
                                 float *z)
{
    uint32_t most = 0;
    for (uint32_t t = 0; t < colibri_tiles(layer->d.experts); t++) {
        colibri_tile_dot(COLIBRI_KIND_F32, colibri_weight_at(s, &layer->router) + t * layer->router.tile_bytes,
                         s->view.hidden, x, z + 16u * t);
    }
    for (uint32_t e = 0; e < layer->d.experts; e++) {
        most = colibri_magnitude(z[e]) > most ? colibri_magnitude(z[e]) : most;
    }
    return most >= COLIBRI_INFINITY_BITS;
}

/* The k largest of z by (value descending, index ascending), written in ascending index order. */
static void colibri_choose(const float *z, uint32_t experts, uint32_t k, uint32_t *chosen)
{
    uint32_t held = 0;
    for (uint32_t e = 0; e < experts; e++) {
        uint32_t weakest = 0;
        if (held < k) {
            chosen[held++] = e;
            continue;
        }
        for (uint32_t i = 1; i < k; i++) {          /* the last of the smallest: it loses a tie */
            weakest = z[chosen[i]] <= z[chosen[weakest]] ? i : weakest;
        }
        if (z[e] > z[chosen[weakest]]) {
            for (uint32_t i = weakest; i + 1u < k; i++) {
                chosen[i] = chosen[i + 1u];
            }
            chosen[k - 1u] = e;
        }
    }
}

/* Logits to scores in place; returns what a softmax divides by (1 for the sigmoid). */
static float colibri_router_scores(const colibri_layer *layer, float *z)
{
    uint32_t experts = layer->d.experts;
    if (layer->d.router_score == COLIBRI_ROUTER_SIGMOID) {
        for (uint32_t e = 0; e < experts; e++) {
            z[e] = colibri_sigmoid(z[e]);
        }
        return 1.0f;
    }
    float most = z[0];
    for (uint32_t e = 1; e < experts; e++) {
        most = z[e] > most ? z[e] : most;
    }
    for (uint32_t e = 0; e < experts; e++) {
        z[e] = colibri_exp(z[e] - most);
    }
    return colibri_sum16(z, experts);
}

static void colibri_router_weights(const colibri_layer *layer, const float *score, float sum, const uint32_t *chosen,
                                   float *weight)
{
    uint32_t k = layer->d.top_k;
    int softmax = layer->d.router_score == COLIBRI_ROUTER_SOFTMAX;
    for (uint32_t i = 0; i < k; i++) {
        weight[i] = softmax ? score[chosen[i]] / sum : score[chosen[i]];
    }
    if (layer->d.renormalise == COLIBRI_RENORMALISE_SUM) {
        float total = weight[0];
        for (uint32_t i = 1; i < k; i++) {
            total = total + weight[i];
        }
        total = layer->d.router_eps != 0.0f ? total + layer->d.router_eps : total;
        for (uint32_t i = 0; i < k; i++) {
            weight[i] = weight[i] / total;
        }
    }
    for (uint32_t i = 0; i < k; i++) {
        weight[i] = weight[i] * layer->d.router_scale;
    }
}

void colibri_route_row(colibri_session *s, const colibri_layer *layer, uint32_t row, uint32_t worker)
{
    colibri_activation x = colibri_buffer_row(s, &s->layout.norm, row);
    uint64_t stride = colibri_round_up(s->layout.max_experts, 16) * 4u;
    float *z = colibri_pool_floats(s, s->layout.router_logits + row * stride);
    uint32_t *chosen = colibri_pool_words(s, layer->chosen) + (uint64_t)row * layer->d.top_k;
    float *weight = colibri_pool_floats(s, layer->chosen_weight) + (uint64_t)row * layer->d.top_k;
    float *y = colibri_pool_floats(s, s->layout.mixed) + (uint64_t)row * s->view.hidden;
    if (colibri_router_logits(s, layer, &x, z)) {
        colibri_fault(s, worker);
        return;
    }
    float sum = 1.0f;
    if (layer->d.router_score == COLIBRI_ROUTER_SIGMOID) {      /* selection on the score */
        sum = colibri_router_scores(layer, z);
        colibri_choose(z, layer->d.experts, layer->d.top_k, chosen);
    } else {                                                    /* softmax without bias: on the logits */
        colibri_choose(z, layer->d.experts, layer->d.top_k, chosen);
        sum = colibri_router_scores(layer, z);
    }
    colibri_router_weights(layer, z, sum, chosen, weight);
    if (layer->d.shared_gate) {
        float acc[16];
        colibri_tile_dot(COLIBRI_KIND_F32, colibri_weight_at(s, &layer->shared_switch), s->view.hidden, &x, acc);
        if (colibri_magnitude(acc[0]) >= COLIBRI_INFINITY_BITS) {     /* exp's clamp must not be the first to see it */
            colibri_fault(s, worker);
            return;
        }
        colibri_pool_floats(s, s->layout.shared_switch)[row] = colibri_sigmoid(acc[0]);
    }
    for (uint32_t c = 0; c < s->view.hidden; c++) {
        y[c] = 0.0f;
    }
}
