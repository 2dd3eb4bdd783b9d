/*
 * colibri_format.h: the layout of a `.colibri` file, declared once. Python reads this header with cffi, so it
 * holds nothing but fixed-width structures and integer constants. Explained in docs/BLOB_FORMAT.md.
 *
 *   header | section table | table sections ... | data sections ...
 *   `--------------- tables_bytes -------------'
 *
 * Sections lie without gaps: each begins where the one before it ends, the last ends at file_bytes. What pads a
 * section to its successor's alignment is zero and belongs to it (bytes includes it, payload does not).
 */
#ifndef COLIBRI_FORMAT_H
#define COLIBRI_FORMAT_H

#include <stdint.h>

#include "colibri.h"                        /* colibri_kind, COLIBRI_TILE_ROWS, COLIBRI_GROUP */

enum colibri_format_constants {
    COLIBRI_FORMAT_MAGIC = 0x494C4F43,      /* "COLI" */
    COLIBRI_FORMAT_VERSION = 1,
    COLIBRI_HEADER_BYTES = 128,
    COLIBRI_SECTION_BYTES = 64,
    COLIBRI_RECORD_BYTES = 16,
    COLIBRI_TENSOR_BYTES = 96,
    COLIBRI_EXPERT_SUM_BYTES = 24,
    COLIBRI_ROPE_BYTES = 16,
    COLIBRI_TENSOR_ALIGN = 64,
    COLIBRI_EXPERT_ALIGN = 4096,
    COLIBRI_SECTION_LIMIT = 64
};

typedef struct colibri_blob_header {
    uint32_t magic;
    uint32_t version;
    uint32_t header_bytes;
    uint32_t section_count;
    uint64_t file_bytes;
    uint64_t tables_bytes;                  /* header, section table and all table sections */
    uint32_t tables_crc;                    /* CRC32C of the first tables_bytes; this, identity, identity_crc as 0 */
    uint32_t flags;                         /* 0 */
    uint8_t identity[32];                   /* SHA-256 of the same bytes */
    uint32_t identity_crc;                  /* CRC32C of identity; counts as zero in both sums above */
    uint8_t reserved[52];                   /* 0 */
} colibri_blob_header;

enum colibri_section_type {
    COLIBRI_SECTION_MODEL = 1,              /* table: colibri_record, layer = 0xFFFFFFFF */
    COLIBRI_SECTION_LAYERS = 2,             /* table: colibri_record, sorted by layer; see below */
    COLIBRI_SECTION_TENSORS = 3,            /* table: colibri_tensor */
    COLIBRI_SECTION_EXPERT_SUMS = 4,        /* table: colibri_expert_sum, MoE layers in order, expert 0 first */
    COLIBRI_SECTION_ROPE = 5,               /* table: colibri_rope */
    COLIBRI_SECTION_ROPE_FRACTIONS = 6,     /* table: uint64, fractions of a turn per position */
    COLIBRI_SECTION_RESIDENT = 7,           /* data: tensors every token needs, each 64-byte aligned */
    COLIBRI_SECTION_EXPERTS = 8,            /* data: one 4096-byte aligned run per expert (gate, up, down) */
    COLIBRI_SECTION_TOKENIZER = 9,          /* data: core/text/tokenizer_format.h; count = its number */
    COLIBRI_SECTION_CHAT_TEMPLATE = 10,     /* data: UTF-8, Jinja */
    COLIBRI_SECTION_GENERATION = 11,        /* data: colibri_record with keys of colibri_generation_key */
    COLIBRI_SECTION_PROVENANCE = 12,        /* data: UTF-8 JSON: source, revision, options, tool version */
    COLIBRI_SECTION_ROUTER_TABLES = 13,     /* reserved */
    COLIBRI_SECTION_TOKEN_ROUTES = 14,      /* reserved: routing by token id */
    COLIBRI_SECTION_EXPERT_MAPS = 15,       /* reserved: physical to logical experts */
    COLIBRI_SECTION_DRAFT = 16              /* reserved: draft (MTP) layers */
};

enum colibri_section_flags {
    COLIBRI_SECTION_CRITICAL = 1,           /* a reader that does not know the type must refuse the file */
    COLIBRI_SECTION_TABLE = 2,              /* inside tables_bytes; vouched for by the header, sums are zero */
    COLIBRI_SECTION_BY_EXPERT = 4           /* vouched for run by run in EXPERT_SUMS, sums are zero */
};

