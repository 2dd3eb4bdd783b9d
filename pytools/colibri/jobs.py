"""A job: one run of a model, the same on every target, and the report a target answers with.

The job's structure is declared once, in targets/runner/runner.h, and read from there. Owns packing a job and
parsing a report; knows no target.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import cache
from types import SimpleNamespace
from typing import Any

import cffi

from . import kernels, library
from .engine import UNLIMITED, CoreError, Info, Limits, Plan, Sampling, exit_code_of
from .errors import ColibriError, Detail, InternalError, MissingTool, detail_sentence
from .limits import HINT_NAMES
from .store import NOWHERE, Storage


@cache
def header() -> Any:
    """cffi with the declarations of runner.h."""
    root = library.repository()
    places = [library.data_folder() / "include" / "runner.h"]
    if root:
        places.insert(0, root / "targets" / "runner" / "runner.h")
    for place in places:
        if place.is_file():
            maker = cffi.FFI()
            maker.cdef(library.declarations(place.read_text(encoding="utf-8")))
            return maker
    raise MissingTool(f"{places[0]}: not found; install the package again or run `python -m SCons package`")


@cache
def constants() -> SimpleNamespace:
    """The header's numbers without their RUNNER_."""
    values: dict[str, int] = {}
    for enum in ("runner_flags", "runner_store"):
        values.update(header().typeof(f"enum {enum}").relements)
    lib = header().dlopen(None)  # only to read the #define numbers
    for name in ("MAGIC", "VERSION", "NAME_BYTES", "RED_ZONE", "WORK_BYTES", "SAVE_HEAD"):
        values[f"RUNNER_{name}"] = getattr(lib, f"RUNNER_{name}")
    return SimpleNamespace(**{name.removeprefix("RUNNER_"): value for name, value in values.items()})


