/*
 * host_linux.c: what the Linux kernel says of an ARM64 processor, from the auxiliary vector it gave this process. Read
 * as a file, since a library without a libc has no other way to it; where it cannot be read there is Advanced SIMD,
 * which every ARM64 Linux has.
 */
#include "host_port.h"
#include "linux_call.h"

#if defined(__aarch64__)

enum { AT_HWCAP = 16, AT_FDCWD = -100, HWCAP_ASIMDDP = 1 << 20, ENTRIES = 64 };

uint32_t colibri_host_vectors(void)
{
    uint64_t vector[2 * ENTRIES];
    long file = colibri_linux_call(SYS_OPENAT, AT_FDCWD, (long)(intptr_t)"/proc/self/auxv", 0, 0, 0, 0);
    if (colibri_linux_refused(file) != 0u) {
        return COLIBRI_HOST_NEON;
    }
    long bytes = colibri_linux_call(SYS_READ, file, (long)(intptr_t)vector, sizeof vector, 0, 0, 0);
    (void)colibri_linux_call(SYS_CLOSE, file, 0, 0, 0, 0, 0);
    uint32_t entries = colibri_linux_refused(bytes) != 0u ? 0u : (uint32_t)bytes / 16u;
    for (uint32_t i = 0; i < entries; i++) {
        if (vector[2u * i] == AT_HWCAP) {
            return (vector[2u * i + 1u] & HWCAP_ASIMDDP) != 0u ? COLIBRI_HOST_DOTPROD : COLIBRI_HOST_NEON;
        }
    }
    return COLIBRI_HOST_NEON;
}

#else

uint32_t colibri_host_vectors(void)
{
    return COLIBRI_HOST_SCALAR;
}

#endif
