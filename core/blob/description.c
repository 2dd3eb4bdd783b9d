/*
 * description.c: the layers, one after the other: records to a description, then every tensor of the layer against
 * the shape the description gives its role. A walk costs O(layers) and is done at open, plan and start.
 */
#include "blob/records.h"

int32_t colibri_layer_begin(const colibri_view *view, colibri_cursor *cursor, colibri_detail *detail)
{
    const colibri_table *table = &view->table[COLIBRI_SECTION_LAYERS];
    const colibri_record *r = colibri_records(view, COLIBRI_SECTION_LAYERS);
    colibri_fill(cursor, 0, sizeof *cursor);
    while (cursor->defaults < table->count && r[cursor->defaults].layer == COLIBRI_NO) {
        cursor->defaults++;
    }
    for (uint32_t i = 1; i < table->count; i++) {       /* ascending (layer + 1, key): every-layer records come first */
        uint64_t before = (uint64_t)(r[i - 1u].layer + 1u) << 16 | r[i - 1u].key;
        uint64_t here = (uint64_t)(r[i].layer + 1u) << 16 | r[i].key;
        if (here <= before) {
            return colibri_record_fault(detail, COLIBRI_ERROR_FORMAT, view, COLIBRI_SECTION_LAYERS, i,
                                        COLIBRI_FIELD_KEY, before, here);
        }
    }
    cursor->record = cursor->defaults;
    cursor->tensor = view->model_tensors;
    cursor->expert_end = view->table[COLIBRI_SECTION_EXPERTS].offset;
    return COLIBRI_OK;
}

static int32_t colibri_read_rope(const colibri_view *view, uint32_t i, uint32_t *rope, colibri_detail *detail)
{
    const uint32_t s = COLIBRI_SECTION_LAYERS;
    if (view->table[COLIBRI_SECTION_ROPE].count == 0u) {
        return colibri_record_fault(detail, COLIBRI_ERROR_FORMAT, view, s, i, COLIBRI_FIELD_MISSING, 1, 0);
    }
    return colibri_record_u32(view, s, i, 0, view->table[COLIBRI_SECTION_ROPE].count - 1u, rope, detail);
}

static int32_t colibri_read_attention(const colibri_view *view, uint32_t i, colibri_description *d,
                                      colibri_detail *detail)
{
    const uint32_t s = COLIBRI_SECTION_LAYERS;
    const uint32_t most = COLIBRI_VALUE_LIMIT;
    switch (colibri_records(view, s)[i].key) {
    case COLIBRI_LAYER_ATTENTION:
        if (colibri_records(view, s)[i].value > COLIBRI_ATTENTION_CONV) {
            return colibri_record_fault(detail, COLIBRI_ERROR_UNSUPPORTED, view, s, i, COLIBRI_FIELD_VALUE,
                                        COLIBRI_ATTENTION_CONV, colibri_records(view, s)[i].value);
        }
        return colibri_record_u32(view, s, i, COLIBRI_ATTENTION_GQA, COLIBRI_ATTENTION_CONV, &d->attention, detail);
    case COLIBRI_LAYER_HEADS: return colibri_record_u32(view, s, i, 1, 65535, &d->heads, detail);
    case COLIBRI_LAYER_KV_HEADS: return colibri_record_u32(view, s, i, 1, 65535, &d->kv_heads, detail);
    case COLIBRI_LAYER_HEAD_DIM: return colibri_record_u32(view, s, i, 1, 65535, &d->head_dim, detail);
    case COLIBRI_LAYER_ROPE: return colibri_read_rope(view, i, &d->rope, detail);
    case COLIBRI_LAYER_WINDOW: return colibri_record_u32(view, s, i, 1, most, &d->window, detail);
    case COLIBRI_LAYER_SCORE_SCALE: return colibri_record_f32(view, s, i, &d->score_scale, detail);
    case COLIBRI_LAYER_QK_NORM:
        return colibri_record_u32(view, s, i, 0, COLIBRI_QK_NORM_L2_AFTER_ROPE, &d->qk_norm, detail);
    case COLIBRI_LAYER_NORM_EPS: return colibri_record_f32(view, s, i, &d->eps, detail);
    default: return colibri_record_u32(view, s, i, 0, 31, &d->biases, detail);
    }
}

