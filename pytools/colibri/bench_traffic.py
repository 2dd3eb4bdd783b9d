"""What the tables of a file say one token has to read: weights and cached positions. Nothing here is measured.

The bytes of a roofline: every matrix once, of the experts the chosen share, of an untied embedding one row.
"""

from __future__ import annotations

from dataclasses import dataclass

from .blobfile import BlobFile
from .description import Layer
from .format import Tensor
from .strips import TILE_ROWS


@dataclass(frozen=True)
class Window:
    """Layers that look back equally far."""

    positions: int | None  # None: all
    share: float  # of a position's cached bytes


@dataclass(frozen=True)
class Traffic:
    """Bytes of a forward pass by what they depend on."""

    always: int  # weights that every pass reads
    per_row: int  # weights that every row reads for itself
    experts: tuple[tuple[int, int, int], ...]  # per MoE layer: bytes of one expert, experts, chosen
    windows: tuple[Window, ...]

    def weights(self, rows: int) -> float:
        """Of one pass over `rows` rows. How many experts differ is taken as if all were equally likely."""
        mixed = sum(size * count * (1 - (1 - chosen / count) ** rows) for size, count, chosen in self.experts)
        return self.always + rows * self.per_row + mixed

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

    def run(self, count: int, step: int, depth: int, position_bytes: int) -> float:
        """Of a run of `count` tokens in passes of `step` rows, behind `depth` positions."""
        total = 0.0
        for first in range(0, count, step):
            rows = min(step, count - first)
            total += self.weights(rows) + self.cache(depth + first, rows, position_bytes)
        return total


def traffic_of(blob: BlobFile) -> Traffic:
    """Out of the tables."""
    layers = blob.model().layers
    always, per_row = 0, 0
    for tensor in blob.tensors:
        if tensor.role == "EMBED" and not tensor.second_role:
            per_row += tensor.bytes // -(-tensor.rows // TILE_ROWS) // TILE_ROWS
        elif not tensor.expert:
            always += tensor.bytes
    experts = tuple(
        (sum(t.bytes for t in _experts_of(blob, number)), layer.need("experts"), layer.need("top_k"))
        for number, layer in enumerate(layers)
        if layer.moe
    )
    return Traffic(always, per_row, experts, _windows(layers))


def _experts_of(blob: BlobFile, layer: int) -> list[Tensor]:
    return [tensor for tensor in blob.tensors if tensor.expert and tensor.layer == layer]


def _windows(layers: list[Layer]) -> tuple[Window, ...]:
    width = [layer.need("kv_heads") * layer.need("head_dim") for layer in layers]
    reach: dict[int | None, int] = {}
    for layer, columns in zip(layers, width, strict=True):
        reach[layer.window] = reach.get(layer.window, 0) + columns
    return tuple(Window(positions, columns / sum(width)) for positions, columns in reach.items())
