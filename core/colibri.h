/*
 * colibri.h: the only public header of Colibri, a freestanding C99 inference core for
 * Mixture-of-Experts language models.
 *
 * Conventions (stated once, true for every call)
 *  - Nothing is allocated. The caller owns every structure and gives one pool; its size comes from
 *    colibri_plan() and is the same number on every target.
 *  - Calls return a status: 0 or positive is good news (COLIBRI_OK, _DONE, _AGAIN, _WAIT), negative is an
 *    error. After an error the outputs are untouched, nothing outside the pool was written, and a session
 *    can be reset. Calls that read a blob or limits fill a colibri_detail with numbers, never strings.
 *  - Long calls do a bounded piece of work and return COLIBRI_AGAIN; waiting for bytes is COLIBRI_WAIT.
 *    Call again with the same arguments.
 *  - Pointers are not checked beyond null. Structures given by the caller begin with struct_bytes, set to
 *    their sizeof; reserved fields must be zero.
 *  - Layouts are the same on every target: fixed-width fields, and every pointer fills eight bytes
 *    (COLIBRI_POINTER pads it where pointers are shorter). Little-endian only.
 *  - One thread drives a session; its workers call only colibri_work(). Different sessions share nothing.
 *  - Entries save the floating-point control register, use round-to-nearest with subnormals kept, and
 *    restore it before returning; hooks run with the host's own value.
 */
#ifndef COLIBRI_H
#define COLIBRI_H

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#ifndef COLIBRI_API
#if defined(__GNUC__)
#define COLIBRI_API __attribute__((visibility("default")))
#else
#define COLIBRI_API
#endif
#endif

#if UINTPTR_MAX == 0xFFFFFFFFu
#define COLIBRI_POINTER(type, name) type name; uint32_t name##_high
#else
#define COLIBRI_POINTER(type, name) type name
#endif

/* ------------------------------------------------------------------------------------------ versions */

#define COLIBRI_VERSION_MAJOR 0
#define COLIBRI_VERSION_MINOR 1
#define COLIBRI_VERSION_PATCH 0
#define COLIBRI_ABI_VERSION 1

/* ------------------------------------------------------------------------------------------- statuses */

enum colibri_status_code {
    COLIBRI_OK = 0,
    COLIBRI_DONE = 1,                   /* the whole piece of work is finished */
    COLIBRI_AGAIN = 2,                  /* the budget is spent: call again */
    COLIBRI_WAIT = 3,                   /* bytes are not there yet: finish the fetch, then call again */
    COLIBRI_ERROR_ARGUMENT = -1,        /* null pointer, wrong struct_bytes, reserved field not zero, bad value */
    COLIBRI_ERROR_MAGIC = -2,           /* not a Colibri blob */
    COLIBRI_ERROR_VERSION = -3,         /* a format version this build does not read */
    COLIBRI_ERROR_TRUNCATED = -4,       /* fewer bytes than the header or a table needs */
    COLIBRI_ERROR_CORRUPT = -5,         /* a checksum does not match */
    COLIBRI_ERROR_FORMAT = -6,          /* a field is outside its range or contradicts another */
    COLIBRI_ERROR_UNSUPPORTED = -7,     /* a known field with a value this build cannot run */
    COLIBRI_ERROR_UNKNOWN_SECTION = -8, /* a critical section of unknown type */
    COLIBRI_ERROR_UNKNOWN_KEY = -9,     /* a must-understand record with an unknown key */
    COLIBRI_ERROR_ALIGN = -10,          /* blob or pool not aligned (64 bytes) */
    COLIBRI_ERROR_POOL_SMALL = -11,     /* fewer bytes than the plan says */
    COLIBRI_ERROR_LIMIT = -12,          /* more than the limits given to the plan allow */
    COLIBRI_ERROR_BUSY = -13,           /* the tape is not at its start */
    COLIBRI_ERROR_CONTEXT_FULL = -14,   /* the sequence would exceed the planned context */
    COLIBRI_ERROR_TOKEN = -15,          /* a token id beyond the vocabulary */
    COLIBRI_ERROR_NOT_FINITE = -16,     /* an infinity or NaN in the activations */
    COLIBRI_ERROR_FETCH = -17,          /* the host reported that a fetch failed for good */
    COLIBRI_ERROR_REWIND = -18,         /* further back than the planned rewind depth */
    COLIBRI_ERROR_FLOAT = -19,          /* this build or host does not compute as the bits require */
    COLIBRI_ERROR_STOPPED = -20,        /* the session was stopped */
    COLIBRI_ERROR_TEXT_LONG = -21,      /* text longer than the planned text_bytes */
    COLIBRI_ERROR_TEXT = -22,           /* no tokenizer in the blob, or one that contradicts itself */
    COLIBRI_ERROR_SLOTS = -23,          /* fewer expert slots than the floor */
    COLIBRI_ERROR_ADDRESS = -24,        /* the bytes lie beyond this target's address space */
    COLIBRI_ERROR_IDENTITY = -25,       /* saved state of another model */
    COLIBRI_ERROR_LEFT_OUT = -26,       /* the feature was left out of this build */
    COLIBRI_ERROR_CONTENT = -27,        /* a tensor's content breaks its contract (scale, padding, range) */
    COLIBRI_ERROR_OVERFLOW = -28        /* a size does not fit in 64 bits */
};

