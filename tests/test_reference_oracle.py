"""The numpy reference in its f32 kind against live transformers: tiny models with every weight re-drawn."""
from __future__ import annotations

import importlib.util
import os
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from reference.model import Attention, DenseFfn, Description, LayerDesc, Model, MoeFfn, Rope
from reference.synth import uniform

F = np.float32
LIMIT = 1e-4

pytestmark = [
    pytest.mark.oracle,
    pytest.mark.skipif(not os.environ.get("CI") and not all(importlib.util.find_spec(m)
                                                            for m in ("torch", "transformers")),
                       reason="torch or transformers is not installed (extra [oracle])"),
]

BASE: dict[str, Any] = dict(
    vocab_size=96, hidden_size=64, num_hidden_layers=3, num_attention_heads=4, num_key_value_heads=2,
    head_dim=24, max_position_embeddings=256, rms_norm_eps=1e-5, attention_dropout=0.0)


def rope(law: str = "default", **more: Any) -> dict[str, Any]:
    """The record a config carries."""
    return {"rope_parameters": {"rope_type": law, "rope_theta": 10000.0, **more}}


CASES: dict[str, tuple[str, dict[str, Any]]] = {
    "llama": ("llama", dict(intermediate_size=112, attention_bias=True, **rope())),
    "llama-tied": ("llama", dict(intermediate_size=112, tie_word_embeddings=True, **rope())),
    "llama-linear": ("llama", dict(intermediate_size=112, **rope("linear", factor=3.0))),
    "llama-llama3": ("llama", dict(intermediate_size=112, **rope(
        "llama3", factor=8.0, low_freq_factor=1.0, high_freq_factor=4.0,
        original_max_position_embeddings=64))),
    "llama-yarn": ("llama", dict(intermediate_size=112, **rope(
        "yarn", factor=4.0, original_max_position_embeddings=64))),
    "llama-yarn-fine": ("llama", dict(intermediate_size=112, **rope(
        "yarn", factor=2.5, original_max_position_embeddings=100, truncate=False, beta_fast=8.0,
        beta_slow=2.0, mscale=0.7, mscale_all_dim=0.3))),
    "mixtral": ("mixtral", dict(intermediate_size=80, num_local_experts=6, num_experts_per_tok=2, **rope())),
    "mixtral-window": ("mixtral", dict(intermediate_size=80, num_local_experts=5, num_experts_per_tok=3,
                                       sliding_window=6, **rope())),
    "qwen2_moe": ("qwen2_moe", dict(intermediate_size=112, moe_intermediate_size=48, num_experts=6,
                                    num_experts_per_tok=2, shared_expert_intermediate_size=72,
                                    norm_topk_prob=False, mlp_only_layers=[1], head_dim=16, **rope())),
    "qwen3_moe": ("qwen3_moe", dict(intermediate_size=112, moe_intermediate_size=48, num_experts=6,
                                    num_experts_per_tok=2, norm_topk_prob=True, **rope())),
}


def build(name: str) -> tuple[Any, dict[str, np.ndarray]]:
    """The transformers model with re-drawn weights, and those weights."""
    import torch
    from transformers import AutoConfig, AutoModelForCausalLM
    family, options = CASES[name]
    config = AutoConfig.for_model(family, **{**BASE, **options})
    model = AutoModelForCausalLM.from_config(config, attn_implementation="eager").float().eval()
    tensors: dict[str, np.ndarray] = {}
    with torch.no_grad():
        for key, parameter in model.named_parameters():
            w = uniform(3, key, tuple(parameter.shape))
            if "norm" in key:
                w = F(1) + w * F(0.25)
            elif w.ndim == 1:
                w = w * F(0.25)
            else:
                w = w * F((4.0 if key.endswith("mlp.gate.weight") else 2.0) / np.sqrt(w.shape[-1]))
            parameter.copy_(torch.from_numpy(w))
            tensors[key] = w
    return model, tensors


def translate(model: Any, tensors: dict[str, np.ndarray]) -> tuple[Description, dict[str, np.ndarray]]:
    """The reference's description and names."""
    c = model.config
    family, parameters = c.model_type, dict(c.rope_parameters)
    dim = getattr(c, "head_dim", None) or c.hidden_size // c.num_attention_heads
    turn = Rope.make(parameters["rope_theta"], dim, parameters)
    w = {"embed": tensors["model.embed_tokens.weight"], "norm": tensors["model.norm.weight"]}
    if not c.tie_word_embeddings:
        w["head"] = tensors["lm_head.weight"]
    layers = []
    for i in range(c.num_hidden_layers):
        t, at = f"model.layers.{i}.", f"layers.{i}."
        w[at + "attn_norm"] = tensors[t + "input_layernorm.weight"]
        w[at + "ffn_norm"] = tensors[t + "post_attention_layernorm.weight"]
        biases = {}
        for n in "qkvo":
            w[at + n] = tensors[f"{t}self_attn.{n}_proj.weight"]
            biases[n + "_bias"] = f"{t}self_attn.{n}_proj.bias" in tensors
            if biases[n + "_bias"]:
                w[f"{at}{n}_bias"] = tensors[f"{t}self_attn.{n}_proj.bias"]
        norm = t + "self_attn.q_norm.weight" in tensors
        if norm:
            w[at + "q_norm"] = tensors[t + "self_attn.q_norm.weight"]
            w[at + "k_norm"] = tensors[t + "self_attn.k_norm.weight"]
        window = c.sliding_window if family == "mixtral" and c.sliding_window else 0
        attention = Attention(c.num_attention_heads, c.num_key_value_heads, dim, F(dim ** -0.5), turn,
                              qk_norm=norm, window=window, **biases)

        def block(name: str, source: str) -> int:
            for part in ("gate", "up", "down"):
                w[f"{at}{name}.{part}"] = tensors[f"{t}{source}.{part}_proj.weight"]
            return w[f"{at}{name}.gate"].shape[0]

        if t + "mlp.gate.weight" not in tensors:
            layers.append(LayerDesc(attention, DenseFfn(block("ffn", "mlp"))))
            continue
        w[at + "router"] = tensors[t + "mlp.gate.weight"]
        both, down = tensors[t + "mlp.experts.gate_up_proj"], tensors[t + "mlp.experts.down_proj"]
        for e in range(both.shape[0]):
            w[f"{at}experts.{e}.gate"], w[f"{at}experts.{e}.up"] = np.split(both[e], 2)
            w[f"{at}experts.{e}.down"] = down[e]
        ffn = MoeFfn(both.shape[0], c.num_experts_per_tok, down.shape[2],
                     renormalise=family == "mixtral" or c.norm_topk_prob)
        if family == "qwen2_moe":
            w[at + "shared_gate"] = tensors[t + "mlp.shared_expert_gate.weight"]
            ffn = replace(ffn, shared_ff=block("shared", "mlp.shared_expert"), shared_gate=True)
        layers.append(LayerDesc(attention, ffn))
    return Description(c.vocab_size, c.hidden_size, layers, F(c.rms_norm_eps),
                       tied=c.tie_word_embeddings), w


