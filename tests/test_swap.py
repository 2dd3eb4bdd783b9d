"""Experts exchanged under a running session: every token is the old model's or the new one's, and what is bad changes
nothing."""
from __future__ import annotations

import hashlib
import json
import random
import struct
import time
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

import softfloat
from colibri import cli, library, targets
from colibri.engine import CoreError, Limits, Model, Session
from colibri.errors import InputError
from colibri.jobs import Job, JobResult
from colibri.swap import expert_of
from colibri.synth import write_random_blob
from editing import Edited

PROMPT, BATCH, LENGTH = 9, 6, 40
NAMES = [target.name for target in targets.all_targets() if target.name not in ("linux", "linux-gcc")]


class Pair:
    """Two files whose weights differ, and the first one with experts of the second."""

    def __init__(self, folder: Path, spec: str, kinds: str) -> None:
        self.folder = folder
        for name, seed in (("old", 21), ("other", 22)):
            write_random_blob(folder / f"{name}.colibri", spec, seed, kinds)
        self.old, self.other = (Model.open(folder / f"{name}.colibri") for name in ("old", "other"))
        self.limits = Limits(context=64, batch=BATCH, logit_rows=BATCH, swaps=3)
        self.tokens = [(7919 * i + 101) % self.old.info().vocab for i in range(LENGTH)]
        c = library.constants()
        rows = Edited(self.old.path).rows("TENSORS", "tensor")
        self.counts = {row.layer: row.count for row in rows if row.role == c.ROLE_EXPERT_GATE}
        self.last = max(self.counts)

    def with_expert(self, *places: tuple[int, int], source: Model | None = None) -> Model:
        """The old file with experts of the other one, sums right."""
        edited = Edited(self.old.path)
        data = (source or self.other).path.read_bytes()
        for place in places:
            run = expert_of(self.old, *place)
            edited.data[run.offset:run.offset + run.bytes] = data[run.offset:run.offset + run.bytes]
        path = self.folder / ("new" + "".join(f"-{layer}-{expert}" for layer, expert in places) + ".colibri")
        path.write_bytes(edited.sum_data().seal())
        return Model.open(path)

    def identity(self, *places: tuple[int, int]) -> str:
        """What a session with those experts of the other file must call itself."""
        text = bytes.fromhex(self.old.info().identity)
        for place in sorted(places):
            run = expert_of(self.other, *place)
            data = self.other.path.read_bytes()[run.offset:run.offset + run.bytes]
            text += struct.pack("<II", *place) + hashlib.sha256(data).digest()[:16]
        return hashlib.sha256(text).hexdigest() if places else self.old.info().identity


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> Pair:
    """Dense and MoE layers, three of four experts, a shared one."""
    return Pair(tmp_path_factory.mktemp("swap"), "mixed", "q4")


def logits_of(session: Session, tokens: list[int]) -> np.ndarray:
    """The logits of every token, from an empty sequence."""
    session.reset()
    rows = []
    for first in range(0, len(tokens), BATCH):
        part = tokens[first:first + BATCH]
        session.feed(part, want="all")
        session.finish()
        rows += [session.logits(i).copy() for i in range(len(part))]
    return np.array(rows)


def reference(model: Model, pair: Pair) -> np.ndarray:
    """The same of a session of its own."""
    with Session(model, replace(pair.limits, swaps=0)) as session:
        return logits_of(session, pair.tokens)


LIMITS = {"in place": {}, "one slot": {"slots": 1}, "two slots": {"slots": 2}, "three workers": {"workers": 3},
          "two workers, two slots": {"workers": 2, "slots": 2}}


def limits_of(pair: Pair, name: str, **more: int) -> Limits:
    """Limits by name."""
    slots = LIMITS[name].get("slots", 0)
    return replace(pair.limits, stream_experts=slots > 0, resident_copy=slots > 0, **{**LIMITS[name], **more})


