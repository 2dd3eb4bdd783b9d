/*
 * measure.c: for `colibri bench`: reads memory as fast as one thread can, and a clock that costs next to nothing, for
 * the profile. A library of its own, so that nothing of it is in the engine. It starts no thread.
 */
#include <stdint.h>

#if defined(__GNUC__)
#define MEASURE_API __attribute__((visibility("default")))
#endif

enum { STREAMS = 4, LINE_WORDS = 8 };

typedef uint64_t measure_line __attribute__((vector_size(64), aligned(64)));

MEASURE_API uint64_t colibri_measure_read(const void *start, uint64_t bytes, uint32_t passes);
MEASURE_API uint64_t colibri_measure_clock(void *user);

/* The processor's counter, in ticks of its own: the caller compares it with a clock. A colibri_clock_hook. */
uint64_t colibri_measure_clock(void *user)
{
    (void)user;
#if defined(__x86_64__)
    uint32_t low, high;
    __asm__ volatile("rdtsc" : "=a"(low), "=d"(high));
    return (uint64_t)high << 32 | low;
#else
    uint64_t ticks;
    __asm__ volatile("mrs %0, cntvct_el0" : "=r"(ticks));
    return ticks;
#endif
}

/* The sum of all 64-bit words, `passes` times over: an answer that needs every byte. start is 64-byte aligned, bytes a
 * multiple of 256. */
uint64_t colibri_measure_read(const void *start, uint64_t bytes, uint32_t passes)
{
    uint64_t total = 0;
    for (uint32_t pass = 0; pass < passes; pass++) {
        measure_line sum[STREAMS] = {{0}};
        const measure_line *from = (const measure_line *)start, *end = from + bytes / sizeof(measure_line);
        for (; from < end; from += STREAMS) {
            for (uint32_t i = 0; i < STREAMS; i++) {
                sum[i] += from[i];
            }
        }
        for (uint32_t i = 0; i < STREAMS; i++) {
            for (uint32_t k = 0; k < LINE_WORDS; k++) {
                total += sum[i][k];
            }
        }
        __asm__ volatile("" : : "r"(start) : "memory");         /* every pass reads again */
    }
    return total;
}
