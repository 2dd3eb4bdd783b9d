/*
 * save.c: what a session knows of its texts, as bytes, and back. Saved is what the next row could see and nothing else:
 * for every sequence its positions' numbers in each layer's planes (keys, values, index keys), lane by lane, and where
 * asked for the logits of the last feed. So the bytes do not depend on the plan (context, rings, batch, slots) nor on
 * what lay in the pool before, are the same on every target, and fit into any plan that has room.
 *
 * head:  colibri_saved, then (length, floor) of the sequences, up to the last that is not empty
 * body:  rows of logits; then by sequence, layer, plane and head the tiles of 16 positions from the first that is kept
 *        to the last, each cut to the lanes in use
 *
 * A head is written last: bytes of a save that did not end are no save. A restore believes a head whose sum is right,
 * reads the body once for its sum, and only then empties the sequences and reads it again, into the cache.
 */
#include "api/limits.h"

#define COLIBRI_SAVED_MAGIC 0x56534C43u         /* "CLSV" */

enum { COLIBRI_SAVED_VERSION = 1, COLIBRI_SAVED_SUMMED = 76, COLIBRI_PLANES = 3 };

typedef struct colibri_saved {
    uint32_t magic;
    uint32_t version;
    uint64_t bytes;                             /* head and body */
    uint8_t identity[32];
    uint32_t kv_kind;
    uint32_t top_k;                             /* limits that change answers, and so the cache */
    uint32_t skip_below;                        /* bits of the float */
    uint32_t sequences;
    uint32_t logit_rows;
    uint32_t reserved;
    uint32_t body_crc;
    uint32_t head_crc;                          /* of the 76 bytes before it and of the sequences */
} colibri_saved;
COLIBRI_ASSERT_SIZE(colibri_saved, 80);

typedef struct colibri_saved_sequence {
    uint32_t length, floor;
} colibri_saved_sequence;

static int32_t colibri_save_refuse(colibri_detail *detail, int32_t status, uint32_t field, uint64_t expected,
                                   uint64_t found)
{
    return colibri_refuse(detail, status, 0, field, 0, 0, expected, found);
}

/* ---- what is kept of a layer ---- */

/* One plane of a layer's cache; heads 0: the layer has none. */
typedef struct colibri_plane {
    uint64_t offset;                            /* of head 0's first tile, inside one sequence's cache */
    uint64_t head_bytes, tile_bytes;
    uint32_t columns, heads, rows, reserved;    /* rows: a lane's numbers lie together, as in a V tile */
} colibri_plane;

static colibri_plane colibri_plane_of(const colibri_layer *layer, uint32_t which)
{
    colibri_plane p;
    uint64_t before = layer->kv_tiles * layer->k_tile_bytes;
    p.tile_bytes = which == 0u ? layer->k_tile_bytes : which == 1u ? layer->v_tile_bytes : layer->index_tile_bytes;
    p.head_bytes = (layer->k_tile_bytes + layer->v_tile_bytes) * layer->kv_tiles;
    p.offset = which == 2u ? layer->index_offset : layer->kv_offset + (which == 1u ? before : 0u);
    p.columns = which == 2u ? layer->d.index_dim : layer->d.head_dim;
    p.heads = !p.tile_bytes ? 0u : which == 2u ? 1u : layer->d.kv_heads;
    p.rows = which == 1u;
    p.reserved = 0;
    return p;
}

/* A stretch of a tile in which the lanes take turns, `unit` bytes each; bytes 0: behind the last one. */
typedef struct colibri_stretch {
    uint64_t offset, bytes, unit;
} colibri_stretch;

static colibri_stretch colibri_stretch_of(uint32_t kv_kind, const colibri_plane *p, uint32_t i)
{
    uint64_t element = kv_kind == COLIBRI_KV_F32 ? 4u : kv_kind == COLIBRI_KV_F16 ? 2u : 1u;
    uint32_t groups = colibri_groups(p->columns);
    colibri_stretch piece = {0, 0, element};
    if (p->rows || kv_kind != COLIBRI_KV_Q8) {
        uint32_t scales = kv_kind == COLIBRI_KV_Q8;
        if (i < scales) {
            piece.unit = 2;
            piece.bytes = 32u * (uint64_t)groups;
        } else if (i == scales) {
            piece.offset = scales ? colibri_round_up(p->columns, 64) : 0u;
            piece.unit = p->rows ? element * p->columns : element;
            piece.bytes = COLIBRI_TILE_ROWS * element * p->columns;
        }
    } else if (i < 2u * groups) {               /* of a group its numbers, then its scales */
        uint32_t second = i / 2u & 1u;
        piece.offset = (uint64_t)(i / 4u) * COLIBRI_PAIR_Q8_BYTES + (i & 1u ? 1024u + 32u * second : 512u * second);
        piece.unit = i & 1u ? 2u : 4u;
        piece.bytes = COLIBRI_TILE_ROWS * piece.unit * (i & 1u ? 1u : COLIBRI_GROUP / 4u);
    }
    return piece;
}

