/*
 * text.c: the text calls of a session. The tokenizer's section is bound anew at every call (cheap, O(1)), so that no
 * pointer is kept in the pool; scratch lies in the pool's text region: the tokenizer's first, then the sampler's.
 */
#include "api/limits.h"
#include "base/fpenv.h"

#ifndef COLIBRI_TEXT
#define COLIBRI_TEXT 1
#endif

#if COLIBRI_TEXT

#include "text/sampler.h"
#include "text/tokenizer.h"

static int32_t colibri_bind(const colibri_view *view, colibri_tokenizer *tokenizer, colibri_detail *detail)
{
    const colibri_table *table = &view->table[COLIBRI_SECTION_TOKENIZER];
    if (!table->present) {
        return colibri_refuse(detail, COLIBRI_ERROR_TEXT, COLIBRI_SECTION_TOKENIZER, COLIBRI_FIELD_MISSING, 0, 0, 1, 0);
    }
    if (table->offset + table->payload > view->addressable) {
        return colibri_refuse(detail, COLIBRI_ERROR_ADDRESS, COLIBRI_SECTION_TOKENIZER, COLIBRI_FIELD_FILE_BYTES, 0,
                              table->offset, table->offset + table->payload, view->addressable);
    }
    return colibri_tokenizer_bind(tokenizer, view->blob + table->offset, table->payload, detail);
}

static uint64_t colibri_sampler_bytes(uint32_t vocab)
{
    return colibri_round_up(colibri_sampler_scratch(vocab), COLIBRI_POOL_ALIGN);
}

int32_t colibri_text_plan(const colibri_view *view, const colibri_limits *limits, uint64_t *bytes,
                          colibri_detail *detail)
{
    colibri_tokenizer tokenizer;
    *bytes = colibri_sampler_bytes(view->vocab);
    if (limits->text_bytes == 0u) {
        return COLIBRI_OK;
    }
    int32_t status = colibri_bind(view, &tokenizer, detail);
    if (status < 0) {
        return status;
    }
    uint64_t scratch = colibri_tokenizer_scratch(&tokenizer, limits->text_bytes);
    if (scratch == 0u) {
        return colibri_refuse(detail, COLIBRI_ERROR_ARGUMENT, 0, COLIBRI_FIELD_TEXT_BYTES, 0, 0, 0, limits->text_bytes);
    }
    *bytes += scratch;
    return COLIBRI_OK;
}

static void *colibri_encode_scratch(const colibri_session *s)
{
    return colibri_pool_at(s, s->layout.text + colibri_sampler_bytes(s->view.vocab));
}

void colibri_text_begin(colibri_session *s)
{
    if (s->limits.text_bytes) {
        colibri_tokenizer_reset(colibri_encode_scratch(s));
    }
}

static int32_t colibri_text_ready(const colibri_session *s)
{
    if (!s || s->magic != COLIBRI_SESSION_MAGIC) {
        return COLIBRI_ERROR_ARGUMENT;
    }
    return s->state == COLIBRI_STATE_STOPPED ? COLIBRI_ERROR_STOPPED : COLIBRI_OK;
}

int32_t colibri_encode(colibri_session *s, const char *text, uint32_t bytes, uint32_t flags, uint32_t budget,
                       uint32_t *ids, uint32_t capacity, uint32_t *count)
{
    colibri_tokenizer tokenizer;
    int32_t status = colibri_text_ready(s);
    if (status < 0 || !count || (bytes && !text) || (capacity && !ids)) {
        return status < 0 ? status : COLIBRI_ERROR_ARGUMENT;
    }
    if (s->limits.text_bytes == 0u) {
        *count = bytes;
        return COLIBRI_ERROR_TEXT_LONG;
    }
    status = colibri_bind(&s->view, &tokenizer, 0);
    if (status < 0) {
        return status;
    }
    return colibri_tokenizer_encode(&tokenizer, colibri_encode_scratch(s), s->limits.text_bytes, text, bytes, flags,
                                    budget, ids, capacity, count);
}

