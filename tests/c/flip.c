/*
 * flip.c: a blob as an enemy would hand it over. A program on a libc, compiled with AddressSanitizer and
 * UndefinedBehaviorSanitizer together with the core's sources; every copy of the blob lies in memory of exactly its
 * size, so that one byte too far is a report and a non-zero exit.
 *
 *   flip BLOB flips            every bit flipped: open refuses header and tables, check level 2 everything else
 *   flip BLOB cuts             every truncation
 *   flip BLOB sealed           every bit of header and tables flipped, then the sums made right again
 *   flip BLOB random SEED N    N corruptions of several bytes in header and tables, sums made right again
 *
 * In the sealed modes open may accept; then plan, info, check and a few tokens must run without a report, with all
 * of the file in place and with the tables alone in place and the rest fetched. Prints "name number" lines.
 */
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "blob/colibri_format.h"

enum { ALIGN = 64, ROWS = 2, NAMES = 64, MOST_POOL = 64 << 20 };

static uint8_t *pristine;                       /* the file as it was read */
static uint64_t file_bytes;

static void die(const char *what, uint64_t number)
{
    printf("failed %s %" PRIu64 "\n", what, number);
    exit(1);
}

static uint8_t *exact(uint64_t bytes)
{
    void *memory = 0;
    if (posix_memalign(&memory, ALIGN, bytes ? bytes : 1u)) {
        die("memory", bytes);
    }
    return memory;
}

static uint8_t *copy_of(const uint8_t *from, uint64_t bytes)
{
    uint8_t *to = exact(bytes);
    memcpy(to, from, bytes);
    return to;
}

/* --- counters by name, printed at the end --- */

static char names[NAMES][48];
static uint64_t counts[NAMES];

static void count(const char *kind, int64_t number)
{
    char name[48];
    int i = 0;
    snprintf(name, sizeof name, number < 0 ? "%s" : "%s.%" PRId64, kind, number);
    while (i < NAMES - 1 && names[i][0] && strcmp(names[i], name)) {
        i++;
    }
    strcpy(names[i], name);
    counts[i]++;
}

static void print_counts(void)
{
    for (int i = 0; i < NAMES && names[i][0]; i++) {
        printf("%s %" PRIu64 "\n", names[i], counts[i]);
    }
}

static colibri_blob_header *header_of(uint8_t *blob)
{
    return (colibri_blob_header *)(void *)blob;
}

/* --- flips --- */

/* The walk's state in front of a byte: what was walked before it is unflipped, so the walk may be resumed there. */
static void walk_to(const colibri_model *model, uint64_t bytes, colibri_check_state *state)
{
    memset(state, 0, sizeof *state);
    if (bytes && colibri_check(model, state, 2, bytes, 0) != COLIBRI_AGAIN) {
        die("walk", bytes);
    }
}

/* From the beginning to the end: how many problems, the first of them in *detail. */
static uint64_t all_problems(const colibri_model *model, colibri_detail *detail)
{
    colibri_check_state state;
    uint64_t problems = 0;
    int32_t status;
    memset(&state, 0, sizeof state);
    while ((status = colibri_check(model, &state, 2, 1000, problems ? 0 : detail)) != COLIBRI_DONE) {
        problems += status < 0;
        if (problems > 1000u) {
            die("endless", problems);
        }
    }
    return problems;
}

/* Every bit of bytes first .. first + bytes - 1: refused by check with this section (and, where given, index). */
static void flip_piece(uint8_t *blob, const colibri_check_state *before, uint64_t first, uint64_t bytes,
                       uint32_t section, int64_t index)
{
    for (uint64_t bit = first * 8u; bit < (first + bytes) * 8u; bit++) {
        colibri_model model;
        colibri_detail detail = {0};
        colibri_check_state state = *before;
        blob[bit / 8u] ^= (uint8_t)(1u << bit % 8u);
        if (colibri_open(&model, blob, file_bytes, file_bytes, &detail) != COLIBRI_OK) {
            die("open refused a flip in data", bit);
        }
        int32_t status = colibri_check(&model, &state, 2, UINT64_MAX, &detail);
        if (status != COLIBRI_ERROR_CORRUPT || detail.status != status || detail.section != section ||
            (index >= 0 && detail.index != (uint64_t)index)) {
            die("check missed a flip", bit);
        }
        if (bit % 1021u == 0u && (!all_problems(&model, &detail) || detail.section != section)) {
            die("the whole walk missed a flip", bit);
        }
        blob[bit / 8u] ^= (uint8_t)(1u << bit % 8u);
        count(index < 0 ? "section" : "expert", index < 0 ? (int64_t)section : index);
    }
}

