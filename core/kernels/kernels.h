/*
 * kernels.h: the contract of the kernels, the one place where instruction sets may differ.
 *
 * Lane = row: a tile holds 16 output rows; each lane adds up its own row, group after group, in column order, so a
 * plain C loop is the reference and every level equals it bit for bit (NUMERICS section 2). Every function here exists
 * once per level (colibri_kernel of colibri.h); `kernel` names the level and a switch finds it (dispatch.c). Kernels
 * know neither blob nor pool.
 *
 * Alignment: tiles 64 bytes, activations and outputs 16 bytes. Tiles, planes of the cache and rows of activations lie
 * inside the blob or the pool, so that a hint to the processor to fetch ahead may point behind them.
 */
#ifndef COLIBRI_KERNELS_H
#define COLIBRI_KERNELS_H

#include "base/math32.h"
#include "base/tiles.h"

#ifndef COLIBRI_KERNELS_PORTABLE
#define COLIBRI_KERNELS_PORTABLE 0              /* 1: leave every level but the portable one out */
#endif

/* 32 quantized activations with what belongs to them: one stream a row, one pointer for a kernel to keep. */
typedef struct colibri_group {
    int8_t q[COLIBRI_GROUP];                    /* -127 .. 127, zero behind the last column */
    float d;                                    /* x = q * d */
    int32_t start;                              /* -8 * the sum of q: what dots with w + 8 begin with */
} colibri_group;
COLIBRI_ASSERT_SIZE(colibri_group, 40);

/* One row of activations as products want it: float for float matrices, quantized for q8 and q4. */
typedef struct colibri_activation {
    const float *x;                             /* [columns] */
    const colibri_group *groups;                /* [colibri_groups(columns)] */
} colibri_activation;

/* Four bytes as one word wherever they stand: little-endian, as everything here. */
typedef uint32_t __attribute__((may_alias)) colibri_row_word;

#define COLIBRI_INLINE static inline __attribute__((always_inline))

enum { COLIBRI_AHEAD_BYTES = 8192 };            /* how far a stream of weights or of the cache is fetched ahead */

enum { COLIBRI_ROWS_AT_ONCE = 8 };              /* rows a caller hands over together */

/* Consecutive tiles of one matrix times a few activation rows, from +0, without bias:
 *   out[i * out_stride + 16 * t + r] = row 16 * t + r of the tiles  .  activation row i
 *   kind         of the tiles
 *   columns      of the matrix, >= 1
 *   tile_count   >= 1
 *   row_count    1 .. COLIBRI_ROWS_AT_ONCE
 *   seen         0: these tiles come from far (a hint: what lies behind them is fetched too); 1: they were just used */
typedef struct colibri_product {
    const void *tiles;
    uint64_t tile_bytes;
    uint32_t kind, columns, tile_count, row_count, seen, reserved;
    const colibri_activation *rows;
    float *out;
    uint64_t out_stride;
} colibri_product;

void colibri_products(uint32_t kernel, const colibri_product *p);

/* NUMERICS section 3. Returns 0, or 1 when a value is infinite or NaN (the groups are then unspecified). */
int colibri_quantize_row(uint32_t kernel, const float *x, uint32_t columns, colibri_group *groups);

/* y = (x * r) * w with r = 1 / sqrt(sum16(x*x) / n + eps). Returns 1 when the sum is not finite. y may be x. */
int colibri_rms_norm(uint32_t kernel, float *y, const float *x, const float *w, uint32_t n, float eps);

/* g = silu(g) * u. Returns 1 when some g is not finite (exp's clamp must not be the first to see it). */
int colibri_gate(uint32_t kernel, float *g, const float *u, uint32_t n);

/* The other gated products: g = h(g, u) by a colibri_activation_kind but SILU; limit: of the clamped ones. Returns 1
 * when some g or u is not finite. */
int colibri_gate_as(uint32_t kernel, float *g, const float *u, uint32_t n, uint32_t kind, float limit);

/* y = ((x - mean) * r) * w (+ b unless b is null), r = 1 / sqrt(variance + eps). Returns 1 when a sum is not finite.
 * y may be x. */
int colibri_layer_norm(uint32_t kernel, float *y, const float *x, const float *w, const float *b, uint32_t n,
                       float eps);

/* y = y + w * x */
void colibri_add_scaled(uint32_t kernel, float *y, const float *x, float w, uint32_t n);

/* z = exp(z - most); returns sum16 of the result. */
float colibri_exp_sum(uint32_t kernel, float *z, uint32_t n, float most);

/* The largest magnitude's bits: one integer maximum, at or above COLIBRI_INFINITY_BITS if some value is not finite. */
uint32_t colibri_amax_bits(uint32_t kernel, const float *x, uint32_t n);

/* Scores of one row and head, by position; s[0] belongs to position `base`, a multiple of 16; only first .. last are
 * looked at, though whole tiles of 16 may be read and written. s = exp(s * scale - max), *sum in 16 partials by
 * position mod 16. A sink joins the maximum, and exp(sink - max) the sum last. Returns 1 when some score is not
 * finite. */
typedef struct colibri_score_span {
    uint32_t base, first, last;
    float scale;
    uint32_t has_sink;
    float sink;
    const uint16_t *chosen;                     /* bit r of chosen[i] is position base + 16 * i + r; null: all */
} colibri_score_span;
int colibri_soften(uint32_t kernel, float *s, const colibri_score_span *span, float *sum);
/* The same over chosen positions only; s = +0 for the others. */
int colibri_soften_chosen(uint32_t kernel, float *s, const colibri_score_span *span, float *sum);

/* y = y + w * max(x * scale, +0) */
void colibri_add_positive(uint32_t kernel, float *y, const float *x, float scale, float w, uint32_t n);

