"""Conversion: what a Hugging Face folder says is what the blob says, all else is refused by name."""

from __future__ import annotations

import contextlib
import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Callable
from decimal import Decimal
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from checkpoint_kit import PLAIN, change_config, entries_of, folder_of, refused, small_tokenizer
from colibri import latent
from colibri.blobfile import BlobFile
from colibri.convert import ConvertOptions, convert
from colibri.description import Layer
from colibri.errors import ConvertError, UsageError
from colibri.families import describe
from colibri.family_table import FAMILIES
from colibri.format import EVERY_LAYER
from colibri.library import constants
from colibri.rope import Scaling, inverse_root, nearest_f32
from colibri.sidefiles import generation_records
from colibri.source import Folder
from colibri.unfinished import Work
from oracles import cases, checkpoints, draw, tensorfile
from reference import rope as reference_rope

# --- rotary frequencies ---

LAWS: dict[str, dict[str, Any]] = {
    "default": {},
    "linear": {"rope_type": "linear", "factor": Decimal("2.5")},
    "llama3": {"rope_type": "llama3", "factor": 8, "low_freq_factor": 1, "high_freq_factor": 4,
               "original_max_position_embeddings": 8192},
    "yarn": {"rope_type": "yarn", "factor": 40, "original_max_position_embeddings": 4096},
    "yarn mscale": {"type": "yarn", "factor": Decimal("32.5"), "original_max_position_embeddings": 4096,
                    "mscale": Decimal("0.707"), "mscale_all_dim": Decimal("0.9")},
    "yarn fine": {"rope_type": "yarn", "factor": 4, "original_max_position_embeddings": 32, "beta_fast": 4,
                  "beta_slow": Decimal("0.5"), "truncate": False, "attention_factor": Decimal("1.25")},
}  # fmt: skip


@pytest.mark.parametrize("law", LAWS)
@pytest.mark.parametrize("theta, width", [(10000, 64), (1000000, 128), (Decimal("500000.0"), 20), (100, 2)])
def test_fractions_equal_the_independent_computation(law: str, theta: Any, width: int) -> None:
    scaling = Scaling(LAWS[law], theta, width, 4096, "test")
    fractions, amplitude = reference_rope.rope_fractions(theta, width, LAWS[law])
    assert scaling.fractions() == tuple(int(f) for f in fractions)
    assert np.float32(scaling.amplitude()) == amplitude


def test_the_fastest_pair_turns_by_one_radian() -> None:
    scaling = Scaling({}, 10000, 8, 4096, "test")
    assert scaling.fractions()[0] == 2935890503282001226  # 2^64 / (2 pi) = ...226.30
    assert Scaling({"partial_rotary_factor": Decimal("0.5")}, 10000, 16, 4096, "test").width == 8
    assert Scaling({"rope_theta": 10000}, 5, 8, 4096, "test").fractions() == scaling.fractions()


@pytest.mark.parametrize(
    "fields, words",
    [
        ({"rope_type": "longrope"}, "rope_type is 'longrope'; this version reads"),
        ({"rope_type": "linear"}, "'factor' is None"),
        ({"rope_type": "linear", "factor": 0}, "'factor' is 0"),
        ({"rope_type": "linear", "factor": "2"}, "'factor' is '2'"),
        ({"factor": 2}, "'factor' is not known for rope_type 'default'"),
        ({"rope_theta": 0}, "rope_theta is 0"),
        ({"partial_rotary_factor": Decimal("0.2")}, "rotated width is 3 of head_dim 16"),
        ({"partial_rotary_factor": 2}, "rotated width is 32 of head_dim 16"),
        ({**LAWS["llama3"], "low_freq_factor": 5}, "below low_freq_factor"),
    ],
)
def test_rope_fields_that_cannot_be_used_are_named(fields: dict[str, Any], words: str) -> None:
    with pytest.raises(ConvertError, match="config: ") as caught:
        Scaling(fields, 10000, 16, 4096, "config").fractions()
    assert words in str(caught.value)


def test_float32_values_are_the_nearest_ones() -> None:
    for head_dim in (1, 3, 20, 64, 80, 96, 128, 192):
        assert np.float32(inverse_root(head_dim)) == np.float32(head_dim**-0.5)
    halfway = "1.000000059604644775390625"  # 1 + 2^-24
    assert nearest_f32(Decimal(halfway)) == 1.0
    assert (
        nearest_f32(Decimal(halfway + "0000000000000001")) == 1.0 + 2.0**-23
    )  # a detour over double loses this


