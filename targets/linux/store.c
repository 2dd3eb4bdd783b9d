/*
 * store.c: see store.h. A request is a row of reads, each begun when the one before it has ended: whole, short, failed.
 * What differs between io_uring and threads is who begins them; what is asked for next, and what an answer means, is
 * the same code.
 *
 * Threads. A request is QUEUED by the driver, and belongs to the thread that makes it RUNNING by compare-and-swap until
 * that thread makes it ENDED (release; the driver's look at the state acquires). Sleepers are not missed for the reason
 * given in crew.c: whoever changes the word looks afterwards whether someone sleeps on it.
 */
#include "store.h"

#include "crew_port.h"
#include "linux_call.h"
#include "store_ring.h"

enum read_state { FREE, QUEUED, RUNNING, ENDED };

enum { AT_FDCWD = -100, SEEK_END = 2, O_CLOEXEC = 0x80000, CLOCK_MONOTONIC = 1, FUTEX_WAIT_PRIVATE = 128,
       PROT_READ_WRITE = 3, MAP_PRIVATE_ANONYMOUS = 34, ERROR_AGAIN = 11, ERROR_BUSY = 16, ERROR_INVALID = 22,
       ERROR_UNSUPPORTED = 95, DEPTH = 8, THREADS = 4, LARGEST_READ = 1 << 30 };
#if defined(__aarch64__)
enum { O_DIRECT = 0x10000 };
#else
enum { O_DIRECT = 0x4000 };
#endif
#define POISON 0xA5u

static uint64_t clock_now(void)
{
    int64_t now[2] = {0, 0};
    (void)colibri_linux_call(SYS_CLOCK, CLOCK_MONOTONIC, (long)(intptr_t)now, 0, 0, 0, 0);
    return (uint64_t)now[0] * 1000000000u + (uint64_t)now[1];
}

static void sleep_for(uint64_t nanoseconds)
{
    int64_t span[2] = {(int64_t)(nanoseconds / 1000000000u), (int64_t)(nanoseconds % 1000000000u)};
    (void)colibri_linux_call(SYS_NANOSLEEP, (long)(intptr_t)span, 0, 0, 0, 0, 0);
}

static uint32_t direct(const colibri_store *store)
{
    return store->options.flags & COLIBRI_STORE_DIRECT;
}

/* ---- one request ---- */

/* What is to be read next. Direct reads begin and end at pages, in the file and in memory: what does not goes through
 * the request's bounce. */
static void read_plan(const colibri_store *store, colibri_store_read *r)
{
    uint64_t left = r->bytes - r->done;
    r->at = r->offset + r->done;
    r->into = r->destination + r->done;
    r->ask = left < store->options.piece_bytes ? left : store->options.piece_bytes;
    r->skip = 0;
    if (direct(store) == 0u) {
        return;
    }
    if (r->at % COLIBRI_STORE_PAGE == 0u && (uintptr_t)r->into % COLIBRI_STORE_PAGE == 0u
        && r->ask >= COLIBRI_STORE_PAGE) {
        r->ask -= r->ask % COLIBRI_STORE_PAGE;
        return;
    }
    r->skip = r->at % COLIBRI_STORE_PAGE;
    r->at -= r->skip;
    r->ask = (r->skip + r->ask + COLIBRI_STORE_PAGE - 1u) & ~(uint64_t)(COLIBRI_STORE_PAGE - 1);
    r->ask = r->ask < COLIBRI_STORE_BOUNCE ? r->ask : COLIBRI_STORE_BOUNCE;
    r->into = r->bounce;
}

/* The answer to a read: bytes, 0 at the file's end, errno negative. 1: another read is to follow; 0: the request has
 * ended, well if its error is 0. */
static uint32_t read_answer(colibri_store *store, colibri_store_read *r, long answer)
{
    (void)__atomic_fetch_add(&store->reads, 1u, __ATOMIC_RELAXED);
    if (answer < 0) {
        r->error = (int32_t)-answer;
        if (r->tries == store->options.retries) {
            return 0u;
        }
        r->tries++;
        (void)__atomic_fetch_add(&store->retries, 1u, __ATOMIC_RELAXED);
        return 1u;
    }
    r->error = COLIBRI_STORE_END_OF_FILE;
    if ((uint64_t)answer <= r->skip) {
        return 0u;
    }
    uint64_t got = (uint64_t)answer - r->skip, left = r->bytes - r->done;
    got = got < left ? got : left;
    if (r->into == r->bounce) {
        const unsigned char *from = r->bounce + r->skip;
        for (uint64_t i = 0; i < got; i++) {
            r->destination[r->done + i] = from[i];
        }
    }
    if ((uint64_t)answer < r->ask && got < left) {
        (void)__atomic_fetch_add(&store->shorts, 1u, __ATOMIC_RELAXED);
    }
    r->error = 0;
    r->tries = 0;
    r->done += got;
    return r->done < r->bytes;
}

