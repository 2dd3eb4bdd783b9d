/*
 * board.c: the devices of QEMU's `virt` board that a job needs: PL011 UART, page tables, generic timer,
 * semihosting for the exit code, and the report of a CPU exception. It knows nothing of models.
 */
#include "board.h"

#include "runner_port.h"

#define BLOCK 0x200000u
#define SEMIHOSTING_EXIT 0x18u
#define APPLICATION_EXIT 0x20026u

/* ---- UART ---- */

static volatile uint32_t *uart(uint32_t offset)
{
    return (volatile uint32_t *)(uintptr_t)(BOARD_UART + offset);
}

void colibri_board_uart_start(void)
{
    *uart(0x30) = 0u;                           /* UARTCR: off while it is set up */
    *uart(0x24) = 13u;                          /* UARTIBRD, UARTFBRD: 115200 baud from 24 MHz */
    *uart(0x28) = 1u;
    *uart(0x2C) = 0x70u;                        /* UARTLCR_H: 8 bits, FIFOs */
    *uart(0x30) = 0x301u;                       /* UARTCR: enable, transmit, receive */
}

void colibri_runner_write(const char *bytes, uint32_t count)
{
    for (uint32_t i = 0; i < count; i++) {
        while ((*uart(0x18) & 0x20u) != 0u) {   /* UARTFR.TXFF */
        }
        *uart(0) = (uint32_t)(unsigned char)bytes[i];
    }
}

/* ---- time ---- */

uint64_t colibri_runner_clock(void)
{
    uint64_t ticks, hertz;
    __asm__ volatile("isb\n mrs %0, cntvct_el0\n mrs %1, cntfrq_el0" : "=&r"(ticks), "=&r"(hertz));
    return ticks / hertz * 1000000u + ticks % hertz * 1000000u / hertz;
}

/* ---- page tables: 39-bit addresses, one level-1 table, a level-2 table of 2 MiB blocks per GiB ---- */

static uint64_t level1[512] __attribute__((aligned(4096)));
static uint64_t level2[BOARD_GIB_MAX][512] __attribute__((aligned(4096)));

/* Attributes of a block: access flag, memory type (MAIR index), shareability, permissions. */
static uint64_t attributes(enum board_memory kind)
{
    const uint64_t block = 1u, access = 1u << 10, normal = 1u << 2, inner = 3u << 8, read_only = 2u << 6;
    const uint64_t never_execute = 3ull << 53;
    switch (kind) {
    case BOARD_DEVICE: return block | access | never_execute;
    case BOARD_CODE: return block | access | normal | inner | read_only | (1ull << 54);
    case BOARD_CONSTANT: return block | access | normal | inner | read_only | never_execute;
    default: return block | access | normal | inner | never_execute;
    }
}

void colibri_board_map(uint64_t first, uint64_t end, enum board_memory kind)
{
    for (uint64_t at = first & ~(uint64_t)(BLOCK - 1u); at < end; at += BLOCK) {
        uint64_t gib = at >> 30;
        if (gib < BOARD_GIB_MAX) {
            level2[gib][(at >> 21) & 511u] = at | attributes(kind);
            level1[gib] = (uint64_t)(uintptr_t)level2[gib] | 3u;
        }
    }
}

void colibri_board_mmu_start(void)
{
    /* MAIR: 0 = Device-nGnRnE, 1 = Normal write-back. TCR: T0SZ 25, write-back inner-shareable walks of 4 KiB
     * granule, TTBR1 off, 40-bit physical addresses. SCTLR: RES1, WXN, I, C, M. */
    const uint64_t tcr = 25u | (1u << 8) | (1u << 10) | (3u << 12) | (1u << 23) | (2ull << 32);
    colibri_board_translate(level1, 0xFF00u, tcr, 0x30D00800u | (1u << 19) | (1u << 12) | (1u << 2) | 1u);
}

/* ---- the end ---- */

void colibri_board_exit(uint32_t code)
{
    const uint64_t block[2] = {APPLICATION_EXIT, code};
    colibri_board_semihosting(SEMIHOSTING_EXIT, block);
    for (;;) {                                  /* no debugger: silent, until the host's time limit */
    }
}

static void field(const char *name, uint64_t value)
{
    char digits[16];
    for (uint32_t i = 0; i < 16u; i++) {
        digits[i] = "0123456789abcdef"[(value >> (60u - 4u * i)) & 15u];
    }
    colibri_runner_text(name);
    colibri_runner_write(digits, 16u);
}

/* A CPU exception is always a bug or a deliberate test: say all the hardware knows, end with its own code. */
void colibri_board_fault(uint64_t vector, uint64_t esr, uint64_t elr, uint64_t far, uint64_t spsr)
{
    static uint32_t nested;
    if (nested++ == 0u) {
        field("\nfault vector ", vector);
        field(" esr ", esr);
        field(" elr ", elr);
        field(" far ", far);
        field(" spsr ", spsr);
        colibri_runner_text("\n");
    }
    colibri_board_exit(BOARD_EXIT_FAULT);
}