typedef struct colibri_section {
    uint32_t type;
    uint32_t flags;
    uint64_t offset;
    uint64_t bytes;                         /* with the padding to the next section */
    uint64_t payload;                       /* without it; count * record_bytes where records are counted */
    uint32_t count;
    uint32_t record_bytes;                  /* 0 = not made of records */
    uint32_t crc;                           /* CRC32C of bytes */
    uint32_t reserved;
    uint8_t digest[16];                     /* first half of the SHA-256 of bytes */
} colibri_section;

/* A typed value. LAYERS holds first the records with layer = COLIBRI_EVERY_LAYER (defaults), then those of layer
 * 0, 1, ...; a layer's own record wins. Keys ascend within one layer. */
enum { COLIBRI_EVERY_LAYER = -1 };          /* 0xFFFFFFFF in the file */

enum colibri_record_type {
    COLIBRI_TYPE_U32 = 1,
    COLIBRI_TYPE_F32 = 2,                   /* bits in the low half */
    COLIBRI_TYPE_U64 = 3
};

enum colibri_record_flags {
    COLIBRI_RECORD_MUST = 1                 /* must be understood: an unknown key refuses the file */
};

typedef struct colibri_record {
    uint32_t layer;
    uint16_t key;
    uint8_t type;
    uint8_t flags;
    uint64_t value;
} colibri_record;

enum colibri_model_key {
    COLIBRI_MODEL_VOCAB = 1,                /* u32 */
    COLIBRI_MODEL_HIDDEN = 2,               /* u32 */
    COLIBRI_MODEL_LAYERS = 3,               /* u32 */
    COLIBRI_MODEL_TRAINED_CONTEXT = 4,      /* u32 */
    COLIBRI_MODEL_FINAL_EPS = 5,            /* f32 */
    COLIBRI_MODEL_EMBED_MULTIPLIER = 6,     /* f32, absent = none */
    COLIBRI_MODEL_LOGIT_MULTIPLIER = 7,     /* f32, absent = none */
    COLIBRI_MODEL_LOGIT_SOFTCAP = 8,        /* f32 c > 0: a logit becomes c * tanh(logit / c), absent = none */
    COLIBRI_MODEL_FINAL_NORM = 9,           /* u32 colibri_norm, absent = RMS */
    COLIBRI_MODEL_HEAD_BIAS = 10,           /* u32 1 = the head has a bias */
    COLIBRI_MODEL_DRAFT_LAYERS = 11         /* u32 layers behind the last that guess further tokens, absent = none */
};

