/*
 * step.c: feed, advance, work. The tape's position (op, pass, unit) is session state; advance runs a bounded number of
 * units and returns. Only between ops, serially, does anything call the host.
 */
#include "api/limits.h"
#include "base/fpenv.h"

static int32_t colibri_ready(const colibri_session *s)
{
    if (!s || s->magic != COLIBRI_SESSION_MAGIC) {
        return COLIBRI_ERROR_ARGUMENT;
    }
    return s->state == COLIBRI_STATE_STOPPED ? COLIBRI_ERROR_STOPPED : COLIBRI_OK;
}

/* Row `index` of a feed: its place is its sequence's next one. Rows of the same sequence take consecutive positions in
 * the order given. Written at once: row states mean nothing until the feed is taken. */
static int32_t colibri_place_feed(colibri_session *s, const colibri_row *in, uint32_t index, uint32_t wanting)
{
    if (in->sequence >= s->limits.sequences) {
        return COLIBRI_ERROR_LIMIT;
    }
    if (in->token >= s->view.vocab) {
        return COLIBRI_ERROR_TOKEN;
    }
    colibri_sequence *sequence = colibri_sequence_at(s, in->sequence);
    uint32_t next = sequence->length + sequence->queued;
    if ((in->position != COLIBRI_NEXT_POSITION && in->position != next) || in->want_logits > 1u) {
        return COLIBRI_ERROR_ARGUMENT;
    }
    if (next >= s->limits.context) {
        return COLIBRI_ERROR_CONTEXT_FULL;
    }
    if (in->want_logits && wanting == s->limits.logit_rows) {
        return COLIBRI_ERROR_LIMIT;
    }
    colibri_row_state *row = colibri_row_at(s, index);
    row->sequence = in->sequence;
    row->position = next;
    row->token = in->token;
    row->logit = in->want_logits ? wanting : COLIBRI_NO;
    if (in->want_logits) {
        colibri_pool_words(s, s->layout.logit_row)[wanting] = index;
    }
    sequence->queued++;
    return COLIBRI_OK;
}

int32_t colibri_feed(colibri_session *s, const colibri_row *rows, uint32_t count)
{
    uint32_t wanting = 0;
    uint32_t placed = 0;
    int32_t status = colibri_ready(s);
    if (status < 0) {
        return status;
    }
    if (!rows || count == 0u) {
        return COLIBRI_ERROR_ARGUMENT;
    }
    if (s->state != COLIBRI_STATE_IDLE) {
        return COLIBRI_ERROR_BUSY;
    }
    if (count > s->limits.batch) {
        return COLIBRI_ERROR_LIMIT;
    }
    for (; status >= 0 && placed < count; placed += status >= 0) {
        status = colibri_place_feed(s, &rows[placed], placed, wanting);
        wanting += status >= 0 && rows[placed].want_logits;
    }
    for (uint32_t i = 0; i < placed; i++) {
        colibri_sequence_at(s, rows[i].sequence)->queued = 0;
    }
    if (status < 0) {
        return status;
    }
    colibri_swaps_take(s);
    s->logit_count = wanting;
    s->row_count = count;
    s->op = 0;
    s->prepared = 0;
    s->pass_end = COLIBRI_NO;
    s->transfer.kind = COLIBRI_TRANSFER_NONE;
    s->state = COLIBRI_STATE_RUNNING;
    return COLIBRI_OK;
}

static const colibri_op *colibri_op_now(const colibri_session *s)
{
    return (const colibri_op *)(const void *)colibri_pool_at(s, s->layout.tape) + s->op;
}

void colibri_work(colibri_session *s, uint32_t worker, uint32_t first, uint32_t count)
{
    uint64_t host = colibri_fpenv_enter();
    colibri_op_run(s, colibri_op_now(s), worker, s->unit_first + first, count);
    colibri_fpenv_leave(host);
}

static int colibri_any_fault(const colibri_session *s)
{
    uint32_t any = 0;
    for (uint32_t w = 0; w < s->limits.workers; w++) {
        any |= colibri_pool_words(s, s->layout.faults)[16u * w];
        colibri_pool_words(s, s->layout.faults)[16u * w] = 0;
    }
    return any != 0u;
}

