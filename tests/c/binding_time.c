/*
 * binding_time.c: how long it takes to bind experts that are in their slots, pass by pass: a model of many small
 * experts is run until each has been asked for, then the leases of its last token are taken again and again.
 *   python -m SCons micro, then build/zig/micro/binding_time BLOB [kernel level]
 * Prints "passes N experts N p50 NS p99 NS worst NS misses N bytes N": nanoseconds of one expert; misses and bytes are
 * those of the measured part. No test reads a clock.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "nn/session.h"

enum { PASSES = 20000, WARM = 40 };

static unsigned char *file;

static uint64_t now(void)
{
    struct timespec t;
    (void)clock_gettime(CLOCK_MONOTONIC, &t);
    return (uint64_t)t.tv_sec * 1000000000u + (uint64_t)t.tv_nsec;
}

static int ascending(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

static int32_t fetch(void *user, const colibri_fetch_request *request)
{
    (void)user;
    memcpy(request->destination, file + request->offset, request->bytes);
    return COLIBRI_OK;
}

static int32_t fetched(void *user, uint32_t ticket)
{
    (void)user;
    (void)ticket;
    return COLIBRI_DONE;
}

static void must(const char *what, int32_t status)
{
    if (status < 0) {
        fprintf(stderr, "%s: %d\n", what, (int)status);
        exit(1);
    }
}

static void *aligned(uint64_t bytes)
{
    void *room = NULL;
    return posix_memalign(&room, 64, bytes) ? NULL : room;
}

static uint64_t load(const char *path)
{
    FILE *in = fopen(path, "rb");
    if (!in || fseek(in, 0, SEEK_END)) {
        exit(2);
    }
    uint64_t bytes = (uint64_t)ftell(in);
    file = aligned(bytes);
    rewind(in);
    if (!file || fread(file, 1, bytes, in) != bytes) {
        exit(2);
    }
    fclose(in);
    return bytes;
}

static colibri_session *begin(colibri_model *model, uint32_t kernel)
{
    colibri_info info = {.struct_bytes = sizeof info};
    must("info", colibri_model_info(model, &info));
    colibri_limits limits = {.struct_bytes = sizeof limits, .flags = COLIBRI_LIMIT_STREAM_EXPERTS, .context = 2048,
                             .batch = 1, .sequences = 1, .workers = 1, .slots = (uint32_t)info.expert_count,
                             .logit_rows = 1, .kernel = kernel};
    colibri_plan_result plan = {.struct_bytes = sizeof plan};
    must("plan", colibri_plan(model, &limits, &plan, NULL));
    colibri_hooks hooks = {.struct_bytes = sizeof hooks, .fetch = fetch, .fetched = fetched};
    colibri_session *session = NULL;
    void *pool = aligned(plan.pool_bytes);
    must("start", colibri_start(model, &limits, &hooks, pool, plan.pool_bytes, &session, NULL));
    for (uint32_t i = 0; i < WARM * info.expert_count / (info.top_k * info.layers); i++) {
        colibri_row row = {0, COLIBRI_NEXT_POSITION, (i * 7919u + 101u) % info.vocab, 1};
        must("feed", colibri_feed(session, &row, 1));
        must("advance", colibri_advance(session, COLIBRI_UNLIMITED));
        if (colibri_length(session, 0) == 2000u) {
            must("reset", colibri_reset(session, 0));
        }
    }
    return session;
}

int main(int count, char **argument)
{
    static double took[PASSES];
    colibri_model model;
    colibri_stats_result before = {.struct_bytes = sizeof before}, after = {.struct_bytes = sizeof after};
    uint64_t bytes = count > 1 ? load(argument[1]) : 0u;
    must("open", colibri_open(&model, file, bytes, bytes, NULL));
    colibri_session *s = begin(&model, count > 2 ? (uint32_t)atoi(argument[2]) : 0u);
    uint32_t layer = s->view.layers - 1u, experts = colibri_layer_at(s, layer)->d.top_k;
    must("stats", colibri_stats(s, &before));
    for (uint32_t i = 0; i < PASSES; i++) {
        s->pass_first = 0;
        s->pass_end = COLIBRI_NO;                       /* as before the first pass of a layer */
        uint64_t begun = now();
        int32_t status = colibri_pass_prepare(s, layer);
        took[i] = (double)(now() - begun) / experts;
        must("prepare", status == COLIBRI_DONE ? 0 : -1);
    }
    must("stats", colibri_stats(s, &after));
    qsort(took, PASSES, sizeof took[0], ascending);
    printf("passes %d experts %u p50 %.0f p99 %.0f worst %.0f misses %llu bytes %llu\n", PASSES, experts,
           took[PASSES / 2], took[PASSES / 100 * 99], took[PASSES - 1],
           (unsigned long long)(after.expert_misses - before.expert_misses),
           (unsigned long long)(after.bytes_fetched - before.bytes_fetched));
    return 0;
}
