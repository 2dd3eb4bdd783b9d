"""The numpy reference, its parts: against plain loops, hand-made vectors and exact numbers.

The reference is what the C core is compared with, so everything it vectorises is done again here one
scalar at a time, and everything with a closed form is checked against more digits.
"""
from __future__ import annotations

import math
from decimal import Decimal, localcontext
from fractions import Fraction

import numpy as np
import pytest

from reference import quant, vecmath
from reference.attention import LayerCache, attend
from reference.matrix import Activation, Matrix
from reference.rope import nearest_f32, pi_decimal, rope_fractions

F = np.float32
PI = Decimal("3.14159265358979323846264338327950288419716939937510582097494459230781640628620899862803482534")


def bits(x: object) -> bytes:
    """The bytes of an array: the only equality used here for floats."""
    return np.ascontiguousarray(x).tobytes()


def draw(seed: int, *shape: int, scale: float = 1.0) -> np.ndarray:
    """Seeded float32 normals."""
    return (np.random.default_rng(seed).standard_normal(shape) * scale).astype(F)


# formats ----------------------------------------------------------------------------------------------------

def test_environment_keeps_subnormals() -> None:
    tiny = np.array([1e-40, 3e-45], dtype=F)
    assert np.all(tiny * F(1) == tiny) and np.all(tiny + F(0) != 0)


def test_up16_known_and_tight() -> None:
    above_one = np.nextafter(F(1), F(2))
    given = np.array([0.0, -0.0, 1.0, above_one, -above_one, 1e-45, 1.9999999], dtype=F)
    assert quant.up16(given).tolist() == [0, 0x8000, 0x3F80, 0x3F81, 0xBF81, 0x0001, 0x4000]
    x = np.abs(draw(1, 1000))
    up = quant.up16(x)
    assert np.all(quant.widen(up) >= x) and np.all(quant.widen(up - 1) < x)


def test_f16_both_ways() -> None:
    every = np.arange(65536, dtype=np.uint16)
    with np.errstate(invalid="ignore"):
        assert bits(quant.f16_bits_to_f32(every)) == bits(every.view(np.float16).astype(F))
    random = np.random.default_rng(2).integers(0, 2 ** 32, 300000, dtype=np.uint32).view(F)
    near = draw(3, 300000) * F(2.0) ** np.random.default_rng(4).integers(-28, 18, 300000).astype(F)
    for x in (random[~np.isnan(random)], near.astype(F)):
        with np.errstate(over="ignore"):
            expected = x.astype(np.float16)
        largest = np.copysign(np.float16(65504), x).astype(np.float16)
        expected = np.where(np.isinf(expected), largest, expected)
        assert bits(quant.f32_to_f16_bits(x)) == bits(expected.view(np.uint16))
    unit = 2.0 ** -24
    large = np.array([65504, 65519.996, 65520, 1e9, np.inf, -np.inf, np.nan], dtype=F)
    small = np.array([unit / 2, np.nextafter(F(unit / 2), F(1)), 1.5 * unit, 2.5 * unit], dtype=F)
    assert quant.f32_to_f16_bits(large).tolist() == [0x7BFF, 0x7BFF, 0x7BFF, 0x7BFF, 0x7BFF, 0xFBFF, 0x7E00]
    assert quant.f32_to_f16_bits(small).tolist() == [0, 1, 2, 2]


def test_q8_by_hand() -> None:
    w = np.zeros((2, 32), dtype=F)
    w[0, :5] = [127, -63.5, 0.5, 1.5, -2.5]
    w[1, 0] = 128  # 128/127 = 0x3F810204, rounded up to 0x3F82 = 1.015625
    q, scale = quant.quantize_q8(w)
    assert scale.tolist() == [[0x3F80], [0x3F82]]
    assert q[0, :6].tolist() == [127, -64, 0, 2, -2, 0] and q[1, 0] == 126
    q, scale = quant.quantize_q8(np.zeros((1, 40), dtype=F))
    assert q.shape == (1, 64) and not q.any() and scale.tolist() == [[0, 0]]


def test_q4_by_hand() -> None:
    w = np.zeros((5, 32), dtype=F)
    w[0, :4] = [-8, 7, 1, -1]
    w[1, :4] = [-7, 8, 1, -1]  # the largest is positive: a negative scale
    q, scale = quant.quantize_q4(w)
    assert scale[:, 0].tolist() == [0x3F80, 0xBF80, 0, 0, 0]
    assert q[0, :4].tolist() == [-8, 7, 1, -1] and q[1, :4].tolist() == [7, -8, -1, 1] and not q[2:].any()
    w[2, :3], w[3, :3] = [5, -8, 8], [5, 8, -8]  # the first of equal magnitude decides the sign
    assert (quant.quantize_q4(w)[1][2:4, 0] >> 15).tolist() == [0, 1]


