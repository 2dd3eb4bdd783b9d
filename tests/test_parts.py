"""Llama 4: layers by turns, experts stored by columns, and the text model of a checkpoint that also sees."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from checkpoint_kit import PLAIN, change_config, entries_of, folder_of, refused
from colibri.convert import convert
from colibri.description import Layer
from colibri.errors import ConvertError
from colibri.families import describe, text_part
from colibri.library import constants
from colibri.sidefiles import texts_of
from colibri.source import Folder
from colibri.unfinished import Work
from oracles import tensorfile
from oracles.cases import CASES

# As the larger of the published models says it: the older spelling of the tuning, equal bounds of the rotation's law.
HUB: dict[str, Any] = {
    "attention_bias": False, "attention_chunk_size": 8192, "attention_dropout": 0.0, "attn_scale": 0.1,
    "attn_temperature_tuning": 4, "bos_token_id": 200000, "eos_token_id": [200001, 200007, 200008],
    "floor_scale": 8192, "for_llm_compressor": False, "head_dim": 128, "hidden_act": "silu", "hidden_size": 5120,
    "initializer_range": 0.02, "interleave_moe_layer_step": 2, "intermediate_size": 8192,
    "intermediate_size_mlp": 16384, "max_position_embeddings": 1048576, "model_type": "llama4_text",
    "moe_layers": [1, 3, 5, 7], "no_rope_layers": [1, 1, 1, 0, 1, 1, 1, 0], "num_attention_heads": 40,
    "num_experts_per_tok": 1, "num_hidden_layers": 8, "num_key_value_heads": 8, "num_local_experts": 128,
    "output_router_logits": False, "pad_token_id": 200018, "rms_norm_eps": 1e-05, "rope_theta": 500000.0,
    "rope_scaling": {"rope_type": "llama3", "factor": 16.0, "low_freq_factor": 1.0, "high_freq_factor": 1.0,
                     "original_max_position_embeddings": 8192},
    "router_aux_loss_coef": 0.001, "router_jitter_noise": 0.0, "torch_dtype": "bfloat16", "use_cache": True,
    "use_qk_norm": False, "vocab_size": 202048,
}  # fmt: skip
WHOLE = {"architectures": ["Llama4ForConditionalGeneration"], "model_type": "llama4", "text_config": HUB,
         "vision_config": {"hidden_size": 1408}, "boi_token_index": 200080, "eoi_token_index": 200081,
         "image_token_index": 200092, "tie_word_embeddings": False, "torch_dtype": "bfloat16",
         "transformers_version": "4.51.0.dev0"}  # fmt: skip


def text(**fields: Any) -> list[Layer]:
    """The layers of a text model's config; a field set to ... is taken out."""
    return describe({key: value for key, value in {**HUB, **fields}.items() if value is not ...}).model.layers


def refusal(document: dict[str, Any]) -> str:
    with pytest.raises(ConvertError) as caught:
        describe(document)
    return str(caught.value)


# ---- the config ----


def test_layers_by_turns() -> None:
    c, layers = constants(), text()
    assert [layer.moe for layer in layers] == [False, True] * 4
    assert [layer.ff for layer in layers[:2]] == [16384, 8192] and layers[1].shared_ff == 8192
    assert [layer.rope for layer in layers] == [0, 0, 0, None] * 2
    assert [layer.chunk for layer in layers] == [8192, 8192, 8192, None] * 2
    assert [layer.query_floor for layer in layers] == [None, None, None, 8192] * 2
    assert {layer.qk_norm for layer in layers} == {c.QK_NORM_NONE}
    moe = layers[1]
    assert (moe.router_score, moe.router_renormalise) == (c.ROUTER_SIGMOID, c.RENORMALISE_NONE)
    assert (moe.router_weight_on, moe.router_choice) == (c.ROUTER_ON_INPUT, c.CHOICE_BY_LOGIT)


