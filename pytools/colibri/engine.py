"""A model and its sessions in this process: the public C header as Python objects.

Nothing is computed here: plan, feed, advance, sample, encode and decode are the core's. Calls release the
interpreter's lock (cffi does), so other threads go on. Logits are views into the pool: valid until the next
feed.
"""

from __future__ import annotations

import contextlib
import mmap
import os
import threading
import weakref
from collections.abc import Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from dataclasses import fields
from pathlib import Path
from types import TracebackType
from typing import Any

import numpy as np

from . import kernels, library, saved
from .errors import ColibriError, Detail, DoesNotFit, InputError, InternalError, UsageError, detail_sentence
from .limits import KV_KINDS, UNLIMITED, Info, Limits, Plan, Region, Sampling, Stats, new
from .store import FileStore, Storage
from .swap import Swaps

__all__ = [
    "KV_KINDS",
    "UNLIMITED",
    "CoreError",
    "Info",
    "Limits",
    "Model",
    "Plan",
    "Sampling",
    "SaveError",
    "Session",
    "Stats",
]

NEXT_POSITION = 0xFFFFFFFF
ALL_SEQUENCES = 0xFFFFFFFF
CHECK_BYTES = 64 << 20  # of one colibri_check call: often enough for a progress bar


class CoreError(ColibriError):
    """A call into the core was refused; `status` is the header's name of it."""

    def __init__(self, call: str, status: int, sentence: str = "") -> None:
        self.status = library.status_name(status).removeprefix("ERROR_")
        text = library.ffi().string(library.load().colibri_status_text(status)).decode()
        super().__init__(sentence or f"{call} was refused: {self.status} ({text})")
        self.exit_code = exit_code_of(self.status)


class SaveError(CoreError):
    """A save or a restore was refused, and nothing changed; `detail` holds the core's numbers by name."""

    def __init__(self, call: str, status: int, detail: Detail, sentence: str) -> None:
        super().__init__(call, status, sentence)
        self.detail = detail


def exit_code_of(status: str) -> int:
    """The command's exit code for a refusal of the core."""
    if status in ("POOL_SMALL", "ADDRESS"):
        return DoesNotFit.exit_code
    if status in ("LIMIT", "TEXT_LONG", "CONTEXT_FULL", "SLOTS", "ARGUMENT", "REWIND"):
        return UsageError.exit_code
    if status in ("BUSY", "FLOAT", "STOPPED"):
        return InternalError.exit_code
    return InputError.exit_code


