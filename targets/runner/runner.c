/*
 * runner.c: the life of a job, phase after phase, one bounded piece of work per step, so that a browser's
 * event loop and a firmware's main loop can drive it alike. It knows the public header and nothing below it.
 */
#include "host.h"
#include "runner_float.h"
#include "runner_state.h"

enum phase {
    PHASE_OPEN, PHASE_PLAN, PHASE_START, PHASE_PROMPT, PHASE_IDS, PHASE_RUN, PHASE_ROUTES, PHASE_RESET,
    PHASE_STOP, PHASE_SUMMARY
};

static runner the_runner;

runner *colibri_runner_instance(void)
{
    return &the_runner;
}

uint32_t colibri_runner_code(const runner *r)
{
    return r->code;
}

/* A job that contradicts itself: the host's bug, named by the field's number of bytes or value. */
static uint32_t refuse(runner *r, const char *what, uint64_t expected, uint64_t found)
{
    r->detail = (colibri_detail){.status = COLIBRI_ERROR_ARGUMENT, .expected = expected, .found = found};
    colibri_runner_error(r, what, COLIBRI_ERROR_ARGUMENT);
    return r->code;
}

/* Bind the arrays behind the structure; their sum must be the job's size. */
static uint32_t bind_arrays(runner *r, uint64_t job_bytes)
{
    const runner_job *job = r->job;
    const unsigned char *at = (const unsigned char *)job + sizeof *job;
    uint64_t words = (uint64_t)job->prompt_tokens + job->companion_tokens + job->stop_tokens;
    uint64_t need = sizeof *job + words * 4u + job->prompt_bytes;
    if (job->job_bytes != need || job_bytes < need) {
        return refuse(r, "job_bytes", need, job->job_bytes);
    }
    r->prompt_ids = (const uint32_t *)(const void *)at;
    r->companion_ids = r->prompt_ids + job->prompt_tokens;
    r->stop_ids = r->companion_ids + job->companion_tokens;
    r->text = (const char *)(r->stop_ids + job->stop_tokens);
    return 0u;
}

static uint32_t check_job(runner *r)
{
    const runner_job *job = r->job;
    uint32_t known = RUNNER_FLAGS_KNOWN | RUNNER_BOARD_MMU_OFF | RUNNER_BOARD_FAULT | RUNNER_BOARD_FLASH;
    if ((job->flags & ~known) != 0u) {
        return refuse(r, "job_flags", known, job->flags);
    }
    if (job->prompt_tokens > job->context || job->companion_tokens > job->context) {
        return refuse(r, "job_context", job->context, job->prompt_tokens);
    }
    if (r->lanes == 2u && job->companion_tokens == 0u) {
        return refuse(r, "job_companion_tokens", 1u, 0u);
    }
    if (job->store > RUNNER_STORE_PORT) {
        return refuse(r, "job_store", RUNNER_STORE_PORT, job->store);
    }
    if ((job->flags & RUNNER_SWAP) != 0u && (job->swaps < 2u || job->head_bytes != 0u)) {
        return refuse(r, "job_swaps", 2u, job->swaps);
    }
    if (job->head_bytes > job->blob_bytes) {
        return refuse(r, "job_head_bytes", job->blob_bytes, job->head_bytes);
    }
    return 0u;
}

uint32_t colibri_runner_begin(runner *r, const runner_job *job, uint64_t job_bytes, const void *blob,
                              void *region)
{
    colibri_runner_set(r, 0u, sizeof *r);
    r->job = job;
    r->blob = blob;
    r->region = region;
    r->code = RUNNER_NONE;
    if (job_bytes < sizeof *job || job->magic != RUNNER_MAGIC || job->version != RUNNER_VERSION) {
        return refuse(r, "job_version", RUNNER_VERSION, job_bytes < sizeof *job ? job_bytes : job->version);
    }
    if (job->name[RUNNER_NAME_BYTES - 1] != 0) {
        return refuse(r, "job_name", 0u, RUNNER_NAME_BYTES);
    }
    colibri_runner_text("begin ");
    colibri_runner_text(job->name);
    colibri_runner_end();
    r->sessions = (job->flags & RUNNER_TWO_SESSIONS) != 0u ? 2u : 1u;
    r->lanes = (job->flags & (RUNNER_TWO_SESSIONS | RUNNER_TWO_SEQUENCES)) != 0u ? 2u : 1u;
    r->lane[1].session = r->sessions - 1u;
    r->lane[1].sequence = r->sessions == 2u ? 0u : 1u;
    r->round = (job->flags & RUNNER_RESET) != 0u ? 0u : 1u;
    uint32_t code = check_job(r);
    return code != 0u ? code : bind_arrays(r, job_bytes);
}

