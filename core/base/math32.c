/*
 * math32.c: sums in the canonical order, RoPE angles and half precision. See math32.h.
 */
#include "base/math32.h"
#include "base/trig_tables.h"

float colibri_sum16(const float *x, uint32_t count)
{
    float partial[16] = {0};
    uint32_t whole = count & ~15u;
    for (uint32_t i = 0; i < whole; i += 16u) {
        for (uint32_t k = 0; k < 16u; k++) {
            partial[k] = partial[k] + x[i + k];
        }
    }
    for (uint32_t i = whole; i < count; i++) {
        partial[i & 15u] = partial[i & 15u] + x[i];
    }
    return colibri_tree16(partial);
}

float colibri_sum16_squares(const float *x, uint32_t count)
{
    float partial[16] = {0};
    uint32_t whole = count & ~15u;
    for (uint32_t i = 0; i < whole; i += 16u) {
        for (uint32_t k = 0; k < 16u; k++) {
            partial[k] = partial[k] + x[i + k] * x[i + k];
        }
    }
    for (uint32_t i = whole; i < count; i++) {
        partial[i & 15u] = partial[i & 15u] + x[i] * x[i];
    }
    return colibri_tree16(partial);
}

/* Quarter turns t in [-1/2, 1/2]: sin(pi/2 t) and cos(pi/2 t) as five-term polynomials in t*t. */
static float colibri_quarter_sine(float t)
{
    static const float k[5] = COLIBRI_SINE_COEFFICIENTS;
    float u = t * t;
    float p = k[4];
    for (int i = 3; i >= 0; i--) {
        p = p * u + k[i];
    }
    return p * t;
}

static float colibri_quarter_cosine(float t)
{
    static const float k[5] = COLIBRI_COSINE_COEFFICIENTS;
    float u = t * t;
    float p = k[4];
    for (int i = 3; i >= 0; i--) {
        p = p * u + k[i];
    }
    return p;
}

void colibri_turn(uint32_t position, uint64_t fraction, float *cosine, float *sine)
{
    uint32_t angle = (uint32_t)(((uint64_t)position * fraction) >> 32);     /* of 2^32 a turn, mod 1 */
    uint32_t quarter = (uint32_t)(((uint64_t)angle + 0x20000000u) >> 30);   /* 0 .. 4 */
    int32_t rest = (int32_t)(angle - (quarter << 30));                      /* -2^29 .. 2^29 - 1 */
    float t = (float)rest * 9.31322574615478515625e-10f;                    /* 2^-30 */
    float s = colibri_quarter_sine(t);
    float c = colibri_quarter_cosine(t);
    switch (quarter & 3u) {
    case 0: *cosine = c; *sine = s; break;
    case 1: *cosine = -s; *sine = c; break;
    case 2: *cosine = -c; *sine = -s; break;
    default: *cosine = s; *sine = -c; break;
    }
}

uint16_t colibri_half_from_float(float value)
{
    uint32_t bits = colibri_bits(value);
    uint32_t sign = (bits >> 16) & 0x8000u;
    uint32_t m = bits & 0x7FFFFFFFu;
    if (m > COLIBRI_INFINITY_BITS) {
        return (uint16_t)(sign | 0x7E00u);
    }
    if (m >= 0x477FF000u) {                     /* would round to 65520 or more */
        return (uint16_t)(sign | 0x7BFFu);
    }
    if (m < 0x38800000u) {                      /* below 2^-14: a subnormal, by the adder's own rounding */
        float tiny = colibri_float(m) + 0.5f;
        return (uint16_t)(sign | (colibri_bits(tiny) - 0x3F000000u));
    }
    uint32_t odd = (m >> 13) & 1u;
    m = m - 0x38000000u + 0xFFFu + odd;
    return (uint16_t)(sign | (m >> 13));
}

float colibri_half_to_float(uint16_t half)
{
    uint32_t sign = ((uint32_t)half & 0x8000u) << 16;
    uint32_t m = (uint32_t)half & 0x7FFFu;
    if (m >= 0x7C00u) {
        return colibri_float(sign | 0x7F800000u | ((m & 0x3FFu) << 13));
    }
    if (m >= 0x0400u) {
        return colibri_float(sign | ((m << 13) + 0x38000000u));
    }
    float tiny = (float)(int32_t)m * 5.9604644775390625e-8f;                /* 2^-24, exact */
    return colibri_float(sign | colibri_bits(tiny));
}
