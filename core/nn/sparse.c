/*
 * sparse.c: which positions latent attention looks at (DSA, NUMERICS section 6). Index heads score every position a row
 * sees, the best ones are chosen, the lower position on a tie; while a row sees no more than it may choose it sees all
 * of them. The choice stands as one bit a position until a layer chooses anew.
 */
#include "nn/session.h"

static uint8_t *colibri_index_tile(const colibri_session *s, const colibri_layer *layer, uint32_t sequence,
                                   uint32_t tile)
{
    return colibri_pool_at(s, s->layout.kv + sequence * s->layout.kv_sequence_bytes + layer->index_offset +
                                  tile * layer->index_tile_bytes);
}

/* A row's index key normed and rotated into its cache, its index queries rotated, its heads' weights scaled. */
void colibri_index_place(colibri_session *s, const colibri_layer *layer, uint32_t row, uint32_t worker)
{
    const colibri_row_state *state = colibri_row_at(s, row);
    uint32_t heads = layer->d.index_heads, dim = layer->d.index_dim;
    float *q = colibri_index_at(s, row), *k = q + layer->index_q.rows, *w = k + dim;
    float share = 1.0f / colibri_sqrt((float)heads);
    int bad = colibri_amax_bits(s->kernel, q, layer->index_q.rows + dim + heads) >= COLIBRI_INFINITY_BITS;
    if (!bad) {
        bad = colibri_layer_norm(s->kernel, k, k, colibri_vector_at(s, &layer->index_k_norm),
                                 colibri_vector_at(s, &layer->index_k_shift), dim, layer->d.latent_eps);
    }
    if (layer->d.index_rope != COLIBRI_NO) {
        colibri_rotate_heads(s, layer->d.index_rope, q, heads + 1u, dim, state->position);      /* k lies behind q */
    }
    for (uint32_t h = 0; h < heads; h++) {
        w[h] = w[h] * share;
    }
    /* a cache of halves would make an infinity 65504 */
    bad |= colibri_amax_bits(s->kernel, k, dim) >= COLIBRI_INFINITY_BITS;
    uint8_t *tile = colibri_index_tile(s, layer, state->sequence, state->position / COLIBRI_TILE_ROWS);
    bad |= colibri_store_k(s, k, dim, tile, state->position % COLIBRI_TILE_ROWS);
    if (bad) {
        colibri_fault(s, worker);
    }
}

/* Floats as integers in the same order; a sum that began with +0 is never -0. */
static uint32_t colibri_ordered(float x)
{
    uint32_t bits = colibri_bits(x);
    return bits >> 31 ? ~bits : bits | 0x80000000u;
}

/* The `wanted`-th largest of count values, as an ordered integer; *above: how many are larger. Byte by byte. */
static uint32_t colibri_threshold(const float *x, uint32_t count, uint32_t wanted, uint32_t *above)
{
    uint32_t value = 0, known = 0, larger = 0;
    for (uint32_t shift = 24; known != 0xFFFFFFFFu; shift -= 8u) {
        uint32_t bins[256] = {0};
        uint32_t byte = 255;
        for (uint32_t i = 0; i < count; i++) {
            uint32_t key = colibri_ordered(x[i]);
            bins[key >> shift & 255u] += (key & known) == value;
        }
        while (larger + bins[byte] < wanted) {
            larger += bins[byte--];
        }
        value |= byte << shift;
        known |= 255u << shift;
    }
    *above = larger;
    return value;
}

/* The best top_k of positions 0 .. count - 1, more than top_k. */
static void colibri_choose_positions(const float *scores, uint32_t count, uint32_t top_k, uint16_t *chosen)
{
    uint32_t above;
    uint32_t least = colibri_threshold(scores, count, top_k, &above);
    uint32_t equals = top_k - above;
    for (uint32_t p = 0; p < count; p++) {
        uint32_t key = colibri_ordered(scores[p]);
        uint32_t equal = key == least && equals != 0u;
        equals -= equal;
        chosen[p / 16u] |= (uint16_t)((key > least || equal) << p % 16u);
    }
}

/* Index scores of a row's positions, heads ascending: s = s + w * max(q . k * scale, +0); 1: not all are finite. */
static int colibri_index_scores(colibri_session *s, const colibri_layer *layer, uint32_t row, uint8_t *scratch,
                                float *scores)
{
    const colibri_row_state *state = colibri_row_at(s, row);
    uint32_t dim = layer->d.index_dim, count = state->position + 1u, tiles = colibri_tiles(count);
    const float *q = colibri_index_at(s, row), *w = q + layer->index_q.rows + dim;
    float scale = 1.0f / colibri_sqrt((float)dim);
    float *raw = (float *)(void *)scratch;
    colibri_buffer shape;
    int bad = 0;
    colibri_buffer_shape(&shape, dim, 0, 1);
    shape.offset = (uint64_t)(scratch - (const uint8_t *)(const void *)s) + s->layout.query_at;
    colibri_fill(scores, 0, tiles * 64u);
    for (uint32_t head = 0; head < layer->d.index_heads; head += COLIBRI_ROWS_AT_ONCE) {
        uint32_t together = colibri_rows_at_once(layer->d.index_heads - head);
        colibri_activation x[COLIBRI_ROWS_AT_ONCE] = {{0, 0}};
        for (uint32_t i = 0; i < together; i++) {
            x[i] = colibri_buffer_row(s, &shape, i);
            x[i].x = q + (uint64_t)(head + i) * dim;
            if (s->limits.kv_kind == COLIBRI_KV_Q8) {
                bad |= colibri_quantize_row(s->kernel, x[i].x, dim, (colibri_group *)(uintptr_t)x[i].groups);
            }
        }
        colibri_product p = {colibri_index_tile(s, layer, state->sequence, 0), layer->index_tile_bytes,
                             colibri_k_kind(s->limits.kv_kind), dim, tiles, together, head != 0u, 0, x, raw,
                             s->layout.score_lanes};
        colibri_products(s->kernel, &p);
        for (uint32_t i = 0; i < together; i++) {
            const float *of_head = raw + (uint64_t)i * s->layout.score_lanes;
            bad |= colibri_amax_bits(s->kernel, of_head, count) >= COLIBRI_INFINITY_BITS;
            colibri_add_positive(s->kernel, scores, of_head, scale, w[head + i], count);
        }
    }
    return bad | (colibri_amax_bits(s->kernel, scores, count) >= COLIBRI_INFINITY_BITS);
}

void colibri_index_choose(colibri_session *s, const colibri_layer *layer, uint32_t row, uint32_t worker)
{
    uint8_t *scratch = colibri_pool_at(s, s->layout.scores + worker * s->layout.scores_bytes);
    uint32_t count = colibri_row_at(s, row)->position + 1u;
    uint16_t *chosen = colibri_choice_at(s, row);
    float *scores = (float *)(void *)scratch + (uint64_t)(s->layout.score_rows - 1u) * s->layout.score_lanes;
    colibri_fill(chosen, 0, colibri_tiles(count) * 2u);
    if (count <= layer->d.index_top_k) {
        colibri_fill(chosen, 0xFF, colibri_tiles(count) * 2u);
    } else if (colibri_index_scores(s, layer, row, scratch, scores)) {
        colibri_fault(s, worker);
    } else {
        colibri_choose_positions(scores, count, layer->d.index_top_k, chosen);
    }
}