/* V of one KV head for a few score rows that share it: out[i][c] = sum over positions first[i] .. last[i], ascending,
 * of (p * s_v) * v, then divided by sum[i].
 *   plane        tiles of 16 positions, tile_bytes apart; position p is in tile p / 16 mod ring
 *   kind         colibri_kv_kind
 *   scores       row i at scores + i * stride, its element 0 belongs to position `base`
 *   out[i]       head_dim floats each */
typedef struct colibri_mixture {
    const uint8_t *plane;
    uint64_t tile_bytes;
    uint32_t kind, ring, head_dim, row_count, base;
    const float *scores;
    uint64_t stride;
    uint32_t first[COLIBRI_ROWS_AT_ONCE], last[COLIBRI_ROWS_AT_ONCE];
    float sum[COLIBRI_ROWS_AT_ONCE];
    float *out[COLIBRI_ROWS_AT_ONCE];
} colibri_mixture;
void colibri_mix(uint32_t kernel, const colibri_mixture *m);

/* The same where the values are the first head_dim columns of the K tiles (latent attention): plane holds those tiles,
 * and every output adds up 16 partials by position mod 16, tile after tile, then their tree. */
void colibri_mix_latent(uint32_t kernel, const colibri_mixture *m);

/* half[i] = x[i], nearest-even, saturating: NUMERICS section 6. */
void colibri_store_halves(uint32_t kernel, uint16_t *half, const float *x, uint32_t n);

/* colibri_crc32c, by an instruction where the level's processors have one (crc.c). */
uint32_t colibri_crc(uint32_t kernel, uint32_t crc, const void *data, uint64_t bytes);

/* The level a session uses: `kernel` itself, or for AUTO the best one this file's flags guarantee; 0 if it was not
 * compiled in. */
uint32_t colibri_kernel_resolve(uint32_t kernel);
/* Known vectors through a level against the portable one: 0, or the number of the one that differs. */
uint32_t colibri_kernel_probe(uint32_t kernel);

/* --- not on the hot path, one implementation --- */

/* One row (lane r of 16) of a q8 tile, as weights are quantized: K rows of the cache are written so. */
int colibri_q8_lane(const float *x, uint32_t columns, void *tile, uint32_t lane);
/* One group of up to 32 values as a q8 weight: q[count], *scale its upper 16 bits. */
int colibri_q8_group(const float *w, uint32_t count, int8_t *q, uint16_t *scale);
/* The same for q4: q in -8 .. 7. */
int colibri_q4_group(const float *w, uint32_t count, int8_t *q, uint16_t *scale);

/* Row `lane` of a tile as float32 (an embedding row). */
void colibri_tile_row(uint32_t kind, const void *tile, uint32_t columns, uint32_t lane, float *out);

/* --- per level: what dispatch.c chooses from, one set of names per level --- */

#define COLIBRI_LEVEL_FUNCTIONS(level) \
    void colibri_##level##_products(const colibri_product *p); \
    int colibri_##level##_quantize_row(const float *x, uint32_t columns, colibri_group *groups); \
    int colibri_##level##_rms_norm(float *y, const float *x, const float *w, uint32_t n, float eps); \
    int colibri_##level##_gate(float *g, const float *u, uint32_t n); \
    int colibri_##level##_gate_as(float *g, const float *u, uint32_t n, uint32_t kind, float limit); \
    int colibri_##level##_layer_norm(float *y, const float *x, const float *w, const float *b, uint32_t n, \
                                     float eps); \
    void colibri_##level##_add_scaled(float *y, const float *x, float w, uint32_t n); \
    float colibri_##level##_exp_sum(float *z, uint32_t n, float most); \
    uint32_t colibri_##level##_amax_bits(const float *x, uint32_t n); \
    int colibri_##level##_soften(float *s, const colibri_score_span *span, float *sum); \
    int colibri_##level##_soften_chosen(float *s, const colibri_score_span *span, float *sum); \
    void colibri_##level##_add_positive(float *y, const float *x, float scale, float w, uint32_t n); \
    void colibri_##level##_mix(const colibri_mixture *m); \
    void colibri_##level##_mix_latent(const colibri_mixture *m); \
    void colibri_##level##_store_halves(uint16_t *half, const float *x, uint32_t n);

/* Which levels this build holds. x86-64 and ARM64 levels carry their own target attributes, so they need no flags;
 * a WebAssembly module is of one level as a whole. */
#if !COLIBRI_KERNELS_PORTABLE && defined(__x86_64__)
#define COLIBRI_HAS_X86 1
#else
#define COLIBRI_HAS_X86 0
#endif
#if !COLIBRI_KERNELS_PORTABLE && defined(__aarch64__)
#define COLIBRI_HAS_ARM 1
#else
#define COLIBRI_HAS_ARM 0
#endif
#if !COLIBRI_KERNELS_PORTABLE && defined(__wasm_simd128__)
#define COLIBRI_HAS_SIMD128 1
#else
#define COLIBRI_HAS_SIMD128 0
#endif
#if !COLIBRI_KERNELS_PORTABLE && defined(__wasm_relaxed_simd__)
#define COLIBRI_HAS_RELAXED 1
#else
#define COLIBRI_HAS_RELAXED 0
#endif

COLIBRI_LEVEL_FUNCTIONS(portable)
COLIBRI_LEVEL_FUNCTIONS(avx2)
COLIBRI_LEVEL_FUNCTIONS(avx_vnni)
COLIBRI_LEVEL_FUNCTIONS(avx512)
COLIBRI_LEVEL_FUNCTIONS(neon)
COLIBRI_LEVEL_FUNCTIONS(dotprod)
COLIBRI_LEVEL_FUNCTIONS(simd128)
COLIBRI_LEVEL_FUNCTIONS(relaxed)

#endif
