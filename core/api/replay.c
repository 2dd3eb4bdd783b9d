/*
 * replay.c: the slots' policy for tools, without a model: what a session would hit and miss on a recorded trace. The
 * policy is cache.c's; here are only the turns in the caller's words and the slots that hold nothing.
 */
#include "nn/cache.h"

uint64_t colibri_replay_bytes(uint32_t experts, uint32_t policy)
{
    return policy > COLIBRI_POLICY_LFU ? 0u : colibri_cache_bytes(experts, policy);
}

int32_t colibri_replay_start(void *memory, uint64_t bytes, uint32_t experts, uint32_t slots, uint32_t policy,
                             uint32_t window)
{
    if (!memory || !experts || experts > UINT32_MAX / 16u || !slots || policy > COLIBRI_POLICY_LFU) {
        return COLIBRI_ERROR_ARGUMENT;
    }
    if (bytes < colibri_cache_bytes(experts, policy)) {
        return COLIBRI_ERROR_POOL_SMALL;
    }
    colibri_cache_begin(memory, experts, slots, policy, window);
    return COLIBRI_OK;
}

int32_t colibri_replay_pin(void *memory, uint32_t expert)
{
    colibri_cache *c = memory;
    return !c || expert >= c->experts ? COLIBRI_ERROR_ARGUMENT : colibri_cache_pin(c, expert, 1);
}

enum { HEAD = 3 };                              /* words of a turn before its numbers: base, span, how many */

/* Whole turns of ascending numbers of their layers? */
static int colibri_turns_right(const colibri_cache *c, const uint32_t *words, uint64_t count)
{
    for (uint64_t at = 0; at < count; at += HEAD + words[at + 2u]) {
        if (count - at < HEAD || words[at + 2u] > count - at - HEAD) {
            return 0;
        }
        uint64_t low = words[at];
        uint64_t end = low + words[at + 1u];
        if (end > c->experts) {
            return 0;
        }
        for (uint32_t i = 0; i < words[at + 2u]; i++) {
            uint64_t expert = (uint64_t)words[at] + words[at + HEAD + i];
            if (expert < low || expert >= end) {
                return 0;
            }
            low = expert + 1u;
        }
    }
    return 1;
}

/* One turn, pass after pass; returns what it missed. */
static uint32_t colibri_replay_turn(colibri_cache *c, const colibri_needed *turn)
{
    uint32_t pass_first = 0;
    uint32_t misses = 0;
    uint32_t victim = COLIBRI_NO;
    colibri_cache_turn(c, turn);
    while (c->position < turn->count) {
        uint32_t expert = turn->base + turn->words[c->position];
        uint32_t answer = colibri_cache_next(c, turn, pass_first, &victim);
        if (answer == COLIBRI_CACHE_EVICT) {
            *colibri_cache_slot_of(c, victim) = 0;
        }
        if (answer == COLIBRI_CACHE_EVICT || answer == COLIBRI_CACHE_FREE) {
            *colibri_cache_slot_of(c, expert) = 1;
            misses++;
        }
        pass_first = answer == COLIBRI_CACHE_CLOSE ? c->position : pass_first;
    }
    colibri_cache_end(c, turn);
    return misses;
}

int32_t colibri_replay_turns(void *memory, const uint32_t *words, uint64_t count, uint64_t *hits, uint64_t *misses)
{
    colibri_cache *c = memory;
    if (!c || (count && !words) || !hits || !misses || !colibri_turns_right(c, words, count)) {
        return COLIBRI_ERROR_ARGUMENT;
    }
    for (uint64_t at = 0; at < count; at += HEAD + words[at + 2u]) {
        colibri_needed turn = {words + at + HEAD, 1, words[at], words[at + 1u], words[at + 2u]};
        uint32_t missed = colibri_replay_turn(c, &turn);
        *misses += missed;
        *hits += turn.count - missed;
    }
    return COLIBRI_OK;
}
