/*
 * tokenizer_normal.c: one gap of text is brought into NFC. Owns the normalization algorithm; the tables are
 * the section's (asked from the library at conversion), only Hangul is arithmetic.
 *
 * Most text is in NFC already: a quick check finds that and nothing is copied. Else text is taken apart into
 * stretches that cannot influence each other (each begins with a starter that never joins what precedes it).
 * A stretch is decomposed into the rank array, put in canonical order into the heap array, composed there
 * and written to the buffer; both arrays are free until a piece is merged. Every phase goes character by
 * character, so it can stop anywhere.
 */
#include "text/tokenizer_inner.h"

enum normal_phase {
    NORMAL_START = 0,
    NORMAL_CHECK,
    NORMAL_GATHER,
    NORMAL_ORDER,
    NORMAL_COMPOSE,
    NORMAL_EMIT
};

/* A byte of the combining table: the rank of the canonical combining class (0: starter), and whether the
 * quick check says no or maybe. */
#define NORMAL_CLASS 0x7Fu
#define NORMAL_UNSURE 0x80u

#define HANGUL_S 0xAC00u
#define HANGUL_L 0x1100u
#define HANGUL_V 0x1161u
#define HANGUL_T 0x11A7u
#define HANGUL_L_COUNT 19u
#define HANGUL_V_COUNT 21u
#define HANGUL_T_COUNT 28u
#define HANGUL_S_COUNT (HANGUL_L_COUNT * HANGUL_V_COUNT * HANGUL_T_COUNT)

static uint32_t normal_byte(const colibri_tokenizer *t, uint32_t code)
{
    uint32_t leaf;
    if (code >> 7 >= t->head->combining_top.count) {
        return 0;
    }
    leaf = t->combining_top[code >> 7];
    return leaf < t->head->combining_leaves.count >> 7 ? t->combining_leaves[(leaf << 7) + (code & 127)] : 0;
}

static uint32_t normal_class(const colibri_tokenizer *t, uint32_t code)
{
    return normal_byte(t, code) & NORMAL_CLASS;
}

/* ---- tables ---- */

/* Append a character's decomposition to the stretch; ERROR_TEXT if it does not fit. */
static int32_t normal_decompose(colibri_encoding *e, uint32_t code)
{
    colibri_normal_state *n = &e->state->normal;
    const colibri_tokenizer *t = e->t;
    const uint32_t *codes = &code;
    uint32_t hangul[3];
    uint32_t count = 1;
    uint32_t low = 0;
    uint32_t high = t->head->decompositions.count;
    uint32_t i;
    if (code - HANGUL_S < HANGUL_S_COUNT) {
        uint32_t s = code - HANGUL_S;
        hangul[0] = HANGUL_L + s / (HANGUL_V_COUNT * HANGUL_T_COUNT);
        hangul[1] = HANGUL_V + s % (HANGUL_V_COUNT * HANGUL_T_COUNT) / HANGUL_T_COUNT;
        hangul[2] = HANGUL_T + s % HANGUL_T_COUNT;
        codes = hangul;
        count = s % HANGUL_T_COUNT == 0 ? 2 : 3;
        high = 0;
    }
    while (low < high) {
        uint32_t middle = low + (high - low) / 2;
        if (t->decompositions[middle].code < code) {
            low = middle + 1;
        } else {
            high = middle;
        }
    }
    if (codes == &code && low < t->head->decompositions.count && t->decompositions[low].code == code) {
        const colibri_tokenizer_span *span = &t->decompositions[low];
        uint32_t room = t->head->decomposed.count;
        if (span->first > room || span->count > room - span->first) {
            return COLIBRI_ERROR_TEXT;
        }
        codes = t->decomposed + span->first;
        count = span->count;
    }
    if (count > e->room - n->count) {
        return COLIBRI_ERROR_TEXT;
    }
    for (i = 0; i < count; i++) {
        if (codes[i] > 0x10FFFF) {
            return COLIBRI_ERROR_TEXT;
        }
        e->rank[n->count++] = codes[i];
    }
    return COLIBRI_OK;
}

