/*
 * kernels.h: the contract of the kernels, the one place where instruction sets may differ.
 *
 * Lane = row: a tile holds 16 output rows; each lane adds up its own row, group after group, in column order,
 * so the plain C loop is the reference and every variant equals it bit for bit (NUMERICS section 2).
 * Kernels know neither blob nor pool. Tiles are 64-byte aligned; activations are 16-byte aligned.
 */
#ifndef COLIBRI_KERNELS_H
#define COLIBRI_KERNELS_H

#include "base/math32.h"
#include "base/tiles.h"

/* One row of activations as products want it: float for float matrices, quantized for q8 and q4.
 *   x    float32[columns]
 *   q    int8[groups * 32], -127 .. 127, zero behind the last column
 *   d    float32[groups]
 *   sum  int32[groups], the sum of a group's q */
typedef struct colibri_activation {
    const float *x;
    const int8_t *q;
    const float *d;
    const int32_t *sum;
} colibri_activation;

/* out[16] = the tile's 16 rows times the activation row, from +0, without bias. */
void colibri_tile_dot(uint32_t kind, const void *tile, uint32_t columns, const colibri_activation *row,
                      float out[16]);

/* NUMERICS section 3. Returns 0, or 1 when a value is infinite or NaN (q and d are then unspecified). */
int colibri_quantize_row(const float *x, uint32_t columns, int8_t *q, float *d, int32_t *sum);

/* One row (lane r of 16) of a q8 tile, as weights are quantized: K rows of the cache are written so. */
int colibri_q8_lane(const float *x, uint32_t columns, void *tile, uint32_t lane);
/* One group of up to 32 values as a q8 weight: q[count], *scale its upper 16 bits. */
int colibri_q8_group(const float *w, uint32_t count, int8_t *q, uint16_t *scale);
/* The same for q4: q in -8 .. 7. */
int colibri_q4_group(const float *w, uint32_t count, int8_t *q, uint16_t *scale);

/* y = (x * r) * w with r = 1 / sqrt(sum16(x*x) / n + eps). Returns 1 when the sum is not finite. */
int colibri_rms_norm(float *y, const float *x, const float *w, uint32_t n, float eps);

/* Row `lane` of a tile as float32 (an embedding row). */
void colibri_tile_row(uint32_t kind, const void *tile, uint32_t columns, uint32_t lane, float *out);

#endif
