/*
 * runner.h: the job that one C runner executes on every target, and nothing else.
 *
 * A host (Python, node, a shell) writes a job: this structure, little-endian, followed by its arrays. The
 * runner executes it against a blob in memory, with a region of memory for sessions, writes lines of text:
 *
 *   begin NAME                           always first
 *   kernel LEVEL                         colibri_kernel that runs
 *   pool PLANNED                         the plan's bytes, one session
 *   lossy TOP_K BITS IDENTITY            where the job's limits change the answer: which, and whose answer it is
 *   prompt ID ID ...                     the ids fed as prompt (after encoding), lane 0
 *   token LANE ID                        a generated token
 *   text HEX                             bytes decoded so far, lane 0
 *   route LANE POSITION LAYER EXPERT:BITS ...   with RUNNER_ROUTING; BITS: the weight's float32 pattern
 *   check NAME ok | check NAME bad EXPECTED FOUND
 *   lost LAYER EXPERT OFFSET             before an error line about a fetch: what was fetched; 4294967295: resident
 *   again LAYER EXPERT OFFSET            a fetch that failed, whose call was made again: as lost
 *   faults N                             with store_faults: fetches that went wrong and were asked for again
 *   digest LANE HEX64 ROWS               with RUNNER_DIGEST, rows = logits rows hashed
 *   swap N LONGEST_US                    with RUNNER_SWAP: exchanges, and the call that took longest
 *   saved N BYTES HEX64                  with RUNNER_SAVE: saves, bytes of the last, a hash over all of them
 *   threads N HELPED                     how many run units at once (with one, several workers are played in turn),
 *                                        and the units that others than the first have run
 *   used BYTES                           the session's high-water mark
 *   stats ROWS UNITS MACS HITS MISSES FETCHED EXPERT_BYTES HINTS HINTS_USED HINTS_WASTED HINT_BYTES
 *   time PREFILL_US DECODE_US LONGEST_US  0 0 0 where the target has no clock; LONGEST: one colibri_advance
 *   stack BYTES                          deepest stack use, 0 where the target cannot tell
 *   finish LANE stop | length | context
 *   error CALL STATUS SECTION FIELD INDEX OFFSET EXPECTED FOUND   numbers in decimal
 *   disk VERSION READS BYTES RETRIES PASSED MOST   a board's, behind done: virtio 1 or 2, requests, bytes they brought,
 *                                        requests made again, answers that passed an older request's, most in flight
 *   done CODE                            the runner's last: 0 ok, 1 a check was bad, 3 the core refused, 70 our bug
 *
 * Only plain structures, enums and #define numbers stand here: Python reads this file with cffi.
 */
#ifndef COLIBRI_RUNNER_H
#define COLIBRI_RUNNER_H

#include <stdint.h>

#define RUNNER_MAGIC 0x424F4A43u        /* "CJOB" */
#define RUNNER_VERSION 4
#define RUNNER_NAME_BYTES 64
#define RUNNER_RED_ZONE 4096            /* guarded bytes on both sides of each pool */
#define RUNNER_WORK_BYTES 65536         /* see region_bytes */
#define RUNNER_SAVE_HEAD 128            /* see region_bytes */

enum runner_flags {
    RUNNER_DIGEST = 1,                  /* hash the logits of every row fed */
    RUNNER_FILL = 2,                    /* fill each pool with fill_word before it is used */
    RUNNER_TWO_SEQUENCES = 4,           /* the companion is sequence 1 of the same session */
    RUNNER_TWO_SESSIONS = 8,            /* the companion is sequence 0 of a second session, run in turn */
    RUNNER_HOSTILE_FLOAT = 16,          /* the host arrives with flush-to-zero and rounding toward zero */
    RUNNER_PLAN_CHECK = 32,             /* one byte less and odd addresses are refused, nothing is written */
    RUNNER_ROUTING = 64,                /* report the experts chosen */
    RUNNER_ENCODE_ONLY = 128,           /* stop after the prompt's ids are known */
    RUNNER_RESET = 256,                 /* run once, reset the sequences, run again: the second run counts */
    RUNNER_ODD_RANGES = 512,            /* no threads: the workers' units on one, in ranges of odd sizes, last first */
    RUNNER_SWAP = 1024,                 /* before every feed an expert is replaced by a copy of itself, by turns; the
                                           blob is all in memory, limits have two swaps */
    RUNNER_SAVE = 2048,                 /* before every feed the session is saved, emptied and restored */
    RUNNER_FLAGS_KNOWN = 4095,
    /* boards only */
    RUNNER_BOARD_MMU_OFF = 65536,       /* caches and MMU stay off, unaligned accesses fault */
    RUNNER_BOARD_FAULT = 131072,        /* read an unmapped address on purpose */
    RUNNER_BOARD_FLASH = 262144         /* the blob lies in flash, and is used there */
};

