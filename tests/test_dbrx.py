"""DBRX: a config whose fields stand in parts and have other names, q, k and v in one tensor, stacked experts."""

from __future__ import annotations

import json
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest

from checkpoint_kit import PLAIN, entries_of, folder_of, refused
from colibri.config_file import Config
from colibri.convert import convert
from colibri.description import Model
from colibri.errors import ConvertError
from colibri.families import describe
from colibri.library import constants
from colibri.rope import Scaling
from oracles import tensorfile

# As the published model says it; the theta stands in a part.
HUB: dict[str, Any] = {
    "architectures": ["DbrxForCausalLM"],
    "attn_config": {"clip_qkv": 8, "kv_n_heads": 8, "model_type": "", "rope_theta": 500000},
    "auto_map": {"AutoConfig": "configuration_dbrx.DbrxConfig"}, "d_model": 6144, "emb_pdrop": 0.0,
    "ffn_config": {"ffn_hidden_size": 10752, "model_type": "", "moe_jitter_eps": 0, "moe_loss_weight": 0.05,
                   "moe_num_experts": 16, "moe_top_k": 4},
    "initializer_range": 0.02, "max_seq_len": 32768, "model_type": "dbrx", "n_heads": 48, "n_layers": 40,
    "output_router_logits": False, "resid_pdrop": 0.0, "router_aux_loss_coef": 0.05, "tie_word_embeddings": False,
    "torch_dtype": "bfloat16", "transformers_version": "4.38.2", "use_cache": True, "vocab_size": 100352,
}  # fmt: skip


def changed(**fields: Any) -> dict[str, Any]:
    """HUB with other fields; attn_x and ffn_x go into the parts, ... takes a field out."""
    made = {**HUB, "attn_config": dict(HUB["attn_config"]), "ffn_config": dict(HUB["ffn_config"])}
    for name, value in fields.items():
        part, _, inner = name.partition("__")
        place, key = (made[part + "_config"], inner) if inner else (made, name)
        place.update({key: value})
        if value is ...:
            del place[key]
    return made


def model(**fields: Any) -> Model:
    return describe(changed(**fields)).model


def refusal(**fields: Any) -> str:
    with pytest.raises(ConvertError) as caught:
        describe(changed(**fields))
    return str(caught.value)


def test_the_published_config() -> None:
    c, made = constants(), model()
    layer = made.layers[39]
    assert (len(made.layers), made.hidden, made.trained_context, made.tied) == (40, 6144, 32768, False)
    assert (layer.heads, layer.kv_heads, layer.head_dim, layer.clip_qkv, layer.biases) == (48, 8, 128, 8.0, 0)
    assert (layer.experts, layer.top_k, layer.ff, layer.shared_ff) == (16, 4, 10752, None)
    assert (layer.norm, made.final_norm, layer.norm_eps) == (c.NORM_LAYER, c.NORM_LAYER, pytest.approx(1e-5))
    assert (layer.router_score, layer.router_renormalise) == (c.ROUTER_SOFTMAX, c.RENORMALISE_SUM)
    assert made.ropes[0].fractions == Scaling({}, 500000, 128, 32768, "x").fractions()


def test_weights_are_divided_by_the_norm_that_is_named() -> None:
    c = constants()
    for power, kind in ((1, c.RENORMALISE_SUM), (Decimal("1.0"), c.RENORMALISE_SUM), (2.0, c.RENORMALISE_ROOT),
                        (None, c.RENORMALISE_NONE)):  # fmt: skip
        assert model(ffn__moe_normalize_expert_weights=power).layers[0].router_renormalise == kind


def test_absent_and_saved_fields() -> None:
    assert model(attn__kv_n_heads=...).layers[0].kv_heads == 1
    assert model(attn__clip_qkv=...).layers[0].clip_qkv is None
    assert model(attn__clip_qkv=None).layers[0].clip_qkv is None
    assert model(ffn__ffn_act_fn={"name": "gelu"}).layers[0].activation == constants().ACTIVATION_GELU_ERF
    usual = model(d_model=..., hidden_size=6144, num_key_value_heads=8, rope_theta=500000)
    assert usual == model()  # both spellings, as long as they say the same
    saved = {"is_encoder_decoder": False, "id2label": {"0": "LABEL_0"}, "_name_or_path": "", "dtype": None}
    assert model(**{f"attn__{key}": value for key, value in saved.items()}, ffn__hidden_size=6144) == model()


