/*
 * wasm_port.c: the runner inside colibri.wasm. The module imports nothing but its memory, so the host reads the
 * report from a buffer between two steps instead of being called.
 *
 *   __heap_base (global)            first byte behind the module's own data: the host lays out job, blob and
 *                                   region from there, each 64-byte aligned
 *   colibri_runner_open(job, job_bytes, blob, region)     0, or the exit code of a job that was refused
 *   colibri_runner_turn()           1 while there is more to do
 *   colibri_runner_exit_code()      once turn has returned 0
 *   colibri_runner_output()         address of what was reported since the last colibri_runner_output_bytes()
 *   colibri_runner_output_bytes()   how much that is; the next step writes from the start again
 */
#include "runner_port.h"

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

COLIBRI_API uint32_t colibri_runner_open(const runner_job *job, uint32_t job_bytes, const void *blob,
                                         void *region);
COLIBRI_API uint32_t colibri_runner_turn(void);
COLIBRI_API uint32_t colibri_runner_exit_code(void);
COLIBRI_API const char *colibri_runner_output(void);
COLIBRI_API uint32_t colibri_runner_output_bytes(void);

uint32_t colibri_runner_open(const runner_job *job, uint32_t job_bytes, const void *blob, void *region)
{
    held = 0;
    return colibri_runner_begin(colibri_runner_instance(), job, job_bytes, blob, region);
}

uint32_t colibri_runner_turn(void)
{
    return colibri_runner_step(colibri_runner_instance());
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
