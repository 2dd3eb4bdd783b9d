"""Stores: a file by io_uring, by threads, past the page cache, by a module's import. None changes a bit, all say what
they lost.

Faults are real ones: files that end early, bytes that are wrong, and pages of this process that are not there, which
/proc/self/mem cannot read.
"""
from __future__ import annotations

import contextlib
import ctypes
import itertools
import json
import mmap
import os
import random
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from cli_kit import ROOT, Capture, document, process, random_blob, talker  # noqa: F401
from colibri import cli, library, targets
from colibri.bench_profile import read_profile
from colibri.description import layer_records
from colibri.engine import CoreError, Limits, Model, Session
from colibri.errors import InputError, MissingTool, UsageError
from colibri.families import describe
from colibri.format import Kinds
from colibri.generation import Request, generate
from colibri.jobs import Job, JobRefused, JobResult
from colibri.limits import UNLIMITED, Sampling
from colibri.store import STORES, STREAMED, FileStore, Storage
from colibri.synth import write_random_blob
from colibri.synth_shapes import shape_of, write_shape_blob
from colibri.synth_sparse import crc_of_zeros
from colibri.tables import crc32c
from editing import Edited

NAMES = [target.name for target in targets.all_targets()]
PROMPT, MADE, BATCH = 19, 12, 6
ALL = {"stream_experts": True, "resident_copy": True}
AHEAD = pytest.mark.parametrize("ahead", (False, True), ids=("", "ahead"))


class Case:
    """A blob, a run over it, and what that run gives with everything in memory."""

    def __init__(self, path: Path, spec: str, kinds: str) -> None:
        write_random_blob(path, spec, 21, kinds)
        self.path, self.model = path, Model.open(path)
        info = self.model.info()
        self.experts, self.run_bytes = info.expert_count, info.expert_run_bytes
        self.limits = Limits(context=64, batch=BATCH, logit_rows=BATCH, kv="q8")
        self.prompt = [(7919 * i + 101) % info.vocab for i in range(PROMPT)]
        self.job = Job(f"stores {spec}", self.limits, self.prompt, generate=MADE)
        with Session(self.model, self.limits) as session:
            self.right = self.run(session)

    def run(self, session: Session) -> str:
        """The digest of the run."""
        return generate(session, Request(self.prompt, MADE, Sampling(), (), (), True, False)).digest

    def streamed(self, slots: int, storage: Storage | None = None, workers: int = 1,
                 model: Model | None = None, ahead: bool = False) -> Session:
        """A session that uses nothing of the file but its tables in place."""
        limits = replace(self.limits, slots=slots, workers=workers, look_ahead=ahead, **ALL)
        return Session(model or self.model, limits, storage=storage)

    def runs(self) -> Iterator[tuple[int, int, int, int]]:
        """layer, expert, offset and bytes of every expert."""
        c, edited = library.constants(), Edited(self.path)
        for place in (t for t in edited.rows("TENSORS", "tensor") if t.role == c.ROLE_EXPERT_GATE):
            for expert in range(place.count):
                yield place.layer, expert, place.offset + expert * place.stride, place.stride


@pytest.fixture(scope="module")
def mixed(tmp_path_factory: pytest.TempPathFactory) -> Case:
    """Dense and MoE layers, three of four experts, a shared one."""
    return Case(tmp_path_factory.mktemp("stores") / "mixed.colibri", "mixed", "q4")


@pytest.fixture(scope="module")
def uneven(tmp_path_factory: pytest.TempPathFactory) -> Case:
    """Layers whose experts differ in number and size."""
    return Case(tmp_path_factory.mktemp("stores") / "uneven.colibri", "uneven", "q8")


@pytest.fixture(params=("mixed", "uneven"))
def case(request: pytest.FixtureRequest) -> Case:
    """Both of them."""
    return request.getfixturevalue(request.param)


def usable(case: Case, kind: str) -> Storage:
    """A store's kind, or a skip where this kernel or file system has it not."""
    storage = Storage(kind, poison=True)
    try:
        FileStore(case.path, storage).close()
    except MissingTool as error:
        pytest.skip(str(error))
    return storage


