/*
 * session.h: what lies in the pool. Fixed-width fields and offsets only (from the pool's or the blob's first byte), so
 * that one plan is valid on every target. The session is the pool's first structure.
 */
#ifndef COLIBRI_SESSION_H
#define COLIBRI_SESSION_H

#include "blob/view.h"
#include "kernels/kernels.h"
#include "nn/cache.h"
#include "pool/pool.h"

/* A weight in the blob, or in the pool where the resident part was copied. */
typedef struct colibri_weight {
    uint64_t offset;                            /* expert matrices: from the run's first byte */
    uint32_t in_pool;
    uint32_t kind;
    uint32_t rows;
    uint32_t columns;
    uint64_t tile_bytes;                        /* 0: a vector, or absent (rows = 0) */
} colibri_weight;

typedef struct colibri_layer {
    colibri_description d;
    uint32_t reserved;
    colibri_weight attention_norm, q, k, v, o, q_bias, k_bias, v_bias, o_bias, q_norm, k_norm;
    colibri_weight head_gate;
    colibri_weight ffn_norm, gate, up, down;    /* gate, up, down: dense or shared expert */
    colibri_weight router, router_bias, token_routes, expert_gate, expert_up, expert_down, shared_switch;
    colibri_weight ffn_gate_bias, ffn_up_bias, ffn_down_bias;       /* of the routed experts, or of the dense FFN */
    colibri_weight sinks, attention_norm_bias, ffn_norm_bias, post_attention_norm, post_ffn_norm;
    colibri_weight taps, taps_bias;             /* of a convolution, a channel after the other */
    colibri_weight q_a, k_up, v_up;             /* latent attention, whose k makes latent and rope key */
    colibri_weight index_q, index_k, index_k_norm, index_k_shift, index_weight;
    uint64_t index_offset;                      /* of the index keys inside one sequence's cache */
    uint64_t index_tile_bytes;                  /* 0 unless the layer chooses positions itself */
    uint64_t expert_offset;                     /* of expert 0's run in the file */
    uint64_t kv_offset;                         /* of this layer inside one sequence's cache */
    uint64_t k_tile_bytes, v_tile_bytes;
    uint64_t chosen;                            /* pool: uint32 [batch][top_k] experts, ascending */
    uint64_t chosen_weight;                     /* pool: float32 [batch][top_k] */
    uint64_t spread;                            /* pool: uint32 [batch], of the integer router; else 0 */
    uint32_t kv_tiles;                          /* tiles of 16 positions per KV head */
    uint32_t reserved2;
} colibri_layer;

typedef struct colibri_op {
    uint32_t kind;
    uint32_t layer;
} colibri_op;

/* A buffer of activation rows: float32 at +0 where has_x, quantized form behind it where quantized. */
typedef struct colibri_buffer {
    uint64_t offset;
    uint64_t stride;
    uint64_t groups_at;
    uint32_t columns;
    uint32_t quantized;
} colibri_buffer;

typedef struct colibri_row_state {
    uint32_t sequence;
    uint32_t position;
    uint32_t token;
    uint32_t logit;                             /* index among the rows that want logits, COLIBRI_NO = none */
} colibri_row_state;

typedef struct colibri_sequence {
    uint32_t length;                            /* positions in the cache */
    uint32_t floor;                             /* least length it can be rewound to, but for 0: a window's ring has
                                                   forgotten what lies further back */
    uint32_t queued;                            /* rows placed so far, inside colibri_feed only; the length to be,
                                                   while a saved state is brought in */
    uint32_t reserved;
} colibri_sequence;

/* A save or a restore under way (save.c), and the place it is at. */
typedef struct colibri_transfer {
    COLIBRI_POINTER(uint8_t *, bytes);
    uint64_t count;                             /* with `bytes` and `sum`: which transfer it is */
    uint64_t at, body, total;                   /* offsets in `bytes`: of the place, the body's first, its end */
    uint32_t kind;
    uint32_t sum;                               /* flags of a save; while checking the head's, then the body's CRC32C */
    uint32_t crc;                               /* of the body, up to `at` */
    uint32_t logit_rows;
    uint32_t sequence, layer, plane, head, position, reserved;
} colibri_transfer;

enum colibri_transfer_kind {
    COLIBRI_TRANSFER_NONE = 0, COLIBRI_TRANSFER_SAVE = 1, COLIBRI_TRANSFER_CHECK = 2, COLIBRI_TRANSFER_RESTORE = 3
};

