/*
 * monkey.c: a session in the hands of a monkey. Random limits, then feeds, budgets, rewinds and resets in any order,
 * over a host whose fetches are refused, late, out of order, failing and corrupt. Every so often the logits are
 * compared, bit by bit, with those of a plain session that was fed the same tokens one by one. A program on a libc,
 * compiled with the sanitizers and the core's sources; pool and blob lie in memory of exactly their size.
 *
 *   monkey BLOB SEED ROUNDS
 */
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "blob/colibri_format.h"

enum { ALIGN = 64, CONTEXT = 80, SEQUENCES = 3, BATCH = 12, STEPS = 60, TICKETS = 64 };

static uint8_t *file;
static uint64_t file_bytes;
static uint64_t counts[16];
static const char *const count_names[16] = {
    "rounds", "feeds", "rows", "compared", "rewinds", "rewinds_refused", "resets", "resets_running", "waits", "fetches",
    "fetch_refusals", "fetch_failures", "corruptions", "agains", "in_flight_at_stop", "start_retries"};
enum { N_ROUNDS, N_FEEDS, N_ROWS, N_COMPARED, N_REWINDS, N_REWINDS_REFUSED, N_RESETS, N_RESETS_RUNNING, N_WAITS,
       N_FETCHES, N_REFUSALS, N_FAILURES, N_CORRUPTIONS, N_AGAINS, N_IN_FLIGHT, N_START_RETRIES };

static void die(const char *what, int64_t number)
{
    printf("failed %s %" PRId64 " in round %" PRIu64 "\n", what, number, counts[N_ROUNDS]);
    exit(1);
}

static void *exact(uint64_t bytes)
{
    void *memory = 0;
    if (posix_memalign(&memory, ALIGN, bytes ? bytes : 1u)) {
        die("memory", (int64_t)bytes);
    }
    return memory;
}

static uint64_t random_state;

static uint32_t below(uint32_t limit)
{
    random_state = random_state * 6364136223846793005u + 1442695040888963407u;
    return (uint32_t)((random_state >> 33) % limit);
}

static int one_in(uint32_t n)
{
    return below(n) == 0u;
}

/* --- the host: fetches that are slow, wrong or refused --- */

typedef struct flight {
    colibri_fetch_request request;
    uint32_t delay;
    int used;
} flight;

static flight flights[TICKETS];
static uint8_t *pool;
static uint64_t pool_bytes;
static uint32_t trouble;                        /* 0: a good host; else one in so many goes wrong */
static uint64_t fetched_bytes;

static flight *flight_of(uint32_t ticket)
{
    for (int i = 0; i < TICKETS; i++) {
        if (flights[i].used && flights[i].request.ticket == ticket) {
            return &flights[i];
        }
    }
    return 0;
}

static void check_request(const colibri_fetch_request *r)
{
    uint64_t at = (uint64_t)((uint8_t *)r->destination - pool);
    if (r->offset > file_bytes || r->bytes > file_bytes - r->offset || at > pool_bytes || r->bytes > pool_bytes - at) {
        die("a fetch outside", (int64_t)r->offset);
    }
    if (flight_of(r->ticket)) {
        die("a ticket twice in flight", r->ticket);
    }
    for (int i = 0; i < TICKETS; i++) {
        const uint8_t *other = flights[i].request.destination;
        if (flights[i].used && other < (uint8_t *)r->destination + r->bytes &&
            (uint8_t *)r->destination < other + flights[i].request.bytes) {
            die("a fetch into memory that another one is writing", r->ticket);
        }
    }
}

static int32_t fetch(void *user, const colibri_fetch_request *request)
{
    (void)user;
    check_request(request);
    if (trouble && one_in(3)) {
        counts[N_REFUSALS]++;
        return COLIBRI_WAIT;
    }
    if (trouble && one_in(trouble)) {
        counts[N_FAILURES]++;
        return COLIBRI_ERROR_FETCH;
    }
    for (int i = 0; i < TICKETS; i++) {
        if (!flights[i].used) {
            memset(request->destination, 0xEE, request->bytes);
            flights[i] = (flight){*request, trouble ? below(5) : 0u, 1};
            counts[N_FETCHES]++;
            fetched_bytes += request->bytes;
            return COLIBRI_OK;
        }
    }
    return COLIBRI_WAIT;
}

