"""Strips of rows: the pieces a blob's weights are made of, each with its place in the file.

The list of strips is a pure function of the layout, so that any process can make any of them.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

import numpy as np

from .errors import ConvertError, InternalError
from .format import Layout, Tensor, kind_value, packed_bytes
from .library import constants, ffi, load
from .profile import Profile

STRIP_BYTES = 8 << 20  # float32 bytes of one strip of rows
HALF_LIMIT = 65504.0  # the largest finite float16
TILE_ROWS = 16
Q4_EFFORT = 20  # a q4 weight takes about this many times the work of any other


class WeightSource(Protocol):
    """Where weights come from."""

    def rows(self, tensor: Tensor, expert: int, first: int, count: int) -> np.ndarray:
        """float32 [count, columns] of one matrix (a vector is one row)."""

    def name(self, tensor: Tensor, expert: int) -> str:
        """What a sentence calls this matrix."""


@runtime_checkable
class PackedSource(Protocol):
    """Where strips come from as the bytes of the file: nothing is packed, the source keeps the format's rules."""

    def packed(self, strip: Strip) -> bytes | bytearray | memoryview:
        """The bytes of one strip, the same whatever the size of the strips."""


@dataclass(frozen=True)
class Strip:
    """Some rows of a matrix (or a whole vector) and where their bytes stand in the blob."""

    number: int
    tensor: Tensor
    expert: int
    first: int
    count: int
    offset: int
    bytes: int

    @property
    def numbers(self) -> int:
        """How many weights it holds."""
        return self.count * self.tensor.columns

    @property
    def effort(self) -> int:
        """What it costs, for sharing out the work."""
        return self.numbers * (Q4_EFFORT if self.tensor.kind == "q4" else 1)


def _size(tensor: Tensor, rows: int) -> int:
    """Bytes of a matrix's first rows."""
    if tensor.vector:
        return 4 * tensor.columns
    return packed_bytes(tensor.kind, rows, tensor.columns) if rows else 0


def _of_matrix(tensor: Tensor, expert: int, start: int) -> Iterator[tuple[Tensor, int, int, int, int, int]]:
    step = max(TILE_ROWS, STRIP_BYTES // (4 * tensor.columns) // TILE_ROWS * TILE_ROWS)
    before = 0
    for first in range(0, tensor.rows, step):
        count = min(step, tensor.rows - first)
        size = _size(tensor, count)
        yield tensor, expert, first, count, start + before, size
        before += size
    if before != tensor.bytes:
        raise InternalError(f"{tensor.label}: its strips have {before} bytes, the layout says {tensor.bytes}")


def _matrices(layout: Layout) -> Iterator[tuple[Tensor, int, int]]:
    """All matrices in the order of the file: tensor, expert, offset."""
    for tensor in layout.tensors:
        if not tensor.expert:
            yield tensor, 0, tensor.offset
    for run in layout.runs:
        for expert in range(run.experts):
            for tensor in run.tensors:
                yield tensor, expert, tensor.offset + expert * run.bytes


def strips_of(layout: Layout) -> list[Strip]:
    """All strips in the order of the file."""
    rows = (row for matrix in _matrices(layout) for row in _of_matrix(*matrix))
    return [Strip(number, *row) for number, row in enumerate(rows)]


def strips_of_tensor(tensor: Tensor) -> list[Strip]:
    """The strips of one matrix or vector that is no expert."""
    return [Strip(number, *row) for number, row in enumerate(_of_matrix(tensor, 0, tensor.offset))]


def share_of(strips: Sequence[Strip], share: int, shares: int) -> list[Strip]:
    """The strips of one of several shares of about equal effort; a share is one range of the file."""
    total, before, out = sum(strip.effort for strip in strips), 0, []
    for strip in strips:
        if before * shares // total + 1 == share:
            out.append(strip)
        before += strip.effort
    return out


def _finite(values: np.ndarray, name: str, first: int) -> None:
    if np.isfinite(values).all():
        return
    row, column = (int(v) for v in np.argwhere(~np.isfinite(values))[0])
    raise ConvertError(
        f"{name}: row {first + row}, column {column} is {values[row, column]}; expected a finite "
        "number: the checkpoint is damaged or overflowed while it was trained"
    )


def pack_strip(
    source: WeightSource | PackedSource, strip: Strip, profile: Profile
) -> bytes | bytearray | memoryview:
    """The bytes of one strip."""
    if isinstance(source, PackedSource):
        return _ready(source, strip, profile)
    tensor, name = strip.tensor, source.name(strip.tensor, strip.expert)
    rows = source.rows(tensor, strip.expert, strip.first, strip.count)
    rows = np.ascontiguousarray(rows, dtype=np.float32)
    if rows.shape != (strip.count, tensor.columns):
        raise InternalError(
            f"{name}: the source gave {rows.shape}, asked were {(strip.count, tensor.columns)}"
        )
    with profile("pack"):
        return _packed(rows, strip, name)


def _ready(source: PackedSource, strip: Strip, profile: Profile) -> bytes | bytearray | memoryview:
    with profile("pack"):
        data = source.packed(strip)
    if len(data) != strip.bytes:
        raise InternalError(
            f"{strip.tensor.label}: the source gave {len(data)} bytes, asked were {strip.bytes}"
        )
    return data


def _packed(rows: np.ndarray, strip: Strip, name: str) -> bytearray:
    tensor = strip.tensor
    if tensor.vector:
        _finite(rows, name, strip.first)
        return bytearray(rows.astype("<f4").tobytes())
    if tensor.kind == "f16":
        _finite(rows, name, strip.first)
        _fits_half(rows, name, strip.first)
    out, cffi = bytearray(strip.bytes), ffi()
    status = load().colibri_pack(
        kind_value(tensor.kind),
        strip.count,
        tensor.columns,
        cffi.from_buffer("float[]", rows),
        cffi.from_buffer(out),
    )
    if status == constants().ERROR_NOT_FINITE:
        _finite(rows, name, strip.first)
    if status != constants().OK:
        raise InternalError(f"{name}: colibri_pack returned {status}")
    return out


def _fits_half(rows: np.ndarray, name: str, first: int) -> None:
    if max(rows.max(), -rows.min()) <= HALF_LIMIT:
        return
    row, column = (int(v) for v in np.argwhere(np.abs(rows) > HALF_LIMIT)[0])
    raise ConvertError(
        f"{name}: row {first + row}, column {column}: {rows[row, column]:g} does not fit into f16 "
        f"(up to {HALF_LIMIT:g}); choose q8 or f32"
    )
