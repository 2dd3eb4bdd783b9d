/*
 * tensors.c: the shape each role has under a description, and one tensor record against it.
 */
#include "blob/view.h"

static int colibri_vector_shape(colibri_shape *shape, uint32_t columns, int present)
{
    shape->rows = 1;
    shape->columns = columns;
    shape->count = 0;
    shape->layout = COLIBRI_LAYOUT_VECTOR;
    shape->only_f32 = 1;
    return present;
}

static int colibri_matrix_shape(colibri_shape *shape, uint32_t rows, uint32_t columns, int present)
{
    shape->rows = rows;
    shape->columns = columns;
    shape->count = 0;
    shape->layout = COLIBRI_LAYOUT_TILES;
    shape->only_f32 = 0;
    return present;
}

static int colibri_model_shape(const colibri_view *view, uint32_t role, colibri_shape *shape)
{
    switch (role) {
    case COLIBRI_ROLE_EMBED:
    case COLIBRI_ROLE_HEAD: return colibri_matrix_shape(shape, view->vocab, view->hidden, 1);
    case COLIBRI_ROLE_FINAL_NORM: return colibri_vector_shape(shape, view->hidden, 1);
    case COLIBRI_ROLE_FINAL_NORM_BIAS:
        return colibri_vector_shape(shape, view->hidden, view->final_norm == COLIBRI_NORM_LAYER_BIAS);
    case COLIBRI_ROLE_HEAD_BIAS: return colibri_vector_shape(shape, view->vocab, view->head_bias != 0u);
    default: return 0;
    }
}

static int colibri_attention_shape(const colibri_view *view, const colibri_description *d, uint32_t role,
                                   colibri_shape *shape)
{
    uint32_t q = d->heads * d->head_dim;
    uint32_t kv = d->kv_heads * d->head_dim;
    int norm = d->qk_norm != COLIBRI_QK_NORM_NONE && d->qk_norm != COLIBRI_QK_NORM_L2_AFTER_ROPE;
    int wide = d->qk_norm == COLIBRI_QK_NORM_WIDTH;
    switch (role) {
    case COLIBRI_ROLE_ATTENTION_NORM: return colibri_vector_shape(shape, view->hidden, 1);
    case COLIBRI_ROLE_Q: return colibri_matrix_shape(shape, q, view->hidden, 1);
    case COLIBRI_ROLE_K:
    case COLIBRI_ROLE_V: return colibri_matrix_shape(shape, kv, view->hidden, 1);
    case COLIBRI_ROLE_O: return colibri_matrix_shape(shape, view->hidden, q, 1);
    case COLIBRI_ROLE_Q_BIAS: return colibri_vector_shape(shape, q, (d->biases & COLIBRI_BIAS_Q) != 0u);
    case COLIBRI_ROLE_K_BIAS: return colibri_vector_shape(shape, kv, (d->biases & COLIBRI_BIAS_K) != 0u);
    case COLIBRI_ROLE_V_BIAS: return colibri_vector_shape(shape, kv, (d->biases & COLIBRI_BIAS_V) != 0u);
    case COLIBRI_ROLE_O_BIAS: return colibri_vector_shape(shape, view->hidden, (d->biases & COLIBRI_BIAS_O) != 0u);
    case COLIBRI_ROLE_Q_NORM: return colibri_vector_shape(shape, wide ? q : d->head_dim, norm);
    case COLIBRI_ROLE_K_NORM: return colibri_vector_shape(shape, wide ? kv : d->head_dim, norm);
    case COLIBRI_ROLE_HEAD_GATE:
        return colibri_matrix_shape(shape, d->head_gates == COLIBRI_HEAD_GATES_HEAD ? d->heads : q, view->hidden,
                                    d->head_gates != 0u);
    default: return 0;
    }
}

