"""Where a matrix lies inside a checkpoint's tensors, and reading it: fused, interleaved, transposed, stacked, packed.

Most matrices are a tensor of their own. Where a family keeps all experts in one tensor, a matrix is every so many
numbers of it; where weights are stored in 8 or 4 bits, a second tensor holds the scales of their blocks.
"""

from __future__ import annotations

from collections.abc import Container
from dataclasses import dataclass
from functools import cache

import numpy as np

from .errors import ConvertError
from .format import Tensor
from .safetensors_reader import WIDTH, Checkpoint, Entry

PIECE_BYTES = 8 << 20  # of a tensor's bytes read at once where a matrix is scattered over it
NEAR_BYTES = 1 << 16  # a gap below this is read too: cheaper than another request
MX_BLOCK = 32  # weights of one MXFP4 scale
MX_VALUES = (0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0)


@dataclass(frozen=True)
class Place:
    """Number (r, c) of a matrix is number start + r * row + c * column of a tensor.

    With `packing` "mxfp4", start and row count rows of the packed tensors and a column follows the other.
    """

    name: str
    shape: tuple[int, ...]
    start: int = 0
    row: int = 0
    column: int = 1
    packing: str = ""
    add: float = 0.0  # to every number, in float32: norms whose weights are stored as their distance from 1

    @property
    def names(self) -> tuple[str, ...]:
        """The tensors it is read from, but for the block scales of 8-bit floats."""
        return (self.name + "_blocks", self.name + "_scales") if self.packing else (self.name,)


def whole(name: str, shape: tuple[int, ...]) -> Place:
    """A tensor that is one matrix or vector."""
    return Place(name, shape, 0, shape[-1])


def scale_name(name: str) -> str:
    """The tensor with the block scales of a tensor of 8-bit floats."""
    return name + "_scale_inv"


def used_names(place: Place, present: Container[str]) -> set[str]:
    """Every tensor of the checkpoint that a place needs."""
    extra = {scale_name(place.name)} if scale_name(place.name) in present else set()
    return {*place.names, *extra}


@cache
def float8_values() -> np.ndarray:
    """float32 of every E4M3 byte: 4 bits of exponent (bias 7), 3 of fraction, no infinity, 0x7F is not a number."""
    byte = np.arange(256)
    exponent, fraction = byte >> 3 & 15, (byte & 7).astype(np.float32)
    normal = np.ldexp(1 + fraction / 8, exponent - 7)
    value = np.where(exponent > 0, normal, np.ldexp(fraction, -9)) * np.where(byte & 128, -1, 1)
    value[(byte & 127) == 127] = np.nan
    return value.astype(np.float32)


@cache
def _mx_values() -> np.ndarray:
    half = np.array(MX_VALUES, dtype=np.float32)
    return np.concatenate([half, -half])


