"""Known answers for base and kernels: exact where the answer is exact, bounded where it is not.

Inputs hold what models rarely do: subnormals, zeros of both signs, NaN and infinities, odd sizes. The functions under
test are not exported by the library, so core/base and core/kernels are built here as one, with gcc and with zig.
"""
from __future__ import annotations

import hashlib
import math
import random
import subprocess
import sys
from itertools import product
from pathlib import Path
from typing import Any

import cffi
import numpy as np
import pytest

from c.programs import BITS, HERE, ROOT, core_sources
from colibri.library import constants
from reference import quant, vecmath
from reference.matrix import Activation, Matrix

DECLARATIONS = """
void test_exp(const float *, float *, uint32_t);
void test_gates(const float *, float *, float *, uint32_t);
void test_sqrt_softplus(const float *, float *, uint32_t);
void test_ln_whole(const uint32_t *, float *, uint32_t);
void test_round_even(const float *, float *, uint32_t);
void test_sqrt(const float *, float *, uint32_t);
void test_turns(const uint32_t *, const uint64_t *, float *, float *, uint32_t);
void test_halves(const float *, uint16_t *, uint32_t);
void test_floats(const uint16_t *, float *, uint32_t);
void test_quantize_rows(const float *, uint32_t, uint32_t, int8_t *, float *, int32_t *, int32_t *);
void test_groups(const float *, uint32_t, uint32_t, int, int8_t *, uint16_t *, int32_t *);
void test_product(uint32_t, uint32_t, uint32_t, const uint8_t *, const float *, const int8_t *, const float *,
                  const int32_t *, float *);
uint64_t test_checked(int, uint64_t, uint64_t, int32_t *);
float colibri_sum16(const float *, uint32_t);
float colibri_sum16_squares(const float *, uint32_t);
int colibri_rms_norm(uint32_t, float *, const float *, const float *, uint32_t, float);
uint64_t colibri_packed_bytes(uint32_t, uint32_t, uint32_t);
int32_t colibri_pack(uint32_t, uint32_t, uint32_t, const float *, void *);
int32_t colibri_unpack(uint32_t, uint32_t, uint32_t, const void *, float *);
uint32_t colibri_crc32c(uint32_t, const void *, uint64_t);
typedef struct { uint32_t state[8]; uint64_t bytes; uint8_t block[64]; } colibri_sha256;
void colibri_sha256_start(colibri_sha256 *);
void colibri_sha256_add(colibri_sha256 *, const void *, uint64_t);
void colibri_sha256_end(colibri_sha256 *, uint8_t *);
void colibri_copy(void *, const void *, uint64_t);
void colibri_fill(void *, uint8_t, uint64_t);
void *own_memcpy(void *, const void *, size_t);
void *own_memmove(void *, const void *, size_t);
void *own_memset(void *, int, size_t);
int own_memcmp(const void *, const void *, size_t);
"""
COMPILERS = {"gcc": ["gcc", "-fno-tree-loop-distribute-patterns"],
             "zig": [sys.executable, "-m", "ziglang", "cc", "-fno-sanitize=undefined"]}
SPECIAL = np.array([0x00000000, 0x80000000, 0x00000001, 0x80000001, 0x007FFFFF, 0x00800000, 0x3F800000, 0xBF800000,
                    0x7F7FFFFF, 0xFF7FFFFF], dtype=np.uint32).view(np.float32)
PORTABLE = 1                            # colibri.h's number of the level that is compared with the reference
NOT_FINITE = np.array([0x7F800000, 0xFF800000, 0x7FC00000, 0xFFC00000, 0x7F800001, 0xFFBFFFFF],
                      dtype=np.uint32).view(np.float32)


