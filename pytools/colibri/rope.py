"""Rotary frequencies as exact fractions of a turn (docs/NUMERICS.md, section 5).

A blob stores for every pair the 64-bit fraction round-half-even(2^64 * f / 2pi), f in radians per position,
and one float32 amplitude per rope kind. All scaling laws reduce to that here, in decimal arithmetic, from the
numbers as config.json spells them: no float enters.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping
from decimal import ROUND_CEILING, ROUND_FLOOR, ROUND_HALF_EVEN, Context, Decimal, localcontext
from typing import Any

import numpy as np

from .errors import ConvertError

DIGITS = 60
PI = Decimal(
    "3.14159265358979323846264338327950288419716939937510582097494459230781640628620899862803482534211706798"
)
LAWS = ("default", "linear", "llama3", "yarn")
_KNOWN = {
    "default": set(),
    "linear": {"factor"},
    "llama3": {"factor", "low_freq_factor", "high_freq_factor", "original_max_position_embeddings"},
    "yarn": {
        "factor",
        "attention_factor",
        "mscale",
        "mscale_all_dim",
        "beta_fast",
        "beta_slow",
        "truncate",
        "original_max_position_embeddings",
    },
}
_COMMON = {"rope_type", "type", "rope_theta", "partial_rotary_factor"}


def decimal(value: Any) -> Decimal:
    """A JSON number exactly as it is written (a Python float: as it prints)."""
    return value if isinstance(value, Decimal) else Decimal(repr(value))


def nearest_f32(value: Decimal) -> float:
    """The float32 nearest to a decimal number, ties to even, as a Python float."""
    near = np.float32(struct.unpack("<f", struct.pack("<f", float(value)))[0])
    around = [near, np.nextafter(near, np.float32(-np.inf)), np.nextafter(near, np.float32(np.inf))]

    def distance(candidate: np.float32) -> tuple[Decimal, int]:
        return abs(Decimal(float(candidate)) - value), int(candidate.view(np.uint32)) & 1

    with localcontext(Context(prec=DIGITS)):
        return float(min(around, key=distance))


def root(number: int) -> float:
    """sqrt(number) as the nearest float32: what some families multiply embeddings by."""
    with localcontext(Context(prec=DIGITS)):
        return nearest_f32(Decimal(number).sqrt())


def inverse_root(number: int) -> float:
    """1 / sqrt(number) as the nearest float32: the usual scale of attention scores."""
    with localcontext(Context(prec=DIGITS)):
        return nearest_f32(1 / Decimal(number).sqrt())


class Scaling:
    """The rope fields of one config.json, checked: law, theta, rotated width, numbers of the law."""

    def __init__(
        self, fields: Mapping[str, Any], theta: Any, head_dim: int, trained_context: int, subject: str
    ) -> None:
        self._subject = subject
        self._fields = dict(fields)
        law = self._fields.get("rope_type", self._fields.get("type", "default"))
        if law not in LAWS:
            raise ConvertError(f"{subject}: rope_type is {law!r}; this version reads {', '.join(LAWS)}")
        self.law: str = law
        unknown = sorted(set(self._fields) - _KNOWN[law] - _COMMON)
        if unknown:
            raise ConvertError(
                f"{subject}: rope field {unknown[0]!r} is not known for rope_type {law!r}; a newer "
                "Colibri may read it"
            )
        self.theta = self._number("rope_theta", theta)
        if self.theta <= 0:
            raise ConvertError(f"{subject}: rope_theta is {self.theta}; expected a number above 0")
        width = head_dim * self._number("partial_rotary_factor", 1)
        self.width = int(width)
        if not 0 < self.width <= head_dim or self.width % 2:
            raise ConvertError(
                f"{subject}: the rotated width is {self.width} of head_dim {head_dim}; expected an "
                "even number up to head_dim"
            )
        self._trained = trained_context

    def _number(self, key: str, default: Any = None) -> Decimal:
        value = self._fields.get(key)
        value = default if value is None else value
        if isinstance(value, bool) or not isinstance(value, (int, float, Decimal)):
            raise ConvertError(f"{self._subject}: rope field {key!r} is {value!r}; expected a number")
        return decimal(value)

    def _positive(self, key: str, default: Any = None) -> Decimal:
        value = self._number(key, default)
        if value <= 0:
            raise ConvertError(f"{self._subject}: rope field {key!r} is {value}; expected a number above 0")
        return value

    def _original(self) -> Decimal:
        return self._positive("original_max_position_embeddings", self._trained)

    def _factor(self) -> Decimal:
        if self.law == "yarn" and "factor" in self._fields and self._fields["factor"] is None:
            return decimal(self._trained) / self._original()
        return self._positive("factor")

    def _linear(self, plain: list[Decimal]) -> list[Decimal]:
        factor = self._factor()
        return [f / factor for f in plain]

    def _llama3(self, plain: list[Decimal]) -> list[Decimal]:
        factor, original = self._factor(), self._original()
        low, high = self._positive("low_freq_factor"), self._positive("high_freq_factor")
        if high < low:  # equal ones leave nothing between them
            raise ConvertError(f"{self._subject}: high_freq_factor {high} is below low_freq_factor {low}")
        out = []
        for f in plain:
            turns = original * f / (2 * PI)  # turns made over the original context
            if turns < low:
                out.append(f / factor)
            elif turns > high or high == low:
                out.append(f)
            else:
                smooth = (turns - low) / (high - low)
                out.append((1 - smooth) * f / factor + smooth * f)
        return out

    def _yarn(self, plain: list[Decimal]) -> list[Decimal]:
        factor, original = self._factor(), self._original()
        truncate = self._fields.get("truncate", True)

        def pair_of(key: str, default: int, rounding: str) -> Decimal:
            """The (fractional) index whose frequency makes so many turns over the original context."""
            turns = self._fields.get(key) or default
            at = self.width * (original / (decimal(turns) * 2 * PI)).ln() / (2 * self.theta.ln())
            return at.to_integral_value(rounding) if truncate else at

        low = max(pair_of("beta_fast", 32, ROUND_FLOOR), Decimal(0))
        high = min(pair_of("beta_slow", 1, ROUND_CEILING), Decimal(self.width - 1))
        if low == high:
            high += Decimal("0.001")
        out = []
        for index, f in enumerate(plain):
            ramp = min(max((index - low) / (high - low), Decimal(0)), Decimal(1))
            out.append(ramp * f / factor + (1 - ramp) * f)
        return out

    def _yarn_amplitude(self) -> Decimal:
        if self._fields.get("attention_factor") is not None:
            return self._positive("attention_factor")
        if self._fields.get("mscale") and self._fields.get("mscale_all_dim"):
            return self._grown(self._number("mscale")) / self._grown(self._number("mscale_all_dim"))
        return self._grown(Decimal(1))

    def _grown(self, weight: Decimal) -> Decimal:
        factor = self._factor()
        return 1 + weight * factor.ln() / 10 if factor > 1 else Decimal(1)

    def latent_scale(self, width: int) -> float:
        """The scale of latent attention's scores over `width` dimensions: yarn adds its own factor, twice."""
        with localcontext(Context(prec=DIGITS)):
            scale = 1 / Decimal(width).sqrt()
            if self.law == "yarn" and self._fields.get("mscale_all_dim"):
                scale *= self._grown(self._number("mscale_all_dim")) ** 2
            return nearest_f32(scale)

    def frequencies(self) -> list[Decimal]:
        """Radians per position of every pair."""
        with localcontext(Context(prec=DIGITS)):
            log = self.theta.ln()
            plain = [(-log * 2 * j / self.width).exp() for j in range(self.width // 2)]
            if self.law == "linear":
                return self._linear(plain)
            if self.law == "llama3":
                return self._llama3(plain)
            return self._yarn(plain) if self.law == "yarn" else plain

    def fractions(self) -> tuple[int, ...]:
        """What the blob stores per pair."""
        with localcontext(Context(prec=DIGITS)):
            turns = [f * (1 << 64) / (2 * PI) for f in self.frequencies()]
            return tuple(int(t.to_integral_value(ROUND_HALF_EVEN)) % (1 << 64) for t in turns)

    def amplitude(self) -> float:
        """The factor of cosine and sine, a float32."""
        with localcontext(Context(prec=DIGITS)):
            return nearest_f32(self._yarn_amplitude()) if self.law == "yarn" else 1.0
