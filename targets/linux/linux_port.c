/*
 * linux_port.c: the runner as a static Linux program without libc: own entry, raw system calls, the blob mapped.
 *
 *   runner JOB [BLOB]     executes a job file; the report goes to standard output
 *
 * COLIBRI_HUGEPAGES=1 asks the kernel for huge pages under the pool. The exit code is the job's; 66 when a
 * file cannot be read, 71 when memory is refused, 72 without the store asked for, 64 for a wrong command line.
 */
#include "linux_call.h"
#include "linux_threads.h"
#include "runner_port.h"

/* the stack pointer at entry points at the arguments; gp is set because a linker may shorten addresses to be
 * relative to it */
#if defined(__x86_64__)
__asm__(".globl _start\n"
        "_start:\n"
        "    xor %ebp, %ebp\n"
        "    mov %rsp, %rdi\n"
        "    and $-16, %rsp\n"
        "    call colibri_runner_main\n"
        "    mov %eax, %edi\n"
        "    mov $231, %eax\n"
        "    syscall\n");
#elif defined(__aarch64__)
__asm__(".globl _start\n"
        "_start:\n"
        "    mov x29, #0\n"
        "    mov x30, #0\n"
        "    mov x0, sp\n"
        "    bl colibri_runner_main\n"
        "    mov x8, #94\n"
        "    svc #0\n");
#elif defined(__riscv)
__asm__(".globl _start\n"
        "_start:\n"
        "    .option push\n"
        "    .option norelax\n"
        "    lla gp, __global_pointer$\n"
        "    .option pop\n"
        "    mv a0, sp\n"
        "    andi sp, sp, -16\n"
        "    call colibri_runner_main\n"
        "    li a7, 94\n"
        "    ecall\n");
#endif

enum { AT_FDCWD = -100, SEEK_END = 2, PROT_READ = 1, PROT_READ_WRITE = 3, MAP_PRIVATE = 2, MAP_ANONYMOUS = 32,
       MADV_HUGEPAGE = 14, CLOCK_MONOTONIC = 1, RETRIES = 3, EXIT_USAGE = 64, EXIT_NO_INPUT = 66, EXIT_NO_MEMORY = 71,
       EXIT_NO_STORE = 72 };

void colibri_runner_write(const char *bytes, uint32_t count)
{
    static char line[4096];                     /* one system call a line, not one a number */
    static uint32_t held;
    for (uint32_t i = 0; i < count; i++) {
        line[held++] = bytes[i];
        if (bytes[i] == '\n' || held == sizeof line) {
            uint32_t sent = 0;
            while (sent < held) {
                long n = colibri_linux_call(SYS_WRITE, 1, (long)(intptr_t)(line + sent), (long)(held - sent), 0, 0, 0);
                if (colibri_linux_refused(n) != 0u) {
                    break;                      /* nobody reads: the exit code still tells */
                }
                sent += (uint32_t)n;
            }
            held = 0;
        }
    }
}

uint64_t colibri_runner_clock(void)
{
    int64_t now[2] = {0, 0};
    (void)colibri_linux_call(SYS_CLOCK, CLOCK_MONOTONIC, (long)(intptr_t)now, 0, 0, 0, 0);
    return (uint64_t)now[0] * 1000000u + (uint64_t)now[1] / 1000u;
}

uint64_t colibri_runner_stack(void)
{
    return 0u;
}

static colibri_crew the_crew __attribute__((aligned(64)));

uint32_t colibri_runner_threads(uint32_t workers)
{
    uint32_t threads = 1;
    colibri_crew_begin(&the_crew, workers);
    while (threads < workers && colibri_linux_thread_start(&the_crew, threads) != 0u) {
        threads++;
    }
    return threads;
}

uint64_t colibri_runner_helped(void)
{
    return the_crew.units - the_crew.driver_units;
}

void colibri_runner_parallel(colibri_session *session, uint32_t count)
{
    colibri_crew_parallel(&the_crew, session, count);
}

/* ---- the store: the blob's file, for RUNNER_STORE_PORT ---- */

