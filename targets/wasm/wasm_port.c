/*
 * wasm_port.c: the runner inside colibri.wasm. The module imports its memory and one function, the store; the host
 * reads the report from a buffer between two steps instead of being called.
 *
 *   env.colibri_store (import)      (offset: i64, bytes: i32, to: i32, ticket: i32) -> i32: bring bytes of the blob to
 *                                   `to`. COLIBRI_DONE: they are there; COLIBRI_OK: they will be, as arrived() tells;
 *                                   COLIBRI_WAIT: not now; negative: failed. Called for RUNNER_STORE_PORT only
 *   colibri_runner_arrived(ticket, status)          from the host, between two turns: COLIBRI_DONE or negative
 *   __heap_base (global)            first byte behind the module's own data: the host lays out job, blob and
 *                                   region from there, each 64-byte aligned
 *   colibri_runner_open(job, job_bytes, blob, region)     0, or the exit code of a job that was refused
 *   colibri_runner_turn()           1 while there is more to do, 2 if not before something arrives
 *   colibri_runner_exit_code()      once turn has returned 0
 *   colibri_runner_output()         address of what was reported since the last colibri_runner_output_bytes()
 *   colibri_runner_output_bytes()   how much that is; the next step writes from the start again
 *   colibri_runner_engine_fits()    1 if this engine answers this module's operations as the module needs it
 *
 * There are three modules, of which an engine may refuse two: colibri.wasm, colibri_simd128.wasm, colibri_relaxed.wasm.
 * A host takes the last that its engine accepts and that fits it.
 */
#include "runner_port.h"

#if defined(__wasm_relaxed_simd__)
#include <wasm_simd128.h>
#endif

static char output[2u * RUNNER_OUTPUT_BYTES];
static uint32_t held;

void colibri_runner_write(const char *bytes, uint32_t count)
{
    for (uint32_t i = 0; i < count && held < sizeof output; i++) {
        output[held++] = bytes[i];
    }
}

uint64_t colibri_runner_clock(void)
{
    return 0u;
}

uint64_t colibri_runner_stack(void)
{
    return 0u;
}

uint32_t colibri_runner_threads(uint32_t workers)
{
    (void)workers;
    return 1u;
}

uint64_t colibri_runner_helped(void)
{
    return 0u;
}

void colibri_runner_parallel(colibri_session *session, uint32_t count)
{
    colibri_work(session, 0, 0, count);
}

/* ---- the store ---- */

enum { TICKETS = 64, LARGEST = 0x7FFFFFFF };

__attribute__((import_module("env"), import_name("colibri_store")))
int32_t colibri_wasm_store(uint64_t offset, uint32_t bytes, void *to, uint32_t ticket);
COLIBRI_API void colibri_runner_arrived(uint32_t ticket, int32_t status);

static int32_t tickets[TICKETS];                 /* of the fetch with this ticket; COLIBRI_WAIT: on its way */
static uint32_t waiting;

int32_t colibri_runner_fetch(const colibri_fetch_request *request)
{
    if (request->ticket >= TICKETS || request->bytes > LARGEST) {
        return COLIBRI_ERROR_FETCH;
    }
    tickets[request->ticket] = COLIBRI_WAIT;
    int32_t status = colibri_wasm_store(request->offset, (uint32_t)request->bytes, request->destination,
                                        request->ticket);
    if (status == COLIBRI_DONE) {
        tickets[request->ticket] = COLIBRI_DONE;
    }
    return status == COLIBRI_DONE ? COLIBRI_OK : status;
}

int32_t colibri_runner_fetched(uint32_t ticket)
{
    return tickets[ticket];
}

void colibri_runner_arrived(uint32_t ticket, int32_t status)
{
    if (ticket < TICKETS) {
        tickets[ticket] = status < 0 ? status : COLIBRI_DONE;
    }
}

void colibri_runner_wait(void)
{
    waiting = 1u;
}

/* ---- turns ---- */

COLIBRI_API uint32_t colibri_runner_engine_fits(void);
COLIBRI_API uint32_t colibri_runner_open(const runner_job *job, uint32_t job_bytes, const void *blob,
                                         void *region);
COLIBRI_API uint32_t colibri_runner_turn(void);
COLIBRI_API uint32_t colibri_runner_exit_code(void);
COLIBRI_API const char *colibri_runner_output(void);
COLIBRI_API uint32_t colibri_runner_output_bytes(void);

/* Known vectors. What an engine validates it computes as WebAssembly says, except for the relaxed operations, which may
 * answer as they like outside of their contract: inside it, one compiler of an old engine gave twice the sum. */
uint32_t colibri_runner_engine_fits(void)
{
#if defined(__wasm_relaxed_simd__)
    int8_t x[16], w[16];
    int16_t found[8];
    uint32_t state = 1;
    for (uint32_t round = 0; round < 32u; round++) {
        for (uint32_t i = 0; i < 16u; i++) {
            state = state * 1664525u + 1013904223u;
            int32_t most = (state & 0x800u) != 0u ? 127 : -127;
            x[i] = (int8_t)((state & 0x700u) != 0u ? (int32_t)(state >> 24) - 128 : most);
            w[i] = (int8_t)((state & 0x3000u) != 0u ? state >> 16 & 127u : 127u);
        }
        wasm_v128_store(found, wasm_i16x8_relaxed_dot_i8x16_i7x16(wasm_v128_load(x), wasm_v128_load(w)));
        for (uint32_t i = 0; i < 8u; i++) {
            int32_t sum = x[2u * i] * w[2u * i] + x[2u * i + 1u] * w[2u * i + 1u];
            if (found[i] != sum) {
                return 0;
            }
        }
    }
#endif
    return 1;
}

uint32_t colibri_runner_open(const runner_job *job, uint32_t job_bytes, const void *blob, void *region)
{
    held = 0;
    return colibri_runner_begin(colibri_runner_instance(), job, job_bytes, blob, region);
}

uint32_t colibri_runner_turn(void)
{
    waiting = 0u;
    uint32_t more = colibri_runner_step(colibri_runner_instance());
    return more == 0u ? 0u : 1u + waiting;
}

uint32_t colibri_runner_exit_code(void)
{
    return colibri_runner_code(colibri_runner_instance());
}

const char *colibri_runner_output(void)
{
    return output;
}

uint32_t colibri_runner_output_bytes(void)
{
    uint32_t bytes = held;
    held = 0;
    return bytes;
}
