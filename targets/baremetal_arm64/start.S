/*
 * start.S: from reset to C. Drops from EL3 or EL2 to EL1, enables floating point, clears .bss, paints the
 * stack, and runs C on SP_EL0, so that an exception (a stack overflow too) finds its own stack in SP_EL1.
 * Further cores come the same way, with the MMU on before they touch memory that core 0 has written.
 */
#include "layout.h"

    .section .text.start, "ax"
    .globl _start
_start:
    mov     x20, #0                             /* this is core 0, */
    b       enter
    .globl colibri_board_core_start
colibri_board_core_start:
    mov     x20, x0                             /* or the core that PSCI's context says */
enter:
    mrs     x19, CurrentEL
    lsr     x19, x19, #2
    cmp     x19, #2
    b.lo    at_el1
    b.eq    at_el2

    /* EL3: everything below is 64-bit and non-secure; hypervisor calls allowed */
    mov     x0, #0x531
    msr     scr_el3, x0
    msr     cptr_el3, xzr                       /* no traps of floating point */
    mrs     x0, id_aa64pfr0_el1
    ubfx    x0, x0, #8, #4                      /* is there an EL2? */
    mov     x1, #0x3C9                          /* EL2h, exceptions masked */
    adr     x2, at_el2
    cbnz    x0, leave_el3
    mov     x1, #0x3C5                          /* EL1h */
    adr     x2, at_el1
leave_el3:
    msr     spsr_el3, x1
    msr     elr_el3, x2
    eret

at_el2:
    mov     x0, #0x80000000                     /* HCR_EL2.RW: EL1 is 64-bit */
    msr     hcr_el2, x0
    mov     x0, #0x33FF                         /* CPTR_EL2: RES1 bits only, no traps */
    msr     cptr_el2, x0
    mrs     x0, cnthctl_el2
    orr     x0, x0, #3                          /* EL1 may read the counter */
    msr     cnthctl_el2, x0
    msr     cntvoff_el2, xzr
    mov     x0, #0x3C5
    msr     spsr_el2, x0
    adr     x0, at_el1
    msr     elr_el2, x0
    eret

at_el1:
    /* a known state whatever ran before: MMU and caches off, alignment checked */
    ldr     x0, =0x30D00802
    msr     sctlr_el1, x0
    mov     x0, #(3 << 20)                      /* CPACR_EL1.FPEN */
    msr     cpacr_el1, x0
    adrp    x0, vectors
    add     x0, x0, :lo12:vectors
    msr     vbar_el1, x0
    isb
    adrp    x0, fault_stack
    add     x0, x0, :lo12:fault_stack
    add     x1, x20, #1
    add     x0, x0, x1, lsl #12
    msr     spsel, #1
    mov     sp, x0
    msr     spsel, #0
    cbnz    x20, further
    mrs     x0, mpidr_el1
    and     x0, x0, #0xFFFFFF
    cbnz    x0, park                            /* without PSCI all cores begin here: one runs, the others sleep */

    ldr     x1, =colibri_board_stack_top
    mov     sp, x1

    ldr     x0, =colibri_board_bss
    ldr     x1, =colibri_board_bss_end
1:  cmp     x0, x1
    b.hs    2f
    stp     xzr, xzr, [x0], #16
    b       1b

2:  ldr     x0, =colibri_board_stack
    ldr     x1, =colibri_board_stack_top
    ldr     x2, =0xC5C5C5C5C5C5C5C5             /* the same in smp.c */
3:  stp     x2, x2, [x0], #16
    cmp     x0, x1
    b.lo    3b

    mov     x0, x19
    bl      colibri_board_main
    bl      colibri_board_exit

    /* nothing is read from memory before the caches are on: core 0's writes may still lie in its own */
further:
    ldr     x21, =BOARD_STACK
    ldr     x1, =BOARD_STACK_STRIDE
    madd    x21, x20, x1, x21
    ldr     x1, =BOARD_STACK_BYTES
    add     x1, x21, x1
    mov     sp, x1
    bl      colibri_board_mmu_start
    mov     x1, sp
    ldr     x2, =0xC5C5C5C5C5C5C5C5             /* the same in smp.c */
4:  stp     x2, x2, [x21], #16
    cmp     x21, x1
    b.lo    4b
    mov     x0, x20
    bl      colibri_board_core_main
park:
    wfe
    b       park

/* void colibri_board_semihosting(uint64_t operation, const uint64_t *block) */
    .section .text.colibri_board_semihosting, "ax"
    .globl colibri_board_semihosting
colibri_board_semihosting:
    hlt     #0xF000
    ret

/* int64_t colibri_board_psci(uint64_t function, uint64_t core, uint64_t entry, uint64_t context, uint64_t level) */
    .section .text.colibri_board_psci, "ax"
    .globl colibri_board_psci
colibri_board_psci:
    cmp     x4, #1
    b.ne    1f
    hvc     #0
    ret
1:  .inst   0xD4000003                          /* smc #0, for assemblers that do not expect an EL3 */
    ret

/* void colibri_board_translate(const void *tables, uint64_t mair, uint64_t tcr, uint64_t sctlr) */
    .section .text.colibri_board_translate, "ax"
    .globl colibri_board_translate
colibri_board_translate:
    dsb     sy
    msr     mair_el1, x1
    msr     tcr_el1, x2
    msr     ttbr0_el1, x0
    isb
    tlbi    vmalle1
    ic      iallu
    dsb     sy
    isb
    msr     sctlr_el1, x3
    isb
    ret

/* One handler for all sixteen vectors; it never returns. x0 = which vector. */
    .section .text.vectors, "ax"
    .balign 2048
vectors:
    .set    vector, 0
    .rept   16
    .balign 128
    mov     x0, #vector
    b       fault
    .set    vector, vector + 1
    .endr
fault:
    mrs     x1, esr_el1
    mrs     x2, elr_el1
    mrs     x3, far_el1
    mrs     x4, spsr_el1
    bl      colibri_board_fault
1:  wfe
    b       1b

    .section .bss.fault_stack, "aw", %nobits
    .balign 16
fault_stack:                                    /* one for each core */
    .skip   4096 * BOARD_CORES
