/*
 * runner_report.c: the lines of text a job answers with (listed in runner.h). Numbers are decimal unless said
 * otherwise, bytes are hex; nothing here knows what the numbers mean.
 */
#include "runner_state.h"

void colibri_runner_text(const char *text)
{
    uint32_t count = 0;
    while (text[count] != 0) {
        count++;
    }
    colibri_runner_write(text, count);
}

void colibri_runner_number(uint64_t value)
{
    char digits[21];
    uint32_t at = sizeof digits;
    do {
        digits[--at] = (char)('0' + value % 10u);
        value /= 10u;
    } while (value != 0u);
    colibri_runner_write(" ", 1);
    colibri_runner_write(digits + at, (uint32_t)sizeof digits - at);
}

void colibri_runner_signed(int64_t value)
{
    if (value >= 0) {
        colibri_runner_number((uint64_t)value);
        return;
    }
    char digits[22];
    uint32_t at = sizeof digits;
    uint64_t rest = 0u - (uint64_t)value;
    do {
        digits[--at] = (char)('0' + rest % 10u);
        rest /= 10u;
    } while (rest != 0u);
    digits[--at] = '-';
    colibri_runner_write(" ", 1);
    colibri_runner_write(digits + at, (uint32_t)sizeof digits - at);
}

void colibri_runner_hex(const void *bytes, uint32_t count)
{
    const unsigned char *from = bytes;
    char pair[2];
    for (uint32_t i = 0; i < count; i++) {
        pair[0] = "0123456789abcdef"[from[i] >> 4];
        pair[1] = "0123456789abcdef"[from[i] & 15u];
        colibri_runner_write(pair, 2);
    }
}

/* A 32-bit pattern, most significant digit first. */
void colibri_runner_word(uint32_t value)
{
    unsigned char bytes[4] = {(unsigned char)(value >> 24), (unsigned char)(value >> 16),
                              (unsigned char)(value >> 8), (unsigned char)value};
    colibri_runner_hex(bytes, 4);
}

void colibri_runner_end(void)
{
    colibri_runner_write("\n", 1);
}

void colibri_runner_done(runner *r, uint32_t code)
{
    r->code = code;
    colibri_runner_text("done");
    colibri_runner_number(code);
    colibri_runner_end();
}

/* Which fetch was answered last. */
void colibri_runner_place(const runner *r, const char *word)
{
    colibri_runner_text(word);
    colibri_runner_number(r->lost_layer);
    colibri_runner_number(r->lost_expert);
    colibri_runner_number(r->lost_offset);
    colibri_runner_end();
}

/* Where limits change the answer: which, and the SHA-256 over the model's identity and them. */
void colibri_runner_lossy(const runner *r)
{
    colibri_sha256 sha;
    uint8_t identity[32];
    uint32_t knobs[2] = {r->job->experts_of_row, 0};
    colibri_runner_copy(&knobs[1], &r->job->skip_below, 4u);
    if ((knobs[0] | knobs[1]) == 0u) {
        return;
    }
    colibri_sha256_start(&sha);
    colibri_sha256_add(&sha, r->info.identity, 32u);
    colibri_sha256_add(&sha, knobs, sizeof knobs);
    colibri_sha256_end(&sha, identity);
    colibri_runner_text("lossy");
    colibri_runner_number(knobs[0]);
    colibri_runner_text(" ");
    colibri_runner_word(knobs[1]);
    colibri_runner_text(" ");
    colibri_runner_hex(identity, 32u);
    colibri_runner_end();
}

/* The core refused `call`: say what about, and end the job. */
void colibri_runner_error(runner *r, const char *call, int32_t status)
{
    if ((status == COLIBRI_ERROR_FETCH || status == COLIBRI_ERROR_CORRUPT) && r->fetches != 0u) {
        colibri_runner_place(r, "lost");
    }
    colibri_runner_text("error ");
    colibri_runner_text(call);
    colibri_runner_signed(status);
    colibri_runner_number(r->detail.section);
    colibri_runner_number(r->detail.field);
    colibri_runner_number(r->detail.index);
    colibri_runner_number(r->detail.offset);
    colibri_runner_number(r->detail.expected);
    colibri_runner_number(r->detail.found);
    colibri_runner_end();
    colibri_runner_done(r, RUNNER_CODE_REFUSED);
}

void colibri_runner_check(runner *r, const char *name, uint64_t expected, uint64_t found)
{
    colibri_runner_text("check ");
    colibri_runner_text(name);
    if (expected == found) {
        colibri_runner_text(" ok");
    } else {
        colibri_runner_text(" bad");
        colibri_runner_signed((int64_t)expected);
        colibri_runner_signed((int64_t)found);
        r->bad++;
    }
    colibri_runner_end();
}

