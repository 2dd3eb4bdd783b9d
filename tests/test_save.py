"""A session as bytes: saved at any place, restored anywhere, it goes on as if nothing had been; what is refused changes
nothing."""
from __future__ import annotations

import hashlib
import random
import struct
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from colibri import targets
from colibri.engine import Limits, Model, new
from colibri.jobs import Job
from colibri.library import constants, detail_of, ffi, load
from colibri.synth import write_random_blob
from editing import Opened
from rawsession import Raw, Store, digest, opened, prompt

EVER = (1 << 64) - 1
HEAD, SUMMED = 80, 76                               # of a save: the head's bytes, and where its sum stands
LIMITS = Limits(context=64, batch=8, logit_rows=8)
# one model for each kind of state
KINDS = {"mixed": "q4", "window": "q8", "conv": "q4", "conv-long": "f16", "latent": "q8", "sparse": "q4", "posts": "q8",
         "fixed": "q4", "oss": "q4", "gated-conv": "q8"}


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("save")
    for name, kinds in KINDS.items():
        write_random_blob(folder / f"{name}.colibri", name, 31, kinds)
    write_random_blob(folder / "twin.colibri", "mixed", 32, "q4")
    return folder


@pytest.fixture(scope="module")
def models(files: Path) -> dict[str, Opened]:
    return {name: opened(files / f"{name}.colibri") for name in [*KINDS, "twin"]}


def begin(model: Opened, limits: Limits = LIMITS, **more: object) -> Raw:
    """A session, poisoned pool."""
    return Raw(model, limits, **more).started()


def size(raw: Raw, logits: bool = True) -> int:
    """Bytes of a save."""
    return int(raw.lib.colibri_save_bytes(raw.c, int(logits)))


def save(raw: Raw, logits: bool = True, budget: int = EVER, shift: int = 0) -> bytes:
    """A save to its end, into exactly the bytes it takes, which lie `shift` behind an aligned address."""
    count, c = size(raw, logits), constants()
    room = ffi().new("char[]", b"\xcc" * (count + shift + 8))
    for _ in range(2 * count + 2):
        status = raw.lib.colibri_save(raw.c, int(logits), room + shift, count, budget, raw.detail)
        if status == c.DONE:
            assert bytes(ffi().buffer(room + shift + count, 8)) == b"\xcc" * 8
            return bytes(ffi().buffer(room + shift, count))
        assert status == c.AGAIN
    raise AssertionError("save never ends")


def restore(raw: Raw, data: bytes, budget: int = EVER) -> tuple[int, str]:
    """A restore to its end: status and the field of a refusal."""
    c, kept = constants(), ffi().new("char[]", data or b"\0")
    for _ in range(4 * len(data) + 4):
        status = raw.lib.colibri_restore(raw.c, kept, len(data), budget, raw.detail)
        if status != c.AGAIN:
            return status, detail_of(raw.detail).field if status < 0 else ""
    raise AssertionError("restore never ends")


def sealed(data: bytes) -> bytes:
    """A save with its sums made right."""
    head = HEAD + 8 * struct.unpack_from("<I", data, 60)[0]
    made = bytearray(data)
    struct.pack_into("<I", made, SUMMED - 4, load().colibri_crc32c(0, bytes(made[head:]), len(made) - head))
    crc = load().colibri_crc32c(0, bytes(made[:SUMMED]), SUMMED)
    struct.pack_into("<I", made, SUMMED, load().colibri_crc32c(crc, bytes(made[HEAD:head]), head - HEAD))
    return bytes(made)


# ---- the way and back ----