@pytest.mark.parametrize("name", LIMITS)
def test_a_thousand_exchanges_while_tokens_are_made(pair: Pair, name: str) -> None:
    """An expert of the last layer, so that keys and values are the same in both models. Some exchanges are asked for
    while a token is on the tape: it ends with the expert it began with."""
    place = (pair.last, 1)
    rows = {False: reference(pair.old, pair), True: reference(pair.with_expert(place), pair)}
    assert sum(bytes(a) != bytes(b) for a, b in zip(rows[False], rows[True], strict=True)) > LENGTH // 3
    dice, new, exchanges, seen = random.Random(3), False, 0, {False: 0, True: 0}
    with Session(pair.old, limits_of(pair, name)) as session:
        while exchanges < 1000:
            session.reset()
            for i, token in enumerate(pair.tokens):
                amid, now = dice.random() < 0.5, new
                session.feed([token])
                if amid:
                    session.advance(dice.randrange(1, 40))
                    new = exchange(session, pair, place, new)
                    session.finish(dice.choice((7, 1 << 20)))
                else:
                    session.finish()
                    new = exchange(session, pair, place, new)
                exchanges += 1
                assert bytes(session.logits()) == bytes(rows[now][i])
                seen[now] += 1
        assert len(session.swaps.log) == exchanges >= 1000 and min(seen.values()) > 300
        assert {entry.identity for entry in session.swaps.log} == {pair.identity(), pair.identity(place)}
        session.reset()
        session.feed(pair.tokens[:1])
        session.finish()
        assert session.swaps.identity() == pair.identity(*([place] if new else []))
        assert session.stats().pool_used == session.plan.pool_bytes


def exchange(session: Session, pair: Pair, place: tuple[int, int], new: bool) -> bool:
    """The other expert; which one it is from the next feed on."""
    if new:
        session.swaps.back(*place)
    else:
        session.swaps.put(*place, pair.other)
    return not new


@pytest.mark.parametrize("name", LIMITS)
def test_experts_of_any_layer_give_the_edited_file(pair: Pair, name: str) -> None:
    """With the cache filled anew: the digest of a file that holds those experts; and back again."""
    places = [(layer, count - 1) for layer, count in pair.counts.items()] + [(pair.last, 0)]
    with Session(pair.old, limits_of(pair, name)) as session:
        for n in range(1, len(places) + 1):
            session.swaps.put(*places[n - 1], pair.other)
            expected = reference(pair.with_expert(*places[:n]), pair)
            assert np.array_equal(logits_of(session, pair.tokens), expected)
            assert session.swaps.identity() == pair.identity(*places[:n])
        assert [entry[:2] for entry in session.swaps.current()] == sorted(places)
        for layer, expert in reversed(places):
            session.swaps.back(layer, expert)
        assert np.array_equal(logits_of(session, pair.tokens), reference(pair.old, pair))
        assert session.swaps.identity() == pair.old.info().identity and session.swaps.current() == []


def test_the_way_there_does_not_enter_the_identity(pair: Pair) -> None:
    a, b = (pair.last, 0), (min(pair.counts), 2)
    with Session(pair.old, pair.limits) as session:
        for order in ((a, b), (b, a), (a, b, b, a), (b, b, a)):
            for place in order:
                session.swaps.put(*place, pair.other)
            assert session.swaps.identity() == pair.identity(a, b)
            for place in (a, b):
                session.swaps.back(*place)
        session.swaps.put(*a, pair.old)                 # a copy of itself is no change
        assert session.swaps.identity() == pair.identity() and session.swaps.current()[0][:2] == a


def test_a_replaced_expert_is_not_fetched(pair: Pair, tmp_path: Path) -> None:
    """Not even from a file where it is damaged."""
    place = (pair.last, 2)
    run, data = expert_of(pair.old, *place), bytearray(pair.old.path.read_bytes())
    data[run.offset + 77] ^= 8
    path = tmp_path / "damaged.colibri"
    path.write_bytes(data)
    with Session(Model.open(path), limits_of(pair, "two slots")) as session:
        with pytest.raises(CoreError, match="CORRUPT|checksum"):
            logits_of(session, pair.tokens)
        session.swaps.put(*place, pair.old)             # from the next feed on: what is on the tape is given up
        assert np.array_equal(logits_of(session, pair.tokens), reference(pair.old, pair))
        assert session.swaps.identity() == pair.old.info().identity


# ---- what is refused changes nothing ----

def damaged(pair: Pair, change: str) -> tuple[object, str]:
    """A replacement that is wrong in one way, and the status for it."""
    run = expert_of(pair.other, pair.last, 0)
    ffi = library.ffi()
    data = bytearray(ffi.buffer(run.run, run.bytes))
    status = "CORRUPT"
    if change == "byte":
        data[-1] ^= 1
    elif change == "digest":
        run.digest = bytes(16)
    elif change == "crc":
        run.crc ^= 1
    elif change == "bytes":
        run.bytes, status = run.bytes - 64, "FORMAT"
    elif change == "kind":
        run.kind[2], status = library.constants().KIND_F32, "FORMAT"
    elif change == "rows":
        run.rows, status = run.rows + 1, "FORMAT"
    elif change == "infinite":                          # sums are right, the content is not
        status = "CONTENT"
        data[:] = b"\xff" * len(data)
        run.crc = library.load().colibri_crc32c(0, bytes(data), len(data))
        run.digest = hashlib.sha256(data).digest()[:16]
    else:
        run.reserved, status = 1, "ARGUMENT"
    kept = ffi.new("char[]", bytes(data))
    run.run = kept
    return (run, kept), status


