"""A session by the C calls themselves: statuses are numbers and hooks are the test's own."""
from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from colibri.blobfile import aligned_bytes
from colibri.engine import UNLIMITED, Limits, new
from colibri.library import constants, ffi, load, status_name
from editing import Opened

NEXT = 0xFFFFFFFF
POISON = 0xEE


def opened(path: Path, tables_only: bool = False) -> Opened:
    """A blob from its file; tables_only: nothing behind the tables is in memory."""
    image = path.read_bytes()
    header = ffi().from_buffer("colibri_blob_header *", image)
    made = Opened(image[:header.tables_bytes] if tables_only else image, len(image))
    assert made.status == constants().OK
    return made


class Store:
    """A host's side of fetch and fetched over a blob's bytes; every request is noted. Subclass or set what goes wrong.

    delay(n): polls before the n-th fetch is there; newest_first: a fetch is there only after all later ones.
    """

    def __init__(self, image: bytes, delay: Callable[[int], int] = lambda n: 0, newest_first: bool = False) -> None:
        self.image, self.delay, self.newest_first = image, delay, newest_first
        self.asked: list[tuple[int, int, int, int]] = []            # offset, bytes, layer, expert
        self.flying: dict[int, list[Any]] = {}                      # ticket: [number, destination, polls left]
        self.refusals: dict[int, int] = {}                          # n-th fetch: how often "not now" comes first
        self.failing_fetch: set[int] = set()                        # n-th fetch: fails when asked, once
        self.failing_arrival: set[int] = set()                      # n-th fetch: fails on arrival, once
        self.corrupt: set[int] = set()                              # n-th fetch: one byte arrives wrong, once
        self.hints: set[int] = set()                                # those of them that were asked for ahead
        self.polls = 0
        self.errors: list[BaseException] = []

    def fetch(self, user: Any, request: Any) -> int:
        """The hook."""
        c, number = constants(), len(self.asked)
        assert request.offset + request.bytes <= len(self.image) and request.ticket not in self.flying
        self.hints = self.hints | {number} if request.hint else self.hints - {number}
        if self.refusals.get(number, 0):
            self.refusals[number] -= 1
            return c.WAIT
        if number in self.failing_fetch:
            self.failing_fetch.remove(number)
            return c.ERROR_FETCH
        ffi().buffer(request.destination, request.bytes)[:] = bytes([POISON]) * request.bytes
        self.asked.append((request.offset, request.bytes, request.layer, request.expert))
        self.flying[request.ticket] = [number, request.destination, self.delay(number)]
        return c.OK

    def fetched(self, user: Any, ticket: int) -> int:
        """The hook."""
        c = constants()
        self.polls += 1
        number, destination, left = self.flying[ticket]
        if left > 0 or (self.newest_first and number < max(n for n, _, _ in self.flying.values())):
            self.flying[ticket][2] -= 1
            return c.WAIT
        del self.flying[ticket]
        if number in self.failing_arrival:
            self.failing_arrival.remove(number)
            return c.ERROR_FETCH
        offset, size = self.asked[number][:2]
        data = bytearray(self.image[offset:offset + size])
        if number in self.corrupt:
            self.corrupt.remove(number)
            data[(number * 997) % size] ^= 1 << number % 8
        ffi().buffer(destination, size)[:] = data
        return c.DONE


