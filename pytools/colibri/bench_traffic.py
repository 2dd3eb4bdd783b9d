"""What the tables of a file say one token has to read: weights and cached positions. Nothing here is measured.

The bytes of a roofline: every matrix once, of the experts the chosen share, of an untied embedding one row.
"""

from __future__ import annotations

from dataclasses import dataclass

from .blobfile import BlobFile
from .description import Layer
from .strips import TILE_ROWS


@dataclass(frozen=True)
class Window:
    """Layers that look back equally far."""

    positions: int | None  # None: all
    share: float  # of a position's cached bytes


# role -> the op of the tape (colibri.h) that reads it; a norm's op has the role's name
OPS = {
    "EMBED": "HEAD",  # when it is tied
    "HEAD": "HEAD",
    "O": "PROJECT",
    "O_BIAS": "PROJECT",
    "Q_NORM": "PLACE",
    "K_NORM": "PLACE",
    **dict.fromkeys(("Q", "K", "V", "Q_BIAS", "K_BIAS", "V_BIAS"), "QKV"),
    **dict.fromkeys(("ROUTER", "ROUTER_BIAS", "SHARED_SWITCH"), "ROUTE"),
    **dict.fromkeys(("GATE", "UP"), "DENSE_UP"),
    "DOWN": "DENSE_DOWN",
    **dict.fromkeys(("EXPERT_GATE", "EXPERT_UP"), "EXPERT_UP"),
    "EXPERT_DOWN": "EXPERT_DOWN",
    **dict.fromkeys(("SHARED_GATE", "SHARED_UP"), "SHARED_UP"),
    "SHARED_DOWN": "SHARED_DOWN",
}


@dataclass(frozen=True)
class Experts:
    """One of an expert's matrices, in all experts of a layer."""

    op: str
    bytes: int
    count: int
    chosen: int

    def read(self, rows: int) -> float:
        """Bytes for so many rows. How many experts differ is taken as if all were equally likely."""
        return self.bytes * self.count * (1 - (1 - self.chosen / self.count) ** rows)


@dataclass(frozen=True)
class Traffic:
    """Bytes of a forward pass by what they depend on."""

    always: dict[str, int]  # op -> weights that every pass reads
    per_row: int  # of the embedding, that every row reads for itself
    experts: tuple[Experts, ...]
    windows: tuple[Window, ...]
    router_macs: int = 0  # multiply-adds of all routers for one row

    def by_op(self, rows: int) -> dict[str, float]:
        """Weights of one pass over `rows` rows."""
        found: dict[str, float] = {"EMBED": float(rows * self.per_row)}
        for op, size in self.always.items():
            found[op] = found.get(op, 0.0) + size
        for matrix in self.experts:
            found[matrix.op] = found.get(matrix.op, 0.0) + matrix.read(rows)
        return found

    def weights(self, rows: int) -> float:
        """All of them."""
        return sum(self.by_op(rows).values())

    def cache(self, first: int, rows: int, position_bytes: int) -> float:
        """Keys and values read by one pass of rows at positions first .. first + rows - 1: each row of a position
        reads all up to its own; rows of one pass share what they read, so the last row's reach counts."""
        end = first + rows
        return sum(
            position_bytes
            * window.share
            * (end if window.positions is None else min(end, window.positions + rows - 1))
            for window in self.windows
        )

    def run(self, count: int, step: int, depth: int, position_bytes: int) -> dict[str, float]:
        """Of a run of `count` tokens in passes of `step` rows, behind `depth` positions, by op."""
        total: dict[str, float] = {}
        for first in range(0, count, step):
            rows = min(step, count - first)
            passed = {**self.by_op(rows), "ATTEND": self.cache(depth + first, rows, position_bytes)}
            for op, size in passed.items():
                total[op] = total.get(op, 0.0) + size
        return total


def traffic_of(blob: BlobFile) -> Traffic:
    """Out of the tables."""
    layers = blob.model().layers
    always: dict[str, int] = {}
    per_row, experts = 0, []
    for tensor in blob.tensors:
        op = OPS.get(tensor.role, tensor.role)
        if tensor.role == "EMBED" and not tensor.second_role:
            per_row += tensor.bytes // -(-tensor.rows // TILE_ROWS) // TILE_ROWS
        elif tensor.expert:
            experts.append(Experts(op, tensor.bytes, tensor.count, layers[tensor.layer].need("top_k")))
        else:
            always[op] = always.get(op, 0) + tensor.bytes
    routers = sum(t.rows * t.columns for t in blob.tensors if OPS.get(t.role) == "ROUTE")
    return Traffic(always, per_row, tuple(experts), _windows(layers), routers)


def _windows(layers: list[Layer]) -> tuple[Window, ...]:
    width = [layer.need("kv_heads") * layer.need("head_dim") for layer in layers]
    reach: dict[int | None, int] = {}
    for layer, columns in zip(layers, width, strict=True):
        reach[layer.window] = reach.get(layer.window, 0) + columns
    return tuple(Window(positions, columns / sum(width)) for positions, columns in reach.items())