static int32_t colibri_read_latent(const colibri_view *view, uint32_t i, colibri_description *d, colibri_detail *detail)
{
    const uint32_t s = COLIBRI_SECTION_LAYERS;
    switch (colibri_records(view, s)[i].key) {
    case COLIBRI_LAYER_LATENT: return colibri_record_u32(view, s, i, 1, 65535, &d->latent, detail);
    case COLIBRI_LAYER_NOPE_DIM: return colibri_record_u32(view, s, i, 1, 65535, &d->nope_dim, detail);
    case COLIBRI_LAYER_ROPE_DIM: return colibri_record_u32(view, s, i, 1, 65535, &d->rope_dim, detail);
    case COLIBRI_LAYER_V_DIM: return colibri_record_u32(view, s, i, 1, 65535, &d->v_dim, detail);
    case COLIBRI_LAYER_Q_LATENT:
        return colibri_record_u32(view, s, i, 1, COLIBRI_VALUE_LIMIT, &d->q_latent, detail);
    case COLIBRI_LAYER_LATENT_EPS:
        d->has_latent_eps = 1;
        return colibri_record_f32(view, s, i, &d->latent_eps, detail);
    case COLIBRI_LAYER_INDEX_HEADS: return colibri_record_u32(view, s, i, 1, 65535, &d->index_heads, detail);
    case COLIBRI_LAYER_INDEX_DIM: return colibri_record_u32(view, s, i, 1, 65535, &d->index_dim, detail);
    case COLIBRI_LAYER_INDEX_TOP_K:
        return colibri_record_u32(view, s, i, 1, COLIBRI_VALUE_LIMIT, &d->index_top_k, detail);
    default: return colibri_read_rope(view, i, &d->index_rope, detail);
    }
}

static int32_t colibri_read_ffn(const colibri_view *view, uint32_t i, colibri_description *d, colibri_detail *detail)
{
    const uint32_t s = COLIBRI_SECTION_LAYERS;
    const uint32_t most = COLIBRI_VALUE_LIMIT;
    switch (colibri_records(view, s)[i].key) {
    case COLIBRI_LAYER_FFN:
        return colibri_record_u32(view, s, i, COLIBRI_FFN_DENSE, COLIBRI_FFN_MOE, &d->ffn, detail);
    case COLIBRI_LAYER_ACTIVATION:
        return colibri_record_u32(view, s, i, 1, COLIBRI_ACTIVATION_GELU_ERF, &d->activation, detail);
    case COLIBRI_LAYER_FF: return colibri_record_u32(view, s, i, 1, most, &d->ff, detail);
    case COLIBRI_LAYER_EXPERTS: return colibri_record_u32(view, s, i, 1, 65535, &d->experts, detail);
    case COLIBRI_LAYER_TOP_K: return colibri_record_u32(view, s, i, 1, 65535, &d->top_k, detail);
    case COLIBRI_LAYER_SHARED_FF: return colibri_record_u32(view, s, i, 1, most, &d->shared_ff, detail);
    case COLIBRI_LAYER_SHARED_GATE: return colibri_record_u32(view, s, i, 0, 1, &d->shared_gate, detail);
    case COLIBRI_LAYER_RESIDUAL_MULTIPLIER:
        d->has_residual_multiplier = 1;
        return colibri_record_f32(view, s, i, &d->residual_multiplier, detail);
    case COLIBRI_LAYER_CLIP_QKV:
        d->has_clip = 1;
        return colibri_record_f32(view, s, i, &d->clip_qkv, detail);
    case COLIBRI_LAYER_EXPERT_RUN: return colibri_record_u64(view, s, i, &d->expert_run, detail);
    default: return colibri_record_unknown(view, s, i, COLIBRI_LAYER_SWIGLU_LIMIT, detail);
    }
}

static int32_t colibri_read_router(const colibri_view *view, uint32_t i, colibri_description *d,
                                   colibri_detail *detail)
{
    const uint32_t s = COLIBRI_SECTION_LAYERS;
    switch (colibri_records(view, s)[i].key) {
    case COLIBRI_LAYER_ROUTER_SCORE:
        return colibri_record_u32(view, s, i, 1, COLIBRI_ROUTER_SPARSE_MIXER, &d->router_score, detail);
    case COLIBRI_LAYER_ROUTER_RENORMALISE:
        return colibri_record_u32(view, s, i, 0, COLIBRI_RENORMALISE_ROOT, &d->renormalise, detail);
    case COLIBRI_LAYER_ROUTER_SCALE: return colibri_record_f32(view, s, i, &d->router_scale, detail);
    case COLIBRI_LAYER_ROUTER_EPS: return colibri_record_f32(view, s, i, &d->router_eps, detail);
    case COLIBRI_LAYER_ROUTER_BIAS:
        return colibri_record_u32(view, s, i, 0, COLIBRI_ROUTER_BIAS_LOGIT, &d->router_bias, detail);
    case COLIBRI_LAYER_ROUTER_GROUPS:
        return colibri_record_u32(view, s, i, 1, COLIBRI_GROUP_LIMIT, &d->router_groups, detail);
    case COLIBRI_LAYER_ROUTER_TOP_GROUPS:
        return colibri_record_u32(view, s, i, 1, COLIBRI_GROUP_LIMIT, &d->router_top_groups, detail);
    case COLIBRI_LAYER_ROUTER_WEIGHT_ON:
        return colibri_record_u32(view, s, i, 0, COLIBRI_ROUTER_ON_INPUT, &d->router_weight_on, detail);
    case COLIBRI_LAYER_ROUTER_GROUP_SCORE:
        return colibri_record_u32(view, s, i, 1, COLIBRI_GROUP_EACH, &d->group_score, detail);
    case COLIBRI_LAYER_ROUTER_CHOICE:
        return colibri_record_u32(view, s, i, 0, COLIBRI_CHOICE_BY_LOGIT, &d->router_choice, detail);
    case COLIBRI_LAYER_ROUTER_BY_TOKEN: return colibri_record_u32(view, s, i, 0, 1, &d->router_by_token, detail);
    case COLIBRI_LAYER_ROUTER_SUM_MIN: return colibri_record_f32(view, s, i, &d->router_sum_min, detail);
    case COLIBRI_LAYER_ROUTER_SPAN:
        return colibri_record_u32(view, s, i, 1, COLIBRI_SPAN_LIMIT, &d->router_span, detail);
    default: return colibri_record_f32(view, s, i, &d->router_jitter, detail);
    }
}