@pytest.mark.sampled(3)
@pytest.mark.parametrize("kv", ("f32", "f16", "q8"))
@pytest.mark.parametrize("name", KINDS)
def test_a_text_goes_on_as_if_nothing_had_been(models: dict[str, Opened], name: str, kv: str) -> None:
    """Saved around the ends of tiles and rings; into a plan alike and a plan unlike; pools full of poison."""
    limits = replace(LIMITS, kv=kv)
    wide = replace(limits, context=200, batch=9, logit_rows=8, rewind=11, workers=2, sequences=2)
    whole = begin(models[name], limits)
    tokens = prompt(whole.vocab, 60)
    expected = whole.run(tokens, 1)
    source = begin(models[name], limits)
    for length in (1, 7, 15, 16, 17, 33, 48, 55):
        source.run(tokens[source.length():length], 8)
        data = save(source)
        assert len(data) == size(source) and save(source, budget=1) == save(source, budget=77, shift=1) == data
        for plan, budget in ((limits, EVER), (wide, 333), (limits, 1)):
            raw = begin(models[name], plan, fill=length)
            assert restore(raw, data, budget)[0] == constants().DONE
            assert raw.length() == length and np.array_equal(raw.logits(whole_rows(source) - 1), expected[length - 1])
            assert save(raw) == data                                # no word of the poison, nor of the plan
            assert np.array_equal(raw.run(tokens[length:], 3), expected[length:])
            assert raw.red_zones_intact(length)
    assert np.array_equal(source.run(tokens[55:], 5), expected[55:])      # a save disturbs nothing


def whole_rows(raw: Raw) -> int:
    """Logits rows of the last feed."""
    count = 0
    while raw.logits(count) is not None:
        count += 1
    return count


@pytest.mark.parametrize("kv", ("f32", "f16", "q8"))
@pytest.mark.parametrize("name", ("window", "conv", "latent", "posts"))
def test_rings_of_any_size_and_the_rewinds_they_allow(models: dict[str, Opened], name: str, kv: str) -> None:
    """Of every pair of plans: what both allow to take back gives the same logits again, the rest is refused."""
    c = constants()
    plans = [replace(LIMITS, kv=kv, batch=batch, logit_rows=batch, rewind=rewind, context=context)
             for batch, rewind, context in ((1, 0, 64), (8, 3, 64), (2, 17, 64), (16, 64, 300), (5, 30, 41))]
    whole = begin(models[name], plans[3])
    tokens = prompt(whole.vocab, 41)
    expected = whole.run(tokens, 1)
    for source_plan in plans:
        source = begin(models[name], source_plan)
        source.run(tokens[:36], source_plan.batch)
        taken = min(2, source_plan.rewind)
        assert source.lib.colibri_rewind(source.c, 0, 36 - taken) == c.OK
        data = save(source, logits=False)
        for plan in plans:
            raw = begin(models[name], plan)
            assert restore(raw, data, 1000)[0] == c.DONE and raw.logits() is None
            allowed = []
            for length in range(raw.length() - 1, 0, -1):
                if raw.lib.colibri_rewind(raw.c, 0, length) != c.OK:
                    break
                allowed.append(length)
                assert np.array_equal(raw.run(tokens[length:length + 1], 1)[0], expected[length])
                assert raw.lib.colibri_rewind(raw.c, 0, length) == c.OK
            if source_plan.rewind >= 64 or source_plan.context == 41:       # no rings there: all is kept
                assert len(allowed) == (min(plan.rewind, 33) if plan.context == 64 else 33)
            elif plan.rewind <= 30:
                assert len(allowed) == min(source_plan.rewind - taken, plan.rewind)
            rest = raw.length()
            assert np.array_equal(raw.run(tokens[rest:], plan.batch), expected[rest:])


def test_sequences_keep_their_places(models: dict[str, Opened]) -> None:
    """Several sequences, one of them empty; what a restoring session held is gone."""
    c = constants()
    limits = replace(LIMITS, sequences=5)
    source = begin(models["window"], limits)
    tokens = prompt(source.vocab, 50)
    lengths = (20, 0, 3, 33)
    expected = [begin(models["window"]).run(tokens[q:q + 40], 1) for q in range(4)]
    for q, length in enumerate(lengths):
        if length:
            source.run(tokens[q:q + length], 8, sequence=q)
    data = save(source, logits=False, budget=100)
    alone = [begin(models["window"]) for _ in lengths]
    for q, length in enumerate(lengths):
        if length:
            alone[q].run(tokens[q:q + length], 8)
    assert len(data) == HEAD + 4 * 8 + sum(size(raw, False) - HEAD - 8 for raw in alone if raw.length())
    for many in (4, 5, 9):
        raw = begin(models["window"], replace(limits, sequences=many))
        raw.run(tokens[7:30], 8, sequence=many - 1)
        raw.run(tokens[7:30], 8, sequence=1)
        assert restore(raw, data, 999)[0] == c.DONE
        assert [raw.length(q) for q in range(many)] == [*lengths, *[0] * (many - 4)]
        for q, length in enumerate(lengths):
            assert np.array_equal(raw.run(tokens[q + length:q + 40], 7, sequence=q), expected[q][length:])
    few = begin(models["window"], replace(limits, sequences=3))
    assert restore(few, data) == (c.ERROR_LIMIT, "SEQUENCES")
    assert len(save(begin(models["window"]))) == HEAD                       # nothing is said of nothing
    empty = save(begin(models["window"]))
    assert restore(source, empty)[0] == c.DONE and all(source.length(q) == 0 for q in range(5))