enum runner_store {
    RUNNER_STORE_ADDRESSABLE = 0,       /* experts are used in place */
    RUNNER_STORE_COPY = 1,              /* fetch copies at once */
    RUNNER_STORE_LATE = 2,              /* fetched() says WAIT store_delay times before the bytes appear */
    RUNNER_STORE_RANDOM = 3,            /* 0 .. store_delay times, drawn anew for each fetch */
    RUNNER_STORE_REVERSED = 4,          /* a fetch is there after all that were begun later, and store_delay times */
    RUNNER_STORE_PORT = 5               /* the port's own: a file, an import of the module */
};

typedef struct runner_job {
    uint32_t magic;
    uint32_t version;
    uint32_t job_bytes;                 /* this structure and the arrays behind it */
    uint32_t flags;                     /* runner_flags */
    uint64_t blob_bytes;
    uint64_t region_bytes;              /* at least sessions * (pool + 2 red zones + 64) + the work space:
                                           RUNNER_WORK_BYTES + lanes * 4 * context + 16 * batch bytes;
                                           with RUNNER_SAVE cache and logits of the plan, RUNNER_SAVE_HEAD and
                                           8 * sequences bytes */
    char name[RUNNER_NAME_BYTES];       /* printed first; zero-terminated */
    /* limits of colibri_plan, see colibri.h; sequences is set by the runner where a flag asks for two */
    uint32_t limit_flags;
    uint32_t context;
    uint32_t batch;
    uint32_t sequences;
    uint32_t workers;
    uint32_t slots;
    uint32_t logit_rows;
    uint32_t text_bytes;
    uint32_t rewind;
    uint32_t kv_kind;
    uint32_t kernel;                    /* colibri_kernel; 0: the best this processor has */
    uint32_t store_faults;              /* n: every n-th fetch goes wrong once, by turns: refused, lost, a byte wrong */
    /* how it is run; none of these may change an answer */
    uint32_t budget;                    /* units per advance, 0xFFFFFFFF unlimited */
    uint32_t split;                     /* rows per feed at most, 0 = as many as fit */
    uint32_t fill_word;                 /* see RUNNER_FILL */
    uint32_t store;                     /* runner_store */
    uint32_t store_delay;
    uint32_t text_flags;                /* colibri_text_flags of encode */
    /* what is run */
    uint32_t generate;                  /* tokens to sample after the prompt, 0 = prompt only */
    uint32_t prompt_tokens;             /* array 1: u32 ids; 0 = the prompt is the text */
    uint32_t companion_tokens;          /* array 2: u32 ids of lane 1 */
    uint32_t stop_tokens;               /* array 3: u32 ids that end lane 0 and lane 1 */
    uint32_t prompt_bytes;              /* array 4: text */
    /* colibri_sampling */
    uint32_t top_k;
    float temperature;
    float top_p;
    float min_p;
    float repetition_penalty;
    uint32_t repeat_last;               /* newest tokens of the lane that the penalty looks at */
    uint32_t decode_flags;              /* colibri_text_flags of decode */
    uint64_t seed;
    /* where the blob's bytes are */
    uint64_t head_bytes;                /* only so many of its first bytes are in memory; 0: all */
    uint64_t store_bytes_per_second;    /* RUNNER_STORE_PORT: plays a device; 0: none */
    uint32_t store_kind;                /* RUNNER_STORE_PORT: which one, a number of the port's; 0: the best */
    uint32_t store_flags;               /* and how, bits of the port's */
    uint32_t swaps;                     /* limit of colibri_plan, as the next three */
    uint32_t policy;                    /* colibri_policy */
    uint32_t experts_of_row;            /* colibri_limits.top_k, and skip_below: these two change the answer */
    float skip_below;
    uint32_t store_resumes;             /* RUNNER_STORE_PORT: calls made again after a fetch that failed, at most */
    uint32_t reserved;
} runner_job;

#endif
