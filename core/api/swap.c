/*
 * swap.c: an expert of a running session replaced by another of its shape. A replacement is copied into a slot of its
 * own and checked there, a piece a call, while rows run with the old one; then a number in a table changes. That
 * happens only while the tape is at its start, so every feed has one model. Its identity is computed when asked for.
 */
#include "api/limits.h"

static colibri_staging *colibri_staging_of(const colibri_session *s)
{
    return (colibri_staging *)(void *)colibri_pool_at(s, s->layout.staging);
}

static colibri_override *colibri_override_at(const colibri_session *s, uint32_t index)
{
    return (colibri_override *)(void *)colibri_pool_at(s, s->layout.overrides) + index;
}

static uint32_t *colibri_override_of(const colibri_session *s, uint32_t layer, uint32_t expert)
{
    return colibri_pool_words(s, s->layout.override_of) + colibri_layer_at(s, layer)->d.first_expert + expert;
}

void colibri_swaps_begin(colibri_session *s)
{
    if (s->layout.override_count) {
        colibri_fill(colibri_staging_of(s), 0, sizeof(colibri_staging));
        colibri_fill(colibri_override_at(s, 0), 0, s->layout.override_count * sizeof(colibri_override));
        colibri_fill(colibri_pool_at(s, s->layout.override_of), 0, s->layout.expert_count * 4u);
        colibri_staging_of(s)->override = COLIBRI_NO;
    }
}

void colibri_swaps_take(colibri_session *s)
{
    if (!s->layout.override_count || !colibri_staging_of(s)->changes) {
        return;
    }
    for (uint32_t i = 0; i < s->layout.override_count; i++) {
        colibri_override *o = colibri_override_at(s, i);
        uint32_t *held = colibri_override_of(s, o->layer, o->expert);
        if (o->state == COLIBRI_OVERRIDE_LEAVING) {
            o->state = COLIBRI_OVERRIDE_FREE;
            *held = *held == i + 1u ? 0u : *held;   /* its successor may be there already */
        } else if (o->state == COLIBRI_OVERRIDE_STAGED) {
            if (*held) {
                colibri_override_at(s, *held - 1u)->state = COLIBRI_OVERRIDE_FREE;
            }
            o->state = COLIBRI_OVERRIDE_ACTIVE;
            *held = i + 1u;
        }
    }
    colibri_staging_of(s)->changes = 0;
}

/* Layer `index` of a file, walked to. 0: there is none, or none with that expert. */
static int colibri_find_expert(const colibri_view *view, uint32_t index, uint32_t expert, colibri_description *d)
{
    colibri_cursor cursor;
    if (index >= view->layers || colibri_layer_begin(view, &cursor, 0) < 0) {
        return 0;
    }
    for (uint32_t l = 0; l <= index; l++) {
        if (colibri_layer_next(view, &cursor, d, 0) < 0) {
            return 0;
        }
    }
    return d->ffn == COLIBRI_FFN_MOE && expert < d->experts;
}

static void colibri_describe_expert(const colibri_view *view, const colibri_description *d, uint32_t layer,
                                    uint32_t expert, colibri_expert *out)
{
    const colibri_expert_sum *sum = colibri_expert_sum_at(view, d->first_expert + expert);
    const colibri_tensor *gate = colibri_tensor_at(view, d->tensor[COLIBRI_ROLE_EXPERT_GATE]);
    colibri_fill(out, 0, sizeof *out);
    out->struct_bytes = sizeof *out;
    out->layer = layer;
    out->expert = expert;
    out->crc = sum->crc;
    colibri_copy(out->digest, sum->digest, sizeof out->digest);
    out->offset = gate->offset + expert * d->expert_run;
    out->bytes = d->expert_run;
    for (uint32_t i = 0; i < 3u; i++) {
        out->kind[i] = colibri_tensor_at(view, d->tensor[COLIBRI_ROLE_EXPERT_GATE + i])->kind;
    }
    out->rows = gate->rows;
    out->columns = gate->columns;
}

int32_t colibri_expert_of(const colibri_model *model, uint32_t layer, uint32_t expert, colibri_expert *out)
{
    colibri_description d;
    if (!model || !out || out->struct_bytes != sizeof *out
        || !colibri_find_expert(colibri_view_of(model), layer, expert, &d)) {
        return COLIBRI_ERROR_ARGUMENT;
    }
    colibri_describe_expert(colibri_view_of(model), &d, layer, expert, out);
    return COLIBRI_OK;
}

/* ---- staging ---- */