def test_a_save_is_as_long_as_its_text(models: dict[str, Opened]) -> None:
    """Exact bytes from the planned ones of a token; a window keeps its width."""
    raw = begin(models["mixed"], replace(LIMITS, context=4096, kv="f32"))
    head = HEAD + 8
    raw.run(prompt(raw.vocab, 21), 8)
    assert size(raw, False) == head + 21 * raw.plan.kv_bytes_per_token
    assert size(raw) == size(raw, False) + 5 * 4 * raw.vocab                # the last feed had five rows
    ring = begin(models["window"], replace(LIMITS, context=4096, kv="f32"))
    ring.run(prompt(ring.vocab, 100), 8)
    assert size(ring, False) == head + (100 + 6 + 6) * ring.plan.kv_bytes_per_token // 3


# ---- what is refused changes nothing ----

@pytest.fixture(scope="module")
def small(tmp_path_factory: pytest.TempPathFactory) -> Opened:
    """A model of few bytes."""
    path = tmp_path_factory.mktemp("small") / "tiny.colibri"
    write_random_blob(path, "tiny", 3, "q4")
    return opened(path)


PLAN = Limits(context=20, batch=4, sequences=2, kv="q8")


def living(model: Opened) -> Raw:
    """A session amid two texts."""
    raw = begin(model, PLAN)
    raw.run(prompt(raw.vocab, 9)[:8], 1)
    raw.run(prompt(raw.vocab, 5), 1, sequence=1)
    return raw


def refused(raw: Raw, data: bytes, budget: int = EVER) -> tuple[int, str]:
    """A refusal, after which not a bit of the pool is another."""
    before = bytes(raw.room)
    found = restore(raw, data, budget)
    assert found[0] < 0 and bytes(raw.room) == before
    return found


@pytest.mark.parametrize("budget", (EVER, 700))
def test_every_flipped_byte_is_refused(small: Opened, budget: int) -> None:
    source = begin(small, PLAN)
    source.run(prompt(source.vocab, 3), 1)
    data, raw, statuses = save(source), living(small), set()
    for i in range(len(data)):
        bad = bytearray(data)
        bad[i] ^= 1 << i % 8
        statuses.add(refused(raw, bytes(bad), budget))
    c = constants()
    assert statuses == {(c.ERROR_MAGIC, "MAGIC"), (c.ERROR_VERSION, "VERSION"), (c.ERROR_CORRUPT, "CRC"),
                        (c.ERROR_TRUNCATED, "BYTES")}                       # a count of sequences that cannot be
    assert np.array_equal(raw.run([1], 1), living(small).run([1], 1))
    assert restore(raw, data)[0] == c.DONE and save(raw) == data


def test_every_cut_is_refused(small: Opened) -> None:
    c, raw = constants(), living(small)
    data = save(raw)
    for count in range(len(data)):
        assert refused(raw, data[:count]) == (c.ERROR_TRUNCATED, "BYTES")
    assert refused(raw, data + b"\0") == (c.ERROR_FORMAT, "BYTES")


LIES = {"identity": (16, "IDENTITY", "IDENTITY"), "kv_kind": (48, "LIMIT", "KV_KIND"), "top_k": (52, "LIMIT", "TOP_K"),
        "skip_below": (56, "LIMIT", "SKIP"), "logit_rows": (64, "LIMIT", "LOGIT_ROWS"),
        "reserved": (68, "LIMIT", "RESERVED"), "length": (HEAD, "FORMAT", "BYTES"),
        "context": (HEAD, "LIMIT", "CONTEXT"), "floor": (HEAD + 4, "FORMAT", "REWIND"),
        "bytes": (8, "TRUNCATED", "BYTES")}


