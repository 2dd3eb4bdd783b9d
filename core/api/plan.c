/*
 * plan.c: colibri_plan. Limits in, bytes by region out; no pool needed, and the same number on every target.
 */
#include "api/limits.h"

static int32_t colibri_limit_fault(colibri_detail *detail, int32_t status, uint32_t field, uint64_t expected,
                                   uint64_t found)
{
    return colibri_refuse(detail, status, 0, field, 0, 0, expected, found);
}

typedef struct colibri_range {
    uint32_t field, value, low, high;
} colibri_range;

int32_t colibri_check_limits(const colibri_view *view, const colibri_limits *limits, colibri_detail *detail)
{
    const uint32_t known = COLIBRI_LIMIT_RESIDENT_COPY | COLIBRI_LIMIT_STREAM_EXPERTS | COLIBRI_LIMIT_LOOK_AHEAD;
    uint32_t streamed = limits->flags & COLIBRI_LIMIT_STREAM_EXPERTS;
    uint32_t moe = view->table[COLIBRI_SECTION_EXPERT_SUMS].count;
    if (limits->struct_bytes != sizeof(colibri_limits)) {
        return colibri_limit_fault(detail, COLIBRI_ERROR_ARGUMENT, COLIBRI_FIELD_STRUCT_BYTES, sizeof(colibri_limits),
                                   limits->struct_bytes);
    }
    const colibri_range ranges[] = {
        {COLIBRI_FIELD_FLAGS, limits->flags & ~known, 0, 0},
        {COLIBRI_FIELD_FLAGS, streamed ? 0u : limits->flags & COLIBRI_LIMIT_LOOK_AHEAD, 0, 0},
        {COLIBRI_FIELD_CONTEXT, limits->context, 1, 1u << 26},
        {COLIBRI_FIELD_BATCH, limits->batch, 1, 65535},
        {COLIBRI_FIELD_SEQUENCES, limits->sequences, 1, 65535},
        {COLIBRI_FIELD_WORKERS, limits->workers, 1, 1024},
        {COLIBRI_FIELD_LOGIT_ROWS, limits->logit_rows, 1, limits->batch},
        {COLIBRI_FIELD_REWIND, limits->rewind, 0, limits->context},
        {COLIBRI_FIELD_SWAPS, limits->swaps, 0, moe ? 65535u : 0u},
        {COLIBRI_FIELD_KV_KIND, limits->kv_kind, 0, COLIBRI_KV_Q8},
        {COLIBRI_FIELD_POLICY, limits->policy, 0, COLIBRI_POLICY_LFU},
        {COLIBRI_FIELD_TOP_K, limits->top_k, 0, 65535},
        {COLIBRI_FIELD_SKIP, colibri_bits(limits->skip_below), 0, 0x3F800000u},     /* 0 .. 1, no NaN */
        {COLIBRI_FIELD_RESERVED, limits->reserved[0] | limits->reserved[1] | limits->reserved[2], 0, 0},
        {COLIBRI_FIELD_KERNEL, limits->kernel, 0, COLIBRI_KERNEL_RELAXED},
    };
    for (uint32_t i = 0; i < sizeof ranges / sizeof ranges[0]; i++) {
        if (ranges[i].value < ranges[i].low || ranges[i].value > ranges[i].high) {
            uint32_t bound = ranges[i].value < ranges[i].low ? ranges[i].low : ranges[i].high;
            return colibri_limit_fault(detail, COLIBRI_ERROR_ARGUMENT, ranges[i].field, bound, ranges[i].value);
        }
    }
    if (streamed && moe ? limits->slots < 1u || limits->slots > moe : limits->slots != 0u) {
        return colibri_limit_fault(detail, COLIBRI_ERROR_SLOTS, COLIBRI_FIELD_SLOTS, streamed && moe ? 1u : 0u,
                                   limits->slots);
    }
    return COLIBRI_OK;
}

int32_t colibri_layout_of(const colibri_view *view, const colibri_limits *limits, colibri_layout *layout,
                          colibri_arena *arena, colibri_detail *detail)
{
    uint64_t text = 0;
    int32_t status = colibri_check_limits(view, limits, detail);
    status = status < 0 ? status : colibri_text_plan(view, limits, &text, detail);
    return status < 0 ? status : colibri_layout_make(view, limits, text, layout, arena, detail);
}