# --- config.json to description ---

BASE: dict[str, Any] = {
    "vocab_size": 50, "hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 4,
    "num_attention_heads": 4, "num_key_value_heads": 2, "max_position_embeddings": 64,
    "rms_norm_eps": Decimal("1e-5"),
}  # fmt: skip
MOE = {"num_experts": 6, "num_experts_per_tok": 2, "moe_intermediate_size": 24}


def layers_of(**fields: Any) -> list[Any]:
    return describe({**BASE, **fields}).model.layers


def windows(**fields: Any) -> list[int | None]:
    return [layer.window for layer in layers_of(**fields)]


def test_windows_follow_each_family() -> None:
    assert windows(model_type="llama") == [None] * 4
    assert windows(model_type="mistral") == [4096] * 4  # the class's own default
    assert windows(model_type="mistral", sliding_window=None) == [None] * 4
    assert windows(model_type="mixtral", num_local_experts=4, num_experts_per_tok=1) == [None] * 4
    assert windows(model_type="qwen2", sliding_window=9) == [None] * 4
    on = {"use_sliding_window": True, "sliding_window": 9}
    assert windows(model_type="qwen2", max_window_layers=3, **on) == [None, None, None, 9]
    assert windows(model_type="qwen2", **on) == [None] * 4  # from layer 28 on
    assert windows(model_type="qwen2_moe", shared_expert_intermediate_size=8, max_window_layers=3, **on,
                   **MOE) == [9, None, 9, None]  # fmt: skip
    assert windows(model_type="qwen3_moe", max_window_layers=3, **on, **MOE) == [9] * 4
    kinds = ["full_attention", "sliding_attention", "sliding_attention", "full_attention"]
    assert windows(model_type="qwen3", layer_types=kinds, **on) == [None, 9, 9, None]
    with pytest.raises(ConvertError, match="sliding window is switched off"):
        windows(model_type="qwen3", layer_types=kinds)
    with pytest.raises(ConvertError, match="4 times full_attention"):
        windows(model_type="qwen3", layer_types=kinds[:3], **on)


def test_layers_with_experts_are_chosen_as_the_family_says() -> None:
    def sparse(**fields: Any) -> list[bool]:
        return [layer.moe for layer in layers_of(**{**MOE, **fields})]

    assert sparse(model_type="qwen3_moe", decoder_sparse_step=2) == [False, True, False, True]
    assert sparse(model_type="qwen3_moe", mlp_only_layers=[0, 3]) == [False, True, True, False]
    assert sparse(model_type="glm4_moe", n_routed_experts=6) == [False, True, True, True]
    ernie = {"model_type": "ernie4_5_moe", "moe_num_experts": 6, "moe_k": 2, "moe_layer_interval": 2,
             "moe_layer_end_index": 2, "num_experts": ..., "num_experts_per_tok": ...}  # fmt: skip
    fields = {key: value for key, value in {**MOE, **ernie}.items() if value is not ...}
    assert [layer.moe for layer in layers_of(**fields)] == [False, True, False, False]


def test_switches_of_the_families() -> None:
    c = constants()
    layer = layers_of(model_type="qwen2_moe", shared_expert_intermediate_size=40, **MOE)[0]
    assert (layer.router_renormalise, layer.shared_ff, layer.shared_gate, layer.ff) == (0, 40, 1, 24)
    assert layer.biases == c.BIAS_Q | c.BIAS_K | c.BIAS_V
    assert (
        layers_of(model_type="qwen2_moe", shared_expert_intermediate_size=40, qkv_bias=False, **MOE)[0].biases
        == 0
    )
    layer = layers_of(model_type="qwen3_moe", norm_topk_prob=True, attention_bias=True, **MOE)[0]
    assert (layer.qk_norm, layer.router_renormalise, layer.shared_ff, layer.biases) == (1, 1, None, 15)
    layer = layers_of(model_type="dots1", n_routed_experts=6, n_shared_experts=2, routed_scaling_factor=2,
                      num_experts_per_tok=2, moe_intermediate_size=24)[0]  # fmt: skip
    assert (layer.router_score, layer.router_scale, layer.shared_ff) == (c.ROUTER_SIGMOID, 2.0, 48)
    assert layer.shared_gate == 0 and layer.router_eps is None  # not renormalised: no sum to add it to
    granite = describe({**BASE, "model_type": "granite", "logits_scaling": 8, "embedding_multiplier": 12,
                        "attention_multiplier": Decimal("0.0625")}).model  # fmt: skip
    assert (granite.logit_multiplier, granite.embed_multiplier) == (0.125, 12.0)
    assert (granite.layers[0].score_scale, granite.layers[0].residual_multiplier) == (0.0625, None)
    assert describe({**BASE, "model_type": "ernie4_5"}).model.ropes[0].interleaved
    assert describe({**BASE, "model_type": "ernie4_5"}).model.tied
    assert len(describe({**BASE, **MOE, "model_type": "glm4_moe"}).model.ropes[0].fractions) == 4


