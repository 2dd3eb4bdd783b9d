"""Usage profiles: how often runs of a model used each expert, so that the next run can keep the favourites.

A profile is a small JSON file bound to the model's identity: {"profile": 1, "model": IDENTITY, "uses":
{"LAYER": [count of expert 0, 1, ...]}}. Runs add up. What is pinned changes no bit of any answer.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np

from .engine import Session
from .errors import InputError
from .trace import ExpertLayer, Trace
from .written import write_whole

VERSION = 1


def load(path: Path, model: str, layers: tuple[ExpertLayer, ...]) -> np.ndarray | None:
    """Counts by number over all layers; None where there is no file yet."""
    try:
        content: Any = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return None
    except (OSError, ValueError) as error:
        raise InputError(f"{path}: not a usage profile ({error}); give another file, or none that exists") from None
    if not isinstance(content, dict) or content.get("profile") != VERSION:
        raise InputError(f"{path}: not a usage profile of version {VERSION}; give another file, or none that exists")
    if content.get("model") != model:
        raise InputError(
            f"{path}: a usage profile of another model ({str(content.get('model'))[:16]}..., this one is "
            f"{model[:16]}...); give each model a profile of its own"
        )
    counts: list[int] = []
    for layer in layers:
        row = content.get("uses", {}).get(str(layer.layer))
        if not isinstance(row, list) or len(row) != layer.experts or not all(type(n) is int and n >= 0 for n in row):
            raise InputError(f"{path}: uses of layer {layer.layer}: expected {layer.experts} counts")
        counts += row
    return np.array(counts, dtype=np.int64)


def save(path: Path, trace: Trace, before: np.ndarray | None) -> None:
    """The counts of a run, added to what was there."""
    counts = trace.uses() if before is None else before + trace.uses()
    uses = {
        str(layer.layer): [int(n) for n in counts[first : first + layer.experts]]
        for layer, first in zip(trace.layers, trace.first, strict=True)
    }
    text = json.dumps({"profile": VERSION, "model": trace.model, "uses": uses})
    write_whole(path, [text.encode() + b"\n"])


def pin(session: Session, trace: Trace, counts: np.ndarray, share: float = 0.5) -> int:
    """Pin the most used experts into that share of the slots; returns how many."""
    room = min(int(session.plan.slots * share), session.plan.slots - trace.window)
    chosen = [int(number) for number in np.argsort(-counts, kind="stable")[: max(0, room)] if counts[number]]
    for number in chosen:
        session.pin(*trace.place(number))
    return len(chosen)