/* Bytes of one position of one head. */
static uint64_t colibri_plane_row(uint32_t kv_kind, const colibri_plane *p)
{
    if (kv_kind == COLIBRI_KV_Q8) {
        uint64_t groups = colibri_groups(p->columns);
        return 2u * groups + (p->rows ? p->columns : groups * COLIBRI_GROUP);
    }
    return (uint64_t)p->columns * (kv_kind == COLIBRI_KV_F32 ? 4u : 2u);
}

/* The first position that a row at `floor` or behind it sees. */
static uint32_t colibri_first_kept(const colibri_layer *layer, uint32_t floor)
{
    if (layer->d.chunk) {
        return floor - floor % layer->d.chunk;
    }
    return layer->d.window && floor + 1u > layer->d.window ? floor + 1u - layer->d.window : 0u;
}

/* Bytes of a sequence; what does not fit in 64 bits is remembered in *bad. */
static uint64_t colibri_kept_bytes(const colibri_session *s, uint32_t length, uint32_t floor, int *bad)
{
    uint64_t bytes = 0;
    for (uint32_t l = 0; length && l < s->view.layers; l++) {
        const colibri_layer *layer = colibri_layer_at(s, l);
        uint64_t positions = length - colibri_first_kept(layer, floor);
        for (uint32_t which = 0; which < COLIBRI_PLANES; which++) {
            colibri_plane p = colibri_plane_of(layer, which);
            uint64_t row = p.heads ? colibri_mul(colibri_plane_row(s->limits.kv_kind, &p), p.heads, bad) : 0u;
            bytes = colibri_add(bytes, colibri_mul(positions, row, bad), bad);
        }
    }
    return bytes;
}

/* ---- moving ---- */

/* Lanes first .. end - 1 of a tile to bytes, or from them. */
static uint64_t colibri_move_lanes(uint32_t kv_kind, const colibri_plane *p, uint8_t *tile, uint32_t first,
                                   uint32_t end, uint8_t *bytes, int in)
{
    uint64_t moved = 0;
    uint32_t lanes = end - first;
    for (uint32_t i = 0; ; i++) {
        colibri_stretch piece = colibri_stretch_of(kv_kind, p, i);
        uint64_t turn = lanes == COLIBRI_TILE_ROWS ? piece.bytes : COLIBRI_TILE_ROWS * piece.unit;
        uint64_t count = lanes == COLIBRI_TILE_ROWS ? piece.bytes : lanes * piece.unit;
        if (!piece.bytes) {
            return moved;
        }
        for (uint64_t at = 0; at < piece.bytes; at += turn, moved += count) {
            uint8_t *here = tile + piece.offset + at + first * piece.unit;
            colibri_copy(in ? here : bytes + moved, in ? bytes + moved : here, count);
        }
    }
}

/* The next tile on the way. Before the end there is one. */
static uint64_t colibri_move_tile(colibri_session *s, uint8_t *bytes, int in)
{
    colibri_transfer *t = &s->transfer;
    for (;;) {
        const colibri_sequence *q = colibri_sequence_at(s, t->sequence);
        const colibri_layer *layer = colibri_layer_at(s, t->layer);
        colibri_plane p = colibri_plane_of(layer, t->plane);
        uint32_t length = q->length + q->queued, first = colibri_first_kept(layer, q->floor);
        t->position = t->position > first ? t->position : first;
        if (t->position < length && t->head < p.heads) {
            uint32_t tile = t->position / COLIBRI_TILE_ROWS, lane = t->position % COLIBRI_TILE_ROWS;
            uint32_t rest = length - tile * COLIBRI_TILE_ROWS;
            uint32_t end = rest < COLIBRI_TILE_ROWS ? rest : COLIBRI_TILE_ROWS;
            uint8_t *at = colibri_pool_at(s, s->layout.kv + t->sequence * s->layout.kv_sequence_bytes + p.offset +
                                                 t->head * p.head_bytes + tile % layer->kv_tiles * p.tile_bytes);
            t->position += end - lane;
            return colibri_move_lanes(s->limits.kv_kind, &p, at, lane, end, bytes, in);
        }
        t->position = 0;
        t->head = t->head + 1u < p.heads ? t->head + 1u : 0u;
        t->plane += t->head == 0u;
        t->layer += t->plane == COLIBRI_PLANES;
        t->plane = t->plane == COLIBRI_PLANES ? 0u : t->plane;
        t->sequence += t->layer == s->view.layers;
        t->layer = t->layer == s->view.layers ? 0u : t->layer;
    }
}

