"""Gates of attended heads and norms of 1 + w: published configs, what is refused, and what changes no bit."""

from __future__ import annotations

from dataclasses import replace
from decimal import Decimal
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from checkpoint_kit import entries_of, folder_of, refused
from colibri.blobwriter import write_blob
from colibri.convert import ConvertOptions, convert
from colibri.description import Model as Description
from colibri.engine import Limits, Model, Session
from colibri.errors import ColibriError, ConvertError
from colibri.families import describe
from colibri.format import Kinds
from colibri.library import constants
from colibri.rope import inverse_root
from colibri.synth import SPECS, Weights, random_weights
from oracles import tensorfile
from oracles.running import Engine

# As the published models say it, with fewer layers.
TRINITY: dict[str, Any] = {
    "architectures": ["AfmoeForCausalLM"], "attention_dropout": 0.0, "dtype": "bfloat16",
    "global_attn_every_n_layers": 4, "head_dim": 128, "hidden_act": "silu", "hidden_size": 2048,
    "initializer_range": 0.02, "intermediate_size": 6144, "load_balance_coeff": 0.001,
    "max_position_embeddings": 131072, "model_type": "afmoe", "moe_intermediate_size": 1024, "mup_enabled": True,
    "n_group": 1, "num_attention_heads": 32, "num_dense_layers": 2, "num_expert_groups": 1, "num_experts": 128,
    "num_experts_per_tok": 8, "num_hidden_layers": 5, "num_key_value_heads": 4, "num_limited_groups": 1,
    "num_shared_experts": 1, "rms_norm_eps": 1e-05, "rope_scaling": None, "rope_theta": 10000, "route_norm": True,
    "route_scale": 2.826, "score_func": "sigmoid", "sliding_window": 2048, "tie_word_embeddings": False,
    "topk_group": 1, "use_cache": True, "use_grouped_mm": True, "vocab_size": 200192,
}  # fmt: skip
GEMMA: dict[str, Any] = {
    "architectures": ["Gemma3ForCausalLM"], "attention_bias": False, "attention_dropout": 0.0,
    "attn_logit_softcapping": None, "bos_token_id": 2, "cache_implementation": "hybrid", "eos_token_id": [1, 106],
    "final_logit_softcapping": None, "head_dim": 256, "hidden_activation": "gelu_pytorch_tanh", "hidden_size": 1152,
    "initializer_range": 0.02, "intermediate_size": 6912, "max_position_embeddings": 32768,
    "model_type": "gemma3_text", "num_attention_heads": 4, "num_hidden_layers": 7, "num_key_value_heads": 1,
    "pad_token_id": 0, "query_pre_attn_scalar": 256, "rms_norm_eps": 1e-06, "rope_local_base_freq": 10000,
    "rope_scaling": None, "rope_theta": 1000000, "sliding_window": 512, "sliding_window_pattern": 6,
    "torch_dtype": "bfloat16", "use_cache": True, "vocab_size": 262144,
}  # fmt: skip


def described(published: dict[str, Any], **fields: Any) -> Description:
    return describe({key: value for key, value in {**published, **fields}.items() if value is not ...}).model


def test_the_published_trinity() -> None:
    c, found = constants(), described(TRINITY)
    assert {layer.head_gates for layer in found.layers} == {c.HEAD_GATES_ELEMENT}
    assert [layer.window for layer in found.layers] == [2048, 2048, 2048, None, 2048]
    assert [layer.rope for layer in found.layers] == [0, 0, 0, None, 0]
    assert [layer.moe for layer in found.layers] == [False, False, True, True, True]
    assert found.embed_multiplier == float(np.sqrt(np.float32(2048)))
    assert described(TRINITY, mup_enabled=False).embed_multiplier is None
    last = found.layers[-1]
    assert (last.shared_ff, last.router_score, last.router_bias) == (1024, c.ROUTER_SIGMOID, c.ROUTER_BIAS_SCORE)
    assert (last.router_scale, last.router_renormalise) == (np.float32(2.826), c.RENORMALISE_SUM)
    assert last.post_norms == c.POST_NORM_ATTENTION | c.POST_NORM_FFN and last.qk_norm == c.QK_NORM_HEAD
    absent = described(TRINITY, num_dense_layers=..., num_shared_experts=..., sliding_window=...,
                       global_attn_every_n_layers=...).layers  # fmt: skip
    assert [layer.moe for layer in absent] == [False, True, True, True, True] and absent[1].shared_ff == 2 * 1024
    assert [layer.window for layer in absent] == [1024, 1024, 1024, None, 1024]


