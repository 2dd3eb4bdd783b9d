"""The bytes of a weight matrix: tiles of 16 output rows, lane = row (section 2), and the way back.

Readings taken where the page is open:
 1. A matrix is its tiles in row order; within a tile lines follow the columns. Nothing stands between
    tiles.
 2. The 2x16 scales after two groups are little-endian u16: 16 rows of the first group, then 16 rows of the
    second.
 3. f16: the page gives the line (16 rows x 2 columns) but no place in it. Taken: the half of column c, row
    r stands at byte 32c + 2r of the tile, which is the formula that section 6 gives for 16 rows of halves
    (K in f16), as the f32 and q8 planes of K also equal their weight tiles.
 4. f32: the float of column c, row r stands at byte 64c + 4r of the tile.
 5. A padding row of f32 or f16 is +0.
"""
from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

GROUP = 32
TILE_ROWS = 16
LINE = 64
PAIR_BYTES = {"q4": 576, "q8": 1088}  # two groups and their scales, of one tile


def _round_up(n: int, step: int) -> int:
    return -(-n // step) * step


def tile_bytes(kind: str, rows: int, cols: int) -> int:
    """Size of a packed matrix."""
    tiles = _round_up(rows, TILE_ROWS) // TILE_ROWS
    if kind in PAIR_BYTES:
        return tiles * (_round_up(cols, 2 * GROUP) // (2 * GROUP)) * PAIR_BYTES[kind]
    if kind == "f16":
        return tiles * (_round_up(cols, 2) // 2) * LINE
    if kind == "f32":
        return tiles * cols * LINE
    raise ValueError(f"tile kind: expected q4, q8, f16 or f32, found {kind!r}")


def _lines_q4(q: NDArray[np.int8]) -> NDArray[np.uint8]:
    """16 rows x 32 columns to 4 lines: column 8j+k low and 8j+4+k high, at byte 4r+k of line j."""
    nibbles = (q.astype(np.int16) + 8).astype(np.uint8).reshape(TILE_ROWS, 4, 2, 4)  # r, j, half, k
    both = nibbles[:, :, 0, :] | (nibbles[:, :, 1, :] << np.uint8(4))
    return np.ascontiguousarray(both.transpose(1, 0, 2)).reshape(-1)


def _lines_q8(q: NDArray[np.int8]) -> NDArray[np.uint8]:
    """16 rows x 32 columns to 8 lines: column 4j+k at byte 4r+k of line j."""
    return np.ascontiguousarray(q.reshape(TILE_ROWS, 8, 4).transpose(1, 0, 2)).view(np.uint8).reshape(-1)


def _group_q4(data: NDArray[np.uint8]) -> NDArray[np.int8]:
    both = data.reshape(4, TILE_ROWS, 4).transpose(1, 0, 2)  # r, j, k
    nibbles = np.stack([both & np.uint8(15), both >> np.uint8(4)], axis=2)
    return (nibbles.reshape(TILE_ROWS, GROUP).astype(np.int16) - 8).astype(np.int8)


def _group_q8(data: NDArray[np.uint8]) -> NDArray[np.int8]:
    return np.ascontiguousarray(data.view(np.int8).reshape(8, TILE_ROWS, 4).transpose(1, 0, 2)).reshape(
        TILE_ROWS, GROUP)


def _pack_quantized(kind: str, q: NDArray[np.int8], scale_bits: NDArray[np.uint16]) -> bytes:
    rows, width = q.shape
    groups = width // GROUP
    if width % GROUP or scale_bits.shape != (rows, groups):
        raise ValueError(f"{kind} tiles: expected q [rows, G*32] and scales [rows, G], found {q.shape} and "
                         f"{scale_bits.shape}")
    low, high = (-8, 7) if kind == "q4" else (-127, 127)
    if q.size and (q.min() < low or q.max() > high):
        raise ValueError(f"{kind} tiles: expected q in {low}..{high}, found {q.min()}..{q.max()}")
    pairs = (groups + 1) // 2
    all_q = np.zeros((_round_up(rows, TILE_ROWS), pairs * 2 * GROUP), dtype=np.int8)
    all_q[:rows, :width] = q
    all_scales = np.zeros((all_q.shape[0], pairs * 2), dtype="<u2")
    all_scales[:rows, :groups] = scale_bits
    lines = _lines_q4 if kind == "q4" else _lines_q8
    out = bytearray()
    for top in range(0, all_q.shape[0], TILE_ROWS):
        tile = slice(top, top + TILE_ROWS)
        for g in range(0, pairs * 2, 2):
            out += lines(all_q[tile, g * GROUP:(g + 1) * GROUP]).tobytes()
            out += lines(all_q[tile, (g + 1) * GROUP:(g + 2) * GROUP]).tobytes()
            out += np.ascontiguousarray(all_scales[tile, g:g + 2].T).tobytes()
    return bytes(out)


def _unpack_quantized(kind: str, data: bytes, rows: int, cols: int
                      ) -> tuple[NDArray[np.int8], NDArray[np.uint16]]:
    groups = -(-cols // GROUP)
    pairs = (groups + 1) // 2
    size = PAIR_BYTES[kind]
    half = (size - LINE) // 2
    group_of = _group_q4 if kind == "q4" else _group_q8
    tiles = _round_up(rows, TILE_ROWS) // TILE_ROWS
    raw = np.frombuffer(data, dtype=np.uint8).reshape(tiles, pairs, size)
    q = np.zeros((tiles * TILE_ROWS, pairs * 2 * GROUP), dtype=np.int8)
    scales = np.zeros((tiles * TILE_ROWS, pairs * 2), dtype=np.uint16)
    for t in range(tiles):
        tile = slice(t * TILE_ROWS, (t + 1) * TILE_ROWS)
        for p in range(pairs):
            block = raw[t, p]
            for i in range(2):
                g = 2 * p + i
                q[tile, g * GROUP:(g + 1) * GROUP] = group_of(block[i * half:(i + 1) * half])
            pair = np.frombuffer(block[2 * half:].tobytes(), dtype="<u2").reshape(2, TILE_ROWS)
            scales[tile, 2 * p:2 * p + 2] = pair.T
    if np.any(q[rows:]) or np.any(q[:, cols:]) or np.any(scales[rows:]) or np.any(scales[:, groups:]):
        raise ValueError(f"{kind} tiles: padding is not zero; expected q = 0 and scale 0x0000 outside "
                         f"{rows} x {cols}")
    return np.ascontiguousarray(q[:rows, :groups * GROUP]), np.ascontiguousarray(scales[:rows, :groups])


def pack_tiles(kind: str, values: NDArray, scale_bits: NDArray[np.uint16] | None = None) -> bytes:
    """Bytes of a matrix.

    q4, q8: values int8[rows, G*32], scale_bits uint16[rows, G]. f16: values uint16[rows, cols], the bits of
    the halves. f32: values float32[rows, cols].
    """
    values = np.asarray(values)
    wanted = {"q4": np.int8, "q8": np.int8, "f16": np.uint16, "f32": np.float32}.get(kind)
    if wanted is None:
        raise ValueError(f"tile kind: expected q4, q8, f16 or f32, found {kind!r}")
    if values.dtype != wanted or values.ndim != 2:
        raise ValueError(f"{kind} tiles: expected a matrix of {np.dtype(wanted)}, found "
                         f"{values.ndim}-dimensional {values.dtype}")
    if kind in PAIR_BYTES:
        if scale_bits is None:
            raise ValueError(f"{kind} tiles: scale_bits is missing; expected uint16[rows, G]")
        return _pack_quantized(kind, values, np.asarray(scale_bits, dtype=np.uint16))
    rows, cols = values.shape
    width = _round_up(cols, 2) if kind == "f16" else cols
    padded = np.zeros((_round_up(rows, TILE_ROWS), width), dtype="<u2" if kind == "f16" else "<f4")
    padded[:rows, :cols] = values
    return padded.reshape(-1, TILE_ROWS, width).transpose(0, 2, 1).tobytes()  # tile, column, row


def unpack_tiles(kind: str, data: bytes, rows: int, cols: int) -> NDArray | tuple[NDArray, NDArray]:
    """The inverse of pack_tiles: (q, scale_bits) for q4 and q8, else one matrix. Padding must be zero."""
    expected = tile_bytes(kind, rows, cols)
    if len(data) != expected:
        raise ValueError(f"{kind} tiles of {rows} x {cols}: expected {expected} bytes, found {len(data)}")
    if kind in PAIR_BYTES:
        return _unpack_quantized(kind, data, rows, cols)
    width = _round_up(cols, 2) if kind == "f16" else cols
    raw = np.frombuffer(data, dtype="<u2" if kind == "f16" else "<f4").reshape(-1, width, TILE_ROWS)
    full = raw.transpose(0, 2, 1).reshape(-1, width)
    if np.any(full[rows:]) or np.any(full[:, cols:]):
        raise ValueError(f"{kind} tiles: padding is not zero outside {rows} x {cols}")
    return np.ascontiguousarray(full[:rows, :cols]).astype(np.uint16 if kind == "f16" else np.float32)
