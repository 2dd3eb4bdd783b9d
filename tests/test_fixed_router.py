"""The integer router: its numbers against whole-number arithmetic, its choices against the float router's, its spans,
and processors without a floating-point unit.
"""

from __future__ import annotations

import subprocess
import tempfile
from dataclasses import replace
from pathlib import Path

import cffi
import numpy as np
import pytest

import router_figures
import softfloat
from colibri import calibrate, cli, targets
from colibri.blobfile import BlobFile
from colibri.blobwriter import tables_only, write_blob
from colibri.convert import ConvertOptions, convert, convert_share, join
from colibri.engine import Limits, Model, Session
from colibri.errors import ColibriError, ConvertError
from colibri.families import describe
from colibri.format import Kinds
from colibri.jobs import Job
from colibri.synth import SPECS, Weights, random_weights, write_random_blob
from colibri.unfinished import Work
from oracles import bridge, checkpoints, draw, fixtures
from oracles.cases import CASES
from oracles.running import Engine
from reference import router as reference_router
from reference.description import MoeFfn
from reference.model import Model as Reference
from test_router import BASE, Routed, chosen, set_router
from test_truth import prompt

ROOT = Path(__file__).resolve().parents[1]
F = np.float32
FIXED = sorted(name for name in SPECS if SPECS[name].router_span)
SHAPES = ((8, 2, 1), (64, 8, 0), (128, 8, 1), (256, 8, 1))  # experts, chosen, renormalised: what models have


# ---- numbers ----


@pytest.fixture(scope="module")
def logit_of(tmp_path_factory: pytest.TempPathFactory):
    """The core's conversion of many floats, compiled as it is."""
    folder = tmp_path_factory.mktemp("logit")
    (folder / "many.c").write_text(
        '#include "nn/fixed_router.h"\nvoid many(const uint32_t *in, int32_t *out, uint32_t n)\n'
        "{\n    for (uint32_t i = 0; i < n; i++) {\n        out[i] = colibri_fixed_logit(in[i]);\n    }\n}\n")
    subprocess.run(["gcc", "-O2", "-shared", "-fPIC", f"-I{ROOT / 'core'}", folder / "many.c", "-o",
                    folder / "many.so"], check=True)
    ffi = cffi.FFI()
    ffi.cdef("void many(const uint32_t *in, int32_t *out, uint32_t n);")
    lib = ffi.dlopen(str(folder / "many.so"))

    def convert_all(values: np.ndarray) -> np.ndarray:
        out = np.zeros(values.shape, dtype=np.int32)
        values = np.ascontiguousarray(values)
        lib.many(ffi.from_buffer("uint32_t[]", values), ffi.from_buffer("int32_t[]", out), len(out))
        return out

    return convert_all


def test_a_logit_is_rounded_to_even_and_saturated(logit_of) -> None:
    """Every exponent with many mantissas, halves of a unit and their neighbours, both signs."""
    mantissas = [0, 1, 2, 0x3FFFFF, 0x400000, 0x400001, 0x7FFFFE, 0x7FFFFF]
    mantissas += draw.integers(1, "mantissas", 400, 1 << 23)
    bits = np.array([e << 23 | m for e in range(255) for m in mantissas], dtype=np.uint32)
    halves = ((np.arange(-3000, 3000) + 0.5) / 65536).astype(F)
    near = np.concatenate([np.nextafter(halves, F(9)), halves, np.nextafter(halves, F(-9))])
    values = np.concatenate([bits.view(F), -bits.view(F), near])
    expected = np.clip(np.rint(values.astype(np.float64) * 65536), -(2**31), 2**31 - 1).astype(np.int64)
    assert np.array_equal(logit_of(values).astype(np.int64), expected)
    assert {2**31 - 1, -(2**31), 0} <= set(expected.tolist())


EDGES = {
    "one expert": ({"experts": 1, "top_k": 1}, 1.0),
    "all experts": ({"experts": 9, "top_k": 9}, 1.0),
    "many of many": ({"experts": 512, "top_k": 64, "renormalise": False}, 1.0),
    "far apart": ({"experts": 40, "top_k": 17}, 30.0),
    "saturated": ({"experts": 9, "top_k": 4, "renormalise": False}, 1e6),
    "saturated sigmoids": ({"experts": 9, "top_k": 4, "score": "sigmoid"}, 1e6),
    "sigmoids of nothing": ({"experts": 9, "top_k": 4, "score": "sigmoid", "renormalise": False}, 1e-8),
    "groups": ({"experts": 48, "top_k": 7, "groups": 16, "top_groups": 5}, 2.0),
}


