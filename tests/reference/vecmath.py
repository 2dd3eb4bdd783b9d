"""Vector maths of sections 4 and 5, one rounded float32 operation at a time.

Readings taken where the page is open:
 1. p*(r*r) + r + 1 is ((p*(r*r)) + r) + 1.
 2. "Scaled by exponent bits" is a product with the float32 whose exponent is n: exact, as every result is
    normal.
 3. A NaN that reaches exp, or an infinity that reaches a softmax, is the not-finite error.
 4. quarter is taken modulo 4; the int32 is rounded to float32 before the exact product with 2^-30.
 5. Even polynomial: powers 0, 2, 4, 6, 8; odd polynomial: powers 1, 3, 5, 7, 9 with one t factored out.
 6. Dimensions from rope_dim on pass unchanged. Half-split pairs are (i, i + rope_dim/2), interleaved (2i,
    2i + 1).
"""
from __future__ import annotations

from fractions import Fraction
from math import factorial

import numpy as np
from numpy.typing import ArrayLike, NDArray

from .quant import NotFinite
from .rope import nearest_f32, pi_decimal

F = np.float32
F32 = NDArray[np.float32]

LANES = 16
EXP_COEFFICIENTS = tuple(F(c) for c in (
    1.9875691500e-4, 1.3981999507e-3, 8.3334519073e-3, 4.1665795894e-2, 1.6666665459e-1, 5.0000001201e-1))
_HALF_PI = Fraction(pi_decimal()) / 2
QUARTER_TURN = tuple(nearest_f32(_HALF_PI ** k / factorial(k)) for k in range(10))


def tree16(partials: F32) -> F32:
    """[..., 16] to [...]: the upper half is added to the lower, 16-8-4-2-1."""
    width = LANES
    while width > 1:
        width //= 2
        partials = partials[..., :width] + partials[..., width:2 * width]
    return partials[..., 0]


def sum16(x: F32) -> F32:
    """Sum over the last axis in 16 partials by index mod 16, then the tree."""
    partials = np.zeros(x.shape[:-1] + (LANES,), dtype=F)
    for start in range(0, x.shape[-1], LANES):
        block = x[..., start:start + LANES]
        lanes = block.shape[-1]
        partials[..., :lanes] = partials[..., :lanes] + block
    return tree16(partials)


def rmsnorm(x: F32, weight: F32, eps: np.float32) -> F32:
    """(x * r) * w with r = 1 / sqrt(sum16(x*x) / n + eps), over the last axis."""
    mean = sum16(x * x) / F(x.shape[-1])
    r = F(1) / np.sqrt(mean + F(eps))
    return (x * r[..., None]) * weight


def exp(x: ArrayLike) -> F32:
    """The exponential of section 4."""
    x = np.asarray(x, dtype=F)
    if np.any(np.isnan(x)):
        raise NotFinite("exp: the argument is not a number")
    x = np.minimum(np.maximum(x, F(-87)), F(88))
    n = (x * F(1.44269504) + F(12582912)) - F(12582912)
    r = (x - n * F(0.693359375)) - n * F(-2.12194440e-4)
    p = np.full(x.shape, EXP_COEFFICIENTS[0], dtype=F)
    for c in EXP_COEFFICIENTS[1:]:
        p = p * r + c
    y = (p * (r * r) + r) + F(1)
    exponent = (n.astype(np.int32) + np.int32(127)) << np.int32(23)
    return y * np.ascontiguousarray(exponent).view(F).reshape(x.shape)


def sigmoid(g: F32) -> F32:
    """1 / (1 + exp(-g))."""
    return F(1) / (F(1) + exp(-g))


def ln_whole(n: ArrayLike) -> F32:
    """The natural logarithm of whole numbers from 1 on."""
    mantissa, exponent = np.frexp(np.asarray(n, dtype=F))
    low = mantissa <= F(1.41421354) / F(2)
    f = np.where(low, mantissa * F(2), mantissa).astype(F)
    e = np.where(low, exponent - 1, exponent).astype(F)
    t = (f - F(1)) / (f + F(1))
    q = t * t
    p = np.full(t.shape, F(1) / F(9), dtype=F)
    for odd in (7, 5, 3):
        p = p * q + F(1) / F(odd)
    return e * F(0.693147182) + t * (F(2) * (p * q + F(1)))