static int32_t colibri_swap_refuse(const colibri_expert *e, colibri_detail *detail, int32_t status, uint32_t field,
                                   uint64_t expected, uint64_t found)
{
    uint32_t section = status == COLIBRI_ERROR_ARGUMENT || status == COLIBRI_ERROR_LIMIT ? 0u : COLIBRI_SECTION_EXPERTS;
    return colibri_refuse(detail, status, section, field, e ? e->expert : 0u, e ? e->offset : 0u, expected, found);
}

static int32_t colibri_swap_check(const colibri_session *s, const colibri_expert *e, colibri_detail *detail)
{
    colibri_expert own;
    if (!s || s->magic != COLIBRI_SESSION_MAGIC || !e || e->struct_bytes != sizeof *e || e->reserved) {
        return colibri_swap_refuse(e, detail, COLIBRI_ERROR_ARGUMENT, COLIBRI_FIELD_STRUCT_BYTES, sizeof *e,
                                   e ? e->struct_bytes : 0u);
    }
    if (s->state == COLIBRI_STATE_STOPPED || s->state == COLIBRI_STATE_STARTING) {
        return s->state == COLIBRI_STATE_STOPPED ? COLIBRI_ERROR_STOPPED : COLIBRI_ERROR_BUSY;
    }
    if (!s->layout.override_count) {
        return colibri_swap_refuse(e, detail, COLIBRI_ERROR_LIMIT, COLIBRI_FIELD_SWAPS, 1, 0);
    }
    if (e->layer >= s->view.layers || colibri_layer_at(s, e->layer)->d.ffn != COLIBRI_FFN_MOE) {
        return colibri_swap_refuse(e, detail, COLIBRI_ERROR_ARGUMENT, COLIBRI_FIELD_LAYER, s->view.layers, e->layer);
    }
    const colibri_description *d = &colibri_layer_at(s, e->layer)->d;
    if (e->expert >= d->experts) {
        return colibri_swap_refuse(e, detail, COLIBRI_ERROR_ARGUMENT, COLIBRI_FIELD_COUNT, d->experts, e->expert);
    }
    if (!e->run) {
        return COLIBRI_OK;
    }
    colibri_describe_expert(&s->view, d, e->layer, e->expert, &own);
    const uint64_t pairs[6][3] = {
        {COLIBRI_FIELD_KIND, own.kind[0], e->kind[0]}, {COLIBRI_FIELD_KIND, own.kind[1], e->kind[1]},
        {COLIBRI_FIELD_KIND, own.kind[2], e->kind[2]}, {COLIBRI_FIELD_ROWS, own.rows, e->rows},
        {COLIBRI_FIELD_COLUMNS, own.columns, e->columns}, {COLIBRI_FIELD_BYTES, own.bytes, e->bytes},
    };
    for (uint32_t i = 0; i < 6u; i++) {
        if (pairs[i][1] != pairs[i][2]) {
            return colibri_swap_refuse(e, detail, COLIBRI_ERROR_FORMAT, (uint32_t)pairs[i][0], pairs[i][1],
                                       pairs[i][2]);
        }
    }
    return COLIBRI_OK;
}

static int colibri_same_expert(const colibri_override *o, const colibri_expert *e)
{
    return o->layer == e->layer && o->expert == e->expert;
}

static int colibri_same_sums(const colibri_override *o, uint32_t crc, const uint8_t *digest)
{
    uint32_t differ = o->crc ^ crc;
    for (uint32_t i = 0; i < sizeof o->digest; i++) {
        differ |= (uint32_t)(o->digest[i] ^ digest[i]);
    }
    return differ == 0u;
}

static void colibri_staging_drop(colibri_session *s)
{
    colibri_staging *staging = colibri_staging_of(s);
    if (staging->override != COLIBRI_NO) {
        colibri_override_at(s, staging->override)->state = COLIBRI_OVERRIDE_FREE;
        staging->override = COLIBRI_NO;
    }
}

/* Is this the replacement that is being brought in? Otherwise it becomes that. */
static int32_t colibri_staging_enter(colibri_session *s, const colibri_expert *e, colibri_detail *detail)
{
    colibri_staging *staging = colibri_staging_of(s);
    if (staging->override != COLIBRI_NO) {
        const colibri_override *o = colibri_override_at(s, staging->override);
        if (colibri_same_expert(o, e) && staging->run == e->run && colibri_same_sums(o, e->crc, e->digest)) {
            return COLIBRI_OK;
        }
        colibri_staging_drop(s);
    }
    uint32_t i = 0;
    while (i < s->layout.override_count && colibri_override_at(s, i)->state != COLIBRI_OVERRIDE_FREE) {
        i++;
    }
    if (i == s->layout.override_count) {
        return colibri_swap_refuse(e, detail, COLIBRI_ERROR_LIMIT, COLIBRI_FIELD_SWAPS, i + 1u, i);
    }
    colibri_override *o = colibri_override_at(s, i);
    o->layer = e->layer;
    o->expert = e->expert;
    o->state = COLIBRI_OVERRIDE_STAGING;
    o->crc = e->crc;
    colibri_copy(o->digest, e->digest, sizeof o->digest);
    staging->override = i;
    staging->run = e->run;
    staging->copied = 0;
    staging->tile = 0;
    staging->crc = 0;
    colibri_sha256_start(&staging->sha);
    return COLIBRI_OK;
}

