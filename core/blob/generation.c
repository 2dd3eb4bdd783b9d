/*
 * generation.c: the generation defaults a caller in C needs: the ids that end a text. The section is data, not a table:
 * its records are checked here, on access.
 */
#include "blob/view.h"

int32_t colibri_end_tokens(const colibri_model *model, uint32_t *ids, uint32_t capacity, uint32_t *count)
{
    const colibri_view *view = colibri_view_of(model);
    if (!model || !count || (capacity && !ids)) {
        return COLIBRI_ERROR_ARGUMENT;
    }
    const colibri_table *table = &view->table[COLIBRI_SECTION_GENERATION];
    uint32_t found = 0;
    if (table->present && table->offset + table->payload > view->addressable) {
        return COLIBRI_ERROR_ADDRESS;
    }
    const colibri_record *records = colibri_records(view, COLIBRI_SECTION_GENERATION);
    for (uint32_t i = 0; i < table->count; i++) {
        if (records[i].key != COLIBRI_GENERATION_END) {
            continue;
        }
        if (records[i].type != COLIBRI_TYPE_U32 || records[i].value >= view->vocab) {
            return COLIBRI_ERROR_FORMAT;
        }
        if (found < capacity) {
            ids[found] = (uint32_t)records[i].value;
        }
        found++;
    }
    *count = found;
    return COLIBRI_OK;
}