@pytest.mark.parametrize(("fields", "words"), [
    ({"d_model": ...}, "field 'd_model' is missing"),
    ({"ffn__moe_top_k": ...}, "field 'ffn_config.moe_top_k' is missing"),
    ({"ffn__moe_top_k": 17}, "field 'ffn_config.moe_top_k' is 17; expected at most the 16 experts"),
    ({"attn__kv_n_heads": 5}, "field 'attn_config.kv_n_heads' is 5; expected a divisor of num_attention_heads 48"),
    ({"attn__clip_qkv": -1}, "field 'attn_config.clip_qkv' is -1"),
    ({"attn__alibi": True}, "field 'attn_config.alibi' (true) is not known"),
    ({"ffn__moe_normalize_expert_weights": 3}, "'ffn_config.moe_normalize_expert_weights' is 3; expected 1 or 2"),
    ({"ffn__moe_normalize_expert_weights": True}, "'ffn_config.moe_normalize_expert_weights' is true"),
    ({"ffn__ffn_act_fn": {"name": "relu"}}, "field 'ffn_config.ffn_act_fn.name' is 'relu'"),
    ({"ffn__ffn_act_fn": {"name": "silu", "alpha": 2}}, "field 'ffn_config.ffn_act_fn.alpha' (2) is not known"),
    ({"attn_config": 7}, "field 'attn_config' (7) is not known"),
    ({"tie_word_embeddings": True}, "'tie_word_embeddings' is true"),
    ({"hidden_size": 48}, "field 'hidden_size' says 48 where another field says 6144; expected one hidden_size"),
    ({"rope_parameters": {"rope_type": "default", "rope_theta": 10000}}, "'attn_config.rope_theta' is 500000"),
    ({"rms_norm_eps": 1e-6}, "field 'rms_norm_eps' (1e-06) is not known"),
])  # fmt: skip
def test_fields_that_cannot_be_used_are_named(fields: dict[str, Any], words: str) -> None:
    assert words in refusal(**fields)


def test_names_of_a_respelled_config() -> None:
    config = Config({"a": {"b": {"c": 1}, "d": None}, "e": 2}, "x", {"a.b.c": "size"}, "part.")
    assert config.integer("size") == 1 and config.written("size") == "part.a.b.c" and config.written("e") == "part.e"
    assert config.take("e") == 2
    with pytest.raises(ConvertError, match="'part.a.d'"):
        config.finish(frozenset())
    config.finish(frozenset({"d"}))
    Config({"a": None}, "x", {"a.b.c": "size"}).finish(frozenset())
    with pytest.raises(ConvertError, match="'a.b' says 3 where another field says 2; expected one size"):
        Config({"size": 2, "a": {"b": 3}}, "x", {"a.b": "size"})


WQKV, STACK = "transformer.blocks.1.norm_attn_norm.attn.Wqkv.weight", "transformer.blocks.0.ffn.experts.mlp."


@pytest.mark.parametrize("name", [
    WQKV, STACK + "w1", STACK + "v1", STACK + "w2", "transformer.norm_f.weight", "transformer.wte.weight",
    "transformer.blocks.2.ffn.router.layer.weight",
])  # fmt: skip
def test_tensors_missing_renamed_and_of_wrong_shape_are_named(name: str, tmp_path: Path) -> None:
    folder, entries = folder_of("dbrx_clip", tmp_path), entries_of("dbrx_clip")
    mine = next(e for e in entries if e.name == name)
    rest = [e for e in entries if e is not mine]
    for broken in (rest, [*rest, mine._replace(name=name + "s")]):
        tensorfile.write(folder / "model.safetensors", broken)
        assert f"tensor {name!r} is missing" in refused(folder)
    data = mine.data().reshape(mine.shape[::-1]) if len(mine.shape) == 2 else mine.data()[:-1]
    tensorfile.write(folder / "model.safetensors", [*rest, mine._replace(shape=data.shape, data=lambda: data)])
    assert f"tensor {name!r} has shape {list(data.shape)}" in refused(folder)


def test_tensors_left_over_are_named(tmp_path: Path) -> None:
    folder, entries = folder_of("dbrx_clip", tmp_path), entries_of("dbrx_clip")
    bias = entries[1]._replace(name="transformer.blocks.0.norm_attn_norm.norm_1.bias")
    for more in (bias, entries[-2]._replace(name="model.norm.weight")):
        tensorfile.write(folder / "model.safetensors", [*entries, more])
        assert f"tensor {more.name!r} belongs to nothing" in refused(folder)
    config = json.loads((folder / "config.json").read_text())
    config["ffn_config"]["moe_num_experts"] = 5
    (folder / "config.json").write_text(json.dumps(config))
    assert "tensor 'transformer.blocks.0.ffn.router.layer.weight' has shape" in refused(folder)


def test_both_spellings_of_the_model_give_one_blob(tmp_path: Path) -> None:
    """The same weights, described in the usual words."""
    folder = folder_of("dbrx_clip", tmp_path / "hf")
    first = convert(folder, tmp_path / "a.colibri", PLAIN).path.read_bytes()
    config = json.loads((folder / "config.json").read_text())
    config["num_key_value_heads"] = config["attn_config"].pop("kv_n_heads")
    config["hidden_size"] = config.pop("d_model")
    (folder / "config.json").write_text(json.dumps(config))
    assert convert(folder, tmp_path / "b.colibri", PLAIN).path.read_bytes() == first
