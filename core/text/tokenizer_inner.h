/*
 * tokenizer_inner.h: what the files of the tokenizer share among each other; nobody else includes it.
 *
 * Encoding is a chain of four stages, each resumable, each splitting what the one before hands down:
 *   raw added tokens -> gap -> (NFC) -> normalized added tokens -> segment -> pre-tokenizer -> piece -> BPE
 * Their state is one struct at the scratch's first byte, all offsets, no pointers.
 */
#ifndef COLIBRI_TOKENIZER_INNER_H
#define COLIBRI_TOKENIZER_INNER_H

#include "text/tokenizer.h"
#include "text/utf8.h"

#define COLIBRI_NO_ID 0xFFFFFFFFu
#define COLIBRI_SPACE_MARK_CODE 0x2581u

/* One character as the tokenizer reads it. */
typedef struct colibri_character {
    uint32_t code;              /* COLIBRI_NO_ID: behind the end */
    uint32_t length;            /* bytes it takes in the source; 0 for a character put in front */
    uint32_t classes;
} colibri_character;

/* Where characters come from: the caller's text or the normalized gap. */
typedef struct colibri_source {
    const uint8_t *bytes;
    uint32_t mark_spaces;       /* a space reads as U+2581 */
} colibri_source;

/* Looking for added tokens in [at, end). */
typedef struct colibri_added_search {
    uint32_t start;             /* what lies before is handed down already */
    uint32_t at;                /* next character to look at */
    uint32_t resume;            /* no match may begin before */
    uint32_t end;
    uint32_t space_start;       /* first of the white space that ends at `at` */
    uint32_t word_before;       /* the character before `at` is a word character */
    uint32_t stripping;         /* a match is found, its right side is being stripped */
    uint32_t found;             /* index in `added`, NO_ID: none up to the end */
    uint32_t found_start;       /* after lstrip */
    uint32_t found_stop;        /* after rstrip */
    uint32_t match_end;         /* before rstrip */
} colibri_added_search;

/* A pre-tokenizer step at work on one piece; see tokenizer_split.c. */
typedef struct colibri_split_scan {
    uint32_t run;
    uint32_t at;
    uint32_t mark;
    uint32_t last;
    uint32_t room;
} colibri_split_scan;

/* What is left of a piece that a step splits. */
typedef struct colibri_split_level {
    uint32_t at;
    uint32_t end;
    uint32_t lead;              /* character put in front (0: none) */
} colibri_split_level;

/* One piece becoming ids; see tokenizer_merge.c. */
typedef struct colibri_merge_state {
    uint32_t phase;
    uint32_t at;
    uint32_t count;             /* symbols before merging */
    uint32_t heap_count;
    uint32_t unknown;           /* the last symbol stands for something unknown */
    uint32_t kept;
} colibri_merge_state;

/* Bringing one gap into NFC; see tokenizer_normal.c. */
typedef struct colibri_normal_state {
    uint32_t phase;
    uint32_t at;
    uint32_t source_bytes;      /* read, with U+FFFD for what is not UTF-8 */
    uint32_t written;
    uint32_t count;             /* characters of the stretch at work */
    uint32_t cursor;
    uint32_t run;
    uint32_t kept;
    uint32_t last;
    uint32_t next;
} colibri_normal_state;

typedef struct colibri_encode_state {
    uint32_t phase;
    uint32_t flags;
    uint32_t bytes;             /* of the text */
    uint32_t limit;             /* bytes the scratch was made for */
    uint64_t steps;
    uint32_t out;               /* ids so far */
    uint32_t measured;          /* bytes of the text as the tokenizer reads it */
    uint32_t from_buffer;       /* the gap at work lies in the scratch, normalized */
    uint32_t lead;              /* character to put in front of the segment */
    colibri_added_search raw;
    colibri_added_search normalized;
    uint32_t depth;
    colibri_split_level levels[COLIBRI_TOKENIZER_STEPS + 1];
    colibri_split_scan scan;
    colibri_split_level piece;
    colibri_merge_state merge;
    colibri_normal_state normal;
} colibri_encode_state;