class Model:
    """A blob, mapped and bound in place."""

    def __init__(
        self, path: Path, content: Any, file_bytes: int | None = None, from_file: bool = False
    ) -> None:
        """content: the file's bytes at a multiple of 64, or only its header and tables (then give
        file_bytes); from_file: the file lies at path, and can be read again."""
        self.path, self.from_file = path, from_file
        self._content = library.ffi().from_buffer(content)
        addressable = len(self._content)
        self.bytes = addressable if file_bytes is None else file_bytes
        self.c = library.ffi().new("colibri_model *")
        detail = library.ffi().new("colibri_detail *")
        status = library.load().colibri_open(self.c, self._content, addressable, self.bytes, detail)
        if status < 0:
            raise library.blob_error(path, detail)

    @classmethod
    def open(cls, path: str | os.PathLike[str]) -> Model:
        """Map a file; only header and tables are read now."""
        place = Path(path)
        try:
            with place.open("rb") as file:
                if os.fstat(file.fileno()).st_size == 0:
                    raise InputError(f"{place}: the file is empty; expected a .colibri file")
                mapping = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
                huge_pages(mapping)
        except OSError as error:
            raise InputError(
                f"{place}: cannot be read ({error.strerror}); give the path of a .colibri file"
            ) from None
        return cls(place, mapping, from_file=True)

    @property
    def address(self) -> Any:
        """Where the blob's first byte is."""
        return self._content

    def info(self) -> Info:
        """What the core says about the model."""
        made = new("colibri_info")
        status = library.load().colibri_model_info(self.c, made)
        if status < 0:
            raise CoreError("colibri_model_info", status)
        values = {f.name: getattr(made, f.name) for f in fields(Info) if f.name != "identity"}
        return Info(**values, identity=bytes(made.identity).hex())

    def end_tokens(self) -> list[int]:
        """The token ids that end a text."""
        ffi, capacity = library.ffi(), 16
        count = ffi.new("uint32_t *")
        while True:
            ids = ffi.new("uint32_t[]", capacity)
            status = library.load().colibri_end_tokens(self.c, ids, capacity, count)
            if status < 0:
                raise CoreError("colibri_end_tokens", status)
            if count[0] <= capacity:
                return [ids[i] for i in range(count[0])]
            capacity = count[0]

    def check(self, level: int = 2) -> Iterator[tuple[int, Detail | None]]:
        """Walk the bytes; yields (bytes of the walk so far, a problem or None)."""
        state = library.ffi().new("colibri_check_state *")
        detail = library.ffi().new("colibri_detail *")
        done = 0
        while True:
            status = library.load().colibri_check(self.c, state, level, CHECK_BYTES, detail)
            if status < 0:
                if status == library.constants().ERROR_ARGUMENT:
                    raise CoreError("colibri_check", status)
                yield done, library.detail_of(detail)
                continue
            done = min(done + CHECK_BYTES, self.bytes)
            yield done, None
            if status != library.constants().AGAIN:
                return

    def plan(self, limits: Limits) -> Plan:
        """The exact bytes of a session with these limits."""
        made = new("colibri_plan_result")
        detail = library.ffi().new("colibri_detail *")
        status = library.load().colibri_plan(self.c, limits.c(), made, detail)
        if status < 0:
            raise CoreError("colibri_plan", status, refusal(f"{self.path}: no plan", detail))
        names = library.names("colibri_region")
        count = library.constants().REGION_COUNT
        regions = tuple(
            Region(names[i].lower(), made.region_offset[i], made.region_bytes[i]) for i in range(count)
        )
        plain = {f.name: getattr(made, f.name) for f in fields(Plan) if f.name not in ("limits", "regions")}
        return Plan(limits=limits, regions=regions, **plain)


def refusal(what: str, detail: Any) -> str:
    """One sentence for a refused plan or start."""
    named = library.detail_of(detail)
    if named.section:
        return detail_sentence(what, named)
    field_name = named.field.lower()
    return (
        f"{what}: {field_name} was refused, expected {named.expected}, found {named.found} "
        f"({named.status.removeprefix('ERROR_')})"
    )


