"""A blob of a giant model's shape that takes little space: what is zero is a hole in the file.

Embedding, head, routers and vectors are the random blocks of the shape; every other matrix, experts above all, is zero.
Zero is a valid weight of every kind, so that the file opens, checks and runs like any other, and its experts come from
storage as real ones would. The sums are right; those of holes are not read, but known.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from .blobwriter import Written, check_target
from .errors import InputError
from .format import Kinds, Layout, Tensor
from .library import ffi
from .seal import read_all, write_all
from .strips import strips_of_tensor
from .synth import Spec
from .synth_blocks import RandomBlocks
from .tables import crc32c, tables
from .unfinished import check_space

FILLED = ("EMBED", "HEAD", "ROUTER")  # matrices that are not zero, besides all vectors
BLOCK = 1 << 22
POLYNOMIAL = 0x82F63B78  # of CRC32C, bits reversed


def times(a: int, b: int) -> int:
    """Product of two polynomials mod the CRC's; bit 31 is the coefficient of 1."""
    product = 0
    for _ in range(32):
        if a & 0x80000000:
            product ^= b
        a, b = a << 1 & 0xFFFFFFFF, b >> 1 ^ (POLYNOMIAL if b & 1 else 0)
    return product


def crc_of_zeros(size: int, before: int = 0) -> int:
    """CRC32C of so many zero bytes, going on from a CRC: times x to the power of 8 * size."""
    power, square, left = 0x80000000, 0x00800000, size  # 1; x^8
    while left:
        if left & 1:
            power = times(power, square)
        square, left = times(square, square), left >> 1
    return times(before ^ 0xFFFFFFFF, power) ^ 0xFFFFFFFF


class SparseSum:
    """CRC32C and SHA-256 of stretches of a file, some of them holes."""

    def __init__(self) -> None:
        self.crc = 0
        self._sha = hashlib.sha256()

    def data(self, block: bytes) -> None:
        """Bytes."""
        self.crc = crc32c(block, self.crc)
        self._sha.update(block)

    def hole(self, size: int) -> None:
        """Zeros."""
        self.crc = crc_of_zeros(size, self.crc)
        zeros = memoryview(bytes(min(size, BLOCK)))
        for at in range(0, size, BLOCK):
            self._sha.update(zeros[: min(BLOCK, size - at)])

    def half(self) -> bytes:
        """What the tables keep of the SHA-256."""
        return self._sha.digest()[:16]


def filled(tensor: Tensor) -> bool:
    """Whether its bytes are written."""
    return tensor.vector or tensor.role in FILLED


def write_sparse_blob(path: Path, spec: Spec, kinds: Kinds, seed: int = 1, overwrite: bool = False) -> Written:
    """Write it; `path` appears only when it is complete."""
    layout, source = Layout(spec.model(), kinds, {}), RandomBlocks(seed, spec.model())
    resident = [tensor for tensor in layout.tensors if not tensor.expert]
    check_target(path, overwrite)
    check_space(path.parent, sum(tensor.bytes for tensor in resident if filled(tensor)))
    part = path.with_name(path.name + ".part")
    try:
        handle = os.open(part, os.O_RDWR | os.O_CREAT | os.O_TRUNC, 0o644)
    except OSError as error:
        raise InputError(f"{part}: cannot be written ({error.strerror}); choose another place") from None
    try:
        os.ftruncate(handle, layout.file_bytes)
        for tensor in filter(filled, resident):
            for strip in strips_of_tensor(tensor):
                write_all(handle, memoryview(source.packed(strip)), strip.offset)
        image = tables(layout, *sums_of(handle, layout, resident))
        write_all(handle, image, 0)
    finally:
        os.close(handle)
    part.replace(path)
    identity = bytes(ffi().from_buffer("colibri_blob_header *", image).identity).hex()
    return Written(path, identity, layout.file_bytes, layout)


def sums_of(
    handle: int, layout: Layout, resident: list[Tensor]
) -> tuple[dict[tuple[int, str], SparseSum], list[SparseSum]]:
    """The sums of tensors and of experts; those of the section go into the layout."""
    section = next(section for section in layout.sections if section.type == "RESIDENT")
    with ThreadPoolExecutor(2) as pool:
        whole = pool.submit(_sum, handle, list(_stretches(resident, section.offset, section.bytes)))
        sizes = {tensor.bytes for tensor in resident if not filled(tensor)} | {run.bytes for run in layout.runs}
        holes = {size: pool.submit(_sum, handle, [(-1, size)]) for size in sizes}
        tensors = {
            (tensor.layer, tensor.role): _sum(handle, [(tensor.offset, tensor.bytes)])
            if filled(tensor) else holes[tensor.bytes].result()
            for tensor in resident
        }  # fmt: skip
        section.crc, section.digest = whole.result().crc, whole.result().half()
        return tensors, [holes[run.bytes].result() for run in layout.runs for _ in range(run.experts)]


def _stretches(resident: list[Tensor], offset: int, size: int) -> Iterator[tuple[int, int]]:
    """(offset, or -1 for a hole, and bytes) of the whole section."""
    at = offset
    for tensor in sorted(filter(filled, resident), key=lambda tensor: tensor.offset):
        if tensor.offset > at:
            yield -1, tensor.offset - at
        yield tensor.offset, tensor.bytes
        at = tensor.offset + tensor.bytes
    if offset + size > at:
        yield -1, offset + size - at


def _sum(handle: int, stretches: list[tuple[int, int]]) -> SparseSum:
    total = SparseSum()
    for offset, size in stretches:
        if offset < 0:
            total.hole(size)
            continue
        for at in range(offset, offset + size, BLOCK):
            total.data(read_all(handle, at, min(BLOCK, offset + size - at)))
    return total
