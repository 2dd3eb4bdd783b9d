"""The numpy reference as a whole model: independence of rows, switches of the description, errors."""
from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from reference import quant, vecmath
from reference.matrix import Activation, Matrix
from reference.model import Attention, DenseFfn, Description, Kinds, LayerDesc, Model, MoeFfn, Rope
from reference.synth import random_weights, uniform

F = np.float32


def bits(x: object) -> bytes:
    """The bytes of an array: the only equality used here for floats."""
    return np.ascontiguousarray(x).tobytes()


def tiny(kinds: Kinds = Kinds(), kv_kind: str = "f32", **changes: object) -> Description:
    """Three layers, dense and MoE mixed, with every switch on somewhere."""
    rope = Rope.make(10000.0, 24, {"rope_type": "linear", "factor": 2.0})
    plain = Attention(4, 2, 24, F(24 ** -0.5), rope, q_bias=True, k_bias=True, v_bias=True, o_bias=True)
    moe = MoeFfn(6, 2, 40, shared_ff=72, shared_gate=True)
    layers = (LayerDesc(plain, DenseFfn(80)),
              LayerDesc(replace(plain, qk_norm=True, window=7), moe),
              LayerDesc(replace(plain, kv_heads=1, rope=replace(rope, interleaved=True)),
                        replace(moe, renormalise=False, shared_gate=False, scale=F(1.5))))
    return replace(Description(90, 64, layers, F(1e-5), kinds=kinds, kv_kind=kv_kind), **changes)


TOKENS = [(7 * i * i + 3 * i) % 90 for i in range(24)]
ALL_KINDS = [(Kinds(), "f32"), (Kinds.all("f16"), "f16"), (Kinds.all("q8"), "q8"), (Kinds.q4_model(), "q8"),
             (Kinds.all("q4"), "f16")]


@pytest.mark.parametrize("kinds,kv_kind", ALL_KINDS)
def test_rows_never_depend_on_what_follows_or_on_the_split(kinds: Kinds, kv_kind: str) -> None:
    desc = tiny(kinds, kv_kind)
    model = Model(desc, random_weights(desc))
    whole = model.logits(TOKENS)
    assert whole.shape == (24, 90) and whole.dtype == F and 0.1 < whole.std() < 10
    assert len({bits(row) for row in whole}) == 24
    for n in (1, 2, 11, 23):
        assert bits(model.logits(TOKENS[:n])) == bits(whole[:n])
    cache = model.new_cache()
    parts = [model.logits(TOKENS[a:b], cache) for a, b in ((0, 1), (1, 4), (4, 4), (4, 24))]
    assert bits(np.concatenate(parts)) == bits(whole) and cache.length == 24
    assert bits(model.logits(TOKENS[9:], cache, start=9)) == bits(whole[9:])
    matrices = {name: Matrix.from_tiles(m.kind, m.tiles(), m.rows, m.cols)
                for name, m in model.matrices.items()}
    assert Model(desc, model.vectors | matrices).digest(TOKENS) == model.digest(TOKENS)


def test_kinds_stay_near_float32() -> None:
    exact = Model(tiny(), random_weights(tiny())).logits(TOKENS)
    for (kinds, kv_kind), limit in zip(ALL_KINDS[1:], (0.002, 0.08, 0.4, 0.6)):
        error = Model(tiny(kinds, kv_kind), random_weights(tiny())).logits(TOKENS) - exact
        assert 0 < np.sqrt(np.mean(error ** 2)) < limit * exact.std()


def test_window_and_tied_head() -> None:
    desc = tiny()
    weights = random_weights(desc)
    wide = replace(desc, layers=[replace(y, attention=replace(y.attention, window=24 if i == 1 else 0))
                                 for i, y in enumerate(desc.layers)])
    none = replace(desc, layers=[replace(y, attention=replace(y.attention, window=0)) for y in desc.layers])
    narrow, full = Model(desc, weights).logits(TOKENS), Model(none, weights).logits(TOKENS)
    assert bits(Model(wide, weights).logits(TOKENS)) == bits(full)
    assert bits(narrow[:7]) == bits(full[:7]) and bits(narrow[7]) != bits(full[7])
    tied = {name: w for name, w in weights.items() if name != "head"}
    assert bits(Model(replace(desc, tied=True), tied).logits(TOKENS)) == \
        bits(Model(desc, weights | {"head": weights["embed"]}).logits(TOKENS))


def test_interleaved_is_half_split_of_permuted_rows() -> None:
    desc = tiny()
    attention = replace(desc.layers[0].attention, rope=Rope.make(10000, 24))
    half = replace(desc, layers=[LayerDesc(attention, DenseFfn(80))])
    turned = replace(attention, rope=replace(attention.rope, interleaved=True))
    inter = replace(half, layers=[LayerDesc(turned, DenseFfn(80))])
    weights = random_weights(half)
    order = np.arange(24).reshape(2, 12).T.ravel()
    moved = dict(weights)
    for name in ("q", "k"):
        for part in ("", "_bias"):
            w = weights[f"layers.0.{name}{part}"]
            moved[f"layers.0.{name}{part}"] = w.reshape(-1, 24, *w.shape[1:])[:, order].reshape(w.shape)
    a, b = Model(half, weights).logits(TOKENS), Model(inter, moved).logits(TOKENS)
    assert np.abs(a - b).max() < 2e-5 < np.abs(Model(inter, weights).logits(TOKENS) - a).max()