/* What a negative status is about. Numbers only: `field` is one of colibri_field, `section` a section type of
 * the blob (0 = header or not a blob matter), `index` a layer, record, tensor or expert number. */
typedef struct colibri_detail {
    int32_t status;
    uint32_t section;
    uint32_t field;
    uint32_t index;
    uint64_t offset;                    /* byte offset in the blob, 0 if none */
    uint64_t expected;
    uint64_t found;
} colibri_detail;

enum colibri_field {
    COLIBRI_FIELD_NONE = 0,
    COLIBRI_FIELD_MAGIC = 1, COLIBRI_FIELD_VERSION = 2, COLIBRI_FIELD_FILE_BYTES = 3,
    COLIBRI_FIELD_TABLES_BYTES = 4, COLIBRI_FIELD_CRC = 5, COLIBRI_FIELD_IDENTITY = 6,
    COLIBRI_FIELD_SECTION_COUNT = 7, COLIBRI_FIELD_SECTION_TYPE = 8, COLIBRI_FIELD_OFFSET = 9,
    COLIBRI_FIELD_BYTES = 10, COLIBRI_FIELD_COUNT = 11, COLIBRI_FIELD_RECORD_BYTES = 12,
    COLIBRI_FIELD_RESERVED = 13, COLIBRI_FIELD_KEY = 14, COLIBRI_FIELD_TYPE = 15, COLIBRI_FIELD_VALUE = 16,
    COLIBRI_FIELD_LAYER = 17, COLIBRI_FIELD_ROLE = 18, COLIBRI_FIELD_KIND = 19, COLIBRI_FIELD_LAYOUT = 20,
    COLIBRI_FIELD_GROUP = 21, COLIBRI_FIELD_ROWS = 22, COLIBRI_FIELD_COLUMNS = 23, COLIBRI_FIELD_STRIDE = 24,
    COLIBRI_FIELD_DIGEST = 25, COLIBRI_FIELD_SCALE = 26, COLIBRI_FIELD_PADDING = 27,
    COLIBRI_FIELD_WEIGHT = 28, COLIBRI_FIELD_ALIGN = 29, COLIBRI_FIELD_HEADER_BYTES = 30,
    COLIBRI_FIELD_FLAGS = 31, COLIBRI_FIELD_MISSING = 32, COLIBRI_FIELD_DUPLICATE = 33,
    COLIBRI_FIELD_STRUCT_BYTES = 40, COLIBRI_FIELD_CONTEXT = 41, COLIBRI_FIELD_BATCH = 42,
    COLIBRI_FIELD_SEQUENCES = 43, COLIBRI_FIELD_WORKERS = 44, COLIBRI_FIELD_SLOTS = 45,
    COLIBRI_FIELD_LOGIT_ROWS = 46, COLIBRI_FIELD_TEXT_BYTES = 47, COLIBRI_FIELD_REWIND = 48,
    COLIBRI_FIELD_SWAPS = 49, COLIBRI_FIELD_KV_KIND = 50, COLIBRI_FIELD_POOL_BYTES = 51,
    COLIBRI_FIELD_POSITION = 52, COLIBRI_FIELD_TOKEN = 53, COLIBRI_FIELD_SEQUENCE = 54,
    COLIBRI_FIELD_PROBE = 55, COLIBRI_FIELD_HOOK = 56, COLIBRI_FIELD_KERNEL = 57, COLIBRI_FIELD_POLICY = 58,
    COLIBRI_FIELD_TOP_K = 59, COLIBRI_FIELD_SKIP = 60
};

/* ------------------------------------------------------------------------------------------ the model */

/* A view of a blob in place; written by colibri_open(), read by everything else. Its content is not for
 * callers; it may be copied. */
typedef struct colibri_model {
    uint64_t opaque[64];
} colibri_model;

/* Bind a blob in place and check header and tables: O(layers), whatever the file's size.
 *  blob             first byte, 64-byte aligned; must stay where it is while the model is used
 *  addressable      bytes readable at `blob`, at least header and tables
 *  file_bytes       bytes of the whole file; addressable < file_bytes means the rest comes through fetch
 *  detail           may be null */
COLIBRI_API int32_t colibri_open(colibri_model *model, const void *blob, uint64_t addressable,
                                 uint64_t file_bytes, colibri_detail *detail);

typedef struct colibri_info {
    uint32_t struct_bytes;
    uint32_t format_version;
    uint32_t vocab;                     /* rows of the logits, without padding */
    uint32_t hidden;                    /* columns of an activation row */
    uint32_t layers;
    uint32_t experts;                   /* routed experts of the layer that has most; 0 = dense model */
    uint32_t top_k;                     /* largest over the layers */
    uint32_t trained_context;           /* positions the checkpoint was made for; 0 = not said */
    uint64_t file_bytes;
    uint64_t tables_bytes;
    uint64_t resident_bytes;            /* weights needed for every token */
    uint64_t expert_bytes;              /* all routed experts */
    uint64_t expert_run_bytes;          /* the largest single expert */
    uint64_t expert_count;              /* routed experts over all layers */
    uint64_t parameters;                /* weights, without padding */
    uint64_t active_parameters;         /* weights that take part in one token */
    uint64_t tokenizer_offset;          /* 0 = none */
    uint64_t tokenizer_bytes;
    uint8_t identity[32];               /* SHA-256 of header and tables: vouches for every byte */
} colibri_info;

