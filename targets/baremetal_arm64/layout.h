/*
 * layout.h: where things lie in the memory of QEMU's `virt` board. The host's side (Python) reads the same
 * numbers with cffi, so only #define numbers stand here. The image's own places are link.ld's.
 *
 *   RAM + 2 MiB   code, read-only        BOARD_JOB    the job (runner.h), placed by the loader device
 *       + 4 MiB   data                   BOARD_BLOB   of the model file what is to be in RAM, read-only:
 *       + 6 MiB   unmapped guard                        all of it, likewise placed by the loader device;
 *       + 8 MiB   core 0's stack, then                  its head, read from the disk; or, with
 *                 for each further core an              RUNNER_BOARD_FLASH, nothing
 *                 unmapped guard and its stack  behind it     the job's region, from the next BOARD_REGION_ALIGN on
 *
 *   BOARD_FLASH   the second flash bank, where the model file begins with RUNNER_BOARD_FLASH
 *   BOARD_VIRTIO  virtio-mmio transports; the first block device is the disk of RUNNER_STORE_PORT
 *
 * RAM must reach to the region's end, and no further than BOARD_GIB_MAX GiB from address 0.
 */
#ifndef COLIBRI_BOARD_LAYOUT_H
#define COLIBRI_BOARD_LAYOUT_H

#define BOARD_RAM 0x40000000u
#define BOARD_STACK 0x40800000         /* link.ld has it too; start.S reads these */
#define BOARD_STACK_BYTES 0x200000
#define BOARD_STACK_STRIDE 0x400000    /* from one core's stack to the next one's */
#define BOARD_CORES 8                  /* most that run units */
#define BOARD_JOB 0x42800000u
#define BOARD_JOB_BYTES 0x800000u
#define BOARD_BLOB 0x43000000u
#define BOARD_REGION_ALIGN 0x200000u
#define BOARD_GIB_MAX 16u
#define BOARD_UART 0x09000000u          /* PL011 */
#define BOARD_FLASH 0x04000000u
#define BOARD_FLASH_BYTES 0x4000000u
#define BOARD_VIRTIO 0x0A000000u
#define BOARD_VIRTIO_STRIDE 0x200u
#define BOARD_VIRTIO_COUNT 32u
#define BOARD_EXIT_FAULT 97             /* exit code after a CPU exception */
#define BOARD_EXIT_NO_JOB 66            /* exit code when there is no job at BOARD_JOB, or the disk cannot be used */
#define BOARD_FAULT_ADDRESS 0x1000u     /* what RUNNER_BOARD_FAULT reads */

#endif
