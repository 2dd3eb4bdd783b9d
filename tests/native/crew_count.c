/*
 * crew_count.c: every unit of every op exactly once. Stands in for the core: colibri_work() counts.
 *
 *   crew_count WORKERS OPS UNITS LATE   threads, ops, most units of an op; prints one line of numbers
 *
 * LATE > 0: every LATE-th share a worker takes begins with a nap of 0.2 ms, and in every LATE-th op all are late,
 * whatever the scheduler does: the driver opens it once the others sleep, holds its first share back until one of them
 * has come, and they hold theirs back until the driver sleeps. So each of those ops has at least one worker that was
 * woken, one driver that was, and a wake-up that were lost would be waited for without end.
 *
 * Each op writes its number into the units' words and the driver looks at all of them afterwards, so a unit that is
 * lost, run twice, run with another op's numbers or not yet finished is seen. Plain words: a race is the sanitizer's.
 */
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

#include "crew.h"

enum { MOST_WORKERS = 64, MOST_UNITS = 4096 };

static colibri_crew crew __attribute__((aligned(64)));
static uint32_t unit_op[MOST_UNITS], unit_runs[MOST_UNITS];
static struct { uint32_t count, shares, inside; uint32_t line[13]; } worker_units[MOST_WORKERS];
static uint32_t op_now, late, all_late, joined;

static void nap(void)
{
    const struct timespec moment = {0, 200000};
    nanosleep(&moment, NULL);
}

static uint32_t look(const uint32_t *word)
{
    return __atomic_load_n(word, __ATOMIC_RELAXED);     /* orders nothing: the crew's own order is what is tried */
}

/* A share is taken: be late. Nobody waits for more than one other to act, and that one never for its waiter. */
static void hold(uint32_t worker)
{
    if (look(&all_late) == 0) {
        if (late != 0 && worker_units[worker].shares % late == 0) {
            nap();
        }
    } else if (worker == 0) {
        while (look(&joined) == 0) {
            nap();
        }
    } else {
        (void)__atomic_fetch_add(&joined, 1u, __ATOMIC_RELAXED);
        while (look(&crew.driver_asleep) == 0) {
            nap();
        }
    }
}

/* Before an op: are all to be late in it? */
static uint32_t prepare(uint32_t op, uint32_t workers)
{
    uint32_t now = late != 0 && op % late == 0 && workers > 1;
    while (now != 0 && look(&crew.sleepers) != workers - 1u) {
        nap();
    }
    __atomic_store_n(&joined, 0u, __ATOMIC_RELAXED);
    __atomic_store_n(&all_late, now, __ATOMIC_RELAXED);
    return now;
}

void colibri_work(colibri_session *session, uint32_t worker, uint32_t first, uint32_t count)
{
    const uint32_t *op = (const uint32_t *)(const void *)session;
    worker_units[worker].inside++;
    worker_units[worker].shares++;
    hold(worker);
    for (uint32_t i = first; i < first + count; i++) {
        unit_op[i] = *op;
        unit_runs[i]++;
    }
    worker_units[worker].count += count;
    worker_units[worker].inside--;
}

static void *live(void *argument)
{
    colibri_crew_work(&crew, (uint32_t)(uintptr_t)argument);
    return NULL;
}

static uint32_t wrong_units(uint32_t units)
{
    uint32_t wrong = 0;
    for (uint32_t i = 0; i < units; i++) {
        wrong += unit_op[i] != op_now || unit_runs[i] != 1;
        unit_runs[i] = 0;
    }
    return wrong;
}

int main(int count, char **argument)
{
    uint32_t number[5] = {0};
    for (int i = 1; i < count && i < 5; i++) {
        number[i] = (uint32_t)atoi(argument[i]);
    }
    uint32_t workers = number[1], ops = number[2], most = number[3];
    late = number[4];
    if (workers == 0 || workers > MOST_WORKERS || most == 0 || most > MOST_UNITS) {
        return 2;
    }
    pthread_t thread[MOST_WORKERS];
    struct timespec begun, ended;
    uint64_t wrong = 0, total = 0, sum = 0, others = 0, all = 0;
    colibri_crew_begin(&crew, workers);
    for (uint32_t w = 1; w < workers; w++) {
        if (pthread_create(&thread[w], NULL, live, (void *)(uintptr_t)w) != 0) {
            return 3;
        }
    }
    clock_gettime(CLOCK_MONOTONIC, &begun);
    for (op_now = 1; op_now <= ops; op_now++) {
        uint32_t together = prepare(op_now, workers);
        uint32_t units = together != 0 ? most : 1 + op_now * 2654435761u % most;
        all += together;
        colibri_crew_parallel(&crew, (colibri_session *)(void *)&op_now, units);
        wrong += wrong_units(units);
        total += units;
    }
    clock_gettime(CLOCK_MONOTONIC, &ended);
    colibri_crew_end(&crew);
    for (uint32_t w = 1; w < workers; w++) {
        pthread_join(thread[w], NULL);
    }
    for (uint32_t w = 0; w < workers; w++) {
        sum += worker_units[w].count;
        others += w != 0 ? worker_units[w].count : 0;
        wrong += worker_units[w].inside;
    }
    double nanoseconds = (double)(ended.tv_sec - begun.tv_sec) * 1e9 + (double)(ended.tv_nsec - begun.tv_nsec);
    printf("wrong %llu units %llu run %llu by_others %llu yields %llu sleeps %llu late %llu ns_per_op %.0f\n",
           (unsigned long long)wrong, (unsigned long long)total, (unsigned long long)sum, (unsigned long long)others,
           (unsigned long long)crew.yields, (unsigned long long)crew.sleeps, (unsigned long long)all,
           nanoseconds / ops);
    return wrong != 0 || sum != total;
}