class Session:
    """A running model in a pool of its own (or the caller's). A context manager: leaving it stops the
    session."""

    def __init__(
        self,
        model: Model,
        limits: Limits | None = None,
        *,
        pool: Any = None,
        clock: Any = None,
        storage: Storage | None = None,
    ) -> None:
        """clock: a C function (colibri_clock_hook) that colibri_profile measures with; storage: how a file is read
        where limits say that bytes are brought in."""
        self.model, self.clock = model, clock
        self.limits = limits or Limits()
        self.plan = model.plan(self.limits)
        self.vocab = model.info().vocab
        self.pool = pool if pool is not None else pool_of(self.plan)
        self._view = library.ffi().from_buffer(self.pool)
        self._lib = library.load()
        self._crew: Crew | None = None
        self._driver: ThreadPoolExecutor | None = None  # runs the core's calls where hooks are Python's
        self._alive: list[Any] = []  # callbacks the core may call
        self.store: FileStore | None = None
        self._start(storage or Storage())
        self.swaps = Swaps(self)

    def _start(self, storage: Storage) -> None:
        """colibri_start until it is ready."""
        ffi, c = library.ffi(), library.constants()
        out, detail = ffi.new("colibri_session **"), ffi.new("colibri_detail *")
        limits = self.limits.c()
        limits.kernel = kernels.chosen(self.limits.kernel)
        self.kernel = kernels.name_of(limits.kernel)
        hooks = self._hooks(storage)
        self.c = ffi.NULL
        while True:
            status = self._run(
                self._lib.colibri_start, self.model.c, limits, hooks, self._view, len(self._view), out, detail
            )
            if status < 0:
                sentence = self._lost(status) or refusal(f"{self.model.path}: session", detail)
                self._let_go()
                raise CoreError("colibri_start", status, sentence)
            if status == c.WAIT and self.store:
                self.store.wait()
            elif status not in (c.AGAIN, c.WAIT):
                break
        self.c = out[0]

    def _hooks(self, storage: Storage) -> Any:
        """Hooks for what the limits ask for: workers as threads, bytes from the file, or copied if there is none."""
        hooks = new("colibri_hooks")
        if self.clock is not None:
            hooks.clock = self.clock
        if self.limits.workers > 1:
            self._crew = Crew(self.limits.workers)
            weakref.finalize(self, self._crew.end)  # of a session that nobody closes
            hooks.parallel, hooks.user = self._crew.hook, self._crew.c
        if not (self.limits.resident_copy or self.limits.stream_experts):
            return hooks
        if self.model.from_file:
            self.store = FileStore(self.model.path, storage, self._crew.c if self._crew else None)
            weakref.finalize(self, self.store.close)
            self.store.hook(hooks)
        else:
            callbacks = fetch_hooks(self.model.address, self.model.bytes)
            hooks.fetch, hooks.fetched = callbacks
            self._alive += callbacks
            self._driver = ThreadPoolExecutor(1)
        return hooks

    def _run(self, call: Any, *arguments: Any) -> int:
        """A core call. A Ctrl-C is raised when the core has returned: the interpreter raises it in the main thread, and
        not before that is back from C. With hooks in Python that thread could meet it inside a hook, where it would be
        swallowed, so the call then runs on a thread of its own.
        """
        if self._driver is None:
            return int(call(*arguments))
        return int(settled(self._driver.submit(call, *arguments)))

    def _let_go(self) -> None:
        if self._driver:
            self._driver.shutdown()
        if self._crew:
            self._crew.end()
        if self.store:
            self.store.close()
        self._driver = None

    def _lost(self, status: int) -> str:
        """What a store says of a fetch that failed or brought wrong bytes; empty for other statuses."""
        c = library.constants()
        if not self.store or status not in (c.ERROR_FETCH, c.ERROR_CORRUPT):
            return ""
        return self.store.lost(self.lost() if status == c.ERROR_CORRUPT else None)

    def lost(self) -> tuple[int, int, int] | None:
        """Layer, expert and place in the file of the expert that the last FETCH or CORRUPT of advance() was about."""
        ffi = library.ffi()
        layer, expert, offset = ffi.new("uint32_t *"), ffi.new("uint32_t *"), ffi.new("uint64_t *")
        if self._lib.colibri_lost(self.c, layer, expert, offset) < 0:
            return None
        return layer[0], expert[0], offset[0]

    def __enter__(self) -> Session:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Stop, and let go of the threads."""
        while self._call("colibri_stop", self.c) == library.constants().WAIT:
            if self.store:
                self.store.wait()
        self._let_go()

    def _call(self, name: str, *arguments: Any) -> int:
        """A core call whose negative status becomes an exception."""
        status = self._run(getattr(self._lib, name), *arguments)
        if status < 0:
            raise CoreError(name, status, self._lost(status))
        return status

    # ---- rows ----

    def feed(self, tokens: Sequence[int], sequence: int = 0, want: str = "last") -> None:
        """Queue tokens of one sequence; want: logits of "all" rows, the "last" or "none"."""
        last = len(tokens) - 1
        self.feed_rows(
            [
                (sequence, token, want == "all" or (want == "last" and i == last))
                for i, token in enumerate(tokens)
            ]
        )

    def feed_rows(self, rows: Sequence[tuple[int, int, bool]]) -> None:
        """Queue rows of (sequence, token, wants logits)."""
        ffi = library.ffi()
        made = ffi.new(
            "colibri_row[]",
            [(sequence, NEXT_POSITION, token, int(wanted)) for sequence, token, wanted in rows],
        )
        self._call("colibri_feed", self.c, made, len(rows))

    def advance(self, budget: int = UNLIMITED) -> bool:
        """One bounded piece of work; True when the rows are done. Where it waits for bytes it sleeps until some have
        come. A fetch that failed is an error after which the same call goes on."""
        status, c = self._call("colibri_advance", self.c, budget), library.constants()
        if status == c.WAIT and self.store:
            self.store.wait()
        return status in (c.DONE, c.OK)

    def finish(self, budget: int = UNLIMITED) -> None:
        """Advance until the rows are done."""
        while not self.advance(budget):
            pass

    def logits(self, index: int = 0) -> np.ndarray:
        """float32 [vocab] of the index-th row that wanted them: a read-only view, valid until the next
        feed."""
        at = self._lib.colibri_logits(self.c, index)
        if at == library.ffi().NULL:
            raise UsageError(
                f"no logits for row {index} of the last feed: feed it with want='all' or as the last row"
            )
        view = np.frombuffer(library.ffi().buffer(at, self.vocab * 4), dtype="<f4")
        view.flags.writeable = False
        return view

    def logit_bytes(self, index: int = 0) -> Any:
        """(pointer, bytes) of one row's logits, for the core's own hash."""
        return self._lib.colibri_logits(self.c, index), self.vocab * 4

    def routing(self, layer: int, index: int) -> list[tuple[int, float]]:
        """(expert, weight) the router chose for a row of the last feed; empty for a dense layer."""
        ffi = library.ffi()
        room = max(1, self.model.info().top_k)
        experts, weights = ffi.new("uint32_t[]", room), ffi.new("float[]", room)
        count = self._lib.colibri_routing(self.c, layer, index, experts, weights, room)
        return [(experts[i], weights[i]) for i in range(count)]

    def router_spread(self, layer: int, index: int) -> float:
        """The widest distance of logits that an integer router made a weight of, for a row of the last feed."""
        return int(self._lib.colibri_router_spread(self.c, layer, index)) / 65536

    def sample(
        self,
        sampling: Sampling,
        index: int = 0,
        *,
        recent: Sequence[int] = (),
        sequence: int = 0,
        position: int = 0,
    ) -> int:
        """Draw one token from a row's logits."""
        ffi = library.ffi()
        token = ffi.new("uint32_t *")
        newest = list(recent[-sampling.repeat_last :]) if sampling.repeat_last else []
        self._call(
            "colibri_sample",
            self.c,
            index,
            sampling.c(sequence, position),
            ffi.new("uint32_t[]", newest),
            len(newest),
            token,
        )
        return int(token[0])

    def length(self, sequence: int = 0) -> int:
        """Positions of a sequence in the cache."""
        return int(self._lib.colibri_length(self.c, sequence))

    def rewind(self, length: int, sequence: int = 0) -> None:
        """Shorten a sequence."""
        self._call("colibri_rewind", self.c, sequence, length)

    def reset(self, sequence: int = ALL_SEQUENCES) -> None:
        """Empty one sequence or all."""
        self._call("colibri_reset", self.c, sequence)

    def save(self, logits: bool = True) -> bytes:
        """What all sequences hold, as bytes; they are as long as the texts, and the same on every target. logits:
        with those of the last feed, so that sampling can go on without feeding a token first."""
        return bytes(saved.state_of(self, logits))

    def restore(self, data: bytes) -> None:
        """Put a save in place of all sequences; the session may be planned otherwise where it has room. SaveError:
        refused, nothing changed."""
        saved.put_back(self, data)

    def pin(self, layer: int, expert: int, pinned: bool = True) -> None:
        """Keep an expert in its slot from its next use on, or end that."""
        self._call("colibri_pin", self.c, layer, expert, int(pinned))

    def helped(self) -> int:
        """Units that worker threads have run."""
        return self._crew.helped() if self._crew else 0

    def stats(self) -> Stats:
        """The session's counters."""
        made = new("colibri_stats_result")
        self._call("colibri_stats", self.c, made)
        return Stats(**{f.name: getattr(made, f.name) for f in fields(Stats)})


