/*
 * tokenizer_encode.c: the chain of stages from text to ids (see tokenizer_inner.h). Owns the order of the
 * stages and what is passed between them; knows nothing of how a stage works.
 */
#include "base/base.h"
#include "text/tokenizer_inner.h"

enum encode_phase {
    ENCODE_IDLE = 0,
    ENCODE_MEASURE,
    ENCODE_RAW,                 /* looking for added tokens in raw text */
    ENCODE_NORMAL,              /* normalizing the gap before one */
    ENCODE_ADDED,               /* looking for added tokens in the normalized gap */
    ENCODE_SPLIT,               /* taking the next piece of the segment before one */
    ENCODE_MERGE,
    ENCODE_COPY
};

static int32_t encode_push(colibri_encoding *e, uint32_t id)
{
    if (id >= e->t->head->vocab || e->state->out >= e->ids_room) {
        return COLIBRI_ERROR_TEXT;
    }
    e->ids[e->state->out++] = id;
    return COLIBRI_OK;
}

static int32_t encode_push_all(colibri_encoding *e, const uint32_t *ids, uint32_t count)
{
    uint32_t i;
    for (i = 0; i < count; i++) {
        int32_t status = encode_push(e, ids[i]);
        if (status != COLIBRI_OK) {
            return status;
        }
    }
    return COLIBRI_OK;
}

static void encode_begin(colibri_encoding *e, uint32_t flags, uint32_t bytes, uint32_t limit)
{
    colibri_encode_state *s = e->state;
    colibri_fill(s, 0, sizeof *s);
    s->flags = flags;
    s->bytes = bytes;
    s->limit = limit;
    s->phase = ENCODE_MEASURE;
    colibri_added_begin(&s->raw, 0, bytes);
}

/* How long is the text with U+FFFD for what is not UTF-8? Uses raw.at as its cursor. */
static int32_t encode_measure(colibri_encoding *e)
{
    colibri_encode_state *s = e->state;
    uint8_t bytes[4];
    while (s->raw.at < s->bytes) {
        colibri_character c = colibri_read(&e->text, s->raw.at, s->bytes);
        if (!colibri_spend(e, 1)) {
            return COLIBRI_AGAIN;
        }
        s->measured += c.code < 0x80 ? 1 : colibri_utf8_put(c.code, bytes);
        s->raw.at += c.length;
    }
    if (s->measured > s->limit) {
        return COLIBRI_ERROR_TEXT_LONG;
    }
    colibri_added_begin(&s->raw, 0, s->bytes);
    s->phase = ENCODE_RAW;
    return (s->flags & COLIBRI_TEXT_BOS) == 0
               ? COLIBRI_OK
               : encode_push_all(e, e->t->head->prefix, e->t->head->prefix_count);
}

/* An added token has been found (or the end of the text): what lies before it is the next gap. */
static int32_t encode_raw(colibri_encoding *e)
{
    colibri_added_search *search = &e->state->raw;
    int32_t status = colibri_added_find(e, &e->text, 0, e->t->head->added_raw, 0, search);
    if (status == COLIBRI_DONE) {
        e->state->phase = ENCODE_NORMAL;
        status = COLIBRI_OK;
    }
    return status;
}

static void encode_source(colibri_encoding *e)
{
    e->source = e->text;
    if (e->state->from_buffer) {
        e->source.bytes = e->buffer;
    }
    e->source.mark_spaces = e->t->head->flags & COLIBRI_TOKENIZER_SPACE_MARK;
}

static int32_t encode_normal(colibri_encoding *e)
{
    colibri_encode_state *s = e->state;
    uint32_t start = s->raw.start;
    uint32_t end = s->raw.found == COLIBRI_NO_ID ? s->raw.end : s->raw.found_start;
    s->from_buffer = 0;
    if ((e->t->head->flags & COLIBRI_TOKENIZER_NFC) != 0) {
        int32_t status = colibri_normalize(e, start, end);
        if (status != COLIBRI_DONE) {
            return status;
        }
        if (s->from_buffer) {
            start = 0;
            end = s->normal.written;
        }
    }
    s->lead = 0;
    if (start < end && (e->t->head->flags & COLIBRI_TOKENIZER_PREFIX_MARK) != 0) {
        s->lead = COLIBRI_SPACE_MARK_CODE;
    }
    colibri_added_begin(&s->normalized, start, end);
    s->phase = ENCODE_ADDED;
    encode_source(e);
    return COLIBRI_OK;
}

/* The next segment: up to a normalized added token or the end of the gap. */
static int32_t encode_added(colibri_encoding *e)
{
    colibri_encode_state *s = e->state;
    const colibri_tokenizer_header *h = e->t->head;
    colibri_added_search *search = &s->normalized;
    colibri_split_level *segment = &s->levels[0];
    uint32_t normalized = h->added.count - h->added_raw;
    int32_t status = colibri_added_find(e, &e->source, h->added_raw, normalized, 1, search);
    if (status != COLIBRI_DONE) {
        return status;
    }
    segment->at = search->start;
    segment->end = search->found == COLIBRI_NO_ID ? search->end : search->found_start;
    segment->lead = s->lead;
    s->lead = 0;
    if ((h->flags & COLIBRI_TOKENIZER_PREFIX_SPACE) != 0 && segment->at < segment->end &&
        colibri_read(&e->source, segment->at, segment->end).code != 0x20) {
        segment->lead = 0x20;
    }
    s->depth = 0;
    s->phase = ENCODE_SPLIT;
    return COLIBRI_OK;
}

