/*
 * attention.c: q/k norm, rotation, the cache's tiles, and attention in the one canonical order (NUMERICS sections 5
 * and 6). The cache of a layer and KV head is one K plane, then one V plane, in tiles of 16 positions; a window makes
 * it a ring of tiles. Lanes outside the window or behind the row are skipped, never multiplied by zero.
 */
#include "nn/session.h"

/* Tile sizes and the number of tiles of one KV head. */
void colibri_kv_shape(const colibri_limits *limits, colibri_layer *layer)
{
    uint64_t d = layer->d.head_dim;
    uint64_t positions = colibri_round_up(limits->context, COLIBRI_TILE_ROWS);
    if (layer->d.window) {
        uint64_t ring = colibri_round_up((uint64_t)layer->d.window + limits->batch + limits->rewind, COLIBRI_TILE_ROWS);
        positions = ring < positions ? ring : positions;
    }
    layer->kv_tiles = (uint32_t)(positions / COLIBRI_TILE_ROWS);
    switch (limits->kv_kind) {
    case COLIBRI_KV_F32:
        layer->k_tile_bytes = 64u * d;
        layer->v_tile_bytes = 64u * d;
        break;
    case COLIBRI_KV_F16:
        layer->k_tile_bytes = colibri_round_up(32u * d, 64);
        layer->v_tile_bytes = colibri_round_up(32u * d, 64);
        break;
    default:
        layer->k_tile_bytes = colibri_tile_bytes(COLIBRI_KIND_Q8, layer->d.head_dim);
        layer->v_tile_bytes = colibri_round_up(colibri_round_up(d, 64) + 16u * d, 64);
        break;
    }
}

static uint8_t *colibri_k_tile(const colibri_session *s, const colibri_layer *layer, uint32_t sequence, uint32_t head,
                               uint32_t tile)
{
    uint64_t head_bytes = (layer->k_tile_bytes + layer->v_tile_bytes) * layer->kv_tiles;
    return colibri_pool_at(s, s->layout.kv + sequence * s->layout.kv_sequence_bytes + layer->kv_offset +
                                  head * head_bytes + tile % layer->kv_tiles * layer->k_tile_bytes);
}

static uint8_t *colibri_v_tile(const colibri_session *s, const colibri_layer *layer, uint32_t sequence, uint32_t head,
                               uint32_t tile)
{
    uint64_t head_bytes = (layer->k_tile_bytes + layer->v_tile_bytes) * layer->kv_tiles;
    return colibri_pool_at(s, s->layout.kv + sequence * s->layout.kv_sequence_bytes + layer->kv_offset +
                                  head * head_bytes + layer->kv_tiles * layer->k_tile_bytes +
                                  tile % layer->kv_tiles * layer->v_tile_bytes);
}

/* a' = a*c - b*s, b' = b*c + a*s on each pair of every head. */
static void colibri_rotate_heads(const colibri_session *s, const colibri_layer *layer, float *x, uint32_t heads,
                                 uint32_t position)
{
    const colibri_rope *rope = colibri_rope_at(&s->view, layer->d.rope);
    const uint64_t *fractions = colibri_rope_fractions(&s->view, rope);
    float amplitude = colibri_float(rope->amplitude);
    for (uint32_t j = 0; j < rope->pairs; j++) {
        float c, n;
        uint32_t first = rope->interleaved ? 2u * j : j;
        uint32_t second = rope->interleaved ? 2u * j + 1u : j + rope->pairs;
        colibri_turn(position, fractions[j], &c, &n);
        c = c * amplitude;
        n = n * amplitude;
        for (uint32_t h = 0; h < heads; h++) {
            float *v = x + (uint64_t)h * layer->d.head_dim;
            float a = v[first];
            float b = v[second];
            v[first] = a * c - b * n;
            v[second] = b * c + a * n;
        }
    }
}

/* Per head, or all heads as one vector. */
static int colibri_norm_heads(const colibri_layer *layer, float *x, uint32_t heads, const float *w)
{
    int bad = 0;
    if (layer->d.qk_norm == COLIBRI_QK_NORM_WIDTH) {
        return colibri_rms_norm(x, x, w, heads * layer->d.head_dim, layer->d.eps);
    }
    for (uint32_t h = 0; h < heads; h++) {
        float *v = x + (uint64_t)h * layer->d.head_dim;
        bad |= colibri_rms_norm(v, v, w, layer->d.head_dim, layer->d.eps);
    }
    return bad;
}

/* Clamp to +- limit; what is not finite is found by its bits first. */
static int colibri_clip(float *x, uint32_t count, float limit)
{
    uint32_t most = 0;
    for (uint32_t i = 0; i < count; i++) {
        most = colibri_magnitude(x[i]) > most ? colibri_magnitude(x[i]) : most;
        x[i] = x[i] > limit ? limit : x[i];
        x[i] = x[i] < -limit ? -limit : x[i];
    }
    return most >= COLIBRI_INFINITY_BITS;
}

