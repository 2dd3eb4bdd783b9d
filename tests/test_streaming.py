"""Experts on demand over a host that is slow, wrong or refuses: always the bits of the session that has all in place.

Destinations are poisoned until a fetch is there, and nothing behind the tables is in the session's memory, so a byte
used too early or from elsewhere would change the answer.
"""
from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from colibri.engine import ALL_SEQUENCES, UNLIMITED, Limits, new
from colibri.library import constants, ffi, load
from colibri.synth import write_random_blob
from editing import Edited, Opened
from rawsession import Raw, Store, digest, opened, prompt

BATCH = 6
TOKENS = 14


class Case:
    """A blob whole and as tables alone, a prompt, and the logits that are right."""

    def __init__(self, path: Path, spec: str, kinds: str) -> None:
        write_random_blob(path, spec, 21, kinds)
        self.image = path.read_bytes()
        self.edited = Edited(self.image)
        self.whole, self.tables = opened(path), opened(path, tables_only=True)
        self.info = new("colibri_info")
        load().colibri_model_info(self.whole.model, self.info)
        self.tokens = prompt(self.info.vocab, TOKENS)
        self.right = Raw(self.whole, self.limits()).started().run(self.tokens, BATCH)
        self.experts = int(self.info.expert_count)

    def limits(self, **changes: object) -> Limits:
        """The limits of every session here."""
        return Limits(**{"context": 64, "batch": BATCH, "logit_rows": BATCH, "kv": "q8", **changes})

    def streamed(self, store: Store, slots: int, **changes: object) -> Raw:
        """A session that has only the tables in place, ready."""
        limits = self.limits(stream_experts=True, resident_copy=True, slots=slots, **changes)
        return Raw(self.tables, limits, store=store).started()

    def tensors(self) -> list:
        """The tensor table."""
        return self.edited.rows("TENSORS", "tensor")

    def resident_bytes(self) -> int:
        """Bytes that start brings in."""
        c = constants()
        return sum(t.bytes for t in self.tensors() if not c.ROLE_EXPERT_GATE <= t.role <= c.ROLE_EXPERT_DOWN)


@pytest.fixture(scope="module")
def mixed(tmp_path_factory: pytest.TempPathFactory) -> Case:
    """Dense and MoE layers, three of four experts, a shared one."""
    return Case(tmp_path_factory.mktemp("streaming") / "mixed.colibri", "mixed", "q4")


@pytest.fixture(scope="module")
def uneven(tmp_path_factory: pytest.TempPathFactory) -> Case:
    """Layers whose experts differ in number and size."""
    return Case(tmp_path_factory.mktemp("streaming") / "uneven.colibri", "uneven", "q8")


@pytest.fixture(params=("mixed", "uneven"))
def case(request: pytest.FixtureRequest) -> Case:
    """Both of them."""
    return request.getfixturevalue(request.param)


@pytest.mark.parametrize("budget", (1, 7, UNLIMITED))
@pytest.mark.parametrize("share", (0, 0.3, 0.6, 1))
def test_any_number_of_slots_gives_the_same_bits(case: Case, share: float, budget: int) -> None:
    """From one slot (a pass for every expert) to one for each expert of the model."""
    slots = max(1, round(case.experts * share))
    store = Store(case.image)
    raw = case.streamed(store, slots)
    resident = raw.stats().bytes_fetched
    assert np.array_equal(raw.run(case.tokens, BATCH, budget), case.right)
    stats = raw.stats()
    experts = store.asked[-stats.expert_misses:]
    assert stats.bytes_fetched - resident == sum(size for _, size, _, _ in experts) == stats.expert_bytes_fetched
    assert all(layer != 0xFFFFFFFF for _, _, layer, _ in experts)
    if slots == case.experts:
        assert len(set(experts)) == len(experts) and stats.expert_hits > 0     # each expert once, ever
    assert stats.pool_used == raw.plan.pool_bytes and raw.red_zones_intact()


def test_misses_times_run_bytes_are_the_bytes_fetched(mixed: Case) -> None:
    raw = Raw(mixed.whole, mixed.limits(stream_experts=True, slots=2), store=Store(mixed.image)).started()
    assert raw.stats().bytes_fetched == 0
    assert np.array_equal(raw.run(mixed.tokens, BATCH), mixed.right)
    stats = raw.stats()
    assert stats.expert_misses > 0 and stats.bytes_fetched == stats.expert_misses * mixed.info.expert_run_bytes
    assert stats.expert_bytes_fetched == stats.bytes_fetched