COLIBRI_API int32_t colibri_model_info(const colibri_model *model, colibri_info *info);

/* The token ids that end a text, in the order of the file: at most `capacity` are written, *count says how many
 * there are. ADDRESS: the section with the generation defaults is not addressable. */
COLIBRI_API int32_t colibri_end_tokens(const colibri_model *model, uint32_t *ids, uint32_t capacity, uint32_t *count);

/* Resumable checksum walk. level 1: header and tables again; level 2: every section and every expert (CRC32C and
 * SHA-256), then the content of every weight tile (scales finite, padding zero, q8 never -128). Set state to
 * all zero before the first call. Returns DONE, AGAIN, or the first problem with its detail; calling again
 * after a problem goes on behind it, so that all of them can be listed. */
typedef struct colibri_check_state {
    uint64_t opaque[32];
} colibri_check_state;

COLIBRI_API int32_t colibri_check(const colibri_model *model, colibri_check_state *state, uint32_t level,
                                  uint64_t budget_bytes, colibri_detail *detail);

/* ------------------------------------------------------------------------------------------- the plan */

enum colibri_kv_kind {
    COLIBRI_KV_F32 = 0,
    COLIBRI_KV_F16 = 1,
    COLIBRI_KV_Q8 = 2
};

/* Instruction-set levels of the kernels. AUTO: the best one that the flags this library was compiled with guarantee.
 * The core never asks the processor: whoever names a level knows that the processor has it (targets/ shows how). */
enum colibri_kernel {
    COLIBRI_KERNEL_AUTO = 0,
    COLIBRI_KERNEL_PORTABLE = 1,        /* plain C, every target */
    COLIBRI_KERNEL_AVX2 = 2,            /* x86-64: AVX2, F16C */
    COLIBRI_KERNEL_AVX_VNNI = 3,        /* and the 256-bit integer dot */
    COLIBRI_KERNEL_AVX512 = 4,          /* AVX-512 F, BW, DQ, VL, VNNI */
    COLIBRI_KERNEL_NEON = 5,            /* ARM64 */
    COLIBRI_KERNEL_DOTPROD = 6,         /* and the integer dot of ARMv8.2 */
    COLIBRI_KERNEL_SIMD128 = 7,         /* WebAssembly */
    COLIBRI_KERNEL_RELAXED = 8          /* and the relaxed integer dot */
};

/* The levels compiled into this library: bit 1 << level. */
COLIBRI_API uint32_t colibri_kernels(void);

/* Which expert gives up its slot. All of them keep misses from rising when slots are added; none changes a bit of any
 * answer. */
enum colibri_policy {
    COLIBRI_POLICY_ADAPTIVE = 0,        /* the least used or the longest unused, as would have hit more often lately */
    COLIBRI_POLICY_LRU = 1,             /* the least recently used */
    COLIBRI_POLICY_LFU = 2              /* the least used; uses of long ago count less */
};

enum colibri_limit_flags {
    COLIBRI_LIMIT_RESIDENT_COPY = 1,    /* bring the resident weights into the pool through fetch */
    COLIBRI_LIMIT_STREAM_EXPERTS = 2,   /* experts come on demand into `slots` slots through fetch */
    COLIBRI_LIMIT_LOOK_AHEAD = 4        /* and what the next layer may need is asked for while this one works, into
                                           slots beside those, as many as the largest top_k; changes no answer */
};

typedef struct colibri_limits {
    uint32_t struct_bytes;
    uint32_t flags;
    uint32_t context;                   /* positions per sequence, >= 1 */
    uint32_t batch;                     /* rows of one feed, >= 1 */
    uint32_t sequences;                 /* >= 1 */
    uint32_t workers;                   /* threads that may run units at once, >= 1 */
    uint32_t slots;                     /* expert slots over all layers when experts are streamed, else 0 */
    uint32_t logit_rows;                /* rows of one feed that may want logits, 1 .. batch */
    uint32_t text_bytes;                /* longest text given to colibri_encode, 0 = no tokenizer */
    uint32_t rewind;                    /* positions a sequence may be shortened by (matters to windows) */
    uint32_t swaps;                     /* slots for experts in others' places, see colibri_swap_expert */
    uint32_t kv_kind;                   /* colibri_kv_kind */
    uint32_t kernel;                    /* colibri_kernel; changes neither the plan nor a bit of any answer */
    uint32_t policy;                    /* colibri_policy; without slots it changes nothing */
    /* The two that change answers, off by default: whoever sets one says so with every answer. */
    uint32_t top_k;                     /* experts of a row at most; 0 = the model's */
    float skip_below;                   /* 0 .. 1: a row's experts of a lower weight are left out, but for its best */
    uint32_t reserved[3];
} colibri_limits;