class Kernels:
    """The built library; numpy arrays in, numpy arrays out."""

    def __init__(self, path: Path) -> None:
        self.ffi = cffi.FFI()
        self.ffi.cdef(DECLARATIONS)
        self.lib = self.ffi.dlopen(str(path))

    def pointer(self, array: np.ndarray) -> Any:
        """A C pointer to an array's first element."""
        kinds = {"f": "float", "b": "int8_t", "B": "uint8_t", "H": "uint16_t", "i": "int32_t", "I": "uint32_t",
                 "L": "uint64_t"}
        return self.ffi.cast(kinds[array.dtype.char] + " *", array.ctypes.data)

    def call(self, name: str, *arguments: Any) -> Any:
        """Call with arrays as pointers."""
        return getattr(self.lib, name)(*(self.pointer(a) if isinstance(a, np.ndarray) else a for a in arguments))

    def mapped(self, name: str, x: np.ndarray, out: type) -> np.ndarray:
        """A function of one array into one array."""
        y = np.empty(len(x), dtype=out)
        self.call(name, x, y, len(x))
        return y

    def packed(self, kind: str, w: np.ndarray) -> bytes:
        """colibri_pack."""
        number = getattr(constants(), "KIND_" + kind.upper())
        out = np.full(self.lib.colibri_packed_bytes(number, *w.shape), 0xEE, dtype=np.uint8)
        assert self.call("colibri_pack", number, *w.shape, w, self.ffi.from_buffer(out)) == 0
        return out.tobytes()