def test_absent_key_value_heads_mean_what_the_family_says() -> None:
    bare = {key: value for key, value in BASE.items() if key != "num_key_value_heads"}
    assert describe({**bare, "model_type": "llama"}).model.layers[0].kv_heads == 4
    assert (
        describe({**bare, "model_type": "mistral", "num_attention_heads": 16}).model.layers[0].kv_heads == 8
    )
    null = {"num_key_value_heads": None, "num_attention_heads": 16}
    assert describe({**bare, "model_type": "mistral", **null}).model.layers[0].kv_heads == 16


def test_both_rope_spellings_describe_the_same_model() -> None:
    numbers = {"factor": 4, "original_max_position_embeddings": 32}
    new = {"rope_parameters": {"rope_type": "yarn", "rope_theta": 500, **numbers}}
    old = {"rope_theta": 500, "rope_scaling": {"type": "yarn", **numbers}}
    models = [describe({**BASE, "model_type": "llama", **spelling}).model for spelling in (new, old)]
    assert models[0] == models[1]
    theta = describe(
        {**BASE, "model_type": "mixtral", "num_local_experts": 2, "num_experts_per_tok": 1}
    ).model
    assert theta.ropes[0].fractions == Scaling({}, 1000000, 16, 64, "test").fractions()


@pytest.mark.parametrize(
    "fields, words",
    [
        ({"model_type": "mamba"}, "model_type 'mamba' cannot be converted: its layers carry a recurrent state"),
        ({"model_type": "albatross"}, "model_type 'albatross' is not known; this version converts afmoe, "),
        ({"model_type": ...}, "field 'model_type' is missing"),
        ({"hidden_size": ...}, "field 'hidden_size' is missing"),
        ({"rms_norm_eps": None}, "field 'rms_norm_eps' is missing"),
        ({"alibi": True}, "field 'alibi' (true) is not known"),
        ({"hidden_act": "relu"}, "field 'hidden_act' is 'relu'; expected one of silu"),
        ({"mlp_bias": 1}, "field 'mlp_bias' is 1; expected true or false"),
        ({"quantization_config": {"bits": 4}}, "field 'quantization_config' is"),
        ({"num_hidden_layers": 0}, "field 'num_hidden_layers' is 0; expected a whole number from 1 on"),
        ({"num_hidden_layers": Decimal("2.5")}, "field 'num_hidden_layers' is 2.5"),
        ({"num_hidden_layers": True}, "field 'num_hidden_layers' is true"),
        ({"num_hidden_layers": "3"}, "field 'num_hidden_layers' is '3'"),
        ({"num_key_value_heads": 3}, "a divisor of num_attention_heads 4"),
        ({"hidden_size": 66}, "a multiple of num_attention_heads 4"),
        ({"tie_word_embeddings": "no"}, "expected true or false"),
        (
            {"rope_parameters": {"rope_theta": 1}, "rope_scaling": {"factor": 2}},
            "two answers to one question",
        ),
        ({"rope_parameters": {"full_attention": {"rope_theta": 1}}}, "one set of numbers for all layers"),
        ({"rope_parameters": {"rope_theta": 7}, "rope_theta": 8}, "field 'rope_theta' is 8; expected 7"),
        ({"partial_rotary_factor": Decimal("0.5")}, "this family rotates whole heads"),
        ({"rms_norm_eps": Decimal("-1")}, "field 'rms_norm_eps' is -1; expected a number above 0"),
    ],
)
def test_config_fields_that_cannot_be_used_are_named(fields: dict[str, Any], words: str) -> None:
    document = {
        key: value for key, value in {**BASE, "model_type": "llama", **fields}.items() if value is not ...
    }
    with pytest.raises(ConvertError) as caught:
        describe(document, "x/config.json")
    assert words in str(caught.value) and str(caught.value).startswith("x/config.json: ")