/* Queries of a latent, keys and values of another: Q_NORM and K_NORM are of the latents, Q_BIAS is of Q_A. */
static int colibri_latent_shape(const colibri_view *view, const colibri_description *d, uint32_t role,
                                colibri_shape *shape)
{
    uint32_t q = d->heads * (d->nope_dim + d->rope_dim);
    uint32_t out = d->heads * d->v_dim;
    int two = d->q_latent != 0u;
    switch (role) {
    case COLIBRI_ROLE_ATTENTION_NORM: return colibri_vector_shape(shape, view->hidden, 1);
    case COLIBRI_ROLE_Q: return colibri_matrix_shape(shape, q, two ? d->q_latent : view->hidden, 1);
    case COLIBRI_ROLE_Q_A: return colibri_matrix_shape(shape, d->q_latent, view->hidden, two);
    case COLIBRI_ROLE_K: return colibri_matrix_shape(shape, d->head_dim, view->hidden, 1);
    case COLIBRI_ROLE_O: return colibri_matrix_shape(shape, view->hidden, out, 1);
    case COLIBRI_ROLE_K_UP: return colibri_matrix_shape(shape, d->heads * d->latent, d->nope_dim, 1);
    case COLIBRI_ROLE_V_UP: return colibri_matrix_shape(shape, out, d->latent, 1);
    case COLIBRI_ROLE_Q_BIAS: return colibri_vector_shape(shape, d->q_latent, (d->biases & COLIBRI_BIAS_Q) != 0u);
    case COLIBRI_ROLE_K_BIAS: return colibri_vector_shape(shape, d->head_dim, (d->biases & COLIBRI_BIAS_K) != 0u);
    case COLIBRI_ROLE_O_BIAS: return colibri_vector_shape(shape, view->hidden, (d->biases & COLIBRI_BIAS_O) != 0u);
    case COLIBRI_ROLE_Q_NORM: return colibri_vector_shape(shape, d->q_latent, two);
    case COLIBRI_ROLE_K_NORM: return colibri_vector_shape(shape, d->latent, 1);
    default: return 0;
    }
}

static int colibri_index_shape(const colibri_view *view, const colibri_description *d, uint32_t role,
                               colibri_shape *shape)
{
    int own = d->index_heads != 0u, present;
    switch (role) {
    case COLIBRI_ROLE_INDEX_Q: return colibri_matrix_shape(shape, d->index_heads * d->index_dim, d->q_latent, own);
    case COLIBRI_ROLE_INDEX_K: return colibri_matrix_shape(shape, d->index_dim, view->hidden, own);
    case COLIBRI_ROLE_INDEX_K_NORM:
    case COLIBRI_ROLE_INDEX_K_SHIFT: return colibri_vector_shape(shape, d->index_dim, own);
    case COLIBRI_ROLE_INDEX_WEIGHT:
        present = colibri_matrix_shape(shape, d->index_heads, view->hidden, own);
        shape->only_f32 = 1;
        return present;
    default: return 0;
    }
}

static int colibri_expert_shape(const colibri_description *d, uint32_t rows, uint32_t columns, colibri_shape *shape)
{
    int present = colibri_matrix_shape(shape, rows, columns, d->ffn == COLIBRI_FFN_MOE);
    shape->count = d->experts;
    return present;
}

static int colibri_ffn_shape(const colibri_view *view, const colibri_description *d, uint32_t role,
                             colibri_shape *shape)
{
    int dense = d->ffn == COLIBRI_FFN_DENSE;
    int shared = d->shared_ff != 0u;
    int present;
    switch (role) {
    case COLIBRI_ROLE_FFN_NORM: return colibri_vector_shape(shape, view->hidden, 1);
    case COLIBRI_ROLE_GATE:
    case COLIBRI_ROLE_UP: return colibri_matrix_shape(shape, d->ff, view->hidden, dense);
    case COLIBRI_ROLE_DOWN: return colibri_matrix_shape(shape, view->hidden, d->ff, dense);
    case COLIBRI_ROLE_EXPERT_GATE:
    case COLIBRI_ROLE_EXPERT_UP: return colibri_expert_shape(d, d->ff, view->hidden, shape);
    case COLIBRI_ROLE_EXPERT_DOWN: return colibri_expert_shape(d, view->hidden, d->ff, shape);
    case COLIBRI_ROLE_SHARED_GATE:
    case COLIBRI_ROLE_SHARED_UP: return colibri_matrix_shape(shape, d->shared_ff, view->hidden, shared);
    case COLIBRI_ROLE_SHARED_DOWN: return colibri_matrix_shape(shape, view->hidden, d->shared_ff, shared);
    case COLIBRI_ROLE_ROUTER:
        present = colibri_matrix_shape(shape, d->experts, view->hidden, d->ffn == COLIBRI_FFN_MOE);
        break;
    case COLIBRI_ROLE_TOKEN_ROUTES:
        return colibri_vector_shape(shape, view->vocab * d->top_k, d->router_by_token != 0u);
    case COLIBRI_ROLE_ROUTER_BIAS: return colibri_vector_shape(shape, d->experts, d->router_bias != 0u);
    case COLIBRI_ROLE_SHARED_SWITCH:
        present = colibri_matrix_shape(shape, 1, view->hidden, d->shared_gate != 0u);
        break;
    default: return 0;
    }
    shape->only_f32 = 1;
    return present;
}

