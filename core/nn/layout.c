/*
 * layout.c: the plan's arithmetic and its carving, one function for both. Walks the layers' descriptions and takes
 * every buffer from the arena in a fixed order; then (start only) fills the layers with resolved addresses.
 */
#include "nn/session.h"

typedef struct colibri_widths {
    uint64_t gated;                             /* bytes of the widest gated-product buffer */
    uint64_t kv;
    uint64_t chosen_rows;                       /* sum of top_k over the layers */
    uint64_t macs;
    uint64_t expert_run;
    uint32_t projected, attended, ops;
    uint32_t mixed;                             /* some layer gathers what it adds to the residual */
    uint32_t index;                             /* floats of a row of the index */
    uint32_t chosen;                            /* 1: some layer chooses positions */
    uint32_t q_latent, query, head_columns;     /* latent attention: widest latents, queries, inputs of a factor */
    uint32_t selects;                           /* some layer chooses its experts by other numbers than their scores */
} colibri_widths;

void colibri_buffer_shape(colibri_buffer *b, uint32_t columns, int has_x, int quantized)
{
    uint64_t groups = colibri_groups(columns);
    uint64_t at = has_x ? colibri_round_up((uint64_t)columns * 4u, 64) : 0u;
    colibri_fill(b, 0, sizeof *b);
    b->columns = columns;
    b->quantized = quantized != 0;
    if (quantized) {
        b->groups_at = at;
        at = colibri_round_up(at + groups * sizeof(colibri_group), 64);
    }
    b->stride = at;
}

static uint64_t colibri_gated_stride(uint32_t columns, uint32_t kind)
{
    colibri_buffer b;
    colibri_buffer_shape(&b, columns, !colibri_kind_quantized(kind), colibri_kind_quantized(kind));
    return b.stride;
}

colibri_buffer colibri_gated_buffer(const colibri_session *s, uint32_t columns, uint32_t kind)
{
    colibri_buffer b;
    colibri_buffer_shape(&b, columns, !colibri_kind_quantized(kind), colibri_kind_quantized(kind));
    b.offset = s->layout.gated;
    return b;
}

static uint64_t colibri_most(uint64_t a, uint64_t b)
{
    return a > b ? a : b;
}

/* The next layer, with no more experts a row than the limits allow. */
static int32_t colibri_layer_within(const colibri_view *view, const colibri_limits *limits, colibri_cursor *cursor,
                                    colibri_description *d, colibri_detail *detail)
{
    int32_t status = colibri_layer_next(view, cursor, d, detail);
    if (status >= 0 && limits->top_k && limits->top_k < d->top_k) {
        d->top_k = limits->top_k;
    }
    return status;
}

static uint32_t colibri_role_kind(const colibri_view *view, const colibri_description *d, uint32_t role)
{
    return colibri_tensor_at(view, d->tensor[role])->kind;
}

