/*
 * slots.c: the expert slots of a session. Takes the next pass from the policy (cache.c), asks the store for what is
 * missing and waits until all of it is there: the only place that calls the store or waits. What has arrived is summed
 * in units, and used if the sum is right.
 * A leased slot is in the pass; nothing the policy gives up is in the pass or in flight.
 */
#include "nn/session.h"

void colibri_slots_begin(colibri_session *s)
{
    uint32_t count = s->layout.slot_count;
    colibri_fill(colibri_pool_at(s, s->layout.slots), 0, count * sizeof(colibri_slot));
    for (uint32_t i = 0; i < count; i++) {
        colibri_slot_at(s, i)->next = i + 1u < count ? i + 1u : COLIBRI_NO;
    }
    s->free_slot = 0;
    colibri_cache_begin(colibri_cache_of(s), (uint32_t)s->layout.expert_count, count, s->limits.policy,
                        s->layout.max_top_k);
}

static uint32_t colibri_slot_number(const colibri_session *s, const colibri_slot *slot)
{
    return colibri_layer_at(s, slot->layer)->d.first_expert + slot->expert;
}

static void colibri_slot_free(colibri_session *s, uint32_t index)
{
    colibri_slot *slot = colibri_slot_at(s, index);
    colibri_cache_forget(colibri_cache_of(s), colibri_slot_number(s, slot));
    slot->state = COLIBRI_SLOT_EMPTY;
    slot->next = s->free_slot;
    s->free_slot = index;
}

static void colibri_slot_lost(colibri_session *s, colibri_slot *slot)
{
    slot->state = COLIBRI_SLOT_GIVEN;           /* it is asked for anew */
    s->lost = slot->layer + 1u;
    s->lost_expert = slot->expert;
}

/* Is an asked slot there? Its bytes count for nothing until their checksum is right. */
static int32_t colibri_slot_poll(colibri_session *s, uint32_t index)
{
    colibri_slot *slot = colibri_slot_at(s, index);
    int32_t status = s->hooks.fetched(s->hooks.user, index);
    if (status < 0) {
        colibri_slot_lost(s, slot);
        return COLIBRI_ERROR_FETCH;
    }
    if (status == COLIBRI_WAIT) {
        return COLIBRI_WAIT;
    }
    slot->state = COLIBRI_SLOT_ARRIVED;
    return COLIBRI_DONE;
}

/* Fetches that were abandoned still hold their slots, and nobody else asks how they are. */
static void colibri_slots_settle(colibri_session *s)
{
    for (uint32_t i = 0; s->stranded && i < s->layout.slot_count; i++) {
        colibri_slot *slot = colibri_slot_at(s, i);
        if (slot->state != COLIBRI_SLOT_ASKED || slot->leased) {
            continue;
        }
        int32_t status = colibri_slot_poll(s, i);
        if (status == COLIBRI_WAIT) {
            continue;
        }
        s->stranded--;
        colibri_cache_strand(colibri_cache_of(s), colibri_slot_number(s, slot), 0);
        if (status < 0) {
            colibri_slot_free(s, i);
        } else {
            colibri_cache_list(colibri_cache_of(s), colibri_slot_number(s, slot));
        }
    }
}

/* Ask the host for the bytes of a slot that was given. */
static int32_t colibri_slot_ask(colibri_session *s, uint32_t index)
{
    colibri_slot *slot = colibri_slot_at(s, index);
    const colibri_layer *layer = colibri_layer_at(s, slot->layer);
    colibri_fetch_request request;
    colibri_fill(&request, 0, sizeof request);
    request.offset = layer->expert_offset + slot->expert * layer->d.expert_run;
    request.bytes = layer->d.expert_run;
    request.layer = slot->layer;
    request.expert = slot->expert;
    request.ticket = index;
    request.destination = colibri_pool_at(s, s->layout.slot_data + index * s->layout.slot_bytes);
    int32_t status = s->hooks.fetch(s->hooks.user, &request);
    if (status < 0) {
        colibri_slot_lost(s, slot);
        return COLIBRI_ERROR_FETCH;
    }
    if (status == COLIBRI_WAIT) {
        return COLIBRI_WAIT;
    }
    slot->state = COLIBRI_SLOT_ASKED;
    s->stat_misses++;
    s->stat_fetched += request.bytes;
    s->stat_expert_bytes += request.bytes;
    return COLIBRI_OK;
}

static colibri_needed colibri_needed_of(const colibri_session *s, uint32_t layer_index)
{
    const colibri_description *d = &colibri_layer_at(s, layer_index)->d;
    colibri_needed turn = {&colibri_distinct_at(s, 0)->expert, sizeof(colibri_distinct) / 4u, d->first_expert,
                           d->experts, s->distinct_count};
    return turn;
}

