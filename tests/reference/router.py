"""The router of section 7: from logits to the weights of every row's experts.

Readings taken where the page is open:
 1. A softmax without bias and groups chooses by the logits; every other router by its scores, plus the bias if there
    is one, or by the logits plus the bias.
 2. Numbers of the choice or weights that are not finite are the not-finite error.
"""
from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from .description import MoeFfn
from .quant import require_finite
from .vecmath import exp, sigmoid, sqrt_softplus, sum16

F = np.float32
F32 = NDArray[np.float32]


def scores(ffn: MoeFfn, logits: F32) -> F32:
    """[n, experts] scores; the sparse mixer's are made of the logits later."""
    if ffn.score == "softmax":
        e = exp(logits - logits.max(axis=-1, keepdims=True))
        return e / sum16(e)[:, None]
    if ffn.score == "sigmoid":
        return sigmoid(logits)
    return sqrt_softplus(logits) if ffn.score == "sqrt_softplus" else logits


def best(value: F32, k: int) -> NDArray[np.bool_]:
    """Which are the k largest of a row; the lower index first where two are equal."""
    out = np.zeros(value.shape, dtype=bool)
    np.put_along_axis(out, np.argsort(-value, axis=-1, kind="stable")[:, :k], True, axis=-1)
    return out


def kept(ffn: MoeFfn, value: F32) -> NDArray[np.bool_]:
    """Which experts are in one of the best groups."""
    parts = np.sort(value.reshape(value.shape[0], ffn.groups, -1), axis=-1)
    of_group = parts[..., -1] if ffn.group_score == "max" else parts[..., -1] + parts[..., -2]
    return np.repeat(best(of_group, ffn.top_groups), ffn.experts // ffn.groups, axis=-1)


def mixed(ffn: MoeFfn, z: F32) -> F32:
    """The sparse mixer's weight of every expert of one row, were it chosen."""
    out = np.zeros(z.shape, dtype=F)
    limit = F(2) * F(ffn.jitter)
    for i in range(ffn.experts):
        total = F(0)
        for e in range(ffn.experts):
            before = z[e] > z[i] or (z[e] == z[i] and e < i)
            if not before and not z[i] - z[e] > limit * max(abs(z[e]), z[i]):
                total = total + exp(z[e] - z[i])[()]
        out[i] = F(1) / total
    return out


def divided(ffn: MoeFfn, w: F32, chosen: NDArray[np.bool_]) -> F32:
    """Renormalised weights of the chosen ones."""
    how = "sum" if ffn.renormalise is True else ffn.renormalise
    if not how:
        return w
    if how == "softmax":
        w = exp(w - np.where(chosen, w, F(-np.inf)).max(axis=-1, keepdims=True))
    t = np.zeros(w.shape[0], dtype=F)
    for i in range(ffn.experts):
        t = np.where(chosen[:, i], t + (w[:, i] * w[:, i] if how == "root" else w[:, i]), t)
    if how == "root":
        t = np.sqrt(t)
    if ffn.renormalise_eps is not None:
        t = t + F(ffn.renormalise_eps)
    if ffn.sum_min > 0:
        t = np.maximum(t, F(ffn.sum_min))
    return w / t[:, None]


def route(ffn: MoeFfn, logits: F32, bias: F32 | None, at: str, listed: F32 | None = None) -> F32:
    """[n, experts] weights; an expert that was not chosen has NaN, so nobody can use it by mistake.

    listed: [n, top_k] experts of the rows' tokens, if tokens choose them.
    """
    if ffn.bias == "logit":
        logits = logits + bias
    require_finite(logits, at)
    w = scores(ffn, logits)
    plain_softmax = ffn.score == "softmax" and ffn.bias in ("", "logit") and not ffn.groups
    value = logits if ffn.by_logit or ffn.bias == "choice" or plain_softmax else w
    if ffn.bias in ("score", "choice"):
        value = value + bias
    require_finite(value, f"{at}: numbers of the choice")
    if ffn.groups and ffn.group_score != "each":
        value = np.where(kept(ffn, value), value, F(-np.inf))
    if ffn.groups and ffn.group_score == "each":
        parts = value.reshape(-1, ffn.experts // ffn.groups)
        chosen = best(parts, ffn.top_k // ffn.groups).reshape(value.shape)
    else:
        chosen = best(value, ffn.top_k)
    if listed is not None:
        chosen = np.zeros(value.shape, dtype=bool)
        np.put_along_axis(chosen, listed.astype(np.int64), True, axis=-1)
    if ffn.score == "sparse_mixer":
        w = np.stack([mixed(ffn, z) for z in logits])
    w = np.where(chosen, divided(ffn, w, chosen) * F(ffn.scale), F(np.nan))
    require_finite(w[chosen], f"{at}: weights")
    return w
