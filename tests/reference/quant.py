"""Number formats of sections 1-3: 16-bit scales, half floats, q8 and q4 weights, quantized activations.

Readings taken where the page is open:
 1. up16 works on the magnitude bits: (bits + 0xFFFF) >> 16 under the sign; a magnitude above the largest
    16-bit scale becomes infinite (no weight below 2^127 can reach it).
 2. q4 candidate order: m/-8, then for each k ascending first m/-k, then m/k. k is the nearest float32 of
    the decimal 6.2, 6.4 .. 7.8, 8.2 .. 9.0. So +8 is not a candidate.
 3. Squared error: d = w - (float)q * s, e = e + d * d, from +0, columns ascending; padded columns add +0.
 4. The refit uses the winner's q; both sums are float32 in column order from +0 (the sum of q*q is exact).
    q is then taken anew from the refit scale, and scale and q are kept together if the error is strictly
    less. sum(q q) = 0 has no refit.
 5. An all-zero group has scale 0x0000, as padding has. (The search alone would give up16(+0 / -8) = 0x8000,
    minus zero. No logit can tell the two apart.)
 6. q is clamped to -8..7 for q4 and to -127..127 for q8, after rounding and before the conversion to an
    integer.
 7. A weight that is not finite is refused here (ValueError).
 8. float32 to f16: everything above 65504 after rounding, infinity included, becomes 65504 with its sign; a
    NaN becomes the quiet NaN 0x7E00 with its sign.
 9. The activation threshold compares amax itself: amax < 2^-100 is zero, amax = 2^-100 is quantized.
"""
from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike, NDArray

from .tiles import LINE, TILE_ROWS, pack_tiles, tile_bytes, unpack_tiles

__all__ = [
    "GROUP", "LINE", "TILE_ROWS", "NotFinite", "f16_bits_to_f32", "f32_bits", "f32_to_f16_bits", "groups_of",
    "pack_tiles", "quantize_activation", "quantize_q4", "quantize_q8", "require_finite", "tile_bytes",
    "unpack_tiles", "up16", "widen",
]

GROUP = 32
CHUNK = 1 << 16  # groups quantized at a time, so that memory stays flat

F32 = NDArray[np.float32]
U16 = NDArray[np.uint16]
I8 = NDArray[np.int8]

K_TENTHS = (62, 64, 66, 68, 70, 72, 74, 76, 78, 82, 84, 86, 88, 90)


class NotFinite(ArithmeticError):
    """A value that the canonical arithmetic calls an error: infinite or not a number."""


def f32_bits(x: ArrayLike) -> NDArray[np.uint32]:
    """The bits of float32 values."""
    return np.ascontiguousarray(x, dtype=np.float32).view(np.uint32).reshape(np.shape(x))


def magnitude_bits(x: ArrayLike) -> NDArray[np.uint32]:
    """The bits without the sign: ordered like the magnitudes, NaN above everything."""
    return f32_bits(x) & np.uint32(0x7FFFFFFF)


def require_finite(x: ArrayLike, where: str) -> None:
    """Raise NotFinite if any value of x is infinite or not a number, found by bits."""
    if np.any(magnitude_bits(x) >= np.uint32(0x7F800000)):
        raise NotFinite(f"{where}: a value is not finite; expected finite float32 values only")


# 16-bit scales ----------------------------------------------------------------------------------------------

def up16(x: ArrayLike) -> U16:
    """Upper 16 bits of float32 values, the magnitude rounded up."""
    u = f32_bits(x)
    magnitude = ((u & np.uint32(0x7FFFFFFF)) + np.uint32(0xFFFF)) >> np.uint32(16)
    sign = (u >> np.uint32(16)) & np.uint32(0x8000)
    return (sign | magnitude).astype(np.uint16)


def widen(scale_bits: ArrayLike) -> F32:
    """A 16-bit scale as the float32 it stands for: exact, a shift."""
    bits = np.asarray(scale_bits, dtype=np.uint16).astype(np.uint32) << np.uint32(16)
    return np.ascontiguousarray(bits).view(np.float32).reshape(np.shape(scale_bits))


