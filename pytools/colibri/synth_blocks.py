"""Random weights as packed blocks: tiles filled with random bytes at memory speed, nothing is quantized.

The stream of a matrix is the raw 64-bit output of PCG64, little-endian, seeded by SeedSequence with (seed,
words of SHA-256 of the matrix's name). It can be entered anywhere, so the bytes do not depend on strips.

q8, q4: the words are the tiles. Afterwards a scale becomes one of 32 neighbouring bfloat16 numbers around what
makes the weights' deviation right (in q4 with a random sign, since nibbles reach from -8 to 7), q8's -128 becomes
-127, and padding is what the format says. f32, f16: one word is one number, the sum of its four 16-bit parts
moved to mean 0 and deviation 1.
"""

from __future__ import annotations

import hashlib
import math

import numpy as np

from .description import Model, f32_bits
from .format import Tensor
from .strips import Strip
from .synth import plain_name, routes

STREAM = 1  # raised when the same seed gives other bytes
TILE_ROWS, GROUP, LINE = 16, 32, 64
HALF = {"q4": 256, "q8": 512}  # bytes of one group of a tile without its scales
ROOT_MEAN_SQUARE = {"q4": math.sqrt(21.5), "q8": math.sqrt(127 * 128 / 3)}  # of -8..7 and of -127..127
NEIGHBOURS = 32
BELL = math.sqrt((65536.0**2 - 1) / 3)  # deviation of the sum of four 16-bit numbers


def words(seed: int, name: str, first: int, count: int) -> np.ndarray:
    """`count` words of a matrix's stream from the `first` one on."""
    key = np.frombuffer(hashlib.sha256(name.encode()).digest()[:16], dtype="<u4")
    stream = np.random.PCG64(np.random.SeedSequence([seed, *(int(word) for word in key)]))
    return stream.advance(first).random_raw(count).astype("<u8", copy=False)


def bell(drawn: np.ndarray) -> np.ndarray:
    """float64 of mean 0 and deviation 1, one of every word."""
    parts = drawn.view("<u2").reshape(-1, 4).sum(axis=1, dtype=np.int64)
    return (parts - 2 * 65535) / BELL


def deviation(tensor: Tensor, tied: bool) -> float:
    """Of a matrix's weights: what keeps a product about as large as its input."""
    return 1.0 if tensor.role == "EMBED" and not tied else tensor.columns**-0.5


class RandomBlocks:
    """A source of packed strips for the blob writer."""

    def __init__(self, seed: int, model: Model) -> None:
        self.seed, self.model = seed, model

    def packed(self, strip: Strip) -> bytes | memoryview:
        """See strips.PackedSource."""
        tensor, name = strip.tensor, plain_name(strip.tensor, strip.expert)
        if tensor.role == "TOKEN_ROUTES":
            return routes(self.model.layers[tensor.layer], self.model.vocab, self.seed, name).astype("<f4").tobytes()
        if tensor.vector:
            drawn = bell(words(self.seed, name, 0, tensor.columns))
            mean = 1.0 if tensor.role.endswith("NORM") else 0.0
            return (mean + 0.1 * drawn).astype("<f4").tobytes()
        size = deviation(tensor, self.model.tied)
        tiles, first = -(-strip.count // TILE_ROWS), strip.first // TILE_ROWS
        if tensor.kind in HALF:
            each = strip.bytes // tiles // 8
            drawn = words(self.seed, name, first * each, tiles * each)
            return _quantized(drawn.view(np.uint8), strip, tiles, size).data.cast("B")
        each = TILE_ROWS * tensor.columns
        drawn = size * bell(words(self.seed, name, first * each, tiles * each))
        return _floats(drawn.reshape(tiles, tensor.columns, TILE_ROWS), strip).tobytes()


def _floats(drawn: np.ndarray, strip: Strip) -> np.ndarray:
    """f32 or f16 tiles: lanes and an odd last column padded with zero."""
    tiles, columns, _ = drawn.shape
    wide = columns + columns % 2 if strip.tensor.kind == "f16" else columns
    out = np.zeros((tiles, wide, TILE_ROWS), "<f2" if strip.tensor.kind == "f16" else "<f4")
    out[:, :columns] = drawn
    out[-1, :, strip.count - (tiles - 1) * TILE_ROWS :] = 0
    return out


def _quantized(raw: np.ndarray, strip: Strip, tiles: int, size: float) -> np.ndarray:
    """q8 or q4 tiles out of random bytes, in place."""
    kind, half = strip.tensor.kind, HALF[strip.tensor.kind]
    raw = raw.reshape(tiles, -1, 2 * half + LINE)
    if kind == "q8":
        signed = raw.view(np.int8)
        np.maximum(signed, -127, out=signed)
    drawn = raw[:, :, 2 * half :].view("<u2")
    middle = (f32_bits(size / ROOT_MEAN_SQUARE[kind]) >> 16) - NEIGHBOURS // 2
    sign = (drawn & 0x8000) if kind == "q4" else 0
    raw[:, :, 2 * half :] = (middle + (drawn & (NEIGHBOURS - 1)) | sign).astype("<u2").view(np.uint8)
    _pad_columns(raw, kind, half, strip.tensor.columns)
    _pad_lanes(raw[-1:], kind, half, strip.count - (tiles - 1) * TILE_ROWS)
    return raw


def _pad_columns(raw: np.ndarray, kind: str, half: int, columns: int) -> None:
    """The last pair of groups of every tile: columns that do not exist hold zero, absent groups scale zero."""
    before = (raw.shape[1] - 1) * 2 * GROUP
    if columns == before + 2 * GROUP:
        return
    pair = raw[:, -1]
    byte = np.arange(2 * half)
    if kind == "q8":
        column = before + byte // half * GROUP + byte % half // LINE * 4 + byte % 4
        pair[:, : 2 * half][:, column >= columns] = 0
    else:
        low = before + byte // half * GROUP + byte % half // LINE * 8 + byte % 4
        _blank(pair, low >= columns, low + 4 >= columns)
    if columns <= before + GROUP:
        pair[:, 2 * half + LINE // 2 :] = 0


def _pad_lanes(tile: np.ndarray, kind: str, half: int, lanes: int) -> None:
    """The last tile: rows that do not exist hold zero with scale zero."""
    if lanes == TILE_ROWS:
        return
    absent = np.arange(2 * half) % LINE // 4 >= lanes
    for pair in np.moveaxis(tile, 1, 0):
        if kind == "q8":
            pair[:, : 2 * half][:, absent] = 0
        else:
            _blank(pair, absent, absent)
        pair[:, 2 * half :].reshape(-1, 2, LINE // 2)[:, :, 2 * lanes :] = 0


def _blank(pair: np.ndarray, low: np.ndarray, high: np.ndarray) -> None:
    """Nibbles that mean zero."""
    bytes_of = pair[:, : low.size]
    bytes_of[:, low] = bytes_of[:, low] & 0xF0 | 0x08
    bytes_of[:, high] = bytes_of[:, high] & 0x0F | 0x80