int32_t colibri_decode(colibri_session *s, colibri_decoder *decoder, uint32_t token, uint32_t flags, char *out,
                       uint32_t capacity, uint32_t *written)
{
    colibri_tokenizer tokenizer;
    int32_t status = colibri_text_ready(s);
    if (status < 0 || !decoder || !written || (capacity && !out)) {
        return status < 0 ? status : COLIBRI_ERROR_ARGUMENT;
    }
    status = colibri_bind(&s->view, &tokenizer, 0);
    return status < 0 ? status
                      : colibri_tokenizer_decode(&tokenizer, (colibri_text_stream *)(void *)decoder, token, flags, out,
                                                 capacity, written);
}

int32_t colibri_decode_end(colibri_session *s, colibri_decoder *decoder, char *out, uint32_t capacity,
                           uint32_t *written)
{
    int32_t status = colibri_text_ready(s);
    if (status < 0 || !decoder || !written || (capacity && !out)) {
        return status < 0 ? status : COLIBRI_ERROR_ARGUMENT;
    }
    return colibri_tokenizer_decode_end((colibri_text_stream *)(void *)decoder, out, capacity, written);
}

int32_t colibri_sample(colibri_session *s, uint32_t index, const colibri_sampling *sampling, const uint32_t *recent,
                       uint32_t recent_count, uint32_t *token)
{
    int32_t status = colibri_text_ready(s);
    if (status < 0) {
        return status;
    }
    const float *logits = colibri_logits(s, index);
    if (!sampling || !token || !logits || sampling->struct_bytes != sizeof *sampling || sampling->reserved[0] ||
        sampling->reserved[1] || (recent_count && !recent)) {
        return COLIBRI_ERROR_ARGUMENT;
    }
    uint64_t host = colibri_fpenv_enter();
    status = colibri_sampler_draw(logits, s->view.vocab, sampling, recent, recent_count,
                                  colibri_pool_at(s, s->layout.text), token);
    colibri_fpenv_leave(host);
    return status;
}

#else                                           /* built with text=0 */

int32_t colibri_text_plan(const colibri_view *view, const colibri_limits *limits, uint64_t *bytes,
                          colibri_detail *detail)
{
    (void)view;
    *bytes = 0;
    if (limits->text_bytes == 0u) {
        return COLIBRI_OK;
    }
    return colibri_refuse(detail, COLIBRI_ERROR_LEFT_OUT, 0, COLIBRI_FIELD_TEXT_BYTES, 0, 0, 0, limits->text_bytes);
}

void colibri_text_begin(colibri_session *s)
{
    (void)s;
}

int32_t colibri_encode(colibri_session *s, const char *text, uint32_t bytes, uint32_t flags, uint32_t budget,
                       uint32_t *ids, uint32_t capacity, uint32_t *count)
{
    (void)s, (void)text, (void)bytes, (void)flags, (void)budget, (void)ids, (void)capacity, (void)count;
    return COLIBRI_ERROR_LEFT_OUT;
}

int32_t colibri_decode(colibri_session *s, colibri_decoder *decoder, uint32_t token, uint32_t flags, char *out,
                       uint32_t capacity, uint32_t *written)
{
    (void)s, (void)decoder, (void)token, (void)flags, (void)out, (void)capacity, (void)written;
    return COLIBRI_ERROR_LEFT_OUT;
}

int32_t colibri_decode_end(colibri_session *s, colibri_decoder *decoder, char *out, uint32_t capacity,
                           uint32_t *written)
{
    (void)s, (void)decoder, (void)out, (void)capacity, (void)written;
    return COLIBRI_ERROR_LEFT_OUT;
}

int32_t colibri_stop_feed(const colibri_stop_set *set, colibri_stop_state *state, const void *in, uint32_t count,
                          void *out, uint32_t capacity, uint32_t *written)
{
    (void)set, (void)state, (void)in, (void)count, (void)out, (void)capacity, (void)written;
    return COLIBRI_ERROR_LEFT_OUT;
}

int32_t colibri_stop_end(const colibri_stop_set *set, colibri_stop_state *state, void *out, uint32_t capacity,
                         uint32_t *written)
{
    (void)set, (void)state, (void)out, (void)capacity, (void)written;
    return COLIBRI_ERROR_LEFT_OUT;
}

int32_t colibri_sample(colibri_session *s, uint32_t index, const colibri_sampling *sampling, const uint32_t *recent,
                       uint32_t recent_count, uint32_t *token)
{
    (void)s, (void)index, (void)sampling, (void)recent, (void)recent_count, (void)token;
    return COLIBRI_ERROR_LEFT_OUT;
}

#endif
