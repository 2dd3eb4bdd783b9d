/*
 * crew.h: workers for a session, made of threads that the host creates. The crew's memory belongs to the caller; it
 * knows sessions by colibri_work() alone, and the operating system by the four calls of crew_port.h.
 *
 *   driver                                          each other thread
 *   colibri_crew_begin(&crew, workers)
 *   create threads                                  colibri_crew_work(&crew, 1 .. workers - 1): returns at the end
 *   hooks.parallel = colibri_crew_parallel
 *   hooks.user = &crew
 *   ... colibri_advance() ...                       units are run
 *   colibri_crew_end(&crew), join the threads       returns
 *
 * The driver is worker 0 and takes part. A thread that is late, or never comes, costs time and nothing else: units go
 * to whoever is there. One thread drives a crew; sessions may share it in turn, each planned for as many workers.
 */
#ifndef COLIBRI_CREW_H
#define COLIBRI_CREW_H

#include "colibri.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Content is not for callers, but for the counters at the end. Best 64-byte aligned: the words that threads fight for
 * lie on cache lines of their own. */
typedef struct colibri_crew {
    uint32_t rest;                      /* units of the open op that nobody has taken; top bit: the crew ends */
    uint32_t end;                       /* number behind the open op's last unit */
    COLIBRI_POINTER(colibri_session *, session);
    uint32_t workers;
    uint32_t reserved;
    uint64_t line_0[5];
    uint32_t pending;                   /* units of the open op that are not finished */
    uint32_t line_1[15];
    uint32_t sleepers;                  /* workers asleep, or about to be, on `rest` */
    uint32_t driver_asleep;             /* the driver is, on `pending` */
    uint32_t line_2[14];
    uint64_t yields;                    /* how often a thread gave its processor away */
    uint64_t sleeps;                    /* how often one went to sleep */
    uint64_t units;                     /* all that were shared */
    uint64_t driver_units;              /* and the driver's part of them */
    uint64_t line_3[4];
} colibri_crew;

/* Everything to zero, for `workers` threads, the driver among them; 0 counts as 1. */
COLIBRI_API void colibri_crew_begin(colibri_crew *crew, uint32_t workers);
/* A thread's life: runs units as worker `worker` until the end. Each thread has a number of its own. */
COLIBRI_API void colibri_crew_work(colibri_crew *crew, uint32_t worker);
/* The parallel hook: user is the crew. */
COLIBRI_API void colibri_crew_parallel(void *user, colibri_session *session, uint32_t count);
/* The driver, between two ops: every thread returns. The memory is the caller's again once all have. */
COLIBRI_API void colibri_crew_end(colibri_crew *crew);

#ifdef __cplusplus
}
#endif

#endif