@pytest.mark.parametrize("name", LIES)
def test_a_head_that_lies_is_refused_by_name(small: Opened, name: str) -> None:
    """Sums are right."""
    raw = living(small)
    data = bytearray(save(raw))
    at, status, field = LIES[name]
    value = {"context": 21, "floor": 9, "identity": 0xFFFFFFFF}.get(name, struct.unpack_from("<I", data, at)[0] + 1)
    struct.pack_into("<I", data, at, value)
    assert refused(raw, sealed(bytes(data))) == (getattr(constants(), "ERROR_" + status), field)


def test_heads_of_dice_are_refused_or_restored(small: Opened) -> None:
    """Lies of all sizes, sums right: refused without a trace, or what is there is what they say."""
    c, raw, dice, restored = constants(), living(small), random.Random(5), 0
    data = save(raw, logits=False)
    for _ in range(2000):
        bad = bytearray(data)
        for _ in range(dice.randrange(1, 4)):
            at = dice.choice((8, 12, 60, 64, HEAD, HEAD + 4, HEAD + 8, HEAD + 12))
            value = dice.choice((dice.randrange(24), dice.getrandbits(32), 1 << dice.randrange(32), 0xFFFFFFFF))
            struct.pack_into("<I", bad, at, value)
        if dice.random() < 0.8:
            struct.pack_into("<Q", bad, 8, len(bad))
        if HEAD + 8 * struct.unpack_from("<I", bad, 60)[0] <= len(bad):
            bad = bytearray(sealed(bytes(bad)))
        if restore(raw, bytes(bad))[0] == c.DONE:
            restored += 1
            assert save(raw, logits=False)[:8] == data[:8]
            restore(raw, data)
        else:
            assert save(raw, logits=False) == data
    assert raw.red_zones_intact() and restored > 0


@pytest.mark.parametrize(("change", "status", "field"), [
    ({"kv": "f16"}, "LIMIT", "KV_KIND"), ({"context": 7}, "LIMIT", "CONTEXT"), ({"sequences": 1}, "LIMIT", "SEQUENCES"),
    ({"top_k": 1}, "LIMIT", "TOP_K"), ({"skip_below": 0.25}, "LIMIT", "SKIP"),
])
def test_a_plan_without_room_is_named(small: Opened, change: dict, status: str, field: str) -> None:
    data, raw = save(living(small)), begin(small, replace(PLAN, **change))
    raw.run([3, 4, 5], 1)
    assert refused(raw, data) == (getattr(constants(), "ERROR_" + status), field)


def test_arguments_and_too_little_room(models: dict[str, Opened], small: Opened) -> None:
    c, raw = constants(), living(small)
    null, room = ffi().NULL, ffi().new("char[]", 10_000)
    lib, need = raw.lib, size(raw)
    before = bytes(raw.room)
    assert lib.colibri_save_bytes(null, 0) == lib.colibri_save_bytes(raw.c, 2) == 0
    assert lib.colibri_save(null, 0, room, 10_000, EVER, null) == c.ERROR_ARGUMENT
    assert lib.colibri_save(raw.c, 0, null, 10_000, EVER, null) == c.ERROR_ARGUMENT
    assert lib.colibri_save(raw.c, 2, room, 10_000, EVER, null) == c.ERROR_ARGUMENT
    assert lib.colibri_restore(null, room, 100, EVER, null) == c.ERROR_ARGUMENT
    assert lib.colibri_restore(raw.c, null, 100, EVER, null) == c.ERROR_ARGUMENT
    assert lib.colibri_save(raw.c, 1, room, need - 1, EVER, raw.detail) == c.ERROR_LIMIT
    assert (raw.detail.expected, raw.detail.found, detail_of(raw.detail).field) == (need, need - 1, "BYTES")
    assert bytes(ffi().buffer(room)) == bytes(10_000) and bytes(raw.room) == before
    other = begin(models["twin"])
    other.run([1, 2], 2)
    assert restore(other, save(begin(models["mixed"]))) == (c.ERROR_IDENTITY, "IDENTITY")
    assert raw.stop() == c.DONE
    assert lib.colibri_save(raw.c, 0, room, 10_000, EVER, null) == c.ERROR_STOPPED == restore(raw, b"")[0]


# ---- other calls between two calls ----

