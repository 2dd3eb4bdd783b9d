"""Writing safetensors files byte for byte: bfloat16 without torch, streaming, and always the same bytes.

The library's numpy side knows no bfloat16 and wants a whole file in memory; reading stays with the library.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import NamedTuple

import numpy as np

_BYTES = {"F32": 4, "BF16": 2, "F16": 2, "F8_E4M3": 1, "U8": 1}


class Entry(NamedTuple):
    """One tensor to write: its data is asked for only when its turn comes."""

    name: str
    shape: tuple[int, ...]
    dtype: str
    data: Callable[[], np.ndarray]

    def size(self) -> int:
        """Bytes of the tensor in the file."""
        return math.prod(self.shape) * _BYTES[self.dtype]


def to_bf16(values: np.ndarray) -> np.ndarray:
    """float32 to bfloat16 as uint16, nearest, ties to even."""
    raw = np.ascontiguousarray(values, dtype=np.float32).view(np.uint32)
    if not np.isfinite(values).all():
        raise ValueError("a tensor to be rounded to bfloat16 holds a value that is not finite")
    return ((raw + 0x7FFF + ((raw >> 16) & 1)) >> 16).astype(np.uint16)


def from_bf16(raw: np.ndarray) -> np.ndarray:
    """bfloat16 as uint16 to float32, exact."""
    return (raw.astype(np.uint32) << 16).view(np.float32)


def encode(values: np.ndarray, dtype: str) -> bytes:
    """The little-endian bytes of float32 values in a safetensors dtype."""
    if dtype == "BF16":
        return to_bf16(values).astype("<u2").tobytes()
    if _BYTES[dtype] == 1:  # codes as they are
        return np.ascontiguousarray(values, dtype=np.uint8).tobytes()
    return np.ascontiguousarray(values).astype({"F32": "<f4", "F16": "<f2"}[dtype]).tobytes()


def write(path: Path, entries: Iterable[Entry]) -> None:
    """Write one safetensors file; only one tensor is in memory at a time."""
    listed = list(entries)
    header: dict[str, object] = {"__metadata__": {"format": "pt"}}
    offset = 0
    for entry in listed:
        span = [offset, offset + entry.size()]
        header[entry.name] = {"dtype": entry.dtype, "shape": list(entry.shape), "data_offsets": span}
        offset = span[1]
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    with open(path, "wb") as out:
        out.write(len(text).to_bytes(8, "little") + text)
        for entry in listed:
            values = entry.data()
            if values.shape != entry.shape:
                raise ValueError(f"{entry.name}: announced as {entry.shape}, delivered as {values.shape}")
            out.write(encode(values, entry.dtype))


def write_sharded(folder: Path, shards: list[list[Entry]]) -> None:
    """Write model-0000i-of-0000n.safetensors files and their index, as the hub does for big models."""
    where: dict[str, str] = {}
    for number, entries in enumerate(shards, 1):
        name = f"model-{number:05d}-of-{len(shards):05d}.safetensors"
        write(folder / name, entries)
        where.update({entry.name: name for entry in entries})
    total = sum(entry.size() for entries in shards for entry in entries)
    index = {"metadata": {"total_size": total}, "weight_map": where}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index, indent=1), encoding="utf-8")
