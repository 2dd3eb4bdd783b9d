/*
 * attention.c: q/k norm, rotation, the cache's tiles, and attention in the one canonical order (NUMERICS sections 5
 * and 6). The cache of a layer and KV head is one K plane, then one V plane, in tiles of 16 positions; a window makes
 * it a ring of tiles. Lanes outside the window or behind the row are skipped, never multiplied by zero.
 */
#include "nn/session.h"

/* The cache kind's products are those of the weight kinds: a K tile is a weight tile of head_dim columns. */
uint32_t colibri_k_kind(uint32_t kv_kind)
{
    switch (kv_kind) {
    case COLIBRI_KV_F32: return COLIBRI_KIND_F32;
    case COLIBRI_KV_F16: return COLIBRI_KIND_F16;
    default: return COLIBRI_KIND_Q8;
    }
}

/* Tile sizes and the number of tiles of one KV head. Latent attention has no V plane: it mixes the K tiles; a
 * convolution has no K plane. */
void colibri_kv_shape(const colibri_limits *limits, colibri_layer *layer)
{
    uint64_t d = layer->d.head_dim;
    uint64_t positions = colibri_round_up(limits->context, COLIBRI_TILE_ROWS);
    uint32_t seen = layer->d.window ? layer->d.window : layer->d.chunk;
    if (seen) {
        uint64_t ring = colibri_round_up((uint64_t)seen + limits->batch + limits->rewind, COLIBRI_TILE_ROWS);
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
    if (colibri_latent(layer)) {
        layer->v_tile_bytes = 0;
    }
    if (layer->d.attention == COLIBRI_ATTENTION_CONV) {
        layer->k_tile_bytes = 0;
    }
    layer->index_tile_bytes = layer->d.index_heads
                                  ? colibri_tile_bytes(colibri_k_kind(limits->kv_kind), layer->d.index_dim) : 0u;
}

static uint8_t *colibri_k_tile(const colibri_session *s, const colibri_layer *layer, uint32_t sequence, uint32_t head,
                               uint32_t tile)
{
    uint64_t head_bytes = (layer->k_tile_bytes + layer->v_tile_bytes) * layer->kv_tiles;
    return colibri_pool_at(s, s->layout.kv + sequence * s->layout.kv_sequence_bytes + layer->kv_offset +
                                  head * head_bytes + tile % layer->kv_tiles * layer->k_tile_bytes);
}

uint8_t *colibri_value_tile(const colibri_session *s, const colibri_layer *layer, uint32_t sequence, uint32_t head,
                            uint32_t tile)
{
    uint64_t head_bytes = (layer->k_tile_bytes + layer->v_tile_bytes) * layer->kv_tiles;
    return colibri_pool_at(s, s->layout.kv + sequence * s->layout.kv_sequence_bytes + layer->kv_offset +
                                  head * head_bytes + layer->kv_tiles * layer->k_tile_bytes +
                                  tile % layer->kv_tiles * layer->v_tile_bytes);
}

enum { COLIBRI_PAIRS_AT_ONCE = 16 };

/* a' = a*c - b*s, b' = b*c + a*s for a few pairs of one head; step: from a pair to the next. */
static void colibri_rotate_pairs(float *a, float *b, uint32_t step, const float *c, const float *n, uint32_t count)
{
    for (uint32_t i = 0; i < count; i++) {
        float first = a[step * i];
        float second = b[step * i];
        a[step * i] = first * c[i] - second * n[i];
        b[step * i] = second * c[i] + first * n[i];
    }
}

/* Heads of x, `stride` floats apart, pair by pair: the angles of a pair are computed once for all heads. */
void colibri_rotate_heads(const colibri_session *s, uint32_t rope_index, float *x, uint32_t heads, uint32_t stride,
                          uint32_t position)
{
    const colibri_rope *rope = colibri_rope_at(&s->view, rope_index);
    const uint64_t *fractions = colibri_rope_fractions(&s->view, rope);
    float amplitude = colibri_float(rope->amplitude);
    for (uint32_t j = 0; j < rope->pairs; j += COLIBRI_PAIRS_AT_ONCE) {
        uint32_t count = rope->pairs - j < COLIBRI_PAIRS_AT_ONCE ? rope->pairs - j : COLIBRI_PAIRS_AT_ONCE;
        float c[COLIBRI_PAIRS_AT_ONCE], n[COLIBRI_PAIRS_AT_ONCE];
        for (uint32_t i = 0; i < count; i++) {
            colibri_turn(position, fractions[j + i], &c[i], &n[i]);
            c[i] = c[i] * amplitude;
            n[i] = n[i] * amplitude;
        }
        for (uint32_t h = 0; h < heads; h++) {
            float *v = x + (uint64_t)h * stride;
            if (rope->interleaved) {
                colibri_rotate_pairs(v + 2u * j, v + 2u * j + 1u, 2, c, n, count);
            } else {
                colibri_rotate_pairs(v + j, v + j + rope->pairs, 1, c, n, count);
            }
        }
    }
}

/* x * r with the r of RMSNorm: no weights. */
static int colibri_norm_plain(float *x, uint32_t n, float eps)
{
    float sum = colibri_sum16_squares(x, n);
    float r = 1.0f / colibri_sqrt(sum / (float)n + eps);
    for (uint32_t i = 0; i < n; i++) {
        x[i] = x[i] * r;
    }
    return colibri_magnitude(sum) >= COLIBRI_INFINITY_BITS;
}

/* Per head, or all heads as one vector. */
static int colibri_norm_heads(uint32_t kernel, const colibri_layer *layer, float *x, uint32_t heads, const float *w)
{
    int bad = 0;
    if (layer->d.qk_norm == COLIBRI_QK_NORM_WIDTH) {
        return colibri_rms_norm(kernel, x, x, w, heads * layer->d.head_dim, layer->d.eps);
    }
    for (uint32_t h = 0; h < heads; h++) {
        float *v = x + (uint64_t)h * layer->d.head_dim;
        if (layer->d.qk_norm == COLIBRI_QK_NORM_L2_AFTER_ROPE) {
            bad |= colibri_norm_plain(v, layer->d.head_dim, layer->d.eps);
        } else {
            bad |= colibri_rms_norm(kernel, v, v, w, layer->d.head_dim, layer->d.eps);
        }
    }
    return bad;
}

static int colibri_norm_qk(const colibri_session *s, const colibri_layer *layer, float *q, float *k)
{
    return colibri_norm_heads(s->kernel, layer, q, layer->d.heads, colibri_vector_at(s, &layer->q_norm)) |
           colibri_norm_heads(s->kernel, layer, k, layer->d.kv_heads, colibri_vector_at(s, &layer->k_norm));
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

static void colibri_scatter_halves(uint32_t kernel, const float *x, uint32_t count, uint16_t *to)
{
    uint16_t half[64];
    for (uint32_t first = 0; first < count; first += 64u) {
        uint32_t part = count - first < 64u ? count - first : 64u;
        colibri_store_halves(kernel, half, x + first, part);
        for (uint32_t i = 0; i < part; i++) {
            to[16u * (first + i)] = half[i];
        }
    }
}

int colibri_store_k(const colibri_session *s, const float *k, uint32_t head_dim, uint8_t *tile, uint32_t lane)
{
    switch (s->limits.kv_kind) {
    case COLIBRI_KV_F32:
        for (uint32_t c = 0; c < head_dim; c++) {
            ((float *)(void *)tile)[16u * c + lane] = k[c];
        }
        return 0;
    case COLIBRI_KV_F16:
        colibri_scatter_halves(s->kernel, k, head_dim, (uint16_t *)(void *)tile + lane);
        return 0;
    default: return colibri_q8_lane(k, head_dim, tile, lane);
    }
}

static int colibri_store_v(const colibri_session *s, const float *v, uint32_t head_dim, uint8_t *tile, uint32_t lane)
{
    uint64_t row = (uint64_t)head_dim * lane;
    int bad = 0;
    switch (s->limits.kv_kind) {
    case COLIBRI_KV_F32:
        for (uint32_t c = 0; c < head_dim; c++) {
            ((float *)(void *)tile)[row + c] = v[c];
        }
        return 0;
    case COLIBRI_KV_F16:
        colibri_store_halves(s->kernel, (uint16_t *)(void *)tile + row, v, head_dim);
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

/* A key's values into its lane of its head's K tile. */
int colibri_cache_key(const colibri_session *s, const colibri_layer *layer, const colibri_row_state *state,
                      uint32_t head, const float *k)
{
    uint8_t *tile = colibri_k_tile(s, layer, state->sequence, head, state->position / COLIBRI_TILE_ROWS);
    return colibri_store_k(s, k, layer->d.head_dim, tile, state->position % COLIBRI_TILE_ROWS);
}

/* Queries of far rows grow, so that attention over many positions stays as sharp. */
static void colibri_grow_query(const colibri_layer *layer, uint32_t position, float *q)
{
    float steps = colibri_ln_whole(1u + (position + 1u) / layer->d.query_floor);
    float factor = 1.0f + layer->d.query_step * steps;
    for (uint32_t c = 0; c < layer->q.rows; c++) {
        q[c] = q[c] * factor;
    }
}

/* A value's numbers into its row of its head's V tile. */
int colibri_cache_value(const colibri_session *s, const colibri_layer *layer, const colibri_row_state *state,
                        uint32_t head, const float *v)
{
    uint8_t *tile = colibri_value_tile(s, layer, state->sequence, head, state->position / COLIBRI_TILE_ROWS);
    return colibri_store_v(s, v, layer->d.head_dim, tile, state->position % COLIBRI_TILE_ROWS);
}

/* A row's q and k made ready in place, its k and v written into the cache. */
void colibri_place_row(colibri_session *s, const colibri_layer *layer, uint32_t row, uint32_t worker)
{
    const colibri_row_state *state = colibri_row_at(s, row);
    uint32_t head_dim = layer->d.head_dim;
    float *q = colibri_qkv_at(s, row);
    float *k = q + layer->q.rows;
    const float *v = k + layer->k.rows;
    int bad = 0;
    if (layer->d.qk_norm == COLIBRI_QK_NORM_HEAD || layer->d.qk_norm == COLIBRI_QK_NORM_WIDTH) {
        bad |= colibri_norm_qk(s, layer, q, k);
    }
    if (layer->d.has_clip) {                    /* q, k and v lie one behind the other */
        bad |= colibri_clip(q, layer->q.rows + layer->k.rows + layer->v.rows, layer->d.clip_qkv);
    }
    if (layer->d.rope != COLIBRI_NO) {
        /* k lies behind q */
        colibri_rotate_heads(s, layer->d.rope, q, layer->d.heads + layer->d.kv_heads, head_dim, state->position);
    }
    if (layer->d.qk_norm >= COLIBRI_QK_NORM_HEAD_AFTER_ROPE) {
        bad |= colibri_norm_qk(s, layer, q, k);
    }
    if (layer->d.query_floor) {
        colibri_grow_query(layer, state->position, q);
    }
    /* a cache of halves would make an infinity 65504 */
    bad |= colibri_amax_bits(s->kernel, k, layer->k.rows + layer->v.rows) >= COLIBRI_INFINITY_BITS;
    for (uint32_t h = 0; h < layer->d.kv_heads; h++) {
        bad |= colibri_cache_key(s, layer, state, h, k + (uint64_t)h * head_dim);
        bad |= colibri_cache_value(s, layer, state, h, v + (uint64_t)h * head_dim);
    }
    if (bad) {
        colibri_fault(s, worker);
    }
}

/* What a row attended times the sigmoids of its gates, which lie behind v: one a head, or one a number. */
int colibri_gate_heads(const colibri_session *s, const colibri_layer *layer, uint32_t row)
{
    const float *gate = colibri_qkv_at(s, row) + layer->q.rows + layer->k.rows + layer->v.rows;
    float *x = (float *)(uintptr_t)colibri_buffer_row(s, &s->layout.attended, row).x;
    uint32_t each = layer->d.head_gates == COLIBRI_HEAD_GATES_HEAD ? layer->d.head_dim : 1u;
    if (colibri_amax_bits(s->kernel, gate, layer->head_gate.rows) >= COLIBRI_INFINITY_BITS) {
        return 1;
    }
    for (uint32_t g = 0; g < layer->head_gate.rows; g++, x += each) {
        float factor = colibri_sigmoid(gate[g]);
        for (uint32_t c = 0; c < each; c++) {
            x[c] = x[c] * factor;
        }
    }
    return 0;
}

/* A few query vectors that share a KV head: row and head of each. Their rows are of one sequence. */
typedef struct colibri_queries {
    uint32_t count, sequence, kv_head;
    uint32_t row[COLIBRI_ROWS_AT_ONCE], head[COLIBRI_ROWS_AT_ONCE];
    uint32_t first[COLIBRI_ROWS_AT_ONCE], last[COLIBRI_ROWS_AT_ONCE];       /* positions seen, both included */
} colibri_queries;

static void colibri_query_add(const colibri_session *s, const colibri_layer *layer, colibri_queries *q, uint32_t row,
                              uint32_t head)
{
    uint32_t last = colibri_row_at(s, row)->position;
    q->row[q->count] = row;
    q->head[q->count] = head;
    q->last[q->count] = last;
    q->first[q->count] = layer->d.window && last + 1u > layer->d.window ? last + 1u - layer->d.window : 0u;
    q->first[q->count] = layer->d.chunk ? last - last % layer->d.chunk : q->first[q->count];
    q->count++;
}

/* Raw products of all queries with the K tiles base / 16 .. last / 16; a ring's tiles in one or two stretches. */
static void colibri_scores(const colibri_session *s, const colibri_layer *layer, const colibri_queries *q,
                           const colibri_activation *rows, float *scores, uint32_t base, uint32_t last)
{
    uint32_t tile = base / COLIBRI_TILE_ROWS, end = last / COLIBRI_TILE_ROWS + 1u;
    while (tile < end) {
        uint32_t stretch = layer->kv_tiles - tile % layer->kv_tiles;
        stretch = stretch < end - tile ? stretch : end - tile;
        colibri_product p = {colibri_k_tile(s, layer, q->sequence, q->kv_head, tile), layer->k_tile_bytes,
                             colibri_k_kind(s->limits.kv_kind), layer->d.head_dim, stretch, q->count, 1, 0, rows,
                             scores + (tile * COLIBRI_TILE_ROWS - base), s->layout.score_lanes};
        colibri_products(s->kernel, &p);
        tile += stretch;
    }
}

/* A query vector; where latent attention mixes, the same place takes the result. */
static float *colibri_query_at(const colibri_session *s, const colibri_layer *layer, uint32_t row, uint32_t head)
{
    return colibri_latent(layer) ? colibri_query_of(s, layer, row, head)
                                 : colibri_qkv_at(s, row) + (uint64_t)head * layer->d.head_dim;
}

/* The query vectors as products want them, quantized where the cache is; 1 if one is not finite. */
static int colibri_query_rows(const colibri_session *s, const colibri_layer *layer, const colibri_queries *q,
                              uint8_t *scratch, colibri_activation *rows)
{
    colibri_buffer shape;
    int bad = 0;
    colibri_buffer_shape(&shape, layer->d.head_dim, 0, 1);
    shape.offset = (uint64_t)(scratch - (const uint8_t *)(const void *)s) + s->layout.query_at;
    for (uint32_t i = 0; i < q->count; i++) {
        rows[i] = colibri_buffer_row(s, &shape, i);
        rows[i].x = colibri_query_at(s, layer, q->row[i], q->head[i]);
        if (s->limits.kv_kind == COLIBRI_KV_Q8) {
            bad |= colibri_quantize_row(s->kernel, rows[i].x, layer->d.head_dim,
                                        (colibri_group *)(uintptr_t)rows[i].groups);
        }
    }
    return bad;
}

/* The values' side: V rows into the attended heads, or the latents of the K tiles into the queries' own places. */
static void colibri_attend_values(colibri_session *s, const colibri_layer *layer, const colibri_queries *q,
                                  colibri_mixture *m, uint32_t worker)
{
    int bad = 0;
    for (uint32_t i = 0; i < q->count; i++) {
        m->out[i] = colibri_latent(layer)
                        ? colibri_query_of(s, layer, q->row[i], q->head[i])
                        : (float *)(uintptr_t)colibri_buffer_row(s, &s->layout.attended, q->row[i]).x +
                              (uint64_t)q->head[i] * layer->d.head_dim;
    }
    if (!colibri_latent(layer)) {
        m->plane = colibri_value_tile(s, layer, q->sequence, q->kv_head, 0);
        m->tile_bytes = layer->v_tile_bytes;
        colibri_mix(s->kernel, m);
        return;
    }
    m->plane = colibri_k_tile(s, layer, q->sequence, q->kv_head, 0);
    m->tile_bytes = layer->k_tile_bytes;
    m->head_dim = layer->d.latent;
    colibri_mix_latent(s->kernel, m);
    for (uint32_t i = 0; i < q->count; i++) {
        bad |= colibri_quantize_head(s, &layer->v_up, q->row[i], q->head[i], m->out[i]);
    }
    if (bad) {
        colibri_fault(s, worker);
    }
}

static void colibri_attend_queries(colibri_session *s, const colibri_layer *layer, const colibri_queries *q,
                                   uint32_t worker)
{
    uint8_t *scratch = colibri_pool_at(s, s->layout.scores + worker * s->layout.scores_bytes);
    colibri_activation rows[COLIBRI_ROWS_AT_ONCE];
    colibri_mixture m;
    uint32_t first = q->first[0], last = q->last[0];
    for (uint32_t i = 1; i < q->count; i++) {
        first = q->first[i] < first ? q->first[i] : first;
        last = q->last[i] > last ? q->last[i] : last;
    }
    m.kind = s->limits.kv_kind;
    m.ring = layer->kv_tiles;
    m.head_dim = layer->d.head_dim;
    m.row_count = q->count;
    m.base = first & ~15u;
    m.scores = (const float *)(const void *)scratch;
    m.stride = s->layout.score_lanes;
    int bad = colibri_query_rows(s, layer, q, scratch, rows);
    if (!bad) {
        colibri_scores(s, layer, q, rows, (float *)(void *)scratch, m.base, last);
    }
    for (uint32_t i = 0; i < q->count && !bad; i++) {
        colibri_score_span span = {m.base, q->first[i], q->last[i], layer->d.score_scale, layer->d.sinks, 0.0f, 0};
        span.sink = layer->d.sinks ? colibri_vector_at(s, &layer->sinks)[q->head[i]] : 0.0f;
        m.first[i] = q->first[i];
        m.last[i] = q->last[i];
        float *row = (float *)(void *)scratch + i * m.stride;
        if (layer->d.index_top_k) {
            span.chosen = colibri_choice_at(s, q->row[i]) + m.base / COLIBRI_TILE_ROWS;
            bad |= colibri_soften_chosen(s->kernel, row, &span, &m.sum[i]);
        } else {
            bad |= colibri_soften(s->kernel, row, &span, &m.sum[i]);
        }
    }
    if (bad) {
        colibri_fault(s, worker);
        return;
    }
    colibri_attend_values(s, layer, q, &m, worker);
}

uint32_t colibri_attend_rows(const colibri_layer *layer)
{
    uint32_t heads = layer->d.heads / layer->d.kv_heads;
    return heads < COLIBRI_ROWS_AT_ONCE ? COLIBRI_ROWS_AT_ONCE / heads : 1u;
}

uint32_t colibri_attend_parts(const colibri_layer *layer)
{
    return (layer->d.heads / layer->d.kv_heads + (COLIBRI_ROWS_AT_ONCE - 1u)) / COLIBRI_ROWS_AT_ONCE;
}

/* Unit: a block of rows, a KV head and up to eight of its heads. Rows of the block that follow each other in one
 * sequence go together. */
void colibri_attend(colibri_session *s, const colibri_layer *layer, uint32_t unit, uint32_t worker)
{
    uint32_t heads = layer->d.heads / layer->d.kv_heads;
    uint32_t part = unit % colibri_attend_parts(layer) * COLIBRI_ROWS_AT_ONCE;
    uint32_t part_end = heads - part < COLIBRI_ROWS_AT_ONCE ? heads : part + COLIBRI_ROWS_AT_ONCE;
    uint32_t row, end;
    colibri_queries q;
    unit /= colibri_attend_parts(layer);
    row = unit / layer->d.kv_heads * colibri_attend_rows(layer);
    end = row + colibri_attend_rows(layer);
    q.kv_head = unit % layer->d.kv_heads;
    q.count = 0;
    for (; row < end && row < s->row_count; row++) {
        const colibri_row_state *state = colibri_row_at(s, row);
        if (q.count && (state->sequence != q.sequence || state->position != q.last[q.count - 1u] + 1u)) {
            colibri_attend_queries(s, layer, &q, worker);
            q.count = 0;
        }
        q.sequence = state->sequence;
        for (uint32_t h = part; h < part_end; h++) {
            colibri_query_add(s, layer, &q, row, q.kv_head * heads + h);
        }
    }
    if (q.count) {
        colibri_attend_queries(s, layer, &q, worker);
    }
}
