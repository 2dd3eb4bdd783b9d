/*
 * view.c: colibri_open. Header, section table, checksum of the tables; then the model's values (records.c) and every
 * layer's description (description.c) are walked once. Nothing is guessed or repaired.
 */
#include "blob/view.h"

COLIBRI_ASSERT_SIZE(colibri_blob_header, COLIBRI_HEADER_BYTES);
COLIBRI_ASSERT_SIZE(colibri_section, COLIBRI_SECTION_BYTES);
COLIBRI_ASSERT_SIZE(colibri_record, COLIBRI_RECORD_BYTES);
COLIBRI_ASSERT_SIZE(colibri_tensor, COLIBRI_TENSOR_BYTES);
COLIBRI_ASSERT_SIZE(colibri_expert_sum, COLIBRI_EXPERT_SUM_BYTES);
COLIBRI_ASSERT_SIZE(colibri_rope, COLIBRI_ROPE_BYTES);
COLIBRI_ASSERT_SIZE(colibri_model, 512);

const colibri_section *colibri_section_at(const colibri_view *view, uint32_t index)
{
    return (const colibri_section *)(const void *)(view->blob + COLIBRI_HEADER_BYTES) + index;
}

const colibri_record *colibri_records(const colibri_view *view, uint32_t section)
{
    return (const colibri_record *)(const void *)(view->blob + view->table[section].offset);
}

const colibri_tensor *colibri_tensor_at(const colibri_view *view, uint32_t index)
{
    return (const colibri_tensor *)(const void *)(view->blob + view->table[COLIBRI_SECTION_TENSORS].offset) + index;
}

const colibri_expert_sum *colibri_expert_sum_at(const colibri_view *view, uint32_t index)
{
    const uint8_t *table = view->blob + view->table[COLIBRI_SECTION_EXPERT_SUMS].offset;
    return (const colibri_expert_sum *)(const void *)table + index;
}

const colibri_rope *colibri_rope_at(const colibri_view *view, uint32_t index)
{
    return (const colibri_rope *)(const void *)(view->blob + view->table[COLIBRI_SECTION_ROPE].offset) + index;
}

const uint64_t *colibri_rope_fractions(const colibri_view *view, const colibri_rope *rope)
{
    const uint8_t *table = view->blob + view->table[COLIBRI_SECTION_ROPE_FRACTIONS].offset;
    return (const uint64_t *)(const void *)table + rope->first;
}

/* Both sums of header and tables, with tables_crc (bytes 32..35), identity (40..71) and identity_crc (72..75) as 0. */
uint32_t colibri_tables_sum(const uint8_t *blob, uint64_t tables_bytes, colibri_sha256 *sha)
{
    uint8_t header[COLIBRI_HEADER_BYTES];
    colibri_copy(header, blob, sizeof header);
    colibri_fill(header + 32, 0, 4);
    colibri_fill(header + 40, 0, 36);
    if (sha) {
        colibri_sha256_start(sha);
        colibri_sha256_add(sha, header, sizeof header);
        colibri_sha256_add(sha, blob + sizeof header, tables_bytes - sizeof header);
    }
    uint32_t crc = colibri_crc32c(0, header, sizeof header);
    return colibri_crc32c(crc, blob + sizeof header, tables_bytes - sizeof header);
}

static int colibri_all_zero(const uint8_t *bytes, uint64_t count)
{
    uint32_t any = 0;
    for (uint64_t i = 0; i < count; i++) {
        any |= bytes[i];
    }
    return any == 0u;
}

static int32_t colibri_header_fault(colibri_detail *detail, int32_t status, uint32_t field, uint64_t offset,
                                    uint64_t expected, uint64_t found)
{
    return colibri_refuse(detail, status, 0, field, 0, offset, expected, found);
}