/* Logits of the piece the transfer is at: at most `most` bytes of one row. */
static uint64_t colibri_move_logits(colibri_session *s, uint64_t done, uint64_t most, uint8_t *bytes, int in)
{
    uint64_t row = (uint64_t)s->view.vocab * 4u, index = done / row, at = done % row;
    uint64_t count = row - at < most ? row - at : most;
    uint8_t *here = colibri_pool_at(s, s->layout.logits + index * s->layout.logit_stride + at);
    colibri_copy(in ? here : bytes, in ? bytes : here, count);
    return count;
}

/* The body, as far as the budget goes. */
static int32_t colibri_move_body(colibri_session *s, uint64_t budget, int in)
{
    colibri_transfer *t = &s->transfer;
    uint64_t logits = (uint64_t)t->logit_rows * s->view.vocab * 4u;
    while (t->at < t->total) {
        uint8_t *bytes = t->bytes + t->at;
        if (!budget) {
            return COLIBRI_AGAIN;
        }
        uint64_t done = t->at - t->body;
        uint64_t moved = done < logits ? colibri_move_logits(s, done, budget, bytes, in)
                                       : colibri_move_tile(s, bytes, in);
        t->crc = colibri_crc(s->kernel, t->crc, bytes, moved);
        t->at += moved;
        budget -= moved < budget ? moved : budget;
    }
    return COLIBRI_DONE;
}

static void colibri_transfer_begin(colibri_session *s, uint32_t kind, const void *bytes, uint64_t count, uint64_t body)
{
    colibri_transfer *t = &s->transfer;
    colibri_fill(t, 0, sizeof *t);
    t->kind = kind;
    t->bytes = (uint8_t *)(uintptr_t)bytes;     /* of a restore: only read */
    t->count = count;
    t->body = body;
    t->at = body;
}

static int colibri_transfer_is(const colibri_session *s, uint32_t kind, const void *bytes, uint64_t count, uint32_t sum)
{
    const colibri_transfer *t = &s->transfer;
    return t->kind == kind && t->bytes == bytes && t->count == count && t->sum == sum;
}

static int32_t colibri_transfer_ready(const colibri_session *s, const void *bytes, colibri_detail *detail)
{
    if (!s || s->magic != COLIBRI_SESSION_MAGIC || !bytes) {
        return colibri_save_refuse(detail, COLIBRI_ERROR_ARGUMENT, COLIBRI_FIELD_NONE, 0, 0);
    }
    if (s->state == COLIBRI_STATE_STOPPED) {
        return colibri_save_refuse(detail, COLIBRI_ERROR_STOPPED, COLIBRI_FIELD_NONE, 0, 0);
    }
    return COLIBRI_OK;
}

/* ---- save ---- */

static uint32_t colibri_save_sequences(const colibri_session *s)
{
    uint32_t count = s->limits.sequences;
    while (count && !colibri_sequence_at(s, count - 1u)->length) {
        count--;
    }
    return count;
}

static uint64_t colibri_head_bytes(uint32_t sequences)
{
    return sizeof(colibri_saved) + sequences * (uint64_t)sizeof(colibri_saved_sequence);
}

uint64_t colibri_save_bytes(const colibri_session *s, uint32_t flags)
{
    int bad = 0;                                /* the pool holds as much */
    if (!s || s->magic != COLIBRI_SESSION_MAGIC || s->state != COLIBRI_STATE_IDLE || flags > COLIBRI_SAVE_LOGITS) {
        return 0;
    }
    uint32_t sequences = colibri_save_sequences(s);
    uint64_t bytes = colibri_head_bytes(sequences);
    for (uint32_t i = 0; i < sequences; i++) {
        const colibri_sequence *q = colibri_sequence_at(s, i);
        bytes += colibri_kept_bytes(s, q->length, q->floor, &bad);
    }
    return bytes + (flags & COLIBRI_SAVE_LOGITS ? (uint64_t)s->logit_count * s->view.vocab * 4u : 0u);
}