/* Give the next expert of the pass its slot; 0: the pass ends before it. */
static int colibri_pass_take(colibri_session *s, uint32_t layer_index, const colibri_needed *turn)
{
    colibri_cache *cache = colibri_cache_of(s);
    colibri_distinct *d = colibri_distinct_at(s, s->pass_end);
    uint32_t *slot_of = colibri_cache_slot_of(cache, turn->base + d->expert);
    uint32_t victim = COLIBRI_NO;
    if (colibri_override_run(s, colibri_layer_at(s, layer_index), d->expert)) {
        d->slot = COLIBRI_NO;                   /* another expert stands in its place: nothing of it is read */
        colibri_cache_skip(cache);
        s->pass_end++;
        return 1;
    }
    uint32_t answer = colibri_cache_next(cache, turn, s->pass_first, &victim);
    if (answer == COLIBRI_CACHE_CLOSE || answer == COLIBRI_CACHE_NONE) {
        return 0;
    }
    if (answer == COLIBRI_CACHE_HIT) {
        s->stat_hits += colibri_slot_at(s, *slot_of - 1u)->state == COLIBRI_SLOT_READY;
    } else if (answer == COLIBRI_CACHE_FREE) {
        *slot_of = s->free_slot + 1u;
        s->free_slot = colibri_slot_at(s, s->free_slot)->next;
    } else {
        *slot_of = *colibri_cache_slot_of(cache, victim);
        *colibri_cache_slot_of(cache, victim) = 0;
    }
    d->slot = *slot_of - 1u;
    colibri_slot *slot = colibri_slot_at(s, d->slot);
    if (answer != COLIBRI_CACHE_HIT) {
        slot->layer = layer_index;
        slot->expert = d->expert;
        slot->state = COLIBRI_SLOT_GIVEN;
    }
    if (slot->state == COLIBRI_SLOT_ASKED) {    /* an abandoned fetch has a pass again */
        s->stranded--;
        colibri_cache_strand(cache, turn->base + d->expert, 0);
    }
    slot->leased = 1;
    s->pass_end++;
    return 1;
}

/* Lease the experts of the pass; what is missing is asked for first, all of it, then waited for. */
static int32_t colibri_pass_lease(colibri_session *s, uint32_t layer_index)
{
    colibri_needed turn = colibri_needed_of(s, layer_index);
    int32_t result = COLIBRI_DONE;
    colibri_slots_settle(s);
    while (s->pass_end < s->distinct_count && colibri_pass_take(s, layer_index, &turn)) {
    }
    if (s->pass_end == s->pass_first) {
        return COLIBRI_WAIT;                    /* abandoned fetches hold the slots and are still in flight */
    }
    for (uint32_t i = s->pass_first; i < s->pass_end; i++) {
        uint32_t slot = colibri_distinct_at(s, i)->slot;
        int32_t status = COLIBRI_OK;
        if (slot != COLIBRI_NO && colibri_slot_at(s, slot)->state == COLIBRI_SLOT_GIVEN) {
            status = colibri_slot_ask(s, slot);
        }
        if (status < 0) {
            return status;
        }
        result = status == COLIBRI_WAIT ? COLIBRI_WAIT : result;
    }
    for (uint32_t i = s->pass_first; i < s->pass_end; i++) {
        uint32_t slot = colibri_distinct_at(s, i)->slot;
        if (slot != COLIBRI_NO && colibri_slot_at(s, slot)->state == COLIBRI_SLOT_ASKED) {
            int32_t status = colibri_slot_poll(s, slot);
            if (status < 0) {
                return status;
            }
            result = status == COLIBRI_WAIT ? COLIBRI_WAIT : result;
        }
        if (slot != COLIBRI_NO && colibri_slot_at(s, slot)->state == COLIBRI_SLOT_ARRIVED) {
            colibri_pool_words(s, s->layout.arrived)[s->arrived++] = slot;
        }
    }
    return result;
}

/* Before the first unit of a LEASE: DONE, WAIT or an error (call again after either). */
int32_t colibri_pass_prepare(colibri_session *s, uint32_t layer_index)
{
    if (s->pass_end == COLIBRI_NO) {            /* first pass of this layer */
        colibri_pass_list(s, colibri_layer_at(s, layer_index));
        if (s->layout.slot_count) {
            colibri_needed turn = colibri_needed_of(s, layer_index);
            colibri_cache_turn(colibri_cache_of(s), &turn);
        }
    }
    s->arrived = 0;
    if (s->layout.slot_count) {
        return colibri_pass_lease(s, layer_index);
    }
    s->pass_end = s->distinct_count;
    return COLIBRI_DONE;
}

