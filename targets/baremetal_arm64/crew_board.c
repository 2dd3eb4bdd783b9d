/*
 * crew_board.c: how a crew's cores wait on bare ARM64. A core sleeps until an event; a wake is an event for all. One
 * that comes between the look at the word and the sleep is remembered by the core's event register, so that the sleep
 * ends at once: no wake is missed.
 */
#include "crew_port.h"

void colibri_crew_pause(void)
{
    __asm__ volatile("yield" : : : "memory");
}

void colibri_crew_yield(void)
{
    __asm__ volatile("yield" : : : "memory");   /* nobody else wants this core */
}

void colibri_crew_sleep(const uint32_t *word, uint32_t seen)
{
    __asm__ volatile("dmb ish" : : : "memory");
    if (__atomic_load_n(word, __ATOMIC_RELAXED) == seen) {
        __asm__ volatile("wfe" : : : "memory");
    }
}

void colibri_crew_wake(const uint32_t *word, uint32_t count)
{
    (void)word;
    (void)count;
    __asm__ volatile("dsb ish\n sev" : : : "memory");
}
