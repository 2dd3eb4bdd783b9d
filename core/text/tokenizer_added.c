/*
 * tokenizer_added.c: finding added tokens in text: leftmost first, the longest of those that begin there.
 * Knows nothing of what is done with the text between them.
 *
 * The contents are sorted by bytes, so a match walks the text byte by byte and narrows a range of candidates
 * by binary search. A bit per first byte keeps ordinary text away from that.
 */
#include "text/tokenizer_inner.h"

/* Candidates [low, high) share the first `depth` bytes. */
typedef struct colibri_added_range {
    uint32_t low;
    uint32_t high;
    uint32_t depth;
} colibri_added_range;

/* The byte of a content at `depth` plus 1; 0 where it ends before (it sorts first); 0x200: entry not
 * valid. */
static uint32_t added_byte(const colibri_tokenizer *t, uint32_t index, uint32_t depth)
{
    const colibri_tokenizer_added *a = &t->added[index];
    uint32_t room = t->head->added_texts.count;
    if (a->bytes > t->head->added_longest || a->first > room || a->bytes > room - a->first) {
        return 0x200;
    }
    return depth < a->bytes ? (uint32_t)t->added_texts[a->first + depth] + 1 : 0;
}

/* The first candidate whose byte at range.depth is not below `key`. */
static uint32_t added_bound(const colibri_tokenizer *t, colibri_added_range range, uint32_t key)
{
    uint32_t low = range.low;
    uint32_t high = range.high;
    while (low < high) {
        uint32_t middle = low + (high - low) / 2;
        if (added_byte(t, middle, range.depth) < key) {
            low = middle + 1;
        } else {
            high = middle;
        }
    }
    return low;
}

/* The longest content that begins at `at`: its index (NO_ID: none), *stop behind it. *steps counts bytes
 * walked. */
static uint32_t added_longest(const colibri_encoding *e, const colibri_source *source,
                              colibri_added_range range, uint32_t at, uint32_t end, uint32_t *stop,
                              uint32_t *steps)
{
    uint32_t best = COLIBRI_NO_ID;
    uint8_t bytes[4];
    while (at < end && range.low < range.high) {
        colibri_character c = colibri_read(source, at, end);
        uint32_t count = colibri_utf8_put(c.code, bytes);
        uint32_t i;
        for (i = 0; i < count && range.low < range.high; i++) {
            uint32_t key = (uint32_t)bytes[i] + 1;
            range.low = added_bound(e->t, range, key);
            range.high = added_bound(e->t, range, key + 1);
            range.depth++;
            ++*steps;
        }
        at += c.length;
        if (i == count && range.low < range.high && added_byte(e->t, range.low, range.depth) == 0) {
            best = range.low;
            *stop = at;
        }
    }
    return best;
}

/* Whether a match counts: text of special tokens may have to stay text, single words need an edge on both
 * sides. What does not count is passed over as a whole, as the library does. */
static int added_counts(const colibri_encoding *e, const colibri_source *source,
                        const colibri_added_search *search, uint32_t found, uint32_t stop)
{
    uint32_t flags = e->t->added[found].flags;
    if ((flags & COLIBRI_ADDED_SPECIAL) != 0 && (e->state->flags & COLIBRI_TEXT_SPECIAL) == 0) {
        return 0;
    }
    if ((flags & COLIBRI_ADDED_SINGLE_WORD) != 0) {
        colibri_character after = colibri_read_classes(e->t, source, stop, search->end);
        return !search->word_before && (after.classes & COLIBRI_CLASS_WORD) == 0;
    }
    return 1;
}

void colibri_added_begin(colibri_added_search *search, uint32_t start, uint32_t end)
{
    search->start = start;
    search->at = start;
    search->resume = start;
    search->end = end;
    search->space_start = start;
    search->word_before = 0;
    search->stripping = 0;
    search->found = COLIBRI_NO_ID;
}

void colibri_added_continue(colibri_added_search *search)
{
    search->start = search->found_stop;
    search->found = COLIBRI_NO_ID;
}

/* Swallow white space to the right of a match. */
static int32_t added_strip(colibri_encoding *e, const colibri_source *source, colibri_added_search *search)
{
    while (search->found_stop < search->end) {
        colibri_character c = colibri_read_classes(e->t, source, search->found_stop, search->end);
        if ((c.classes & COLIBRI_CLASS_STRIP) == 0) {
            break;
        }
        if (!colibri_spend(e, 1)) {
            return COLIBRI_AGAIN;
        }
        search->found_stop += c.length;
    }
    search->stripping = 0;
    return COLIBRI_DONE;
}

/* Step over the character at `at`, keeping account of what lies left of it. */
static void added_step(colibri_encoding *e, colibri_added_search *search, colibri_character c)
{
    search->at += c.length;
    if ((e->t->head->added_flags & (COLIBRI_ADDED_LSTRIP | COLIBRI_ADDED_SINGLE_WORD)) != 0) {
        uint32_t classes = colibri_classes(e->t, c.code);
        search->word_before = classes & COLIBRI_CLASS_WORD;
        if ((classes & COLIBRI_CLASS_STRIP) == 0) {
            search->space_start = search->at;
        }
    }
}

/* Find the next of added[first .. first + count) that counts. DONE: search->found, NO_ID if there is none. */
int32_t colibri_added_find(colibri_encoding *e, const colibri_source *source, uint32_t first, uint32_t count,
                           uint32_t set, colibri_added_search *search)
{
    const uint32_t *start_bits = e->t->head->added_start[set];
    if (search->stripping) {
        return added_strip(e, source, search);
    }
    if (count == 0) {
        search->at = search->end;
    }
    while (search->at < search->end) {
        colibri_character c = colibri_read(source, search->at, search->end);
        uint8_t bytes[4];
        uint32_t steps = 1;
        colibri_utf8_put(c.code, bytes);
        if (search->at >= search->resume && (start_bits[bytes[0] >> 5] >> (bytes[0] & 31) & 1) != 0) {
            colibri_added_range range = {first, first + count, 0};
            uint32_t stop = search->at;
            uint32_t found = added_longest(e, source, range, search->at, search->end, &stop, &steps);
            if (!colibri_spend(e, steps)) {
                return COLIBRI_AGAIN;
            }
            if (found != COLIBRI_NO_ID) {
                search->resume = stop;
                if (added_counts(e, source, search, found, stop)) {
                    uint32_t flags = e->t->added[found].flags;
                    uint32_t begin = (flags & COLIBRI_ADDED_LSTRIP) != 0 ? search->space_start : search->at;
                    search->found = found;
                    search->found_start = begin > search->start ? begin : search->start;
                    search->found_stop = stop;
                    search->stripping = (flags & COLIBRI_ADDED_RSTRIP) != 0;
                    added_step(e, search, c);
                    return search->stripping ? added_strip(e, source, search) : COLIBRI_DONE;
                }
            }
        } else if (!colibri_spend(e, 1)) {
            return COLIBRI_AGAIN;
        }
        added_step(e, search, c);
    }
    return COLIBRI_DONE;
}