static void read_end(colibri_store *store, colibri_store_read *r)
{
    __atomic_store_n(&r->state, ENDED, __ATOMIC_RELEASE);
    (void)__atomic_fetch_add(&store->arrived, 1u, __ATOMIC_SEQ_CST);
    if (__atomic_load_n(&store->driver_asleep, __ATOMIC_SEQ_CST) != 0u) {
        colibri_crew_wake(&store->arrived, 1u);
    }
}

/* ---- io_uring ---- */

static int32_t ring_begin(colibri_store *store, colibri_store_read *r)
{
    read_plan(store, r);
    return colibri_ring_read(&store->ring, store->file, r->at, r->into, (uint32_t)r->ask, direct(store) == 0u,
                             (uint32_t)(r - store->read));
}

/* Take what has ended, begin what follows. */
static void ring_reap(colibri_store *store)
{
    uint32_t tag = 0;
    int32_t answer = 0;
    while (colibri_ring_take(&store->ring, &tag, &answer) != 0u) {
        colibri_store_read *r = &store->read[tag];
        uint32_t more = read_answer(store, r, answer);
        while (more != 0u) {
            int32_t refused = ring_begin(store, r);
            if (refused == 0) {
                break;
            }
            more = read_answer(store, r, refused);
        }
        if (more == 0u) {
            read_end(store, r);
        }
    }
}

/* A first read tells whether the kernel's rings can read at all; whether these bytes can be read is another matter. */
static int32_t ring_try(colibri_store *store)
{
    colibri_store_read *r = &store->read[0];
    uint32_t tag = 0;
    int32_t answer = 0;
    *r = (colibri_store_read){.bytes = 64, .bounce = store->bounces, .destination = (unsigned char *)&store->read[1]};
    int32_t status = colibri_ring_open(&store->ring, store->options.depth);
    status = status < 0 ? status : ring_begin(store, r);
    while (status == 0 && colibri_ring_take(&store->ring, &tag, &answer) == 0u) {
        colibri_ring_wait(&store->ring);
    }
    *r = (colibri_store_read){0};
    store->read[1] = (colibri_store_read){0};
    status = status < 0 ? status : answer == -ERROR_INVALID || answer == -ERROR_UNSUPPORTED ? answer : 0;
    if (status < 0) {
        colibri_ring_close(&store->ring);
    }
    return status;
}

/* ---- threads ---- */

/* The oldest request that nobody has taken, now the caller's; null: none. */
static colibri_store_read *thread_take(colibri_store *store)
{
    for (;;) {
        colibri_store_read *oldest = 0;
        for (uint32_t i = 0; i < store->options.depth; i++) {
            colibri_store_read *r = &store->read[i];
            if (__atomic_load_n(&r->state, __ATOMIC_ACQUIRE) == QUEUED && (oldest == 0 || r->order < oldest->order)) {
                oldest = r;
            }
        }
        uint32_t queued = QUEUED;
        if (oldest == 0 || __atomic_compare_exchange_n(&oldest->state, &queued, RUNNING, 0, __ATOMIC_ACQUIRE,
                                                       __ATOMIC_RELAXED)) {
            return oldest;
        }
    }
}

static void thread_read(colibri_store *store, colibri_store_read *r)
{
    long answer;
    do {
        read_plan(store, r);
        answer = colibri_linux_call(SYS_PREAD, store->file, (long)(intptr_t)r->into, (long)r->ask, (long)r->at, 0, 0);
    } while (read_answer(store, r, answer) != 0u);
    read_end(store, r);
}

void colibri_store_work(colibri_store *store)
{
    while (__atomic_load_n(&store->ending, __ATOMIC_ACQUIRE) == 0u) {
        uint32_t seen = __atomic_load_n(&store->work, __ATOMIC_SEQ_CST);
        colibri_store_read *r = thread_take(store);
        if (r != 0) {
            thread_read(store, r);
            continue;
        }
        (void)__atomic_fetch_add(&store->idle, 1u, __ATOMIC_SEQ_CST);
        colibri_crew_sleep(&store->work, seen);         /* returns at once if something was queued since */
        (void)__atomic_fetch_sub(&store->idle, 1u, __ATOMIC_RELAXED);
    }
}