@dataclass(frozen=True)
class Job:
    """What is run, and how. Nothing in the second half may change an answer."""

    name: str
    limits: Limits
    prompt: Sequence[int] = ()
    text: str = ""  # encoded by the core where prompt is empty
    generate: int = 0
    sampling: Sampling = field(default_factory=Sampling)
    ends: Sequence[int] = ()
    companion: Sequence[int] = (1,)  # the second lane's prompt
    special: bool = False  # text flags of encode
    bos: bool = False
    digest: bool = True
    routing: bool = False
    encode_only: bool = False

    budget: int = UNLIMITED
    split: int = 0
    fill: int | None = None  # the word each pool is filled with
    two_sequences: bool = False
    two_sessions: bool = False
    hostile_float: bool = False
    plan_check: bool = False
    reset: bool = False
    swap: bool = False  # experts are replaced by copies of themselves all the time
    save: bool = False  # before every feed the session is saved, emptied and restored
    store: str = "ADDRESSABLE"
    store_delay: int = 0
    store_faults: int = 0  # n: every n-th fetch goes wrong once
    storage: Storage | None = None  # how the store PORT reads
    store_resumes: int = 0  # calls made again after a fetch of the store PORT failed
    workers: int = 0  # 0: the limits'
    kernel: str = ""  # empty: the limits'
    odd_ranges: bool = False  # several workers without threads
    board_store: str = "ram"  # where a board has the model: ram, flash, block
    board_mmu_off: bool = False
    board_fault: bool = False

    def planned(self) -> Limits:
        """The limits of the session, with room for the second lane, and with what replaces theirs."""
        return replace(
            self.limits,
            sequences=max(self.limits.sequences, 1 + self.two_sequences),
            workers=self.workers or self.limits.workers,
            swaps=max(self.limits.swaps, 2 * self.swap),
            kernel=self.kernel or self.limits.kernel,
        )

    def flags(self) -> int:
        """runner_flags."""
        c = constants()
        return (
            c.DIGEST * self.digest
            | c.FILL * (self.fill is not None)
            | c.TWO_SEQUENCES * self.two_sequences
            | c.TWO_SESSIONS * self.two_sessions
            | c.HOSTILE_FLOAT * self.hostile_float
            | c.PLAN_CHECK * self.plan_check
            | c.ROUTING * self.routing
            | c.ENCODE_ONLY * self.encode_only
            | c.RESET * self.reset
            | c.ODD_RANGES * self.odd_ranges
            | c.SWAP * self.swap
            | c.SAVE * self.save
            | c.BOARD_FAULT * self.board_fault
            | c.BOARD_MMU_OFF * self.board_mmu_off
            | c.BOARD_FLASH * (self.board_store == "flash")
        )

    def region_bytes(self, plan: Plan) -> int:
        """Memory the runner needs besides job and blob."""
        c = constants()
        sessions = 2 if self.two_sessions else 1
        lanes = 2 if self.two_sessions or self.two_sequences else 1
        work = c.WORK_BYTES + lanes * 4 * self.limits.context + sessions * 16 * self.limits.batch
        kept = sum(region.bytes for region in plan.regions if region.name in ("kv", "logits"))
        saved = kept + c.SAVE_HEAD + 8 * plan.limits.sequences if self.save else 0
        return sessions * (plan.pool_bytes + 2 * c.RED_ZONE + 256) + work + saved

    def place(self) -> str:
        """Where the bytes are, in a word."""
        if self.store == "PORT":
            return (self.storage or Storage()).kind
        return "mapped" if self.store == "ADDRESSABLE" else self.store.lower()

    def head_bytes(self, info: Info) -> int:
        """How much of the blob's beginning is enough: a store brings the rest, all but what texts need. 0: all."""
        streamed = self.limits.resident_copy and (self.limits.stream_experts or not info.expert_count)
        return info.tables_bytes if self.store == "PORT" and streamed and not self.limits.text_bytes else 0

    def port_store(self) -> dict[str, int]:
        """What the Linux port's store is told."""
        options = (self.storage or Storage()).c()
        return {
            "store_kind": options.kind,
            "store_flags": options.flags,
            "store_bytes_per_second": options.bytes_per_second,
        }

    def pack(self, blob_bytes: int, plan: Plan, head_bytes: int = 0) -> bytes:
        """The structure and its arrays, as the runner reads them."""
        ffi, c, s = header(), constants(), self.sampling
        companion = list(self.companion) if self.two_sequences or self.two_sessions else []
        text = b"" if self.prompt else self.text.encode("utf-8", "surrogateescape")
        elsewhere = ("flags", "top_k")  # these have other names
        numbers = {k: v for k, v in self.planned().numbers().items() if k not in elsewhere}
        job = ffi.new(
            "runner_job *",
            {
                "magic": c.MAGIC,
                "version": c.VERSION,
                "flags": self.flags(),
                "blob_bytes": blob_bytes,
                "region_bytes": self.region_bytes(plan),
                "name": self.name.encode("ascii", "replace")[: c.NAME_BYTES - 1],
                "limit_flags": self.limits.numbers()["flags"],
                **numbers,
                "experts_of_row": self.limits.top_k,
                "skip_below": self.limits.skip_below or 0.0,  # no sign of a zero
                "budget": self.budget,
                "split": self.split,
                "fill_word": self.fill or 0,
                "store": getattr(c, f"STORE_{self.store}"),
                "store_delay": self.store_delay,
                "store_faults": self.store_faults,
                "store_resumes": self.store_resumes,
                "head_bytes": head_bytes,
                **self.port_store(),
                "text_flags": library.constants().TEXT_SPECIAL * self.special
                + library.constants().TEXT_BOS * self.bos,
                "generate": self.generate,
                "prompt_tokens": len(self.prompt),
                "companion_tokens": len(companion),
                "stop_tokens": len(self.ends),
                "prompt_bytes": len(text),
                "top_k": s.top_k,
                "temperature": s.temperature,
                "top_p": s.top_p,
                "min_p": s.min_p,
                "repetition_penalty": s.repetition_penalty,
                "repeat_last": s.repeat_last,
                "seed": s.seed,
            },
        )
        arrays = (
            b"".join(int(word).to_bytes(4, "little") for word in [*self.prompt, *companion, *self.ends])
            + text
        )
        job.job_bytes = ffi.sizeof("runner_job") + len(arrays)
        return bytes(ffi.buffer(job)) + arrays