enum colibri_layer_key {
    /* attention */
    COLIBRI_LAYER_ATTENTION = 1,            /* u32 colibri_attention */
    COLIBRI_LAYER_HEADS = 2,                /* u32 */
    COLIBRI_LAYER_KV_HEADS = 3,             /* u32, divides heads */
    COLIBRI_LAYER_HEAD_DIM = 4,             /* u32 */
    COLIBRI_LAYER_ROPE = 5,                 /* u32 index into ROPE; absent = no rotation */
    COLIBRI_LAYER_WINDOW = 6,               /* u32 positions seen, the row's own included; absent = all */
    COLIBRI_LAYER_SCORE_SCALE = 7,          /* f32: score = dot * scale */
    COLIBRI_LAYER_QK_NORM = 8,              /* u32 colibri_qk_norm */
    COLIBRI_LAYER_NORM_EPS = 9,             /* f32, attention, FFN and q/k norms */
    COLIBRI_LAYER_BIASES = 10,              /* u32 bits of colibri_bias */
    /* feed-forward */
    COLIBRI_LAYER_FFN = 20,                 /* u32 colibri_ffn */
    COLIBRI_LAYER_ACTIVATION = 21,          /* u32 colibri_activation_kind */
    COLIBRI_LAYER_FF = 22,                  /* u32 columns of the gated product; of one expert in a MoE layer */
    COLIBRI_LAYER_EXPERTS = 23,             /* u32 */
    COLIBRI_LAYER_TOP_K = 24,               /* u32, 1 .. experts */
    COLIBRI_LAYER_ROUTER_SCORE = 25,        /* u32 colibri_router_score */
    COLIBRI_LAYER_ROUTER_RENORMALISE = 26,  /* u32 colibri_renormalise */
    COLIBRI_LAYER_ROUTER_SCALE = 27,        /* f32, absent = 1 */
    COLIBRI_LAYER_ROUTER_EPS = 28,          /* f32 added to the sum when renormalising, absent = 0 */
    COLIBRI_LAYER_ROUTER_BIAS = 29,         /* u32 colibri_router_bias, absent = none */
    COLIBRI_LAYER_ROUTER_GROUPS = 30,       /* u32 equal groups of neighbours, divides experts; absent = none */
    COLIBRI_LAYER_ROUTER_TOP_GROUPS = 31,   /* u32 groups that stay in the choice, 1 .. groups */
    COLIBRI_LAYER_ROUTER_WEIGHT_ON = 32,    /* u32 colibri_router_weight_on, absent = output */
    COLIBRI_LAYER_SHARED_FF = 33,           /* u32 columns of the shared expert, absent = none */
    COLIBRI_LAYER_SHARED_GATE = 34,         /* u32 1 = times sigmoid(shared_gate . x) */
    COLIBRI_LAYER_RESIDUAL_MULTIPLIER = 35, /* f32, absent = none */
    COLIBRI_LAYER_EXPERT_RUN = 36,          /* u64 bytes from one expert's run to the next */
    COLIBRI_LAYER_SINKS = 37,               /* u32 1 = one more score a head in max and sum, without a value */
    COLIBRI_LAYER_CLIP_QKV = 38,            /* f32 > 0: q, k and v are clamped to +- this before the rotation */
    COLIBRI_LAYER_SWIGLU_LIMIT = 39,        /* f32 > 0: the clamped activations' limit; only with them */
    /* router, continued */
    COLIBRI_LAYER_ROUTER_GROUP_SCORE = 40,  /* u32 colibri_group_score, there if groups are */
    COLIBRI_LAYER_ROUTER_SUM_MIN = 41,      /* f32 >= 0: what weights are divided by is at least this; absent = 0 */
    COLIBRI_LAYER_ROUTER_JITTER = 42,       /* f32 >= 0: distance of the sparse mixer, in shares of a logit */
    COLIBRI_LAYER_ROUTER_CHOICE = 43,       /* u32 colibri_router_choice, absent = by score */
    /* queries that grow with the position: q * (1 + step * ln(1 + (position + 1) / floor)), whole quotients */
    COLIBRI_LAYER_QUERY_FLOOR = 44,         /* u32 positions, absent = queries as they are */
    COLIBRI_LAYER_QUERY_STEP = 45,          /* f32 */
    COLIBRI_LAYER_ROUTER_SPAN = 46,         /* u32 1, 2, 4, 8 or 16: the integer router, and the widest distance of
                                               two logits that it tells apart; absent = float router */
    /* what few models have */
    COLIBRI_LAYER_FFN_BIASES = 50,          /* u32 bits of colibri_ffn_bias: routed experts, or the dense FFN */
    COLIBRI_LAYER_NORM = 51,                /* u32 colibri_norm before attention and FFN, absent = RMS */
    COLIBRI_LAYER_POST_NORMS = 52,          /* u32 bits of colibri_post_norm: RMS norms of what is added to x */
    COLIBRI_LAYER_CHUNK = 53,               /* u32 positions: a row sees its own stretch of so many; not with WINDOW */
    /* latent attention (MLA): KV_HEADS is 1, HEAD_DIM is LATENT + ROPE_DIM, the width of a cached key */
    COLIBRI_LAYER_LATENT = 60,              /* u32 width of the latent, a multiple of 16 */
    COLIBRI_LAYER_NOPE_DIM = 61,            /* u32 dimensions of a query head without rotation */
    COLIBRI_LAYER_ROPE_DIM = 62,            /* u32 dimensions of a query head, and of the key, behind them */
    COLIBRI_LAYER_V_DIM = 63,               /* u32 outputs of a head, a multiple of 16 */
    COLIBRI_LAYER_Q_LATENT = 64,            /* u32 width of the latent of the queries, absent = none */
    COLIBRI_LAYER_LATENT_EPS = 65,          /* f32 of the norms of both latents, absent = NORM_EPS */
    /* sparse latent attention (DSA): a row looks at INDEX_TOP_K positions, without INDEX_HEADS at a former layer's */
    COLIBRI_LAYER_INDEX_HEADS = 66,         /* u32, absent = the choice of the nearest layer before that has some */
    COLIBRI_LAYER_INDEX_DIM = 67,           /* u32 width of an index head */
    COLIBRI_LAYER_INDEX_TOP_K = 68,         /* u32, absent = all positions */
    COLIBRI_LAYER_INDEX_ROPE = 69,          /* u32 index into ROPE, of index queries and key; absent = no rotation */
    /* a layer behind the model's last (MODEL_DRAFT_LAYERS): nothing of it is read by a run, its weights lie last */
    COLIBRI_LAYER_DRAFT = 70,               /* u32 1, there in draft layers and in no other */
    /* routing by token id: a row's experts are those of its token in TOKEN_ROUTES, their weights of the scores as ever;
     * not with what else has a say in the choice (groups, a bias on the score or choice, the sparse mixer) */
    COLIBRI_LAYER_ROUTER_BY_TOKEN = 71,     /* u32 1 = by token, absent = by score */
    COLIBRI_LAYER_HEAD_GATES = 72           /* u32 colibri_head_gates, absent = none; of heads that attend (GQA) */
};

