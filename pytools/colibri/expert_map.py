"""Which expert lies in which slot: checkpoints of balanced serving (EPLB), whose experts are stored in another order
than the router counts them in, some of them more than once.

The map is undone at conversion and a blob knows nothing of it: slots and copies share work out over devices, and one
engine has one of each. So experts keep the router's numbers, equal scores keep going to the lower of them, outputs are
added in that order, and the answer is that of the checkpoint before it was balanced.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from .description import Model
from .errors import ConvertError
from .source import Folder

FIELD = "physical_to_logical_map"
Slots = dict[int, tuple[int, ...]]  # layer -> the router's number of the expert in every slot


def read_expert_map(path: Path) -> list[list[int]]:
    """The lists of a JSON file {"physical_to_logical_map": [[...], ...]}, one for every layer with experts."""
    rows: Any = Folder(path.parent).document(path.name).get(FIELD)
    if not isinstance(rows, list) or not all(
        isinstance(row, list) and row and all(type(one) is int and one >= 0 for one in row) for row in rows
    ):
        raise ConvertError(f"{path}: field {FIELD!r}: expected a list of expert numbers for every layer with experts")
    return rows


def slots_of(model: Model, rows: list[list[int]], subject: str = "--expert-map") -> Slots:
    """The map by layers, checked: every expert of the router lies in a slot, and no slot holds another."""
    layers = [number for number, layer in enumerate(model.layers) if layer.moe]
    if len(rows) != len(layers):
        raise ConvertError(
            f"{subject}: field {FIELD!r} has {len(rows)} lists, the model has {len(layers)} layers with experts"
        )
    for number, row in zip(layers, rows, strict=True):
        experts = model.layers[number].need("experts")
        wrong = next((one for one in row if one >= experts), None)
        if wrong is not None:
            raise ConvertError(f"{subject}: layer {number}: expert {wrong}, the router knows 0 .. {experts - 1}")
        missing = sorted(set(range(experts)) - set(row))
        if missing:
            raise ConvertError(f"{subject}: layer {number}: expert {missing[0]} lies in no slot")
    return {number: tuple(row) for number, row in zip(layers, rows, strict=True)}