# ---- one file, every way to read it ----

@AHEAD
@pytest.mark.parametrize("workers", (1, 2, 3))
@pytest.mark.parametrize("share", (0, 0.3, 0.6, 1))
@pytest.mark.parametrize("kind", STREAMED)
def test_every_store_and_number_of_slots_gives_the_same_bits(case: Case, kind: str, share: float, workers: int,
                                                             ahead: bool) -> None:
    slots = max(1, round(case.experts * share))
    with case.streamed(slots, usable(case, kind), workers, ahead=ahead) as session:
        assert case.run(session) == case.right
        stats, store = session.stats(), session.store.counters()
        assert store["bytes"] == stats.bytes_fetched and store["failures"] == 0
        assert store["most_in_flight"] <= min(slots + ahead * case.model.info().top_k, 8)
        assert (stats.hints_used > 0) == ahead
        assert kind not in ("uring", "pread") or session.store.kind == kind
    assert ahead or slots == 1 or store["most_in_flight"] > 1     # hints leave little to ask for at once


@pytest.mark.parametrize("piece", (64, 1000, 4096, 5000))
@pytest.mark.parametrize("kind", STREAMED)
def test_requests_in_pieces(case: Case, kind: str, piece: int) -> None:
    """Every piece is a read of its own; direct ones stay aligned all the same."""
    with case.streamed(3, replace(usable(case, kind), piece=piece)) as session:
        assert case.run(session) == case.right
        store = session.store.counters()
    assert kind == "direct" or store["reads"] > store["requests"]


@AHEAD
@pytest.mark.parametrize("kind", STREAMED)
@pytest.mark.parametrize("depth", (1, 2, 64))
def test_more_experts_than_requests_fit_in_flight(uneven: Case, kind: str, depth: int, ahead: bool) -> None:
    with uneven.streamed(uneven.experts, replace(usable(uneven, kind), depth=depth), ahead=ahead) as session:
        assert uneven.run(session) == uneven.right
        assert session.store.counters()["most_in_flight"] <= depth


@pytest.mark.parametrize("kind", STREAMED)
def test_a_pool_that_begins_anywhere(case: Case, kind: str) -> None:
    """A caller's pool: direct reads find no slot at a page and go through the bounce."""
    limits = replace(case.limits, slots=2, **ALL)
    plan = case.model.plan(limits)
    for shift in (64, 4096 - 64):
        pool = memoryview(mmap.mmap(-1, plan.pool_bytes + 4096))[shift:][: plan.pool_bytes]
        with Session(case.model, limits, pool=pool, storage=usable(case, kind)) as session:
            assert case.run(session) == case.right


def test_a_played_device_is_as_slow_as_it_should_be(mixed: Case) -> None:
    """At least bytes / bandwidth, whatever the kernel does; sleeping, not spinning."""
    rate = 4_000_000
    for kind in ("uring", "pread"):
        with mixed.streamed(1, replace(usable(mixed, kind), bytes_per_second=rate)) as session:
            begun, cpu = time.perf_counter(), time.process_time()
            assert mixed.run(session) == mixed.right
            seconds, cpu = time.perf_counter() - begun, time.process_time() - cpu
            decoded = session.stats().expert_misses * mixed.run_bytes
        assert seconds >= decoded / rate
        assert cpu < seconds / 2


def test_options_that_contradict_themselves_are_refused(mixed: Case) -> None:
    with pytest.raises(UsageError, match="expected one of streamed, direct, uring, pread"):
        mixed.streamed(1, Storage("mapped"))
    with pytest.raises(InputError, match="cannot be read"):
        FileStore(mixed.path, Storage(depth=65))
    with pytest.raises(InputError, match="No such file"):
        FileStore(mixed.path.with_name("nothing"))


def test_a_file_system_without_direct_reads_is_named() -> None:
    with pytest.raises((MissingTool, InputError), match="no direct reads|cannot be read"):
        FileStore(Path("/proc/self/maps"), Storage("direct"))


