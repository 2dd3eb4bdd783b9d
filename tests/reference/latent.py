"""Latent attention (MLA), absorbed, in the order of sections 3 and 6; and the plain form it equals but for rounding.

Readings taken where the page is open:
 1. The latent of the queries is quantized once for q; each head's part of the query that is not rotated is
    quantized by itself for K_UP, what a head attended by itself for V_UP, each from its own first dimension on.
 2. The cached row is [normed latent | rotated rope key], one row of a K plane (so a q8 group may hold both).
 3. The mix takes the leading columns of that row, widened or with its scales: 16 partials by absolute position
    mod 16, positions ascending, the tree, then the division by the sum.
 5. A position that was not chosen adds +0 to sums and mixes, which changes no bit of them.
 6. Index scores: the product of section 6 with an index key as cached, times 1 / sqrt(width); negative ones and
    -0 become +0; heads ascending, s = s + (w * (1 / sqrt(heads))) * that, from +0. The best top_k of the
    positions seen, the lower one on a tie; while a row sees no more than top_k it looks at all.
 4. An absent epsilon of the latents is that of the layer.
"""
from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from .attention import LayerCache, dots, values, weights
from .description import LatentAttention, Rope
from .matrix import Activation, Matrix
from .vecmath import LANES, cos_sin, rotate, sum16, tree16

F32 = NDArray[np.float32]


def by_head(matrix: Matrix, heads: int, x: F32) -> F32:
    """[n, H, cols] to [n, H, rows / H]: every head's own rows times its own input."""
    each = matrix.rows // heads
    out = []
    for h in range(heads):
        own = slice(h * each, (h + 1) * each)
        scales = None if matrix.scale_bits is None else matrix.scale_bits[own]
        part = Matrix(matrix.kind, each, matrix.cols, matrix.values[own], scales)
        out.append(part.product(Activation(np.ascontiguousarray(x[:, h]))))
    return np.stack(out, axis=1)


def turned(rope: Rope | None, x: F32, first: int) -> F32:
    """Rotate the leading dimensions of [n, H, D]."""
    if rope is None:
        return x
    return rotate(x, *cos_sin(np.arange(first, first + x.shape[0]), rope.fractions, rope.amplitude),
                  rope.interleaved)


def centred_norm(x: F32, weight: F32, shift: F32, eps: np.float32) -> F32:
    """((x - mean) * r) * w + shift."""
    n = np.float32(x.shape[-1])
    d = x - (sum16(x) / n)[..., None]
    r = np.float32(1) / np.sqrt(sum16(d * d) / n + eps)
    return (d * r[..., None]) * weight + shift


def choose(a: LatentAttention, q: F32, w: F32, keys: LayerCache, first: int) -> NDArray[np.bool_]:
    """Index queries [n, H, D] and weights [n, H] to the positions each row looks at, [n, P]."""
    scale, share = (np.float32(1) / np.sqrt(np.float32(v)) for v in (a.index_dim, a.index_heads))
    raw = dots(q, keys) * scale
    score = np.zeros((raw.shape[0], raw.shape[2]), dtype=np.float32)
    for h in range(a.index_heads):
        score = score + (w[:, h] * share)[:, None] * np.where(raw[:, h] > 0, raw[:, h], np.float32(0))
    out = np.zeros(score.shape, dtype=bool)
    for row in range(score.shape[0]):
        best = np.argsort(-score[row, :first + row + 1], kind="stable")[:a.index_top_k]
        out[row, best] = True
    return out


def attend(a: LatentAttention, q: F32, cache: LayerCache, first: int, chosen: NDArray[np.bool_] | None) -> F32:
    """Absorbed queries [n, H, key_dim] to what each head attended, [n, H, latent]."""
    rows, heads, _ = q.shape
    p, _, _ = weights(q, cache, first, a.score_scale, a.window, chosen)
    v, scales = values(cache, "k", 1, a.latent)
    partials = np.zeros((rows, heads, LANES), dtype=np.float32)
    acc = np.zeros((rows, heads, a.latent, LANES), dtype=np.float32)
    for j in range(first + rows):
        low, high = max(j - first, 0), rows if not a.window else min(rows, j + a.window - first)
        if low >= high:
            continue
        weight, lane = p[low:high, :, j], j % LANES
        partials[low:high, :, lane] = partials[low:high, :, lane] + weight
        scaled = weight[:, :, None] if scales is None else weight[:, :, None] * scales[None, j]
        acc[low:high, :, :, lane] = acc[low:high, :, :, lane] + scaled * v[None, j]
    return tree16(acc) / tree16(partials)[:, :, None]


def plain(a: LatentAttention, q: F32, keys: F32, k_up: F32, v_up: F32, first: int) -> NDArray[np.float64]:
    """The textbook form in float64: queries [n, H, nope + rope], cached rows [P, key_dim], all keys and values
    expanded; [n, H, v_dim]."""
    latent, rope_key = keys[:, :a.latent].astype(np.float64), keys[:, a.latent:].astype(np.float64)
    k = np.einsum("hcd,pc->phd", k_up.reshape(a.heads, a.latent, a.nope_dim).astype(np.float64), latent)
    v = np.einsum("hdc,pc->phd", v_up.reshape(a.heads, a.v_dim, a.latent).astype(np.float64), latent)
    score = np.einsum("nhd,phd->nhp", q[:, :, :a.nope_dim], k) + np.einsum("nhd,pd->nhp", q[:, :, a.nope_dim:],
                                                                           rope_key)
    position, key = np.arange(first, first + q.shape[0])[:, None, None], np.arange(len(keys))[None, None]
    seen = (key <= position) & ((key > position - a.window) | (a.window == 0))
    score = np.where(seen, score * float(a.score_scale), -np.inf)
    e = np.exp(score - score.max(axis=-1, keepdims=True))
    return np.einsum("nhp,phd->nhd", e / e.sum(axis=-1, keepdims=True), v)
