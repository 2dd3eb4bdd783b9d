/*
 * linux_threads.h: threads for a program without a libc.
 */
#ifndef COLIBRI_LINUX_THREADS_H
#define COLIBRI_LINUX_THREADS_H

#include "crew.h"
#include "store.h"

/* A thread that lives in colibri_crew_work(crew, worker). 1, or 0 where the kernel refuses it. */
uint32_t colibri_linux_thread_start(colibri_crew *crew, uint32_t worker);
/* One that lives in colibri_store_work(store). */
uint32_t colibri_linux_reader_start(colibri_store *store);

#endif