static void colibri_run_units(colibri_session *s, uint32_t count)
{
    s->unit_first = s->unit;
    if (s->hooks.parallel && count > 1u) {
        s->hooks.parallel(s->hooks.user, s, count);
    } else {
        colibri_work(s, 0, 0, count);
    }
    s->unit += count;
    s->stat_units += count;
    s->profile[colibri_op_now(s)->kind].units += count;
}

/* Behind an op's last unit: on to the next op, or back for the next pass of the experts. A LEASE
 * whose sums are not all right begins anew. */
static int32_t colibri_op_finish(colibri_session *s)
{
    const colibri_op *op = colibri_op_now(s);
    s->prepared = 0;
    if (op->kind == COLIBRI_OP_LEASE) {
        int32_t status = colibri_pass_vouch(s, op->layer);
        if (status != COLIBRI_DONE) {
            return status;
        }
    }
    s->stat_macs += colibri_op_macs(s, op);
    s->profile[op->kind].macs += colibri_op_macs(s, op);
    s->profile[op->kind].runs++;
    if (op->kind == COLIBRI_OP_AHEAD) {
        colibri_ahead_ask(s, op->layer);
    }
    if (op->kind == COLIBRI_OP_EXPERT_DOWN) {
        int more = colibri_pass_more(s);
        colibri_pass_release(s, op->layer);
        if (more) {
            s->op -= 2u;                        /* LEASE, EXPERT_UP, EXPERT_DOWN */
            return COLIBRI_OK;
        }
        s->pass_end = COLIBRI_NO;
    }
    s->op++;
    return COLIBRI_OK;
}

static int32_t colibri_op_prepare(colibri_session *s)
{
    const colibri_op *op = colibri_op_now(s);
    if (op->kind == COLIBRI_OP_LEASE || op->kind == COLIBRI_OP_AHEAD) {
        int32_t status = colibri_pass_prepare(s, op->layer);
        if (status < 0 || (status != COLIBRI_DONE && op->kind == COLIBRI_OP_LEASE)) {
            return status;                      /* what lies ahead is computed while the layer's own are on their way */
        }
    }
    s->units = colibri_op_units(s, op);
    s->unit = 0;
    s->prepared = 1;
    return COLIBRI_DONE;
}

static void colibri_abandon(colibri_session *s)
{
    colibri_pass_abandon(s, colibri_op_now(s)->layer);
    s->row_count = 0;
    s->logit_count = 0;
    s->state = COLIBRI_STATE_IDLE;
}

static uint64_t colibri_now(const colibri_session *s)
{
    return s->hooks.clock ? s->hooks.clock(s->hooks.user) : 0u;
}

/* One op, or what the budget leaves of it: OK when it is finished. */
static int32_t colibri_op_advance(colibri_session *s, uint32_t *budget)
{
    if (!s->prepared) {
        int32_t status = colibri_op_prepare(s);
        if (status != COLIBRI_DONE) {
            return status;
        }
    }
    uint32_t rest = s->units - s->unit;
    if (rest) {
        uint32_t count = rest < *budget ? rest : *budget;
        if (count == 0u) {
            return COLIBRI_AGAIN;
        }
        colibri_run_units(s, count);
        *budget -= *budget == COLIBRI_UNLIMITED ? 0u : count;
        if (colibri_any_fault(s)) {
            colibri_abandon(s);
            return COLIBRI_ERROR_NOT_FINITE;
        }
    }
    return s->unit == s->units ? colibri_op_finish(s) : COLIBRI_OK;
}

static int32_t colibri_tape_run(colibri_session *s, uint32_t budget)
{
    uint64_t begun = colibri_now(s);
    while (s->op < s->layout.ops) {
        uint32_t kind = colibri_op_now(s)->kind;
        int32_t status = colibri_op_advance(s, &budget);
        uint64_t now = colibri_now(s);
        s->profile[kind].nanoseconds += now - begun;
        begun = now;
        if (status != COLIBRI_OK) {
            return status;
        }
    }
    return COLIBRI_DONE;
}