class Raw:
    """colibri_session with its pool. Calls give statuses; the pool lies between two red zones."""

    def __init__(self, model: Opened, limits: Limits, *, store: Store | None = None, fill: int = POISON,
                 parallel: Callable[[Any, int], None] | None = None, pool: np.ndarray | None = None) -> None:
        self.model, self.limits, self.store, self.lib = model, limits.c(), store, load()
        self.plan = new("colibri_plan_result")
        assert self.lib.colibri_plan(model.model, self.limits, self.plan, ffi().NULL) == constants().OK
        self.room = pool if pool is not None else aligned_bytes(self.plan.pool_bytes + 128)
        self.room[:] = fill
        self.address = ffi().cast("char *", self.room.ctypes.data) + 64
        self.hooks = new("colibri_hooks")
        self.errors: list[BaseException] = []
        self.keep = []
        if store:
            self.hooks.fetch = self._hook("colibri_fetch_hook", store.fetch, constants().ERROR_FETCH)
            self.hooks.fetched = self._hook("colibri_fetched_hook", store.fetched, constants().ERROR_FETCH)
        if parallel:
            self.hooks.parallel = self._hook("colibri_parallel_hook",
                                             lambda user, session, count: parallel(session, count), None)
        self.out, self.detail = ffi().new("colibri_session **"), ffi().new("colibri_detail *")
        self.vocab = self.info().vocab

    def _hook(self, kind: str, function: Callable[..., Any], otherwise: Any) -> Any:
        """A callback whose assertion errors are kept for the test."""
        def called(*arguments: Any) -> Any:
            try:
                return function(*arguments)
            except BaseException as error:              # must not cross C
                self.errors.append(error)
                return otherwise
        self.keep.append(ffi().callback(kind, called))
        return self.keep[-1]

    def info(self) -> Any:
        """colibri_model_info."""
        made = new("colibri_info")
        assert self.lib.colibri_model_info(self.model.model, made) == constants().OK
        return made

    def start(self, pool_bytes: int | None = None, shift: int = 0) -> int:
        """One call of colibri_start."""
        size = self.plan.pool_bytes if pool_bytes is None else pool_bytes
        status = self.lib.colibri_start(self.model.model, self.limits, self.hooks, self.address + shift, size, self.out,
                                        self.detail)
        self._raise()
        return int(status)

    def started(self, most: int = 10_000) -> Raw:
        """colibri_start until it is ready."""
        for _ in range(most):
            status = self.start()
            if status in (constants().OK, constants().DONE):
                return self
            assert status in (constants().WAIT, constants().AGAIN), status_name(status)
        raise AssertionError("start never ends")

    @property
    def c(self) -> Any:
        """The session."""
        return self.out[0]

    def feed(self, rows: Sequence[tuple[int, ...]]) -> int:
        """Rows of (sequence, token) or (sequence, token, wants logits) or (..., position)."""
        full = [(*row, 1, NEXT)[:4] if len(row) == 2 else (*row, NEXT)[:4] for row in rows]
        made = ffi().new("colibri_row[]", [(q, position, token, want) for q, token, want, position in full])
        return int(self.lib.colibri_feed(self.c, made, len(full)))

    def advance(self, budget: int = UNLIMITED) -> int:
        """One call of colibri_advance."""
        status = int(self.lib.colibri_advance(self.c, budget))
        self._raise()
        return status

    def _raise(self) -> None:
        if self.errors:
            raise self.errors[0]

    def finish(self, budget: int = UNLIMITED, most: int = 200_000, also: tuple[int, ...] = ()) -> list[int]:
        """Advance to DONE; the statuses on the way, of which only AGAIN, WAIT and those in `also` may be there."""
        met = []
        for _ in range(most):
            status = self.advance(budget)
            if status == constants().DONE:
                return met
            assert status in (constants().AGAIN, constants().WAIT, *also), status_name(status)
            met.append(status)
        raise AssertionError("advance never ends")

    def logits(self, index: int = 0) -> np.ndarray | None:
        """A copy of one row of logits as bits."""
        at = self.lib.colibri_logits(self.c, index)
        if at == ffi().NULL:
            return None
        return np.frombuffer(ffi().buffer(at, 4 * self.vocab), dtype="<u4").copy()

    def run(self, tokens: Sequence[int], batch: int, budget: int = UNLIMITED, sequence: int = 0,
            also: tuple[int, ...] = ()) -> np.ndarray:
        """Logits (as bits) of all rows of one sequence, in feeds of `batch`."""
        out = []
        for first in range(0, len(tokens), batch):
            part = tokens[first:first + batch]
            assert self.feed([(sequence, token) for token in part]) == constants().OK
            self.finish(budget, also=also)
            out += [self.logits(i) for i in range(len(part))]
        return np.stack(out)

    def stats(self) -> Any:
        """colibri_stats."""
        made = new("colibri_stats_result")
        assert self.lib.colibri_stats(self.c, made) == constants().OK
        return made

    def length(self, sequence: int = 0) -> int:
        """colibri_length."""
        return int(self.lib.colibri_length(self.c, sequence))

    def stop(self) -> int:
        """One call of colibri_stop."""
        status = int(self.lib.colibri_stop(self.c))
        self._raise()
        return status

    def red_zones_intact(self, fill: int = POISON) -> bool:
        """Whether the 64 bytes before and everything behind the planned pool still hold the pattern."""
        return bool(np.all(self.room[:64] == fill) and np.all(self.room[64 + self.plan.pool_bytes:] == fill))


def digest(logits: np.ndarray) -> str:
    """SHA-256 of logits given as bits."""
    return hashlib.sha256(logits.astype("<u4").tobytes()).hexdigest()


def prompt(vocab: int, count: int) -> list[int]:
    """Token ids over the whole vocabulary."""
    return [(i * i * 7 + 3 * i + 1) % vocab for i in range(count)]
