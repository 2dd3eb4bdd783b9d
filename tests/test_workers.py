"""Workers: units shared by threads, each exactly once; the same bits for any number of them on every target. And the
choice of the kernel level: what the processor has is found, forced off by older processors under QEMU, never a bit.

What is asserted are counts and bits, never the clock: this machine may have one core free or none.
"""
from __future__ import annotations

import gc
import os
import re
import shutil
import signal
import subprocess
import sys
import threading
from dataclasses import replace
from pathlib import Path

import pytest

from colibri import cli, kernels, library, targets
from colibri.engine import Limits, Model, Session
from colibri.errors import MissingTool, UsageError
from colibri.jobs import Job, JobResult
from colibri.synth import write_random_blob

ROOT = Path(__file__).resolve().parents[1]
TIME_LIMIT = 300
SOURCES = ("tests/native/crew_count.c", "targets/workers/crew.c", "targets/linux/crew_linux.c")


# ---- the crew alone ----


def compiled(compiler: str, folder: Path) -> Path:
    """The counting program by gcc, by gcc with its thread sanitizer, or by zig."""
    made = folder / compiler.replace(" ", "-")
    if made.exists():
        return made
    if compiler == "zig":
        ziglang = pytest.importorskip("ziglang", reason="the Python package ziglang is not installed")
        command = [str(Path(ziglang.__file__).parent / "zig"), "cc", "-target", f"{os.uname().machine}-linux-gnu"]
    elif shutil.which("gcc") is None:
        pytest.skip("gcc is not installed")
    else:
        command = ["gcc", *(["-fsanitize=thread", "-g"] if "thread" in compiler else [])]
    cache = str(ROOT / "build" / "zig" / "zig-cache")
    done = subprocess.run([*command, "-std=gnu99", "-O2", "-Wall", "-Wextra", "-Werror", "-Icore", "-Itargets/workers",
                           "-pthread", "-o", str(made), *SOURCES], cwd=ROOT, capture_output=True, text=True,
                          check=False, env=os.environ | {"ZIG_GLOBAL_CACHE_DIR": cache, "ZIG_LOCAL_CACHE_DIR": cache})
    if done.returncode and "tsan" in done.stderr:
        pytest.skip("gcc's thread sanitizer is not installed")
    assert done.returncode == 0, done.stderr
    return made


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """For programs and blobs."""
    return tmp_path_factory.mktemp("workers")


def count(program: Path, *numbers: int, cores: int = 2) -> dict[str, int]:
    """Run the counting program on so many cores; its numbers."""
    allowed = set(sorted(os.sched_getaffinity(0))[:cores])
    done = subprocess.run([str(program), *map(str, numbers)], capture_output=True, text=True, timeout=TIME_LIMIT,
                          check=False, preexec_fn=lambda: os.sched_setaffinity(0, allowed))
    assert done.returncode == 0, done.stdout + done.stderr
    words = done.stdout.split()
    return {name: int(value) for name, value in zip(words[::2], words[1::2], strict=True)}


@pytest.mark.parametrize("compiler", ["gcc", "zig"])
@pytest.mark.parametrize("workers", [1, 2, 3, 5, 8])
def test_every_unit_of_every_op_runs_once(workers: int, compiler: str, folder: Path) -> None:
    """100000 ops of 1 .. 7 units, as short as units can be."""
    found = count(compiled(compiler, folder), workers, 100_000, 7, 0)
    assert found["wrong"] == 0 and found["run"] == found["units"] > 300_000
    assert workers > 1 or found["by_others"] == 0


@pytest.mark.sampled(4)
@pytest.mark.parametrize("workers", [2, 3, 5, 8])
def test_threads_that_are_late_lose_nothing(workers: int, folder: Path) -> None:
    """In every 97th op all wait for each other to sleep, so in each a worker and the driver are woken: two sleeps, no
    matter what else runs on this machine."""
    found = count(compiled("gcc", folder), workers, 20_000, 40, 97)
    assert found["wrong"] == 0 and found["run"] == found["units"]
    assert found["late"] == 20_000 // 97 > 100
    assert found["by_others"] >= found["late"] and found["sleeps"] >= 2 * found["late"]