/* Widest buffers and largest units over the FFN side of one layer. */
static void colibri_widen_ffn(const colibri_view *view, const colibri_limits *limits, const colibri_description *d,
                              colibri_layout *layout, colibri_widths *w)
{
    uint64_t rows = limits->batch;
    uint64_t strip = (uint64_t)COLIBRI_STRIP_ROWS * rows;
    uint32_t norm_kinds = 0;
    if (d->ffn == COLIBRI_FFN_DENSE) {
        uint32_t kind = colibri_role_kind(view, d, COLIBRI_ROLE_DOWN);
        w->gated = colibri_most(w->gated, rows * colibri_gated_stride(d->ff, kind));
        norm_kinds |= 1u << colibri_role_kind(view, d, COLIBRI_ROLE_GATE) |
                      1u << colibri_role_kind(view, d, COLIBRI_ROLE_UP);
        w->macs = colibri_most(w->macs, colibri_most(2u * strip * view->hidden, strip * d->ff));
    } else {
        uint32_t kind = colibri_role_kind(view, d, COLIBRI_ROLE_EXPERT_DOWN);
        w->gated = colibri_most(w->gated, rows * d->top_k * colibri_gated_stride(d->ff, kind));
        norm_kinds |= 1u << colibri_role_kind(view, d, COLIBRI_ROLE_EXPERT_GATE) |
                      1u << colibri_role_kind(view, d, COLIBRI_ROLE_EXPERT_UP);
        w->macs = colibri_most(w->macs, colibri_most(2u * strip * view->hidden, strip * d->top_k * d->ff));
        w->macs = colibri_most(w->macs, (uint64_t)colibri_rows_at_once(limits->batch) * d->experts * view->hidden);
        w->chosen_rows += d->top_k + (d->router_span != 0u);    /* one more: the row's spread */
        w->expert_run = colibri_most(w->expert_run, d->expert_run);
        w->mixed = 1;
        w->selects |= (uint32_t)colibri_router_selects(d);
        layout->expert_bytes += d->expert_run * d->experts;
        layout->expert_count += d->experts;
        layout->max_top_k = (uint32_t)colibri_most(layout->max_top_k, d->top_k);
        layout->max_experts = (uint32_t)colibri_most(layout->max_experts, d->experts);
    }
    if (d->shared_ff) {
        uint32_t kind = colibri_role_kind(view, d, COLIBRI_ROLE_SHARED_DOWN);
        w->gated = colibri_most(w->gated, rows * colibri_gated_stride(d->shared_ff, kind));
        norm_kinds |= 1u << colibri_role_kind(view, d, COLIBRI_ROLE_SHARED_GATE) |
                      1u << colibri_role_kind(view, d, COLIBRI_ROLE_SHARED_UP);
        w->macs = colibri_most(w->macs, strip * d->shared_ff);
    }
    w->mixed |= d->post_norms;
    layout->quantize_norm |= (norm_kinds >> COLIBRI_KIND_Q8) != 0u;
}

/* Positions from the first seen one's tile to the last row's own, whole tiles: rows of a block follow each other. */
static uint64_t colibri_score_lanes(const colibri_limits *limits, uint32_t window)
{
    uint64_t all = colibri_round_up(limits->context, COLIBRI_TILE_ROWS);
    uint64_t seen = colibri_round_up((uint64_t)window + COLIBRI_ROWS_AT_ONCE - 1u + COLIBRI_TILE_ROWS - 1u,
                                     COLIBRI_TILE_ROWS);
    return window && seen < all ? seen : all;
}

/* q, k, v and gates from the norm into o: what is read, how wide, and the units that make it. */
static void colibri_widen_projections(const colibri_view *view, const colibri_limits *limits,
                                      const colibri_description *d, colibri_layout *layout, colibri_widths *w)
{
    uint32_t q = d->heads * d->head_dim;
    uint32_t kinds = 1u << colibri_role_kind(view, d, COLIBRI_ROLE_Q) |
                     1u << colibri_role_kind(view, d, COLIBRI_ROLE_K) |
                     1u << colibri_role_kind(view, d, COLIBRI_ROLE_V);
    uint32_t gates = 0;
    if (d->head_gates) {
        kinds |= 1u << colibri_role_kind(view, d, COLIBRI_ROLE_HEAD_GATE);
        gates = d->head_gates == COLIBRI_HEAD_GATES_HEAD ? d->heads : q;
    }
    layout->quantize_norm |= (kinds >> COLIBRI_KIND_Q8) != 0u;
    w->projected = (uint32_t)colibri_most(w->projected, (uint64_t)q + 2u * (uint64_t)d->kv_heads * d->head_dim + gates);
    w->attended = (uint32_t)colibri_most(w->attended, q);
    w->macs = colibri_most(w->macs, (uint64_t)COLIBRI_STRIP_ROWS * limits->batch * colibri_most(view->hidden, q));
}

