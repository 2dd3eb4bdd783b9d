"""Every family: one digest on linux, wasm and bare metal in every weight kind, and what q8 and q4 cost.

The checkpoints are those of the oracles (tiny and random, so quantization costs far more than in a trained
model; the figures are printed to be watched, `pytest -s tests/test_families.py -k divergence`).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from colibri import targets
from colibri.convert import ConvertOptions, convert
from colibri.engine import Limits, Model
from colibri.jobs import Job
from oracles import bridge, checkpoints, fixtures
from oracles.cases import CASES, GREEDY
from oracles.running import Engine
from reference.description import Kinds, MoeFfn
from reference.matrix import Activation
from reference.model import Model as Reference

FAMILIES = {case.family: name for name, case in reversed(CASES.items())}  # the first case of each family
WEIGHTS = ("f32", "q8", "q4")
OTHERS = ("wasm", "baremetal")
# Random weights have flat, fragile logits: a tiny random model loses this much at most (a broken kind loses nats).
# In a MoE a rounding can flip a choice of the random router, which costs a whole expert.
MOST_KL = {"q8": {False: 0.02, True: 0.05}, "q4": {False: 0.3, True: 0.6}}
# The sparse mixer's weight of an expert jumps when another one comes near it: a rounding tips it often in a random
# router, and everything behind the row differs. That this is all of it is what the experts held still show.
TIPPING = {"phimoe": 0.4}
# With the float32 model's experts and weights only the rounding itself is left.
MOST_KL_SAME_EXPERTS = {"q8": 0.015, "q4": 0.6}


@pytest.fixture(scope="module")
def blobs(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str, str], Path]:
    """A family's blob in one weight kind, each made once."""
    root = tmp_path_factory.mktemp("families")

    def get(family: str, weights: str) -> Path:
        name, out = FAMILIES[family], root / f"{family}-{weights}.colibri"
        if not (root / name).is_dir():
            checkpoints.build(name, root / name)
        if not out.exists():
            convert(root / name, out, ConvertOptions(weights=weights, tokenizer=False))
        return out

    return get


def divergence(truth: np.ndarray, found: np.ndarray) -> tuple[float, float]:
    """Mean KL(truth || found) over positions in nats, and the share of equal argmax."""
    def log_softmax(x: np.ndarray) -> np.ndarray:
        shifted = x.astype(np.float64) - x.max(axis=-1, keepdims=True)
        return shifted - np.log(np.exp(shifted).sum(axis=-1, keepdims=True))

    p, q = log_softmax(truth), log_softmax(found)
    return float((np.exp(p) * (p - q)).sum(axis=-1).mean()), float((p.argmax(-1) == q.argmax(-1)).mean())


@pytest.mark.sampled(3)
@pytest.mark.parametrize("family", sorted(FAMILIES))
def test_divergence_of_the_quantized_kinds(family: str, blobs: Callable[[str, str], Path]) -> None:
    frozen = fixtures.load(FAMILIES[family])
    cost = {}
    moe = CASES[FAMILIES[family]].shape.experts > 0
    for weights, most in MOST_KL.items():
        kl, same = divergence(frozen.logits, Engine(blobs(family, weights)).logits(frozen.prompt))
        cost[weights] = kl
        print(f"{family:14s} {weights}  KL {kl:.2e}  argmax {100 * same:5.1f} %")
        assert kl <= max(most[moe], TIPPING.get(family, 0))
    assert cost["q8"] < cost["q4"]


class Held(Reference):
    """The reference with experts and weights written down (`taken`) or given (`held`)."""

    taken: dict[str, np.ndarray]
    held: dict[str, np.ndarray] | None = None

    def route(self, at: str, ffn: MoeFfn, h: Activation, ids: np.ndarray | None = None) -> np.ndarray:
        self.taken[at] = super().route(at, ffn, h, ids)
        return self.taken[at] if self.held is None else self.held[at]


@pytest.mark.sampled(4)
@pytest.mark.parametrize("family", [name for name in sorted(FAMILIES) if CASES[FAMILIES[name]].shape.experts])
def test_what_quantization_costs_with_the_same_experts(family: str, tmp_path: Path) -> None:
    folder, prompt = tmp_path / family, fixtures.load(FAMILIES[family]).prompt
    checkpoints.build(FAMILIES[family], folder)
    read = bridge.described(folder)
    weights, description = bridge.weights(folder, read), bridge.description(read.model)
    exact = Held(description, weights)
    exact.taken = {}
    truth = exact.logits(prompt)
    for kind, most in MOST_KL_SAME_EXPERTS.items():
        kinds = Kinds.q4_model() if kind == "q4" else Kinds.all(kind)
        rounded = Held(replace(description, kinds=kinds), weights)
        rounded.taken, rounded.held = {}, exact.taken
        kl, same = divergence(truth, rounded.logits(prompt))
        print(f"{family:14s} {kind}  KL {kl:.2e} with the same experts  argmax {100 * same:5.1f} %")
        assert 0 < kl <= most


@pytest.mark.slow
@pytest.mark.parametrize("target", OTHERS)
@pytest.mark.parametrize("family", sorted(FAMILIES))
def test_one_answer(family: str, target: str, blobs: Callable[[str, str], Path]) -> None:
    chosen = targets.pick([target])[0]
    how = chosen.missing()
    if how:
        pytest.skip(f"target {target}: {how}")
    prompt = fixtures.load(FAMILIES[family]).prompt
    for weights in WEIGHTS:
        model = Model.open(blobs(family, weights))
        limits = Limits(context=len(prompt) + GREEDY, batch=16, logit_rows=16)
        job = Job(f"{family}-{weights}", limits, prompt, generate=GREEDY)
        here, there = (t.run(job, model) for t in (targets.pick(["linux"])[0], chosen))
        assert here.error is None and there.error is None
        assert here.digest == there.digest and here.tokens == there.tokens
