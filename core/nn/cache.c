/*
 * cache.c: the policies of the expert slots (cache.h says what all of them share).
 *
 * By use (LFU): fewest uses first, in levels of half an octave, and of a level the most recently used first, since
 * layers come round in a circle and what was used last is needed last. Counts belong to all experts, held or not, and
 * are halved now and then. By age: those whose layer has come round longest without them first, in octaves; of the
 * same age by use. Adaptive, the default: the one of these two that would have hit more often, lately, with a quarter
 * of the experts held; two ghosts, which hold numbers alone, find that out. LRU is the plain one. A victim is found in
 * O(1); what a turn costs besides is a step for each expert of its layer.
 */
#include "nn/cache.h"

enum { BY_AGE = 0, BY_USE = 1, GHOST = 2 };     /* queue = order + GHOST for the ghosts; LRU keeps the first alone */
enum {                                          /* an expert's state: */
    USES = 0xFF,
    LISTED = 0x100,                             /* held, and may be given up */
    PINNED = 0x200,
    IN_GHOST = 0x400,                           /* << order */
    STRANDED = 0x10000,                         /* held, and not to be given up now */
    AGE = 0xF000, AGE_ONE = 0x1000,             /* turns of its layer since its last use, at most 15 */
    AGES_THAT_MOVE = 1 << 0 | 1 << 2 | 1 << 6 | 1 << 14         /* one more is another level */
};
enum {
    USES_PERIOD = 8,                            /* counts are halved after so many uses an expert, on average */
    LEAD_UNIT = 4096,                           /* of a hit */
    LEAD_PERIOD = 8,                            /* what it led by so many uses an expert ago counts a third */
    LEAD_MARGIN = 128,                           /* by a hit in so many references an order must lead to be followed */
    LEAD_SHIFT_MOST = 17
};

static uint32_t *colibri_cache_words(colibri_cache *c)
{
    return (uint32_t *)(void *)(c + 1);
}

static uint32_t *colibri_cache_state(colibri_cache *c, uint32_t expert)
{
    return colibri_cache_words(c) + expert;
}

uint32_t *colibri_cache_slot_of(colibri_cache *c, uint32_t expert)
{
    return colibri_cache_words(c) + c->experts + expert;
}

static int colibri_queue_kept(uint32_t policy, uint32_t queue)
{
    return policy == COLIBRI_POLICY_ADAPTIVE || queue == (policy == COLIBRI_POLICY_LFU ? BY_USE : BY_AGE);
}

uint64_t colibri_cache_bytes(uint64_t experts, uint32_t policy)
{
    uint64_t words = 2;
    for (uint32_t q = 0; q < COLIBRI_CACHE_QUEUES; q++) {
        words += colibri_queue_kept(policy, q) ? 2u : 0u;
    }
    return sizeof(colibri_cache) + 4u * words * experts;
}

void colibri_cache_begin(colibri_cache *c, uint32_t experts, uint32_t slots, uint32_t policy, uint32_t window)
{
    uint32_t links = 2u * experts;
    colibri_fill(c, 0, colibri_cache_bytes(experts, policy));
    c->experts = experts;
    c->slots = slots;
    c->policy = policy;
    c->window = window ? window : 1u;
    c->follow = policy == COLIBRI_POLICY_LFU ? BY_USE : BY_AGE;
    c->ghost_slots = experts / 4u ? experts / 4u : 1u;
    while (c->lead_shift < LEAD_SHIFT_MOST && 1u << c->lead_shift < LEAD_PERIOD * (uint64_t)experts) {
        c->lead_shift++;
    }
    for (uint32_t q = 0; q < COLIBRI_CACHE_QUEUES; q++) {
        colibri_queue *queue = &c->queue[q];
        for (uint32_t level = 0; level < COLIBRI_CACHE_LEVELS; level++) {
            queue->first[level] = queue->last[level] = COLIBRI_NO;
        }
        queue->links = COLIBRI_NO;
        if (colibri_queue_kept(policy, q)) {
            queue->links = links;
            links += 2u * experts;
        }
    }
}

/* --- lists --- */

/* 0; 1; 2; 3; 4, 5; 6, 7; 8 .. 11; 12 .. 15; ...: half octaves. Halving a count goes down by two levels, and from
 * 2 and 3 to the level of 1, which is level 1. Level 2 stays empty. */
static uint32_t colibri_level_of_uses(uint32_t uses)
{
    uint32_t level = 1;
    while (uses >= 4u) {
        uses >>= 1;
        level += 2u;
    }
    return uses <= 1u ? uses : level + uses;
}

/* 15; 7 .. 14; 3 .. 6; 1, 2; 0 */
static uint32_t colibri_level_of_age(uint32_t state)
{
    uint32_t age = (state & AGE) / AGE_ONE;
    return age == 15u ? 0u : age >= 7u ? 1u : age >= 3u ? 2u : age >= 1u ? 3u : 4u;
}

