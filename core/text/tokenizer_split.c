/*
 * tokenizer_split.c: the pre-tokenizer: cutting a segment into the pieces that BPE may not merge across.
 * Owns the families' splitting rules; knows nothing of ids.
 *
 * The rules are regular expressions in tokenizer.json. Each is written here as: look at one character and
 * the next, choose a run, follow the run while characters belong to it, then end or change to another run.
 * That is linear, needs a few words of state and can stop after any character. A step splits every piece of
 * the step before it, and sees nothing outside its piece.
 */
#include "text/tokenizer_inner.h"

enum split_run {
    SPLIT_START = 0,
    SPLIT_END,
    SPLIT_CONTRACTION,          /* chosen: an apostrophe and the letters behind it */
    SPLIT_LETTERS,
    SPLIT_LETTERS_MARKS,
    SPLIT_ASCII_LETTERS,
    SPLIT_NUMBERS,              /* at most `room` more */
    SPLIT_NO_NUMBERS,
    SPLIT_NUMERIC,              /* at most `room` more */
    SPLIT_NO_NUMERIC,
    SPLIT_CJK,
    SPLIT_NO_CJK,
    SPLIT_SYMBOLS,              /* neither space, letter nor number */
    SPLIT_PUNCTUATION,          /* punctuation and symbols proper */
    SPLIT_NEWLINES,
    SPLIT_SPACES,
    SPLIT_UPPER,                /* O200K, first half of a word: no lower case */
    SPLIT_LOWER,                /* second half: no upper case */
    SPLIT_UNTIL_SPACE,
    SPLIT_GAP                   /* DeepSeek: what no alternative matches */
};

#define SPLIT_NOWHERE 0xFFFFFFFFu

static int split_newline(uint32_t code)
{
    return code == 0x0D || code == 0x0A;
}

static int split_symbol(const colibri_character *c)
{
    return c->code != COLIBRI_NO_ID &&
           (c->classes & (COLIBRI_CLASS_LETTER | COLIBRI_CLASS_NUMBER | COLIBRI_CLASS_SPACE)) == 0;
}

static int split_ascii_letter(uint32_t code)
{
    return (code >= 0x41 && code <= 0x5A) || (code >= 0x61 && code <= 0x7A);
}

/* ASCII punctuation, symbols included: ! to /, : to @, [ to `, { to ~ */
static int split_ascii_punctuation(uint32_t code)
{
    return code > 0x20 && code < 0x7F && !split_ascii_letter(code) && (code < 0x30 || code > 0x39);
}

static int split_cjk(uint32_t code)
{
    return (code >= 0x4E00 && code <= 0x9FA5) || (code >= 0x3040 && code <= 0x30FF);
}

/* Bytes of 's 't 're 've 'm 'll 'd at `at` (0: none). Without regard to case also U+017F counts as an s. */
static uint32_t split_contraction(const colibri_source *source, uint32_t at, uint32_t end, int any_case)
{
    colibri_character mark = colibri_read(source, at, end);
    colibri_character a = colibri_read(source, at + mark.length, end);
    colibri_character b = colibri_read(source, at + mark.length + a.length, end);
    uint32_t one = a.code;
    uint32_t two = b.code;
    if (mark.code != 0x27) {
        return 0;
    }
    if (any_case) {
        one = split_ascii_letter(one) ? one | 0x20 : one;
        two = split_ascii_letter(two) ? two | 0x20 : two;
        one = one == 0x17F ? 's' : one;
    }
    if (one == 's' || one == 't' || one == 'm' || one == 'd') {
        return mark.length + a.length;
    }
    if ((one == 'r' && two == 'e') || (one == 'v' && two == 'e') || (one == 'l' && two == 'l')) {
        return mark.length + a.length + b.length;
    }
    return 0;
}

/* GPT-2:  's|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+ */
static uint32_t split_choose_gpt2(const colibri_character *c, const colibri_character *next)
{
    const colibri_character *d = c->code == 0x20 ? next : c;
    if ((d->classes & COLIBRI_CLASS_LETTER) != 0) {
        return SPLIT_LETTERS;
    }
    if ((d->classes & COLIBRI_CLASS_NUMBER) != 0) {
        return SPLIT_NUMBERS;
    }
    return split_symbol(d) ? SPLIT_SYMBOLS : SPLIT_SPACES;
}

/* Llama 3, Qwen:  (?i:'s|...)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,n}
 *                 | ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+ */