/* The character that two compose to; NO_ID if they do not. */
static uint32_t normal_pair(const colibri_tokenizer *t, uint32_t first, uint32_t second)
{
    uint32_t low = 0;
    uint32_t high = t->head->compositions.count;
    if (first - HANGUL_L < HANGUL_L_COUNT && second - HANGUL_V < HANGUL_V_COUNT) {
        return HANGUL_S + ((first - HANGUL_L) * HANGUL_V_COUNT + (second - HANGUL_V)) * HANGUL_T_COUNT;
    }
    if (first - HANGUL_S < HANGUL_S_COUNT && (first - HANGUL_S) % HANGUL_T_COUNT == 0 &&
        second - HANGUL_T - 1 < HANGUL_T_COUNT - 1) {
        return first + (second - HANGUL_T);
    }
    while (low < high) {
        uint32_t middle = low + (high - low) / 2;
        const colibri_tokenizer_compose *c = &t->compositions[middle];
        if (c->first < first || (c->first == first && c->second < second)) {
            low = middle + 1;
        } else {
            high = middle;
        }
    }
    if (low == t->head->compositions.count || t->compositions[low].first != first ||
        t->compositions[low].second != second || t->compositions[low].whole > 0x10FFFF) {
        return COLIBRI_NO_ID;
    }
    return t->compositions[low].whole;
}

/* ---- phases: OK: go on with n->phase, DONE: the gap is done ---- */

static int32_t normal_check(colibri_encoding *e, uint32_t start, uint32_t end)
{
    colibri_normal_state *n = &e->state->normal;
    while (n->at < end) {
        colibri_character c = colibri_read(&e->text, n->at, end);
        uint32_t byte;
        if (!colibri_spend(e, 1)) {
            return COLIBRI_AGAIN;
        }
        byte = normal_byte(e->t, c.code);
        if ((byte & NORMAL_UNSURE) != 0 || ((byte & NORMAL_CLASS) != 0 && byte < n->last)) {
            n->at = start;
            n->count = 0;
            n->phase = NORMAL_GATHER;
            return COLIBRI_OK;
        }
        n->last = byte;
        n->at += c.length;
    }
    return COLIBRI_DONE;
}

static int32_t normal_gather(colibri_encoding *e, uint32_t end)
{
    colibri_normal_state *n = &e->state->normal;
    while (n->at < end) {
        colibri_character c = colibri_read(&e->text, n->at, end);
        uint8_t bytes[4];
        int32_t status;
        if (n->count > 0 && normal_byte(e->t, c.code) == 0) {
            break;
        }
        if (!colibri_spend(e, 1)) {
            return COLIBRI_AGAIN;
        }
        status = normal_decompose(e, c.code);
        if (status != COLIBRI_OK) {
            return status;
        }
        n->source_bytes += colibri_utf8_put(c.code, bytes);
        n->at += c.length;
    }
    if (n->count == 0) {
        e->state->from_buffer = 1;
        return COLIBRI_DONE;
    }
    n->cursor = 0;
    n->run = 0;
    n->kept = 0;
    n->last = 0;
    n->next = COLIBRI_NO_ID;
    n->phase = NORMAL_ORDER;
    return COLIBRI_OK;
}

/* Canonical order: between starters by class, equal classes as they stand. A run is gone over once per class
 * that occurs in it (first with class 0, to find the lowest): at most 127 times, usually once or twice. */