static colibri_store the_store;
static colibri_store_host the_host = {.store = &the_store};

int32_t colibri_runner_fetch(const colibri_fetch_request *request)
{
    return colibri_store_fetch(&the_host, request);
}

int32_t colibri_runner_fetched(uint32_t ticket)
{
    return colibri_store_fetched(&the_host, ticket);
}

void colibri_runner_wait(void)
{
    if (the_store.in_flight != 0u) {
        colibri_store_wait(&the_store);
    }
}

/* 0, or the exit code. */
static int open_store(const char *path, const runner_job *job)
{
    const colibri_store_options options = {.struct_bytes = sizeof options, .kind = job->store_kind,
                                           .flags = job->store_flags, .retries = RETRIES,
                                           .bytes_per_second = job->store_bytes_per_second};
    if (job->store != RUNNER_STORE_PORT) {
        return 0;
    }
    if (colibri_store_open(&the_store, path, &options) < 0) {
        colibri_runner_text("runner: the store cannot be opened: no io_uring here, or no direct reads of this file\n");
        return EXIT_NO_STORE;
    }
    for (uint32_t i = 0; i < the_store.threads; i++) {
        if (colibri_linux_reader_start(&the_store) == 0u) {
            colibri_runner_text("runner: the kernel refused a thread that reads\n");
            return EXIT_NO_MEMORY;
        }
    }
    return 0;
}

/* Map a whole file read-only; null when that fails. */
static const void *map_file(const char *path, uint64_t *bytes)
{
    long file = colibri_linux_call(SYS_OPENAT, AT_FDCWD, (long)(intptr_t)path, 0, 0, 0, 0);
    if (colibri_linux_refused(file) != 0u) {
        return 0;
    }
    long size = colibri_linux_call(SYS_LSEEK, file, 0, SEEK_END, 0, 0, 0);
    if (size <= 0) {
        return 0;
    }
    long at = colibri_linux_call(SYS_MMAP, 0, size, PROT_READ, MAP_PRIVATE, file, 0);
    if (colibri_linux_refused(at) != 0u) {
        return 0;
    }
    *bytes = (uint64_t)size;
    return (const void *)(intptr_t)at;
}

int colibri_runner_main(const long *stack);
int colibri_runner_main(const long *stack)
{
    const char *const *argument = (const char *const *)(const void *)(stack + 1);
    runner *r = colibri_runner_instance();
    uint64_t job_bytes = 0, blob_bytes = 0;
    if (stack[0] != 3) {
        colibri_runner_text("usage: runner JOB BLOB\n");
        return EXIT_USAGE;
    }
    const runner_job *job = map_file(argument[1], &job_bytes);
    const void *blob = map_file(argument[2], &blob_bytes);
    if (job == 0 || blob == 0 || job_bytes < sizeof *job || blob_bytes < job->blob_bytes) {
        colibri_runner_text("runner: the job or the blob cannot be read or is shorter than the job says\n");
        return EXIT_NO_INPUT;
    }
    int refused = open_store(argument[2], job);
    if (refused != 0) {
        return refused;
    }
    long region = colibri_linux_call(SYS_MMAP, 0, (long)job->region_bytes, PROT_READ_WRITE,
                                     MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (colibri_linux_refused(region) != 0u) {
        colibri_runner_text("runner: the kernel refused the job's region_bytes\n");
        return EXIT_NO_MEMORY;
    }
#if COLIBRI_HUGEPAGES
    (void)colibri_linux_call(SYS_MADVISE, region, (long)job->region_bytes, MADV_HUGEPAGE, 0, 0, 0);
#endif
    if (colibri_runner_begin(r, job, job_bytes, blob, (void *)(intptr_t)region) == 0u) {
        while (colibri_runner_step(r) != 0u) {
        }
    }
    colibri_crew_end(&the_crew);
    if (job->store == RUNNER_STORE_PORT) {
        colibri_store_end(&the_store);
    }
    return (int)colibri_runner_code(r);
}
