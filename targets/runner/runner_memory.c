/*
 * runner_memory.c: everything about the memory a job is given: carving the region, red zones round each pool,
 * the store that plays a slow device, and the refusals a plan promises (one byte less, odd addresses).
 *
 *   region: work space (token lists, rows) | 64-byte aligned: red zone, pool, red zone | the same again
 */
#include "runner_state.h"

#define RED_BYTE 0xC7u
#define POISON_BYTE 0xA5u

void colibri_runner_copy(void *to, const void *from, uint64_t bytes)
{
    unsigned char *t = to;
    const unsigned char *f = from;
    for (uint64_t i = 0; i < bytes; i++) {
        t[i] = f[i];
    }
}

void colibri_runner_set(void *to, uint32_t byte, uint64_t bytes)
{
    unsigned char *t = to;
    for (uint64_t i = 0; i < bytes; i++) {
        t[i] = (unsigned char)byte;
    }
}

uint32_t colibri_runner_differ(const void *a, const void *b, uint64_t bytes)
{
    const unsigned char *x = a;
    const unsigned char *y = b;
    for (uint64_t i = 0; i < bytes; i++) {
        if (x[i] != y[i]) {
            return 1u;
        }
    }
    return 0u;
}

/* Take bytes of the region, 64-byte aligned; null when it is too small. */
static void *take(runner *r, uint64_t bytes)
{
    uint64_t rounded = (bytes + 63u) & ~(uint64_t)63u;
    if (rounded < bytes || rounded > r->job->region_bytes - r->region_used) {
        return 0;
    }
    unsigned char *at = r->region + r->region_used;
    r->region_used += rounded;
    return at;
}

static void fill(runner *r, unsigned char *pool)
{
    uint32_t word = r->job->fill_word;
    for (uint64_t i = 0; i < r->plan.pool_bytes; i++) {
        pool[i] = (unsigned char)(word >> (8u * (i & 3u)));
    }
}

/* Is the pool still what fill() left? */
static uint32_t filled(const runner *r, const unsigned char *pool)
{
    uint32_t word = r->job->fill_word;
    for (uint64_t i = 0; i < r->plan.pool_bytes; i++) {
        if (pool[i] != (unsigned char)(word >> (8u * (i & 3u)))) {
            return 0u;
        }
    }
    return 1u;
}

/* Lay out the region after the plan is known. 0: too small. */
uint32_t colibri_runner_carve(runner *r)
{
    for (uint32_t i = 0; i < r->lanes; i++) {
        r->lane[i].tokens = take(r, (uint64_t)r->limits.context * 4u);
        if (r->lane[i].tokens == 0) {
            return 0u;
        }
    }
    r->saved = take(r, colibri_runner_save_room(r));
    if (r->saved == 0) {
        return 0u;
    }
    for (uint32_t i = 0; i < r->sessions; i++) {
        runner_session *s = &r->session[i];
        s->rows = take(r, (uint64_t)r->limits.batch * sizeof(colibri_row));
        unsigned char *before = take(r, RUNNER_RED_ZONE);
        s->pool = take(r, r->plan.pool_bytes);
        unsigned char *behind = take(r, RUNNER_RED_ZONE);
        if (s->rows == 0 || before == 0 || s->pool == 0 || behind == 0) {
            return 0u;
        }
        /* the zone behind begins at the pool's last byte, so rounding hides no overrun */
        colibri_runner_set(before, RED_BYTE, RUNNER_RED_ZONE);
        colibri_runner_set(s->pool + r->plan.pool_bytes, RED_BYTE, RUNNER_RED_ZONE);
        if ((r->job->flags & (RUNNER_FILL | RUNNER_PLAN_CHECK)) != 0u) {
            fill(r, s->pool);
        }
    }
    return 1u;
}

static uint32_t red_damage(const runner *r, const runner_session *s)
{
    const unsigned char *before = s->pool - RUNNER_RED_ZONE;
    const unsigned char *behind = s->pool + r->plan.pool_bytes;
    uint32_t damage = 0;
    for (uint32_t i = 0; i < RUNNER_RED_ZONE; i++) {
        damage += (uint32_t)(before[i] != RED_BYTE) + (uint32_t)(behind[i] != RED_BYTE);
    }
    return damage;
}