static uint32_t split_choose_cl100k(const colibri_character *c, const colibri_character *next)
{
    if ((c->classes & COLIBRI_CLASS_LETTER) != 0) {
        return SPLIT_LETTERS;
    }
    if ((c->classes & COLIBRI_CLASS_NUMBER) != 0) {
        return SPLIT_NUMBERS;
    }
    if (!split_newline(c->code) && (next->classes & COLIBRI_CLASS_LETTER) != 0) {
        return SPLIT_LETTERS;
    }
    if (split_symbol(c) || (c->code == 0x20 && split_symbol(next))) {
        return SPLIT_SYMBOLS;
    }
    return SPLIT_SPACES;
}

/* o200k: a word is [^\r\n\p{L}\p{N}]? then U*W+ or else U+W*, then perhaps a contraction, where U is Lu Lt
 * Lm Lo M and W is Ll Lm Lo M; the rest as in Llama 3, with / among the newlines. */
static uint32_t split_choose_o200k(const colibri_character *c, const colibri_character *next)
{
    if ((c->classes & COLIBRI_CLASS_LETTER) != 0) {
        return SPLIT_UPPER;
    }
    if ((c->classes & COLIBRI_CLASS_NUMBER) != 0) {
        return SPLIT_NUMBERS;
    }
    if (!split_newline(c->code) && (next->classes & (COLIBRI_CLASS_LETTER | COLIBRI_CLASS_MARK)) != 0) {
        return SPLIT_UPPER;
    }
    if ((c->classes & COLIBRI_CLASS_MARK) != 0) {
        return SPLIT_LOWER;
    }
    if (split_symbol(c) || (c->code == 0x20 && split_symbol(next))) {
        return SPLIT_SYMBOLS;
    }
    return SPLIT_SPACES;
}

/* DeepSeek:  [ASCII punctuation][A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+
 *            | ?[\p{P}\p{S}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+ */
static uint32_t split_choose_deepseek(const colibri_character *c, const colibri_character *next)
{
    uint32_t word = COLIBRI_CLASS_LETTER | COLIBRI_CLASS_MARK;
    uint32_t sign = COLIBRI_CLASS_PUNCTUATION | COLIBRI_CLASS_SYMBOL;
    if (split_ascii_punctuation(c->code) && split_ascii_letter(next->code)) {
        return SPLIT_ASCII_LETTERS;
    }
    if ((c->classes & word) != 0 ||
        (!split_newline(c->code) && (c->classes & sign) == 0 && (next->classes & word) != 0)) {
        return SPLIT_LETTERS_MARKS;
    }
    if ((c->classes & sign) != 0 || (c->code == 0x20 && (next->classes & sign) != 0)) {
        return SPLIT_PUNCTUATION;
    }
    return (c->classes & COLIBRI_CLASS_SPACE) != 0 ? SPLIT_SPACES : SPLIT_GAP;
}

static uint32_t split_choose(uint32_t step, const colibri_character *c, const colibri_character *next)
{
    switch (step) {
    case COLIBRI_STEP_DIGITS:
        return (c->classes & COLIBRI_CLASS_NUMERIC) != 0 ? SPLIT_NUMERIC : SPLIT_NO_NUMERIC;
    case COLIBRI_STEP_GPT2:
        return split_choose_gpt2(c, next);
    case COLIBRI_STEP_CL100K:
        return split_choose_cl100k(c, next);
    case COLIBRI_STEP_O200K:
        return split_choose_o200k(c, next);
    case COLIBRI_STEP_NUMBERS:
        return (c->classes & COLIBRI_CLASS_NUMBER) != 0 ? SPLIT_NUMBERS : SPLIT_NO_NUMBERS;
    case COLIBRI_STEP_CJK:
        return split_cjk(c->code) ? SPLIT_CJK : SPLIT_NO_CJK;
    case COLIBRI_STEP_DEEPSEEK:
        return split_choose_deepseek(c, next);
    default:
        return c->code == 0x20 ? SPLIT_END : SPLIT_UNTIL_SPACE;
    }
}

/* Characters that a run of numbers may have in all. */
static uint32_t split_room(const colibri_tokenizer_step *step)
{
    switch (step->id) {
    case COLIBRI_STEP_GPT2:
        return SPLIT_NOWHERE;
    case COLIBRI_STEP_O200K:
        return 3;
    case COLIBRI_STEP_DIGITS:
        return step->argument == 1 ? 1 : SPLIT_NOWHERE;
    default:
        return step->argument == 0 ? SPLIT_NOWHERE : step->argument;
    }
}

