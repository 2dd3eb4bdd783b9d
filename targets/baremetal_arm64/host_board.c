/*
 * host_board.c: what an ARM64 processor says of itself, to those who may ask: at EL1.
 */
#include "host_port.h"

uint32_t colibri_host_dotprod(void)
{
    uint64_t features;
    __asm__("mrs %0, id_aa64isar0_el1" : "=r"(features));
    return (features >> 44 & 15u) != 0u;        /* field DP */
}