def test_too_many_experts_per_token_are_refused() -> None:
    with pytest.raises(ConvertError, match="'num_experts_per_tok' is 7; expected at most the 6 experts"):
        layers_of(model_type="qwen3_moe", **{**MOE, "num_experts_per_tok": 7})


@pytest.mark.parametrize(("groups", "best", "words"), [
    (4, 1, "field 'n_group' is 4; expected a divisor of the 6 experts"),
    (6, 6, "field 'n_group' is 6; expected a divisor of the 6 experts"),
    (3, 4, "field 'topk_group' is 4; expected enough of the 3 groups for 3 experts"),
    (3, 1, "field 'topk_group' is 1; expected enough of the 3 groups for 3 experts"),
])
def test_groups_that_do_not_fit_the_experts_are_refused(groups: int, best: int, words: str) -> None:
    with pytest.raises(ConvertError, match=words):
        layers_of(model_type="dots1", n_group=groups, topk_group=best, **{**MOE, "num_experts_per_tok": 3})


def test_routers_become_switches() -> None:
    c = constants()
    layer = layers_of(model_type="glm4_moe", n_group=3, topk_group=2, **MOE)[1]
    assert (layer.router_bias, layer.router_groups, layer.router_top_groups, layer.router_group_score) == (
        c.ROUTER_BIAS_SCORE, 3, 2, c.GROUP_TOP_TWO)
    assert layers_of(model_type="dots1", n_group=1, topk_group=1, **MOE)[0].router_groups is None
    layer = layers_of(model_type="ernie4_5_moe", moe_num_experts=6, moe_k=2, moe_intermediate_size=8,
                      moe_norm_min=Decimal("0.5"))[1]
    assert (layer.router_sum_min, layer.router_bias, layer.router_score) == (0.5, c.ROUTER_BIAS_SCORE, c.ROUTER_SOFTMAX)
    fused = {key: value for key, value in MOE.items() if key != "moe_intermediate_size"}
    layer = layers_of(model_type="granitemoe", **fused)[0]
    assert (layer.router_score, layer.router_renormalise, layer.router_bias) == (
        c.ROUTER_LOGIT, c.RENORMALISE_SOFTMAX, None)
    model = describe({**BASE, **fused, "model_type": "minimax_m2", "head_dim": 24, "rotary_dim": 8}).model
    assert len(model.ropes[0].fractions) == 4 and model.layers[0].qk_norm == c.QK_NORM_WIDTH
    with pytest.raises(ConvertError, match="field 'attn_type_list' is .*; expected 4 times 1"):
        layers_of(model_type="minimax_m2", attn_type_list=[1, 0, 1], **fused)


# --- folders to blobs ---


def _factor(drawn: np.ndarray, layer: Layer, role: str) -> np.ndarray:
    """A head after the other: the rows of its key, transposed, or those of its value."""
    heads = np.split(drawn, layer.heads)
    parts = [head[: layer.nope_dim].T if role == "K_UP" else head[layer.nope_dim :] for head in heads]
    return np.concatenate(parts)


@pytest.mark.sampled(4)
@pytest.mark.parametrize("name", cases.CASES)
def test_every_weight_of_every_family_arrives(tmp_path: Path, name: str) -> None:
    """Against the generator's own table of names and shapes, which knows nothing of ours."""
    case, folder = cases.CASES[name], folder_of(name, tmp_path / "hf")
    made = convert(folder, tmp_path / "m.colibri", PLAIN)
    blob = BlobFile(made.path)
    used = set()
    for tensor, expert in blob.matrices():
        place = made.described.place(tensor, expert)
        source = "language_model." * bool(case.shape.wrapped) + place.name
        shape = dict(checkpoints.tensors(case))[source]
        drawn = checkpoints.values(case, source, shape)
        if case.dtype == "F16":
            drawn = drawn.astype(np.float16).astype(np.float32)
        elif case.dtype == "BF16":
            drawn = tensorfile.from_bf16(tensorfile.to_bf16(drawn))
        found = blob.floats(tensor, expert)
        if tensor.role in latent.FACTORS:
            drawn = _factor(drawn, made.described.model.layers[tensor.layer], tensor.role)
        else:
            row, column = np.arange(tensor.rows)[:, None], np.arange(tensor.columns)[None, :]
            drawn = drawn.reshape(-1)[place.start + row * place.row + column * place.column]
        if case.family == "gemma3_text" and tensor.vector and tensor.role.endswith("NORM"):
            drawn = drawn + np.float32(1)  # stored as its distance from 1
        assert np.array_equal(found.reshape(-1), drawn.reshape(-1)), source
        used.add(source)
    left = {name for name, _ in checkpoints.tensors(case)} - used
    assert bool(left) == bool(case.shape.wrapped) and all(made.described.left_out(name) for name in left)
    kind = case.config["model_type"]
    assert case.family in FAMILIES and made.described.model_type == kind == (case.shape.wrapped or case.family)
    assert blob.provenance()["model_type"] == kind