static int32_t fetched(void *user, uint32_t ticket)
{
    flight *f = flight_of(ticket);
    (void)user;
    if (!f) {
        die("a poll of nothing", ticket);
    }
    if (f->delay) {
        f->delay--;
        counts[N_WAITS]++;
        return COLIBRI_WAIT;
    }
    f->used = 0;
    if (trouble && one_in(trouble)) {
        counts[N_FAILURES]++;
        return COLIBRI_ERROR_FETCH;
    }
    memcpy(f->request.destination, file + f->request.offset, f->request.bytes);
    if (trouble && one_in(trouble)) {
        ((uint8_t *)f->request.destination)[below((uint32_t)f->request.bytes)] ^= (uint8_t)(1u << below(8));
        counts[N_CORRUPTIONS]++;
    }
    return COLIBRI_DONE;
}

static uint32_t workers;

/* Units in ranges of any size, in any order of workers, each once; here one after the other. */
static void parallel(void *user, colibri_session *session, uint32_t count)
{
    (void)user;
    while (count) {
        uint32_t n = 1u + below(count);
        colibri_work(session, below(workers), count - n, n);
        count -= n;
    }
}

/* --- the plain session that is right --- */

static float *plain_logits(const uint32_t *tokens, uint32_t count, uint32_t kv_kind, uint32_t vocab)
{
    static colibri_model model;
    static uint8_t *plain_pool;
    static uint64_t plain_bytes;
    colibri_limits limits = {.struct_bytes = sizeof limits, .context = CONTEXT, .batch = 1, .sequences = 1,
                             .workers = 1, .logit_rows = 1, .kv_kind = kv_kind};
    colibri_plan_result plan = {.struct_bytes = sizeof plan};
    colibri_session *s = 0;
    if (colibri_open(&model, file, file_bytes, file_bytes, 0) < 0 || colibri_plan(&model, &limits, &plan, 0) < 0) {
        die("plain plan", 0);
    }
    if (plan.pool_bytes > plain_bytes) {
        free(plain_pool);
        plain_pool = exact(plain_bytes = plan.pool_bytes);
    }
    if (colibri_start(&model, &limits, 0, plain_pool, plan.pool_bytes, &s, 0) < 0) {
        die("plain start", 0);
    }
    for (uint32_t i = 0; i < count; i++) {
        colibri_row row = {0, i, tokens[i], i + 1u == count};
        if (colibri_feed(s, &row, 1) < 0 || colibri_advance(s, COLIBRI_UNLIMITED) != COLIBRI_DONE) {
            die("plain run", i);
        }
    }
    float *out = malloc(vocab * sizeof *out);
    memcpy(out, colibri_logits(s, 0), vocab * sizeof *out);
    return out;
}

/* --- one round --- */

typedef struct round_state {
    colibri_session *s;
    colibri_limits limits;
    uint32_t vocab, experts;
    uint32_t tokens[SEQUENCES][CONTEXT];
    uint32_t length[SEQUENCES], reach[SEQUENCES];
} round_state;

static void choose_limits(round_state *r)
{
    static const uint32_t contexts[] = {1, 15, 16, 17, 33, 64, CONTEXT};
    r->limits = (colibri_limits){
        .struct_bytes = sizeof r->limits, .context = contexts[below(7)], .batch = 1u + below(BATCH),
        .sequences = 1u + below(SEQUENCES), .workers = 1u + below(4), .kv_kind = below(3)};
    r->limits.logit_rows = 1u + below(r->limits.batch);
    r->limits.rewind = below(r->limits.context < 6u ? r->limits.context + 1u : 6u);
    if (one_in(2)) {
        r->limits.flags = COLIBRI_LIMIT_RESIDENT_COPY | COLIBRI_LIMIT_STREAM_EXPERTS;
        r->limits.flags |= one_in(2) ? COLIBRI_LIMIT_LOOK_AHEAD : 0u;
        r->limits.slots = r->experts ? 1u + below(one_in(2) ? 1u : r->experts) : 0u;
    }
    workers = r->limits.workers;
    trouble = one_in(4) ? 0u : 4u + below(20);
}

static int retry(int32_t status)
{
    counts[N_AGAINS] += status == COLIBRI_AGAIN;
    return status == COLIBRI_AGAIN || status == COLIBRI_WAIT || status == COLIBRI_ERROR_FETCH ||
           status == COLIBRI_ERROR_CORRUPT;
}