# half floats ------------------------------------------------------------------------------------------------

def f32_to_f16_bits(x: ArrayLike) -> U16:
    """Nearest-even half floats by bit arithmetic; subnormals kept, saturating at 65504."""
    u = f32_bits(x)
    one = np.uint32(1)
    sign = (u >> np.uint32(16)) & np.uint32(0x8000)
    magnitude = u & np.uint32(0x7FFFFFFF)
    exponent = magnitude >> np.uint32(23)
    # Results from 2^-14 up: rebias the exponent, round 13 bits away; a carry walks into the exponent.
    rebased = magnitude - np.uint32(112 << 23)  # wraps for small values, which take the other branch
    normal = (rebased + np.uint32(0x0FFF) + ((rebased >> np.uint32(13)) & one)) >> np.uint32(13)
    # Results below 2^-14 count units of 2^-24: the significand is shifted by 126 - exponent (14 and more).
    significand = (magnitude & np.uint32(0x7FFFFF)) | np.uint32(0x800000)
    shift = (np.uint32(126) - np.minimum(exponent, np.uint32(112))).clip(14, 31).astype(np.uint32)
    half_less_one = (one << (shift - one)) - one
    subnormal = (significand + half_less_one + ((significand >> shift) & one)) >> shift
    half = np.where(exponent >= np.uint32(113), normal, subnormal)
    half = np.where(magnitude >= np.uint32(0x47800000), np.uint32(0x7BFF), half)  # 65536 and above
    half = np.minimum(half, np.uint32(0x7BFF))  # 65520 .. 65536 rounded up to infinity
    half = np.where(magnitude > np.uint32(0x7F800000), np.uint32(0x7E00), half)
    return (sign | half).astype(np.uint16)


def f16_bits_to_f32(half: ArrayLike) -> F32:
    """Half floats widened exactly by bit arithmetic."""
    h = np.asarray(half, dtype=np.uint16).astype(np.uint32)
    sign = (h & np.uint32(0x8000)) << np.uint32(16)
    exponent = (h >> np.uint32(10)) & np.uint32(31)
    mantissa = h & np.uint32(0x3FF)
    normal = ((exponent + np.uint32(112)) << np.uint32(23)) | (mantissa << np.uint32(13))
    special = np.uint32(0x7F800000) | (mantissa << np.uint32(13))
    # A subnormal is mantissa * 2^-24: exact, so this product is only a way to find the leading bit.
    subnormal = f32_bits(mantissa.astype(np.float32) * np.float32(2.0 ** -24))
    bits = np.where(exponent == 0, subnormal, np.where(exponent == 31, special, normal)) | sign
    return np.ascontiguousarray(bits.astype(np.uint32)).view(np.float32).reshape(np.shape(half))


# weights ----------------------------------------------------------------------------------------------------