def test_resident_weights_alone_can_be_brought_in(mixed: Case) -> None:
    store = Store(mixed.image)
    raw = Raw(mixed.whole, mixed.limits(resident_copy=True), store=store).started()
    assert np.array_equal(raw.run(mixed.tokens, BATCH), mixed.right)
    assert raw.stats().bytes_fetched == mixed.resident_bytes() == sum(size for _, size, _, _ in store.asked)
    assert {(layer, expert) for _, _, layer, expert in store.asked} == {(0xFFFFFFFF, 0xFFFFFFFF)}


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("newest_first", (False, True))
def test_late_and_reversed_arrivals_do_not_matter(case: Case, seed: int, newest_first: bool) -> None:
    draw = random.Random(seed)
    store = Store(case.image, lambda n: draw.randrange(6), newest_first)
    raw = case.streamed(store, draw.randint(1, case.experts))
    waits = 0
    out = []
    for first in range(0, TOKENS, BATCH):
        part = case.tokens[first:first + BATCH]
        assert raw.feed([(0, token) for token in part]) == constants().OK
        waits += raw.finish(draw.choice((1, 5, UNLIMITED))).count(constants().WAIT)
        out += [raw.logits(i) for i in range(len(part))]
    assert waits > 0 and digest(np.stack(out)) == digest(case.right)


def test_a_host_that_says_not_now_is_asked_again(case: Case) -> None:
    store = Store(case.image)
    store.refusals = {n: 1 + n % 4 for n in range(0, 400, 2)}
    assert np.array_equal(case.streamed(store, 2).run(case.tokens, BATCH), case.right)
    assert not any(store.refusals[n] for n in range(0, len(store.asked), 2))


def fetch_count(case: Case, slots: int) -> tuple[int, int]:
    """Fetches of a start and of a whole undisturbed run."""
    store = Store(case.image)
    raw = case.streamed(store, slots)
    at_start = len(store.asked)
    raw.run(case.tokens, BATCH)
    return at_start, len(store.asked)


@pytest.mark.parametrize("fault", ("failing_fetch", "failing_arrival", "corrupt"))
def test_every_fetch_fails_once(mixed: Case, fault: str) -> None:
    """The n-th fetch goes wrong, for every n: the call says so, the next one tries again, the bits are the same."""
    c = constants()
    said = c.ERROR_CORRUPT if fault == "corrupt" else c.ERROR_FETCH
    at_start, total = fetch_count(mixed, 2)
    assert total - at_start > 20
    for number in range(at_start, total):
        store = Store(mixed.image, lambda n: n % 2)
        raw = mixed.streamed(store, 2)
        getattr(store, fault).add(number)
        out, met = [], []
        for first in range(0, TOKENS, BATCH):
            part = mixed.tokens[first:first + BATCH]
            assert raw.feed([(0, token) for token in part]) == c.OK
            met += raw.finish(also=(said,))
            assert raw.length() == first + len(part)
            out += [raw.logits(i) for i in range(len(part))]
        assert met.count(said) == 1 and not getattr(store, fault)
        assert digest(np.stack(out)) == digest(mixed.right), number


class Broken(Store):
    """From the n-th fetch on, one place of the storage fails or is wrong until it is repaired."""

    def __init__(self, image: bytes, number: int, fault: str) -> None:
        super().__init__(image, lambda n: n % 3)
        self.number, self.fault = number, fault
        self.place: tuple[int, int, int, int] | None = None
        self.broken = True

    def fetch(self, user: object, request: Any) -> int:
        """The hook."""
        place = (request.offset, request.bytes, request.layer, request.expert)
        if self.place is None and len(self.asked) == self.number:
            self.place = place
        if self.broken and place == self.place:
            getattr(self, self.fault).add(len(self.asked))
        return super().fetch(user, request)