# The hooks are closures over plain values, not methods: a cycle through the session would leave pool views
# to the garbage collector, in any order.


def settled(job: Future[Any]) -> Any:
    """A job's result once there is one; what interrupted the waiting is raised only then."""
    interruption: BaseException | None = None
    while not job.done():
        try:
            wait([job])
        except BaseException as error:
            interruption = error
    if interruption:
        raise interruption
    return job.result()


class Crew:
    """Worker threads (targets/workers): they live in C, without the interpreter's lock, until the end."""

    def __init__(self, workers: int) -> None:
        lib = library.load()
        self._room = new_pool(library.ffi().sizeof("colibri_crew"))  # a page: its words lie on lines of their own
        self.c = library.ffi().from_buffer("colibri_crew *", self._room)
        self.hook = library.ffi().addressof(lib, "colibri_crew_parallel")
        lib.colibri_crew_begin(self.c, workers)
        self._threads = [
            threading.Thread(target=lib.colibri_crew_work, args=(self.c, worker), name=f"colibri-{worker}", daemon=True)
            for worker in range(1, workers)
        ]
        for thread in self._threads:
            try:
                thread.start()
            except RuntimeError as error:
                self._threads = self._threads[: self._threads.index(thread)]
                self.end()
                raise DoesNotFit(f"{workers} workers: {error}; plan fewer") from None

    def helped(self) -> int:
        """Units that the threads have run, and not the driver."""
        return int(self.c.units - self.c.driver_units)

    def end(self) -> None:
        """Let the threads return; a second time there is nothing to do."""
        if self._threads:
            library.load().colibri_crew_end(self.c)
        for thread in self._threads:
            thread.join()
        self._threads = []


