/*
 * tokenizer_decode.c: a stream of ids becomes text, whole characters only. Owns the few bytes that wait for
 * the rest of their character; knows nothing of encoding.
 *
 * What is not UTF-8 comes out as U+FFFD by the rule of utf8.h, so the output of a stream is what the library
 * gives for all tokens at once. (One difference in CHAR_BPE: where a run of byte tokens is not UTF-8 as a
 * whole, the library gives one U+FFFD per byte of the run; a stream cannot know that in time.)
 */
#include "text/tokenizer_inner.h"

#include <stddef.h>

/* Where bytes go: counted always, written if there is room at all. */
typedef struct colibri_decode_out {
    uint8_t *bytes;             /* null: only count */
    uint32_t count;
} colibri_decode_out;

static void decode_emit(colibri_decode_out *out, const uint8_t *bytes, uint32_t count)
{
    uint32_t i;
    for (i = 0; i < count; i++) {
        if (out->bytes != NULL) {
            out->bytes[out->count + i] = bytes[i];
        }
    }
    out->count += count;
}

static void decode_replacement(colibri_decode_out *out)
{
    uint8_t bytes[4];
    decode_emit(out, bytes, colibri_utf8_put(COLIBRI_UTF8_REPLACEMENT, bytes));
}

static void decode_byte(colibri_text_stream *stream, colibri_decode_out *out, uint8_t byte)
{
    uint32_t step = colibri_utf8_step(stream->pending, stream->count, byte);
    if (step == COLIBRI_UTF8_BROKEN) {
        decode_replacement(out);
        stream->count = 0;
        step = colibri_utf8_step(stream->pending, 0, byte);
    }
    if (step == COLIBRI_UTF8_STRAY) {
        decode_replacement(out);
        return;
    }
    stream->pending[stream->count++] = byte;
    if (step == COLIBRI_UTF8_WHOLE) {
        decode_emit(out, stream->pending, stream->count);
        stream->count = 0;
    }
}

static void decode_text(const colibri_tokenizer *t, colibri_text_stream *stream, colibri_decode_out *out,
                        const uint8_t *text, uint32_t bytes)
{
    uint32_t i;
    for (i = 0; i < bytes; i++) {
        if (!stream->stripped) {
            stream->stripped = 1;
            if (text[i] == 0x20 && (t->head->flags & COLIBRI_TOKENIZER_STRIP_SPACE) != 0) {
                continue;
            }
        }
        decode_byte(stream, out, text[i]);
    }
}

uint32_t colibri_tokenizer_decode_room(const colibri_tokenizer *tokenizer)
{
    return 3 * (tokenizer->head->longest + 3);
}

int32_t colibri_tokenizer_decode(const colibri_tokenizer *tokenizer, colibri_text_stream *stream,
                                 uint32_t token, uint32_t flags, void *out, uint32_t capacity,
                                 uint32_t *written)
{
    colibri_text_stream trial = *stream;
    colibri_decode_out sink = {NULL, 0};
    const uint8_t *text;
    uint32_t bytes;
    if (token >= tokenizer->head->vocab) {
        return COLIBRI_ERROR_TOKEN;
    }
    if (stream->count > 3) {
        return COLIBRI_ERROR_ARGUMENT;
    }
    if (!colibri_token_text(tokenizer, token, &text, &bytes)) {
        return COLIBRI_ERROR_TEXT;
    }
    if ((tokenizer->text_first[token] & COLIBRI_TEXT_FIRST_SPECIAL) != 0 &&
        (flags & COLIBRI_TEXT_SPECIAL) == 0) {
        bytes = 0;
    }
    decode_text(tokenizer, &trial, &sink, text, bytes);
    *written = sink.count;
    if (sink.count > capacity) {
        return COLIBRI_ERROR_LIMIT;
    }
    sink.bytes = out;
    sink.count = 0;
    decode_text(tokenizer, stream, &sink, text, bytes);
    return COLIBRI_OK;
}

int32_t colibri_tokenizer_decode_end(colibri_text_stream *stream, void *out, uint32_t capacity,
                                     uint32_t *written)
{
    colibri_decode_out sink = {NULL, 0};
    if (stream->count != 0) {
        decode_replacement(&sink);
    }
    *written = sink.count;
    if (sink.count > capacity) {
        return COLIBRI_ERROR_LIMIT;
    }
    if (stream->count != 0) {
        sink.bytes = out;
        sink.count = 0;
        decode_replacement(&sink);
    }
    stream->count = 0;
    stream->stripped = 0;
    return COLIBRI_OK;
}
