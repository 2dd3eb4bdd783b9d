/*
 * utf8.h: reading and writing UTF-8. Owns the rule for bytes that are not UTF-8; knows no tokenizer.
 *
 * The rule: a maximal prefix of a well-formed sequence that is not completed counts as one U+FFFD, any other
 * stray byte as one each. It is the rule of Python's bytes.decode("utf-8", "replace") and of the Unicode
 * standard (section 3.9, best practice for U+FFFD).
 */
#ifndef COLIBRI_UTF8_H
#define COLIBRI_UTF8_H

#include <stdint.h>

#define COLIBRI_UTF8_REPLACEMENT 0xFFFDu

/* The character at text[at], at < end; *length = bytes it takes (1..4). */
uint32_t colibri_utf8_next(const uint8_t *text, uint32_t at, uint32_t end, uint32_t *length);

/* Writes a character; returns its bytes (1..4). */
uint32_t colibri_utf8_put(uint32_t code, uint8_t out[4]);

/* How a stream of bytes goes on, given the 0..3 bytes of an unfinished character before it. */
enum colibri_utf8_step {
    COLIBRI_UTF8_MORE = 0,      /* the byte belongs to the unfinished character, which is still unfinished */
    COLIBRI_UTF8_WHOLE = 1,     /* the byte completes a character */
    COLIBRI_UTF8_BROKEN = 2,    /* what was pending is broken (U+FFFD); the byte has to be looked at again */
    COLIBRI_UTF8_STRAY = 3      /* nothing was pending and the byte alone is broken (U+FFFD) */
};

uint32_t colibri_utf8_step(const uint8_t *pending, uint32_t count, uint8_t byte);

#endif