static void thread_wake(colibri_store *store, uint32_t count)
{
    (void)__atomic_fetch_add(&store->work, 1u, __ATOMIC_SEQ_CST);
    if (__atomic_load_n(&store->idle, __ATOMIC_SEQ_CST) != 0u) {
        colibri_crew_wake(&store->work, count);
    }
}

/* ---- the hooks ---- */

/* When a device of the given bandwidth, which does one request after the other, would be done. */
static uint64_t played(colibri_store *store, uint64_t bytes)
{
    uint64_t rate = store->options.bytes_per_second;
    if (rate == 0u) {
        return 0u;
    }
    uint64_t now = clock_now();
    uint64_t begun = store->busy_until > now ? store->busy_until : now;
    store->busy_until = begun + (uint64_t)((double)bytes * 1e9 / (double)rate);
    return store->busy_until;
}

int32_t colibri_store_fetch(void *user, const colibri_fetch_request *request)
{
    colibri_store *store = ((colibri_store_host *)user)->store;
    uint32_t i = 0;
    while (i < store->options.depth && store->read[i].state != FREE) {
        i++;
    }
    if (i == store->options.depth) {
        return COLIBRI_WAIT;
    }
    colibri_store_read *r = &store->read[i];
    unsigned char *to = request->destination;
    for (uint64_t b = 0; (store->options.flags & COLIBRI_STORE_POISON) != 0u && b < request->bytes; b++) {
        to[b] = POISON;
    }
    *r = (colibri_store_read){.ticket = request->ticket, .layer = request->layer, .expert = request->expert,
                              .order = store->requests, .offset = request->offset, .bytes = request->bytes,
                              .destination = to, .bounce = store->bounces + (uint64_t)i * COLIBRI_STORE_BOUNCE};
    if (store->kind == COLIBRI_STORE_URING) {
        int32_t status = ring_begin(store, r);
        if (status < 0) {                               /* nothing was begun */
            store->last_layer = request->layer;
            store->last_expert = request->expert;
            store->last_offset = request->offset;
            store->last_error = -status;
            return status == -ERROR_AGAIN || status == -ERROR_BUSY ? COLIBRI_WAIT : COLIBRI_ERROR_FETCH;
        }
        r->state = RUNNING;
    } else {
        __atomic_store_n(&r->state, QUEUED, __ATOMIC_RELEASE);
        thread_wake(store, 1u);
    }
    r->due = played(store, request->bytes);
    store->requests++;
    store->in_flight++;
    store->most_in_flight = store->in_flight > store->most_in_flight ? store->in_flight : store->most_in_flight;
    return COLIBRI_OK;
}

int32_t colibri_store_fetched(void *user, uint32_t ticket)
{
    colibri_store *store = ((colibri_store_host *)user)->store;
    colibri_store_read *r = 0;
    if (store->kind == COLIBRI_STORE_URING) {
        ring_reap(store);
    }
    for (uint32_t i = 0; r == 0 && i < store->options.depth; i++) {
        r = store->read[i].state != FREE && store->read[i].ticket == ticket ? &store->read[i] : 0;
    }
    if (r == 0) {
        return COLIBRI_ERROR_FETCH;
    }
    if (__atomic_load_n(&r->state, __ATOMIC_ACQUIRE) != ENDED || (r->due != 0u && clock_now() < r->due)) {
        return COLIBRI_WAIT;
    }
    store->last_layer = r->layer;
    store->last_expert = r->expert;
    store->last_offset = r->error != 0 ? r->offset + r->done : r->offset;
    store->last_error = r->error;
    store->failures += r->error != 0;
    store->bytes += r->done;
    store->in_flight--;
    r->state = FREE;
    return store->last_error != 0 ? COLIBRI_ERROR_FETCH : COLIBRI_DONE;
}

void colibri_store_parallel(void *user, colibri_session *session, uint32_t count)
{
    colibri_crew_parallel(((colibri_store_host *)user)->crew, session, count);
}

/* ---- waiting ---- */

/* Nanoseconds until the next that has been read may be handed over, 0: there is none such; *open: still being read. */
static uint64_t due_in(const colibri_store *store, uint32_t *open)
{
    uint64_t next = UINT64_MAX, now = store->busy_until != 0u ? clock_now() : 0u;
    *open = 0;
    for (uint32_t i = 0; i < store->options.depth; i++) {
        const colibri_store_read *r = &store->read[i];
        uint32_t state = __atomic_load_n(&r->state, __ATOMIC_ACQUIRE);
        *open += state == QUEUED || state == RUNNING;
        next = state == ENDED && r->due > now && r->due < next ? r->due : next;
    }
    return next == UINT64_MAX ? 0u : next - now;
}