class Pieces:
    """A save or a restore, piece by piece, of one buffer."""

    def __init__(self, raw: Raw, data: bytes | int, budget: int = 60) -> None:
        self.raw, self.budget = raw, budget
        self.saving = isinstance(data, int)
        self.count = data if isinstance(data, int) else len(data)
        self.room = ffi().new("char[]", data)

    def __call__(self, times: int = 1) -> int:
        """The last call's status."""
        for _ in range(times):
            name, detail = ("colibri_save", "colibri_restore")[not self.saving], self.raw.detail
            first = (self.raw.c, 0, self.room) if self.saving else (self.raw.c, self.room)
            status = getattr(self.raw.lib, name)(*first, self.count, self.budget, detail)
        return int(status)

    def finish(self) -> bytes:
        """What is in the buffer in the end."""
        while (status := self()) == constants().AGAIN:
            pass
        assert status == constants().DONE
        return bytes(ffi().buffer(self.room, self.count))


CALLS = {"feed": lambda raw: raw.run([2], 1), "rewind": lambda raw: raw.lib.colibri_rewind(raw.c, 0, 4),
         "reset": lambda raw: raw.lib.colibri_reset(raw.c, 1)}


@pytest.mark.parametrize("name", CALLS)
def test_a_save_begins_anew_when_the_session_changes(small: Opened, name: str) -> None:
    c, raw, twin = constants(), living(small), living(small)
    pieces = Pieces(raw, 10_000)
    assert pieces(2) == c.AGAIN and bytes(ffi().buffer(pieces.room, HEAD + 16)) == bytes(HEAD + 16)    # no head yet
    CALLS[name](raw)
    CALLS[name](twin)
    expected = save(twin, logits=False)
    assert pieces.finish()[:len(expected)] == expected


@pytest.mark.parametrize("name", CALLS)
def test_a_restore_that_still_checks_begins_anew(small: Opened, name: str) -> None:
    c, raw, twin, source = constants(), living(small), living(small), begin(small, PLAN)
    source.run(prompt(source.vocab, 15), 1)
    data = save(source)
    pieces = Pieces(raw, data)
    assert pieces(3) == c.AGAIN
    CALLS[name](raw)
    CALLS[name](twin)
    assert (raw.length(0), raw.length(1)) == (twin.length(0), twin.length(1))
    assert save(raw) == save(twin)                                          # which ends the restore's check too
    pieces.finish()
    assert save(raw) == data


def writing(raw: Raw, data: bytes) -> Pieces:
    """A restore that has begun to write."""
    pieces = Pieces(raw, data)
    while raw.length():
        assert pieces() == constants().AGAIN
    assert pieces() == constants().AGAIN
    return pieces


def test_nothing_comes_between_the_writes_of_a_restore_but_a_reset(small: Opened) -> None:
    c, raw, source = constants(), living(small), begin(small, PLAN)
    source.run(prompt(source.vocab, 15), 1)
    data = save(source)
    pieces = writing(raw, data)
    another = Pieces(raw, data)
    assert raw.feed([(0, 1)]) == raw.advance() == c.ERROR_BUSY == another() == Pieces(raw, 9000)()
    assert raw.lib.colibri_rewind(raw.c, 0, 0) == raw.lib.colibri_pin(raw.c, 0, 0, 1) == c.ERROR_BUSY
    assert size(raw) == 0 and raw.logits() is None and raw.length() == raw.length(1) == 0
    pieces.finish()
    assert save(raw) == data and np.array_equal(raw.run([5], 1), source.run([5], 1))
    pieces = writing(raw, data)
    assert raw.lib.colibri_reset(raw.c, 1) == c.OK                          # of one: all are empty
    assert raw.length() == raw.length(1) == 0 and len(save(raw)) == HEAD
    assert np.array_equal(raw.run([1, 2, 3], 1), begin(small, PLAN).run([1, 2, 3], 1))
    pieces.finish()                                                         # anew
    assert save(raw) == data
    pieces = writing(raw, data)
    assert raw.stop() == c.DONE and pieces() == c.ERROR_STOPPED


