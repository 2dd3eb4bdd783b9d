/*
 * levels_main.c: levels_test.c as a Linux program without a libc, so that one command builds it for every processor.
 * Its argument is the level's number; it prints "function case... cases" and exits with 0 if nothing differs.
 */
#include "levels_test.h"

#if defined(__x86_64__)
__asm__(".globl _start\n_start:\n mov %rsp, %rdi\n and $-16, %rsp\n call levels_program\n hlt\n");

static long ask(long number, long a, long b, long c)
{
    long result;
    __asm__ volatile("syscall" : "=a"(result) : "a"(number), "D"(a), "S"(b), "d"(c) : "rcx", "r11", "memory");
    return result;
}
enum { WRITE = 1, EXIT = 60 };
#else
__asm__(".globl _start\n_start:\n mov x0, sp\n bl levels_program\n brk #0\n");

static long ask(long number, long a, long b, long c)
{
    register long x8 __asm__("x8") = number, x0 __asm__("x0") = a, x1 __asm__("x1") = b, x2 __asm__("x2") = c;
    __asm__ volatile("svc #0" : "+r"(x0) : "r"(x8), "r"(x1), "r"(x2) : "memory");
    return x0;
}
enum { WRITE = 64, EXIT = 93 };
#endif

void levels_program(char **stack);

void levels_program(char **stack)
{
    const char *argument = stack[0] != 0 && stack[2] != 0 ? stack[2] : "0";     /* count, name, argument */
    uint32_t wrong = levels_test((uint32_t)(argument[0] - '0'));
    char line[128];
    long length = 0;
    for (int i = 0; i < 8; i++) {
        char digits[10];
        int count = 0;
        for (uint32_t v = levels_result[i]; count == 0 || v != 0u; v /= 10u) {
            digits[count++] = (char)('0' + v % 10u);
        }
        while (count > 0) {
            line[length++] = digits[--count];
        }
        line[length++] = i == 7 ? '\n' : ' ';
    }
    ask(WRITE, 1, (long)line, length);
    ask(EXIT, wrong != 0u, 0, 0);
}