/* The same of latent attention, with the factors between. */
static void colibri_widen_latent(const colibri_view *view, const colibri_limits *limits, const colibri_description *d,
                                 colibri_layout *layout, colibri_widths *w)
{
    uint32_t q = d->heads * (d->nope_dim + d->rope_dim);
    uint32_t first = d->q_latent ? COLIBRI_ROLE_Q_A : COLIBRI_ROLE_Q;
    uint32_t kinds = 1u << colibri_role_kind(view, d, first) | 1u << colibri_role_kind(view, d, COLIBRI_ROLE_K);
    uint32_t factors = 1u << colibri_role_kind(view, d, COLIBRI_ROLE_K_UP) |
                       1u << colibri_role_kind(view, d, COLIBRI_ROLE_V_UP);
    uint64_t widest = colibri_most(colibri_most(view->hidden, d->q_latent), (uint64_t)d->heads * d->v_dim);
    layout->quantize_norm |= (kinds >> COLIBRI_KIND_Q8) != 0u;
    layout->quantize_heads |= (factors >> COLIBRI_KIND_Q8) != 0u;
    layout->quantize_latent |= d->q_latent && colibri_kind_quantized(colibri_role_kind(view, d, COLIBRI_ROLE_Q));
    layout->head_rows = (uint32_t)colibri_most(layout->head_rows, d->heads);
    w->projected = (uint32_t)colibri_most(w->projected, (uint64_t)q + d->head_dim + d->q_latent);
    w->attended = (uint32_t)colibri_most(w->attended, (uint64_t)d->heads * d->v_dim);
    w->q_latent = (uint32_t)colibri_most(w->q_latent, d->q_latent);
    w->query = (uint32_t)colibri_most(w->query, (uint64_t)d->heads * d->head_dim);
    w->head_columns = (uint32_t)colibri_most(w->head_columns, colibri_most(d->nope_dim, d->latent));
    widest = colibri_most(widest, w->head_columns);
    w->macs = colibri_most(w->macs, (uint64_t)COLIBRI_STRIP_ROWS * limits->batch * widest);
}

/* A layer's own choice of positions: what its projections read, and its scores, a row of sums behind those of heads. */
static void colibri_widen_index(const colibri_view *view, const colibri_limits *limits, const colibri_description *d,
                                colibri_layout *layout, colibri_widths *w)
{
    uint64_t seen = colibri_round_up(limits->context, COLIBRI_TILE_ROWS);
    w->chosen = 1;
    w->index = (uint32_t)colibri_most(w->index, d->index_heads * (d->index_dim + 1u) + d->index_dim);
    layout->quantize_norm |= colibri_kind_quantized(colibri_role_kind(view, d, COLIBRI_ROLE_INDEX_K)) != 0;
    layout->quantize_latent |= colibri_kind_quantized(colibri_role_kind(view, d, COLIBRI_ROLE_INDEX_Q)) != 0;
    layout->head_dim = (uint32_t)colibri_most(layout->head_dim, d->index_dim);
    layout->score_rows = (uint32_t)colibri_most(layout->score_rows, colibri_rows_at_once(d->index_heads) + 1u);
    w->macs = colibri_most(w->macs, seen * d->index_heads * d->index_dim);
}

static void colibri_widen_attention(const colibri_view *view, const colibri_limits *limits,
                                    const colibri_description *d, colibri_layout *layout, colibri_widths *w, int *bad)
{
    colibri_layer layer;
    uint32_t mixed = d->attention == COLIBRI_ATTENTION_MLA ? d->latent : d->head_dim;
    colibri_fill(&layer, 0, sizeof layer);
    layer.d = *d;
    colibri_kv_shape(limits, &layer);
    uint64_t tile = layer.k_tile_bytes + layer.v_tile_bytes;
    tile = colibri_add(colibri_mul(tile, d->kv_heads, bad), layer.index_tile_bytes, bad);
    w->kv = colibri_add(w->kv, colibri_mul(tile, layer.kv_tiles, bad), bad);
    layout->kv_bytes_per_token += tile / COLIBRI_TILE_ROWS;
    layout->quantize_attended |= colibri_kind_quantized(colibri_role_kind(view, d, COLIBRI_ROLE_O)) != 0;
    if (d->attention == COLIBRI_ATTENTION_CONV) {       /* no scores: taps, a row at a time */
        w->macs = colibri_most(w->macs, (uint64_t)d->window * d->head_dim);
        colibri_widen_projections(view, limits, d, layout, w);
        return;
    }
    uint64_t lanes = colibri_score_lanes(limits, d->window ? d->window : d->chunk);
    layout->score_lanes = (uint32_t)colibri_most(layout->score_lanes, lanes);
    layout->head_dim = (uint32_t)colibri_most(layout->head_dim, d->head_dim);
    uint32_t score_rows = colibri_rows_at_once(limits->batch * (d->heads / d->kv_heads));
    layout->score_rows = (uint32_t)colibri_most(layout->score_rows, score_rows);
    uint64_t seen = (uint64_t)layer.kv_tiles * COLIBRI_TILE_ROWS * score_rows;
    w->macs = colibri_most(w->macs, seen * ((uint64_t)d->head_dim + mixed));
    if (d->attention == COLIBRI_ATTENTION_MLA) {
        colibri_widen_latent(view, limits, d, layout, w);
    } else {
        colibri_widen_projections(view, limits, d, layout, w);
    }
    if (d->index_heads) {
        colibri_widen_index(view, limits, d, layout, w);
    }
}

