"""Writing a blob: one pass over the weights in strips, tables last, beside the target and renamed.

The bytes depend on the description, the weights and the texts alone, never on the host, the strip size or the
number of threads.
"""

from __future__ import annotations

import errno
import os
import shutil
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO, Protocol

import numpy as np

from .description import Model
from .errors import ConvertError, DoesNotFit, InputError, InternalError
from .format import Kinds, Layout, Section, Tensor, kind_value, packed_bytes
from .library import constants, ffi, load
from .tables import Sum, tables

STRIP_BYTES = 8 << 20  # float32 bytes of one strip of rows
HALF_LIMIT = 65504.0  # the largest finite float16

Progress = Callable[[int, int, str], None]


class Source(Protocol):
    """Where weights come from."""

    def rows(self, tensor: Tensor, expert: int, first: int, count: int) -> np.ndarray:
        """float32 [count, columns] of one matrix (a vector is one row)."""

    def name(self, tensor: Tensor, expert: int) -> str:
        """What a sentence calls this matrix."""


@dataclass(frozen=True)
class Written:
    """A finished blob."""

    path: Path
    identity: str
    file_bytes: int
    layout: Layout


def _finite(values_: np.ndarray, name: str, first: int) -> None:
    if np.isfinite(values_).all():
        return
    row, column = (int(v) for v in np.argwhere(~np.isfinite(values_))[0])
    raise ConvertError(
        f"{name}: row {first + row}, column {column} is {values_[row, column]}; expected a finite "
        "number: the checkpoint is damaged or overflowed while it was trained"
    )


def _pack(source: Source, tensor: Tensor, expert: int, first: int, count: int) -> bytearray:
    """One strip of a matrix in its tiles, or a whole vector."""
    name = source.name(tensor, expert)
    strip = np.ascontiguousarray(source.rows(tensor, expert, first, count), dtype=np.float32)
    if strip.shape != (count, tensor.columns):
        raise InternalError(f"{name}: the source gave {strip.shape}, asked were {(count, tensor.columns)}")
    if tensor.vector:
        _finite(strip, name, first)
        return bytearray(strip.astype("<f4").tobytes())
    if tensor.kind == "f16":
        _finite(strip, name, first)
        largest = float(np.abs(strip).max())
        if largest > HALF_LIMIT:
            raise ConvertError(
                f"{name}: a weight of {largest:g} does not fit into f16 (up to {HALF_LIMIT:g}); "
                "choose q8 or f32"
            )
    out = bytearray(packed_bytes(tensor.kind, count, tensor.columns))
    cffi = ffi()
    status = load().colibri_pack(
        kind_value(tensor.kind),
        count,
        tensor.columns,
        cffi.from_buffer("float[]", strip),
        cffi.from_buffer(out),
    )
    if status == constants().ERROR_NOT_FINITE:
        _finite(strip, name, first)
    if status != constants().OK:
        raise InternalError(f"{name}: colibri_pack returned {status}")
    return out


