"""The measured rows of `bench` on this machine: prefill and decode through one session, token by token.

The hot loop is two calls into the core and one clock per token, with everything prepared before: rows as C
structures, pointers to them, no sampling, no garbage collection.
"""

from __future__ import annotations

import gc
import random
import statistics
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from typing import Any

from . import bench_machine as machine
from . import library
from .bench_bandwidth import Meter
from .bench_profile import profile_of, read_profile
from .bench_traffic import Traffic
from .engine import ALL_SEQUENCES, NEXT_POSITION, UNLIMITED, CoreError, Session

SEED = 7


@dataclass(frozen=True)
class Case:
    """One row: prefill ("pp") or decode ("tg") of `count` tokens behind `depth` others."""

    kind: str
    count: int
    depth: int = 0

    @property
    def name(self) -> str:
        """As llama-bench names it."""
        return f"{self.kind}{self.count}"


@dataclass
class Row:
    """What came out of the repeats of one test."""

    test: str
    threads: int
    depth: int
    median: float = 0.0  # tokens per second
    min: float = 0.0
    max: float = 0.0
    runs: list[float] = field(default_factory=list)
    others: list[float] = field(default_factory=list)  # cores that other processes took
    tokens: int = 0  # measured, over all runs
    bytes_per_token: int = 0
    macs_per_token: int = 0
    bandwidth: float | None = None  # GB/s, read before every run
    bandwidths: list[float] = field(default_factory=list)
    share: float | None = None  # of the bandwidth that the bytes make use of
    gmacs: float = 0.0  # multiply-adds a second, in 1e9
    p50_us: float | None = None  # per decoded token
    p99_us: float | None = None
    p999_us: float | None = None
    profile: list[dict[str, Any]] | None = None  # by op of the tape, where it was asked for

    def document(self) -> dict[str, Any]:
        """For JSON, rounded."""
        return {key: _rounded(value) for key, value in asdict(self).items()}


def _rounded(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _rounded(one) for key, one in value.items()}
    if isinstance(value, float):
        return round(value, 4 if abs(value) < 10 else 2)
    return [_rounded(one) for one in value] if isinstance(value, list) else value


