/*
 * router.c: which experts a row goes to and with what weights (NUMERICS section 7). float32 logits by the f32 tile
 * kernel on the unquantized norm output; ties to the lower index; chosen experts are kept in ascending order, which
 * is the order their outputs are added in.
 */
#include "nn/session.h"

enum { COLIBRI_CHOICE_LANES = 16, COLIBRI_CHOICE_ROOM = 32, COLIBRI_CHOICE_FEW = 32 };

/* rank[i]: how many of the n values come before value i (value descending, index ascending). No branch depends on a
 * value, so a routing that cannot be foreseen costs no mispredictions. */
static void colibri_choice_ranks(const float *value, uint32_t n, uint32_t *rank)
{
    for (uint32_t i = 0; i < n; i++) {
        rank[i] = 0;
    }
    for (uint32_t j = 0; j < n; j++) {
        float v = value[j];
        for (uint32_t i = 0; i < n; i++) {
            rank[i] += (uint32_t)(v > value[i]) | ((uint32_t)(v == value[i]) & (uint32_t)(j < i));
        }
    }
}

/* At least k values are not below this: the k-th largest of the maxima of 16 lanes. experts >= 32, k <= 16. */
static float colibri_choice_threshold(const float *z, uint32_t experts, uint32_t k)
{
    float top[COLIBRI_CHOICE_LANES];
    uint32_t above[COLIBRI_CHOICE_LANES] = {0};
    uint32_t whole = experts / COLIBRI_CHOICE_LANES * COLIBRI_CHOICE_LANES;
    for (uint32_t l = 0; l < COLIBRI_CHOICE_LANES; l++) {
        top[l] = z[l];
    }
    for (uint32_t e = COLIBRI_CHOICE_LANES; e < whole; e += COLIBRI_CHOICE_LANES) {
        for (uint32_t l = 0; l < COLIBRI_CHOICE_LANES; l++) {
            top[l] = z[e + l] > top[l] ? z[e + l] : top[l];
        }
    }
    for (uint32_t j = 0; j < COLIBRI_CHOICE_LANES; j++) {
        float v = top[j];
        for (uint32_t l = 0; l < COLIBRI_CHOICE_LANES; l++) {
            above[l] += v > top[l];
        }
    }
    float threshold = 0.0f;
    uint32_t found = 0;
    for (uint32_t l = 0; l < COLIBRI_CHOICE_LANES; l++) {
        int counts = above[l] < k && (!found || top[l] < threshold);
        threshold = counts ? top[l] : threshold;
        found |= above[l] < k;
    }
    return threshold;
}

/* The k largest one after the other: for any k, any number of experts, and values that are not numbers. */
static void colibri_choose_in_turn(const float *z, uint32_t experts, uint32_t k, uint32_t *chosen)
{
    for (uint32_t held = 0; held < k; held++) {
        uint32_t best = COLIBRI_NO, next = 0;
        for (uint32_t e = 0; e < experts; e++) {
            if (next < held && chosen[next] == e) {     /* taken: they stand in ascending order */
                next++;
            } else if (best == COLIBRI_NO || z[e] > z[best]) {
                best = e;
            }
        }
        uint32_t at = held;
        for (; at > 0u && chosen[at - 1u] > best; at--) {
            chosen[at] = chosen[at - 1u];
        }
        chosen[at] = best;
    }
}

