"""What a session promises, by the C calls: a feed is taken whole, refusals are named, no bit depends on how it is run.

tests/test_engine.py looks at the same through the Python engine; here are the statuses, the edges, and what an error
must leave untouched.
"""
from __future__ import annotations

import random
import threading
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from colibri.engine import ALL_SEQUENCES, UNLIMITED, Limits, new
from colibri.library import constants, ffi, load, status_name
from colibri.synth import SPECS, Spec, write_random_blob
from editing import Edited, Opened
from rawsession import NEXT, POISON, Raw, Store, opened, prompt

LIMITS = Limits(context=48, batch=8, logit_rows=8, kv="f16")
KV_KINDS = ("f32", "f16", "q8")
VOCAB = 77


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Random blobs as SPEC-KIND.colibri."""
    place = tmp_path_factory.mktemp("session")
    for spec, kinds in (("mixed", "q4"), ("window", "q8"), ("shared", "f16"), ("mixed", "f32"), ("dense", "q8")):
        write_random_blob(place / f"{spec}-{kinds}.colibri", spec, 31, kinds)
    return place


@pytest.fixture(scope="module")
def model(folder: Path) -> Opened:
    """Dense and MoE layers, shared expert, biases, q/k norm."""
    return opened(folder / "mixed-q4.colibri")


def fresh(model: Opened, tokens: list[int], limits: Limits = LIMITS, batch: int = 1) -> np.ndarray:
    """Logits (as bits) of a session that does nothing else."""
    return Raw(model, limits).started().run(tokens, batch)


# ---- feed and advance ----


FEEDS = {                           # rows of (sequence, token, wants logits, position) after three rows of sequence 0
    "token": ([(0, 1, 1, NEXT), (0, VOCAB, 0, NEXT)], "TOKEN"),
    "largest token": ([(0, 1, 1, NEXT), (0, 0xFFFFFFFF, 0, NEXT)], "TOKEN"),
    "sequence": ([(0, 1, 1, NEXT), (2, 1, 0, NEXT)], "LIMIT"),
    "position ahead": ([(0, 1, 1, NEXT), (0, 1, 0, 5)], "ARGUMENT"),
    "position twice": ([(0, 1, 0, 3), (0, 1, 0, 3)], "ARGUMENT"),
    "position behind": ([(0, 1, 0, 2)], "ARGUMENT"),
    "position of another sequence": ([(0, 1, 0, 3), (1, 1, 0, 4)], "ARGUMENT"),
    "want is no truth value": ([(0, 1, 1, NEXT), (0, 1, 2, NEXT)], "ARGUMENT"),
    "more logits than planned": ([(0, 1, 1, NEXT)] * 4, "LIMIT"),
    "more rows than planned": ([(0, 1, 0, NEXT)] * 9, "LIMIT"),
}


@pytest.mark.parametrize("name", FEEDS)
def test_a_feed_is_taken_as_a_whole_or_not_at_all(model: Opened, name: str) -> None:
    c = constants()
    raw = Raw(model, replace(LIMITS, sequences=2, logit_rows=3)).started()
    first = raw.run([5, 6, 7], 3)
    rows, status = FEEDS[name]
    assert raw.feed(rows) == getattr(c, "ERROR_" + status)
    assert (raw.length(0), raw.length(1)) == (3, 0)
    assert np.array_equal(raw.logits(2), first[2])                  # of the last feed that was taken
    assert raw.advance() == c.DONE and raw.stats().rows == 3
    assert np.array_equal(raw.run([8], 1)[0], fresh(model, [5, 6, 7, 8])[3])


def test_feed_and_advance_by_the_contract(model: Opened) -> None:
    c = constants()
    raw = Raw(model, LIMITS).started()
    assert raw.advance() == c.DONE and raw.logits() is None         # nothing queued is nothing to do
    assert raw.feed([]) == c.ERROR_ARGUMENT
    assert raw.lib.colibri_feed(raw.c, ffi().NULL, 1) == c.ERROR_ARGUMENT
    assert raw.lib.colibri_feed(ffi().NULL, ffi().NULL, 1) == c.ERROR_ARGUMENT
    assert raw.feed([(0, 1, 1, 0), (0, 2, 0, NEXT), (0, 3, 1, 2)]) == c.OK     # positions given and not given
    assert raw.feed([(0, 4)]) == c.ERROR_BUSY and raw.logits() is None and raw.length() == 0
    assert raw.advance(0) == c.AGAIN and raw.advance(1) == c.AGAIN
    assert raw.feed([(0, 4)]) == c.ERROR_BUSY
    assert raw.lib.colibri_rewind(raw.c, 0, 0) == c.ERROR_BUSY
    raw.finish(3)
    assert raw.length() == 3 and raw.logits(1) is not None and raw.logits(2) is None
    assert raw.advance() == c.DONE


def test_logits_and_routing_lie_inside_the_pool_and_belong_to_the_last_feed(model: Opened) -> None:
    raw = Raw(model, LIMITS).started()
    experts, weights = ffi().new("uint32_t[8]"), ffi().new("float[8]")
    assert raw.lib.colibri_routing(raw.c, 1, 0, experts, weights, 8) == 0
    raw.run([1, 2, 3], 3)
    first, pool = int(ffi().cast("uintptr_t", raw.lib.colibri_logits(raw.c, 0))), int(ffi().cast("uintptr_t", raw.c))
    assert pool <= first and first + 12 * VOCAB <= pool + raw.plan.pool_bytes
    assert raw.lib.colibri_routing(raw.c, 0, 0, experts, weights, 8) == 0      # a dense layer
    assert raw.lib.colibri_routing(raw.c, 1, 2, experts, weights, 8) == SPECS["mixed"].top_k
    assert list(experts)[:3] == sorted(set(list(experts)[:3]))
    assert raw.lib.colibri_routing(raw.c, 1, 2, experts, weights, 2) == 2
    for layer, index in ((3, 0), (1, 3), (0xFFFFFFFF, 0)):
        assert raw.lib.colibri_routing(raw.c, layer, index, experts, weights, 8) == 0


def test_a_full_context_takes_no_row_more(model: Opened) -> None:
    c = constants()
    raw = Raw(model, replace(LIMITS, context=10)).started()
    raw.run(prompt(VOCAB, 8), 8)
    assert raw.feed([(0, 1)] * 3) == c.ERROR_CONTEXT_FULL and raw.length() == 8
    assert raw.feed([(0, 1)] * 2) == c.OK
    raw.finish()
    assert raw.feed([(0, 1)]) == c.ERROR_CONTEXT_FULL and raw.feed([(0, 1, 1, 10)]) == c.ERROR_CONTEXT_FULL
    assert raw.lib.colibri_rewind(raw.c, 0, 9) == c.OK and raw.feed([(0, 1)]) == c.OK


@pytest.mark.parametrize("kv", KV_KINDS)
def test_sequences_in_one_feed_are_each_as_if_alone(model: Opened, kv: str) -> None:
    """Interleaved in any pattern, in feeds of any size, with positions given or not."""
    limits = replace(LIMITS, sequences=3, kv=kv)
    streams = [prompt(VOCAB, 20), prompt(VOCAB, 20)[::-1], [3] * 20]
    right = [fresh(model, tokens, replace(limits, sequences=1)) for tokens in streams]
    raw = Raw(model, limits).started()
    draw, fed = random.Random(kv), [0, 0, 0]
    while min(fed) < 20:
        rows = []
        for _ in range(draw.randint(1, 8)):
            left = [q for q in range(3) if fed[q] < 20]
            if left:
                q = draw.choice(left)
                rows.append((q, streams[q][fed[q]], 1, draw.choice((NEXT, fed[q]))))
                fed[q] += 1
        assert raw.feed(rows) == constants().OK
        raw.finish(draw.choice((1, 9, UNLIMITED)))
        for index, (q, *_) in enumerate(rows):
            later = sum(row[0] == q for row in rows[index + 1:])
            assert np.array_equal(raw.logits(index), right[q][fed[q] - 1 - later])
    assert [raw.length(q) for q in range(4)] == [20, 20, 20, 0]


# ---- rewind, reset, stop ----


def check_rest(raw: Raw, tokens: list[int], right: np.ndarray) -> None:
    """Feed what is missing of the tokens; its logits are those of a fresh session."""
    start = raw.length()
    if start < len(tokens):
        assert np.array_equal(raw.run(tokens[start:], 4), right[start:])


@pytest.mark.parametrize("kv", KV_KINDS)
def test_every_depth_of_a_rewind_then_the_same_again(model: Opened, kv: str) -> None:
    """Without windows any depth is possible, planned or not; what was there before leaves no trace."""
    c, limits = constants(), replace(LIMITS, kv=kv)
    tokens = prompt(VOCAB, 36)
    right = fresh(model, tokens, limits)
    raw = Raw(model, limits).started()
    for length in (*range(36), 36, 35, 1, 0):
        check_rest(raw, tokens, right)
        assert raw.lib.colibri_rewind(raw.c, 0, length) == c.OK
        assert raw.length() == length
        raw.run([(token + 1) % VOCAB for token in tokens[length:length + 8]] or [0], 8)     # something else
        assert raw.lib.colibri_rewind(raw.c, 0, length) == c.OK and raw.logits() is None
    assert raw.lib.colibri_rewind(raw.c, 0, 1) == c.ERROR_ARGUMENT
    assert raw.lib.colibri_rewind(raw.c, 1, 0) == c.ERROR_ARGUMENT


@pytest.mark.parametrize("depth", (0, 1, 2, 5, 9))
def test_a_window_is_rewound_as_far_as_planned_in_one_step_or_in_many(folder: Path, depth: int) -> None:
    c = constants()
    model = opened(folder / "window-q8.colibri")
    limits = replace(LIMITS, context=90, batch=4, logit_rows=4, rewind=depth)
    tokens = prompt(VOCAB, 70)
    right = fresh(model, tokens, limits)
    raw = Raw(model, limits).started()
    for reach in (3, 7, 16, 31, 40, 53, 64):
        raw.run(tokens[raw.length():reach], 4)
        if reach > depth + 1:
            assert raw.lib.colibri_rewind(raw.c, 0, reach - depth - 1) == c.ERROR_REWIND and raw.length() == reach
        for back in range(1, depth + 1):                            # step by step: no deeper than in one
            if reach > back:
                assert raw.lib.colibri_rewind(raw.c, 0, reach - back) == c.OK
                assert np.array_equal(raw.run([tokens[reach - back]], 1)[0], right[reach - back])
                assert raw.lib.colibri_rewind(raw.c, 0, reach - back) == c.OK
        if reach > depth + 1:
            assert raw.lib.colibri_rewind(raw.c, 0, reach - depth - 1) == c.ERROR_REWIND
            assert raw.length() == reach - depth
    check_rest(raw, tokens, right)
    assert raw.lib.colibri_rewind(raw.c, 0, 0) == c.OK              # to nothing is always possible
    check_rest(raw, tokens, right)


def test_a_reset_at_every_point_of_a_run_leaves_no_trace(model: Opened) -> None:
    c = constants()
    raw = Raw(model, replace(LIMITS, sequences=2)).started()
    tokens = prompt(VOCAB, 6)
    right = fresh(model, tokens)
    other = raw.run(tokens[::-1], 3, sequence=1)
    assert raw.feed([(0, token) for token in tokens]) == c.OK
    units = 1 + raw.finish(1).count(c.AGAIN)
    for units_run in range(0, units, 7):
        assert raw.lib.colibri_reset(raw.c, 0) == c.OK
        assert raw.feed([(0, token) for token in [*tokens[2:], 9]]) == c.OK
        raw.advance(units_run)
        assert raw.lib.colibri_reset(raw.c, 0) == c.OK and raw.logits() is None
        assert (raw.length(0), raw.length(1)) == (0, 6)
        assert np.array_equal(raw.run(tokens, 4), right)
    assert np.array_equal(raw.run([1], 1, sequence=1)[0], fresh(model, [*tokens[::-1], 1])[6]) and len(other) == 6
    assert raw.lib.colibri_reset(raw.c, 2) == c.ERROR_ARGUMENT
    assert raw.lib.colibri_reset(raw.c, ALL_SEQUENCES) == c.OK and (raw.length(0), raw.length(1)) == (0, 0)


def test_after_stop_every_call_says_so(model: Opened) -> None:
    c, lib = constants(), load()
    raw = Raw(model, LIMITS).started()
    raw.run([1, 2], 2)
    assert raw.feed([(0, 3)]) == c.OK and raw.stop() == c.DONE
    null, count = ffi().NULL, ffi().new("uint32_t *", 7)
    assert {raw.feed([(0, 3)]), raw.advance(), lib.colibri_rewind(raw.c, 0, 0), lib.colibri_reset(raw.c, 0),
            lib.colibri_sample(raw.c, 0, new("colibri_sampling", top_p=1, repetition_penalty=1), null, 0, count),
            lib.colibri_encode(raw.c, b"a", 1, 0, 9, null, 0, count)} == {c.ERROR_STOPPED}
    assert raw.logits() is None and raw.length() == 0 and count[0] == 7
    assert raw.stop() == c.DONE and raw.stats().rows == 2
    assert np.array_equal(Raw(model, LIMITS, pool=raw.room).started().run([1, 2], 2), fresh(model, [1, 2]))


# ---- numbers that are not ----


def spoiled(folder: Path, role: str, layer: int, element: int, value: int) -> tuple[Opened, str]:
    """The f32 model with one weight replaced by bits, all sums right."""
    blob = Edited(folder / "mixed-f32.colibri")
    tensor = blob.tensor(role, layer)
    blob.floats(tensor).view("<u4")[element] = value
    if tensor.count > 1:                                            # every expert, so that it is met
        for expert in range(tensor.count):
            at = tensor.offset + expert * tensor.stride + 4 * element
            blob.data[at:at + 4] = value.to_bytes(4, "little")
    return Opened(blob.sum_data().seal()), role


MODELS = 0xFFFFFFFF
TENSORS = [("FINAL_NORM", MODELS), ("HEAD", MODELS), ("ATTENTION_NORM", 0), ("Q", 1), ("K", 1), ("V", 1), ("O", 1),
           ("Q_BIAS", 2), ("K_BIAS", 2), ("V_BIAS", 2), ("Q_NORM", 1), ("K_NORM", 0), ("FFN_NORM", 2), ("GATE", 0),
           ("UP", 0), ("DOWN", 0), ("ROUTER", 1), ("EXPERT_GATE", 1), ("EXPERT_UP", 2), ("EXPERT_DOWN", 2),
           ("SHARED_GATE", 1), ("SHARED_UP", 1), ("SHARED_DOWN", 2), ("SHARED_SWITCH", 2)]


@pytest.mark.sampled(4)
@pytest.mark.parametrize("kv", KV_KINDS)
@pytest.mark.parametrize(("role", "layer"), TENSORS)
def test_a_weight_that_is_not_a_number_ends_the_run(folder: Path, role: str, layer: int, kv: str) -> None:
    """NaN and infinity of both signs, wherever they stand, whatever the cache would make of them."""
    c = constants()
    for value in (0x7FC00000, 0xFFC00001, 0x7F800000, 0xFF800000):
        model, _ = spoiled(folder, role, layer, 0, value)
        assert model.status == c.OK and {p[0] for p in model.problems()} == {c.ERROR_CONTENT}
        raw = Raw(model, replace(LIMITS, kv=kv)).started()
        for budget in (UNLIMITED, 1):
            assert raw.feed([(0, 3), (0, 4)]) == c.OK
            while (status := raw.advance(budget)) == c.AGAIN:
                pass
            assert status == c.ERROR_NOT_FINITE, status_name(status)
            assert raw.length() == 0 and raw.logits() is None and raw.advance() == c.DONE


@pytest.mark.parametrize("kv", KV_KINDS)
def test_after_numbers_that_are_not_the_session_goes_on_with_others(folder: Path, kv: str) -> None:
    """One token's embedding is NaN: it is refused wherever it comes, the others are as they were."""
    c = constants()
    tokens = prompt(VOCAB, 12)
    bad = next(t for t in range(VOCAB) if t not in tokens)
    limits = replace(LIMITS, kv=kv, sequences=2)
    right = fresh(opened(folder / "mixed-f32.colibri"), tokens, limits)
    element = bad // 16 * 16 * SPECS["mixed"].hidden + bad % 16     # column 0 of its lane
    raw = Raw(spoiled(folder, "EMBED", MODELS, element, 0x7FC00000)[0], limits).started()
    found = [raw.run(tokens[:5], 5)]
    for rows in ([(0, bad)], [(0, tokens[5]), (1, bad)], [(1, 1, 0), (1, bad, 0), (0, 1, 0)]):
        assert raw.feed(rows) == c.OK
        assert raw.advance() == c.ERROR_NOT_FINITE
        assert (raw.length(0), raw.length(1)) == (5, 0) and raw.logits() is None
    found.append(raw.run(tokens[5:], 4))
    assert np.array_equal(np.concatenate(found), right)
    assert raw.lib.colibri_reset(raw.c, ALL_SEQUENCES) == c.OK
    assert np.array_equal(raw.run(tokens, 8), right)


