/*
 * smp.c: further cores as workers. PSCI starts them; each comes up in start.S with a stack of its own, turns on the
 * MMU with core 0's tables, and lives in the crew. Where PSCI is absent or refuses, core 0 runs all units.
 */
#include "board.h"
#include "runner_port.h"

#define PAINT 0xC5C5C5C5C5C5C5C5u                /* the same in start.S */
#define PSCI_CPU_ON 0xC4000003u

static colibri_crew the_crew __attribute__((aligned(64)));
static uint64_t entry_level;
static uint32_t cores = 1;

/* QEMU's board answers PSCI calls by hvc to a firmware that begins at EL1, by smc to one that begins at EL2; one that
 * begins at EL3 is itself the one who would have to answer. */
void colibri_board_smp(uint64_t level)
{
    entry_level = level;
}

uint32_t colibri_runner_threads(uint32_t workers)
{
    uint32_t most = workers < BOARD_CORES ? workers : (uint32_t)BOARD_CORES;
    uint64_t entry = (uintptr_t)colibri_board_core_start;
    colibri_crew_begin(&the_crew, workers);
    while ((entry_level == 1u || entry_level == 2u) && cores < most
           && colibri_board_psci(PSCI_CPU_ON, cores, entry, cores, entry_level) == 0) {
        cores++;
    }
    return cores;
}

uint64_t colibri_runner_helped(void)
{
    return the_crew.units - the_crew.driver_units;
}

void colibri_runner_parallel(colibri_session *session, uint32_t count)
{
    colibri_crew_parallel(&the_crew, session, count);
}

void colibri_board_core_main(uint32_t core)
{
    colibri_crew_work(&the_crew, core);
}

/* The deepest of all cores'. */
uint64_t colibri_runner_stack(void)
{
    uint64_t deepest = 0;
    for (uint32_t core = 0; core < cores; core++) {
        uintptr_t top = BOARD_STACK + core * (uintptr_t)BOARD_STACK_STRIDE + BOARD_STACK_BYTES;
        const volatile uint64_t *at = (const volatile uint64_t *)(top - BOARD_STACK_BYTES);
        while ((uintptr_t)at < top && *at == PAINT) {
            at++;
        }
        deepest = top - (uintptr_t)at > deepest ? top - (uintptr_t)at : deepest;
    }
    return deepest;
}