void colibri_store_wait(colibri_store *store)
{
    for (;;) {
        uint32_t open = 0;
        if (store->kind == COLIBRI_STORE_URING) {
            ring_reap(store);
        }
        uint32_t arrived = __atomic_load_n(&store->arrived, __ATOMIC_SEQ_CST);
        uint64_t due = due_in(store, &open);
        if (due != 0u) {
            store->seen = arrived;
            sleep_for(due);
            return;
        }
        if (arrived != store->seen || open == 0u) {
            store->seen = arrived;
            return;
        }
        if (store->kind == COLIBRI_STORE_URING) {
            colibri_ring_wait(&store->ring);
        } else {
            __atomic_store_n(&store->driver_asleep, 1u, __ATOMIC_SEQ_CST);
            colibri_crew_sleep(&store->arrived, arrived);
            __atomic_store_n(&store->driver_asleep, 0u, __ATOMIC_RELAXED);
        }
    }
}

/* ---- beginning and end ---- */

static void take_options(colibri_store *store, const colibri_store_options *options)
{
    colibri_store_options *o = &store->options;
    *o = *options;
    o->depth = o->depth == 0u ? DEPTH : o->depth;
    o->threads = o->threads == 0u ? THREADS : o->threads;
    o->threads = o->threads < o->depth ? o->threads : o->depth;
    o->piece_bytes = o->piece_bytes == 0u || o->piece_bytes > LARGEST_READ ? LARGEST_READ : o->piece_bytes;
}

int32_t colibri_store_open(colibri_store *store, const char *path, const colibri_store_options *options)
{
    *store = (colibri_store){.file = -1, .ring = {.file = -1}};
    if (options->struct_bytes != sizeof *options || options->depth > COLIBRI_STORE_MOST
        || options->kind > COLIBRI_STORE_PREAD) {
        return -ERROR_INVALID;
    }
    take_options(store, options);
    long file = colibri_linux_call(SYS_OPENAT, AT_FDCWD, (long)(intptr_t)path,
                                   O_CLOEXEC | (direct(store) != 0u ? O_DIRECT : 0), 0, 0, 0);
    if (colibri_linux_refused(file) != 0u) {
        return (int32_t)file;
    }
    store->file = (int32_t)file;
    long size = colibri_linux_call(SYS_LSEEK, file, 0, SEEK_END, 0, 0, 0);
    store->file_bytes = colibri_linux_refused(size) != 0u ? 0u : (uint64_t)size;
    if (direct(store) != 0u) {
        long at = colibri_linux_call(SYS_MMAP, 0, (long)store->options.depth * COLIBRI_STORE_BOUNCE, PROT_READ_WRITE,
                                     MAP_PRIVATE_ANONYMOUS, -1, 0);
        if (colibri_linux_refused(at) != 0u) {
            colibri_store_close(store);
            return (int32_t)at;
        }
        store->bounces = (unsigned char *)(intptr_t)at;
    }
    store->kind = COLIBRI_STORE_PREAD;
    if (store->options.kind != COLIBRI_STORE_PREAD) {
        int32_t status = ring_try(store);
        store->kind = status < 0 ? COLIBRI_STORE_PREAD : COLIBRI_STORE_URING;
        if (status < 0 && store->options.kind == COLIBRI_STORE_URING) {
            colibri_store_close(store);
            return status;
        }
    }
    store->threads = store->kind == COLIBRI_STORE_PREAD ? store->options.threads : 0u;
    return 0;
}

void colibri_store_end(colibri_store *store)
{
    uint32_t open = 0;
    store->busy_until = 0;
    for (uint32_t i = 0; i < store->options.depth; i++) {
        store->read[i].due = 0;
    }
    (void)due_in(store, &open);
    while (store->kind == COLIBRI_STORE_URING && open != 0u) {
        colibri_store_wait(store);
        (void)due_in(store, &open);
    }
    __atomic_store_n(&store->ending, 1u, __ATOMIC_RELEASE);
    thread_wake(store, COLIBRI_STORE_MOST);
}

void colibri_store_close(colibri_store *store)
{
    colibri_ring_close(&store->ring);
    if (store->bounces != 0) {
        (void)colibri_linux_call(SYS_MUNMAP, (long)(intptr_t)store->bounces,
                                 (long)store->options.depth * COLIBRI_STORE_BOUNCE, 0, 0, 0, 0);
    }
    if (store->file >= 0) {
        (void)colibri_linux_call(SYS_CLOSE, store->file, 0, 0, 0, 0, 0);
    }
    store->bounces = 0;
    store->file = -1;
}