@pytest.mark.parametrize("cores", [1, 2])
def test_more_workers_than_cores_make_progress_by_giving_way(cores: int, folder: Path) -> None:
    """Who has nothing to do sleeps: between two ops each thread goes to sleep at most once or twice."""
    ops = 20_000
    found = count(compiled("gcc", folder), 5, ops, 40, 97, cores=cores)
    assert found["wrong"] == 0 and found["run"] == found["units"] and found["by_others"] > 0
    assert 0 < found["sleeps"] < 5 * ops and found["yields"] < 25 * ops


@pytest.mark.parametrize("workers", [2, 5])
def test_no_word_is_shared_without_an_order(workers: int, folder: Path) -> None:
    """The sanitizer's happens-before: units' words, session and range are plain words."""
    program = compiled("gcc thread", folder)
    assert count(program, workers, 20_000, 7, 0)["wrong"] == 0
    assert count(program, workers, 3_000, 40, 31)["wrong"] == 0


def test_the_sanitizer_sees_a_crew_without_order(folder: Path, tmp_path: Path) -> None:
    """The same program with one order weakened: what the test before relies on."""
    compiled("gcc thread", folder)
    source = (ROOT / "targets/workers/crew.c").read_text(encoding="utf-8")
    broken = source.replace("&crew->pending, part, __ATOMIC_SEQ_CST", "&crew->pending, part, __ATOMIC_RELAXED")
    assert broken != source
    (tmp_path / "crew.c").write_text(broken, encoding="utf-8")
    made = tmp_path / "broken"
    subprocess.run(["gcc", "-fsanitize=thread", "-std=gnu99", "-O2", "-Icore", "-Itargets/workers", "-pthread", "-o",
                    str(made), SOURCES[0], str(tmp_path / "crew.c"), SOURCES[2]], cwd=ROOT, check=True)
    done = subprocess.run([str(made), "3", "20000", "7", "0"], capture_output=True, text=True, check=False,
                          timeout=TIME_LIMIT)
    assert "data race" in done.stderr


# ---- in this process ----


@pytest.fixture(scope="module")
def model(folder: Path) -> Model:
    """Dense and MoE layers, shared expert."""
    path = folder / "mixed.colibri"
    write_random_blob(path, "mixed", seed=3, kinds="q4")
    return Model.open(path)


@pytest.fixture(scope="module")
def job(model: Model) -> Job:
    """A prompt in one feed, then tokens one by one."""
    prompt = [(7919 * i + 101) % model.info().vocab for i in range(16)]
    return Job("workers", Limits(context=32, batch=16, logit_rows=16), prompt, generate=12)


def good(result: JobResult) -> JobResult:
    """A result without an error and without a bad check."""
    assert result.error is None and result.bad_checks() == [] and result.code == 0
    return result


def crew_threads() -> list[str]:
    """Names of the worker threads there are."""
    return [thread.name for thread in threading.enumerate() if thread.name.startswith("colibri-")]


def test_workers_come_with_a_session_and_go_with_it(model: Model) -> None:
    before = crew_threads()
    session = Session(model, Limits(workers=3))
    assert sorted(crew_threads()) == sorted([*before, "colibri-1", "colibri-2"])
    session.close()
    assert crew_threads() == before
    session.close()                                                 # a second time does nothing
    forgotten = Session(model, Limits(workers=4))
    assert len(crew_threads()) == len(before) + 3
    del forgotten
    gc.collect()
    assert crew_threads() == before


def test_a_session_that_cannot_start_leaves_no_threads(model: Model) -> None:
    before = crew_threads()
    with pytest.raises(Exception, match="session: "):
        Session(model, Limits(workers=3), pool=bytearray(64))
    assert crew_threads() == before


def test_a_process_that_ends_with_sleeping_workers_ends(model: Model) -> None:
    code = (f"from colibri.engine import *\ns = Session(Model.open({str(model.path)!r}), Limits(workers=4))\n"
            "s.feed([1, 2, 3]); s.finish(); print('fed')")
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (0, "fed\n", "")


def test_a_command_with_workers_is_interrupted_at_once() -> None:
    """Ctrl-C in the middle of a long text: the threads in C do not hold the process."""
    demo = ROOT / "pytools" / "colibri" / "demo" / "demo.colibri"
    child = subprocess.Popen(
        [sys.executable, "-m", "colibri", "run", str(demo), "-p", "Once", "-n", "500000", "--context", "600000", "--kv",
         "q8", "--workers", "3", "--temperature", "1", "--no-digest"],
        stdout=subprocess.PIPE, stderr=subprocess.PIPE,
        # a shell starts its background jobs, and so this test's children, with the signal ignored
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL))
    assert child.stdout and child.stdout.read(20)                   # it has begun to write
    child.send_signal(signal.SIGINT)
    assert child.wait(60) == 130
    child.communicate()