/* The segment is used up: hand on the added token behind it, and the one behind the gap if that is used
 * up too. */
static int32_t encode_segment_end(colibri_encoding *e)
{
    colibri_encode_state *s = e->state;
    uint32_t found = s->normalized.found;
    if (found != COLIBRI_NO_ID) {
        colibri_added_continue(&s->normalized);
        s->phase = ENCODE_ADDED;
        return encode_push(e, e->t->added[found].id);
    }
    found = s->raw.found;
    if (found != COLIBRI_NO_ID) {
        colibri_added_continue(&s->raw);
        s->phase = ENCODE_RAW;
        return encode_push(e, e->t->added[found].id);
    }
    s->phase = ENCODE_COPY;
    s->merge.at = 0;
    return (s->flags & COLIBRI_TEXT_BOS) == 0
               ? COLIBRI_OK
               : encode_push_all(e, e->t->head->suffix, e->t->head->suffix_count);
}

static int32_t encode_split(colibri_encoding *e)
{
    colibri_encode_state *s = e->state;
    int32_t status = colibri_split_next(e);
    if (status != COLIBRI_DONE) {
        return status;
    }
    if (s->piece.at == s->piece.end && s->piece.lead == 0) {
        return encode_segment_end(e);
    }
    s->phase = ENCODE_MERGE;
    return COLIBRI_OK;
}

static int32_t encode_merge(colibri_encoding *e)
{
    int32_t status = colibri_merge_piece(e);
    if (status == COLIBRI_DONE) {
        e->state->phase = ENCODE_SPLIT;
        status = COLIBRI_OK;
    }
    return status;
}

static int32_t encode_copy(colibri_encoding *e, uint32_t *ids, uint32_t capacity)
{
    colibri_encode_state *s = e->state;
    if (s->out > capacity) {
        return COLIBRI_ERROR_LIMIT;
    }
    while (s->merge.at < s->out) {
        if (!colibri_spend(e, 1)) {
            return COLIBRI_AGAIN;
        }
        ids[s->merge.at] = e->ids[s->merge.at];
        s->merge.at++;
    }
    return COLIBRI_DONE;
}

/* One stage, as far as the budget goes. OK: go on with the stage that state->phase names now. */
static int32_t encode_stage(colibri_encoding *e, uint32_t *ids, uint32_t capacity)
{
    switch (e->state->phase) {
    case ENCODE_MEASURE:
        return encode_measure(e);
    case ENCODE_RAW:
        return encode_raw(e);
    case ENCODE_NORMAL:
        return encode_normal(e);
    case ENCODE_ADDED:
        return encode_added(e);
    case ENCODE_SPLIT:
        return encode_split(e);
    case ENCODE_MERGE:
        return encode_merge(e);
    default:
        return encode_copy(e, ids, capacity);
    }
}

void colibri_tokenizer_reset(void *scratch)
{
    ((colibri_encode_state *)scratch)->phase = ENCODE_IDLE;
}

uint64_t colibri_tokenizer_steps(const void *scratch)
{
    return ((const colibri_encode_state *)scratch)->steps;
}

int32_t colibri_tokenizer_encode(const colibri_tokenizer *tokenizer, void *scratch, uint32_t text_limit,
                                 const void *text, uint32_t bytes, uint32_t flags, uint32_t budget,
                                 uint32_t *ids, uint32_t capacity, uint32_t *count)
{
    colibri_encoding e;
    int32_t status = COLIBRI_OK;
    e.t = tokenizer;
    colibri_encoding_carve(&e, scratch, text_limit);
    e.text.bytes = text;
    e.text.mark_spaces = 0;
    e.left = budget;
    e.unlimited = budget == COLIBRI_UNLIMITED;
    if (e.state->phase == ENCODE_IDLE) {
        encode_begin(&e, flags, bytes, text_limit);
    } else if (e.state->bytes != bytes || e.state->flags != flags || e.state->limit != text_limit) {
        return COLIBRI_ERROR_ARGUMENT;      /* another text is unfinished: go on with it, or reset */
    }
    if (bytes > text_limit) {
        e.state->measured = bytes;
        status = COLIBRI_ERROR_TEXT_LONG;
    }
    encode_source(&e);
    while (status == COLIBRI_OK) {
        status = encode_stage(&e, ids, capacity);
    }
    if (status == COLIBRI_DONE || status == COLIBRI_ERROR_LIMIT) {
        *count = e.state->out;
    } else if (status == COLIBRI_ERROR_TEXT_LONG) {
        *count = e.state->measured;
    }
    if (status != COLIBRI_AGAIN) {
        e.state->phase = ENCODE_IDLE;
    }
    return status;
}