void colibri_runner_red_zones(runner *r)
{
    for (uint32_t i = 0; i < r->sessions; i++) {
        colibri_runner_check(r, "red_zones", 0u, red_damage(r, &r->session[i]));
    }
}

static uint64_t status_bits(int32_t status)
{
    return (uint64_t)(int64_t)status;
}

/* One byte less than planned, and addresses off by 32, are refused before anything is written. */
void colibri_runner_plan_check(runner *r)
{
    runner_session *s = &r->session[0];
    colibri_session *untouched = (colibri_session *)(void *)r->region;
    colibri_session *out = untouched;
    colibri_model model;
    int32_t status = colibri_start(&r->model, &r->limits, &r->hooks, s->pool, r->plan.pool_bytes - 1u, &out,
                                   &r->detail);
    colibri_runner_check(r, "pool_small", status_bits(COLIBRI_ERROR_POOL_SMALL), status_bits(status));
    status = colibri_start(&r->model, &r->limits, &r->hooks, s->pool + 32, r->plan.pool_bytes - 32u, &out,
                           &r->detail);
    colibri_runner_check(r, "pool_align", status_bits(COLIBRI_ERROR_ALIGN), status_bits(status));
    colibri_runner_check(r, "session_untouched", 1u, (uint64_t)(out == untouched));
    colibri_runner_check(r, "nothing_written", 1u, filled(r, s->pool));
    colibri_runner_check(r, "refusal_red_zones", 0u, red_damage(r, s));
    uint64_t rest = r->job->blob_bytes - 32u;
    status = colibri_open(&model, r->blob + 32, rest, rest, &r->detail);
    colibri_runner_check(r, "blob_align", status_bits(COLIBRI_ERROR_ALIGN), status_bits(status));
}

/* ---- the store ---- */

enum fault { FAULT_NONE, FAULT_REFUSED, FAULT_LOST, FAULT_WRONG };

static uint32_t delay_of(runner *r)
{
    if (r->job->store != RUNNER_STORE_RANDOM) {
        return r->job->store_delay;
    }
    r->drawn = r->drawn * 1664525u + 1013904223u;
    return (r->drawn >> 16) % (r->job->store_delay + 1u);
}

/* Every n-th fetch goes wrong, once: it is the next number when it is asked for again. */
static uint32_t fault_of(const runner *r)
{
    uint32_t n = r->job->store_faults;
    return n != 0u && r->fetches % n == n - 1u ? FAULT_REFUSED + (uint32_t)(r->fetches / n % 3u) : FAULT_NONE;
}

static void remember(runner *r, uint32_t layer, uint32_t expert, uint64_t offset)
{
    r->lost_layer = layer;
    r->lost_expert = expert;
    r->lost_offset = offset;
}

static int32_t fetch(void *user, const colibri_fetch_request *request)
{
    const runner_session *s = user;
    runner *r = s->owner;
    uint32_t i = 0, fault = fault_of(r);
    while (i < RUNNER_TICKETS && r->ticket[i].used != 0u) {
        i++;
    }
    if (i == RUNNER_TICKETS) {
        return COLIBRI_WAIT;
    }
    remember(r, request->layer, request->expert, request->offset);
    if (request->offset > r->job->blob_bytes || request->bytes > r->job->blob_bytes - request->offset) {
        return COLIBRI_ERROR_FETCH;
    }
    if (fault == FAULT_REFUSED) {
        r->fetches++;
        r->faults++;
        return COLIBRI_ERROR_FETCH;
    }
    colibri_fetch_request numbered = *request;
    numbered.ticket = i;                        /* sessions number theirs alike */
    int32_t status = r->job->store == RUNNER_STORE_PORT ? colibri_runner_fetch(&numbered) : COLIBRI_OK;
    if (status != COLIBRI_OK) {
        return status;
    }
    r->ticket[i] = (runner_ticket){1u, (uint32_t)(s - r->session), request->ticket, delay_of(r), request->layer,
                                   request->expert, fault, r->fetches++, request->offset, request->bytes,
                                   request->destination};
    if (r->job->store != RUNNER_STORE_PORT) {
        colibri_runner_set(request->destination, POISON_BYTE, request->bytes);
    }
    return COLIBRI_OK;
}

