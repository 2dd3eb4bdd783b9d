"""Checkpoints of balanced serving: experts in slots, some twice, become the very blob of the checkpoint before."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from checkpoint_kit import PLAIN, entries_of, folder_of, refused
from colibri.cli import main
from colibri.convert import convert
from colibri.errors import ConvertError
from colibri.expert_map import FIELD, read_expert_map
from oracles import tensorfile
from oracles.cases import CASES

EXPERTS = 12
SLOTS = {1: [5, 0, 11, 3, 3, 7, 1, 2, 10, 4, 6, 9, 8, 0], 2: [11, 10, 9, 8, 7, 6, 5, 4, 3, 2, 1, 0, 11, 11]}


def slots_entries(slots: dict[int, list[int]] = SLOTS) -> list[tensorfile.Entry]:
    """The tensors of dots_groups with its experts in slots."""
    plain, out = {e.name: e for e in entries_of("dots_groups")}, []
    for name, old in plain.items():
        if ".mlp.experts." not in name:
            out.append(old)
    for layer, row in slots.items():
        for slot, expert in enumerate(row):
            for part in ("gate_proj", "up_proj", "down_proj"):
                old = plain[f"model.layers.{layer}.mlp.experts.{expert}.{part}.weight"]
                out.append(old._replace(name=f"model.layers.{layer}.mlp.experts.{slot}.{part}.weight"))
    return out


def balanced(folder: Path, slots: dict[int, list[int]] = SLOTS) -> Path:
    """A folder with them, and the map."""
    folder_of("dots_groups", folder)
    tensorfile.write(folder / "model.safetensors", slots_entries(slots))
    (folder / "map.json").write_text(json.dumps({FIELD: list(slots.values())}))
    return folder


MAPPED = replace(PLAIN, expert_map=tuple(map(tuple, SLOTS.values())), source_name="same")


def test_the_case_is_what_this_needs() -> None:
    assert (CASES["dots_groups"].shape.experts, CASES["dots_groups"].shape.dense_layers) == (EXPERTS, (0,))


@pytest.mark.parametrize("weights", ["f32", "q4"])
def test_slots_become_the_blob_of_the_checkpoint_before(weights: str, tmp_path: Path) -> None:
    plain = convert(folder_of("dots_groups", tmp_path / "plain"), tmp_path / "a.colibri",
                    replace(PLAIN, weights=weights, source_name="same"))
    found = convert(balanced(tmp_path / "slots"), tmp_path / "b.colibri", replace(MAPPED, weights=weights))
    assert plain.path.read_bytes() == found.path.read_bytes()


def test_the_command_reads_the_map(tmp_path: Path) -> None:
    folder, out = balanced(tmp_path / "slots"), tmp_path / "m.colibri"
    assert main(["convert", str(folder), "-o", str(out), "--weights", "f32", "--no-tokenizer", "--source-name", "same",
                 "--expert-map", str(folder / "map.json")]) == 0
    assert out.read_bytes() == convert(folder, tmp_path / "b.colibri", MAPPED).path.read_bytes()


def test_without_the_map_slots_too_many_are_refused(tmp_path: Path) -> None:
    assert "mlp.experts.12." in refused(balanced(tmp_path)) and "belongs to nothing" in refused(tmp_path)


def test_a_copy_that_is_missing_or_of_another_shape_is_named(tmp_path: Path) -> None:
    folder = balanced(tmp_path, {1: SLOTS[1][:-1], 2: SLOTS[2]})
    assert "'model.layers.1.mlp.experts.13.gate_proj.weight' is missing" in refused(folder, MAPPED)
    name, other = "model.layers.1.mlp.experts.13.up_proj.weight", np.ones((7, 64), np.float32)
    balanced(folder)
    with_wrong = [tensorfile.Entry(name, other.shape, "F32", lambda: other)]
    rest = [e for e in slots_entries() if e.name != name]
    tensorfile.write(folder / "model.safetensors", rest + with_wrong)
    assert f"tensor {name!r} has shape [7, 64]" in refused(folder, MAPPED)


@pytest.mark.parametrize(("rows", "words"), [
    ([SLOTS[1]], "has 1 lists, the model has 2 layers with experts"),
    ([SLOTS[1], [12, *SLOTS[2]]], "layer 2: expert 12, the router knows 0 .. 11"),
    ([SLOTS[1], SLOTS[2][1:5]], "layer 2: expert 0 lies in no slot"),
])
def test_a_map_that_does_not_fit_is_refused(rows: list[list[int]], words: str, tmp_path: Path) -> None:
    folder = balanced(tmp_path)
    assert words in refused(folder, replace(MAPPED, expert_map=tuple(map(tuple, rows))))


@pytest.mark.parametrize("content", [{}, {FIELD: 3}, {FIELD: [[]]}, {FIELD: [[0, "1"]]}, {FIELD: [[-1]]},
                                     {FIELD: [[True]]}])
def test_a_file_that_is_no_map_is_refused(content: object, tmp_path: Path) -> None:
    (tmp_path / "map.json").write_text(json.dumps(content))
    with pytest.raises(ConvertError, match=f"map.json: field '{FIELD}': expected a list of expert numbers"):
        read_expert_map(tmp_path / "map.json")


@pytest.mark.parametrize("case", ["granite_moe", "gpt_oss_sinks"])
def test_experts_in_one_tensor_have_no_slots(case: str, tmp_path: Path) -> None:
    shape = CASES[case].shape
    rows = tuple(tuple(range(shape.experts)) for _ in range(shape.layers))
    assert "keeps all experts in one tensor" in refused(folder_of(case, tmp_path), replace(PLAIN, expert_map=rows))


def test_the_identity_is_no_change(tmp_path: Path) -> None:
    folder = folder_of("mixtral_tied", tmp_path / "hf")
    shape = CASES["mixtral_tied"].shape
    rows = tuple(tuple(range(shape.experts)) for _ in range(shape.layers))
    same = [convert(folder, tmp_path / f"{n}.colibri", replace(PLAIN, expert_map=m)) for n, m in enumerate(((), rows))]
    assert np.array_equal(*(np.fromfile(one.path, np.uint8) for one in same))
