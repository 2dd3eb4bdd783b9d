"""The policies of the expert slots: what they promise on every trace, what they reach on real ones, and that a replay
is what a session does, to the byte."""
from __future__ import annotations

import functools
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as some

from colibri import replay
from colibri.engine import CoreError, Limits, Model, Sampling, Session
from colibri.limits import POLICIES
from colibri.synth import SPECS, write_random_blob
from colibri.text import encode
from colibri.trace import ExpertLayer, Trace, expert_layers, feed_of, read, write
from colibri.blobfile import BlobFile
from rawsession import Raw, Store, opened, prompt

ROOT = Path(__file__).resolve().parents[1]
DEMO = ROOT / "pytools" / "colibri" / "demo" / "demo.colibri"
STORY = "Once upon a time there was a fox that lived in the deep forest. "
SHARES = (0.10, 0.25, 0.50)


def trace_of(layers: int, experts: int, top_k: int, feeds: list[list[list[list[int]]]]) -> Trace:
    return Trace("00" * 32, tuple(ExpertLayer(n, experts, top_k, 64) for n in range(layers)), feeds)


def decoded(path: Path, text: str, count: int, batch: int = 16, **changes: Any) -> tuple[Trace, Any, Any]:
    """A prompt and `count` drawn tokens: the trace, the session's counters, and the bits of the last logits."""
    model = Model.open(path)
    limits = Limits(context=512, batch=batch, text_bytes=4096, **changes)
    with Session(model, limits) as session:
        trace = Trace(model.info().identity, expert_layers(BlobFile(path)))
        tokens, fed = encode(session, text, special=True, bos=True), 0
        while fed < len(tokens):
            part = tokens[fed:fed + batch]
            session.feed(part)
            session.finish()
            trace.feeds.append(feed_of(session, trace.layers, len(part)))
            fed += len(part)
            if fed == len(tokens) and count:
                tokens.append(session.sample(Sampling(temperature=0.8, top_p=0.95, seed=7), position=fed))
                count -= 1
        return trace, session.stats(), session.logits().tobytes()


@functools.cache
def demo_trace() -> Trace:
    return decoded(DEMO, "Once upon a time", 400)[0]


@functools.cache
def smollm2_trace() -> Trace:
    import smollm2

    return decoded(smollm2.blob("moe", "q4"), STORY, 200)[0]


def zipf_trace(power: float, layers: int = 8, experts: int = 64, top_k: int = 4, tokens: int = 300) -> Trace:
    """Every layer's experts drawn by Zipf's law, without replacement, each layer with favourites of its own."""
    draw = np.random.default_rng(5)
    weight = np.log(1 / np.arange(1, experts + 1) ** power)
    order = [draw.permutation(experts) for _ in range(layers)]
    feeds = [[[sorted(int(e) for e in order[n][np.argsort(-(weight + draw.gumbel(size=experts)))[:top_k]])]
              for n in range(layers)] for _ in range(tokens)]
    return trace_of(layers, experts, top_k, feeds)


def scan_trace(layers: int = 8, experts: int = 64, top_k: int = 4, tokens: int = 400) -> Trace:
    """Every layer goes through its experts in a circle: the worst for the least recently used."""
    feeds = [[[sorted((t * top_k + k) % experts for k in range(top_k))] for _ in range(layers)] for t in range(tokens)]
    return trace_of(layers, experts, top_k, feeds)