enum colibri_region {
    COLIBRI_REGION_SESSION = 0,         /* session state and layer descriptions */
    COLIBRI_REGION_TAPE = 1,            /* the op tape */
    COLIBRI_REGION_KV = 2,              /* keys and values of all sequences */
    COLIBRI_REGION_ACTIVATIONS = 3,     /* residual, norm outputs, projections, gated products */
    COLIBRI_REGION_SCORES = 4,          /* attention scores and accumulators, per worker */
    COLIBRI_REGION_ROUTING = 5,         /* router logits, choices, pass lists */
    COLIBRI_REGION_LOGITS = 6,
    COLIBRI_REGION_RESIDENT = 7,        /* copy of the resident weights where they are not addressable */
    COLIBRI_REGION_SLOTS = 8,           /* expert slots and their table; the slots of swapped experts */
    COLIBRI_REGION_TEXT = 9,            /* tokenizer and sampler scratch */
    COLIBRI_REGION_COUNT = 10,
    COLIBRI_REGION_ROOM = 16            /* array size: room for later regions */
};

typedef struct colibri_plan_result {
    uint32_t struct_bytes;
    uint32_t align;                     /* of the pool's first byte */
    uint64_t pool_bytes;                /* exactly this many work, one fewer is refused */
    uint64_t region_offset[COLIBRI_REGION_ROOM];
    uint64_t region_bytes[COLIBRI_REGION_ROOM];
    uint64_t largest_unit_macs;         /* multiply-adds of the largest indivisible piece of work */
    uint64_t kv_bytes_per_token;        /* one position of one sequence, all layers */
    uint64_t resident_bytes;
    uint64_t expert_bytes;
    uint32_t slots;
    uint32_t slots_floor;               /* fewest slots that work */
    uint32_t ops;                       /* length of the tape */
    uint32_t reserved;
} colibri_plan_result;

COLIBRI_API int32_t colibri_plan(const colibri_model *model, const colibri_limits *limits,
                                 colibri_plan_result *plan, colibri_detail *detail);

/* ------------------------------------------------------------------------------------------ the hooks */

typedef struct colibri_session colibri_session;

typedef struct colibri_fetch_request {
    uint64_t offset;                    /* in the file */
    uint64_t bytes;
    uint32_t layer;                     /* 0xFFFFFFFF: resident weights */
    uint32_t expert;                    /* 0xFFFFFFFF: resident weights */
    uint32_t ticket;                    /* names the request in fetched() */
    uint32_t hint;                      /* 1: asked for ahead, and never again if it is refused or fails */
    COLIBRI_POINTER(void *, destination);
} colibri_fetch_request;

/* fetch: begin bringing bytes to `destination`. COLIBRI_OK: started; COLIBRI_WAIT: cannot be taken now, will be
 * asked again; negative: failed for good. fetched: COLIBRI_DONE when the bytes are there, COLIBRI_WAIT while they
 * are not, negative when it failed. The core then checks the CRC32C before any byte is used.
 * parallel: run units 0 .. count-1 by calling colibri_work(session, worker, first, n) on ranges that
 * cover each unit once, from any threads with distinct worker numbers below limits.workers; return when all are
 * done.
 * clock: nanoseconds from any start, never backwards; for colibri_profile.
 * All hooks are optional; user is handed back unchanged. */
typedef int32_t (*colibri_fetch_hook)(void *user, const colibri_fetch_request *request);
typedef int32_t (*colibri_fetched_hook)(void *user, uint32_t ticket);
typedef void (*colibri_parallel_hook)(void *user, colibri_session *session, uint32_t count);
typedef uint64_t (*colibri_clock_hook)(void *user);

typedef struct colibri_hooks {
    uint32_t struct_bytes;
    uint32_t flags;                     /* 0 */
    COLIBRI_POINTER(void *, user);
    COLIBRI_POINTER(colibri_fetch_hook, fetch);
    COLIBRI_POINTER(colibri_fetched_hook, fetched);
    COLIBRI_POINTER(colibri_parallel_hook, parallel);
    COLIBRI_POINTER(colibri_clock_hook, clock);
    uint64_t reserved[4];
} colibri_hooks;

/* The fastest of the given levels (bit 1 << level, of those the processor has) that are compiled in and answer known
 * vectors rightly: by short products timed with the clock, or without one the highest. A millisecond or so; needs about
 * 4 KB of stack. The answer is for colibri_limits.kernel and changes no bit. */
COLIBRI_API uint32_t colibri_fastest_kernel(uint32_t levels, colibri_clock_hook clock, void *user);

/* ---------------------------------------------------------------------------------------- the session */

/* Carve the pool, build the tape, bring in the resident part if limits.flags say so. Resumable: OK/DONE means
 * ready, WAIT and AGAIN mean call again with the same arguments. `pool` is 64-byte aligned; pool_bytes at least
 * the plan's. The session lives at the pool's first byte: *session = pool. hooks may be null.
 * *session is null at the first call: it alone tells a call again from a start in a pool that was used before. */
COLIBRI_API int32_t colibri_start(const colibri_model *model, const colibri_limits *limits,
                                  const colibri_hooks *hooks, void *pool, uint64_t pool_bytes,
                                  colibri_session **session, colibri_detail *detail);