/* What some models have beside: biases of the feed-forward part, sinks, norms with a bias, norms of what is added. */
static int colibri_extra_shape(const colibri_view *view, const colibri_description *d, uint32_t role,
                               colibri_shape *shape)
{
    uint32_t experts = d->ffn == COLIBRI_FFN_MOE ? d->experts : 1u;
    int biased = d->norm == COLIBRI_NORM_LAYER_BIAS;
    int conv = d->attention == COLIBRI_ATTENTION_CONV;
    switch (role) {
    case COLIBRI_ROLE_FFN_GATE_BIAS:
        return colibri_vector_shape(shape, experts * d->ff, (d->ffn_biases & COLIBRI_FFN_BIAS_GATE) != 0u);
    case COLIBRI_ROLE_FFN_UP_BIAS:
        return colibri_vector_shape(shape, experts * d->ff, (d->ffn_biases & COLIBRI_FFN_BIAS_UP) != 0u);
    case COLIBRI_ROLE_FFN_DOWN_BIAS:
        return colibri_vector_shape(shape, experts * view->hidden, (d->ffn_biases & COLIBRI_FFN_BIAS_DOWN) != 0u);
    case COLIBRI_ROLE_TAPS: return colibri_vector_shape(shape, d->head_dim * d->window, conv);
    case COLIBRI_ROLE_TAPS_BIAS:
        return colibri_vector_shape(shape, d->head_dim, conv && (d->biases & COLIBRI_BIAS_TAPS) != 0u);
    case COLIBRI_ROLE_SINKS: return colibri_vector_shape(shape, d->heads, d->sinks != 0u);
    case COLIBRI_ROLE_ATTENTION_NORM_BIAS:
    case COLIBRI_ROLE_FFN_NORM_BIAS: return colibri_vector_shape(shape, view->hidden, biased);
    case COLIBRI_ROLE_POST_ATTENTION_NORM:
        return colibri_vector_shape(shape, view->hidden, (d->post_norms & COLIBRI_POST_NORM_ATTENTION) != 0u);
    case COLIBRI_ROLE_POST_FFN_NORM:
        return colibri_vector_shape(shape, view->hidden, (d->post_norms & COLIBRI_POST_NORM_FFN) != 0u);
    default: return 0;
    }
}

static int colibri_draft_shape(const colibri_view *view, const colibri_description *d, uint32_t role,
                               colibri_shape *shape)
{
    int draft = d->draft != 0u;
    return role == COLIBRI_ROLE_DRAFT_JOIN ? colibri_matrix_shape(shape, view->hidden, 2u * view->hidden, draft)
                                           : colibri_vector_shape(shape, view->hidden, draft);
}

int colibri_role_shape(const colibri_view *view, const colibri_description *layer, uint32_t role,
                       colibri_shape *shape)
{
    if (!layer) {
        return colibri_model_shape(view, role, shape);
    }
    if (role >= COLIBRI_ROLE_INDEX_Q && role <= COLIBRI_ROLE_INDEX_WEIGHT) {
        return colibri_index_shape(view, layer, role, shape);
    }
    if (role >= COLIBRI_ROLE_DRAFT_EMBED_NORM && role <= COLIBRI_ROLE_DRAFT_FINAL_NORM) {
        return colibri_draft_shape(view, layer, role, shape);
    }
    if (role < COLIBRI_ROLE_FFN_NORM || role >= COLIBRI_ROLE_Q_A) {
        return layer->attention == COLIBRI_ATTENTION_MLA ? colibri_latent_shape(view, layer, role, shape)
                                                         : colibri_attention_shape(view, layer, role, shape);
    }
    if (role == COLIBRI_ROLE_TAPS || role == COLIBRI_ROLE_TAPS_BIAS ||
        (role >= COLIBRI_ROLE_FFN_GATE_BIAS && role <= COLIBRI_ROLE_POST_FFN_NORM)) {
        return colibri_extra_shape(view, layer, role, shape);
    }
    return colibri_ffn_shape(view, layer, role, shape);
}

int colibri_routes_are_experts(const float *number, uint32_t count, uint32_t experts)
{
    float least = 0.0f;
    for (uint32_t i = 0; i < count; i++) {
        if (!(number[i] >= least && number[i] < (float)experts) || (float)(uint32_t)number[i] != number[i]) {
            return 0;                           /* not a number, too, for it is not in between */
        }
        least = number[i] + 1.0f;
    }
    return 1;
}

