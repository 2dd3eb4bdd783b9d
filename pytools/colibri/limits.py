"""What goes into the core and comes out of it, as dataclasses: limits, plan, info, sampling, counters.

Field names are the C header's. Nothing is decided here.
"""

from __future__ import annotations

import hashlib
import struct
from dataclasses import dataclass
from typing import Any

import numpy as np

from . import kernels, library
from .errors import UsageError

UNLIMITED = 0xFFFFFFFF
KV_KINDS = ("f32", "f16", "q8")
POLICIES = ("adaptive", "lru", "lfu")


def new(kind: str, **values: Any) -> Any:
    """A zeroed C structure with struct_bytes set."""
    made = library.ffi().new(kind + " *", values)
    made.struct_bytes = library.ffi().sizeof(kind)
    return made


@dataclass(frozen=True)
class Info:
    """colibri_info by name."""

    format_version: int
    vocab: int
    hidden: int
    layers: int
    experts: int
    top_k: int
    trained_context: int
    file_bytes: int
    tables_bytes: int
    resident_bytes: int
    expert_bytes: int
    expert_run_bytes: int
    expert_count: int
    parameters: int
    active_parameters: int
    tokenizer_bytes: int
    identity: str


@dataclass(frozen=True)
class Limits:
    """colibri_limits: what a session is planned for. Part of the plan, never detected."""

    context: int = 256
    batch: int = 16
    sequences: int = 1
    workers: int = 1
    slots: int = 0
    logit_rows: int = 1
    text_bytes: int = 0
    rewind: int = 0
    swaps: int = 0  # slots for experts of other files
    kv: str = "f16"
    kernel: str = kernels.AUTO  # enters neither the plan nor an answer
    resident_copy: bool = False
    stream_experts: bool = False
    policy: str = POLICIES[0]  # of the slots; changes no answer
    top_k: int = 0  # experts of a row at most, 0: the model's; changes answers
    skip_below: float = 0.0  # experts of a lower weight are left out; changes answers

    def c(self) -> Any:
        """The C structure."""
        if self.kv not in KV_KINDS:
            raise UsageError(f"KV kind {self.kv!r}: expected one of {', '.join(KV_KINDS)}")
        return new("colibri_limits", skip_below=self.skip_below, **self.numbers())

    @property
    def lossy(self) -> str:
        """What makes answers other than the model's, in words; empty: nothing."""
        fewer = [f"at most {self.top_k} experts per token"] if self.top_k else []
        return "; ".join(fewer + ([f"experts of weight below {self.skip_below:g} skipped"] if self.skip_below else []))

    def identity(self, model: str) -> str:
        """Whose answers they are: the model's identity, or where a limit changes answers a hash of both."""
        if not self.lossy:
            return model
        return hashlib.sha256(bytes.fromhex(model) + struct.pack("<If", self.top_k, self.skip_below)).hexdigest()

    def numbers(self) -> dict[str, int]:
        """The structure's fields by name, as numbers; what is chosen where it runs is 0: the kernel by default."""
        names = ("context", "batch", "sequences", "workers", "slots", "logit_rows", "text_bytes", "rewind", "swaps",
                 "top_k")
        values = {name: getattr(self, name) for name in names}
        constants = library.constants()
        values["kernel"] = kernels.number_of(self.kernel)
        values["kv_kind"] = getattr(constants, "KV_" + self.kv.upper())
        if self.policy not in POLICIES:
            raise UsageError(f"policy {self.policy!r}: expected one of {', '.join(POLICIES)}")
        values["policy"] = getattr(constants, "POLICY_" + self.policy.upper())
        values["flags"] = (
            constants.LIMIT_RESIDENT_COPY * self.resident_copy
            + constants.LIMIT_STREAM_EXPERTS * self.stream_experts
        )
        for name, value in values.items():
            if not 0 <= value <= UNLIMITED:
                raise UsageError(f"limit {name} is {value}: expected 0 .. {UNLIMITED}")
        return values


@dataclass(frozen=True)
class Region:
    """One region of the pool."""

    name: str
    offset: int
    bytes: int


@dataclass(frozen=True)
class Plan:
    """colibri_plan_result by name."""

    limits: Limits
    pool_bytes: int
    align: int
    regions: tuple[Region, ...]
    slots: int
    slots_floor: int
    resident_bytes: int
    expert_bytes: int
    kv_bytes_per_token: int
    largest_unit_macs: int
    ops: int


@dataclass
class Stats:
    """colibri_stats_result by name."""

    pool_used: int
    rows: int
    units: int
    macs: int
    expert_hits: int
    expert_misses: int
    bytes_fetched: int
    expert_bytes_fetched: int


@dataclass
class Sampling:
    """colibri_sampling without what changes per token."""

    temperature: float = 0.0
    top_k: int = 0
    top_p: float = 1.0
    min_p: float = 0.0
    repetition_penalty: float = 1.0
    seed: int = 0
    repeat_last: int = 64

    def __post_init__(self) -> None:
        # float32 from here on, so that no later conversion can round by the host's mode
        for name in ("temperature", "top_p", "min_p", "repetition_penalty"):
            setattr(self, name, float(np.float32(getattr(self, name))))

    def c(self, sequence: int, position: int) -> Any:
        """The C structure for one draw."""
        return new(
            "colibri_sampling",
            top_k=self.top_k,
            temperature=self.temperature,
            top_p=self.top_p,
            min_p=self.min_p,
            repetition_penalty=self.repetition_penalty,
            seed=self.seed,
            sequence=sequence,
            position=position,
        )
