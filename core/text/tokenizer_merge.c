/*
 * tokenizer_merge.c: one piece becomes ids: byte-pair encoding in O(n log n). Owns symbols and their heap;
 * knows nothing of where pieces come from.
 *
 * The symbols of the piece stand in ids[out ...], one word per byte (or character). Merging a pair leaves
 * the new id at the pair's first word; the words behind it are free, so they carry the list links: a symbol
 * of span n > 1 has MERGE_SPAN | n in its second word (the way to the next symbol) and in its last (the way
 * back). A heap with places holds the symbols that can merge with their right neighbour; its order (rank,
 * then position) is the order in which byte-pair encoding merges.
 */
#include "text/tokenizer_inner.h"

#define MERGE_SPAN 0x80000000u

enum merge_phase {
    MERGE_START = 0,
    MERGE_FILL,
    MERGE_RUN,
    MERGE_PACK
};

/* The merge of two neighbours: its rank, NO_ID if they do not merge; *result the id it gives. */
static uint32_t merge_find(const colibri_tokenizer *t, uint32_t left, uint32_t right, uint32_t *result)
{
    uint32_t low;
    uint32_t high;
    uint32_t stop;
    if (left >= t->head->vocab) {
        return COLIBRI_NO_ID;
    }
    low = t->merge_first[left];
    stop = t->merge_first[left + 1];
    high = stop;
    if (low > high || high > t->head->merges.count) {
        return COLIBRI_NO_ID;
    }
    while (low < high) {
        uint32_t middle = low + (high - low) / 2;
        if (t->merges[middle].right < right) {
            low = middle + 1;
        } else {
            high = middle;
        }
    }
    if (low == stop || t->merges[low].right != right || t->merges[low].result >= t->head->vocab) {
        return COLIBRI_NO_ID;
    }
    *result = t->merges[low].result;
    return t->merges[low].rank;
}

/* ---- the symbols as a list ---- */

static uint32_t merge_next(const uint32_t *symbols, uint32_t at, uint32_t count)
{
    if (at + 1 < count && (symbols[at + 1] & MERGE_SPAN) != 0) {
        return at + (symbols[at + 1] & ~MERGE_SPAN);
    }
    return at + 1;
}

static uint32_t merge_previous(const uint32_t *symbols, uint32_t at)
{
    return (symbols[at - 1] & MERGE_SPAN) != 0 ? at - (symbols[at - 1] & ~MERGE_SPAN) : at - 1;
}

/* ---- the heap: e->heap[0 .. heap_count), e->place[symbol] its place or NO_ID ---- */

static int merge_before(const colibri_encoding *e, uint32_t a, uint32_t b)
{
    return e->rank[a] != e->rank[b] ? e->rank[a] < e->rank[b] : a < b;
}

static void merge_put(const colibri_encoding *e, uint32_t place, uint32_t symbol)
{
    e->heap[place] = symbol;
    e->place[symbol] = place;
}

/* Move the symbol at `place` to where it belongs; returns the levels moved. */
static uint32_t merge_sift(const colibri_encoding *e, uint32_t place)
{
    uint32_t count = e->state->merge.heap_count;
    uint32_t symbol = e->heap[place];
    uint32_t levels = 0;
    while (place > 0 && merge_before(e, symbol, e->heap[(place - 1) / 2])) {
        merge_put(e, place, e->heap[(place - 1) / 2]);
        place = (place - 1) / 2;
        levels++;
    }
    while (2 * place + 1 < count) {
        uint32_t child = 2 * place + 1;
        if (child + 1 < count && merge_before(e, e->heap[child + 1], e->heap[child])) {
            child++;
        }
        if (!merge_before(e, e->heap[child], symbol)) {
            break;
        }
        merge_put(e, place, e->heap[child]);
        place = child;
        levels++;
    }
    merge_put(e, place, symbol);
    return levels;
}

/* Set the rank of merging `symbol` with its right neighbour (NO_ID: not possible); returns levels moved. */
static uint32_t merge_rank(const colibri_encoding *e, uint32_t symbol, uint32_t rank)
{
    colibri_merge_state *m = &e->state->merge;
    uint32_t place = e->place[symbol];
    e->rank[symbol] = rank;
    if (rank != COLIBRI_NO_ID) {
        if (place == COLIBRI_NO_ID) {
            place = m->heap_count++;
            e->heap[place] = symbol;
        }
        return merge_sift(e, place);
    }
    if (place == COLIBRI_NO_ID) {
        return 0;
    }
    e->place[symbol] = COLIBRI_NO_ID;
    m->heap_count--;
    if (place == m->heap_count) {
        return 0;
    }
    e->heap[place] = e->heap[m->heap_count];
    return merge_sift(e, place);
}

/* ---- filling ---- */