static int colibri_router_key(uint32_t key)
{
    return (key >= COLIBRI_LAYER_ROUTER_SCORE && key <= COLIBRI_LAYER_ROUTER_WEIGHT_ON) ||
           (key >= COLIBRI_LAYER_ROUTER_GROUP_SCORE && key <= COLIBRI_LAYER_ROUTER_CHOICE) ||
           key == COLIBRI_LAYER_ROUTER_BY_TOKEN || key == COLIBRI_LAYER_ROUTER_SPAN;
}

/* Switches that few models have. */
static int32_t colibri_read_extra(const colibri_view *view, uint32_t i, colibri_description *d, colibri_detail *detail)
{
    const uint32_t s = COLIBRI_SECTION_LAYERS;
    switch (colibri_records(view, s)[i].key) {
    case COLIBRI_LAYER_SINKS: return colibri_record_u32(view, s, i, 0, 1, &d->sinks, detail);
    case COLIBRI_LAYER_SWIGLU_LIMIT:
        d->has_limit = 1;
        return colibri_record_f32(view, s, i, &d->swiglu_limit, detail);
    case COLIBRI_LAYER_FFN_BIASES: return colibri_record_u32(view, s, i, 0, 7, &d->ffn_biases, detail);
    case COLIBRI_LAYER_NORM: return colibri_record_u32(view, s, i, 0, COLIBRI_NORM_LAYER_BIAS, &d->norm, detail);
    case COLIBRI_LAYER_POST_NORMS: return colibri_record_u32(view, s, i, 0, 3, &d->post_norms, detail);
    case COLIBRI_LAYER_QUERY_FLOOR:
        return colibri_record_u32(view, s, i, 1, COLIBRI_VALUE_LIMIT, &d->query_floor, detail);
    case COLIBRI_LAYER_QUERY_STEP:
        d->has_query_step = 1;
        return colibri_record_f32(view, s, i, &d->query_step, detail);
    case COLIBRI_LAYER_CHUNK: return colibri_record_u32(view, s, i, 1, COLIBRI_VALUE_LIMIT, &d->chunk, detail);
    case COLIBRI_LAYER_DRAFT: return colibri_record_u32(view, s, i, 1, 1, &d->draft, detail);
    case COLIBRI_LAYER_HEAD_GATES:
        return colibri_record_u32(view, s, i, 0, COLIBRI_HEAD_GATES_ELEMENT, &d->head_gates, detail);
    default: return colibri_record_unknown(view, s, i, COLIBRI_LAYER_SWIGLU_LIMIT, detail);
    }
}

static int32_t colibri_read_layer_record(const colibri_view *view, uint32_t i, colibri_description *d,
                                         colibri_detail *detail)
{
    uint32_t key = colibri_records(view, COLIBRI_SECTION_LAYERS)[i].key;
    if (key >= COLIBRI_LAYER_ATTENTION && key <= COLIBRI_LAYER_BIASES) {
        return colibri_read_attention(view, i, d, detail);
    }
    if (colibri_router_key(key)) {
        return colibri_read_router(view, i, d, detail);
    }
    if (key == COLIBRI_LAYER_SINKS || key == COLIBRI_LAYER_SWIGLU_LIMIT || key == COLIBRI_LAYER_DRAFT ||
        key == COLIBRI_LAYER_HEAD_GATES ||
        (key >= COLIBRI_LAYER_QUERY_FLOOR && key <= COLIBRI_LAYER_CHUNK)) {
        return colibri_read_extra(view, i, d, detail);
    }
    if (key >= COLIBRI_LAYER_LATENT && key <= COLIBRI_LAYER_INDEX_ROPE) {
        return colibri_read_latent(view, i, d, detail);
    }
    return colibri_read_ffn(view, i, d, detail);
}

static int32_t colibri_layer_fault(colibri_detail *detail, const colibri_view *view, uint32_t layer, uint32_t field,
                                   uint64_t expected, uint64_t found)
{
    return colibri_refuse(detail, COLIBRI_ERROR_FORMAT, COLIBRI_SECTION_LAYERS, field, layer,
                          view->table[COLIBRI_SECTION_LAYERS].offset, expected, found);
}