static void open_model(runner *r)
{
    uint64_t bytes = r->job->blob_bytes, head = r->job->head_bytes != 0u ? r->job->head_bytes : bytes;
    int32_t status = colibri_open(&r->model, r->blob, head, bytes, &r->detail);
    r->info.struct_bytes = sizeof r->info;
    if (status >= 0) {
        status = colibri_model_info(&r->model, &r->info);
    }
    if (status >= 0 && (r->job->limit_flags & COLIBRI_LIMIT_RESIDENT_COPY) != 0u && r->job->text_bytes == 0u) {
        status = colibri_open(&r->model, r->blob, r->info.tables_bytes, bytes, &r->detail);
    }
    if (status < 0) {
        colibri_runner_error(r, "open", status);
    }
    r->phase = PHASE_PLAN;
}

/* The level asked for, or the best there is; 0 after a refusal. */
static uint32_t choose_kernel(runner *r)
{
    uint32_t asked = r->job->kernel, here = colibri_kernels() & colibri_host_kernels();
    uint32_t level = asked == COLIBRI_KERNEL_AUTO ? colibri_host_kernel(here) : asked;
    if (level > COLIBRI_KERNEL_RELAXED || (here >> level & 1u) == 0u) {
        r->detail = (colibri_detail){.status = COLIBRI_ERROR_UNSUPPORTED, .field = COLIBRI_FIELD_KERNEL,
                                     .expected = here, .found = level};
        colibri_runner_error(r, "kernel", COLIBRI_ERROR_UNSUPPORTED);
        return 0u;
    }
    colibri_runner_text("kernel");
    colibri_runner_number(level);
    colibri_runner_end();
    return level;
}

static void plan(runner *r)
{
    const runner_job *job = r->job;
    uint32_t kernel = choose_kernel(r);
    if (kernel == 0u) {
        return;
    }
    r->limits = (colibri_limits){.struct_bytes = sizeof r->limits, .flags = job->limit_flags,
                                 .context = job->context, .batch = job->batch,
                                 .sequences = (job->flags & RUNNER_TWO_SEQUENCES) != 0u && job->sequences < 2u
                                                  ? 2u : job->sequences,
                                 .workers = job->workers, .slots = job->slots, .logit_rows = job->logit_rows,
                                 .text_bytes = job->text_bytes, .rewind = job->rewind,
                                 .swaps = job->swaps, .kv_kind = job->kv_kind, .kernel = kernel,
                                 .policy = job->policy, .top_k = job->experts_of_row, .skip_below = job->skip_below};
    r->plan.struct_bytes = sizeof r->plan;
    int32_t status = colibri_plan(&r->model, &r->limits, &r->plan, &r->detail);
    if (status < 0) {
        colibri_runner_error(r, "plan", status);
        return;
    }
    colibri_runner_text("pool");
    colibri_runner_number(r->plan.pool_bytes);
    colibri_runner_end();
    colibri_runner_lossy(r);
    if (colibri_runner_carve(r) == 0u) {
        (void)refuse(r, "job_region_bytes", r->plan.pool_bytes * r->sessions, job->region_bytes);
        return;
    }
    colibri_runner_hooks(r);
    if ((job->flags & RUNNER_PLAN_CHECK) != 0u) {
        colibri_runner_plan_check(r);
    }
    r->phase = PHASE_START;
}

/* What plays a slow device wants to be asked again; a port's store may sleep until it has something to say. */
static void pause(const runner *r)
{
    if (r->job->store == RUNNER_STORE_PORT && r->sessions == 1u) {
        colibri_runner_wait();
    }
}