/* CONV: one head of HEAD_DIM channels, WINDOW taps a channel instead of scores; K gates what goes in, Q the sums */
enum colibri_attention { COLIBRI_ATTENTION_GQA = 1, COLIBRI_ATTENTION_MLA = 2, COLIBRI_ATTENTION_CONV = 3 };
/* before the rotation: per head (weights of head_dim), or over all heads at once (weights of the whole width) */
/* after it: per head, with weights of head_dim or (L2) without any */
enum colibri_qk_norm {
    COLIBRI_QK_NORM_NONE = 0,
    COLIBRI_QK_NORM_HEAD = 1,
    COLIBRI_QK_NORM_WIDTH = 2,
    COLIBRI_QK_NORM_HEAD_AFTER_ROPE = 3,
    COLIBRI_QK_NORM_L2_AFTER_ROPE = 4
};
/* (x - mean) / deviation * w (+ bias), or x / root mean square * w */
enum colibri_norm { COLIBRI_NORM_RMS = 0, COLIBRI_NORM_LAYER = 1, COLIBRI_NORM_LAYER_BIAS = 2 };
enum colibri_post_norm { COLIBRI_POST_NORM_ATTENTION = 1, COLIBRI_POST_NORM_FFN = 2 };
enum colibri_bias { COLIBRI_BIAS_Q = 1, COLIBRI_BIAS_K = 2, COLIBRI_BIAS_V = 4, COLIBRI_BIAS_O = 8,
                    COLIBRI_BIAS_TAPS = 16 /* CONV only */ };
/* what was attended, times the sigmoid of HEAD_GATE's product with the attention norm: of one number a head, or of one
 * for every number of a head */
enum colibri_head_gates { COLIBRI_HEAD_GATES_NONE = 0, COLIBRI_HEAD_GATES_HEAD = 1, COLIBRI_HEAD_GATES_ELEMENT = 2 };
enum colibri_ffn { COLIBRI_FFN_DENSE = 1, COLIBRI_FFN_MOE = 2 };
enum colibri_ffn_bias { COLIBRI_FFN_BIAS_GATE = 1, COLIBRI_FFN_BIAS_UP = 2, COLIBRI_FFN_BIAS_DOWN = 4 };
enum colibri_router_score {
    COLIBRI_ROUTER_SOFTMAX = 1,
    COLIBRI_ROUTER_SIGMOID = 2,
    COLIBRI_ROUTER_SQRT_SOFTPLUS = 3,
    COLIBRI_ROUTER_LOGIT = 4,               /* the logit itself */
    COLIBRI_ROUTER_SPARSE_MIXER = 5         /* softmax over the experts near the chosen one: NUMERICS section 7 */
};
enum colibri_router_bias {
    COLIBRI_ROUTER_BIAS_NONE = 0,
    COLIBRI_ROUTER_BIAS_SCORE = 1,          /* the choice is by score + bias, weights are of the score */
    COLIBRI_ROUTER_BIAS_CHOICE = 2,         /* the choice is by logit + bias, weights are of the score */
    COLIBRI_ROUTER_BIAS_LOGIT = 3           /* logit + bias is the logit */
};
enum colibri_router_choice { COLIBRI_CHOICE_BY_SCORE = 0, COLIBRI_CHOICE_BY_LOGIT = 1 };  /* where no bias says it */
/* What a group's experts make of it; EACH: all groups stay, and each gives TOP_K / ROUTER_GROUPS of its experts. */
enum colibri_group_score { COLIBRI_GROUP_MAX = 1, COLIBRI_GROUP_TOP_TWO = 2, COLIBRI_GROUP_EACH = 3 };
enum colibri_renormalise {
    COLIBRI_RENORMALISE_NONE = 0,
    COLIBRI_RENORMALISE_SUM = 1,
    COLIBRI_RENORMALISE_SOFTMAX = 2,        /* softmax over the chosen scores */
    COLIBRI_RENORMALISE_ROOT = 3            /* divided by the root of the sum of squares */
};
enum colibri_router_weight_on { COLIBRI_ROUTER_ON_OUTPUT = 0, COLIBRI_ROUTER_ON_INPUT = 1 };

