"""The outside truth: tiny random checkpoints, answered by transformers, the numpy reference and the engine.

The fixtures are frozen (tests/oracles/generate.py made them), so that the default run needs no torch; the
checkpoints are drawn again from their seeds and must have the digest the fixture was made for. Then for every
switch of a description a wrong value is set, and the oracle has to notice.
"""

from __future__ import annotations

import importlib.util
import os
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from colibri.convert import ConvertOptions, convert
from colibri.errors import ColibriError
from colibri.description import Model
from colibri.library import key_types
from oracles import bridge, checkpoints, fixtures, generate, wrong
from oracles.cases import CASES, GREEDY, PROMPT
from oracles.running import Engine
from reference.model import Model as Reference

LIMIT = 1e-4  # largest logit error
NOTICED = 10 * LIMIT  # what a wrong switch has to exceed
LIVE = [
    pytest.mark.oracle,
    pytest.mark.skipif(not os.environ.get("CI") and not importlib.util.find_spec("transformers"),
                       reason="torch or transformers is not installed (extra [oracle])"),
]
# Switches without a wrong value of their own: not read by the maths, or not free to be wrong.
NO_EFFECT = {"TRAINED_CONTEXT": "information for callers", "EXPERT_RUN": "a distance that open checks"}


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    """Checkpoints by case name, each built once."""
    root = tmp_path_factory.mktemp("oracles")

    def folder(name: str) -> Path:
        if not (root / name).is_dir():
            digest = checkpoints.build(name, root / name)
            assert digest == fixtures.load(name).checkpoint_sha256, "not the checkpoint that was frozen"
        return root / name

    return folder


def _convert(folder: Path, out: Path, change: wrong.Change | None = None) -> Engine:
    def patch(model: Model) -> Model | None:
        return change(model) if change else None

    options = ConvertOptions(weights="f32", tokenizer=False)
    convert(folder, out / "model.colibri", options, patch_description=patch if change else None)
    return Engine(out / "model.colibri")


def test_every_case_is_frozen_with_wide_margins() -> None:
    assert {path.stem for path in fixtures.FOLDER.glob("*.json")} == set(CASES)
    for name in CASES:
        frozen = fixtures.load(name)
        assert len(frozen.prompt) == PROMPT and len(frozen.greedy) == GREEDY
        assert frozen.seed == CASES[name].seed and frozen.prompt == checkpoints.prompt(CASES[name])
        assert frozen.margin > generate.MARGIN
        assert frozen.router_margin is None or frozen.router_margin > generate.ROUTER_MARGIN
        assert frozen.float32_difference < LIMIT / 2, "float32 itself is too far off for the limit"
        assert frozen.argmax == frozen.logits.argmax(axis=-1).tolist()
        assert len(set(frozen.greedy)) >= generate.VARIETY
        assert frozen.logits.std() > 0.3
        assert fixtures.path(name).stat().st_size < 60_000


@pytest.mark.sampled(3)
@pytest.mark.parametrize("name", CASES)
def test_engine_answers_as_transformers_did(name: str, folders: Callable[[str], Path],
                                            tmp_path: Path) -> None:
    frozen = fixtures.load(name)
    logits, greedy = _convert(folders(name), tmp_path).run(frozen.prompt, GREEDY)
    assert np.abs(logits - frozen.logits).max() <= LIMIT
    assert logits.argmax(axis=-1).tolist() == frozen.argmax
    assert greedy == frozen.greedy


@pytest.mark.sampled(3)
@pytest.mark.parametrize("name", CASES)
def test_reference_answers_as_transformers_did(name: str, folders: Callable[[str], Path]) -> None:
    frozen, folder = fixtures.load(name), folders(name)
    read = bridge.described(folder)
    reference = Reference(bridge.description(read.model), bridge.weights(folder, read))
    cache = reference.new_cache()
    logits = reference.logits(frozen.prompt, cache)
    assert np.abs(logits - frozen.logits).max() <= LIMIT
    greedy, row = [], logits[-1]
    for _ in range(GREEDY):
        greedy.append(int(row.argmax()))
        row = reference.logits(greedy[-1:], cache)[0]
    assert greedy == frozen.greedy


def _ids(table: list[tuple[str, str, str, wrong.Change]]) -> list[str]:
    return [f"{keys}: {what} ({case})" for keys, case, what, _ in table]


@pytest.mark.sampled(4)
@pytest.mark.parametrize("keys,name,what,change", wrong.CHANGES, ids=_ids(wrong.CHANGES))
def test_a_wrong_switch_is_noticed(keys: str, name: str, what: str, change: wrong.Change,
                                   folders: Callable[[str], Path], tmp_path: Path) -> None:
    frozen = fixtures.load(name)
    logits = _convert(folders(name), tmp_path, change).logits(frozen.prompt)
    assert np.abs(logits - frozen.logits).max() > NOTICED


@pytest.mark.sampled(4)
@pytest.mark.parametrize("keys,name,what,change", wrong.REFUSED, ids=_ids(wrong.REFUSED))
def test_a_wrong_size_never_becomes_an_answer(keys: str, name: str, what: str, change: wrong.Change,
                                              folders: Callable[[str], Path], tmp_path: Path) -> None:
    frozen = fixtures.load(name)
    with pytest.raises(ColibriError):
        _convert(folders(name), tmp_path, change).logits(frozen.prompt)


def test_no_switch_is_left_out() -> None:
    keys = set(key_types("colibri_model_key")) | set(key_types("colibri_layer_key"))
    tried = {key for row in wrong.CHANGES + wrong.REFUSED for key in row[0].split()}
    assert keys - tried == set(NO_EFFECT), "a switch of the format without a wrong value here"


@pytest.mark.parametrize("name", [pytest.param(name, marks=LIVE) for name in CASES])
def test_live_transformers_agrees(name: str, folders: Callable[[str], Path], tmp_path: Path) -> None:
    frozen, folder = fixtures.load(name), folders(name)
    live = generate.Live(CASES[name], folder).run()
    assert np.abs(live.logits - frozen.logits).max() < 1e-5, "the frozen answer is not today's"
    assert live.greedy == frozen.greedy
    logits, greedy = _convert(folder, tmp_path).run(frozen.prompt, GREEDY)
    assert np.abs(logits - live.logits).max() <= LIMIT
    assert greedy == live.greedy
