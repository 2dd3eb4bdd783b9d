/*
 * strip.c: strips of a matrix (32 output rows, two tiles each) times a few activation rows.
 */
#include "nn/session.h"

/* out: row i, output row strip->first + r at i * 32 + r (one row: any number of strips); lanes behind the matrix's last
 * row are unspecified. */
void colibri_strip_times(const colibri_session *s, const colibri_strip *strip, const colibri_activation *rows,
                         uint32_t count, uint32_t seen, float *out)
{
    colibri_product p;
    p.tiles = strip->tiles;
    p.tile_bytes = strip->w->tile_bytes;
    p.kind = strip->w->kind;
    p.columns = strip->w->columns;
    p.tile_count = colibri_tiles(strip->lanes);
    p.row_count = count;
    p.seen = seen;
    p.reserved = 0;
    p.rows = rows;
    p.out = out;
    p.out_stride = COLIBRI_STRIP_ROWS;
    colibri_products(s->kernel, &p);
}