static int32_t colibri_check_header(const colibri_view *view, colibri_detail *detail)
{
    const colibri_blob_header *h = (const colibri_blob_header *)(const void *)view->blob;
    if (h->magic != COLIBRI_FORMAT_MAGIC) {
        return colibri_header_fault(detail, COLIBRI_ERROR_MAGIC, COLIBRI_FIELD_MAGIC, 0, COLIBRI_FORMAT_MAGIC,
                                    h->magic);
    }
    if (h->version != COLIBRI_FORMAT_VERSION) {
        return colibri_header_fault(detail, COLIBRI_ERROR_VERSION, COLIBRI_FIELD_VERSION, 4, COLIBRI_FORMAT_VERSION,
                                    h->version);
    }
    if (h->header_bytes != COLIBRI_HEADER_BYTES) {
        return colibri_header_fault(detail, COLIBRI_ERROR_FORMAT, COLIBRI_FIELD_HEADER_BYTES, 8, COLIBRI_HEADER_BYTES,
                                    h->header_bytes);
    }
    if (h->section_count == 0u || h->section_count > COLIBRI_SECTION_LIMIT) {
        return colibri_header_fault(detail, COLIBRI_ERROR_FORMAT, COLIBRI_FIELD_SECTION_COUNT, 12,
                                    COLIBRI_SECTION_LIMIT, h->section_count);
    }
    if (h->file_bytes != view->file_bytes) {
        int32_t status = h->file_bytes > view->file_bytes ? COLIBRI_ERROR_TRUNCATED : COLIBRI_ERROR_FORMAT;
        return colibri_header_fault(detail, status, COLIBRI_FIELD_FILE_BYTES, 16, h->file_bytes, view->file_bytes);
    }
    if (h->tables_bytes < COLIBRI_HEADER_BYTES + (uint64_t)h->section_count * COLIBRI_SECTION_BYTES ||
        h->tables_bytes > h->file_bytes) {
        return colibri_header_fault(detail, COLIBRI_ERROR_FORMAT, COLIBRI_FIELD_TABLES_BYTES, 24, h->file_bytes,
                                    h->tables_bytes);
    }
    if (h->tables_bytes > view->addressable) {
        return colibri_header_fault(detail, COLIBRI_ERROR_TRUNCATED, COLIBRI_FIELD_TABLES_BYTES, 24, h->tables_bytes,
                                    view->addressable);
    }
    if (h->flags != 0u || !colibri_all_zero(h->reserved, sizeof h->reserved)) {
        return colibri_header_fault(detail, COLIBRI_ERROR_FORMAT, COLIBRI_FIELD_RESERVED, 36, 0, h->flags);
    }
    uint32_t crc = colibri_tables_sum(view->blob, h->tables_bytes, 0);
    if (crc != h->tables_crc) {
        return colibri_header_fault(detail, COLIBRI_ERROR_CORRUPT, COLIBRI_FIELD_CRC, 32, h->tables_crc, crc);
    }
    crc = colibri_crc32c(0, h->identity, sizeof h->identity);
    if (crc != h->identity_crc) {
        return colibri_header_fault(detail, COLIBRI_ERROR_CORRUPT, COLIBRI_FIELD_IDENTITY, 40, h->identity_crc, crc);
    }
    return COLIBRI_OK;
}

/* Bytes of one record of a section type; 0: not made of records. */
static uint32_t colibri_record_size(uint32_t type)
{
    switch (type) {
    case COLIBRI_SECTION_MODEL:
    case COLIBRI_SECTION_LAYERS:
    case COLIBRI_SECTION_GENERATION: return COLIBRI_RECORD_BYTES;
    case COLIBRI_SECTION_TENSORS: return COLIBRI_TENSOR_BYTES;
    case COLIBRI_SECTION_EXPERT_SUMS: return COLIBRI_EXPERT_SUM_BYTES;
    case COLIBRI_SECTION_ROPE: return COLIBRI_ROPE_BYTES;
    case COLIBRI_SECTION_ROPE_FRACTIONS: return 8;
    default: return 0;
    }
}

