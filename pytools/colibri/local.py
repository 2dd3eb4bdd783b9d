"""A job in this process: what targets/runner does in C elsewhere, through cffi.

Plays the same tricks (filled pools, a second sequence or session, a hostile float environment, refusals of a
pool that is one byte short) and gives the same kind of result.
"""

from __future__ import annotations

import contextlib
import time
from dataclasses import replace

from . import hostfloat
from .engine import CoreError, Model, Session, Stats, new_pool
from .errors import ColibriError
from .generation import Lane, Request
from .jobs import STAT_NAMES, Job, JobResult
from .text import encode

RED = 4096  # guarded bytes on both sides of each pool
RED_BYTE = 0xC7


class Pool:
    """Memory for one session between two red zones."""

    def __init__(self, size: int, fill: int | None) -> None:
        self.size = size
        self.memory = new_pool(RED + size + RED)
        self.view = memoryview(self.memory)[RED : RED + size]
        self.memory[:RED] = self.memory[RED + size :] = bytes([RED_BYTE]) * RED
        if fill is not None:
            word = fill.to_bytes(4, "little")
            self.view[:] = (word * (size // 4 + 1))[:size]

    def damage(self) -> int:
        """Bytes of the red zones that were written."""
        zones = self.memory[:RED] + self.memory[RED + self.size :]
        return len(zones) - zones.count(RED_BYTE)


def run_job(job: Job, model: Model) -> JobResult:
    """Run it; a refusal of the core ends in the result's `error`."""
    result = JobResult(planned_bytes=model.plan(job.planned()).pool_bytes, threads=job.planned().workers)
    try:
        with hostfloat.hostile() if job.hostile_float else contextlib.nullcontext():
            run_checked(job, model, result)
    except ColibriError as error:
        result.error, result.code = error, error.exit_code
    except AssertionError as error:
        result.checks["float_control_restored"] = str(error)
    if result.code is None:
        result.code = 1 if result.bad_checks() else 0
    return result


def run_checked(job: Job, model: Model, result: JobResult) -> None:
    """The run itself."""
    pools = [Pool(result.planned_bytes, job.fill) for _ in range(2 if job.two_sessions else 1)]
    if job.plan_check:
        plan_check(job, model, result)
    with contextlib.ExitStack() as stack:
        sessions = [
            stack.enter_context(Session(model, job.planned(), pool=pool.view, storage=job.storage)) for pool in pools
        ]
        result.kernel = sessions[0].kernel
        result.identity = job.limits.identity(model.info().identity) if job.limits.lossy else ""
        result.prompt = list(job.prompt) or encode(
            sessions[0], job.text, special=job.special, bos=job.bos, budget=job.budget
        )
        if not job.encode_only:
            if job.reset:
                first = run_lanes(job, sessions, result.prompt)
                for session in sessions:
                    session.reset()
            lanes = run_lanes(job, sessions, result.prompt)
            if job.reset:
                same = [a.answer.digest for a in first] == [a.answer.digest for a in lanes]
                result.checks["digest_after_reset"] = "ok" if same else "expected equal, found different"
            collect(job, lanes, sessions[0].stats(), result)
            result.helped = sum(session.helped() for session in sessions)
    damage = sum(pool.damage() for pool in pools)
    result.checks["red_zones"] = "ok" if damage == 0 else f"expected 0, found {damage} bytes written"
    planned = result.planned_bytes
    if not job.encode_only:
        equal = result.used_bytes == planned
        result.checks["used_is_planned"] = "ok" if equal else f"expected {planned}, found {result.used_bytes}"


def run_lanes(job: Job, sessions: list[Session], prompt: list[int]) -> list[Lane]:
    """Feed and advance the sessions in turn until all lanes have ended."""
    request = Request(
        prompt, job.generate, job.sampling, job.ends, (), job.digest, job.routing, 0, job.budget
    )
    lanes = [Lane(sessions[0], request)]
    if job.two_sessions or job.two_sequences:
        other = replace(request, prompt=list(job.companion), sequence=int(job.two_sequences), routing=False)
        lanes.append(Lane(sessions[-1], other))
    begun = prefilled = time.perf_counter()
    turns = [Turn(session, [lane for lane in lanes if lane.session is session]) for session in sessions]
    while any(not lane.finished for lane in lanes):
        for turn in turns:
            turn.step(job)
        if lanes[0].fed <= len(prompt):
            prefilled = time.perf_counter()
    lanes[0].answer.seconds_prefill = prefilled - begun
    lanes[0].answer.seconds_decode = time.perf_counter() - prefilled
    return lanes


class Turn:
    """One session and the lanes that run in it: a feed, or one advance of it, per step."""

    def __init__(self, session: Session, lanes: list[Lane]) -> None:
        self.session, self.lanes = session, lanes
        self.queued: list[tuple[Lane, list[tuple[int, int, bool]]]] = []

    def step(self, job: Job) -> None:
        """Feed if nothing is queued, else advance."""
        if self.queued:
            if self.session.advance(job.budget):
                self.harvest()
            return
        limits = self.session.limits
        room = min(job.split or limits.batch, limits.batch)
        logits = limits.logit_rows
        for lane in self.lanes:
            if lane.finished or not room:
                continue
            rows = lane.rows(min(room, logits) if job.digest else room)
            wanted = sum(1 for row in rows if row[2])
            if wanted > logits or not rows:
                continue
            room, logits = room - len(rows), logits - wanted
            self.queued.append((lane, rows))
        if self.queued:
            self.session.feed_rows([row for _, rows in self.queued for row in rows])

    def harvest(self) -> None:
        """Give every lane its rows and logits."""
        queued, self.queued = self.queued, []
        first_row = first_logits = 0
        for lane, rows in queued:
            lane.harvest(rows, first_logits, first_row)
            first_row += len(rows)
            first_logits += sum(1 for row in rows if row[2])


def collect(job: Job, lanes: list[Lane], stats: Stats, result: JobResult) -> None:
    """Answers into the result."""
    for number, lane in enumerate(lanes):
        result.tokens[number] = lane.answer.tokens
        result.finish[number] = lane.answer.finish
        if job.digest:
            result.digests[number], result.rows[number] = lane.answer.digest, lane.answer.rows
    first = lanes[0].answer
    result.text, result.routes = first.text, [{"lane": 0, **route} for route in first.routes]
    result.seconds_prefill, result.seconds_decode = first.seconds_prefill, first.seconds_decode
    result.used_bytes = stats.pool_used
    result.stats = {name: getattr(stats, name) for name in STAT_NAMES}


def plan_check(job: Job, model: Model, result: JobResult) -> None:
    """One byte less than planned, and an odd address, are refused before anything is written."""
    size = result.planned_bytes
    for name, start, taken, status in (
        ("pool_small", 0, size - 1, "POOL_SMALL"),
        ("pool_align", 32, size, "ALIGN"),
    ):
        pool = Pool(size + 64, 0x5AA55AA5)
        before = bytes(pool.view)
        found = "started"
        try:
            Session(model, job.planned(), pool=pool.view[start : start + taken]).close()
        except CoreError as error:
            found = error.status
        result.checks[name] = "ok" if found == status else f"expected {status}, found {found}"
        if bytes(pool.view) != before or pool.damage():
            result.checks[f"{name}_nothing_written"] = "expected no byte written, found some"
        else:
            result.checks[f"{name}_nothing_written"] = "ok"