static void colibri_save_head(colibri_session *s, uint32_t sequences)
{
    const colibri_transfer *t = &s->transfer;
    colibri_saved h;
    uint8_t *at = t->bytes + sizeof h;
    h.magic = COLIBRI_SAVED_MAGIC;
    h.version = COLIBRI_SAVED_VERSION;
    h.bytes = t->total;
    (void)colibri_identity(s, h.identity);
    h.kv_kind = s->limits.kv_kind;
    h.top_k = s->limits.top_k;
    h.skip_below = colibri_bits(s->limits.skip_below);
    h.sequences = sequences;
    h.logit_rows = t->logit_rows;
    h.reserved = 0;
    h.body_crc = t->crc;
    for (uint32_t i = 0; i < sequences; i++) {
        const colibri_sequence *q = colibri_sequence_at(s, i);
        colibri_saved_sequence kept = {q->length, q->floor};
        colibri_copy(at + i * sizeof kept, &kept, sizeof kept);
    }
    h.head_crc = colibri_crc(s->kernel, 0, &h, COLIBRI_SAVED_SUMMED);
    h.head_crc = colibri_crc(s->kernel, h.head_crc, at, sequences * sizeof(colibri_saved_sequence));
    colibri_copy(t->bytes, &h, sizeof h);
}

int32_t colibri_save(colibri_session *s, uint32_t flags, void *bytes, uint64_t capacity, uint64_t budget_bytes,
                     colibri_detail *detail)
{
    int32_t status = colibri_transfer_ready(s, bytes, detail);
    if (status < 0) {
        return status;
    }
    if (flags > COLIBRI_SAVE_LOGITS) {
        return colibri_save_refuse(detail, COLIBRI_ERROR_ARGUMENT, COLIBRI_FIELD_FLAGS, COLIBRI_SAVE_LOGITS, flags);
    }
    if (s->state != COLIBRI_STATE_IDLE) {
        return colibri_save_refuse(detail, COLIBRI_ERROR_BUSY, COLIBRI_FIELD_NONE, 0, 0);
    }
    if (!colibri_transfer_is(s, COLIBRI_TRANSFER_SAVE, bytes, capacity, flags)) {
        uint64_t total = colibri_save_bytes(s, flags);
        if (capacity < total) {
            return colibri_save_refuse(detail, COLIBRI_ERROR_LIMIT, COLIBRI_FIELD_BYTES, total, capacity);
        }
        uint64_t head = colibri_head_bytes(colibri_save_sequences(s));
        colibri_transfer_begin(s, COLIBRI_TRANSFER_SAVE, bytes, capacity, head);
        s->transfer.sum = flags;
        s->transfer.total = total;
        s->transfer.logit_rows = flags & COLIBRI_SAVE_LOGITS ? s->logit_count : 0u;
        colibri_fill(bytes, 0, head);
    }
    status = colibri_move_body(s, budget_bytes, 0);
    if (status == COLIBRI_DONE) {
        colibri_save_head(s, colibri_save_sequences(s));
        colibri_fill(&s->transfer, 0, sizeof s->transfer);
    }
    return status;
}

/* ---- restore ---- */

static colibri_saved_sequence colibri_saved_at(const uint8_t *bytes, uint32_t index)
{
    colibri_saved_sequence kept;
    colibri_copy(&kept, bytes + sizeof(colibri_saved) + index * sizeof kept, sizeof kept);
    return kept;
}

