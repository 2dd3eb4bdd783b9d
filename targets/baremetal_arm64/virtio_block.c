/*
 * virtio_block.c: the driver. One queue in static memory, polled. The bytes go where they are wanted, never through a
 * buffer: a device reads whole blocks, and what lies before and behind the wanted bytes inside the first and the last
 * one is let go into a scrap by descriptors of its own. Knows nothing of models; numbers are those of virtio 1.1, 4.2
 * (transport), 2.6 (queue) and 5.2 (block device).
 *
 * Memory is Normal, write-back, inner shareable, and the device snoops the caches, as on QEMU's board; with the MMU off
 * there are no caches. Where a device does not, `to` must be cleaned and invalidated before a piece is given to it and
 * invalidated behind, and queue and reads need memory without caches.
 */
#include "virtio_block.h"

#include "layout.h"
#include "runner_port.h"

enum { MAGIC = 0x000, VERSION = 0x004, DEVICE_ID = 0x008, DEVICE_FEATURES = 0x010, DEVICE_FEATURES_PART = 0x014,
       DRIVER_FEATURES = 0x020, DRIVER_FEATURES_PART = 0x024, LEGACY_PAGE = 0x028, QUEUE = 0x030, QUEUE_MOST = 0x034,
       QUEUE_ENTRIES = 0x038, LEGACY_ALIGN = 0x03C, LEGACY_FRAME = 0x040, QUEUE_READY = 0x044, NOTIFY = 0x050,
       STATUS = 0x070, DESCRIPTORS = 0x080, AVAILABLE = 0x090, USED = 0x0A0, GENERATION = 0x0FC, CONFIG = 0x100 };
enum { CONFIG_CAPACITY = 0, CONFIG_SIZE_MOST = 8, CONFIG_SEGMENTS_MOST = 12, CONFIG_BLOCK = 20 };
enum { ACKNOWLEDGE = 1, DRIVER = 2, DRIVER_OK = 4, FEATURES_OK = 8, FAILED = 128 };
enum { SIZE_MOST = 1 << 1, SEGMENTS_MOST = 1 << 2, BLOCK_SIZE = 1 << 6, WANTED = SIZE_MOST | SEGMENTS_MOST | BLOCK_SIZE,
       MODERN = 1 };                    /* the last one in the upper half of the features */
enum { NEXT = 1, DEVICE_WRITES = 2, READ = 0, SECTOR = 512, PAGE = 4096, BLOCK_DEVICE = 2, PROBE_MAGIC = 0x74726976 };

struct descriptor {
    uint64_t address;
    uint32_t bytes;
    uint16_t flags, next;
};

struct used {
    uint32_t first, bytes;
};

/* Descriptors, then the available ring, then from the next page on the used ring: what a legacy device expects. */
static unsigned char queue[3u * PAGE] __attribute__((aligned(4096)));
static unsigned char scrap[DISK_GRANULE] __attribute__((aligned(64)));

static volatile uint32_t *reg(const colibri_disk *disk, uint32_t offset)
{
    return (volatile uint32_t *)(disk->base + offset);
}

static volatile struct descriptor *descriptor(uint32_t index)
{
    return (volatile struct descriptor *)(void *)queue + index;
}

/* flags, index, entries */
static volatile uint16_t *available(const colibri_disk *disk)
{
    return (volatile uint16_t *)(void *)(queue + 16u * disk->entries);
}

static unsigned char *used_ring(const colibri_disk *disk)
{
    uint32_t end = 16u * disk->entries + 2u * (3u + disk->entries);
    return queue + (end + PAGE - 1u) / PAGE * PAGE;
}

/* Between the queue's memory and the device, in both directions. */
static void barrier(void)
{
    __asm__ volatile("dmb sy" : : : "memory");
}

/* ---- finding it ---- */

static uint32_t found(colibri_disk *disk, uintptr_t base)
{
    disk->base = base;
    disk->version = *reg(disk, VERSION);
    if (*reg(disk, MAGIC) == PROBE_MAGIC && *reg(disk, DEVICE_ID) == BLOCK_DEVICE
        && (disk->version == 1u || disk->version == 2u)) {
        return 1u;
    }
    disk->base = 0;
    return 0u;
}

/* Take of the features what matters to reads; a modern device has to agree. 0: it does not. */
static uint32_t agree(colibri_disk *disk, uint32_t *features)
{
    *reg(disk, DEVICE_FEATURES_PART) = 0u;
    *features = *reg(disk, DEVICE_FEATURES) & WANTED;
    *reg(disk, DRIVER_FEATURES_PART) = 0u;
    *reg(disk, DRIVER_FEATURES) = *features;
    if (disk->version == 1u) {
        return 1u;
    }
    *reg(disk, DEVICE_FEATURES_PART) = 1u;
    if ((*reg(disk, DEVICE_FEATURES) & MODERN) == 0u) {
        return 0u;
    }
    *reg(disk, DRIVER_FEATURES_PART) = 1u;
    *reg(disk, DRIVER_FEATURES) = MODERN;
    *reg(disk, STATUS) = ACKNOWLEDGE | DRIVER | FEATURES_OK;
    return (*reg(disk, STATUS) & FEATURES_OK) != 0u;
}