def test_shards_and_single_files_give_the_same_blob(tmp_path: Path) -> None:
    folder = folder_of("mixtral_one", tmp_path / "one")
    shards = tmp_path / "many"
    shards.mkdir()
    shutil.copy(folder / "config.json", shards)
    entries = entries_of("mixtral_one")
    tensorfile.write_sharded(shards, [entries[i::3] for i in range(3)])
    options = ConvertOptions(weights="q4", tokenizer=False, source_name="same")
    results = [convert(source, tmp_path / f"{source.name}.colibri", options) for source in (folder, shards)]
    assert results[0].path.read_bytes() == results[1].path.read_bytes()
    assert str(tmp_path).encode() not in results[0].path.read_bytes()


def test_a_tied_head_is_one_tensor_with_two_roles(tmp_path: Path) -> None:
    folder = folder_of("mixtral_tied", tmp_path / "hf")
    blob = BlobFile(convert(folder, tmp_path / "a.colibri", PLAIN).path)
    assert blob.find("HEAD") is blob.find("EMBED") and blob.model().tied
    options = ConvertOptions(weights="q4", head="f16", tokenizer=False)
    blob = BlobFile(convert(folder, tmp_path / "b.colibri", options).path)
    assert blob.find("EMBED", EVERY_LAYER).kind == "f16"  # type: ignore[union-attr]
    with pytest.raises(UsageError, match="--embed q8 and --head f16"):
        convert(folder, tmp_path / "c.colibri", ConvertOptions(embed="q8", head="f16", tokenizer=False))


def test_a_tied_head_that_is_stored_twice_must_say_the_same(tmp_path: Path) -> None:
    folder, entries = folder_of("mixtral_tied", tmp_path / "hf"), entries_of("mixtral_tied")
    embed = entries[0]
    tensorfile.write(folder / "model.safetensors", [*entries, embed._replace(name="lm_head.weight")])
    once = convert(folder, tmp_path / "a.colibri", PLAIN)
    other = embed._replace(name="lm_head.weight", data=lambda: embed.data() * np.float32(1.5))
    tensorfile.write(folder / "model.safetensors", [*entries, other])
    assert "differs from the embedding, but config.json says tie_word_embeddings" in refused(folder)
    assert once.written.layout.model.tied


@pytest.mark.parametrize("weights", ["f16", "q8", "q4"])
def test_kinds_go_where_the_options_send_them(tmp_path: Path, weights: str) -> None:
    folder = folder_of("qwen2_moe_plain", tmp_path / "hf")
    options = ConvertOptions(weights=weights, attention="f32", ffn="f16", tokenizer=False)
    blob = BlobFile(convert(folder, tmp_path / "m.colibri", options).path)
    kinds = {tensor.role: tensor.kind for tensor in blob.tensors}
    assert {kinds[r] for r in "QKVO"} == {"f32"}
    assert {kinds[r] for r in ("GATE", "UP", "DOWN", "SHARED_GATE", "SHARED_UP", "SHARED_DOWN")} == {"f16"}
    assert {kinds[r] for r in ("EXPERT_GATE", "EXPERT_UP", "EXPERT_DOWN")} == {weights}
    assert {kinds[r] for r in ("EMBED", "HEAD")} == {"q8" if weights == "q4" else weights}
    assert {kinds[r] for r in ("ROUTER", "SHARED_SWITCH", "FINAL_NORM", "Q_BIAS")} == {"f32"}
    with pytest.raises(UsageError, match="--experts q5: expected one of f32, f16, q8, q4"):
        convert(folder, tmp_path / "n.colibri", ConvertOptions(experts="q5", tokenizer=False))