static int32_t normal_order(colibri_encoding *e)
{
    colibri_normal_state *n = &e->state->normal;
    while (n->cursor < n->count || n->next != COLIBRI_NO_ID) {
        uint32_t code = n->cursor < n->count ? e->rank[n->cursor] : COLIBRI_NO_ID;
        uint32_t class = code == COLIBRI_NO_ID ? 0 : normal_class(e->t, code);
        if (!colibri_spend(e, 1)) {
            return COLIBRI_AGAIN;
        }
        if (class != 0) {
            if (class == n->last) {
                e->heap[n->kept++] = code;
            } else if (class > n->last && class < n->next) {
                n->next = class;
            }
            n->cursor++;
        } else if (n->next != COLIBRI_NO_ID) {
            n->last = n->next;
            n->next = COLIBRI_NO_ID;
            n->cursor = n->run;
        } else {
            e->heap[n->kept++] = code;
            n->cursor++;
            n->run = n->cursor;
            n->last = 0;
        }
    }
    n->cursor = 0;
    n->kept = 0;
    n->last = 0;
    n->run = COLIBRI_NO_ID;
    n->phase = NORMAL_COMPOSE;
    return COLIBRI_OK;
}

/* n->run: where the last starter stands, n->last: the class of what was kept last. */
static int32_t normal_compose(colibri_encoding *e)
{
    colibri_normal_state *n = &e->state->normal;
    while (n->cursor < n->count) {
        uint32_t code = e->heap[n->cursor];
        uint32_t class = normal_class(e->t, code);
        uint32_t whole = COLIBRI_NO_ID;
        if (!colibri_spend(e, 1)) {
            return COLIBRI_AGAIN;
        }
        if (n->run != COLIBRI_NO_ID && (n->run + 1 == n->kept || n->last < class)) {
            whole = normal_pair(e->t, e->heap[n->run], code);
        }
        if (whole != COLIBRI_NO_ID) {
            e->heap[n->run] = whole;
        } else {
            n->run = class == 0 ? n->kept : n->run;
            n->last = class;
            e->heap[n->kept++] = code;
        }
        n->cursor++;
    }
    n->cursor = 0;
    n->phase = NORMAL_EMIT;
    return COLIBRI_OK;
}

static int32_t normal_emit(colibri_encoding *e)
{
    colibri_normal_state *n = &e->state->normal;
    while (n->cursor < n->kept) {
        uint8_t bytes[4];
        uint32_t count = colibri_utf8_put(e->heap[n->cursor], bytes);
        uint32_t i;
        if (!colibri_spend(e, 1)) {
            return COLIBRI_AGAIN;
        }
        for (i = 0; i < count; i++) {
            if (n->written + i < e->state->limit) {
                e->buffer[n->written + i] = bytes[i];
            }
        }
        n->written += count;
        n->cursor++;
    }
    n->count = 0;
    n->phase = NORMAL_GATHER;
    return COLIBRI_OK;
}

/* DONE: state->from_buffer says whether the gap is now in the buffer (normal.written bytes) or was NFC
 * already. */
int32_t colibri_normalize(colibri_encoding *e, uint32_t start, uint32_t end)
{
    colibri_encode_state *s = e->state;
    colibri_normal_state *n = &s->normal;
    int32_t status = COLIBRI_OK;
    while (status == COLIBRI_OK) {
        switch (n->phase) {
        case NORMAL_START:
            n->at = start;
            n->last = 0;
            n->written = 0;
            n->source_bytes = 0;
            n->phase = NORMAL_CHECK;
            break;
        case NORMAL_CHECK:
            status = normal_check(e, start, end);
            break;
        case NORMAL_GATHER:
            status = normal_gather(e, end);
            break;
        case NORMAL_ORDER:
            status = normal_order(e);
            break;
        case NORMAL_COMPOSE:
            status = normal_compose(e);
            break;
        default:
            status = normal_emit(e);
            break;
        }
    }
    if (status == COLIBRI_DONE) {
        n->phase = NORMAL_START;
        if (s->from_buffer) {
            s->measured = s->measured - n->source_bytes + n->written;
            status = s->measured > s->limit ? COLIBRI_ERROR_TEXT_LONG : COLIBRI_DONE;
        }
    }
    return status;
}
