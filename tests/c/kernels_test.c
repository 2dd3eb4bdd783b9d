/*
 * kernels_test.c: rows of inputs through what base and kernels offer inside the core, for tests/test_kernels.py, which
 * knows the answers. Built as a shared library together with core/base and core/kernels; mem.c under other names. The
 * portable level throughout: levels_test.c compares the others with it.
 */
#include "kernels/kernels.h"

enum { MOST_GROUPS = 8 };               /* of a row in these tests */

void test_exp(const float *x, float *y, uint32_t n)
{
    for (uint32_t i = 0; i < n; i++) {
        y[i] = colibri_exp(x[i]);
    }
}

void test_gates(const float *x, float *sigmoid, float *silu, uint32_t n)
{
    for (uint32_t i = 0; i < n; i++) {
        sigmoid[i] = colibri_sigmoid(x[i]);
        silu[i] = colibri_silu(x[i]);
    }
}

void test_sqrt_softplus(const float *x, float *y, uint32_t n)
{
    for (uint32_t i = 0; i < n; i++) {
        y[i] = colibri_sqrt_softplus(x[i]);
    }
}

void test_ln_whole(const uint32_t *n, float *y, uint32_t count)
{
    for (uint32_t i = 0; i < count; i++) {
        y[i] = colibri_ln_whole(n[i]);
    }
}

void test_round_even(const float *x, float *y, uint32_t n)
{
    for (uint32_t i = 0; i < n; i++) {
        y[i] = colibri_round_even(x[i]);
    }
}

void test_sqrt(const float *x, float *y, uint32_t n)
{
    for (uint32_t i = 0; i < n; i++) {
        y[i] = colibri_sqrt(x[i]);
    }
}

void test_turns(const uint32_t *position, const uint64_t *fraction, float *cosine, float *sine, uint32_t n)
{
    for (uint32_t i = 0; i < n; i++) {
        colibri_turn(position[i], fraction[i], &cosine[i], &sine[i]);
    }
}

void test_halves(const float *x, uint16_t *half, uint32_t n)
{
    for (uint32_t i = 0; i < n; i++) {
        half[i] = colibri_half_from_float(x[i]);
    }
}

void test_floats(const uint16_t *half, float *x, uint32_t n)
{
    for (uint32_t i = 0; i < n; i++) {
        x[i] = colibri_half_to_float(half[i]);
    }
}

/* rows x columns, each row on its own; d and sum have groups entries a row, q 32 times as many */
void test_quantize_rows(const float *x, uint32_t rows, uint32_t columns, int8_t *q, float *d, int32_t *sum,
                        int32_t *bad)
{
    colibri_group row[MOST_GROUPS];
    uint64_t groups = colibri_groups(columns);
    for (uint32_t r = 0; r < rows; r++) {
        bad[r] = colibri_quantize_row(COLIBRI_KERNEL_PORTABLE, x + (uint64_t)r * columns, columns, row);
        for (uint64_t g = 0; g < groups; g++) {
            colibri_copy(q + 32u * (r * groups + g), row[g].q, 32);
            d[r * groups + g] = row[g].d;
            sum[r * groups + g] = row[g].start / -8;
        }
    }
}

void test_groups(const float *w, uint32_t groups, uint32_t count, int four_bits, int8_t *q, uint16_t *scale,
                 int32_t *bad)
{
    for (uint32_t g = 0; g < groups; g++) {
        const float *from = w + (uint64_t)g * count;
        bad[g] = four_bits ? colibri_q4_group(from, count, q + (uint64_t)g * count, scale + g)
                           : colibri_q8_group(from, count, q + (uint64_t)g * count, scale + g);
    }
}

/* A packed matrix times one activation row: out holds whole tiles. */
void test_product(uint32_t kind, uint32_t rows, uint32_t columns, const uint8_t *matrix, const float *x,
                  const int8_t *q, const float *d, const int32_t *sum, float *out)
{
    colibri_group groups[MOST_GROUPS];
    colibri_activation row = {x, groups};
    for (uint32_t g = 0; g < colibri_groups(columns); g++) {
        colibri_copy(groups[g].q, q + 32u * g, 32);
        groups[g].d = d[g];
        groups[g].start = -8 * sum[g];
    }
    colibri_product p = {.tiles = matrix, .tile_bytes = colibri_tile_bytes(kind, columns), .kind = kind,
                         .columns = columns, .tile_count = colibri_tiles(rows), .row_count = 1, .rows = &row,
                         .out = out};
    colibri_products(COLIBRI_KERNEL_PORTABLE, &p);
}

/* Checked arithmetic: how = 0 sum, 1 product, 2 round a up to a multiple of b. */
uint64_t test_checked(int how, uint64_t a, uint64_t b, int32_t *bad)
{
    int wrong = 0;
    uint64_t result = how == 0 ? colibri_add(a, b, &wrong)
                               : how == 1 ? colibri_mul(a, b, &wrong) : colibri_round_up_checked(a, b, &wrong);
    *bad = wrong;
    return result;
}