/* The sums are taken of the copy: what was checked is what will be used. */
static int32_t colibri_staging_copy(colibri_session *s, const colibri_expert *e, uint64_t *budget, uint8_t *to,
                                    colibri_detail *detail)
{
    colibri_staging *staging = colibri_staging_of(s);
    uint64_t rest = e->bytes - staging->copied;
    uint64_t count = rest < *budget ? rest : *budget;
    if (count) {
        colibri_copy(to + staging->copied, (const uint8_t *)e->run + staging->copied, count);
        staging->crc = colibri_crc(s->kernel, staging->crc, to + staging->copied, count);
        colibri_sha256_add(&staging->sha, to + staging->copied, count);
        staging->copied += count;
        *budget -= count;
        if (staging->copied == e->bytes) {
            uint8_t digest[32];
            colibri_sha256_end(&staging->sha, digest);
            uint32_t field = staging->crc != e->crc ? COLIBRI_FIELD_CRC : COLIBRI_FIELD_DIGEST;
            if (!colibri_same_sums(colibri_override_at(s, staging->override), staging->crc, digest)) {
                return colibri_swap_refuse(e, detail, COLIBRI_ERROR_CORRUPT, field, e->crc, staging->crc);
            }
        }
    }
    return staging->copied == e->bytes ? COLIBRI_DONE : COLIBRI_AGAIN;
}

static int32_t colibri_staging_content(const colibri_session *s, const colibri_expert *e, uint64_t *budget,
                                       const uint8_t *run, colibri_detail *detail)
{
    colibri_staging *staging = colibri_staging_of(s);
    const colibri_layer *layer = colibri_layer_at(s, e->layer);
    uint64_t before = 0;
    for (uint32_t i = 0; i < 3u; i++) {
        const colibri_weight *w = i == 0u ? &layer->expert_gate : i == 1u ? &layer->expert_up : &layer->expert_down;
        const colibri_tensor *t = colibri_tensor_at(&s->view, layer->d.tensor[COLIBRI_ROLE_EXPERT_GATE + i]);
        uint64_t tiles = colibri_tiles(w->rows);
        for (; staging->tile < before + tiles; staging->tile++) {
            if (!*budget) {
                return COLIBRI_AGAIN;
            }
            uint32_t tile = (uint32_t)(staging->tile - before);
            uint32_t lanes = w->rows - tile * COLIBRI_TILE_ROWS;
            uint32_t fault = colibri_tile_fault(t, run + w->offset + tile * w->tile_bytes,
                                                lanes < COLIBRI_TILE_ROWS ? lanes : COLIBRI_TILE_ROWS);
            if (fault) {
                return colibri_swap_refuse(e, detail, COLIBRI_ERROR_CONTENT, fault, 0, staging->tile);
            }
            *budget -= w->tile_bytes < *budget ? w->tile_bytes : *budget;
        }
        before += tiles;
    }
    return COLIBRI_DONE;
}

/* ---- exchanging ---- */

/* What else waits for this expert's place is let go; what holds it leaves, where nothing follows. */
static void colibri_override_leave(colibri_session *s, const colibri_expert *e)
{
    colibri_staging *staging = colibri_staging_of(s);
    for (uint32_t i = 0; i < s->layout.override_count; i++) {
        colibri_override *o = colibri_override_at(s, i);
        if (i == staging->override || !colibri_same_expert(o, e)) {
            continue;
        }
        if (o->state == COLIBRI_OVERRIDE_STAGED) {
            o->state = COLIBRI_OVERRIDE_FREE;
        } else if (o->state == COLIBRI_OVERRIDE_ACTIVE && !e->run) {
            o->state = COLIBRI_OVERRIDE_LEAVING;
            staging->changes++;
        }
    }
}

