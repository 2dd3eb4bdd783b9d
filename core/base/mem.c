/*
 * mem.c: the four functions a C compiler may call by itself, weak so that a libc wins where there is one,
 * and the core's own names for moving bytes. Alone in its archive member: linked only when wanted.
 * (-fno-builtin, and -fno-tree-loop-distribute-patterns with gcc, keep these loops from calling themselves.)
 */
#include "base/base.h"

#define COLIBRI_WEAK __attribute__((weak))

void *memcpy(void *to, const void *from, size_t bytes);
void *memmove(void *to, const void *from, size_t bytes);
void *memset(void *to, int value, size_t bytes);
int memcmp(const void *left, const void *right, size_t bytes);

COLIBRI_WEAK void *memcpy(void *to, const void *from, size_t bytes)
{
    unsigned char *d = to;
    const unsigned char *s = from;
    for (size_t i = 0; i < bytes; i++) {
        d[i] = s[i];
    }
    return to;
}

COLIBRI_WEAK void *memmove(void *to, const void *from, size_t bytes)
{
    unsigned char *d = to;
    const unsigned char *s = from;
    if (d <= s) {
        for (size_t i = 0; i < bytes; i++) {
            d[i] = s[i];
        }
    } else {
        for (size_t i = bytes; i-- > 0;) {
            d[i] = s[i];
        }
    }
    return to;
}

COLIBRI_WEAK void *memset(void *to, int value, size_t bytes)
{
    unsigned char *d = to;
    for (size_t i = 0; i < bytes; i++) {
        d[i] = (unsigned char)value;
    }
    return to;
}

COLIBRI_WEAK int memcmp(const void *left, const void *right, size_t bytes)
{
    const unsigned char *a = left;
    const unsigned char *b = right;
    for (size_t i = 0; i < bytes; i++) {
        if (a[i] != b[i]) {
            return a[i] < b[i] ? -1 : 1;
        }
    }
    return 0;
}