static uint32_t colibri_cache_level(colibri_cache *c, uint32_t q, uint32_t expert)
{
    uint32_t state = *colibri_cache_state(c, expert);
    uint32_t level = colibri_level_of_uses(state & USES);
    if (c->policy == COLIBRI_POLICY_LRU) {
        return 0;
    }
    return q % 2u == BY_AGE ? colibri_level_of_age(state) * COLIBRI_CACHE_USES + level : level;
}

static uint32_t *colibri_cache_link(colibri_cache *c, uint32_t q, uint32_t expert)
{
    return colibri_cache_words(c) + c->queue[q].links + 2u * expert;
}

static void colibri_queue_put(colibri_cache *c, uint32_t q, uint32_t expert)
{
    colibri_queue *queue = &c->queue[q];
    uint32_t level = colibri_cache_level(c, q, expert);
    uint32_t *link = colibri_cache_link(c, q, expert);
    link[0] = queue->last[level];
    link[1] = COLIBRI_NO;
    if (link[0] != COLIBRI_NO) {
        colibri_cache_link(c, q, link[0])[1] = expert;
    } else {
        queue->first[level] = expert;
    }
    queue->last[level] = expert;
    queue->size++;
}

static void colibri_queue_drop(colibri_cache *c, uint32_t q, uint32_t expert)
{
    colibri_queue *queue = &c->queue[q];
    uint32_t level = colibri_cache_level(c, q, expert);
    const uint32_t *link = colibri_cache_link(c, q, expert);
    if (link[0] != COLIBRI_NO) {
        colibri_cache_link(c, q, link[0])[1] = link[1];
    } else {
        queue->first[level] = link[1];
    }
    if (link[1] != COLIBRI_NO) {
        colibri_cache_link(c, q, link[1])[0] = link[0];
    } else {
        queue->last[level] = link[0];
    }
    queue->size--;
}

/* Whom the order gives up first, COLIBRI_NO if it holds nobody. */
static uint32_t colibri_queue_lowest(const colibri_cache *c, uint32_t q)
{
    const colibri_queue *queue = &c->queue[q];
    uint32_t level = 0;
    if (c->policy == COLIBRI_POLICY_LRU) {
        return queue->first[0];
    }
    while (level + 1u < COLIBRI_CACHE_LEVELS && queue->last[level] == COLIBRI_NO) {
        level++;
    }
    return queue->last[level];
}

/* List `from` in front of list `to`: more uses are given up later. */
static void colibri_queue_join(colibri_cache *c, uint32_t q, uint32_t to, uint32_t from)
{
    colibri_queue *queue = &c->queue[q];
    uint32_t end = queue->last[from];
    if (end == COLIBRI_NO) {
        return;
    }
    colibri_cache_link(c, q, end)[1] = queue->first[to];
    if (queue->first[to] != COLIBRI_NO) {
        colibri_cache_link(c, q, queue->first[to])[0] = end;
    } else {
        queue->last[to] = end;
    }
    queue->first[to] = queue->first[from];
    queue->first[from] = queue->last[from] = COLIBRI_NO;
}

static void colibri_cache_halve(colibri_cache *c)
{
    for (uint32_t e = 0; e < c->experts; e++) {
        uint32_t *state = colibri_cache_state(c, e);
        *state = (*state & ~(uint32_t)USES) | (*state & USES) >> 1;
    }
    for (uint32_t q = 0; q < COLIBRI_CACHE_QUEUES; q++) {
        uint32_t end = q % 2u == BY_AGE ? COLIBRI_CACHE_LEVELS : COLIBRI_CACHE_USES;
        for (uint32_t at = 0; c->queue[q].links != COLIBRI_NO && at < end; at += COLIBRI_CACHE_USES) {
            colibri_queue_join(c, q, at, at + 1u);
            colibri_queue_join(c, q, at + 1u, at + 3u);
            colibri_queue_join(c, q, at + 1u, at + 4u);
            for (uint32_t level = at + 3u; level + 2u < at + COLIBRI_CACHE_USES; level++) {
                colibri_queue_join(c, q, level, level + 2u);
            }
        }
    }
}

/* --- what may be given up --- */

void colibri_cache_list(colibri_cache *c, uint32_t expert)
{
    uint32_t *state = colibri_cache_state(c, expert);
    if (*state & (LISTED | PINNED | STRANDED)) {
        return;
    }
    for (uint32_t q = 0; q < GHOST; q++) {
        if (c->queue[q].links != COLIBRI_NO) {
            colibri_queue_put(c, q, expert);
        }
    }
    *state |= LISTED;
}

