/*
 * stop.h: ending a text at one of several strings, wherever token borders fall. Owns the bytes held back
 * because they may begin a stop string; knows neither tokens nor sessions.
 *
 * The string whose last byte comes first ends the text (of several that end there, the longest), and the
 * text is cut before it. The result does not depend on how the bytes were cut into calls.
 */
#ifndef COLIBRI_STOP_H
#define COLIBRI_STOP_H

#include "colibri.h"

/* Stop strings one behind the other: string i is bytes[ends[i - 1] .. ends[i]), from 0 for the first. Must
 * stay the same while a state refers to them. Empty strings never match. */
typedef struct colibri_stop_set {
    const uint8_t *bytes;
    const uint32_t *ends;
    uint32_t count;
} colibri_stop_set;

/* All zero at the beginning of a text. What is held back is the beginning of a stop string, so naming it
 * is enough. */
typedef struct colibri_stop_state {
    uint32_t string;
    uint32_t held;
    uint32_t stopped;
    uint32_t reserved;
} colibri_stop_state;

/* Add bytes; writes those that can be shown now. OK, or DONE once a stop string is complete (what follows is
 * ignored, then and in later calls). ERROR_LIMIT: *written = state->held + count bytes of room are needed,
 * nothing changed. */
int32_t colibri_stop_feed(const colibri_stop_set *set, colibri_stop_state *state, const void *in,
                          uint32_t count, void *out, uint32_t capacity, uint32_t *written);

/* The end of a text: writes what was held back. */
int32_t colibri_stop_end(const colibri_stop_set *set, colibri_stop_state *state, void *out, uint32_t capacity,
                         uint32_t *written);

#endif
