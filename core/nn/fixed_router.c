/*
 * fixed_router.c: experts and weights of a row by integers alone (NUMERICS section 7), for processors without a
 * floating-point unit and with the same bits on all others. Exponentials are two look-ups and a product, a weight is
 * one division of 32 bits. Integer sums have no order, so nothing here depends on one.
 */
#include "nn/fixed_router.h"
#include "nn/fixed_tables.h"

enum { COLIBRI_FIXED_ONE = 65536, COLIBRI_FIXED_STEPS = 16384, COLIBRI_FIXED_FINE = 256 };

/* e^-distance for one span, and the widest distance asked for so far. */
typedef struct colibri_fixed_exponential {
    const uint32_t *coarse, *fine;
    uint32_t shift;
    uint32_t spread;
} colibri_fixed_exponential;

static const uint32_t colibri_fixed_coarse[][COLIBRI_FIXED_STEPS / COLIBRI_FIXED_FINE] = COLIBRI_FIXED_COARSE;
static const uint32_t colibri_fixed_fine[][COLIBRI_FIXED_FINE] = COLIBRI_FIXED_FINES;

static colibri_fixed_exponential colibri_fixed_begin(uint32_t span)
{
    colibri_fixed_exponential of;
    uint32_t row = 0;
    while (span >> row > 1u) {
        row++;
    }
    of.coarse = colibri_fixed_coarse[row];
    of.fine = colibri_fixed_fine[row];
    of.shift = row + 2u;                                        /* span * 65536 is 16384 steps */
    of.spread = 0;
    return of;
}

static uint32_t colibri_fixed_exp(colibri_fixed_exponential *of, uint32_t distance)
{
    uint32_t step = (distance >> of->shift) + (distance >> (of->shift - 1u) & 1u);
    of->spread = distance > of->spread ? distance : of->spread;
    step = step < COLIBRI_FIXED_STEPS ? step : COLIBRI_FIXED_STEPS - 1u;
    uint64_t product = (uint64_t)of->coarse[step / COLIBRI_FIXED_FINE] * of->fine[step % COLIBRI_FIXED_FINE];
    return (uint32_t)((product + COLIBRI_FIXED_ONE / 2u) / COLIBRI_FIXED_ONE);
}

/* (part * 65536 + whole / 2) / whole without 64 bits: 15 of the quotient's bits, one more, the rounding.
 * part <= whole, part <= 65536. */
static uint32_t colibri_fixed_ratio(uint32_t part, uint32_t whole)
{
    uint32_t quotient = (part << 15) / whole;
    uint32_t rest = (part << 15) - quotient * whole;
    uint32_t more = rest >= whole - rest;                       /* rest < whole */
    rest = more ? rest - (whole - rest) : 2u * rest;
    return 2u * quotient + more + (rest >= whole - whole / 2u);
}

/* Index e into its place among the first `at` ones, which stand by (value descending, index ascending): behind all that
 * are not smaller. The one at `at` is overwritten. */
static void colibri_fixed_insert(const int32_t *value, uint32_t *chosen, uint32_t at, uint32_t e)
{
    int32_t own = value[e];
    for (; at > 0u && own > value[chosen[at - 1u]]; at--) {
        chosen[at] = chosen[at - 1u];
    }
    chosen[at] = e;
}

/* The k largest of the kept groups' numbers by (value descending, index ascending), in ascending index order. Groups
 * have `size` members and are given in ascending order. */
static void colibri_fixed_choose(const int32_t *value, const uint32_t *kept, uint32_t groups, uint32_t size, uint32_t k,
                                 uint32_t *chosen)
{
    uint32_t held = 0;
    int32_t least = INT32_MAX;                                  /* of the k held */
    for (uint32_t i = 0; i < groups; i++) {
        uint32_t e = kept[i] * size;
        uint32_t end = e + size;
        for (; held < k && e < end; e++) {
            colibri_fixed_insert(value, chosen, held++, e);
            least = value[chosen[held - 1u]];
        }
        for (; e < end; e++) {
            if (value[e] > least) {
                colibri_fixed_insert(value, chosen, k - 1u, e);
                least = value[chosen[k - 1u]];
            }
        }
    }
    for (uint32_t i = 1; i < k; i++) {
        uint32_t e = chosen[i], at = i;
        for (; at > 0u && chosen[at - 1u] > e; at--) {
            chosen[at] = chosen[at - 1u];
        }
        chosen[at] = e;
    }
}

