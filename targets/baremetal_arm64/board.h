/*
 * board.h: what main.c needs of the board: a way to print, the MMU, the end.
 */
#ifndef COLIBRI_BOARD_H
#define COLIBRI_BOARD_H

#include <stdint.h>

#include "crew.h"
#include "layout.h"

/* One stretch of memory for the page tables; whole 2 MiB blocks. */
enum board_memory { BOARD_DEVICE, BOARD_CODE, BOARD_DATA, BOARD_CONSTANT };

void colibri_board_uart_start(void);
void colibri_board_map(uint64_t first, uint64_t end, enum board_memory kind);
void colibri_board_mmu_start(void);
/* How the firmware was entered tells whom to ask for further cores; nobody is asked before. */
void colibri_board_smp(uint64_t level);
/* store_board.c: the disk. Bring the first bytes of the model file to `to`; 0, or the exit code after a sentence. */
uint32_t colibri_board_disk(uint64_t file_bytes, uint64_t bytes, void *to);
/* What it did; nothing where it was not asked for. */
void colibri_board_disk_report(void);
void colibri_board_exit(uint32_t code);
void colibri_board_fault(uint64_t vector, uint64_t esr, uint64_t elr, uint64_t far, uint64_t spsr);

/* start.S */
extern const char colibri_board_core_start[];   /* where a further core begins; not to be called */
int64_t colibri_board_psci(uint64_t function, uint64_t core, uint64_t entry, uint64_t context, uint64_t level);
void colibri_board_core_main(uint32_t core);    /* in smp.c: where it ends up */
void colibri_board_semihosting(uint64_t operation, const uint64_t *block);
void colibri_board_translate(const void *tables, uint64_t mair, uint64_t tcr, uint64_t sctlr);

#endif
