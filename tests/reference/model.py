"""A model by description: the forward pass of docs/NUMERICS.md for one sequence (sections 2-9).

Weights, a dict from name to float32 array, or to a Matrix that is already in its kind (then that kind is
used):

    embed [vocab, hidden]   head [vocab, hidden] (not if tied)   norm [hidden]
    layers.N.attn_norm [hidden]            layers.N.ffn_norm [hidden]
    layers.N.q [heads*head_dim, hidden]    layers.N.k, layers.N.v [kv_heads*head_dim, hidden]
    layers.N.o [hidden, heads*head_dim]    layers.N.q_bias, k_bias, v_bias, o_bias [rows of that matrix]
    layers.N.q_norm, layers.N.k_norm [head_dim]
    layers.N.head_gate [heads, hidden] or [heads*head_dim, hidden]
    latent attention: layers.N.q_a [q_latent, hidden], q_bias and q_norm [q_latent] (if there is a latent of the
                queries), q [heads*(nope+rope), q_latent or hidden], k [latent+rope, hidden], k_norm [latent],
                k_up [heads*latent, nope], v_up [heads*v_dim, latent], o [hidden, heads*v_dim]
    dense ffn:  layers.N.ffn.gate, layers.N.ffn.up [ff, hidden]   layers.N.ffn.down [hidden, ff]
    moe:        layers.N.router [experts, hidden]
                layers.N.router_bias [experts]   layers.N.token_routes [vocab*top_k]
                layers.N.experts.E.gate, .up, .down     layers.N.shared.gate, .up, .down
                layers.N.shared_gate [1, hidden] or [hidden]

Readings taken where the page is open:
 1. e of the router is exp(logit - max over all experts); a logit that is not finite is the not-finite
    error.
 2. The renormalising sum starts from +0; the eps of the page is added only if the description has one.
 3. w * scale is always done (a scale of 1 changes nothing). More of the router's in router.py.
 4. A dense layer adds its output to x directly, attention likewise: no y that starts at +0.
 5. Query and key heads are normalised with the eps of the model, over head_dim.
 6. A tied head needs the same kind for embed and head.
 7. A sigmoid router has no softmax: its score sigmoid(logit) selects and is p.
 8. A residual multiplier applies after attention and after the FFN alike.
 9. Logits that are not finite are the not-finite error; so is a shared gate or a gated product (found in
    exp).
"""
from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from . import latent
from .attention import Cache, LayerCache, attend, convolve
from .description import (Attention, Convolution, DenseFfn, Description, Kinds, LatentAttention, LayerDesc, MoeFfn,
                          Rope, check)
from .matrix import Activation, Matrix
from .quant import require_finite
from .rope import rope_fractions
from .router import route
from .vecmath import cos_sin, gated, layer_norm, ln_whole, rmsnorm, rotate, sigmoid

__all__ = ["Attention", "Cache", "DenseFfn", "Description", "Kinds", "LayerDesc", "Matrix", "Model", "MoeFfn",
           "Rope", "rope_fractions"]

F = np.float32
F32 = NDArray[np.float32]


