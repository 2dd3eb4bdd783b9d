/*
 * linux_call.h: a system call without a libc, on three architectures. Returns what the kernel does: -1 .. -4095 are
 * errors. Whoever calls knows the numbers; the few that are used stand here.
 */
#ifndef COLIBRI_LINUX_CALL_H
#define COLIBRI_LINUX_CALL_H

#include <stdint.h>

#if defined(__x86_64__)

enum { SYS_READ = 0, SYS_WRITE = 1, SYS_CLOSE = 3, SYS_LSEEK = 8, SYS_MMAP = 9, SYS_MPROTECT = 10, SYS_MUNMAP = 11,
       SYS_PREAD = 17, SYS_YIELD = 24, SYS_MADVISE = 28, SYS_NANOSLEEP = 35, SYS_FUTEX = 202, SYS_CLOCK = 228,
       SYS_OPENAT = 257 };

static inline long colibri_linux_call(long n, long a, long b, long c, long d, long e, long f)
{
    long result;
    register long r10 __asm__("r10") = d;
    register long r8 __asm__("r8") = e;
    register long r9 __asm__("r9") = f;
    __asm__ volatile("syscall" : "=a"(result) : "a"(n), "D"(a), "S"(b), "d"(c), "r"(r10), "r"(r8), "r"(r9)
                     : "rcx", "r11", "memory");
    return result;
}

#else                                           /* the numbers that all newer architectures share */

enum { SYS_OPENAT = 56, SYS_CLOSE = 57, SYS_LSEEK = 62, SYS_READ = 63, SYS_WRITE = 64, SYS_PREAD = 67, SYS_FUTEX = 98,
       SYS_NANOSLEEP = 101, SYS_CLOCK = 113, SYS_YIELD = 124, SYS_MUNMAP = 215, SYS_MMAP = 222, SYS_MPROTECT = 226,
       SYS_MADVISE = 233 };

#if defined(__aarch64__)

static inline long colibri_linux_call(long n, long a, long b, long c, long d, long e, long f)
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

static inline long colibri_linux_call(long n, long a, long b, long c, long d, long e, long f)
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
#endif

enum { SYS_URING_SETUP = 425, SYS_URING_ENTER = 426 };         /* new enough to be the same everywhere */

static inline uint32_t colibri_linux_refused(long result)
{
    return result < 0 && result > -4096;
}

#endif