@pytest.mark.parametrize("fault", ("failing_fetch", "failing_arrival", "corrupt"))
def test_every_fetch_fails_for_good_until_the_storage_is_repaired(mixed: Case, fault: str) -> None:
    """The n-th fetch and every later one of the same expert, for every n: the same clear status as often as asked, no
    row more; after the repair the run goes on where it was, with the bits of an undisturbed one."""
    c = constants()
    said = c.ERROR_CORRUPT if fault == "corrupt" else c.ERROR_FETCH
    at_start, total = fetch_count(mixed, 2)
    for number in range(at_start, total):
        store = Broken(mixed.image, number, fault)
        raw = mixed.streamed(store, 2)
        out, met = [], 0
        for first in range(0, TOKENS, BATCH):
            part = mixed.tokens[first:first + BATCH]
            assert raw.feed([(0, token) for token in part]) == c.OK
            while (status := raw.advance()) != c.DONE:
                assert status in (c.WAIT, said)
                met += status == said
                assert raw.length() == first or status != said
                store.broken = met < 4
            out += [raw.logits(i) for i in range(len(part))]
        assert met == 4 and store.place is not None
        assert digest(np.stack(out)) == digest(mixed.right), number


@pytest.mark.parametrize("fault", ("failing_fetch", "failing_arrival", "corrupt"))
def test_every_fetch_of_a_start_fails_once(mixed: Case, fault: str) -> None:
    c = constants()
    said = c.ERROR_CORRUPT if fault == "corrupt" else c.ERROR_FETCH
    at_start, _ = fetch_count(mixed, 2)
    for number in range(0, at_start, 2):
        store = Store(mixed.image, lambda n: n % 3)
        getattr(store, fault).add(number)
        raw = Raw(mixed.tables, mixed.limits(stream_experts=True, resident_copy=True, slots=2), store=store)
        met = []
        while (status := raw.start()) not in (c.OK, c.DONE):
            met.append(status)
            if status < 0:
                assert (raw.detail.status, raw.detail.section) == (said, c.SECTION_TENSORS)
                assert fault == "failing_fetch" or raw.detail.offset == store.asked[-1][0]
        assert met.count(said) == 1 and set(met) <= {said, c.WAIT}
        assert np.array_equal(raw.run(mixed.tokens[:BATCH], BATCH), mixed.right[:BATCH])


def test_a_byte_that_stays_wrong_is_never_used(mixed: Case) -> None:
    """An expert whose bytes are wrong for good: every call refuses it, nothing is computed with it."""
    c = constants()
    place = next(t for t in mixed.tensors() if t.role == c.ROLE_EXPERT_GATE)
    damaged = bytearray(mixed.image)
    for expert in range(place.count):
        damaged[place.offset + expert * place.stride + 5] ^= 1
    raw = mixed.streamed(Store(bytes(damaged)), 3)
    assert raw.feed([(0, 1)]) == c.OK
    assert [raw.advance() for _ in range(20)] == [c.ERROR_CORRUPT] * 20
    assert raw.length() == 0 and raw.logits() is None
    assert raw.lib.colibri_reset(raw.c, ALL_SEQUENCES) == c.OK and raw.stop() == c.DONE


def test_a_batch_that_needs_more_experts_than_there_are_slots(case: Case) -> None:
    """Several passes, each with its leases; as many as there are distinct experts with a single slot."""
    store = Store(case.image, lambda n: 1)
    raw = case.streamed(store, 1)
    before = len(store.asked)
    assert raw.feed([(0, token) for token in case.tokens[:BATCH]]) == constants().OK
    raw.finish()
    assert np.array_equal(np.stack([raw.logits(i) for i in range(BATCH)]), case.right[:BATCH])
    asked = [(layer, expert) for _, _, layer, expert in store.asked[before:]]
    assert len(asked) > 4 and asked == sorted(set(asked))        # each once, layers and experts ascending


def test_stop_waits_for_what_is_in_flight_and_then_the_pool_is_free(mixed: Case) -> None:
    c = constants()
    store = Store(mixed.image, lambda n: 4)
    raw = mixed.streamed(store, 4)
    assert raw.feed([(0, token) for token in mixed.tokens[:BATCH]]) == c.OK
    while not store.flying:
        raw.advance(20)
    flying = len(store.flying)
    assert flying > 1
    statuses = []
    while store.flying:
        statuses.append(raw.stop())
        assert (statuses[-1] == c.WAIT) == bool(store.flying)
    assert statuses[0] == c.WAIT and statuses[-1] == c.DONE
    assert raw.stop() == c.DONE and raw.advance() == c.ERROR_STOPPED
    again = Raw(mixed.whole, mixed.limits(), pool=raw.room)
    assert np.array_equal(again.started().run(mixed.tokens, BATCH), mixed.right)


