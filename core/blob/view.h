/*
 * view.h: a bounds-checked view of a blob in place. This room is the only code that meets untrusted bytes of the
 * tables; what it hands out (descriptions, matrices) has been checked, and nobody checks it again.
 */
#ifndef COLIBRI_VIEW_H
#define COLIBRI_VIEW_H

#include "base/tiles.h"
#include "blob/colibri_format.h"

enum { COLIBRI_ROLE_ROOM = 96, COLIBRI_TABLE_ROOM = 17, COLIBRI_GROUP_LIMIT = 64, COLIBRI_SPAN_LIMIT = 16 };

/* one known section */
typedef struct colibri_table {
    uint64_t offset;
    uint64_t payload;
    uint32_t count;
    uint32_t present;
} colibri_table;

/* What lies inside a colibri_model. Offsets from the blob's first byte; the only pointer is the blob's. */
typedef struct colibri_view {
    COLIBRI_POINTER(const uint8_t *, blob);
    uint64_t addressable;
    uint64_t file_bytes;
    uint64_t tables_bytes;
    uint32_t section_count;
    uint32_t vocab;
    uint32_t hidden;
    uint32_t layers;
    uint32_t trained_context;
    uint32_t has_multipliers;                   /* bit 0: embed, bit 1: logit, bit 2: soft-cap */
    float final_eps;
    float embed_multiplier;
    float logit_multiplier;
    uint32_t model_tensors;                     /* tensors that are not a layer's: the first of the table */
    float logit_softcap;
    uint32_t final_norm;                        /* colibri_norm */
    uint32_t head_bias;
    uint32_t drafts;                            /* layers behind the last that guess further tokens */
    /* by section type, 1 .. 16. RESIDENT, EXPERTS and EXPERT_SUMS: what a run needs, without the drafts behind it */
    colibri_table table[COLIBRI_TABLE_ROOM];
} colibri_view;
COLIBRI_ASSERT_SIZE(colibri_view, 88 + 24 * COLIBRI_TABLE_ROOM);

/* One layer's description, complete and checked. */
typedef struct colibri_description {
    uint32_t attention;                         /* colibri_attention */
    uint32_t heads, kv_heads, head_dim;
    uint32_t latent, nope_dim, rope_dim, v_dim, q_latent;   /* 0 unless the attention is latent; q_latent 0 = none */
    uint32_t index_heads, index_dim, index_top_k;   /* top_k 0 = all positions; heads 0 = a former layer's choice */
    uint32_t index_rope;                        /* index, COLIBRI_NO = no rotation */
    uint32_t rope;                              /* index, COLIBRI_NO = no rotation */
    uint32_t window;                            /* 0 = all positions */
    uint32_t qk_norm;
    uint32_t biases;
    uint32_t ffn;
    uint32_t ff;
    uint32_t experts, top_k;
    uint32_t router_score;
    uint32_t renormalise;
    uint32_t router_bias;
    uint32_t router_groups;                     /* 0 = none, at most COLIBRI_GROUP_LIMIT */
    uint32_t router_top_groups;
    uint32_t group_score;
    uint32_t router_weight_on;
    uint32_t router_choice;
    uint32_t query_floor;                       /* 0 = none */
    uint32_t has_query_step;
    uint32_t router_by_token;
    uint32_t router_span;                       /* 0 = float router */
    uint32_t shared_ff;                         /* 0 = none */
    uint32_t shared_gate;
    uint32_t has_residual_multiplier;
    uint32_t has_clip;
    uint32_t sinks;
    uint32_t activation;
    uint32_t has_limit;
    uint32_t ffn_biases;
    uint32_t norm;
    uint32_t post_norms;
    uint32_t chunk;                             /* 0 = none */
    uint32_t draft;
    uint32_t head_gates;                        /* colibri_head_gates */
    uint32_t has_latent_eps;
    float score_scale;
    float eps;
    float latent_eps;
    float router_scale;
    float router_eps;
    float router_sum_min;
    float router_jitter;
    float query_step;
    float residual_multiplier;
    float clip_qkv;
    float swiglu_limit;
    uint64_t expert_run;
    uint32_t first_expert;                      /* of this layer, in EXPERT_SUMS */
    uint32_t tensor[COLIBRI_ROLE_ROOM];         /* index into TENSORS by role, COLIBRI_NO = none */
} colibri_description;