def _strips(tensor: Tensor) -> Iterator[tuple[int, int]]:
    """(first row, rows) of strips that begin at multiples of 16."""
    step = max(16, STRIP_BYTES // (4 * tensor.columns) // 16 * 16)
    for first in range(0, tensor.rows, step):
        yield first, min(step, tensor.rows - first)


class _Writer:
    """Everything behind the tables, in file order."""

    def __init__(
        self, out: BinaryIO, layout: Layout, source: Source, progress: Progress | None, threads: int
    ) -> None:
        self.out, self.layout, self.source = out, layout, source
        self.progress, self.threads = progress, threads
        self.tensor_sums: dict[tuple[int, str], Sum] = {}
        self.expert_sums: list[Sum] = []
        self.at = layout.tables_bytes

    def _emit(self, data: Any, *sums: Sum) -> None:
        for one in sums:
            one.add(data)
        self.out.write(data)
        self.at += len(data)

    def _pad_to(self, offset: int, *sums: Sum) -> None:
        if offset < self.at:
            raise InternalError(f"the layout overlaps at byte {offset}: {self.at} bytes are written")
        if offset > self.at:
            self._emit(bytes(offset - self.at), *sums)

    def _jobs(self) -> Iterator[tuple[Tensor, int, int, int]]:
        for tensor in self.layout.tensors:
            if not tensor.expert:
                for first, count in _strips(tensor):
                    yield tensor, 0, first, count
        for run in self.layout.runs:
            for expert in range(run.experts):
                for tensor in run.tensors:
                    for first, count in _strips(tensor):
                        yield tensor, expert, first, count

    def _packed(self) -> Iterator[tuple[Tensor, int, int, bytearray]]:
        """The strips in file order, packed ahead of time by a few threads."""
        with ThreadPoolExecutor(self.threads) as pool:
            waiting: list[tuple[tuple[Tensor, int, int, int], Future[bytearray]]] = []
            jobs = self._jobs()
            try:
                while True:
                    while len(waiting) < 2 * self.threads and (job := next(jobs, None)) is not None:
                        waiting.append((job, pool.submit(_pack, self.source, *job)))
                    if not waiting:
                        return
                    job, future = waiting.pop(0)
                    yield job[0], job[1], job[2], future.result()
            finally:
                for _, future in waiting:
                    future.cancel()

    def weights(self) -> None:
        """RESIDENT and EXPERTS."""
        sections = {section.type: section for section in self.layout.sections}
        resident, experts = sections["RESIDENT"], sections.get("EXPERTS")
        whole, run_at = Sum(), {run.layer: run for run in self.layout.runs}
        with closing(self._packed()) as strips:
            for tensor, expert, first, data in strips:
                if tensor.expert:
                    run = run_at[tensor.layer]
                    if tensor.role == run.tensors[0].role and first == 0:
                        self._close_expert(resident, whole)
                        self.expert_sums.append(Sum())
                    start = tensor.offset + expert * run.bytes
                    sums = [self.expert_sums[-1]]
                else:
                    own = self.tensor_sums.setdefault((tensor.layer, tensor.role), Sum())
                    start, sums = tensor.offset, [own, whole]
                if first == 0:
                    self._pad_to(start, sums[-1])
                self._emit(data, *sums)
                if self.progress:
                    self.progress(self.at, self.layout.file_bytes, tensor.label)
        self._close_expert(resident, whole)
        resident.crc, resident.digest = whole.crc, whole.half()
        if experts:
            self._pad_to(experts.offset + experts.bytes)

    def _close_expert(self, resident: Section, whole: Sum) -> None:
        """Zeros up to the next run, counted to the run that ends (or to RESIDENT before the first one)."""
        if not self.expert_sums:
            self._pad_to(resident.offset + resident.bytes, whole)
            return
        number = len(self.expert_sums) - 1
        for run in self.layout.runs:
            if number < run.experts:
                self._pad_to(run.offset + (number + 1) * run.bytes, self.expert_sums[-1])
                return
            number -= run.experts

    def texts(self) -> None:
        """The small sections behind the weights."""
        for section in self.layout.sections:
            if section.type in self.layout.texts:
                total = Sum()
                self._pad_to(section.offset)
                self._emit(self.layout.texts[section.type], total)
                self._pad_to(section.offset + section.bytes, total)
                section.crc, section.digest = total.crc, total.half()


def tables_only(model: Model, kinds: Kinds) -> tuple[bytes, int]:
    """Header and tables of a blob whose weights are not there, and its size: enough for open and plan."""
    layout = Layout(model, kinds, {})
    none = [Sum() for run in layout.runs for _ in range(run.experts)]
    return tables(layout, {}, none), layout.file_bytes


def check_space(folder: Path, needed: int) -> None:
    """Refuse before the work when the disk cannot hold the result."""
    free = shutil.disk_usage(folder).free
    if free < needed:
        raise DoesNotFit(
            f"{folder}: {free} bytes are free, the blob needs {needed}; make room or choose another "
            "folder or smaller --weights"
        )


def write_blob(
    output: Path,
    model: Model,
    kinds: Kinds,
    source: Source,
    texts: dict[str, bytes] | None = None,
    progress: Progress | None = None,
    overwrite: bool = False,
    threads: int | None = None,
) -> Written:
    """Write a blob; `output` appears only when it is complete."""
    output = Path(output)
    if not output.parent.is_dir():
        raise InputError(f"{output.parent}: no such folder; make it first")
    if output.exists() and not overwrite:
        raise InputError(f"{output}: exists already; choose another name or give --overwrite")
    layout = Layout(model, kinds, texts or {})
    check_space(output.parent, layout.file_bytes)
    partial = output.with_name(f".{output.name}.{os.getpid()}.part")
    try:
        with open(partial, "wb") as out:
            out.write(bytes(layout.tables_bytes))
            writer = _Writer(out, layout, source, progress, threads or min(2, os.cpu_count() or 1))
            writer.weights()
            writer.texts()
            if writer.at != layout.file_bytes:
                raise InternalError(
                    f"{output}: {writer.at} bytes written, the layout says {layout.file_bytes}"
                )
            image = tables(layout, writer.tensor_sums, writer.expert_sums)
            out.seek(0)
            out.write(image)
            out.flush()
            os.fsync(out.fileno())
        os.replace(partial, output)
    except OSError as error:
        kind = DoesNotFit if error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG) else InputError
        raise kind(
            f"{output}: cannot be written ({error.strerror}); make room or choose another folder"
        ) from error
    finally:
        partial.unlink(missing_ok=True)
    header = ffi().from_buffer("colibri_blob_header *", image)
    return Written(output, bytes(header.identity).hex(), layout.file_bytes, layout)
