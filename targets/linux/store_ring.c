/*
 * store_ring.c: the kernel's io_uring without a library: two rings in shared memory. The driver alone writes the
 * submission ring's tail and the completion ring's head; the kernel the other ends.
 */
#include "linux_call.h"
#include "store_ring.h"

enum { PROT_READ_WRITE = 3, MAP_SHARED_POPULATE = 0x8001, OFFSET_RINGS = 0, OFFSET_ENTRIES = 0x10000000,
       FEATURE_SINGLE_MAP = 1, ENTER_GETEVENTS = 1, OP_READ = 22, ENTRY_ASYNC = 16, NO_URING = -38 };

typedef struct ring_offsets {
    uint32_t head, tail, mask, entries, flags_or_overflow, dropped_or_cqes, array, reserved;
    uint64_t user;
} ring_offsets;

typedef struct ring_params {
    uint32_t sq_entries, cq_entries, flags, cpu, idle, features, wq, reserved[3];
    ring_offsets sq, cq;
} ring_params;

typedef struct ring_entry {
    uint8_t op, flags;
    uint16_t priority;
    int32_t file;
    uint64_t offset, address;
    uint32_t bytes, rw_flags;
    uint64_t tag;
    uint64_t rest[3];
} ring_entry;

typedef struct ring_result {
    uint64_t tag;
    int32_t result;
    uint32_t flags;
} ring_result;

static uint32_t *word_at(const colibri_store_ring *ring, uint32_t offset)
{
    return (uint32_t *)(void *)(ring->rings + offset);
}

static long map_of(int32_t file, uint32_t bytes, long offset)
{
    return colibri_linux_call(SYS_MMAP, 0, (long)bytes, PROT_READ_WRITE, MAP_SHARED_POPULATE, file, offset);
}

int32_t colibri_ring_open(colibri_store_ring *ring, uint32_t depth)
{
    ring_params p = {0};
    *ring = (colibri_store_ring){.file = -1};
    long file = colibri_linux_call(SYS_URING_SETUP, (long)depth, (long)(intptr_t)&p, 0, 0, 0, 0);
    if (colibri_linux_refused(file) != 0u) {
        return (int32_t)file;
    }
    ring->file = (int32_t)file;
    uint32_t sq_bytes = p.sq.array + 4u * p.sq_entries;
    uint32_t cq_bytes = p.cq.dropped_or_cqes + (uint32_t)sizeof(ring_result) * p.cq_entries;
    ring->rings_bytes = sq_bytes > cq_bytes ? sq_bytes : cq_bytes;
    ring->entries_bytes = (uint32_t)sizeof(ring_entry) * p.sq_entries;
    if ((p.features & FEATURE_SINGLE_MAP) == 0u) {
        colibri_ring_close(ring);
        return NO_URING;                                /* of the first kernels, which cannot do a plain read either */
    }
    long rings = map_of(ring->file, ring->rings_bytes, OFFSET_RINGS);
    long entries = map_of(ring->file, ring->entries_bytes, OFFSET_ENTRIES);
    ring->rings = colibri_linux_refused(rings) != 0u ? 0 : (unsigned char *)(intptr_t)rings;
    ring->entries = colibri_linux_refused(entries) != 0u ? 0 : (unsigned char *)(intptr_t)entries;
    if (ring->rings == 0 || ring->entries == 0) {
        colibri_ring_close(ring);
        return NO_URING;
    }
    ring->sq_tail = word_at(ring, p.sq.tail);
    ring->sq_array = word_at(ring, p.sq.array);
    ring->cq_head = word_at(ring, p.cq.head);
    ring->cq_tail = word_at(ring, p.cq.tail);
    ring->sq_mask = *word_at(ring, p.sq.mask);
    ring->cq_mask = *word_at(ring, p.cq.mask);
    ring->cqes = ring->rings + p.cq.dropped_or_cqes;
    return 0;
}

void colibri_ring_close(colibri_store_ring *ring)
{
    if (ring->rings != 0) {
        (void)colibri_linux_call(SYS_MUNMAP, (long)(intptr_t)ring->rings, (long)ring->rings_bytes, 0, 0, 0, 0);
    }
    if (ring->entries != 0) {
        (void)colibri_linux_call(SYS_MUNMAP, (long)(intptr_t)ring->entries, (long)ring->entries_bytes, 0, 0, 0, 0);
    }
    if (ring->file >= 0) {
        (void)colibri_linux_call(SYS_CLOSE, ring->file, 0, 0, 0, 0, 0);
    }
    *ring = (colibri_store_ring){.file = -1};
}

int32_t colibri_ring_read(colibri_store_ring *ring, int32_t file, uint64_t offset, void *to, uint32_t bytes,
                          uint32_t elsewhere, uint32_t tag)
{
    uint32_t tail = *ring->sq_tail, place = tail & ring->sq_mask;   /* one is free: a request has one read */
    ((ring_entry *)(void *)ring->entries)[place] = (ring_entry){
        .op = OP_READ, .flags = elsewhere != 0u ? ENTRY_ASYNC : 0u, .file = file, .offset = offset,
        .address = (uint64_t)(uintptr_t)to, .bytes = bytes, .tag = tag};
    ring->sq_array[place] = place;
    __atomic_store_n(ring->sq_tail, tail + 1u, __ATOMIC_RELEASE);
    long taken = -4;
    while (taken == -4) {                                           /* interrupted before it took anything */
        taken = colibri_linux_call(SYS_URING_ENTER, ring->file, 1, 0, 0, 0, 0);
    }
    if (taken == 1) {
        return 0;
    }
    __atomic_store_n(ring->sq_tail, tail, __ATOMIC_RELEASE);        /* the kernel reads the ring in the call only */
    return taken == 0 ? -11 : (int32_t)taken;
}

uint32_t colibri_ring_take(colibri_store_ring *ring, uint32_t *tag, int32_t *result)
{
    uint32_t head = *ring->cq_head;
    if (head == __atomic_load_n(ring->cq_tail, __ATOMIC_ACQUIRE)) {
        return 0u;
    }
    const ring_result *r = (const ring_result *)(const void *)ring->cqes + (head & ring->cq_mask);
    *tag = (uint32_t)r->tag;
    *result = r->result;
    __atomic_store_n(ring->cq_head, head + 1u, __ATOMIC_RELEASE);
    return 1u;
}

void colibri_ring_wait(colibri_store_ring *ring)
{
    (void)colibri_linux_call(SYS_URING_ENTER, ring->file, 0, 1, ENTER_GETEVENTS, 0, 0);
}