/* Does the character belong to the run? `next` matters to gaps alone. */
static int split_belongs(const colibri_split_scan *scan, const colibri_tokenizer_step *step,
                         const colibri_character *c, const colibri_character *next)
{
    switch (scan->run) {
    case SPLIT_LETTERS:
        return (c->classes & COLIBRI_CLASS_LETTER) != 0;
    case SPLIT_LETTERS_MARKS:
        return (c->classes & (COLIBRI_CLASS_LETTER | COLIBRI_CLASS_MARK)) != 0;
    case SPLIT_ASCII_LETTERS:
        return split_ascii_letter(c->code);
    case SPLIT_NUMBERS:
        return (c->classes & COLIBRI_CLASS_NUMBER) != 0 && scan->room != 0;
    case SPLIT_NO_NUMBERS:
        return (c->classes & COLIBRI_CLASS_NUMBER) == 0;
    case SPLIT_NUMERIC:
        return (c->classes & COLIBRI_CLASS_NUMERIC) != 0 && scan->room != 0;
    case SPLIT_NO_NUMERIC:
        return (c->classes & COLIBRI_CLASS_NUMERIC) == 0;
    case SPLIT_CJK:
        return split_cjk(c->code);
    case SPLIT_NO_CJK:
        return !split_cjk(c->code);
    case SPLIT_SYMBOLS:
        return split_symbol(c);
    case SPLIT_PUNCTUATION:
        return (c->classes & (COLIBRI_CLASS_PUNCTUATION | COLIBRI_CLASS_SYMBOL)) != 0;
    case SPLIT_NEWLINES:
        return split_newline(c->code) || (step->id == COLIBRI_STEP_O200K && c->code == 0x2F);
    case SPLIT_SPACES:
        return (c->classes & COLIBRI_CLASS_SPACE) != 0;
    case SPLIT_UPPER:
        return (c->classes & (COLIBRI_CLASS_UPPER | COLIBRI_CLASS_OTHER_LETTER | COLIBRI_CLASS_MARK)) != 0;
    case SPLIT_LOWER:
        return (c->classes & (COLIBRI_CLASS_LOWER | COLIBRI_CLASS_OTHER_LETTER | COLIBRI_CLASS_MARK)) != 0;
    case SPLIT_UNTIL_SPACE:
        return c->code != 0x20;
    case SPLIT_GAP:
        return split_choose_deepseek(c, next) == SPLIT_GAP;
    default:
        return 0;
    }
}

/* Take the character at scan->at into the run, with what has to be remembered about it. */
static void split_take(colibri_split_scan *scan, const colibri_character *c)
{
    if (scan->run == SPLIT_SPACES) {
        scan->last = scan->room == 0 ? SPLIT_NOWHERE : scan->at;
        scan->room = 1;
        if (split_newline(c->code)) {
            scan->mark = scan->at + c->length;
        }
    } else if (scan->run == SPLIT_UPPER) {
        if ((c->classes & (COLIBRI_CLASS_OTHER_LETTER | COLIBRI_CLASS_MARK)) != 0) {
            scan->mark = scan->at + c->length;
        }
    } else if (scan->room != SPLIT_NOWHERE) {
        scan->room--;
    }
    scan->at += c->length;
}

/* The run is over in front of `c`. Sets scan->at to where the piece ends, or changes to the run that follows.
 *  spaces   \s*[\r\n]+ ends behind the last newline; else \s+(?!\S) leaves one for the word that follows
 *  upper    U*W+ goes back to the last character that is in W too; without one the word is U+ */
static void split_after(const colibri_source *source, uint32_t end, const colibri_tokenizer_step *step,
                        colibri_split_scan *scan, const colibri_character *c)
{
    uint32_t run = scan->run;
    scan->run = SPLIT_END;
    if (run == SPLIT_SPACES) {
        if (step->id != COLIBRI_STEP_GPT2 && scan->mark != SPLIT_NOWHERE) {
            scan->at = scan->mark;
        } else if (c->code != COLIBRI_NO_ID && scan->last != SPLIT_NOWHERE) {
            scan->at = scan->last;
        }
    } else if ((run == SPLIT_SYMBOLS && step->id != COLIBRI_STEP_GPT2) || run == SPLIT_PUNCTUATION) {
        scan->run = SPLIT_NEWLINES;
    } else if (run == SPLIT_UPPER && (c->classes & COLIBRI_CLASS_LOWER) != 0) {
        scan->run = SPLIT_LOWER;
    } else if (run == SPLIT_UPPER || run == SPLIT_LOWER) {
        if (run == SPLIT_UPPER && scan->mark != SPLIT_NOWHERE) {
            scan->at = scan->mark;
        } else if (run == SPLIT_UPPER && scan->last != SPLIT_NOWHERE) {
            scan->at = scan->last;
        }
        scan->at += split_contraction(source, scan->at, end, 1);
    } else if (run == SPLIT_UNTIL_SPACE) {
        scan->at += c->length;
    }
}

