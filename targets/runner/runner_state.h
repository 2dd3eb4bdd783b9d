/*
 * runner_state.h: the inside of the runner, shared by its six files and by nothing else.
 *
 *   runner.c         the life of a job, phase after phase
 *   runner_lanes.c   feeding, advancing, hashing, sampling
 *   runner_memory.c  the region: carving, red zones, the store that plays a slow device, plan checks
 *   runner_swap.c    experts replaced by copies of themselves
 *   runner_save.c    sessions saved and restored
 *   runner_report.c  lines of text
 */
#ifndef COLIBRI_RUNNER_STATE_H
#define COLIBRI_RUNNER_STATE_H

#include "runner_port.h"

#define RUNNER_LANES 2u
#define RUNNER_TICKETS 64u
#define RUNNER_NONE 0xFFFFFFFFu
#define RUNNER_CODE_BAD 1u
#define RUNNER_CODE_REFUSED 3u
#define RUNNER_CODE_BUG 70u

enum runner_finish { FINISH_NONE, FINISH_STOP, FINISH_LENGTH, FINISH_CONTEXT };

/* One stream of tokens: a prompt, then what was sampled. */
typedef struct runner_lane {
    uint32_t session;                   /* index into runner.session */
    uint32_t sequence;
    uint32_t *tokens;                   /* [context] */
    uint32_t prompt;                    /* tokens of the prompt */
    uint32_t count;                     /* tokens known: prompt and sampled */
    uint32_t fed;                       /* tokens in the session's cache */
    uint32_t finish;                    /* enum runner_finish */
    uint32_t logits;                    /* index of the newest logits row of the last feed */
    uint64_t hashed;                    /* rows in the hash */
    colibri_sha256 hash;
    uint8_t digest[32];
    uint8_t first_digest[32];           /* of the run before the reset */
} runner_lane;

typedef struct runner_session {
    struct runner *owner;
    colibri_session *session;
    unsigned char *pool;                /* red zones before and behind it */
    colibri_row *rows;                  /* [batch] rows of the feed under way or just finished */
    uint32_t queued;                    /* how many; 0 = none */
    uint32_t ready;                     /* colibri_start has finished */
    colibri_expert swapped;             /* the expert whose copy runs; struct_bytes 0: none */
} runner_session;

typedef struct runner_ticket {
    uint32_t used, session, ticket, delay;
    uint32_t layer, expert, fault;
    uint64_t number, offset, bytes;
    unsigned char *destination;
} runner_ticket;

struct runner {
    const runner_job *job;
    const uint32_t *prompt_ids, *companion_ids, *stop_ids;
    const char *text;
    const unsigned char *blob;
    unsigned char *region;
    uint64_t region_used;
    colibri_model model;
    colibri_info info;
    colibri_limits limits;
    colibri_plan_result plan;
    colibri_detail detail;
    colibri_hooks hooks;
    colibri_decoder decoder;
    runner_lane lane[RUNNER_LANES];
    runner_session session[RUNNER_LANES];
    runner_ticket ticket[RUNNER_TICKETS];
    uint64_t fetches, faults, recovered;        /* asked for; made to go wrong; errors that a next call made good */
    uint64_t resumed;                   /* calls made again after a failure of the port's own store */
    uint32_t lost_layer, lost_expert;   /* the fetch that was answered last, or that an advance was refused for */
    uint64_t lost_offset;
    uint32_t drawn;                     /* state of the delays' generator */
    uint64_t swaps, swap_longest;       /* exchanges; microseconds */
    uint32_t swap_layer, swap_expert;   /* whose turn it is */
    unsigned char *saved;               /* room for a save */
    uint64_t saves, saved_bytes;        /* how many, and the last one's */
    colibri_sha256 save_hash;           /* over the SHA-256 of every save */
    uint32_t lanes, sessions;
    uint32_t phase;                     /* enum phase in runner.c */
    uint32_t turn;                      /* session whose turn it is */
    uint32_t round;                     /* 1 = the run after a reset, or the only one */
    uint32_t row, layer;                /* place in a report that takes several steps */
    uint32_t threads;                   /* that run units at once */
    uint32_t bad, code;                 /* failed checks; exit code */
    uint64_t clock_start, clock_prefill, clock_end, longest;
};

/* runner_report.c */
void colibri_runner_number(uint64_t value);
void colibri_runner_signed(int64_t value);
void colibri_runner_hex(const void *bytes, uint32_t count);
void colibri_runner_word(uint32_t value);
void colibri_runner_end(void);
void colibri_runner_place(const runner *r, const char *word);
void colibri_runner_lossy(const runner *r);
void colibri_runner_error(runner *r, const char *call, int32_t status);
void colibri_runner_check(runner *r, const char *name, uint64_t expected, uint64_t found);
void colibri_runner_done(runner *r, uint32_t code);
void colibri_runner_ids(runner *r);
void colibri_runner_route(runner *r, const runner_session *s, uint32_t lane, uint32_t position);
void colibri_runner_summary(runner *r);

/* runner_memory.c */
uint32_t colibri_runner_carve(runner *r);
void colibri_runner_red_zones(runner *r);
void colibri_runner_plan_check(runner *r);
void colibri_runner_hooks(runner *r);
uint32_t colibri_runner_recover(runner *r, int32_t status);
void colibri_runner_copy(void *to, const void *from, uint64_t bytes);
void colibri_runner_set(void *to, uint32_t byte, uint64_t bytes);
uint32_t colibri_runner_differ(const void *a, const void *b, uint64_t bytes);

/* runner_swap.c */
void colibri_runner_swap(runner *r, runner_session *s);

/* runner_save.c */
uint64_t colibri_runner_save_room(const runner *r);
void colibri_runner_save(runner *r, runner_session *s);

/* runner_lanes.c: 1 = go on, 0 = nothing left to do or the job has ended */
uint32_t colibri_runner_feed(runner *r, runner_session *s);
uint32_t colibri_runner_harvest(runner *r, runner_session *s);
void colibri_runner_lane_start(runner *r, uint32_t index, const uint32_t *ids, uint32_t count);

#endif
