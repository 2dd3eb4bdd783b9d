/*
 * records.h: reading one typed record with its range; shared by records.c and description.c.
 */
#ifndef COLIBRI_RECORDS_H
#define COLIBRI_RECORDS_H

#include "blob/view.h"

/* Widths and counts stay below 2^26, so that products of two and a record size fit in 64 bits with room. */
enum { COLIBRI_VALUE_LIMIT = 67108863 };

int32_t colibri_record_fault(colibri_detail *detail, int32_t status, const colibri_view *view, uint32_t section,
                             uint32_t index, uint32_t field, uint64_t expected, uint64_t found);
int32_t colibri_record_u32(const colibri_view *view, uint32_t section, uint32_t index, uint32_t low, uint32_t high,
                           uint32_t *value, colibri_detail *detail);
int32_t colibri_record_f32(const colibri_view *view, uint32_t section, uint32_t index, float *value,
                           colibri_detail *detail);
int32_t colibri_record_u64(const colibri_view *view, uint32_t section, uint32_t index, uint64_t *value,
                           colibri_detail *detail);
int32_t colibri_record_unknown(const colibri_view *view, uint32_t section, uint32_t index, uint32_t last_known,
                               colibri_detail *detail);

#endif