static int32_t colibri_widen_all(const colibri_view *view, const colibri_limits *limits, colibri_layout *layout,
                                 colibri_widths *w, int *bad, colibri_detail *detail)
{
    colibri_cursor cursor;
    colibri_description d;
    colibri_op ops[24];
    int32_t status = colibri_layer_begin(view, &cursor, detail);
    w->ops = 3;                                 /* embed, final norm, head */
    for (uint32_t l = 0; status >= 0 && l < view->layers; l++) {
        status = colibri_layer_within(view, limits, &cursor, &d, detail);
        if (status >= 0) {
            w->ops += colibri_tape_layer_ops(&d, limits->flags, ops, l);
            colibri_widen_attention(view, limits, &d, layout, w, bad);
            colibri_widen_ffn(view, limits, &d, layout, w);
            uint64_t chosen = (uint64_t)limits->batch * d.top_k;    /* an op's units are counted in 32 bits */
            *bad |= (chosen < d.experts ? chosen : d.experts) * colibri_groups(d.ff) > UINT32_MAX;
        }
    }
    for (uint32_t i = 0; i < view->model_tensors; i++) {
        const colibri_tensor *t = colibri_tensor_at(view, i);
        if (t->role == COLIBRI_ROLE_HEAD || t->second_role == COLIBRI_ROLE_HEAD) {
            layout->quantize_norm |= colibri_kind_quantized(t->kind) != 0;
        }
    }
    w->macs = colibri_most(w->macs, (uint64_t)COLIBRI_STRIP_ROWS * limits->logit_rows * view->hidden);
    return status;
}

static void colibri_carve_activations(const colibri_view *view, const colibri_limits *limits,
                                      const colibri_widths *w, colibri_layout *layout, colibri_arena *arena)
{
    colibri_arena_region(arena, COLIBRI_REGION_ACTIVATIONS);
    layout->rows = colibri_arena_take(arena, limits->batch, sizeof(colibri_row_state));
    layout->logit_row = colibri_arena_take(arena, limits->logit_rows, 4);
    layout->residual = colibri_arena_take(arena, limits->batch, (uint64_t)view->hidden * 4u);
    colibri_buffer_shape(&layout->norm, view->hidden, 1, layout->quantize_norm != 0u);
    layout->norm.offset = colibri_arena_take(arena, limits->batch, layout->norm.stride);
    layout->qkv_stride = colibri_round_up((uint64_t)w->projected * 4u, 64);
    layout->qkv = colibri_arena_take(arena, limits->batch, layout->qkv_stride);
    colibri_buffer_shape(&layout->attended, w->attended, 1, layout->quantize_attended != 0u);
    layout->attended.offset = colibri_arena_take(arena, limits->batch, layout->attended.stride);
    colibri_buffer_shape(&layout->latent, w->q_latent, 1, layout->quantize_latent != 0u);
    layout->latent.offset = colibri_arena_take(arena, w->q_latent ? limits->batch : 0u, layout->latent.stride);
    layout->query_stride = colibri_round_up((uint64_t)w->query * 4u, 64);
    layout->query = colibri_arena_take(arena, w->query ? limits->batch : 0u, layout->query_stride);
    colibri_buffer_shape(&layout->heads, w->head_columns, 0, layout->quantize_heads != 0u);
    layout->heads.offset = colibri_arena_take(arena, (uint64_t)limits->batch * layout->head_rows, layout->heads.stride);
    layout->index_stride = colibri_round_up((uint64_t)w->index * 4u, 64);
    layout->index = colibri_arena_take(arena, w->index ? limits->batch : 0u, layout->index_stride);
    layout->choice_stride = colibri_round_up(2u * (uint64_t)colibri_tiles(limits->context), 64);
    layout->choice = colibri_arena_take(arena, w->chosen ? limits->batch : 0u, layout->choice_stride);
    layout->gated = colibri_arena_take(arena, 1, w->gated);
    layout->mixed = colibri_arena_take(arena, w->mixed ? limits->batch : 0u, (uint64_t)view->hidden * 4u);
}

