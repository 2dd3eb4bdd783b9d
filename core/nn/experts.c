/*
 * experts.c: the experts op. First, serially, the pass list: the distinct experts of the batch in ascending order with
 * the rows each one serves, and the leases of one pass: the only place that calls the store or waits. Then units
 * run and never wait. Fewer slots than distinct experts: several passes, in ascending expert order, so that every
 * row still adds its experts in ascending order.
 */
#include "nn/session.h"

typedef struct colibri_distinct {
    uint32_t expert;
    uint32_t slot;                              /* COLIBRI_NO: in place */
} colibri_distinct;

static colibri_distinct *colibri_distinct_at(const colibri_session *s, uint32_t index)
{
    return (colibri_distinct *)(void *)colibri_pool_at(s, s->layout.distinct) + index;
}

static colibri_slot *colibri_slot_at(const colibri_session *s, uint32_t index)
{
    return (colibri_slot *)(void *)colibri_pool_at(s, s->layout.slots) + index;
}

/* Pairs are row * top_k + k. Listed expert by expert, rows ascending, by counting: O(experts + rows * top_k), since no
 * budget bounds this serial piece. The router's logits are done with; the counts take their place. */
static void colibri_pass_list(colibri_session *s, const colibri_layer *layer)
{
    const uint32_t *chosen = colibri_pool_words(s, layer->chosen);
    uint32_t *first_pair = colibri_pool_words(s, s->layout.first_pair);
    uint32_t *pairs = colibri_pool_words(s, s->layout.pairs);
    uint32_t *count = colibri_pool_words(s, s->layout.router_logits);
    uint32_t total = s->row_count * layer->d.top_k;
    uint32_t listed = 0;
    colibri_fill(count, 0, 4u * (uint64_t)layer->d.experts);
    for (uint32_t p = 0; p < total; p++) {
        count[chosen[p]]++;
    }
    s->distinct_count = 0;
    for (uint32_t e = 0; e < layer->d.experts; e++) {
        if (count[e]) {
            colibri_distinct_at(s, s->distinct_count)->expert = e;
            colibri_distinct_at(s, s->distinct_count)->slot = COLIBRI_NO;
            first_pair[s->distinct_count++] = listed;
            listed += count[e];
            count[e] = listed - count[e];       /* from here on: where this expert's next pair goes */
        }
    }
    first_pair[s->distinct_count] = listed;
    for (uint32_t p = 0; p < total; p++) {
        pairs[count[chosen[p]]++] = p;
    }
    s->pass_first = 0;
    s->pass_end = 0;
}

/* --- slots --- */

static uint32_t *colibri_slot_of(const colibri_session *s, const colibri_layer *layer, uint32_t expert)
{
    return colibri_pool_words(s, s->layout.slot_of) + layer->d.first_expert + expert;
}

/* The slot to give up: an empty one, else the least recently used that is neither leased nor in flight. */
static uint32_t colibri_victim(const colibri_session *s)
{
    uint32_t best = COLIBRI_NO;
    for (uint32_t i = 0; i < s->layout.slot_count; i++) {
        const colibri_slot *slot = colibri_slot_at(s, i);
        if (slot->leased || slot->state == COLIBRI_SLOT_ASKED) {
            continue;
        }
        if (slot->state == COLIBRI_SLOT_EMPTY) {
            return i;
        }
        if (best == COLIBRI_NO || slot->used_at < colibri_slot_at(s, best)->used_at) {
            best = i;
        }
    }
    return best;
}

static void colibri_slot_empty(colibri_session *s, uint32_t index)
{
    colibri_slot *slot = colibri_slot_at(s, index);
    if (slot->state != COLIBRI_SLOT_EMPTY) {
        *colibri_slot_of(s, colibri_layer_at(s, slot->layer), slot->expert) = 0;
    }
    slot->state = COLIBRI_SLOT_EMPTY;
    slot->leased = 0;
}