/* Alignment and flags that a known type must have; returns 0 for types this version does not know. */
static int colibri_section_rule(uint32_t type, uint64_t *align, uint32_t *flags)
{
    *align = 8;
    switch (type) {
    case COLIBRI_SECTION_MODEL:
    case COLIBRI_SECTION_LAYERS:
    case COLIBRI_SECTION_TENSORS:
    case COLIBRI_SECTION_EXPERT_SUMS:
    case COLIBRI_SECTION_ROPE:
    case COLIBRI_SECTION_ROPE_FRACTIONS: *flags = COLIBRI_SECTION_CRITICAL | COLIBRI_SECTION_TABLE; return 1;
    case COLIBRI_SECTION_RESIDENT:
        *flags = COLIBRI_SECTION_CRITICAL;
        *align = COLIBRI_TENSOR_ALIGN;
        return 1;
    case COLIBRI_SECTION_EXPERTS:
        *flags = COLIBRI_SECTION_CRITICAL | COLIBRI_SECTION_BY_EXPERT;
        *align = COLIBRI_EXPERT_ALIGN;
        return 1;
    case COLIBRI_SECTION_TOKENIZER:
    case COLIBRI_SECTION_CHAT_TEMPLATE:
    case COLIBRI_SECTION_GENERATION:
    case COLIBRI_SECTION_PROVENANCE: *flags = 0; return 1;
    default: return 0;
    }
}

static int32_t colibri_section_fault(colibri_detail *detail, int32_t status, const colibri_section *s,
                                     uint32_t field, uint32_t index, uint64_t expected, uint64_t found)
{
    uint64_t at = COLIBRI_HEADER_BYTES + (uint64_t)index * COLIBRI_SECTION_BYTES;
    return colibri_refuse(detail, status, s->type, field, index, at, expected, found);
}

/* What only tables and runs have: the header or EXPERT_SUMS vouch for them, so the sums here are zero and no byte may
 * lie outside of what is vouched for. */
static int32_t colibri_check_vouched(const colibri_view *view, const colibri_section *s, uint32_t index,
                                     colibri_detail *detail)
{
    if (!(s->flags & (COLIBRI_SECTION_TABLE | COLIBRI_SECTION_BY_EXPERT))) {
        return COLIBRI_OK;
    }
    if (s->crc != 0u || !colibri_all_zero(s->digest, sizeof s->digest)) {
        return colibri_section_fault(detail, COLIBRI_ERROR_FORMAT, s, COLIBRI_FIELD_DIGEST, index, 0, s->crc);
    }
    if ((s->flags & COLIBRI_SECTION_BY_EXPERT) && (s->bytes != s->payload || s->count != 0u)) {
        return colibri_section_fault(detail, COLIBRI_ERROR_FORMAT, s, COLIBRI_FIELD_BYTES, index, s->payload, s->bytes);
    }
    if ((s->flags & COLIBRI_SECTION_TABLE) &&
        !colibri_all_zero(view->blob + s->offset + s->payload, s->bytes - s->payload)) {
        return colibri_section_fault(detail, COLIBRI_ERROR_FORMAT, s, COLIBRI_FIELD_PADDING, index, 0, 1);
    }
    return COLIBRI_OK;
}

