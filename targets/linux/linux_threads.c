/*
 * linux_threads.c: the runner's threads, made by the clone system call: the memory, files and signals of the process
 * are shared, the stack is a mapping with a guard page below it. Threads are not waited for: they end with the crew
 * or with the process.
 */
#include "crew.h"
#include "linux_call.h"
#include "linux_threads.h"

enum { CLONE_FLAGS = 0x100 | 0x200 | 0x400 | 0x800 | 0x10000 | 0x40000,     /* VM FS FILES SIGHAND THREAD SYSVSEM */
       PROT_NONE = 0, PROT_READ_WRITE = 3, MAP_PRIVATE_ANONYMOUS = 34, GUARD = 65536, STACK = 262144 };

long colibri_linux_clone(long flags, void *stack_top);
void colibri_linux_thread(void *where, uint64_t worker);

/* The new thread wakes up on a stack with nothing on it but two words, its arguments: no C function could return. */
#if defined(__x86_64__)
__asm__(".text\n"
        ".globl colibri_linux_clone\n"
        ".hidden colibri_linux_clone\n"
        "colibri_linux_clone:\n"
        "    xor %edx, %edx\n"
        "    xor %r10d, %r10d\n"
        "    xor %r8d, %r8d\n"
        "    mov $56, %eax\n"
        "    syscall\n"
        "    test %eax, %eax\n"
        "    jz 1f\n"
        "    ret\n"
        "1:  xor %ebp, %ebp\n"
        "    mov (%rsp), %rdi\n"
        "    mov 8(%rsp), %rsi\n"
        "    call colibri_linux_thread\n"
        "    xor %edi, %edi\n"
        "    mov $60, %eax\n"
        "    syscall\n");
#elif defined(__aarch64__)
__asm__(".text\n"
        ".globl colibri_linux_clone\n"
        ".hidden colibri_linux_clone\n"
        "colibri_linux_clone:\n"
        "    mov x2, #0\n"
        "    mov x3, #0\n"
        "    mov x4, #0\n"
        "    mov x8, #220\n"
        "    svc #0\n"
        "    cbz x0, 1f\n"
        "    ret\n"
        "1:  mov x29, #0\n"
        "    mov x30, #0\n"
        "    ldp x0, x1, [sp]\n"
        "    bl colibri_linux_thread\n"
        "    mov x0, #0\n"
        "    mov x8, #93\n"
        "    svc #0\n");
#elif defined(__riscv)
__asm__(".text\n"
        ".globl colibri_linux_clone\n"
        ".hidden colibri_linux_clone\n"
        "colibri_linux_clone:\n"
        "    li a2, 0\n"
        "    li a3, 0\n"
        "    li a4, 0\n"
        "    li a7, 220\n"
        "    ecall\n"
        "    beqz a0, 1f\n"
        "    ret\n"
        "1:  ld a0, 0(sp)\n"
        "    ld a1, 8(sp)\n"
        "    call colibri_linux_thread\n"
        "    li a0, 0\n"
        "    li a7, 93\n"
        "    ecall\n");
#endif

/* Workers of a crew have numbers above 0: the driver is worker 0. */
void colibri_linux_thread(void *where, uint64_t worker)
{
    if (worker != 0u) {
        colibri_crew_work(where, (uint32_t)worker);
    } else {
        colibri_store_work(where);
    }
}

static uint32_t begin(void *where, uint32_t worker)
{
    long stack = colibri_linux_call(SYS_MMAP, 0, GUARD + STACK, PROT_READ_WRITE, MAP_PRIVATE_ANONYMOUS, -1, 0);
    if (colibri_linux_refused(stack) != 0u) {
        return 0u;
    }
    (void)colibri_linux_call(SYS_MPROTECT, stack, GUARD, PROT_NONE, 0, 0, 0);
    uint64_t *top = (uint64_t *)(intptr_t)(stack + GUARD + STACK - 16);
    top[0] = (uint64_t)(uintptr_t)where;
    top[1] = worker;
    return colibri_linux_refused(colibri_linux_clone(CLONE_FLAGS, top)) == 0u;
}

uint32_t colibri_linux_thread_start(colibri_crew *crew, uint32_t worker)
{
    return begin(crew, worker);
}

uint32_t colibri_linux_reader_start(colibri_store *store)
{
    return begin(store, 0u);
}