static int colibri_not_finite(const float *x, uint32_t count)
{
    uint32_t most = 0;
    for (uint32_t i = 0; i < count; i++) {
        most = colibri_magnitude(x[i]) > most ? colibri_magnitude(x[i]) : most;
    }
    return most >= COLIBRI_INFINITY_BITS;
}

static int colibri_store_k(uint32_t kind, const float *k, uint32_t head_dim, uint8_t *tile, uint32_t lane)
{
    switch (kind) {
    case COLIBRI_KV_F32:
        for (uint32_t c = 0; c < head_dim; c++) {
            ((float *)(void *)tile)[16u * c + lane] = k[c];
        }
        return 0;
    case COLIBRI_KV_F16:
        for (uint32_t c = 0; c < head_dim; c++) {
            ((uint16_t *)(void *)tile)[16u * c + lane] = colibri_half_from_float(k[c]);
        }
        return 0;
    default: return colibri_q8_lane(k, head_dim, tile, lane);
    }
}

static int colibri_store_v(uint32_t kind, const float *v, uint32_t head_dim, uint8_t *tile, uint32_t lane)
{
    uint64_t row = (uint64_t)head_dim * lane;
    int bad = 0;
    switch (kind) {
    case COLIBRI_KV_F32:
        for (uint32_t c = 0; c < head_dim; c++) {
            ((float *)(void *)tile)[row + c] = v[c];
        }
        return 0;
    case COLIBRI_KV_F16:
        for (uint32_t c = 0; c < head_dim; c++) {
            ((uint16_t *)(void *)tile)[row + c] = colibri_half_from_float(v[c]);
        }
        return 0;
    default:
        for (uint32_t g = 0; g < colibri_groups(head_dim); g++) {
            uint32_t first = g * COLIBRI_GROUP;
            uint32_t count = head_dim - first < COLIBRI_GROUP ? head_dim - first : COLIBRI_GROUP;
            int8_t *q = (int8_t *)tile + colibri_round_up(head_dim, 64) + row + first;
            bad |= colibri_q8_group(v + first, count, q, (uint16_t *)(void *)tile + 16u * g + lane);
        }
        return bad;
    }
}

/* A row's q and k made ready in place, its k and v written into the cache. */
void colibri_place_row(colibri_session *s, const colibri_layer *layer, uint32_t row, uint32_t worker)
{
    const colibri_row_state *state = colibri_row_at(s, row);
    uint32_t head_dim = layer->d.head_dim;
    float *q = colibri_qkv_at(s, row);
    float *k = q + layer->q.rows;
    const float *v = k + layer->k.rows;
    uint32_t tile = state->position / COLIBRI_TILE_ROWS, lane = state->position % COLIBRI_TILE_ROWS;
    int bad = 0;
    if (layer->d.qk_norm != COLIBRI_QK_NORM_NONE) {
        bad |= colibri_norm_heads(layer, q, layer->d.heads, colibri_vector_at(s, &layer->q_norm));
        bad |= colibri_norm_heads(layer, k, layer->d.kv_heads, colibri_vector_at(s, &layer->k_norm));
    }
    if (layer->d.has_clip) {                    /* q, k and v lie one behind the other */
        bad |= colibri_clip(q, layer->q.rows + layer->k.rows + layer->v.rows, layer->d.clip_qkv);
    }
    if (layer->d.rope != COLIBRI_NO) {
        colibri_rotate_heads(s, layer, q, layer->d.heads, state->position);
        colibri_rotate_heads(s, layer, k, layer->d.kv_heads, state->position);
    }
    /* a cache of halves would make an infinity 65504 */
    bad |= colibri_not_finite(k, layer->k.rows + layer->v.rows);
    for (uint32_t h = 0; h < layer->d.kv_heads; h++) {
        bad |= colibri_store_k(s->limits.kv_kind, k + (uint64_t)h * head_dim, head_dim,
                               colibri_k_tile(s, layer, state->sequence, h, tile), lane);
        bad |= colibri_store_v(s->limits.kv_kind, v + (uint64_t)h * head_dim, head_dim,
                               colibri_v_tile(s, layer, state->sequence, h, tile), lane);
    }
    if (bad) {
        colibri_fault(s, worker);
    }
}

/* The cache kind's products are those of the weight kinds: a K tile is a weight tile of head_dim columns. */
static uint32_t colibri_k_kind(uint32_t kv_kind)
{
    switch (kv_kind) {
    case COLIBRI_KV_F32: return COLIBRI_KIND_F32;
    case COLIBRI_KV_F16: return COLIBRI_KIND_F16;
    default: return COLIBRI_KIND_Q8;
    }
}

