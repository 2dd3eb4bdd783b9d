/*
 * cache.h: which experts stay in the slots. A policy over numbers alone: it knows no session, no bytes and no host, so
 * that a recorded trace is replayed by the very code that a session runs.
 *
 * A turn is the distinct experts one layer of one feed needs, ascending. At each expert of a turn all experts have an
 * order that depends on the turns so far and never on the number of slots; the victim is the lowest that is held:
 *   1. what this turn does not need, or has used before its last `window` experts: by the policy
 *   2. the last `window` experts used, oldest first: they may run together
 *   3. what this turn still needs, furthest first
 *   4. pinned experts: never
 * So what n slots hold is among what n + 1 slots hold: misses never rise when slots are added (a stack algorithm).
 */
#ifndef COLIBRI_CACHE_H
#define COLIBRI_CACHE_H

#include "base/base.h"

enum {
    COLIBRI_CACHE_USES = 17,                    /* levels by use */
    COLIBRI_CACHE_AGES = 5,                     /* levels by age */
    COLIBRI_CACHE_LEVELS = COLIBRI_CACHE_USES * COLIBRI_CACHE_AGES,
    COLIBRI_CACHE_QUEUES = 4
};

/* Doubly linked lists of expert numbers, one a level; a list begins with what was put in first. */
typedef struct colibri_queue {
    uint32_t first[COLIBRI_CACHE_LEVELS];
    uint32_t last[COLIBRI_CACHE_LEVELS];
    uint32_t links;                             /* words from the first word of the arrays; COLIBRI_NO: not kept */
    uint32_t size;
} colibri_queue;

typedef struct colibri_cache {
    uint32_t experts, slots, policy, window;
    uint32_t held, pinned;                      /* slots given out; experts that were pinned, held or not */
    uint32_t references;                        /* since counts were halved */
    uint32_t follow;                            /* the queue victims come from */
    int32_t lead;                               /* how much more the ghost by age hits than that by use */
    uint32_t lead_shift, ghost_slots;
    uint32_t position, let_go, far;             /* of the turn */
    colibri_queue queue[COLIBRI_CACHE_QUEUES];
} colibri_cache;                                /* and behind it: states, slot_of, links */

/* A turn: numbers base + words[i * stride], ascending, of a layer whose experts are base .. base + span - 1. */
typedef struct colibri_needed {
    const uint32_t *words;
    uint32_t stride, base, span, count;
} colibri_needed;

enum colibri_cache_answer {
    COLIBRI_CACHE_HIT = 1,                      /* held already */
    COLIBRI_CACHE_FREE = 2,                     /* takes a slot that is free */
    COLIBRI_CACHE_EVICT = 3,                    /* takes the victim's slot */
    COLIBRI_CACHE_CLOSE = 4,                    /* its victim is in the pass: run that first */
    COLIBRI_CACHE_NONE = 5                      /* nothing can be given up now */
};

/* Bytes for the structure and its arrays. */
uint64_t colibri_cache_bytes(uint64_t experts, uint32_t policy);
void colibri_cache_begin(colibri_cache *c, uint32_t experts, uint32_t slots, uint32_t policy, uint32_t window);
/* Slot + 1 of an expert, 0 = none; the owner of the slots writes it. */
uint32_t *colibri_cache_slot_of(colibri_cache *c, uint32_t expert);
void colibri_cache_turn(colibri_cache *c, const colibri_needed *turn);
/* The expert at c->position, which goes on unless the answer is CLOSE or NONE. The pass began at pass_first. */
uint32_t colibri_cache_next(colibri_cache *c, const colibri_needed *turn, uint32_t pass_first, uint32_t *victim);
/* The same for an expert that needs no slot this time. */
void colibri_cache_skip(colibri_cache *c);
/* The turn is over: all it holds may be given up. */
void colibri_cache_end(colibri_cache *c, const colibri_needed *turn);
/* A held expert may be given up (again); or may not. */
void colibri_cache_list(colibri_cache *c, uint32_t expert);
void colibri_cache_unlist(colibri_cache *c, uint32_t expert);
/* Bytes are in flight into a slot that no pass waits for: it may not be given up, until that is over. */
void colibri_cache_strand(colibri_cache *c, uint32_t expert, uint32_t stranded);
/* A slot's content is lost and the slot free. */
void colibri_cache_forget(colibri_cache *c, uint32_t expert);
/* Pin, or end that; LIMIT if fewer than `window` slots would be left. */
int32_t colibri_cache_pin(colibri_cache *c, uint32_t expert, uint32_t pinned);

#endif