int32_t colibri_plan(const colibri_model *model, const colibri_limits *limits, colibri_plan_result *plan,
                     colibri_detail *detail)
{
    colibri_layout layout;
    colibri_arena arena;
    if (!model || !limits || !plan || plan->struct_bytes != sizeof *plan) {
        return colibri_limit_fault(detail, COLIBRI_ERROR_ARGUMENT, COLIBRI_FIELD_STRUCT_BYTES, sizeof *plan,
                                   plan ? plan->struct_bytes : 0u);
    }
    int32_t status = colibri_layout_of(colibri_view_of(model), limits, &layout, &arena, detail);
    if (status < 0) {
        return status;
    }
    colibri_fill(plan, 0, sizeof *plan);
    plan->struct_bytes = sizeof *plan;
    plan->align = COLIBRI_POOL_ALIGN;
    plan->pool_bytes = layout.pool_bytes;
    for (uint32_t i = 0; i < COLIBRI_REGION_ROOM; i++) {
        plan->region_offset[i] = arena.offset[i];
        plan->region_bytes[i] = arena.bytes[i];
    }
    plan->largest_unit_macs = layout.largest_unit_macs;
    plan->kv_bytes_per_token = layout.kv_bytes_per_token;
    plan->resident_bytes = layout.resident_bytes;
    plan->expert_bytes = layout.expert_bytes;
    plan->slots = layout.slot_count;
    plan->slots_floor = layout.slot_count ? 1u : 0u;
    plan->ops = layout.ops;
    return COLIBRI_OK;
}

static void colibri_info_layer(const colibri_view *view, const colibri_description *d, colibri_info *info)
{
    for (uint32_t role = 0; role < COLIBRI_ROLE_ROOM; role++) {
        if (d->tensor[role] == COLIBRI_NO) {
            continue;
        }
        const colibri_tensor *t = colibri_tensor_at(view, d->tensor[role]);
        uint64_t one = (uint64_t)t->rows * t->columns;
        int expert = role >= COLIBRI_ROLE_EXPERT_GATE && role <= COLIBRI_ROLE_EXPERT_DOWN;
        info->parameters += one * t->count;
        info->active_parameters += expert ? one * d->top_k : one;
    }
    if (d->ffn == COLIBRI_FFN_MOE) {
        info->experts = d->experts > info->experts ? d->experts : info->experts;
        info->top_k = d->top_k > info->top_k ? d->top_k : info->top_k;
        info->expert_count += d->experts;
        info->expert_bytes += d->expert_run * d->experts;
        info->expert_run_bytes = d->expert_run > info->expert_run_bytes ? d->expert_run : info->expert_run_bytes;
    }
}

int32_t colibri_model_info(const colibri_model *model, colibri_info *info)
{
    const colibri_view *view = colibri_view_of(model);
    colibri_cursor cursor;
    colibri_description d;
    if (!model || !info || info->struct_bytes != sizeof *info) {
        return COLIBRI_ERROR_ARGUMENT;
    }
    const colibri_blob_header *h = (const colibri_blob_header *)(const void *)view->blob;
    colibri_fill(info, 0, sizeof *info);
    info->struct_bytes = sizeof *info;
    info->format_version = h->version;
    info->vocab = view->vocab;
    info->hidden = view->hidden;
    info->layers = view->layers;
    info->trained_context = view->trained_context;
    info->file_bytes = view->file_bytes;
    info->tables_bytes = view->tables_bytes;
    info->resident_bytes = view->table[COLIBRI_SECTION_RESIDENT].payload;
    info->tokenizer_offset = view->table[COLIBRI_SECTION_TOKENIZER].offset;
    info->tokenizer_bytes = view->table[COLIBRI_SECTION_TOKENIZER].payload;
    colibri_copy(info->identity, h->identity, sizeof info->identity);
    for (uint32_t i = 0; i < view->model_tensors; i++) {
        const colibri_tensor *t = colibri_tensor_at(view, i);
        uint64_t one = (uint64_t)t->rows * t->columns;
        int looked_up = t->role == COLIBRI_ROLE_EMBED && t->second_role != COLIBRI_ROLE_HEAD;
        info->parameters += one;
        info->active_parameters += looked_up ? t->columns : one;
    }
    (void)colibri_layer_begin(view, &cursor, 0);
    for (uint32_t l = 0; l < view->layers; l++) {
        (void)colibri_layer_next(view, &cursor, &d, 0);
        colibri_info_layer(view, &d, info);
    }
    return COLIBRI_OK;
}
