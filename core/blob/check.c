/*
 * check.c: colibri_check, the resumable walk over every byte. Sums first (tables, sections, experts, tensors), then
 * the content of the tiles: what a matching checksum cannot vouch for when the writer was wrong.
 */
#include "blob/view.h"

enum colibri_check_phase {
    COLIBRI_CHECK_TABLES = 0,
    COLIBRI_CHECK_SECTIONS = 1,
    COLIBRI_CHECK_EXPERTS = 2,
    COLIBRI_CHECK_TENSORS = 3,
    COLIBRI_CHECK_CONTENT = 4,
    COLIBRI_CHECK_FINISHED = 5
};

typedef struct colibri_check_walk {
    uint32_t phase;
    uint32_t item;                              /* section or tensor */
    uint32_t part;                              /* expert of a tensor, or tile */
    uint32_t expert;                            /* in EXPERT_SUMS */
    uint64_t at;                                /* bytes of the current piece already summed */
    uint32_t crc;
    uint32_t summing;
    colibri_sha256 sha;
} colibri_check_walk;

typedef struct colibri_piece {
    uint64_t offset;
    uint64_t bytes;
    uint32_t crc;
    uint32_t section;
    uint32_t index;
    const uint8_t *digest;
} colibri_piece;

static int colibri_same_bytes(const uint8_t *a, const uint8_t *b, uint32_t count)
{
    uint32_t differ = 0;
    for (uint32_t i = 0; i < count; i++) {
        differ |= (uint32_t)(a[i] ^ b[i]);
    }
    return differ == 0u;
}

static int32_t colibri_check_tables(const colibri_view *view, colibri_detail *detail)
{
    const colibri_blob_header *h = (const colibri_blob_header *)(const void *)view->blob;
    colibri_sha256 sha;
    uint8_t digest[32];
    uint32_t crc = colibri_tables_sum(view->blob, view->tables_bytes, &sha);
    if (crc != h->tables_crc) {
        return colibri_refuse(detail, COLIBRI_ERROR_CORRUPT, 0, COLIBRI_FIELD_CRC, 0, 32, h->tables_crc, crc);
    }
    colibri_sha256_end(&sha, digest);
    if (!colibri_same_bytes(digest, h->identity, 32)) {
        return colibri_refuse(detail, COLIBRI_ERROR_CORRUPT, 0, COLIBRI_FIELD_IDENTITY, 0, 40, 0, 0);
    }
    return COLIBRI_DONE;
}

/* Both sums over one piece, `budget` bytes at a time. DONE, AGAIN, or the fault. */
static int32_t colibri_sum_piece(const colibri_view *view, colibri_check_walk *walk, const colibri_piece *piece,
                                 uint64_t *budget, colibri_detail *detail)
{
    if (!walk->summing) {
        colibri_sha256_start(&walk->sha);
        walk->crc = 0;
        walk->at = 0;
        walk->summing = 1;
    }
    uint64_t rest = piece->bytes - walk->at;
    uint64_t n = rest < *budget ? rest : *budget;
    const uint8_t *bytes = view->blob + piece->offset + walk->at;
    walk->crc = colibri_crc32c(walk->crc, bytes, n);
    colibri_sha256_add(&walk->sha, bytes, n);
    walk->at += n;
    *budget -= n;
    if (n < rest) {
        return COLIBRI_AGAIN;
    }
    uint8_t digest[32];
    walk->summing = 0;
    colibri_sha256_end(&walk->sha, digest);
    if (walk->crc != piece->crc) {
        return colibri_refuse(detail, COLIBRI_ERROR_CORRUPT, piece->section, COLIBRI_FIELD_CRC, piece->index,
                              piece->offset, piece->crc, walk->crc);
    }
    if (!colibri_same_bytes(digest, piece->digest, 16)) {
        return colibri_refuse(detail, COLIBRI_ERROR_CORRUPT, piece->section, COLIBRI_FIELD_DIGEST, piece->index,
                              piece->offset, 0, 0);
    }
    return COLIBRI_DONE;
}

