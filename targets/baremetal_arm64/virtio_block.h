/*
 * virtio_block.h: reads from a virtio block device behind the MMIO transport, several at a time, answered in any order,
 * without interrupts. A board with another device gives its store (store_board.c) these four calls for that one.
 */
#ifndef COLIBRI_VIRTIO_BLOCK_H
#define COLIBRI_VIRTIO_BLOCK_H

#include <stdint.h>

#define DISK_READS 16u                  /* in flight */
#define DISK_CHAIN 5u                   /* descriptors of a read: header, before, bytes, behind, status */
#define DISK_ENTRIES 128u               /* of the queue, a power of two; at least DISK_READS * DISK_CHAIN */
#define DISK_GRANULE 4096u              /* largest block size */
#define DISK_PIECE 0x400000u            /* bytes of one request to the device; a longer read is several in turn */
#define DISK_TRIES 4u                   /* of a piece that the device answers with an error */
#define DISK_PATIENCE 10000000u         /* microseconds without an answer after which the device is given up */

enum disk_answer { DISK_FINE = 0, DISK_ERROR = 1, DISK_UNSUPPORTED = 2, DISK_SILENT = 254, DISK_NONE = 255 };
enum disk_read_state { DISK_FREE, DISK_FLYING, DISK_READ, DISK_LOST };

typedef struct colibri_disk_read {
    uint32_t type, reserved;            /* the header the device reads: type, sector */
    uint64_t sector;
    volatile uint8_t answer;            /* enum disk_answer; the device writes it */
    uint8_t state;                      /* enum disk_read_state */
    uint16_t tries;
    uint32_t piece;                     /* bytes of the request under way */
    uint64_t offset, left;              /* of what is not there yet */
    uint64_t begun, order;              /* of the piece: microseconds; how many were given before it */
    unsigned char *to;
} colibri_disk_read;

typedef struct colibri_disk {
    uintptr_t base;                     /* of the transport's registers; 0: no device, or given up */
    uint32_t version;                   /* 1 legacy, 2 modern */
    uint32_t entries;                   /* of the queue */
    uint32_t reads_most;                /* in flight, by the queue's size */
    uint32_t granule;                   /* bytes: offset and size of a request are multiples */
    uint32_t piece;
    uint16_t given, taken;              /* indices of the available and the used ring */
    uint64_t bytes;                     /* of the disk */
    uint64_t reads, bytes_read;         /* pieces given to the device, bytes that came */
    uint64_t retries, out_of_order;     /* pieces given once more; answers that passed an older piece */
    uint32_t in_flight, most_in_flight;
    uint64_t lost_sector;               /* of the piece that failed for good, */
    uint32_t lost_answer;               /* and what the device said */
    colibri_disk_read read[DISK_READS];
} colibri_disk;

/* The first block device of the board. 1: there it is; 0: there is none, or none that can be used. */
uint32_t colibri_disk_open(colibri_disk *disk);
/* Begin to read; memory at `to` is the device's until the read has ended. Its number, DISK_FULL or DISK_REFUSED. */
#define DISK_FULL (-1)                  /* not now */
#define DISK_REFUSED (-2)               /* behind the disk's end, or the device was given up */
int32_t colibri_disk_begin(colibri_disk *disk, uint64_t offset, uint64_t bytes, void *to);
/* Look what has arrived, and go on with what is not complete. */
void colibri_disk_look(colibri_disk *disk);
/* How a read is; one that has ended is forgotten by being asked about. */
enum disk_read_state colibri_disk_ended(colibri_disk *disk, uint32_t number);

#endif