static void begin(round_state *r, const colibri_model *model)
{
    static const uint8_t patterns[] = {0x00, 0xFF, 0xA5, 0x7F};
    colibri_plan_result plan = {.struct_bytes = sizeof plan};
    colibri_hooks hooks = {.struct_bytes = sizeof hooks, .fetch = fetch, .fetched = fetched};
    colibri_detail detail;
    int32_t status;
    if (r->limits.workers > 1u) {
        hooks.parallel = parallel;
    }
    if (colibri_plan(model, &r->limits, &plan, &detail) < 0) {
        die("plan", detail.field);
    }
    pool = exact(pool_bytes = plan.pool_bytes);
    memset(pool, patterns[below(4)], pool_bytes);
    fetched_bytes = 0;
    uint32_t i = 0;
    while (retry(status = colibri_start(model, &r->limits, &hooks, pool, pool_bytes, &r->s, &detail))) {
        counts[N_START_RETRIES]++;
        if (i++ > 100000u) {
            die("start never ends", status);
        }
    }
    if (status < 0) {
        die("start", status);
    }
}

static void compare(const round_state *r, uint32_t index, uint32_t sequence, uint32_t length)
{
    const float *found = colibri_logits(r->s, index);
    float *right = plain_logits(r->tokens[sequence], length, r->limits.kv_kind, r->vocab);
    if (!found || memcmp(found, right, r->vocab * sizeof *right)) {
        die("logits differ at length", length);
    }
    free(right);
    counts[N_COMPARED]++;
}

/* Rows of random sequences, run to the end or reset on the way. */
static void feed(round_state *r)
{
    colibri_row rows[BATCH];
    uint32_t length[SEQUENCES], count = 0, wanting = 0;
    uint32_t most = 1u + below(r->limits.batch);
    int32_t status;
    memcpy(length, r->length, sizeof length);
    while (count < most) {
        uint32_t q = below(r->limits.sequences);
        if (length[q] == r->limits.context) {
            break;
        }
        uint32_t want = wanting < r->limits.logit_rows && one_in(2);
        rows[count] = (colibri_row){q, one_in(2) ? length[q] : COLIBRI_NEXT_POSITION, below(r->vocab), want};
        r->tokens[q][length[q]++] = rows[count++].token;
        wanting += want;
    }
    if (count == 0u) {
        return;
    }
    if ((status = colibri_feed(r->s, rows, count)) != COLIBRI_OK) {
        die("feed", status);
    }
    counts[N_FEEDS]++;
    counts[N_ROWS] += count;
    for (uint32_t i = 0; retry(status = colibri_advance(r->s, one_in(3) ? COLIBRI_UNLIMITED : below(40))); i++) {
        if (i < 40u && one_in(status == COLIBRI_WAIT ? 30 : 200)) {
            counts[N_RESETS_RUNNING]++;
            if (colibri_reset(r->s, 0) != COLIBRI_OK) {
                die("reset while running", 0);
            }
            r->length[0] = r->reach[0] = 0;
            return;
        }
        if (i > 100000u) {
            die("advance never ends", status);
        }
    }
    if (status != COLIBRI_DONE) {
        die("advance", status);
    }
    for (uint32_t q = 0; q < r->limits.sequences; q++) {
        r->length[q] = length[q];
        r->reach[q] = length[q] > r->reach[q] ? length[q] : r->reach[q];
    }
    memcpy(length, r->length, sizeof length);
    for (uint32_t i = count; i-- > 0u;) {               /* backwards: each row's own length */
        wanting -= rows[i].want_logits;
        if (rows[i].want_logits && one_in(6)) {
            compare(r, wanting, rows[i].sequence, length[rows[i].sequence]);
        }
        length[rows[i].sequence]--;
    }
}

static void shorten(round_state *r)
{
    uint32_t q = below(r->limits.sequences);
    uint32_t most = r->limits.rewind + 2u < r->length[q] ? r->limits.rewind + 2u : r->length[q] + 1u;
    uint32_t length = one_in(4) ? below(r->length[q] + 1u) : r->length[q] - below(most);
    int32_t status = colibri_rewind(r->s, q, length);
    if (status == COLIBRI_ERROR_REWIND && length && r->reach[q] - length > r->limits.rewind) {
        counts[N_REWINDS_REFUSED]++;
        return;
    }
    if (status != COLIBRI_OK) {
        die("rewind", status);
    }
    counts[N_REWINDS]++;
    r->length[q] = length;
    r->reach[q] = length ? r->reach[q] : 0u;
}

