/*
 * store_ring.h: io_uring, as far as store.c wants it.
 */
#ifndef COLIBRI_STORE_RING_H
#define COLIBRI_STORE_RING_H

#include "store.h"

/* Set up rings for `depth` reads. 0, or errno negative. */
int32_t colibri_ring_open(colibri_store_ring *ring, uint32_t depth);
void colibri_ring_close(colibri_store_ring *ring);
/* Begin a read. `elsewhere`: by a thread of the kernel's, so that this one copies nothing out of the page cache.
 * 0, or errno negative: then nothing was begun. */
int32_t colibri_ring_read(colibri_store_ring *ring, int32_t file, uint64_t offset, void *to, uint32_t bytes,
                          uint32_t elsewhere, uint32_t tag);
/* A read that has ended: 1 with its tag and result; 0: none. */
uint32_t colibri_ring_take(colibri_store_ring *ring, uint32_t *tag, int32_t *result);
/* Sleep until one has. */
void colibri_ring_wait(colibri_store_ring *ring);

#endif
