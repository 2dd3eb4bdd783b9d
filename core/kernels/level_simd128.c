/*
 * level_simd128.c: the kernels for WebAssembly with SIMD; see kernels.h. Engines with the relaxed integer dot have
 * level_relaxed.c, which differs in the products of q4 only.
 */
#include "kernels/kernels.h"

#if COLIBRI_HAS_SIMD128

#include "kernels/lanes_simd128.h"

/* The one dot there is multiplies 16-bit lanes and adds neighbours. A line read as such lanes has neighbours of one
 * row: columns (0, 2) and (1, 3) in its bytes, (4, 6) and (5, 7) in q4's upper nibbles; activations read as 16-bit
 * lanes pair in the same way. Weights are masked where they stand and the activations carry what is left to a common
 * factor of 256, so that few weights need a shift. A phase is 8 columns.
 * q4: 16 bits are w0 + 16 w4 + 256 w1 + 4096 w5, of a group |sum| <= 256 * 93,472. q8: w0 + 256 w1, both signed;
 * |sum| <= 256 * 516,128 < 2^27. */
COLIBRI_INLINE uint32_t colibri_dot128_words(const uint32_t kind)
{
    (void)kind;
    return 16;
}

COLIBRI_INLINE int32_t colibri_dot128_begin(const uint32_t kind, int32_t start)
{
    return kind == COLIBRI_KIND_Q4 ? 256 * start : 0;
}

COLIBRI_INLINE void colibri_dot128_prepare(const uint32_t kind, const int8_t *q, uint32_t *words, uint32_t stride)
{
    v128_t even = colibri_lane128_keep(wasm_i16x8_const(256, 256, 16, 16, 256, 256, 16, 16));
    v128_t odd = colibri_lane128_keep(wasm_i16x8_const(1, 1, 256, 256, 1, 1, 256, 256));
    for (uint32_t half = 0; half < 2u; half++) {
        v128_t v = wasm_v128_load(q + 16u * half);
        v128_t x = wasm_i16x8_shr(wasm_i16x8_shl(v, 8), 8), y = wasm_i16x8_shr(v, 8);
        if (kind == COLIBRI_KIND_Q4) {
            x = wasm_i16x8_mul(x, even);
            y = wasm_i16x8_mul(y, odd);
            wasm_v128_store(words, wasm_i64x2_shuffle(x, y, 0, 2));
            wasm_v128_store(words + stride, wasm_i64x2_shuffle(x, y, 1, 3));
        } else {
            wasm_v128_store(words, wasm_i32x4_shuffle(x, y, 0, 4, 1, 5));
            wasm_v128_store(words + stride, wasm_i32x4_shuffle(x, y, 2, 6, 3, 7));
        }
        words += 2u * stride;
    }
}

COLIBRI_INLINE v128_t colibri_dot128_masked(v128_t v, int16_t mask)
{
    return wasm_v128_and(v, colibri_lane128_keep(wasm_i16x8_splat(mask)));
}

COLIBRI_INLINE void colibri_dot128_weights(const uint32_t kind, const uint32_t phase, const uint8_t *lines, v128_t w[4])
{
    if (kind == COLIBRI_KIND_Q4) {
        v128_t v = wasm_v128_load(lines + 64u * phase);
        w[0] = colibri_dot128_masked(v, 0x000F);
        w[1] = colibri_dot128_masked(v, 0x00F0);
        w[2] = colibri_dot128_masked(v, 0x0F00);
        w[3] = wasm_u16x8_shr(v, 12);
    } else {
        for (uint32_t i = 0; i < 2u; i++) {
            v128_t v = wasm_v128_load(lines + 64u * (2u * phase + i));
            w[2u * i] = wasm_i16x8_shl(v, 8);
            w[2u * i + 1u] = colibri_dot128_masked(v, (int16_t)0xFF00);
        }
    }
}

typedef v128_t colibri_dot128_sums;

COLIBRI_INLINE v128_t colibri_dot128_start(const uint32_t kind, const uint32_t *begin)
{
    return kind == COLIBRI_KIND_Q4 ? wasm_v128_load32_splat(begin) : wasm_i32x4_const_splat(0);
}

COLIBRI_INLINE void colibri_dot128_add(const uint32_t kind, v128_t *sums, const v128_t w[4], v128_t x)
{
    (void)kind;
    v128_t dots = wasm_i32x4_add(*sums, wasm_i32x4_dot_i16x8(w[0], wasm_i32x4_shuffle(x, x, 0, 0, 0, 0)));
    dots = wasm_i32x4_add(dots, wasm_i32x4_dot_i16x8(w[1], wasm_i32x4_shuffle(x, x, 1, 1, 1, 1)));
    dots = wasm_i32x4_add(dots, wasm_i32x4_dot_i16x8(w[2], wasm_i32x4_shuffle(x, x, 2, 2, 2, 2)));
    dots = wasm_i32x4_add(dots, wasm_i32x4_dot_i16x8(w[3], wasm_i32x4_shuffle(x, x, 3, 3, 3, 3)));
    *sums = dots;
}

