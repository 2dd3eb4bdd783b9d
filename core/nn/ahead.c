/*
 * ahead.c: look-ahead, where the limits ask for it. While a layer's own experts are on their way, the router of the
 * next layer with experts is run on the hidden state as it is, and what it would choose and is nowhere is asked for.
 *
 * A hint's bytes come into a landing slot. Those lie beside the policy's slots: so the policy holds what it would hold
 * without hints, and a wrong one costs its read and nothing else. Where a pass misses an expert that has landed, or is
 * about to, the two slots change their parts and no byte moves. A hint that is refused, fails or is wrong is forgotten:
 * the pass that needs the expert asks anew, and that is the one to say what is wrong.
 */
#include "nn/session.h"

static uint32_t *colibri_landing_at(const colibri_session *s, uint32_t index)
{
    return colibri_pool_words(s, s->layout.landing) + index;
}

void colibri_ahead_begin(colibri_session *s)
{
    s->ahead_layer = COLIBRI_NO;
    for (uint32_t i = 0; i < s->layout.ahead_count; i++) {
        *colibri_landing_at(s, i) = s->layout.slot_count + i;
        colibri_slot_at(s, s->layout.slot_count + i)->hint = COLIBRI_HINT_OPEN;
    }
}

/* The next layer with experts. None for more rows than one token of a few sequences: what a prompt's batch needs of a
 * layer is most of it, and far more than can land. */
static uint32_t colibri_ahead_next(const colibri_session *s, uint32_t layer_index)
{
    uint32_t next = layer_index + 1u;
    while (next < s->view.layers && colibri_layer_at(s, next)->d.ffn != COLIBRI_FFN_MOE) {
        next++;
    }
    return next < s->view.layers && s->row_count <= COLIBRI_ROWS_AT_ONCE ? next : COLIBRI_NO;
}

/* A table says without arithmetic where a token goes; whom its weight leaves out is computed. */
static int colibri_ahead_listed(const colibri_session *s, const colibri_layer *layer)
{
    return layer->d.router_by_token && !(s->limits.skip_below > 0.0f);
}

uint32_t colibri_ahead_units(const colibri_session *s, uint32_t layer_index)
{
    return colibri_ahead_next(s, layer_index) != COLIBRI_NO;
}

uint64_t colibri_ahead_macs(const colibri_session *s, uint32_t layer_index)
{
    uint32_t next = colibri_ahead_next(s, layer_index);
    if (next == COLIBRI_NO || colibri_ahead_listed(s, colibri_layer_at(s, next))) {
        return 0;
    }
    return (uint64_t)s->row_count * s->view.hidden * colibri_layer_at(s, next)->d.experts;
}

/* The unit: all rows. What is chosen goes where that layer's own router will put its choice later; the logits' place is
 * free since the pass was listed. Not finite: no hints, and the row is judged when its turn comes. */
void colibri_ahead_route(colibri_session *s, uint32_t layer_index)
{
    colibri_activation rows[COLIBRI_ROWS_AT_ONCE];
    uint32_t next = colibri_ahead_next(s, layer_index);
    const colibri_layer *layer = colibri_layer_at(s, next);
    const float *bias = layer->ffn_norm_bias.rows ? colibri_vector_at(s, &layer->ffn_norm_bias) : 0;
    const float *w = colibri_vector_at(s, &layer->ffn_norm);
    int bad = 0;
    for (uint32_t row = 0; row < s->row_count; row++) {
        const float *x = colibri_residual_at(s, row);
        rows[row] = colibri_buffer_row(s, &s->layout.ahead, row);
        float *y = (float *)(uintptr_t)rows[row].x;
        if (colibri_ahead_listed(s, layer)) {
            bad |= colibri_route_by_token(s, layer, row);
        } else if (layer->d.norm == COLIBRI_NORM_RMS) {
            bad |= colibri_rms_norm(s->kernel, y, x, w, s->view.hidden, layer->d.eps);
        } else {
            bad |= colibri_layer_norm(s->kernel, y, x, w, bias, s->view.hidden, layer->d.eps);
        }
    }
    if (!bad && !colibri_ahead_listed(s, layer)) {
        bad = colibri_route(s, layer, rows, 0, s->row_count);
    }
    s->ahead_layer = bad ? COLIBRI_NO : next;
}

/* Is an expert landing, or has it? Its place among the landing slots, or COLIBRI_NO. */
static uint32_t colibri_ahead_find(const colibri_session *s, uint32_t layer_index, uint32_t expert)
{
    for (uint32_t i = 0; i < s->layout.ahead_count; i++) {
        const colibri_slot *slot = colibri_slot_at(s, *colibri_landing_at(s, i));
        if (slot->state != COLIBRI_SLOT_EMPTY && slot->layer == layer_index && slot->expert == expert) {
            return i;
        }
    }
    return COLIBRI_NO;
}

static void colibri_ahead_drop(colibri_session *s, colibri_slot *slot)
{
    s->stat_hints_wasted += slot->state != COLIBRI_SLOT_EMPTY;
    slot->state = COLIBRI_SLOT_EMPTY;
}

/* Who has landed? Asked at every lease: a host may hold only so many requests, and those that nobody asks about would
 * keep the others out. */
void colibri_ahead_settle(colibri_session *s)
{
    for (uint32_t i = 0; i < s->layout.ahead_count; i++) {
        uint32_t index = *colibri_landing_at(s, i);
        colibri_slot *slot = colibri_slot_at(s, index);
        int32_t status = COLIBRI_WAIT;
        if (slot->state == COLIBRI_SLOT_ASKED) {
            status = s->hooks.fetched(s->hooks.user, index);
        }
        if (status < 0) {
            colibri_ahead_drop(s, slot);
        } else if (status != COLIBRI_WAIT) {
            slot->state = COLIBRI_SLOT_ARRIVED;
        }
    }
}

