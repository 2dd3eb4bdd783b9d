/* utf8.c: see utf8.h. One table-free description of well-formed sequences serves both directions. */
#include "utf8.h"

/* Continuation bytes that must follow a lead byte; 0xFF: not a lead byte. */
static uint32_t utf8_follow(uint8_t lead)
{
    if (lead < 0x80) {
        return 0;
    }
    if (lead >= 0xC2 && lead <= 0xDF) {
        return 1;
    }
    if (lead >= 0xE0 && lead <= 0xEF) {
        return 2;
    }
    if (lead >= 0xF0 && lead <= 0xF4) {
        return 3;
    }
    return 0xFF;
}

/* May `byte` stand at place `place` (1..3) behind this lead byte? Shuts out overlong forms, surrogates and
 * what lies beyond U+10FFFF, all of which show in the second byte. */
static int utf8_fits(uint8_t lead, uint32_t place, uint8_t byte)
{
    uint8_t low = 0x80;
    uint8_t high = 0xBF;
    if (place == 1) {
        if (lead == 0xE0) {
            low = 0xA0;
        } else if (lead == 0xED) {
            high = 0x9F;
        } else if (lead == 0xF0) {
            low = 0x90;
        } else if (lead == 0xF4) {
            high = 0x8F;
        }
    }
    return byte >= low && byte <= high;
}

uint32_t colibri_utf8_next(const uint8_t *text, uint32_t at, uint32_t end, uint32_t *length)
{
    uint8_t lead = text[at];
    uint32_t follow = utf8_follow(lead);
    uint32_t code;
    uint32_t i;
    *length = 1;
    if (follow == 0) {
        return lead;
    }
    if (follow == 0xFF) {
        return COLIBRI_UTF8_REPLACEMENT;
    }
    code = lead & (0x3Fu >> follow);
    for (i = 1; i <= follow; i++) {
        if (end - at <= i || !utf8_fits(lead, i, text[at + i])) {
            *length = i;
            return COLIBRI_UTF8_REPLACEMENT;
        }
        code = (code << 6) | (text[at + i] & 0x3Fu);
    }
    *length = follow + 1;
    return code;
}

uint32_t colibri_utf8_put(uint32_t code, uint8_t out[4])
{
    if (code < 0x80) {
        out[0] = (uint8_t)code;
        return 1;
    }
    if (code < 0x800) {
        out[0] = (uint8_t)(0xC0 | (code >> 6));
        out[1] = (uint8_t)(0x80 | (code & 0x3F));
        return 2;
    }
    if (code < 0x10000) {
        out[0] = (uint8_t)(0xE0 | (code >> 12));
        out[1] = (uint8_t)(0x80 | ((code >> 6) & 0x3F));
        out[2] = (uint8_t)(0x80 | (code & 0x3F));
        return 3;
    }
    out[0] = (uint8_t)(0xF0 | (code >> 18));
    out[1] = (uint8_t)(0x80 | ((code >> 12) & 0x3F));
    out[2] = (uint8_t)(0x80 | ((code >> 6) & 0x3F));
    out[3] = (uint8_t)(0x80 | (code & 0x3F));
    return 4;
}

uint32_t colibri_utf8_step(const uint8_t *pending, uint32_t count, uint8_t byte)
{
    if (count == 0) {
        uint32_t follow = utf8_follow(byte);
        if (follow == 0xFF) {
            return COLIBRI_UTF8_STRAY;
        }
        return follow == 0 ? COLIBRI_UTF8_WHOLE : COLIBRI_UTF8_MORE;
    }
    if (!utf8_fits(pending[0], count, byte)) {
        return COLIBRI_UTF8_BROKEN;
    }
    return count == utf8_follow(pending[0]) ? COLIBRI_UTF8_WHOLE : COLIBRI_UTF8_MORE;
}