/* A distinct expert of the batch. */
typedef struct colibri_distinct {
    uint32_t expert;
    uint32_t slot;                              /* COLIBRI_NO: in place */
} colibri_distinct;

/* An expert slot. ticket = slot number. */
typedef struct colibri_slot {
    uint32_t layer;
    uint32_t expert;
    uint32_t state;
    uint32_t leased;
    uint32_t next;                              /* of the free ones, COLIBRI_NO = last */
    uint32_t hint;                              /* colibri_slot_hint */
    uint32_t wanted;                            /* of an open hint: by what is known now */
    uint32_t reserved;
} colibri_slot;

enum colibri_slot_state {
    COLIBRI_SLOT_EMPTY = 0,
    COLIBRI_SLOT_ASKED = 1,                     /* in flight */
    COLIBRI_SLOT_READY = 2,
    COLIBRI_SLOT_GIVEN = 3,                     /* to an expert whose bytes are not asked for yet, or failed */
    COLIBRI_SLOT_ARRIVED = 4                    /* its bytes are there, and not vouched for */
};

enum colibri_slot_hint {
    COLIBRI_HINT_NONE = 0,
    COLIBRI_HINT_OPEN = 1,                      /* a landing slot */
    COLIBRI_HINT_TAKEN = 2                      /* was one when its bytes were asked for: no pass has asked for them */
};

/* A slot whose expert takes, or is about to take, the place of the file's. */
typedef struct colibri_override {
    uint32_t layer;
    uint32_t expert;
    uint32_t state;
    uint32_t crc;
    uint8_t digest[16];
} colibri_override;
enum colibri_override_state {
    COLIBRI_OVERRIDE_FREE = 0,
    COLIBRI_OVERRIDE_STAGING = 1,               /* bytes are on their way, or not yet checked */
    COLIBRI_OVERRIDE_STAGED = 2,                /* takes its place when the tape is at its start */
    COLIBRI_OVERRIDE_ACTIVE = 3,
    COLIBRI_OVERRIDE_LEAVING = 4                /* active until the tape is at its start */
};

/* The one replacement that is being brought in. */
typedef struct colibri_staging {
    COLIBRI_POINTER(const void *, run);
    uint64_t copied;                            /* bytes */
    uint64_t tile;                              /* tiles of gate, up and down that were looked at */
    uint32_t override;                          /* COLIBRI_NO: none */
    uint32_t crc;
    uint32_t changes;                           /* overrides that are STAGED or LEAVING */
    uint32_t reserved;
    colibri_sha256 sha;
} colibri_staging;

/* Offsets of everything carved; made by colibri_layout_make for plan and start alike. */
typedef struct colibri_layout {
    uint64_t pool_bytes;
    uint64_t layers, sequences, faults, tape, kv, kv_sequence_bytes;
    uint64_t rows, logit_row;
    uint64_t residual, qkv, qkv_stride, mixed;
    colibri_buffer norm, attended;
    colibri_buffer latent;                      /* the normed latent of the queries */
    colibri_buffer heads;                       /* quantized only, head_rows a row: what a head's factor reads */
    uint64_t query, query_stride;               /* absorbed queries; what was attended takes their places */
    uint64_t index, index_stride;               /* floats: index queries, index key, weights of the index heads */
    uint64_t choice, choice_stride;             /* uint16 a tile: positions a row looks at, until chosen anew */
    uint64_t gated;                             /* gated products; rows laid out per layer */
    uint64_t scores, scores_bytes, query_at;    /* per worker: score rows, quantized q */
    uint64_t router_logits, shared_switch, pairs, distinct, first_pair, chosen;
    uint64_t logits, logit_stride;
    uint64_t resident;
    uint64_t slots, cache, slot_data, slot_bytes;
    uint64_t arrived, sums;                     /* of a pass: slots to be vouched for, sums of their pieces */
    uint64_t landing;                           /* slot numbers, ahead_count of them */
    colibri_buffer ahead;                       /* norm outputs for the router that is run ahead */
    uint64_t staging, overrides, override_of, override_data;    /* override_of: by expert, 0 or 1 + its override */
    uint64_t text, text_bytes;
    uint64_t kv_bytes_per_token, largest_unit_macs, resident_bytes, expert_bytes, expert_count;
    uint64_t unit_macs_reserved;
    uint32_t ops, max_top_k, max_experts, quantize_norm, quantize_attended, score_lanes, score_rows, head_dim,
        slot_count, quantize_latent, quantize_heads, head_rows;
    uint32_t override_count;
    uint32_t ahead_count;                       /* landing slots, behind the slot_count ones */
    uint32_t ahead_reserved;
    uint32_t router_stride;                     /* floats of a row of router_logits; a second half where some layer
                                                   chooses by other numbers than scores */
} colibri_layout;