/* Whether the layer chooses its experts by numbers that are not their scores or logits. */
static inline int colibri_router_selects(const colibri_description *d)
{
    return d->router_span == 0u &&
           (d->router_bias == COLIBRI_ROUTER_BIAS_SCORE || d->router_bias == COLIBRI_ROUTER_BIAS_CHOICE ||
            d->router_groups != 0u || d->router_choice != 0u);
}

/* Where a walk over the layers is. Start with all zero. */
typedef struct colibri_cursor {
    uint32_t layer;
    uint32_t record;                            /* next record of LAYERS */
    uint32_t defaults;                          /* records that hold for every layer */
    uint32_t tensor;                            /* next record of TENSORS */
    uint32_t expert;                            /* next record of EXPERT_SUMS */
    uint64_t expert_end;                        /* end of the expert bytes placed so far */
    uint32_t index_top_k;                       /* of the last layer that chooses positions itself, 0 = none so far */
    uint32_t reserved;
} colibri_cursor;

static inline const colibri_view *colibri_view_of(const colibri_model *model)
{
    return (const colibri_view *)(const void *)model;
}

const colibri_section *colibri_section_at(const colibri_view *view, uint32_t index);
const colibri_record *colibri_records(const colibri_view *view, uint32_t section);
const colibri_tensor *colibri_tensor_at(const colibri_view *view, uint32_t index);
const colibri_expert_sum *colibri_expert_sum_at(const colibri_view *view, uint32_t index);
const colibri_rope *colibri_rope_at(const colibri_view *view, uint32_t index);
const uint64_t *colibri_rope_fractions(const colibri_view *view, const colibri_rope *rope);

/* CRC32C (and, unless sha is null, SHA-256) of header and tables with the self-referring fields as zero. */
uint32_t colibri_tables_sum(const uint8_t *blob, uint64_t tables_bytes, colibri_sha256 *sha);

/* view.c -> records.c, description.c: the parts of colibri_open */
int32_t colibri_read_model(colibri_view *view, colibri_detail *detail);
int32_t colibri_check_ropes(const colibri_view *view, colibri_detail *detail);
int32_t colibri_layer_begin(const colibri_view *view, colibri_cursor *cursor, colibri_detail *detail);
/* The next layer's description. Every record and tensor of the layer is looked at. */
int32_t colibri_layer_next(const colibri_view *view, colibri_cursor *cursor, colibri_description *out,
                           colibri_detail *detail);
/* After the last layer: nothing may be left over. */
int32_t colibri_layer_end(const colibri_view *view, const colibri_cursor *cursor, colibri_detail *detail);

/* shape a role must have in a layer (or the model: out null); 0 = the role has no place there */
typedef struct colibri_shape {
    uint32_t rows, columns, count, layout;
    uint32_t only_f32;
} colibri_shape;
int colibri_role_shape(const colibri_view *view, const colibri_description *layer, uint32_t role,
                       colibri_shape *shape);
/* Whether numbers of a table of routes are whole, ascending and below `experts`. */
int colibri_routes_are_experts(const float *number, uint32_t count, uint32_t experts);
/* Does a tile of a matrix keep its contract (finite, padding zero, q8 never -128)? 0, or the colibri_field that does
 * not. lanes: rows of the matrix it has. */
uint32_t colibri_tile_fault(const colibri_tensor *t, const uint8_t *tile, uint32_t lanes);
int32_t colibri_check_tensor(const colibri_view *view, uint32_t index, const colibri_shape *shape,
                             uint32_t section, colibri_detail *detail);

#endif
