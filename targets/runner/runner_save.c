/*
 * runner_save.c: with RUNNER_SAVE a session is saved before every feed, emptied, its cache and logits overwritten, and
 * restored. No bit of the answer may change; and the saves are the same bytes on every target.
 */
#include "runner_state.h"

#define PIECE 1000u                             /* bytes of one call */

/* Room for a save: what the plan has for cache and logits, and the head. */
uint64_t colibri_runner_save_room(const runner *r)
{
    if ((r->job->flags & RUNNER_SAVE) == 0u) {
        return 0u;
    }
    return r->plan.region_bytes[COLIBRI_REGION_KV] + r->plan.region_bytes[COLIBRI_REGION_LOGITS] +
           8u * r->limits.sequences + RUNNER_SAVE_HEAD;
}

static int32_t save(runner *r, runner_session *s, uint64_t *bytes)
{
    int32_t status = COLIBRI_AGAIN;
    *bytes = colibri_save_bytes(s->session, COLIBRI_SAVE_LOGITS);
    while (status == COLIBRI_AGAIN) {
        status = colibri_save(s->session, COLIBRI_SAVE_LOGITS, r->saved, colibri_runner_save_room(r), PIECE,
                              &r->detail);
    }
    return status;
}

static int32_t restore(runner *r, runner_session *s, uint64_t bytes)
{
    const uint32_t regions[2] = {COLIBRI_REGION_KV, COLIBRI_REGION_LOGITS};
    int32_t status = colibri_reset(s->session, COLIBRI_ALL_SEQUENCES);
    for (uint32_t i = 0; i < 2u; i++) {
        colibri_runner_set(s->pool + r->plan.region_offset[regions[i]], 0xA5u, r->plan.region_bytes[regions[i]]);
    }
    status = status < 0 ? status : COLIBRI_AGAIN;
    while (status == COLIBRI_AGAIN) {
        status = colibri_restore(s->session, r->saved, bytes, PIECE, &r->detail);
    }
    return status;
}

void colibri_runner_save(runner *r, runner_session *s)
{
    uint64_t bytes = 0, again = 0;
    uint8_t first[32], second[32];
    colibri_sha256 hash;
    if ((r->job->flags & RUNNER_SAVE) == 0u) {
        return;
    }
    int32_t status = save(r, s, &bytes);
    colibri_sha256_start(&hash);
    colibri_sha256_add(&hash, r->saved, bytes);
    colibri_sha256_end(&hash, first);
    status = status < 0 ? status : restore(r, s, bytes);
    status = status < 0 ? status : save(r, s, &again);
    if (status < 0) {
        colibri_runner_error(r, "save", status);
        return;
    }
    colibri_sha256_start(&hash);
    colibri_sha256_add(&hash, r->saved, again);
    colibri_sha256_end(&hash, second);
    if (bytes != again || colibri_runner_differ(first, second, 32u) != 0u) {
        colibri_runner_check(r, "saved_again", bytes, again);
    }
    if (r->saves == 0u) {
        colibri_sha256_start(&r->save_hash);
    }
    colibri_sha256_add(&r->save_hash, first, 32u);
    r->saves++;
    r->saved_bytes = bytes;
}