/* Append a symbol to the piece. */
static int32_t merge_append(colibri_encoding *e, uint32_t id)
{
    colibri_merge_state *m = &e->state->merge;
    uint32_t *symbols = e->ids + e->state->out;
    uint32_t result;
    if (id >= e->t->head->vocab || m->count >= e->room || e->state->out + m->count >= e->ids_room) {
        return COLIBRI_ERROR_TEXT;
    }
    symbols[m->count] = id;
    e->rank[m->count] = COLIBRI_NO_ID;
    e->place[m->count] = COLIBRI_NO_ID;
    m->count++;
    if (m->count > 1) {
        merge_rank(e, m->count - 2, merge_find(e->t, symbols[m->count - 2], id, &result));
    }
    return COLIBRI_OK;
}

/* Append what stands for something that has no id: unk, once for a run of them if the model fuses, or
 * nothing. */
static int32_t merge_append_unknown(colibri_encoding *e)
{
    colibri_merge_state *m = &e->state->merge;
    if (e->t->head->unk == COLIBRI_NO_ID ||
        (m->unknown && (e->t->head->flags & COLIBRI_TOKENIZER_FUSE_UNKNOWN) != 0)) {
        return COLIBRI_OK;
    }
    m->unknown = 1;
    return merge_append(e, e->t->head->unk);
}

/* The id of a character in a CHAR_BPE model; NO_ID if it is none. */
static uint32_t merge_char_id(const colibri_tokenizer *t, uint32_t code)
{
    uint32_t low = 0;
    uint32_t high = t->head->chars.count;
    while (low < high) {
        uint32_t middle = low + (high - low) / 2;
        if (t->chars[middle].code < code) {
            low = middle + 1;
        } else {
            high = middle;
        }
    }
    return low < t->head->chars.count && t->chars[low].code == code ? t->chars[low].id : COLIBRI_NO_ID;
}

/* Append a character: itself, or its bytes. */
static int32_t merge_append_character(colibri_encoding *e, uint32_t code)
{
    colibri_merge_state *m = &e->state->merge;
    const colibri_tokenizer_header *h = e->t->head;
    uint8_t bytes[4];
    uint32_t count = colibri_utf8_put(code, bytes);
    uint32_t i;
    if (h->kind == COLIBRI_TOKENIZER_CHAR_BPE) {
        uint32_t id = merge_char_id(e->t, code);
        if (id != COLIBRI_NO_ID) {
            m->unknown = 0;
            return merge_append(e, id);
        }
        if ((h->flags & COLIBRI_TOKENIZER_BYTE_FALLBACK) == 0) {
            return merge_append_unknown(e);
        }
    }
    for (i = 0; i < count; i++) {
        uint32_t id = e->t->byte_ids[bytes[i]];
        int32_t status;
        if (id == COLIBRI_NO_ID) {
            status = merge_append_unknown(e);
        } else {
            m->unknown = 0;
            status = merge_append(e, id);
        }
        if (status != COLIBRI_OK) {
            return status;
        }
    }
    return COLIBRI_OK;
}

static int32_t merge_fill(colibri_encoding *e)
{
    colibri_encode_state *s = e->state;
    colibri_merge_state *m = &s->merge;
    if (s->piece.lead != 0) {
        int32_t status = merge_append_character(e, s->piece.lead);
        if (status != COLIBRI_OK) {
            return status;
        }
        s->piece.lead = 0;
    }
    while (m->at < s->piece.end) {
        colibri_character c = colibri_read(&e->source, m->at, s->piece.end);
        int32_t status;
        if (!colibri_spend(e, 1)) {
            return COLIBRI_AGAIN;
        }
        status = merge_append_character(e, c.code);
        if (status != COLIBRI_OK) {
            return status;
        }
        m->at += c.length;
    }
    return COLIBRI_DONE;
}

/* ---- a piece that is a token as a whole ---- */

/* How the text of an id compares with bytes[0 .. count): below 0, 0, above 0; 2: the section is not valid. */
static int merge_compare(const colibri_tokenizer *t, uint32_t id, const uint8_t *bytes, uint32_t count)
{
    const uint8_t *text;
    uint32_t length;
    uint32_t i;
    if (!colibri_token_text(t, id, &text, &length)) {
        return 2;
    }
    for (i = 0; i < length && i < count; i++) {
        if (text[i] != bytes[i]) {
            return text[i] < bytes[i] ? -1 : 1;
        }
    }
    return length == count ? 0 : length < count ? -1 : 1;
}

/* The id of the whole piece, NO_ID if it is no token. The piece's bytes are put together in the rank array,
 * which is free until symbols are appended. */