/* The k largest of z by (value descending, index ascending), written in ascending index order. */
static void colibri_choose(const float *z, uint32_t experts, uint32_t k, uint32_t *chosen)
{
    uint32_t index[COLIBRI_CHOICE_ROOM + 1], rank[COLIBRI_CHOICE_ROOM], found[COLIBRI_CHOICE_ROOM + 1];
    float value[COLIBRI_CHOICE_ROOM];
    uint32_t n = 0, taken = 0;
    int all = experts <= COLIBRI_CHOICE_ROOM;
    if ((!all && k > COLIBRI_CHOICE_LANES) || (uint64_t)experts * k <= COLIBRI_CHOICE_FEW) {
        colibri_choose_in_turn(z, experts, k, chosen);
        return;
    }
    if (all) {
        for (n = 0; n < experts; n++) {
            index[n] = n;
        }
    } else {
        float threshold = colibri_choice_threshold(z, experts, k);
        for (uint32_t e = 0; e < experts; e++) {
            index[n < COLIBRI_CHOICE_ROOM ? n : COLIBRI_CHOICE_ROOM] = e;
            n += z[e] >= threshold;
        }
    }
    if (n > COLIBRI_CHOICE_ROOM) {                      /* many equal ones */
        colibri_choose_in_turn(z, experts, k, chosen);
        return;
    }
    for (uint32_t i = 0; i < n; i++) {
        value[i] = z[index[i]];
    }
    colibri_choice_ranks(value, n, rank);
    for (uint32_t i = 0; i < n; i++) {
        found[taken] = index[i];
        taken += rank[i] < k;
    }
    for (uint32_t i = 0; i < k; i++) {
        chosen[i] = found[i];
    }
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

/* From a row's logits to its experts and weights. */
static void colibri_route_row(colibri_session *s, const colibri_layer *layer, uint32_t row, float *z)
{
    uint32_t *chosen = colibri_pool_words(s, layer->chosen) + (uint64_t)row * layer->d.top_k;
    float *weight = colibri_pool_floats(s, layer->chosen_weight) + (uint64_t)row * layer->d.top_k;
    float sum = 1.0f;
    if (layer->d.router_score == COLIBRI_ROUTER_SIGMOID) {      /* selection on the score */
        for (uint32_t e = 0; e < layer->d.experts; e++) {
            z[e] = colibri_sigmoid(z[e]);
        }
        colibri_choose(z, layer->d.experts, layer->d.top_k, chosen);
    } else {                                                    /* softmax without bias: on the logits */
        colibri_choose(z, layer->d.experts, layer->d.top_k, chosen);
        float most = z[chosen[0]];                              /* the largest of all is among them */
        for (uint32_t i = 1; i < layer->d.top_k; i++) {
            most = z[chosen[i]] > most ? z[chosen[i]] : most;
        }
        sum = colibri_exp_sum(s->kernel, z, layer->d.experts, most);
    }
    colibri_router_weights(layer, z, sum, chosen, weight);
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

/* Unit: rows unit * COLIBRI_ROWS_AT_ONCE .. of the batch. */
void colibri_route_rows(colibri_session *s, const colibri_layer *layer, uint32_t unit, uint32_t worker)
{
    uint32_t first = unit * COLIBRI_ROWS_AT_ONCE;
    uint32_t count = colibri_rows_at_once(s->row_count - first);
    float *z = colibri_pool_floats(s, s->layout.router_logits) + (uint64_t)first * s->layout.router_stride;
    colibri_activation rows[COLIBRI_ROWS_AT_ONCE];
    int bad = 0;
    for (uint32_t i = 0; i < count; i++) {
        rows[i] = colibri_buffer_row(s, &s->layout.norm, first + i);
        colibri_fill(colibri_mixed_at(s, first + i), 0, (uint64_t)s->view.hidden * 4u);
    }
    colibri_product p = {colibri_weight_at(s, &layer->router), layer->router.tile_bytes, COLIBRI_KIND_F32,
                         s->view.hidden, colibri_tiles(layer->d.experts), count, unit != 0u, 0, rows, z,
                         s->layout.router_stride};
    colibri_products(s->kernel, &p);
    for (uint32_t i = 0; i < count; i++) {
        bad |= colibri_amax_bits(s->kernel, z + (uint64_t)i * s->layout.router_stride, layer->d.experts) >=
               COLIBRI_INFINITY_BITS;
    }
    for (uint32_t i = 0; i < count && !bad; i++) {
        colibri_route_row(s, layer, first + i, z + (uint64_t)i * s->layout.router_stride);
    }
    if (layer->d.shared_gate) {
        bad |= colibri_shared_gates(s, layer, rows, first, count);
    }
    if (bad) {
        colibri_fault(s, worker);
    }
}