/* Is an asked slot there? Its checksum must be right before any byte counts. */
static int32_t colibri_slot_poll(colibri_session *s, uint32_t index)
{
    colibri_slot *slot = colibri_slot_at(s, index);
    if (slot->state == COLIBRI_SLOT_READY) {
        return COLIBRI_DONE;
    }
    int32_t status = s->hooks.fetched(s->hooks.user, index);
    if (status == COLIBRI_WAIT) {
        return COLIBRI_WAIT;
    }
    const colibri_layer *layer = colibri_layer_at(s, slot->layer);
    uint32_t crc = 0;
    if (status >= 0) {
        crc = colibri_crc32c(0, colibri_pool_at(s, s->layout.slot_data + index * s->layout.slot_bytes),
                             layer->d.expert_run);
    }
    if (status < 0 || crc != colibri_expert_sum_at(&s->view, layer->d.first_expert + slot->expert)->crc) {
        colibri_slot_empty(s, index);
        return status < 0 ? COLIBRI_ERROR_FETCH : COLIBRI_ERROR_CORRUPT;
    }
    slot->state = COLIBRI_SLOT_READY;
    return COLIBRI_DONE;
}

/* Fetches that were abandoned by a reset still hold their slots, and nobody else asks how they are. */
static void colibri_slots_settle(colibri_session *s)
{
    for (uint32_t i = 0; i < s->layout.slot_count; i++) {
        const colibri_slot *slot = colibri_slot_at(s, i);
        if (slot->state == COLIBRI_SLOT_ASKED && !slot->leased) {
            (void)colibri_slot_poll(s, i);
        }
    }
}

/* Ask the host for an expert. OK: in flight in *index; WAIT: later; negative: failed for good. */
static int32_t colibri_slot_ask(colibri_session *s, uint32_t layer_index, uint32_t expert, uint32_t *index)
{
    const colibri_layer *layer = colibri_layer_at(s, layer_index);
    uint32_t i = colibri_victim(s);
    if (i == COLIBRI_NO) {
        colibri_slots_settle(s);
        i = colibri_victim(s);
    }
    if (i == COLIBRI_NO) {
        return COLIBRI_WAIT;                    /* abandoned fetches hold the slots and are still in flight */
    }
    colibri_slot_empty(s, i);
    colibri_slot *slot = colibri_slot_at(s, i);
    colibri_fetch_request request;
    colibri_fill(&request, 0, sizeof request);
    request.offset = layer->expert_offset + expert * layer->d.expert_run;
    request.bytes = layer->d.expert_run;
    request.layer = layer_index;
    request.expert = expert;
    request.ticket = i;
    request.destination = colibri_pool_at(s, s->layout.slot_data + i * s->layout.slot_bytes);
    int32_t status = s->hooks.fetch(s->hooks.user, &request);
    if (status < 0 || status == COLIBRI_WAIT) {
        return status < 0 ? COLIBRI_ERROR_FETCH : COLIBRI_WAIT;
    }
    slot->layer = layer_index;
    slot->expert = expert;
    slot->state = COLIBRI_SLOT_ASKED;
    slot->leased = 1;
    *colibri_slot_of(s, layer, expert) = i + 1u;
    *index = i;
    s->stat_misses++;
    s->stat_fetched += request.bytes;
    return COLIBRI_OK;
}