static int32_t colibri_check_sections_sum(const colibri_view *view, colibri_check_walk *walk, uint64_t *budget,
                                          colibri_detail *detail)
{
    while (walk->item < view->section_count) {
        const colibri_section *s = colibri_section_at(view, walk->item);
        if (!(s->flags & (COLIBRI_SECTION_TABLE | COLIBRI_SECTION_BY_EXPERT))) {
            colibri_piece piece = {s->offset, s->bytes, s->crc, s->type, walk->item, s->digest};
            int32_t status = colibri_sum_piece(view, walk, &piece, budget, detail);
            if (status != COLIBRI_DONE) {
                walk->item += status < 0;
                return status;
            }
        }
        walk->item++;
    }
    return COLIBRI_DONE;
}

static int32_t colibri_check_experts_sum(const colibri_view *view, colibri_check_walk *walk, uint64_t *budget,
                                         colibri_detail *detail)
{
    for (; walk->item < view->table[COLIBRI_SECTION_TENSORS].count; walk->item++, walk->part = 0) {
        const colibri_tensor *t = colibri_tensor_at(view, walk->item);
        if (t->role != COLIBRI_ROLE_EXPERT_GATE) {
            continue;
        }
        while (walk->part < t->count) {
            const colibri_expert_sum *sum = colibri_expert_sum_at(view, walk->expert);
            colibri_piece piece = {t->offset + walk->part * t->stride, t->stride, sum->crc, COLIBRI_SECTION_EXPERTS,
                                   walk->expert, sum->digest};
            int32_t status = colibri_sum_piece(view, walk, &piece, budget, detail);
            if (status == COLIBRI_AGAIN) {
                return status;
            }
            walk->part++;
            walk->expert++;
            if (status < 0) {
                return status;
            }
        }
    }
    return COLIBRI_DONE;
}

static int colibri_expert_role(uint32_t role)
{
    return role >= COLIBRI_ROLE_EXPERT_GATE && role <= COLIBRI_ROLE_EXPERT_DOWN;
}

static int32_t colibri_check_tensors_sum(const colibri_view *view, colibri_check_walk *walk, uint64_t *budget,
                                         colibri_detail *detail)
{
    for (; walk->item < view->table[COLIBRI_SECTION_TENSORS].count; walk->item++) {
        const colibri_tensor *t = colibri_tensor_at(view, walk->item);
        if (!colibri_expert_role(t->role)) {
            colibri_piece piece = {t->offset, t->bytes, t->crc, COLIBRI_SECTION_TENSORS, walk->item, t->digest};
            int32_t status = colibri_sum_piece(view, walk, &piece, budget, detail);
            if (status != COLIBRI_DONE) {
                walk->item += status < 0;
                return status;
            }
        }
    }
    return COLIBRI_DONE;
}

/* --- content of one tile: 0, or the field that is wrong --- */

static uint32_t colibri_half_tile_fault(const uint16_t *tile, uint32_t columns, uint32_t lanes)
{
    for (uint64_t i = 0; i < 32u * (((uint64_t)columns + 1u) / 2u); i++) {
        uint32_t lane = (uint32_t)(i % 16u), column = (uint32_t)(i / 16u);
        if ((tile[i] & 0x7C00u) == 0x7C00u) {
            return COLIBRI_FIELD_WEIGHT;
        }
        if ((lane >= lanes || column >= columns) && tile[i] != 0u) {
            return COLIBRI_FIELD_PADDING;
        }
    }
    return 0;
}

static uint32_t colibri_float_tile_fault(const float *tile, uint64_t count, uint32_t lanes)
{
    for (uint64_t i = 0; i < count; i++) {
        if (colibri_magnitude(tile[i]) >= COLIBRI_INFINITY_BITS) {
            return COLIBRI_FIELD_WEIGHT;
        }
        if (i % 16u >= lanes && colibri_bits(tile[i]) != 0u) {
            return COLIBRI_FIELD_PADDING;
        }
    }
    return 0;
}

static uint32_t colibri_scales_fault(const uint16_t *scales, uint32_t lanes)
{
    for (uint32_t r = 0; r < 16u; r++) {
        if ((scales[r] & 0x7F80u) == 0x7F80u) {
            return COLIBRI_FIELD_SCALE;
        }
        if (r >= lanes && scales[r] != 0u) {
            return COLIBRI_FIELD_PADDING;
        }
    }
    return 0;
}

