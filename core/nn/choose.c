/*
 * choose.c: the k best of some numbers, and of the best groups of them (NUMERICS section 7). Ties to the lower index at
 * both levels. Knows nothing of what the numbers mean.
 */
#include "nn/session.h"

enum { COLIBRI_CHOICE_LANES = 16, COLIBRI_CHOICE_ROOM = 32, COLIBRI_CHOICE_FEW = 32 };

/* rank[i]: how many of the n values come before value i (value descending, index ascending). No branch depends on a
 * value, so a routing that cannot be foreseen costs no mispredictions. */
static void colibri_choice_ranks(const float *value, uint32_t n, uint32_t *rank)
{
    for (uint32_t i = 0; i < n; i++) {
        rank[i] = 0;
    }
    for (uint32_t j = 0; j < n; j++) {
        float v = value[j];
        for (uint32_t i = 0; i < n; i++) {
            rank[i] += (uint32_t)(v > value[i]) | ((uint32_t)(v == value[i]) & (uint32_t)(j < i));
        }
    }
}

/* At least k values are not below this: the k-th largest of the maxima of 16 lanes. experts >= 32, k <= 16. */
static float colibri_choice_threshold(const float *z, uint32_t experts, uint32_t k)
{
    float top[COLIBRI_CHOICE_LANES];
    uint32_t above[COLIBRI_CHOICE_LANES] = {0};
    uint32_t whole = experts / COLIBRI_CHOICE_LANES * COLIBRI_CHOICE_LANES;
    for (uint32_t l = 0; l < COLIBRI_CHOICE_LANES; l++) {
        top[l] = z[l];
    }
    for (uint32_t e = COLIBRI_CHOICE_LANES; e < whole; e += COLIBRI_CHOICE_LANES) {
        for (uint32_t l = 0; l < COLIBRI_CHOICE_LANES; l++) {
            top[l] = z[e + l] > top[l] ? z[e + l] : top[l];
        }
    }
    for (uint32_t j = 0; j < COLIBRI_CHOICE_LANES; j++) {
        float v = top[j];
        for (uint32_t l = 0; l < COLIBRI_CHOICE_LANES; l++) {
            above[l] += v > top[l];
        }
    }
    float threshold = 0.0f;
    uint32_t found = 0;
    for (uint32_t l = 0; l < COLIBRI_CHOICE_LANES; l++) {
        int counts = above[l] < k && (!found || top[l] < threshold);
        threshold = counts ? top[l] : threshold;
        found |= above[l] < k;
    }
    return threshold;
}

/* The k largest one after the other: for any k, any number of experts, and values that are not numbers. */
static void colibri_choose_in_turn(const float *z, uint32_t experts, uint32_t k, uint32_t *chosen)
{
    for (uint32_t held = 0; held < k; held++) {
        uint32_t best = COLIBRI_NO, next = 0;
        for (uint32_t e = 0; e < experts; e++) {
            if (next < held && chosen[next] == e) {     /* taken: they stand in ascending order */
                next++;
            } else if (best == COLIBRI_NO || z[e] > z[best]) {
                best = e;
            }
        }
        uint32_t at = held;
        for (; at > 0u && chosen[at - 1u] > best; at--) {
            chosen[at] = chosen[at - 1u];
        }
        chosen[at] = best;
    }
}

void colibri_choose(const float *z, uint32_t experts, uint32_t k, uint32_t *chosen)
{
    uint32_t index[COLIBRI_CHOICE_ROOM + 1], rank[COLIBRI_CHOICE_ROOM], found[COLIBRI_CHOICE_ROOM + 1];
    float value[COLIBRI_CHOICE_ROOM];
    uint32_t n = 0, taken = 0;
    int all = experts <= COLIBRI_CHOICE_ROOM;
    if ((!all && k > COLIBRI_CHOICE_LANES) || (uint64_t)experts * k <= COLIBRI_CHOICE_FEW) {
        colibri_choose_in_turn(z, experts, k, chosen);
        return;
    }
    if (all) {
        for (n = 0; n < experts; n++) {
            index[n] = n;
        }
    } else {
        float threshold = colibri_choice_threshold(z, experts, k);
        for (uint32_t e = 0; e < experts; e++) {
            index[n < COLIBRI_CHOICE_ROOM ? n : COLIBRI_CHOICE_ROOM] = e;
            n += z[e] >= threshold;
        }
    }
    if (n > COLIBRI_CHOICE_ROOM) {                      /* many equal ones */
        colibri_choose_in_turn(z, experts, k, chosen);
        return;
    }
    for (uint32_t i = 0; i < n; i++) {
        value[i] = z[index[i]];
    }
    colibri_choice_ranks(value, n, rank);
    for (uint32_t i = 0; i < n; i++) {
        found[taken] = index[i];
        taken += rank[i] < k;
    }
    for (uint32_t i = 0; i < k; i++) {
        chosen[i] = found[i];
    }
}

/* The largest of a group's values, or the sum of its two largest. size >= 2 for the sum. */
static float colibri_group_value(const float *z, uint32_t size, uint32_t kind)
{
    float first = z[0];
    if (kind == COLIBRI_GROUP_MAX) {
        for (uint32_t i = 1; i < size; i++) {
            first = z[i] > first ? z[i] : first;
        }
        return first;
    }
    float second = z[1] > first ? first : z[1];
    first = z[1] > first ? z[1] : first;
    for (uint32_t i = 2; i < size; i++) {
        float below = z[i] > first ? first : z[i];
        first = z[i] > first ? z[i] : first;
        second = below > second ? below : second;
    }
    return first + second;
}

/* As many of each group, which makes the chosen ones ascend of themselves. */
static void colibri_choose_of_each(const float *z, const colibri_description *d, uint32_t *chosen)
{
    uint32_t size = d->experts / d->router_groups;
    uint32_t each = d->top_k / d->router_groups;
    for (uint32_t g = 0; g < d->router_groups; g++) {
        colibri_choose(z + g * size, size, each, chosen + g * each);
        for (uint32_t i = 0; i < each; i++) {
            chosen[g * each + i] += g * size;
        }
    }
}

void colibri_choose_in_groups(float *z, const colibri_description *d, uint32_t *chosen)
{
    if (d->group_score == COLIBRI_GROUP_EACH) {
        colibri_choose_of_each(z, d, chosen);
        return;
    }
    float value[COLIBRI_GROUP_LIMIT] = {0};     /* compilers cannot see that there is a group */
    uint32_t kept[COLIBRI_GROUP_LIMIT] = {0};
    uint32_t size = d->experts / d->router_groups;
    for (uint32_t g = 0; g < d->router_groups; g++) {
        value[g] = colibri_group_value(z + g * size, size, d->group_score);
    }
    colibri_choose(value, d->router_groups, d->router_top_groups, kept);
    for (uint32_t g = 0; g < d->router_top_groups; g++) {       /* the kept groups move together, still ascending */
        for (uint32_t i = 0; i < size; i++) {
            z[g * size + i] = z[kept[g] * size + i];
        }
    }
    colibri_choose(z, d->router_top_groups * size, d->top_k, chosen);
    for (uint32_t i = 0; i < d->top_k; i++) {
        chosen[i] = kept[chosen[i] / size] * size + chosen[i] % size;
    }
}
