"""Checkpoints of safetensors files, read by byte range in strips of rows.

Every file's header is checked before a byte of it is used: lengths, types, shapes, ranges, overlaps. Memory
holds one strip at a time, so it does not grow with the checkpoint.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from .errors import ConvertError
from .profile import Profile
from .source import ByteFile, Folder, Source
from .strict_json import parse_json

HEADER_LIMIT = 100_000_000  # the limit of the format's own library
RANK_LIMIT = 8
SINGLE = "model.safetensors"
INDEX = "model.safetensors.index.json"
WIDTH = {"F32": 4, "F16": 2, "BF16": 2}
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
# (what wraps a text model's names inside a larger model, what stands there in a text model alone)
WRAPPINGS = (
    ("model.language_model.", "model."),
    ("language_model.model.", "model."),
    ("language_model.lm_head.", "lm_head."),
)


class MissingTensor(ConvertError):
    """A tensor that the model needs is not there."""


@dataclass(frozen=True)
class Entry:
    """One tensor of a safetensors file."""

    name: str
    file: ByteFile
    dtype: str
    shape: tuple[int, ...]
    begin: int  # in the file
    end: int


def read_entries(file: ByteFile) -> list[Entry]:
    """The checked header of one file."""
    if file.size < 8:
        raise ConvertError(
            f"{file}: has {file.size} bytes, a safetensors file has at least 8; fetch it again"
        )
    length = int.from_bytes(file.read(0, 8), "little")
    if length > min(HEADER_LIMIT, file.size - 8):
        raise ConvertError(
            f"{file}: the header says it is {length} bytes long, the file has {file.size} and "
            f"the limit is {HEADER_LIMIT}; the file is damaged or cut short, fetch it again"
        )
    header = parse_json(file.read(8, length), f"{file} (header)")
    if not isinstance(header, dict):
        raise ConvertError(f"{file}: the header is not a JSON object; the file is damaged, fetch it again")
    entries = [
        _entry(file, name, value, 8 + length) for name, value in header.items() if name != "__metadata__"
    ]
    _check_ranges(file, entries, 8 + length)
    return entries


def _whole_numbers(value: Any, most: int) -> bool:
    return (
        isinstance(value, list)
        and len(value) <= most
        and all(isinstance(n, int) and not isinstance(n, bool) and 0 <= n < 1 << 63 for n in value)
    )


def _entry(path: ByteFile, name: str, value: Any, base: int) -> Entry:
    size = path.size
    if not isinstance(value, dict) or set(value) != {"dtype", "shape", "data_offsets"}:
        raise ConvertError(
            f"{path}: tensor {name!r}: expected dtype, shape and data_offsets; fetch the file again"
        )
    dtype, shape, span = value["dtype"], value["shape"], value["data_offsets"]
    if not isinstance(dtype, str) or dtype not in {**WIDTH, **_OTHER}:
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
    needed = math.prod(shape) * (WIDTH.get(dtype) or _OTHER[dtype])
    if span[1] - span[0] != needed:
        raise ConvertError(
            f"{path}: tensor {name!r}: {dtype} of shape {shape} needs {needed} bytes, data_offsets "
            f"give {span[1] - span[0]}; the file is damaged, fetch it again"
        )
    return Entry(name, path, dtype, tuple(shape), base + span[0], base + span[1])


def _check_ranges(path: ByteFile, entries: Sequence[Entry], base: int) -> None:
    size, at, before = path.size, base, "the header"
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


def _index(source: Source) -> dict[str, str]:
    """Tensor name -> file name."""
    subject, where = source.subject(INDEX), source.document(INDEX).get("weight_map")
    if not isinstance(where, dict) or not all(isinstance(v, str) for v in where.values()):
        raise ConvertError(f"{subject}: has no weight_map from tensor names to file names; fetch it again")
    for name, file in where.items():
        if Path(file).name != file or not file.endswith(".safetensors"):
            raise ConvertError(
                f"{subject}: tensor {name!r} is in {file!r}; expected a .safetensors file of the folder"
            )
    return where


class Checkpoint:
    """All tensors of a source by name. A text model inside another one loses what wraps its names."""

    def __init__(self, source: Source | Path, profile: Profile | None = None) -> None:
        self.source = source if isinstance(source, Source) else Folder(source)
        self.profile = profile or Profile()
        self.entries: dict[str, Entry] = {}
        self.files: list[str] = []
        present = self.source.names()
        if SINGLE in present:
            self._add(SINGLE)
        elif INDEX in present:
            self._add_shards(_index(self.source), present)
        elif self.source.partial:
            raise self.source.missing(SINGLE)
        else:
            others = [name for suffix in (".bin", ".gguf") for name in present if name.endswith(suffix)]
            hint = f"; {others[0]} is another format, save the model as safetensors" if others else ""
            raise ConvertError(f"{self.source}: has neither {SINGLE} nor {INDEX}{hint}")
        self._unwrap()

    def _add(self, name: str) -> None:
        self.files.append(name)
        for entry in read_entries(self.source.open(name)):
            if entry.name in self.entries:
                raise ConvertError(
                    f"{entry.file}: tensor {entry.name!r} is in {self.entries[entry.name].file.name} too; "
                    "one of the two files is not of this checkpoint"
                )
            self.entries[entry.name] = entry

    def _add_shards(self, where: dict[str, str], present: Sequence[str]) -> None:
        for file in sorted(set(where.values())):
            if file not in present:
                raise self.source.missing(file)
            self._add(file)
        for name, file in where.items():
            if name not in self.entries or self.entries[name].file.name != file:
                raise ConvertError(
                    f"{self.source.subject(file)}: has no tensor {name!r}, {INDEX} says it has; "
                    "fetch both again"
                )
        for name, entry in self.entries.items():
            if name not in where:
                raise ConvertError(
                    f"{entry.file}: tensor {name!r} is not in {INDEX}; the two do not belong together"
                )

    def _unwrap(self) -> None:
        """Known wrappings of a text model's names are taken off; entries keep the names of the file."""
        plain: dict[str, Entry] = {}
        for name, entry in self.entries.items():
            bare = name
            for wrapping, inside in WRAPPINGS:
                if name.startswith(wrapping):
                    bare = inside + name.removeprefix(wrapping)
                    break
            if bare in plain:
                raise ConvertError(
                    f"{entry.file}: tensor {name!r} means the same as {plain[bare].name!r}; "
                    "the checkpoint holds two text models, split it"
                )
            plain[bare] = entry
        self.entries = plain

    def expect(self, name: str, shape: tuple[int, ...], types: Sequence[str] = tuple(WIDTH)) -> Entry:
        """A tensor that must be there in this shape, of floats unless other types are given."""
        if name not in self.entries:
            raise MissingTensor(
                f"{self.source}: tensor {name!r} is missing; config.json describes a model that needs "
                f"it in shape {list(shape)}"
            )
        entry = self.entries[name]
        if entry.dtype not in types:
            expected = "F32, F16 or BF16" if "F32" in types else " or ".join(types)
            raise ConvertError(
                f"{entry.file}: tensor {entry.name!r} has dtype {entry.dtype}; expected {expected}"
            )
        if entry.shape != shape:
            raise ConvertError(
                f"{entry.file}: tensor {entry.name!r} has shape {list(entry.shape)}, config.json says "
                f"{list(shape)}; weights and config do not belong together"
            )
        return entry

    def floats(self, entry: Entry, first: int, count: int) -> np.ndarray:
        """`count` numbers from number `first` on, widened to float32."""
        width = WIDTH[entry.dtype]
        with self.profile("read"):
            raw = entry.file.read(entry.begin + first * width, count * width)
        with self.profile("widen"):
            if entry.dtype == "F32":
                return np.frombuffer(raw, dtype="<f4").astype(np.float32, copy=False)
            if entry.dtype == "F16":
                return np.frombuffer(raw, dtype="<f2").astype(np.float32)
            wide = np.frombuffer(raw, dtype="<u2").astype(np.uint32)
            wide <<= 16
            return wide.view(np.float32)

    def close(self) -> None:
        """Give the file handles back."""
        self.source.close()

    def __enter__(self) -> Checkpoint:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
