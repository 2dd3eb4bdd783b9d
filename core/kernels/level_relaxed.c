/*
 * level_relaxed.c: the kernels for WebAssembly with the relaxed integer dot; see kernels.h. They are
 * level_simd128.c's except for products of q4: for q8 the dot of 16-bit lanes is as fast where the relaxed one is
 * a multiplication of unsigned by signed bytes, as on most x86-64 (measured: 24.2 against 24.9 GMAC/s with one row,
 * 25 against 23 with more).
 */
#include "kernels/kernels.h"

#if COLIBRI_HAS_RELAXED

#include "kernels/lanes_simd128.h"

/* Engines may answer in their own way as soon as the second operand leaves 0 .. 127: here it is a nibble, 0 .. 15.
 * Bytes of a line pair with activations as they stand: 4 columns of one row. Two neighbours are added in 16 bits, where
 * a group's 8 times fit: 8 * 2 * 15 * 127 = 30,480; they are widened once. A phase is 16 columns. */
typedef v128_t colibri_dotx_sums;

COLIBRI_INLINE int32_t colibri_dotx_begin(const uint32_t kind, int32_t start)
{
    (void)kind;
    return start;
}

COLIBRI_INLINE uint32_t colibri_dotx_words(const uint32_t kind)
{
    (void)kind;
    return 8;
}

COLIBRI_INLINE void colibri_dotx_prepare(const uint32_t kind, const int8_t *q, uint32_t *words, uint32_t stride)
{
    (void)kind;
    wasm_v128_store(words, wasm_v128_load(q));
    wasm_v128_store(words + stride, wasm_v128_load(q + 16));
}

COLIBRI_INLINE void colibri_dotx_weights(const uint32_t kind, const uint32_t phase, const uint8_t *lines, v128_t w[4])
{
    v128_t nibble = colibri_lane128_keep(wasm_i8x16_const_splat(15));
    (void)kind;
    for (uint32_t i = 0; i < 2u; i++) {
        v128_t v = wasm_v128_load(lines + 64u * (2u * phase + i));
        w[2u * i] = wasm_v128_and(v, nibble);
        w[2u * i + 1u] = wasm_v128_and(wasm_u16x8_shr(v, 4), nibble);
    }
}

COLIBRI_INLINE v128_t colibri_dotx_start(const uint32_t kind, const uint32_t *begin)
{
    (void)kind;
    (void)begin;
    return wasm_i32x4_const_splat(0);
}

COLIBRI_INLINE void colibri_dotx_add(const uint32_t kind, v128_t *sums, const v128_t w[4], v128_t x)
{
    (void)kind;
    v128_t sum = *sums;
    sum = wasm_i16x8_add(sum, wasm_i16x8_relaxed_dot_i8x16_i7x16(wasm_i32x4_shuffle(x, x, 0, 0, 0, 0), w[0]));
    sum = wasm_i16x8_add(sum, wasm_i16x8_relaxed_dot_i8x16_i7x16(wasm_i32x4_shuffle(x, x, 1, 1, 1, 1), w[1]));
    sum = wasm_i16x8_add(sum, wasm_i16x8_relaxed_dot_i8x16_i7x16(wasm_i32x4_shuffle(x, x, 2, 2, 2, 2), w[2]));
    sum = wasm_i16x8_add(sum, wasm_i16x8_relaxed_dot_i8x16_i7x16(wasm_i32x4_shuffle(x, x, 3, 3, 3, 3), w[3]));
    *sums = sum;
}

COLIBRI_INLINE v128_t colibri_dotx_end(const uint32_t kind, v128_t sums, const uint32_t *begin)
{
    (void)kind;
    v128_t wide = wasm_i32x4_dot_i16x8(sums, colibri_lane128_keep(wasm_i16x8_const_splat(1)));
    return wasm_i32x4_add(wide, wasm_v128_load32_splat(begin));
}

#define LEVEL(name) colibri_relaxed_##name
#define DOT(name) colibri_dotx_##name
#define LEVEL_Q8 0
#define LEVEL_ROWS 4u
#include "kernels/tiles_simd128.inc"

void colibri_relaxed_products(const colibri_product *p)
{
    if (p->kind == COLIBRI_KIND_Q4) {
        colibri_relaxed_quantized(p);
    } else {
        colibri_simd128_products(p);
    }
}

#include "kernels/level_end.inc"

int colibri_relaxed_quantize_row(const float *x, uint32_t columns, colibri_group *groups)
{
    return colibri_simd128_quantize_row(x, columns, groups);
}

int colibri_relaxed_rms_norm(float *y, const float *x, const float *w, uint32_t n, float eps)
{
    return colibri_simd128_rms_norm(y, x, w, n, eps);
}

int colibri_relaxed_gate(float *g, const float *u, uint32_t n)
{
    return colibri_simd128_gate(g, u, n);
}

int colibri_relaxed_gate_as(float *g, const float *u, uint32_t n, uint32_t kind, float limit)
{
    return colibri_simd128_gate_as(g, u, n, kind, limit);
}

int colibri_relaxed_layer_norm(float *y, const float *x, const float *w, const float *b, uint32_t n, float eps)
{
    return colibri_simd128_layer_norm(y, x, w, b, n, eps);
}

void colibri_relaxed_add_scaled(float *y, const float *x, float w, uint32_t n)
{
    colibri_simd128_add_scaled(y, x, w, n);
}

float colibri_relaxed_exp_sum(float *z, uint32_t n, float most)
{
    return colibri_simd128_exp_sum(z, n, most);
}

uint32_t colibri_relaxed_amax_bits(const float *x, uint32_t n)
{
    return colibri_simd128_amax_bits(x, n);
}

int colibri_relaxed_soften(float *s, const colibri_score_span *span, float *sum)
{
    return colibri_simd128_soften(s, span, sum);
}

int colibri_relaxed_soften_chosen(float *s, const colibri_score_span *span, float *sum)
{
    return colibri_simd128_soften_chosen(s, span, sum);
}

void colibri_relaxed_add_positive(float *y, const float *x, float scale, float w, uint32_t n)
{
    colibri_simd128_add_positive(y, x, scale, w, n);
}

void colibri_relaxed_mix_latent(const colibri_mixture *m)
{
    colibri_simd128_mix_latent(m);
}

void colibri_relaxed_mix(const colibri_mixture *m)
{
    colibri_simd128_mix(m);
}

void colibri_relaxed_store_halves(uint16_t *half, const float *x, uint32_t n)
{
    colibri_simd128_store_halves(half, x, n);
}

#endif