static void flips(void)
{
    uint8_t *blob = copy_of(pristine, file_bytes);
    const colibri_blob_header *h = header_of(pristine);
    colibri_model clean, model;
    colibri_detail detail;
    colibri_check_state state;
    uint64_t walked = 0;
    for (uint64_t bit = 0; bit < h->tables_bytes * 8u; bit++) {
        blob[bit / 8u] ^= (uint8_t)(1u << bit % 8u);
        int32_t status = colibri_open(&model, blob, file_bytes, file_bytes, &detail);
        if (status >= 0 || detail.status != status) {
            die("open missed a flip", bit);
        }
        blob[bit / 8u] ^= (uint8_t)(1u << bit % 8u);
        count("open", -1);
    }
    if (colibri_open(&clean, pristine, file_bytes, file_bytes, &detail) != COLIBRI_OK ||
        all_problems(&clean, &detail)) {
        die("the blob itself", 0);
    }
    const colibri_section *s = (const colibri_section *)(const void *)(pristine + COLIBRI_HEADER_BYTES);
    for (uint32_t i = 0; i < h->section_count; i++) {           /* check walks sections first, then experts */
        if (!(s[i].flags & (COLIBRI_SECTION_TABLE | COLIBRI_SECTION_BY_EXPERT))) {
            walk_to(&clean, walked, &state);
            flip_piece(blob, &state, s[i].offset, s[i].bytes, s[i].type, -1);
            walked += s[i].bytes;
        }
    }
    for (uint32_t i = 0; i < h->section_count; i++) {
        if (s[i].flags & COLIBRI_SECTION_BY_EXPERT) {
            for (uint64_t at = 0; at < s[i].bytes; at += COLIBRI_EXPERT_ALIGN) {    /* runs of one page here */
                walk_to(&clean, walked + at, &state);
                flip_piece(blob, &state, s[i].offset + at, COLIBRI_EXPERT_ALIGN, s[i].type,
                           (int64_t)(at / COLIBRI_EXPERT_ALIGN));
            }
        }
    }
    printf("bits %" PRIu64 "\n", file_bytes * 8u);
    free(blob);
}

/* --- truncations --- */

static void cuts(void)
{
    uint64_t tables = header_of(pristine)->tables_bytes;
    for (uint64_t bytes = 0; bytes < file_bytes; bytes++) {
        uint8_t *blob = copy_of(pristine, bytes);
        colibri_model model;
        colibri_detail detail = {0};
        colibri_check_state state = {{0}};
        int32_t status = colibri_open(&model, blob, bytes, bytes, &detail);
        if (status >= 0 || detail.status != status) {
            die("open missed a truncation", bytes);
        }
        count("cut", -1);
        status = colibri_open(&model, blob, bytes, file_bytes, &detail);    /* the rest is said to be elsewhere */
        if ((status == COLIBRI_OK) != (bytes >= tables)) {
            die("open of a part", bytes);
        }
        if (status == COLIBRI_OK) {
            status = colibri_check(&model, &state, 2, UINT64_MAX, &detail);
            if (status != COLIBRI_ERROR_ADDRESS || colibri_check(&model, &state, 1, UINT64_MAX, &detail) < 0) {
                die("check of a part", bytes);
            }
            count("part", -1);
        }
        free(blob);
    }
}

/* --- sealed corruptions --- */

/* Make tables_crc, identity and identity_crc right, so that everything behind them is reached. */
static void seal(uint8_t *blob)
{
    colibri_blob_header *h = header_of(blob);
    colibri_sha256 sha;
    uint64_t tables = h->tables_bytes;
    if (tables < COLIBRI_HEADER_BYTES || tables > file_bytes) {
        tables = header_of(pristine)->tables_bytes;
    }
    h->tables_crc = 0;
    h->identity_crc = 0;
    memset(h->identity, 0, sizeof h->identity);
    colibri_sha256_start(&sha);
    colibri_sha256_add(&sha, blob, tables);
    h->tables_crc = colibri_crc32c(0, blob, tables);
    colibri_sha256_end(&sha, h->identity);
    h->identity_crc = colibri_crc32c(0, h->identity, sizeof h->identity);
}