@dataclass
class JobResult:
    """A target's report. Lane 0 is the run asked for, lane 1 its companion."""

    target: str = ""
    variant: str = ""  # architecture/kernel
    kernel: str = ""  # the level that ran
    runner: str = ""
    prompt: list[int] = field(default_factory=list)
    tokens: dict[int, list[int]] = field(default_factory=dict)
    text: str = ""
    digests: dict[int, str] = field(default_factory=dict)
    rows: dict[int, int] = field(default_factory=dict)
    finish: dict[int, str] = field(default_factory=dict)
    threads: int = 1  # that run units at once
    helped: int = 0  # units that others than the first of them have run
    planned_bytes: int = 0
    used_bytes: int = 0
    stats: dict[str, int] = field(default_factory=dict)
    seconds_prefill: float | None = None  # None: the target has no clock
    seconds_decode: float | None = None
    seconds: float = 0.0  # the whole run as this process saw it
    stack_bytes: int = 0
    checks: dict[str, str] = field(default_factory=dict)  # name -> "ok" or "expected X, found Y"
    routes: list[dict[str, Any]] = field(default_factory=list)
    swaps: int = 0  # experts exchanged
    swap_longest: int = 0  # microseconds of the exchange that took longest
    saves: int = 0  # how many
    saved_bytes: int = 0  # of the last
    saved: str = ""  # a hash over all of them
    store: str = ""  # where the blob's bytes were
    disk: dict[str, int] = field(default_factory=dict)  # what a board's disk did
    recovered: int = 0  # fetches that went wrong and were asked for again
    again: list[tuple[int, int, int]] = field(default_factory=list)  # what could not be had, and was asked for again
    identity: str = ""  # of what answered, where limits change the answer
    lost: tuple[int, int, int] | None = None  # layer, expert and offset of a fetch that was not got over
    error: ColibriError | None = None
    code: int | None = None

    @property
    def digest(self) -> str:
        """Lane 0's."""
        return self.digests.get(0, "")

    def bad_checks(self) -> list[str]:
        """Every check that failed, as a sentence."""
        return [
            f"{self.target}: check {name}: {found}" for name, found in self.checks.items() if found != "ok"
        ]

    def row(self) -> dict[str, Any]:
        """The row of verify's document."""
        return {
            "target": self.target,
            "variant": self.variant,
            "runner": self.runner,
            "store": self.store,
            "threads": self.threads,
            "digest": self.digest,
            "tokens": self.tokens.get(0, []),
            "planned_bytes": self.planned_bytes,
            "used_bytes": self.used_bytes,
            "asked_again": len(self.again),
        }


def fetched(layer: int, expert: int, offset: int) -> str:
    """What a fetch was for, in words."""
    what = "resident weights" if layer == NOWHERE else f"expert {expert} of layer {layer}"
    return f"{what}: the bytes from {offset} on"


class JobRefused(ColibriError):
    """The core refused a call on a target."""

    def __init__(
        self, target: str, call: str, status: int, detail: Detail, lost: tuple[int, int, int] | None = None
    ) -> None:
        """lost: layer, expert and offset of a fetch."""
        name = library.status_name(status).removeprefix("ERROR_")
        self.call, self.status, self.detail = call, name, detail
        if call == "kernel":
            asked, offered = kernels.name_of(detail.found), ", ".join(kernels.in_mask(detail.expected))
            super().__init__(f"target {target}: kernel {asked} cannot run there; it offers {offered}")
            self.exit_code = MissingTool.exit_code
        elif lost and name in ("FETCH", "CORRUPT"):
            why = "could not be read" if name == "FETCH" else "do not have their checksum, and none was used"
            super().__init__(
                f"target {target}: {fetched(*lost)} {why}; repair the file "
                "(`colibri check` lists all that is wrong) or get it again"
            )
            self.exit_code = exit_code_of(name)
        else:
            super().__init__(detail_sentence(f"target {target}: {call} answered {name}", detail))
            self.exit_code = exit_code_of(name)