def test_a_description_can_be_changed_before_it_is_written(tmp_path: Path) -> None:
    folder = folder_of("llama_gqa_bias", tmp_path / "hf")

    def without_bias(model: Any) -> None:
        for layer in model.layers:
            layer.biases = 0

    convert(folder, tmp_path / "m.colibri", PLAIN, patch_description=without_bias)
    roles = {tensor.role for tensor in BlobFile(tmp_path / "m.colibri").tensors}
    assert "Q" in roles and "Q_BIAS" not in roles


def test_progress_ends_at_all_weights(tmp_path: Path) -> None:
    seen: list[tuple[int, int, str]] = []
    made = convert(folder_of("llama_mha", tmp_path / "hf"), tmp_path / "m.colibri", PLAIN,
                   work=Work(progress=lambda *step: seen.append(step)))  # fmt: skip
    numbers = sum(t.rows * t.columns * t.count for t in made.written.layout.tensors)
    weights = [(done, total) for done, total, what in seen if what != "sums"]
    assert [done for done, _ in weights] == sorted({done for done, _ in weights})
    assert {total for _, total in weights} == {numbers} and weights[-1] == (numbers, numbers)
    assert seen[-1][2] == "sums" and seen[-1][0] == seen[-1][1]


# --- weights that are refused ---


def replaced(name: str, **changes: Any) -> Callable[[list[tensorfile.Entry]], list[tensorfile.Entry]]:
    return lambda entries: [e._replace(**changes) if e.name == name else e for e in entries]


def poisoned(value: float) -> Callable[[], np.ndarray]:
    def data() -> np.ndarray:
        made = np.ones((64, 64), dtype=np.float32)
        made[7, 9] = value
        return made

    return data


Q = "model.layers.1.self_attn.q_proj.weight"
WEIGHTS: dict[str, tuple[Callable[[list[tensorfile.Entry]], list[tensorfile.Entry]], str]] = {
    "missing": (lambda es: [e for e in es if e.name != Q], f"tensor {Q!r} is missing; config.json describes"),
    "unused": (lambda es: [*es, es[0]._replace(name="model.layers.9.x")],
               "'model.layers.9.x' belongs to nothing"),
    "shape": (replaced(Q, shape=(32, 128), data=lambda: np.ones((32, 128), np.float32)),
              f"tensor {Q!r} has shape [32, 128], config.json says [64, 64]"),
    "rank": (replaced(Q, shape=(64, 64, 1), data=lambda: np.ones((64, 64, 1), np.float32)),
             "shape [64, 64, 1]"),
    "nan": (replaced(Q, data=poisoned(np.nan)), f"tensor {Q!r}: row 7, column 9 is nan"),
    "infinity": (replaced(Q, data=poisoned(-np.inf)), f"tensor {Q!r}: row 7, column 9 is -inf"),
    "norm": (replaced("model.norm.weight", data=lambda: np.full(64, np.inf, np.float32)),
             "'model.norm.weight': row 0, column 0 is inf"),
}  # fmt: skip


@pytest.mark.parametrize("fault", WEIGHTS)
@pytest.mark.parametrize("kind", ["f32", "q8", "q4"])
def test_wrong_weights_are_named_and_leave_nothing_behind(tmp_path: Path, fault: str, kind: str) -> None:
    change, words = WEIGHTS[fault]
    folder = folder_of("llama_mha", tmp_path)
    tensorfile.write(folder / "model.safetensors", change(entries_of("llama_mha")))
    assert words in refused(folder, ConvertOptions(weights=kind, tokenizer=False))


def test_integer_weights_are_refused(tmp_path: Path) -> None:
    folder = folder_of("llama_mha", tmp_path)
    data = (folder / "model.safetensors").read_bytes()
    length = int.from_bytes(data[:8], "little")
    header = json.loads(data[8 : 8 + length])
    header[Q]["dtype"] = "I32"
    text = json.dumps(header).encode()
    (folder / "model.safetensors").write_bytes(len(text).to_bytes(8, "little") + text + data[8 + length :])
    assert f"tensor {Q!r} has dtype I32; expected F32, F16 or BF16" in refused(folder)