def fetch_hooks(content: Any, size: int) -> tuple[Any, Any]:
    """Copy from the mapped file; the bytes are there at once."""
    ffi, c = library.ffi(), library.constants()

    def fetch(user: Any, request: Any) -> int:
        if request.offset + request.bytes > size:
            return int(c.ERROR_FETCH)
        ffi.memmove(request.destination, content + request.offset, request.bytes)
        return int(c.OK)

    def fetched(user: Any, ticket: int) -> int:
        return int(c.DONE)

    return (
        ffi.callback("colibri_fetch_hook", fetch, error=c.ERROR_FETCH),
        ffi.callback("colibri_fetched_hook", fetched, error=c.ERROR_FETCH),
    )


def huge_pages(mapping: mmap.mmap) -> None:
    """Ask for them: a file's weights are read a fifth faster from pages of 2 MiB. Where the system has none for this
    file, nothing happens."""
    with contextlib.suppress(OSError):
        mapping.madvise(mmap.MADV_HUGEPAGE)


def pool_of(plan: Plan) -> Any:
    """Memory for a session. Slots begin at a page, as direct reads want it. An array, not a memoryview: those take
    part in garbage collection, and a part of one that goes in a cycle has crashed the interpreter."""
    slots = next(region for region in plan.regions if region.name == "slots")
    shift = -(slots.offset + slots.bytes) % mmap.PAGESIZE if plan.slots else 0
    return np.frombuffer(new_pool(shift + plan.pool_bytes), dtype=np.uint8)[shift:]


def new_pool(size: int) -> mmap.mmap:
    """Anonymous pages: zeroed on demand, aligned to a page."""
    try:
        pool = mmap.mmap(-1, size, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
        huge_pages(pool)
        return pool
    except (OSError, OverflowError, ValueError) as error:
        raise DoesNotFit(f"a pool of {size} bytes cannot be had ({error}); plan a shorter context") from None
