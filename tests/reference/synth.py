"""Seeded random models for any description: weights by the names of model.py, nothing zero, nothing neutral.

The generator is written out (SplitMix64), so the weights are the same with every numpy.
"""
from __future__ import annotations

import hashlib

import numpy as np
from numpy.typing import NDArray

from .description import DenseFfn, Description

F32 = NDArray[np.float32]


def uniform(seed: int, name: str, shape: tuple[int, ...]) -> F32:
    """float32 in [-1, 1), a function of seed and name alone."""
    key = int.from_bytes(hashlib.sha256(f"{seed}/{name}".encode()).digest()[:8], "little")
    z = np.arange(1, int(np.prod(shape)) + 1, dtype=np.uint64) * np.uint64(0x9E3779B97F4A7C15)
    z = z + np.uint64(key)
    z = (z ^ (z >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    z = (z ^ (z >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    z = z ^ (z >> np.uint64(31))
    whole = (z >> np.uint64(40)).astype(np.int64) - (1 << 23)  # 24 bits: exact in float32
    return (whole.astype(np.float32) * np.float32(2.0 ** -23)).reshape(shape)


def shapes(desc: Description) -> dict[str, tuple[int, ...]]:
    """Every weight the description needs, in file order."""
    hidden = desc.hidden
    out: dict[str, tuple[int, ...]] = {"embed": (desc.vocab, hidden), "norm": (hidden,)}
    if not desc.tied:
        out["head"] = (desc.vocab, hidden)

    def block(at: str, ff: int) -> None:
        out[f"{at}.gate"] = out[f"{at}.up"] = (ff, hidden)
        out[f"{at}.down"] = (hidden, ff)

    for i, layer in enumerate(desc.layers):
        at, a, ffn = f"layers.{i}", layer.attention, layer.ffn
        q_rows, kv_rows = a.heads * a.head_dim, a.kv_heads * a.head_dim
        out[f"{at}.attn_norm"] = out[f"{at}.ffn_norm"] = (hidden,)
        for name, rows, cols, bias in (("q", q_rows, hidden, a.q_bias), ("k", kv_rows, hidden, a.k_bias),
                                       ("v", kv_rows, hidden, a.v_bias), ("o", hidden, q_rows, a.o_bias)):
            out[f"{at}.{name}"] = (rows, cols)
            if bias:
                out[f"{at}.{name}_bias"] = (rows,)
        if a.qk_norm:
            out[f"{at}.q_norm"] = (q_rows if a.qk_norm_wide else a.head_dim,)
            out[f"{at}.k_norm"] = (kv_rows if a.qk_norm_wide else a.head_dim,)
        if isinstance(ffn, DenseFfn):
            block(f"{at}.ffn", ffn.ff)
            continue
        out[f"{at}.router"] = (ffn.experts, hidden)
        if ffn.bias:
            out[f"{at}.router_bias"] = (ffn.experts,)
        for e in range(ffn.experts):
            block(f"{at}.experts.{e}", ffn.ff)
        if ffn.shared_ff:
            block(f"{at}.shared", ffn.shared_ff)
            if ffn.shared_gate:
                out[f"{at}.shared_gate"] = (1, hidden)
    return out


def random_weights(desc: Description, seed: int = 1) -> dict[str, F32]:
    """Weights that keep activations near 1: matrices by their width, norms around 1, biases around 0."""
    out = {}
    for name, shape in shapes(desc).items():
        w = uniform(seed, name, shape)
        if name.endswith("norm"):
            out[name] = np.float32(1) + w * np.float32(0.25)
        elif len(shape) == 1:
            out[name] = w * np.float32(0.25)
        else:
            gain = 4.0 if name.endswith(".router") else 2.0
            out[name] = w * np.float32(gain / np.sqrt(shape[1]))
    return out