def sqrt_softplus(x: F32) -> F32:
    """The root of ln(1 + e^x)."""
    x = np.asarray(x, dtype=F)
    u = exp(-np.abs(x))
    t = u / (F(2) + u)
    q = t * t
    p = np.full(x.shape, F(1) / F(15), dtype=F)
    for odd in (13, 11, 9, 7, 5, 3):
        p = p * q + F(1) / F(odd)
    y = t * (F(2) * (p * q + F(1)))
    return np.where(x < F(-20), exp(x * F(0.5)), np.sqrt(np.where(x > 0, x + y, y)))


def silu(g: F32) -> F32:
    """g / (1 + exp(-g))."""
    return g / (F(1) + exp(-g))


def layer_norm(x: F32, weight: F32, bias: F32 | None, eps: np.float32) -> F32:
    """((x - mean) * r) * w (+ b) with r = 1 / sqrt(sum16((x - mean)^2) / n + eps), over the last axis."""
    n = F(x.shape[-1])
    d = x - (sum16(x) / n)[..., None]
    r = F(1) / np.sqrt(sum16(d * d) / n + F(eps))
    y = (d * r[..., None]) * weight
    return y if bias is None else y + bias


def gelu_erf(g: F32) -> F32:
    """max(g, 0) - |g| q: q is half of the complement of erf(|g| / sqrt 2), by a polynomial of 1 / (1 + p x)."""
    a = np.abs(g)
    x = a * F(0.70710678)
    t = F(1) / (F(1) + F(0.3275911) * x)
    p = np.full(g.shape, F(1.061405429), dtype=F)
    for c in (-1.453152027, 1.421413741, -0.284496736, 0.254829592):
        p = p * t + F(c)
    q = ((p * t) * F(0.5)) * exp((x * x) * F(-1))
    return (g + a) * F(0.5) - a * q


def gated(activation: str, g: F32, u: F32, limit: np.float32 | None) -> F32:
    """The gated product of section 4 by its name."""
    if activation == "silu":
        return silu(g) * u
    if activation == "gelu_tanh":
        cubic = F(1) + (F(0.044715) * g) * g
        return (g / (F(1) + exp(-((g * F(1.59576912)) * cubic)))) * u
    if activation == "gelu_erf":
        return gelu_erf(g) * u
    if np.isnan(g).any() or np.isnan(u).any():
        raise NotFinite("a clamped gate: not a number")
    g, u = np.minimum(g, F(limit)), np.minimum(np.maximum(u, -F(limit)), F(limit))
    if activation == "clamped":
        return silu(g) * u
    return (g / (F(1) + exp(-(g * F(1.702))))) * (u + F(1))


def cos_sin(positions: ArrayLike, fractions: NDArray[np.uint64], amplitude: np.float32) -> tuple[F32, F32]:
    """Cosine and sine of every (position, pair), times the amplitude, as [n, pairs] each."""
    position = np.atleast_1d(np.asarray(positions, dtype=np.uint64))
    phase = position[:, None] * np.asarray(fractions, dtype=np.uint64)[None, :]  # wraps at a turn, as meant
    a = (phase >> np.uint64(32)).astype(np.int64)
    quarter = (a + (1 << 29)) >> 30
    t = (a - (quarter << 30)).astype(np.int32).astype(F) * F(2.0 ** -30)
    quarter = quarter & 3
    z = t * t
    k = QUARTER_TURN
    c = np.full(z.shape, k[8], dtype=F)
    for coefficient in (-k[6], k[4], -k[2], k[0]):
        c = c * z + coefficient
    s = np.full(z.shape, k[9], dtype=F)
    for coefficient in (-k[7], k[5], -k[3], k[1]):
        s = s * z + coefficient
    s = s * t
    cosine = np.choose(quarter, [c, -s, -c, s])
    sine = np.choose(quarter, [s, c, -s, -c])
    return cosine * F(amplitude), sine * F(amplitude)


def rotate(x: F32, c: F32, s: F32, interleaved: bool) -> F32:
    """Rotate [n, heads, head_dim] by [n, pairs] cosines and sines."""
    pairs = c.shape[-1]
    if interleaved:
        first, second = slice(0, 2 * pairs, 2), slice(1, 2 * pairs, 2)
    else:
        first, second = slice(0, pairs), slice(pairs, 2 * pairs)
    a, b = x[..., first], x[..., second]
    c, s = c[:, None, :], s[:, None, :]
    out = x.copy()
    out[..., first] = a * c - b * s
    out[..., second] = b * c + a * s
    return out