@pytest.mark.parametrize("change", ("byte", "digest", "crc", "bytes", "kind", "rows", "infinite", "reserved"))
@pytest.mark.parametrize("amid", (False, True))
def test_a_bad_replacement_changes_nothing(pair: Pair, change: str, amid: bool) -> None:
    (run, _kept), status = damaged(pair, change)
    place = (pair.last, 0)
    with Session(pair.old, replace(pair.limits, swaps=1)) as session:
        expected, identity = reference(pair.old, pair), session.swaps.identity()
        session.feed(pair.tokens[:3], want="all")
        if amid:
            session.advance(3)
        with pytest.raises(CoreError) as caught:
            while not session.swaps.step(*place, run, budget=500):
                pass
        assert caught.value.status == status
        session.finish()
        assert all(np.array_equal(session.logits(i), expected[i]) for i in range(3))
        assert (session.swaps.identity(), session.swaps.current()) == (identity, [])
        assert np.array_equal(logits_of(session, pair.tokens), expected)
        session.swaps.put(*place, pair.other)           # the slot is free again
        assert session.swaps.identity() == pair.identity(place)


def test_no_room_and_no_such_place_are_refused(pair: Pair, tmp_path: Path) -> None:
    with Session(pair.old, replace(pair.limits, swaps=1)) as session:
        session.swaps.put(pair.last, 0, pair.other)
        for place in ((pair.last, 0), (pair.last, 1)):
            with pytest.raises(CoreError) as caught:
                session.swaps.put(*place, pair.other)
            assert caught.value.status == "LIMIT"
        assert session.swaps.identity() == pair.identity((pair.last, 0))
        dense = next(layer for layer in range(pair.old.info().layers) if layer not in pair.counts)
        for layer, expert in ((dense, 0), (99, 0), (pair.last, 99)):
            with pytest.raises(InputError, match="no routed expert"):
                session.swaps.put(layer, expert, pair.other)
            with pytest.raises(CoreError) as caught:
                session.swaps.step(layer, expert, expert_of(pair.other, pair.last, 0))
            assert caught.value.status == "ARGUMENT"
    with Session(pair.old, replace(pair.limits, swaps=0)) as session, pytest.raises(CoreError) as caught:
        session.swaps.put(pair.last, 0, pair.other)
    assert caught.value.status == "LIMIT"
    write_random_blob(tmp_path / "eight.colibri", "mixed", 22, "q8")
    with Session(pair.old, pair.limits) as session, pytest.raises(CoreError) as caught:
        session.swaps.put(pair.last, 0, Model.open(tmp_path / "eight.colibri"))
    assert caught.value.status == "FORMAT" and "stays as it is" in str(caught.value)


def test_another_replacement_begins_anew_and_a_rollback_lets_go(pair: Pair) -> None:
    a, b = (pair.last, 0), (pair.last, 1)
    with Session(pair.old, replace(pair.limits, swaps=1)) as session:
        assert not session.swaps.step(*a, expert_of(pair.other, *a), budget=100)
        assert not session.swaps.step(*b, expert_of(pair.other, *b), budget=100)
        session.swaps.put(*a, pair.other)
        assert session.swaps.identity() == pair.identity(a)
        session.swaps.back(*a)
        session.feed(pair.tokens[:2])
        session.advance(1)
        session.swaps.put(*a, pair.other)               # waits for the tape's start
        assert session.swaps.identity() == pair.identity()
        session.swaps.back(*a)                          # and is taken back before
        session.finish()
        assert np.array_equal(logits_of(session, pair.tokens), reference(pair.old, pair))
        session.feed(pair.tokens[:2])
        session.finish()
        assert session.swaps.identity() == pair.identity() and session.swaps.current() == []