static int32_t colibri_check_section(colibri_view *view, uint32_t index, uint64_t expected_offset,
                                     colibri_detail *detail)
{
    const colibri_section *s = colibri_section_at(view, index);
    uint64_t align = 1;
    uint32_t flags = s->flags & (COLIBRI_SECTION_CRITICAL | COLIBRI_SECTION_TABLE | COLIBRI_SECTION_BY_EXPERT);
    int known = colibri_section_rule(s->type, &align, &flags);
    if (!known && (s->flags & (COLIBRI_SECTION_CRITICAL | COLIBRI_SECTION_BY_EXPERT))) {
        return colibri_section_fault(detail, COLIBRI_ERROR_UNKNOWN_SECTION, s, COLIBRI_FIELD_SECTION_TYPE, index, 0,
                                     s->type);
    }
    if (s->flags != flags) {
        return colibri_section_fault(detail, COLIBRI_ERROR_FORMAT, s, COLIBRI_FIELD_FLAGS, index, flags, s->flags);
    }
    if (s->offset != expected_offset || s->offset % align != 0u) {
        return colibri_section_fault(detail, COLIBRI_ERROR_FORMAT, s, COLIBRI_FIELD_OFFSET, index,
                                     colibri_round_up(expected_offset, align), s->offset);
    }
    if (s->bytes > view->file_bytes - s->offset || s->payload > s->bytes) {
        return colibri_section_fault(detail, COLIBRI_ERROR_FORMAT, s, COLIBRI_FIELD_BYTES, index,
                                     view->file_bytes - s->offset, s->bytes);
    }
    if ((s->flags & COLIBRI_SECTION_TABLE) &&
        (s->offset > view->tables_bytes || s->bytes > view->tables_bytes - s->offset)) {
        return colibri_section_fault(detail, COLIBRI_ERROR_FORMAT, s, COLIBRI_FIELD_TABLES_BYTES, index,
                                     view->tables_bytes, s->offset + s->bytes);
    }
    if (!(s->flags & COLIBRI_SECTION_TABLE) && s->offset < view->tables_bytes) {
        return colibri_section_fault(detail, COLIBRI_ERROR_FORMAT, s, COLIBRI_FIELD_OFFSET, index, view->tables_bytes,
                                     s->offset);
    }
    if (s->reserved != 0u) {
        return colibri_section_fault(detail, COLIBRI_ERROR_FORMAT, s, COLIBRI_FIELD_RESERVED, index, 0, s->reserved);
    }
    uint32_t record = known ? colibri_record_size(s->type) : s->record_bytes;
    if (s->record_bytes != record || (record && s->payload != (uint64_t)s->count * record)) {
        return colibri_section_fault(detail, COLIBRI_ERROR_FORMAT, s, COLIBRI_FIELD_RECORD_BYTES, index, record,
                                     s->record_bytes);
    }
    int32_t status = colibri_check_vouched(view, s, index, detail);
    if (status < 0) {
        return status;
    }
    if (known && view->table[s->type].present) {
        return colibri_section_fault(detail, COLIBRI_ERROR_FORMAT, s, COLIBRI_FIELD_DUPLICATE, index, 1, 2);
    }
    if (known) {
        colibri_table *table = &view->table[s->type];
        table->offset = s->offset;
        table->payload = s->payload;
        table->count = s->count;
        table->present = 1;
    }
    return COLIBRI_OK;
}

static int32_t colibri_check_sections(colibri_view *view, colibri_detail *detail)
{
    uint64_t end = COLIBRI_HEADER_BYTES + (uint64_t)view->section_count * COLIBRI_SECTION_BYTES;
    for (uint32_t i = 0; i < view->section_count; i++) {
        int32_t status = colibri_check_section(view, i, end, detail);
        if (status < 0) {
            return status;
        }
        end += colibri_section_at(view, i)->bytes;
    }
    if (end != view->file_bytes) {
        return colibri_header_fault(detail, COLIBRI_ERROR_FORMAT, COLIBRI_FIELD_FILE_BYTES, 16, view->file_bytes, end);
    }
    static const uint8_t needed[] = {COLIBRI_SECTION_MODEL, COLIBRI_SECTION_LAYERS, COLIBRI_SECTION_TENSORS,
                                     COLIBRI_SECTION_RESIDENT};
    for (uint32_t i = 0; i < sizeof needed; i++) {
        if (!view->table[needed[i]].present) {
            return colibri_refuse(detail, COLIBRI_ERROR_FORMAT, needed[i], COLIBRI_FIELD_MISSING, 0, 0, 1, 0);
        }
    }
    return COLIBRI_OK;
}