# ---- what goes wrong for good, and is repaired ----

def repaired(session: Session) -> None:
    """The call that failed goes on; fetches that were on their way when the file was repaired may fail once more."""
    for _ in range(session.plan.slots):
        with contextlib.suppress(CoreError):
            session.finish()
            break
    session.finish()
    session.reset()


@AHEAD
@pytest.mark.parametrize("kind", STREAMED)
def test_a_file_that_ends_early_is_named_and_goes_on_after_repair(mixed: Case, kind: str, ahead: bool,
                                                                  tmp_path: Path) -> None:
    """For every expert of the file: it ends there; the session says so as often as asked, and then goes on."""
    image, path, met = mixed.path.read_bytes(), tmp_path / "short.colibri", 0
    storage = usable(mixed, kind)
    for layer, expert, offset, size in mixed.runs():
        path.write_bytes(image)
        model = Model.open(path)
        with mixed.streamed(2, storage, model=model, ahead=ahead) as session:
            os.truncate(path, offset + size // 2)
            try:
                mixed.run(session)
                continue                    # this one and those behind it are never chosen
            except CoreError as error:
                lost = session.store.c
                assert error.status == "FETCH" and "behind the end of the file" in str(error)
                assert f"expert {lost.last_expert} of layer {lost.last_layer}" in str(error)
                assert (lost.last_layer, lost.last_expert) >= (layer, expert)
            for _ in range(3):
                with pytest.raises(CoreError, match="behind the end"):
                    session.finish()
            path.write_bytes(image)
            repaired(session)
            assert mixed.run(session) == mixed.right
            met += 1
    assert met > 4


@AHEAD
@pytest.mark.parametrize("kind", STREAMED)
def test_a_flipped_byte_is_named_and_never_used(mixed: Case, kind: str, ahead: bool, tmp_path: Path) -> None:
    """One byte of one expert, for every expert: layer and expert are named, and no logit comes of it."""
    image, path, met = mixed.path.read_bytes(), tmp_path / "flipped.colibri", 0
    storage, draw = usable(mixed, kind), random.Random(kind)
    for layer, expert, offset, size in mixed.runs():
        damaged = bytearray(image)
        damaged[offset + draw.randrange(size)] ^= 1 << draw.randrange(8)
        path.write_bytes(damaged)
        with mixed.streamed(2, storage, model=Model.open(path), ahead=ahead) as session:
            try:
                assert mixed.run(session) == mixed.right
                continue                    # never chosen
            except CoreError as error:
                assert error.status == "CORRUPT" and error.exit_code == 3
                assert f"expert {expert} of layer {layer}: the bytes from {offset} on do not have" in str(error)
            length = session.length()
            for _ in range(3):
                with pytest.raises(CoreError, match=f"expert {expert} of layer {layer}"):
                    session.finish()
            assert session.length() == length
            with path.open("r+b") as file:
                file.write(image)
            repaired(session)
            assert mixed.run(session) == mixed.right
            met += 1
    assert met > 4


@pytest.mark.sampled(2)
@pytest.mark.parametrize("workers", (1, 3))
def test_checksums_are_units_and_see_every_byte(tmp_path: Path, workers: int) -> None:
    """Experts of several pieces: as many units as pieces that have arrived, whatever the budget; a wrong byte at either
    end of a piece is found; and the session goes on when it is right again."""
    path, piece = tmp_path / "small.colibri", 32768
    write_shape_blob(path, shape_of("small"), Kinds.preset("q8"), name="small")
    model, limits = Model.open(path), Limits(context=32, batch=1, slots=8, workers=workers, **ALL)
    run = model.info().expert_run_bytes
    pieces, first = -(-run // piece), run - (-(-run // piece) - 1) * piece
    assert pieces > 2 and model.info().layers > 1

    def fed(budget: int) -> tuple[bytes, list[tuple[int, float]], int]:
        """Logits, the first layer's experts, units of checksums a missed expert."""
        with Session(model, limits) as session:
            session.feed([5])
            session.finish(budget)
            units = read_profile(session)["LEASE"].units
            assert session.stats().expert_misses > 0 and units % session.stats().expert_misses == 0
            return session.logits().tobytes(), session.routing(0, 0), units // session.stats().expert_misses

    right, chosen, units = fed(UNLIMITED)
    assert units == pieces and fed(1)[0] == right and fed(7)[2] == pieces
    place = next(t for t in Edited(path).rows("TENSORS", "tensor") if t.role == library.constants().ROLE_EXPERT_GATE)
    expert = chosen[-1][0]
    for at in (0, first - 1, first, first + piece - 1, first + piece, run - 1):
        where = place.offset + expert * place.stride + at
        with path.open("r+b") as file, Session(model, limits) as session:
            byte = os.pread(file.fileno(), 1, where)
            os.pwrite(file.fileno(), bytes([byte[0] ^ 16]), where)
            session.feed([5])
            with pytest.raises(CoreError, match=f"expert {expert} of layer {place.layer}"):
                session.finish()
            assert session.lost() == (place.layer, expert, where - at)
            os.pwrite(file.fileno(), byte, where)
            session.finish()
            assert session.logits().tobytes() == right


def test_resident_weights_that_are_wrong_are_named(mixed: Case, tmp_path: Path) -> None:
    edited = Edited(mixed.path)
    place = edited.rows("TENSORS", "tensor")[0]
    edited.data[place.offset] ^= 8
    path = tmp_path / "resident.colibri"
    path.write_bytes(edited.data)
    with pytest.raises(CoreError, match=f"resident weights: the bytes from {place.offset} on do not have") as refused:
        mixed.streamed(2, model=Model.open(path))
    assert refused.value.status == "CORRUPT"


class Memory:
    """Pages of this process as a file: /proc/self/mem. A page that is taken away cannot be read (EIO)."""

    def __init__(self, size: int) -> None:
        self.pages = mmap.mmap(-1, size)
        self.size = size
        self.address = int(library.ffi().cast("uintptr_t", library.ffi().from_buffer(self.pages)))
        self.pages[:] = bytes(i * 7 % 251 for i in range(256)) * (size // 256)
        self.out = mmap.mmap(-1, size)

    def request(self, store: FileStore, first: int, size: int, ticket: int) -> int:
        """A fetch of some of it."""
        ffi, lib = library.ffi(), library.load()
        request = ffi.new("colibri_fetch_request *", {
            "offset": self.address + first, "bytes": size, "layer": 3, "expert": 5, "ticket": ticket,
            "destination": ffi.from_buffer(self.out) + first})
        return int(lib.colibri_store_fetch(store.host, request))


def answer(store: FileStore, ticket: int) -> int:
    """fetched() until it is not WAIT."""
    lib, c = library.load(), library.constants()
    while (status := int(lib.colibri_store_fetched(store.host, ticket))) == c.WAIT:
        store.wait()
    return status


def unreadable(memory: Memory, first: int) -> bool:
    """Whether the kernel refuses to read a page that is taken away."""
    try:
        with open("/proc/self/mem", "rb", buffering=0) as file:
            return len(os.pread(file.fileno(), 16, memory.address + first)) == 0
    except OSError:
        return True


@pytest.mark.parametrize("kind", ("uring", "pread"))
@pytest.mark.parametrize("retries", (0, 1, 5))
def test_reads_that_fail_are_begun_again_as_often_as_said(mixed: Case, kind: str, retries: int) -> None:
    """A short read up to the page that is not there, then errors; once the page is back, the same request is good."""
    usable(mixed, kind)
    c, page, memory = library.constants(), mmap.PAGESIZE, Memory(8 * mmap.PAGESIZE)
    memory.pages.madvise(mmap.MADV_DONTFORK)
    store = FileStore(Path("/proc/self/mem"), Storage(kind, retries=retries))
    try:
        libc = ctypes.CDLL(None)
        libc.munmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t]
        assert libc.munmap(memory.address + 4 * page, page) == 0
        try:
            assert unreadable(memory, 4 * page)
            assert memory.request(store, page, 6 * page, 7) == c.OK
            assert answer(store, 7) == c.ERROR_FETCH
            counted = store.counters()
            assert counted["failures"] == 1 and counted["retries"] == retries
            assert store.c.last_error == 5 and (store.c.last_layer, store.c.last_expert) == (3, 5)
            assert "expert 5 of layer 3" in store.lost() and "Input/output error" in store.lost()
            assert f"{retries} more tries" in store.lost()
        finally:
            libc.mmap.restype = ctypes.c_void_p
            libc.mmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t, *[ctypes.c_int] * 3, ctypes.c_long]
            fixed = libc.mmap(memory.address + 4 * page, page, 3, 0x10 | 0x20 | 0x2, -1, 0)
            assert fixed == memory.address + 4 * page
        memory.pages[4 * page : 5 * page] = bytes(range(256)) * (page // 256)
        assert memory.request(store, page, 6 * page, 7) == c.OK
        assert answer(store, 7) == c.DONE
        assert memory.out[page : 7 * page] == memory.pages[page : 7 * page]
    finally:
        store.close()


@pytest.mark.parametrize("kind", ("uring", "pread"))
def test_requests_complete_in_any_order(mixed: Case, kind: str) -> None:
    """Many in flight, asked for in another order than they were begun; an unknown ticket is an error."""
    usable(mixed, kind)
    c, memory, draw = library.constants(), Memory(64 * mmap.PAGESIZE), random.Random(5)
    store = FileStore(Path("/proc/self/mem"), Storage(kind, depth=16, poison=True, piece=1000))
    try:
        tickets = list(range(64))
        open_, done = [], 0
        while tickets or open_:
            while tickets and memory.request(store, tickets[0] * mmap.PAGESIZE, mmap.PAGESIZE, tickets[0]) == c.OK:
                open_.append(tickets.pop(0))
            assert not tickets or len(open_) == 16
            one = open_.pop(draw.randrange(len(open_)))
            assert answer(store, one) == c.DONE
            done += 1
        assert done == 64 and memory.out[:] == memory.pages[:]
        assert library.load().colibri_store_fetched(store.host, 1) == c.ERROR_FETCH
    finally:
        store.close()


@AHEAD
@pytest.mark.parametrize("kind", STREAMED)
def test_a_session_may_end_while_fetches_are_on_their_way(uneven: Case, kind: str, ahead: bool) -> None:
    """Closed in the middle of a feed, again and again: reads end before the pool goes."""
    storage = replace(usable(uneven, kind), bytes_per_second=50_000_000)
    for budget in range(1, 30, 3):
        with uneven.streamed(4, storage, ahead=ahead) as session:
            session.feed(uneven.prompt[:BATCH])
            session.advance(budget)
        assert session.store.c.in_flight == 0


# ---- every target ----

def run_on(name: str, job: Job, model: Model) -> JobResult:
    """A job on a target, or a skip."""
    target = targets.pick([name])[0]
    if target.missing():
        pytest.skip(f"{name}: {target.missing()}")
    result = target.run(job, model)
    assert result.error is None, result.error
    assert not result.bad_checks()
    return result


HOW: dict[str, Callable[[random.Random], dict[str, object]]] = {
    "at once": lambda draw: {"store": "COPY"},
    "late": lambda draw: {"store": "RANDOM", "store_delay": draw.randint(1, 9)},
    "reversed": lambda draw: {"store": "REVERSED", "store_delay": draw.randint(0, 3)},
    "failed once": lambda draw: {"store": "RANDOM", "store_delay": 2, "store_faults": draw.randint(3, 9)},
    "port": lambda draw: {"store": "PORT"},
    "port failed once": lambda draw: {"store": "PORT", "store_faults": draw.randint(3, 9)},
    "port, lru": lambda draw: {"store": "PORT", "policy": "lru"},
    "late, lfu": lambda draw: {"store": "RANDOM", "store_delay": 2, "policy": "lfu"},
    "port, fewer experts": lambda draw: {"store": "PORT", "top_k": draw.randint(1, 2)},
    "late, experts skipped": lambda draw: {"store": "RANDOM", "store_delay": 2, "skip_below": draw.choice((0.3, 0.35))},
    "port, both": lambda draw: {"store": "PORT", "top_k": 2, "skip_below": 0.45},
}
KNOBS = ("policy", "top_k", "skip_below")


@pytest.mark.sampled(11)
@pytest.mark.parametrize("how", HOW)
@pytest.mark.parametrize("name", [n for n in NAMES if n != "linux"])
def test_every_target_gives_the_same_bits_however_bytes_come(case: Case, name: str, how: str) -> None:
    """All resident, the fewest slots and sampled numbers between, 1 to 3 workers."""
    draw = random.Random(f"{name} {how} {case.path.name}")
    assert run_on(name, case.job, case.model).digest == case.right
    for slots, workers in zip((1, draw.randint(2, case.experts - 1), case.experts), draw.sample((1, 2, 3), 3),
                              strict=True):
        changes = HOW[how](draw)
        knobs = {knob: changes.pop(knob) for knob in KNOBS if knob in changes}
        for ahead in (False, True):
            limits = replace(case.limits, slots=slots, workers=workers, look_ahead=ahead, **ALL, **knobs)
            result = run_on(name, replace(case.job, limits=limits, **changes), case.model)
            here = run_on("linux", replace(case.job, limits=limits), case.model)
            assert result.digest == here.digest, (slots, workers)
            assert (result.digest == case.right) == (not limits.lossy or case.model.info().top_k == 1), (slots, workers)
            ours = limits.identity(case.model.info().identity) if limits.lossy else ""
            assert result.identity == here.identity == ours
            counted = ("rows", "expert_hits", "expert_misses", "bytes_fetched")
            for key in counted if "failed" not in how and not ahead else ():
                assert result.stats[key] == here.stats[key]
            assert result.stats["expert_misses"] > 0 and result.used_bytes == result.planned_bytes
            assert (result.stats["hints"] > 0) == ahead
            assert (result.recovered > 0) == ("failed" in how and name != "linux")


@pytest.mark.parametrize("kind", STREAMED)
def test_the_static_program_reads_in_every_way(case: Case, kind: str) -> None:
    usable(case, kind)
    limits = replace(case.limits, slots=2, **ALL)
    job = replace(case.job, limits=limits, store="PORT", storage=Storage(kind, poison=True))
    assert run_on(f"linux-{os.uname().machine}", job, case.model).digest == case.right


@pytest.mark.parametrize("name", [n for n in NAMES if n != "linux"])
def test_a_flipped_byte_is_named_on_every_target(mixed: Case, name: str, tmp_path: Path) -> None:
    target = targets.pick([name])[0]
    if target.missing():
        pytest.skip(f"{name}: {target.missing()}")
    layer, expert, offset, size = next(itertools.islice(mixed.runs(), 1, None))
    damaged = bytearray(mixed.path.read_bytes())
    for _, _, at, _ in itertools.islice(mixed.runs(), 1, None):
        damaged[at + 11] ^= 2               # all but the first: whichever is chosen first is one of them, or fine
    path = tmp_path / "flipped.colibri"
    path.write_bytes(damaged)
    job = replace(mixed.job, limits=replace(mixed.limits, slots=1, **ALL), store="PORT")
    result = target.run(job, Model.open(path))
    assert isinstance(result.error, JobRefused) and result.error.status == "CORRUPT"
    named = (result.lost[0], result.lost[1])
    assert named in {(la, ex) for la, ex, _, _ in itertools.islice(mixed.runs(), 1, None)}
    assert f"expert {named[1]} of layer {named[0]}" in str(result.error) and result.error.exit_code == 3
    assert result.lost[2] == next(at for la, ex, at, _ in mixed.runs() if (la, ex) == named)
    assert not result.digests


# ---- behind 4 GiB ----

def spread(image: bytes, path: Path, hole: int) -> None:
    """The blob with a hole before its experts: the padding of the resident section grows."""
    edited, c = Edited(image), library.constants()
    experts = edited.section("EXPERTS").offset
    for section in edited.sections():
        section.bytes += hole * (section.type == c.SECTION_RESIDENT)
        section.offset += hole * (section.offset >= experts)
    for tensor in edited.rows("TENSORS", "tensor"):
        tensor.offset += hole * (tensor.offset >= experts)
    image = edited.seal(len(image) + hole)
    with path.open("wb") as file:
        file.write(image[:experts])
        file.seek(experts + hole)
        file.write(image[experts:])


@pytest.fixture(scope="module")
def far(mixed: Case, tmp_path_factory: pytest.TempPathFactory) -> Model:
    """Experts behind 5 GiB of nothing."""
    path = tmp_path_factory.mktemp("far") / "far.colibri"
    spread(mixed.path.read_bytes(), path, 5 << 30)
    return Model.open(path)


@pytest.mark.parametrize("name", NAMES)
def test_a_file_of_more_than_4_gib(mixed: Case, far: Model, name: str) -> None:
    """Offsets are 64 bits wide where addresses are not."""
    assert far.bytes > 5 << 30 and os.stat(far.path).st_blocks * 512 < 1 << 20
    limits = replace(mixed.limits, slots=2, **ALL)
    assert run_on(name, replace(mixed.job, limits=limits, store="PORT"), far).digest == mixed.right


# ---- the commands ----

def test_run_with_ram_says_what_it_used_and_answers_the_same(random_blob: Path, tmp_path: Path,
                                                             capsys: Capture) -> None:
    ids = tmp_path / "ids.json"
    ids.write_text("[1, 2, 3, 4, 5]")
    base = ["run", random_blob, "--tokens", ids, "-n", "6", "--context", "32"]
    right = document(capsys, *base)
    assert (right["store"], right["slots"], right["experts"]["misses"]) == ("mapped", 0, 0)
    least = document(capsys, *base, "--slots", "1")
    for more in (["--ram", least["planned_bytes"]], ["--ram", "1GiB"], ["--ram", "1GiB", "--store", "pread"],
                 ["--slots", "3", "--store", "direct"], ["--slots", "3", "--look-ahead"],
                 ["--ram", least["planned_bytes"] + 40_000, "--look-ahead"]):
        made = document(capsys, *base, *more)
        assert made["digest"] == right["digest"] and made["tokens"] == right["tokens"]
        assert made["experts"]["misses"] > 0 and made["used_bytes"] == made["planned_bytes"]
        assert (made["experts"]["hints"] > 0) == ("--look-ahead" in more)
    assert document(capsys, *base, "--ram", least["planned_bytes"])["slots"] == 1
    everything = document(capsys, *base, "--ram", "1GiB")
    assert everything["slots"] == Model.open(random_blob).info().expert_count
    document_code = cli.main([*map(str, base), "--ram", str(least["planned_bytes"] - 1)])
    said = capsys.readouterr().err
    assert document_code == 5 and f"the floor is {least['planned_bytes']}" in said


def test_plan_with_ram_is_what_run_takes(random_blob: Path, tmp_path: Path, capsys: Capture) -> None:
    ids = tmp_path / "ids.json"
    ids.write_text("[1, 2, 3]")
    floor = document(capsys, "plan", random_blob, "--context", "32", "--slots", "1", "--resident-copy")["pool_bytes"]
    for memory in (floor, floor + 20_000):
        plan = document(capsys, "plan", random_blob, "--context", "32", "--ram", memory, "--storage-gbps", "2")
        made = document(capsys, "run", random_blob, "--tokens", ids, "-n", "2", "--context", "32", "--ram", memory,
                        "--no-digest")
        assert plan["pool_bytes"] == made["planned_bytes"] <= memory and plan["slots"] == made["slots"]
        assert plan["tokens_per_second"]["cold"] == 2e9 / plan["bytes_per_token"]["cold"]
    assert cli.main(["plan", str(random_blob), "--context", "32", "--ram", str(floor - 1)]) == 5
    assert f"the floor is {floor}" in capsys.readouterr().err


def test_verify_compares_every_place(random_blob: Path, capsys: Capture) -> None:
    made = document(capsys, "verify", random_blob, "--target", "linux,wasm", "--store", "all", "--slots", "2",
                    "--look-ahead")
    assert [(row["target"], row["store"]) for row in made["rows"]] == [
        *(("linux", name) for name in STORES), ("wasm", "mapped"), ("wasm", "streamed")]
    assert made["one_answer"]


@pytest.mark.parametrize(("more", "sentence"), [
    (["--store", "streamed"], "needs --ram SIZE, or --slots N"),
    (["--store", "mapped", "--ram", "1GiB"], "add --store streamed"),
    (["--look-ahead"], "add --ram SIZE or --slots N"),
    (["--store", "tape"], "a file is mapped, streamed, direct, uring, pread"),
    (["--target", "wasm", "--store", "uring", "--slots", "2"], "target wasm has mapped, streamed"),
])
def test_places_that_contradict_themselves_are_a_usage_error(random_blob: Path, tmp_path: Path, more: list[str],
                                                             sentence: str, capsys: Capture) -> None:
    ids = tmp_path / "ids.json"
    ids.write_text("[1]")
    assert cli.main(["run", str(random_blob), "--tokens", str(ids), *more]) == 2
    assert sentence in capsys.readouterr().err


@pytest.mark.slow
def test_chat_with_ram(talker: Path) -> None:
    said = [process("chat", talker, "--context", "64", "-n", "4", "--temperature", "0", *more, input="Hello\n")
            for more in ((), ("--ram", "64MiB"), ("--store", "pread", "--slots", "1", "--look-ahead"))]
    assert [done.returncode for done in said] == [0, 0, 0], said[1].stderr
    assert said[0].stdout == said[1].stdout == said[2].stdout


def test_a_lost_expert_is_a_sentence_of_the_command(random_blob: Path, tmp_path: Path, capsys: Capture) -> None:
    """Exit 3, the layer and the expert, and no answer."""
    edited, ids, path = Edited(random_blob), tmp_path / "ids.json", tmp_path / "wrong.colibri"
    ids.write_text("[1, 2, 3, 4, 5]")
    place = edited.tensor("EXPERT_GATE", 1)
    for expert in range(place.count):
        edited.data[place.offset + expert * place.stride] ^= 1
    path.write_bytes(edited.data)
    assert cli.main(["run", str(path), "--tokens", str(ids), "--slots", "2", "--json"]) == 3
    said = capsys.readouterr()
    assert "of layer 1: the bytes from" in said.err and "expert " in said.err and "digest" not in said.out


# ---- sparse giants ----

def test_a_sparse_shape_checks_and_runs(tmp_path: Path, capsys: Capture) -> None:
    path = tmp_path / "small.colibri"
    made = document(capsys, "synth", path, "--shape", "small", "--layers", "2", "--weights", "q4-all", "--sparse")
    assert made["file_bytes"] == path.stat().st_size > 1.5 * path.stat().st_blocks * 512
    assert document(capsys, "check", path)["ok"]
    assert list(tmp_path.iterdir()) == [path]
    assert cli.main(["synth", str(path), "--sparse"]) == 2


def test_zeros_have_the_crc_of_zeros() -> None:
    for size in (0, 1, 7, 64, 4096, 100_003):
        for before in (0, 0xDEADBEEF):
            assert crc_of_zeros(size, before) == crc32c(bytes(size), before)


def test_the_giant_is_what_its_config_says() -> None:
    """The shape has the layers, kinds and sizes that the config of GLM-5.2 gives."""
    config = json.loads((ROOT / "tests" / "data" / "configs" / "glm-5.2.json").read_text())
    described, shape = describe(config, "glm-5.2").model, shape_of("glm-5.2").model()
    mine, theirs = (layer_records([replace(layer, index_rope=None) for layer in model.layers])
                    for model in (shape, described))
    assert mine == theirs
    assert (shape.vocab, shape.hidden, shape.tied) == (described.vocab, described.hidden, described.tied)