/* The host's side of a streamed run: nothing outside the file may be asked for, nothing outside the pool written. */
typedef struct host {
    const uint8_t *file;
    uint8_t *pool;
    uint64_t pool_bytes;
} host;

static int32_t fetch(void *user, const colibri_fetch_request *request)
{
    host *h = user;
    uint64_t at = (uint64_t)((uint8_t *)request->destination - h->pool);
    if (request->offset > file_bytes || request->bytes > file_bytes - request->offset) {
        die("fetch outside the file", request->offset);
    }
    if (at > h->pool_bytes || request->bytes > h->pool_bytes - at) {
        die("fetch outside the pool", at);
    }
    memcpy(request->destination, h->file + request->offset, request->bytes);
    return COLIBRI_OK;
}

static int32_t fetched(void *user, uint32_t ticket)
{
    (void)user, (void)ticket;
    return COLIBRI_DONE;
}

/* A few rows through a session in a pool of exactly the planned size; returns the last status. */
static int32_t run(const colibri_model *model, const colibri_limits *limits, uint64_t pool_bytes, host *h)
{
    colibri_row rows[ROWS];
    colibri_hooks hooks = {.struct_bytes = sizeof hooks, .user = h, .fetch = fetch, .fetched = fetched};
    colibri_session *session = 0;
    h->pool = exact(pool_bytes);
    h->pool_bytes = pool_bytes;
    int32_t status = colibri_start(model, limits, &hooks, h->pool, pool_bytes, &session, 0);
    for (uint32_t step = 0; status >= 0 && step < 2u; step++) {
        colibri_info info = {.struct_bytes = sizeof info};
        (void)colibri_model_info(model, &info);
        for (uint32_t i = 0; i < ROWS; i++) {
            rows[i] = (colibri_row){0, COLIBRI_NEXT_POSITION, (7u * i + step) % info.vocab, 1};
        }
        status = colibri_feed(session, rows, ROWS);
        status = status < 0 ? status : colibri_advance(session, COLIBRI_UNLIMITED);
        if (status == COLIBRI_DONE && !colibri_logits(session, ROWS - 1)) {
            die("no logits", step);
        }
    }
    if (session && colibri_stop(session) != COLIBRI_DONE) {
        die("stop", 0);
    }
    free(h->pool);
    return status;
}

/* Plan and, if the pool is not too large, run. `streamed`: only the tables are in place. */
static void use(const colibri_model *model, const uint8_t *file, int streamed, uint32_t kv_kind)
{
    colibri_info info = {.struct_bytes = sizeof info};
    colibri_plan_result plan = {.struct_bytes = sizeof plan};
    colibri_detail detail = {0};
    host h = {file, 0, 0};
    colibri_limits limits = {.struct_bytes = sizeof limits, .context = 20, .batch = ROWS, .sequences = 1,
                             .workers = 1, .logit_rows = ROWS, .kv_kind = kv_kind};
    if (colibri_model_info(model, &info) != COLIBRI_OK || info.vocab == 0u) {
        die("info", 0);
    }
    if (streamed) {
        limits.flags = COLIBRI_LIMIT_RESIDENT_COPY | COLIBRI_LIMIT_STREAM_EXPERTS;
        limits.slots = info.expert_count != 0u;
    }
    int32_t status = colibri_plan(model, &limits, &plan, &detail);
    if (status < 0) {
        count("plan_refused", -status);
    } else if (plan.pool_bytes > MOST_POOL) {
        count("too_large", -1);
    } else {
        status = run(model, &limits, plan.pool_bytes, &h);
        count(status < 0 ? "run_refused" : "run", status < 0 ? -status : -1);
    }
}

