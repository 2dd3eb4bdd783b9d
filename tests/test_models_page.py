"""docs/MODELS.md is what is measured: the committed page against one made now, and the stored digests against runs."""

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
import test_families
from colibri.families import describe
from colibri.family_table import FAMILIES
from oracles import page, page_text
from oracles.cases import CASES, GREEDY, PROMPT


@pytest.fixture(scope="module")
def blobs(tmp_path_factory: pytest.TempPathFactory) -> Iterator[page.Blobs]:
    yield page.Blobs(tmp_path_factory.mktemp("page"))


@pytest.fixture(scope="module")
def figures(blobs: page.Blobs) -> list[page.FamilyFigures]:
    return page.measure(blobs)


@pytest.mark.slow
def test_the_page_is_what_is_measured(figures: list[page.FamilyFigures]) -> None:
    """Byte for byte; after a change that is meant: python tests/oracles/page.py."""
    sized = page_text.sizes(page.ROOT / "tests" / "data" / "configs", page.CONTEXT)
    made = page_text.page(figures, page.stored(), sized)
    assert page.PAGE.read_text(encoding="utf-8") == made, "docs/MODELS.md is old: run python tests/oracles/page.py"


@pytest.mark.slow
def test_every_family_is_right(figures: list[page.FamilyFigures]) -> None:
    """All positions, all tokens, and no logit off by more than 1e-4; every family has cases and wrong switches."""
    assert {one.family for one in figures} == set(FAMILIES)
    for case in [case for one in figures for case in one.cases]:
        assert (case.argmax, case.greedy) == (PROMPT, GREEDY), case.name
        assert case.error <= 1e-4, case.name
    assert all(one.divergence["q8"][0] < one.divergence["q4"][0] for one in figures)


@pytest.mark.parametrize("weights", page.WEIGHTS)
@pytest.mark.parametrize("family", sorted({case.family for case in CASES.values()}))
def test_stored_digests_are_of_this_core(family: str, weights: str, blobs: page.Blobs) -> None:
    """This process gives the stored digest; test_families compares it with every target that is stored."""
    kept = page.stored()[family][weights]
    assert set(kept) == {"linux", *test_families.OTHERS} and family in test_families.FAMILIES
    assert set(kept.values()) == {page.digest(family, weights, "linux", blobs)}
    assert page.first_case(family) == test_families.FAMILIES[family]


def test_differing_digests_show() -> None:
    same = {"f32": {"linux": "a", "wasm": "a"}, "q8": {"linux": "b", "wasm": "b"}}
    assert page_text.equality(same) == "2 targets equal"
    assert page_text.equality({**same, "q8": {"linux": "b", "wasm": "c"}}) == "DIFFERS"
    assert page_text.equality({**same, "q8": {"linux": "b"}}) == "DIFFERS"
    assert page_text.equality({"f32": {"linux": "a"}}) == page_text.equality({}) == "not compared"


@pytest.mark.slow
def test_a_worse_figure_shows(figures: list[page.FamilyFigures]) -> None:
    """The family's row is its worst case's."""
    one = next(one for one in figures if len(one.cases) > 1)
    bad = replace(one.cases[-1], argmax=31, greedy=3, error=0.5)
    row = page_text.family_row(replace(one, cases=[*one.cases[:-1], bad]), {})
    assert row[2:5] == ["31/32", "3/20", "5.0e-01"]


@pytest.mark.parametrize(("name", "words"), [
    ("llama_gqa_bias", ["grouped heads", "biases on q, k, v, o", "tied head", "linear rope"]),
    ("olmoe_wide", ["q/k norm over all heads", "q, k and v clamped", "softmax router", "weights as they are"]),
    ("qwen2_moe_renorm", ["gated shared expert", "weights divided by their sum", "dense layers"]),
    ("glm_partial", ["part of a head rotated", "sigmoid router", "weights scaled"]),
    ("granite_multipliers", ["residual multiplier", "embedding multiplier", "logit multiplier"]),
    ("ernie_interleaved", ["interleaved rotary pairs"]),
    ("mistral_window", ["windows"]),
])  # fmt: skip
def test_switches_in_words(name: str, words: list[str]) -> None:
    found = page_text.switches(describe(CASES[name].config, name).model, CASES[name].config)
    assert set(words) <= set(found), found


def test_the_generator_needs_no_table_of_its_own(tmp_path: Path) -> None:
    """A key that has no words yet is shown by its name in the format."""
    assert page_text._said("ROUTER_SCALE", 2.5) == "weights scaled"
    assert page_text._said("SOME_NEW_KEY", 2) == "some new key"
    assert page_text.enumerated()["ROUTER_SCORE"] == "colibri_router_score"