class Places:
    """A checkpoint's matrices by place. `blocks`: rows and columns of a scale of 8-bit floats, None: there are none."""

    def __init__(self, checkpoint: Checkpoint, blocks: tuple[int, int] | None) -> None:
        self.checkpoint, self.blocks = checkpoint, blocks

    def expect(self, place: Place) -> Entry:
        """The tensor of a place, checked with whatever belongs to it; a packed one's blocks."""
        if place.packing:
            *rows, columns = place.shape
            if columns % MX_BLOCK:
                raise ConvertError(f"tensor {place.name!r}: {columns} columns are not whole blocks of {MX_BLOCK}")
            blocks, scales = (*rows, columns // MX_BLOCK, MX_BLOCK // 2), (*rows, columns // MX_BLOCK)
            self.checkpoint.expect(place.names[1], scales, ("U8",))
            return self.checkpoint.expect(place.names[0], blocks, ("U8",))
        entry = self.checkpoint.expect(place.name, place.shape, (*WIDTH, "F8_E4M3"))
        if entry.dtype == "F8_E4M3":
            self._scales(place)
        return entry

    def copy(self, name: str, tensor: Tensor) -> Place:
        """Where one more copy of an expert's matrix lies, checked."""
        place = whole(name, (tensor.rows, tensor.columns))
        self.expect(place)
        return place

    def rows(self, place: Place, first: int, count: int, columns: int) -> np.ndarray:
        """float32 [count, columns]: rows first .. first + count - 1 of a matrix."""
        found = self._rows(place, first, count, columns)
        return found + np.float32(place.add) if place.add else found

    def _rows(self, place: Place, first: int, count: int, columns: int) -> np.ndarray:
        entry = self.expect(place)
        if place.packing:
            return self._packed(place, entry, first, count, columns)
        if entry.dtype == "F8_E4M3":
            return self._float8(place, entry, first, count)
        start = place.start + first * place.row
        if place.column == 1 and (place.row == columns or count == 1):
            return self._floats(entry, start, count * columns).reshape(count, columns)
        if place.column > place.row:  # transposed: a column lies together
            return self._strided(entry, start, (columns, place.column), (count, place.row)).T
        return self._strided(entry, start, (count, place.row), (columns, place.column))

    def _floats(self, entry: Entry, first: int, count: int) -> np.ndarray:
        self.checkpoint.profile.count(count * WIDTH[entry.dtype])
        return self.checkpoint.floats(entry, first, count)

    def _strided(
        self, entry: Entry, start: int, outer: tuple[int, int], inner: tuple[int, int]
    ) -> np.ndarray:
        """[outer count, inner count] of numbers that far apart; neighbours of the outer kind are read together."""
        (lines, step), (count, within) = outer, inner
        length, width = (count - 1) * within + 1, WIDTH[entry.dtype]
        together = max(1, PIECE_BYTES // (step * width)) if (step - length) * width <= NEAR_BYTES else 1
        out = np.empty((lines, count), dtype=np.float32)
        for line in range(0, lines, together):
            taken = min(together, lines - line)
            flat = self._floats(entry, start + line * step, (taken - 1) * step + length)
            size = flat.itemsize
            out[line : line + taken] = np.lib.stride_tricks.as_strided(
                flat, (taken, count), (step * size, within * size)
            )
        return out

    def _scales(self, place: Place) -> Entry:
        if self.blocks is None or len(place.shape) != 2 or place.start or place.row != place.shape[1]:
            raise ConvertError(
                f"tensor {place.name!r} has dtype F8_E4M3, but config.json says nothing of its scales "
                "(quantization_config of quant_method fp8 with a weight_block_size)"
            )
        shape = tuple(-(-size // block) for size, block in zip(place.shape, self.blocks, strict=True))
        return self.checkpoint.expect(scale_name(place.name), shape)

    def _float8(self, place: Place, entry: Entry, first: int, count: int) -> np.ndarray:
        """One rounded product of a value and its block's scale."""
        assert self.blocks is not None
        columns, (high, wide) = place.shape[1], self.blocks
        scales, low, end = self._scales(place), first // high, -(-(first + count) // high)
        per_row = scales.shape[1]
        scale = self._floats(scales, low * per_row, (end - low) * per_row).reshape(end - low, per_row)
        codes = np.frombuffer(self.raw(entry, first * columns, count * columns), dtype=np.uint8)
        value = float8_values()[codes].reshape(count, columns)
        rows = np.arange(first, first + count) // high - low
        return value * np.repeat(scale, wide, axis=1)[rows, :columns]

    def _packed(self, place: Place, entry: Entry, first: int, count: int, columns: int) -> np.ndarray:
        """4-bit floats, the low nibble first, times a power of two for every 32."""
        scales = self.checkpoint.expect(
            place.names[1], (*place.shape[:-1], columns // MX_BLOCK), ("U8",)
        )
        row, lines = place.start + first * place.row, (count - 1) * place.row + 1
        each = columns // 2
        codes = np.frombuffer(self.raw(entry, row * each, lines * each), dtype=np.uint8)
        codes = codes.reshape(lines, each)[:: place.row]
        each = columns // MX_BLOCK
        power = np.frombuffer(self.raw(scales, row * each, lines * each), dtype=np.uint8)
        power = power.reshape(lines, each)[:: place.row].astype(np.int32) - 127
        value = _mx_values()[np.stack([codes & 15, codes >> 4], axis=-1)]
        return np.ldexp(value.reshape(count, each, MX_BLOCK), power[:, :, None]).reshape(count, columns)

    def raw(self, entry: Entry, first: int, count: int) -> bytes:
        """Bytes of a tensor of bytes."""
        self.checkpoint.profile.count(count)
        with self.checkpoint.profile("read"):
            return entry.file.read(entry.begin + first, count)