def test_bytes_that_change_under_way_leave_nothing(small: Opened) -> None:
    """What is written was summed as it was written."""
    c, raw = constants(), living(small)
    pieces = writing(raw, save(raw, logits=False))
    ffi().buffer(pieces.room)[pieces.count - 9] = b"\x5a"
    ffi().buffer(pieces.room)[HEAD:HEAD + 4] = b"\xff" * 4      # nor is a head believed that was not checked
    while (status := pieces()) == c.AGAIN:
        pass
    assert status == c.ERROR_CORRUPT and raw.length() == raw.length(1) == 0 and len(save(raw)) == HEAD
    raw = living(small)
    checking = Pieces(raw, save(raw))
    assert checking(2) == c.AGAIN
    ffi().buffer(checking.room)[HEAD:HEAD + 4] = b"\xff" * 4
    while (status := checking()) == c.AGAIN:
        pass
    assert status == c.ERROR_CORRUPT and raw.length() == 8


def test_amid_a_feed_all_is_busy(small: Opened) -> None:
    c, raw = constants(), living(small)
    data = save(raw)
    assert raw.feed([(0, 1)]) == c.OK and raw.advance(2) == c.AGAIN
    assert size(raw) == 0 and Pieces(raw, 9000)() == c.ERROR_BUSY == Pieces(raw, data)()
    raw.finish()
    assert restore(raw, data)[0] == c.DONE


def test_a_session_that_starts_is_busy(models: dict[str, Opened]) -> None:
    c, model = constants(), models["mixed"]
    limits = replace(LIMITS, resident_copy=True)
    raw = Raw(model, limits, store=Store(bytes(model.memory), delay=lambda n: 3))
    assert raw.start() == c.WAIT and size(raw) == 0
    assert Pieces(raw, 9000)() == c.ERROR_BUSY == Pieces(raw, save(begin(model)))()
    raw.started()
    assert restore(raw, save(begin(model)))[0] == c.DONE


# ---- exchanged experts ----

def swap(raw: Raw, place: tuple[int, int], source: Opened | None, calls: int = 1 << 30) -> int:
    """Another file's expert into its place, or with None the file's own back."""
    run = new("colibri_expert")
    assert raw.lib.colibri_expert_of((source or raw.model).model, *place, run) == constants().OK
    if source:
        run.run = ffi().cast("const void *", source.memory.ctypes.data + run.offset)
    for _ in range(calls):
        status = raw.lib.colibri_swap_expert(raw.c, run, 1 << 20, raw.detail)
        if status != constants().AGAIN:
            break
    return int(status)


@pytest.mark.parametrize("slots", (0, 2))
def test_saves_follow_exchanged_experts(models: dict[str, Opened], slots: int) -> None:
    """The identity is that of what ran: others are refused by name until the same experts are in place."""
    c, model, twin = constants(), models["mixed"], models["twin"]
    places = [(1, 0), (2, 1)]
    plan = replace(LIMITS, swaps=3)
    streamed = replace(plan, slots=slots, stream_experts=slots > 0)
    tokens = prompt(77, 30)
    plain = begin(model)
    plain.run(tokens[:9], 8)
    unchanged = save(plain)
    source = begin(model, plan)
    assert [swap(source, place, twin) for place in places] == [c.DONE] * 2
    source.run(tokens[:9], 8)
    data = save(source)
    expected = source.run(tokens[9:], 8)
    raw = begin(model, streamed, store=Store(bytes(model.memory)) if slots else None)
    raw.run(tokens[3:8], 4)
    for place in places:
        assert refused(raw, data) == (c.ERROR_IDENTITY, "IDENTITY")
        assert swap(raw, place, twin) == c.DONE
    assert refused(raw, unchanged) == (c.ERROR_IDENTITY, "IDENTITY")
    experts, weights = ffi().new("uint32_t[8]"), ffi().new("float[8]")
    assert raw.lib.colibri_routing(raw.c, 1, 0, experts, weights, 8) > 0
    assert restore(raw, data, 999)[0] == c.DONE and save(raw) == data
    assert raw.lib.colibri_routing(raw.c, 1, 0, experts, weights, 8) == 0   # no row of what is here was run here
    assert np.array_equal(raw.run(tokens[9:], 8), expected)
    assert swap(raw, places[0], None) == c.DONE and refused(raw, data) == (c.ERROR_IDENTITY, "IDENTITY")
    assert swap(raw, places[1], None) == c.DONE and restore(raw, unchanged)[0] == c.DONE
    assert np.array_equal(raw.run(tokens[9:], 8), begin(model).run(tokens, 1)[9:])


