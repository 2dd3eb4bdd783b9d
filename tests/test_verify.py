"""One answer: the same bits on every target, whatever is varied that must not matter; and a wrong answer is
seen."""

import json
import shutil
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from functools import cache
from pathlib import Path

import pytest

from colibri import cli, factors, kernels, targets
from colibri.engine import Limits, Model, Sampling
from colibri.errors import InternalError
from colibri.jobs import Job, JobResult, parse_report
from colibri.synth import write_random_blob

ROOT = Path(__file__).resolve().parent.parent
NAMES = targets.names()
# model shape, weight kind, KV kind: every weight and cache kind, dense and MoE, shared experts, window,
# rope kinds
CASES = {
    "moe": ("mixed", "q4", "f16"),
    "yarn": ("yarn", "f16", "q8"),
    "window": ("window", "f32", "f32"),
    "shared": ("shared", "q8", "q8"),
}
PROMPT = 24
GENERATE = 8


@cache
def gcc_build() -> str:
    """Bring the second compiler's build up to date; what the build said if that fails."""
    command = [sys.executable, "-m", "SCons", "-s", "toolchain=gcc", "linux"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    return done.stderr[-2000:] or "failed" if done.returncode else ""


@pytest.fixture(scope="module")
def case(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], tuple[Model, Job]]:
    """A case's model and base job, written once."""
    folder = tmp_path_factory.mktemp("verify")
    made: dict[str, tuple[Model, Job]] = {}

    def get(name: str) -> tuple[Model, Job]:
        if name not in made:
            spec, weights, kv = CASES[name]
            path = folder / f"{name}.colibri"
            write_random_blob(path, spec, seed=3, kinds=weights)
            model = Model.open(path)
            prompt = [(7919 * i + 101) % model.info().vocab for i in range(PROMPT)]
            limits = Limits(context=PROMPT + GENERATE, batch=16, logit_rows=16, kv=kv)
            made[name] = model, Job(name, limits, prompt, generate=GENERATE, companion=prompt[::-1])
        return made[name]

    return get


def target_of(name: str) -> targets.Target:
    """A target that can run here; otherwise the test is skipped with the line that brings it."""
    if name == "linux-gcc" and shutil.which("gcc"):
        assert gcc_build() == ""
    target = targets.pick([name])[0]
    how = target.missing()
    if how:
        pytest.skip(f"target {name}: {how}")
    return target


def good(result: JobResult) -> JobResult:
    """A result without an error and without a bad check."""
    assert result.error is None and result.bad_checks() == [] and result.code == 0
    return result


def expected(model: Model, job: Job) -> JobResult:
    """The answer of this process."""
    return good(targets.pick(["linux"])[0].run(job, model))


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("which", CASES)
def test_base_run(which: str, name: str, case) -> None:
    """Digest, tokens and memory are the same everywhere."""
    model, job = case(which)
    first, result = expected(model, job), good(target_of(name).run(job, model))
    assert result.digest == first.digest and len(first.digest) == 64
    assert result.tokens == first.tokens and len(result.tokens[0]) == GENERATE
    assert result.planned_bytes == result.used_bytes == first.planned_bytes > 0
    assert result.rows[0] == PROMPT + GENERATE - 1 and result.finish[0] == "length"


@pytest.mark.slow
@pytest.mark.parametrize("which", CASES)
@pytest.mark.parametrize("name", NAMES)
def test_what_must_not_matter(name: str, which: str, case) -> None:
    """One factor at a time, and eight seeded mixtures, per target."""
    model, job = case(which)
    target, digest = target_of(name), expected(model, job).digest
    seed = NAMES.index(name) + 1
    levels = targets.levels(target, job, model)
    varied = factors.variations(job, seed, levels)
    assert "portable" in levels
    assert len(varied) == 1 + sum(map(len, factors.FACTORS.values())) + len(levels) + factors.COMBINATIONS
    for label, variation in varied:
        result = good(target.run(replace(variation, name=label), model))
        assert result.digest == digest, label


def test_factors_cover_what_is_promised() -> None:
    """Budgets 1 and 7, splits 1, 3, 16, three fills, second sequence, second session, hostile floats, workers, kernel
    levels; eight mixtures, the same for the same seed."""
    job = Job("x", Limits())
    singles = [label for label, _ in factors.single(job)]
    assert singles[0] == "base" and len(singles) == 17
    assert [label for label, _ in factors.single(job, ["avx2", "avx512"])][17:] == ["kernel=avx2", "kernel=avx512"]
    for label in (
        "budget=1",
        "budget=7",
        "split=1",
        "split=3",
        "split=16",
        "two_sequences=1",
        "two_sessions=1",
        "hostile_float=1",
        "reset=1",
        "workers=5",
        "workers=3 odd_ranges=1",
    ):
        assert label in singles
    mixtures = factors.combined(job, 4)
    assert len(mixtures) == 8 == len({label for label, _ in mixtures})
    assert mixtures == factors.combined(job, 4) != factors.combined(job, 5)