/* What lies in a landing slot and may be needed: by this layer's later passes, or by the next layer as it looks now. */
static void colibri_ahead_keep(colibri_session *s, uint32_t layer_index, uint32_t expert)
{
    uint32_t place = colibri_ahead_find(s, layer_index, expert);
    if (place != COLIBRI_NO) {
        colibri_slot_at(s, *colibri_landing_at(s, place))->wanted = 1;
    }
}

/* A landing slot for a new hint: an empty one, else one that is not wanted and not in flight. */
static uint32_t colibri_ahead_room(colibri_session *s)
{
    uint32_t room = COLIBRI_NO;
    for (uint32_t i = 0; i < s->layout.ahead_count; i++) {
        uint32_t index = *colibri_landing_at(s, i);
        const colibri_slot *slot = colibri_slot_at(s, index);
        if (slot->state == COLIBRI_SLOT_EMPTY) {
            return index;
        }
        if (slot->state != COLIBRI_SLOT_ASKED && !slot->wanted) {
            room = index;
        }
    }
    return room;
}

/* Is a choice of this round worth a hint? Its expert's number within the layer, or COLIBRI_NO: held, replaced, left out
 * by its weight. */
static uint32_t colibri_ahead_wants(const colibri_session *s, const colibri_layer *layer, uint32_t pair)
{
    uint32_t expert = colibri_pool_words(s, layer->chosen)[pair];
    int skipped = s->limits.skip_below > 0.0f && colibri_pool_floats(s, layer->chosen_weight)[pair] == 0.0f;
    int held = *colibri_cache_slot_of(colibri_cache_of(s), layer->d.first_expert + expert) != 0u;
    return skipped || held || colibri_override_run(s, layer, expert) ? COLIBRI_NO : expert;
}

/* One hint; 0: the host takes no more now. One that it refuses for good is not asked for again in this round. */
static int colibri_ahead_hint(colibri_session *s, uint32_t layer_index, uint32_t expert, uint32_t index)
{
    colibri_slot *slot = colibri_slot_at(s, index);
    colibri_ahead_drop(s, slot);
    slot->layer = layer_index;
    slot->expert = expert;
    slot->wanted = 1;
    int32_t status = colibri_slot_request(s, index, 1);
    if (status == COLIBRI_OK) {
        slot->state = COLIBRI_SLOT_ASKED;
        s->stat_hints++;
        s->stat_hint_bytes += colibri_layer_at(s, layer_index)->d.expert_run;
    }
    return status != COLIBRI_WAIT;
}

/* Behind the unit, serially: the hints of this round, until landing slots or the host's patience end. */
void colibri_ahead_ask(colibri_session *s, uint32_t layer_index)
{
    uint32_t next = s->ahead_layer;
    s->ahead_layer = COLIBRI_NO;
    if (next == COLIBRI_NO) {
        return;
    }
    const colibri_layer *layer = colibri_layer_at(s, next);
    uint32_t pairs = s->row_count * layer->d.top_k;
    colibri_ahead_settle(s);
    for (uint32_t i = 0; i < s->layout.ahead_count; i++) {
        colibri_slot_at(s, *colibri_landing_at(s, i))->wanted = 0;
    }
    for (uint32_t i = s->pass_end; i < s->distinct_count; i++) {
        colibri_ahead_keep(s, layer_index, colibri_distinct_at(s, i)->expert);
    }
    for (uint32_t p = 0; p < pairs; p++) {
        colibri_ahead_keep(s, next, colibri_pool_words(s, layer->chosen)[p]);
    }
    for (uint32_t p = 0; p < pairs; p++) {
        uint32_t expert = colibri_ahead_wants(s, layer, p);
        if (expert == COLIBRI_NO || colibri_ahead_find(s, next, expert) != COLIBRI_NO) {
            continue;
        }
        uint32_t index = colibri_ahead_room(s);
        if (index == COLIBRI_NO || !colibri_ahead_hint(s, next, expert, index)) {
            return;
        }
    }
}

/* A pass gave `given` to an expert that the policy does not hold: the slot it gets in the end, its own landing slot if
 * there is one. */
uint32_t colibri_ahead_take(colibri_session *s, uint32_t layer_index, uint32_t expert, uint32_t given)
{
    uint32_t place = colibri_ahead_find(s, layer_index, expert);
    if (place == COLIBRI_NO) {
        return given;
    }
    uint32_t index = *colibri_landing_at(s, place);
    colibri_slot *slot = colibri_slot_at(s, index);
    colibri_slot_at(s, given)->hint = COLIBRI_HINT_OPEN;
    colibri_slot_at(s, given)->state = COLIBRI_SLOT_EMPTY;
    *colibri_landing_at(s, place) = given;
    slot->hint = COLIBRI_HINT_TAKEN;
    s->stat_hints_used++;
    return index;
}

/* A hint that a pass had taken in flight was lost: whatever came of it, it was of no use. */
void colibri_ahead_lost(colibri_session *s, uint32_t index)
{
    colibri_slot *slot = colibri_slot_at(s, index);
    if (slot->hint == COLIBRI_HINT_TAKEN) {
        slot->hint = COLIBRI_HINT_NONE;
        s->stat_hints_used--;
        s->stat_hints_wasted++;
    }
}
