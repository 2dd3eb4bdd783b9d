/*
 * latent.c: latent attention (MLA), always absorbed (NUMERICS section 6): the cache holds the normed latent and the
 * rope key, one row a position for all heads. A query head goes through its key factor (transposed) into the latent's
 * space, attention.c treats the result as a query of one shared KV head, and what it attended goes through the head's
 * value factor. Factors are read head by head: the rows of a head begin at a tile.
 */
#include "nn/session.h"

/* The latent of the queries, normed, as the q matrix reads it. */
void colibri_latent_norm(colibri_session *s, const colibri_layer *layer, uint32_t row, uint32_t worker)
{
    const float *x = colibri_qkv_at(s, row) + layer->q.rows + layer->k.rows;
    colibri_activation a = colibri_buffer_row(s, &s->layout.latent, row);
    int bad = colibri_rms_norm(s->kernel, (float *)(uintptr_t)a.x, x, colibri_vector_at(s, &layer->q_norm),
                               layer->d.q_latent, layer->d.latent_eps);
    if (!bad && s->layout.latent.quantized) {
        bad = colibri_quantize_row(s->kernel, a.x, layer->d.q_latent, (colibri_group *)(uintptr_t)a.groups);
    }
    if (bad) {
        colibri_fault(s, worker);
    }
}

static colibri_activation colibri_head_row(const colibri_session *s, uint32_t row, uint32_t head)
{
    return colibri_buffer_row(s, &s->layout.heads, (uint64_t)row * s->layout.head_rows + head);
}

/* A head's input of its factor, if that is a quantized matrix; 1 if a value is not finite. */
int colibri_quantize_head(const colibri_session *s, const colibri_weight *reader, uint32_t row, uint32_t head,
                          const float *x)
{
    if (!colibri_kind_quantized(reader->kind)) {
        return 0;
    }
    return colibri_quantize_row(s->kernel, x, reader->columns,
                                (colibri_group *)(uintptr_t)colibri_head_row(s, row, head).groups);
}

/* A row's latent normed, its rope key and query heads rotated, latent and key into the cache. The rotated part of a
 * query goes straight behind the place of its absorbed part. */
void colibri_place_latent(colibri_session *s, const colibri_layer *layer, uint32_t row, uint32_t worker)
{
    const colibri_row_state *state = colibri_row_at(s, row);
    uint32_t nope = layer->d.nope_dim, each = nope + layer->d.rope_dim, latent = layer->d.latent;
    float *q = colibri_qkv_at(s, row);
    float *k = q + layer->q.rows;
    int bad = colibri_rms_norm(s->kernel, k, k, colibri_vector_at(s, &layer->k_norm), latent, layer->d.latent_eps);
    if (layer->d.rope != COLIBRI_NO) {
        colibri_rotate_heads(s, layer->d.rope, q + nope, layer->d.heads, each, state->position);
        colibri_rotate_heads(s, layer->d.rope, k + latent, 1, layer->d.rope_dim, state->position);
    }
    /* a cache of halves would make an infinity 65504 */
    bad |= colibri_amax_bits(s->kernel, k, layer->k.rows) >= COLIBRI_INFINITY_BITS;
    bad |= colibri_cache_key(s, layer, state, 0, k);
    for (uint32_t h = 0; h < layer->d.heads; h++, q += each) {
        colibri_copy(colibri_query_of(s, layer, row, h) + latent, q + nope, layer->d.rope_dim * 4u);
        bad |= colibri_quantize_head(s, &layer->k_up, row, h, q);
    }
    if (bad) {
        colibri_fault(s, worker);
    }
}

/* Strip `unit` of a factor: of head unit / strips, of whose `rows` rows it is strip unit % strips. */
static colibri_strip colibri_head_strip_at(const colibri_session *s, const colibri_weight *w, uint32_t rows,
                                           uint32_t unit)
{
    uint32_t strips = colibri_strips(rows);
    uint32_t head = unit / strips, first = unit % strips * COLIBRI_STRIP_ROWS;
    uint64_t tile = (uint64_t)head * (rows / COLIBRI_TILE_ROWS) + first / COLIBRI_TILE_ROWS;
    colibri_strip strip;
    strip.w = w;
    strip.tiles = colibri_weight_at(s, w) + tile * w->tile_bytes;
    strip.first = first;
    strip.lanes = rows - first < COLIBRI_STRIP_ROWS ? rows - first : COLIBRI_STRIP_ROWS;
    return strip;
}

/* q' = K_UP of the head . the part of its query that is not rotated */
void colibri_absorb(colibri_session *s, const colibri_layer *layer, uint32_t unit)
{
    uint32_t head = unit / colibri_strips(layer->d.latent);
    colibri_strip strip = colibri_head_strip_at(s, &layer->k_up, layer->d.latent, unit);
    for (uint32_t row = 0; row < s->row_count; row += COLIBRI_ROWS_AT_ONCE) {
        uint32_t count = colibri_rows_at_once(s->row_count - row);
        colibri_activation x[COLIBRI_ROWS_AT_ONCE] = {{0, 0}};
        float acc[COLIBRI_ROWS_AT_ONCE][COLIBRI_STRIP_ROWS];
        for (uint32_t i = 0; i < count; i++) {
            x[i] = colibri_head_row(s, row + i, head);
            x[i].x = colibri_qkv_at(s, row + i) + (uint64_t)head * (layer->d.nope_dim + layer->d.rope_dim);
        }
        colibri_strip_times(s, &strip, x, count, row != 0u, acc[0]);
        for (uint32_t i = 0; i < count; i++) {
            colibri_copy(colibri_query_of(s, layer, row + i, head) + strip.first, acc[i], strip.lanes * 4u);
        }
    }
}

/* out = V_UP of the head . the latents it attended */
void colibri_expand(colibri_session *s, const colibri_layer *layer, uint32_t unit)
{
    uint32_t head = unit / colibri_strips(layer->d.v_dim);
    colibri_strip strip = colibri_head_strip_at(s, &layer->v_up, layer->d.v_dim, unit);
    for (uint32_t row = 0; row < s->row_count; row += COLIBRI_ROWS_AT_ONCE) {
        uint32_t count = colibri_rows_at_once(s->row_count - row);
        colibri_activation x[COLIBRI_ROWS_AT_ONCE] = {{0, 0}};
        float acc[COLIBRI_ROWS_AT_ONCE][COLIBRI_STRIP_ROWS];
        for (uint32_t i = 0; i < count; i++) {
            x[i] = colibri_head_row(s, row + i, head);
            x[i].x = colibri_query_of(s, layer, row + i, head);
        }
        colibri_strip_times(s, &strip, x, count, row != 0u, acc[0]);
        for (uint32_t i = 0; i < count; i++) {
            float *out = (float *)(uintptr_t)colibri_buffer_row(s, &s->layout.attended, row + i).x +
                         (uint64_t)head * layer->d.v_dim + strip.first;
            colibri_copy(out, acc[i], strip.lanes * 4u);
        }
    }
}