def test_the_published_gemma() -> None:
    c, found = constants(), described(GEMMA)
    assert [layer.window for layer in found.layers] == [512] * 5 + [None, 512]
    assert [layer.rope for layer in found.layers] == [1] * 5 + [0, 1]
    wide, local = found.ropes
    assert len(wide.fractions) == len(local.fractions) == 128 and wide.fractions[1] < local.fractions[1]
    assert found.tied and found.embed_multiplier == float(np.float32(1152**0.5)) and found.logit_softcap is None
    first = found.layers[0]
    assert (first.score_scale, first.activation) == (0.0625, c.ACTIVATION_GELU_TANH)
    assert described(GEMMA, query_pre_attn_scalar=168).layers[0].score_scale == inverse_root(168)
    assert described(GEMMA, final_logit_softcapping=30.0).logit_softcap == 30.0
    linear = described(GEMMA, rope_scaling={"factor": 8.0, "rope_type": "linear"}).ropes
    assert linear[1] == local and abs(8 * linear[0].fractions[1] - wide.fractions[1]) <= 8
    kinds = {"full_attention": {"rope_type": "linear", "factor": 8.0}, "sliding_attention": {"rope_theta": 10000.0}}
    assert described(GEMMA, rope_theta=..., rope_local_base_freq=..., rope_parameters=kinds).ropes == linear


@pytest.mark.parametrize(("published", "fields", "words"), [
    (TRINITY, {"sliding_window": None}, "'sliding_window' is null; expected a width"),
    (TRINITY, {"route_norm": False}, "'route_norm' is false; expected true"),
    (TRINITY, {"score_func": "softmax"}, "'score_func' is 'softmax'; expected 'sigmoid'"),
    (TRINITY, {"n_group": 2}, "'n_group' is 2; expected 1"),
    (TRINITY, {"mup_enabled": 1}, "'mup_enabled' is 1; expected true or false"),
    (TRINITY, {"global_attn_every_n_layers": 0}, "'global_attn_every_n_layers' is 0"),
    (GEMMA, {"sliding_window": None}, "'sliding_window' is null; expected a width"),
    (GEMMA, {"use_bidirectional_attention": True}, "'use_bidirectional_attention' is true; expected false"),
    (GEMMA, {"attn_logit_softcapping": 50.0}, "'attn_logit_softcapping' is 50.0; expected null"),
    (GEMMA, {"final_logit_softcapping": -1.0}, "'final_logit_softcapping' is -1.0; expected a number above 0"),
    (GEMMA, {"query_pre_attn_scalar": 0}, "'query_pre_attn_scalar' is 0"),
    (GEMMA, {"rope_parameters": {"rope_type": "default"}}, "'rope_parameters' is "),
    (GEMMA, {"rope_parameters": {"full_attention": 5}}, "expected fields of full_attention and sliding_attention"),
    (GEMMA, {"rope_parameters": {"sliding_attention": {"rope_theta": 5}}}, "'rope_local_base_freq' is 10000"),
    (GEMMA, {"rope_scaling": {"type": "linear", "factor": 2}, "rope_parameters": {"full_attention": {}}},
     "two answers to one question"),
    (GEMMA, {"rope_scaling": {"partial_rotary_factor": Decimal("0.5")}}, "this family rotates whole heads"),
    (GEMMA, {"hidden_activation": "relu"}, "'hidden_activation' is 'relu'"),
    (GEMMA, {"vision_config": {}}, "'vision_config' ({}) is not known"),
])  # fmt: skip
def test_fields_that_cannot_be_used_are_named(published: dict[str, Any], fields: dict[str, Any], words: str) -> None:
    with pytest.raises(ConvertError) as caught:
        described(published, **fields)
    assert words in str(caught.value)


@pytest.mark.parametrize(("case", "name"), [
    ("afmoe_gates", "model.layers.1.self_attn.gate_proj.weight"),
    ("afmoe_gates", "model.layers.2.mlp.router.gate.weight"), ("afmoe_gates", "model.layers.2.mlp.expert_bias"),
    ("afmoe_gates", "model.layers.0.pre_mlp_layernorm.weight"),
    ("gemma3_turns", "model.layers.0.pre_feedforward_layernorm.weight"),
    ("gemma3_turns", "model.layers.3.self_attn.q_norm.weight"), ("gemma3_turns", "model.norm.weight"),
])  # fmt: skip
def test_tensors_missing_renamed_and_of_wrong_shape_are_named(case: str, name: str, tmp_path: Path) -> None:
    folder, entries = folder_of(case, tmp_path), entries_of(case)
    mine = next(e for e in entries if e.name == name)
    rest = [e for e in entries if e is not mine]
    for broken in (rest, [*rest, mine._replace(name=name + "s")]):
        tensorfile.write(folder / "model.safetensors", broken)
        assert f"tensor {name!r} is missing" in refused(folder)
    data = mine.data()[:-1]
    tensorfile.write(folder / "model.safetensors", [*rest, mine._replace(shape=data.shape, data=lambda: data)])
    assert f"tensor {name!r} has shape {list(data.shape)}" in refused(folder)