/* A value that has no "absent" in the format must be there: 0 would run, and answer wrong. */
static int32_t colibri_check_keys(const colibri_view *view, uint32_t layer, const colibri_description *d, uint64_t keys,
                                  colibri_detail *detail)
{
    static const uint8_t needed[] = {
        COLIBRI_LAYER_ATTENTION, COLIBRI_LAYER_HEADS, COLIBRI_LAYER_KV_HEADS, COLIBRI_LAYER_HEAD_DIM,
        COLIBRI_LAYER_SCORE_SCALE, COLIBRI_LAYER_NORM_EPS, COLIBRI_LAYER_FFN, COLIBRI_LAYER_ACTIVATION,
        COLIBRI_LAYER_FF, COLIBRI_LAYER_EXPERTS, COLIBRI_LAYER_TOP_K, COLIBRI_LAYER_ROUTER_SCORE,
        COLIBRI_LAYER_ROUTER_RENORMALISE, COLIBRI_LAYER_EXPERT_RUN};        /* from EXPERTS on: MoE layers only */
    for (uint32_t i = 0; i < sizeof needed; i++) {
        if (needed[i] == COLIBRI_LAYER_EXPERTS && d->ffn != COLIBRI_FFN_MOE) {
            break;
        }
        if (!(keys >> needed[i] & 1u)) {
            return colibri_layer_fault(detail, view, layer, COLIBRI_FIELD_MISSING, needed[i], 0);
        }
    }
    return COLIBRI_OK;
}

/* Where the integer router is defined: weights that are ratios of exponentials, a choice that the logits decide. */
static int32_t colibri_check_span(const colibri_view *view, uint32_t layer, const colibri_description *d,
                                  colibri_detail *detail)
{
    int ratio = d->router_score == COLIBRI_ROUTER_LOGIT
                    ? d->renormalise == COLIBRI_RENORMALISE_SOFTMAX
                    : d->router_score <= COLIBRI_ROUTER_SIGMOID && d->renormalise <= COLIBRI_RENORMALISE_SUM;
    int by_logit = (d->router_bias == COLIBRI_ROUTER_BIAS_NONE || d->router_bias == COLIBRI_ROUTER_BIAS_LOGIT) &&
                   d->group_score <= COLIBRI_GROUP_MAX && !d->router_by_token;
    if (d->router_span & (d->router_span - 1u)) {
        return colibri_layer_fault(detail, view, layer, COLIBRI_FIELD_VALUE, COLIBRI_SPAN_LIMIT, d->router_span);
    }
    if (!ratio || !by_logit || !(d->router_eps >= 0.0f && d->router_eps <= 1e-9f) || d->router_sum_min > 0.0f) {
        return colibri_layer_fault(detail, view, layer, COLIBRI_FIELD_KEY, 0, COLIBRI_LAYER_ROUTER_SPAN);
    }
    return COLIBRI_OK;
}

/* The router's switches that depend on each other. */
static int32_t colibri_check_router(const colibri_view *view, uint32_t layer, const colibri_description *d,
                                    colibri_detail *detail)
{
    uint32_t groups = d->router_groups;
    int mixer = d->router_score == COLIBRI_ROUTER_SPARSE_MIXER;
    if (d->top_k > d->experts) {
        return colibri_layer_fault(detail, view, layer, COLIBRI_FIELD_COUNT, d->experts, d->top_k);
    }
    if (d->router_by_token && (colibri_router_selects(d) || mixer)) {   /* nothing is left for them to choose */
        return colibri_layer_fault(detail, view, layer, COLIBRI_FIELD_KEY, 0, COLIBRI_LAYER_ROUTER_BY_TOKEN);
    }
    if (d->router_by_token && (uint64_t)view->vocab * d->top_k > COLIBRI_VALUE_LIMIT) {
        return colibri_layer_fault(detail, view, layer, COLIBRI_FIELD_COLUMNS, COLIBRI_VALUE_LIMIT,
                                   (uint64_t)view->vocab * d->top_k);
    }
    if (!(d->router_sum_min >= 0.0f && d->router_jitter >= 0.0f)) {
        return colibri_layer_fault(detail, view, layer, COLIBRI_FIELD_VALUE, 0, colibri_bits(d->router_sum_min));
    }
    if (d->router_choice && d->router_bias && d->router_bias != COLIBRI_ROUTER_BIAS_LOGIT) {    /* the bias says it */
        return colibri_layer_fault(detail, view, layer, COLIBRI_FIELD_VALUE, 0, d->router_choice);
    }
    if (mixer && (groups || (d->router_bias && d->router_bias != COLIBRI_ROUTER_BIAS_LOGIT))) {
        return colibri_layer_fault(detail, view, layer, COLIBRI_FIELD_VALUE, 0, d->router_score);
    }
    if (!groups != !d->router_top_groups || !groups != !d->group_score) {
        return colibri_layer_fault(detail, view, layer, COLIBRI_FIELD_MISSING, groups, d->router_top_groups);
    }
    int32_t status = d->router_span ? colibri_check_span(view, layer, d, detail) : COLIBRI_OK;
    if (status < 0) {
        return status;
    }
    if (!groups) {
        return COLIBRI_OK;
    }
    if (d->experts % groups != 0u || (d->group_score == COLIBRI_GROUP_TOP_TWO && d->experts == groups)) {
        return colibri_layer_fault(detail, view, layer, COLIBRI_FIELD_COUNT, d->experts, groups);
    }
    if (d->group_score == COLIBRI_GROUP_EACH && (d->router_top_groups != groups || d->top_k % groups != 0u)) {
        return colibri_layer_fault(detail, view, layer, COLIBRI_FIELD_COUNT, groups, d->top_k);
    }
    if (d->router_top_groups > groups || d->top_k > d->experts / groups * d->router_top_groups) {
        return colibri_layer_fault(detail, view, layer, COLIBRI_FIELD_COUNT,
                                   d->experts / groups * d->router_top_groups, d->top_k);
    }
    return COLIBRI_OK;
}