/* Choose the first run of a piece; `c` is its first character, behind which scan->at already stands. */
static void split_begin(const colibri_source *source, uint32_t end, const colibri_tokenizer_step *step,
                        colibri_split_scan *scan, const colibri_character *c, const colibri_character *next)
{
    uint32_t first = scan->at - c->length;
    scan->mark = SPLIT_NOWHERE;
    scan->last = SPLIT_NOWHERE;
    scan->room = SPLIT_NOWHERE;
    if (c->code == 0x27 && c->length != 0 &&
        (step->id == COLIBRI_STEP_GPT2 || step->id == COLIBRI_STEP_CL100K)) {
        uint32_t bytes = split_contraction(source, first, end, step->id == COLIBRI_STEP_CL100K);
        if (bytes != 0) {
            scan->at = first + bytes;
            scan->run = SPLIT_END;
            return;
        }
    }
    scan->run = split_choose(step->id, c, next);
    if (scan->run == SPLIT_NUMBERS || scan->run == SPLIT_NUMERIC) {
        scan->room = split_room(step);
        if (scan->room != SPLIT_NOWHERE) {
            scan->room--;           /* `c` itself; where a space leads the way, numbers are not counted */
        }
    } else if (scan->run == SPLIT_SPACES) {
        scan->room = 0;
        scan->at = first;
        split_take(scan, c);
    } else if (scan->run == SPLIT_UPPER && (c->classes & COLIBRI_CLASS_LETTER) != 0) {
        scan->at = first;
    } else if (scan->run == SPLIT_UPPER && (c->classes & COLIBRI_CLASS_MARK) != 0) {
        scan->last = scan->at;      /* a mark before capitals only: U*W+ is the mark alone */
    }
}

/* Where the next piece of level->at .. level->end ends: DONE with scan->at. */
static int32_t split_scan(colibri_encoding *e, const colibri_tokenizer_step *step,
                          const colibri_split_level *level)
{
    colibri_split_scan *scan = &e->state->scan;
    const colibri_source *source = &e->source;
    colibri_character c;
    colibri_character next = {COLIBRI_NO_ID, 0, 0};
    if (scan->run == SPLIT_START) {
        if (!colibri_spend(e, 1)) {
            return COLIBRI_AGAIN;
        }
        scan->at = level->at;
        if (level->lead != 0) {
            c.code = level->lead;
            c.length = 0;
            c.classes = colibri_classes(e->t, c.code);
        } else {
            c = colibri_read_classes(e->t, source, scan->at, level->end);
        }
        scan->at += c.length;
        next = colibri_read_classes(e->t, source, scan->at, level->end);
        split_begin(source, level->end, step, scan, &c, &next);
    }
    while (scan->run != SPLIT_END) {
        if (!colibri_spend(e, 1)) {
            return COLIBRI_AGAIN;
        }
        c = colibri_read_classes(e->t, source, scan->at, level->end);
        if (scan->run == SPLIT_GAP) {
            next = colibri_read_classes(e->t, source, scan->at + c.length, level->end);
        }
        if (c.code != COLIBRI_NO_ID && split_belongs(scan, step, &c, &next)) {
            split_take(scan, &c);
        } else {
            split_after(source, level->end, step, scan, &c);
        }
    }
    scan->run = SPLIT_START;
    return COLIBRI_DONE;
}

/* The next piece of the segment: DONE with state->piece; an empty piece: the segment is used up. */
int32_t colibri_split_next(colibri_encoding *e)
{
    colibri_encode_state *s = e->state;
    for (;;) {
        colibri_split_level *level = &s->levels[s->depth];
        if (level->at == level->end && level->lead == 0) {
            if (s->depth == 0) {
                s->piece = *level;
                return COLIBRI_DONE;
            }
            s->depth--;
        } else if (s->depth == e->t->step_count) {
            s->piece = *level;
            level->at = level->end;
            level->lead = 0;
            return COLIBRI_DONE;
        } else {
            colibri_split_level *inner = level + 1;
            int32_t status = split_scan(e, &e->t->head->steps[s->depth], level);
            if (status != COLIBRI_DONE) {
                return status;
            }
            inner->at = level->at;
            inner->end = s->scan.at;
            inner->lead = level->lead;
            level->at = s->scan.at;
            level->lead = 0;
            s->depth++;
        }
    }
}
