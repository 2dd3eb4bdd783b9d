/* tokenizer.c: binding a tokenizer section and the size of its scratch. See tokenizer.h. */
#include "base/base.h"
#include "blob/colibri_format.h"
#include "text/tokenizer_inner.h"

#include <stddef.h>

COLIBRI_ASSERT_SIZE(colibri_tokenizer_header, COLIBRI_TOKENIZER_HEADER_BYTES);
COLIBRI_ASSERT_SIZE(colibri_encode_state, 336);
COLIBRI_ASSERT_SIZE(colibri_text_stream, sizeof(colibri_decoder));

/* A bind under way: the first thing found wrong stays. */
typedef struct colibri_tokenizer_binding {
    const uint8_t *base;
    uint64_t bytes;
    colibri_detail detail;
} colibri_tokenizer_binding;

static void bind_refuse(colibri_tokenizer_binding *b, int32_t status, uint32_t field, uint64_t offset,
                        uint64_t expected, uint64_t found)
{
    if (b->detail.status == COLIBRI_OK) {
        b->detail.status = status;
        b->detail.field = field;
        b->detail.offset = offset;
        b->detail.expected = expected;
        b->detail.found = found;
    }
}

/* A table's first byte, once it is known to lie inside the section. */
static const void *bind_table(colibri_tokenizer_binding *b, const colibri_tokenizer_table *table,
                              uint32_t element)
{
    uint64_t at = (uint64_t)((const uint8_t *)table - b->base);
    uint64_t bytes = (uint64_t)table->count * element;
    if (table->offset % 4 != 0) {
        bind_refuse(b, COLIBRI_ERROR_TEXT, COLIBRI_FIELD_ALIGN, at, 4, table->offset);
    }
    if (table->offset > b->bytes || bytes > b->bytes - table->offset) {
        bind_refuse(b, COLIBRI_ERROR_TEXT, COLIBRI_FIELD_COUNT, at, (b->bytes - table->offset) / element,
                    table->count);
    }
    return b->base + table->offset;
}

/* A header word that must not exceed `most`. */
static void bind_most(colibri_tokenizer_binding *b, const uint32_t *word, uint64_t most)
{
    if (*word > most) {
        bind_refuse(b, COLIBRI_ERROR_TEXT, COLIBRI_FIELD_VALUE,
                    (uint64_t)((const uint8_t *)word - b->base), most, *word);
    }
}

/* A table whose length follows from something else. */
static void bind_count(colibri_tokenizer_binding *b, const colibri_tokenizer_table *table, uint64_t count)
{
    if (table->count != count) {
        bind_refuse(b, COLIBRI_ERROR_TEXT, COLIBRI_FIELD_COUNT,
                    (uint64_t)((const uint8_t *)table - b->base), count, table->count);
    }
}

static void bind_known(colibri_tokenizer_binding *b, const colibri_tokenizer_header *h)
{
    if (h->magic != COLIBRI_TOKENIZER_MAGIC) {
        bind_refuse(b, COLIBRI_ERROR_TEXT, COLIBRI_FIELD_MAGIC, 0, COLIBRI_TOKENIZER_MAGIC, h->magic);
    }
    if (h->version != COLIBRI_TOKENIZER_VERSION) {
        bind_refuse(b, COLIBRI_ERROR_UNSUPPORTED, COLIBRI_FIELD_VERSION, 4, COLIBRI_TOKENIZER_VERSION,
                    h->version);
    }
    if (h->header_bytes != COLIBRI_TOKENIZER_HEADER_BYTES) {
        bind_refuse(b, COLIBRI_ERROR_TEXT, COLIBRI_FIELD_HEADER_BYTES, 8, COLIBRI_TOKENIZER_HEADER_BYTES,
                    h->header_bytes);
    }
    if (h->bytes > b->bytes || h->bytes < COLIBRI_TOKENIZER_HEADER_BYTES) {
        bind_refuse(b, COLIBRI_ERROR_TEXT, COLIBRI_FIELD_BYTES, 12, b->bytes, h->bytes);
    }
    if (h->kind != COLIBRI_TOKENIZER_BYTE_BPE && h->kind != COLIBRI_TOKENIZER_CHAR_BPE) {
        bind_refuse(b, COLIBRI_ERROR_UNSUPPORTED, COLIBRI_FIELD_KIND, 16, COLIBRI_TOKENIZER_CHAR_BPE,
                    h->kind);
    }
    if ((h->flags & ~(uint32_t)COLIBRI_TOKENIZER_FLAGS_KNOWN) != 0) {
        bind_refuse(b, COLIBRI_ERROR_UNSUPPORTED, COLIBRI_FIELD_FLAGS, 20, COLIBRI_TOKENIZER_FLAGS_KNOWN,
                    h->flags);
    }
}