enum colibri_session_state {
    COLIBRI_STATE_STARTING = 1, COLIBRI_STATE_IDLE = 2, COLIBRI_STATE_RUNNING = 3, COLIBRI_STATE_STOPPED = 4,
    COLIBRI_STATE_RESTORING = 5                 /* a saved state is being brought in: the sequences are empty */
};

#define COLIBRI_SESSION_MAGIC 0x53494C43u       /* "CLIS" */

struct colibri_session {
    uint32_t magic;
    uint32_t state;
    colibri_view view;
    colibri_limits limits;
    colibri_hooks hooks;
    colibri_layout layout;
    colibri_weight embed, head, final_norm, final_norm_bias, head_bias;
    /* the tape's position */
    uint32_t op, unit, units, prepared;
    uint32_t unit_first;                        /* of the range announced to the workers */
    uint32_t row_count, logit_count;
    /* the pass of the experts op: distinct experts pass_first .. pass_end - 1 of distinct_count */
    uint32_t distinct_count, pass_first, pass_end;
    uint32_t starting_tensor, starting_asked;
    uint32_t kernel;                            /* colibri_kernel, never AUTO */
    uint32_t free_slot;                         /* first of the free ones, COLIBRI_NO = none */
    uint32_t stranded;                          /* slots that fetches of an abandoned pass are still in flight into */
    uint32_t rings;                             /* 1: some layer's ring is shorter than the context, and forgets */
    uint32_t arrived;                           /* slots of the pass that are to be vouched for */
    uint32_t lost, lost_expert;                 /* 0, or 1 + the layer that an error named */
    uint32_t ahead_layer;                       /* whose choice was foretold and not asked for yet, COLIBRI_NO = none */
    colibri_transfer transfer;
    colibri_profile_entry profile[COLIBRI_OP_ROOM];     /* by op kind */
    uint64_t stat_rows, stat_units, stat_macs, stat_hits, stat_misses, stat_fetched, stat_expert_bytes;
    uint64_t stat_hints, stat_hints_used, stat_hints_wasted, stat_hint_bytes;
};

/* --- addresses --- */

static inline uint8_t *colibri_pool_at(const colibri_session *s, uint64_t offset)
{
    return (uint8_t *)(uintptr_t)s + offset;
}

static inline float *colibri_pool_floats(const colibri_session *s, uint64_t offset)
{
    return (float *)(void *)colibri_pool_at(s, offset);
}

static inline uint32_t *colibri_pool_words(const colibri_session *s, uint64_t offset)
{
    return (uint32_t *)(void *)colibri_pool_at(s, offset);
}

static inline colibri_layer *colibri_layer_at(const colibri_session *s, uint32_t layer)
{
    return (colibri_layer *)(void *)colibri_pool_at(s, s->layout.layers) + layer;
}

static inline colibri_row_state *colibri_row_at(const colibri_session *s, uint32_t row)
{
    return (colibri_row_state *)(void *)colibri_pool_at(s, s->layout.rows) + row;
}

static inline colibri_sequence *colibri_sequence_at(const colibri_session *s, uint32_t sequence)
{
    return (colibri_sequence *)(void *)colibri_pool_at(s, s->layout.sequences) + sequence;
}

static inline const uint8_t *colibri_weight_at(const colibri_session *s, const colibri_weight *w)
{
    return w->in_pool ? colibri_pool_at(s, w->offset) : s->view.blob + w->offset;
}

static inline const float *colibri_vector_at(const colibri_session *s, const colibri_weight *w)
{
    return (const float *)(const void *)colibri_weight_at(s, w);
}

static inline float *colibri_residual_at(const colibri_session *s, uint32_t row)
{
    return colibri_pool_floats(s, s->layout.residual + (uint64_t)row * s->view.hidden * 4u);
}

