/*
 * host_port.h: what host.c must be told on ARM64, where only the system may say it.
 */
#ifndef COLIBRI_HOST_PORT_H
#define COLIBRI_HOST_PORT_H

#include <stdint.h>

/* What vector code may run: none, as where memory is not Normal and an unaligned load would fault; Advanced SIMD; and
 * the integer dot products of ARMv8.2. */
enum colibri_host_vector { COLIBRI_HOST_SCALAR = 0, COLIBRI_HOST_NEON = 1, COLIBRI_HOST_DOTPROD = 2 };
uint32_t colibri_host_vectors(void);

#endif
