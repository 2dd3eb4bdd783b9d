"""The engine against the independent numpy model, bit for bit: every description, weight kind and cache kind.

The numpy model (tests/reference) was written from docs/NUMERICS.md alone and quantizes the float32 weights itself;
the engine reads them from a blob. One digest over the logits of every position must come out of both.
"""

from __future__ import annotations

import hashlib
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from colibri.engine import Limits, Model, Session
from colibri.format import KINDS, Kinds
from colibri.synth import SPECS, write_random_blob
from oracles import bridge
from reference import description as words
from reference.model import Model as Reference

TOKENS = 41  # beyond two tiles of 16 positions, and beyond every window
KV_KINDS = ("f32", "f16", "q8")


def prompt(vocab: int) -> list[int]:
    """Token ids that meet the whole vocabulary's range."""
    return [(i * i * 7 + 3 * i + 1) % vocab for i in range(TOKENS)]


def reference_kinds(kinds: Kinds) -> words.Kinds:
    """The converter's kinds in the reference's words."""
    return words.Kinds(kinds.attention, kinds.ffn, kinds.experts, kinds.shared, kinds.embed, kinds.head)


def engine_logits(path: Path, tokens: list[int], **limits: object) -> np.ndarray:
    """float32 [tokens, vocab] of the engine, in feeds of the planned batch."""
    batch = int(limits.get("batch", 16))
    planned = Limits(context=len(tokens), **{"batch": batch, "logit_rows": batch, **limits})
    rows = []
    with Session(Model.open(path), planned) as session:
        for first in range(0, len(tokens), batch):
            part = tokens[first:first + batch]
            session.feed(part, want="all")
            session.finish()
            rows += [session.logits(i).copy() for i in range(len(part))]
    return np.stack(rows)


@pytest.fixture(scope="module")
def blobs(tmp_path_factory: pytest.TempPathFactory):
    """Random blobs, each written once."""
    made = {}

    def get(spec: str, weights: str):
        if (spec, weights) not in made:
            path = tmp_path_factory.mktemp("truth") / f"{spec}-{weights}.colibri"
            made[spec, weights] = path, write_random_blob(path, spec, seed=11, kinds=weights)
        return made[spec, weights]

    return get


@pytest.mark.sampled(9)
@pytest.mark.parametrize("kv", KV_KINDS)
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("spec", sorted(SPECS))
def test_engine_equals_reference(spec: str, kind: str, kv: str, blobs) -> None:
    path, made = blobs(spec, kind)
    tokens = prompt(made.model.vocab)
    desc = replace(bridge.description(made.model), kinds=reference_kinds(made.kinds), kv_kind=kv)
    weights = bridge.run_weights(made.model, made.weights)
    expected = Reference(desc, weights).logits(tokens)
    found = engine_logits(path, tokens, kv=kv)
    differing = np.flatnonzero((found.view(np.uint32) != expected.view(np.uint32)).any(axis=1))
    assert differing.size == 0, (
        f"first differing position {differing[0]} of {differing.size}, largest error "
        f"{np.abs(found - expected).max()}")
    assert hashlib.sha256(found.astype("<f4").tobytes()).hexdigest() == Reference(desc, weights).digest(tokens)


@pytest.mark.parametrize("weights", KINDS)
def test_mixed_kinds_of_one_model(weights: str, tmp_path: Path) -> None:
    """Every role in a kind of its own: sites that feed float and quantized matrices at once."""
    kinds = Kinds(embed="f16", head="q4", attention=weights, ffn="q4", shared="f32", experts="q8")
    path = tmp_path / "kinds.colibri"
    made = write_random_blob(path, "mixed", seed=5, kinds=kinds)
    tokens = prompt(made.model.vocab)
    desc = replace(bridge.description(made.model), kinds=reference_kinds(kinds), kv_kind="q8")
    expected = Reference(desc, made.weights).logits(tokens)
    assert (engine_logits(path, tokens, kv="q8").view(np.uint32) == expected.view(np.uint32)).all()
