"""Everything about a run that must not change its answer, as variations of a job."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from .jobs import Job

# name -> the values it may take besides the base run's; a target's kernel levels come on top
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
    "workers": [{"workers": 2}, {"workers": 3}, {"workers": 5}, {"workers": 3, "odd_ranges": True}],
}
COMBINATIONS = 8


def factors(levels: Sequence[str] = ()) -> list[list[dict[str, Any]]]:
    """The factors' values; levels: kernel levels that may be forced."""
    return [*FACTORS.values(), *([[{"kernel": level} for level in levels]] if levels else [])]


def setting(name: str, value: Any) -> str:
    """One setting as text."""
    if isinstance(value, str):
        return f"{name}={value}"
    return f"{name}={value:#x}" if name == "fill" else f"{name}={int(value)}"


def label(change: dict[str, Any]) -> str:
    """A variation's name: its settings."""
    return " ".join(setting(name, value) for name, value in change.items())


def single(job: Job, levels: Sequence[str] = ()) -> list[tuple[str, Job]]:
    """The base run, then one factor at a time."""
    changes = [change for values in factors(levels) for change in values]
    return [("base", job)] + [(label(change), replace(job, **change)) for change in changes]


def combined(job: Job, seed: int = 1, levels: Sequence[str] = ()) -> list[tuple[str, Job]]:
    """Seeded mixtures: every factor takes one of its values or the base's."""
    dice = random.Random(seed)
    found: list[tuple[str, Job]] = []
    while len(found) < COMBINATIONS:
        change: dict[str, Any] = {}
        for values in factors(levels):
            change.update(dice.choice([{}, *values]))
        if len(change) > 1 and label(change) not in [name for name, _ in found]:
            found.append((label(change), replace(job, **change)))
    return found


def variations(job: Job, seed: int = 1, levels: Sequence[str] = ()) -> list[tuple[str, Job]]:
    """All of it."""
    return single(job, levels) + combined(job, seed, levels)