static void colibri_carve_scratch(const colibri_view *view, const colibri_limits *limits, const colibri_widths *w,
                                  colibri_layout *layout, colibri_arena *arena)
{
    colibri_buffer query;
    colibri_arena_region(arena, COLIBRI_REGION_SCORES);
    colibri_buffer_shape(&query, layout->head_dim, 0, 1);
    layout->query_at = (uint64_t)layout->score_rows * layout->score_lanes * 4u;
    uint64_t queries = limits->kv_kind == COLIBRI_KV_Q8 ? layout->score_rows : 0u;
    layout->scores_bytes = layout->query_at + queries * query.stride;
    layout->scores = colibri_arena_take(arena, limits->workers, layout->scores_bytes);

    uint64_t pairs = (uint64_t)limits->batch * layout->max_top_k;
    uint64_t distinct = pairs < layout->max_experts ? pairs : layout->max_experts;
    colibri_arena_region(arena, COLIBRI_REGION_ROUTING);
    layout->router_stride = 16u * colibri_tiles(layout->max_experts) * (w->selects ? 2u : 1u);
    layout->router_logits = colibri_arena_take(arena, limits->batch, (uint64_t)layout->router_stride * 4u);
    layout->shared_switch = colibri_arena_take(arena, layout->expert_count ? limits->batch : 0u, 4);
    layout->pairs = colibri_arena_take(arena, pairs, 4);
    layout->distinct = colibri_arena_take(arena, distinct, 8);
    layout->first_pair = colibri_arena_take(arena, layout->expert_count ? distinct + 1u : 0u, 4);
    layout->chosen = colibri_arena_take(arena, w->chosen_rows * limits->batch, 8);
    colibri_buffer_shape(&layout->ahead, view->hidden, 1, 0);
    layout->ahead.offset = colibri_arena_take(arena, layout->ahead_count ? colibri_rows_at_once(limits->batch) : 0u,
                                              layout->ahead.stride);

    colibri_arena_region(arena, COLIBRI_REGION_LOGITS);
    layout->logit_stride = colibri_round_up(view->vocab, COLIBRI_TILE_ROWS) * 4u;
    layout->logits = colibri_arena_take(arena, limits->logit_rows, layout->logit_stride);
}