/* Up to 512 of the prompt's ids, from r->row on. */
void colibri_runner_ids(runner *r)
{
    uint32_t left = r->lane[0].prompt - r->row;
    uint32_t count = left < 512u ? left : 512u;
    colibri_runner_text("prompt");
    for (uint32_t i = 0; i < count; i++) {
        colibri_runner_number(r->lane[0].tokens[r->row + i]);
    }
    colibri_runner_end();
    r->row += count;
}

/* The choice of layer r->layer for row r->row of the session's last feed; dense layers give no line. */
void colibri_runner_route(runner *r, const runner_session *s, uint32_t lane, uint32_t position)
{
    uint32_t experts[64];
    float weights[64];
    uint32_t bits[64];
    uint32_t count = colibri_routing(s->session, r->layer, r->row, experts, weights, 64u);
    if (count == 0u) {
        return;
    }
    colibri_runner_copy(bits, weights, sizeof bits);
    colibri_runner_text("route");
    colibri_runner_number(lane);
    colibri_runner_number(position);
    colibri_runner_number(r->layer);
    for (uint32_t i = 0; i < count; i++) {
        colibri_runner_number(experts[i]);
        colibri_runner_write(":", 1);
        colibri_runner_word(bits[i]);
    }
    colibri_runner_end();
}

static void finish_line(const runner *r, uint32_t lane)
{
    static const char words[4][8] = {"none", "stop", "length", "context"};
    colibri_runner_text("finish");
    colibri_runner_number(lane);
    colibri_runner_text(" ");
    colibri_runner_text(words[r->lane[lane].finish]);
    colibri_runner_end();
}

static void saved_line(runner *r)
{
    uint8_t digest[32];
    if (r->saves != 0u) {
        colibri_sha256_end(&r->save_hash, digest);
        colibri_runner_text("saved");
        colibri_runner_number(r->saves);
        colibri_runner_number(r->saved_bytes);
        colibri_runner_text(" ");
        colibri_runner_hex(digest, 32u);
        colibri_runner_end();
    }
}

/* The closing lines of a job that ran to its end. */
void colibri_runner_summary(runner *r)
{
    colibri_stats_result stats = {.struct_bytes = sizeof stats};
    int32_t status = colibri_stats(r->session[0].session, &stats);
    if (status < 0) {
        colibri_runner_error(r, "stats", status);
        return;
    }
    for (uint32_t i = 0; i < r->lanes; i++) {
        if ((r->job->flags & RUNNER_DIGEST) != 0u) {
            colibri_runner_text("digest");
            colibri_runner_number(i);
            colibri_runner_text(" ");
            colibri_runner_hex(r->lane[i].digest, 32u);
            colibri_runner_number(r->lane[i].hashed);
            colibri_runner_end();
        }
        finish_line(r, i);
    }
    if (r->job->store_faults != 0u) {
        colibri_runner_text("faults");
        colibri_runner_number(r->recovered);
        colibri_runner_end();
    }
    if ((r->job->flags & RUNNER_SWAP) != 0u) {
        colibri_runner_text("swap");
        colibri_runner_number(r->swaps);
        colibri_runner_number(r->swap_longest);
        colibri_runner_end();
    }
    saved_line(r);
    colibri_runner_text("threads");
    colibri_runner_number(r->threads);
    colibri_runner_number(colibri_runner_helped());
    colibri_runner_end();
    colibri_runner_text("used");
    colibri_runner_number(stats.pool_used);
    colibri_runner_end();
    colibri_runner_check(r, "used_is_planned", r->plan.pool_bytes, stats.pool_used);
    colibri_runner_text("stats");
    colibri_runner_number(stats.rows);
    colibri_runner_number(stats.units);
    colibri_runner_number(stats.macs);
    colibri_runner_number(stats.expert_hits);
    colibri_runner_number(stats.expert_misses);
    colibri_runner_number(stats.bytes_fetched);
    colibri_runner_number(stats.expert_bytes_fetched);
    colibri_runner_number(stats.hints);
    colibri_runner_number(stats.hints_used);
    colibri_runner_number(stats.hints_wasted);
    colibri_runner_number(stats.hint_bytes);
    colibri_runner_end();
    colibri_runner_text("time");
    colibri_runner_number(r->clock_prefill - r->clock_start);
    colibri_runner_number(r->clock_end - r->clock_prefill);
    colibri_runner_number(r->longest);
    colibri_runner_end();
    colibri_runner_text("stack");
    colibri_runner_number(colibri_runner_stack());
    colibri_runner_end();
    colibri_runner_done(r, r->bad != 0u ? RUNNER_CODE_BAD : 0u);
}
