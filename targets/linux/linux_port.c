/*
 * linux_port.c: the runner as a static Linux program without libc: own entry, raw system calls, the blob mapped.
 *
 *   runner JOB [BLOB]     executes a job file; the report goes to standard output
 *
 * COLIBRI_HUGEPAGES=1 asks the kernel for huge pages under the pool. The exit code is the job's; 66 when a
 * file cannot be read, 71 when memory is refused, 64 for a wrong command line.
 */
#include "runner_port.h"

#if defined(__x86_64__)

enum { SYS_WRITE = 1, SYS_OPENAT = 257, SYS_LSEEK = 8, SYS_MMAP = 9, SYS_MADVISE = 28, SYS_CLOCK = 228 };

__asm__(".globl _start\n"
        "_start:\n"
        "    xor %ebp, %ebp\n"
        "    mov %rsp, %rdi\n"
        "    and $-16, %rsp\n"
        "    call colibri_runner_main\n"
        "    mov %eax, %edi\n"
        "    mov $231, %eax\n"
        "    syscall\n");

static long call6(long n, long a, long b, long c, long d, long e, long f)
{
    long result;
    register long r10 __asm__("r10") = d;
    register long r8 __asm__("r8") = e;
    register long r9 __asm__("r9") = f;
    __asm__ volatile("syscall" : "=a"(result) : "a"(n), "D"(a), "S"(b), "d"(c), "r"(r10), "r"(r8), "r"(r9)
                     : "rcx", "r11", "memory");
    return result;
}

#elif defined(__aarch64__)

enum { SYS_WRITE = 64, SYS_OPENAT = 56, SYS_LSEEK = 62, SYS_MMAP = 222, SYS_MADVISE = 233, SYS_CLOCK = 113 };

__asm__(".globl _start\n"
        "_start:\n"
        "    mov x29, #0\n"
        "    mov x30, #0\n"
        "    mov x0, sp\n"
        "    bl colibri_runner_main\n"
        "    mov x8, #94\n"
        "    svc #0\n");

static long call6(long n, long a, long b, long c, long d, long e, long f)
{
    register long x8 __asm__("x8") = n;
    register long x0 __asm__("x0") = a;
    register long x1 __asm__("x1") = b;
    register long x2 __asm__("x2") = c;
    register long x3 __asm__("x3") = d;
    register long x4 __asm__("x4") = e;
    register long x5 __asm__("x5") = f;
    __asm__ volatile("svc #0" : "+r"(x0) : "r"(x8), "r"(x1), "r"(x2), "r"(x3), "r"(x4), "r"(x5) : "memory");
    return x0;
}

#elif defined(__riscv)

enum { SYS_WRITE = 64, SYS_OPENAT = 56, SYS_LSEEK = 62, SYS_MMAP = 222, SYS_MADVISE = 233, SYS_CLOCK = 113 };

/* gp is set because a linker may shorten addresses to be relative to it */
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

static long call6(long n, long a, long b, long c, long d, long e, long f)
{
    register long a7 __asm__("a7") = n;
    register long a0 __asm__("a0") = a;
    register long a1 __asm__("a1") = b;
    register long a2 __asm__("a2") = c;
    register long a3 __asm__("a3") = d;
    register long a4 __asm__("a4") = e;
    register long a5 __asm__("a5") = f;
    __asm__ volatile("ecall" : "+r"(a0) : "r"(a7), "r"(a1), "r"(a2), "r"(a3), "r"(a4), "r"(a5) : "memory");
    return a0;
}

#endif

enum { AT_FDCWD = -100, SEEK_END = 2, PROT_READ = 1, PROT_READ_WRITE = 3, MAP_PRIVATE = 2, MAP_ANONYMOUS = 32,
       MADV_HUGEPAGE = 14, CLOCK_MONOTONIC = 1, EXIT_USAGE = 64, EXIT_NO_INPUT = 66, EXIT_NO_MEMORY = 71 };

static uint32_t refused(long result)
{
    return result < 0 && result > -4096;
}

void colibri_runner_write(const char *bytes, uint32_t count)
{
    static char line[4096];                     /* one system call a line, not one a number */
    static uint32_t held;
    for (uint32_t i = 0; i < count; i++) {
        line[held++] = bytes[i];
        if (bytes[i] == '\n' || held == sizeof line) {
            uint32_t sent = 0;
            while (sent < held) {
                long n = call6(SYS_WRITE, 1, (long)(intptr_t)(line + sent), (long)(held - sent), 0, 0, 0);
                if (refused(n) != 0u) {
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
    (void)call6(SYS_CLOCK, CLOCK_MONOTONIC, (long)(intptr_t)now, 0, 0, 0, 0);
    return (uint64_t)now[0] * 1000000u + (uint64_t)now[1] / 1000u;
}

uint64_t colibri_runner_stack(void)
{
    return 0u;
}

/* Map a whole file read-only; null when that fails. */
static const void *map_file(const char *path, uint64_t *bytes)
{
    long file = call6(SYS_OPENAT, AT_FDCWD, (long)(intptr_t)path, 0, 0, 0, 0);
    if (refused(file) != 0u) {
        return 0;
    }
    long size = call6(SYS_LSEEK, file, 0, SEEK_END, 0, 0, 0);
    if (size <= 0) {
        return 0;
    }
    long at = call6(SYS_MMAP, 0, size, PROT_READ, MAP_PRIVATE, file, 0);
    if (refused(at) != 0u) {
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
    long region = call6(SYS_MMAP, 0, (long)job->region_bytes, PROT_READ_WRITE, MAP_PRIVATE | MAP_ANONYMOUS,
                        -1, 0);
    if (refused(region) != 0u) {
        colibri_runner_text("runner: the kernel refused the job's region_bytes\n");
        return EXIT_NO_MEMORY;
    }
#if COLIBRI_HUGEPAGES
    (void)call6(SYS_MADVISE, region, (long)job->region_bytes, MADV_HUGEPAGE, 0, 0, 0);
#endif
    if (colibri_runner_begin(r, job, job_bytes, blob, (void *)(intptr_t)region) == 0u) {
        while (colibri_runner_step(r) != 0u) {
        }
    }
    return (int)colibri_runner_code(r);
}