int32_t colibri_layout_make(const colibri_view *view, const colibri_limits *limits, uint64_t text_bytes,
                            colibri_layout *layout, colibri_arena *arena, colibri_detail *detail)
{
    colibri_widths w;
    int bad = 0;
    colibri_fill(layout, 0, sizeof *layout);
    colibri_fill(&w, 0, sizeof w);
    int32_t status = colibri_widen_all(view, limits, layout, &w, &bad, detail);
    if (status < 0) {
        return status;
    }
    int streamed = (limits->flags & COLIBRI_LIMIT_STREAM_EXPERTS) && layout->expert_count;
    layout->slot_count = streamed ? limits->slots : 0u;
    layout->ahead_count = streamed && (limits->flags & COLIBRI_LIMIT_LOOK_AHEAD) ? layout->max_top_k : 0u;
    colibri_arena_begin(arena);
    colibri_arena_region(arena, COLIBRI_REGION_SESSION);
    (void)colibri_arena_take(arena, 1, sizeof(colibri_session));
    layout->layers = colibri_arena_take(arena, view->layers, sizeof(colibri_layer));
    layout->sequences = colibri_arena_take(arena, limits->sequences, sizeof(colibri_sequence));
    layout->faults = colibri_arena_take(arena, limits->workers, 64);
    colibri_arena_region(arena, COLIBRI_REGION_TAPE);
    layout->tape = colibri_arena_take(arena, w.ops, sizeof(colibri_op));
    layout->ops = w.ops;
    colibri_arena_region(arena, COLIBRI_REGION_KV);
    layout->kv_sequence_bytes = w.kv;
    layout->kv = colibri_arena_take(arena, limits->sequences, w.kv);
    colibri_carve_activations(view, limits, &w, layout, arena);
    colibri_carve_scratch(view, limits, &w, layout, arena);
    layout->resident_bytes = view->table[COLIBRI_SECTION_RESIDENT].payload;
    colibri_arena_region(arena, COLIBRI_REGION_RESIDENT);
    layout->resident = colibri_arena_take(arena, (limits->flags & COLIBRI_LIMIT_RESIDENT_COPY) != 0u,
                                          layout->resident_bytes);
    layout->slot_bytes = w.expert_run;
    colibri_arena_region(arena, COLIBRI_REGION_SLOTS);
    layout->override_count = limits->swaps;
    layout->staging = colibri_arena_take(arena, limits->swaps != 0u, sizeof(colibri_staging));
    layout->overrides = colibri_arena_take(arena, limits->swaps, sizeof(colibri_override));
    layout->override_of = colibri_arena_take(arena, limits->swaps ? layout->expert_count : 0u, 4);
    uint32_t slots = layout->slot_count + layout->ahead_count;
    layout->slots = colibri_arena_take(arena, slots, sizeof(colibri_slot));
    layout->landing = colibri_arena_take(arena, layout->ahead_count, 4);
    layout->cache = colibri_arena_take(arena, streamed != 0,
                                       colibri_cache_bytes(layout->expert_count, limits->policy));
    uint64_t at_once = layout->slot_count < layout->max_experts ? layout->slot_count : layout->max_experts;
    layout->arrived = colibri_arena_take(arena, at_once, 4);
    layout->sums = colibri_arena_take(arena, at_once * colibri_sum_pieces(w.expert_run), 4);
    layout->slot_data = colibri_arena_take(arena, slots, w.expert_run);
    layout->override_data = colibri_arena_take(arena, limits->swaps, w.expert_run);
    colibri_arena_region(arena, COLIBRI_REGION_TEXT);
    layout->text_bytes = text_bytes;
    layout->text = colibri_arena_take(arena, 1, layout->text_bytes);
    layout->pool_bytes = arena->used;
    layout->largest_unit_macs = w.macs;
    if (bad || arena->bad) {
        return colibri_refuse(detail, COLIBRI_ERROR_OVERFLOW, 0, COLIBRI_FIELD_POOL_BYTES, 0, 0, 0, 0);
    }
    return COLIBRI_OK;
}

static colibri_weight colibri_resolve(const colibri_session *s, uint32_t index)
{
    colibri_weight w;
    colibri_fill(&w, 0, sizeof w);
    if (index != COLIBRI_NO) {
        const colibri_tensor *t = colibri_tensor_at(&s->view, index);
        w.offset = t->offset;
        w.kind = t->kind;
        w.rows = t->rows;
        w.columns = t->columns;
        w.tile_bytes = t->layout == COLIBRI_LAYOUT_TILES ? colibri_tile_bytes(t->kind, t->columns) : 0u;
        if (s->limits.flags & COLIBRI_LIMIT_RESIDENT_COPY) {
            w.in_pool = 1;
            w.offset = s->layout.resident + (t->offset - s->view.table[COLIBRI_SECTION_RESIDENT].offset);
        }
    }
    return w;
}