def q4_plain(w: np.ndarray) -> tuple[list[int], int]:
    """One group by the text, a scalar at a time."""
    def attempt(scale_bits: int) -> tuple[list[int], F]:
        s, q, e = quant.widen(np.uint16(scale_bits))[()], [], F(0)
        for v in w:
            n = 0 if s == 0 else int(min(max(np.rint(v / s), -8), 7))
            d = v - F(n) * s
            e = e + d * d
            q.append(n)
        return q, e

    if not w.any():
        return [0] * 32, 0
    m = w[0]
    for v in w:
        if abs(v) > abs(m):
            m = v
    candidates = [m / F(-8)]
    for k in (6.2, 6.4, 6.6, 6.8, 7.0, 7.2, 7.4, 7.6, 7.8, 8.2, 8.4, 8.6, 8.8, 9.0):
        candidates += [m / F(-k), m / F(k)]
    best = int(quant.up16(candidates[0]))
    q, e = attempt(best)
    for c in candidates[1:]:
        new_q, new_e = attempt(int(quant.up16(c)))
        if new_e < e:
            best, q, e = int(quant.up16(c)), new_q, new_e
    wq = qq = F(0)
    for v, n in zip(w, q):
        wq, qq = wq + v * F(n), qq + F(n) * F(n)
    if qq != 0:
        new_q, new_e = attempt(int(quant.up16(wq / qq)))
        if new_e < e:
            best, q = int(quant.up16(wq / qq)), new_q
    return q, best


def test_q4_against_plain_loop() -> None:
    w = draw(5, 12, 96, scale=0.02)
    w[3] *= F(1e-38)  # subnormal scales
    w[6, :32], w[6, 32:64] = 0, -0.0
    w[4] = np.round(w[4] * 100)  # ties between candidates
    w[5] = [-8, 8, 8, 8, 8, 8, 8, 8, 6, 1, -7, -5, 6, -1, 8, -7, -4, 1, -7, -2, 0, -4, -5, 7, 8, 0, 7, 0, 8,
            -7, 2, -7] * 3  # m/8 would win here, and is no candidate
    q, scale = quant.quantize_q4(w)
    seen = set()
    for r in range(w.shape[0]):
        for g in range(3):
            plain_q, plain_scale = q4_plain(w[r, 32 * g:32 * g + 32])
            assert (q[r, 32 * g:32 * g + 32].tolist(), int(scale[r, g])) == (plain_q, plain_scale)
            seen.add(plain_scale >> 15)
    assert seen == {0, 1}


def test_activation_by_hand() -> None:
    x = np.zeros(70, dtype=F)
    x[:5] = [127, 0.5, 1.5, -2.5, -127]
    x[32] = 2.0 ** -100
    x[64] = np.nextafter(F(2.0 ** -100), F(0))
    q, d = quant.quantize_activation(x)
    assert q.shape == (3, 32) and q[0, :5].tolist() == [127, 0, 2, -2, -127]
    assert bits(d) == bits(np.array([1, F(2.0 ** -100) / F(127), 0], dtype=F))
    assert q[1, 0] == 127 and not q[2].any()
    x[40] = np.nan
    with pytest.raises(quant.NotFinite):
        quant.quantize_activation(x)
    x = draw(19, 40, 64)
    x[20:, 1:] = (np.arange(63) - 31.5) * (np.abs(x[20:, :1]) / F(127))  # near the ties, where x/d differs
    x[20:, 32] = x[20:, 0]
    q, d = quant.quantize_activation(x)
    for n in range(40):
        for g in range(2):
            group = x[n, 32 * g:32 * g + 32]
            amax = max(abs(v) for v in group)
            inverse = F(127) / amax
            assert bits(d[n, g]) == bits(amax / F(127))
            assert q[n, g].tolist() == [int(min(max(np.rint(v * inverse), -127), 127)) for v in group]