static int32_t colibri_check_width(const colibri_view *view, uint32_t layer, uint32_t heads, uint64_t each,
                                   colibri_detail *detail)
{
    if (heads * each > COLIBRI_VALUE_LIMIT) {
        return colibri_layer_fault(detail, view, layer, COLIBRI_FIELD_COLUMNS, COLIBRI_VALUE_LIMIT, heads * each);
    }
    return COLIBRI_OK;
}

/* What has no meaning in latent attention is refused by its key: q/k norms per head, clamp, sinks, chunks, gates of
 * heads, growing queries, a bias on v, one of a latent that is not there. */
static int32_t colibri_check_not_latent(const colibri_view *view, uint32_t layer, const colibri_description *d,
                                        colibri_detail *detail)
{
    uint32_t biases = COLIBRI_BIAS_K | COLIBRI_BIAS_O | (d->q_latent ? COLIBRI_BIAS_Q : 0u);
    const uint32_t values[][2] = {{d->qk_norm, COLIBRI_LAYER_QK_NORM}, {d->biases & ~biases, COLIBRI_LAYER_BIASES},
                                  {d->sinks, COLIBRI_LAYER_SINKS}, {d->has_clip, COLIBRI_LAYER_CLIP_QKV},
                                  {d->chunk, COLIBRI_LAYER_CHUNK}, {d->head_gates, COLIBRI_LAYER_HEAD_GATES},
                                  {d->query_floor, COLIBRI_LAYER_QUERY_FLOOR}};
    for (uint32_t i = 0; i < 7u; i++) {
        if (values[i][0]) {
            return colibri_layer_fault(detail, view, layer, COLIBRI_FIELD_KEY, 0, values[i][1]);
        }
    }
    return COLIBRI_OK;
}

/* Latent attention: one KV head whose key is latent and rope key. A head's rows of K_UP and V_UP begin at a tile. */
static int32_t colibri_check_latent(const colibri_view *view, uint32_t layer, const colibri_description *d,
                                    colibri_detail *detail)
{
    const uint32_t values[][2] = {{d->latent, COLIBRI_LAYER_LATENT}, {d->nope_dim, COLIBRI_LAYER_NOPE_DIM},
                                  {d->rope_dim, COLIBRI_LAYER_ROPE_DIM}, {d->v_dim, COLIBRI_LAYER_V_DIM}};
    int mla = d->attention == COLIBRI_ATTENTION_MLA;
    for (uint32_t i = 0; i < 4u; i++) {
        if ((values[i][0] != 0u) != mla) {
            return colibri_layer_fault(detail, view, layer, mla ? COLIBRI_FIELD_MISSING : COLIBRI_FIELD_KEY,
                                       values[i][1], values[i][0]);
        }
    }
    if (!mla) {
        return d->q_latent ? colibri_layer_fault(detail, view, layer, COLIBRI_FIELD_KEY, COLIBRI_LAYER_Q_LATENT,
                                                 d->q_latent) : COLIBRI_OK;
    }
    if (d->kv_heads != 1u || d->head_dim != d->latent + d->rope_dim) {
        return colibri_layer_fault(detail, view, layer, COLIBRI_FIELD_COLUMNS, (uint64_t)d->latent + d->rope_dim,
                                   (uint64_t)d->kv_heads * d->head_dim);
    }
    if ((d->latent | d->v_dim) % COLIBRI_TILE_ROWS != 0u) {
        return colibri_layer_fault(detail, view, layer, COLIBRI_FIELD_ROWS, COLIBRI_TILE_ROWS,
                                   d->latent % COLIBRI_TILE_ROWS ? d->latent : d->v_dim);
    }
    int32_t status = colibri_check_not_latent(view, layer, d, detail);
    if (status < 0) {
        return status;
    }
    if (!(d->latent_eps >= 0.0f)) {
        return colibri_layer_fault(detail, view, layer, COLIBRI_FIELD_VALUE, 0, colibri_bits(d->latent_eps));
    }
    status = colibri_check_width(view, layer, d->heads, (uint64_t)d->nope_dim + d->rope_dim, detail);
    return status < 0 ? status : colibri_check_width(view, layer, d->heads, d->v_dim, detail);
}

