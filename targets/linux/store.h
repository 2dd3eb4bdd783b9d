/*
 * store.h: a file as the store of a session: colibri.h's fetch and fetched, without a libc. The store's memory belongs
 * to the caller. Reads go through io_uring where the kernel has it, else through threads that the host creates:
 *
 *   colibri_store_open(&store, path, &options)
 *   create store.threads threads (0 with io_uring)      each: colibri_store_work(&store), returns at the end
 *   hooks.fetch = colibri_store_fetch, hooks.fetched = colibri_store_fetched, hooks.user = &host
 *   ... colibri_start(), colibri_advance() ...           on COLIBRI_WAIT: colibri_store_wait(&store), then again
 *   colibri_stop() until it is DONE
 *   colibri_store_end(&store), join the threads, colibri_store_close(&store)
 *
 * Requests complete in any order. A short read is continued, a failed one is begun again a bounded number of times;
 * then the fetch has failed, the session stays as it was, and asks anew at its next call. One thread drives a store.
 */
#ifndef COLIBRI_STORE_H
#define COLIBRI_STORE_H

#include "colibri.h"
#include "crew.h"

#ifdef __cplusplus
extern "C" {
#endif

enum colibri_store_kind {
    COLIBRI_STORE_BEST = 0,             /* io_uring where the kernel has it, else threads */
    COLIBRI_STORE_URING = 1,
    COLIBRI_STORE_PREAD = 2
};

enum colibri_store_flags {
    COLIBRI_STORE_DIRECT = 1,           /* O_DIRECT: past the page cache */
    COLIBRI_STORE_POISON = 2            /* destinations hold nonsense until their bytes are there */
};

enum colibri_store_sizes {
    COLIBRI_STORE_MOST = 64,            /* requests in flight */
    COLIBRI_STORE_PAGE = 4096,          /* what direct reads are aligned to */
    COLIBRI_STORE_BOUNCE = 131072,      /* per request, for what is not aligned in direct reads */
    COLIBRI_STORE_END_OF_FILE = 61      /* in `error`: the file ends before the request does (Linux's ENODATA) */
};

typedef struct colibri_store_options {
    uint32_t struct_bytes;
    uint32_t kind;                      /* colibri_store_kind */
    uint32_t flags;                     /* colibri_store_flags */
    uint32_t depth;                     /* requests in flight, at most COLIBRI_STORE_MOST; 0: 8 */
    uint32_t threads;                   /* that read, where io_uring does not; 0: 4 */
    uint32_t retries;                   /* times a read that failed is begun again */
    uint32_t piece_bytes;               /* largest single read, 0: as large as the request */
    uint32_t reserved;
    uint64_t bytes_per_second;          /* plays a device of this bandwidth; 0: none */
} colibri_store_options;

/* A request and the read under way for it. Content is not for callers. */
typedef struct colibri_store_read {
    uint32_t state;
    uint32_t ticket;
    uint32_t layer, expert;
    uint32_t tries;                     /* of the read under way */
    int32_t error;                      /* errno of the last one that failed */
    uint64_t order;                     /* number of the request */
    uint64_t offset, bytes, done;
    uint64_t due;                       /* clock before which it is not there; see bytes_per_second */
    uint64_t at, ask, skip;             /* file offset, bytes asked for, of which the first are not wanted */
    COLIBRI_POINTER(unsigned char *, into);
    COLIBRI_POINTER(unsigned char *, destination);
    COLIBRI_POINTER(unsigned char *, bounce);
} colibri_store_read;

/* Rings of io_uring, mapped. Content is not for callers. */
typedef struct colibri_store_ring {
    int32_t file;                       /* -1: none */
    uint32_t sq_mask, cq_mask, rings_bytes, entries_bytes;
    uint32_t reserved;
    COLIBRI_POINTER(unsigned char *, rings);
    COLIBRI_POINTER(unsigned char *, entries);
    COLIBRI_POINTER(uint32_t *, sq_tail);
    COLIBRI_POINTER(uint32_t *, sq_array);
    COLIBRI_POINTER(uint32_t *, cq_head);
    COLIBRI_POINTER(uint32_t *, cq_tail);
    COLIBRI_POINTER(unsigned char *, cqes);
} colibri_store_ring;

typedef struct colibri_store {
    uint32_t kind;                      /* the one that reads: URING or PREAD */
    uint32_t threads;                   /* to create: 0 with io_uring */
    uint64_t file_bytes;                /* when it was opened */
    /* counters */
    uint64_t requests, reads, bytes;
    uint64_t shorts, retries, failures;
    uint32_t in_flight, most_in_flight;
    /* of the request that fetched() answered last: what a refused checksum or a failed fetch is about */
    uint32_t last_layer, last_expert;
    uint64_t last_offset;
    int32_t last_error;                 /* errno, COLIBRI_STORE_END_OF_FILE, 0: its bytes were handed over */
    uint32_t reserved;
    /* not for callers */
    int32_t file;
    uint32_t work;                      /* threads sleep on it: counts what was queued */
    uint32_t idle;                      /* threads asleep */
    uint32_t ending;
    uint32_t arrived;                   /* the driver sleeps on it: counts what has ended */
    uint32_t seen;                      /* of those, before the last wait */
    uint32_t driver_asleep;
    uint32_t line;
    uint64_t busy_until;                /* of the device that is played */
    COLIBRI_POINTER(unsigned char *, bounces);
    colibri_store_options options;
    colibri_store_ring ring;
    colibri_store_read read[64];        /* COLIBRI_STORE_MOST */
} colibri_store;

/* 0, or errno negative: a file that cannot be opened, no io_uring where it was asked for (-38), a file system without
 * O_DIRECT (-22). */
COLIBRI_API int32_t colibri_store_open(colibri_store *store, const char *path, const colibri_store_options *options);
/* A thread's life. */
COLIBRI_API void colibri_store_work(colibri_store *store);
/* Return once a request has ended since the last wait, or when none is in flight. */
COLIBRI_API void colibri_store_wait(colibri_store *store);
/* The driver: what is in flight comes to its end, threads return. */
COLIBRI_API void colibri_store_end(colibri_store *store);
/* After the end, once all threads are back: the file is closed, the memory is the caller's. */
COLIBRI_API void colibri_store_close(colibri_store *store);

/* One pointer serves all hooks of a session: a store, and a crew where there are several workers. */
typedef struct colibri_store_host {
    COLIBRI_POINTER(colibri_store *, store);
    COLIBRI_POINTER(colibri_crew *, crew);
} colibri_store_host;

/* colibri.h's hooks; user is a colibri_store_host. */
COLIBRI_API int32_t colibri_store_fetch(void *user, const colibri_fetch_request *request);
COLIBRI_API int32_t colibri_store_fetched(void *user, uint32_t ticket);
COLIBRI_API void colibri_store_parallel(void *user, colibri_session *session, uint32_t count);

#ifdef __cplusplus
}
#endif

#endif