static uint32_t merge_whole(const colibri_encoding *e)
{
    const colibri_split_level *piece = &e->state->piece;
    uint8_t *bytes = (uint8_t *)e->rank;
    uint32_t most = e->t->head->longest;
    uint32_t count = 0;
    uint32_t at = piece->at;
    uint32_t low = 0;
    uint32_t high = e->t->head->whole.count;
    if (piece->lead != 0) {
        count = colibri_utf8_put(piece->lead, bytes);
    }
    while (at < piece->end) {
        colibri_character c = colibri_read(&e->source, at, piece->end);
        if (count + 4 > 4 * e->room || count > most) {
            return COLIBRI_NO_ID;
        }
        count += colibri_utf8_put(c.code, bytes + count);
        at += c.length;
    }
    while (low < high) {
        uint32_t middle = low + (high - low) / 2;
        int order = merge_compare(e->t, e->t->whole[middle], bytes, count);
        if (order == 0) {
            return e->t->whole[middle];
        }
        if (order < 0) {
            low = middle + 1;
        } else {
            high = middle;
        }
    }
    return COLIBRI_NO_ID;
}

/* ---- merging ---- */

/* Merge the first pair of the heap; returns heap levels moved, NO_ID if the section contradicts itself. */
static uint32_t merge_once(const colibri_encoding *e)
{
    uint32_t count = e->state->merge.count;
    uint32_t *symbols = e->ids + e->state->out;
    uint32_t left = e->heap[0];
    uint32_t right = merge_next(symbols, left, count);
    uint32_t behind = merge_next(symbols, right, count);
    uint32_t span = behind - left;
    uint32_t levels;
    uint32_t rank;
    uint32_t id;
    uint32_t ignored;
    if (merge_find(e->t, symbols[left], symbols[right], &id) == COLIBRI_NO_ID) {
        return COLIBRI_NO_ID;
    }
    levels = merge_rank(e, right, COLIBRI_NO_ID);
    symbols[left] = id;
    symbols[left + 1] = MERGE_SPAN | span;
    symbols[behind - 1] = MERGE_SPAN | span;
    rank = behind < count ? merge_find(e->t, id, symbols[behind], &ignored) : COLIBRI_NO_ID;
    levels += merge_rank(e, left, rank);
    if (left > 0) {
        uint32_t previous = merge_previous(symbols, left);
        levels += merge_rank(e, previous, merge_find(e->t, symbols[previous], id, &ignored));
    }
    return levels;
}

static int32_t merge_run(colibri_encoding *e)
{
    while (e->state->merge.heap_count > 0) {
        uint32_t levels;
        if (!colibri_spend(e, 1)) {
            return COLIBRI_AGAIN;
        }
        levels = merge_once(e);
        if (levels == COLIBRI_NO_ID) {
            return COLIBRI_ERROR_TEXT;
        }
        colibri_spend(e, levels);
    }
    return COLIBRI_DONE;
}

/* Move the ids that are left together. */
static int32_t merge_pack(colibri_encoding *e)
{
    colibri_merge_state *m = &e->state->merge;
    uint32_t *symbols = e->ids + e->state->out;
    while (m->at < m->count) {
        uint32_t next = merge_next(symbols, m->at, m->count);
        if (!colibri_spend(e, 1)) {
            return COLIBRI_AGAIN;
        }
        symbols[m->kept++] = symbols[m->at];
        m->at = next;
    }
    e->state->out += m->kept;
    return COLIBRI_DONE;
}

/* The piece in state->piece becomes ids behind those there are. */
int32_t colibri_merge_piece(colibri_encoding *e)
{
    colibri_encode_state *s = e->state;
    colibri_merge_state *m = &s->merge;
    int32_t status = COLIBRI_DONE;
    if (m->phase == MERGE_START) {
        if (!colibri_spend(e, 1)) {
            return COLIBRI_AGAIN;
        }
        m->at = s->piece.at;
        m->count = 0;
        m->kept = 0;
        m->heap_count = 0;
        m->unknown = 0;
        m->phase = MERGE_FILL;
        if ((e->t->head->flags & COLIBRI_TOKENIZER_IGNORE_MERGES) != 0) {
            uint32_t id = merge_whole(e);
            if (id != COLIBRI_NO_ID) {
                s->piece.lead = 0;
                m->at = s->piece.end;
                status = merge_append(e, id);
            }
        }
    }
    if (status >= 0 && m->phase == MERGE_FILL) {
        status = merge_fill(e);
        m->phase = status == COLIBRI_DONE ? MERGE_RUN : MERGE_FILL;
    }
    if (status >= 0 && m->phase == MERGE_RUN) {
        status = merge_run(e);
        m->phase = status == COLIBRI_DONE ? MERGE_PACK : MERGE_RUN;
        m->at = 0;
    }
    if (status >= 0 && m->phase == MERGE_PACK) {
        status = merge_pack(e);
        m->phase = status == COLIBRI_DONE ? MERGE_START : MERGE_PACK;
    }
    return status;
}