/* A convolution: one head, at least one tap, taps in a vector; nothing that scores and rotations need. */
static int32_t colibri_check_convolution(const colibri_view *view, uint32_t layer, const colibri_description *d,
                                         colibri_detail *detail)
{
    if (d->attention != COLIBRI_ATTENTION_CONV) {
        return d->biases & COLIBRI_BIAS_TAPS ? colibri_layer_fault(detail, view, layer, COLIBRI_FIELD_VALUE, 15,
                                                                   d->biases) : COLIBRI_OK;
    }
    if (!d->window) {
        return colibri_layer_fault(detail, view, layer, COLIBRI_FIELD_MISSING, COLIBRI_LAYER_WINDOW, 0);
    }
    if (d->heads != 1u) {                       /* and one KV head, which divides it */
        return colibri_layer_fault(detail, view, layer, COLIBRI_FIELD_VALUE, 1, d->heads);
    }
    if (d->rope != COLIBRI_NO || d->qk_norm || d->has_clip || d->sinks || d->chunk || d->query_floor ||
        d->head_gates) {
        return colibri_layer_fault(detail, view, layer, COLIBRI_FIELD_KEY, COLIBRI_LAYER_ATTENTION, d->attention);
    }
    return colibri_check_width(view, layer, d->window, d->head_dim, detail);
}

/* A choice of positions: of latent attention without a window, by index heads that read the latent of the queries, or
 * taken over from the last layer that has them; that one has to choose as many. */
static int32_t colibri_check_index(const colibri_view *view, colibri_cursor *cursor, const colibri_description *d,
                                   colibri_detail *detail)
{
    uint32_t layer = cursor->layer;
    int own = d->index_heads != 0u;
    if (!d->index_top_k) {
        return own || d->index_dim || d->index_rope != COLIBRI_NO
                   ? colibri_layer_fault(detail, view, layer, COLIBRI_FIELD_MISSING, COLIBRI_LAYER_INDEX_TOP_K, 0)
                   : COLIBRI_OK;
    }
    if (d->attention != COLIBRI_ATTENTION_MLA || d->window || !d->q_latent) {
        return colibri_layer_fault(detail, view, layer, COLIBRI_FIELD_KEY, COLIBRI_LAYER_INDEX_TOP_K, d->window);
    }
    if (own != (d->index_dim != 0u) || (!own && d->index_rope != COLIBRI_NO)) {
        return colibri_layer_fault(detail, view, layer, COLIBRI_FIELD_MISSING,
                                   own ? COLIBRI_LAYER_INDEX_DIM : COLIBRI_LAYER_INDEX_HEADS, 0);
    }
    if (d->index_rope != COLIBRI_NO && colibri_rope_at(view, d->index_rope)->pairs > d->index_dim / 2u) {
        return colibri_layer_fault(detail, view, layer, COLIBRI_FIELD_COUNT, d->index_dim / 2u,
                                   colibri_rope_at(view, d->index_rope)->pairs);
    }
    if (!own && d->index_top_k != cursor->index_top_k) {
        return colibri_layer_fault(detail, view, layer, COLIBRI_FIELD_VALUE, cursor->index_top_k, d->index_top_k);
    }
    cursor->index_top_k = d->index_top_k;
    return colibri_check_width(view, layer, d->index_heads, d->index_dim, detail);
}

/* What single records cannot say: values that depend on each other. */
static int32_t colibri_check_description(const colibri_view *view, uint32_t layer, const colibri_description *d,
                                         colibri_detail *detail)
{
    if (!(d->eps >= 0.0f)) {
        return colibri_layer_fault(detail, view, layer, COLIBRI_FIELD_VALUE, 0, colibri_bits(d->eps));
    }
    if (d->heads % d->kv_heads != 0u) {
        return colibri_layer_fault(detail, view, layer, COLIBRI_FIELD_VALUE, d->heads, d->kv_heads);
    }
    int32_t status = colibri_check_width(view, layer, d->heads, d->head_dim, detail);
    status = status < 0 ? status : colibri_check_latent(view, layer, d, detail);
    status = status < 0 ? status : colibri_check_convolution(view, layer, d, detail);
    if (status < 0) {
        return status;
    }
    uint32_t rotated = d->attention == COLIBRI_ATTENTION_MLA ? d->rope_dim : d->head_dim;
    if (d->rope != COLIBRI_NO && colibri_rope_at(view, d->rope)->pairs > rotated / 2u) {
        return colibri_layer_fault(detail, view, layer, COLIBRI_FIELD_COUNT, rotated / 2u,
                                   colibri_rope_at(view, d->rope)->pairs);
    }
    if (d->has_clip && !(d->clip_qkv > 0.0f)) {
        return colibri_layer_fault(detail, view, layer, COLIBRI_FIELD_VALUE, 1, colibri_bits(d->clip_qkv));
    }
    if (d->ffn == COLIBRI_FFN_DENSE && (d->experts || d->shared_ff)) {
        return colibri_layer_fault(detail, view, layer, COLIBRI_FIELD_COUNT, 0, d->experts);
    }
    if (d->shared_gate && !d->shared_ff) {
        return colibri_layer_fault(detail, view, layer, COLIBRI_FIELD_MISSING, 1, 0);
    }
    return d->ffn == COLIBRI_FFN_MOE ? colibri_check_router(view, layer, d, detail) : COLIBRI_OK;
}

