"""A trace through the slots: what each policy hits and misses, beside what could not be beaten.

The policies are the core's own code (colibri_replay). Computed here, because no session can run them: the clairvoyant
optimum (Belady's MIN, which knows the future) and the pins of hindsight (the most used experts of the whole trace, all
slots but the largest top_k).
"""

from __future__ import annotations

import heapq
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from . import library
from .errors import InternalError, UsageError
from .limits import POLICIES
from .trace import Trace

NEVER = 1 << 62
OTHERS = ("pins", "optimum")


@dataclass(frozen=True)
class Played:
    """What one policy does with one number of slots."""

    hits: int
    misses: int

    @property
    def rate(self) -> float:
        """Hits of all needs."""
        return self.hits / max(1, self.hits + self.misses)


def play(
    trace: Trace, slots: int, policy: str, pins: Sequence[int] = (), words: np.ndarray | None = None
) -> Played:
    """A trace through the core's policy; pins: numbers over all layers."""
    ffi, lib = library.ffi(), library.load()
    number = getattr(library.constants(), "POLICY_" + policy.upper())
    room = np.zeros(lib.colibri_replay_bytes(trace.experts, number) // 8 + 1, dtype=np.uint64)
    memory = ffi.from_buffer(room)
    _check(lib.colibri_replay_start(memory, room.nbytes, trace.experts, slots, number, trace.window))
    for pin in pins:
        _check(lib.colibri_replay_pin(memory, pin))
    turns = trace.words() if words is None else words
    counted = ffi.new("uint64_t[2]")
    at = ffi.cast("uint32_t *", ffi.from_buffer(turns)) if len(turns) else ffi.NULL
    _check(lib.colibri_replay_turns(memory, at, len(turns), counted, counted + 1))
    return Played(int(counted[0]), int(counted[1]))


def _check(status: int) -> None:
    if status < 0:
        raise InternalError(f"the core's replay refused: {library.status_name(status)}")


def hindsight_pins(trace: Trace, slots: int) -> list[int]:
    """The most used experts of a trace, as many as may be pinned."""
    uses = trace.uses()
    order = np.argsort(-uses, kind="stable")[: max(0, slots - trace.window)]
    return [int(number) for number in order if uses[number]]


def optimum(trace: Trace, slots: int) -> Played:
    """Belady's MIN: gives up what is needed latest. Experts of a turn come one by one, ascending."""
    first = trace.first
    needs = [first[index] + expert for index, needed in trace.turns() for expert in needed]
    following = [NEVER] * len(needs)
    seen: dict[int, int] = {}
    for at in range(len(needs) - 1, -1, -1):
        following[at] = seen.get(needs[at], NEVER)
        seen[needs[at]] = at
    held: dict[int, int] = {}
    latest: list[tuple[int, int]] = []  # (-next need, expert); stale entries are passed over
    hits = 0
    for at, expert in enumerate(needs):
        if expert in held:
            hits += 1
        elif len(held) == slots:
            while True:
                when, victim = heapq.heappop(latest)
                if held.get(victim) == -when:
                    del held[victim]
                    break
        held[expert] = following[at]
        heapq.heappush(latest, (-following[at], expert))
    return Played(hits, len(needs) - hits)


def table(trace: Trace, counts: Sequence[int]) -> list[dict[str, Any]]:
    """One row for each number of slots: hit rates and misses by policy, the optimum, and the default's share of it."""
    words = trace.words()
    rows = []
    for slots in counts:
        if not 1 <= slots <= trace.experts:
            raise UsageError(f"--slots {slots}: expected 1 .. {trace.experts}, the experts of all layers")
        made = {policy: play(trace, slots, policy, words=words) for policy in POLICIES}
        made["pins"] = play(trace, slots, "lru", hindsight_pins(trace, slots), words)
        made["optimum"] = optimum(trace, slots)
        best = made["optimum"].hits
        rows.append(
            {
                "slots": slots,
                "hit_rate": {name: played.rate for name, played in made.items()},
                "misses": {name: played.misses for name, played in made.items()},
                "share_of_optimum": made[POLICIES[0]].hits / best if best else 1.0,
            }
        )
    return rows


def slot_counts(trace: Trace, asked: Sequence[str]) -> list[int]:
    """Numbers, shares as `10%`, or twelve steps up to all experts."""
    if not asked:
        return sorted({max(1, round(trace.experts * step / 12)) for step in range(1, 13)})
    made = []
    for text in asked:
        try:
            share = text.endswith("%")
            value = max(1, round(float(text[:-1]) / 100 * trace.experts)) if share else int(text)
        except ValueError:
            raise UsageError(f"--slots {text}: expected a number of slots or a share such as 25%") from None
        made.append(value)
    return sorted(set(made))