/* Expert matrices are found from their run's first byte, wherever the run is. */
static colibri_weight colibri_resolve_expert(const colibri_session *s, const colibri_description *d, uint32_t role)
{
    colibri_weight w = colibri_resolve(s, d->tensor[role]);
    if (w.rows) {
        w.in_pool = 0;
        w.offset = colibri_tensor_at(&s->view, d->tensor[role])->offset -
                   colibri_tensor_at(&s->view, d->tensor[COLIBRI_ROLE_EXPERT_GATE])->offset;
    }
    return w;
}

static void colibri_layer_resolve(const colibri_session *s, colibri_layer *layer)
{
    const uint32_t *t = layer->d.tensor;
    int dense = layer->d.ffn == COLIBRI_FFN_DENSE;
    layer->attention_norm = colibri_resolve(s, t[COLIBRI_ROLE_ATTENTION_NORM]);
    layer->q = colibri_resolve(s, t[COLIBRI_ROLE_Q]);
    layer->k = colibri_resolve(s, t[COLIBRI_ROLE_K]);
    layer->v = colibri_resolve(s, t[COLIBRI_ROLE_V]);
    layer->o = colibri_resolve(s, t[COLIBRI_ROLE_O]);
    layer->q_bias = colibri_resolve(s, t[COLIBRI_ROLE_Q_BIAS]);
    layer->k_bias = colibri_resolve(s, t[COLIBRI_ROLE_K_BIAS]);
    layer->v_bias = colibri_resolve(s, t[COLIBRI_ROLE_V_BIAS]);
    layer->o_bias = colibri_resolve(s, t[COLIBRI_ROLE_O_BIAS]);
    layer->q_norm = colibri_resolve(s, t[COLIBRI_ROLE_Q_NORM]);
    layer->k_norm = colibri_resolve(s, t[COLIBRI_ROLE_K_NORM]);
    layer->head_gate = colibri_resolve(s, t[COLIBRI_ROLE_HEAD_GATE]);
    layer->q_a = colibri_resolve(s, t[COLIBRI_ROLE_Q_A]);
    layer->k_up = colibri_resolve(s, t[COLIBRI_ROLE_K_UP]);
    layer->v_up = colibri_resolve(s, t[COLIBRI_ROLE_V_UP]);
    layer->index_q = colibri_resolve(s, t[COLIBRI_ROLE_INDEX_Q]);
    layer->index_k = colibri_resolve(s, t[COLIBRI_ROLE_INDEX_K]);
    layer->index_k_norm = colibri_resolve(s, t[COLIBRI_ROLE_INDEX_K_NORM]);
    layer->index_k_shift = colibri_resolve(s, t[COLIBRI_ROLE_INDEX_K_SHIFT]);
    layer->index_weight = colibri_resolve(s, t[COLIBRI_ROLE_INDEX_WEIGHT]);
    layer->taps = colibri_resolve(s, t[COLIBRI_ROLE_TAPS]);
    layer->taps_bias = colibri_resolve(s, t[COLIBRI_ROLE_TAPS_BIAS]);
    layer->ffn_norm = colibri_resolve(s, t[COLIBRI_ROLE_FFN_NORM]);
    layer->gate = colibri_resolve(s, t[dense ? COLIBRI_ROLE_GATE : COLIBRI_ROLE_SHARED_GATE]);
    layer->up = colibri_resolve(s, t[dense ? COLIBRI_ROLE_UP : COLIBRI_ROLE_SHARED_UP]);
    layer->down = colibri_resolve(s, t[dense ? COLIBRI_ROLE_DOWN : COLIBRI_ROLE_SHARED_DOWN]);
    layer->router = colibri_resolve(s, t[COLIBRI_ROLE_ROUTER]);
    layer->router_bias = colibri_resolve(s, t[COLIBRI_ROLE_ROUTER_BIAS]);
    layer->token_routes = colibri_resolve(s, t[COLIBRI_ROLE_TOKEN_ROUTES]);
    layer->shared_switch = colibri_resolve(s, t[COLIBRI_ROLE_SHARED_SWITCH]);
    layer->ffn_gate_bias = colibri_resolve(s, t[COLIBRI_ROLE_FFN_GATE_BIAS]);
    layer->ffn_up_bias = colibri_resolve(s, t[COLIBRI_ROLE_FFN_UP_BIAS]);
    layer->ffn_down_bias = colibri_resolve(s, t[COLIBRI_ROLE_FFN_DOWN_BIAS]);
    layer->sinks = colibri_resolve(s, t[COLIBRI_ROLE_SINKS]);
    layer->attention_norm_bias = colibri_resolve(s, t[COLIBRI_ROLE_ATTENTION_NORM_BIAS]);
    layer->ffn_norm_bias = colibri_resolve(s, t[COLIBRI_ROLE_FFN_NORM_BIAS]);
    layer->post_attention_norm = colibri_resolve(s, t[COLIBRI_ROLE_POST_ATTENTION_NORM]);
    layer->post_ffn_norm = colibri_resolve(s, t[COLIBRI_ROLE_POST_FFN_NORM]);
    layer->expert_gate = colibri_resolve_expert(s, &layer->d, COLIBRI_ROLE_EXPERT_GATE);
    layer->expert_up = colibri_resolve_expert(s, &layer->d, COLIBRI_ROLE_EXPERT_UP);
    layer->expert_down = colibri_resolve_expert(s, &layer->d, COLIBRI_ROLE_EXPERT_DOWN);
    if (!dense) {
        layer->expert_offset = colibri_tensor_at(&s->view, t[COLIBRI_ROLE_EXPERT_GATE])->offset;
    }
}