/* Its size, and what it does not take. 0: a device that cannot be read in the way of this driver. */
static uint32_t measure(colibri_disk *disk, uint32_t features)
{
    uint32_t generation, size = 0, segments = DISK_CHAIN - 2u, block = SECTOR;
    do {
        generation = disk->version == 1u ? 0u : *reg(disk, GENERATION);
        disk->bytes = *reg(disk, CONFIG + CONFIG_CAPACITY);
        disk->bytes = (disk->bytes | (uint64_t)*reg(disk, CONFIG + CONFIG_CAPACITY + 4u) << 32) * SECTOR;
        size = (features & SIZE_MOST) != 0u ? *reg(disk, CONFIG + CONFIG_SIZE_MOST) : 0u;
        segments = (features & SEGMENTS_MOST) != 0u ? *reg(disk, CONFIG + CONFIG_SEGMENTS_MOST) : segments;
        block = (features & BLOCK_SIZE) != 0u ? *reg(disk, CONFIG + CONFIG_BLOCK) : block;
    } while (disk->version != 1u && generation != *reg(disk, GENERATION));
    if (block < SECTOR || block > DISK_GRANULE || (block & (block - 1u)) != 0u || segments < DISK_CHAIN - 2u) {
        return 0u;
    }
    disk->granule = block;
    disk->piece = size >= block && size < DISK_PIECE ? size / block * block : DISK_PIECE;
    return size == 0u || size >= block;
}

static void place(const colibri_disk *disk, uint32_t offset, const volatile void *at)
{
    *reg(disk, offset) = (uint32_t)(uintptr_t)at;
    *reg(disk, offset + 4u) = (uint32_t)((uint64_t)(uintptr_t)at >> 32);
}

/* 0: the device has no queue. */
static uint32_t open_queue(colibri_disk *disk)
{
    *reg(disk, QUEUE) = 0u;
    uint32_t most = *reg(disk, QUEUE_MOST);
    disk->entries = DISK_ENTRIES;
    while (disk->entries > most) {
        disk->entries /= 2u;
    }
    disk->reads_most = disk->entries / DISK_CHAIN < DISK_READS ? disk->entries / DISK_CHAIN : DISK_READS;
    if (disk->reads_most == 0u) {
        return 0u;
    }
    for (uint32_t i = 0; i < sizeof queue; i++) {
        queue[i] = 0u;
    }
    barrier();
    *reg(disk, QUEUE_ENTRIES) = disk->entries;
    if (disk->version == 1u) {
        *reg(disk, LEGACY_PAGE) = PAGE;
        *reg(disk, LEGACY_ALIGN) = PAGE;
        *reg(disk, LEGACY_FRAME) = (uint32_t)((uint64_t)(uintptr_t)queue / PAGE);
        return 1u;
    }
    place(disk, DESCRIPTORS, queue);
    place(disk, AVAILABLE, available(disk));
    place(disk, USED, used_ring(disk));
    *reg(disk, QUEUE_READY) = 1u;
    return 1u;
}

uint32_t colibri_disk_open(colibri_disk *disk)
{
    uint32_t features = 0;
    for (uint32_t i = 0; i < BOARD_VIRTIO_COUNT; i++) {
        if (found(disk, BOARD_VIRTIO + i * (uintptr_t)BOARD_VIRTIO_STRIDE) != 0u) {
            break;
        }
    }
    if (disk->base == 0u) {
        return 0u;
    }
    *reg(disk, STATUS) = 0u;
    *reg(disk, STATUS) = ACKNOWLEDGE;
    *reg(disk, STATUS) = ACKNOWLEDGE | DRIVER;
    if (agree(disk, &features) == 0u || measure(disk, features) == 0u || open_queue(disk) == 0u) {
        *reg(disk, STATUS) = FAILED;
        disk->base = 0u;
        return 0u;
    }
    *reg(disk, STATUS) = ACKNOWLEDGE | DRIVER | DRIVER_OK | (disk->version == 1u ? 0u : (uint32_t)FEATURES_OK);
    return 1u;
}

/* ---- reading ---- */

/* Append to the chain of a read; no bytes, no descriptor. Returns the place behind. */
static uint32_t link(uint32_t at, const volatile void *memory, uint64_t bytes, uint16_t flags)
{
    if (bytes == 0u) {
        return at;
    }
    volatile struct descriptor *d = descriptor(at);
    d->address = (uintptr_t)memory;
    d->bytes = (uint32_t)bytes;
    d->flags = flags;
    d->next = (uint16_t)(at + 1u);
    return at + 1u;
}

