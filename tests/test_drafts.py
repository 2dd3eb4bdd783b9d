"""Draft layers (MTP): kept in the blob and described, and no run knows whether they are there."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from checkpoint_kit import change_config, refused
from colibri.blobfile import BlobFile
from colibri.cli import main
from colibri.convert import ConvertOptions, convert
from colibri.description import Model as Description
from colibri.engine import Limits, Model
from colibri.families import describe
from colibri.family_table import FAMILIES
from colibri.library import constants, names
from colibri.synth import SPECS, write_random_blob
from editing import Edited, Opened
from oracles import checkpoints, draw, tensorfile
from oracles.cases import CASES, PROMPT
from oracles.running import Engine
from test_truth import engine_logits, prompt

CASE = {"deepseek_v2": "deepseek_v2_plain", "deepseek_v3": "deepseek_v3_groups", "deepseek_v32": "deepseek_v32_sparse",
        "glm4_moe": "glm_groups", "glm4_moe_lite": "glm_lite", "glm_moe_dsa": "glm_dsa_shared"}
F32 = ConvertOptions(weights="f32", tokenizer=False)
Shapes = dict[str, tuple[int, ...]]


def draft_tensors(case: str, number: int) -> Shapes:
    """What a checkpoint calls the tensors of a draft layer: a whole layer with experts, and what is around it."""
    shape = CASES[case].shape
    longer = replace(shape, layers=number + 1, dense_layers=(), index_layers=None)
    prefix = f"model.layers.{number}."
    own = {n: s for n, s in checkpoints.tensors(replace(CASES[case], shape=longer)) if n.startswith(prefix)}
    norms = {f"{prefix}{name}.weight": (shape.hidden,) for name in ("enorm", "hnorm", "shared_head.norm")}
    return {**own, **norms, f"{prefix}eh_proj.weight": (shape.hidden, 2 * shape.hidden)}


def with_drafts(family: str, folder: Path, count: int = 1, copies: bool = True,
                change: Callable[[dict[str, np.ndarray]], None] | None = None) -> tuple[Path, list[str]]:
    """A checkpoint with draft layers, and the names of theirs."""
    case = CASES[CASE[family]]
    checkpoints.build_case(case, folder)
    weights = {name: checkpoints.values(case, name, shape) for name, shape in checkpoints.tensors(case)}
    drafts: dict[str, np.ndarray] = {}
    for number in range(case.shape.layers, case.shape.layers + count):
        for name, shape in draft_tensors(case.name, number).items():
            drafts[name] = draw.bell(case.seed, f"draft/{name}", shape, 0.1)
        if copies:
            drafts[f"model.layers.{number}.embed_tokens.weight"] = weights["model.embed_tokens.weight"]
            drafts[f"model.layers.{number}.shared_head.head.weight"] = weights["lm_head.weight"]
    if change:
        change(drafts)
    tensorfile.write(folder / "model.safetensors", [
        tensorfile.Entry(name, value.shape, "F32", lambda v=value: v) for name, value in {**weights, **drafts}.items()])
    change_config(folder, num_nextn_predict_layers=count)
    return folder, list(drafts)


@pytest.mark.parametrize("family", sorted(CASE))
def test_the_answer_is_the_same_with_and_without(family: str, tmp_path: Path) -> None:
    folder, _ = with_drafts(family, tmp_path / "hf")
    kept = convert(folder, tmp_path / "kept.colibri", F32)
    left = convert(folder, tmp_path / "left.colibri", replace(F32, drafts=False))
    checkpoints.build(CASE[family], tmp_path / "never")
    never = convert(tmp_path / "never", tmp_path / "never.colibri", replace(F32, source_name="hf"))
    tokens = checkpoints.prompt(CASES[CASE[family]])[:PROMPT]
    right = Engine(never.path).logits(tokens)
    assert Engine(kept.path).logits(tokens).tobytes() == right.tobytes() == Engine(left.path).logits(tokens).tobytes()
    assert left.path.read_bytes() == never.path.read_bytes() != kept.path.read_bytes()
    assert kept.written.file_bytes > left.written.file_bytes
    assert not [problem for problem in Opened(kept.path.read_bytes()).problems()]


@pytest.mark.parametrize("family", sorted(CASE))
def test_every_weight_of_a_draft_layer_arrives(family: str, tmp_path: Path) -> None:
    folder, listed = with_drafts(family, tmp_path / "hf", 2, copies=False)
    made = convert(folder, tmp_path / "m.colibri", F32)
    blob, used = BlobFile(made.path), set()
    first = len(blob.model().layers)
    assert [layer.draft for layer in blob.model().all_layers] == [None] * first + [1, 1]
    case = CASES[CASE[family]]
    for tensor, expert in blob.matrices():
        if not first <= tensor.layer < first + 2:
            continue
        name = made.described.place(tensor, expert).name
        used.add(name)
        if tensor.role not in ("K_UP", "V_UP"):
            drawn = draw.bell(case.seed, f"draft/{name}", draft_tensors(case.name, tensor.layer)[name], 0.1)
            assert np.array_equal(blob.floats(tensor, expert).reshape(-1), drawn.reshape(-1)), name
    assert used == set(listed)


def test_only_families_that_have_them_read_the_field() -> None:
    assert {name for name, family in FAMILIES.items() if family.drafts} == set(CASE)


def test_a_config_may_speak_of_layers_that_were_not_saved(tmp_path: Path) -> None:
    """As what transformers saves again: the number stays, the tensors are gone."""
    checkpoints.build("deepseek_v3_groups", tmp_path / "hf")
    change_config(tmp_path / "hf", num_nextn_predict_layers=1)
    assert convert(tmp_path / "hf", tmp_path / "m.colibri", F32).described.model.drafts == []
    change_config(tmp_path / "hf", num_nextn_predict_layers=None)
    assert convert(tmp_path / "hf", tmp_path / "n.colibri", F32).described.model.drafts == []


def test_a_draft_layer_that_is_not_whole_is_refused(tmp_path: Path) -> None:
    for number, part in enumerate(("eh_proj", "enorm", "hnorm", "shared_head.norm", "self_attn.q_a_proj",
                                   "mlp.experts.3.up_proj", "input_layernorm")):
        name = f"model.layers.3.{part}.weight"
        folder, _ = with_drafts("deepseek_v3", tmp_path / str(number), change=lambda d, n=name: d.pop(n))
        assert f"tensor {name!r} is missing" in refused(folder)
        assert convert(folder, tmp_path / f"{number}.colibri", replace(F32, drafts=False)).path.exists()


def test_what_nothing_describes_is_refused_in_draft_layers_too(tmp_path: Path) -> None:
    extra = "model.layers.3.self_attn.extra.weight"
    folder, _ = with_drafts("deepseek_v3", tmp_path / "hf", change=lambda d: d.update({extra: np.ones(3, np.float32)}))
    assert f"tensor {extra!r} belongs to nothing" in refused(folder)


@pytest.mark.parametrize("part", ["embed_tokens", "shared_head.head"])
def test_a_copy_that_is_none_is_refused(part: str, tmp_path: Path) -> None:
    name = f"model.layers.3.{part}.weight"

    def other(drafts: dict[str, np.ndarray]) -> None:
        drafts[name] = drafts[name] * np.float32(1.5)

    folder, _ = with_drafts("deepseek_v3", tmp_path / "hf", change=other)
    assert f"tensor {name!r} differs from" in refused(folder) and "--no-drafts" in refused(folder)


@pytest.mark.parametrize("weights", ["q4", "q4-all"])
def test_four_bits_are_eight_in_a_draft_layer(weights: str, tmp_path: Path) -> None:
    folder, _ = with_drafts("glm4_moe", tmp_path / "hf")
    blob = BlobFile(convert(folder, tmp_path / "m.colibri", replace(F32, weights=weights)).path)
    own = {t.role: t.kind for t in blob.tensors if t.layer == 3}
    assert {own[role] for role in ("EXPERT_UP", "SHARED_DOWN", "Q", "DRAFT_JOIN")} == {"q8"} and own["ROUTER"] == "f32"
    assert blob.kinds().experts == "q4"


def test_plans_and_numbers_are_those_of_the_run(tmp_path: Path) -> None:
    """Pool, slots and resident bytes with drafts are those without; the file is longer by what is said."""
    spec = SPECS["drafts"]
    for name, own in (("with", spec), ("without", replace(spec, drafts=0))):
        write_random_blob(tmp_path / name, own, 5, "q4")
    more, less = (Model.open(tmp_path / name) for name in ("with", "without"))
    for limits in ({}, {"resident_copy": True}, {"stream_experts": True, "slots": 2}):
        a, b = (m.plan(Limits(context=64, **limits)) for m in (more, less))
        assert a == replace(b, limits=a.limits)
    a, b = (replace(m.info(), file_bytes=0, tables_bytes=0, identity="") for m in (more, less))
    assert a == b
    tokens = prompt(spec.vocab)
    right = engine_logits(tmp_path / "without", tokens).tobytes()
    for limits in ({}, {"resident_copy": True}, {"stream_experts": True, "slots": 2, "resident_copy": True}):
        assert engine_logits(tmp_path / "with", tokens, **limits).tobytes() == right


def test_info_and_plan_show_them(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write_random_blob(tmp_path / "m.colibri", "drafts", 5, "q8")
    blob = BlobFile(tmp_path / "m.colibri")
    mine = [t for t in blob.tensors if t.layer in (2, 3)]
    own = sum(t.bytes for t in mine if not t.expert) + sum(t.stride * t.count for t in mine if t.role == "EXPERT_GATE")
    assert main(["info", "--json", str(tmp_path / "m.colibri")]) == 0
    shown = json.loads(capsys.readouterr().out)
    assert (shown["draft_layers"], shown["draft_bytes"], len(shown["layer_descriptions"])) == (2, own, 2)
    assert [layer["draft"] for layer in shown["draft_descriptions"]] == [1, 1]
    assert main(["info", str(tmp_path / "m.colibri")]) == 0
    assert "2 layers that guess further tokens" in capsys.readouterr().out
    assert main(["plan", "--json", str(tmp_path / "m.colibri")]) == 0
    planned = json.loads(capsys.readouterr().out)
    assert (planned["draft_layers"], planned["draft_bytes"]) == (2, own)
    assert planned["file_bytes"] == (tmp_path / "m.colibri").stat().st_size
    assert main(["plan", str(tmp_path / "m.colibri")]) == 0
    assert "2 draft layer(s)" in capsys.readouterr().out


def lie(model: Description) -> Callable[[str], None]:
    layers, drafts = model.layers, model.drafts
    return lambda what: {"marked": lambda: setattr(layers[1], "draft", 1),
                         "unmarked": lambda: setattr(drafts[0], "draft", None)}[what]()


@pytest.mark.parametrize("what", ["marked", "unmarked"])
def test_marks_and_numbers_must_agree(what: str, tmp_path: Path) -> None:
    model = SPECS["drafts"].model()
    lie(model)(what)
    write_random_blob(tmp_path / "m.colibri", model)
    opened = Opened((tmp_path / "m.colibri").read_bytes())
    assert opened.status == constants().ERROR_FORMAT and names("colibri_field")[opened.detail.field] == "KEY"


@pytest.mark.parametrize(("count", "field"), [(1, "LAYER"), (3, "MISSING")])
def test_as_many_draft_layers_as_are_said(count: int, field: str, tmp_path: Path) -> None:
    write_random_blob(tmp_path / "m.colibri", "drafts")
    blob = Edited(tmp_path / "m.colibri")
    blob.record("MODEL", "DRAFT_LAYERS").value = count
    opened = Opened(blob.seal())
    assert opened.status == constants().ERROR_FORMAT, names("colibri_field")[opened.detail.field]


def test_a_layer_chooses_positions_itself_behind_layers_that_take_over() -> None:
    config = {**CASES["glm_dsa_shared"].config, "num_nextn_predict_layers": 1}
    model = describe(config).model
    assert model.layers[-1].index_heads is None and model.drafts[0].index_heads == model.layers[0].index_heads
    assert model.drafts[0].index_rope == model.layers[0].index_rope