static int try_sealed(uint8_t *blob, uint32_t turn)
{
    colibri_model model;
    colibri_detail detail = {0};
    seal(blob);
    int32_t status = colibri_open(&model, blob, file_bytes, file_bytes, &detail);
    if (status < 0) {
        if (detail.status != status) {
            die("no detail", turn);
        }
        count("open_refused", -status);
    } else {
        count("accepted", -1);
        use(&model, blob, 0, turn % 3u);
        if (turn % 32u == 0u) {
            (void)all_problems(&model, &detail);
        }
    }
    /* the tables alone: what lies behind them must not be touched, and open judges the same */
    uint64_t tables = header_of(blob)->tables_bytes;
    uint8_t *part = copy_of(blob, tables < file_bytes ? tables : file_bytes);
    int32_t again = colibri_open(&model, part, tables < file_bytes ? tables : file_bytes, file_bytes, &detail);
    if ((again < 0) != (status < 0)) {
        die("open judges a part in another way", turn);
    }
    if (status >= 0 && turn % 4u == 1u) {
        use(&model, blob, 1, turn % 3u);
    }
    free(part);
    return status >= 0;
}

/* Also prints "free BYTE" for every byte of the tables with a bit that open leaves to the writer. */
static void sealed(void)
{
    uint64_t bits = header_of(pristine)->tables_bytes * 8u;
    uint64_t printed = UINT64_MAX;
    uint8_t *blob = copy_of(pristine, file_bytes);
    for (uint64_t bit = 0; bit < bits; bit++) {
        memcpy(blob, pristine, bits / 8u);
        blob[bit / 8u] ^= (uint8_t)(1u << bit % 8u);
        if (try_sealed(blob, (uint32_t)bit) && printed != bit / 8u) {
            printf("free %" PRIu64 "\n", printed = bit / 8u);
        }
        count("tried", -1);
    }
    free(blob);
}

static uint64_t state;

static uint32_t below(uint32_t limit)
{
    state = state * 6364136223846793005u + 1442695040888963407u;
    return (uint32_t)((state >> 33) % limit);
}

/* One change of an aligned word: a random byte, an interesting number, a small step, or another word of the tables. */
static void corrupt(uint8_t *blob, uint32_t tables)
{
    static const uint64_t numbers[] = {0, 1, 2, 15, 16, 17, 64, 4096, 65535, 65536, 67108863, 0x7FFFFFFF,
                                       0x80000000u, 0xFFFFFFFFu, UINT64_MAX, 1ull << 63, 0xFFFFFFFFFFFFFFC0u};
    uint32_t width = 1u << below(4);
    uint32_t at = below(tables / width) * width;
    uint64_t word = 0;
    memcpy(&word, blob + at, width);
    switch (below(4)) {
    case 0: word = below(256); break;
    case 1: word = numbers[below(sizeof numbers / sizeof numbers[0])]; break;
    case 2: word += (uint64_t)(int64_t)((int32_t)below(129) - 64); break;
    default: memcpy(&word, blob + below(tables / width) * width, width); break;
    }
    memcpy(blob + at, &word, width);
}

static void randomly(uint64_t seed, uint32_t tries)
{
    uint32_t tables = (uint32_t)header_of(pristine)->tables_bytes;
    uint8_t *blob = copy_of(pristine, file_bytes);
    state = seed;
    for (uint32_t i = 0; i < tries; i++) {
        memcpy(blob, pristine, tables);
        for (uint32_t n = 1u + below(3); n; n--) {
            corrupt(blob, tables);
        }
        (void)try_sealed(blob, i);
        count("tried", -1);
    }
    free(blob);
}

static void read_file(const char *path)
{
    FILE *file = fopen(path, "rb");
    if (!file || fseek(file, 0, SEEK_END)) {
        die("open of the file", 0);
    }
    file_bytes = (uint64_t)ftell(file);
    pristine = exact(file_bytes);
    rewind(file);
    if (fread(pristine, 1, file_bytes, file) != file_bytes || fclose(file)) {
        die("read of the file", 0);
    }
}

int main(int argc, char **argv)
{
    if (argc < 3) {
        die("usage: flip BLOB flips|cuts|sealed|random [SEED N]", 0);
    }
    read_file(argv[1]);
    if (!strcmp(argv[2], "flips")) {
        flips();
    } else if (!strcmp(argv[2], "cuts")) {
        cuts();
    } else if (!strcmp(argv[2], "sealed")) {
        sealed();
    } else if (argc == 5) {
        randomly(strtoull(argv[3], 0, 10), (uint32_t)strtoul(argv[4], 0, 10));
    } else {
        die("mode", 0);
    }
    print_counts();
    free(pristine);
    return 0;
}
