"""The KV cache and attention, in the one order of section 6.

Readings taken where the page is open:
 1. f32 and f16 caches: the dot product adds k*q column by column from +0 (K is a float matrix, q stays
    float32); there is no s_v, so a value term is p*v.
 2. q8 cache: acc = acc + (float)idot * (s_k * d_q) per group of 32, from +0. s_v is the scale of the group
    that holds the dimension; a value term is (p*s_v)*v.
 3. p is the exponential itself; out = acc / sum comes last.
 4. A window of w lets position i see w positions, its own included: j > i - w (as transformers does).
 5. Query head h reads KV head h / (heads / kv_heads), rounded down.
 6. Any score that is not finite, of a position the row can see, is the not-finite error.
 7. A K or V that is not finite is an error in a q8 cache. Halves saturate; a NaN shows up in the scores or
    logits.
"""
from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from .matrix import group_dots
from .quant import (GROUP, f16_bits_to_f32, f32_to_f16_bits, quantize_activation, quantize_q8, require_finite,
                    widen)
from .vecmath import LANES, exp, tree16

F32 = NDArray[np.float32]
KV_KINDS = ("f32", "f16", "q8")


class LayerCache:
    """K and V of one layer as stored, [positions, kv_heads, ...] each; rows are only appended or cut off."""

    def __init__(self, kind: str, kv_heads: int, head_dim: int) -> None:
        if kind not in KV_KINDS:
            raise ValueError(f"KV kind: expected one of {', '.join(KV_KINDS)}, found {kind!r}")
        self.kind, self.head_dim = kind, head_dim
        groups = -(-head_dim // GROUP)
        stored = {"f32": np.float32, "f16": np.uint16, "q8": np.int8}[kind]
        width = groups * GROUP if kind == "q8" else head_dim
        self.planes = {name: np.zeros((0, kv_heads, width), dtype=stored) for name in ("k", "v")}
        if kind == "q8":
            for name in ("k_scales", "v_scales"):
                self.planes[name] = np.zeros((0, kv_heads, groups), dtype=np.uint16)

    @property
    def length(self) -> int:
        """Positions stored."""
        return self.planes["k"].shape[0]

    def append(self, k: F32, v: F32) -> None:
        """Store [n, kv_heads, head_dim] of the next n positions."""
        for name, x in (("k", k), ("v", v)):
            if self.kind == "q8":
                require_finite(x, f"KV cache, {name}")
                q, scales = quantize_q8(x)
                parts = {name: q, f"{name}_scales": scales}
            else:
                parts = {name: f32_to_f16_bits(x) if self.kind == "f16" else x}
            for plane, rows in parts.items():
                self.planes[plane] = np.concatenate([self.planes[plane], rows])

    def truncate(self, length: int) -> None:
        """Forget positions from length on."""
        for name in self.planes:
            self.planes[name] = self.planes[name][:length]

    def floats(self, name: str) -> F32:
        """A float plane widened."""
        plane = self.planes[name]
        return f16_bits_to_f32(plane) if self.kind == "f16" else plane


class Cache:
    """The KV cache of one sequence over all layers."""

    def __init__(self, layers: list[LayerCache]) -> None:
        self.layers = layers

    @property
    def length(self) -> int:
        """Positions stored."""
        return self.layers[0].length if self.layers else 0

    def truncate(self, length: int) -> None:
        """Rewind to length positions."""
        for layer in self.layers:
            layer.truncate(length)


def _dots_float(q: F32, k: F32) -> F32:
    """[n, H, D] and [P, H, D] to [n, H, P], columns in order."""
    acc = np.zeros((q.shape[0], q.shape[1], k.shape[0]), dtype=np.float32)
    for c in range(q.shape[2]):
        acc = acc + np.ascontiguousarray(k[:, :, c].T)[None] * q[:, :, c, None]
    return acc


def _dots_q8(q: F32, k: NDArray[np.int8], k_scales: F32) -> F32:
    """The same with q quantized as an activation; k int8[P, H, G*32], scales float32[P, H, G]."""
    rows, heads, _ = q.shape
    q8, d = quantize_activation(q)
    acc = np.zeros((rows, heads, k.shape[0]), dtype=np.float32)
    for h in range(heads):
        dots = group_dots(q8[:, h], k[:, h].reshape(k.shape[0], -1, GROUP))
        for g in range(dots.shape[0]):
            acc[:, h] = acc[:, h] + dots[g] * (k_scales[None, :, h, g] * d[:, h, g, None])
    return acc


def _first_seen(position: NDArray[np.int64], window: int, chunk: int) -> NDArray[np.int64]:
    """The first position that each row sees: a window ends with it, a chunk is a stretch of fixed places."""
    if chunk:
        return position - position % chunk
    return np.maximum(position - window + 1, 0) if window else np.zeros_like(position)


def attend(q: F32, cache: LayerCache, first: int, scale: np.float32, window: int, chunk: int = 0,
           sinks: F32 | None = None) -> F32:
    """Rows [n, H, D] at positions first .. first+n-1 to [n, H*D]; the cache already holds their K and V."""
    rows, heads, head_dim = q.shape
    count = first + rows
    repeat = heads // cache.planes["k"].shape[1]
    plane = {name: np.repeat(rows_of, repeat, axis=1) for name, rows_of in cache.planes.items()}
    if cache.kind == "q8":
        dots = _dots_q8(q, plane["k"], widen(plane["k_scales"]))
        v = plane["v"].astype(np.float32)[:, :, :head_dim]
        v_scales = np.repeat(widen(plane["v_scales"]), GROUP, axis=2)[:, :, :head_dim]
    else:
        dots = _dots_float(q, np.repeat(cache.floats("k"), repeat, axis=1))
        v, v_scales = np.repeat(cache.floats("v"), repeat, axis=1), None
    score = dots * np.float32(scale)

    position = np.arange(first, count)[:, None]
    start = _first_seen(position, window, chunk)
    seen = (np.arange(count)[None, :] <= position) & (np.arange(count)[None, :] >= start)
    seen = seen[:, None, :]
    score = np.where(seen, score, np.float32(-np.inf))
    require_finite(np.where(seen, score, np.float32(0)), "attention score")
    top = score.max(axis=-1, keepdims=True)
    if sinks is not None:
        top = np.maximum(top, sinks[None, :, None])
    p = exp(np.where(seen, score - top, np.float32(0)))

    partials = np.zeros((rows, heads, LANES), dtype=np.float32)
    acc = np.zeros((rows, heads, head_dim), dtype=np.float32)
    for j in range(count):  # rows that see position j are one range, from j itself on
        who = np.flatnonzero(seen[:, 0, j])
        if not who.size:
            continue
        low, high = who[0], who[-1] + 1
        weight = p[low:high, :, j]
        lane = partials[low:high, :, j % LANES]
        partials[low:high, :, j % LANES] = lane + weight
        if v_scales is None:
            term = weight[:, :, None] * v[None, j]
        else:
            term = (weight[:, :, None] * v_scales[None, j]) * v[None, j]
        acc[low:high] = acc[low:high] + term
    total = tree16(partials)
    if sinks is not None:
        total = total + exp(sinks[None, :] - top[:, :, 0])
    return (acc / total[:, :, None]).reshape(rows, heads * head_dim)
