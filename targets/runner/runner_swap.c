/*
 * runner_swap.c: with RUNNER_SWAP, one expert after the other is replaced by a copy of itself while a job runs. No bit
 * of the answer may change, nor the identity; what the exchange itself takes is measured.
 */
#include "runner_state.h"

#define PIECE 65536u                            /* bytes of one call */

/* The next expert of the model, in the order of the file; 0: it has none. */
static uint32_t next_expert(runner *r, colibri_expert *e)
{
    *e = (colibri_expert){.struct_bytes = sizeof *e};
    for (uint32_t tried = 0; tried <= r->info.layers; tried++) {
        if (colibri_expert_of(&r->model, r->swap_layer, r->swap_expert, e) == COLIBRI_OK) {
            r->swap_expert++;
            return 1u;
        }
        r->swap_layer = r->swap_layer + 1u < r->info.layers ? r->swap_layer + 1u : 0u;
        r->swap_expert = 0;
    }
    return 0u;
}

/* The one before gives its slot back first: a call of its own, as short as the exchange. */
static int32_t exchange(runner *r, runner_session *s, const colibri_expert *e)
{
    int32_t status = COLIBRI_DONE;
    if (s->swapped.struct_bytes != 0u) {
        status = colibri_swap_expert(s->session, &s->swapped, PIECE, &r->detail);
    }
    while (status >= 0) {
        uint64_t begun = colibri_runner_clock();
        status = colibri_swap_expert(s->session, e, PIECE, &r->detail);
        uint64_t took = colibri_runner_clock() - begun;
        if (status == COLIBRI_DONE) {
            r->swap_longest = took > r->swap_longest ? took : r->swap_longest;
            r->swaps++;
            break;
        }
    }
    s->swapped = *e;
    s->swapped.run = 0;
    return status;
}

void colibri_runner_swap(runner *r, runner_session *s)
{
    colibri_expert e;
    uint8_t identity[32];
    if ((r->job->flags & RUNNER_SWAP) == 0u || next_expert(r, &e) == 0u) {
        return;
    }
    e.run = r->blob + e.offset;
    int32_t status = exchange(r, s, &e);
    if (status < 0) {
        colibri_runner_error(r, "swap", status);
        return;
    }
    (void)colibri_identity(s->session, identity);
    if (colibri_runner_differ(identity, r->info.identity, 32u) != 0u) {
        colibri_runner_check(r, "identity_of_copies", 0u, 1u);
    }
}