def test_absent_fields_mean_what_the_class_says() -> None:
    c = constants()
    absent = text(moe_layers=..., interleave_moe_layer_step=..., no_rope_layers=..., use_qk_norm=..., head_dim=...,
                  attention_chunk_size=..., attn_temperature_tuning=..., floor_scale=..., attn_scale=...)  # fmt: skip
    assert all(layer.moe for layer in absent) and {layer.head_dim for layer in absent} == {128}
    assert [layer.rope for layer in absent] == [0, 0, 0, None] * 2
    assert [layer.qk_norm for layer in absent[2:4]] == [c.QK_NORM_L2_AFTER_ROPE, c.QK_NORM_NONE]
    assert (absent[0].chunk, absent[3].query_floor, absent[3].query_step) == (8192, 8192, pytest.approx(0.1))
    assert {layer.chunk for layer in text(attention_chunk_size=None)} == {None}
    assert {layer.query_floor for layer in text(attn_temperature_tuning=False)} == {None}
    assert [layer.rope for layer in text(no_rope_layers=[], no_rope_layer_interval=2)] == [0, None] * 4
    kinds = ["chunked_attention", "full_attention"] * 4
    assert [layer.chunk for layer in text(layer_types=kinds)] == [8192, None] * 4


@pytest.mark.parametrize(("fields", "words"), [
    ({"no_rope_layers": [1, 0]}, "'no_rope_layers' is [1, 0]; expected 8 times 0 or 1"),
    ({"no_rope_layers": [2] * 8}, "expected 8 times 0 or 1"),
    ({"layer_types": ["sliding_attention"] * 8}, "8 times full_attention or chunked_attention"),
    ({"layer_types": ["chunked_attention"] * 8, "attention_chunk_size": None}, "'attention_chunk_size' is null"),
    ({"attn_temperature_tuning": "yes"}, "'attn_temperature_tuning' is 'yes'"),
    ({"floor_scale": 0}, "'floor_scale' is 0"),
    ({"moe_layers": "all"}, "'moe_layers' is 'all'"),
    ({"moe_layers": [1, 8]}, "'moe_layers' is [1, 8]; expected numbers of the 8 layers"),
    ({"for_llm_compressor": True}, "'for_llm_compressor' is true"),
    ({"num_local_experts": ...}, "'num_local_experts' is missing"),
    ({"expert_bias": True}, "'expert_bias' (true) is not known"),
    ({"attn_scale": -1}, "'attn_scale' is -1"),
])  # fmt: skip
def test_fields_that_cannot_be_used_are_named(fields: dict[str, Any], words: str) -> None:
    document = {key: value for key, value in {**HUB, **fields}.items() if value is not ...}
    assert words in refusal(document)
    inside = words.replace("'", "'text_config.", 1) if words.startswith("'") else words
    assert inside in refusal({**WHOLE, "text_config": document})


def test_a_part_is_described_as_if_it_stood_alone() -> None:
    whole, alone = describe(WHOLE), describe(HUB)
    assert whole.model == alone.model and (whole.model_type, alone.model_type) == ("llama4", "llama4_text")
    assert whole.left_out("vision_model.class_embedding") == "the vision model"
    assert not whole.left_out("model.norm.weight") and not alone.left_out("vision_model.class_embedding")


@pytest.mark.parametrize(("fields", "words"), [
    ({"text_config": ...}, "'text_config' is missing"),
    ({"text_config": [1]}, "'text_config' is [1]; expected the config of a llama4_text"),
    ({"text_config": {**HUB, "model_type": "llama"}}, "expected the config of a llama4_text"),
    ({"audio_config": {}}, "'audio_config' ({}) is not known"),
    ({"tie_word_embeddings": True}, "'tie_word_embeddings' is true; expected false"),
    ({"quantization_config": {"quant_method": "compressed-tensors"}}, "'text_config.quantization_config' is"),
])  # fmt: skip
def test_a_whole_that_cannot_be_used_is_named(fields: dict[str, Any], words: str) -> None:
    assert words in refusal({key: value for key, value in {**WHOLE, **fields}.items() if value is not ...})


