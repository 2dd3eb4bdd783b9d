"""LFM2: short convolutions between layers of attention, described, converted, run in parts and taken back."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from checkpoint_kit import entries_of, folder_of, refused
from colibri.description import Layer
from colibri.engine import Limits, Model, Session
from colibri.errors import ConvertError
from colibri.families import describe
from colibri.library import constants
from colibri.synth import SPECS, write_random_blob
from oracles import tensorfile

# As the published model says it, with fewer layers.
HUB: dict[str, Any] = {
    "architectures": ["Lfm2MoeForCausalLM"], "bos_token_id": 1, "conv_L_cache": 3, "conv_bias": False,
    "dtype": "bfloat16", "eos_token_id": 7, "hidden_size": 2048, "initializer_range": 0.02, "intermediate_size": 7168,
    "layer_types": ["conv", "conv", "full_attention", "conv"], "max_position_embeddings": 128000,
    "model_type": "lfm2_moe", "moe_intermediate_size": 1792, "norm_eps": 1e-05, "norm_topk_prob": True,
    "num_attention_heads": 32, "num_dense_layers": 2, "num_experts": 32, "num_experts_per_tok": 4,
    "num_hidden_layers": 4, "num_key_value_heads": 8, "pad_token_id": 0, "rope_theta": 1000000.0,
    "routed_scaling_factor": 1.0, "transformers_version": "4.56.1", "use_cache": True, "use_expert_bias": True,
    "vocab_size": 65536,
}  # fmt: skip


def layers(**fields: Any) -> list[Layer]:
    return describe({key: value for key, value in {**HUB, **fields}.items() if value is not ...}).model.layers


def test_the_published_config() -> None:
    c, found = constants(), layers()
    assert [layer.attention for layer in found] == [c.ATTENTION_CONV] * 2 + [c.ATTENTION_GQA, c.ATTENTION_CONV]
    first, third = found[0], found[2]
    assert (first.heads, first.kv_heads, first.head_dim, first.window, first.rope) == (1, 1, 2048, 3, None)
    assert (third.heads, third.kv_heads, third.head_dim, third.window, third.rope) == (32, 8, 64, None, 0)
    assert (first.qk_norm, third.qk_norm, first.biases) == (c.QK_NORM_NONE, c.QK_NORM_HEAD, 0)
    assert [layer.moe for layer in found] == [False, False, True, True] and first.ff == 7168
    assert (third.router_score, third.router_bias) == (c.ROUTER_SIGMOID, c.ROUTER_BIAS_SCORE)
    assert (third.router_renormalise, third.router_eps) == (c.RENORMALISE_SUM, pytest.approx(1e-6))
    assert describe(HUB).model.tied and not describe({**HUB, "tie_embedding": False}).model.tied
    assert layers(use_expert_bias=False)[3].router_bias is None
    assert layers(conv_bias=True)[0].biases == 31 and layers(conv_bias=True)[2].biases == 0
    assert layers(conv_L_cache=...)[0].window == 3 and layers(conv_L_cache=5)[1].window == 5


@pytest.mark.parametrize(("fields", "words"), [
    ({"layer_types": ...}, "'layer_types' is null; expected 4 times conv or full_attention"),
    ({"layer_types": ["conv"] * 3}, "expected 4 times conv or full_attention"),
    ({"layer_types": ["conv", "mamba", "conv", "conv"]}, "expected 4 times conv or full_attention"),
    ({"conv_L_cache": 0}, "'conv_L_cache' is 0"),
    ({"conv_bias": 1}, "'conv_bias' is 1; expected true or false"),
    ({"norm_eps": ...}, "'norm_eps' is missing"),
    ({"hidden_act": "gelu"}, "'hidden_act' is 'gelu'"),
    ({"conv_dim": 2048}, "'conv_dim' (2048) is not known"),
])  # fmt: skip
def test_fields_that_cannot_be_used_are_named(fields: dict[str, Any], words: str) -> None:
    with pytest.raises(ConvertError) as caught:
        layers(**fields)
    assert words in str(caught.value)


@pytest.mark.parametrize("name", [
    "model.layers.1.conv.in_proj.weight", "model.layers.1.conv.conv.weight", "model.layers.1.conv.out_proj.weight",
    "model.layers.1.conv.in_proj.bias", "model.layers.1.conv.conv.bias", "model.layers.0.operator_norm.weight",
    "model.layers.0.self_attn.q_layernorm.weight", "model.embedding_norm.weight",
    "model.layers.1.feed_forward.gate.weight",
])  # fmt: skip
def test_tensors_missing_renamed_and_of_wrong_shape_are_named(name: str, tmp_path: Path) -> None:
    folder, entries = folder_of("lfm2_biased", tmp_path), entries_of("lfm2_biased")
    mine = next(e for e in entries if e.name == name)
    rest = [e for e in entries if e is not mine]
    for broken in (rest, [*rest, mine._replace(name=name + "s")]):
        tensorfile.write(folder / "model.safetensors", broken)
        assert f"tensor {name!r} is missing" in refused(folder)
    data = mine.data()[:-1]
    tensorfile.write(folder / "model.safetensors", [*rest, mine._replace(shape=data.shape, data=lambda: data)])
    assert f"tensor {name!r} has shape {list(data.shape)}" in refused(folder)
    more = mine._replace(name="model.layers.1.feed_forward.expert_bias")
    tensorfile.write(folder / "model.safetensors", [*entries, more])
    assert f"tensor {more.name!r} belongs to nothing" in refused(folder)


@pytest.mark.parametrize("kv", ["f32", "f16", "q8"])
def test_parts_and_rewinds_change_no_bit(kv: str, tmp_path: Path) -> None:
    """A ring of taps forgets no more than the planned rewind: feeds of any length, taken back, give the same logits."""
    write_random_blob(tmp_path / "m.colibri", "conv", 7, "q8")
    model, spec = Model.open(tmp_path / "m.colibri"), SPECS["conv"]
    tokens = [(5 * i * i + 3 * i + 2) % spec.vocab for i in range(70)]
    whole = fed(model, tokens, [1] * 70, kv)
    assert np.array_equal(fed(model, tokens, [16, 16, 16, 16, 6], kv), whole)
    assert np.array_equal(fed(model, tokens, [3, 13, 7, 16, 16, 15], kv), whole)
    with Session(model, Limits(context=96, batch=16, logit_rows=16, rewind=5, kv=kv)) as session:
        for first in range(0, 64, 16):
            session.feed(tokens[first : first + 16], want="all")
            session.finish()
        session.rewind(59)
        session.feed(tokens[59:70], want="all")
        session.finish()
        assert np.array_equal(np.stack([session.logits(i) for i in range(11)]), whole[59:])


def fed(model: Model, tokens: list[int], parts: list[int], kv: str) -> np.ndarray:
    rows: list[np.ndarray] = []
    with Session(model, Limits(context=96, batch=16, logit_rows=16, kv=kv)) as session:
        for count in parts:
            session.feed(tokens[len(rows) : len(rows) + count], want="all")
            session.finish()
            rows += [session.logits(i).copy() for i in range(count)]
    return np.stack(rows)


def test_the_cache_of_a_convolution_does_not_grow(tmp_path: Path) -> None:
    """Its share of a plan is a ring of its taps, batch and rewind, whatever the context."""
    spec = SPECS["conv"]
    write_random_blob(tmp_path / "a.colibri", spec, 7, "q8")
    model = Model.open(tmp_path / "a.colibri")

    def cache(context: int) -> int:
        plan = model.plan(Limits(context=context, batch=16, kv="f32"))
        return next(region.bytes for region in plan.regions if region.name == "kv")

    attention = 2 * 64 * spec.head_dim * spec.kv_heads  # bytes of a tile of 16 positions, K and V
    assert cache(4096) - cache(1024) == (4096 - 1024) // 16 * attention
