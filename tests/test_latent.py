"""Latent attention: absorbed equals the textbook form but for rounding, the cache is one row of latent and rope key,
and nothing depends on how rows, workers and rings divide the work."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from colibri import latent
from colibri.description import Layer
from colibri.engine import Limits, Model, Session
from colibri.errors import ColibriError, ConvertError
from colibri.families import describe
from colibri.blobwriter import write_blob
from colibri.format import Kinds
from colibri.library import constants, names, values
from colibri.synth import SPECS, Spec, Weights, random_weights, write_random_blob
from editing import Opened
from oracles import bridge, cases
from reference import latent as arithmetic
from reference.description import LatentAttention
from reference.attention import LayerCache
from reference.model import Model as Reference

TOKENS = [(i * i * 7 + 3 * i + 1) % 77 for i in range(41)]
# the attention of GLM-5.2 over two heads
GLM = Spec(heads=2, latent=512, rope_dim=64, head_dim=256, v_dim=256, q_latent=48, layers=3, rope={}, interleaved=True)


class Plain(Reference):
    """Keys and values of all heads expanded, in float64."""

    def _latent_heads(self, at: str, a: LatentAttention, q: np.ndarray, cache: LayerCache, first: int) -> np.ndarray:
        keys = cache.floats("k")[:, 0]
        k_up, v_up = (self.matrices[f"{at}.{part}"].values for part in ("k_up", "v_up"))
        return arithmetic.plain(a, q, keys, k_up, v_up, first).reshape(q.shape[0], -1).astype(np.float32)


@pytest.mark.parametrize("spec", ("latent", "latent-plain"))
def test_absorbed_is_plain_but_for_rounding(spec: str, tmp_path: Path) -> None:
    made = write_random_blob(tmp_path / "m.colibri", spec, seed=3, kinds="f32")
    desc = bridge.description(made.model)
    absorbed, plain = Reference(desc, made.weights), Plain(desc, made.weights)
    a, b = absorbed.logits(TOKENS), plain.logits(TOKENS)
    assert 0 < np.abs(a - b).max() < 2e-5 and 0.1 < np.abs(a).max()
    turned = {**made.weights, "layers.1.v_up": made.weights["layers.1.v_up"][::-1].copy()}
    assert np.abs(Plain(desc, turned).logits(TOKENS) - b).max() > 1e-2


@pytest.mark.parametrize("kv,bytes_of_a_row", (("f32", 2304), ("f16", 1152), ("q8", 612)))
def test_the_cache_is_one_row_for_all_heads(kv: str, bytes_of_a_row: int, tmp_path: Path) -> None:
    write_random_blob(tmp_path / "m.colibri", GLM, kinds="q4")
    model = Model.open(tmp_path / "m.colibri")
    plan = model.plan(Limits(context=256, kv=kv))
    assert plan.kv_bytes_per_token == 3 * bytes_of_a_row
    (region,) = (r for r in plan.regions if r.name == "kv")
    assert region.bytes == 256 * plan.kv_bytes_per_token


def logits(path: Path, tokens: list[int] = TOKENS, **limits: object) -> np.ndarray:
    planned = Limits(**{"context": len(tokens), "logit_rows": limits["batch"], **limits})
    rows = []
    with Session(Model.open(path), planned) as session:
        for first in range(0, len(tokens), planned.batch):
            part = tokens[first : first + planned.batch]
            session.feed(part, want="all")
            session.finish()
            rows += [session.logits(i).copy() for i in range(len(part))]
    return np.stack(rows)


def test_a_choice_of_all_positions_is_no_choice(tmp_path: Path) -> None:
    for kv in ("f32", "f16", "q8"):
        found = []
        for name, spec in (
            ("all", replace(SPECS["sparse"], index_top_k=len(TOKENS))),
            ("none", replace(SPECS["sparse"], index_heads=0)),
            ("some", SPECS["sparse"]),
        ):
            write_random_blob(tmp_path / name, spec, seed=4)
            found.append(logits(tmp_path / name, batch=8, kv=kv))
        assert found[0].tobytes() == found[1].tobytes() != found[2].tobytes()
        few = SPECS["sparse"].index_top_k
        assert found[2][:few].tobytes() == found[0][:few].tobytes()


def test_index_keys_are_cached_where_a_layer_chooses(tmp_path: Path) -> None:
    write_random_blob(tmp_path / "m.colibri", replace(GLM, index_heads=4, index_dim=128), kinds="q4")
    plan = Model.open(tmp_path / "m.colibri").plan(Limits(context=256))
    assert plan.kv_bytes_per_token == 3 * 1152 + 256      # the first layer chooses for all three


@pytest.mark.parametrize("weight", (0.0, 1.0))
def test_equal_scores_go_to_the_lower_position(weight: float, tmp_path: Path) -> None:
    model = SPECS["sparse"].model()
    weights = random_weights(model, 5)
    for name in weights:
        if name.endswith("index_weight"):
            weights[name] *= np.float32(weight)
    write_blob(tmp_path / "m.colibri", model, Kinds.preset("f32"), Weights(weights))
    tokens = [3] * len(TOKENS) if weight else TOKENS        # equal keys but for their rotation, or no scores at all
    desc = bridge.description(model)
    right = Reference(desc, weights).logits(tokens)
    found = logits(tmp_path / "m.colibri", tokens, batch=5, kv="f32")
    assert found.tobytes() == right.tobytes()


@pytest.mark.parametrize("weights", ("f16", "q4"))
@pytest.mark.parametrize("spec", ("latent", "latent-plain", "sparse"))
def test_nothing_depends_on_rows_workers_or_a_copy(spec: str, weights: str, tmp_path: Path) -> None:
    path = tmp_path / "m.colibri"
    write_random_blob(path, spec, seed=4, kinds=weights)
    right = logits(path, batch=len(TOKENS)).tobytes()
    for other in ({"batch": 1}, {"batch": 3, "workers": 3}, {"batch": 7, "resident_copy": True}, {"batch": 16,
                  "context": 100, "rewind": 4}):
        assert logits(path, **other).tobytes() == right, other


def test_a_window_is_a_ring_and_forgets(tmp_path: Path) -> None:
    write_random_blob(tmp_path / "m.colibri", replace(SPECS["latent"], window_layers=None), seed=4)
    model = Model.open(tmp_path / "m.colibri")
    short, long = (model.plan(Limits(context=c, batch=1)) for c in (64, 4096))
    kv = [next(r.bytes for r in plan.regions if r.name == "kv") for plan in (short, long)]
    assert kv[0] == kv[1] == 3 * 16 * (48 + 8) * 2      # round16(9 + 1) positions of a layer


def test_factors_are_cut_the_same_wherever_a_strip_begins() -> None:
    layer = Layer(heads=3, nope_dim=5, v_dim=32, latent=48)
    whole = np.arange(np.prod(latent.factor_shape(layer)), dtype=np.float32).reshape(-1, 48)
    heads = whole.reshape(3, 37, 48)
    right = {"K_UP": heads[:, :5].transpose(0, 2, 1).reshape(-1, 5), "V_UP": heads[:, 5:].reshape(-1, 48)}
    for role, expected in right.items():
        for step in (16, 32, 80, len(expected)):
            parts = [
                latent.factor_rows(lambda at, n: whole[at : at + n], layer, role, at, min(step, len(expected) - at))
                for at in range(0, len(expected), step)
            ]
            assert np.array_equal(np.concatenate(parts), expected)


@pytest.mark.parametrize("case,fields,words", (
    ("deepseek_v2_plain", {"kv_lora_rank": 40}, "field 'kv_lora_rank' is 40; expected a multiple of 16"),
    ("deepseek_v2_plain", {"v_head_dim": 8}, "field 'v_head_dim' is 8; expected a multiple of 16"),
    ("deepseek_v2_plain", {"num_key_value_heads": 2}, "field 'num_key_value_heads' is 2; expected 4"),
    ("deepseek_v2_plain", {"qk_head_dim": 21}, "field 'qk_head_dim' is 21; expected 20"),
    ("deepseek_v2_plain", {"qk_nope_head_dim": ...}, "field 'qk_nope_head_dim' is missing"),
    ("deepseek_v2_plain", {"norm_topk_prob": True}, "field 'norm_topk_prob' is true; expected false"),
    ("deepseek_v2_plain", {"topk_method": "noaux_tc"}, "field 'topk_method' is 'noaux_tc'; expected greedy or"),
    ("deepseek_v3_groups", {"scoring_func": "softmax"}, "field 'scoring_func' is 'softmax'; expected 'sigmoid'"),
    ("glm_lite", {"head_dim": 9}, "field 'head_dim' is 9; expected 8"),
    ("glm_lite", {"mlp_layer_types": ["dense"]}, "field 'mlp_layer_types' is .*; expected 3 times dense or sparse"),
    ("deepseek_v32_sparse", {"q_lora_rank": None}, "field 'q_lora_rank' is null; expected a width"),
    ("deepseek_v32_sparse", {"layer_types": ["full_attention"] * 3}, "expected 3 times indexed_attention"),
    ("deepseek_v32_sparse", {"indexer_types": ["full"] * 3}, "field 'indexer_types' .* is not known"),
    ("glm_dsa_shared", {"indexer_types": ["shared"] * 4}, "field 'indexer_types' is .*; expected full or shared"),
    ("glm_dsa_shared", {"indexer_rope_interleave": False}, "field 'indexer_rope_interleave' is false; expected true"),
))
def test_config_fields_that_cannot_be_used_are_named(case: str, fields: dict[str, object], words: str) -> None:
    config = {**cases.CASES[case].config, **fields}
    with pytest.raises(ConvertError, match=words):
        describe({name: value for name, value in config.items() if value is not ...})


def test_which_layers_choose_positions() -> None:
    def chosen(**fields: object) -> list[bool]:
        config = {**cases.CASES["glm_dsa_shared"].config, "num_hidden_layers": 6, "first_k_dense_replace": 1, **fields}
        del config["indexer_types"]
        return [layer.index_heads is not None for layer in describe(config).model.layers]

    assert chosen() == [True] * 6
    assert chosen(index_topk_pattern="FSSFSS") == [True, False, False, True, False, False]
    assert chosen(index_topk_freq=2) == [True, True, False, True, False, True]      # as transformers counts


def test_which_tensors_are_of_layers_that_guess_further_tokens() -> None:
    read = describe({**cases.CASES["deepseek_v3_groups"].config, "num_nextn_predict_layers": 1})
    assert read.draft("model.layers.3.eh_proj.weight") and not read.draft("model.layers.4.eh_proj.weight")
    assert not read.draft("model.layers.2.self_attn.o_proj.weight") and not read.draft("model.norm.weight")


@pytest.mark.parametrize("fields", ({"sinks": 1}, {"qk_norm": 1}, {"clip_qkv": 1.0}, {"chunk": 8}, {"biases": 4},
                                    {"head_gates": 1}))
def test_what_has_no_meaning_with_latents_is_refused_at_open(fields: dict[str, Any], tmp_path: Path) -> None:
    """Sinks, q/k norms, the clamp, chunks, a bias on v: by layer and key."""
    c, key = constants(), next(iter(fields)).upper()
    for layers in ((0, 1, 2), (2,)):
        model = SPECS["latent"].model()
        for number in layers:
            for name, value in fields.items():
                setattr(model.layers[number], name, value)
        write_random_blob(tmp_path / "m.colibri", model)
        opened = Opened((tmp_path / "m.colibri").read_bytes())
        assert (opened.status, opened.detail.section) == (c.ERROR_FORMAT, c.SECTION_LAYERS)
        assert (names("colibri_field")[opened.detail.field], opened.detail.index) == ("KEY", layers[0])
        assert opened.detail.found == values("colibri_layer_key")[key]
        with pytest.raises(ColibriError, match=f"LAYERS, entry {layers[0]}, .*: {key} has no place beside what else"):
            Model.open(tmp_path / "m.colibri")


@pytest.mark.parametrize("field,value", (("latent", 40), ("v_dim", 8), ("nope_dim", None), ("kv_heads", 3)))
def test_a_description_that_does_not_fit_is_refused_at_open(field: str, value: int | None, tmp_path: Path) -> None:
    model = SPECS["latent"].model()
    for layer in model.layers:
        setattr(layer, field, value)
        if field == "latent":
            layer.head_dim = 48
    if value is None:
        with pytest.raises(ColibriError):
            write_random_blob(tmp_path / "m.colibri", model)
        return
    write_random_blob(tmp_path / "m.colibri", model)
    with pytest.raises(ColibriError):
        Model.open(tmp_path / "m.colibri")