static void bind_steps(colibri_tokenizer_binding *b, colibri_tokenizer *t, const colibri_tokenizer_header *h)
{
    uint32_t i;
    t->step_count = 0;
    for (i = 0; i < COLIBRI_TOKENIZER_STEPS && h->steps[i].id != COLIBRI_STEP_END; i++) {
        if (h->steps[i].id > COLIBRI_STEP_SPACE_ENDS) {
            bind_refuse(b, COLIBRI_ERROR_UNSUPPORTED, COLIBRI_FIELD_KIND,
                        (uint64_t)((const uint8_t *)&h->steps[i] - b->base), COLIBRI_STEP_SPACE_ENDS,
                        h->steps[i].id);
        }
        t->step_count++;
    }
}

static void bind_tables(colibri_tokenizer_binding *b, colibri_tokenizer *t, const colibri_tokenizer_header *h)
{
    t->text_first = bind_table(b, &h->text_first, 4);
    t->texts = bind_table(b, &h->texts, 1);
    t->byte_ids = bind_table(b, &h->byte_ids, 4);
    t->merge_first = bind_table(b, &h->merge_first, 4);
    t->merges = bind_table(b, &h->merges, sizeof(colibri_tokenizer_merge));
    t->whole = bind_table(b, &h->whole, 4);
    t->chars = bind_table(b, &h->chars, sizeof(colibri_tokenizer_char));
    t->added = bind_table(b, &h->added, sizeof(colibri_tokenizer_added));
    t->added_texts = bind_table(b, &h->added_texts, 1);
    t->class_top = bind_table(b, &h->class_top, 2);
    t->class_leaves = bind_table(b, &h->class_leaves, 1);
    t->class_masks = bind_table(b, &h->class_masks, 4);
    t->combining_top = bind_table(b, &h->combining_top, 2);
    t->combining_leaves = bind_table(b, &h->combining_leaves, 1);
    t->decompositions = bind_table(b, &h->decompositions, sizeof(colibri_tokenizer_span));
    t->decomposed = bind_table(b, &h->decomposed, 4);
    t->compositions = bind_table(b, &h->compositions, sizeof(colibri_tokenizer_compose));
    t->markers = bind_table(b, &h->markers, 1);
    bind_count(b, &h->text_first, (uint64_t)h->vocab + 1);
    bind_count(b, &h->merge_first, (uint64_t)h->vocab + 1);
    bind_count(b, &h->byte_ids, 256);
}

static void bind_words(colibri_tokenizer_binding *b, const colibri_tokenizer_header *h)
{
    uint64_t markers = 0;
    uint32_t i;
    bind_most(b, &h->vocab, COLIBRI_TOKENIZER_VOCAB_LIMIT);
    bind_most(b, &h->longest, COLIBRI_TOKENIZER_TEXT_LIMIT);
    bind_most(b, &h->prefix_count, COLIBRI_TOKENIZER_AFFIXES);
    bind_most(b, &h->suffix_count, COLIBRI_TOKENIZER_AFFIXES);
    for (i = 0; i < COLIBRI_TOKENIZER_AFFIXES; i++) {
        bind_most(b, &h->prefix[i], h->vocab);
        bind_most(b, &h->suffix[i], h->vocab);
    }
    bind_most(b, &h->added_raw, h->added.count);
    bind_most(b, &h->added_longest, COLIBRI_TOKENIZER_TEXT_LIMIT);
    for (i = 0; i < COLIBRI_MARKER_COUNT; i++) {
        markers += h->marker_bytes[i];
    }
    if (markers != h->markers.count) {
        bind_refuse(b, COLIBRI_ERROR_TEXT, COLIBRI_FIELD_COUNT,
                    offsetof(colibri_tokenizer_header, marker_bytes), h->markers.count, markers);
    }
}