/* acc[d] = acc[d] + (p * s_v) * v for one position. */
static void colibri_add_v(uint32_t kind, const uint8_t *tile, uint32_t lane, uint32_t head_dim, float p, float *acc)
{
    uint64_t row = (uint64_t)head_dim * lane;
    const float *f = (const float *)(const void *)tile + row;
    const uint16_t *half = (const uint16_t *)(const void *)tile;
    const int8_t *q = (const int8_t *)tile + colibri_round_up(head_dim, 64) + row;
    switch (kind) {
    case COLIBRI_KV_F32:
        for (uint32_t c = 0; c < head_dim; c++) {
            acc[c] = acc[c] + p * f[c];
        }
        break;
    case COLIBRI_KV_F16:
        for (uint32_t c = 0; c < head_dim; c++) {
            acc[c] = acc[c] + p * colibri_half_to_float(half[row + c]);
        }
        break;
    default:
        for (uint32_t c = 0; c < head_dim; c++) {
            float scaled = p * colibri_widen(half[16u * (c / COLIBRI_GROUP) + lane]);
            acc[c] = acc[c] + scaled * (float)q[c];
        }
        break;
    }
}

typedef struct colibri_span {
    uint32_t first, last;                       /* positions seen, both included */
    uint32_t sequence, kv_head;
    float *scores;                              /* by position - first tile's first position */
    float *acc;
} colibri_span;

/* All scores; returns their largest magnitude's bits. */
static uint32_t colibri_scores(const colibri_session *s, const colibri_layer *layer, const colibri_span *span,
                               const colibri_activation *query)
{
    uint32_t base = span->first / COLIBRI_TILE_ROWS;
    uint32_t most = 0;
    for (uint32_t t = base; t <= span->last / COLIBRI_TILE_ROWS; t++) {
        float *out = span->scores + (t - base) * COLIBRI_TILE_ROWS;
        colibri_tile_dot(colibri_k_kind(s->limits.kv_kind), colibri_k_tile(s, layer, span->sequence, span->kv_head, t),
                         layer->d.head_dim, query, out);
        for (uint32_t r = 0; r < COLIBRI_TILE_ROWS; r++) {
            uint32_t position = t * COLIBRI_TILE_ROWS + r;
            if (position >= span->first && position <= span->last) {
                out[r] = out[r] * layer->d.score_scale;
                most = colibri_magnitude(out[r]) > most ? colibri_magnitude(out[r]) : most;
            }
        }
    }
    return most;
}

/* Scores to exponentials; returns their sum in 16 partials by absolute position mod 16. */
static float colibri_soften(const colibri_span *span)
{
    uint32_t base = span->first & ~15u;
    float partial[16] = {0};
    float most = span->scores[span->first - base];
    for (uint32_t p = span->first + 1u; p <= span->last; p++) {
        most = span->scores[p - base] > most ? span->scores[p - base] : most;
    }
    for (uint32_t p = span->first; p <= span->last; p++) {
        float e = colibri_exp(span->scores[p - base] - most);
        span->scores[p - base] = e;
        partial[p & 15u] = partial[p & 15u] + e;
    }
    return colibri_tree16(partial);
}

void colibri_attend(colibri_session *s, const colibri_layer *layer, uint32_t row, uint32_t head, uint32_t worker)
{
    const colibri_row_state *state = colibri_row_at(s, row);
    uint32_t head_dim = layer->d.head_dim;
    uint8_t *scratch = colibri_pool_at(s, s->layout.scores + worker * s->layout.scores_bytes);
    colibri_activation out = colibri_buffer_row(s, &s->layout.attended, row);
    colibri_buffer shape;
    colibri_span span;
    span.last = state->position;
    span.first = layer->d.window && span.last + 1u > layer->d.window ? span.last + 1u - layer->d.window : 0u;
    span.sequence = state->sequence;
    span.kv_head = head / (layer->d.heads / layer->d.kv_heads);
    span.scores = (float *)(void *)scratch;
    span.acc = (float *)(void *)(scratch + s->layout.acc_at);
    colibri_buffer_shape(&shape, head_dim, 0, 1);
    shape.offset = s->layout.scores + worker * s->layout.scores_bytes + s->layout.query_at;
    colibri_activation query = colibri_buffer_row(s, &shape, 0);
    query.x = colibri_qkv_at(s, row) + (uint64_t)head * head_dim;
    if (s->limits.kv_kind == COLIBRI_KV_Q8 &&
        colibri_quantize_row(query.x, head_dim, (int8_t *)(uintptr_t)query.q, (float *)(uintptr_t)query.d,
                             (int32_t *)(uintptr_t)query.sum)) {
        colibri_fault(s, worker);
        return;
    }
    if (colibri_scores(s, layer, &span, &query) >= COLIBRI_INFINITY_BITS) {
        colibri_fault(s, worker);
        return;
    }
    float sum = colibri_soften(&span);
    for (uint32_t c = 0; c < head_dim; c++) {
        span.acc[c] = 0.0f;
    }
    for (uint32_t p = span.first; p <= span.last; p++) {
        const uint8_t *tile = colibri_v_tile(s, layer, span.sequence, span.kv_head, p / COLIBRI_TILE_ROWS);
        colibri_add_v(s->limits.kv_kind, tile, p % COLIBRI_TILE_ROWS, head_dim, span.scores[p - (span.first & ~15u)],
                      span.acc);
    }
    float *y = (float *)(uintptr_t)out.x + (uint64_t)head * head_dim;
    for (uint32_t c = 0; c < head_dim; c++) {
        y[c] = span.acc[c] / sum;
    }
}
