"""The last pass over a blob whose weights are in place: sums of every part, texts, then the tables.

All blobs pass here, whatever way their strips came: made in one go, after an interruption, or out of parts.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

from .errors import InternalError
from .format import Layout
from .tables import Sum, tables

BLOCK = 1 << 20


def write_all(handle: int, data: bytes | bytearray | memoryview, offset: int) -> None:
    """Every byte of data at an offset."""
    view = memoryview(data)
    while view:
        done = os.pwrite(handle, view, offset)
        view, offset = view[done:], offset + done


def read_all(handle: int, offset: int, size: int) -> bytes:
    """`size` bytes at an offset of a file that has them."""
    data = os.pread(handle, size, offset)
    while len(data) < size:
        more = os.pread(handle, size - len(data), offset + len(data))
        if not more:
            raise InternalError(f"the unfinished file ends at byte {offset + len(data)}")
        data += more
    return data


def seal(
    handle: int, layout: Layout, threads: int, report: Callable[[int, int], None]
) -> Callable[[], bytes]:
    """Write texts into a blob of complete weights and sum up everything. Returns what writes the tables and returns
    them: again after a change of the description that moves nothing."""
    for section in layout.sections:
        if section.type in layout.texts:
            write_all(handle, layout.texts[section.type], section.offset)
    sections = [s for s in layout.sections if s.type == "RESIDENT" or s.type in layout.texts]
    resident = [tensor for tensor in layout.tensors if not tensor.expert]
    spans = [(section.offset, section.bytes) for section in sections]
    spans += [(tensor.offset, tensor.bytes) for tensor in resident]
    spans += [(run.offset + e * run.bytes, run.bytes) for run in layout.runs for e in range(run.experts)]
    total, done, sums = sum(size for _, size in spans), 0, []
    with ThreadPoolExecutor(threads) as pool:
        for (_, size), one in zip(spans, pool.map(lambda span: _sum(handle, *span), spans), strict=True):
            sums.append(one)
            done += size
            report(done, total)
    for section, one in zip(sections, sums, strict=False):
        section.crc, section.digest = one.crc, one.half()
    of_tensors = sums[len(sections) : len(sections) + len(resident)]
    by_tensor = {(t.layer, t.role): one for t, one in zip(resident, of_tensors, strict=True)}
    of_experts = sums[len(sections) + len(resident) :]

    def write() -> bytes:
        image = tables(layout, by_tensor, of_experts)
        write_all(handle, image, 0)
        return image

    return write


def _sum(handle: int, offset: int, size: int) -> Sum:
    total, end = Sum(), offset + size
    for at in range(offset, end, BLOCK):
        total.add(read_all(handle, at, min(BLOCK, end - at)))
    return total
