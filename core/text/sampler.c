/* sampler.c: see sampler.h. A heap gives candidates in order, so only as many are sorted as are looked at. */
#include "text/sampler.h"

#include "base/math32.h"

typedef struct colibri_candidates {
    float *value;               /* per id: logit after the penalty */
    uint32_t *heap;             /* ids: [0 .. count) is a heap, behind it what was taken, last first */
    uint32_t count;
    uint32_t taken;
    float best;
    float temperature;
} colibri_candidates;

static int sampler_before(const colibri_candidates *c, uint32_t a, uint32_t b)
{
    return c->value[a] > c->value[b] || (c->value[a] == c->value[b] && a < b);
}

static void sampler_sift(const colibri_candidates *c, uint32_t place)
{
    uint32_t id = c->heap[place];
    while (2 * place + 1 < c->count) {
        uint32_t child = 2 * place + 1;
        if (child + 1 < c->count && sampler_before(c, c->heap[child + 1], c->heap[child])) {
            child++;
        }
        if (!sampler_before(c, c->heap[child], id)) {
            break;
        }
        c->heap[place] = c->heap[child];
        place = child;
    }
    c->heap[place] = id;
}

/* Take the next candidate in order; there is one. */
static uint32_t sampler_take(colibri_candidates *c)
{
    uint32_t id = c->heap[0];
    c->count--;
    c->heap[0] = c->heap[c->count];
    c->heap[c->count] = id;
    c->taken++;
    sampler_sift(c, 0);
    return id;
}

static float sampler_weight(const colibri_candidates *c, uint32_t id)
{
    return colibri_exp((c->value[id] - c->best) / c->temperature);
}

static uint64_t sampler_mix(uint64_t z)
{
    z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9u;
    z = (z ^ (z >> 27)) * 0x94D049BB133111EBu;
    return z ^ (z >> 31);
}

uint64_t colibri_sampler_bits(uint64_t seed, uint32_t sequence, uint32_t position)
{
    uint64_t place = ((uint64_t)sequence << 32) | position;
    return sampler_mix(sampler_mix(seed + 0x9E3779B97F4A7C15u) ^ place);
}

uint64_t colibri_sampler_scratch(uint32_t vocab)
{
    return 8 * (uint64_t)vocab;
}

static int sampler_finite(float x)
{
    return colibri_magnitude(x) < COLIBRI_INFINITY_BITS;
}

/* Copies the logits and applies the penalty. */
static int32_t sampler_load(colibri_candidates *c, const float *logits, uint32_t vocab, float penalty,
                            const uint32_t *recent, uint32_t recent_count)
{
    uint32_t i;
    for (i = 0; i < recent_count; i++) {
        if (recent[i] >= vocab) {
            return COLIBRI_ERROR_TOKEN;
        }
    }
    for (i = 0; i < vocab; i++) {
        if (!sampler_finite(logits[i])) {
            return COLIBRI_ERROR_NOT_FINITE;
        }
        c->value[i] = logits[i];
        c->heap[i] = i;
    }
    for (i = 0; i < recent_count; i++) {
        float l = logits[recent[i]];
        float changed = l > 0.0f ? l / penalty : l * penalty;
        if (!sampler_finite(changed)) {
            return COLIBRI_ERROR_NOT_FINITE;
        }
        c->value[recent[i]] = changed;
    }
    return COLIBRI_OK;
}

static uint32_t sampler_greedy(const colibri_candidates *c)
{
    uint32_t best = 0;
    uint32_t i;
    for (i = 1; i < c->count; i++) {
        if (sampler_before(c, i, best)) {
            best = i;
        }
    }
    return best;
}

/* The sum over the whole row, index mod 16, then the tree. */
static float sampler_row_sum(const colibri_candidates *c, uint32_t vocab)
{
    float partial[16] = {0};
    uint32_t i;
    for (i = 0; i < vocab; i++) {
        partial[i & 15] = partial[i & 15] + sampler_weight(c, i);
    }
    return colibri_tree16(partial);
}

/* Candidates are taken until one of the rules says stop; returns the id drawn. */
static uint32_t sampler_pick(colibri_candidates *c, uint32_t vocab, const colibri_sampling *s)
{
    uint64_t bits = colibri_sampler_bits(s->seed, s->sequence, s->position);
    float u = (float)(uint32_t)(bits >> 40) * 5.9604644775390625e-8f;   /* 2^-24 */
    uint32_t most = s->top_k == 0 || s->top_k > vocab ? vocab : s->top_k;
    int cut_p = s->top_p < 1.0f;
    int cut_any = cut_p || most < vocab || s->min_p > 0.0f;
    float sum = 0.0f;           /* S, then C */
    float running = 0.0f;
    uint32_t keep;
    uint32_t id = c->heap[0];
    uint32_t i;
    if (most < vocab) {
        for (i = 0; i < most; i++) {
            id = sampler_take(c);
            sum = sum + sampler_weight(c, id);
        }
    } else if (cut_p || !cut_any) {
        sum = sampler_row_sum(c, vocab);
    }
    keep = most;
    if (cut_any) {
        float enough = s->top_p * sum;
        for (i = 0; i < most; i++) {
            float e;
            id = i < c->taken ? c->heap[vocab - 1 - i] : sampler_take(c);
            e = sampler_weight(c, id);
            if (i > 0 && e < s->min_p) {
                break;
            }
            running = running + e;
            if (cut_p && running >= enough) {
                i++;
                break;
            }
        }
        keep = i;
        sum = running;
        running = 0.0f;
    }
    for (i = 0; i < keep; i++) {
        id = i < c->taken ? c->heap[vocab - 1 - i] : sampler_take(c);
        running = running + sampler_weight(c, id);
        if (running > u * sum) {
            break;
        }
    }
    return id;
}

static int32_t sampler_check(const colibri_sampling *s, uint32_t vocab)
{
    int good = sampler_finite(s->temperature) && s->temperature >= 0.0f && sampler_finite(s->top_p) &&
               s->top_p > 0.0f && s->top_p <= 1.0f && sampler_finite(s->min_p) && s->min_p >= 0.0f &&
               s->min_p <= 1.0f && sampler_finite(s->repetition_penalty) && s->repetition_penalty > 0.0f;
    return good && vocab != 0 ? COLIBRI_OK : COLIBRI_ERROR_ARGUMENT;
}

int32_t colibri_sampler_draw(const float *logits, uint32_t vocab, const colibri_sampling *sampling,
                             const uint32_t *recent, uint32_t recent_count, void *scratch, uint32_t *token)
{
    colibri_candidates c;
    int32_t status = sampler_check(sampling, vocab);
    uint32_t i;
    if (status != COLIBRI_OK) {
        return status;
    }
    c.value = scratch;
    c.heap = (uint32_t *)scratch + vocab;
    c.count = vocab;
    c.taken = 0;
    c.temperature = sampling->temperature;
    status = sampler_load(&c, logits, vocab, sampling->repetition_penalty, recent,
                          sampling->repetition_penalty != 1.0f ? recent_count : 0);
    if (status != COLIBRI_OK) {
        return status;
    }
    if (sampling->temperature == 0.0f) {
        *token = sampler_greedy(&c);
        return COLIBRI_OK;
    }
    for (i = vocab / 2; i > 0; i--) {
        sampler_sift(&c, i - 1);
    }
    c.best = c.value[c.heap[0]];
    *token = sampler_pick(&c, vocab, sampling);
    return COLIBRI_OK;
}
