"""Rotary positions, done once per model: a u64 fraction of a turn per pair, and an amplitude (section 5).

All arithmetic is decimal with 70 digits or exact fractions; no float takes part.

Readings taken where the page is open:
 1. A number of the config (theta, factor, ...) is taken at its exact value. The converter reads JSON
    numbers as Decimal, so 0.1 is one tenth; a Python float is the double it is.
 2. The scaling laws are those of transformers' modeling_rope_utils, evaluated exactly instead of in
    float32; yarn's floor and ceil are taken of the exact correction dimensions.
 3. The amplitude is the nearest float32 of the exact attention factor (1 for all laws but yarn).
 4. A fraction is reduced modulo a whole turn (only a frequency above 2 pi would need it).
 5. yarn's mscale pair counts only if both are given and not zero; a zero or absent beta takes its default.
"""
from __future__ import annotations

import math
from collections.abc import Mapping
from decimal import ROUND_CEILING, ROUND_FLOOR, ROUND_HALF_EVEN, Decimal, localcontext
from fractions import Fraction
from typing import Any

import numpy as np
from numpy.typing import NDArray

DIGITS = 70


def pi_decimal(digits: int = DIGITS) -> Decimal:
    """Pi by Machin's formula in whole numbers, with ten guard digits cut off at the end."""
    one = 10 ** (digits + 10)

    def arctan_inverse(n: int) -> int:
        term = one // n
        total, k, sign = term, 3, -1
        while term:
            term //= n * n
            total += sign * (term // k)
            k, sign = k + 2, -sign
        return total

    scaled = 4 * (4 * arctan_inverse(5) - arctan_inverse(239)) // 10 ** 10
    with localcontext() as context:
        context.prec = digits + 5
        return Decimal(scaled).scaleb(-digits)


def nearest_f32(value: Fraction | Decimal | int) -> np.float32:
    """The nearest float32 of an exact value, ties to even, in one rounding."""
    exact = Fraction(value)
    size = abs(exact)
    if size == 0:
        return np.float32(0)
    exponent = size.numerator.bit_length() - size.denominator.bit_length()  # off by at most one
    if Fraction(2) ** exponent > size:
        exponent -= 1
    exponent = max(exponent, -126)
    steps = round(size / Fraction(2) ** (exponent - 23))  # Fraction rounds half to even
    if steps >= 1 << 24 and exponent == 127:
        raise ValueError(f"{value} does not fit into a float32")
    return np.float32(math.copysign(math.ldexp(steps, exponent - 23), exact))


def _number(scaling: Mapping[str, Any], key: str, default: int | None = None) -> Decimal:
    """A number of the scaling record at its exact value."""
    value = scaling.get(key)
    if value is None:
        if default is None:
            raise ValueError(f"rope scaling: field {key!r} is missing; expected a number")
        return Decimal(default)
    return Decimal(value)


def _llama3(plain: list[Decimal], scaling: Mapping[str, Any], pi: Decimal) -> list[Decimal]:
    factor, low, high = (_number(scaling, k) for k in ("factor", "low_freq_factor", "high_freq_factor"))
    old = _number(scaling, "original_max_position_embeddings")
    out = []
    for f in plain:
        wavelength = 2 * pi / f
        if wavelength > old / low:
            out.append(f / factor)
        elif wavelength < old / high:
            out.append(f)
        else:
            smooth = (old / wavelength - low) / (high - low)
            out.append((1 - smooth) * f / factor + smooth * f)
    return out


def _yarn(plain: list[Decimal], theta: Decimal, scaling: Mapping[str, Any], pi: Decimal) -> list[Decimal]:
    dim = 2 * len(plain)
    factor, old = _number(scaling, "factor"), _number(scaling, "original_max_position_embeddings")

    def correction(key: str, default: int, rounding: str) -> Decimal:
        turns = _number(scaling, key, default) or Decimal(default)
        at = dim * (old / (turns * 2 * pi)).ln() / (2 * theta.ln())
        return at.to_integral_value(rounding) if scaling.get("truncate", True) else at

    low = max(correction("beta_fast", 32, ROUND_FLOOR), Decimal(0))
    high = min(correction("beta_slow", 1, ROUND_CEILING), Decimal(dim - 1))
    if low == high:
        high += Decimal("0.001")
    out = []
    for i, f in enumerate(plain):
        ramp = min(max((i - low) / (high - low), Decimal(0)), Decimal(1))
        out.append(f / factor * ramp + f * (1 - ramp))
    return out


def _yarn_amplitude(scaling: Mapping[str, Any]) -> Decimal:
    if scaling.get("attention_factor") is not None:
        return _number(scaling, "attention_factor")
    factor = _number(scaling, "factor")

    def mscale(weight: Decimal) -> Decimal:
        return Decimal(1) if factor <= 1 else weight * factor.ln() / 10 + 1

    if scaling.get("mscale") and scaling.get("mscale_all_dim"):
        return mscale(_number(scaling, "mscale")) / mscale(_number(scaling, "mscale_all_dim"))
    return mscale(Decimal(1))


def rope_frequencies(theta: Any, rope_dim: int, scaling: Mapping[str, Any] | None = None
                     ) -> tuple[list[Decimal], Decimal]:
    """Radians per position of every pair, and the amplitude, with 70 digits."""
    if rope_dim <= 0 or rope_dim % 2:
        raise ValueError(f"rope_dim: expected a positive even number, found {rope_dim}")
    scaling = scaling or {}
    law = scaling.get("rope_type", scaling.get("type", "default"))
    with localcontext() as context:
        context.prec = DIGITS
        base, pi = Decimal(theta), pi_decimal()
        plain = [(-Decimal(2 * i) / rope_dim * base.ln()).exp() for i in range(rope_dim // 2)]
        if law == "default":
            return plain, Decimal(1)
        if law == "linear":
            factor = _number(scaling, "factor")
            return [f / factor for f in plain], Decimal(1)
        if law == "llama3":
            return _llama3(plain, scaling, pi), Decimal(1)
        if law == "yarn":
            return _yarn(plain, base, scaling, pi), _yarn_amplitude(scaling)
    raise ValueError(f"rope scaling: expected default, linear, llama3 or yarn, found {law!r}")


def rope_fractions(theta: Any, rope_dim: int, scaling: Mapping[str, Any] | None = None
                   ) -> tuple[NDArray[np.uint64], np.float32]:
    """(round-half-even(2^64 f / 2 pi) per pair, amplitude), what a model file stores for one rope kind."""
    frequencies, amplitude = rope_frequencies(theta, rope_dim, scaling)
    with localcontext() as context:
        context.prec = DIGITS
        turn = 2 * pi_decimal()
        turns = [(f * 2 ** 64 / turn).to_integral_value(ROUND_HALF_EVEN) for f in frequencies]
    return np.array([int(t) % 2 ** 64 for t in turns], dtype=np.uint64), nearest_f32(amplitude)
