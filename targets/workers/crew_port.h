/*
 * crew_port.h: what a crew needs of the system it runs on. crew_linux.c and crew_board.c are examples.
 */
#ifndef COLIBRI_CREW_PORT_H
#define COLIBRI_CREW_PORT_H

#include <stdint.h>

/* A moment of a loop that waits. */
void colibri_crew_pause(void);
/* Let another thread have this processor. */
void colibri_crew_yield(void);
/* Sleep while *word == seen, until a wake on the same word. May return for no reason, and at once where a system
 * cannot sleep. Must not miss a wake that comes after it has read *word; must read it after all that the caller did. */
void colibri_crew_sleep(const uint32_t *word, uint32_t seen);
/* Wake up to `count` of those asleep on the word. */
void colibri_crew_wake(const uint32_t *word, uint32_t count);

#endif
