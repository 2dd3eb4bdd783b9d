/*
 * host_board.c: what an ARM64 processor says of itself, to those who may ask: at EL1. While the MMU is off all memory
 * is Device memory, where vector loads fault unless they are aligned.
 */
#include "host_port.h"

uint32_t colibri_host_vectors(void)
{
    uint64_t control, features;
    __asm__ volatile("mrs %0, sctlr_el1" : "=r"(control));
    __asm__("mrs %0, id_aa64isar0_el1" : "=r"(features));
    if ((control & 3u) != 1u) {                     /* M: the MMU is on; A: alignment is not checked */
        return COLIBRI_HOST_SCALAR;
    }
    return (features >> 44 & 15u) != 0u ? COLIBRI_HOST_DOTPROD : COLIBRI_HOST_NEON;     /* field DP */
}