/* One group; present = its columns, 0 for the second half of an odd last pair. */
static uint32_t colibri_q8_group_fault(const uint8_t *lines, uint32_t present, uint32_t lanes)
{
    for (uint32_t i = 0; i < 512u; i++) {
        uint32_t lane = i % 64u / 4u, column = i / 64u * 4u + i % 4u;
        if (lines[i] == 0x80u) {
            return COLIBRI_FIELD_WEIGHT;
        }
        if ((lane >= lanes || column >= present) && lines[i] != 0u) {
            return COLIBRI_FIELD_PADDING;
        }
    }
    return 0;
}

static uint32_t colibri_q4_group_fault(const uint8_t *lines, uint32_t present, uint32_t lanes)
{
    for (uint32_t i = 0; i < 256u; i++) {
        uint32_t lane = i % 64u / 4u, low = i / 64u * 8u + i % 4u;
        int pad = lane >= lanes;
        if (((pad || low >= present) && (lines[i] & 15u) != 8u) ||
            ((pad || low + 4u >= present) && lines[i] >> 4 != 8u)) {
            return COLIBRI_FIELD_PADDING;
        }
    }
    return 0;
}

static uint32_t colibri_quantized_tile_fault(uint32_t kind, const uint8_t *tile, uint32_t columns, uint32_t lanes)
{
    uint32_t pairs = (colibri_groups(columns) + 1u) / 2u;
    uint32_t pair_bytes = kind == COLIBRI_KIND_Q8 ? COLIBRI_PAIR_Q8_BYTES : COLIBRI_PAIR_Q4_BYTES;
    uint32_t half = (pair_bytes - COLIBRI_LINE_BYTES) / 2u;
    for (uint32_t g = 0; g < pairs * 2u; g++) {
        const uint8_t *pair = tile + (uint64_t)(g / 2u) * pair_bytes;
        const uint16_t *scales = (const uint16_t *)(const void *)(pair + 2u * half) + 16u * (g & 1u);
        uint64_t first = (uint64_t)g * COLIBRI_GROUP;
        uint32_t present = first >= columns ? 0u : columns - (uint32_t)first;
        uint32_t rows = present ? lanes : 0u;
        uint32_t fault = colibri_scales_fault(scales, rows);
        if (!fault) {
            fault = kind == COLIBRI_KIND_Q8 ? colibri_q8_group_fault(pair + half * (g & 1u), present, rows)
                                            : colibri_q4_group_fault(pair + half * (g & 1u), present, rows);
        }
        if (fault) {
            return fault;
        }
    }
    return 0;
}

uint32_t colibri_tile_fault(const colibri_tensor *t, const uint8_t *tile, uint32_t lanes)
{
    switch (t->kind) {
    case COLIBRI_KIND_F32:
        return colibri_float_tile_fault((const float *)(const void *)tile, 16u * (uint64_t)t->columns, lanes);
    case COLIBRI_KIND_F16: return colibri_half_tile_fault((const uint16_t *)(const void *)tile, t->columns, lanes);
    default: return colibri_quantized_tile_fault(t->kind, tile, t->columns, lanes);
    }
}

/* 1 if a table of routes has a token without ascending experts. The layer's expert matrices, whose number they are
 * below, stand before it: roles ascend. */
static int colibri_routes_fault(const colibri_view *view, uint32_t item)
{
    const colibri_tensor *t = colibri_tensor_at(view, item);
    uint32_t experts = 0;
    if (t->role != COLIBRI_ROLE_TOKEN_ROUTES) {
        return 0;
    }
    for (uint32_t i = item; i > 0u && colibri_tensor_at(view, i - 1u)->layer == t->layer; i--) {
        experts = colibri_tensor_at(view, i - 1u)->role == COLIBRI_ROLE_EXPERT_GATE ?
                  colibri_tensor_at(view, i - 1u)->count : experts;
    }
    const float *number = (const float *)(const void *)(view->blob + t->offset);
    uint32_t each = t->columns / view->vocab;
    for (uint32_t i = 0; i < view->vocab; i++) {
        if (!colibri_routes_are_experts(number + (uint64_t)i * each, each, experts)) {
            return 1;
        }
    }
    return 0;
}

