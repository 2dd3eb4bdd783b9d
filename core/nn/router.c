/*
 * router.c: which experts a row goes to and with what weights (NUMERICS section 7). float32 logits by the f32 tile
 * kernel on the unquantized norm output; ties to the lower index; chosen experts are kept in ascending order, which
 * is the order their outputs are added in.
 */
#include "nn/session.h"

enum { COLIBRI_CHOICE_BLOCK = 16 };             /* logits whose largest is kept, so that a choice looks at few of them */

/* The largest of a block that was not taken yet; taken: bit i of the block. */
static float colibri_block_top(const float *z, uint32_t count, uint32_t taken, uint32_t *index)
{
    float top = 0.0f;
    *index = COLIBRI_NO;
    for (uint32_t i = 0; i < count; i++) {
        if (!(taken >> i & 1u) && (*index == COLIBRI_NO || z[i] > top)) {
            top = z[i];
            *index = i;
        }
    }
    return top;
}

/* A block of COLIBRI_CHOICE_BLOCK logits while experts are chosen; index: of its largest that is left. */
typedef struct colibri_choice {
    float top;
    uint16_t index, taken;
} colibri_choice;

static void colibri_choice_update(colibri_choice *block, const float *z, uint32_t count)
{
    uint32_t index;
    block->top = colibri_block_top(z, count, block->taken, &index);
    block->index = (uint16_t)(index == COLIBRI_NO ? COLIBRI_CHOICE_BLOCK : index);
}

/* The k largest of z by (value descending, index ascending), written in ascending index order. */
static void colibri_choose(const float *z, uint32_t experts, uint32_t k, colibri_choice *blocks, uint32_t *chosen)
{
    uint32_t block_count = (experts + COLIBRI_CHOICE_BLOCK - 1u) / COLIBRI_CHOICE_BLOCK;
    for (uint32_t b = 0; b < block_count; b++) {
        uint32_t rest = experts - b * COLIBRI_CHOICE_BLOCK;
        blocks[b].taken = 0;
        colibri_choice_update(&blocks[b], z + b * COLIBRI_CHOICE_BLOCK, rest < 16u ? rest : 16u);
    }
    for (uint32_t held = 0; held < k; held++) {
        uint32_t best = COLIBRI_NO;
        for (uint32_t b = 0; b < block_count; b++) {
            if (blocks[b].index < COLIBRI_CHOICE_BLOCK && (best == COLIBRI_NO || blocks[b].top > blocks[best].top)) {
                best = b;
            }
        }
        uint32_t e = best * COLIBRI_CHOICE_BLOCK + blocks[best].index;
        uint32_t at = held;
        for (; at > 0u && chosen[at - 1u] > e; at--) {
            chosen[at] = chosen[at - 1u];
        }
        chosen[at] = e;
        uint32_t rest = experts - best * COLIBRI_CHOICE_BLOCK;
        blocks[best].taken = (uint16_t)(blocks[best].taken | 1u << blocks[best].index);
        colibri_choice_update(&blocks[best], z + best * COLIBRI_CHOICE_BLOCK, rest < 16u ? rest : 16u);
    }
}

/* Logits to scores in place; returns what a softmax divides by (1 for the sigmoid). */
static float colibri_router_scores(uint32_t kernel, const colibri_layer *layer, float *z)
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
    return colibri_exp_sum(kernel, z, experts, most);
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
    colibri_choice *blocks = (colibri_choice *)(void *)(z + colibri_tiles(s->layout.max_experts) * 16u);
    float sum = 1.0f;
    if (layer->d.router_score == COLIBRI_ROUTER_SIGMOID) {      /* selection on the score */
        sum = colibri_router_scores(s->kernel, layer, z);
        colibri_choose(z, layer->d.experts, layer->d.top_k, blocks, chosen);
    } else {                                                    /* softmax without bias: on the logits */
        colibri_choose(z, layer->d.experts, layer->d.top_k, blocks, chosen);
        sum = colibri_router_scores(s->kernel, layer, z);
    }
    colibri_router_weights(layer, z, sum, chosen, weight);
}

/* The shared expert's gate of a few rows; 1 if one is not finite. */
static int colibri_shared_gates(colibri_session *s, const colibri_layer *layer, const colibri_activation *rows,
                                uint32_t first, uint32_t count)
{
    float acc[COLIBRI_ROWS_AT_ONCE][COLIBRI_STRIP_ROWS];
    colibri_strip strip = colibri_strip_at(s, &layer->shared_switch, 0, 0);
    int bad = 0;
    colibri_strip_times(s, &strip, rows, count, 0, acc);
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