void colibri_cache_unlist(colibri_cache *c, uint32_t expert)
{
    uint32_t *state = colibri_cache_state(c, expert);
    if (!(*state & LISTED)) {
        return;
    }
    for (uint32_t q = 0; q < GHOST; q++) {
        if (c->queue[q].links != COLIBRI_NO) {
            colibri_queue_drop(c, q, expert);
        }
    }
    *state &= ~(uint32_t)LISTED;
}

void colibri_cache_strand(colibri_cache *c, uint32_t expert, uint32_t stranded)
{
    uint32_t *state = colibri_cache_state(c, expert);
    colibri_cache_unlist(c, expert);
    *state = stranded ? *state | STRANDED : *state & ~(uint32_t)STRANDED;
}

void colibri_cache_forget(colibri_cache *c, uint32_t expert)
{
    colibri_cache_unlist(c, expert);
    *colibri_cache_slot_of(c, expert) = 0;
    c->held--;
}

int32_t colibri_cache_pin(colibri_cache *c, uint32_t expert, uint32_t pinned)
{
    uint32_t *state = colibri_cache_state(c, expert);
    if (pinned && !(*state & PINNED)) {
        if (c->pinned + c->window >= c->slots) {
            return COLIBRI_ERROR_LIMIT;
        }
        colibri_cache_unlist(c, expert);
        *state |= PINNED;
        c->pinned++;
    } else if (!pinned && (*state & PINNED)) {
        *state &= ~(uint32_t)PINNED;
        c->pinned--;
        if (*colibri_cache_slot_of(c, expert)) {
            colibri_cache_list(c, expert);
        }
    }
    return COLIBRI_OK;
}

/* --- uses --- */

static uint32_t colibri_needed_at(const colibri_needed *turn, uint32_t position)
{
    return turn->base + turn->words[(uint64_t)position * turn->stride];
}

/* What a ghost holds of a turn counts as hit, and waits outside its queue until it is used; returns how many. */
static uint32_t colibri_ghost_meet(colibri_cache *c, const colibri_needed *turn, uint32_t order)
{
    uint32_t hits = 0;
    for (uint32_t i = 0; i < turn->count; i++) {
        uint32_t expert = colibri_needed_at(turn, i);
        if (*colibri_cache_state(c, expert) & (uint32_t)IN_GHOST << order) {
            colibri_queue_drop(c, order + GHOST, expert);
            hits++;
        }
    }
    return hits;
}

/* A used expert into a ghost, `waiting` others have their places in it. */
static uint32_t colibri_ghost_use(colibri_cache *c, uint32_t order, uint32_t expert, uint32_t waiting)
{
    uint32_t q = order + GHOST;
    uint32_t mark = (uint32_t)IN_GHOST << order;
    uint32_t *state = colibri_cache_state(c, expert);
    uint32_t victim = COLIBRI_NO;
    if (*state & mark) {
        colibri_queue_put(c, q, expert);
        return waiting - 1u;
    }
    if (c->queue[q].size + waiting >= c->ghost_slots) {
        victim = colibri_queue_lowest(c, q);
        if (victim == COLIBRI_NO) {
            return waiting;
        }
        colibri_queue_drop(c, q, victim);
        *colibri_cache_state(c, victim) &= ~mark;
    }
    *state |= mark;
    colibri_queue_put(c, q, expert);
    return waiting;
}

/* A turn's uses: counts, ghosts, and which of them leads. */
static void colibri_cache_use(colibri_cache *c, const colibri_needed *turn)
{
    int ghosts = c->policy == COLIBRI_POLICY_ADAPTIVE;
    uint32_t by_age = ghosts ? colibri_ghost_meet(c, turn, BY_AGE) : 0u;
    uint32_t by_use = ghosts ? colibri_ghost_meet(c, turn, BY_USE) : 0u;
    int32_t lead = ((int32_t)by_age - (int32_t)by_use) * LEAD_UNIT;
    int32_t period = (int32_t)(1u << c->lead_shift);
    int32_t margin = LEAD_UNIT / LEAD_MARGIN * period;
    for (uint32_t i = 0; i < turn->count; i++) {
        uint32_t expert = colibri_needed_at(turn, i);
        uint32_t *state = colibri_cache_state(c, expert);
        *state = (*state & ~(uint32_t)AGE) + ((*state & USES) != USES);
        if (ghosts) {
            by_age = colibri_ghost_use(c, BY_AGE, expert, by_age);
            by_use = colibri_ghost_use(c, BY_USE, expert, by_use);
            c->lead -= c->lead / period;
        }
        if (c->policy != COLIBRI_POLICY_LRU && ++c->references == USES_PERIOD * (uint64_t)c->experts) {
            c->references = 0;
            colibri_cache_halve(c);
        }
    }
    c->lead += lead;
    c->follow = c->lead > margin ? BY_AGE : c->lead < -margin ? BY_USE : c->follow;
}