static int32_t colibri_swap_stage(colibri_session *s, const colibri_expert *e, uint64_t budget, colibri_detail *detail)
{
    colibri_staging *staging = colibri_staging_of(s);
    int32_t status = colibri_staging_enter(s, e, detail);
    if (status < 0) {
        return status;
    }
    uint64_t given = budget;
    uint8_t *run = colibri_pool_at(s, s->layout.override_data + staging->override * s->layout.slot_bytes);
    status = colibri_staging_copy(s, e, &budget, run, detail);
    status = status == COLIBRI_DONE ? colibri_staging_content(s, e, &budget, run, detail) : status;
    if (status < 0) {
        colibri_staging_drop(s);
        return status;
    }
    if (status == COLIBRI_AGAIN || budget != given) {
        return COLIBRI_AGAIN;                   /* the exchange is a call of its own, and a short one */
    }
    colibri_override_leave(s, e);
    colibri_override_at(s, staging->override)->state = COLIBRI_OVERRIDE_STAGED;
    staging->override = COLIBRI_NO;
    staging->changes++;
    return COLIBRI_DONE;
}

int32_t colibri_swap_expert(colibri_session *s, const colibri_expert *replacement, uint64_t budget_bytes,
                            colibri_detail *detail)
{
    int32_t status = colibri_swap_check(s, replacement, detail);
    if (status < 0) {
        return status;
    }
    if (replacement->run) {
        status = colibri_swap_stage(s, replacement, budget_bytes, detail);
    } else {
        colibri_staging *staging = colibri_staging_of(s);
        if (staging->override != COLIBRI_NO && colibri_same_expert(colibri_override_at(s, staging->override),
                                                                   replacement)) {
            colibri_staging_drop(s);
        }
        colibri_override_leave(s, replacement);
        status = COLIBRI_DONE;
    }
    if (status == COLIBRI_DONE && s->state == COLIBRI_STATE_IDLE) {
        colibri_swaps_take(s);
    }
    return status;
}

/* ---- what runs ---- */

/* The override of expert `expert` of a layer, where it differs from the file's. */
static const colibri_override *colibri_differs(const colibri_session *s, uint32_t layer, uint32_t expert)
{
    uint32_t held = *colibri_override_of(s, layer, expert);
    if (!held) {
        return 0;
    }
    const colibri_override *o = colibri_override_at(s, held - 1u);
    uint32_t index = colibri_layer_at(s, layer)->d.first_expert + expert;
    const colibri_expert_sum *own = colibri_expert_sum_at(&s->view, index);
    return colibri_same_sums(o, own->crc, own->digest) ? 0 : o;
}

int32_t colibri_identity(const colibri_session *s, uint8_t identity[32])
{
    colibri_sha256 sha;
    uint32_t changes = 0;
    if (!s || s->magic != COLIBRI_SESSION_MAGIC || !identity) {
        return COLIBRI_ERROR_ARGUMENT;
    }
    const colibri_blob_header *h = (const colibri_blob_header *)(const void *)s->view.blob;
    colibri_sha256_start(&sha);
    colibri_sha256_add(&sha, h->identity, sizeof h->identity);
    for (uint32_t l = 0; s->layout.override_count && l < s->view.layers; l++) {
        const colibri_description *d = &colibri_layer_at(s, l)->d;
        for (uint32_t e = 0; d->ffn == COLIBRI_FFN_MOE && e < d->experts; e++) {
            const colibri_override *o = colibri_differs(s, l, e);
            if (o) {
                const uint32_t place[2] = {l, e};
                colibri_sha256_add(&sha, place, sizeof place);
                colibri_sha256_add(&sha, o->digest, sizeof o->digest);
                changes++;
            }
        }
    }
    colibri_sha256_end(&sha, identity);
    if (!changes) {
        colibri_copy(identity, h->identity, sizeof h->identity);
    }
    return COLIBRI_OK;
}

uint32_t colibri_swapped(const colibri_session *s, colibri_expert *out, uint32_t capacity)
{
    uint32_t count = 0;
    if (!s || s->magic != COLIBRI_SESSION_MAGIC || (!out && capacity)) {
        return 0;
    }
    for (uint32_t l = 0; s->layout.override_count && l < s->view.layers; l++) {
        const colibri_description *d = &colibri_layer_at(s, l)->d;
        for (uint32_t e = 0; d->ffn == COLIBRI_FFN_MOE && e < d->experts; e++) {
            uint32_t held = *colibri_override_of(s, l, e);
            if (held && count < capacity) {
                const colibri_override *o = colibri_override_at(s, held - 1u);
                colibri_describe_expert(&s->view, d, l, e, &out[count]);
                out[count].crc = o->crc;
                out[count].offset = 0;
                colibri_copy(out[count].digest, o->digest, sizeof o->digest);
            }
            count += held != 0u;
        }
    }
    return count;
}