/* Matrices are tiles of 16 output rows (NUMERICS section 2) of a colibri_kind (colibri.h), vectors plain float32. */
enum colibri_layout_id { COLIBRI_LAYOUT_VECTOR = 0, COLIBRI_LAYOUT_TILES = 1 };

enum colibri_role {
    COLIBRI_ROLE_EMBED = 1,                 /* vocab x hidden */
    COLIBRI_ROLE_HEAD = 2,                  /* vocab x hidden */
    COLIBRI_ROLE_FINAL_NORM = 3,            /* vector hidden */
    COLIBRI_ROLE_ATTENTION_NORM = 10,       /* vector hidden */
    COLIBRI_ROLE_Q = 11,                    /* heads * head_dim x hidden */
    COLIBRI_ROLE_K = 12,
    COLIBRI_ROLE_V = 13,
    COLIBRI_ROLE_O = 14,                    /* hidden x heads * head_dim */
    COLIBRI_ROLE_Q_BIAS = 15,
    COLIBRI_ROLE_K_BIAS = 16,
    COLIBRI_ROLE_V_BIAS = 17,
    COLIBRI_ROLE_O_BIAS = 18,
    COLIBRI_ROLE_Q_NORM = 19,               /* vector head_dim, or heads * head_dim (QK_NORM_WIDTH) */
    COLIBRI_ROLE_K_NORM = 20,
    COLIBRI_ROLE_FFN_NORM = 30,             /* vector hidden */
    COLIBRI_ROLE_GATE = 31,                 /* dense: ff x hidden */
    COLIBRI_ROLE_UP = 32,
    COLIBRI_ROLE_DOWN = 33,                 /* hidden x ff */
    COLIBRI_ROLE_ROUTER = 34,               /* experts x hidden, f32 */
    COLIBRI_ROLE_EXPERT_GATE = 35,          /* count = experts, stride = expert run */
    COLIBRI_ROLE_EXPERT_UP = 36,
    COLIBRI_ROLE_EXPERT_DOWN = 37,
    COLIBRI_ROLE_SHARED_GATE = 38,          /* the shared expert's three matrices */
    COLIBRI_ROLE_SHARED_UP = 39,
    COLIBRI_ROLE_SHARED_DOWN = 40,
    COLIBRI_ROLE_SHARED_SWITCH = 41,        /* 1 x hidden, f32: the shared expert's gate */
    COLIBRI_ROLE_ROUTER_BIAS = 50,          /* vector experts */
    COLIBRI_ROLE_TAPS = 51,                 /* CONV: vector HEAD_DIM * WINDOW, a channel's taps, oldest first */
    COLIBRI_ROLE_TAPS_BIAS = 52,            /* vector HEAD_DIM */
    COLIBRI_ROLE_TOKEN_ROUTES = 56,         /* vector vocab * top_k: expert numbers, ascending within a token */
    COLIBRI_ROLE_FFN_GATE_BIAS = 60,        /* vector ff, of every expert one after the other */
    COLIBRI_ROLE_FFN_UP_BIAS = 61,
    COLIBRI_ROLE_FFN_DOWN_BIAS = 62,        /* vector hidden, likewise */
    COLIBRI_ROLE_SINKS = 63,                /* vector heads */
    COLIBRI_ROLE_ATTENTION_NORM_BIAS = 64,  /* vector hidden */
    COLIBRI_ROLE_FFN_NORM_BIAS = 65,
    COLIBRI_ROLE_FINAL_NORM_BIAS = 66,      /* the model's */
    COLIBRI_ROLE_HEAD_BIAS = 67,            /* the model's, vector vocab */
    COLIBRI_ROLE_POST_ATTENTION_NORM = 68,  /* vector hidden */
    COLIBRI_ROLE_POST_FFN_NORM = 69,
    /* latent attention: Q has heads * (NOPE_DIM + ROPE_DIM) rows and Q_LATENT (or hidden) columns, K makes latent and
     * rope key at once, Q_NORM and K_NORM are of the latents, Q_BIAS is of Q_A, there is no V; and these */
    COLIBRI_ROLE_Q_A = 70,                  /* Q_LATENT x hidden */
    COLIBRI_ROLE_K_UP = 71,                 /* heads * LATENT x NOPE_DIM: a head's key factor, transposed */
    COLIBRI_ROLE_V_UP = 72,                 /* heads * V_DIM x LATENT: a head's value factor */
    COLIBRI_ROLE_INDEX_Q = 73,              /* INDEX_HEADS * INDEX_DIM x Q_LATENT */
    COLIBRI_ROLE_INDEX_K = 74,              /* INDEX_DIM x hidden */
    COLIBRI_ROLE_INDEX_K_NORM = 75,         /* vector INDEX_DIM: of a norm that takes the mean off, */
    COLIBRI_ROLE_INDEX_K_SHIFT = 76,        /* and what it adds last */
    COLIBRI_ROLE_INDEX_WEIGHT = 77,         /* INDEX_HEADS x hidden, f32 */
    /* draft layers: x = JOIN [norm of the next token's embedding, norm of the row before]; the layer; its own norm */
    COLIBRI_ROLE_DRAFT_EMBED_NORM = 80,     /* vector hidden */
    COLIBRI_ROLE_DRAFT_HIDDEN_NORM = 81,    /* vector hidden */
    COLIBRI_ROLE_DRAFT_JOIN = 82,           /* hidden x 2 hidden */
    COLIBRI_ROLE_DRAFT_FINAL_NORM = 83,     /* vector hidden, before the model's head */
    COLIBRI_ROLE_HEAD_GATE = 90             /* heads x hidden, or heads * head_dim x hidden (HEAD_GATES) */
};