/* An encode call at work: the state, the arrays behind it, the text, what is left of the budget. */
typedef struct colibri_encoding {
    const colibri_tokenizer *t;
    colibri_encode_state *state;
    uint32_t *ids;              /* ids so far, then the symbols of the piece at work */
    uint32_t ids_room;
    uint32_t *rank;             /* per symbol: rank of merging it with its right neighbour */
    uint32_t *heap;             /* symbols that can merge, lowest rank first, then leftmost */
    uint32_t *place;            /* per symbol: its place in the heap */
    uint32_t room;              /* symbols that these three hold */
    uint8_t *buffer;            /* the normalized gap */
    colibri_source text;
    colibri_source source;      /* of the gap at work */
    uint32_t left;              /* of the budget */
    uint32_t unlimited;
} colibri_encoding;

/* Take `steps` from the budget; 0: it is spent, nothing was taken. The last piece of work may overdraw. */
static inline int colibri_spend(colibri_encoding *e, uint32_t steps)
{
    if (!e->unlimited) {
        if (e->left == 0) {
            return 0;
        }
        e->left -= steps < e->left ? steps : e->left;
    }
    e->state->steps += steps;
    return 1;
}

/* Classes of a character; 0 for what the table does not reach. */
static inline uint32_t colibri_classes(const colibri_tokenizer *t, uint32_t code)
{
    uint32_t leaf;
    uint32_t mask;
    if (code >> 7 >= t->head->class_top.count) {
        return 0;
    }
    leaf = t->class_top[code >> 7];
    if (leaf >= t->head->class_leaves.count >> 7) {
        return 0;
    }
    mask = t->class_leaves[(leaf << 7) + (code & 127)];
    return mask < t->head->class_masks.count ? t->class_masks[mask] : 0;
}

/* The character at `at`, without its classes; code NO_ID and length 0 at the end. */
static inline colibri_character colibri_read(const colibri_source *source, uint32_t at, uint32_t end)
{
    colibri_character c;
    c.code = COLIBRI_NO_ID;
    c.length = 0;
    c.classes = 0;
    if (at < end) {
        c.code = source->bytes[at];
        c.length = 1;
        if (c.code >= 0x80) {
            c.code = colibri_utf8_next(source->bytes, at, end, &c.length);
        } else if (c.code == 0x20 && source->mark_spaces) {
            c.code = COLIBRI_SPACE_MARK_CODE;
        }
    }
    return c;
}

static inline colibri_character colibri_read_classes(const colibri_tokenizer *t, const colibri_source *source,
                                                     uint32_t at, uint32_t end)
{
    colibri_character c = colibri_read(source, at, end);
    if (c.length != 0) {
        c.classes = colibri_classes(t, c.code);
    }
    return c;
}

/* The text of an id; 0: the section contradicts itself. */
int colibri_token_text(const colibri_tokenizer *t, uint32_t id, const uint8_t **text, uint32_t *bytes);

/* Divide a scratch as colibri_tokenizer_scratch() measured it. */
void colibri_encoding_carve(colibri_encoding *e, void *scratch, uint32_t text_limit);

/* The stages. Each returns DONE, AGAIN or an error. */
void colibri_added_begin(colibri_added_search *search, uint32_t start, uint32_t end);
void colibri_added_continue(colibri_added_search *search);
int32_t colibri_added_find(colibri_encoding *e, const colibri_source *source, uint32_t first, uint32_t count,
                           uint32_t set, colibri_added_search *search);
int32_t colibri_normalize(colibri_encoding *e, uint32_t start, uint32_t end);
int32_t colibri_split_next(colibri_encoding *e);
int32_t colibri_merge_piece(colibri_encoding *e);

#endif
