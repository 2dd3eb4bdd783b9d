/*
 * router_board.c: the router alone on a board without anything: a Cortex-M3, which has no floating-point unit, or an
 * ARM64 one. Routes rows of logits that the test wrote into router_vectors.h, prints what was chosen and weighed, and
 * counts instructions: under QEMU's -icount with a step that is a whole number of the counter's ticks (or the other way
 * round) they repeat exactly. Speaks through semihosting.
 *
 * WITH_FLOAT: both routers, through the function that a session calls, linked with the core; else the integer router's
 * source alone, linked with nothing at all.
 */
#include "router_vectors.h"             /* SHAPES { {experts, top_k, renormalise}, .. }, SHAPE_COUNT, ROWS, LOGITS */

#if WITH_FLOAT
#include "nn/router.c"
#else
#include "nn/fixed_router.c"
#endif

enum { MOST_EXPERTS = 256, MOST_CHOSEN = 16, POOL_CHOSEN = 16384, POOL_WEIGHT = 17408, POOL_SPREAD = 18432,
       POOL_LOGITS = 20480, POOL_BYTES = 32768 };

static const uint32_t shapes[SHAPE_COUNT][3] = SHAPES;
static const uint32_t logits[ROWS][MOST_EXPERTS] = LOGITS;      /* float32 bits */

/* --- the board --- */

void start_c(void);

#if defined(__aarch64__)

#define TICK_MASK 0xFFFFFFFFu

__asm__(".section .start, \"ax\"\n.globl _start\n_start:\n"
        "mov x0, #0x300000\nmsr cpacr_el1, x0\nisb\nldr x0, =stack_top\nmov sp, x0\nbl start_c\n.text\n");

static long host(uintptr_t what, const void *with)
{
    register uintptr_t x0 __asm__("x0") = what;
    register const void *x1 __asm__("x1") = with;
    __asm__ volatile("hlt #0xF000" : "+r"(x0) : "r"(x1) : "memory");
    return (long)x0;
}

static uint32_t ticks(void)                     /* 16 ns each: an instruction under -icount shift=4 */
{
    uint64_t now;
    __asm__ volatile("isb\nmrs %0, cntvct_el0" : "=r"(now) : : "memory");
    return (uint32_t)now;
}

#else

#define TICK_MASK 0xFFFFFFu                     /* SysTick has 24 bits */

__asm__(".section .start, \"ax\"\n.globl _start\n_start:\n.word stack_top\n.word start_c\n.text\n");

static long host(uintptr_t what, const void *with)
{
    register uintptr_t r0 __asm__("r0") = what;
    register const void *r1 __asm__("r1") = with;
    __asm__ volatile("bkpt #0xAB" : "+r"(r0) : "r"(r1) : "memory");
    return (long)r0;
}

static uint32_t ticks(void)                     /* SysTick counts down, 40 ns each: 1.6 an instruction at shift=6 */
{
    volatile uint32_t *systick = (volatile uint32_t *)0xE000E010u;
    if (systick[0] == 0u) {
        systick[1] = 0xFFFFFFu;
        systick[2] = 0;
        systick[0] = 5;
    }
    return 0xFFFFFFu - systick[2];
}

#endif

/* --- words --- */

static char line[32];

static void say(const char *text)
{
    (void)host(4, text);                        /* SYS_WRITE0 */
}

static void say_number(uint32_t number, const char *after)
{
    uint32_t at = sizeof line - 1u;
    line[at] = 0;
    do {
        line[--at] = (char)('0' + number % 10u);
        number /= 10u;
    } while (number);
    say(line + at);
    say(after);
}

/* --- what is measured --- */

static uint64_t room[POOL_BYTES / 8];
static colibri_description description;

#if WITH_FLOAT

static colibri_layer layer;

static uint32_t route(uint32_t row, uint32_t span, uint32_t **chosen, uint32_t **weight)
{
    colibri_session *s = (colibri_session *)(void *)room;
    uint32_t *z = colibri_pool_words(s, POOL_LOGITS);
    s->kernel = COLIBRI_KERNEL_PORTABLE;
    s->layout.router_stride = MOST_EXPERTS;
    layer.d = description;
    layer.d.router_span = span;
    layer.chosen = POOL_CHOSEN;
    layer.chosen_weight = POOL_WEIGHT;
    layer.spread = POOL_SPREAD;
    for (uint32_t e = 0; e < description.experts; e++) {
        z[e] = logits[row][e];
    }
    *chosen = colibri_pool_words(s, POOL_CHOSEN);
    *weight = colibri_pool_words(s, POOL_WEIGHT);
    uint32_t begun = ticks();
    (void)colibri_route_row(s, &layer, 0, (float *)(void *)z);
    return (ticks() - begun) & TICK_MASK;
}

#else

static uint32_t route(uint32_t row, uint32_t span, uint32_t **chosen, uint32_t **weight)
{
    int32_t *z = (int32_t *)(void *)room;
    *chosen = (uint32_t *)(void *)room + MOST_EXPERTS;
    *weight = *chosen + MOST_CHOSEN;
    description.router_span = span;
    uint32_t begun = ticks();
    for (uint32_t e = 0, experts = description.experts; e < experts; e++) {
        z[e] = colibri_fixed_logit(logits[row][e]);
    }
    (void)colibri_fixed_route(&description, z, *chosen, *weight);
    return (ticks() - begun) & TICK_MASK;
}

#endif

/* "row EXPERT WEIGHT ..." for every row, then "ticks NUMBER" of them all; weights in 2^-16, or as float32 bits */
static void measure(uint32_t span)
{
    uint32_t *chosen = 0, *weight = 0;
    uint32_t total = 0, empty = ticks();
    empty = (ticks() - empty) & TICK_MASK;
    for (uint32_t row = 0; row < ROWS; row++) {
        total += route(row, span, &chosen, &weight) - empty;
        say("row ");
        for (uint32_t i = 0; i < description.top_k; i++) {
            say_number(chosen[i], " ");
            say_number(weight[i], " ");
        }
        say("\n");
    }
    say("ticks ");
    say_number(total, "\n");
}

void start_c(void)
{
    static const uintptr_t done[2] = {0x20026u, 0};     /* ADP_Stopped_ApplicationExit */
    for (uint32_t i = 0; i < SHAPE_COUNT; i++) {
        description.experts = shapes[i][0];
        description.top_k = shapes[i][1];
        description.renormalise = shapes[i][2];
        description.router_score = COLIBRI_ROUTER_SOFTMAX;
        description.router_scale = 1.0f;
        measure(16);
        if (WITH_FLOAT) {
            measure(0);
        }
    }
    (void)host(0x18, sizeof(void *) == 8u ? (const void *)done : (const void *)0x20026u);
    for (;;) {
    }
}