/* The same for what colibri_read_extra reads. */
static int32_t colibri_check_extra(const colibri_view *view, uint32_t layer, const colibri_description *d,
                                   colibri_detail *detail)
{
    uint32_t clamped = d->activation == COLIBRI_ACTIVATION_CLAMPED ||
                       d->activation == COLIBRI_ACTIVATION_CLAMPED_PLUS_ONE;
    uint64_t experts = d->ffn == COLIBRI_FFN_MOE ? d->experts : 1u;
    uint64_t widest = experts * (d->ff > view->hidden ? d->ff : view->hidden);
    if (d->has_limit != clamped || (clamped && !(d->swiglu_limit > 0.0f))) {
        return colibri_layer_fault(detail, view, layer, COLIBRI_FIELD_VALUE, clamped, colibri_bits(d->swiglu_limit));
    }
    if (d->ffn_biases && widest > COLIBRI_VALUE_LIMIT) {
        return colibri_layer_fault(detail, view, layer, COLIBRI_FIELD_COLUMNS, COLIBRI_VALUE_LIMIT, widest);
    }
    if (!d->query_floor != !d->has_query_step) {
        return colibri_layer_fault(detail, view, layer, COLIBRI_FIELD_MISSING, COLIBRI_LAYER_QUERY_FLOOR,
                                   d->query_floor);
    }
    if (d->draft != (uint32_t)(layer >= view->layers)) {
        return colibri_layer_fault(detail, view, layer, COLIBRI_FIELD_KEY, d->draft ? 0u : COLIBRI_LAYER_DRAFT,
                                   d->draft ? COLIBRI_LAYER_DRAFT : 0u);
    }
    if (d->chunk && d->window) {
        return colibri_layer_fault(detail, view, layer, COLIBRI_FIELD_VALUE, d->window, d->chunk);
    }
    return COLIBRI_OK;
}

/* The tensors of one layer: each role at most once and of its shape, and every role that has a place is there. */
static int32_t colibri_layer_tensors(const colibri_view *view, colibri_cursor *cursor, colibri_description *d,
                                     colibri_detail *detail)
{
    colibri_shape shape;
    uint32_t last = 0;
    for (uint32_t i = 0; i < COLIBRI_ROLE_ROOM; i++) {
        d->tensor[i] = COLIBRI_NO;
    }
    while (cursor->tensor < view->table[COLIBRI_SECTION_TENSORS].count) {
        const colibri_tensor *t = colibri_tensor_at(view, cursor->tensor);
        if (t->layer != cursor->layer) {
            break;
        }
        if (t->role <= last || !colibri_role_shape(view, d, t->role, &shape)) {
            return colibri_refuse(detail, COLIBRI_ERROR_FORMAT, COLIBRI_SECTION_TENSORS, COLIBRI_FIELD_ROLE,
                                  cursor->tensor, 0, last, t->role);
        }
        int32_t status = colibri_check_tensor(view, cursor->tensor, &shape,
                                              shape.count ? COLIBRI_SECTION_EXPERTS : COLIBRI_SECTION_RESIDENT, detail);
        if (status < 0) {
            return status;
        }
        last = t->role;
        d->tensor[t->role] = cursor->tensor++;
    }
    for (uint32_t role = 0; role < COLIBRI_ROLE_ROOM; role++) {
        if (d->tensor[role] == COLIBRI_NO && colibri_role_shape(view, d, role, &shape)) {
            return colibri_refuse(detail, COLIBRI_ERROR_FORMAT, COLIBRI_SECTION_TENSORS, COLIBRI_FIELD_MISSING, role, 0,
                                  cursor->layer, 0);
        }
    }
    return COLIBRI_OK;
}

