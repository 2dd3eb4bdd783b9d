/*
 * bytes.c: moving and filling bytes under the core's own names, eight at a time where both sides allow it.
 */
#include "base/base.h"

typedef uint64_t __attribute__((may_alias)) colibri_word;

void colibri_copy(void *to, const void *from, uint64_t bytes)
{
    unsigned char *d = to;
    const unsigned char *s = from;
    uint64_t i = 0;
    if (((uintptr_t)d & 7u) == 0u && ((uintptr_t)s & 7u) == 0u) {
        for (; i + 8u <= bytes; i += 8u) {
            *(colibri_word *)(void *)(d + i) = *(const colibri_word *)(const void *)(s + i);
        }
    }
    for (; i < bytes; i++) {
        d[i] = s[i];
    }
}

void colibri_fill(void *to, uint8_t value, uint64_t bytes)
{
    unsigned char *d = to;
    uint64_t i = 0;
    uint64_t word = (uint64_t)value * 0x0101010101010101u;
    if (((uintptr_t)d & 7u) == 0u) {
        for (; i + 8u <= bytes; i += 8u) {
            *(colibri_word *)(void *)(d + i) = word;
        }
    }
    for (; i < bytes; i++) {
        d[i] = value;
    }
}
