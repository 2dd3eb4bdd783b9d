/*
 * records.c: the typed key/value records of the model and of its layers. Unknown keys that must be understood are
 * refused by number; values are range-checked here, shapes in description.c.
 */
#include "blob/records.h"

int32_t colibri_record_fault(colibri_detail *detail, int32_t status, const colibri_view *view, uint32_t section,
                             uint32_t index, uint32_t field, uint64_t expected, uint64_t found)
{
    uint64_t at = view->table[section].offset + (uint64_t)index * COLIBRI_RECORD_BYTES;
    return colibri_refuse(detail, status, section, field, index, at, expected, found);
}

/* The type a value of this type must have: high half zero for 32-bit values, floats finite. */
static int colibri_record_sane(const colibri_record *r, uint32_t type)
{
    if (r->type != type || (r->flags & ~(uint32_t)COLIBRI_RECORD_MUST)) {
        return 0;
    }
    if (type != COLIBRI_TYPE_U64 && r->value >> 32) {
        return 0;
    }
    return type != COLIBRI_TYPE_F32 || ((uint32_t)r->value & 0x7FFFFFFFu) < COLIBRI_INFINITY_BITS;
}

int32_t colibri_record_u32(const colibri_view *view, uint32_t section, uint32_t index, uint32_t low, uint32_t high,
                           uint32_t *value, colibri_detail *detail)
{
    const colibri_record *r = colibri_records(view, section) + index;
    if (!colibri_record_sane(r, COLIBRI_TYPE_U32)) {
        return colibri_record_fault(detail, COLIBRI_ERROR_FORMAT, view, section, index, COLIBRI_FIELD_TYPE,
                                    COLIBRI_TYPE_U32, r->type);
    }
    if (r->value < low || r->value > high) {
        return colibri_record_fault(detail, COLIBRI_ERROR_FORMAT, view, section, index, COLIBRI_FIELD_VALUE, high,
                                    r->value);
    }
    *value = (uint32_t)r->value;
    return COLIBRI_OK;
}

int32_t colibri_record_f32(const colibri_view *view, uint32_t section, uint32_t index, float *value,
                           colibri_detail *detail)
{
    const colibri_record *r = colibri_records(view, section) + index;
    if (!colibri_record_sane(r, COLIBRI_TYPE_F32)) {
        return colibri_record_fault(detail, COLIBRI_ERROR_FORMAT, view, section, index, COLIBRI_FIELD_VALUE,
                                    COLIBRI_TYPE_F32, r->value);
    }
    *value = colibri_float((uint32_t)r->value);
    return COLIBRI_OK;
}

int32_t colibri_record_u64(const colibri_view *view, uint32_t section, uint32_t index, uint64_t *value,
                           colibri_detail *detail)
{
    const colibri_record *r = colibri_records(view, section) + index;
    if (!colibri_record_sane(r, COLIBRI_TYPE_U64)) {
        return colibri_record_fault(detail, COLIBRI_ERROR_FORMAT, view, section, index, COLIBRI_FIELD_TYPE,
                                    COLIBRI_TYPE_U64, r->type);
    }
    *value = r->value;
    return COLIBRI_OK;
}

/* A key this version does not read: reserved ones by name, others by their must-understand bit. */
int32_t colibri_record_unknown(const colibri_view *view, uint32_t section, uint32_t index, uint32_t last_known,
                               colibri_detail *detail)
{
    const colibri_record *r = colibri_records(view, section) + index;
    if (!(r->flags & COLIBRI_RECORD_MUST)) {
        return COLIBRI_OK;
    }
    int32_t status = r->key <= last_known ? COLIBRI_ERROR_UNSUPPORTED : COLIBRI_ERROR_UNKNOWN_KEY;
    return colibri_record_fault(detail, status, view, section, index, COLIBRI_FIELD_KEY, 0, r->key);
}

static int32_t colibri_read_model_record(colibri_view *view, uint32_t i, colibri_detail *detail)
{
    const colibri_record *r = colibri_records(view, COLIBRI_SECTION_MODEL) + i;
    const uint32_t m = COLIBRI_SECTION_MODEL;
    switch (r->key) {
    case COLIBRI_MODEL_VOCAB: return colibri_record_u32(view, m, i, 1, COLIBRI_VALUE_LIMIT, &view->vocab, detail);
    case COLIBRI_MODEL_HIDDEN: return colibri_record_u32(view, m, i, 1, COLIBRI_VALUE_LIMIT, &view->hidden, detail);
    case COLIBRI_MODEL_LAYERS: return colibri_record_u32(view, m, i, 1, 65535, &view->layers, detail);
    case COLIBRI_MODEL_TRAINED_CONTEXT:
        return colibri_record_u32(view, m, i, 0, UINT32_MAX, &view->trained_context, detail);
    case COLIBRI_MODEL_FINAL_EPS: return colibri_record_f32(view, m, i, &view->final_eps, detail);
    case COLIBRI_MODEL_EMBED_MULTIPLIER:
        view->has_multipliers |= 1u;
        return colibri_record_f32(view, m, i, &view->embed_multiplier, detail);
    case COLIBRI_MODEL_LOGIT_MULTIPLIER:
        view->has_multipliers |= 2u;
        return colibri_record_f32(view, m, i, &view->logit_multiplier, detail);
    case COLIBRI_MODEL_LOGIT_SOFTCAP:
        view->has_multipliers |= 4u;
        return colibri_record_f32(view, m, i, &view->logit_softcap, detail);
    case COLIBRI_MODEL_FINAL_NORM:
        return colibri_record_u32(view, m, i, 0, COLIBRI_NORM_LAYER_BIAS, &view->final_norm, detail);
    case COLIBRI_MODEL_HEAD_BIAS: return colibri_record_u32(view, m, i, 0, 1, &view->head_bias, detail);
    case COLIBRI_MODEL_DRAFT_LAYERS: return colibri_record_u32(view, m, i, 1, 65535, &view->drafts, detail);
    default: return colibri_record_unknown(view, m, i, COLIBRI_MODEL_DRAFT_LAYERS, detail);
    }
}