/* Expert runs: gate, up, down in this order inside one run, the layer's runs right behind the previous layer's. */
static int32_t colibri_layer_runs(const colibri_view *view, colibri_cursor *cursor, const colibri_description *d,
                                  colibri_detail *detail)
{
    const colibri_table *experts = &view->table[COLIBRI_SECTION_EXPERTS];
    uint64_t start = cursor->expert_end;
    uint64_t at = start;
    int bad = 0;
    uint64_t end = colibri_add(start, colibri_mul(d->expert_run, d->experts, &bad), &bad);
    if (bad || d->expert_run == 0u || d->expert_run % COLIBRI_EXPERT_ALIGN != 0u ||
        end > experts->offset + experts->payload) {
        return colibri_layer_fault(detail, view, cursor->layer, COLIBRI_FIELD_STRIDE, experts->payload, d->expert_run);
    }
    for (uint32_t role = COLIBRI_ROLE_EXPERT_GATE; role <= COLIBRI_ROLE_EXPERT_DOWN; role++) {
        const colibri_tensor *t = colibri_tensor_at(view, d->tensor[role]);
        if (t->offset != at || t->stride != d->expert_run || t->bytes > start + d->expert_run - at) {
            return colibri_refuse(detail, COLIBRI_ERROR_FORMAT, COLIBRI_SECTION_TENSORS, COLIBRI_FIELD_OFFSET,
                                  d->tensor[role], 0, at, t->offset);
        }
        at = t->offset + t->bytes;              /* tiles are multiples of 64 bytes: the next one is aligned */
    }
    if (d->experts > view->table[COLIBRI_SECTION_EXPERT_SUMS].count - cursor->expert) {
        return colibri_layer_fault(detail, view, cursor->layer, COLIBRI_FIELD_COUNT,
                                   view->table[COLIBRI_SECTION_EXPERT_SUMS].count - cursor->expert, d->experts);
    }
    for (uint32_t e = 0; e < d->experts; e++) {
        if (colibri_expert_sum_at(view, cursor->expert + e)->flags != 0u) {
            return colibri_refuse(detail, COLIBRI_ERROR_FORMAT, COLIBRI_SECTION_EXPERT_SUMS, COLIBRI_FIELD_FLAGS,
                                  cursor->expert + e, 0, 0, colibri_expert_sum_at(view, cursor->expert + e)->flags);
        }
    }
    cursor->expert += d->experts;
    cursor->expert_end = end;
    return COLIBRI_OK;
}

int32_t colibri_layer_next(const colibri_view *view, colibri_cursor *cursor, colibri_description *out,
                           colibri_detail *detail)
{
    const colibri_table *table = &view->table[COLIBRI_SECTION_LAYERS];
    const colibri_record *records = colibri_records(view, COLIBRI_SECTION_LAYERS);
    int32_t status = COLIBRI_OK;
    uint64_t keys = 0;
    colibri_fill(out, 0, sizeof *out);
    out->rope = COLIBRI_NO;
    out->index_rope = COLIBRI_NO;
    out->router_scale = 1.0f;
    out->router_score = COLIBRI_ROUTER_SOFTMAX;
    for (uint32_t i = 0; status >= 0 && i < cursor->defaults; i++) {
        keys |= (uint64_t)(records[i].key < 64u) << (records[i].key & 63u);
        status = colibri_read_layer_record(view, i, out, detail);
    }
    for (; status >= 0 && cursor->record < table->count; cursor->record++) {
        if (records[cursor->record].layer != cursor->layer) {
            break;
        }
        keys |= (uint64_t)(records[cursor->record].key < 64u) << (records[cursor->record].key & 63u);
        status = colibri_read_layer_record(view, cursor->record, out, detail);
    }
    if (status >= 0 && out->ffn == COLIBRI_FFN_DENSE) {     /* defaults may speak of the other layers' experts */
        out->experts = 0;
        out->top_k = 0;
        out->shared_ff = 0;
        out->shared_gate = 0;
        out->expert_run = 0;
        out->router_bias = 0;
        out->router_groups = 0;
        out->router_choice = 0;
        out->router_by_token = 0;
        out->router_span = 0;
    }
    if (status >= 0 && !out->has_latent_eps) {
        out->latent_eps = out->eps;
    }
    status = status < 0 ? status : colibri_check_keys(view, cursor->layer, out, keys, detail);
    status = status < 0 ? status : colibri_check_description(view, cursor->layer, out, detail);
    status = status < 0 ? status : colibri_check_extra(view, cursor->layer, out, detail);
    status = status < 0 ? status : colibri_check_index(view, cursor, out, detail);
    status = status < 0 ? status : colibri_layer_tensors(view, cursor, out, detail);
    out->first_expert = cursor->expert;
    if (status >= 0 && out->ffn == COLIBRI_FFN_MOE) {
        status = colibri_layer_runs(view, cursor, out, detail);
    }
    cursor->layer++;
    return status;
}

int32_t colibri_layer_end(const colibri_view *view, const colibri_cursor *cursor, colibri_detail *detail)
{
    const colibri_table *experts = &view->table[COLIBRI_SECTION_EXPERTS];
    if (cursor->record != view->table[COLIBRI_SECTION_LAYERS].count) {
        return colibri_layer_fault(detail, view, cursor->layer, COLIBRI_FIELD_LAYER, view->layers, cursor->layer);
    }
    if (cursor->tensor != view->table[COLIBRI_SECTION_TENSORS].count) {
        return colibri_refuse(detail, COLIBRI_ERROR_FORMAT, COLIBRI_SECTION_TENSORS, COLIBRI_FIELD_LAYER,
                              cursor->tensor, 0, view->layers, colibri_tensor_at(view, cursor->tensor)->layer);
    }
    if (cursor->expert != view->table[COLIBRI_SECTION_EXPERT_SUMS].count ||
        cursor->expert_end != experts->offset + experts->payload) {
        return colibri_refuse(detail, COLIBRI_ERROR_FORMAT, COLIBRI_SECTION_EXPERTS, COLIBRI_FIELD_BYTES, 0,
                              experts->offset, cursor->expert_end - experts->offset, experts->payload);
    }
    return COLIBRI_OK;
}