static inline float *colibri_mixed_at(const colibri_session *s, uint32_t row)
{
    return colibri_pool_floats(s, s->layout.mixed + (uint64_t)row * s->view.hidden * 4u);
}

static inline float *colibri_qkv_at(const colibri_session *s, uint32_t row)
{
    return colibri_pool_floats(s, s->layout.qkv + row * s->layout.qkv_stride);
}

static inline float *colibri_index_at(const colibri_session *s, uint32_t row)
{
    return colibri_pool_floats(s, s->layout.index + row * s->layout.index_stride);
}

static inline uint16_t *colibri_choice_at(const colibri_session *s, uint32_t row)
{
    return (uint16_t *)(void *)colibri_pool_at(s, s->layout.choice + row * s->layout.choice_stride);
}

/* Latent attention: a row's absorbed query of one head, and after ATTEND what that head attended. */
static inline float *colibri_query_of(const colibri_session *s, const colibri_layer *layer, uint32_t row, uint32_t head)
{
    return colibri_pool_floats(s, s->layout.query + row * s->layout.query_stride) + (uint64_t)head * layer->d.head_dim;
}

/* Row `row` of a buffer; the pointers are writable behind the kernels' const. */
static inline colibri_activation colibri_buffer_row(const colibri_session *s, const colibri_buffer *b, uint64_t row)
{
    const uint8_t *base = colibri_pool_at(s, b->offset + row * b->stride);
    colibri_activation a;
    a.x = (const float *)(const void *)base;
    a.groups = (const colibri_group *)(const void *)(base + b->groups_at);
    return a;
}

/* The run that takes the place of an expert's, null where the file's own is used. */
static inline const uint8_t *colibri_override_run(const colibri_session *s, const colibri_layer *layer, uint32_t expert)
{
    if (!s->layout.override_count) {
        return 0;
    }
    uint32_t held = colibri_pool_words(s, s->layout.override_of)[layer->d.first_expert + expert];
    return held ? colibri_pool_at(s, s->layout.override_data + (held - 1u) * s->layout.slot_bytes) : 0;
}

/* --- strips: what a unit of a matrix op computes, 32 output rows --- */

enum { COLIBRI_STRIP_ROWS = 32 };

typedef struct colibri_strip {
    const colibri_weight *w;
    const uint8_t *tiles;                       /* of the strip's first row */
    uint32_t first;                             /* output row of the matrix */
    uint32_t lanes;                             /* output rows it has: 1 .. 32 for each strip */
} colibri_strip;

/* `count` strips from `unit` on. base: of the run an expert's matrix lies in, null for any other matrix. */
static inline colibri_strip colibri_strip_at(const colibri_session *s, const colibri_weight *w, const uint8_t *base,
                                             uint32_t unit, uint32_t count)
{
    colibri_strip strip;
    uint32_t first = unit * COLIBRI_STRIP_ROWS;
    strip.w = w;
    strip.tiles = (base ? base + w->offset : colibri_weight_at(s, w)) + 2u * (uint64_t)unit * w->tile_bytes;
    strip.first = first;
    strip.lanes = w->rows - first < count * COLIBRI_STRIP_ROWS ? w->rows - first : count * COLIBRI_STRIP_ROWS;
    return strip;
}

static inline int colibri_latent(const colibri_layer *layer)
{
    return layer->d.attention == COLIBRI_ATTENTION_MLA;
}

static inline int colibri_convolution(const colibri_layer *layer)
{
    return layer->d.attention == COLIBRI_ATTENTION_CONV;
}

static inline uint32_t colibri_strips(uint32_t rows)
{
    return rows / COLIBRI_STRIP_ROWS + (rows % COLIBRI_STRIP_ROWS != 0u);
}

static inline uint32_t colibri_rows_at_once(uint32_t rest)
{
    return rest < COLIBRI_ROWS_AT_ONCE ? rest : COLIBRI_ROWS_AT_ONCE;
}

/* A bias of an expert (0 of a dense network), null where there is none. columns: of one expert. */
static inline const float *colibri_bias_at(const colibri_session *s, const colibri_weight *w, uint32_t expert,
                                           uint32_t columns)
{
    return w->rows ? colibri_vector_at(s, w) + (uint64_t)expert * columns : 0;
}