def test_folders_that_lack_something_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ConvertError, match="no such folder"):
        convert(tmp_path / "none", tmp_path / "m.colibri", PLAIN)
    assert "config.json: is missing" in refused(tmp_path)
    folder_of("llama_mha", tmp_path)
    assert "tokenizer.json: is missing; fetch it, or give --no-tokenizer" in refused(
        tmp_path, ConvertOptions()
    )
    (tmp_path / "model.safetensors").rename(tmp_path / "pytorch_model.bin")
    assert "pytorch_model.bin is another format" in refused(tmp_path)
    (tmp_path / "config.json").write_text("{")
    assert "config.json: is not JSON" in refused(tmp_path)
    (tmp_path / "config.json").write_text('{"model_type": "llama", "model_type": "llama"}')
    assert "'model_type' stands there twice" in refused(tmp_path)
    (tmp_path / "config.json").write_text("[]")
    assert "is not a JSON object" in refused(tmp_path)


# --- texts and defaults ---


def test_end_ids_of_both_files_and_sampling_defaults_are_kept(tmp_path: Path) -> None:
    folder = folder_of("llama_mha", tmp_path / "hf")
    settings = {"eos_token_id": [7, 5], "do_sample": True, "temperature": 0.6, "top_k": 20, "top_p": 0.95}
    (folder / "generation_config.json").write_text(json.dumps(settings))
    blob = BlobFile(convert(folder, tmp_path / "a.colibri", PLAIN).path)
    read = blob.generation()
    assert (read["end"], read["bos"], read["top_k"]) == ([2, 5, 7], 1, 20)
    assert (read["temperature"], read["top_p"]) == (np.float32(0.6), np.float32(0.95))
    (folder / "generation_config.json").write_text(json.dumps({**settings, "do_sample": False}))
    assert BlobFile(convert(folder, tmp_path / "b.colibri", PLAIN).path).generation() == {
        "end": [2, 5, 7],
        "bos": 1,
    }


def test_defaults_out_of_range_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "generation_config.json"
    for settings, words in (
        ({"eos_token_id": 120}, "eos_token_id is 120; expected a token id below 120"),
        ({"bos_token_id": -1}, "bos_token_id is -1"),
        ({"eos_token_id": "2"}, "eos_token_id is '2'"),
        ({"do_sample": True, "top_p": 1.5}, "top_p is Decimal('1.5'); expected a number from 0 to 1"),
        ({"do_sample": True, "temperature": -1}, "temperature is -1"),
    ):
        path.write_text(json.dumps(settings))
        with pytest.raises(ConvertError) as caught:
            generation_records(Folder(tmp_path), {}, 120)
        assert words in str(caught.value)


def with_tokenizer(folder: Path, vocab: int) -> Path:
    """A checkpoint whose vocabulary is large enough for the small tokenizer."""
    folder_of("llama_mha", folder)
    change_config(folder, vocab_size=vocab)
    wide = [e._replace(shape=(vocab, 64), data=lambda: draw.bell(1, "w", (vocab, 64)))
            if e.name in ("model.embed_tokens.weight", "lm_head.weight") else e
            for e in entries_of("llama_mha")]  # fmt: skip
    tensorfile.write(folder / "model.safetensors", wide)
    (folder / "tokenizer.json").write_text(json.dumps(small_tokenizer()))
    return folder


def test_tokenizer_and_template_travel_with_the_weights(tmp_path: Path) -> None:
    from colibri.tokenizer import build_tokenizer_section

    folder = with_tokenizer(tmp_path / "hf", 260)
    settings: dict[str, Any] = {"eos_token": "<|end|>", "chat_template": "{{ messages }} ü"}
    (folder / "tokenizer_config.json").write_text(json.dumps(settings))
    blob = BlobFile(convert(folder, tmp_path / "a.colibri").path)
    assert blob.section("TOKENIZER") == build_tokenizer_section(small_tokenizer(), settings)
    assert blob.chat_template() == "{{ messages }} ü"
    named = [{"name": "tool_use", "template": "T"}, {"name": "default", "template": "D"}]
    (folder / "tokenizer_config.json").write_text(json.dumps({**settings, "chat_template": named}))
    assert BlobFile(convert(folder, tmp_path / "b.colibri").path).chat_template() == "D"
    (folder / "chat_template.jinja").write_text("from its own file")
    assert BlobFile(convert(folder, tmp_path / "c.colibri").path).chat_template() == "from its own file"


def test_a_tokenizer_of_another_model_is_refused(tmp_path: Path) -> None:
    sentence = refused(with_tokenizer(tmp_path, 258), ConvertOptions())
    assert "tokenizer.json: has a token with id 258, config.json says vocab_size 258" in sentence


