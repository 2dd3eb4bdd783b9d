/*
 * swap_board.c: experts of a running session exchanged on an ARM64 board, every exchange counted in instructions: under
 * QEMU's -icount shift=4 a tick of the counter (16 ns) is one instruction. Linked with the firmware's own core; both
 * models lie where the test had QEMU put them. Speaks through semihosting:
 *
 *   token TOKEN DIGEST SWAPPED CALL FEED     a token that was fed, and of its logits the first word of the SHA-256;
 *                                        whether the expert was the other model's; instructions of the call that
 *                                        exchanged before it, or took an exchange back (0: neither), and of the feed
 *   reset                                the sequence begins again
 *   error STATUS                         the core refused a call
 */
#include "swap_vectors.h"               /* OLD_AT, BYTES, OTHER_AT, POOL_AT, VOCAB, LAYER, .. */
#include "colibri.h"

#define PIECE 4096u

/* --- the board --- */

void start_c(void);

__asm__(".section .start, \"ax\"\n.globl _start\n_start:\n"
        "mov x0, #0x300000\nmsr cpacr_el1, x0\nisb\nldr x0, =stack_top\nmov sp, x0\nbl start_c\n.text\n");

static long host(uintptr_t what, const void *with)
{
    register uintptr_t x0 __asm__("x0") = what;
    register const void *x1 __asm__("x1") = with;
    __asm__ volatile("hlt #0xF000" : "+r"(x0) : "r"(x1) : "memory");
    return (long)x0;
}

static uint32_t ticks(void)
{
    uint64_t now;
    __asm__ volatile("isb\nmrs %0, cntvct_el0" : "=r"(now) : : "memory");
    return (uint32_t)now;
}

static char line[160];
static uint32_t written;

static void word(const char *text)
{
    while (*text) {
        line[written++] = *text++;
    }
}

static void number(uint32_t value)
{
    char digits[10];
    uint32_t count = 0;
    do {
        digits[count++] = (char)('0' + value % 10u);
        value /= 10u;
    } while (value);
    line[written++] = ' ';
    while (count) {
        line[written++] = digits[--count];
    }
}

static void say(void)
{
    word("\n");
    line[written] = 0;
    written = 0;
    (void)host(4, line);                        /* SYS_WRITE0 */
}

static void leave(int32_t status)
{
    const uintptr_t done[2] = {0x20026u, status < 0};   /* ADP_Stopped_ApplicationExit */
    if (status < 0) {
        word("error");
        number((uint32_t)-status);
        say();
    }
    for (;;) {
        (void)host(0x18, done);
    }
}

static int32_t good(int32_t status)
{
    if (status < 0) {
        leave(status);
    }
    return status;
}

/* --- what is measured --- */

static colibri_model old, other;
static colibri_session *session;
static uint32_t empty;                          /* what measuring takes */

static void open_all(void)
{
    static colibri_plan_result plan;
    colibri_limits limits = {.struct_bytes = sizeof limits, .context = CONTEXT, .batch = 1, .sequences = 1,
                             .workers = 1, .logit_rows = 1, .swaps = SWAPS, .kv_kind = COLIBRI_KV_F16,
                             .kernel = COLIBRI_KERNEL_PORTABLE};
    colibri_hooks hooks = {.struct_bytes = sizeof hooks};
    (void)good(colibri_open(&old, (const void *)OLD_AT, BYTES, BYTES, 0));
    (void)good(colibri_open(&other, (const void *)OTHER_AT, BYTES, BYTES, 0));
    plan.struct_bytes = sizeof plan;
    (void)good(colibri_plan(&old, &limits, &plan, 0));
    int32_t status = COLIBRI_AGAIN;
    while (status == COLIBRI_AGAIN || status == COLIBRI_WAIT) {
        status = good(colibri_start(&old, &limits, &hooks, (void *)POOL_AT, plan.pool_bytes, &session, 0));
    }
    empty = ticks();
    empty = ticks() - empty;
}

/* Instructions of the call that exchanges: what comes before it is bounded by its budget, and runs beside tokens. */
static uint32_t exchange(const colibri_model *source, uintptr_t at)
{
    colibri_expert e = {.struct_bytes = sizeof e};
    (void)good(colibri_expert_of(source ? source : &old, LAYER, EXPERT, &e));
    e.run = source ? (const void *)(at + e.offset) : 0;
    for (;;) {
        uint32_t begun = ticks();
        int32_t status = colibri_swap_expert(session, &e, PIECE, 0);
        uint32_t took = ticks() - begun - empty;
        if (good(status) == COLIBRI_DONE) {
            return took;
        }
    }
}

/* By turns: the other model's, the file's own again, the other's, a copy of the file's own. */
static uint32_t flip(uint32_t turn)
{
    const colibri_model *source = turn % 2u == 0u ? &other : turn % 4u == 1u ? 0 : &old;
    return exchange(source, source == &other ? OTHER_AT : OLD_AT);
}

static uint32_t feed(uint32_t token)
{
    const colibri_row row = {.position = COLIBRI_NEXT_POSITION, .token = token, .want_logits = 1};
    uint32_t begun = ticks();
    int32_t status = colibri_feed(session, &row, 1u);
    uint32_t took = ticks() - begun - empty;
    (void)good(status);
    return took;
}

/* The most likely token; the digest's first word. */
static uint32_t read_logits(uint32_t *digest)
{
    colibri_sha256 sha;
    uint8_t bytes[32];
    uint32_t best = 0;
    const float *logits = colibri_logits(session, 0);
    for (uint32_t i = 1; i < VOCAB; i++) {
        best = logits[i] > logits[best] ? i : best;
    }
    colibri_sha256_start(&sha);
    colibri_sha256_add(&sha, logits, VOCAB * sizeof *logits);
    colibri_sha256_end(&sha, bytes);
    *digest = (uint32_t)bytes[0] << 24 | (uint32_t)bytes[1] << 16 | (uint32_t)bytes[2] << 8 | bytes[3];
    return best;
}

/* Exchanges come between two tokens, in the middle of one (then the next feed takes them), or not at all. */
void start_c(void)
{
    uint32_t flips = 0, token = 1, swapped = 0, call = 0, length = 0;
    open_all();
    for (uint32_t i = 0; flips < FLIPS || call; i++) {
        if (length == CONTEXT) {
            (void)good(colibri_reset(session, COLIBRI_ALL_SEQUENCES));
            length = 0;
            word("reset");
            say();
        }
        uint32_t digest, amid = i % 3u, before = call, fed = feed(token), next_swapped = swapped, now = token;
        call = 0;
        if (amid == 1u && flips < FLIPS) {
            (void)good(colibri_advance(session, 1u + i % 23u));
            call = flip(flips++);
            next_swapped = flips & 1u;
        }
        while (good(colibri_advance(session, 7u)) == COLIBRI_AGAIN) {
        }
        token = read_logits(&digest);
        word("token");
        number(now);
        number(digest);
        number(swapped);
        number(before);
        number(fed);
        say();
        swapped = next_swapped;
        if (amid == 0u && flips < FLIPS) {
            call = flip(flips++);
            swapped = flips & 1u;
        }
        length++;
    }
    leave(0);
}