#define COLIBRI_NEXT_POSITION 0xFFFFFFFFu
#define COLIBRI_ALL_SEQUENCES 0xFFFFFFFFu
#define COLIBRI_UNLIMITED 0xFFFFFFFFu

typedef struct colibri_row {
    uint32_t sequence;                  /* below limits.sequences */
    uint32_t position;                  /* COLIBRI_NEXT_POSITION, or the sequence's present length */
    uint32_t token;
    uint32_t want_logits;               /* 0 or 1 */
} colibri_row;

/* Queue rows (tape must be at its start). Nothing is taken unless all rows are. */
COLIBRI_API int32_t colibri_feed(colibri_session *session, const colibri_row *rows, uint32_t count);

/* Run up to `budget` units (COLIBRI_UNLIMITED: to the end). DONE: the rows are in the cache and their logits
 * are ready; AGAIN; WAIT; or an error, after which the affected rows are not part of their sequences. */
COLIBRI_API int32_t colibri_advance(colibri_session *session, uint32_t budget);

/* A worker's share of the units announced by the parallel hook. */
COLIBRI_API void colibri_work(colibri_session *session, uint32_t worker, uint32_t first, uint32_t count);

/* Logits of the index-th row of the last feed that wanted them: colibri_info.vocab floats inside the pool,
 * valid until the next feed, rewind or reset; null if there are none. */
COLIBRI_API const float *colibri_logits(const colibri_session *session, uint32_t index);

/* Positions of a sequence that are in the cache. */
COLIBRI_API uint32_t colibri_length(const colibri_session *session, uint32_t sequence);

/* The experts the router chose for the index-th row of the last feed in one layer, ascending, with their
 * weights (0: left out by limits.skip_below); returns how many were written (0: dense layer or nothing run). */
COLIBRI_API uint32_t colibri_routing(const colibri_session *session, uint32_t layer, uint32_t index,
                                     uint32_t *experts, float *weights, uint32_t capacity);

/* Of the same row and layer: the widest distance of logits that the integer router made a weight of, in units of
 * 2^-16 (NUMERICS section 7: beyond the layer's span all count the same); 0 of a float router. */
COLIBRI_API uint32_t colibri_router_spread(const colibri_session *session, uint32_t layer, uint32_t index);

/* Which expert the last FETCH or CORRUPT of colibri_advance was about, and where it begins in the file; ARGUMENT if
 * there was none. */
COLIBRI_API int32_t colibri_lost(const colibri_session *session, uint32_t *layer, uint32_t *expert, uint64_t *offset);

/* Pin an expert (1), or end that (0): once it is in a slot, at its first use, it is never given up. LIMIT if fewer
 * slots than the largest top_k of a layer would be left for the others; LEFT_OUT where experts are not streamed.
 * Changes no bit of any answer. The tape must be at its start. */
COLIBRI_API int32_t colibri_pin(colibri_session *session, uint32_t layer, uint32_t expert, uint32_t pinned);

COLIBRI_API int32_t colibri_rewind(colibri_session *session, uint32_t sequence, uint32_t length);
COLIBRI_API int32_t colibri_reset(colibri_session *session, uint32_t sequence);

/* Abandon what is queued. Returns WAIT while a fetch into the pool is in flight, then DONE: only then may the
 * pool be reused. */
COLIBRI_API int32_t colibri_stop(colibri_session *session);

/* One expert: what its run is made of and what vouches for it. */
typedef struct colibri_expert {
    uint32_t struct_bytes;
    uint32_t layer;
    uint32_t expert;
    uint32_t crc;                       /* CRC32C of the run */
    uint8_t digest[16];                 /* the first half of its SHA-256 */
    uint64_t offset;                    /* in the file */
    uint64_t bytes;                     /* of the run: gate, up, down, each at a multiple of 64, and zeros */
    uint32_t kind[3];                   /* of gate, up and down: colibri_kind */
    uint32_t rows;                      /* of gate and up, the columns of down */
    uint32_t columns;                   /* of gate and up, the rows of down */
    uint32_t reserved;
    COLIBRI_POINTER(const void *, run); /* the bytes, where a call wants them; colibri_expert_of leaves null */
} colibri_expert;

/* An expert of a file. Set struct_bytes. ARGUMENT: no such layer, or none with such an expert. */
COLIBRI_API int32_t colibri_expert_of(const colibri_model *model, uint32_t layer, uint32_t expert, colibri_expert *out);

/* Put a run in the place of expert (layer, expert) of the session's model, or with a null run the file's own back.
 * The run is copied into one of the planned slots (limits.swaps) and checked there: shape, CRC32C, SHA-256, then the
 * content of every tile, budget_bytes a call: AGAIN until all is right, call again with the same arguments; other
 * arguments begin anew. The call behind the last AGAIN answers DONE: from the next feed on, every row runs with the new
 * expert. Between feeds it is exchanged at once; while rows are on the tape they end with the expert they began with.
 * What is refused changes nothing: FORMAT (shape), CORRUPT (sums), CONTENT (a tile), LIMIT: no slot is free (a
 * replaced expert holds one until it is replaced or rolled back, so replacing it anew takes a second one).
 * Keys and values in the cache stay what the old expert made them: rewind to 0 for an answer of the new model alone. */