/* Has a fetch that was begun later not been answered yet? */
static uint32_t newer_open(const runner *r, const runner_ticket *t)
{
    for (uint32_t i = 0; i < RUNNER_TICKETS; i++) {
        const runner_ticket *other = &r->ticket[i];
        if (other->used != 0u && other->session == t->session && other->number > t->number) {
            return 1u;
        }
    }
    return 0u;
}

/* DONE, WAIT or an error of the store itself. */
static int32_t arrival(runner *r, runner_ticket *t)
{
    if (r->job->store == RUNNER_STORE_PORT) {
        return colibri_runner_fetched((uint32_t)(t - r->ticket));
    }
    if (r->job->store == RUNNER_STORE_REVERSED && newer_open(r, t) != 0u) {
        return COLIBRI_WAIT;
    }
    if (r->job->store != RUNNER_STORE_COPY && t->delay != 0u) {
        t->delay--;
        return COLIBRI_WAIT;
    }
    colibri_runner_copy(t->destination, r->blob + t->offset, t->bytes);
    return COLIBRI_DONE;
}

static int32_t fetched(void *user, uint32_t ticket)
{
    const runner_session *s = user;
    runner *r = s->owner;
    for (uint32_t i = 0; i < RUNNER_TICKETS; i++) {
        runner_ticket *t = &r->ticket[i];
        if (t->used == 0u || t->ticket != ticket || t->session != (uint32_t)(s - r->session)) {
            continue;
        }
        int32_t status = arrival(r, t);
        if (status == COLIBRI_WAIT) {
            return COLIBRI_WAIT;
        }
        t->used = 0u;
        remember(r, t->layer, t->expert, t->offset);
        r->faults += t->fault != FAULT_NONE;
        if (t->fault == FAULT_WRONG) {
            t->destination[t->number * 997u % t->bytes] ^= 1u;
        }
        return t->fault == FAULT_LOST ? COLIBRI_ERROR_FETCH : status;
    }
    return COLIBRI_ERROR_FETCH;
}

/* An error that a fetch made on purpose explains, or one of the port's store that is put up with: 1, the call is made
 * again, and the session goes on where it was. */
uint32_t colibri_runner_recover(runner *r, int32_t status)
{
    if (status != COLIBRI_ERROR_FETCH && status != COLIBRI_ERROR_CORRUPT) {
        return 0u;
    }
    if (r->recovered != r->faults) {
        r->recovered++;
        return 1u;
    }
    if (r->job->store != RUNNER_STORE_PORT || r->resumed == r->job->store_resumes) {
        return 0u;
    }
    r->resumed++;
    colibri_runner_place(r, "again");
    return 1u;
}

/* Several workers on one thread: uneven ranges, the last worker first. Where there are no threads it shows all the same
 * that neither the ranges nor their order enter the answer, and it does so in the same way each time. */
static void odd_ranges(void *user, colibri_session *session, uint32_t count)
{
    const runner *r = ((const runner_session *)user)->owner;
    uint32_t worker = r->limits.workers - 1u;
    uint32_t end = count;
    while (end != 0u) {
        uint32_t part = 1u + end / (worker + 2u);
        uint32_t first = part < end ? end - part : 0u;
        colibri_work(session, worker, first, end - first);
        end = first;
        worker = worker == 0u ? r->limits.workers - 1u : worker - 1u;
    }
}

static void parallel(void *user, colibri_session *session, uint32_t count)
{
    (void)user;
    colibri_runner_parallel(session, count);
}

void colibri_runner_hooks(runner *r)
{
    r->hooks = (colibri_hooks){.struct_bytes = sizeof r->hooks, .user = &r->session[0]};
    if (r->job->store != RUNNER_STORE_ADDRESSABLE) {
        r->hooks.fetch = fetch;
        r->hooks.fetched = fetched;
    }
    r->threads = 1u;
    if (r->limits.workers > 1u) {
        r->threads = (r->job->flags & RUNNER_ODD_RANGES) != 0u ? 1u : colibri_runner_threads(r->limits.workers);
        r->hooks.parallel = r->threads > 1u ? parallel : odd_ranges;
    }
}