@pytest.mark.parametrize("kind", ["q4", "q8", "f16", "f32"])
@pytest.mark.parametrize("rows,cols", [(16, 64), (21, 70), (3, 33)])
def test_tiles_byte_by_byte(kind: str, rows: int, cols: int) -> None:
    matrix = Matrix.from_floats(kind, draw(6, rows, cols))
    data = matrix.tiles()
    groups = -(-cols // 32)
    stream = {"q4": 576 * (-(-groups // 2)), "q8": 1088 * (-(-groups // 2)), "f16": 64 * (-(-cols // 2)),
              "f32": 64 * cols}[kind]
    assert len(data) == stream * (-(-rows // 16)) and len(data) % 64 == 0
    raw = np.frombuffer(data, dtype=np.uint8)
    used = np.zeros(len(data), dtype=bool)
    for row in range(rows):
        r, base = row % 16, row // 16 * stream
        for c in range(cols):
            g, i = divmod(c, 32)
            if kind == "q4":
                at = base + g // 2 * 576 + g % 2 * 256 + i // 8 * 64 + 4 * r + i % 4
                nibble = raw[at] >> 4 if i % 8 >= 4 else raw[at] & 15
                assert int(nibble) - 8 == matrix.values[row, c]
            elif kind == "q8":
                at = base + g // 2 * 1088 + g % 2 * 512 + i // 4 * 64 + 4 * r + i % 4
                assert int(raw[at].view(np.int8)) == matrix.values[row, c]
            else:
                size = 2 if kind == "f16" else 4
                at = base + 16 * size * c + size * r
                assert data[at:at + size] == matrix.values[row, c].tobytes()
                used[at:at + size] = True
            used[at] = True
        for g in range(groups if kind in ("q4", "q8") else 0):
            pair = 576 if kind == "q4" else 1088
            at = base + g // 2 * pair + pair - 64 + g % 2 * 32 + 2 * r
            assert int.from_bytes(data[at:at + 2], "little") == matrix.scale_bits[row, g]
            used[at:at + 2] = True
    assert set(raw[~used].tolist()) <= ({0, 0x88} if kind == "q4" else {0})
    back = Matrix.from_tiles(kind, data, rows, cols)
    assert bits(back.values) == bits(matrix.values)
    assert kind[0] == "f" or bits(back.scale_bits) == bits(matrix.scale_bits)
    if not used.all():
        broken = bytearray(data)
        broken[int(np.flatnonzero(~used)[-1])] ^= 0x40
        with pytest.raises(ValueError, match="padding"):
            Matrix.from_tiles(kind, bytes(broken), rows, cols)


# vector maths -----------------------------------------------------------------------------------------------

def exp_plain(x: np.float32) -> np.float32:
    """The text, one scalar operation a line."""
    x = min(max(x, F(-87)), F(88))
    n = F(x * F(1.44269504) + F(12582912)) - F(12582912)
    r = F(x - n * F(0.693359375)) - n * F(-2.12194440e-4)
    p = F(1.9875691500e-4)
    p = p * r + F(1.3981999507e-3)
    p = p * r + F(8.3334519073e-3)
    p = p * r + F(4.1665795894e-2)
    p = p * r + F(1.6666665459e-1)
    p = p * r + F(5.0000001201e-1)
    p = p * (r * r)
    p = p + r
    p = p + F(1)
    return np.ldexp(p, int(n))


def test_exp_order() -> None:
    near_half = (np.arange(-120, 120) + 0.5) * math.log(2)  # where the choice of n is narrow
    x = np.concatenate([draw(20, 3000) * 20, *[near_half + i * 1e-6 for i in range(-6, 7)]]).astype(F)
    assert bits(vecmath.exp(x)) == bits(np.array([exp_plain(v) for v in x]))


def test_exp_error() -> None:
    x = np.concatenate([np.linspace(-87, 88, 1 << 20), draw(7, 1 << 18) * 4, [0, 1e-40, -1e-8]]).astype(F)
    exact = np.exp(x.astype(np.float64))
    assert np.max(np.abs(vecmath.exp(x) - exact) / exact) <= 1e-7
    far = vecmath.exp(np.array([-1e9, -np.inf, 1e9, np.inf], dtype=F))
    assert bits(far) == bits(vecmath.exp(np.array([-87, -87, 88, 88], dtype=F)))
    with pytest.raises(quant.NotFinite):
        vecmath.exp(np.array([np.nan], dtype=F))
    assert vecmath.silu(F(0)) == 0 and vecmath.sigmoid(F(0)) == F(0.5)


def test_sum16_and_rmsnorm_order() -> None:
    for n in (1, 15, 16, 17, 40, 64):
        x = draw(8 + n, n) * F(1000)
        p = [F(0)] * 16
        for i in range(n):
            p[i % 16] = p[i % 16] + x[i]
        for half in (8, 4, 2, 1):
            for i in range(half):
                p[i] = p[i] + p[i + half]
        assert bits(vecmath.sum16(x)) == bits(p[0])
        w = draw(9, n)
        r = F(1) / np.sqrt(vecmath.sum16(x * x) / F(n) + F(1e-5))
        y = [(x[i] * r) * w[i] for i in range(n)]
        assert bits(vecmath.rmsnorm(x[None], w, F(1e-5))) == bits(np.array(y))
    # Lanes 0 and 8 meet first; lane 0 takes index 16 before that: 2^24 + 1 is lost, 1 + 1 is not.
    assert vecmath.sum16(np.array([2.0 ** 24, *[0] * 7, 1, *[0] * 7, 1], dtype=F)) == F(2.0 ** 24)
    assert vecmath.sum16(np.array([1, *[0] * 7, 2.0 ** 24, *[0] * 7, 1], dtype=F)) == F(2.0 ** 24 + 2)


def test_nearest_f32_and_coefficients() -> None:
    x = np.random.default_rng(10).integers(0, 2 ** 64, 20000, dtype=np.uint64).view(np.float64)
    x = x[np.isfinite(x) & (np.abs(x) < 3.4e38)]
    small = draw(11, 2000).astype(np.float64) * 2.0 ** -140
    for v in (*x, *small, 1 + 2.0 ** -24, 1 + 3 * 2.0 ** -24, 2.0 ** -150, 3 * 2.0 ** -150):
        assert v == 0 or bits(nearest_f32(Fraction(float(v)))) == bits(np.float64(v).astype(F))
    assert abs(pi_decimal() - PI) < Decimal("1e-68")
    for k, c in enumerate(vecmath.QUARTER_TURN):
        exact = (Fraction(PI) / 2) ** k / math.factorial(k)
        for other in (np.nextafter(c, F(0)), np.nextafter(c, F(9))):
            assert abs(Fraction(float(c)) - exact) < abs(Fraction(float(other)) - exact)


def test_rope_fraction_known_values() -> None:
    turn = Fraction(2) ** 64 / (2 * Fraction(PI))
    fractions, amplitude = rope_fractions(10000, 8)
    tenth, double = (rope_fractions(10000, 8, {"type": "linear", "factor": f})[0]
                     for f in (Decimal("1.1"), 1.1))
    assert int(tenth[0]) == round(turn / Fraction(11, 10)) and int(double[0]) == round(turn / Fraction(1.1))
    assert tenth[0] != double[0]
    assert [int(f) for f in fractions] == [round(turn / 10 ** i) for i in range(4)]
    assert amplitude == 1
    linear, _ = rope_fractions(10000.0, 8, {"rope_type": "linear", "factor": 4.0})
    assert [int(f) for f in linear] == [round(turn / 4 / 10 ** i) for i in range(4)]
    yarn = {"type": "yarn", "factor": 40, "original_max_position_embeddings": 4096}
    assert rope_fractions(10000, 64, yarn)[1] == F(0.1 * math.log(40) + 1)
    assert rope_fractions(10000, 64, yarn | {"mscale": 0.5, "mscale_all_dim": 0.5})[1] == 1
    assert rope_fractions(10000, 64, yarn | {"attention_factor": 1.25})[1] == F(1.25)
    with pytest.raises(ValueError, match="dynamic"):
        rope_fractions(10000, 8, {"rope_type": "dynamic"})


@pytest.mark.parametrize("theta", [10000, 500000, 1000000])
def test_rope_error_up_to_a_million(theta: int) -> None:
    dim = 64
    fractions, amplitude = rope_fractions(theta, dim)
    positions = [0, 1, 2, 3, 17, 1000, 4095, 99999, 524287, 999999, 10 ** 6]
    c, s = vecmath.cos_sin(positions, fractions, amplitude)
    worst = 0.0
    with localcontext() as context:
        context.prec = 60
        for i in range(dim // 2):
            f = Decimal(theta) ** (Decimal(-2 * i) / dim)
            for row, position in enumerate(positions):
                angle = position * f
                angle -= 2 * PI * (angle / (2 * PI)).to_integral_value()
                worst = max(worst, abs(c[row, i] - math.cos(angle)), abs(s[row, i] - math.sin(angle)))
    assert worst <= 1e-7


def test_rotation_is_exact_at_quarters() -> None:
    quarter = np.array([1 << 62], dtype=np.uint64)
    c, s = vecmath.cos_sin([0, 1, 2, 3, 4, 7], quarter, F(2))
    assert c[:, 0].tolist() == [2, 0, -2, 0, 2, 0] and s[:, 0].tolist() == [0, 2, 0, -2, 0, -2]
    x = np.array([[[1, 2, 3, 4, 5]]], dtype=F)
    c, s = np.array([[0, 1]], dtype=F), np.array([[1, 0]], dtype=F)
    assert vecmath.rotate(x, c, s, False).ravel().tolist() == [-3, 2, 1, 4, 5]
    assert vecmath.rotate(x, c, s, True).ravel().tolist() == [-2, 1, 3, 4, 5]


# products and attention against plain loops -----------------------------------------------------------------

@pytest.mark.parametrize("kind", ["f32", "f16", "q8", "q4"])
def test_product_order(kind: str) -> None:
    w, x, bias = draw(12, 5, 70), draw(13, 3, 70), draw(14, 5)
    matrix = Matrix.from_floats(kind, w)
    got = matrix.product(Activation(x), bias)
    for n in range(3):
        q, d = quant.quantize_activation(x[n])
        for r in range(5):
            acc = F(0)
            if kind in ("f32", "f16"):
                floats = w if kind == "f32" else quant.f16_bits_to_f32(matrix.values)
                for c in range(70):
                    acc = acc + floats[r, c] * x[n, c]
            else:
                for g in range(3):
                    idot = sum(int(matrix.values[r, 32 * g + i]) * int(q[g, i]) for i in range(32))
                    acc = acc + F(idot) * (quant.widen(matrix.scale_bits)[r, g] * d[g])
            assert bits(got[n, r]) == bits(acc + bias[r])
    rows = matrix.rows_of(np.array([4, 0]))
    if kind[0] == "q":
        assert bits(rows[0, 69]) == bits(F(matrix.values[4, 69]) * quant.widen(matrix.scale_bits)[4, 2])
    else:
        assert bits(rows[1]) == bits(w[0] if kind == "f32" else quant.f16_bits_to_f32(matrix.values)[0])


@pytest.mark.parametrize("kind", ["f32", "f16", "q8"])
@pytest.mark.parametrize("window", [0, 5])
def test_attention_order(kind: str, window: int) -> None:
    heads, kv_heads, dim, first, rows, scale = 4, 2, 40, 11, 9, F(0.158)
    k, v, q = draw(15, 20, kv_heads, dim), draw(16, 20, kv_heads, dim), draw(17, rows, heads, dim)
    cache = LayerCache(kind, kv_heads, dim)
    cache.append(k=k[:12], v=v[:12])
    cache.append(k=k[12:], v=v[12:])
    got = attend(q, cache, first, scale, window).reshape(rows, heads, dim)
    kq, ks = (a.reshape(20, kv_heads, -1) for a in quant.quantize_q8(k))
    vq, vs = (a.reshape(20, kv_heads, -1) for a in quant.quantize_q8(v))
    if kind == "f16":
        k, v = (quant.f16_bits_to_f32(quant.f32_to_f16_bits(a)) for a in (k, v))
    for n in range(rows):
        for h in range(heads):
            j = h // 2
            seen = [p for p in range(20) if p <= first + n and (not window or p > first + n - window)]
            qq, qd = quant.quantize_activation(q[n, h])
            scores = []
            for p in seen:
                acc = F(0)
                if kind == "q8":
                    for g in range(2):
                        idot = sum(int(kq[p, j, 32 * g + i]) * int(qq[g, i]) for i in range(32))
                        acc = acc + F(idot) * (quant.widen(ks)[p, j, g] * qd[g])
                else:
                    for c in range(dim):
                        acc = acc + k[p, j, c] * q[n, h, c]
                scores.append(acc * scale)
            e = vecmath.exp(np.array(scores) - max(scores))
            partials = np.zeros(16, dtype=F)
            out = np.zeros(dim, dtype=F)
            for weight, p in zip(e, seen):
                partials[p % 16] += weight
                for c in range(dim):
                    if kind == "q8":
                        out[c] += (weight * quant.widen(vs)[p, j, c // 32]) * F(vq[p, j, c])
                    else:
                        out[c] += weight * v[p, j, c]
            assert bits(got[n, h]) == bits(out / vecmath.tree16(partials))