@pytest.fixture(scope="module", params=[pytest.param("gcc", marks=pytest.mark.slow), "zig"])
def kernels(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Kernels:
    """core/base and core/kernels by both compilers."""
    pytest.importorskip("ziglang", reason="ziglang is not installed: pip install ziglang")
    out = tmp_path_factory.mktemp("kernels") / f"{request.param}.so"
    renamed = [f"-D{name}=own_{name}" for name in ("memcpy", "memmove", "memset", "memcmp")]
    sources = [*core_sources("base", "kernels"), ROOT / "core" / "base" / "mem.c", HERE / "kernels_test.c"]
    command = [*COMPILERS[request.param], "-std=c99", "-O3", "-shared", "-fPIC", "-ffreestanding", "-fno-builtin",
               "-nostdlib", *BITS, *renamed, f"-I{ROOT / 'core'}", *map(str, sources), "-o", str(out)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-3000:]
    return Kernels(out)


def any_floats(count: int, seed: int) -> np.ndarray:
    """Finite float32 numbers of every exponent, subnormals and zeros among them."""
    bits = np.random.default_rng(seed).integers(0, 1 << 32, 2 * count, dtype=np.uint32)
    values = bits.view(np.float32)
    return values[np.isfinite(values)][:count].copy()


def weights(rows: int, columns: int, seed: int) -> np.ndarray:
    """Bell-shaped weights with groups that are zero, subnormal, tiny, huge, or hold a single number."""
    draw = np.random.default_rng(seed)
    w = draw.standard_normal((rows, columns)).astype(np.float32)
    scales = np.array([0, 2.0 ** -149, 2.0 ** -140, 2.0 ** -126, 2.0 ** -100, 1, 1, 1, 1e4, 1e30], dtype=np.float64)
    groups = -(-columns // 32)
    scale = scales[draw.integers(0, len(scales), (rows, groups))].repeat(32, axis=1)[:, :columns]
    w = (w * scale).astype(np.float32)
    w[draw.random((rows, columns)) < 0.02] = np.float32(-0.0)
    return w


def same_bits(a: np.ndarray, b: np.ndarray) -> bool:
    """Equal as bytes: zeros have signs."""
    return a.dtype == b.dtype and a.shape == b.shape and a.tobytes() == b.tobytes()


# ---- numbers ----


def test_every_half_to_float_and_back(kernels: Kernels) -> None:
    half = np.arange(65536, dtype=np.uint16)
    wide = kernels.mapped("test_floats", half, np.float32)
    right = half.view(np.float16).astype(np.float32)
    finite = np.isfinite(right)
    assert same_bits(wide[finite], right[finite])
    assert np.array_equal(np.isnan(wide), np.isnan(right)) and np.array_equal(np.isinf(wide), np.isinf(right))
    assert np.array_equal(np.signbit(wide), np.signbit(right))
    back = kernels.mapped("test_halves", wide, np.uint16)
    assert np.array_equal(back[finite], half[finite])
    sign = half & 0x8000
    assert np.array_equal(back[np.isinf(right)], (sign | 0x7BFF)[np.isinf(right)])
    assert np.array_equal(back[np.isnan(right)], (sign | 0x7E00)[np.isnan(right)])


def half_edges() -> np.ndarray:
    """Every half, every middle between two halves, and the float32 numbers next to both."""
    half = np.arange(0x7C00, dtype=np.uint16).view(np.float16).astype(np.float64)
    middles = ((half[:-1] + half[1:]) / 2).astype(np.float32)
    edges = np.concatenate([half.astype(np.float32), middles, np.array([65519.996, 65520, 65536, 1e38], np.float32)])
    bits = edges.view(np.uint32)
    around = np.concatenate([bits, bits + 1, np.maximum(bits, 1) - 1]).view(np.float32)
    around = around[np.isfinite(around)]
    return np.concatenate([around, -around])


def test_floats_to_halves_are_rounded_as_ieee_says_and_saturate(kernels: Kernels) -> None:
    x = np.concatenate([half_edges(), any_floats(100_000, 1), SPECIAL,
                        np.random.default_rng(2).standard_normal(100_000).astype(np.float32),
                        (np.random.default_rng(3).standard_normal(50_000) * 2.0 ** -18).astype(np.float32)])
    assert len(x) > 400_000
    with np.errstate(over="ignore"):
        right = x.astype(np.float16)
    right = np.where(np.isinf(right), np.copysign(np.float16(65504), right), right).astype(np.float16)
    assert same_bits(kernels.mapped("test_halves", x, np.uint16), right.view(np.uint16))


def test_exp_is_close_for_every_exponent(kernels: Kernels) -> None:
    draw = np.random.default_rng(4)
    exponents = np.arange(1, 134, dtype=np.uint32).repeat(300) << 23           # up to 2^6 .. 2^7
    x = (exponents | draw.integers(0, 1 << 23, len(exponents), dtype=np.uint32)).view(np.float32)
    x = np.concatenate([x, -x, np.linspace(-87, 88, 50_001, dtype=np.float32), SPECIAL])
    x = np.ascontiguousarray(x[(x >= -87) & (x <= 88)])
    found = kernels.mapped("test_exp", x, np.float32)
    error = max(abs(float(f) / math.exp(v) - 1) for f, v in zip(found, x.astype(np.float64), strict=True))
    assert error <= 1.5e-7, error
    beyond = np.array([-87.01, -1000, -3.4e38, -np.inf, 88.01, 1000, 3.4e38, np.inf], dtype=np.float32)
    ends = kernels.mapped("test_exp", np.array([-87] * 4 + [88] * 4, dtype=np.float32), np.float32)
    assert same_bits(kernels.mapped("test_exp", beyond, np.float32), ends)


def test_gates_at_their_ends(kernels: Kernels) -> None:
    x = np.concatenate([np.array([0, -0.0, 1, -1, 100, -100, 3e38, -3e38], np.float32), any_floats(20_000, 5)])
    sigmoid, silu = np.empty_like(x), np.empty_like(x)
    kernels.call("test_gates", x, sigmoid, silu, len(x))
    wide = x.astype(np.float64)
    right = 1 / (1 + np.exp(np.clip(-wide, -700, 700)))
    assert np.all(np.isfinite(sigmoid)) and np.all((sigmoid >= 0) & (sigmoid <= 1))
    near = np.abs(wide) < 80
    assert np.max(np.abs(sigmoid - right)[near] / right[near]) < 4e-7
    assert np.all(np.isfinite(silu)) and np.max(np.abs(silu - wide * right)[near]) < 2e-5
    assert silu[0] == 0 and sigmoid[0] == 0.5 and silu[4] == 100 and silu[6] == np.float32(3e38)


def test_the_root_of_softplus_is_close_never_zero_and_never_infinite(kernels: Kernels) -> None:
    border = np.float32(-20)
    ends = np.array([0, -0.0, border, np.nextafter(border, 2 * border), 3e38, -3e38], np.float32)
    x = np.concatenate([np.linspace(-174, 100, 200_001), np.linspace(-21, 21, 100_001), ends]).astype(np.float32)
    found = kernels.mapped("test_sqrt_softplus", x, np.float32)
    wide = x.astype(np.float64)
    right = np.sqrt(np.logaddexp(0.0, np.maximum(wide, -174)))
    assert np.abs(found / right - 1).max() < 2e-7
    assert np.isfinite(found).all() and (found > 0).all()
    assert same_bits(found, vecmath.sqrt_softplus(x))


def test_the_logarithm_of_whole_numbers_is_close(kernels: Kernels) -> None:
    near = [2**e + d for e in range(2, 32) for d in (-1, 0, 1)]   # 1 has no ratio
    n = np.concatenate([np.arange(1, 100_001), near, [2**32 - 1], 11585 * 2 ** np.arange(1, 18)]).astype(np.uint32)
    found = kernels.mapped("test_ln_whole", n, np.float32)
    right = np.log(n.astype(np.float64))
    assert np.abs(found[1:] / right[1:] - 1).max() < 2e-7 and found[0] == 0
    assert same_bits(found, vecmath.ln_whole(n))


def test_rounding_and_roots_are_exact(kernels: Kernels) -> None:
    halves = np.arange(-4001, 4002, dtype=np.float32) / 2
    bits = np.concatenate([halves, halves, halves]).view(np.uint32)
    bits[len(halves):2 * len(halves)] += 1
    x = np.concatenate([bits.view(np.float32), np.array([2097151.5, -2097151.5, 1e-40, -1e-40], np.float32)])
    assert np.array_equal(kernels.mapped("test_round_even", x, np.float32), np.rint(x))
    x = np.abs(np.concatenate([any_floats(50_000, 6), SPECIAL]))
    assert same_bits(kernels.mapped("test_sqrt", x, np.float32), np.sqrt(x))


def test_turns_are_right_at_any_position(kernels: Kernels) -> None:
    draw = random.Random(7)
    places = [draw.randrange(1 << draw.choice((7, 20, 32))) for _ in range(30_000)]
    fractions = [draw.randrange(1 << draw.choice((64, 60, 40))) for _ in places]
    edges = [(1 << 29) * k + d for k in range(9) for d in (-1, 0, 1)]          # where a quarter turn begins
    places += [1] * len(edges)
    fractions += [(edge % (1 << 32)) << 32 for edge in edges]
    position, fraction = np.array(places, dtype=np.uint32), np.array(fractions, dtype=np.uint64)
    cosine, sine = np.empty(len(places), np.float32), np.empty(len(places), np.float32)
    kernels.call("test_turns", position, fraction, cosine, sine, len(places))
    turns = [(p * f % (1 << 64)) / 2.0 ** 64 for p, f in zip(places, fractions, strict=True)]   # exact to 2^-53 turns
    right = np.array([(math.cos(2 * math.pi * t), math.sin(2 * math.pi * t)) for t in turns])
    # over four million random angles the largest error is 1.12e-7
    assert np.max(np.abs(cosine - right[:, 0])) < 1.2e-7 and np.max(np.abs(sine - right[:, 1])) < 1.2e-7


def tree16(lanes: np.ndarray) -> np.float32:
    """The tree of the pinned order, one rounded addition at a time."""
    for half in (8, 4, 2, 1):
        lanes = lanes[:half] + lanes[half:2 * half]
    return lanes[0]


@pytest.mark.parametrize("count", (0, 1, 2, 15, 16, 17, 31, 32, 33, 64, 1000))
def test_sums_keep_the_pinned_order(kernels: Kernels, count: int) -> None:
    x = np.ascontiguousarray(np.random.default_rng(count).standard_normal(count + 1).astype(np.float32)[:count])
    x[::7] *= np.float32(2.0 ** -140)
    lanes, squares = np.zeros(16, np.float32), np.zeros(16, np.float32)
    for i, value in enumerate(x):
        lanes[i % 16] += value
        squares[i % 16] += value * value
    assert same_bits(np.float32(kernels.call("colibri_sum16", x, count)), tree16(lanes))
    assert same_bits(np.float32(kernels.call("colibri_sum16_squares", x, count)), tree16(squares))


def test_norms(kernels: Kernels) -> None:
    for n in (1, 16, 33):
        x, w = weights(2, n, 8)
        w = w + np.float32(1)
        x = np.clip(x, -1e15, 1e15).astype(np.float32)
        y = np.empty_like(x)
        assert kernels.call("colibri_rms_norm", PORTABLE, y, x, w, n, 1e-5) == 0
        root = np.sqrt(np.float32(kernels.call("colibri_sum16_squares", x, n)) / np.float32(n) + np.float32(1e-5))
        assert same_bits(y, (x * (np.float32(1) / root)) * w)
        for bad in (*NOT_FINITE, np.float32(2e19)):                            # a square that overflows
            for place in range(n):
                wrong = x.copy()
                wrong[place] = bad
                assert kernels.call("colibri_rms_norm", PORTABLE, y, wrong, w, n, 1e-5) == 1
    zero = np.zeros(16, np.float32)
    y = np.ones(16, np.float32)
    assert kernels.call("colibri_rms_norm", PORTABLE, y, zero, np.ones(16, np.float32), 16, 1e-5) == 0 and not y.any()


# ---- quantization ----


@pytest.mark.parametrize("columns", (1, 2, 31, 32, 33, 64, 95, 96))
def test_activations_are_quantized_as_the_reference_does(kernels: Kernels, columns: int) -> None:
    rows, groups = 300, -(-columns // 32)
    x = weights(rows, columns, columns)
    edge = np.float32(2.0 ** -100)                                             # the smallest group that is not zero
    x[0], x[1] = edge, np.nextafter(edge, np.float32(0))
    q = np.full((rows, groups * 32), 99, np.int8)
    d = np.full((rows, groups), np.nan, np.float32)
    total, bad = np.full((rows, groups), -1, np.int32), np.full(rows, -1, np.int32)
    kernels.call("test_quantize_rows", x, rows, columns, q, d, total, bad)
    right_q, right_d = quant.quantize_activation(x)
    assert not bad.any()
    assert np.array_equal(q.reshape(right_q.shape), right_q) and same_bits(d, right_d.astype(np.float32))
    assert np.array_equal(total, right_q.sum(axis=-1, dtype=np.int32))
    assert d[0, 0] > 0 and d[1, 0] == 0 and not q[1, :32].any()
    assert np.abs(q.astype(int)).max() <= 127


@pytest.mark.parametrize("columns", (1, 31, 32, 40))
def test_a_single_infinity_or_nan_is_noticed_wherever_it_stands(kernels: Kernels, columns: int) -> None:
    cases = list(product(NOT_FINITE, range(columns)))
    x = np.ones((len(cases), columns), np.float32)
    for row, (value, place) in enumerate(cases):
        x[row, place] = value
    groups = -(-columns // 32)
    q, d = np.empty((len(cases), groups * 32), np.int8), np.empty((len(cases), groups), np.float32)
    total, bad = np.empty((len(cases), groups), np.int32), np.zeros(len(cases), np.int32)
    kernels.call("test_quantize_rows", x, len(cases), columns, q, d, total, bad)
    assert bad.all()
    if columns <= 32:
        for four_bits in (0, 1):
            bad[:] = 0
            scale = np.empty(len(cases), np.uint16)
            kernels.call("test_groups", x, len(cases), columns, four_bits, q[:, :columns].copy(), scale, bad)
            assert bad.all()


@pytest.mark.parametrize("count", (1, 3, 31, 32))
@pytest.mark.parametrize("kind", ("q8", "q4"))
def test_weight_groups_are_those_of_the_reference(kernels: Kernels, kind: str, count: int) -> None:
    w = weights(4000, count, 20 + count)
    q, scale = np.full(w.shape, 99, np.int8), np.full(len(w), 0xEEEE, np.uint16)
    bad = np.full(len(w), -1, np.int32)
    kernels.call("test_groups", w, len(w), count, int(kind == "q4"), q, scale, bad)
    right_q, right_scale = (quant.quantize_q4 if kind == "q4" else quant.quantize_q8)(w)
    assert not bad.any() and np.array_equal(q, right_q[:, :count]) and np.array_equal(scale, right_scale[:, 0])
    low, high = (-8, 7) if kind == "q4" else (-127, 127)
    assert q.min() >= low and q.max() <= high


# ---- tiles ----


SIZES = [(1, 1), (1, 32), (2, 31), (15, 33), (16, 64), (17, 65), (33, 96), (31, 97), (48, 2), (5, 129)]


@pytest.mark.parametrize("kind", ("f32", "f16", "q8", "q4"))
def test_tiles_are_those_of_the_reference_and_come_back(kernels: Kernels, kind: str) -> None:
    number = getattr(constants(), "KIND_" + kind.upper())
    for rows, columns in SIZES:
        w = weights(rows, columns, rows * 1000 + columns)
        packed = kernels.packed(kind, w)
        assert packed == Matrix.from_floats(kind, w).tiles(), (rows, columns)
        out = np.full((rows, columns), np.nan, np.float32)
        source = np.frombuffer(packed, np.uint8)
        assert kernels.call("colibri_unpack", number, rows, columns, kernels.ffi.from_buffer(source), out) == 0
        assert np.array_equal(out, Matrix.from_tiles(kind, packed, rows, columns).rows_of(np.arange(rows)))
        if kind == "f32":
            assert same_bits(out, w)
        if rows > 16:                                                          # strips of 16 rows make the same bytes
            assert kernels.packed(kind, w[:16].copy()) + kernels.packed(kind, w[16:].copy()) == packed


@pytest.mark.parametrize("kind", ("f32", "f16", "q8", "q4"))
def test_products_are_those_of_the_reference(kernels: Kernels, kind: str) -> None:
    number = getattr(constants(), "KIND_" + kind.upper())
    for rows, columns in SIZES:
        w = weights(rows, columns, rows + columns)
        w[np.abs(w) > 1e20] = 1
        x = np.random.default_rng(columns).standard_normal((1, columns)).astype(np.float32)
        x[0, ::5] *= np.float32(2.0 ** -130)
        groups = -(-columns // 32)
        q, d = np.empty((1, groups * 32), np.int8), np.empty((1, groups), np.float32)
        total, bad = np.empty((1, groups), np.int32), np.empty(1, np.int32)
        kernels.call("test_quantize_rows", x, 1, columns, q, d, total, bad)
        packed = np.frombuffer(kernels.packed(kind, w), np.uint8)
        out = np.empty(-(-rows // 16) * 16, np.float32)
        kernels.call("test_product", number, rows, columns, packed, x, q, d, total, out)
        right = Matrix.from_tiles(kind, packed.tobytes(), rows, columns).product(Activation(x))[0]
        assert same_bits(out[:rows], right), (rows, columns)


@pytest.mark.parametrize(("kind", "weight"), (("q8", 127), ("q8", -127), ("q4", 7), ("q4", -8)))
@pytest.mark.parametrize("activation", (127, -127))
def test_the_largest_sums_of_a_group_do_not_overflow(kernels: Kernels, kind: str, weight: int, activation: int) -> None:
    columns = 64
    pair = (1088 if kind == "q8" else 576) - 64
    tile = np.full(pair + 64, (weight + 8) * 17 if kind == "q4" else weight & 255, np.uint8)
    tile[pair:] = np.frombuffer(np.full(32, 0x3F80, "<u2").tobytes(), np.uint8)     # every scale 1
    q, d = np.full(columns, activation, np.int8), np.ones(2, np.float32)
    total, out = np.full(2, 32 * activation, np.int32), np.empty(16, np.float32)
    kernels.call("test_product", getattr(constants(), "KIND_" + kind.upper()), 16, columns, tile,
                 np.zeros(columns, np.float32), q, d, total, out)
    assert np.all(out == 64 * weight * activation)


def test_pack_refuses_what_it_cannot_say_and_writes_nothing(kernels: Kernels) -> None:
    c = constants()
    assert kernels.lib.colibri_packed_bytes(c.KIND_BF16, 16, 32) == 0
    assert kernels.lib.colibri_packed_bytes(c.KIND_F32, 0xFFFFFFFF, 0xFFFFFFFF) == 0       # beyond 64 bits
    for kind in ("f32", "f16", "q8", "q4"):
        number = getattr(c, "KIND_" + kind.upper())
        for value, place in product(NOT_FINITE, ((0, 0), (16, 32), (16, 5))):
            w = np.ones((17, 33), np.float32)
            w[place] = value
            out = np.full(kernels.lib.colibri_packed_bytes(number, 17, 33), 0xEE, np.uint8)
            status = kernels.call("colibri_pack", number, 17, 33, w, kernels.ffi.from_buffer(out))
            assert status == c.ERROR_NOT_FINITE and np.all(out == 0xEE)
        for rows, columns in ((0, 32), (16, 0)):
            status = kernels.call("colibri_pack", number, rows, columns, w, kernels.ffi.from_buffer(out))
            assert status == c.ERROR_ARGUMENT


# ---- bytes and checksums ----


def crc32c_bit_by_bit(data: bytes, crc: int = 0) -> int:
    """The definition: reflected polynomial 0x82F63B78, one bit at a time."""
    crc ^= 0xFFFFFFFF
    for byte in data:
        crc ^= byte
        for _ in range(8):
            crc = crc >> 1 ^ (0x82F63B78 if crc & 1 else 0)
    return crc ^ 0xFFFFFFFF


def test_crc32c_of_known_vectors_lengths_and_starts(kernels: Kernels) -> None:
    def crc(data: bytes, before: int = 0) -> int:
        return kernels.lib.colibri_crc32c(before, data, len(data))

    iscsi = bytes.fromhex("01c00000" + "00" * 12 + "14000000" + "00000400" + "00000014" + "00000018" + "28000000" +
                          "00000000" + "02000000" + "00000000")
    known = {b"": 0, b"123456789": 0xE3069283, bytes(32): 0x8A9136AA, b"\xff" * 32: 0x62A8AB43,
             bytes(range(32)): 0x46DD794E, bytes(range(31, -1, -1)): 0x113FDB5C, iscsi: 0xD9963A56}
    assert {data: crc(data) for data in known} == known
    stream = hashlib.shake_256(b"crc").digest(400)
    memory = kernels.ffi.from_buffer(stream)
    for length in range(301):
        right = crc32c_bit_by_bit(stream[:length])
        assert crc(stream[:length]) == right
        assert crc(stream[length // 3:length], crc(stream[:length // 3])) == right
    for start in range(1, 16):
        assert kernels.lib.colibri_crc32c(0, memory + start, 77) == crc32c_bit_by_bit(stream[start:start + 77])


def test_sha256_of_lengths_starts_and_pieces(kernels: Kernels) -> None:
    stream = hashlib.shake_256(b"sha").digest(70_000)
    memory = kernels.ffi.from_buffer(stream)

    def sha(start: int, *pieces: int) -> bytes:
        state, digest = kernels.ffi.new("colibri_sha256 *"), kernels.ffi.new("uint8_t[32]")
        kernels.lib.colibri_sha256_start(state)
        for piece in pieces:
            kernels.lib.colibri_sha256_add(state, memory + start, piece)
            start += piece
        kernels.lib.colibri_sha256_end(state, digest)
        return bytes(digest)

    assert sha(0, 0).hex() == "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855"
    for length in range(301):
        assert sha(0, length) == hashlib.sha256(stream[:length]).digest()
    for start in range(1, 9):
        assert sha(start, 200) == hashlib.sha256(stream[start:start + 200]).digest()
    draw = random.Random(9)
    for _ in range(200):
        pieces = [draw.choice((0, 1, 63, 64, 65, draw.randrange(300))) for _ in range(draw.randrange(1, 12))]
        assert sha(5, *pieces) == hashlib.sha256(stream[5:5 + sum(pieces)]).digest()
    assert sha(0, 65_536) == hashlib.sha256(stream[:65_536]).digest()


def test_bytes_are_moved_and_filled_and_nothing_beside_them(kernels: Kernels) -> None:
    source = np.frombuffer(hashlib.shake_256(b"bytes").digest(96), np.uint8)
    ffi, lib = kernels.ffi, kernels.lib
    for to, start, size in product(range(9), range(9), (0, 1, 7, 8, 9, 16, 31, 64)):
        for copy in (lib.colibri_copy, lib.own_memcpy, lib.own_memmove):
            room = np.zeros(96, np.uint8)
            copy(ffi.from_buffer(room) + to, ffi.from_buffer(source) + start, size)
            right = np.zeros(96, np.uint8)
            right[to:to + size] = source[start:start + size]
            assert np.array_equal(room, right)
        for fill in (lib.colibri_fill, lib.own_memset):
            room = np.zeros(96, np.uint8)
            fill(ffi.from_buffer(room) + to, 0xA5, size)
            assert np.array_equal(np.flatnonzero(room), np.arange(to, to + size)) and set(room) <= {0, 0xA5}
        moved = source.copy()                                                  # onto itself, both ways
        lib.own_memmove(ffi.from_buffer(moved) + to, ffi.from_buffer(moved) + start, size)
        assert np.array_equal(moved[to:to + size], source[start:start + size])
    for a, b in ((b"", b""), (b"abc", b"abc"), (b"abc", b"abd"), (b"\xff", b"\x01"), (b"a\0b", b"a\0c")):
        assert np.sign(lib.own_memcmp(a, b, len(a))) == (a > b) - (a < b)


def test_checked_arithmetic_notices_every_overflow(kernels: Kernels) -> None:
    draw = random.Random(10)
    powers = [1 << 32, 1 << 63, 1 << 64]
    edges = [0, 1, 2, 3, 63, 64, *(power + d for power in powers for d in (-2, -1, 0, 1) if power + d < 1 << 64)]
    values = edges + [draw.randrange(1 << draw.randrange(1, 65)) for _ in range(60)]
    bad = kernels.ffi.new("int32_t *")
    for a, b in product(values, values):
        for how, right in ((0, a + b), (1, a * b)):
            found = kernels.lib.test_checked(how, a, b, bad)
            assert (bad[0] != 0) == (right >= 1 << 64) and (bad[0] or found == right), (how, a, b)
        if b in (1, 16, 64, 4096):
            found = kernels.lib.test_checked(2, a, b, bad)
            assert bad[0] or found == -(-a // b) * b
            assert not bad[0] or a + b - 1 >= 1 << 64