/* The units of a LEASE: pieces of what the pass has that nobody vouched for. */
uint32_t colibri_pass_pieces(const colibri_session *s, uint32_t layer_index)
{
    return s->arrived * colibri_sum_pieces(colibri_layer_at(s, layer_index)->d.expert_run);
}

void colibri_pass_sum(colibri_session *s, const colibri_layer *layer, uint32_t unit)
{
    uint64_t run = layer->d.expert_run;
    uint32_t pieces = colibri_sum_pieces(run), piece = unit % pieces;
    uint32_t slot = colibri_pool_words(s, s->layout.arrived)[unit / pieces];
    uint64_t first = run - (pieces - 1u) * (uint64_t)COLIBRI_SUM_PIECE;
    uint64_t at = piece ? first + (piece - 1u) * (uint64_t)COLIBRI_SUM_PIECE : 0u;
    colibri_pool_words(s, s->layout.sums)[unit] =
        colibri_crc(s->kernel, 0, colibri_pool_at(s, s->layout.slot_data + slot * s->layout.slot_bytes + at),
                    piece ? COLIBRI_SUM_PIECE : first);
}

/* Behind the last unit of a LEASE: are the sums those of the file? */
int32_t colibri_pass_vouch(colibri_session *s, uint32_t layer_index)
{
    const colibri_description *d = &colibri_layer_at(s, layer_index)->d;
    uint32_t pieces = colibri_sum_pieces(d->expert_run), shift = colibri_crc_power(COLIBRI_SUM_PIECE);
    const uint32_t *sum = colibri_pool_words(s, s->layout.sums);
    int32_t status = COLIBRI_OK;
    for (uint32_t i = 0; i < s->arrived; i++) {
        colibri_slot *slot = colibri_slot_at(s, colibri_pool_words(s, s->layout.arrived)[i]);
        uint32_t crc = *sum++;
        for (uint32_t piece = 1; piece < pieces; piece++) {
            crc = colibri_crc_times(crc, shift) ^ *sum++;
        }
        if (crc == colibri_expert_sum_at(&s->view, d->first_expert + slot->expert)->crc) {
            slot->state = COLIBRI_SLOT_READY;
        } else {
            colibri_slot_lost(s, slot);
            status = COLIBRI_ERROR_CORRUPT;
        }
    }
    return status;
}

int colibri_pass_more(const colibri_session *s)
{
    return s->pass_end < s->distinct_count;
}

/* After the last unit of an EXPERT_DOWN: leases end, the next pass (if any) begins behind this one. */
void colibri_pass_release(colibri_session *s, uint32_t layer_index)
{
    if (s->layout.slot_count) {
        for (uint32_t i = s->pass_first; i < s->pass_end; i++) {
            uint32_t slot = colibri_distinct_at(s, i)->slot;
            if (slot != COLIBRI_NO) {
                colibri_slot_at(s, slot)->leased = 0;
            }
        }
        if (!colibri_pass_more(s)) {
            colibri_needed turn = colibri_needed_of(s, layer_index);
            colibri_cache_end(colibri_cache_of(s), &turn);
        }
    }
    s->pass_first = s->pass_end;
}

/* In the middle of a layer's passes: what is in flight keeps its slot until it is there, what was never asked for has
 * none. */
void colibri_pass_abandon(colibri_session *s, uint32_t layer_index)
{
    if (!s->layout.slot_count || s->pass_end == COLIBRI_NO) {
        return;
    }
    colibri_cache *cache = colibri_cache_of(s);
    colibri_needed turn = colibri_needed_of(s, layer_index);
    for (uint32_t i = 0; i < turn.count; i++) {
        uint32_t number = turn.base + colibri_distinct_at(s, i)->expert;
        uint32_t held = *colibri_cache_slot_of(cache, number);
        if (!held) {
            continue;
        }
        colibri_slot *slot = colibri_slot_at(s, held - 1u);
        if (slot->state == COLIBRI_SLOT_GIVEN) {
            colibri_slot_free(s, held - 1u);
        } else if (slot->state == COLIBRI_SLOT_ASKED) {
            colibri_cache_strand(cache, number, 1);
            s->stranded += slot->leased;
        } else {
            colibri_cache_list(cache, number);
        }
        slot->leased = 0;
    }
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

int32_t colibri_slots_pin(colibri_session *s, uint32_t layer_index, uint32_t expert, uint32_t pinned)
{
    const colibri_layer *layer = colibri_layer_at(s, layer_index);
    if (layer->d.ffn != COLIBRI_FFN_MOE || expert >= layer->d.experts) {
        return COLIBRI_ERROR_ARGUMENT;
    }
    return s->layout.slot_count ? colibri_cache_pin(colibri_cache_of(s), layer->d.first_expert + expert, pinned)
                                : COLIBRI_ERROR_LEFT_OUT;
}