def test_swaps_are_planned_to_the_byte(pair: Pair) -> None:
    plain, planned = (pair.old.plan(replace(pair.limits, swaps=n)) for n in (0, 2))
    more = planned.pool_bytes - plain.pool_bytes
    assert 2 * pair.old.info().expert_run_bytes < more < 2 * pair.old.info().expert_run_bytes + 1024
    job = Job("swaps", pair.limits, pair.tokens[:PROMPT], generate=4, plan_check=True)
    assert good(targets.pick(["linux"])[0].run(job, pair.old)).used_bytes == pair.old.plan(pair.limits).pool_bytes


# ---- on every target ----

def good(result: JobResult) -> JobResult:
    """A result without an error and without a bad check."""
    assert result.error is None and result.bad_checks() == [] and result.code == 0
    return result


def job_of(pair: Pair) -> Job:
    """A run of prompt and tokens."""
    return Job("swap", replace(pair.limits, swaps=0), pair.tokens[:PROMPT], generate=12)


@pytest.mark.sampled(4)
@pytest.mark.parametrize("change", ({}, {"workers": 3}, {"two_sessions": True}, {"budget": 5}, {"reset": True}))
@pytest.mark.parametrize("name", NAMES)
def test_copies_of_experts_change_no_bit(pair: Pair, name: str, change: dict) -> None:
    target = targets.pick([name])[0]
    if target.missing():
        pytest.skip(f"target {name}: {target.missing()}")
    expected = good(targets.pick(["linux"])[0].run(job_of(pair), pair.old)).digest
    result = good(target.run(replace(job_of(pair), swap=True, **change), pair.old))
    assert result.digest == expected and result.swaps > 10


@pytest.mark.qemu
@pytest.mark.parametrize("change", ({}, {"budget": 3}))
def test_an_exchange_takes_few_instructions(pair: Pair, change: dict) -> None:
    """On ARM64: with -icount shift=0 a nanosecond is an instruction; the clock counts thousands."""
    target = targets.pick(["baremetal"])[0]
    if target.missing():
        pytest.skip(target.missing())
    job = replace(job_of(pair), swap=True, generate=50, **change)
    result = good(targets.run_board(target, job, pair.old, 120, ("-icount", "shift=0")))
    assert result.swaps > 50 and result.swap_longest <= 2


# ---- what a flip takes ----

FLIPS = 1000
BOUND = 15_000      # instructions: 15 us of a processor of 1 GHz that runs one in a cycle, the slowest that is meant


def instructions(pair: Pair, swaps: int) -> list[list[int]]:
    """tests/c/swap_board.c: its lines of numbers, a reset as an empty one."""
    old, other, pool = 0x41000000, 0x41800000, 0x42000000
    assert pair.old.bytes < other - old
    values = {"OLD_AT": old, "OTHER_AT": other, "POOL_AT": pool, "BYTES": pair.old.bytes, "LAYER": pair.last,
              "EXPERT": 1, "FLIPS": FLIPS, "SWAPS": swaps, "CONTEXT": LENGTH, "VOCAB": pair.old.info().vocab}
    header = "".join(f"#define {name} {value}u{'ll' * name.endswith('_AT')}\n" for name, value in values.items())
    places = ((pair.old, old), (pair.other, other))
    options = [f"loader,file={model.path},addr={at:#x},force-raw=on" for model, at in places]
    said = softfloat.BOARDS["arm64"].boot("swap", header, [], [softfloat.firmware_core()],
                                          ("-device", options[0], "-device", options[1]))
    return [[int(word) for word in line.split()[1:]] for line in said.splitlines()]


