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

    def __init__(self, kind: str, kv_heads: int, head_dim: int, parts: tuple[str, ...] = ("k", "v")) -> None:
        if kind not in KV_KINDS:
            raise ValueError(f"KV kind: expected one of {', '.join(KV_KINDS)}, found {kind!r}")
        self.kind, self.head_dim = kind, head_dim
        self.index: LayerCache | None = None  # index keys of the layer, if it chooses positions itself
        groups = -(-head_dim // GROUP)
        stored = {"f32": np.float32, "f16": np.uint16, "q8": np.int8}[kind]
        width = groups * GROUP if kind == "q8" else head_dim
        self.planes = {name: np.zeros((0, kv_heads, width), dtype=stored) for name in parts}
        if kind == "q8":
            for name in parts:
                self.planes[f"{name}_scales"] = np.zeros((0, kv_heads, groups), dtype=np.uint16)

    @property
    def length(self) -> int:
        """Positions stored."""
        return self.planes["k"].shape[0]

    def append(self, **parts: F32) -> None:
        """Store [n, kv_heads, head_dim] of k (and v) of the next n positions."""
        for name, x in parts.items():
            if self.kind == "q8":
                require_finite(x, f"KV cache, {name}")
                q, scales = quantize_q8(x)
                stored = {name: q, f"{name}_scales": scales}
            else:
                stored = {name: f32_to_f16_bits(x) if self.kind == "f16" else x}
            for plane, rows in stored.items():
                self.planes[plane] = np.concatenate([self.planes[plane], rows])

    def truncate(self, length: int) -> None:
        """Forget positions from length on."""
        for name in self.planes:
            self.planes[name] = self.planes[name][:length]
        if self.index:
            self.index.truncate(length)

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


def dots(q: F32, cache: LayerCache) -> F32:
    """q . k as [n, H, P]."""
    repeat = q.shape[1] // cache.planes["k"].shape[1]
    if cache.kind == "q8":
        k, scales = (np.repeat(cache.planes[name], repeat, axis=1) for name in ("k", "k_scales"))
        return _dots_q8(q, k, widen(scales))
    return _dots_float(q, np.repeat(cache.floats("k"), repeat, axis=1))


def weights(q: F32, cache: LayerCache, first: int, scale: np.float32, window: int,
            chosen: NDArray[np.bool_] | None = None, chunk: int = 0,
            sinks: F32 | None = None) -> tuple[F32, NDArray[np.bool_], F32]:
    """exp(score - max) as [n, H, P], what a row sees as [n, P], max as [n, H]; what a row does not see holds a number
    nobody may use, what it sees but did not choose holds 0."""
    rows = q.shape[0]
    count = first + rows
    score = dots(q, cache) * np.float32(scale)

    position = np.arange(first, count)[:, None]
    start = _first_seen(position, window, chunk)
    seen = (np.arange(count)[None, :] <= position) & (np.arange(count)[None, :] >= start)
    seen = (seen if chosen is None else seen & chosen)[:, None, :]
    score = np.where(seen, score, np.float32(-np.inf))
    require_finite(np.where(seen, score, np.float32(0)), "attention score")
    top = score.max(axis=-1, keepdims=True)
    if sinks is not None:
        top = np.maximum(top, sinks[None, :, None])
    e = exp(np.where(seen, score - top, np.float32(0)))
    return (e if chosen is None else np.where(seen, e, np.float32(0))), seen[:, 0], top[:, :, 0]


def values(cache: LayerCache, name: str, repeat: int, width: int) -> tuple[F32, F32 | None]:
    """The leading `width` columns of a plane as floats [P, H, width], and the scales of a q8 cache."""
    if cache.kind != "q8":
        return np.repeat(cache.floats(name), repeat, axis=1)[:, :, :width], None
    v = np.repeat(cache.planes[name], repeat, axis=1).astype(np.float32)[:, :, :width]
    scales = np.repeat(widen(cache.planes[f"{name}_scales"]), GROUP, axis=2)[:, :, :width]
    return v, np.repeat(scales, repeat, axis=1)


def attend(q: F32, cache: LayerCache, first: int, scale: np.float32, window: int, chunk: int = 0,
           sinks: F32 | None = None) -> F32:
    """Rows [n, H, D] at positions first .. first+n-1 to [n, H*D]; the cache already holds their K and V."""
    rows, heads, head_dim = q.shape
    count = first + rows
    p, seen, top = weights(q, cache, first, scale, window, chunk=chunk, sinks=sinks)
    v, v_scales = values(cache, "v", heads // cache.planes["k"].shape[1], head_dim)

    partials = np.zeros((rows, heads, LANES), dtype=np.float32)
    acc = np.zeros((rows, heads, head_dim), dtype=np.float32)
    for j in range(count):  # rows that see position j are one range, from j itself on
        who = np.flatnonzero(seen[:, j])
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
        total = total + exp(sinks[None, :] - top)
    return (acc / total[:, :, None]).reshape(rows, heads * head_dim)


def convolve(cache: LayerCache, first: int, rows: int, taps: F32) -> F32:
    """[rows, channels]: a channel's taps [channels, n], the oldest first, times what the cache's key plane holds."""
    channels, count = taps.shape
    v, scales = values(cache, "k", 1, channels)
    out = np.zeros((rows, channels), dtype=np.float32)
    for row in range(rows):
        position = first + row
        for p in range(max(0, position - count + 1), position + 1):
            w = taps[:, count - 1 - (position - p)]
            w = w if scales is None else w * scales[p, 0]
            out[row] = out[row] + w * v[p, 0]
    return out
