"""Where a model's bytes are while it runs: names for every target, the limits they need, and how many slots fit.

A board has the model in ram, flash or block (a disk); everything else has it mapped (in memory, used in place) or
streamed from the file into slots. On Linux streamed has sorts: uring, pread, and direct, past the page cache.
"""

from __future__ import annotations

import platform
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from . import board
from .engine import Limits, Model, Plan
from .errors import DoesNotFit, UsageError
from .sizing import fitting, streamed
from .store import STORES, STREAMED, Storage

ALIAS = {"mapped": "ram", "streamed": "block"}  # what those are on a board
BOARD = "baremetal"
RESUMES = 3  # times a session on another target goes on after a fetch that its store could not bring


@dataclass(frozen=True)
class Place:
    """A place by name, and what it is to a session or a job."""

    name: str
    streamed: bool
    storage: Storage | None = None

    def job(self) -> dict[str, object]:
        """Fields of a job."""
        if self.name in board.STORES:
            return {"board_store": self.name, "store_resumes": RESUMES * self.streamed}
        return {"store": "PORT", "storage": self.storage, "store_resumes": RESUMES} if self.streamed else {}


def names_of(words: Iterable[str]) -> list[str]:
    """Names of places, several with commas between; nothing is left as it is."""
    chosen = [name for word in words for name in word.split(",") if name]
    known = [*STORES, *board.STORES, "all"]
    for name in chosen:
        if name not in known:
            raise UsageError(
                f"--store {name}: a file is {', '.join(STORES)}; the board has the model in {', '.join(board.STORES)}"
            )
    return list(dict.fromkeys(chosen))


def offered(target: str) -> tuple[str, ...]:
    """The places a target has. An emulated Linux has neither io_uring nor memory that direct reads could use."""
    if target == BOARD:
        return board.STORES
    if target in ("linux", "linux-gcc", f"linux-{platform.machine()}"):
        return STORES
    return ("mapped", "streamed", "pread") if target.startswith("linux") else ("mapped", "streamed")


def places(target: str, names: list[str], slots: int = 0, memory: int = 0) -> list[Place]:
    """The places asked for that a target has; none asked for: what --slots and --ram mean, or the first it has."""
    if not names:
        names = [STREAMED[0]] if slots or memory else [STORES[0]]
    here = offered(target)
    wanted = list(here) if "all" in names else [ALIAS.get(n, n) if target == BOARD else n for n in names]
    if memory and not any(name in (*STREAMED, "block") for name in wanted):
        raise UsageError(f"--ram is for experts that come from storage: add --store {STREAMED[0]}")
    kept = dict.fromkeys(name for name in wanted if name in here)
    return [Place(name, name in (*STREAMED, "block"), Storage(name) if name in STREAMED else None) for name in kept]


def one_place(target: str, words: Iterable[str], slots: int, memory: int) -> Place:
    """The single place a command runs from."""
    names = names_of(words)
    found = places(target, names, slots, memory)
    if not found:
        others = ", ".join(offered(target))
        what = "is a place of the board; add --target baremetal" if set(names) <= set(board.STORES) else "is not there"
        raise UsageError(f"--store {','.join(names)}: {what}; target {target} has {others}")
    if len(found) > 1 or "all" in names:
        raise UsageError(f"--store {','.join(names)}: run answers from one place; `colibri verify` compares them")
    return found[0]


def limits_at(place: Place, model: Model, limits: Limits, slots: int, memory: int) -> Limits:
    """The limits of a session with the model there: as many slots as said, or as fit into `memory`."""
    if not place.streamed:
        return limits
    experts = model.info().expert_count
    if memory:
        return fitted(model.path, model, limits, experts, memory).limits
    if place.name == "block" and not slots:
        slots = min(board.SLOTS, experts)
    if experts and not slots:
        raise UsageError(f"--store {place.name} needs --ram SIZE, or --slots N for the number of experts kept")
    return streamed(limits, min(slots, experts))


def fitted(path: Path, model: Model, limits: Limits, experts: int, memory: int) -> Plan:
    """The plan with the most slots in `memory` bytes; the floor's number if not even one fits."""
    plan = fitting(model.plan, limits, experts, memory)
    if plan.pool_bytes > memory:
        raise DoesNotFit(
            f"{path}: --ram gives {memory} bytes, the floor is {plan.pool_bytes}: resident weights "
            f"{plan.resident_bytes} and the rest with {plan.slots} expert slot(s); give more, or a shorter --context, "
            "a smaller --batch or --kv q8"
        )
    return plan
