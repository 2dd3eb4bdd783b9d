/*
 * start.c: colibri_start. A probe refuses a build or host that does not compute as the bits require; then the pool is
 * carved by the plan's own function, the tape is built, and the resident weights are brought in where they are not
 * addressable. Nothing is written before everything has been checked.
 */
#include "api/limits.h"
#include "base/fpenv.h"

/* Contraction, association, rounding direction, subnormals, exact division and root. Volatile: computed at run time.
 * Returns 0, or the number of the probe that failed. */
static uint32_t colibri_probe(void)
{
    volatile float near_one = 1.000244140625f;              /* 1 + 2^-12: its square needs one bit more */
    volatile float square = 1.00048828125f;                 /* the rounded square, 1 + 2^-11 */
    volatile float big = 1.0e8f, one = 1.0f, three = 3.0f, two = 2.0f;
    volatile float half_ulp = 5.9604644775390625e-8f;       /* 2^-24 */
    volatile float tiny = 1.0e-39f, half = 0.5f;
    float a = near_one;
    float fused = a * a - square;
    if (fused != 0.0f) {
        return 1;
    }
    float first = one + big;
    float associated = first - big;
    if (associated != 0.0f) {
        return 2;
    }
    if (one + half_ulp != 1.0f || one + half_ulp * three <= 1.0f || -one - half_ulp != -1.0f) {
        return 3;
    }
    if (colibri_bits(tiny * half) == 0u) {
        return 4;
    }
    if (colibri_bits(one / three) != 0x3EAAAAABu || colibri_bits(colibri_sqrt(two)) != 0x3FB504F3u) {
        return 5;
    }
    return 0;
}

static int32_t colibri_start_fault(colibri_detail *detail, int32_t status, uint32_t field, uint64_t expected,
                                   uint64_t found)
{
    return colibri_refuse(detail, status, 0, field, 0, 0, expected, found);
}

/* Does this build compute as the bits require, and is the kernel level here and right on this processor? */
static int32_t colibri_check_build(uint32_t kernel, colibri_detail *detail)
{
    uint32_t level = colibri_kernel_resolve(kernel);
    uint64_t host = colibri_fpenv_enter();
    uint32_t probe = colibri_probe();
    uint32_t wrong = level && !probe ? colibri_kernel_probe(level) : 0u;
    colibri_fpenv_leave(host);
    if (probe) {
        return colibri_start_fault(detail, COLIBRI_ERROR_FLOAT, COLIBRI_FIELD_PROBE, 0, probe);
    }
    if (!level) {
        return colibri_start_fault(detail, COLIBRI_ERROR_UNSUPPORTED, COLIBRI_FIELD_KERNEL, colibri_kernels(), kernel);
    }
    return wrong ? colibri_start_fault(detail, COLIBRI_ERROR_FLOAT, COLIBRI_FIELD_KERNEL, level, wrong) : COLIBRI_OK;
}

/* Are the bytes that will be used in place addressable, and are the hooks there that bring the others? */
static int32_t colibri_check_reach(const colibri_view *view, const colibri_limits *limits, const colibri_hooks *hooks,
                                   colibri_detail *detail)
{
    static const uint8_t section[2] = {COLIBRI_SECTION_RESIDENT, COLIBRI_SECTION_EXPERTS};
    static const uint32_t flag[2] = {COLIBRI_LIMIT_RESIDENT_COPY, COLIBRI_LIMIT_STREAM_EXPERTS};
    int fetching = hooks && hooks->fetch && hooks->fetched;
    for (int i = 0; i < 2; i++) {
        const colibri_table *table = &view->table[section[i]];
        if (!table->present) {
            continue;
        }
        if ((limits->flags & flag[i]) && !fetching) {
            return colibri_start_fault(detail, COLIBRI_ERROR_ARGUMENT, COLIBRI_FIELD_HOOK, 1, 0);
        }
        if (!(limits->flags & flag[i]) && table->offset + table->payload > view->addressable) {
            return colibri_refuse(detail, COLIBRI_ERROR_ADDRESS, section[i], COLIBRI_FIELD_FILE_BYTES, 0, table->offset,
                                  table->offset + table->payload, view->addressable);
        }
    }
    return COLIBRI_OK;
}

static int32_t colibri_check_pool(const void *pool, uint64_t pool_bytes, const colibri_layout *layout,
                                  colibri_detail *detail)
{
    if ((uintptr_t)pool % COLIBRI_POOL_ALIGN != 0u) {
        return colibri_start_fault(detail, COLIBRI_ERROR_ALIGN, COLIBRI_FIELD_ALIGN, 0,
                                   (uintptr_t)pool % COLIBRI_POOL_ALIGN);
    }
    if (pool_bytes < layout->pool_bytes) {
        return colibri_start_fault(detail, COLIBRI_ERROR_POOL_SMALL, COLIBRI_FIELD_POOL_BYTES, layout->pool_bytes,
                                   pool_bytes);
    }
    if (layout->pool_bytes > UINTPTR_MAX - (uintptr_t)pool) {
        return colibri_start_fault(detail, COLIBRI_ERROR_ADDRESS, COLIBRI_FIELD_POOL_BYTES,
                                   UINTPTR_MAX - (uintptr_t)pool, layout->pool_bytes);
    }
    return COLIBRI_OK;
}