# ---- the weights ----

EXPERTS = "model.layers.1.feed_forward.experts.gate_up_proj"
ROUTER = "model.layers.1.feed_forward.router.weight"


@pytest.mark.parametrize("case", ["llama4_turns", "llama4_wrapped"])
@pytest.mark.parametrize("name", [EXPERTS, ROUTER, "model.layers.1.feed_forward.shared_expert.up_proj.weight",
                                  "model.layers.1.feed_forward.experts.down_proj", "lm_head.weight"])  # fmt: skip
def test_tensors_missing_renamed_turned_and_left_over_are_named(case: str, name: str, tmp_path: Path) -> None:
    folder, prefix = folder_of(case, tmp_path), "language_model." * bool(CASES[case].shape.wrapped)
    entries = entries_of(case)

    def written(changed: list[tensorfile.Entry]) -> str:
        assert changed != entries
        tensorfile.write(folder / "model.safetensors", changed)
        return refused(folder)

    mine = next(e for e in entries if e.name == prefix + name)
    rest = [e for e in entries if e is not mine]
    assert f"tensor {name!r} is missing" in written(rest)
    assert f"tensor {name!r} is missing" in written([*rest, mine._replace(name=mine.name + "s")])
    turned = (*mine.shape[:-2], mine.shape[-1], mine.shape[-2])
    data = mine.data().reshape(turned)
    other = mine._replace(shape=turned, data=lambda: data)
    assert f"tensor {mine.name!r} has shape {list(turned)}" in written([*rest, other])
    more = mine._replace(name=prefix + "model.layers.1.feed_forward.expert_bias")
    assert f"tensor {more.name!r} belongs to nothing" in written([*entries, more])


def test_other_parts_are_left_out_and_said_so(tmp_path: Path) -> None:
    folder = folder_of("llama4_wrapped", tmp_path / "hf")
    notes: list[str] = []
    made = convert(folder, tmp_path / "a.colibri", PLAIN, work=Work(note=notes.append))
    assert notes == [f"{folder / 'config.json'}: left out are 2 tensors of the vision model, 1 tensors of the vision "
                     "model's projector; the text model is converted"]
    foreign = entries_of("llama4_wrapped")[-1]._replace(name="audio_model.conv.weight")
    tensorfile.write(folder / "model.safetensors", [*entries_of("llama4_wrapped"), foreign])
    assert "tensor 'audio_model.conv.weight' belongs to nothing" in refused(folder)
    text_alone = folder_of("llama4_wrapped", tmp_path / "text")
    change_config(text_alone, **{**CASES["llama4_wrapped"].config["text_config"], "text_config": ...,
                                 "vision_config": ..., "image_token_index": ..., "boi_token_index": ...,
                                 "eoi_token_index": ...})  # fmt: skip
    assert "vision_model" in refused(text_alone)  # a text model has no such tensors
    plain = [e for e in entries_of("llama4_wrapped") if e.name.startswith("language_model.")]
    tensorfile.write(text_alone / "model.safetensors", plain)
    alone = convert(text_alone, tmp_path / "b.colibri", PLAIN)
    assert alone.described.model == made.described.model


def test_end_ids_of_the_part(tmp_path: Path) -> None:
    """They stand in the part's config; what the whole says too does not win."""
    document = text_part({**WHOLE, "eos_token_id": 5})
    assert document["eos_token_id"] == [200001, 200007, 200008] and document["bos_token_id"] == 200000
    assert text_part(HUB) is HUB
    folder = folder_of("llama4_wrapped", tmp_path)
    config = CASES["llama4_wrapped"].config
    with Folder(folder) as source:
        whole, part = (texts_of(source, one, False, 120) for one in (text_part(config), config["text_config"]))
    assert whole["GENERATION"] == part["GENERATION"] != b""
