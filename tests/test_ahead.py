"""Look-ahead: what is foretold is what the next layer's router says of the hidden state as it is, and what hints cost.

That hints change no bit is a factor of test_streaming, test_slots and test_stores.
"""
from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from colibri.engine import Limits, Model, Session
from colibri.library import constants
from colibri.synth import SPECS, write_random_blob
from rawsession import Raw, Store, opened, prompt

ROUTERS = [name for name, spec in SPECS.items() if spec.experts and spec.layers - len(spec.dense_layers) > 1
           and not spec.drafts]


def blob(folder: Path, spec: str, **changes: Any) -> Path:
    """A random blob of the spec, changed."""
    path = folder / f"{spec}.colibri"
    write_random_blob(path, replace(SPECS[spec], **changes), 5, "q4")
    return path


def streamed(path: Path, slots: int, store: Store, **changes: Any) -> Raw:
    """A session with look-ahead over a blob."""
    limits = Limits(**{"context": 64, "batch": 16, "logit_rows": 16, "slots": slots, "stream_experts": True,
                       "look_ahead": True, **changes})
    return Raw(opened(path), limits, store=store).started()


@pytest.mark.sampled(5)
@pytest.mark.parametrize("skip", (0.0, 0.3))
@pytest.mark.parametrize("passes", (False, True), ids=("", "passes"))
@pytest.mark.parametrize("spec", ROUTERS)
def test_where_layers_add_nothing_every_hint_is_right(spec: str, passes: bool, skip: float, tmp_path: Path) -> None:
    """The residual stays the embedding, so each router sees ahead what it will see: only the first layer with experts
    misses, hints are what the others miss, and none is wasted. For every kind of router and norm. With a single slot a
    layer needs several passes, and hints for the next one leave those of its later passes alone. Experts that their
    weights leave out are not hinted at."""
    path = blob(tmp_path, spec, residual_multiplier=1e-30)
    store = Store(path.read_bytes())
    raw = streamed(path, 1 if passes else SPECS[spec].top_k, store, batch=1, logit_rows=1, skip_below=skip)
    raw.run(prompt(raw.vocab, 12), 1)
    stats, first = raw.stats(), min(layer for _, _, layer, _ in store.asked)
    earnest = {layer for n, (_, _, layer, _) in enumerate(store.asked) if n not in store.hints}
    assert (earnest == {first} or passes) and stats.hints_used == stats.hints >= 5 and stats.hints_wasted == 0


@pytest.mark.sampled(4)
@pytest.mark.parametrize("spec", ROUTERS)
@pytest.mark.parametrize("skip", (0.0, 0.3))
def test_hints_change_no_bit_and_nothing_the_policy_holds(spec: str, skip: float, tmp_path: Path) -> None:
    """Every kind of router; the policy's misses are those without hints, and less is asked for in earnest."""
    path = blob(tmp_path, spec)
    image, made = path.read_bytes(), []
    for ahead in (False, True):
        raw = streamed(path, 3, Store(image), look_ahead=ahead, skip_below=skip, batch=2, logit_rows=2)
        made.append((raw.run(prompt(raw.vocab, 24), 2), raw.stats()))
    (right, plain), (bits, stats) = made
    assert np.array_equal(bits, right)
    assert (stats.expert_hits, stats.expert_misses + stats.hints_used) == (plain.expert_hits, plain.expert_misses)
    assert stats.hints_used > 0 and plain.hints == 0


def test_a_token_table_is_known_beforehand(tmp_path: Path) -> None:
    """A layer whose experts a table names for a token: all hints of it are right, and its router is not computed."""
    path = blob(tmp_path, "by_token", token_layers=(1, 2))
    store = Store(path.read_bytes())
    raw = streamed(path, 4, store, batch=1, logit_rows=1)
    plain = streamed(path, 4, Store(path.read_bytes()), batch=1, logit_rows=1, look_ahead=False)
    for one in (raw, plain):
        one.run(prompt(raw.vocab, 10), 1)
    assert raw.stats().hints_wasted == 0 and raw.stats().hints == raw.stats().hints_used > 20
    assert raw.stats().macs == plain.stats().macs


def test_an_expert_in_anothers_place_is_not_hinted_at(tmp_path: Path) -> None:
    """Nothing of it is read."""
    (tmp_path / "other").mkdir()
    path, other = blob(tmp_path, "moe"), Model.open(blob(tmp_path / "other", "moe", theta=20000))
    made = []
    for ahead in (False, True):
        limits = Limits(context=64, batch=1, slots=2, stream_experts=True, look_ahead=ahead, swaps=5)
        with Session(Model.open(path), limits) as session:
            for replaced in (False, True):
                before = session.stats()
                for token in prompt(40, 10):
                    session.feed([token])
                    session.finish()
                    made.append((ahead, session.logits().tobytes()))
                assert (session.stats().hints > before.hints) == (ahead and not replaced)
                for expert in range(0 if replaced else 5):
                    session.swaps.put(1, expert, other)
    assert [bits for ahead, bits in made if ahead] == [bits for ahead, bits in made if not ahead]