def test_an_exchange_amid_a_save_or_a_restore(models: dict[str, Opened]) -> None:
    c, model, twin = constants(), models["mixed"], models["twin"]
    place, plan = (2, 1), replace(LIMITS, swaps=2)
    raw, changed = begin(model, plan), begin(model, plan)
    for one in (raw, changed):
        one.run(prompt(77, 9), 8)
    old = save(raw, logits=False)
    assert swap(changed, place, twin) == c.DONE
    expected = save(changed, logits=False)
    pieces = Pieces(raw, len(old), 999)
    assert pieces(2) == c.AGAIN and swap(raw, place, twin) == c.DONE
    assert pieces.finish() == expected                      # of the new model
    pieces = Pieces(raw, expected, 999)
    assert pieces(2) == c.AGAIN and swap(raw, place, None) == c.DONE
    while (status := pieces()) == c.AGAIN:
        pass
    assert status == c.ERROR_IDENTITY and save(raw, logits=False) == old
    pieces = writing(raw, old)
    assert swap(raw, place, twin) == c.DONE                 # waits for the next feed
    pieces.finish()
    assert save(raw, logits=False) == old
    raw.run([1], 1)
    assert refused(raw, old) == (c.ERROR_IDENTITY, "IDENTITY")


# ---- every target ----

NAMES = [target.name for target in targets.all_targets() if target.name not in ("linux", "linux-gcc")]


def job_of(**change: object) -> Job:
    """A prompt of 40 tokens in feeds of seven, and nothing else, so that saves can be foretold."""
    limits = Limits(context=64, batch=7, logit_rows=7, kv=str(change.pop("kv", "f16")), rewind=2)
    return replace(Job("save", limits, prompt(77, 40), save=True), **change)


def foretold(model: Opened, job: Job) -> tuple[np.ndarray, str, int]:
    """What such a job answers, and its hash over all saves, by this process's library."""
    raw, rows, every = begin(model, job.limits), [], hashlib.sha256()
    for first in range(0, len(job.prompt), 7):
        data = save(raw)
        every.update(hashlib.sha256(data).digest())
        rows += list(raw.run(job.prompt[first:first + 7], 7))
    return np.stack(rows), every.hexdigest(), len(data)


@pytest.mark.sampled(5)
@pytest.mark.parametrize("kv", ("f16", "q8"))
@pytest.mark.parametrize("name", NAMES)
def test_every_target_saves_the_same_bytes_and_restores_them(models: dict[str, Opened], files: Path, name: str,
                                                            kv: str) -> None:
    """Every save of a job is followed by a restore into an overwritten cache: the digest is the undisturbed one's, and
    the saves are this process's to the byte, so that either may be restored by the other."""
    target = targets.pick([name])[0]
    if target.missing():
        pytest.skip(f"target {name}: {target.missing()}")
    for spec in KINDS:
        rows, saved, count = foretold(models[spec], job_of(kv=kv))
        result = target.run(job_of(kv=kv), Model.open(files / f"{spec}.colibri"))
        assert result.error is None and result.bad_checks() == [] and result.code == 0
        assert result.digest == digest(rows)
        assert (result.saves, result.saved_bytes, result.saved) == (6, count, saved)


@pytest.mark.parametrize("change", (
    {"two_sequences": True, "companion": (3, 4, 5)}, {"two_sessions": True, "companion": (3, 4, 5)}, {"reset": True},
    {"budget": 5}, {"swap": True}, {"workers": 3}, {"store": "COPY"}))
@pytest.mark.parametrize("name", ("linux-aarch64", "wasm"))
def test_saves_in_all_kinds_of_runs(files: Path, name: str, change: dict) -> None:
    """While tokens are made."""
    target, model = targets.pick([name])[0], Model.open(files / "mixed.colibri")
    if target.missing():
        pytest.skip(f"target {name}: {target.missing()}")
    job = job_of(generate=12)
    if "store" in change:
        job = replace(job, limits=replace(job.limits, slots=2, stream_experts=True, resident_copy=True))
    expected = targets.pick(["linux"])[0].run(replace(job_of(generate=12), save=False), model)
    result = target.run(replace(job, **change), model)
    assert result.error is None and result.bad_checks() == [] and result.code == 0
    assert (result.digest, result.tokens[0]) == (expected.digest, expected.tokens[0]) and result.saves > 15