/* walk->part counts the tiles of all `count` matrices of the tensor; a vector is one part. */
static int32_t colibri_check_content(const colibri_view *view, colibri_check_walk *walk, uint64_t *budget,
                                     colibri_detail *detail)
{
    for (; walk->item < view->table[COLIBRI_SECTION_TENSORS].count; walk->item++, walk->part = 0) {
        const colibri_tensor *t = colibri_tensor_at(view, walk->item);
        int vector = t->layout == COLIBRI_LAYOUT_VECTOR;
        uint32_t tiles = vector ? 1u : colibri_tiles(t->rows);
        uint64_t tile_bytes = vector ? t->bytes : colibri_tile_bytes(t->kind, t->columns);
        while (walk->part < (uint64_t)tiles * t->count) {
            if (*budget == 0u) {
                return COLIBRI_AGAIN;
            }
            uint32_t tile = walk->part % tiles;
            uint32_t lanes = t->rows - tile * 16u < 16u ? t->rows - tile * 16u : 16u;
            uint64_t at = t->offset + walk->part / tiles * t->stride + tile * tile_bytes;
            uint32_t fault = vector ? colibri_float_tile_fault((const float *)(const void *)(view->blob + at),
                                                               t->columns, 16)
                                    : colibri_tile_fault(t, view->blob + at, lanes);
            fault = !fault && colibri_routes_fault(view, walk->item) ? COLIBRI_FIELD_VALUE : fault;
            *budget -= tile_bytes < *budget ? tile_bytes : *budget;
            walk->part++;
            if (fault) {
                return colibri_refuse(detail, COLIBRI_ERROR_CONTENT, COLIBRI_SECTION_TENSORS, fault, walk->item, at, 0,
                                      walk->part - 1u);
            }
        }
    }
    return COLIBRI_DONE;
}

static int32_t colibri_check_step(const colibri_view *view, colibri_check_walk *walk, uint64_t *budget,
                                  colibri_detail *detail)
{
    switch (walk->phase) {
    case COLIBRI_CHECK_TABLES: {
        int32_t status = colibri_check_tables(view, detail);
        walk->phase += status < 0;                      /* a fault here is told once, then the walk goes on */
        return status;
    }
    case COLIBRI_CHECK_SECTIONS: return colibri_check_sections_sum(view, walk, budget, detail);
    case COLIBRI_CHECK_EXPERTS: return colibri_check_experts_sum(view, walk, budget, detail);
    case COLIBRI_CHECK_TENSORS: return colibri_check_tensors_sum(view, walk, budget, detail);
    default: return colibri_check_content(view, walk, budget, detail);
    }
}

int32_t colibri_check(const colibri_model *model, colibri_check_state *state, uint32_t level, uint64_t budget_bytes,
                      colibri_detail *detail)
{
    const colibri_view *view = colibri_view_of(model);
    colibri_check_walk *walk = (colibri_check_walk *)(void *)state;
    typedef char fits[sizeof(colibri_check_walk) <= sizeof(colibri_check_state) ? 1 : -1];
    (void)sizeof(fits);
    if (!model || !state || level < 1u || level > 2u || budget_bytes == 0u) {
        return colibri_refuse(detail, COLIBRI_ERROR_ARGUMENT, 0, COLIBRI_FIELD_NONE, 0, 0, 0, 0);
    }
    if (level == 2u && view->addressable < view->file_bytes) {
        return colibri_refuse(detail, COLIBRI_ERROR_ADDRESS, 0, COLIBRI_FIELD_FILE_BYTES, 0, 0, view->file_bytes,
                              view->addressable);
    }
    uint32_t last = level == 1u ? COLIBRI_CHECK_SECTIONS : COLIBRI_CHECK_FINISHED;
    while (walk->phase < last) {
        int32_t status = colibri_check_step(view, walk, &budget_bytes, detail);
        if (status != COLIBRI_DONE) {
            return status;
        }
        walk->phase++;
        walk->item = 0;
        walk->part = 0;
    }
    return COLIBRI_DONE;
}