# ---- the same bits ----


NAMES = [name for name in targets.names() if name.startswith("linux")]


def target_of(name: str) -> targets.Target:
    """A target that can run here; the second compiler's build is brought up to date."""
    if name == "linux-gcc" and shutil.which("gcc"):
        subprocess.run([sys.executable, "-m", "SCons", "-s", "toolchain=gcc", "linux"], cwd=ROOT, check=True)
    target = targets.pick([name])[0]
    if how := target.missing():
        pytest.skip(f"target {name}: {how}")
    return target


@pytest.mark.sampled(4)
@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("workers", [1, 2, 3, 5])
def test_any_number_of_workers_gives_the_same_digest(name: str, workers: int, model: Model, job: Job) -> None:
    target = target_of(name)
    expected = good(targets.pick(["linux"])[0].run(job, model))
    found = good(target.run(replace(job, limits=replace(job.limits, workers=workers)), model))
    assert (found.digest, found.tokens) == (expected.digest, expected.tokens)
    assert found.threads == workers


@pytest.mark.parametrize("name", ["linux-x86_64", "wasm"])
def test_workers_without_threads_give_it_too(name: str, model: Model, job: Job) -> None:
    """Where there are no threads, and where they are not wanted, several workers are played in turn."""
    target = target_of(name)
    several = replace(job, limits=replace(job.limits, workers=5), odd_ranges=name != "wasm")
    found = good(target.run(several, model))
    assert found.digest == good(targets.pick(["linux"])[0].run(job, model)).digest and found.threads == 1


@pytest.mark.parametrize("toolchain", ["gcc", "zig"])
def test_the_c_example_writes_the_same_with_workers(toolchain: str) -> None:
    if toolchain == "gcc" and shutil.which("gcc") is None:
        pytest.skip("gcc is not installed")
    subprocess.run([sys.executable, "-m", "SCons", "-s", f"toolchain={toolchain}", "example"], cwd=ROOT, check=True)
    example = ROOT / "build" / toolchain / "example" / "example"
    demo = ROOT / "pytools" / "colibri" / "demo" / "demo.colibri"
    said = {}
    for workers in ("1", "2", "3"):
        done = subprocess.run([str(example), str(demo), "Once upon a time", workers], capture_output=True, text=True,
                              timeout=TIME_LIMIT, check=True)
        said[workers] = re.sub(r"\d+ bytes of pool", "", done.stdout)       # which grows with the workers
    assert len(set(said.values())) == 1 and len(said["1"]) > 40


