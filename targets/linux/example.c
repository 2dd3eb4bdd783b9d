/*
 * example.c: all it takes to use the library on a system with a libc: map a model, plan, give memory, feed a
 * prompt, sample; with the best kernels of this processor and, if wanted, several workers. Build:
 *   cc -pthread -Icore -Itargets/workers -Itargets/host example.c crew.c crew_linux.c host.c host_linux.c \
 *      libcolibri.a -o example
 * Run:
 *   ./example model.colibri "Once upon a time" [WORKERS]
 */
#include <fcntl.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>

#include "crew.h"
#include "host.h"

enum { MOST_WORKERS = 64 };

static void check(const char *call, int32_t status)
{
    if (status < 0) {
        fprintf(stderr, "%s: %s (%d)\n", call, colibri_status_text(status), (int)status);
        exit(3);
    }
}

/* ---- workers: a thread each, living in the crew until its end ---- */

typedef struct worker {
    colibri_crew *crew;
    uint32_t number;
    pthread_t thread;
} worker;

static void *live(void *argument)
{
    worker *w = argument;
    colibri_crew_work(w->crew, w->number);
    return NULL;
}

/* Worker 0 is the thread that calls colibri_advance. A thread that cannot be had is done without. */
static uint32_t start_workers(colibri_crew *crew, worker *team, uint32_t workers)
{
    uint32_t started = 1;
    colibri_crew_begin(crew, workers);
    for (; started < workers; started++) {
        team[started] = (worker){.crew = crew, .number = started};
        if (pthread_create(&team[started].thread, NULL, live, &team[started]) != 0) {
            break;
        }
    }
    return started;
}

static void end_workers(colibri_crew *crew, worker *team, uint32_t started)
{
    colibri_crew_end(crew);
    while (--started > 0) {
        pthread_join(team[started].thread, NULL);
    }
}

/* ---- a text ---- */

static void write_on(colibri_session *session, const char *prompt)
{
    uint32_t ids[256], tokens = 0, fed = 0;
    check("encode", colibri_encode(session, prompt, (uint32_t)strlen(prompt), COLIBRI_TEXT_BOS, COLIBRI_UNLIMITED,
                                   ids, 200, &tokens));
    colibri_decoder decoder = {{0}};
    colibri_sampling sampling = {.struct_bytes = sizeof sampling, .top_p = 1, .repetition_penalty = 1};
    for (uint32_t end = tokens + 40; tokens < end;) {
        while (fed < tokens) {                          /* prompt first, then one token at a time */
            colibri_row row = {0, COLIBRI_NEXT_POSITION, ids[fed], fed + 1 == tokens};
            check("feed", colibri_feed(session, &row, 1));
            check("advance", colibri_advance(session, COLIBRI_UNLIMITED));
            fed++;
        }
        char text[256];
        uint32_t written = 0;
        sampling.position = tokens;
        check("sample", colibri_sample(session, 0, &sampling, NULL, 0, &ids[tokens]));
        check("decode", colibri_decode(session, &decoder, ids[tokens++], 0, text, sizeof text, &written));
        fwrite(text, 1, written, stdout);
    }
}

int main(int count, char **argument)
{
    struct stat size;
    int workers = count == 4 ? atoi(argument[3]) : 1;
    int file = count == 3 || count == 4 ? open(argument[1], O_RDONLY) : -1;
    if (file < 0 || fstat(file, &size) != 0 || workers < 1 || workers > MOST_WORKERS) {
        fprintf(stderr, "usage: example MODEL PROMPT [WORKERS]\n");
        return 2;
    }
    uint64_t bytes = (uint64_t)size.st_size;
    void *blob = mmap(NULL, bytes, PROT_READ, MAP_PRIVATE, file, 0);

    colibri_model model;
    check("open", blob == MAP_FAILED ? COLIBRI_ERROR_ADDRESS : colibri_open(&model, blob, bytes, bytes, NULL));
    colibri_limits limits = {.struct_bytes = sizeof limits, .context = 256, .batch = 16, .sequences = 1,
                             .workers = (uint32_t)workers, .logit_rows = 1, .text_bytes = 1024,
                             .kernel = colibri_host_kernel(colibri_kernels())};
    colibri_plan_result plan = {.struct_bytes = sizeof plan};
    check("plan", colibri_plan(&model, &limits, &plan, NULL));

    colibri_crew crew;
    worker team[MOST_WORKERS];
    uint32_t started = start_workers(&crew, team, limits.workers);
    colibri_hooks hooks = {.struct_bytes = sizeof hooks, .user = &crew};
    if (started > 1) {
        hooks.parallel = colibri_crew_parallel;
    }
    colibri_session *session = NULL;
    void *pool = aligned_alloc(64, (plan.pool_bytes + 63) / 64 * 64);
    check("start", pool == NULL ? COLIBRI_ERROR_POOL_SMALL
                                : colibri_start(&model, &limits, &hooks, pool, plan.pool_bytes, &session, NULL));
    write_on(session, argument[2]);
    end_workers(&crew, team, started);
    printf("\n%llu bytes of pool\n", (unsigned long long)plan.pool_bytes);
    return 0;
}
