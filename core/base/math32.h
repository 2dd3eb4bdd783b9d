/*
 * math32.h: exact float32 maths of docs/NUMERICS.md sections 1, 4 and 5. Every operation is one rounded
 * float32 operation in the order written; there is no libm behind it.
 */
#ifndef COLIBRI_MATH32_H
#define COLIBRI_MATH32_H

#include "base/base.h"

/* 1.5 * 2^23: adding and subtracting it rounds |x| < 2^22 to an integer, ties to even. */
#define COLIBRI_ROUNDER 12582912.0f

static inline float colibri_round_even(float x)
{
    return (x + COLIBRI_ROUNDER) - COLIBRI_ROUNDER;
}

/* Square root is one correctly rounded instruction on every target (-fno-math-errno keeps it one). */
static inline float colibri_sqrt(float x)
{
    return __builtin_sqrtf(x);
}

/* e^x for -87 <= x <= 88 (clamped), relative error 7.7e-8. Not for NaN: callers have looked at the bits. */
static inline float colibri_exp(float x)
{
    float c = x < -87.0f ? -87.0f : x;
    c = c > 88.0f ? 88.0f : c;
    float n = (c * 1.44269504f + COLIBRI_ROUNDER) - COLIBRI_ROUNDER;
    float r = (c - n * 0.693359375f) - n * -2.12194440e-4f;
    float p = 1.9875691500e-4f;
    p = p * r + 1.3981999507e-3f;
    p = p * r + 8.3334519073e-3f;
    p = p * r + 4.1665795894e-2f;
    p = p * r + 1.6666665459e-1f;
    p = p * r + 5.0000001201e-1f;
    float y = p * (r * r) + r + 1.0f;
    int32_t e = (int32_t)n;                     /* -126 .. 127 */
    return y * colibri_float((uint32_t)(e + 127) << 23);
}

static inline float colibri_sigmoid(float g)
{
    return 1.0f / (1.0f + colibri_exp(-g));
}

static inline float colibri_silu(float g)
{
    return g / (1.0f + colibri_exp(-g));
}

/* ln(n) for n >= 1, relative error below 2e-7, ln(1) = 0: NUMERICS section 4. */
static inline float colibri_ln_whole(uint32_t n)
{
    float x = (float)n;
    uint32_t bits = colibri_bits(x);
    float e = (float)(int32_t)((bits >> 23) - 127u);
    float f = colibri_float((bits & 0x7FFFFFu) | 0x3F800000u);
    if (f > 1.41421354f) {
        f = f * 0.5f;
        e = e + 1.0f;
    }
    float t = (f - 1.0f) / (f + 1.0f);
    float q = t * t;
    float p = 0.111111112f;                     /* 1/9, 1/7 .. 1/3 */
    p = p * q + 0.142857149f;
    p = p * q + 0.200000003f;
    p = p * q + 0.333333343f;
    return e * 0.693147182f + t * (2.0f * (p * q + 1.0f));
}

/* sqrt(ln(1 + e^x)) without overflow and never zero: NUMERICS section 4. Not for NaN. */
static inline float colibri_sqrt_softplus(float x)
{
    if (x < -20.0f) {                           /* ln(1 + u) is u, and the root halves the exponent */
        return colibri_exp(x * 0.5f);
    }
    float u = colibri_exp(x < 0.0f ? x : -x);
    float t = u / (2.0f + u);                   /* ln(1 + u) = 2 atanh(u / (2 + u)), t <= 1/3 */
    float q = t * t;
    float p = 0.0666666701f;                    /* 1/15, 1/13 .. 1/3 */
    p = p * q + 0.0769230798f;
    p = p * q + 0.0909090936f;
    p = p * q + 0.111111112f;
    p = p * q + 0.142857149f;
    p = p * q + 0.200000003f;
    p = p * q + 0.333333343f;
    float y = t * (2.0f * (p * q + 1.0f));
    return colibri_sqrt(x > 0.0f ? x + y : y);
}

/* 16 partials, lane = index mod 16, then the tree 16-8-4-2-1 that adds the upper half. */
static inline float colibri_tree16(const float partial[16])
{
    float s[16];
    for (int i = 0; i < 16; i++) {
        s[i] = partial[i];
    }
    for (int half = 8; half >= 1; half /= 2) {
        for (int i = 0; i < half; i++) {
            s[i] = s[i] + s[i + half];
        }
    }
    return s[0];
}

float colibri_sum16(const float *x, uint32_t count);
float colibri_sum16_squares(const float *x, uint32_t count);

/* cosine and sine of position * fraction turns, fraction in units of 2^-64 turn; error below 1.2e-7 at any position */
void colibri_turn(uint32_t position, uint64_t fraction, float *cosine, float *sine);

uint16_t colibri_half_from_float(float value);  /* nearest-even, subnormals kept, saturating at 65504 */
float colibri_half_to_float(uint16_t half);     /* exact; infinities and NaN keep their meaning */

#endif