static int32_t colibri_tensor_fault(const colibri_view *view, uint32_t index, int32_t status, uint32_t field,
                                    uint64_t expected, uint64_t found, colibri_detail *detail)
{
    uint64_t at = view->table[COLIBRI_SECTION_TENSORS].offset + (uint64_t)index * COLIBRI_TENSOR_BYTES;
    return colibri_refuse(detail, status, COLIBRI_SECTION_TENSORS, field, index, at, expected, found);
}

static int32_t colibri_check_place(const colibri_view *view, uint32_t index, uint64_t bytes, uint32_t section,
                                   colibri_detail *detail)
{
    const colibri_tensor *t = colibri_tensor_at(view, index);
    const colibri_table *home = &view->table[section];
    int bad = 0;
    uint64_t all = colibri_add(bytes, colibri_mul(t->stride, t->count - 1u, &bad), &bad);
    if (t->bytes != bytes) {
        return colibri_tensor_fault(view, index, COLIBRI_ERROR_FORMAT, COLIBRI_FIELD_BYTES, bytes, t->bytes, detail);
    }
    if (bad || t->offset % COLIBRI_TENSOR_ALIGN != 0u || t->offset < home->offset ||
        t->offset - home->offset > home->payload || all > home->payload - (t->offset - home->offset)) {
        return colibri_tensor_fault(view, index, COLIBRI_ERROR_FORMAT, COLIBRI_FIELD_OFFSET, home->offset, t->offset,
                                    detail);
    }
    return COLIBRI_OK;
}

int32_t colibri_check_tensor(const colibri_view *view, uint32_t index, const colibri_shape *shape,
                             uint32_t section, colibri_detail *detail)
{
    const colibri_tensor *t = colibri_tensor_at(view, index);
    uint32_t count = shape->count ? shape->count : 1u;
    uint32_t group = colibri_kind_quantized(t->kind) ? COLIBRI_GROUP : 0u;
    uint32_t reserved = t->flags | t->reserved0;
    uint64_t bytes = (uint64_t)t->columns * 4u;
    for (uint32_t i = 0; i < sizeof t->reserved; i++) {
        reserved |= t->reserved[i];
        reserved |= shape->count ? t->crc | t->digest[i] : 0u;      /* EXPERT_SUMS vouches: no sums here */
    }
    if (!colibri_kind_known(t->kind) || (shape->only_f32 && t->kind != COLIBRI_KIND_F32)) {
        return colibri_tensor_fault(view, index, COLIBRI_ERROR_UNSUPPORTED, COLIBRI_FIELD_KIND, COLIBRI_KIND_F32,
                                    t->kind, detail);
    }
    if (t->layout != shape->layout) {
        return colibri_tensor_fault(view, index, COLIBRI_ERROR_UNSUPPORTED, COLIBRI_FIELD_LAYOUT, shape->layout,
                                    t->layout, detail);
    }
    if (t->rows != shape->rows) {
        return colibri_tensor_fault(view, index, COLIBRI_ERROR_FORMAT, COLIBRI_FIELD_ROWS, shape->rows, t->rows,
                                    detail);
    }
    if (t->columns != shape->columns) {
        return colibri_tensor_fault(view, index, COLIBRI_ERROR_FORMAT, COLIBRI_FIELD_COLUMNS, shape->columns,
                                    t->columns, detail);
    }
    if (t->count != count || (shape->count == 0u && t->stride != 0u)) {
        return colibri_tensor_fault(view, index, COLIBRI_ERROR_FORMAT, COLIBRI_FIELD_COUNT, count, t->count, detail);
    }
    if (t->group != group) {
        return colibri_tensor_fault(view, index, COLIBRI_ERROR_FORMAT, COLIBRI_FIELD_GROUP, group, t->group, detail);
    }
    if (reserved) {
        return colibri_tensor_fault(view, index, COLIBRI_ERROR_FORMAT, COLIBRI_FIELD_RESERVED, 0, reserved, detail);
    }
    if (t->second_role != 0u && (t->role != COLIBRI_ROLE_EMBED || t->second_role != COLIBRI_ROLE_HEAD)) {
        return colibri_tensor_fault(view, index, COLIBRI_ERROR_FORMAT, COLIBRI_FIELD_ROLE, 0, t->second_role, detail);
    }
    if (shape->layout == COLIBRI_LAYOUT_TILES) {
        bytes = colibri_matrix_bytes(t->kind, t->rows, t->columns);
    }
    return colibri_check_place(view, index, bytes, section, detail);
}