COLIBRI_API int32_t colibri_swap_expert(colibri_session *session, const colibri_expert *replacement,
                                        uint64_t budget_bytes, colibri_detail *detail);

/* Of what the next feed runs: the file's identity, or where experts differ from the file's a SHA-256 over it and them,
 * the same whichever way it came about. */
COLIBRI_API int32_t colibri_identity(const colibri_session *session, uint8_t identity[32]);

/* The experts in others' places, ascending: up to `capacity` are written, returns how many there are. */
COLIBRI_API uint32_t colibri_swapped(const colibri_session *session, colibri_expert *out, uint32_t capacity);

/* What a session knows of its texts, as bytes: every sequence's length and its part of the cache, so a save is as long
 * as the texts are, whatever was planned. The same bytes on every target. They fit any session of the same identity,
 * KV kind and top_k and skip_below limits whose context, sequences and logit_rows have room: context, batch, rewind,
 * slots, workers and the rest may differ. Not saved, because they change no bit: experts, policy, counters. */
enum colibri_save_flags {
    COLIBRI_SAVE_LOGITS = 1             /* and the logits of the last feed, so that sampling can go on; without them
                                           whoever restores feeds a token first */
};

/* Bytes a save takes now; 0 unless the tape is at its start. */
COLIBRI_API uint64_t colibri_save_bytes(const colibri_session *session, uint32_t flags);

/* Save into `bytes`, about budget_bytes a call (one tile of the cache more at most): AGAIN until DONE, call again with
 * the same arguments. Between feeds only (BUSY). LIMIT: capacity is too small, detail.expected bytes are needed. A
 * feed, a rewind or a reset between two calls lets the save begin anew. The head is written last, with the identity
 * there is then: what was not saved to its end is never taken for a save. */
COLIBRI_API int32_t colibri_save(colibri_session *session, uint32_t flags, void *bytes, uint64_t capacity,
                                 uint64_t budget_bytes, colibri_detail *detail);

/* The other way, in place of all sequences; `bytes` stay as they are until DONE. First everything is checked, then the
 * cache is written; each byte counts twice against the budgets. What is refused changes nothing: MAGIC, VERSION,
 * TRUNCATED, CORRUPT, FORMAT; IDENTITY: saved under another model or other exchanged experts (exchange them, then call
 * again); LIMIT: detail.field of the limits differs or has no room. Between feeds only (BUSY).
 * While it checks, a feed, a rewind or a reset lets it begin anew. Once it writes, the sequences
 * are empty and every other call that needs the tape at its start is BUSY, until DONE or colibri_reset, which empties
 * all sequences; CORRUPT then says that `bytes` changed under way, and leaves them empty.
 * Afterwards colibri_logits gives what was saved; of rewinds, those that both sessions allow are possible.
 * The sums find damage, not malice: restore only what you would run. */
COLIBRI_API int32_t colibri_restore(colibri_session *session, const void *bytes, uint64_t count,
                                    uint64_t budget_bytes, colibri_detail *detail);

typedef struct colibri_stats_result {
    uint32_t struct_bytes;
    uint32_t reserved;
    uint64_t pool_used;                 /* high-water mark: equals the plan's pool_bytes */
    uint64_t rows;                      /* rows finished */
    uint64_t units;                     /* units run */
    uint64_t macs;                      /* multiply-adds with weights */
    uint64_t expert_hits;
    uint64_t expert_misses;             /* asked for when a layer needed them */
    uint64_t bytes_fetched;             /* asked of the store; a request that failed counts each time */
    uint64_t expert_bytes_fetched;      /* of these the experts': misses and hints x their runs; the rest is resident
                                           weights */
    uint64_t hints;                     /* experts asked for ahead (COLIBRI_LIMIT_LOOK_AHEAD) */
    uint64_t hints_used;                /* of those, needed next: misses without look-ahead are misses + hints_used */
    uint64_t hints_wasted;              /* given up unused, or failed; the others are still there or under way */
    uint64_t hint_bytes;                /* of expert_bytes_fetched, the hints' */
} colibri_stats_result;

COLIBRI_API int32_t colibri_stats(const colibri_session *session, colibri_stats_result *stats);

/* For tools: the slots' policy without a model, by the very code a session runs. `memory` (8-byte aligned) has
 * colibri_replay_bytes() bytes; experts are numbered over all layers. window: the largest top_k of a layer. A turn is
 * the distinct experts that one layer of one feed needs, as words: the number of the layer's first expert, how many the
 * layer has, n, then n experts of the layer, ascending. All turns are played, or none (ARGUMENT); what they hit and
 * miss is added to *hits and *misses. */
COLIBRI_API uint64_t colibri_replay_bytes(uint32_t experts, uint32_t policy);
COLIBRI_API int32_t colibri_replay_start(void *memory, uint64_t bytes, uint32_t experts, uint32_t slots,
                                         uint32_t policy, uint32_t window);
COLIBRI_API int32_t colibri_replay_pin(void *memory, uint32_t expert);
COLIBRI_API int32_t colibri_replay_turns(void *memory, const uint32_t *words, uint64_t count, uint64_t *hits,
                                         uint64_t *misses);