/* Half of the rounds end in the middle of a feed. */
static void begin_another(const round_state *r)
{
    colibri_row row = {0, COLIBRI_NEXT_POSITION, below(r->vocab), 0};
    if (r->length[0] == r->limits.context || one_in(2)) {
        return;
    }
    int32_t status = colibri_feed(r->s, &row, 1);
    if (status != COLIBRI_OK) {
        die("a last feed", status);
    }
    for (uint32_t i = below(40); i && retry(status = colibri_advance(r->s, below(40))); i--) {
        if (status == COLIBRI_WAIT && one_in(2)) {      /* something is under way */
            return;
        }
    }
}

static void end(round_state *r)
{
    colibri_stats_result stats = {.struct_bytes = sizeof stats};
    int32_t status;
    begin_another(r);
    if (colibri_stats(r->s, &stats) != COLIBRI_OK || stats.pool_used != pool_bytes ||
        stats.bytes_fetched != fetched_bytes) {
        die("stats", (int64_t)stats.bytes_fetched);
    }
    for (uint32_t i = 0; (status = colibri_stop(r->s)) == COLIBRI_WAIT; i++) {
        counts[N_IN_FLIGHT]++;
    }
    if (status != COLIBRI_DONE) {
        die("stop", status);
    }
    for (int i = 0; i < TICKETS; i++) {
        if (flights[i].used) {
            die("in flight after stop", flights[i].request.ticket);
        }
    }
    free(pool);
}

static void play(const colibri_model *whole, const colibri_model *tables)
{
    static round_state r;
    colibri_info info = {.struct_bytes = sizeof info};
    memset(&r, 0, sizeof r);
    (void)colibri_model_info(whole, &info);
    r.vocab = info.vocab;
    r.experts = (uint32_t)info.expert_count;
    choose_limits(&r);
    begin(&r, r.limits.flags ? tables : whole);
    for (uint32_t step = below(STEPS); step; step--) {
        switch (below(8)) {
        case 0:
            do {
                shorten(&r);
            } while (!one_in(4));
            break;
        case 1: {
            uint32_t q = one_in(4) ? COLIBRI_ALL_SEQUENCES : below(r.limits.sequences);
            if (!one_in(3)) {
                break;
            }
            counts[N_RESETS]++;
            if (colibri_reset(r.s, q) != COLIBRI_OK) {
                die("reset", 0);
            }
            for (uint32_t i = 0; i < r.limits.sequences; i++) {
                if (q == i || q == COLIBRI_ALL_SEQUENCES) {
                    r.length[i] = r.reach[i] = 0;
                }
            }
            break;
        }
        default: feed(&r); break;
        }
    }
    end(&r);
}

int main(int argc, char **argv)
{
    FILE *in = argc == 4 ? fopen(argv[1], "rb") : 0;
    colibri_model whole, tables;
    if (!in || fseek(in, 0, SEEK_END)) {
        die("usage: monkey BLOB SEED ROUNDS", argc);
    }
    file_bytes = (uint64_t)ftell(in);
    file = exact(file_bytes);
    rewind(in);
    if (fread(file, 1, file_bytes, in) != file_bytes || fclose(in)) {
        die("read", 0);
    }
    uint64_t tables_bytes = ((const colibri_blob_header *)(const void *)file)->tables_bytes;
    uint8_t *part = exact(tables_bytes);
    memcpy(part, file, tables_bytes);
    if (colibri_open(&whole, file, file_bytes, file_bytes, 0) < 0 ||
        colibri_open(&tables, part, tables_bytes, file_bytes, 0) < 0) {
        die("open", 0);
    }
    random_state = strtoull(argv[2], 0, 10);
    for (uint64_t round = strtoull(argv[3], 0, 10); round; round--) {
        play(&whole, &tables);
        counts[N_ROUNDS]++;
    }
    for (int i = 0; i < 16; i++) {
        printf("%s %" PRIu64 "\n", count_names[i], counts[i]);
    }
    free(part);
    free(file);
    return 0;
}