int32_t colibri_advance(colibri_session *s, uint32_t budget)
{
    int32_t status = colibri_ready(s);
    if (status < 0) {
        return status;
    }
    if (s->state != COLIBRI_STATE_RUNNING) {
        return s->state == COLIBRI_STATE_IDLE ? COLIBRI_DONE : COLIBRI_ERROR_BUSY;
    }
    status = colibri_tape_run(s, budget);
    if (status == COLIBRI_DONE) {
        for (uint32_t i = 0; i < s->row_count; i++) {
            const colibri_row_state *row = colibri_row_at(s, i);
            colibri_sequence *sequence = colibri_sequence_at(s, row->sequence);
            sequence->length = row->position + 1u;
            if (s->rings && sequence->length > s->limits.rewind + sequence->floor) {
                sequence->floor = sequence->length - s->limits.rewind;
            }
        }
        s->stat_rows += s->row_count;
        s->state = COLIBRI_STATE_IDLE;
    }
    return status;
}

const float *colibri_logits(const colibri_session *s, uint32_t index)
{
    if (colibri_ready(s) < 0 || s->state != COLIBRI_STATE_IDLE || index >= s->logit_count) {
        return 0;
    }
    return colibri_pool_floats(s, s->layout.logits + index * s->layout.logit_stride);
}

uint32_t colibri_length(const colibri_session *s, uint32_t sequence)
{
    return colibri_ready(s) < 0 || sequence >= s->limits.sequences ? 0u : colibri_sequence_at(s, sequence)->length;
}

uint32_t colibri_routing(const colibri_session *s, uint32_t layer_index, uint32_t index, uint32_t *experts,
                         float *weights, uint32_t capacity)
{
    if (colibri_ready(s) < 0 || s->state != COLIBRI_STATE_IDLE || layer_index >= s->view.layers ||
        index >= s->row_count) {
        return 0;
    }
    const colibri_layer *layer = colibri_layer_at(s, layer_index);
    uint32_t k = layer->d.ffn == COLIBRI_FFN_MOE ? layer->d.top_k : 0u;
    uint32_t count = k < capacity ? k : capacity;
    for (uint32_t i = 0; i < count; i++) {
        uint64_t at = (uint64_t)index * k + i;
        experts[i] = colibri_pool_words(s, layer->chosen)[at];
        weights[i] = colibri_pool_floats(s, layer->chosen_weight)[at];
    }
    return count;
}

uint32_t colibri_router_spread(const colibri_session *s, uint32_t layer_index, uint32_t index)
{
    if (colibri_ready(s) < 0 || s->state != COLIBRI_STATE_IDLE || layer_index >= s->view.layers ||
        index >= s->row_count || !colibri_layer_at(s, layer_index)->d.router_span) {
        return 0;
    }
    return colibri_pool_words(s, colibri_layer_at(s, layer_index)->spread)[index];
}

/* A window's ring forgets: of the furthest position reached, the planned rewind and no more can be taken back, in one
 * step or in many, or the next row would see what was overwritten. */
int32_t colibri_rewind(colibri_session *s, uint32_t sequence, uint32_t length)
{
    int32_t status = colibri_ready(s);
    if (status < 0) {
        return status;
    }
    if (s->state != COLIBRI_STATE_IDLE) {
        return COLIBRI_ERROR_BUSY;
    }
    if (sequence >= s->limits.sequences || length > colibri_sequence_at(s, sequence)->length) {
        return COLIBRI_ERROR_ARGUMENT;
    }
    colibri_sequence *q = colibri_sequence_at(s, sequence);
    if (length != 0u && length < q->floor) {
        return COLIBRI_ERROR_REWIND;
    }
    q->length = length;
    q->floor = length ? q->floor : 0u;
    s->logit_count = 0;
    s->transfer.kind = COLIBRI_TRANSFER_NONE;
    return COLIBRI_OK;
}