int32_t colibri_layers_fill(colibri_session *s, colibri_detail *detail)
{
    colibri_cursor cursor;
    uint64_t kv = 0;
    uint64_t chosen = s->layout.chosen;
    int32_t status = colibri_layer_begin(&s->view, &cursor, detail);
    for (uint32_t l = 0; status >= 0 && l < s->view.layers; l++) {
        colibri_layer *layer = colibri_layer_at(s, l);
        colibri_fill(layer, 0, sizeof *layer);
        status = colibri_layer_within(&s->view, &s->limits, &cursor, &layer->d, detail);
        if (status < 0) {
            break;
        }
        colibri_layer_resolve(s, layer);
        colibri_kv_shape(&s->limits, layer);
        s->rings |= (layer->d.window || layer->d.chunk) && layer->kv_tiles * COLIBRI_TILE_ROWS < s->limits.context;
        layer->kv_offset = kv;
        kv += (layer->k_tile_bytes + layer->v_tile_bytes) * layer->kv_tiles * layer->d.kv_heads;
        layer->index_offset = kv;
        kv += layer->index_tile_bytes * layer->kv_tiles;
        layer->chosen = chosen;
        layer->chosen_weight = chosen + (uint64_t)s->limits.batch * layer->d.top_k * 4u;
        chosen += (uint64_t)s->limits.batch * layer->d.top_k * 8u;
        if (layer->d.router_span) {
            layer->spread = chosen;
            chosen += (uint64_t)s->limits.batch * 8u;
        }
    }
    for (uint32_t i = 0; i < s->view.model_tensors; i++) {
        const colibri_tensor *t = colibri_tensor_at(&s->view, i);
        switch (t->role) {
        case COLIBRI_ROLE_EMBED: s->embed = colibri_resolve(s, i); break;
        case COLIBRI_ROLE_HEAD: s->head = colibri_resolve(s, i); break;
        case COLIBRI_ROLE_FINAL_NORM_BIAS: s->final_norm_bias = colibri_resolve(s, i); break;
        case COLIBRI_ROLE_HEAD_BIAS: s->head_bias = colibri_resolve(s, i); break;
        default: s->final_norm = colibri_resolve(s, i); break;
        }
        if (t->second_role == COLIBRI_ROLE_HEAD) {
            s->head = colibri_resolve(s, i);
        }
    }
    return status;
}