/* Is it a save at all, and a whole one? */
static int32_t colibri_saved_form(const colibri_session *s, const uint8_t *bytes, uint64_t count, colibri_saved *h,
                                  colibri_detail *detail)
{
    if (count < sizeof *h) {
        return colibri_save_refuse(detail, COLIBRI_ERROR_TRUNCATED, COLIBRI_FIELD_BYTES, sizeof *h, count);
    }
    colibri_copy(h, bytes, sizeof *h);
    if (h->magic != COLIBRI_SAVED_MAGIC) {
        return colibri_save_refuse(detail, COLIBRI_ERROR_MAGIC, COLIBRI_FIELD_MAGIC, COLIBRI_SAVED_MAGIC, h->magic);
    }
    if (h->version != COLIBRI_SAVED_VERSION) {
        return colibri_save_refuse(detail, COLIBRI_ERROR_VERSION, COLIBRI_FIELD_VERSION, COLIBRI_SAVED_VERSION,
                                   h->version);
    }
    uint64_t head = colibri_head_bytes(h->sequences);
    if (count < head) {
        return colibri_save_refuse(detail, COLIBRI_ERROR_TRUNCATED, COLIBRI_FIELD_BYTES, head, count);
    }
    uint32_t crc = colibri_crc(s->kernel, 0, bytes, COLIBRI_SAVED_SUMMED);
    crc = colibri_crc(s->kernel, crc, bytes + sizeof *h, head - sizeof *h);
    if (crc != h->head_crc) {
        return colibri_save_refuse(detail, COLIBRI_ERROR_CORRUPT, COLIBRI_FIELD_CRC, h->head_crc, crc);
    }
    if (h->bytes != count) {
        return colibri_save_refuse(detail, count < h->bytes ? COLIBRI_ERROR_TRUNCATED : COLIBRI_ERROR_FORMAT,
                                   COLIBRI_FIELD_BYTES, h->bytes, count);
    }
    return COLIBRI_OK;
}

typedef struct colibri_saved_fact {
    uint32_t field, least, most, found;
} colibri_saved_fact;

/* Is it of this model, and does it fit into this plan? */
static int32_t colibri_saved_fits(const colibri_session *s, const colibri_saved *h, colibri_detail *detail)
{
    uint8_t own[32];
    uint32_t differ = 0, skip = colibri_bits(s->limits.skip_below);
    (void)colibri_identity(s, own);
    for (uint32_t i = 0; i < sizeof own; i++) {
        differ |= (uint32_t)(own[i] ^ h->identity[i]);
    }
    if (differ) {
        uint64_t here = 0, there = 0;
        colibri_copy(&here, own, sizeof here);
        colibri_copy(&there, h->identity, sizeof there);
        return colibri_save_refuse(detail, COLIBRI_ERROR_IDENTITY, COLIBRI_FIELD_IDENTITY, here, there);
    }
    const colibri_saved_fact facts[] = {
        {COLIBRI_FIELD_KV_KIND, s->limits.kv_kind, s->limits.kv_kind, h->kv_kind},
        {COLIBRI_FIELD_TOP_K, s->limits.top_k, s->limits.top_k, h->top_k},
        {COLIBRI_FIELD_SKIP, skip, skip, h->skip_below},
        {COLIBRI_FIELD_SEQUENCES, 0, s->limits.sequences, h->sequences},
        {COLIBRI_FIELD_LOGIT_ROWS, 0, s->limits.logit_rows, h->logit_rows},
        {COLIBRI_FIELD_RESERVED, 0, 0, h->reserved},
    };
    for (uint32_t i = 0; i < sizeof facts / sizeof facts[0]; i++) {
        if (facts[i].found < facts[i].least || facts[i].found > facts[i].most) {
            return colibri_save_refuse(detail, COLIBRI_ERROR_LIMIT, facts[i].field, facts[i].most, facts[i].found);
        }
    }
    return COLIBRI_OK;
}

static int32_t colibri_saved_check(const colibri_session *s, const uint8_t *bytes, uint64_t count, colibri_saved *h,
                                   colibri_detail *detail)
{
    int bad = 0;
    int32_t status = colibri_saved_form(s, bytes, count, h, detail);
    status = status < 0 ? status : colibri_saved_fits(s, h, detail);
    if (status < 0) {
        return status;
    }
    uint64_t total = colibri_head_bytes(h->sequences) + (uint64_t)h->logit_rows * s->view.vocab * 4u;
    for (uint32_t i = 0; i < h->sequences; i++) {
        colibri_saved_sequence kept = colibri_saved_at(bytes, i);
        if (kept.length > s->limits.context) {
            return colibri_refuse(detail, COLIBRI_ERROR_LIMIT, 0, COLIBRI_FIELD_CONTEXT, i, 0, s->limits.context,
                                  kept.length);
        }
        if (kept.floor > kept.length) {
            return colibri_refuse(detail, COLIBRI_ERROR_FORMAT, 0, COLIBRI_FIELD_REWIND, i, 0, kept.length, kept.floor);
        }
        total = colibri_add(total, colibri_kept_bytes(s, kept.length, kept.floor, &bad), &bad);
    }
    if (bad || total != count) {
        return colibri_save_refuse(detail, COLIBRI_ERROR_FORMAT, COLIBRI_FIELD_BYTES, total, count);
    }
    return COLIBRI_OK;
}