static int32_t colibri_model_tensors(colibri_view *view, colibri_detail *detail)
{
    uint8_t seen[COLIBRI_ROLE_ROOM];
    colibri_shape shape;
    uint32_t last = 0;
    uint32_t i = 0;
    colibri_fill(seen, 0, sizeof seen);
    for (; i < view->table[COLIBRI_SECTION_TENSORS].count; i++) {
        const colibri_tensor *t = colibri_tensor_at(view, i);
        if (t->layer != COLIBRI_NO) {
            break;
        }
        if (t->role <= last || !colibri_role_shape(view, 0, t->role, &shape) || seen[t->role]) {
            return colibri_refuse(detail, COLIBRI_ERROR_FORMAT, COLIBRI_SECTION_TENSORS, COLIBRI_FIELD_ROLE, i,
                                  view->table[COLIBRI_SECTION_TENSORS].offset + (uint64_t)i * COLIBRI_TENSOR_BYTES, 0,
                                  t->role);
        }
        int32_t status = colibri_check_tensor(view, i, &shape, COLIBRI_SECTION_RESIDENT, detail);
        if (status < 0) {
            return status;
        }
        last = t->role;
        seen[t->role] = 1;
        seen[COLIBRI_ROLE_HEAD] |= t->second_role == COLIBRI_ROLE_HEAD;
    }
    view->model_tensors = i;
    for (uint32_t role = 0; role < COLIBRI_ROLE_ROOM; role++) {
        if (!seen[role] && colibri_role_shape(view, 0, role, &shape)) {
            return colibri_refuse(detail, COLIBRI_ERROR_FORMAT, COLIBRI_SECTION_TENSORS, COLIBRI_FIELD_MISSING, role, 0,
                                  1, 0);
        }
    }
    return COLIBRI_OK;
}

int32_t colibri_read_model(colibri_view *view, colibri_detail *detail)
{
    uint32_t last = 0;
    view->final_eps = -1.0f;                    /* no default: an absent one is missing */
    for (uint32_t i = 0; i < view->table[COLIBRI_SECTION_MODEL].count; i++) {
        const colibri_record *r = colibri_records(view, COLIBRI_SECTION_MODEL) + i;
        if (r->layer != COLIBRI_NO || r->key <= last) {
            return colibri_record_fault(detail, COLIBRI_ERROR_FORMAT, view, COLIBRI_SECTION_MODEL, i, COLIBRI_FIELD_KEY,
                                        last + 1u, r->key);
        }
        last = r->key;
        int32_t status = colibri_read_model_record(view, i, detail);
        if (status < 0) {
            return status;
        }
    }
    if (!view->vocab || !view->hidden || !view->layers || !(view->final_eps >= 0.0f) ||
        ((view->has_multipliers & 4u) && !(view->logit_softcap > 0.0f))) {
        return colibri_record_fault(detail, COLIBRI_ERROR_FORMAT, view, COLIBRI_SECTION_MODEL, 0, COLIBRI_FIELD_MISSING,
                                    1, 0);
    }
    return colibri_model_tensors(view, detail);
}

int32_t colibri_check_ropes(const colibri_view *view, colibri_detail *detail)
{
    const colibri_table *ropes = &view->table[COLIBRI_SECTION_ROPE];
    uint32_t room = view->table[COLIBRI_SECTION_ROPE_FRACTIONS].count;
    for (uint32_t i = 0; i < ropes->count; i++) {
        const colibri_rope *r = colibri_rope_at(view, i);
        uint64_t at = ropes->offset + (uint64_t)i * COLIBRI_ROPE_BYTES;
        if (r->first > room || r->pairs > room - r->first || r->pairs == 0u) {
            return colibri_refuse(detail, COLIBRI_ERROR_FORMAT, COLIBRI_SECTION_ROPE, COLIBRI_FIELD_COUNT, i, at, room,
                                  (uint64_t)r->first + r->pairs);
        }
        if (r->interleaved > 1u || (r->amplitude & 0x7FFFFFFFu) >= COLIBRI_INFINITY_BITS) {
            return colibri_refuse(detail, COLIBRI_ERROR_FORMAT, COLIBRI_SECTION_ROPE, COLIBRI_FIELD_VALUE, i, at, 1,
                                  r->interleaved);
        }
    }
    return COLIBRI_OK;
}