/* A gated feed-forward network, up to its down matrix. */
typedef struct colibri_gated {
    const colibri_weight *gate, *up;
    const float *gate_bias, *up_bias;           /* null: none */
    uint32_t activation, reserved;
    float limit;
    const uint8_t *base;                        /* of the expert's run, null for any other matrix */
    const float *weight;                        /* by output row: what the input is multiplied by, null = nothing */
    colibri_buffer out;
    const uint32_t *pairs;                      /* row i is pair pairs[i] = row * top_k + k; null: row i itself */
    uint32_t top_k, rows;
} colibri_gated;

static inline void colibri_fault(const colibri_session *s, uint32_t worker)
{
    colibri_pool_words(s, s->layout.faults)[16u * worker] = 1;
}

/* Sizes of a buffer row; columns x float32 where has_x, the quantized form where quantized. */
void colibri_buffer_shape(colibri_buffer *b, uint32_t columns, int has_x, int quantized);
/* The gated products of a layer: `rows` of them, kind of the matrix that reads them. */
colibri_buffer colibri_gated_buffer(const colibri_session *s, uint32_t columns, uint32_t kind);

/* layout.c */
/* text_bytes: scratch of the text room, which this room does not know */
int32_t colibri_layout_make(const colibri_view *view, const colibri_limits *limits, uint64_t text_bytes,
                            colibri_layout *layout, colibri_arena *arena, colibri_detail *detail);
int32_t colibri_layers_fill(colibri_session *s, colibri_detail *detail);
/* tape.c */
uint32_t colibri_tape_layer_ops(const colibri_description *d, uint32_t flags, colibri_op *ops, uint32_t layer);
void colibri_tape_build(colibri_session *s);
uint32_t colibri_op_units(const colibri_session *s, const colibri_op *op);
uint64_t colibri_op_macs(const colibri_session *s, const colibri_op *op);
void colibri_op_run(colibri_session *s, const colibri_op *op, uint32_t worker, uint32_t first, uint32_t count);
/* attention.c */
void colibri_place_row(colibri_session *s, const colibri_layer *layer, uint32_t row, uint32_t worker);
/* Query rows that one unit of ATTEND takes, all of them for one KV head. */
uint32_t colibri_attend_rows(const colibri_layer *layer);
/* Units that the heads of one KV head make: eights of them. */
uint32_t colibri_attend_parts(const colibri_layer *layer);
void colibri_attend(colibri_session *s, const colibri_layer *layer, uint32_t unit, uint32_t worker);
void colibri_kv_shape(const colibri_limits *limits, colibri_layer *layer);
void colibri_rotate_heads(const colibri_session *s, uint32_t rope_index, float *x, uint32_t heads, uint32_t stride,
                          uint32_t position);
int colibri_gate_heads(const colibri_session *s, const colibri_layer *layer, uint32_t row);
uint32_t colibri_k_kind(uint32_t kv_kind);
int colibri_store_k(const colibri_session *s, const float *k, uint32_t head_dim, uint8_t *tile, uint32_t lane);
int colibri_cache_key(const colibri_session *s, const colibri_layer *layer, const colibri_row_state *state,
                      uint32_t head, const float *k);
int colibri_cache_value(const colibri_session *s, const colibri_layer *layer, const colibri_row_state *state,
                        uint32_t head, const float *v);
uint8_t *colibri_value_tile(const colibri_session *s, const colibri_layer *layer, uint32_t sequence, uint32_t head,
                            uint32_t tile);
/* convolve.c */
void colibri_place_convolved(colibri_session *s, const colibri_layer *layer, uint32_t row, uint32_t worker);
void colibri_convolve(colibri_session *s, const colibri_layer *layer, uint32_t row);
/* latent.c */
void colibri_latent_norm(colibri_session *s, const colibri_layer *layer, uint32_t row, uint32_t worker);
void colibri_place_latent(colibri_session *s, const colibri_layer *layer, uint32_t row, uint32_t worker);
void colibri_absorb(colibri_session *s, const colibri_layer *layer, uint32_t unit);
int colibri_quantize_head(const colibri_session *s, const colibri_weight *reader, uint32_t row, uint32_t head,
                          const float *x);
void colibri_expand(colibri_session *s, const colibri_layer *layer, uint32_t unit);
/* sparse.c */
void colibri_index_place(colibri_session *s, const colibri_layer *layer, uint32_t row, uint32_t worker);
void colibri_index_choose(colibri_session *s, const colibri_layer *layer, uint32_t row, uint32_t worker);
/* strip.c */
void colibri_strip_times(const colibri_session *s, const colibri_strip *strip, const colibri_activation *rows,
                         uint32_t count, uint32_t seen, float *out);
