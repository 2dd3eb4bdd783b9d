/*
 * crc.c: CRC32C by the processor's own instruction; see kernels.h. No level exists for it: every processor of AVX2 has
 * x86-64's (SSE 4.2), every one of ARMv8.2 has ARM64's. The instruction takes eight bytes, and as many cycles as it
 * needs for one a processor can begin three: so three stretches are summed side by side, and their sums put together.
 */
#include "kernels/kernels.h"

#if COLIBRI_HAS_X86 || COLIBRI_HAS_ARM

/* x^(8 n) mod the polynomial, bits reversed as in every sum here, for n = one stretch and two of them */
enum { COLIBRI_CRC_STRETCH = 2048 };
#define COLIBRI_CRC_ONE 0x0D65762Au
#define COLIBRI_CRC_TWO 0x35D73A62u

typedef uint64_t __attribute__((may_alias, aligned(1))) colibri_crc_word;

#if COLIBRI_HAS_X86
#if defined(__clang__)
#pragma clang attribute push(__attribute__((target("sse4.2,crc32"))), apply_to = function)
#else
#pragma GCC push_options
#pragma GCC target("sse4.2,crc32")
#endif
#define COLIBRI_CRC_EIGHT(crc, word) ((uint32_t)__builtin_ia32_crc32di(crc, word))
#define COLIBRI_CRC_BYTE(crc, byte) __builtin_ia32_crc32qi(crc, byte)
#else
#if defined(__ARM_FEATURE_CRC32)
/* the build's own flags say it already */
#elif defined(__clang__)
#pragma clang attribute push(__attribute__((target("crc"))), apply_to = function)
#else
#pragma GCC push_options
#pragma GCC target("arch=armv8-a+crc")
#endif
#if defined(__clang__)
#define COLIBRI_CRC_EIGHT(crc, word) __builtin_arm_crc32cd(crc, word)
#define COLIBRI_CRC_BYTE(crc, byte) __builtin_arm_crc32cb(crc, byte)
#else
#define COLIBRI_CRC_EIGHT(crc, word) __builtin_aarch64_crc32cx(crc, word)
#define COLIBRI_CRC_BYTE(crc, byte) __builtin_aarch64_crc32cb(crc, byte)
#endif
#endif

static __attribute__((noinline)) uint32_t colibri_crc_instruction(uint32_t crc, const uint8_t *p, uint64_t bytes)
{
    uint32_t c = ~crc;
    for (; bytes != 0u && (uintptr_t)p % 8u != 0u; bytes--) {       /* memory may be one that wants it aligned */
        c = COLIBRI_CRC_BYTE(c, *p++);
    }
    for (; bytes >= 3u * COLIBRI_CRC_STRETCH; bytes -= 3u * COLIBRI_CRC_STRETCH, p += 3 * COLIBRI_CRC_STRETCH) {
        const colibri_crc_word *words = (const colibri_crc_word *)(const void *)p;
        const uint32_t stretch = COLIBRI_CRC_STRETCH / 8;
        uint32_t second = 0, third = 0;
        for (uint32_t i = 0; i < stretch; i++) {
            c = COLIBRI_CRC_EIGHT(c, words[i]);
            second = COLIBRI_CRC_EIGHT(second, words[i + stretch]);
            third = COLIBRI_CRC_EIGHT(third, words[i + 2u * stretch]);
        }
        c = colibri_crc_times(c, COLIBRI_CRC_TWO) ^ colibri_crc_times(second, COLIBRI_CRC_ONE) ^ third;
    }
    for (; bytes >= 8u; bytes -= 8u, p += 8) {
        c = COLIBRI_CRC_EIGHT(c, *(const colibri_crc_word *)(const void *)p);
    }
    for (; bytes != 0u; bytes--) {
        c = COLIBRI_CRC_BYTE(c, *p++);
    }
    return ~c;
}

#if COLIBRI_HAS_ARM && defined(__ARM_FEATURE_CRC32)
#elif defined(__clang__)
#pragma clang attribute pop
#else
#pragma GCC pop_options
#endif

#endif

uint32_t colibri_crc(uint32_t kernel, uint32_t crc, const void *data, uint64_t bytes)
{
#if COLIBRI_HAS_X86
    if (kernel >= COLIBRI_KERNEL_AVX2) {
        return colibri_crc_instruction(crc, data, bytes);
    }
#elif COLIBRI_HAS_ARM
    if (kernel == COLIBRI_KERNEL_DOTPROD) {
        return colibri_crc_instruction(crc, data, bytes);
    }
#endif
    (void)kernel;
    return colibri_crc32c(crc, data, bytes);
}