static void colibri_restore_begin(colibri_session *s, const colibri_saved *h)
{
    colibri_transfer *t = &s->transfer;
    for (uint32_t i = 0; i < s->limits.sequences; i++) {
        colibri_sequence *q = colibri_sequence_at(s, i);
        colibri_fill(q, 0, sizeof *q);
        if (i < h->sequences) {
            colibri_saved_sequence kept = colibri_saved_at(t->bytes, i);
            q->queued = kept.length;
            q->floor = kept.floor;
        }
    }
    t->kind = COLIBRI_TRANSFER_RESTORE;
    t->at = t->body;
    t->crc = 0;
    t->sum = h->body_crc;
    t->logit_rows = h->logit_rows;
    s->row_count = 0;
    s->logit_count = 0;
    s->state = COLIBRI_STATE_RESTORING;
}

/* Everything looked at, the body's sum last; DONE: from here on the session holds what was saved, or nothing. */
static int32_t colibri_restore_check(colibri_session *s, const uint8_t *bytes, uint64_t count, uint64_t *budget,
                                     colibri_detail *detail)
{
    colibri_transfer *t = &s->transfer;
    colibri_saved h;
    uint32_t sum = 0;
    if (count >= sizeof h) {
        colibri_copy(&sum, bytes + COLIBRI_SAVED_SUMMED, sizeof sum);
    }
    if (!colibri_transfer_is(s, COLIBRI_TRANSFER_CHECK, bytes, count, sum)) {
        int32_t status = colibri_saved_check(s, bytes, count, &h, detail);
        if (status < 0) {
            return status;
        }
        colibri_transfer_begin(s, COLIBRI_TRANSFER_CHECK, bytes, count, colibri_head_bytes(h.sequences));
        t->sum = sum;
        t->total = count;
    }
    uint64_t rest = count - t->at, part = rest < *budget ? rest : *budget;
    t->crc = colibri_crc(s->kernel, t->crc, bytes + t->at, part);
    t->at += part;
    *budget -= part;
    if (t->at < count) {
        return COLIBRI_AGAIN;
    }
    int32_t status = colibri_saved_check(s, bytes, count, &h, detail);      /* what is used now is what was summed */
    if (status >= 0 && t->crc != h.body_crc) {
        status = colibri_save_refuse(detail, COLIBRI_ERROR_CORRUPT, COLIBRI_FIELD_CRC, h.body_crc, t->crc);
    }
    if (status < 0) {
        colibri_fill(t, 0, sizeof *t);
        return status;
    }
    colibri_restore_begin(s, &h);
    return COLIBRI_DONE;
}

/* The body was summed again on its way into the cache. */
static int32_t colibri_restore_end(colibri_session *s, colibri_detail *detail)
{
    colibri_transfer *t = &s->transfer;
    int good = t->crc == t->sum;
    for (uint32_t i = 0; i < s->limits.sequences; i++) {
        colibri_sequence *q = colibri_sequence_at(s, i);
        uint32_t least = s->rings && q->queued > s->limits.rewind ? q->queued - s->limits.rewind : 0u;
        q->length = good ? q->queued : 0u;
        q->floor = !good ? 0u : least > q->floor ? least : q->floor;
        q->queued = 0;
    }
    s->logit_count = good ? t->logit_rows : 0u;
    s->state = COLIBRI_STATE_IDLE;
    uint32_t expected = t->sum, found = t->crc;
    colibri_fill(t, 0, sizeof *t);
    return good ? COLIBRI_DONE : colibri_save_refuse(detail, COLIBRI_ERROR_CORRUPT, COLIBRI_FIELD_CRC, expected, found);
}

int32_t colibri_restore(colibri_session *s, const void *bytes, uint64_t count, uint64_t budget_bytes,
                        colibri_detail *detail)
{
    int32_t status = colibri_transfer_ready(s, bytes, detail);
    if (status < 0) {
        return status;
    }
    int begun = s->state == COLIBRI_STATE_RESTORING && s->transfer.bytes == bytes && s->transfer.count == count;
    if (!begun && s->state != COLIBRI_STATE_IDLE) {
        return colibri_save_refuse(detail, COLIBRI_ERROR_BUSY, COLIBRI_FIELD_NONE, 0, 0);
    }
    status = begun ? COLIBRI_DONE : colibri_restore_check(s, bytes, count, &budget_bytes, detail);
    status = status == COLIBRI_DONE ? colibri_move_body(s, budget_bytes, 1) : status;
    return status == COLIBRI_DONE ? colibri_restore_end(s, detail) : status;
}