static int32_t colibri_carve(const colibri_view *view, const colibri_limits *limits, const colibri_hooks *hooks,
                             const colibri_layout *layout, colibri_session *s, colibri_detail *detail)
{
    colibri_fill(s, 0, sizeof *s);
    s->magic = COLIBRI_SESSION_MAGIC;
    s->state = COLIBRI_STATE_STARTING;
    s->view = *view;
    s->limits = *limits;
    s->layout = *layout;
    s->kernel = colibri_kernel_resolve(limits->kernel);
    if (hooks) {
        s->hooks = *hooks;
    }
    int32_t status = colibri_layers_fill(s, detail);
    if (status < 0) {
        return status;
    }
    colibri_tape_build(s);
    colibri_fill(colibri_pool_at(s, layout->sequences), 0, sizeof(colibri_sequence) * limits->sequences);
    colibri_fill(colibri_pool_at(s, layout->faults), 0, 64u * (uint64_t)limits->workers);
    if (layout->slot_count) {
        colibri_slots_begin(s);
    }
    colibri_swaps_begin(s);
    colibri_text_begin(s);
    return COLIBRI_OK;
}

/* Ask for the tensor the start is at, or poll the one asked for; its CRC32C must be right. */
static int32_t colibri_bring_tensor(colibri_session *s, const colibri_tensor *t, colibri_detail *detail)
{
    uint64_t at = s->layout.resident + (t->offset - s->view.table[COLIBRI_SECTION_RESIDENT].offset);
    uint32_t index = s->starting_tensor;
    if (!s->starting_asked) {
        colibri_fetch_request request;
        colibri_fill(&request, 0, sizeof request);
        request.offset = t->offset;
        request.bytes = t->bytes;
        request.layer = COLIBRI_NO;
        request.expert = COLIBRI_NO;
        request.ticket = 0x80000000u | index;
        request.destination = colibri_pool_at(s, at);
        int32_t status = s->hooks.fetch(s->hooks.user, &request);
        if (status < 0) {
            return colibri_refuse(detail, COLIBRI_ERROR_FETCH, COLIBRI_SECTION_TENSORS, COLIBRI_FIELD_BYTES, index,
                                  t->offset, t->bytes, 0);
        }
        if (status == COLIBRI_WAIT) {
            return COLIBRI_WAIT;
        }
        s->starting_asked = 1;
        s->stat_fetched += t->bytes;
    }
    int32_t status = s->hooks.fetched(s->hooks.user, 0x80000000u | index);
    if (status == COLIBRI_WAIT) {
        return COLIBRI_WAIT;
    }
    s->starting_asked = 0;
    uint32_t crc = status < 0 ? 0u : colibri_crc(s->kernel, 0, colibri_pool_at(s, at), t->bytes);
    if (status < 0 || crc != t->crc) {
        return colibri_refuse(detail, status < 0 ? COLIBRI_ERROR_FETCH : COLIBRI_ERROR_CORRUPT, COLIBRI_SECTION_TENSORS,
                              COLIBRI_FIELD_CRC, index, t->offset, t->crc, crc);
    }
    return COLIBRI_DONE;
}

static int32_t colibri_bring_resident(colibri_session *s, colibri_detail *detail)
{
    if (s->limits.flags & COLIBRI_LIMIT_RESIDENT_COPY) {
        while (s->starting_tensor < s->view.table[COLIBRI_SECTION_TENSORS].count) {
            const colibri_tensor *t = colibri_tensor_at(&s->view, s->starting_tensor);
            int expert = t->role >= COLIBRI_ROLE_EXPERT_GATE && t->role <= COLIBRI_ROLE_EXPERT_DOWN;
            int draft = t->layer != COLIBRI_NO && t->layer >= s->view.layers;
            int32_t status = expert || draft ? COLIBRI_DONE : colibri_bring_tensor(s, t, detail);
            if (status != COLIBRI_DONE) {
                return status;
            }
            s->starting_tensor++;
        }
    }
    s->state = COLIBRI_STATE_IDLE;
    return COLIBRI_OK;
}

int32_t colibri_start(const colibri_model *model, const colibri_limits *limits, const colibri_hooks *hooks,
                      void *pool, uint64_t pool_bytes, colibri_session **session, colibri_detail *detail)
{
    colibri_layout layout;
    colibri_arena arena;
    if (!model || !limits || !pool || !session || (hooks && hooks->struct_bytes != sizeof *hooks)) {
        return colibri_start_fault(detail, COLIBRI_ERROR_ARGUMENT, COLIBRI_FIELD_STRUCT_BYTES, sizeof *hooks,
                                   hooks ? hooks->struct_bytes : 0u);
    }
    if (hooks && (hooks->flags || hooks->reserved[0] || hooks->reserved[1] || hooks->reserved[2] ||
                  hooks->reserved[3])) {
        return colibri_start_fault(detail, COLIBRI_ERROR_ARGUMENT, COLIBRI_FIELD_RESERVED, 0, 1);
    }
    const colibri_view *view = colibri_view_of(model);
    colibri_session *s = pool;
    if (*session == s && pool_bytes >= sizeof *s && s->view.blob == view->blob && s->magic == COLIBRI_SESSION_MAGIC &&
        s->state == COLIBRI_STATE_STARTING) {
        return colibri_bring_resident(s, detail);
    }
    int32_t status = colibri_layout_of(view, limits, &layout, &arena, detail);
    status = status < 0 ? status : colibri_check_build(limits->kernel, detail);
    status = status < 0 ? status : colibri_check_reach(view, limits, hooks, detail);
    status = status < 0 ? status : colibri_check_pool(pool, pool_bytes, &layout, detail);
    status = status < 0 ? status : colibri_carve(view, limits, hooks, &layout, s, detail);
    if (status < 0) {
        return status;
    }
    *session = s;
    return colibri_bring_resident(s, detail);
}