/* Lease the experts of the pass; what is missing is asked for first, all of it, then waited for. */
static int32_t colibri_pass_lease(colibri_session *s, uint32_t layer_index)
{
    const colibri_layer *layer = colibri_layer_at(s, layer_index);
    int32_t result = COLIBRI_DONE;
    for (uint32_t i = s->pass_first; i < s->pass_end; i++) {
        colibri_distinct *d = colibri_distinct_at(s, i);
        if (d->slot != COLIBRI_NO || colibri_override_run(s, layer, d->expert)) {
            continue;
        }
        uint32_t held = *colibri_slot_of(s, layer, d->expert);
        if (held) {
            d->slot = held - 1u;
            s->stat_hits += colibri_slot_at(s, d->slot)->state == COLIBRI_SLOT_READY;
            colibri_slot_at(s, d->slot)->leased = 1;
        }
    }
    for (uint32_t i = s->pass_first; i < s->pass_end; i++) {
        colibri_distinct *d = colibri_distinct_at(s, i);
        int32_t status = COLIBRI_OK;
        if (d->slot == COLIBRI_NO && !colibri_override_run(s, layer, d->expert)) {
            status = colibri_slot_ask(s, layer_index, d->expert, &d->slot);
        }
        if (status < 0) {
            return status;
        }
        result = status == COLIBRI_WAIT ? COLIBRI_WAIT : result;
    }
    for (uint32_t i = s->pass_first; i < s->pass_end; i++) {
        colibri_distinct *d = colibri_distinct_at(s, i);
        if (d->slot != COLIBRI_NO) {
            int32_t status = colibri_slot_poll(s, d->slot);
            if (status < 0) {
                d->slot = COLIBRI_NO;           /* asked for anew at the next call */
                return status;
            }
            colibri_slot_at(s, d->slot)->used_at = ++s->clock;
            result = status == COLIBRI_WAIT ? COLIBRI_WAIT : result;
        }
    }
    return result;
}

/* Before the first unit of an EXPERT_UP: DONE, WAIT or an error (call again after either). */
int32_t colibri_pass_prepare(colibri_session *s, uint32_t layer_index)
{
    if (s->pass_end == COLIBRI_NO) {            /* first pass of this layer */
        colibri_pass_list(s, colibri_layer_at(s, layer_index));
    }
    if (s->pass_end == s->pass_first) {
        uint32_t room = s->layout.slot_count ? s->layout.slot_count : s->distinct_count;
        uint32_t rest = s->distinct_count - s->pass_first;
        s->pass_end = s->pass_first + (rest < room ? rest : room);
    }
    return s->layout.slot_count ? colibri_pass_lease(s, layer_index) : COLIBRI_DONE;
}

int colibri_pass_more(const colibri_session *s)
{
    return s->pass_end < s->distinct_count;
}

/* After the last unit of an EXPERT_DOWN: leases end, the next pass (if any) begins behind this one. */
void colibri_pass_release(colibri_session *s)
{
    for (uint32_t i = 0; i < s->layout.slot_count; i++) {
        colibri_slot_at(s, i)->leased = 0;
    }
    s->pass_first = s->pass_end;
}

/* Fetches that are still in flight into the pool; polls each once. */
int colibri_slots_busy(colibri_session *s)
{
    int busy = 0;
    for (uint32_t i = 0; i < s->layout.slot_count; i++) {
        if (colibri_slot_at(s, i)->state == COLIBRI_SLOT_ASKED) {
            busy |= colibri_slot_poll(s, i) == COLIBRI_WAIT;
        }
    }
    return busy;
}

/* --- units --- */

static const uint8_t *colibri_run_at(const colibri_session *s, const colibri_layer *layer, const colibri_distinct *d)
{
    const uint8_t *override = colibri_override_run(s, layer, d->expert);
    if (override) {
        return override;
    }
    if (d->slot != COLIBRI_NO) {
        return colibri_pool_at(s, s->layout.slot_data + d->slot * s->layout.slot_bytes);
    }
    return s->view.blob + layer->expert_offset + d->expert * layer->d.expert_run;
}