/* Give the next piece of a read to the device: whole blocks, unwanted bytes into the scrap. */
static void submit(colibri_disk *disk, uint32_t number)
{
    colibri_disk_read *r = &disk->read[number];
    uint64_t before = r->offset % disk->granule;
    uint64_t bytes = r->left < disk->piece - before ? r->left : disk->piece - before;
    uint64_t behind = (disk->granule - (before + bytes) % disk->granule) % disk->granule;
    uint32_t first = number * DISK_CHAIN;
    r->type = READ;
    r->reserved = 0u;
    r->sector = (r->offset - before) / SECTOR;
    r->answer = DISK_NONE;
    r->piece = (uint32_t)bytes;
    r->begun = colibri_runner_clock();
    r->order = disk->reads++;
    uint32_t at = link(first, r, 16u, NEXT);
    at = link(at, scrap, before, NEXT | DEVICE_WRITES);
    at = link(at, r->to, bytes, NEXT | DEVICE_WRITES);
    at = link(at, scrap, behind, NEXT | DEVICE_WRITES);
    (void)link(at, &r->answer, 1u, DEVICE_WRITES);
    volatile uint16_t *ring = available(disk);
    ring[2u + disk->given % disk->entries] = (uint16_t)first;
    barrier();
    ring[1] = ++disk->given;
    barrier();
    *reg(disk, NOTIFY) = 0u;
}

int32_t colibri_disk_begin(colibri_disk *disk, uint64_t offset, uint64_t bytes, void *to)
{
    uint32_t i = 0;
    if (disk->base == 0u || bytes == 0u || offset > disk->bytes || bytes > disk->bytes - offset) {
        return DISK_REFUSED;
    }
    while (i < disk->reads_most && disk->read[i].state != DISK_FREE) {
        i++;
    }
    if (i == disk->reads_most) {
        return DISK_FULL;
    }
    colibri_disk_read *r = &disk->read[i];
    r->state = DISK_FLYING;
    r->tries = 1u;
    r->offset = offset;
    r->left = bytes;
    r->to = to;
    disk->in_flight++;
    disk->most_in_flight = disk->in_flight > disk->most_in_flight ? disk->in_flight : disk->most_in_flight;
    submit(disk, i);
    return (int32_t)i;
}

static void end(colibri_disk *disk, colibri_disk_read *r, enum disk_read_state state, uint32_t answer)
{
    r->state = (uint8_t)state;
    disk->in_flight--;
    if (state == DISK_LOST) {
        disk->lost_sector = r->sector;
        disk->lost_answer = answer;
    }
}

/* A piece was answered: the next one, the same one again, or the end. */
static void answered(colibri_disk *disk, uint32_t number)
{
    colibri_disk_read *r = &disk->read[number];
    for (uint32_t i = 0; i < disk->reads_most; i++) {
        if (disk->read[i].state == DISK_FLYING && disk->read[i].order < r->order) {
            disk->out_of_order++;
            break;
        }
    }
    if (r->answer == DISK_FINE) {
        disk->bytes_read += r->piece;
        r->offset += r->piece;
        r->left -= r->piece;
        r->to += r->piece;
        r->tries = 1u;
    } else if (r->tries < DISK_TRIES) {
        r->tries++;
        disk->retries++;
    } else {
        end(disk, r, DISK_LOST, r->answer);
        return;
    }
    if (r->left == 0u) {
        end(disk, r, DISK_READ, DISK_FINE);
    } else {
        submit(disk, number);
    }
}

/* A device that breaks the rules or keeps silent is reset, so that it writes nothing any more; all reads are lost. */
static void give_up(colibri_disk *disk)
{
    *reg(disk, STATUS) = 0u;
    while (*reg(disk, STATUS) != 0u) {
    }
    disk->base = 0u;
    for (uint32_t i = 0; i < disk->reads_most; i++) {
        if (disk->read[i].state == DISK_FLYING) {
            end(disk, &disk->read[i], DISK_LOST, DISK_SILENT);
        }
    }
}

void colibri_disk_look(colibri_disk *disk)
{
    if (disk->base == 0u || disk->in_flight == 0u) {
        return;
    }
    const volatile uint16_t *index = (const volatile uint16_t *)(void *)used_ring(disk) + 1;
    while (disk->taken != *index) {
        barrier();
        const volatile struct used *entry = (const volatile struct used *)(void *)(used_ring(disk) + 4u)
                                            + disk->taken % disk->entries;
        uint32_t number = entry->first / DISK_CHAIN;
        if (number >= disk->reads_most || disk->read[number].state != DISK_FLYING) {
            give_up(disk);
            return;
        }
        disk->taken++;
        answered(disk, number);
    }
    uint64_t now = colibri_runner_clock();
    for (uint32_t i = 0; i < disk->reads_most; i++) {
        if (disk->read[i].state == DISK_FLYING && now - disk->read[i].begun > DISK_PATIENCE) {
            give_up(disk);
            return;
        }
    }
}

enum disk_read_state colibri_disk_ended(colibri_disk *disk, uint32_t number)
{
    enum disk_read_state state = (enum disk_read_state)disk->read[number].state;
    if (state != DISK_FLYING) {
        disk->read[number].state = DISK_FREE;
    }
    return state;
}