# ---- workers ----


class Workers:
    """The parallel hook over real threads: ranges of random sizes, taken by whichever worker is free."""

    def __init__(self, workers: int) -> None:
        self.pool = ThreadPoolExecutor(workers)
        self.free = list(range(workers))
        self.lock = threading.Lock()
        self.calls = 0
        self.used: set[int] = set()

    def _one(self, session: Any, first: int, count: int) -> None:
        with self.lock:
            worker = self.free.pop(0)
            self.used.add(worker)
        load().colibri_work(session, worker, first, count)
        with self.lock:
            self.free.append(worker)

    def __call__(self, session: Any, count: int) -> None:
        draw, first, jobs = random.Random(count), 0, []
        while first < count:
            size = draw.randint(1, max(1, count // 3))
            jobs.append(self.pool.submit(self._one, session, first, min(size, count - first)))
            first += size
        self.calls += 1
        for job in jobs:
            job.result()


@pytest.mark.parametrize("workers", (1, 2, 3, 4, 5))
def test_any_number_of_workers_gives_the_same_bits(folder: Path, workers: int) -> None:
    tokens = prompt(VOCAB, 16)
    for name, kv in (("mixed-q4", "q8"), ("window-q8", "f16"), ("shared-f16", "f32")):
        model = opened(folder / f"{name}.colibri")
        hook = Workers(workers)
        raw = Raw(model, replace(LIMITS, kv=kv, workers=workers), parallel=hook).started()
        found = raw.run(tokens, 8, budget=random.Random(workers).choice((13, UNLIMITED)))
        assert np.array_equal(found, fresh(model, tokens, replace(LIMITS, kv=kv)))
        assert hook.calls > 20 and len(hook.used) == workers
        hook.pool.shutdown()


def test_a_fault_of_any_worker_is_noticed(folder: Path) -> None:
    c = constants()
    hook = Workers(3)
    model, _ = spoiled(folder, "ROUTER", 1, 0, 0x7FC00000)
    raw = Raw(model, replace(LIMITS, workers=3), parallel=hook).started()
    for _ in range(5):
        assert raw.feed([(0, 3)] * 8) == c.OK and raw.advance() == c.ERROR_NOT_FINITE
    hook.pool.shutdown()


# ---- limits and pools ----


BAD_LIMITS = {                      # field: values that must be refused, the detail's field, the number it names
    "context": ((0, (1 << 26) + 1, 0xFFFFFFFF), "CONTEXT"),
    "batch": ((0, 65536, 0xFFFFFFFF), "BATCH"),
    "sequences": ((0, 65536), "SEQUENCES"),
    "workers": ((0, 1025), "WORKERS"),
    "logit_rows": ((0, 9), "LOGIT_ROWS"),
    "rewind": ((49, 0xFFFFFFFF), "REWIND"),
    "swaps": ((65536, 0xFFFFFFFF), "SWAPS"),
    "kv_kind": ((3, 0xFFFFFFFF), "KV_KIND"),
    "flags": ((4, 0x80000000), "FLAGS"),
    "struct_bytes": ((0, 63, 65, 128), "STRUCT_BYTES"),
}


@pytest.mark.parametrize("name", BAD_LIMITS)
def test_a_limit_out_of_range_is_named(model: Opened, name: str) -> None:
    c = constants()
    values, field = BAD_LIMITS[name]
    for value in values:
        limits, plan, detail = LIMITS.c(), new("colibri_plan_result"), ffi().new("colibri_detail *")
        setattr(limits, name, value)
        before = bytes(ffi().buffer(plan))
        assert load().colibri_plan(model.model, limits, plan, detail) == c.ERROR_ARGUMENT
        assert detail.status == c.ERROR_ARGUMENT and detail.field == getattr(c, "FIELD_" + field)
        assert detail.found == value and detail.expected != value
        assert bytes(ffi().buffer(plan)) == before
        raw = Raw(model, LIMITS)
        setattr(raw.limits, name, value)
        assert raw.start() == c.ERROR_ARGUMENT and raw.detail.field == detail.field
        assert raw.c == ffi().NULL and np.all(raw.room == POISON)


def test_a_kernel_level_that_is_not_compiled_in_is_refused_before_anything_is_written(model: Opened) -> None:
    """The plan asks no more than that it is a level; every level of this build that runs here gives the same bits."""
    c, lib = constants(), load()
    right = fresh(model, [1, 2, 3])
    for level in range(12):
        raw, plan, detail = Raw(model, LIMITS), new("colibri_plan_result"), ffi().new("colibri_detail *")
        raw.limits.kernel = level
        known = level <= c.KERNEL_RELAXED
        assert lib.colibri_plan(model.model, raw.limits, plan, detail) == (c.OK if known else c.ERROR_ARGUMENT)
        assert not known or plan.pool_bytes == raw.plan.pool_bytes
        if level and not lib.colibri_kernels() >> level & 1:
            assert raw.start() in (c.ERROR_UNSUPPORTED, c.ERROR_ARGUMENT)
            assert raw.detail.field == c.FIELD_KERNEL and raw.detail.found == level
            assert raw.c == ffi().NULL and np.all(raw.room == POISON)
        elif level == 0 or lib.colibri_host_kernels() >> level & 1:
            assert np.array_equal(raw.started().run([1, 2, 3], 3), right)


def test_structures_of_another_size_or_with_reserved_bits_are_refused(model: Opened) -> None:
    c, lib, detail = constants(), load(), ffi().new("colibri_detail *")
    for i in range(3):
        limits = LIMITS.c()
        limits.reserved[i] = 1
        assert lib.colibri_plan(model.model, limits, new("colibri_plan_result"), detail) == c.ERROR_ARGUMENT
        assert detail.field == c.FIELD_RESERVED
    raw = Raw(model, LIMITS).started()
    raw.run([1], 1)
    for kind, call in (("colibri_plan_result", lambda s: lib.colibri_plan(model.model, LIMITS.c(), s, detail)),
                       ("colibri_info", lambda s: lib.colibri_model_info(model.model, s)),
                       ("colibri_stats_result", lambda s: lib.colibri_stats(raw.c, s)),
                       ("colibri_sampling", lambda s: lib.colibri_sample(raw.c, 0, s, ffi().NULL, 0,
                                                                         ffi().new("uint32_t *")))):
        made = new(kind)
        for size in (0, made.struct_bytes - 1, made.struct_bytes + 1, 0xFFFFFFFF):
            made.struct_bytes = size
            before = bytes(ffi().buffer(made))
            assert call(made) == c.ERROR_ARGUMENT and bytes(ffi().buffer(made)) == before, kind
        assert call(ffi().NULL) == c.ERROR_ARGUMENT
    for change in (("struct_bytes", 1), ("flags", 1), ("reserved", [0, 0, 0, 1])):
        other = Raw(model, LIMITS)
        setattr(other.hooks, *change)
        assert other.start() == c.ERROR_ARGUMENT and other.c == ffi().NULL and np.all(other.room == POISON)
    sampling = new("colibri_sampling", top_p=1, repetition_penalty=1, reserved=[0, 1])
    assert lib.colibri_sample(raw.c, 0, sampling, ffi().NULL, 0, ffi().new("uint32_t *")) == c.ERROR_ARGUMENT


@pytest.mark.parametrize("kv", KV_KINDS)
def test_a_pool_of_one_byte_less_is_refused_and_nothing_is_written(model: Opened, kv: str) -> None:
    c = constants()
    raw = Raw(model, replace(LIMITS, kv=kv))
    for size in (0, 1, 64, raw.plan.pool_bytes - 64, raw.plan.pool_bytes - 1):
        assert raw.start(pool_bytes=size) == c.ERROR_POOL_SMALL
        assert (raw.detail.field, raw.detail.expected, raw.detail.found) == (
            c.FIELD_POOL_BYTES, raw.plan.pool_bytes, size)
        assert raw.c == ffi().NULL and np.all(raw.room == POISON)
    assert raw.start() == c.OK
    raw.run(prompt(VOCAB, 20), 8)
    assert raw.red_zones_intact() and raw.stats().pool_used == raw.plan.pool_bytes


def test_a_pool_that_is_not_aligned_is_refused_and_nothing_is_written(model: Opened) -> None:
    c = constants()
    raw = Raw(model, LIMITS)
    for shift in range(1, 64):
        assert raw.start(shift=shift) == c.ERROR_ALIGN
        assert (raw.detail.field, raw.detail.found) == (c.FIELD_ALIGN, shift)
        assert raw.c == ffi().NULL and np.all(raw.room == POISON)


def test_a_blob_that_is_not_aligned_is_refused(folder: Path) -> None:
    c = constants()
    image = (folder / "dense-q8.colibri").read_bytes()
    memory = np.zeros(len(image) + 128, np.uint8)
    base = -memory.ctypes.data % 64
    made, detail = ffi().new("colibri_model *"), ffi().new("colibri_detail *")
    for shift in range(1, 64):
        at = ffi().cast("char *", memory.ctypes.data + base + shift)
        assert load().colibri_open(made, at, len(image), len(image), detail) == c.ERROR_ALIGN
        assert (detail.field, detail.found) == (c.FIELD_ALIGN, shift) and not any(bytes(ffi().buffer(made)))


@pytest.mark.parametrize("streamed", (False, True))
def test_what_the_pool_held_before_does_not_matter(folder: Path, streamed: bool) -> None:
    """Zeros, ones, a pattern, noise that looks like NaN, and a session that was there before."""
    path = folder / "mixed-q4.colibri"
    model, tokens = opened(path), prompt(VOCAB, 20)
    changes = {"stream_experts": True, "resident_copy": True, "slots": 3} if streamed else {}
    for kv in KV_KINDS:
        limits = replace(LIMITS, kv=kv)
        right = fresh(model, tokens, limits, 8)
        used = None
        for fill in (0x00, 0xFF, 0xA5, 0x7F, None):
            store = Store(path.read_bytes()) if streamed else None
            raw = Raw(model, replace(limits, **changes), store=store, fill=fill or 0)
            if fill is None:
                raw.room[64:-64] = used
            assert np.array_equal(raw.started().run(tokens, 8), right)
            used = raw.room[64:-64].copy()


def test_a_pool_with_an_unfinished_start_in_it_is_started_anew(folder: Path) -> None:
    """A warm reset: the pool still holds a session that was bringing in its weights; only *session tells."""
    c, path = constants(), folder / "mixed-q4.colibri"
    limits = replace(LIMITS, resident_copy=True)
    raw = Raw(opened(path), limits, store=Store(path.read_bytes(), lambda n: 2))
    assert raw.start() == c.WAIT and raw.c != ffi().NULL
    raw.out[0] = ffi().NULL                                         # the caller's variable did not survive
    raw.store.flying.clear()
    raw.store.asked.clear()
    raw.started()
    assert np.array_equal(raw.run([1, 2, 3], 3), fresh(raw.model, [1, 2, 3]))
    assert len(raw.store.asked) == len([t for t in Edited(path).rows("TENSORS", "tensor")
                                        if not c.ROLE_EXPERT_GATE <= t.role <= c.ROLE_EXPERT_DOWN])


def test_an_error_leaves_its_outputs_untouched(model: Opened) -> None:
    c, lib = constants(), load()
    raw = Raw(model, LIMITS).started()
    raw.run([1], 1)
    token = ffi().new("uint32_t *", 4711)
    sampling = new("colibri_sampling", top_p=1, repetition_penalty=1)
    assert lib.colibri_sample(raw.c, 1, sampling, ffi().NULL, 0, token) == c.ERROR_ARGUMENT
    sampling.top_p = 0
    assert lib.colibri_sample(raw.c, 0, sampling, ffi().NULL, 0, token) == c.ERROR_ARGUMENT and token[0] == 4711
    made = ffi().new("colibri_model *")
    ffi().buffer(made)[:] = b"\x5A" * ffi().sizeof("colibri_model")
    bad = bytearray(model.memory.tobytes())
    bad[200] ^= 1
    image = Opened(bytes(bad))
    assert image.status == c.ERROR_CORRUPT
    assert lib.colibri_open(made, ffi().from_buffer(image.memory), len(bad), len(bad), ffi().NULL) == c.ERROR_CORRUPT
    assert set(bytes(ffi().buffer(made))) == {0x5A}


# ---- counters ----


def macs_of(spec: Spec, rows: int, wanted: int) -> int:
    """Multiply-adds with weights by hand: matrices once a row, chosen experts, the head where logits are wanted."""
    total = 0
    for layer in range(spec.layers):
        q, kv = spec.heads * spec.head_dim, spec.kv_heads * spec.head_dim
        total += spec.hidden * (q + kv + kv) + q * spec.hidden
        if not spec.experts or layer in spec.dense_layers:
            total += 3 * spec.hidden * spec.ff
        else:
            total += spec.experts * spec.hidden + spec.top_k * 3 * spec.hidden * spec.expert_ff
            total += 3 * spec.hidden * spec.shared_ff + spec.shared_gate * spec.hidden
    return rows * total + wanted * spec.hidden * spec.vocab


@pytest.mark.parametrize(("name", "spec"), (("mixed-q4", "mixed"), ("shared-f16", "shared"), ("dense-q8", "dense")))
def test_stats_count_the_multiply_adds_of_a_hand_formula(folder: Path, name: str, spec: str) -> None:
    raw = Raw(opened(folder / f"{name}.colibri"), LIMITS).started()
    for rows, wanted in ((1, 1), (8, 0), (7, 3)):
        before = raw.stats()
        assert raw.feed([(0, 1, int(i < wanted)) for i in range(rows)]) == constants().OK
        raw.finish(random.Random(rows).choice((5, UNLIMITED)))
        after = raw.stats()
        assert after.macs - before.macs == macs_of(SPECS[spec], rows, wanted)
        assert after.rows - before.rows == rows and after.units > before.units
    # norms and biases are parameters too, and an embedding row that is looked up
    assert raw.info().active_parameters > macs_of(SPECS[spec], 1, 1)