def groups_of(x: ArrayLike, group: int = GROUP) -> F32:
    """[..., cols] as [..., G, group], the last group padded with +0."""
    x = np.asarray(x, dtype=np.float32)
    cols = x.shape[-1]
    count = -(-cols // group)
    padded = np.zeros(x.shape[:-1] + (count * group,), dtype=np.float32)
    padded[..., :cols] = x
    return padded.reshape(x.shape[:-1] + (count, group))


def _weights(w: ArrayLike) -> tuple[F32, tuple[int, ...]]:
    """Weights as [N, 32] groups, and the shape [..., G] they came from."""
    w = np.asarray(w)
    if w.dtype != np.float32:
        raise ValueError(f"weights: expected float32, found {w.dtype}; widen the source first")
    if np.any(magnitude_bits(w) >= np.uint32(0x7F800000)):
        raise ValueError("weights: a value is not finite; quantization needs finite weights")
    grouped = groups_of(w)
    return grouped.reshape(-1, GROUP), grouped.shape[:-1]


def _round_quotient(w: F32, s: F32, low: int, high: int) -> F32:
    """clamp(rne(w / s)) as float32 whole numbers; s = 0 gives 0. w is [32, N], s is [N]."""
    quotient = np.zeros_like(w)
    np.divide(w, s[None, :], out=quotient, where=(s != 0)[None, :])
    return np.clip(np.rint(quotient), np.float32(low), np.float32(high))


def quantize_q8(w: ArrayLike) -> tuple[I8, U16]:
    """float32[..., cols] to (q int8[..., G*32], scale bits uint16[..., G])."""
    groups, shape = _weights(w)
    amax = magnitude_bits(groups).max(axis=1).view(np.float32)
    scale_bits = up16(amax / np.float32(127))
    q = _round_quotient(groups.T, widen(scale_bits), -127, 127).T
    return q.astype(np.int8).reshape(shape[:-1] + (-1,)), scale_bits.reshape(shape)


def _q4_try(w: F32, scale_bits: U16) -> tuple[F32, F32]:
    """q (as whole float32) and the squared error of one scale per group; w is [32, N]."""
    s = widen(scale_bits)
    q = _round_quotient(w, s, -8, 7)
    error = np.zeros(w.shape[1], dtype=np.float32)
    for c in range(GROUP):
        d = w[c] - q[c] * s
        error = error + d * d
    return q, error


def _q4_groups(w: F32) -> tuple[F32, U16]:
    """The search for a block of groups, w as [32, N]."""
    columns = np.arange(w.shape[1])
    m = w[magnitude_bits(w).argmax(axis=0), columns]  # argmax takes the first of equals
    best_bits = up16(m / np.float32(-8))
    best_q, best_error = _q4_try(w, best_bits)

    def offer(bits: U16, allowed: NDArray[np.bool_] | bool = True) -> None:
        nonlocal best_bits, best_q, best_error
        q, error = _q4_try(w, bits)
        better = (error < best_error) & allowed
        best_bits = np.where(better, bits, best_bits)
        best_q = np.where(better[None, :], q, best_q)
        best_error = np.where(better, error, best_error)

    for tenths in K_TENTHS:
        k = np.float32(tenths / 10)
        offer(up16(m / -k))
        offer(up16(m / k))

    wq = np.zeros(w.shape[1], dtype=np.float32)
    qq = np.zeros(w.shape[1], dtype=np.float32)
    for c in range(GROUP):
        wq = wq + w[c] * best_q[c]
        qq = qq + best_q[c] * best_q[c]
    refit = np.zeros_like(wq)
    np.divide(wq, qq, out=refit, where=qq != 0)
    offer(up16(refit), qq != 0)
    return best_q, np.where(m == 0, np.uint16(0), best_bits)


def quantize_q4(w: ArrayLike) -> tuple[I8, U16]:
    """float32[..., cols] to (q int8[..., G*32] of -8..7, scale bits uint16[..., G])."""
    groups, shape = _weights(w)
    q = np.empty(groups.shape, dtype=np.int8)
    scale_bits = np.empty(groups.shape[0], dtype=np.uint16)
    with np.errstate(over="ignore"):  # an error may overflow to infinity: never less, so never chosen
        for start in range(0, groups.shape[0], CHUNK):
            part = slice(start, start + CHUNK)
            whole, scale_bits[part] = _q4_groups(np.ascontiguousarray(groups[part].T))
            q[part] = whole.T.astype(np.int8)
    return q.reshape(shape[:-1] + (-1,)), scale_bits.reshape(shape)


# activations ------------------------------------------------------------------------------------------------

def quantize_activation(x: ArrayLike) -> tuple[I8, F32]:
    """float32[..., cols] to (q int8[..., G, 32], d float32[..., G]), each row and group on its own."""
    groups = groups_of(x)
    bits = magnitude_bits(groups).max(axis=-1)
    if np.any(bits >= np.uint32(0x7F800000)):
        raise NotFinite("activation: a group of 32 holds a value that is not finite")
    amax = np.ascontiguousarray(bits).view(np.float32)
    alive = amax >= np.float32(2.0 ** -100)
    d = np.where(alive, amax / np.float32(127), np.float32(0))
    inverse = np.zeros_like(amax)
    np.divide(np.float32(127), amax, out=inverse, where=alive)
    q = np.clip(np.rint(groups * inverse[..., None]), np.float32(-127), np.float32(127))
    return q.astype(np.int8), d
