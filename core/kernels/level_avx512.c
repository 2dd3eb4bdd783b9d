/*
 * level_avx512.c: the kernels for x86-64 with AVX-512 F, BW, DQ, VL and VNNI; see kernels.h. The functions carry their
 * instruction set with them, so that one library holds every level and the port chooses.
 */
#include "kernels/kernels.h"

#if COLIBRI_HAS_X86

#include "kernels/x86_headers.h"

#if defined(__clang__)
#pragma clang attribute push(__attribute__((target("avx512f,avx512bw,avx512dq,avx512vl,avx512vnni,f16c"))), \
                             apply_to = function)
#else
#pragma GCC push_options
#pragma GCC target("avx512f,avx512bw,avx512dq,avx512vl,avx512vnni,f16c")
#endif

#include "kernels/lanes_avx512.h"

#define LEVEL(name) colibri_avx512_##name
#define LANE(name) colibri_lane512_##name
#define DOT(name) colibri_dot512_##name
#define LEVEL_ROWS 8u
#define LEVEL_FLOAT_ROWS 8u
#define LEVEL_MIX_ROWS 8u
#define LEVEL_MIX_COLUMNS 2u
#define LEVEL_MIX_LONG 8u
#include "kernels/rows_template.inc"
#include "kernels/mix_template.inc"
#include "kernels/tiles_template.inc"
#include "kernels/level_end.inc"

#if defined(__clang__)
#pragma clang attribute pop
#else
#pragma GCC pop_options
#endif

#endif