/* What the tape is made of, and what an op's units are. A strip is 32 output rows of a matrix. */
enum colibri_op_kind {
    COLIBRI_OP_EMBED = 1,               /* units: rows */
    COLIBRI_OP_ATTENTION_NORM = 2,      /* rows */
    COLIBRI_OP_QKV = 3,                 /* strips of q, k and v */
    COLIBRI_OP_PLACE = 4,               /* rows: q/k norm, rotation, into the cache */
    COLIBRI_OP_ATTEND = 5,              /* blocks of rows x KV heads x eights of the heads that share one */
    COLIBRI_OP_QUANTIZE = 6,            /* rows: attention output */
    COLIBRI_OP_PROJECT = 7,             /* strips of o */
    COLIBRI_OP_FFN_NORM = 8,            /* rows */
    COLIBRI_OP_DENSE_UP = 9,            /* groups of 32 columns of the gated product */
    COLIBRI_OP_DENSE_DOWN = 10,         /* strips of hidden */
    COLIBRI_OP_ROUTE = 11,              /* blocks of rows */
    COLIBRI_OP_EXPERT_UP = 12,          /* experts of the pass x groups */
    COLIBRI_OP_EXPERT_DOWN = 13,        /* strips of hidden */
    COLIBRI_OP_SHARED_UP = 14,          /* groups */
    COLIBRI_OP_SHARED_DOWN = 15,        /* strips of hidden */
    COLIBRI_OP_COMBINE = 16,            /* rows */
    COLIBRI_OP_FINAL_NORM = 17,         /* rows that want logits */
    COLIBRI_OP_HEAD = 18,               /* strips of the vocabulary */
    COLIBRI_OP_LATENT = 19,             /* rows: norm of the latent that queries are made of */
    COLIBRI_OP_QUERY = 20,              /* strips of q, from that latent */
    COLIBRI_OP_ABSORB = 21,             /* heads x strips: queries into the latent's space */
    COLIBRI_OP_EXPAND = 22,             /* heads x strips: what was attended out of it */
    COLIBRI_OP_INDEX = 23,              /* strips of the index queries, the index key and the index heads' weights */
    COLIBRI_OP_INDEX_PLACE = 24,        /* rows: norm and rotation, the key into its cache */
    COLIBRI_OP_INDEX_CHOOSE = 25,       /* rows: which positions attention looks at */
    COLIBRI_OP_ADD_ATTENTION = 26,      /* rows: norm of the attention output, onto the residual */
    COLIBRI_OP_LEASE = 27,              /* pieces of the experts that have arrived: their checksums; 0: in place */
    COLIBRI_OP_AHEAD = 28,              /* one, of few rows: the next layer's router on what its input is so far */
    COLIBRI_OP_ROOM = 32                /* array size: room for later ops */
};

/* One kind of op, over all layers since the start or the last reset of the counters. */
typedef struct colibri_profile_entry {
    uint64_t runs;                      /* times an op of this kind was run to its end */
    uint64_t units;
    uint64_t macs;                      /* multiply-adds with weights, experts counted where they were chosen (ROUTE) */
    uint64_t nanoseconds;               /* by the clock hook; 0 without one. Of WAITs only the call is counted. */
} colibri_profile_entry;

/* entries[kind] for every kind below `capacity`. reset: 1 sets all counters to 0 behind the reading. */
COLIBRI_API int32_t colibri_profile(colibri_session *session, colibri_profile_entry *entries, uint32_t capacity,
                                    uint32_t reset);

/* --------------------------------------------------------------------------------------- text (optional) */

enum colibri_text_flags {
    COLIBRI_TEXT_SPECIAL = 1,           /* encode: recognise special tokens; decode: write them out */
    COLIBRI_TEXT_BOS = 2                /* encode: begin with the bos token if the model has one */
};

/* Text to token ids. Bytes that are not UTF-8 count as U+FFFD. Returns DONE with *count set, AGAIN, or an error
 * (LIMIT with *count = ids needed if capacity is too small, TEXT_LONG). */
COLIBRI_API int32_t colibri_encode(colibri_session *session, const char *text, uint32_t bytes, uint32_t flags,
                                   uint32_t budget, uint32_t *ids, uint32_t capacity, uint32_t *count);

/* Streaming token ids to text: never half a character. State all zero before the first token. */
typedef struct colibri_decoder {
    uint32_t opaque[8];
} colibri_decoder;

COLIBRI_API int32_t colibri_decode(colibri_session *session, colibri_decoder *decoder, uint32_t token,
                                   uint32_t flags, char *out, uint32_t capacity, uint32_t *written);
/* What is pending at the end of a text (an unfinished character becomes U+FFFD). */
COLIBRI_API int32_t colibri_decode_end(colibri_session *session, colibri_decoder *decoder, char *out,
                                       uint32_t capacity, uint32_t *written);

