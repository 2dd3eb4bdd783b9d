/*
 * runner_lanes.c: token streams (lanes) through sessions: which rows a feed takes, what is done with its
 * logits, and when a lane has ended. A lane's answer must not depend on anything decided here.
 */
#include "runner_state.h"

void colibri_runner_lane_start(runner *r, uint32_t index, const uint32_t *ids, uint32_t count)
{
    runner_lane *lane = &r->lane[index];
    if (ids != 0) {
        colibri_runner_copy(lane->tokens, ids, (uint64_t)count * 4u);
    }
    lane->prompt = count;
    lane->count = count;
    lane->fed = 0;
    lane->finish = FINISH_NONE;
    lane->hashed = 0;
    colibri_sha256_start(&lane->hash);
}

static runner_lane *lane_of(runner *r, const runner_session *s, uint32_t sequence)
{
    for (uint32_t i = 0; i < r->lanes; i++) {
        if (&r->session[r->lane[i].session] == s && r->lane[i].sequence == sequence) {
            return &r->lane[i];
        }
    }
    return &r->lane[0];
}

/* Rows for the session's next feed: its lanes in turn, as many as the limits and the split allow. */
static uint32_t choose_rows(runner *r, const runner_session *s)
{
    uint32_t most = r->limits.batch;
    uint32_t taken[RUNNER_LANES] = {0, 0};
    uint32_t count = 0, logits = 0, added = 1;
    if (r->job->split != 0u && r->job->split < most) {
        most = r->job->split;
    }
    while (added != 0u) {
        added = 0;
        for (uint32_t i = 0; i < r->lanes && count < most; i++) {
            runner_lane *lane = &r->lane[i];
            uint32_t at = lane->fed + taken[i];
            if (&r->session[lane->session] != s || lane->finish != FINISH_NONE || at >= lane->count) {
                continue;
            }
            uint32_t want = (r->job->flags & RUNNER_DIGEST) != 0u || at + 1u == lane->count;
            if (want != 0u && logits == r->limits.logit_rows) {
                continue;
            }
            s->rows[count++] = (colibri_row){lane->sequence, COLIBRI_NEXT_POSITION, lane->tokens[at], want};
            logits += want;
            taken[i]++;
            added = 1;
        }
    }
    return count;
}

uint32_t colibri_runner_feed(runner *r, runner_session *s)
{
    uint32_t count = choose_rows(r, s);
    if (count == 0u) {
        return 0u;
    }
    colibri_runner_swap(r, s);
    if (r->code == RUNNER_NONE) {
        colibri_runner_save(r, s);
    }
    int32_t status = r->code == RUNNER_NONE ? colibri_feed(s->session, s->rows, count) : COLIBRI_OK;
    if (status < 0) {
        colibri_runner_error(r, "feed", status);
        return 0u;
    }
    s->queued = count;
    return 1u;
}

static uint32_t is_stop(const runner *r, uint32_t token)
{
    for (uint32_t i = 0; i < r->job->stop_tokens; i++) {
        if (r->stop_ids[i] == token) {
            return 1u;
        }
    }
    return 0u;
}

static void text_line(const char *bytes, uint32_t count)
{
    if (count != 0u) {
        colibri_runner_text("text ");
        colibri_runner_hex(bytes, count);
        colibri_runner_end();
    }
}

/* Report a sampled token; lane 0 is decoded too where there is a tokenizer. A stop token has no text. */
static void report_token(runner *r, uint32_t index, uint32_t token, uint32_t finish)
{
    char text[2048];
    uint32_t written = 0;
    int32_t status = COLIBRI_OK;
    runner_session *s = &r->session[r->lane[index].session];
    if (r->round == 0u) {
        return;
    }
    colibri_runner_text("token");
    colibri_runner_number(index);
    colibri_runner_number(token);
    colibri_runner_end();
    if (index != 0u || r->limits.text_bytes == 0u || r->info.tokenizer_bytes == 0u) {
        return;
    }
    if (finish != FINISH_STOP) {
        status = colibri_decode(s->session, &r->decoder, token, r->job->decode_flags, text, sizeof text,
                                &written);
        if (status >= 0) {
            text_line(text, written);
        }
    }
    if (status >= 0 && finish != FINISH_NONE) {
        status = colibri_decode_end(s->session, &r->decoder, text, sizeof text, &written);
        if (status >= 0) {
            text_line(text, written);
        }
    }
    if (status < 0) {
        colibri_runner_error(r, "decode", status);
    }
}

/* Draw the lane's next token from its newest logits. */
static void sample(runner *r, uint32_t index)
{
    runner_lane *lane = &r->lane[index];
    const runner_job *job = r->job;
    uint32_t recent = job->repeat_last < lane->count ? job->repeat_last : lane->count;
    uint32_t token = 0;
    colibri_sampling sampling = {.struct_bytes = sizeof sampling, .top_k = job->top_k,
                                 .temperature = job->temperature, .top_p = job->top_p, .min_p = job->min_p,
                                 .repetition_penalty = job->repetition_penalty, .seed = job->seed,
                                 .sequence = lane->sequence, .position = lane->count};
    int32_t status = colibri_sample(r->session[lane->session].session, lane->logits, &sampling,
                                    lane->tokens + lane->count - recent, recent, &token);
    if (status < 0) {
        colibri_runner_error(r, "sample", status);
        return;
    }
    lane->tokens[lane->count++] = token;
    if (is_stop(r, token) != 0u) {
        lane->finish = FINISH_STOP;
    } else if (lane->count - lane->prompt == job->generate) {
        lane->finish = FINISH_LENGTH;
    } else if (lane->count == r->limits.context) {
        lane->finish = FINISH_CONTEXT;
    }
    report_token(r, index, token, lane->finish);
}

/* All known tokens of a lane are in the cache: go on or end. */
static void lane_caught_up(runner *r, uint32_t index)
{
    runner_lane *lane = &r->lane[index];
    if (index == 0u && lane->count == lane->prompt) {
        r->clock_prefill = colibri_runner_clock();
    }
    if (r->job->generate == 0u) {
        lane->finish = FINISH_LENGTH;
    } else if (lane->count == r->limits.context) {
        lane->finish = FINISH_CONTEXT;
    } else {
        sample(r, index);
    }
}

/* The feed is done: hash its logits, move the lanes on, sample where a lane has caught up. */
uint32_t colibri_runner_harvest(runner *r, runner_session *s)
{
    uint32_t logits = 0;
    for (uint32_t i = 0; i < s->queued; i++) {
        runner_lane *lane = lane_of(r, s, s->rows[i].sequence);
        lane->fed++;
        if (s->rows[i].want_logits == 0u) {
            continue;
        }
        lane->logits = logits;
        const float *row = colibri_logits(s->session, logits++);
        if (row == 0) {
            colibri_runner_error(r, "logits", COLIBRI_ERROR_ARGUMENT);
            return 0u;
        }
        if ((r->job->flags & RUNNER_DIGEST) != 0u) {
            colibri_sha256_add(&lane->hash, row, (uint64_t)r->info.vocab * 4u);
            lane->hashed++;
        }
    }
    s->queued = 0;
    for (uint32_t i = 0; i < r->lanes && r->code == RUNNER_NONE; i++) {
        runner_lane *lane = &r->lane[i];
        if (&r->session[lane->session] == s && lane->finish == FINISH_NONE && lane->fed == lane->count) {
            lane_caught_up(r, i);
        }
    }
    return r->code == RUNNER_NONE;
}
