"""Every family's checkpoint with something wrong in it is refused by name, before a byte is written.

Each family's smallest checkpoint is broken at one tensor of every kind it has (the last layer's, which is read last),
and its config by a field that nobody knows. What the weights say has no say in this, so they are zeros on a sparse
file.
"""

from __future__ import annotations

import importlib.util
import json
import re
from pathlib import Path

import pytest
from checkpoint_kit import PLAIN, refused
from colibri.convert import convert
from colibri.errors import ConvertError
from colibri.families import describe
from colibri.family_table import FAMILIES
from colibri.unsupported import REFUSED
from oracles import cases, checkpoints

SMALLEST = {case.family: case for case in sorted(cases.CASES.values(), key=lambda c: -len(checkpoints.tensors(c)))}
Shapes = dict[str, tuple[int, ...]]
REMEDY = "fetch the checkpoint again"


def write(folder: Path, shapes: Shapes, dtype: str) -> None:
    """A safetensors file of zeros."""
    width = 4 if dtype == "F32" else 2
    header, offset = {}, 0
    for name, shape in shapes.items():
        size = width
        for length in shape:
            size *= length
        header[name] = {"dtype": dtype, "shape": list(shape), "data_offsets": [offset, offset + size]}
        offset += size
    text = json.dumps(header).encode()
    with open(folder / "model.safetensors", "wb") as out:
        out.write(len(text).to_bytes(8, "little") + text)
        out.truncate(8 + len(text) + offset)


def kinds(shapes: Shapes) -> list[str]:
    """One tensor of every kind: names that differ in numbers alone are one, the last of them stands for it."""
    return list({re.sub(r"\d+", "N", name): name for name in shapes}.values())


@pytest.fixture(params=sorted(FAMILIES))
def family(request: pytest.FixtureRequest, tmp_path: Path) -> tuple[Path, Shapes, str]:
    """A folder with a family's config.json, its tensors' shapes, and their type."""
    case = SMALLEST[request.param]
    (tmp_path / "config.json").write_text(json.dumps(case.config))
    return tmp_path, dict(checkpoints.tensors(case)), case.dtype


def test_the_whole_checkpoint_is_accepted(family: tuple[Path, Shapes, str]) -> None:
    """Else everything below would be refused for another reason."""
    folder, shapes, dtype = family
    write(folder, shapes, dtype)
    assert convert(folder, folder / "m.colibri", PLAIN).path.exists()


@pytest.mark.sampled(4)
def test_a_missing_tensor_is_named(family: tuple[Path, Shapes, str]) -> None:
    folder, shapes, dtype = family
    for name in kinds(shapes):
        write(folder, {key: shape for key, shape in shapes.items() if key != name}, dtype)
        sentence = refused(folder)
        assert f"tensor {name!r} is missing" in sentence and f"in shape {list(shapes[name])}" in sentence, sentence
        assert str(folder) in sentence and REMEDY in sentence


@pytest.mark.sampled(4)
def test_a_renamed_tensor_is_named_with_what_stands_there_instead(family: tuple[Path, Shapes, str]) -> None:
    folder, shapes, dtype = family
    for name in kinds(shapes):
        other = re.sub(r"(\.weight|\.bias|)$", r"x\1", name, count=1)
        write(folder, {other if key == name else key: shape for key, shape in shapes.items()}, dtype)
        sentence = refused(folder)
        assert f"tensor {name!r} is missing" in sentence and f"in shape {list(shapes[name])}" in sentence, sentence
        assert f"no use for {other!r}" in sentence and "match-keys" in sentence, sentence


@pytest.mark.sampled(4)
def test_a_tensor_of_another_shape_is_named(family: tuple[Path, Shapes, str]) -> None:
    folder, shapes, dtype = family
    for name in kinds(shapes):
        for wrong in ((*shapes[name][:-1], shapes[name][-1] + 1), (*shapes[name], 1), shapes[name][1:]):
            write(folder, {**shapes, name: wrong}, dtype)
            sentence = refused(folder)
            assert f"model.safetensors: tensor {name!r} has shape {list(wrong)}" in sentence, sentence
            assert f"config.json says {list(shapes[name])}; weights and config do not belong together" in sentence


def test_a_tensor_too_many_is_named(family: tuple[Path, Shapes, str]) -> None:
    folder, shapes, dtype = family
    for extra in ("model.layers.1.self_attn.q_proj.lora_a", "model.layers.99.input_layernorm.weight", "vision.w"):
        write(folder, {**shapes, extra: (4,)}, dtype)
        assert f"model.safetensors: tensor {extra!r} belongs to nothing" in refused(folder)


@pytest.mark.parametrize("value", [7, True, "on", [1], {"a": 1}])
def test_a_field_that_nobody_knows_is_named(value: object, family: tuple[Path, Shapes, str]) -> None:
    folder, shapes, dtype = family
    write(folder, shapes, dtype)
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**config, "alibi_slopes": value}))
    sentence = refused(folder)
    assert sentence.startswith(f"{folder / 'config.json'}: field 'alibi_slopes' (")
    assert "is not known; a newer Colibri" in sentence


def test_no_family_is_left_out() -> None:
    assert set(SMALLEST) == set(FAMILIES)


@pytest.mark.parametrize("kind", sorted(REFUSED))
def test_a_family_that_cannot_run_is_refused_with_the_reason(kind: str, tmp_path: Path) -> None:
    """By its name alone: with fields and weights that would do for another family, or without any."""
    case = SMALLEST["llama"]
    (tmp_path / "config.json").write_text(json.dumps({**case.config, "model_type": kind}))
    write(tmp_path, dict(checkpoints.tensors(case)), case.dtype)
    expected = f"model_type {kind!r} cannot be converted: {REFUSED[kind]}"
    assert refused(tmp_path) == f"{tmp_path / 'config.json'}: {expected}"
    with pytest.raises(ConvertError, match=re.escape(expected)):
        describe({"model_type": kind})
    assert len(REFUSED[kind]) > 30


def test_what_runs_is_not_refused() -> None:
    assert not set(REFUSED) & set(FAMILIES)


@pytest.mark.parametrize("kind", ["albatross", "", "LLAMA", 7, ["llama"]])
def test_an_unknown_family_is_told_which_are_known(kind: object) -> None:
    with pytest.raises(ConvertError, match="is not known; this version converts afmoe, dbrx, .*qwen3") as caught:
        describe({"model_type": kind}, "x/config.json")
    assert str(caught.value).startswith("x/config.json: model_type ")


@pytest.mark.oracle
@pytest.mark.skipif(not importlib.util.find_spec("transformers"), reason="transformers is not installed")
def test_refused_families_exist() -> None:
    from transformers.models.auto.configuration_auto import CONFIG_MAPPING_NAMES

    assert set(REFUSED) <= set(CONFIG_MAPPING_NAMES)