def test_stop_during_a_start_waits_too(mixed: Case) -> None:
    c = constants()
    store = Store(mixed.image, lambda n: 3)
    raw = Raw(mixed.tables, mixed.limits(stream_experts=True, resident_copy=True, slots=2), store=store)
    assert raw.start() == c.WAIT and store.flying
    assert raw.feed([(0, 1)]) == c.ERROR_BUSY and raw.advance() == c.ERROR_BUSY
    statuses = [raw.stop()]
    while statuses[-1] == c.WAIT:
        statuses.append(raw.stop())
    assert len(statuses) > 1 and statuses[-1] == c.DONE and not store.flying


@pytest.mark.parametrize("slots", (1, 2))
def test_an_abandoned_fetch_does_not_block_its_slot(mixed: Case, slots: int) -> None:
    """A reset while fetches are in flight, then other tokens: the slots come back when the host is done with them."""
    c = constants()
    plain = Raw(mixed.whole, mixed.limits()).started()
    for delay in (0, 1, 3):
        store = Store(mixed.image, lambda n, delay=delay: delay)
        raw = mixed.streamed(store, slots)
        for token in range(12):
            assert raw.feed([(0, token)]) == c.OK
            for _ in range(40):
                if store.flying or raw.advance(8) == c.DONE:
                    break
            assert raw.lib.colibri_reset(raw.c, 0) == c.OK
        expected = plain.run([30, 31], 1)
        assert plain.lib.colibri_reset(plain.c, 0) == c.OK
        assert np.array_equal(raw.run([30, 31], 1), expected)


def test_hits_and_misses_count_every_expert_that_was_leased(mixed: Case) -> None:
    """With a slot for every expert: the second run of the same rows only hits, and fetches nothing."""
    raw = mixed.streamed(Store(mixed.image), mixed.experts)
    first = raw.run(mixed.tokens, BATCH)
    counted = raw.stats()
    assert raw.lib.colibri_reset(raw.c, 0) == constants().OK
    assert np.array_equal(raw.run(mixed.tokens, BATCH), first)
    again = raw.stats()
    assert again.expert_misses == counted.expert_misses and again.bytes_fetched == counted.bytes_fetched
    assert again.expert_hits - counted.expert_hits == counted.expert_hits + counted.expert_misses


def test_what_a_streamed_session_cannot_do_without_is_named(mixed: Case) -> None:
    c = constants()
    limits = mixed.limits(stream_experts=True, resident_copy=True, slots=2)
    raw = Raw(mixed.tables, limits)
    assert raw.start() == c.ERROR_ARGUMENT and raw.detail.field == c.FIELD_HOOK
    raw = Raw(mixed.tables, limits, store=Store(mixed.image))
    raw.hooks.fetched = ffi().NULL
    assert raw.start() == c.ERROR_ARGUMENT and raw.detail.field == c.FIELD_HOOK
    for changes, section in (({}, c.SECTION_RESIDENT), ({"resident_copy": True}, c.SECTION_EXPERTS)):
        raw = Raw(mixed.tables, mixed.limits(**changes), store=Store(mixed.image))
        assert raw.start() == c.ERROR_ADDRESS and raw.detail.section == section
        assert raw.detail.expected > raw.detail.found
    for slots in (0, mixed.experts + 1):
        assert refused(mixed.whole, mixed.limits(stream_experts=True, slots=slots)) == (c.ERROR_SLOTS, c.FIELD_SLOTS)
    assert refused(mixed.whole, mixed.limits(slots=1)) == (c.ERROR_SLOTS, c.FIELD_SLOTS)


def refused(model: Opened, limits: Limits) -> tuple[int, int]:
    """Status and field of a plan that is refused; its result stays untouched."""
    plan, detail = new("colibri_plan_result"), ffi().new("colibri_detail *")
    before = bytes(ffi().buffer(plan))
    status = load().colibri_plan(model.model, limits.c(), plan, detail)
    assert bytes(ffi().buffer(plan)) == before
    return status, detail.field