/* ffn.c */
void colibri_gated_groups(colibri_session *s, const colibri_gated *ffn, uint32_t first, uint32_t count,
                          uint32_t worker);
/* choose.c */
/* The k largest of z by (value descending, index ascending), written in ascending index order. */
void colibri_choose(const float *z, uint32_t experts, uint32_t k, uint32_t *chosen);
/* The same among the experts of the layer's best groups; z is used up. */
void colibri_choose_in_groups(float *z, const colibri_description *d, uint32_t *chosen);
/* router.c */
void colibri_route_rows(colibri_session *s, const colibri_layer *layer, uint32_t unit, uint32_t worker);
/* Rows first .. of the batch, at most COLIBRI_ROWS_AT_ONCE, from the norm's outputs to chosen and chosen_weight; 1 if
 * something is not finite. */
int colibri_route(colibri_session *s, const colibri_layer *layer, const colibri_activation *rows, uint32_t first,
                  uint32_t count);
/* The experts of a row's token, without weights. 1 if the table holds anything but experts in ascending order: `check`
 * names the place, and a run must not follow it. */
int colibri_route_by_token(const colibri_session *s, const colibri_layer *layer, uint32_t row);
static inline colibri_distinct *colibri_distinct_at(const colibri_session *s, uint32_t index)
{
    return (colibri_distinct *)(void *)colibri_pool_at(s, s->layout.distinct) + index;
}

static inline colibri_slot *colibri_slot_at(const colibri_session *s, uint32_t index)
{
    return (colibri_slot *)(void *)colibri_pool_at(s, s->layout.slots) + index;
}

static inline colibri_cache *colibri_cache_of(const colibri_session *s)
{
    return (colibri_cache *)(void *)colibri_pool_at(s, s->layout.cache);
}

/* Checksums of arrived experts are units, pieces of so many bytes; the first piece is what is left over. */
enum { COLIBRI_SUM_PIECE = 32768 };
static inline uint32_t colibri_sum_pieces(uint64_t run)
{
    return (uint32_t)((run + (COLIBRI_SUM_PIECE - 1)) / COLIBRI_SUM_PIECE);
}

/* ahead.c: hints of what the next layer will need */
void colibri_ahead_begin(colibri_session *s);
uint32_t colibri_ahead_units(const colibri_session *s, uint32_t layer_index);
uint64_t colibri_ahead_macs(const colibri_session *s, uint32_t layer_index);
void colibri_ahead_route(colibri_session *s, uint32_t layer_index);
void colibri_ahead_ask(colibri_session *s, uint32_t layer_index);
void colibri_ahead_settle(colibri_session *s);
uint32_t colibri_ahead_take(colibri_session *s, uint32_t layer_index, uint32_t expert, uint32_t given);
void colibri_ahead_lost(colibri_session *s, uint32_t index);
/* slots.c: the leases of a pass; with ahead.c the only place that calls the store */
void colibri_slots_begin(colibri_session *s);
int32_t colibri_pass_prepare(colibri_session *s, uint32_t layer_index);
uint32_t colibri_pass_pieces(const colibri_session *s, uint32_t layer_index);
void colibri_pass_sum(colibri_session *s, const colibri_layer *layer, uint32_t unit);
int32_t colibri_pass_vouch(colibri_session *s, uint32_t layer_index);
int colibri_pass_more(const colibri_session *s);
void colibri_pass_release(colibri_session *s, uint32_t layer_index);
void colibri_pass_abandon(colibri_session *s, uint32_t layer_index);
int colibri_slots_busy(colibri_session *s);
int32_t colibri_slot_request(const colibri_session *s, uint32_t index, uint32_t hint);
int32_t colibri_slots_pin(colibri_session *s, uint32_t layer_index, uint32_t expert, uint32_t pinned);
/* experts.c */
void colibri_pass_list(colibri_session *s, const colibri_layer *layer);
void colibri_expert_up(colibri_session *s, uint32_t layer, uint32_t first, uint32_t count, uint32_t worker);
void colibri_expert_down(colibri_session *s, uint32_t layer, uint32_t first, uint32_t count);

#endif