int32_t colibri_reset(colibri_session *s, uint32_t sequence)
{
    int32_t status = colibri_ready(s);
    if (status < 0) {
        return status;
    }
    if (sequence != COLIBRI_ALL_SEQUENCES && sequence >= s->limits.sequences) {
        return COLIBRI_ERROR_ARGUMENT;
    }
    if (s->state == COLIBRI_STATE_STARTING) {
        return COLIBRI_ERROR_BUSY;
    }
    if (s->state == COLIBRI_STATE_RUNNING) {
        colibri_abandon(s);
    }
    int all = sequence == COLIBRI_ALL_SEQUENCES || s->state == COLIBRI_STATE_RESTORING;
    for (uint32_t i = 0; i < s->limits.sequences; i++) {
        if (all || sequence == i) {
            colibri_fill(colibri_sequence_at(s, i), 0, sizeof(colibri_sequence));
        }
    }
    s->state = COLIBRI_STATE_IDLE;
    s->logit_count = 0;
    s->transfer.kind = COLIBRI_TRANSFER_NONE;
    return COLIBRI_OK;
}

int32_t colibri_pin(colibri_session *s, uint32_t layer, uint32_t expert, uint32_t pinned)
{
    int32_t status = colibri_ready(s);
    if (status < 0) {
        return status;
    }
    if (s->state != COLIBRI_STATE_IDLE) {
        return COLIBRI_ERROR_BUSY;
    }
    if (layer >= s->view.layers || pinned > 1u) {
        return COLIBRI_ERROR_ARGUMENT;
    }
    return colibri_slots_pin(s, layer, expert, pinned);
}

int32_t colibri_lost(const colibri_session *s, uint32_t *layer, uint32_t *expert, uint64_t *offset)
{
    if (!s || s->magic != COLIBRI_SESSION_MAGIC || !layer || !expert || !offset || !s->lost) {
        return COLIBRI_ERROR_ARGUMENT;
    }
    const colibri_layer *where = colibri_layer_at(s, s->lost - 1u);
    *layer = s->lost - 1u;
    *expert = s->lost_expert;
    *offset = where->expert_offset + s->lost_expert * where->d.expert_run;
    return COLIBRI_OK;
}

int32_t colibri_stop(colibri_session *s)
{
    if (!s || s->magic != COLIBRI_SESSION_MAGIC) {
        return COLIBRI_ERROR_ARGUMENT;
    }
    if (s->state == COLIBRI_STATE_STARTING && s->starting_asked) {
        if (s->hooks.fetched(s->hooks.user, 0x80000000u | s->starting_tensor) == COLIBRI_WAIT) {
            return COLIBRI_WAIT;
        }
        s->starting_asked = 0;
    }
    if (s->state == COLIBRI_STATE_RUNNING) {
        colibri_abandon(s);
    }
    if (colibri_slots_busy(s)) {
        return COLIBRI_WAIT;
    }
    s->state = COLIBRI_STATE_STOPPED;
    return COLIBRI_DONE;
}

int32_t colibri_profile(colibri_session *s, colibri_profile_entry *entries, uint32_t capacity, uint32_t reset)
{
    if (!s || s->magic != COLIBRI_SESSION_MAGIC || (!entries && capacity) || reset > 1u) {
        return COLIBRI_ERROR_ARGUMENT;
    }
    for (uint32_t kind = 0; kind < capacity; kind++) {
        colibri_fill(&entries[kind], 0, sizeof entries[kind]);
        if (kind < COLIBRI_OP_ROOM) {
            entries[kind] = s->profile[kind];
        }
    }
    if (reset) {
        colibri_fill(s->profile, 0, sizeof s->profile);
    }
    return COLIBRI_OK;
}

int32_t colibri_stats(const colibri_session *s, colibri_stats_result *stats)
{
    if (!s || s->magic != COLIBRI_SESSION_MAGIC || !stats || stats->struct_bytes != sizeof *stats) {
        return COLIBRI_ERROR_ARGUMENT;
    }
    stats->reserved = 0;
    stats->pool_used = s->layout.pool_bytes;
    stats->rows = s->stat_rows;
    stats->units = s->stat_units;
    stats->macs = s->stat_macs;
    stats->expert_hits = s->stat_hits;
    stats->expert_misses = s->stat_misses;
    stats->bytes_fetched = s->stat_fetched + s->stat_hint_bytes;
    stats->expert_bytes_fetched = s->stat_expert_bytes + s->stat_hint_bytes;
    stats->hints = s->stat_hints;
    stats->hints_used = s->stat_hints_used;
    stats->hints_wasted = s->stat_hints_wasted;
    stats->hint_bytes = s->stat_hint_bytes;
    return COLIBRI_OK;
}