@pytest.mark.sampled(2)
@pytest.mark.qemu
@pytest.mark.parametrize("swaps", (2, 64))
def test_a_flip_takes_few_instructions_and_every_token_is_of_one_model(pair: Pair, swaps: int) -> None:
    """On ARM64: the call that exchanges and the feed that takes the exchange, 1,000 times, most of them while tokens
    are made. The feed is counted whole."""
    place, flips, plain, seen = (pair.last, 1), [], [], {0: 0, 1: 0}
    limits = Limits(context=LENGTH, batch=1)
    with Session(pair.old, limits) as old, Session(pair.with_expert(place), limits) as new:
        for line in instructions(pair, swaps):
            if not line:
                old.reset()
                new.reset()
                continue
            token, digest, swapped, call, feed = line
            for session in (old, new):
                session.feed([token])
                session.finish()
            right = [hashlib.sha256(bytes(session.logits())).digest()[:4] for session in (old, new)]
            assert digest.to_bytes(4, "big") == right[swapped]
            seen[swapped] += right[0] != right[1]
            (flips if call else plain).append(call + feed)
    flips.sort()
    p50, p99 = (flips[FLIPS * share // 100] for share in (50, 99))
    print(f"{swaps} swaps: instructions of a flip with its feed p50 {p50}, p99 {p99}, most {flips[-1]}; a feed without "
          f"one {max(plain)}")
    assert len(flips) == FLIPS and min(seen.values()) > FLIPS // 8
    assert flips[-1] < BOUND


def test_what_a_flip_takes_here(pair: Pair) -> None:
    """Reported with -s, bounded by nothing: beside the call that exchanges one that does nothing, in the same places.
    Both are as long as each other, so what is seen is the clock, the call from Python and this machine's other work."""
    lib, ffi, c, clock = library.load(), library.ffi(), library.constants(), time.perf_counter_ns
    took: dict[str, list[int]] = {"a flip": [], "a feed that takes one": [], "nothing": []}
    runs = [expert_of(model, pair.last, 1) for model in (pair.other, pair.old)]
    row = ffi.new("colibri_row *", {"position": c.NEXT_POSITION, "token": 1, "want_logits": 1})
    with Session(pair.old, pair.limits) as session:
        for i in range(FLIPS):
            if i % LENGTH == 0:
                session.reset()
            begun = clock()
            assert lib.colibri_feed(session.c, row, 1) == c.OK
            took["a feed that takes one"].append(clock() - begun)
            session.advance(1 + i % 23)
            begun = clock()
            lib.colibri_swapped(ffi.NULL, ffi.NULL, 0)
            took["nothing"].append(clock() - begun)
            status = c.AGAIN
            while status == c.AGAIN:
                begun = clock()
                status = lib.colibri_swap_expert(session.c, runs[i % 2], 1 << 16, ffi.NULL)
                ended = clock()
            assert status == c.DONE
            took["a flip"].append(ended - begun)
            session.finish()
        assert session.swaps.identity() == pair.identity((pair.last, 1))    # the last one waits for the next feed
    for what, times in took.items():
        times.sort()
        p50, p99 = (times[FLIPS * share // 100] / 1000 for share in (50, 99))
        print(f"{what}: p50 {p50:.2f} us, p99 {p99:.2f} us, most {times[-1] / 1000:.2f} us")


# ---- the command ----

def test_run_replaces_experts_and_says_so(pair: Pair, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    places, tokens, log = [(pair.last, 0), (min(pair.counts), 1)], tmp_path / "tokens", tmp_path / "log"
    tokens.write_text(json.dumps(pair.tokens[:PROMPT]))
    base = ["--tokens", str(tokens), "-n", "8", "--json", "-q"]
    swaps = [word for layer, expert in places for word in ("--swap", f"{layer}:{expert}={pair.other.path}")]
    assert cli.main(["run", str(pair.old.path), *base, *swaps, "--swap-log", str(log)]) == 0
    document = json.loads(capsys.readouterr().out)
    assert cli.main(["run", str(pair.with_expert(*places).path), *base]) == 0
    expected = json.loads(capsys.readouterr().out)
    assert (document["digest"], document["tokens"]) == (expected["digest"], expected["tokens"])
    assert document["model"] == pair.identity() and document["identity"] == pair.identity(*places)
    lines = [json.loads(line) for line in log.read_text().splitlines()]
    assert lines == document["swaps"]
    assert [(line["layer"], line["expert"], line["identity"]) for line in lines] == [
        (*places[0], pair.identity(places[0])), (*places[1], pair.identity(*places))]


@pytest.mark.parametrize(("more", "code", "sentence"), [
    (["--swap", "1=x"], 2, "LAYER:EXPERT=FILE"), (["--swap", "1:0=nowhere.colibri"], 3, "cannot be read"),
    (["--swap", "99:0={other}"], 3, "no routed expert"), (["--swap", "2:0={other}", "--target", "wasm"], 2, "linux"),
])
def test_swaps_that_make_no_sense(pair: Pair, more: list[str], code: int, sentence: str, tmp_path: Path,
                                  capsys: pytest.CaptureFixture[str]) -> None:
    tokens = tmp_path / "tokens"
    tokens.write_text("[1, 2]")
    given = [word.format(other=pair.other.path) for word in more]
    assert cli.main(["run", str(pair.old.path), "--tokens", str(tokens), "-n", "1", *given]) == code
    assert sentence in capsys.readouterr().err