def test_norms_are_one_and_what_the_checkpoint_holds(tmp_path: Path) -> None:
    """w + 1 as one rounded float32 sum, in every norm; weights that are no norm's stay."""
    made = convert(folder_of("gemma3_turns", tmp_path), tmp_path / "m.colibri", ConvertOptions("f32", tokenizer=False))
    raw = made.path.read_bytes()
    own = {e.name: e.data().reshape(-1) for e in entries_of("gemma3_turns")}
    seen = 0
    for tensor in made.written.layout.tensors:
        if tensor.vector:
            stored = np.frombuffer(raw, "<f4", tensor.columns, tensor.offset)
            expected = own[made.described.tensor_name(tensor)].astype(np.float32) + np.float32(1)
            assert np.array_equal(stored, expected) and expected.dtype == np.float32, tensor.label
            seen += 1
    assert seen == 4 * 6 + 1


def logits_of(model: Description, weights: dict[str, np.ndarray], kind: str, path: Path) -> np.ndarray:
    write_blob(path, model, Kinds.preset(kind), Weights(weights), overwrite=True)
    return Engine(path).logits([(7 * i * i + 1) % model.vocab for i in range(29)])


@pytest.mark.parametrize("kind", ["f32", "f16", "q8", "q4"])
def test_one_gate_a_head_is_as_many_equal_ones(kind: str, tmp_path: Path) -> None:
    """Bit for bit; so what transformers proves of gates of every number is proved of gates of heads."""
    heads = SPECS["head-gates"].model()
    weights = random_weights(heads, 3)
    each = replace(SPECS["head-gates"], head_gates="element").model()
    repeated = {name: np.repeat(value, SPECS["head-gates"].head_dim, axis=0) if name.endswith("head_gate") else value
                for name, value in weights.items()}  # fmt: skip
    one = logits_of(heads, weights, kind, tmp_path / "a.colibri")
    assert np.array_equal(one, logits_of(each, repeated, kind, tmp_path / "b.colibri"))
    closed = {name: -value if name.endswith("head_gate") else value for name, value in weights.items()}
    assert np.abs(one - logits_of(heads, closed, kind, tmp_path / "c.colibri")).max() > 1e-3


def test_gates_of_zero_halve(tmp_path: Path) -> None:
    """sigmoid(0) is 1/2 exactly: the same as half of o."""
    spec = replace(SPECS["gates"], post_norms="")
    weights = random_weights(spec.model(), 5)
    zero = {name: value * 0 if name.endswith("head_gate") else value for name, value in weights.items()}
    half = {name: value * np.float32(0.5) if name.endswith(".o") else value
            for name, value in weights.items() if not name.endswith("head_gate")}  # fmt: skip
    plain = replace(spec, head_gates="").model()
    found = logits_of(spec.model(), zero, "f32", tmp_path / "a.colibri")
    assert np.array_equal(found, logits_of(plain, half, "f32", tmp_path / "b.colibri"))


@pytest.mark.parametrize("kv", ["f32", "f16", "q8"])
@pytest.mark.parametrize("name", ["gates", "head-gates", "gated-conv"])
def test_parts_and_workers_change_no_bit(name: str, kv: str, tmp_path: Path) -> None:
    spec = SPECS[name]
    write_blob(tmp_path / "m.colibri", spec.model(), Kinds.preset("q4"), Weights(random_weights(spec.model(), 7)))
    model = Model.open(tmp_path / "m.colibri")
    tokens = [(5 * i * i + 3 * i + 2) % spec.vocab for i in range(40)]
    whole = fed(model, tokens, [1] * 40, kv)
    assert np.array_equal(fed(model, tokens, [16, 16, 8], kv), whole)
    assert np.array_equal(fed(model, tokens, [3, 13, 7, 16, 1], kv, workers=3), whole)


def fed(model: Model, tokens: list[int], parts: list[int], kv: str, workers: int = 1) -> np.ndarray:
    rows: list[np.ndarray] = []
    with Session(model, Limits(context=64, batch=16, logit_rows=16, kv=kv, workers=workers)) as session:
        for count in parts:
            session.feed(tokens[len(rows) : len(rows) + count], want="all")
            session.finish()
            rows += [session.logits(i).copy() for i in range(count)]
    return np.stack(rows)


def test_a_gate_that_is_not_finite_is_an_error(tmp_path: Path) -> None:
    """Found by its bits before the exponential clamps it."""
    spec = SPECS["head-gates"]
    weights = random_weights(spec.model(), 9)
    name = next(name for name in weights if name.endswith("head_gate"))
    weights[name] = weights[name] * np.float32(0) + np.float32(3e38)
    with pytest.raises(ColibriError, match="NOT_FINITE"):
        logits_of(spec.model(), weights, "f32", tmp_path / "a.colibri")