/* One more turn of its layer: where that makes it older by a level, it moves in the queues it is in. */
static void colibri_cache_age(colibri_cache *c, uint32_t expert)
{
    uint32_t *state = colibri_cache_state(c, expert);
    uint32_t older = (*state & AGE) == AGE ? *state : *state + AGE_ONE;
    int moves = (AGES_THAT_MOVE >> (*state & AGE) / AGE_ONE & 1u) != 0u;
    int listed = moves && (*state & LISTED);
    int ghost = moves && (*state & IN_GHOST << BY_AGE);
    if (listed) {
        colibri_queue_drop(c, BY_AGE, expert);
    }
    if (ghost) {
        colibri_queue_drop(c, BY_AGE + GHOST, expert);
    }
    *state = older;
    if (listed) {
        colibri_queue_put(c, BY_AGE, expert);
    }
    if (ghost) {
        colibri_queue_put(c, BY_AGE + GHOST, expert);
    }
}

/* --- a turn --- */

/* Is an expert between two positions of the turn? */
static int colibri_needed_has(const colibri_needed *turn, uint32_t low, uint32_t high, uint32_t expert)
{
    while (low < high) {
        uint32_t middle = low + (high - low) / 2u;
        uint32_t there = colibri_needed_at(turn, middle);
        if (there == expert) {
            return 1;
        }
        if (there < expert) {
            low = middle + 1u;
        } else {
            high = middle;
        }
    }
    return 0;
}

/* Does every expert have a slot? Then nothing is ever given up, and nothing needs an order. */
static int colibri_cache_roomy(const colibri_cache *c)
{
    return c->slots >= c->experts;
}

void colibri_cache_turn(colibri_cache *c, const colibri_needed *turn)
{
    c->position = 0;
    c->let_go = 0;
    c->far = turn->count;
    if (colibri_cache_roomy(c)) {
        return;
    }
    for (uint32_t i = 0; i < turn->count; i++) {
        colibri_cache_unlist(c, colibri_needed_at(turn, i));
    }
    for (uint32_t i = 0; c->policy == COLIBRI_POLICY_ADAPTIVE && i < turn->span; i++) {
        colibri_cache_age(c, turn->base + i);
    }
    colibri_cache_use(c, turn);
}

static void colibri_cache_let_go(colibri_cache *c, const colibri_needed *turn)
{
    uint32_t expert = colibri_needed_at(turn, c->let_go++);
    if (*colibri_cache_slot_of(c, expert)) {
        colibri_cache_list(c, expert);
    }
}

/* The lowest of all that are held, COLIBRI_NO if nothing can be given up. */
static uint32_t colibri_cache_victim(colibri_cache *c, const colibri_needed *turn)
{
    uint32_t victim = colibri_queue_lowest(c, c->follow);
    while (victim == COLIBRI_NO && c->let_go < c->position) {
        colibri_cache_let_go(c, turn);
        victim = colibri_queue_lowest(c, c->follow);
    }
    while (victim == COLIBRI_NO && c->far > c->position + 1u) {
        uint32_t expert = colibri_needed_at(turn, --c->far);
        if (*colibri_cache_slot_of(c, expert) && !(*colibri_cache_state(c, expert) & (PINNED | STRANDED))) {
            colibri_cache_list(c, expert);
            victim = expert;
        }
    }
    return victim;
}

uint32_t colibri_cache_next(colibri_cache *c, const colibri_needed *turn, uint32_t pass_first, uint32_t *victim)
{
    while (!colibri_cache_roomy(c) && c->position - c->let_go > c->window) {
        colibri_cache_let_go(c, turn);
    }
    if (*colibri_cache_slot_of(c, colibri_needed_at(turn, c->position))) {
        c->position++;
        return COLIBRI_CACHE_HIT;
    }
    if (c->held < c->slots) {
        c->held++;
        c->position++;
        return COLIBRI_CACHE_FREE;
    }
    *victim = colibri_cache_victim(c, turn);
    if (*victim == COLIBRI_NO) {
        return COLIBRI_CACHE_NONE;
    }
    if (colibri_needed_has(turn, pass_first, c->position, *victim)) {
        return COLIBRI_CACHE_CLOSE;
    }
    colibri_cache_unlist(c, *victim);
    c->position++;
    return COLIBRI_CACHE_EVICT;
}

void colibri_cache_skip(colibri_cache *c)
{
    c->position++;
}

void colibri_cache_end(colibri_cache *c, const colibri_needed *turn)
{
    while (!colibri_cache_roomy(c) && c->let_go < turn->count) {
        colibri_cache_let_go(c, turn);
    }
}