typedef struct colibri_sampling {
    uint32_t struct_bytes;
    uint32_t top_k;                     /* 0 = all */
    float temperature;                  /* 0 = greedy */
    float top_p;                        /* 1 = off; 0 < top_p <= 1 */
    float min_p;                        /* 0 = off */
    float repetition_penalty;           /* 1 = off, > 0 */
    uint64_t seed;
    uint32_t sequence;                  /* enters the draw */
    uint32_t position;                  /* of the token drawn; enters the draw */
    uint32_t reserved[2];
} colibri_sampling;

/* One token from the logits of the index-th row. recent: ids the repetition penalty applies to (may be null). */
COLIBRI_API int32_t colibri_sample(colibri_session *session, uint32_t index, const colibri_sampling *sampling,
                                   const uint32_t *recent, uint32_t recent_count, uint32_t *token);

/* Ending a text at one of several strings, wherever the borders of its pieces fall. The string whose last byte comes
 * first ends the text (of several that end there, the longest), and the text is cut before it. String i is
 * bytes[ends[i - 1] .. ends[i]), from 0 for the first; empty strings never match. */
typedef struct colibri_stop_set {
    COLIBRI_POINTER(const uint8_t *, bytes);
    COLIBRI_POINTER(const uint32_t *, ends);
    uint32_t count;
    uint32_t reserved;
} colibri_stop_set;

/* What is held back because it may begin a stop string. All zero at the beginning of a text; belongs to one set. */
typedef struct colibri_stop_state {
    uint32_t string;
    uint32_t held;
    uint32_t stopped;
    uint32_t reserved;
} colibri_stop_state;

/* Add bytes of text; those that can be shown now are written. OK, or DONE once a stop string is complete (what follows
 * is ignored, then and in later calls). LIMIT: *written = held + count bytes of room are needed, nothing changed. */
COLIBRI_API int32_t colibri_stop_feed(const colibri_stop_set *set, colibri_stop_state *state, const void *in,
                                      uint32_t count, void *out, uint32_t capacity, uint32_t *written);
/* The end of a text: what was held back. */
COLIBRI_API int32_t colibri_stop_end(const colibri_stop_set *set, colibri_stop_state *state, void *out,
                                     uint32_t capacity, uint32_t *written);

/* ------------------------------------------------------------------------------------ small services */

/* A short English phrase; an empty one if status texts were left out. */
COLIBRI_API const char *colibri_status_text(int32_t status);

/* library (major << 16 | minor << 8 | patch), format, ABI */
COLIBRI_API void colibri_version(uint32_t *library, uint32_t *format, uint32_t *abi);

/* The digest of NUMERICS section 9: SHA-256, fed piece by piece. */
typedef struct colibri_sha256 {
    uint32_t state[8];
    uint64_t bytes;
    uint8_t block[64];
} colibri_sha256;

COLIBRI_API void colibri_sha256_start(colibri_sha256 *hash);
COLIBRI_API void colibri_sha256_add(colibri_sha256 *hash, const void *data, uint64_t bytes);
COLIBRI_API void colibri_sha256_end(colibri_sha256 *hash, uint8_t digest[32]);
COLIBRI_API uint32_t colibri_crc32c(uint32_t crc, const void *data, uint64_t bytes);

/* Kinds of a weight matrix: tiles of 16 output rows; q8 and q4 in groups of 32 columns with one scale a row. */
enum colibri_kind {
    COLIBRI_KIND_F32 = 0,
    COLIBRI_KIND_F16 = 1,
    COLIBRI_KIND_BF16 = 2,              /* reserved */
    COLIBRI_KIND_Q8 = 3,
    COLIBRI_KIND_Q4 = 4
};

/* The gated product h of gate g and up u of a feed-forward network (NUMERICS section 4). Clamped: g is cut at the limit
 * above, u at the limit on both sides. */
enum colibri_activation_kind {
    COLIBRI_ACTIVATION_SILU = 1,        /* silu(g) * u */
    COLIBRI_ACTIVATION_CLAMPED = 2,     /* silu(g) * u, clamped */
    COLIBRI_ACTIVATION_CLAMPED_PLUS_ONE = 3,    /* g * sigmoid(1.702 * g) * (u + 1), clamped */
    COLIBRI_ACTIVATION_GELU_TANH = 4,   /* gelu(g) * u, gelu by its tanh approximation */
    COLIBRI_ACTIVATION_GELU_ERF = 5     /* gelu(g) * u, gelu by the error function */
};

enum colibri_tile_shape { COLIBRI_TILE_ROWS = 16, COLIBRI_GROUP = 32 };

/* For converters: the tiles of NUMERICS section 2. kind: colibri_kind; source: rows x columns
 * float32, row after row. colibri_pack writes colibri_packed_bytes() bytes; rows of the first tile start at a
 * multiple of 16, so a matrix can be packed in strips of 16 x n rows. Not-finite input: NOT_FINITE. */
COLIBRI_API uint64_t colibri_packed_bytes(uint32_t kind, uint32_t rows, uint32_t columns);
COLIBRI_API int32_t colibri_pack(uint32_t kind, uint32_t rows, uint32_t columns, const float *source,
                                 void *destination);
/* The float32 values a packed matrix stands for. */
COLIBRI_API int32_t colibri_unpack(uint32_t kind, uint32_t rows, uint32_t columns, const void *source,
                                   float *destination);

#ifdef __cplusplus
}
#endif

#endif