TOKENS = [(11 * i * i + 5 * i + 2) % 96 for i in range(40)]


def both(name: str) -> tuple[np.ndarray, Description, dict[str, np.ndarray]]:
    """Logits of transformers, and what the reference needs."""
    import torch
    model, tensors = build(name)
    with torch.no_grad():
        expected = model(torch.tensor([TOKENS])).logits[0].numpy()
    return expected, *translate(model, tensors)


@pytest.mark.parametrize("name", CASES)
def test_float32_kind_matches_transformers(name: str) -> None:
    expected, desc, weights = both(name)
    got = Model(desc, weights).logits(TOKENS)
    assert expected.std() > 0.3
    assert np.abs(got - expected).max() <= LIMIT


def _layers(desc: Description, change: Any) -> Description:
    return replace(desc, layers=[change(layer) for layer in desc.layers])


def _attention(**changes: Any) -> Any:
    return lambda d: _layers(d, lambda y: replace(y, attention=replace(y.attention, **changes)))


def _moe(**changes: Any) -> Any:
    return lambda d: _layers(d, lambda y: replace(y, ffn=replace(y.ffn, **changes))
                             if isinstance(y.ffn, MoeFfn) else y)


def _rope(**changes: Any) -> Any:
    return lambda d: _layers(d, lambda y: replace(y, attention=replace(
        y.attention, rope=replace(y.attention.rope, **changes))))


DEFAULT = Rope.make(10000.0, 24)
WRONG: list[tuple[str, str, Any]] = [
    ("llama", "eps", lambda d: replace(d, eps=F(1e-3))),
    ("llama", "score scale", _attention(score_scale=F(0.25))),
    ("llama", "interleaved", _rope(interleaved=True)),
    ("llama", "theta", _attention(rope=Rope.make(1e6, 24))),
    ("llama-linear", "no scaling", _attention(rope=DEFAULT)),
    ("llama-llama3", "no scaling", _attention(rope=DEFAULT)),
    ("llama-yarn", "no amplitude", _rope(amplitude=F(1))),
    ("llama-yarn", "no scaling", _rope(fractions=DEFAULT.fractions)),
    ("mixtral", "top_k", _moe(top_k=3)),
    ("mixtral", "renormalise", _moe(renormalise=False)),
    ("mixtral", "score", _moe(score="sigmoid")),
    ("mixtral-window", "none", _attention(window=0)),
    ("mixtral-window", "one more", _attention(window=7)),
    ("qwen2_moe", "renormalise", _moe(renormalise=True)),
]


@pytest.mark.parametrize("name,what,change", WRONG, ids=[f"{n}: {w}" for n, w, _ in WRONG])
def test_transformers_would_notice(name: str, what: str, change: Any) -> None:
    expected, desc, weights = both(name)
    assert np.abs(Model(change(desc), weights).logits(TOKENS) - expected).max() > 10 * LIMIT


@pytest.mark.parametrize("name,switch,names", [
    ("llama", {"q_bias": False}, ["q_bias"]), ("llama", {"k_bias": False}, ["k_bias"]),
    ("llama", {"v_bias": False}, ["v_bias"]), ("llama", {"o_bias": False}, ["o_bias"]),
    ("qwen3_moe", {"qk_norm": False}, ["q_norm", "k_norm"])])
def test_transformers_would_notice_a_missing_vector(name: str, switch: dict, names: list[str]) -> None:
    expected, desc, weights = both(name)
    kept = {k: w for k, w in weights.items() if k.split(".")[-1] not in names}
    assert np.abs(Model(_attention(**switch)(desc), kept).logits(TOKENS) - expected).max() > 10 * LIMIT


def test_transformers_would_notice_the_shared_expert() -> None:
    expected, desc, weights = both("qwen2_moe")
    no_gate = {k: w for k, w in weights.items() if not k.endswith("shared_gate")}
    got = Model(_moe(shared_gate=False)(desc), no_gate).logits(TOKENS)
    assert np.abs(got - expected).max() > 10 * LIMIT
