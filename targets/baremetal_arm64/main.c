/*
 * main.c: the firmware: maps memory, runs the job that lies at BOARD_JOB against the blob in RAM, in flash or on the
 * disk, and ends with the job's exit code.
 */
#include "board.h"
#include "runner_port.h"

/* link.ld */
extern const char _start[], colibri_board_text_end[], colibri_board_data[], colibri_board_bss_end[];
uint32_t colibri_board_main(uint64_t level);

/* Where the blob's first byte is, how much of it lies at BOARD_BLOB, and what is behind that. */
typedef struct place {
    uint64_t blob, in_ram, region;
} place;

static place find_place(const runner_job *job)
{
    const uint64_t mask = BOARD_REGION_ALIGN - 1u;
    place p = {BOARD_BLOB, job->blob_bytes, 0u};
    if ((job->flags & RUNNER_BOARD_FLASH) != 0u) {
        p.blob = BOARD_FLASH;
        p.in_ram = 0u;
    } else if (job->store == RUNNER_STORE_PORT && job->head_bytes != 0u) {
        p.in_ram = job->head_bytes;
    }
    p.region = (BOARD_BLOB + p.in_ram + mask) & ~mask;
    return p;
}

/* What the disk brings to BOARD_BLOB is the device's writing; the processor only ever reads it. */
static void map_memory(const runner_job *job, const place *p)
{
    colibri_board_map(BOARD_UART, BOARD_UART + 1u, BOARD_DEVICE);
    colibri_board_map(BOARD_VIRTIO, BOARD_VIRTIO + BOARD_VIRTIO_COUNT * BOARD_VIRTIO_STRIDE, BOARD_DEVICE);
    colibri_board_map((uintptr_t)_start, (uintptr_t)colibri_board_text_end, BOARD_CODE);
    colibri_board_map((uintptr_t)colibri_board_data, (uintptr_t)colibri_board_bss_end, BOARD_DATA);
    for (uint32_t core = 0; core < BOARD_CORES; core++) {
        uint64_t stack = BOARD_STACK + core * (uint64_t)BOARD_STACK_STRIDE;
        colibri_board_map(stack, stack + BOARD_STACK_BYTES, BOARD_DATA);
    }
    colibri_board_map(BOARD_JOB, BOARD_JOB + BOARD_JOB_BYTES, BOARD_CONSTANT);
    colibri_board_map(BOARD_BLOB, BOARD_BLOB + p->in_ram, BOARD_CONSTANT);
    if (p->blob == BOARD_FLASH) {
        colibri_board_map(BOARD_FLASH, BOARD_FLASH + BOARD_FLASH_BYTES, BOARD_CONSTANT);
    }
    colibri_board_map(p->region, p->region + job->region_bytes, BOARD_DATA);
}

/* What RUNNER_BOARD_FAULT asks for: a read that the CPU must refuse. */
static void fault_on_purpose(uint32_t flags)
{
    uintptr_t address = BOARD_FAULT_ADDRESS;
    if ((flags & RUNNER_BOARD_MMU_OFF) != 0u) {
        address = BOARD_JOB + 1u;               /* nothing is unmapped without the MMU: an unaligned word */
    }
    uint32_t value;
    __asm__ volatile("ldr %w0, [%1]" : "=r"(value) : "r"(address) : "memory");
}

uint32_t colibri_board_main(uint64_t level)
{
    const runner_job *job = (const runner_job *)(uintptr_t)BOARD_JOB;
    runner *r = colibri_runner_instance();
    colibri_board_uart_start();
    if (job->magic != RUNNER_MAGIC) {
        colibri_runner_text("board: no job at BOARD_JOB\n");
        return BOARD_EXIT_NO_JOB;
    }
    const place p = find_place(job);
    if (p.blob == BOARD_FLASH && job->blob_bytes > BOARD_FLASH_BYTES && job->head_bytes == 0u) {
        colibri_runner_text("board: the job's model is larger than the flash\n");
        return BOARD_EXIT_NO_JOB;
    }
    if ((job->flags & RUNNER_BOARD_MMU_OFF) == 0u) {
        map_memory(job, &p);
        colibri_board_mmu_start();
        colibri_board_smp(level);               /* without caches no core can share words with another */
    }
    uint32_t refused = colibri_runner_begin(r, job, job->job_bytes, (const void *)(uintptr_t)p.blob,
                                            (void *)(uintptr_t)p.region);
    colibri_runner_text(level == 1u ? "board el1" : level == 2u ? "board el2" : "board el3");
    colibri_runner_text((job->flags & RUNNER_BOARD_MMU_OFF) != 0u ? " mmu off\n" : " mmu on\n");
    if ((job->flags & RUNNER_BOARD_FAULT) != 0u) {
        fault_on_purpose(job->flags);
    }
    uint32_t no_disk = 0;
    if (refused == 0u && job->store == RUNNER_STORE_PORT) {
        no_disk = colibri_board_disk(job->blob_bytes, p.in_ram, (void *)(uintptr_t)p.blob);
    }
    while (refused == 0u && no_disk == 0u && colibri_runner_step(r) != 0u) {
    }
    colibri_board_disk_report();
    return no_disk != 0u ? no_disk : colibri_runner_code(r);
}
