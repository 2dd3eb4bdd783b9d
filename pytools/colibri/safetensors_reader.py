"""Hugging Face folders of safetensors files, read by byte range in strips of rows.

Every file's header is checked before a byte of it is used: lengths, types, shapes, ranges, overlaps. Memory
holds one strip at a time, so it does not grow with the checkpoint.
"""

from __future__ import annotations

import json
import math
import os
import threading
from collections.abc import Sequence
from dataclasses import dataclass
from decimal import Decimal
from pathlib import Path
from typing import Any

import numpy as np

from .errors import ConvertError

HEADER_LIMIT = 100_000_000  # the limit of the format's own library
RANK_LIMIT = 8
SINGLE = "model.safetensors"
INDEX = "model.safetensors.index.json"
_WIDTH = {"F32": 4, "F16": 2, "BF16": 2}
_OTHER = {
    "F64": 8,
    "I64": 8,
    "I32": 4,
    "I16": 2,
    "I8": 1,
    "U64": 8,
    "U32": 4,
    "U16": 2,
    "U8": 1,
    "BOOL": 1,
    "F8_E4M3": 1,
    "F8_E5M2": 1,
}


@dataclass(frozen=True)
class Entry:
    """One tensor of a safetensors file."""

    name: str
    file: Path
    dtype: str
    shape: tuple[int, ...]
    begin: int  # in the file
    end: int


def parse_json(text: bytes | str, subject: str, fraction: type = Decimal) -> Any:
    """JSON without duplicate keys, fractions exact; what is wrong is said in one sentence."""

    def unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        made: dict[str, Any] = {}
        for key, value in pairs:
            if key in made:
                raise ConvertError(
                    f"{subject}: {key!r} stands there twice; the file is damaged, fetch it again"
                )
            made[key] = value
        return made

    try:
        return json.loads(text, object_pairs_hook=unique, parse_float=fraction)
    except (ValueError, RecursionError) as error:
        raise ConvertError(f"{subject}: is not JSON ({error}); the file is damaged, fetch it again") from None


def read_entries(path: Path) -> list[Entry]:
    """The checked header of one file."""
    try:
        with open(path, "rb") as file:
            size = os.fstat(file.fileno()).st_size
            head = file.read(8)
            if len(head) < 8:
                raise ConvertError(
                    f"{path}: has {size} bytes, a safetensors file has at least 8; fetch it again"
                )
            length = int.from_bytes(head, "little")
            if length > min(HEADER_LIMIT, size - 8):
                raise ConvertError(
                    f"{path}: the header says it is {length} bytes long, the file has {size} and "
                    f"the limit is {HEADER_LIMIT}; the file is damaged or cut short, fetch it again"
                )
            text = file.read(length)
    except OSError as error:
        raise ConvertError(f"{path}: cannot be read ({error.strerror}); check the folder") from None
    header = parse_json(text, f"{path} (header)")
    if not isinstance(header, dict):
        raise ConvertError(f"{path}: the header is not a JSON object; the file is damaged, fetch it again")
    entries = [
        _entry(path, name, value, 8 + length, size)
        for name, value in header.items()
        if name != "__metadata__"
    ]
    _check_ranges(path, entries, 8 + length, size)
    return entries


def _whole_numbers(value: Any, most: int) -> bool:
    return (
        isinstance(value, list)
        and len(value) <= most
        and all(isinstance(n, int) and not isinstance(n, bool) and 0 <= n < 1 << 63 for n in value)
    )


def _entry(path: Path, name: str, value: Any, base: int, size: int) -> Entry:
    if not isinstance(value, dict) or set(value) != {"dtype", "shape", "data_offsets"}:
        raise ConvertError(
            f"{path}: tensor {name!r}: expected dtype, shape and data_offsets; fetch the file again"
        )
    dtype, shape, span = value["dtype"], value["shape"], value["data_offsets"]
    if not isinstance(dtype, str) or dtype not in {**_WIDTH, **_OTHER}:
        raise ConvertError(
            f"{path}: tensor {name!r}: dtype {dtype!r} is not known; expected F32, F16 or BF16"
        )
    if not _whole_numbers(shape, RANK_LIMIT):
        raise ConvertError(
            f"{path}: tensor {name!r}: shape {shape!r}; expected up to {RANK_LIMIT} whole numbers"
        )
    if not _whole_numbers(span, 2) or len(span) != 2 or span[0] > span[1]:
        raise ConvertError(f"{path}: tensor {name!r}: data_offsets {span!r}; expected a begin and an end")
    if span[1] > size - base:
        raise ConvertError(
            f"{path}: tensor {name!r} ends at byte {base + span[1]}, the file has {size}; it was cut "
            "short, fetch it again"
        )
    needed = math.prod(shape) * (_WIDTH.get(dtype) or _OTHER[dtype])
    if span[1] - span[0] != needed:
        raise ConvertError(
            f"{path}: tensor {name!r}: {dtype} of shape {shape} needs {needed} bytes, data_offsets "
            f"give {span[1] - span[0]}; the file is damaged, fetch it again"
        )
    return Entry(name, path, dtype, tuple(shape), base + span[0], base + span[1])