int32_t colibri_tokenizer_bind(colibri_tokenizer *tokenizer, const void *section, uint64_t bytes,
                               colibri_detail *detail)
{
    colibri_tokenizer_binding b = {0};
    colibri_tokenizer t = {0};
    const colibri_tokenizer_header *h = section;
    b.base = section;
    b.bytes = bytes;
    b.detail.section = COLIBRI_SECTION_TOKENIZER;
    if (bytes < COLIBRI_TOKENIZER_HEADER_BYTES) {
        bind_refuse(&b, COLIBRI_ERROR_TEXT, COLIBRI_FIELD_BYTES, 0, COLIBRI_TOKENIZER_HEADER_BYTES, bytes);
    } else if (((uintptr_t)section & 3) != 0) {
        bind_refuse(&b, COLIBRI_ERROR_ALIGN, COLIBRI_FIELD_ALIGN, 0, 4, (uintptr_t)section & 3);
    } else {
        bind_known(&b, h);
        if (b.detail.status == COLIBRI_OK) {
            b.bytes = h->bytes;
            t.base = b.base;
            t.head = h;
            bind_steps(&b, &t, h);
            bind_tables(&b, &t, h);
            bind_words(&b, h);
        }
    }
    if (b.detail.status != COLIBRI_OK) {
        if (detail != NULL) {
            *detail = b.detail;
        }
        return b.detail.status;
    }
    *tokenizer = t;
    return COLIBRI_OK;
}

int colibri_token_text(const colibri_tokenizer *t, uint32_t id, const uint8_t **text, uint32_t *bytes)
{
    uint32_t first;
    uint32_t stop;
    if (id >= t->head->vocab) {
        return 0;
    }
    first = t->text_first[id] & COLIBRI_TEXT_FIRST_MASK;
    stop = t->text_first[id + 1] & COLIBRI_TEXT_FIRST_MASK;
    if (first > stop || stop > t->head->texts.count || stop - first > t->head->longest) {
        return 0;
    }
    *text = t->texts + first;
    *bytes = stop - first;
    return 1;
}

int32_t colibri_tokenizer_marker_text(const colibri_tokenizer *tokenizer, uint32_t marker,
                                      const uint8_t **text, uint32_t *bytes)
{
    uint32_t first = 0;
    uint32_t i;
    if (marker >= COLIBRI_MARKER_COUNT) {
        return COLIBRI_ERROR_ARGUMENT;
    }
    if (tokenizer->head->markers.count == 0) {
        return COLIBRI_ERROR_LEFT_OUT;
    }
    for (i = 0; i < marker; i++) {
        first += tokenizer->head->marker_bytes[i];
    }
    *text = tokenizer->markers + first;
    *bytes = tokenizer->head->marker_bytes[marker];
    return COLIBRI_OK;
}

/* How the scratch is divided; the one place that knows. Every size a multiple of 8. */
static uint64_t scratch_ids(const colibri_tokenizer *t, uint64_t text_bytes)
{
    uint64_t ids = text_bytes + 2 * COLIBRI_TOKENIZER_AFFIXES + 4;
    if ((t->head->flags & (COLIBRI_TOKENIZER_PREFIX_SPACE | COLIBRI_TOKENIZER_PREFIX_MARK)) != 0) {
        ids += text_bytes / 2;          /* between two added tokens of one byte may stand a segment of one */
    }
    return (ids + 1) & ~(uint64_t)1;
}

static uint64_t scratch_symbols(uint64_t text_bytes)
{
    return (text_bytes + 4 + 1) & ~(uint64_t)1;     /* a character put in front takes up to 4 */
}

static uint64_t scratch_buffer(const colibri_tokenizer *t, uint64_t text_bytes)
{
    return (t->head->flags & COLIBRI_TOKENIZER_NFC) != 0 ? (text_bytes + 7) & ~(uint64_t)7 : 0;
}

uint64_t colibri_tokenizer_scratch(const colibri_tokenizer *tokenizer, uint32_t text_bytes)
{
    if (text_bytes > COLIBRI_TEXT_FIRST_MASK) {
        return 0;
    }
    return sizeof(colibri_encode_state) + 4 * scratch_ids(tokenizer, text_bytes) +
           12 * scratch_symbols(text_bytes) + scratch_buffer(tokenizer, text_bytes);
}

void colibri_encoding_carve(colibri_encoding *e, void *scratch, uint32_t text_limit)
{
    uint8_t *at = scratch;
    uint64_t ids = scratch_ids(e->t, text_limit);
    uint64_t symbols = scratch_symbols(text_limit);
    e->state = (colibri_encode_state *)(void *)at;
    at += sizeof(colibri_encode_state);
    e->ids = (uint32_t *)(void *)at;
    e->ids_room = (uint32_t)ids;
    at += 4 * ids;
    e->rank = (uint32_t *)(void *)at;
    e->heap = e->rank + symbols;
    e->place = e->heap + symbols;
    e->room = (uint32_t)symbols;
    at += 12 * symbols;
    e->buffer = at;
}
