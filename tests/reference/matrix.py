"""One weight matrix of any kind and its product with activations (section 2).

Readings taken where the page is open:
 1. A float matrix adds w*x column by column from +0; padding columns are left out (they could only add +0).
 2. No bias means no addition at all.
 3. An activation is quantized once per use site, however many matrices read it.
"""
from __future__ import annotations

from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from .quant import (GROUP, f16_bits_to_f32, f32_to_f16_bits, pack_tiles, quantize_activation, quantize_q4,
                    quantize_q8, unpack_tiles, widen)

F32 = NDArray[np.float32]
KINDS = ("f32", "f16", "q8", "q4")

# A group's dot product is a whole number below 2^24: float32 sums of it are exact in any order.
assert GROUP * 127 * 127 < 1 << 24


class Activation:
    """Rows of activations [n, cols] at one use site; quantized at most once."""

    def __init__(self, x: F32) -> None:
        self.x = x

    @cached_property
    def quantized(self) -> tuple[NDArray[np.int8], F32]:
        """(q int8[n, G, 32], d float32[n, G])."""
        return quantize_activation(self.x)


def group_dots(a: NDArray[np.int8], b: NDArray[np.int8]) -> F32:
    """[n, G, 32] and [m, G, 32] to the whole numbers (float)idot as [G, n, m]."""
    left = np.ascontiguousarray(a.transpose(1, 0, 2), dtype=np.float32)
    right = np.ascontiguousarray(b.transpose(1, 2, 0), dtype=np.float32)
    return np.matmul(left, right)


class Matrix:
    """Weights [rows, cols] of one kind."""

    def __init__(self, kind: str, rows: int, cols: int, values: NDArray,
                 scale_bits: NDArray[np.uint16] | None = None) -> None:
        """values: int8[rows, G*32] for q4 and q8, halves as uint16[rows, cols], or float32[rows, cols]."""
        if kind not in KINDS:
            raise ValueError(f"weight kind: expected one of {', '.join(KINDS)}, found {kind!r}")
        self.kind, self.rows, self.cols = kind, rows, cols
        self.values, self.scale_bits = values, scale_bits

    @classmethod
    def from_floats(cls, kind: str, w: F32) -> Matrix:
        """Convert float32 weights to the kind."""
        rows, cols = w.shape
        if kind == "q8":
            return cls(kind, rows, cols, *quantize_q8(w))
        if kind == "q4":
            return cls(kind, rows, cols, *quantize_q4(w))
        return cls(kind, rows, cols, f32_to_f16_bits(w) if kind == "f16" else w)

    @classmethod
    def from_tiles(cls, kind: str, data: bytes, rows: int, cols: int) -> Matrix:
        """Read the bytes of a model file."""
        parts = unpack_tiles(kind, data, rows, cols)
        return cls(kind, rows, cols, *parts) if isinstance(parts, tuple) else cls(kind, rows, cols, parts)

    def tiles(self) -> bytes:
        """The bytes of a model file."""
        return pack_tiles(self.kind, self.values, self.scale_bits)

    @cached_property
    def _scales(self) -> F32:
        assert self.scale_bits is not None
        return widen(self.scale_bits)

    @cached_property
    def _columns(self) -> F32:
        """Float kinds: widened weights, one row per column."""
        floats = f16_bits_to_f32(self.values) if self.kind == "f16" else self.values
        return np.ascontiguousarray(floats.T)

    def product(self, activation: Activation, bias: F32 | None = None) -> F32:
        """[n, cols] to [n, rows], every output in the canonical order."""
        if activation.x.shape[-1] != self.cols:
            raise ValueError(f"product: expected rows of {self.cols}, found {activation.x.shape[-1]}")
        acc = np.zeros((activation.x.shape[0], self.rows), dtype=np.float32)
        if self.kind in ("q8", "q4"):
            q, d = activation.quantized
            dots = group_dots(q, self.values.reshape(self.rows, -1, GROUP))
            for g in range(d.shape[1]):
                acc = acc + dots[g] * (self._scales[None, :, g] * d[:, g, None])
        else:
            for c in range(self.cols):
                acc = acc + self._columns[c][None, :] * activation.x[:, c, None]
        return acc if bias is None else acc + bias[None, :]

    def rows_of(self, index: NDArray[np.int64]) -> F32:
        """Rows widened to float32 (an embedding)."""
        if self.kind in ("q8", "q4"):
            q = self.values[index].reshape(len(index), -1, GROUP).astype(np.float32)
            x = (q * self._scales[index][:, :, None]).reshape(len(index), -1)
            return np.ascontiguousarray(x[:, :self.cols])
        picked = self.values[index]
        return f16_bits_to_f32(picked) if self.kind == "f16" else picked.copy()