def turns_trace(tokens: int = 400) -> Trace:
    """Zipf's law and circles by turns."""
    zipf, scan = zipf_trace(1.1, tokens=tokens), scan_trace(tokens=tokens)
    return replace(zipf, feeds=[(scan if t // 40 % 2 else zipf).feeds[t] for t in range(tokens)])


def sticky_trace(tokens: int = 300) -> Trace:
    """Each choice stays for the next token with 80 %."""
    draw = np.random.default_rng(6)
    chosen = [[int(e) for e in draw.permutation(64)[:4]] for _ in range(8)]
    feeds = []
    for _ in range(tokens):
        for row in chosen:
            for k in range(4):
                if draw.random() > 0.8:
                    row[k] = int(draw.choice([e for e in range(64) if e not in row]))
        feeds.append([[sorted(row)] for row in chosen])
    return trace_of(8, 64, 4, feeds)


def changing_trace(tokens: int = 300) -> Trace:
    """Zipf's law with other favourites from time to time."""
    zipf = zipf_trace(1.1, tokens=tokens)
    feeds = [[[sorted((e + 17 * (t // 75)) % 64 for e in row) for row in rows] for rows in feed]
             for t, feed in enumerate(zipf.feeds)]
    return replace(zipf, feeds=feeds)


TRACES = {
    "demo": demo_trace, "smollm2": smollm2_trace,
    "zipf 1.1": lambda: zipf_trace(1.1), "zipf 0.7": lambda: zipf_trace(0.7), "scan": scan_trace,
    "scan of one layer": lambda: scan_trace(1, 64, 1, 3000), "zipf and scan by turns": turns_trace,
    "sticky": sticky_trace, "changing": changing_trace,
}


@pytest.mark.sampled(9)
@pytest.mark.parametrize("name", TRACES)
def test_the_default_is_near_the_best_of_both_worlds(name: str) -> None:
    """Never below LRU - 0.01, nor below 0.9 of the better of LRU and the pins of hindsight."""
    trace = TRACES[name]()
    for row in replay.table(trace, [max(1, round(trace.experts * share)) for share in SHARES]):
        rate = row["hit_rate"]
        best = max(rate["lru"], rate["pins"])
        print(name, row["slots"], {k: round(v, 3) for k, v in rate.items()}, round(row["share_of_optimum"], 3))
        assert rate["adaptive"] >= rate["lru"] - 0.01 and rate["adaptive"] >= 0.9 * best, row
        assert all(rate[policy] <= rate["optimum"] + 1e-12 for policy in (*POLICIES, "pins"))


@pytest.mark.sampled(27)
@pytest.mark.parametrize("policy", POLICIES)
@pytest.mark.parametrize("name", TRACES)
def test_misses_never_rise_when_slots_are_added(name: str, policy: str) -> None:
    trace = TRACES[name]()
    words = trace.words()
    misses = [replay.play(trace, slots, policy, words=words).misses
              for slots in sorted({*range(1, min(20, trace.experts)), *range(1, trace.experts + 1,
                                                                              1 + trace.experts // 60), trace.experts})]
    assert misses == sorted(misses, reverse=True)
    assert misses[-1] == np.count_nonzero(trace.uses())       # with a slot for every expert: each once


@some.composite
def random_traces(draw: Any) -> Trace:
    """Few experts, so that everything happens: passes, halvings, circles, repeats; rows of 1 .. 5."""
    layers, experts = draw(some.integers(1, 3)), draw(some.integers(2, 9))
    top_k = draw(some.integers(1, min(3, experts)))
    rows = some.lists(some.integers(0, experts - 1), min_size=1, max_size=top_k, unique=True).map(sorted)
    feeds = draw(some.lists(some.integers(1, 5).flatmap(lambda n: some.lists(
        some.lists(rows, min_size=n, max_size=n), min_size=layers, max_size=layers)), min_size=1, max_size=40))
    return trace_of(layers, experts, top_k, feeds * draw(some.integers(1, 6)))


@settings(max_examples=150, deadline=None)
@given(trace=random_traces(), policy=some.sampled_from(POLICIES), data=some.data())
def test_on_any_trace(trace: Trace, policy: str, data: Any) -> None:
    """Misses never rise with slots, with the same pins too; nothing beats the optimum; every need is counted."""
    needs, last = int(trace.uses().sum()), None
    pins = data.draw(some.lists(some.integers(0, trace.experts - 1), max_size=2, unique=True))
    for slots in range(1, trace.experts + 1):
        fitting = pins if slots >= trace.window + len(pins) else []
        plain, played = replay.play(trace, slots, policy), replay.play(trace, slots, policy, fitting)
        assert plain.hits + plain.misses == played.hits + played.misses == needs
        assert plain.misses >= replay.optimum(trace, slots).misses >= np.count_nonzero(trace.uses())
        assert last is None or last[0] >= plain.misses
        assert last is None or not (fitting and last[2]) or last[1] >= played.misses
        last = (plain.misses, played.misses, bool(fitting))


def slow_lru(trace: Trace, slots: int) -> int:
    """LRU as cache.h says it, by lists and searching: what later experts of the turn need is given up last, furthest
    first; then the newest `window`; then by the order of use."""
    held: list[int] = []                            # least recently used first
    misses, first = 0, trace.first
    for index, needed in trace.turns():
        numbers = [first[index] + expert for expert in needed]
        for at, number in enumerate(numbers):
            if number in held:
                held.remove(number)
            else:
                misses += 1
                if len(held) == slots:
                    later = set(numbers[at:])
                    free = [other for other in held if other not in later]
                    held.remove(free[0] if free else max(held))
            held.append(number)
        # of a turn all are as recent as they were used; nothing else moves
    return misses


@settings(max_examples=150, deadline=None)
@given(trace=random_traces())
def test_lru_is_lru(trace: Trace) -> None:
    for slots in range(1, trace.experts + 1):
        assert replay.play(trace, slots, "lru").misses == slow_lru(trace, slots)


@pytest.mark.sampled(4)
@pytest.mark.parametrize("ahead", (False, True), ids=("", "ahead"))
@pytest.mark.parametrize("policy", POLICIES)
@pytest.mark.parametrize("slots", (1, 3, 8, 16, 31, 32))
def test_a_session_reads_what_its_replay_misses(policy: str, slots: int, ahead: bool) -> None:
    """A streamed run of the demo, prompt and answer: bytes read are replayed misses x expert bytes, exactly, and the
    answer is the one with all experts in place. With hints the policy holds the same: what it misses is asked for, or
    was a hint."""
    trace, stats, bits = decoded(DEMO, STORY, 60, slots=slots, stream_experts=True, policy=policy, look_ahead=ahead)
    played, run = replay.play(trace, slots, policy), trace.layers[0].expert_bytes
    assert (stats.expert_hits, stats.expert_misses + stats.hints_used) == (played.hits, played.misses)
    assert stats.bytes_fetched == (stats.expert_misses + stats.hints) * run and stats.hint_bytes == stats.hints * run
    assert stats.hints_used + stats.hints_wasted <= stats.hints <= stats.hints_used + stats.hints_wasted + 2
    assert (stats.hints_used > 0) == ahead
    plain, _, right = decoded(DEMO, STORY, 60)
    assert plain.feeds == trace.feeds and bits == right


def test_pins_stay_and_change_no_bit(tmp_path: Path) -> None:
    model = Model.open(DEMO)
    limits = Limits(context=64, batch=8, slots=6, stream_experts=True)
    pins = [(0, 3), (1, 5), (2, 0), (3, 7)]
    tokens = prompt(model.info().vocab, 40)
    with Session(model, replace(limits, slots=0, stream_experts=False)) as plain, Session(model, limits) as session:
        trace = Trace("", expert_layers(BlobFile(DEMO)))
        numbers = [trace.first[layer] + expert for layer, expert in pins]
        for layer, expert in pins:
            session.pin(layer, expert)
        with pytest.raises(CoreError, match="LIMIT"):
            session.pin(0, 0)                       # two slots are left: a row's experts
        with pytest.raises(CoreError, match="ARGUMENT"):
            session.pin(0, 8)
        with pytest.raises(CoreError, match="LEFT_OUT"):
            plain.pin(0, 0)
        for first in range(0, 40, 8):
            for one in (plain, session):
                one.feed(tokens[first:first + 8])
                one.finish()
            trace.feeds.append(feed_of(session, trace.layers, 8))
            assert session.logits().tobytes() == plain.logits().tobytes()
        played = replay.play(trace, 6, "adaptive", numbers)
        assert session.stats().expert_misses == played.misses
        session.pin(1, 5, False)
        session.pin(0, 0)


def test_plans_know_the_policy() -> None:
    """What a policy keeps is planned: LRU the least; without slots it costs nothing."""
    model = Model.open(DEMO)
    streamed = Limits(slots=4, stream_experts=True)
    sizes = {policy: model.plan(replace(streamed, policy=policy)).pool_bytes for policy in POLICIES}
    assert sizes["adaptive"] > sizes["lru"] == sizes["lfu"]
    assert len({model.plan(Limits(policy=policy)).pool_bytes for policy in POLICIES}) == 1


class Slots(Store):
    """A store that knows what lies in which slot."""

    def __init__(self, image: bytes) -> None:
        super().__init__(image)
        self.content: dict[int, tuple[int, int]] = {}
        self.log: list[tuple[int, int, int]] = []               # ticket, layer, expert

    def fetch(self, user: Any, request: Any) -> int:
        self.log.append((request.ticket, request.layer, request.expert))
        return super().fetch(user, request)


@functools.cache
def wide_blob(folder: Path) -> Path:
    path = folder / "wide.colibri"
    spec = replace(SPECS["mixed"], layers=4, dense_layers=(), experts=64, top_k=4, expert_ff=64)
    write_random_blob(path, spec, 3, "q4")
    return path


@pytest.mark.sampled(5)
@pytest.mark.parametrize("batch", (16, 64, 256, 1600))
@pytest.mark.parametrize("count", (149, 1600))
@pytest.mark.parametrize("name", ("demo", "wide"))
def test_a_prefill_reads_in_storage_order_and_once_a_batch(name: str, count: int, batch: int,
                                                           tmp_path_factory: pytest.TempPathFactory) -> None:
    """Slots for a tenth of the experts: of each layer of a batch only what is not there, in the order of the file."""
    path = DEMO if name == "demo" else wide_blob(tmp_path_factory.getbasetemp())
    model, image = opened(path), path.read_bytes()
    store = Slots(image)
    layers = expert_layers(BlobFile(path))
    total = sum(layer.experts for layer in layers)
    raw = Raw(model, Limits(context=1664, batch=batch, slots=max(1, round(total / 10)), stream_experts=True),
              store=store).started()
    tokens = prompt(raw.vocab, count)
    missing = 0
    for first in range(0, count, batch):
        part, before = tokens[first:first + batch], len(store.log)
        assert raw.feed([(0, token, 0) for token in part]) == 0
        raw.finish()
        log = store.log[before:]
        assert [(layer, expert) for _, layer, expert in log] == sorted((layer, expert) for _, layer, expert in log)
        for layer in layers:
            needed = needed_of(raw, layer.layer, len(part))
            missing += len(needed - {e for n, e in store.content.values() if n == layer.layer})
            for ticket, number, expert in log:
                if number == layer.layer:
                    store.content[ticket] = (number, expert)
    read_bytes, run = raw.stats().bytes_fetched, layers[0].expert_bytes
    print(f"{name}: {count} tokens, batch {batch}: {read_bytes / count:,.0f} bytes a token, {read_bytes // run} runs, "
          f"{missing} were missing")
    assert missing * run <= read_bytes <= 1.02 * missing * run
    if batch >= count:
        assert len(set(store.log)) == len({(n, e) for _, n, e in store.log}) == len(store.log)    # once each


def needed_of(raw: Raw, layer: int, rows: int) -> set[int]:
    from colibri.library import ffi

    experts, weights = ffi().new("uint32_t[]", 64), ffi().new("float[]", 64)
    found = set()
    for row in range(rows):
        found |= set(experts[0:raw.lib.colibri_routing(raw.c, layer, row, experts, weights, 64)])
    return found


def test_a_trace_file_is_read_as_it_was_written(tmp_path: Path) -> None:
    trace = replace(demo_trace(), feeds=demo_trace().feeds[:20])
    write(tmp_path / "a.trace", trace)
    assert read(tmp_path / "a.trace") == trace


@pytest.mark.parametrize("text", (
    "", "{}\n", '{"trace": 2, "model": "", "layers": [[0, 8, 2, 64]]}\n', '{"trace": 1, "model": "", "layers": []}\n',
    '{"trace": 1, "model": "", "layers": [[0, 8, 9, 64]]}\n', "nothing\n",
    *('{"trace": 1, "model": "", "layers": [[0, 8, 2, 64]]}\n' + feed for feed in (
        "[[[0, 8]]]\n", "[[[1, 0]]]\n", "[[[0, 1, 2]]]\n", "[[[0]], [[0]]]\n", "[[]]\n", "[]\n", "3\n", "[[[0, 0]]]\n",
        '[[["0"]]]\n', "[[[true]]]\n")),
))
def test_what_is_no_trace_is_refused_by_its_line(text: str, tmp_path: Path) -> None:
    from colibri.errors import InputError

    path = tmp_path / "bad.trace"
    path.write_text(text, encoding="utf-8")
    with pytest.raises(InputError, match=r"bad\.trace.*(line \d|trace)"):
        read(path)
