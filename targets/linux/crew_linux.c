/*
 * crew_linux.c: how a crew's threads wait on Linux. Futexes are private to the process; the kernel compares the word
 * under a lock that a wake takes too, behind a full barrier, which is what crew.c's argument asks for.
 */
#include "crew_port.h"
#include "linux_call.h"

enum { FUTEX_WAIT_PRIVATE = 128, FUTEX_WAKE_PRIVATE = 129 };

void colibri_crew_pause(void)
{
#if defined(__x86_64__)
    __asm__ volatile("pause" : : : "memory");
#elif defined(__aarch64__)
    __asm__ volatile("isb" : : : "memory");         /* `yield` is over at once; this takes about as long as a pause */
#elif defined(__riscv)
    __asm__ volatile(".4byte 0x0100000F" : : : "memory");   /* pause, a no-operation where it is not known */
#endif
}

void colibri_crew_yield(void)
{
    (void)colibri_linux_call(SYS_YIELD, 0, 0, 0, 0, 0, 0);
}

void colibri_crew_sleep(const uint32_t *word, uint32_t seen)
{
    (void)colibri_linux_call(SYS_FUTEX, (long)(intptr_t)word, FUTEX_WAIT_PRIVATE, (long)seen, 0, 0, 0);
}

void colibri_crew_wake(const uint32_t *word, uint32_t count)
{
    long most = count < 0x7FFFFFFFu ? (long)count : 0x7FFFFFFFL;
    (void)colibri_linux_call(SYS_FUTEX, (long)(intptr_t)word, FUTEX_WAKE_PRIVATE, most, 0, 0, 0);
}