@pytest.mark.parametrize("name", NAMES)
def test_another_question_has_another_digest(name: str, case) -> None:
    """The digest is not a constant: one token, and one rounding of a weight kind, change it."""
    model, job = case("moe")
    target = target_of(name)
    other = replace(job, prompt=[*job.prompt[:-1], (job.prompt[-1] + 1) % model.info().vocab])
    assert good(target.run(other, model)).digest != expected(model, job).digest
    assert (
        good(target.run(replace(job, limits=replace(job.limits, kv="q8")), model)).digest
        != expected(model, job).digest
    )


@pytest.mark.parametrize("name", NAMES)
def test_sampling_and_routing_are_equal(name: str, case) -> None:
    """Drawn tokens and the routers' choices, with their weights' bits."""
    model, job = case("moe")
    hot = replace(
        job,
        routing=True,
        sampling=Sampling(
            temperature=1.3, top_k=20, top_p=0.9, min_p=0.01, seed=99, repetition_penalty=1.2, repeat_last=8
        ),
    )
    first, result = expected(model, hot), good(target_of(name).run(hot, model))
    assert result.tokens == first.tokens != expected(model, job).tokens
    assert sorted(result.routes, key=repr) == sorted(first.routes, key=repr)
    assert len(first.routes) == 2 * (PROMPT + GENERATE - 1)


@pytest.mark.parametrize("odd_ranges", (True, False))
@pytest.mark.parametrize("name", NAMES)
def test_streamed_experts_and_workers(name: str, odd_ranges: bool, case) -> None:
    """Experts and resident weights through late fetches into the fewest slots, units by 3 workers: in odd ranges
    without threads, and by threads where there are any."""
    model, job = case("moe")
    floor = model.plan(replace(job.limits, stream_experts=True, slots=4)).slots_floor
    limits = replace(job.limits, slots=floor, stream_experts=True, resident_copy=True, workers=3)
    late = replace(job, limits=limits, store="LATE", store_delay=3, odd_ranges=odd_ranges)
    target = target_of(name)
    if target.name == "linux":
        late = replace(late, store="COPY")  # this process has no slow store
    result = good(target.run(late, model))
    assert result.digest == expected(model, job).digest
    assert result.stats["expert_misses"] > 0 and result.stats["bytes_fetched"] > 0


@pytest.mark.parametrize("name", NAMES)
def test_a_refusal_on_a_target_is_named(name: str, case) -> None:
    """A token beyond the vocabulary: the call and the status come back from everywhere."""
    model, job = case("moe")
    result = target_of(name).run(replace(job, prompt=[1, 2, 100000]), model)
    assert result.error is not None and "TOKEN" in str(result.error) and result.error.exit_code == 3


def test_firmware_that_faults_is_an_error_in_time(case) -> None:
    """A CPU exception on the board is reported and ends the emulator; nothing hangs."""
    model, job = case("moe")
    result = target_of("baremetal").run(replace(job, board_fault=True), model, 60)
    assert isinstance(result.error, InternalError) and "97" in str(result.error)


@pytest.mark.parametrize("name", ("linux-aarch64", "node", "baremetal"))
def test_every_run_has_a_time_limit(name: str, case) -> None:
    """A run that would take longer is ended, and the sentence says so."""
    model, job = case("moe")
    with pytest.raises(InternalError, match="no end after 0.001 s"):
        target_of(name).run(job, model, 0.001)


def test_wasm_has_a_time_limit(case) -> None:
    """The same inside this process: the module is interrupted from outside."""
    model, job = case("moe")
    long = replace(job, limits=replace(job.limits, context=4000), generate=3900, digest=False)
    with pytest.raises(InternalError, match="longer than 0.3 s"):
        target_of("wasm").run(long, model, 0.3)


def test_report_without_an_end_is_an_error() -> None:
    """A target that dies in the middle does not count as an answer."""
    result = parse_report("x", "begin a\npool 100\ndigest 0 " + 64 * "a" + " 3\n")
    assert isinstance(result.error, InternalError) and "ended without a result" in str(result.error)
    bad = parse_report("x", "check red_zones bad 0 7\ndone 1\n")
    assert bad.bad_checks() == ["x: check red_zones: expected 0, found 7"]


# ---- the command ----