def percentile(ordered: list[int], share: float) -> float:
    """The smallest value that `share` of all values do not exceed."""
    return float(ordered[min(len(ordered) - 1, max(0, -int(-share * len(ordered) // 1) - 1))])


@dataclass
class Course:
    """How the tests are run."""

    repeats: int = 5
    quiet_seconds: float = 0.0
    quiet_share: float = 0.1
    meter: Meter | None = None
    ticks_per_ns: float = 1.0  # of the profile's clock
    tell: Callable[[Row], None] = lambda row: None


class Track:
    """A session with its prepared rows."""

    def __init__(self, session: Session, traffic: Traffic) -> None:
        self.session, self.traffic = session, traffic
        self.batch = session.limits.batch
        self._lib, self._ffi = library.load(), library.ffi()
        self._again, self._wait = library.constants().AGAIN, library.constants().WAIT
        self._random = random.Random(SEED)
        self._length = 0

    def rows(self, count: int) -> Any:
        """Random tokens; the last of a prompt, and each of a decode, wants its logits."""
        vocab = self.session.vocab
        return self._ffi.new(
            "colibri_row[]", [(0, NEXT_POSITION, self._random.randrange(vocab), 0) for _ in range(count)]
        )

    def _loop(self, parts: list[tuple[Any, int]], stamps: list[int]) -> int:
        """The measured loop: feed, advance, note the time."""
        feed, advance, clock = self._lib.colibri_feed, self._lib.colibri_advance, time.perf_counter_ns
        session, again, wait = self.session.c, self._again, self._wait
        for i, (rows, count) in enumerate(parts):
            status = feed(session, rows, count)
            if status >= 0:
                status = advance(session, UNLIMITED)
                while status == again or status == wait:
                    if status == wait and self.session.store:
                        self.session.store.wait()
                    status = advance(session, UNLIMITED)
            if status < 0:
                return int(status)
            stamps[i] = clock()
        return 0

    def _timed(self, parts: list[tuple[Any, int]]) -> tuple[int, list[int]]:
        """The start and the end of every part, in nanoseconds."""
        stamps = [0] * len(parts)
        begun = time.perf_counter_ns()
        status = self.session._run(self._loop, parts, stamps)
        if status < 0:
            raise CoreError("colibri_feed or colibri_advance", status)
        return begun, stamps

    def parts(self, case: Case) -> list[tuple[Any, int]]:
        """What one run feeds, piece by piece."""
        rows = self.rows(case.count)
        step = 1 if case.kind == "tg" else self.batch
        made = []
        for first in range(0, case.count, step):
            count = min(step, case.count - first)
            rows[first + count - 1].want_logits = 1 if case.kind == "tg" or first + count == case.count else 0
            made.append((rows + first, count))
        self._kept = rows  # the pointers do not own it
        return made

    def go_to(self, depth: int) -> None:
        """The sequence has `depth` positions: taken back to, or filled up to."""
        lib = self._lib
        status = 0
        if depth == 0:
            status = lib.colibri_reset(self.session.c, ALL_SEQUENCES)
            self._length = 0
        elif self._length >= depth:
            status = lib.colibri_rewind(self.session.c, 0, depth)
        elif self._length < depth:
            self._timed(self.parts(Case("pp", depth - self._length)))
        if status < 0:
            raise CoreError("colibri_reset or colibri_rewind", status)
        self._length = depth

    def once(self, case: Case) -> tuple[int, list[int]]:
        """One run behind `case.depth` positions: the start, and the end of every part."""
        found = self._timed(self.parts(case))
        self._length = case.depth + case.count
        return found

    def measure(self, case: Case, course: Course) -> Row:
        """All repeats of one test; the first is a warm-up and does not count."""
        row = Row(case.name, self.session.limits.workers, case.depth)
        each: list[int] = []
        self.go_to(case.depth)
        self.once(case)
        macs = self.session.stats().macs
        read_profile(self.session)  # from here on
        for _ in range(course.repeats):
            if course.quiet_seconds:
                machine.wait_quiet(course.quiet_seconds, course.quiet_share)
            if course.meter:
                row.bandwidths.append(course.meter.read(row.threads))
            self.go_to(case.depth)
            before = machine.busy()
            gc.disable()
            try:
                begun, stamps = self.once(case)
            finally:
                gc.enable()
            seconds = (stamps[-1] - begun) / 1e9
            row.others.append(machine.others(before, machine.busy(), seconds))
            row.runs.append(case.count / seconds)
            each += [end - start for start, end in zip([begun, *stamps], stamps, strict=False)]
        row.tokens = case.count * course.repeats
        row.macs_per_token = (self.session.stats().macs - macs) // row.tokens
        self._settle(row, case, each, course)
        course.tell(row)
        return row

    def _settle(self, row: Row, case: Case, each: list[int], course: Course) -> None:
        """Medians and shares."""
        row.median, row.min, row.max = statistics.median(row.runs), min(row.runs), max(row.runs)
        bytes_of = self.traffic_per_token(case)
        row.bytes_per_token = round(sum(bytes_of.values()))
        if self.session.clock is not None:
            row.profile = profile_of(
                self.session, bytes_of, self.traffic.router_macs, row.tokens, course.ticks_per_ns
            )
        row.gmacs = row.median * row.macs_per_token / 1e9
        if row.bandwidths:
            row.bandwidth = statistics.median(row.bandwidths)
            shares = [
                run * row.bytes_per_token / (speed * 1e9)
                for run, speed in zip(row.runs, row.bandwidths, strict=True)
            ]
            row.share = statistics.median(shares)
        if case.kind == "tg":
            each.sort()
            row.p50_us, row.p99_us, row.p999_us = (percentile(each, p) / 1e3 for p in (0.5, 0.99, 0.999))

    def traffic_per_token(self, case: Case) -> dict[str, float]:
        """Bytes by op, the mean over the tokens of one run."""
        position, step = self.session.plan.kv_bytes_per_token, 1 if case.kind == "tg" else self.batch
        found = self.traffic.run(case.count, step, case.depth, position)
        return {op: size / case.count for op, size in found.items()}

    def overhead_ns(self, rounds: int = 20000) -> float:
        """What the loop itself costs per token: the same loop around two calls that do next to nothing."""
        length, clock, session = self._lib.colibri_length, time.perf_counter_ns, self.session.c
        pairs, stamps = [(session, 0)] * rounds, [0] * rounds
        begun = clock()
        for i, (one, number) in enumerate(pairs):
            status = length(one, number)
            if status >= 0:
                status = length(one, number)
                while status < 0:
                    pass
            stamps[i] = clock()
        return (stamps[-1] - begun) / rounds