/* One call of colibri_start for the first session that is not ready. */
static void start(runner *r)
{
    for (uint32_t i = 0; i < r->sessions; i++) {
        runner_session *s = &r->session[i];
        if (s->ready != 0u) {
            continue;
        }
        s->owner = r;
        r->hooks.user = s;                      /* the core copies them in its first call */
        int32_t status = colibri_start(&r->model, &r->limits, &r->hooks, s->pool, r->plan.pool_bytes,
                                       &s->session, &r->detail);
        if (status < 0) {
            if (colibri_runner_recover(r, status) == 0u) {
                colibri_runner_error(r, "start", status);
            }
        } else if (status == COLIBRI_WAIT) {
            pause(r);
        } else if (status == COLIBRI_OK || status == COLIBRI_DONE) {
            s->ready = 1u;
        }
        return;
    }
    r->phase = PHASE_PROMPT;
}

static void begin_lanes(runner *r, uint32_t prompt)
{
    colibri_runner_lane_start(r, 0u, r->job->prompt_tokens != 0u ? r->prompt_ids : 0, prompt);
    if (r->lanes == 2u) {
        colibri_runner_lane_start(r, 1u, r->companion_ids, r->job->companion_tokens);
    }
    r->clock_start = colibri_runner_clock();
    r->clock_prefill = r->clock_start;
}

/* The prompt's ids: given, or encoded from the text. */
static void prompt(runner *r)
{
    uint32_t count = r->job->prompt_tokens;
    if (count == 0u) {
        int32_t status = colibri_encode(r->session[0].session, r->text, r->job->prompt_bytes,
                                        r->job->text_flags, r->job->budget, r->lane[0].tokens,
                                        r->limits.context, &count);
        if (status < 0) {
            r->detail = (colibri_detail){.status = status, .expected = r->limits.context, .found = count};
            colibri_runner_error(r, "encode", status);
            return;
        }
        if (status != COLIBRI_DONE && status != COLIBRI_OK) {
            return;
        }
    }
    begin_lanes(r, count);
    r->phase = PHASE_IDS;
}

static void show_ids(runner *r)
{
    colibri_runner_ids(r);
    if (r->row == r->lane[0].prompt) {
        r->row = 0;
        r->phase = (r->job->flags & RUNNER_ENCODE_ONLY) != 0u ? PHASE_STOP : PHASE_RUN;
    }
}

static uint32_t all_finished(const runner *r)
{
    for (uint32_t i = 0; i < r->lanes; i++) {
        if (r->lane[i].finish == FINISH_NONE) {
            return 0u;
        }
    }
    return 1u;
}

/* A feed or an advance of the session whose turn it is. */
static void run(runner *r)
{
    runner_session *s = &r->session[r->turn];
    uint32_t next = r->turn + 1u < r->sessions ? r->turn + 1u : 0u;
    if (s->queued == 0u) {
        if (colibri_runner_feed(r, s) == 0u) {
            if (r->code == RUNNER_NONE && all_finished(r) != 0u) {
                r->clock_end = colibri_runner_clock();
                r->phase = PHASE_RESET;
            } else if (r->sessions == 1u && r->code == RUNNER_NONE) {
                (void)refuse(r, "lane_without_rows", 1u, 0u);       /* an empty prompt with nothing to feed */
            }
            r->turn = next;
        }
        return;
    }
    uint64_t begun = colibri_runner_clock();
    int32_t status = colibri_advance(s->session, r->job->budget);
    uint64_t took = colibri_runner_clock() - begun;
    r->longest = took > r->longest ? took : r->longest;
    if (status < 0) {
        (void)colibri_lost(s->session, &r->lost_layer, &r->lost_expert, &r->lost_offset);
        if (colibri_runner_recover(r, status) == 0u) {
            colibri_runner_error(r, "advance", status);
        }
    } else if (status == COLIBRI_WAIT) {
        pause(r);
    } else if (status == COLIBRI_DONE || status == COLIBRI_OK) {
        if ((r->job->flags & RUNNER_ROUTING) != 0u && r->round == 1u) {
            r->row = 0;
            r->layer = 0;
            r->phase = PHASE_ROUTES;
            return;
        }
        (void)colibri_runner_harvest(r, s);
    }
    r->turn = next;
}