# --- names that are wrapped, numbers that are tiny ---


@pytest.mark.parametrize(
    "body, head",
    [("model.language_model.", "lm_head."), ("language_model.model.", "language_model.lm_head.")],
)
def test_a_text_model_inside_another_one_is_found(tmp_path: Path, body: str, head: str) -> None:
    folder = folder_of("llama_mha", tmp_path / "hf")
    plain = convert(folder, tmp_path / "a.colibri", PLAIN).path.read_bytes()
    wrapped = [
        e._replace(name=e.name.replace("model.", body, 1) if e.name.startswith("model.") else e.name)
        for e in entries_of("llama_mha")
    ]
    wrapped = [e._replace(name=e.name.replace("lm_head.", head, 1)) for e in wrapped]
    tensorfile.write(folder / "model.safetensors", wrapped)
    assert convert(folder, tmp_path / "b.colibri", PLAIN).path.read_bytes() == plain
    tower = wrapped[0]._replace(name="model.visual.patch_embed.weight")
    tensorfile.write(folder / "model.safetensors", [*wrapped, tower])
    assert "tensor 'model.visual.patch_embed.weight' belongs to nothing" in refused(folder)
    twice = wrapped[0]._replace(name="model.embed_tokens.weight")
    tensorfile.write(folder / "model.safetensors", [*wrapped, twice])
    assert "the checkpoint holds two text models" in refused(folder)
    shape = replaced(body + "norm.weight", shape=(63,), data=lambda: np.ones(63, np.float32))
    tensorfile.write(folder / "model.safetensors", shape(wrapped))
    assert f"tensor {body + 'norm.weight'!r} has shape [63]" in refused(folder)  # by the file's own name


@pytest.mark.parametrize("kind", ["f16", "f32"])
def test_subnormal_half_floats_are_kept(tmp_path: Path, kind: str) -> None:
    folder = folder_of("llama_mha", tmp_path / "hf")
    tiny = np.zeros((64, 64), dtype=np.float16)
    tiny.view(np.uint16).flat[:1024] = np.arange(1024)  # every subnormal and the zero
    tiny.view(np.uint16).flat[1024:2048] = np.arange(1024) | 0x8000
    change = replaced(Q, dtype="F16", data=lambda: tiny.astype(np.float32))
    tensorfile.write(folder / "model.safetensors", change(entries_of("llama_mha")))
    made = convert(folder, tmp_path / "m.colibri", ConvertOptions(weights=kind, tokenizer=False))
    found = BlobFile(made.path).floats(BlobFile(made.path).find("Q", 1), 0)
    assert np.array_equal(found.view(np.uint32), tiny.astype(np.float32).view(np.uint32))


BAR = """
import sys, time
from colibri.progress import progress_bar
with progress_bar(True) as report:
    report(20_000_000, 100_000_000, "")
    for step in range(2, 10):
        report(step * 10_000_000, 100_000_000, "layer 3 EXPERT_UP")
        time.sleep(0.15)
    report(50, 100, "sums")
"""


def on_a_terminal(script: str, **environment: str) -> str:
    """What a script shows on a terminal."""
    master, slave = os.openpty()
    child = {**os.environ, "TERM": "xterm-256color", "COLUMNS": "120", **environment}
    with subprocess.Popen([sys.executable, "-c", script], stderr=slave, env=child) as process:
        os.close(slave)
        shown = b""
        with contextlib.suppress(OSError):  # the end of a terminal is an error of its reader
            while part := os.read(master, 65536):
                shown += part
        os.close(master)
        assert process.wait() == 0
    return shown.decode()


def test_progress_shows_rate_and_remaining_time_on_a_terminal_only() -> None:
    shown = on_a_terminal(BAR, NO_COLOR="1")
    assert re.search(r"converting .* \d+% \d+\.\d M weights/s 0:00:0\d layer 3 EXPERT_UP", shown), shown
    assert "sums" in shown and not re.search(r"\x1b\[[\d;]*(3[1-7]|38;)[\d;]*m", shown)
    assert re.search(r"\x1b\[[\d;]*(3[1-7]|38;)[\d;]*m", on_a_terminal(BAR.replace("0.15", "0.02")))
    quiet = subprocess.run([sys.executable, "-c", BAR], capture_output=True, text=True, check=True)
    assert quiet.stderr == quiet.stdout == ""