def run_command(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> tuple[int, dict]:
    """`colibri ... --json`: exit code and document."""
    code = cli.main([*arguments, "--json", "-q"])
    return code, json.loads(capsys.readouterr().out)


def test_command_says_one_answer(case, capsys: pytest.CaptureFixture[str]) -> None:
    """Two targets that agree: exit 0 and the document of the contract."""
    model, job = case("shared")
    code, document = run_command(["verify", str(model.path), "--target", "linux,wasm", "--thorough"], capsys)
    assert code == 0 and document["one_answer"] is True and document["schema"] == 1
    assert document["model"] == model.info().identity and document["missing"] == [] == document["problems"]
    assert [row["target"] for row in document["rows"]] == ["linux", "wasm"]
    assert set(document["rows"][0]) == {
        "target",
        "variant",
        "runner",
        "store",
        "threads",
        "digest",
        "tokens",
        "planned_bytes",
        "used_bytes",
        "asked_again",
    }
    levels = [len(targets.levels(target_of(name), job, model)) for name in ("linux", "wasm")]
    assert len(document["variations"]) == 2 * 24 + sum(levels) and levels[0] == len(kernels.here())


def test_one_row_is_never_equal(case, capsys: pytest.CaptureFixture[str]) -> None:
    """A single target proves nothing."""
    model, _ = case("shared")
    code, document = run_command(["verify", str(model.path), "--target", "linux"], capsys)
    assert code == 1 and document["one_answer"] is False


def test_a_missing_target_is_exit_4_unless_allowed(
    case, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The document says what is missing and how to get it."""
    model, _ = case("shared")
    known = targets.all_targets()
    gone = replace(known[-1], name="gone", how=lambda: "not installed; apt-get install gone")
    monkeypatch.setattr(targets, "all_targets", lambda: (known[0], known[1], gone))
    code, document = run_command(["verify", str(model.path)], capsys)
    assert code == 4 and document["one_answer"] is True
    assert document["missing"] == [{"target": "gone", "how": "not installed; apt-get install gone"}]
    code, document = run_command(["verify", str(model.path), "--allow-missing"], capsys)
    assert code == 0


def test_a_lying_target_is_found(
    case, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A target that computes something else, or uses other memory than planned, is not one answer."""
    model, _ = case("shared")
    linux = targets.all_targets()[0]

    def other(target: targets.Target, job: Job, model: Model, limit: float) -> JobResult:
        return linux.start(target, replace(job, prompt=[*job.prompt[1:], 0]), model, limit)

    liar = replace(linux, name="liar", start=other)
    monkeypatch.setattr(targets, "all_targets", lambda: (linux, liar))
    code, document = run_command(["verify", str(model.path)], capsys)
    assert code == 1 and document["one_answer"] is False and "liar" in document["problems"][0]


@pytest.mark.slow
def test_a_build_that_fuses_is_refused_or_differs(case, tmp_path: Path) -> None:
    """The reason for -ffp-contract=off: the same sources with contraction do not pass as equal."""
    gcc = shutil.which("gcc")
    if gcc is None or "linux-x86_64" not in NAMES:
        pytest.skip("gcc for x86-64 is not installed")
    if "fma" not in Path("/proc/cpuinfo").read_text().split():
        pytest.skip("cpu: this processor has no FMA")
    sources = [
        str(path)
        for folder in ("core", "targets")
        for path in sorted((ROOT / folder).rglob("*.c"))
        if folder == "core" or path.parent.name in ("runner", "linux", "workers", "host")
    ]
    sources = [path for path in sources if "example" not in Path(path).name]
    flags = [
        "-std=gnu99",
        "-O2",
        "-march=x86-64-v3",
        "-ffp-contract=fast",
        "-ffreestanding",
        "-fno-builtin",
        "-fno-math-errno",
        "-fno-stack-protector",
        "-fno-tree-loop-distribute-patterns",
        "-nostdlib",
        "-static",
        "-DCOLIBRI_TEXT=1",
        "-DCOLIBRI_STATUS_TEXTS=1",
        "-DCOLIBRI_KERNELS_PORTABLE=1",
        "-DCOLIBRI_HUGEPAGES=0",
        f"-I{ROOT / 'core'}",
        *(f"-I{ROOT / 'targets' / room}" for room in ("runner", "workers", "host")),
    ]
    subprocess.run([gcc, *flags, "-o", str(tmp_path / "runner"), *sources], check=True)
    model, job = case("moe")
    result = targets.run_program(
        "fused",
        [str(tmp_path / "runner"), str(targets.write_job(str(tmp_path), job, model)), str(model.path)],
        60,
    )
    if result.error is None:
        assert result.digest != expected(model, job).digest
    else:
        assert "FLOAT" in str(result.error)
