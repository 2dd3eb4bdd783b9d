"""Numbers that look random and are the same on every machine and with every numpy version.

numpy promises no stable stream for its normal distributions, and their logarithms differ between
instruction sets. Here every number is a hash of (seed, name, index), made of integer operations and one
exact scaling only, so that a checkpoint can be pinned by its SHA-256.
"""

from __future__ import annotations

import hashlib
import math

import numpy as np

_STEP = np.uint64(0x9E3779B97F4A7C15)
_CHUNK = 1 << 20


def stream(seed: int, name: str) -> int:
    """The 64-bit start of the stream that belongs to one named tensor."""
    digest = hashlib.sha256(f"{seed}/{name}".encode()).digest()
    return int.from_bytes(digest[:8], "little")


def bits(start: int, first: int, count: int) -> np.ndarray:
    """Values first .. first+count-1 of a stream as uint64 (the finaliser of SplitMix64 over a counter)."""
    index = np.arange(first + 1, first + count + 1, dtype=np.uint64)
    with np.errstate(over="ignore"):
        z = np.uint64(start) + index * _STEP
        z = (z ^ (z >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
        z = (z ^ (z >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return z ^ (z >> np.uint64(31))


# The sum of four uniform 16-bit numbers: mean 2 * 65535, variance 4 * (65536^2 - 1) / 12.
_MEAN = 2 * 65535
_SCALE = 1.0 / math.sqrt((65536.0**2 - 1.0) / 3.0)


def bell(seed: int, name: str, shape: tuple[int, ...], scale: float = 1.0) -> np.ndarray:
    """float32 numbers of mean 0 and standard deviation `scale`, bell-shaped, never beyond 3.47 deviations."""
    start = stream(seed, name)
    total = math.prod(shape)
    out = np.empty(total, dtype=np.float32)
    for first in range(0, total, _CHUNK):
        count = min(_CHUNK, total - first)
        quarters = bits(start, first, count).view(np.uint16).reshape(count, 4)
        centred = quarters.sum(axis=1, dtype=np.int64) - _MEAN
        out[first : first + count] = centred * (_SCALE * scale)
    return out.reshape(shape)


def integers(seed: int, name: str, count: int, below: int) -> list[int]:
    """`count` integers in 0 .. below-1."""
    return [int(v) for v in bits(stream(seed, name), 0, count) % np.uint64(below)]
