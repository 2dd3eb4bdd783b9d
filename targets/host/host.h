/*
 * host.h: what this processor has, for a port that must name a kernel level (colibri.h, enum colibri_kernel). The core
 * never asks; a port may.
 */
#ifndef COLIBRI_HOST_H
#define COLIBRI_HOST_H

#include "colibri.h"

#ifdef __cplusplus
extern "C" {
#endif

/* The levels this processor and its system can run, compiled in or not: bit 1 << level. */
COLIBRI_API uint32_t colibri_host_kernels(void);
/* The best of those that are in `available` too, such as colibri_kernels(). */
COLIBRI_API uint32_t colibri_host_kernel(uint32_t available);

#ifdef __cplusplus
}
#endif

#endif