class Model:
    """Weights bound to a description."""

    def __init__(self, desc: Description, weights: Mapping[str, NDArray[np.float32] | Matrix]) -> None:
        check(desc)
        self.desc = desc
        self.matrices: dict[str, Matrix] = {}
        self.vectors: dict[str, F32] = {}
        self._weights = weights
        self._chosen: NDArray[np.bool_] | None = None  # by the last layer with index heads, within one call
        self._matrix("embed", desc.kinds.embed, desc.vocab, desc.hidden)
        if not desc.tied:
            self._matrix("head", desc.kinds.head, desc.vocab, desc.hidden)
        self._take_norm("norm", desc.final_norm)
        if desc.head_bias:
            self._vector("head_bias", desc.vocab)
        for i, layer in enumerate(desc.layers):
            for part in ("attn_norm", "ffn_norm"):
                self._take_norm(f"layers.{i}.{part}", layer.norm)
            for part in layer.post_norms:
                self._vector(f"layers.{i}.post_{part}_norm", desc.hidden)
            if isinstance(layer.attention, Convolution):
                self._take_convolution(f"layers.{i}", layer.attention)
            elif isinstance(layer.attention, LatentAttention):
                self._take_latent(f"layers.{i}", layer.attention)
            else:
                self._take_attention(f"layers.{i}", layer.attention)
            self._take_ffn(f"layers.{i}", layer.ffn)
        unused = sorted(set(weights) - set(self.matrices) - set(self.vectors))
        if unused:
            raise ValueError(f"weights: {unused[0]!r} is not in the description ({len(unused)} such names)")
        del self._weights

    # taking the weights

    def _find(self, name: str) -> NDArray[np.float32] | Matrix:
        if name not in self._weights:
            raise ValueError(f"weights: {name!r} is missing; the description needs it")
        return self._weights[name]

    def _matrix(self, name: str, kind: str, rows: int, cols: int) -> None:
        w = self._find(name)
        if not isinstance(w, Matrix):
            w = np.asarray(w)
            if rows == 1 and w.ndim == 1:
                w = w[None, :]
            if w.dtype != np.float32 or w.shape != (rows, cols):
                raise ValueError(f"weights: {name!r}: expected float32[{rows}, {cols}], found {w.dtype}"
                                 f"{list(w.shape)}")
            w = Matrix.from_floats(kind, w)
        if (w.rows, w.cols) != (rows, cols):
            raise ValueError(f"weights: {name!r}: expected {rows} x {cols}, found {w.rows} x {w.cols}")
        self.matrices[name] = w

    def _vector(self, name: str, size: int) -> None:
        v = self._find(name)
        if isinstance(v, Matrix) or v.dtype != np.float32 or v.shape != (size,):
            found = "a Matrix" if isinstance(v, Matrix) else f"{v.dtype}{list(v.shape)}"
            raise ValueError(f"weights: {name!r}: expected float32[{size}], found {found}")
        self.vectors[name] = v

    def _take_norm(self, name: str, kind: str) -> None:
        self._vector(name, self.desc.hidden)
        if kind == "layer_bias":
            self._vector(f"{name}_bias", self.desc.hidden)

    def _norm(self, name: str, kind: str, x: F32) -> F32:
        if kind == "rms":
            return rmsnorm(x, self.vectors[name], self.desc.eps)
        return layer_norm(x, self.vectors[name], self.vectors.get(f"{name}_bias"), self.desc.eps)

    def _take_attention(self, at: str, a: Attention) -> None:
        hidden, kind = self.desc.hidden, self.desc.kinds.attention
        if a.sinks:
            self._vector(f"{at}.sinks", a.heads)
        q_rows, kv_rows = a.heads * a.head_dim, a.kv_heads * a.head_dim
        for name, rows, cols, bias in (("q", q_rows, hidden, a.q_bias), ("k", kv_rows, hidden, a.k_bias),
                                       ("v", kv_rows, hidden, a.v_bias), ("o", hidden, q_rows, a.o_bias)):
            self._matrix(f"{at}.{name}", kind, rows, cols)
            if bias:
                self._vector(f"{at}.{name}_bias", rows)
        if a.gates:
            self._matrix(f"{at}.head_gate", kind, a.heads if a.gates == "head" else q_rows, hidden)
        if a.qk_norm or a.after_rope == "head":
            self._vector(f"{at}.q_norm", q_rows if a.qk_norm_wide else a.head_dim)
            self._vector(f"{at}.k_norm", kv_rows if a.qk_norm_wide else a.head_dim)

    def _take_latent(self, at: str, a: LatentAttention) -> None:
        hidden, kind = self.desc.hidden, self.desc.kinds.attention
        if a.q_latent:
            self._matrix(f"{at}.q_a", kind, a.q_latent, hidden)
            self._vector(f"{at}.q_norm", a.q_latent)
        self._matrix(f"{at}.q", kind, a.heads * (a.nope_dim + a.rope_dim), a.q_latent or hidden)
        self._matrix(f"{at}.k", kind, a.key_dim, hidden)
        self._vector(f"{at}.k_norm", a.latent)
        self._matrix(f"{at}.k_up", kind, a.heads * a.latent, a.nope_dim)
        self._matrix(f"{at}.v_up", kind, a.heads * a.v_dim, a.latent)
        self._matrix(f"{at}.o", kind, hidden, a.heads * a.v_dim)
        if a.index_heads:
            self._matrix(f"{at}.index_q", kind, a.index_heads * a.index_dim, a.q_latent)
            self._matrix(f"{at}.index_k", kind, a.index_dim, hidden)
            self._matrix(f"{at}.index_weight", "f32", a.index_heads, hidden)
            self._vector(f"{at}.index_k_norm", a.index_dim)
            self._vector(f"{at}.index_k_shift", a.index_dim)
        for part, size, there in (("q", a.q_latent, a.q_bias), ("k", a.key_dim, a.k_bias),
                                  ("o", hidden, a.o_bias)):
            if there:
                self._vector(f"{at}.{part}_bias", size)

    def _take_convolution(self, at: str, a: Convolution) -> None:
        hidden, kind = self.desc.hidden, self.desc.kinds.attention
        for name, bias in (("q", a.q_bias), ("k", a.k_bias), ("v", a.v_bias)):
            self._matrix(f"{at}.{name}", kind, a.channels, hidden)
            if bias:
                self._vector(f"{at}.{name}_bias", a.channels)
        self._matrix(f"{at}.o", kind, hidden, a.channels)
        if a.o_bias:
            self._vector(f"{at}.o_bias", hidden)
        self._vector(f"{at}.taps", a.channels * a.taps)
        if a.taps_bias:
            self._vector(f"{at}.taps_bias", a.channels)

    def _take_block(self, at: str, kind: str, ff: int) -> None:
        self._matrix(f"{at}.gate", kind, ff, self.desc.hidden)
        self._matrix(f"{at}.up", kind, ff, self.desc.hidden)
        self._matrix(f"{at}.down", kind, self.desc.hidden, ff)

    def _take_ffn(self, at: str, ffn: DenseFfn | MoeFfn) -> None:
        kinds = self.desc.kinds
        for part in ffn.biases:
            count = ffn.experts if isinstance(ffn, MoeFfn) else 1
            self._vector(f"{at}.ffn_{part}_bias", count * (self.desc.hidden if part == "down" else ffn.ff))
        if isinstance(ffn, DenseFfn):
            self._take_block(f"{at}.ffn", kinds.dense, ffn.ff)
            return
        self._matrix(f"{at}.router", "f32", ffn.experts, self.desc.hidden)
        if ffn.by_token:
            self._vector(f"{at}.token_routes", self.desc.vocab * ffn.top_k)
        if ffn.bias:
            self._vector(f"{at}.router_bias", ffn.experts)
        for e in range(ffn.experts):
            self._take_block(f"{at}.experts.{e}", kinds.experts, ffn.ff)
        if ffn.shared_ff:
            self._take_block(f"{at}.shared", kinds.shared, ffn.shared_ff)
            if ffn.shared_gate:
                self._matrix(f"{at}.shared_gate", "f32", 1, self.desc.hidden)

    # the forward pass

    def new_cache(self) -> Cache:
        """An empty KV cache."""
        def one(a: Attention | LatentAttention | Convolution) -> LayerCache:
            if isinstance(a, Convolution):
                return LayerCache(self.desc.kv_kind, 1, a.channels, ("k",))
            if isinstance(a, LatentAttention):
                made = LayerCache(self.desc.kv_kind, 1, a.key_dim, ("k",))
                made.index = LayerCache(self.desc.kv_kind, 1, a.index_dim, ("k",)) if a.index_heads else None
                return made
            return LayerCache(self.desc.kv_kind, a.kv_heads, a.head_dim)

        return Cache([one(layer.attention) for layer in self.desc.layers])

    def _product(self, name: str, activation: Activation) -> F32:
        return self.matrices[name].product(activation, self.vectors.get(f"{name}_bias"))

    def _attention(self, at: str, layer: LayerDesc, x: F32, cache: LayerCache, first: int) -> F32:
        rows, a = x.shape[0], layer.attention
        h = Activation(self._norm(f"{at}.attn_norm", layer.norm, x))
        q, k, v = (self._product(f"{at}.{part}", h) for part in "qkv")
        if a.qk_norm and a.qk_norm_wide:
            q = rmsnorm(q, self.vectors[f"{at}.q_norm"], self.desc.eps)
            k = rmsnorm(k, self.vectors[f"{at}.k_norm"], self.desc.eps)
        q = q.reshape(rows, a.heads, a.head_dim)
        k = k.reshape(rows, a.kv_heads, a.head_dim)
        v = v.reshape(rows, a.kv_heads, a.head_dim)
        if a.qk_norm and not a.qk_norm_wide:
            q = rmsnorm(q, self.vectors[f"{at}.q_norm"], self.desc.eps)
            k = rmsnorm(k, self.vectors[f"{at}.k_norm"], self.desc.eps)
        if a.clip is not None:
            for part in (q, k, v):
                require_finite(part, f"{at}: q, k and v before the clamp")
            q, k, v = (np.minimum(np.maximum(part, -a.clip), a.clip) for part in (q, k, v))
        if a.rope:
            c, s = cos_sin(np.arange(first, first + rows), a.rope.fractions, a.rope.amplitude)
            q, k = rotate(q, c, s, a.rope.interleaved), rotate(k, c, s, a.rope.interleaved)
        if a.after_rope:
            ones = np.ones(a.head_dim, dtype=F)
            q = rmsnorm(q, self.vectors.get(f"{at}.q_norm", ones), self.desc.eps)
            k = rmsnorm(k, self.vectors.get(f"{at}.k_norm", ones), self.desc.eps)
        if a.query_floor:
            steps = 1 + (np.arange(first, first + rows) + 1) // a.query_floor
            q = q * (F(1) + F(a.query_step) * ln_whole(steps))[:, None, None]
        cache.append(k=k, v=v)
        out = attend(q, cache, first, a.score_scale, a.window, a.chunk, self.vectors.get(f"{at}.sinks"))
        if a.gates:
            gates = self._product(f"{at}.head_gate", h)
            require_finite(gates, f"{at}: gates of heads")
            out = out * (np.repeat(sigmoid(gates), a.head_dim, axis=1) if a.gates == "head" else sigmoid(gates))
        return self._product(f"{at}.o", Activation(out))

    def _convolution(self, at: str, layer: LayerDesc, x: F32, cache: LayerCache, first: int) -> F32:
        a = layer.attention
        h = Activation(self._norm(f"{at}.attn_norm", layer.norm, x))
        gate, k, v = (self._product(f"{at}.{part}", h) for part in "qkv")
        require_finite(k * v, f"{at}: convolution")
        cache.append(k=(k * v)[:, None])
        out = convolve(cache, first, x.shape[0], self.vectors[f"{at}.taps"].reshape(a.channels, a.taps))
        if a.taps_bias:
            out = out + self.vectors[f"{at}.taps_bias"]
        return self._product(f"{at}.o", Activation(gate * out))

    def _latent(self, at: str, layer: LayerDesc, x: F32, cache: LayerCache, first: int) -> F32:
        rows, a = x.shape[0], layer.attention
        h = Activation(self._norm(f"{at}.attn_norm", layer.norm, x))
        source = h
        if a.q_latent:
            q_a = self.matrices[f"{at}.q_a"].product(h, self.vectors.get(f"{at}.q_bias"))
            source = Activation(rmsnorm(q_a, self.vectors[f"{at}.q_norm"], a.latent_eps))
        q = self.matrices[f"{at}.q"].product(source).reshape(rows, a.heads, a.nope_dim + a.rope_dim)
        k = self._product(f"{at}.k", h)
        key = np.concatenate([rmsnorm(k[:, :a.latent], self.vectors[f"{at}.k_norm"], a.latent_eps),
                              latent.turned(a.rope, k[:, None, a.latent:], first)[:, 0]], axis=1)
        cache.append(k=key[:, None])
        q = np.concatenate([q[:, :, :a.nope_dim], latent.turned(a.rope, q[:, :, a.nope_dim:], first)], axis=2)
        if a.index_heads:
            self._chosen = self._choose(at, a, source, h, cache, first)
        return self._product(f"{at}.o", Activation(self._latent_heads(at, a, q, cache, first)))

    def _choose(self, at: str, a: LatentAttention, source: Activation, h: Activation, cache: LayerCache,
                first: int) -> NDArray[np.bool_]:
        rows = h.x.shape[0]
        q = self._product(f"{at}.index_q", source).reshape(rows, a.index_heads, a.index_dim)
        k = latent.centred_norm(self._product(f"{at}.index_k", h), self.vectors[f"{at}.index_k_norm"],
                                self.vectors[f"{at}.index_k_shift"], a.latent_eps)
        assert cache.index
        cache.index.append(k=latent.turned(a.index_rope, k[:, None], first))
        weights = self._product(f"{at}.index_weight", h)
        return latent.choose(a, latent.turned(a.index_rope, q, first), weights, cache.index, first)

    def _latent_heads(self, at: str, a: LatentAttention, q: F32, cache: LayerCache, first: int) -> F32:
        absorbed = latent.by_head(self.matrices[f"{at}.k_up"], a.heads, q[:, :, :a.nope_dim])
        mixed = latent.attend(a, np.concatenate([absorbed, q[:, :, a.nope_dim:]], axis=2), cache, first,
                              self._chosen if a.index_top_k else None)
        return latent.by_head(self.matrices[f"{at}.v_up"], a.heads, mixed).reshape(q.shape[0], -1)

    def _bias(self, layer: str, part: str, expert: int, width: int) -> F32 | None:
        """One expert's part of a bias of the routed experts (expert 0: of a dense FFN)."""
        whole = self.vectors.get(f"{layer}.ffn_{part}_bias")
        return None if whole is None else whole[expert * width:(expert + 1) * width]

    def _block(self, at: str, ffn: DenseFfn | MoeFfn, h: Activation, layer: str = "", expert: int = 0,
               times: F32 | None = None) -> F32:
        """`layer` names where the biases are, if the block has some."""
        biases = {part: self._bias(layer, part, expert, self.desc.hidden if part == "down" else ffn.ff)
                  for part in ("gate", "up", "down")}
        inner = []
        for part in ("gate", "up"):
            y = self.matrices[f"{at}.{part}"].product(h)
            y = y if times is None else y * times[:, None]  # a weight on the input: products are linear
            inner.append(y if biases[part] is None else y + biases[part])
        return self.matrices[f"{at}.down"].product(Activation(gated(ffn.activation, *inner, ffn.limit)), biases["down"])

    def route(self, at: str, ffn: MoeFfn, h: Activation, ids: NDArray[np.int64] | None = None) -> F32:
        """[n, experts] weights; NaN for what was not chosen. ids: the rows' tokens."""
        logits, bias = self.matrices[f"{at}.router"].product(h), self.vectors.get(f"{at}.router_bias")
        if ffn.by_token:
            table = self.vectors[f"{at}.token_routes"].reshape(self.desc.vocab, ffn.top_k)
            return route(ffn, logits, bias, f"{at}.router", table[ids])
        return route(ffn, logits, bias, f"{at}.router")

    def _moe(self, at: str, ffn: MoeFfn, h: Activation, ids: NDArray[np.int64] | None = None) -> F32:
        w = self.route(at, ffn, h, ids)
        y = np.zeros((w.shape[0], self.desc.hidden), dtype=F)
        for e in range(ffn.experts):  # ascending: every row adds its experts in that order
            rows = np.flatnonzero(~np.isnan(w[:, e]))
            if rows.size:
                on_input = ffn.weight_on == "input"
                out = self._block(f"{at}.experts.{e}", ffn, Activation(h.x[rows]), at, e,
                                  w[rows, e] if on_input else None)
                y[rows] = y[rows] + (out if on_input else w[rows, e, None] * out)
        if ffn.shared_ff:
            shared = self._block(f"{at}.shared", ffn, h)
            if ffn.shared_gate:
                shared = sigmoid(self._product(f"{at}.shared_gate", h)) * shared
            y = y + shared
        return y

    def _residual(self, x: F32, y: F32, post: str = "") -> F32:
        """`post` names the norm of what is added, if there is one."""
        m = self.desc.residual_multiplier
        if post in self.vectors:
            y = rmsnorm(y, self.vectors[post], self.desc.eps)
        return x + y if m is None else x + y * F(m)

    def _tokens(self, tokens: Sequence[int]) -> NDArray[np.int64]:
        ids = np.asarray(tokens, dtype=np.int64).reshape(-1)
        if ids.size and (ids.min() < 0 or ids.max() >= self.desc.vocab):
            raise ValueError(f"tokens: expected ids in 0..{self.desc.vocab - 1}, found {ids.min()}.."
                             f"{ids.max()}")
        return ids

    def logits(self, tokens: Sequence[int], cache: Cache | None = None, start: int | None = None) -> F32:
        """float32[len(tokens), vocab].

        Without a cache the sequence starts at position 0. With one (new_cache()) the tokens follow what it
        holds and are added to it; start, if given, first rewinds it to that many positions.
        """
        cache = self.new_cache() if cache is None else cache
        if start is not None:
            if not 0 <= start <= cache.length:
                raise ValueError(f"start: expected 0..{cache.length}, the positions held, found {start}")
            cache.truncate(start)
        first = cache.length
        ids = self._tokens(tokens)
        if not ids.size:
            return np.zeros((0, self.desc.vocab), dtype=F)
        with np.errstate(over="ignore", invalid="ignore"):  # such values are found by bits
            x = self.matrices["embed"].rows_of(ids)
            if self.desc.embedding_multiplier is not None:
                x = x * F(self.desc.embedding_multiplier)
            for i, layer in enumerate(self.desc.layers):
                at = f"layers.{i}"
                kinds = {LatentAttention: self._latent, Convolution: self._convolution}
                run = kinds.get(type(layer.attention), self._attention)
                y = run(at, layer, x, cache.layers[i], first)
                x = self._residual(x, y, f"{at}.post_attention_norm")
                h = Activation(self._norm(f"{at}.ffn_norm", layer.norm, x))
                y = (self._block(f"{at}.ffn", layer.ffn, h, at) if isinstance(layer.ffn, DenseFfn)
                     else self._moe(at, layer.ffn, h, ids))
                x = self._residual(x, y, f"{at}.post_ffn_norm")
            final = Activation(self._norm("norm", self.desc.final_norm, x))
            out = self.matrices["embed" if self.desc.tied else "head"].product(final, self.vectors.get("head_bias"))
            if self.desc.logit_multiplier is not None:
                out = out * F(self.desc.logit_multiplier)
        require_finite(out, "logits")
        if self.desc.softcap is not None:
            c = F(self.desc.softcap)
            out = c * (F(2) * sigmoid(F(2) * (out / c)) - F(1))
        assert out.dtype == np.float32
        return out

    def digest(self, tokens: Sequence[int]) -> str:
        """SHA-256, in hex, over the little-endian float32 logits of every position."""
        return hashlib.sha256(self.logits(tokens).astype("<f4").tobytes()).hexdigest()
