/*
 * runner_float.h: the floating-point control register of a host that is set up against us: flush-to-zero on
 * and rounding toward zero. The core must compute the same bits and hand the register back as it was.
 * On WebAssembly there is no such register, nor in soft float.
 */
#ifndef COLIBRI_RUNNER_FLOAT_H
#define COLIBRI_RUNNER_FLOAT_H

#include <stdint.h>

#if defined(__x86_64__)

#define RUNNER_HOSTILE_CONTROL 0xFFC0u          /* MXCSR: FZ, RC = toward zero, all masks, DAZ */
static inline uint64_t runner_control_get(void)
{
    uint32_t value;
    __asm__ volatile("stmxcsr %0" : "=m"(value));
    return value & 0xFFC0u;                     /* without the sticky exception flags */
}
static inline void runner_control_set(uint64_t value)
{
    uint32_t word = (uint32_t)value;
    __asm__ volatile("ldmxcsr %0" : : "m"(word));
}

#elif defined(__aarch64__)

#define RUNNER_HOSTILE_CONTROL 0x01C00000u      /* FPCR: FZ, RMode = toward zero */
static inline uint64_t runner_control_get(void)
{
    uint64_t value;
    __asm__ volatile("mrs %0, fpcr" : "=r"(value));
    return value;
}
static inline void runner_control_set(uint64_t value)
{
    __asm__ volatile("msr fpcr, %0" : : "r"(value));
}

#elif defined(__riscv) && defined(__riscv_flen)

#define RUNNER_HOSTILE_CONTROL 1u               /* frm: toward zero; RISC-V never flushes */
static inline uint64_t runner_control_get(void)
{
    uint64_t value;
    __asm__ volatile("frrm %0" : "=r"(value));
    return value;
}
static inline void runner_control_set(uint64_t value)
{
    __asm__ volatile("fsrm %0" : : "r"(value));
}

#else

#define RUNNER_HOSTILE_CONTROL 0u
static inline uint64_t runner_control_get(void)
{
    return 0u;
}
static inline void runner_control_set(uint64_t value)
{
    (void)value;
}

#endif
#endif