/* From here on the view ends where the drafts begin: with the last byte of the tensors that a run needs. */
static void colibri_cut_drafts(colibri_view *view, const colibri_cursor *end)
{
    colibri_table *resident = &view->table[COLIBRI_SECTION_RESIDENT];
    uint64_t last = resident->offset;
    for (uint32_t i = 0; i < end->tensor; i++) {
        const colibri_tensor *t = colibri_tensor_at(view, i);
        int expert = t->role >= COLIBRI_ROLE_EXPERT_GATE && t->role <= COLIBRI_ROLE_EXPERT_DOWN;
        last = !expert && t->offset + t->bytes > last ? t->offset + t->bytes : last;
    }
    resident->payload = last - resident->offset;
    view->table[COLIBRI_SECTION_EXPERTS].payload = end->expert_end - view->table[COLIBRI_SECTION_EXPERTS].offset;
    view->table[COLIBRI_SECTION_EXPERT_SUMS].count = end->expert;
}

static int32_t colibri_check_layers(colibri_view *view, colibri_detail *detail)
{
    colibri_cursor cursor, end;
    colibri_description layer;
    int32_t status = colibri_layer_begin(view, &cursor, detail);
    for (uint32_t l = 0; status >= 0 && l < view->layers; l++) {
        status = colibri_layer_next(view, &cursor, &layer, detail);
    }
    end = cursor;
    for (uint32_t l = 0; status >= 0 && l < view->drafts; l++) {
        status = colibri_layer_next(view, &cursor, &layer, detail);
    }
    status = status < 0 ? status : colibri_layer_end(view, &cursor, detail);
    if (status >= 0 && view->drafts) {
        colibri_cut_drafts(view, &end);
    }
    return status;
}

int32_t colibri_open(colibri_model *model, const void *blob, uint64_t addressable, uint64_t file_bytes,
                     colibri_detail *detail)
{
    colibri_view view;
    colibri_fill(&view, 0, sizeof view);
    if (!model || !blob) {
        return colibri_header_fault(detail, COLIBRI_ERROR_ARGUMENT, COLIBRI_FIELD_NONE, 0, 0, 0);
    }
    if ((uintptr_t)blob % COLIBRI_TENSOR_ALIGN != 0u) {
        return colibri_header_fault(detail, COLIBRI_ERROR_ALIGN, COLIBRI_FIELD_ALIGN, 0, 0,
                                    (uintptr_t)blob % COLIBRI_TENSOR_ALIGN);
    }
    if (addressable > file_bytes) {
        addressable = file_bytes;
    }
    if (addressable > UINTPTR_MAX - (uintptr_t)blob) {
        return colibri_header_fault(detail, COLIBRI_ERROR_ADDRESS, COLIBRI_FIELD_FILE_BYTES, 0,
                                    UINTPTR_MAX - (uintptr_t)blob, addressable);
    }
    if (addressable < COLIBRI_HEADER_BYTES) {
        return colibri_header_fault(detail, COLIBRI_ERROR_TRUNCATED, COLIBRI_FIELD_FILE_BYTES, 0, COLIBRI_HEADER_BYTES,
                                    addressable);
    }
    view.blob = blob;
    view.addressable = addressable;
    view.file_bytes = file_bytes;
    int32_t status = colibri_check_header(&view, detail);
    if (status >= 0) {
        const colibri_blob_header *h = (const colibri_blob_header *)(const void *)view.blob;
        view.section_count = h->section_count;
        view.tables_bytes = h->tables_bytes;
        status = colibri_check_sections(&view, detail);
    }
    status = status < 0 ? status : colibri_read_model(&view, detail);
    status = status < 0 ? status : colibri_check_ropes(&view, detail);
    status = status < 0 ? status : colibri_check_layers(&view, detail);
    if (status >= 0) {
        colibri_fill(model, 0, sizeof *model);
        colibri_copy(model, &view, sizeof view);
    }
    return status < 0 ? status : COLIBRI_OK;
}
