"""Everything about a run that must not change its answer, as variations of a job."""

from __future__ import annotations

import random
from dataclasses import replace
from typing import Any

from .jobs import Job

# name -> the values it may take besides the base run's
FACTORS: dict[str, list[dict[str, Any]]] = {
    "budget": [{"budget": 1}, {"budget": 7}],
    "split": [{"split": 1}, {"split": 3}, {"split": 16}],
    "fill": [
        {"fill": 0x00000000},
        {"fill": 0xFFFFFFFF},
        {"fill": 0x7FC0A5C3},
    ],  # zeros, ones, NaN and odd bytes
    "second": [{"two_sequences": True}, {"two_sessions": True}],
    "float": [{"hostile_float": True}],
    "reset": [{"reset": True}],
}
COMBINATIONS = 8


def label(change: dict[str, Any]) -> str:
    """A variation's name: its settings."""
    return " ".join(
        f"{name}={value:#x}" if name == "fill" else f"{name}={int(value)}" for name, value in change.items()
    )


def single(job: Job) -> list[tuple[str, Job]]:
    """The base run, then one factor at a time."""
    changes = [change for values in FACTORS.values() for change in values]
    return [("base", job)] + [(label(change), replace(job, **change)) for change in changes]


def combined(job: Job, seed: int = 1) -> list[tuple[str, Job]]:
    """Seeded mixtures: every factor takes one of its values or the base's."""
    dice = random.Random(seed)
    found: list[tuple[str, Job]] = []
    while len(found) < COMBINATIONS:
        change: dict[str, Any] = {}
        for values in FACTORS.values():
            change.update(dice.choice([{}, *values]))
        if len(change) > 1 and label(change) not in [name for name, _ in found]:
            found.append((label(change), replace(job, **change)))
    return found


def variations(job: Job, seed: int = 1) -> list[tuple[str, Job]]:
    """All of it."""
    return single(job) + combined(job, seed)