@pytest.mark.parametrize("renormalise", [True, False])
@pytest.mark.parametrize("score", ["softmax", "sigmoid"])
def test_router_by_plain_loop(renormalise: bool, score: str) -> None:
    ffn = MoeFfn(6, 3, 40, renormalise, F(1.5), score, F(1e-3) if renormalise else None)
    layer = replace(tiny().layers[0], ffn=ffn)
    desc = replace(tiny(), layers=[layer])
    weights = random_weights(desc)
    weights["layers.0.router"][4] = weights["layers.0.router"][1]  # equal logits: the lower index goes first
    model = Model(desc, weights)
    h = Activation(uniform(18, "h", (20, 64)) * F(2))
    got = model.route("layers.0", ffn, h)
    tied = 0
    for n in range(20):
        logits = model.matrices["layers.0.router"].product(Activation(h.x[n:n + 1]))[0]
        if score == "softmax":
            e = vecmath.exp(logits - max(logits))
            p, select = e / vecmath.sum16(e), logits
        else:
            p = select = F(1) / (F(1) + vecmath.exp(-logits))
        chosen = sorted(sorted(range(6), key=lambda i: (-select[i], i))[:3])
        tied += (1 in chosen) != (4 in chosen)
        t = F(0)
        for i in chosen:
            t = t + p[i]
        w = [p[i] / (t + F(1e-3)) if renormalise else p[i] for i in chosen]
        assert np.flatnonzero(~np.isnan(got[n])).tolist() == chosen and (4 not in chosen or 1 in chosen)
        assert bits(got[n, chosen]) == bits(np.array([v * F(1.5) for v in w]))
    assert tied
    y = np.zeros(64, dtype=F)
    for i in np.flatnonzero(~np.isnan(got[0])):
        y = y + got[0, i] * model._block(f"layers.0.experts.{i}", ffn, Activation(h.x[:1]))[0]
    assert bits(model._moe("layers.0", ffn, h)[0]) == bits(y)


@pytest.mark.parametrize("layer", [1, 2])
def test_shared_expert_comes_last(layer: int) -> None:
    desc = tiny(Kinds.all("q8"))
    model = Model(desc, random_weights(desc))
    at, ffn = f"layers.{layer}", desc.layers[layer].ffn
    assert isinstance(ffn, MoeFfn)
    h = Activation(uniform(21, "h", (5, 64)) * F(2))
    y = model._moe(at, replace(ffn, shared_ff=0), h)
    shared = model._block(f"{at}.shared", ffn, h)
    if ffn.shared_gate:
        gate = np.zeros(5, dtype=F)
        for c in range(64):  # the gate is a float32 row and reads the unquantized norm output
            gate = gate + model.matrices[f"{at}.shared_gate"].values[0, c] * h.x[:, c]
        shared = (F(1) / (F(1) + vecmath.exp(-gate)))[:, None] * shared
    assert bits(model._moe(at, ffn, h)) == bits(y + shared)
    assert model.matrices[f"{at}.router"].kind == "f32"


def test_multipliers() -> None:
    desc = tiny()
    weights = random_weights(desc)
    base = Model(desc, weights).logits(TOKENS)
    four = replace(desc, logit_multiplier=F(4), embedding_multiplier=F(1), residual_multiplier=F(1))
    assert bits(Model(four, weights).logits(TOKENS)) == bits(base * F(4))
    doubled = weights | {"embed": weights["embed"] * F(2)}
    assert bits(Model(replace(desc, embedding_multiplier=F(2)), weights).logits(TOKENS)) == \
        bits(Model(desc, doubled).logits(TOKENS))
    still = Model(replace(desc, residual_multiplier=F(0)), weights).logits(TOKENS)
    x = vecmath.rmsnorm(weights["embed"][TOKENS], weights["norm"], F(1e-5))
    assert bits(still) == bits(Matrix.from_floats("f32", weights["head"]).product(Activation(x)))


def test_errors_say_what_is_wrong() -> None:
    desc = tiny()
    weights = random_weights(desc)
    with pytest.raises(ValueError, match="'layers.1.router' is missing"):
        Model(desc, {k: v for k, v in weights.items() if k != "layers.1.router"})
    with pytest.raises(ValueError, match="'layers.9.q' is not in the description"):
        Model(desc, weights | {"layers.9.q": weights["layers.1.q"]})
    with pytest.raises(ValueError, match=r"'norm': expected float32\[64\]"):
        Model(desc, weights | {"norm": weights["norm"].astype(np.float64)})
    with pytest.raises(ValueError, match="kinds.head"):
        Model(replace(desc, tied=True, kinds=Kinds(head="q8")), weights)
    with pytest.raises(ValueError, match=r"expected ids in 0\.\.89"):
        Model(desc, weights).logits([90])
    broken = weights | {"layers.0.v_bias": np.full(48, np.inf, dtype=F)}
    for kinds, kv_kind in ((Kinds(), "f32"), (Kinds.all("q8"), "q8")):
        with pytest.raises(quant.NotFinite):
            Model(tiny(kinds, kv_kind), broken).logits(TOKENS)