DISK_NAMES = ("virtio", "reads", "bytes", "retries", "passed", "most_in_flight")
STAT_NAMES = ("rows", "units", "macs", "expert_hits", "expert_misses", "bytes_fetched",
              "expert_bytes_fetched", *HINT_NAMES)


def parse_report(target: str, report: str) -> JobResult:
    """A report's lines as a result. A report without its last line is an error of the target."""
    result = JobResult(target=target)
    text = b""
    for line in report.splitlines():
        words = line.split()
        if words:
            text += parse_line(result, words)
    result.text = text.decode("utf-8", "replace")
    if result.code is None:
        tail = " | ".join(report.strip().splitlines()[-3:]) or "nothing"
        result.error = InternalError(
            f"target {target}: the run ended without a result; its last words: {tail}"
        )
    elif result.code not in (0, 1) and result.error is None:
        result.error = InternalError(
            f"target {target}: the runner ended with code {result.code} and no reason"
        )
    return result


def parse_line(result: JobResult, words: list[str]) -> bytes:
    """One line of a report (listed in runner.h); returns bytes of text it carries."""
    kind, rest = words[0], words[1:]
    match kind:
        case "kernel":
            result.kernel = kernels.name_of(int(rest[0]))
        case "pool":
            result.planned_bytes = int(rest[0])
        case "prompt":
            result.prompt += [int(word) for word in rest]
        case "token":
            result.tokens.setdefault(int(rest[0]), []).append(int(rest[1]))
        case "text":
            return bytes.fromhex(rest[0])
        case "route":
            result.routes.append(parse_route(rest))
        case "check":
            result.checks[rest[0]] = "ok" if rest[1] == "ok" else f"expected {rest[2]}, found {rest[3]}"
        case "digest":
            result.digests[int(rest[0])] = rest[1]
            result.rows[int(rest[0])] = int(rest[2])
        case "threads":
            result.threads, result.helped = int(rest[0]), int(rest[1])
        case "used":
            result.used_bytes = int(rest[0])
        case "stats":
            result.stats = dict(zip(STAT_NAMES, map(int, rest), strict=True))
        case "time" if rest != ["0", "0"]:
            result.seconds_prefill, result.seconds_decode = int(rest[0]) / 1e6, int(rest[1]) / 1e6
        case "stack":
            result.stack_bytes = int(rest[0])
        case "finish":
            result.finish[int(rest[0])] = rest[1]
        case "disk":
            result.disk = dict(zip(DISK_NAMES, map(int, rest), strict=True))
        case "swap":
            result.swaps, result.swap_longest = int(rest[0]), int(rest[1])
        case "saved":
            result.saves, result.saved_bytes, result.saved = int(rest[0]), int(rest[1]), rest[2]
        case "faults":
            result.recovered = int(rest[0])
        case "lossy":
            result.identity = rest[2]
        case "again":
            result.again.append((int(rest[0]), int(rest[1]), int(rest[2])))
        case "lost":
            result.lost = (int(rest[0]), int(rest[1]), int(rest[2]))
        case "error":
            result.error = parse_error(result, rest)
        case "done":
            result.code = int(rest[0])
    return b""


def parse_route(words: list[str]) -> dict[str, Any]:
    """LANE POSITION LAYER EXPERT:BITS ..."""
    import struct

    pairs = [word.split(":") for word in words[3:]]
    return {
        "lane": int(words[0]),
        "position": int(words[1]),
        "layer": int(words[2]),
        "experts": [int(expert) for expert, _ in pairs],
        "weights": [struct.unpack(">f", bytes.fromhex(bits))[0] for _, bits in pairs],
    }


def parse_error(result: JobResult, words: list[str]) -> ColibriError:
    """CALL STATUS SECTION FIELD INDEX OFFSET EXPECTED FOUND"""
    status, section, field_number, index, offset, expected, found = map(int, words[1:])
    c_detail = library.ffi().new(
        "colibri_detail *", [status, section, field_number, index, offset, expected, found]
    )
    return JobRefused(result.target, words[0], status, library.detail_of(c_detail), result.lost)


__all__ = ["CoreError", "Job", "JobRefused", "JobResult", "parse_report"]