/* One row's choice in one layer; behind the last one the feed is harvested. */
static void routes(runner *r)
{
    runner_session *s = &r->session[r->turn];
    uint32_t lane = r->sessions == 2u ? r->turn : s->rows[r->row].sequence;
    uint32_t before = 0;
    for (uint32_t i = 0; i < r->row; i++) {
        before += (uint32_t)(s->rows[i].sequence == s->rows[r->row].sequence);
    }
    colibri_runner_route(r, s, lane, r->lane[lane].fed + before);
    r->layer++;
    if (r->layer == r->info.layers) {
        r->layer = 0;
        r->row++;
    }
    if (r->row == s->queued) {
        r->row = 0;
        r->phase = PHASE_RUN;
        (void)colibri_runner_harvest(r, s);
        r->turn = r->turn + 1u < r->sessions ? r->turn + 1u : 0u;
    }
}

/* Close the digests; where a second run is asked for, empty the sequences and begin again. */
static void round_end(runner *r)
{
    r->phase = PHASE_STOP;
    for (uint32_t i = 0; i < r->lanes; i++) {
        colibri_sha256_end(&r->lane[i].hash, r->lane[i].digest);
        if ((r->job->flags & RUNNER_RESET) == 0u) {
            continue;
        }
        if (r->round == 1u) {
            colibri_runner_check(r, "digest_after_reset", 0u,
                                 colibri_runner_differ(r->lane[i].first_digest, r->lane[i].digest, 32u));
        }
        colibri_runner_copy(r->lane[i].first_digest, r->lane[i].digest, 32u);
    }
    if (r->round == 1u) {
        return;
    }
    for (uint32_t i = 0; i < r->sessions; i++) {
        int32_t status = colibri_reset(r->session[i].session, COLIBRI_ALL_SEQUENCES);
        if (status < 0) {
            colibri_runner_error(r, "reset", status);
            return;
        }
    }
    r->round = 1u;
    r->phase = PHASE_RUN;
    r->decoder = (colibri_decoder){{0}};
    r->lane[0].count = r->lane[0].prompt;
    begin_lanes(r, r->lane[0].prompt);
}

static void stop(runner *r)
{
    uint32_t waiting = 0;
    for (uint32_t i = 0; i < r->sessions; i++) {
        int32_t status = colibri_stop(r->session[i].session);
        if (status < 0) {
            colibri_runner_error(r, "stop", status);
            return;
        }
        waiting += (uint32_t)(status == COLIBRI_WAIT);
    }
    if (waiting == 0u) {
        colibri_runner_red_zones(r);
        r->phase = PHASE_SUMMARY;
    }
}

static void step(runner *r)
{
    switch (r->phase) {
    case PHASE_OPEN: open_model(r); break;
    case PHASE_PLAN: plan(r); break;
    case PHASE_START: start(r); break;
    case PHASE_PROMPT: prompt(r); break;
    case PHASE_IDS: show_ids(r); break;
    case PHASE_RUN: run(r); break;
    case PHASE_ROUTES: routes(r); break;
    case PHASE_RESET: round_end(r); break;
    case PHASE_STOP: stop(r); break;
    default: colibri_runner_summary(r); break;
    }
}

uint32_t colibri_runner_step(runner *r)
{
    if (r->code != RUNNER_NONE) {
        return 0u;
    }
    if ((r->job->flags & RUNNER_HOSTILE_FLOAT) != 0u) {
        uint64_t own = runner_control_get();
        runner_control_set(RUNNER_HOSTILE_CONTROL);
        step(r);
        uint64_t found = runner_control_get();
        runner_control_set(own);
        if (found != RUNNER_HOSTILE_CONTROL && r->code == RUNNER_NONE) {
            colibri_runner_check(r, "float_control_restored", RUNNER_HOSTILE_CONTROL, found);
        }
    } else {
        step(r);
    }
    return r->code == RUNNER_NONE ? 1u : 0u;
}
