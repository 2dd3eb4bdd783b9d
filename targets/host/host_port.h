/*
 * host_port.h: what host.c must be told on ARM64, where only the system may say it.
 */
#ifndef COLIBRI_HOST_PORT_H
#define COLIBRI_HOST_PORT_H

#include <stdint.h>

/* Does the processor have the integer dot products of ARMv8.2? */
uint32_t colibri_host_dotprod(void);

#endif