COLIBRI_INLINE v128_t colibri_dot128_end(const uint32_t kind, v128_t sums, const uint32_t *begin)
{
    (void)kind;
    (void)begin;
    return wasm_i32x4_shr(sums, 8);
}

#define LEVEL(name) colibri_simd128_##name
#define LANE(name) colibri_lane128_##name
#define DOT(name) colibri_dot128_##name
#define LEVEL_Q8 1
#define LEVEL_ROWS 4u
#define LEVEL_MIX_ROWS 4u
#define LEVEL_MIX_COLUMNS 1u
#define LEVEL_MIX_LONG 2u
#include "kernels/rows_template.inc"
#include "kernels/mix_template.inc"
#include "kernels/tiles_simd128.inc"

/* Columns of a float tile, also of a K tile of the cache, times one row; the sums go on from what is in out, or from
 * +0. */
COLIBRI_INLINE void colibri_simd128_float_row(const uint8_t *tile, const float *x, uint32_t columns, float *out,
                                              const uint32_t go_on, const uint32_t half)
{
    colibri_lane128_floats acc = go_on ? colibri_lane128_load(out) : colibri_lane128_set(0.0f);
    for (uint32_t c = 0; c < columns; c++) {
        colibri_lane128_floats w = half ? colibri_lane128_load_halves((const uint16_t *)(const void *)tile)
                                        : colibri_lane128_load((const float *)(const void *)tile);
        acc = colibri_lane128_add(acc, colibri_lane128_mul(w, colibri_lane128_set(x[c])));
        tile += half ? 32u : 64u;
    }
    colibri_lane128_store(out, acc);
}

static __attribute__((noinline)) void colibri_simd128_f32_row(const uint8_t *tile, const float *x, uint32_t columns,
                                                              float *out)
{
    colibri_simd128_float_row(tile, x, columns, out, 0, 0);
}

static __attribute__((noinline)) void colibri_simd128_f32_more(const uint8_t *tile, const float *x, uint32_t columns,
                                                               float *out)
{
    colibri_simd128_float_row(tile, x, columns, out, 1, 0);
}

static __attribute__((noinline)) void colibri_simd128_f16_row(const uint8_t *tile, const float *x, uint32_t columns,
                                                              float *out)
{
    colibri_simd128_float_row(tile, x, columns, out, 0, 1);
}

enum { COLIBRI_WIDENED_COLUMNS = 64 };

/* A half tile times many rows: widened once, a piece at a time. */
static __attribute__((noinline)) void colibri_simd128_f16_rows(const colibri_product *p, const uint8_t *tile,
                                                               float *out)
{
    float wide[16 * COLIBRI_WIDENED_COLUMNS];
    for (uint32_t from = 0; from < p->columns; from += COLIBRI_WIDENED_COLUMNS) {
        uint32_t left = p->columns - from;
        uint32_t count = left < COLIBRI_WIDENED_COLUMNS ? left : COLIBRI_WIDENED_COLUMNS;
        const uint16_t *halves = (const uint16_t *)(const void *)tile + 16u * (uint64_t)from;
        for (uint32_t c = 0; c < count; c++) {
            colibri_lane128_store(wide + 16u * c, colibri_lane128_load_halves(halves + 16u * c));
        }
        for (uint32_t r = 0; r < p->row_count; r++) {
            if (from == 0u) {
                colibri_simd128_f32_row((const uint8_t *)wide, p->rows[r].x, count, out + r * p->out_stride);
            } else {
                colibri_simd128_f32_more((const uint8_t *)wide, p->rows[r].x + from, count, out + r * p->out_stride);
            }
        }
    }
}

static void colibri_simd128_floats(const colibri_product *p)
{
    for (uint32_t t = 0; t < p->tile_count; t++) {
        const uint8_t *tile = (const uint8_t *)p->tiles + t * p->tile_bytes;
        float *out = p->out + 16u * t;
        if (p->kind == COLIBRI_KIND_F16 && p->row_count == 1u) {
            colibri_simd128_f16_row(tile, p->rows[0].x, p->columns, out);
        } else if (p->kind == COLIBRI_KIND_F16) {
            colibri_simd128_f16_rows(p, tile, out);
        } else {
            for (uint32_t r = 0; r < p->row_count; r++) {
                colibri_simd128_f32_row(tile, p->rows[r].x, p->columns, out + r * p->out_stride);
            }
        }
    }
}

void colibri_simd128_products(const colibri_product *p)
{
    switch (p->kind) {
    case COLIBRI_KIND_F32:
    case COLIBRI_KIND_F16: colibri_simd128_floats(p); break;
    default: colibri_simd128_quantized(p); break;
    }
}

#include "kernels/level_end.inc"

#endif