typedef struct colibri_tensor {
    uint16_t role;
    uint16_t second_role;                   /* 0, or HEAD on a tied embedding */
    uint16_t kind;
    uint16_t layout;
    uint32_t layer;                         /* 0xFFFFFFFF: the model's */
    uint32_t count;                         /* 1, or experts */
    uint32_t rows;                          /* of one matrix; 1 for a vector */
    uint32_t columns;
    uint32_t group;                         /* 32 for q4 and q8, else 0 */
    uint32_t flags;                         /* 0 */
    uint64_t offset;                        /* in the file, 64-byte aligned */
    uint64_t bytes;                         /* of one matrix */
    uint64_t stride;                        /* expert matrices: to the next expert, the run; else 0 */
    uint32_t crc;                           /* CRC32C of bytes; 0 where experts vouch for it */
    uint32_t reserved0;
    uint8_t digest[16];
    uint8_t reserved[16];
} colibri_tensor;

typedef struct colibri_expert_sum {
    uint32_t crc;                           /* CRC32C of the run: gate, up, down, gaps and padding */
    uint32_t flags;                         /* 0 */
    uint8_t digest[16];
} colibri_expert_sum;

typedef struct colibri_rope {
    uint32_t first;                         /* index into ROPE_FRACTIONS */
    uint32_t pairs;                         /* rotated dimensions / 2, leading in the head */
    uint32_t interleaved;                   /* 0: pairs (j, j + pairs); 1: pairs (2j, 2j + 1) */
    uint32_t amplitude;                     /* float32 bits, times cosine and sine */
} colibri_rope;

enum colibri_generation_key {
    COLIBRI_GENERATION_END = 1,             /* u32 token id; may occur several times */
    COLIBRI_GENERATION_TEMPERATURE = 2,     /* f32 */
    COLIBRI_GENERATION_TOP_K = 3,           /* u32 */
    COLIBRI_GENERATION_TOP_P = 4,           /* f32 */
    COLIBRI_GENERATION_MIN_P = 5,           /* f32 */
    COLIBRI_GENERATION_REPETITION = 6,      /* f32 */
    COLIBRI_GENERATION_BOS = 7              /* u32 token id */
};

#endif