@pytest.mark.parametrize(("rows", "hinted"), ((1, True), (8, True), (9, False), (16, False)))
def test_hints_are_for_few_rows(rows: int, hinted: bool, tmp_path: Path) -> None:
    path = blob(tmp_path, "sigmoid")
    store = Store(path.read_bytes())
    streamed(path, 2, store).run(prompt(40, 2 * rows), rows)
    assert bool(store.hints) == hinted


def test_hints_come_behind_what_the_layer_needs_itself(tmp_path: Path) -> None:
    """A token's requests, layer by layer: its own misses, then hints of the next layer, and no more than land."""
    path = blob(tmp_path, "mixed", layers=6)
    store = Store(path.read_bytes(), lambda n: 2)
    raw = streamed(path, 4, store, batch=1, logit_rows=1)
    for token in prompt(raw.vocab, 20):
        before = len(store.asked)
        assert raw.feed([(0, token)]) == constants().OK
        raw.finish()
        asked = [(layer - (n in store.hints), n in store.hints)
                 for n, (_, _, layer, _) in enumerate(store.asked) if n >= before]
        assert asked == sorted(asked)
        for layer in range(6):
            assert asked.count((layer, True)) <= 3
    assert raw.stats().hints > 20


def test_a_store_that_takes_no_hints_costs_nothing(tmp_path: Path) -> None:
    """Refused, they are not asked for again in that layer, and nothing waits for them."""
    path = blob(tmp_path, "mixed", layers=6)
    image = path.read_bytes()

    class Busy(Store):
        refused = 0

        def fetch(self, user: Any, request: Any) -> int:
            self.refused += request.hint
            return constants().WAIT if request.hint else super().fetch(user, request)

    store = Busy(image)
    raw, plain = streamed(path, 4, store), streamed(path, 4, Store(image), look_ahead=False)
    assert np.array_equal(raw.run(prompt(raw.vocab, 20), 1), plain.run(prompt(raw.vocab, 20), 1))
    stats = raw.stats()
    assert (stats.expert_hits, stats.expert_misses) == (plain.stats().expert_hits, plain.stats().expert_misses)
    assert stats.hints == stats.hints_used == stats.hints_wasted == stats.hint_bytes == 0
    assert 0 < store.refused <= 20 * 4                      # one in each of the layers that have a next one


@pytest.mark.parametrize("fault", ("", "failing_arrival", "corrupt"))
@pytest.mark.parametrize("slots", (1, 4, 8))
def test_hints_that_are_needed_while_they_are_in_flight(slots: int, fault: str, tmp_path: Path) -> None:
    """They are waited for as if asked for in earnest; but where they fail, every one of them, nobody hears of it: they
    were of no use, and the experts are asked for anew."""
    path = blob(tmp_path, "mixed", layers=6, residual_multiplier=1e-30)
    image = path.read_bytes()

    class Slow(Store):
        def fetch(self, user: Any, request: Any) -> int:
            if request.hint and fault:
                getattr(self, fault).add(len(self.asked))
            return super().fetch(user, request)

    store = Slow(image)
    store.delay = lambda n: 12 if n in store.hints else 0
    raw, plain = streamed(path, slots, store), streamed(path, slots, Store(image), look_ahead=False)
    taken = 0
    for token in prompt(raw.vocab, 20):
        for one in (raw, plain):
            assert one.feed([(0, token)]) == constants().OK
        before = len(store.asked)
        met = raw.finish()                                  # no status but WAIT
        plain.finish()
        taken += len(met) > 12 and len(store.asked) > before
        assert np.array_equal(raw.logits(), plain.logits())
    stats, right = raw.stats(), plain.stats()
    assert (stats.expert_hits, stats.expert_misses + stats.hints_used) == (right.expert_hits, right.expert_misses)
    assert stats.hints > 20 and taken > 0 and (stats.hints_used > 0) == (not fault)
    assert raw.stop() in (constants().WAIT, constants().DONE)


def test_hints_in_flight_are_none_of_the_slots_that_a_reset_leaves_behind(tmp_path: Path) -> None:
    """A reset while a layer's own fetches and hints are on their way: what the former leave comes back, the latter
    land, and the policy holds as many as it has slots."""
    path = blob(tmp_path, "mixed", layers=6)
    image, c = path.read_bytes(), constants()
    for slots in (3, 5):
        store = Store(image)
        store.delay = lambda n, store=store: n % 3 if n in store.hints else 9 + n % 4       # type: ignore[misc]
        raw, plain = streamed(path, slots, store), streamed(path, slots, Store(image), look_ahead=False)
        for token in prompt(raw.vocab, 20):
            assert raw.feed([(0, token)]) == c.OK
            for _ in range(60):
                flying = [number in store.hints for number, _, _ in store.flying.values()]
                if (any(flying) and not all(flying)) or raw.advance(4) == c.DONE:
                    break
            assert raw.lib.colibri_reset(raw.c, 0) == c.OK
            expected = plain.run([token, 7], 1)
            assert plain.lib.colibri_reset(plain.c, 0) == c.OK
            assert np.array_equal(raw.run([token, 7], 1), expected)
            assert raw.lib.colibri_reset(raw.c, 0) == c.OK