def _check_ranges(path: Path, entries: Sequence[Entry], base: int, size: int) -> None:
    at, before = base, "the header"
    for entry in sorted(entries, key=lambda e: (e.begin, e.end)):
        if entry.begin < at:
            raise ConvertError(
                f"{path}: tensor {entry.name!r} begins at byte {entry.begin}, inside {before} (up to "
                f"{at}); the file is damaged, fetch it again"
            )
        if entry.begin > at:
            raise ConvertError(
                f"{path}: {entry.begin - at} bytes before tensor {entry.name!r} belong to no tensor; "
                "the file is damaged, fetch it again"
            )
        at, before = entry.end, f"tensor {entry.name!r}"
    if at != size:
        raise ConvertError(
            f"{path}: has {size} bytes, its tensors end at byte {at}; the file is damaged, fetch it again"
        )


def _index(folder: Path) -> dict[str, str]:
    """Tensor name -> file name."""
    path = folder / INDEX
    try:
        index = parse_json(path.read_bytes(), str(path))
    except OSError as error:
        raise ConvertError(f"{path}: cannot be read ({error.strerror}); check the folder") from None
    where = index.get("weight_map") if isinstance(index, dict) else None
    if not isinstance(where, dict) or not all(isinstance(v, str) for v in where.values()):
        raise ConvertError(f"{path}: has no weight_map from tensor names to file names; fetch it again")
    for name, file in where.items():
        if Path(file).name != file or not file.endswith(".safetensors"):
            raise ConvertError(
                f"{path}: tensor {name!r} is in {file!r}; expected a .safetensors file of the folder"
            )
    return where


class Checkpoint:
    """All tensors of a folder by name."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.entries: dict[str, Entry] = {}
        self._files: dict[Path, int] = {}
        self._lock = threading.Lock()
        if (folder / SINGLE).is_file():
            self._add(folder / SINGLE)
        elif (folder / INDEX).is_file():
            self._add_shards(_index(folder))
        else:
            others = sorted(p.name for p in folder.glob("*.bin")) + sorted(
                p.name for p in folder.glob("*.gguf")
            )
            hint = f"; {others[0]} is another format, save the model as safetensors" if others else ""
            raise ConvertError(f"{folder}: has neither {SINGLE} nor {INDEX}{hint}")

    def _add(self, path: Path) -> None:
        for entry in read_entries(path):
            if entry.name in self.entries:
                raise ConvertError(
                    f"{path}: tensor {entry.name!r} is in {self.entries[entry.name].file.name} too; "
                    "one of the two files is not of this checkpoint"
                )
            self.entries[entry.name] = entry

    def _add_shards(self, where: dict[str, str]) -> None:
        for file in sorted(set(where.values())):
            if not (self.folder / file).is_file():
                raise ConvertError(f"{self.folder / file}: is missing, {INDEX} names it; fetch it again")
            self._add(self.folder / file)
        for name, file in where.items():
            if name not in self.entries or self.entries[name].file.name != file:
                raise ConvertError(
                    f"{self.folder / file}: has no tensor {name!r}, {INDEX} says it has; fetch both again"
                )
        for name, entry in self.entries.items():
            if name not in where:
                raise ConvertError(
                    f"{entry.file}: tensor {name!r} is not in {INDEX}; the two do not belong together"
                )

    def expect(self, name: str, shape: tuple[int, ...]) -> Entry:
        """A tensor of floats that must be there in this shape."""
        if name not in self.entries:
            raise ConvertError(
                f"{self.folder}: tensor {name!r} is missing; config.json describes a model that needs "
                f"it in shape {list(shape)}"
            )
        entry = self.entries[name]
        if entry.dtype not in _WIDTH:
            raise ConvertError(
                f"{entry.file}: tensor {name!r} has dtype {entry.dtype}; expected F32, F16 or BF16"
            )
        if entry.shape != shape:
            raise ConvertError(
                f"{entry.file}: tensor {name!r} has shape {list(entry.shape)}, config.json says "
                f"{list(shape)}; weights and config do not belong together"
            )
        return entry

    def floats(self, entry: Entry, first: int, count: int) -> np.ndarray:
        """`count` numbers from number `first` on, widened to float32."""
        width = _WIDTH[entry.dtype]
        raw = self._read(entry, entry.begin + first * width, count * width)
        if entry.dtype == "F32":
            return np.frombuffer(raw, dtype="<f4").astype(np.float32, copy=False)
        if entry.dtype == "F16":
            return np.frombuffer(raw, dtype="<f2").astype(np.float32)
        return (np.frombuffer(raw, dtype="<u2").astype(np.uint32) << 16).view(np.float32)

    def _read(self, entry: Entry, offset: int, size: int) -> bytes:
        with self._lock:
            if entry.file not in self._files:
                try:
                    self._files[entry.file] = os.open(entry.file, os.O_RDONLY | os.O_CLOEXEC)
                except OSError as error:
                    raise ConvertError(
                        f"{entry.file}: cannot be read ({error.strerror}); check the folder"
                    ) from None
            handle = self._files[entry.file]
        parts, got = [], 0
        while got < size:
            try:
                part = os.pread(handle, size - got, offset + got)
            except OSError as error:
                raise ConvertError(
                    f"{entry.file}: reading tensor {entry.name!r} failed at byte {offset + got} "
                    f"({error.strerror}); check the disk"
                ) from None
            if not part:
                raise ConvertError(
                    f"{entry.file}: ends at byte {offset + got} inside tensor {entry.name!r}; it "
                    "became shorter while it was read"
                )
            parts.append(part)
            got += len(part)
        return parts[0] if len(parts) == 1 else b"".join(parts)

    def close(self) -> None:
        """Give the file handles back."""
        with self._lock:
            for handle in self._files.values():
                os.close(handle)
            self._files.clear()

    def __enter__(self) -> Checkpoint:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