/* The choice by logits; of the groups with the largest ones, where there are groups. */
static void colibri_fixed_select(const colibri_description *d, const int32_t *logit, uint32_t *chosen)
{
    const uint32_t all = 0;
    int32_t value[COLIBRI_GROUP_LIMIT];
    uint32_t kept[COLIBRI_GROUP_LIMIT];
    if (!d->router_groups) {
        colibri_fixed_choose(logit, &all, 1, d->experts, d->top_k, chosen);
        return;
    }
    uint32_t size = d->experts / d->router_groups;
    for (uint32_t g = 0; g < d->router_groups; g++) {
        value[g] = logit[g * size];
        for (uint32_t e = g * size + 1u; e < (g + 1u) * size; e++) {
            value[g] = logit[e] > value[g] ? logit[e] : value[g];
        }
    }
    colibri_fixed_choose(value, &all, 1, d->router_groups, d->router_top_groups, kept);
    colibri_fixed_choose(logit, kept, d->router_top_groups, size, d->top_k, chosen);
}

/* Sigmoids: e^min(z, 0) / (1 + e^-|z|) times e^shift, which a renormalised weight has in common with its sum. */
static void colibri_fixed_sigmoids(const colibri_description *d, colibri_fixed_exponential *of, const int32_t *logit,
                                   int32_t most, const uint32_t *chosen, uint32_t *weight)
{
    uint32_t shift = d->renormalise && most < 0 ? 0u - (uint32_t)most : 0u;
    uint32_t sum = 0;
    for (uint32_t i = 0; i < d->top_k; i++) {
        int32_t z = logit[chosen[i]];
        uint32_t magnitude = z < 0 ? 0u - (uint32_t)z : (uint32_t)z;
        uint32_t above = colibri_fixed_exp(of, z < 0 ? magnitude - shift : 0u);
        weight[i] = colibri_fixed_ratio(above, COLIBRI_FIXED_ONE + colibri_fixed_exp(of, magnitude));
        sum += weight[i];
    }
    for (uint32_t i = 0; d->renormalise && i < d->top_k; i++) {
        weight[i] = colibri_fixed_ratio(weight[i], sum);
    }
}

uint32_t colibri_fixed_route(const colibri_description *d, const int32_t *logit, uint32_t *chosen, uint32_t *weight)
{
    colibri_fixed_exponential of = colibri_fixed_begin(d->router_span);
    uint32_t sum = 0;                                           /* at most 65535 experts of at most 65536 */
    colibri_fixed_select(d, logit, chosen);
    int32_t most = logit[chosen[0]];                            /* the largest of all is among them */
    for (uint32_t i = 1; i < d->top_k; i++) {
        most = logit[chosen[i]] > most ? logit[chosen[i]] : most;
    }
    if (d->router_score == COLIBRI_ROUTER_SIGMOID) {
        colibri_fixed_sigmoids(d, &of, logit, most, chosen, weight);
        return of.spread;
    }
    for (uint32_t i = 0; i < d->top_k; i++) {
        weight[i] = colibri_fixed_exp(&of, (uint32_t)most - (uint32_t)logit[chosen[i]]);
        sum += weight[i];
    }
    if (d->renormalise == COLIBRI_RENORMALISE_NONE) {           /* shares of all experts, not of the chosen ones */
        sum = 0;
        for (uint32_t e = 0; e < d->experts; e++) {
            sum += colibri_fixed_exp(&of, (uint32_t)most - (uint32_t)logit[e]);
        }
    }
    for (uint32_t i = 0; i < d->top_k; i++) {
        weight[i] = colibri_fixed_ratio(weight[i], sum);
    }
    return of.spread;
}
