/*
 * router_time.c: how long the router takes from a row's logits to its chosen experts and their weights, in
 * nanoseconds a row: `python -m SCons micro`, then build/zig/micro/router_time [kernel level]. The core's own source,
 * included so that its inner function can be called. Prints what was measured; no test reads a clock.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "nn/choose.c"
#include "nn/router.c"

enum { ROWS = 256, MOST_EXPERTS = 256, REPEATS = 301, LOGITS_AT = 1 << 16 };

static uint64_t now(void)
{
    struct timespec t;
    (void)clock_gettime(CLOCK_MONOTONIC, &t);
    return (uint64_t)t.tv_sec * 1000000000u + (uint64_t)t.tv_nsec;
}

static int ascending(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

/* Bell-shaped logits from a fixed stream. */
static void draw(float *logits, uint32_t count)
{
    uint32_t state = 7;
    for (uint32_t i = 0; i < count; i++) {
        float sum = 0.0f;
        for (uint32_t k = 0; k < 4u; k++) {
            state = state * 1664525u + 1013904223u;
            sum += (float)(state >> 8) * (1.0f / 8388608.0f) - 1.0f;
        }
        logits[i] = sum;
    }
}

static void measure(colibri_session *s, const float *logits, uint32_t experts, uint32_t top_k, uint32_t renormalise,
                    uint32_t span)
{
    static colibri_layer layer;
    double took[REPEATS], copy[REPEATS];
    float *z = colibri_pool_floats(s, LOGITS_AT);
    memset(&layer, 0, sizeof layer);
    layer.d.experts = experts;
    layer.d.top_k = top_k;
    layer.d.router_score = COLIBRI_ROUTER_SOFTMAX;
    layer.d.renormalise = renormalise;
    layer.d.router_scale = 1.0f;
    layer.d.router_span = span;
    layer.chosen = 1u << 15;
    layer.chosen_weight = (1u << 15) + 4096u;
    layer.spread = (1u << 15) + 8192u;
    s->layout.max_experts = experts;
    for (uint32_t r = 0; r < REPEATS; r++) {
        uint64_t copying = now();
        for (uint32_t i = 0; i < ROWS; i++) {
            memcpy(z, logits + (size_t)i * MOST_EXPERTS, experts * sizeof *z);
            __asm__ volatile("" : : "r"(z) : "memory");
        }
        uint64_t begun = now();
        for (uint32_t i = 0; i < ROWS; i++) {
            memcpy(z, logits + (size_t)i * MOST_EXPERTS, experts * sizeof *z);
            __asm__ volatile("" : : "r"(z) : "memory");
            colibri_route_row(s, &layer, 0, z);
        }
        uint64_t end = now();
        copy[r] = (double)(begun - copying) / (double)ROWS;
        took[r] = (double)(end - begun) / (double)ROWS;
    }
    qsort(took, REPEATS, sizeof *took, ascending);
    qsort(copy, REPEATS, sizeof *copy, ascending);
    printf("%s router %3u top-%u %-13s median %6.0f ns, least %6.0f\n", span ? "integer" : "float  ", experts, top_k,
           renormalise == COLIBRI_RENORMALISE_SUM ? "renormalised" : "plain", took[REPEATS / 2] - copy[REPEATS / 2],
           took[0] - copy[0]);
}

int main(int argc, char **argv)
{
    static const uint32_t shapes[3][2] = {{8, 2}, {64, 8}, {256, 8}};
    size_t bytes = LOGITS_AT + 65536u;
    void *pool = NULL;
    float *logits = malloc((size_t)ROWS * MOST_EXPERTS * sizeof *logits);
    if (posix_memalign(&pool, 64, bytes) || !logits) {
        return 1;
    }
    colibri_session *s = pool;
    memset(s, 0, bytes);
    s->kernel = argc > 1 ? (uint32_t)atoi(argv[1]) : COLIBRI_KERNEL_PORTABLE;
    draw(logits, ROWS * MOST_EXPERTS);
    printf("kernel level %u\n", s->kernel);
    for (uint32_t i = 0; i < 3u; i++) {
        for (uint32_t span = 0; span <= 16u; span += 16u) {
            measure(s, logits, shapes[i][0], shapes[i][1], COLIBRI_RENORMALISE_NONE, span);
            measure(s, logits, shapes[i][0], shapes[i][1], COLIBRI_RENORMALISE_SUM, span);
        }
    }
    free(logits);
    free(s);
    return 0;
}