@pytest.mark.sampled(4)
@pytest.mark.parametrize("span", [1, 2, 4, 8, 16])
@pytest.mark.parametrize("edge", EDGES)
def test_engine_and_whole_numbers_agree_at_the_edges(edge: str, span: int, tmp_path: Path,
                                                     monkeypatch: pytest.MonkeyPatch) -> None:
    fields, scale = EDGES[edge]
    routed = Routed(replace(BASE, router_span=span, **fields), tmp_path, monkeypatch, set_router(scale))
    for ffn, z, _, w in routed.rows:
        assert ffn.span == span and len(chosen(w)) == fields["top_k"]
        assert not ffn.renormalise or abs(np.nansum(w.astype(np.float64)) - 1) < 64 / 65536
        if not ffn.groups and scale < 100:
            at = np.sort(z)[::-1][:fields["top_k"]]
            assert z[chosen(w)].min() >= at[-1] - 1 / 65536


@pytest.mark.parametrize("groups", [0, 8])
def test_equal_logits_go_to_the_lower_index(groups: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Experts, and with groups whole groups, the same pairwise."""
    size = 64 // groups if groups else 1
    spec = replace(BASE, experts=64, top_k=5, groups=groups, top_groups=groups // 2 + 1 if groups else 0, router_span=8)

    def change(weights: dict[str, np.ndarray]) -> None:
        router = weights["layers.0.router"].reshape(64 // size, size, -1)
        router[1::2] = router[::2]

    for _, _, _, w in Routed(spec, tmp_path, monkeypatch, change).rows:
        at = chosen(w)
        assert all(e - size in at for e in at if e // size % 2)


def test_logits_closer_than_a_unit_are_equal(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where the float router sees a difference: the lower index wins."""
    def change(weights: dict[str, np.ndarray]) -> None:
        router = weights["layers.0.router"]
        router[:] = router[0]
        router[1:] *= F(1 + 2**-22)

    told_apart = 0
    for _, z, _, w in Routed(replace(BASE, experts=5, top_k=1, router_span=8), tmp_path, monkeypatch, change).rows:
        if np.ptp(np.rint(z.astype(np.float64) * 65536)) == 0:
            assert chosen(w) == [0]
            told_apart += int(z.argmax() != 0)
    assert told_apart > 3


# ---- against the float router ----


def within(found: router_figures.Pairs) -> None:
    """The issue's bounds are 99.97 % and 0.3 %; the aim was 0.02 %."""
    print(found)
    assert found.same >= 0.9997 * found.choices
    assert found.relative < 0.0003 and found.mean < 0.0001


def test_demo_model_routes_as_with_floats() -> None:
    with router_figures.demo(tales=20) as case:
        found = router_figures.pairs(case)
        assert found.choices > 8000
        within(found)


@pytest.mark.sampled(4)
@pytest.mark.parametrize("name", router_figures.oracle_names())
def test_oracles_route_as_with_floats(name: str) -> None:
    with router_figures.oracle(name) as case:
        within(router_figures.pairs(case))


@pytest.mark.all
def test_smollm2_moe_routes_as_with_floats() -> None:
    with router_figures.moe() as case:
        found = router_figures.pairs(case)
        assert found.choices > 60000
        within(found)


@pytest.mark.parametrize("name", ["mixtral_mha", "olmoe_wide", "gpt_oss_sinks", "deepseek_v2_groups"])
def test_the_outside_oracle_still_agrees(name: str, tmp_path: Path) -> None:
    frozen = fixtures.load(name)
    checkpoints.build(name, tmp_path / name)
    convert(tmp_path / name, tmp_path / "m.colibri", ConvertOptions(weights="f32", tokenizer=False, router="int"))
    logits = Engine(tmp_path / "m.colibri").logits(frozen.prompt)
    print(f"{name}: largest logit error {np.abs(logits - frozen.logits).max():.2g}")
    assert np.abs(logits - frozen.logits).max() < 0.01
    assert logits.argmax(axis=-1).tolist() == frozen.argmax


# ---- spans ----


@pytest.mark.parametrize(("scale", "span"), [(0.5, 8), (12.0, 16)])
@pytest.mark.parametrize("fields", [{}, {"renormalise": False}, {"score": "sigmoid"}], ids=str)
def test_spans_come_from_the_models_own_logits(fields: dict, scale: float, span: int, tmp_path: Path,
                                               monkeypatch: pytest.MonkeyPatch) -> None:
    """What the core says it made weights of is what the numpy router sees."""
    spec = replace(BASE, layers=2, experts=12, top_k=4, router_span=16, **fields)
    model, weights = spec.model(), random_weights(spec.model(), 7)
    for layer in range(2):
        weights[f"layers.{layer}.router"] *= F(scale)
    path = tmp_path / "m.colibri"
    write_blob(path, model, Kinds.preset("f32"), Weights(weights))
    seen: list[int] = []
    plain = reference_router.fixed_exp
    monkeypatch.setattr(reference_router, "fixed_exp", lambda s, d: (seen.append(d), plain(s, d))[1])
    tokens = calibrate.tokens_of(Model.open(path), "")
    Reference(replace(bridge.description(model), kv_kind=Limits().kv), weights).logits(tokens)
    found = calibrate.spreads(path, [0, 1])
    assert max(found.values()) == max(seen) / 65536 > 0
    sentence = calibrate.calibrate(path, model)
    assert {layer.router_span for layer in model.layers} == {span} and f"span {span} in 2 layers" in sentence


def test_span_of() -> None:
    assert [calibrate.span_of(spread) for spread in (0.0, 7.9, 8.0, 8.001, 16.0, 500.0)] == [8, 8, 8, 16, 16, 16]


def test_a_float_router_has_no_spread(tmp_path: Path) -> None:
    for name, there in (("moe", False), ("fixed", True)):
        write_random_blob(tmp_path / name, name)
        with Session(Model.open(tmp_path / name), Limits(context=8, batch=8)) as session:
            session.feed([1, 2, 3])
            session.finish()
            assert (session.router_spread(0, 0) > 0) == there
            assert session.router_spread(1, 0) == 0 or not SPECS["fixed"].dense_layers
            assert session.router_spread(0, 3) == session.router_spread(99, 0) == 0


# ---- the converter ----


def spans_in(path: Path) -> list[int | None]:
    """As the file has them."""
    return [layer.router_span for layer in BlobFile(path).model().layers]


def test_convert_is_the_same_alone_and_in_shares_and_sound(tmp_path: Path) -> None:
    options = ConvertOptions(weights="q4", router="int", router_text="Once upon a time there was a cat.")
    one = convert(router_figures.DEMO, tmp_path / "one.colibri", options).path
    for share in (1, 2):
        convert_share(router_figures.DEMO, tmp_path / "two.colibri", options, (share, 2), Work())
    join(router_figures.DEMO, tmp_path / "two.colibri", options, Work())
    assert one.read_bytes() == (tmp_path / "two.colibri").read_bytes()
    assert BlobFile(one).provenance()["router"] == "int" and spans_in(one) == [8] * 4
    assert [problem for _, problem in Model.open(one).check(2) if problem] == []


def test_convert_from_the_command_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "demo.colibri"
    assert cli.main(["convert", str(router_figures.DEMO), "-o", str(out), "--weights", "q4", "--router", "int"]) == 0
    assert "integer router: logits up to" in capsys.readouterr().err
    assert cli.main(["convert", str(router_figures.DEMO), "-o", str(out), "--overwrite", "--router", "int",
                     "--router-text", str(tmp_path / "none.txt")]) == 3
    assert "none.txt: cannot be read" in capsys.readouterr().err


REFUSED = {
    "llama_mha": "no routed experts", "minimax_bias": "plus a bias", "glm_groups": "plus a bias",
    "phimoe_norms": "not ratios of exponentials", "ernie_bias": "plus a bias",
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_has_no_integer_form_is_refused_with_the_reason(name: str, tmp_path: Path) -> None:
    checkpoints.build(name, tmp_path / name)
    with pytest.raises(ConvertError, match=f"config.json: --router int.*{REFUSED[name]}"):
        convert(tmp_path / name, tmp_path / "m.colibri", ConvertOptions(tokenizer=False, router="int"))
    assert not (tmp_path / "m.colibri").exists()


def test_the_reason_and_the_core_agree(tmp_path: Path) -> None:
    """Every case of the oracles: what the converter lets through opens, what it refuses does not."""
    for name, case in CASES.items():
        model = describe(case.config, name).model
        moe = [layer for layer in model.layers if layer.moe]
        if not moe:
            continue
        for layer in moe:
            layer.router_span = 8
        image, size = tables_only(model, Kinds.preset("q8"))
        room = bytearray(size)
        room[:len(image)] = image
        path = tmp_path / "m.colibri"
        path.write_bytes(room)
        try:
            Model.open(path)
            opened = True
        except ColibriError:
            opened = False
        assert opened == (not any(calibrate.why_not(layer) for layer in moe)), name


# ---- everywhere ----


def job_of(model: Model, kv: str = "f16") -> Job:
    return Job("fixed", Limits(context=28, batch=16, logit_rows=16, kv=kv), prompt(model.info().vocab)[:24], generate=4)


@pytest.mark.parametrize("spec", FIXED)
def test_one_digest_on_all_targets(spec: str, tmp_path: Path) -> None:
    write_random_blob(tmp_path / "m.colibri", spec, seed=3, kinds="q8")
    model = Model.open(tmp_path / "m.colibri")
    digests = {target.name: target.run(job_of(model), model).digest for target in targets.pick([])
               if not target.missing()}
    assert len(digests) > 2 and len(set(digests.values())) == 1 and "" not in digests.values(), digests


@pytest.mark.slow
@pytest.mark.qemu
def test_the_whole_engine_without_a_floating_point_unit(tmp_path: Path) -> None:
    """RISC-V rv64imac, every description: float arithmetic by integers gives the same bits, with either router."""
    emulator = targets.program("qemu-riscv64", "qemu-riscv64-static")
    if emulator is None:
        pytest.skip("qemu-riscv64 is not installed; apt-get install --no-install-recommends qemu-user")
    (linux,) = targets.pick(["linux"])
    for spec in SPECS:
        write_random_blob(tmp_path / "m.colibri", spec, seed=3, kinds="q4")
        model = Model.open(tmp_path / "m.colibri")
        expected = linux.run(job_of(model), model)
        with tempfile.TemporaryDirectory() as folder:
            job = targets.write_job(folder, job_of(model), model)
            command = [emulator, str(softfloat.riscv_runner()), str(job), str(model.path)]
            found = targets.run_program("soft", command, 120)
        assert found.error is None and found.bad_checks() == [], spec
        assert (found.digest, found.tokens) == (expected.digest, expected.tokens), spec


def vectors() -> softfloat.Vectors:
    logits = draw.bell(3, "board logits", (16, 256), 1.5)
    logits[1, 1::2] = logits[1, ::2]  # equal ones
    logits[2] *= F(1e5)  # saturated
    return softfloat.Vectors(SHAPES, logits)


def expect(shape: tuple[int, int, int], logits: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Experts and weights in units of 2^-16 of the numpy router."""
    experts, top_k, renormalise = shape
    w = reference_router.fixed_route(MoeFfn(experts, top_k, 1, bool(renormalise), span=16), logits[:, :experts])
    at = np.array([chosen(row) for row in w])
    return at, (np.take_along_axis(w, at, axis=1) * 65536).astype(np.int64)


@pytest.mark.qemu
@pytest.mark.parametrize("name", softfloat.BOARDS)
def test_a_board_without_anything_routes_the_same(name: str) -> None:
    """fixed_router.c linked with nothing: no float function, no compiler's helper."""
    made = vectors()
    for shape, found in zip(SHAPES, softfloat.BOARDS[name].run(made, with_float=False), strict=True):
        experts, weights = expect(shape, made.logits)
        assert np.array_equal(found.experts, experts) and np.array_equal(found.weights, weights)
        assert found.instructions < 20000 * len(made.logits)


@pytest.mark.slow
@pytest.mark.qemu
@pytest.mark.parametrize(("name", "at_least"), [("cortex-m3", 10.0), ("arm64", 1.0)])
def test_instructions_of_both_routers(name: str, at_least: float) -> None:
    """A row, from its logits to experts and float32 weights; how many times more the float router needs."""
    made = vectors()
    found = softfloat.BOARDS[name].run(made, with_float=True)
    for shape, fixed, floats in zip(SHAPES, found[::2], found[1::2], strict=True):
        experts, weights = expect(shape, made.logits)
        assert np.array_equal(fixed.experts, experts)
        assert np.array_equal(fixed.weights.astype(np.uint32).view(F).astype(np.float64) * 65536, weights)
        of_rows = [one.instructions / len(made.logits) for one in (fixed, floats)]
        what = "renormalised" if shape[2] else "shares of all"
        print(f"{name} {shape[0]} experts, {shape[1]} chosen, {what}: integer "
              f"{of_rows[0]:.0f} instructions a row, float {of_rows[1]:.0f}")
        assert floats.instructions > at_least * fixed.instructions