def test_crew_names_are_the_headers() -> None:
    """The structure is a whole number of cache lines, and its three hot words are on lines of their own."""
    kind = library.ffi().typeof("colibri_crew")
    places = {name: field.offset for name, field in kind.fields}
    assert library.ffi().sizeof(kind) % 64 == 0
    assert len({places[name] // 64 for name in ("rest", "pending", "sleepers", "units")}) == 4


# ---- on the board ----


def test_cores_of_the_board_are_workers(model: Model, job: Job) -> None:
    """Each core that is there joins and runs units; the answer is the same."""
    target = target_of("baremetal")
    expected = good(targets.pick(["linux"])[0].run(job, model)).digest
    for workers in (1, 2, 4):
        several = replace(job, limits=replace(job.limits, workers=workers))
        found = good(target.run(several, model, TIME_LIMIT))
        assert (found.digest, found.threads) == (expected, workers)
        assert 256 < found.stack_bytes < 65536


# ---- the kernel level ----


def test_names_and_masks() -> None:
    assert list(kernels.numbers()) == ["auto", "portable", "avx2", "avx-vnni", "avx512", "neon", "dotprod", "simd128",
                                       "relaxed"]
    assert kernels.name_of(3) == "avx-vnni" and kernels.number_of("relaxed") == 8
    assert kernels.in_mask(0b110110) == ["portable", "avx2", "avx512", "neon"]
    for name, arch in (("avx-vnni", "x86_64"), ("dotprod", "aarch64"), ("simd128", "wasm32"), ("portable", "")):
        assert kernels.architecture(name) == arch
    assert kernels.for_architecture("avx2", "aarch64") == "auto"
    assert kernels.for_architecture("avx2", "x86_64") == "avx2"
    assert kernels.for_architecture("portable", "wasm32") == "portable"


def test_what_is_found_is_what_the_kernel_says_the_processor_has() -> None:
    """Our CPUID and XGETBV against the flags of /proc/cpuinfo."""
    if os.uname().machine != "x86_64":
        pytest.skip("cpu: not x86-64")
    line = next(line for line in Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
                if line.startswith("flags"))
    flags = set(line.split(":")[1].split())
    needs = {"portable": set(), "avx2": {"avx2", "f16c"}, "avx-vnni": {"avx2", "f16c", "avx_vnni"},
             "avx512": {"avx2", "f16c", "avx512f", "avx512bw", "avx512dq", "avx512vl", "avx512_vnni"}}
    assert kernels.in_mask(library.load().colibri_host_kernels()) == [
        name for name, needed in needs.items() if needed <= flags]


def test_the_best_of_what_is_offered_is_taken() -> None:
    lib = library.load()
    has = lib.colibri_host_kernels()
    for offered in range(0, 512, 2):
        both = has & offered
        assert lib.colibri_host_kernel(offered) == (both.bit_length() - 1 if both else 1)


def test_a_session_names_its_level_and_every_level_gives_the_same_bits(model: Model, job: Job) -> None:
    target = targets.pick(["linux"])[0]
    best = good(target.run(job, model))
    assert best.kernel == kernels.here()[-1] and best.variant == f"{target.arch}/{best.kernel}"
    for name in kernels.here():
        for workers in (1, 3):
            limits = replace(job.limits, kernel=name, workers=workers)
            found = good(target.run(replace(job, limits=limits), model))
            assert (found.digest, found.kernel, found.threads) == (best.digest, name, workers)


def test_a_level_that_is_not_here_is_one_sentence(model: Model, job: Job, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(UsageError, match="kernel 'avx1024': expected one of auto, portable, avx2"):
        Session(model, Limits(kernel="avx1024"))
    absent = next(name for name in kernels.numbers() if name not in ("auto", *kernels.here()))
    with pytest.raises(MissingTool, match=f"kernel {absent}: this .* does not have it; here .* portable"):
        Session(model, Limits(kernel=absent))
    for name in ("linux-x86_64", "wasm"):
        target = targets.pick([name])[0]
        if not target.missing():
            foreign = replace(job, limits=replace(job.limits, kernel="dotprod"))
            error = target.run(foreign, model).error
            assert error and error.exit_code == 4
            assert f"target {name}: kernel dotprod cannot run there; it offers portable" in str(error)
    assert cli.main(["run", str(model.path), "--tokens", str(model.path), "--kernel", "avx1024"]) != 0
    tokens = model.path.with_suffix(".json")
    tokens.write_text("[1, 2, 3]", encoding="utf-8")
    assert cli.main(["run", str(model.path), "--tokens", str(tokens), "--kernel", "avx1024"]) == 2
    assert cli.main(["run", str(model.path), "--tokens", str(tokens), "--kernel", absent]) == 4
    capsys.readouterr()


def emulated(name: str, machine: str, cpu: str, job: Job, model: Model, folder: Path) -> JobResult:
    """The static runner on another processor of QEMU's."""
    emulator = targets.program(f"qemu-{machine}")
    if emulator is None:
        pytest.skip(f"qemu-{machine} is not installed")
    runner = targets.runner_path(f"linux_{machine}")
    command = [emulator, "-cpu", cpu, str(runner), str(targets.write_job(str(folder), job, model)), str(model.path)]
    return targets.run_program(name, command, TIME_LIMIT)


@pytest.mark.parametrize(("cpu", "level"), [
    ("Nehalem", "portable"), ("IvyBridge", "portable"), ("Haswell", "avx2"), ("Haswell,-f16c", "portable"),
    ("Haswell,-avx2", "portable"), ("Haswell,-xsave", "portable"), ("Skylake-Server", "avx2"),
])
def test_older_x86_processors_pick_what_they_have(cpu: str, level: str, model: Model, job: Job,
                                                  tmp_path: Path) -> None:
    """No AVX2, no F16C, no saved registers; AVX-512 that the emulator masks out."""
    expected = good(targets.pick(["linux"])[0].run(job, model))
    found = good(emulated("x86", "x86_64", cpu, job, model, tmp_path))
    assert (found.kernel, found.digest) == (level, expected.digest)
    refused = replace(job, limits=replace(job.limits, kernel="avx512"))
    assert "kernel avx512 cannot run there" in str(emulated("x86", "x86_64", cpu, refused, model, tmp_path).error)


@pytest.mark.parametrize(("cpu", "level"), [
    ("cortex-a53", "neon"), ("cortex-a72", "neon"), ("cortex-a76", "dotprod"), ("max", "dotprod"),
])
def test_arm_processors_pick_what_they_have(cpu: str, level: str, model: Model, job: Job, tmp_path: Path,
                                            monkeypatch: pytest.MonkeyPatch) -> None:
    """In a Linux program by the auxiliary vector; on the board by an ID register; the row says which it was."""
    expected = good(targets.pick(["linux"])[0].run(job, model)).digest
    found = good(emulated("arm", "aarch64", cpu, job, model, tmp_path))
    assert (found.kernel, found.digest) == (level, expected)
    if level == "neon":
        refused = replace(job, limits=replace(job.limits, kernel="dotprod"))
        assert "it offers portable, neon" in str(emulated("arm", "aarch64", cpu, refused, model, tmp_path).error)
    target = targets.pick(["linux-aarch64"])[0]
    monkeypatch.setenv("QEMU_CPU", cpu)
    assert good(target.run(job, model)).row()["variant"] == f"aarch64/{level}"


def test_commands_take_a_level_and_workers(model: Model, capsys: pytest.CaptureFixture[str]) -> None:
    import json

    assert cli.main(["verify", str(model.path), "--target", "linux,wasm", "--kernel", kernels.here()[-1],
                     "--workers", "2", "--json", "-q"]) == 0
    rows = json.loads(capsys.readouterr().out)["rows"]
    assert [row["variant"] for row in rows][0] == f"{os.uname().machine}/{kernels.here()[-1]}"
    assert [row["threads"] for row in rows] == [2, 1]
    tokens = model.path.with_suffix(".json")
    tokens.write_text("[1, 2, 3]", encoding="utf-8")
    assert cli.main(["run", str(model.path), "--tokens", str(tokens), "-n", "2", "--kernel", "portable",
                     "--workers", "3", "--json", "-q"]) == 0
    document = json.loads(capsys.readouterr().out)
    assert (document["kernel"], document["threads"]) == ("portable", 3)
    assert cli.main(["plan", str(model.path), "--workers", "3", "--kernel", "avx2", "--json", "-q"]) == 0
    limits = json.loads(capsys.readouterr().out)["limits"]
    assert (limits["workers"], limits["kernel"]) == (3, 2)


# ---- the fastest level ----


def race(levels: int, nanoseconds: dict[int, int] | None) -> int:
    """colibri_fastest_kernel under a clock that says how long each level takes: the core reads it twice a round, five
    rounds a level, levels ascending. Without the times there is no clock."""
    lib, ffi = library.load(), library.ffi()
    if nanoseconds is None:
        return int(lib.colibri_fastest_kernel(levels, ffi.NULL, ffi.NULL))
    order = [level for level in sorted(nanoseconds) for _ in range(5)]
    readings = [reading for level in order for reading in (1000, 1000 + nanoseconds[level])]
    taken = iter(readings)
    clock = ffi.callback("colibri_clock_hook", lambda user: next(taken))
    winner = int(lib.colibri_fastest_kernel(levels, clock, ffi.NULL))
    assert next(taken, None) is None                            # every level that may win was timed
    return winner


def test_the_fastest_level_is_the_one_the_clock_says() -> None:
    here = [kernels.number_of(name) for name in kernels.here()]
    mask = sum(1 << level for level in here)
    for favourite in here:
        assert race(mask, {level: 10 if level == favourite else 500 for level in here}) == favourite
    assert race(mask, None) == max(here)                        # no clock: the highest
    assert race(mask | 1 << 31, {level: 7 for level in here}) == min(here)      # a tie: the plainer one; 31 is nobody
    assert race(0, None) == kernels.number_of("portable")


def test_a_session_with_the_fastest_level_has_the_same_answer(tmp_path: Path) -> None:
    path = tmp_path / "m.colibri"
    write_random_blob(path, "moe", kinds="q4")
    model = Model.open(path)
    rows = []
    for name in ("fastest", "portable"):
        with Session(model, Limits(kernel=name)) as session:
            session.feed([1, 2, 3])
            session.finish()
            rows.append(session.logits().tobytes())
            assert session.kernel in kernels.here()
    assert rows[0] == rows[1]
    assert kernels.number_of("fastest") == kernels.number_of("auto")            # elsewhere the target chooses
