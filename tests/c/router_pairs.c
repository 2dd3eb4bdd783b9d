/*
 * router_pairs.c: both routers on the same logits. A session of a file with integer routers runs a text; each row's
 * logits, as they come out of the router's matrix, also go through the float router, and what the two chose and
 * weighed is compared. The core's own source, included so that its inner functions can be called.
 *
 *   router_pairs BLOB TOKENS KERNEL       TOKENS: uint32, of each text its length and its ids
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define colibri_products watched_products
#define colibri_route_rows watched_route_rows
#include "nn/router.c"
#undef colibri_products
#undef colibri_route_rows

enum { ROWS = 64, MOST_EXPERTS = 4096, LAYERS = 512 };

void colibri_products(uint32_t kernel, const colibri_product *p);
void colibri_route_rows(colibri_session *s, const colibri_layer *layer, uint32_t unit, uint32_t worker);

static colibri_session *session;
static const colibri_layer *at_layer;
static uint32_t at_row;
static uint64_t rows[LAYERS], same[LAYERS];
static double largest, relative, total, weights;

static void die(const char *what, long number)
{
    fprintf(stderr, "%s %ld\n", what, number);
    exit(1);
}

static void compare(uint32_t number, const uint32_t *chosen, const float *weight, const uint32_t *other,
                    const float *other_weight, uint32_t k)
{
    double sum = 0;
    rows[number]++;
    if (memcmp(chosen, other, k * sizeof *chosen) != 0) {
        return;
    }
    same[number]++;
    for (uint32_t i = 0; i < k; i++) {
        sum += (double)weight[i];
    }
    for (uint32_t i = 0; i < k; i++) {
        double error = (double)other_weight[i] - (double)weight[i];
        error = error < 0 ? -error : error;
        largest = error > largest ? error : largest;
        relative = error / sum > relative ? error / sum : relative;
        total += error / sum;
        weights++;
    }
}

void watched_products(uint32_t kernel, const colibri_product *p)
{
    static float z[2 * MOST_EXPERTS], float_weight[MOST_EXPERTS];
    static uint32_t float_chosen[MOST_EXPERTS];
    static colibri_layer twin;
    colibri_products(kernel, p);
    if (session->layout.router_stride > MOST_EXPERTS || !at_layer->d.router_span) {
        die("a layer without an integer router, or too wide", (long)session->layout.router_stride);
    }
    uint32_t k = at_layer->d.top_k, stride = session->layout.router_stride;
    uint32_t number = (uint32_t)(at_layer - colibri_layer_at(session, 0));
    for (uint32_t i = 0; i < p->row_count; i++) {
        const uint32_t *chosen = colibri_pool_words(session, at_layer->chosen) + (uint64_t)(at_row + i) * k;
        const float *weight = colibri_pool_floats(session, at_layer->chosen_weight) + (uint64_t)(at_row + i) * k;
        for (uint32_t way = 0; way < 2u; way++) {
            memcpy(z, p->out + i * p->out_stride, at_layer->d.experts * sizeof *z);
            if (at_layer->d.router_bias == COLIBRI_ROUTER_BIAS_LOGIT) {
                colibri_add_scaled(kernel, z, colibri_vector_at(session, &at_layer->router_bias), 1.0f,
                                   at_layer->d.experts);
            }
            twin = *at_layer;
            twin.d.router_span = way ? at_layer->d.router_span : 0u;
            session->layout.router_stride = 2u * MOST_EXPERTS;
            int bad = colibri_route_row(session, &twin, at_row + i, z);
            session->layout.router_stride = stride;
            if (bad) {
                die("not finite: way", (long)way);
            }
            if (way == 0u) {
                memcpy(float_chosen, chosen, k * sizeof *chosen);
                memcpy(float_weight, weight, k * sizeof *weight);
            }
        }
        compare(number, float_chosen, float_weight, chosen, weight, k);
    }
}

void colibri_route_rows(colibri_session *s, const colibri_layer *layer, uint32_t unit, uint32_t worker)
{
    session = s;
    at_layer = layer;
    at_row = unit * COLIBRI_ROWS_AT_ONCE;
    watched_route_rows(s, layer, unit, worker);
}

static uint8_t *read_all(const char *path, uint64_t *bytes)
{
    void *memory = 0;
    FILE *file = fopen(path, "rb");
    if (!file || fseek(file, 0, SEEK_END)) {
        die(path, -1);
    }
    *bytes = (uint64_t)ftell(file);
    rewind(file);
    if (posix_memalign(&memory, 4096, *bytes) || fread(memory, 1, *bytes, file) != *bytes) {
        die(path, -2);
    }
    fclose(file);
    return memory;
}

static void run_text(colibri_session *s, const uint32_t *ids, uint32_t count)
{
    if (colibri_reset(s, COLIBRI_NO) < 0) {
        die("reset", 0);
    }
    for (uint32_t first = 0; first < count; first += ROWS) {
        colibri_row fed[ROWS];
        uint32_t n = count - first < ROWS ? count - first : ROWS;
        memset(fed, 0, sizeof fed);
        for (uint32_t i = 0; i < n; i++) {
            fed[i].position = COLIBRI_NEXT_POSITION;
            fed[i].token = ids[first + i];
        }
        int32_t status = colibri_feed(s, fed, n);
        while (status >= 0 && (status = colibri_advance(s, UINT32_MAX)) == COLIBRI_AGAIN) {
        }
        if (status < 0) {
            die("status", (long)status);
        }
    }
}

int main(int argc, char **argv)
{
    colibri_model model;
    colibri_limits limits = {sizeof limits, 0, 0, ROWS, 1, 1, 0, 1, 0, 0, 0, COLIBRI_KV_F16, 0, 0, 0, 0.0f, {0}};
    colibri_hooks hooks = {sizeof hooks};
    colibri_plan_result plan = {sizeof plan};
    colibri_session *s = 0;
    uint64_t bytes, words, choices = 0, equal = 0;
    void *pool = 0;
    if (argc != 4) {
        die("usage: router_pairs BLOB TOKENS KERNEL", argc);
    }
    uint8_t *blob = read_all(argv[1], &bytes);
    const uint32_t *tokens = (const uint32_t *)(const void *)read_all(argv[2], &words);
    for (uint64_t at = 0; at < words / 4u; at += 1u + tokens[at]) {
        limits.context = tokens[at] > limits.context ? tokens[at] : limits.context;
    }
    limits.kernel = (uint32_t)atoi(argv[3]);
    if (colibri_open(&model, blob, bytes, bytes, 0) < 0 || colibri_plan(&model, &limits, &plan, 0) < 0 ||
        posix_memalign(&pool, 4096, plan.pool_bytes)) {
        die("open or plan", 0);
    }
    int32_t status = colibri_start(&model, &limits, &hooks, pool, plan.pool_bytes, &s, 0);
    if (status < 0) {
        die("start", (long)status);
    }
    for (uint64_t at = 0; at < words / 4u; at += 1u + tokens[at]) {
        run_text(s, tokens + at + 1u, tokens[at]);
    }
    for (uint32_t l = 0; l < LAYERS; l++) {
        choices += rows[l];
        equal += same[l];
    }
    printf("{\"choices\": %llu, \"same\": %llu, \"largest\": %.9g, \"relative\": %.9g, \"mean\": %.9g}\n",
           (unsigned long long)choices, (unsigned long long)equal, largest, relative,
           weights > 0 ? total / weights : 0);
    return 0;
}
