/*
 * levels_test.h: what levels_test.c tells.
 */
#ifndef LEVELS_TEST_H
#define LEVELS_TEST_H

#include <stdint.h>

enum { PRODUCTS = 1, QUANTIZE, NORM, GATE, ADD_SCALED, EXP_SUM, AMAX, SOFTEN, MIX, HALVES, REGISTERS, PROBE,
       MIX_LATENT, SOFTEN_CHOSEN, ADD_POSITIVE, GATE_AS, LAYER_NORM, CRC };

uint32_t levels_test(uint32_t kernel);
extern uint32_t levels_result[8];       /* function, then what identifies the case; [7] counts the cases */

#endif