/* Units first .. first + count - 1: expert by expert, groups ascending. */
void colibri_expert_up(colibri_session *s, uint32_t layer_index, uint32_t first, uint32_t count, uint32_t worker)
{
    const colibri_layer *layer = colibri_layer_at(s, layer_index);
    uint32_t groups = colibri_strips(layer->d.ff);
    const uint32_t *first_pair = colibri_pool_words(s, s->layout.first_pair);
    colibri_gated ffn;
    ffn.gate = &layer->expert_gate;
    ffn.up = &layer->expert_up;
    ffn.weight = colibri_pool_floats(s, layer->chosen_weight);
    ffn.weight = layer->d.router_weight_on == COLIBRI_ROUTER_ON_INPUT ? ffn.weight : 0;
    ffn.activation = layer->d.activation;
    ffn.limit = layer->d.swiglu_limit;
    ffn.out = colibri_gated_buffer(s, layer->d.ff, layer->expert_down.kind);
    ffn.top_k = layer->d.top_k;
    ffn.weight = colibri_pool_floats(s, layer->chosen_weight);
    ffn.weight = layer->d.router_weight_on == COLIBRI_ROUTER_ON_INPUT ? ffn.weight : 0;
    while (count) {
        uint32_t index = s->pass_first + first / groups, group = first % groups;
        uint32_t part = groups - group < count ? groups - group : count;
        uint32_t expert = colibri_distinct_at(s, index)->expert;
        ffn.base = colibri_run_at(s, layer, colibri_distinct_at(s, index));
        ffn.gate_bias = colibri_bias_at(s, &layer->ffn_gate_bias, expert, layer->d.ff);
        ffn.up_bias = colibri_bias_at(s, &layer->ffn_up_bias, expert, layer->d.ff);
        ffn.pairs = colibri_pool_words(s, s->layout.pairs) + first_pair[index];
        ffn.rows = first_pair[index + 1u] - first_pair[index];
        colibri_gated_groups(s, &ffn, group, part, worker);
        first += part;
        count -= part;
    }
}

/* y = y + w * (out + bias) for one strip of one expert, all its rows; w = 1 where it met the input. bias: or null. */
static void colibri_expert_strip(colibri_session *s, const colibri_layer *layer, const colibri_strip *strip,
                                 const float *bias, const colibri_buffer *in, const uint32_t *pairs, uint32_t rows)
{
    int on_input = layer->d.router_weight_on == COLIBRI_ROUTER_ON_INPUT;
    const float *weight = colibri_pool_floats(s, layer->chosen_weight);
    for (uint32_t i = 0; i < rows; i += COLIBRI_ROWS_AT_ONCE) {
        uint32_t count = colibri_rows_at_once(rows - i);
        colibri_activation h[COLIBRI_ROWS_AT_ONCE] = {{0, 0}};
        float acc[COLIBRI_ROWS_AT_ONCE][COLIBRI_STRIP_ROWS];
        for (uint32_t k = 0; k < count; k++) {
            h[k] = colibri_buffer_row(s, in, pairs[i + k]);
        }
        colibri_strip_times(s, strip, h, count, i != 0u, acc[0]);
        for (uint32_t k = 0; k < count; k++) {
            float *y = colibri_mixed_at(s, pairs[i + k] / layer->d.top_k) + strip->first;
            for (uint32_t r = 0; bias && r < strip->lanes; r++) {
                acc[k][r] = acc[k][r] + bias[strip->first + r];
            }
            colibri_add_scaled(s->kernel, y, acc[k], on_input ? 1.0f : weight[pairs[i + k]], strip->lanes);
        }
    }
}

/* Strips first .. first + count - 1 of hidden: for every expert of the pass, ascending, all of them, which is one
 * stretch of its matrix. */
void colibri_expert_down(colibri_session *s, uint32_t layer_index, uint32_t first, uint32_t count)
{
    const colibri_layer *layer = colibri_layer_at(s, layer_index);
    const uint32_t *first_pair = colibri_pool_words(s, s->layout.first_pair);
    const uint32_t *pairs = colibri_pool_words(s, s->layout.pairs);
    colibri_buffer in = colibri_gated_buffer(s, layer->d.ff, layer->expert_down.kind);
    for (uint32_t d = s->pass_first; d < s->pass_end; d++) {
        const uint8_t *run = colibri_run_at(s, layer, colibri_distinct_at(s, d));
        const float *bias = colibri_bias_at(s, &layer->ffn_down_bias, colibri_distinct_at(s, d)->expert,
                                            s->view.hidden);
        for (uint32_t unit = first; unit < first + count; unit++) {
            colibri_strip strip = colibri_strip_at(s, &layer->expert_down, run, unit, 1);
            colibri_expert_strip(s, layer, &strip, bias, &in, pairs + first_pair[d],
                                 first_pair[d + 1u] - first_pair[d]);
        }
    }
}
