/* stop.c: see stop.h. Stop strings are few and short, so suffixes are compared one by one. */
#include "text/stop.h"

/* What is under comparison: the bytes held back and one new byte behind them. */
typedef struct colibri_stop_window {
    const uint8_t *held;
    uint32_t count;             /* with the new byte */
    uint8_t byte;
} colibri_stop_window;

static const uint8_t *stop_string(const colibri_stop_set *set, uint32_t i, uint32_t *count)
{
    uint32_t first = i == 0 ? 0 : set->ends[i - 1];
    *count = set->ends[i] - first;
    return set->bytes + first;
}

static uint8_t stop_at(const colibri_stop_window *w, uint32_t i)
{
    return i + 1 < w->count ? w->held[i] : w->byte;
}

/* The string that begins with the window's bytes from `start` on: as a whole, or with more to come. */
static uint32_t stop_match(const colibri_stop_set *set, const colibri_stop_window *w, uint32_t start,
                           int whole)
{
    uint32_t length = w->count - start;
    uint32_t s;
    for (s = 0; s < set->count; s++) {
        uint32_t count;
        const uint8_t *string = stop_string(set, s, &count);
        if (whole ? count == length : count > length) {
            uint32_t i = 0;
            while (i < length && string[i] == stop_at(w, start + i)) {
                i++;
            }
            if (i == length) {
                return s;
            }
        }
    }
    return set->count;
}

/* Add one byte; returns how many bytes of the window are free to be shown. */
static uint32_t stop_byte(const colibri_stop_set *set, colibri_stop_state *state,
                          const colibri_stop_window *w)
{
    uint32_t start;
    for (start = 0; start < w->count; start++) {
        if (stop_match(set, w, start, 1) < set->count) {
            state->stopped = 1;
            state->held = 0;
            return start;
        }
    }
    for (start = 0; start < w->count; start++) {
        uint32_t s = stop_match(set, w, start, 0);
        if (s < set->count) {
            state->string = s;
            state->held = w->count - start;
            return start;
        }
    }
    state->held = 0;
    return w->count;
}

int32_t colibri_stop_feed(const colibri_stop_set *set, colibri_stop_state *state, const void *in,
                          uint32_t count, void *out, uint32_t capacity, uint32_t *written)
{
    const uint8_t *bytes = in;
    uint8_t *shown = out;
    uint32_t n = 0;
    uint32_t i;
    if (state->held > capacity || count > capacity - state->held) {
        *written = state->held + count;
        return COLIBRI_ERROR_LIMIT;
    }
    for (i = 0; i < count && !state->stopped; i++) {
        colibri_stop_window w;
        uint32_t unused;
        uint32_t free_bytes;
        uint32_t k;
        w.held = state->held == 0 ? 0 : stop_string(set, state->string, &unused);
        w.count = state->held + 1;
        w.byte = bytes[i];
        free_bytes = stop_byte(set, state, &w);
        for (k = 0; k < free_bytes; k++) {
            shown[n++] = stop_at(&w, k);
        }
    }
    *written = n;
    return state->stopped ? COLIBRI_DONE : COLIBRI_OK;
}

int32_t colibri_stop_end(const colibri_stop_set *set, colibri_stop_state *state, void *out, uint32_t capacity,
                         uint32_t *written)
{
    uint8_t *shown = out;
    uint32_t count;
    uint32_t i;
    const uint8_t *held = state->held == 0 ? 0 : stop_string(set, state->string, &count);
    *written = state->held;
    if (state->held > capacity) {
        return COLIBRI_ERROR_LIMIT;
    }
    for (i = 0; i < state->held; i++) {
        shown[i] = held[i];
    }
    state->held = 0;
    return COLIBRI_OK;
}
