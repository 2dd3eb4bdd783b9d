/*
 * tokenizer.h: text to token ids and back. Owns the meaning of the tokenizer section (tokenizer_format.h);
 * knows no session, no model and no memory but what the caller gives.
 *
 * The section is untrusted: every index that comes out of a table is checked before it is used, and a table
 * that contradicts itself ends in COLIBRI_ERROR_TEXT. Results equal those of the Hugging Face `tokenizers`
 * library for the text as Python's bytes.decode("utf-8", "replace") reads it.
 */
#ifndef COLIBRI_TOKENIZER_H
#define COLIBRI_TOKENIZER_H

#include "colibri.h"
#include "text/tokenizer_format.h"

/* A bound section: pointers into it, checked once. Cheap to make; live on the caller's stack, never in
 * the pool. */
typedef struct colibri_tokenizer {
    const uint8_t *base;
    const colibri_tokenizer_header *head;
    const uint32_t *text_first;
    const uint8_t *texts;
    const uint32_t *byte_ids;
    const uint32_t *merge_first;
    const colibri_tokenizer_merge *merges;
    const uint32_t *whole;
    const colibri_tokenizer_char *chars;
    const colibri_tokenizer_added *added;
    const uint8_t *added_texts;
    const uint16_t *class_top;
    const uint8_t *class_leaves;
    const uint32_t *class_masks;
    const uint16_t *combining_top;
    const uint8_t *combining_leaves;
    const colibri_tokenizer_span *decompositions;
    const uint32_t *decomposed;
    const colibri_tokenizer_compose *compositions;
    const uint8_t *markers;
    uint32_t step_count;
} colibri_tokenizer;

/* Bind a section in place, O(1): header and table bounds. `section` is 4-byte aligned. On an error the detail
 * (may be null) has the offset in the section. UNSUPPORTED: a kind, flag or step this build does not know. */
int32_t colibri_tokenizer_bind(colibri_tokenizer *tokenizer, const void *section, uint64_t bytes,
                               colibri_detail *detail);

/* A role marker (colibri_tokenizer_marker); LEFT_OUT if the checkpoint's chat template has no plain form. */
int32_t colibri_tokenizer_marker_text(const colibri_tokenizer *tokenizer, uint32_t marker,
                                      const uint8_t **text, uint32_t *bytes);

/* Bytes of scratch (8-byte aligned) that encode needs for texts of up to text_bytes bytes; 0 if that is more
 * than a session can have. The length of a text is counted as the tokenizer reads it: three bytes for every
 * U+FFFD that stands in for bytes that are not UTF-8, and after normalization where there is one. */
uint64_t colibri_tokenizer_scratch(const colibri_tokenizer *tokenizer, uint32_t text_bytes);

/* Forget an unfinished encode. A scratch of all zero needs no reset; DONE and errors reset by themselves. */
void colibri_tokenizer_reset(void *scratch);

/* Text to ids, at most about `budget` small steps (a character looked at, a level of a heap moved) in this
 * call; COLIBRI_UNLIMITED: to the end. Returns
 *   DONE             *count ids written
 *   AGAIN            call again with the same arguments
 *   ERROR_LIMIT      capacity is too small: *count ids are needed; ids untouched
 *   ERROR_TEXT_LONG  *count bytes (as the tokenizer reads them) are needed; ids untouched
 *   ERROR_TEXT       the section contradicts itself
 * text_limit says what the scratch was made for: it has colibri_tokenizer_scratch(tokenizer, text_limit)
 * bytes. */
int32_t colibri_tokenizer_encode(const colibri_tokenizer *tokenizer, void *scratch, uint32_t text_limit,
                                 const void *text, uint32_t bytes, uint32_t flags, uint32_t budget,
                                 uint32_t *ids, uint32_t capacity, uint32_t *count);

/* Steps spent since the scratch's encode began (or by the last finished one). */
uint64_t colibri_tokenizer_steps(const void *scratch);

/* A stream of tokens becoming text. All zero before the first token. */
typedef struct colibri_text_stream {
    uint8_t pending[4];         /* the bytes of an unfinished character */
    uint32_t count;
    uint32_t stripped;          /* the space at the very beginning is behind us */
    uint32_t reserved[5];
} colibri_text_stream;

/* Bytes of room that always suffice for one token. */
uint32_t colibri_tokenizer_decode_room(const colibri_tokenizer *tokenizer);

/* Add one token; writes whole characters only. flags: COLIBRI_TEXT_SPECIAL writes special tokens out, else
 * they are silent. ERROR_LIMIT: *written bytes are needed, nothing changed. ERROR_TOKEN: beyond the
 * vocabulary. */
int32_t colibri_tokenizer_decode(const colibri_tokenizer *tokenizer, colibri_text_stream *stream,
                                 uint32_t token, uint32_t flags, void *out, uint32_t capacity,
                                 uint32_t *written);

/* The end of the stream: an unfinished character becomes U+FFFD (3 bytes). */
int32_t colibri_tokenizer_decode_end(colibri_text_stream *stream, void *out, uint32_t capacity,
                                     uint32_t *written);

#endif
