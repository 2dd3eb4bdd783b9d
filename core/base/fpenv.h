/*
 * fpenv.h: the floating-point environment of the bits: round to nearest, subnormals kept, nothing trapped.
 * Every public entry that computes saves the host's control register, sets ours, and restores it; a host may
 * arrive with flush-to-zero on (a library built with -Ofast sets it for the whole thread).
 */
#ifndef COLIBRI_FPENV_H
#define COLIBRI_FPENV_H

#include <stdint.h>

#if defined(__x86_64__)

static inline uint64_t colibri_fpenv_enter(void)
{
    uint32_t host;
    uint32_t ours = 0x1F80u;                    /* all exceptions masked, nearest, no FTZ, no DAZ */
    __asm__ volatile("stmxcsr %0" : "=m"(host));
    __asm__ volatile("ldmxcsr %0" : : "m"(ours) : "memory");
    return host;
}

static inline void colibri_fpenv_leave(uint64_t host)
{
    uint32_t value = (uint32_t)host;
    __asm__ volatile("ldmxcsr %0" : : "m"(value) : "memory");
}

#elif defined(__aarch64__)

static inline uint64_t colibri_fpenv_enter(void)
{
    uint64_t host;
    __asm__ volatile("mrs %0, fpcr" : "=r"(host));
    __asm__ volatile("msr fpcr, %0" : : "r"((uint64_t)0) : "memory");
    return host;
}

static inline void colibri_fpenv_leave(uint64_t host)
{
    __asm__ volatile("msr fpcr, %0" : : "r"(host) : "memory");
}

#elif defined(__riscv) && defined(__riscv_flen)

static inline uint64_t colibri_fpenv_enter(void)
{
    uintptr_t host;
    __asm__ volatile("fsrm %0, zero" : "=r"(host) : : "memory");    /* rounding mode 0: nearest, ties to even */
    return host;
}

static inline void colibri_fpenv_leave(uint64_t host)
{
    __asm__ volatile("fsrm %0" : : "r"((uintptr_t)host) : "memory");
}

#else                                           /* WebAssembly has no such register; soft float neither */

static inline uint64_t colibri_fpenv_enter(void)
{
    return 0;
}

static inline void colibri_fpenv_leave(uint64_t host)
{
    (void)host;
}

#endif
#endif
