"""Every kernel level against the portable one, bit for bit: each function of core/kernels/kernels.h over shapes and
values that models rarely have (tests/c/levels_test.c compares), by gcc and by zig, on this processor or under QEMU."""
from __future__ import annotations

import platform
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from c.programs import BITS, HERE, ROOT, core_sources

FREE = ["-std=gnu99", "-O3", "-ffreestanding", "-fno-builtin", "-fno-stack-protector", "-fno-strict-aliasing", *BITS]
COMPILERS = {                           # (compiler, processor) -> command
    ("gcc", "x86_64"): ["gcc", "-march=x86-64"],
    ("gcc", "aarch64"): ["aarch64-linux-gnu-gcc", "-march=armv8-a", "-mno-outline-atomics"],
    ("zig", "x86_64"): [sys.executable, "-m", "ziglang", "cc", "-target", "x86_64-linux-musl", "-mcpu=x86_64"],
    ("zig", "aarch64"): [sys.executable, "-m", "ziglang", "cc", "-target", "aarch64-linux-musl", "-mcpu=generic"],
}
# level -> number in colibri.h, processor, flags of /proc/cpuinfo it needs, processors QEMU has to imitate
LEVELS = {
    "portable": (1, "x86_64", set(), ()),
    "avx2": (2, "x86_64", {"avx2", "f16c"}, ()),
    "avx-vnni": (3, "x86_64", {"avx2", "f16c", "avx_vnni"}, ()),
    "avx512": (4, "x86_64", {"avx512f", "avx512bw", "avx512dq", "avx512vl", "avx512_vnni", "f16c"}, ()),
    "neon": (5, "aarch64", set(), ("cortex-a53", "max")),
    "dotprod": (6, "aarch64", {"asimddp"}, ("cortex-a76", "max")),
}
# every compiler and level; in the fast layers one compiler on this processor
RUNS = [pytest.param(compiler, level, machine, marks=[] if compiler == "zig" and not machine else pytest.mark.slow)
        for level, (_, _, _, machines) in LEVELS.items()
        for machine in machines or ("",)
        for compiler in ("gcc", "zig")]


class Programs:
    """The test program per compiler and processor, built when first asked for."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def get(self, compiler: str, processor: str, *extra: str) -> Path:
        """A static program without a libc."""
        command = COMPILERS[compiler, processor]
        if compiler == "zig":
            pytest.importorskip("ziglang", reason="ziglang is not installed: pip install ziglang")
        elif shutil.which(command[0]) is None:
            pytest.skip(f"{command[0]} is not installed")
        name = "-".join([compiler, processor, *(word.strip("-").replace("=", "_") for word in extra)])
        out = self.folder / name
        if out.is_file():
            return out
        sources = [*core_sources("base", "kernels"), ROOT / "core" / "base" / "mem.c", HERE / "levels_test.c",
                   HERE / "levels_main.c"]
        own = ["-fno-tree-loop-distribute-patterns"] if compiler == "gcc" else ["-fno-sanitize=undefined"]
        done = subprocess.run([*command, *FREE, *own, *extra, "-static", "-nostdlib", f"-I{ROOT / 'core'}",
                               *map(str, sources), "-o", str(out)], capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr[-4000:]
        return out


@pytest.fixture(scope="module")
def programs(tmp_path_factory: pytest.TempPathFactory) -> Programs:
    """All of a run's programs in one folder."""
    return Programs(tmp_path_factory.mktemp("levels"))


def processor_flags() -> set[str]:
    """What Linux says this processor has."""
    lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    return {flag for line in lines if line.split(":")[0].strip() in ("flags", "Features")
            for flag in line.split(":", 1)[1].split()}


def launcher(processor: str, machine: str, needs: set[str]) -> list[str]:
    """What runs a program for `processor`: nothing, or QEMU as `machine`."""
    if machine and (platform.machine() != processor or machine != "max"):
        if shutil.which(f"qemu-{processor}") is None:
            pytest.skip(f"qemu-{processor} is not installed")
        return [f"qemu-{processor}", "-cpu", machine]
    if platform.machine() != processor:
        pytest.skip(f"cpu: this is no {processor}")
    missing = sorted(needs - processor_flags())
    if missing:
        pytest.skip(f"cpu: this processor has no {', '.join(missing)}")
    return []


def compare(program: list[str], level: int) -> int:
    """Run the comparison; the number of calls that were compared."""
    done = subprocess.run([*program, str(level)], capture_output=True, text=True, check=False, timeout=300)
    assert done.returncode in (0, 1), f"{program} died: {done.returncode} {done.stderr[-500:]}"
    numbers = [int(word) for word in done.stdout.split()]
    assert done.returncode == 0 and numbers[0] == 0, f"differs (see tests/c/levels_test.h): {numbers}"
    return numbers[-1]


@pytest.mark.parametrize(("compiler", "level", "machine"), RUNS)
def test_a_level_equals_the_portable_one_in_every_function(programs: Programs, compiler: str, level: str,
                                                           machine: str) -> None:
    number, processor, needs, _ = LEVELS[level]
    program = programs.get(compiler, processor)                 # an absent instruction set has compiled all the same
    assert compare([*launcher(processor, machine, needs), str(program)], number) > 10_000


@pytest.mark.slow
@pytest.mark.parametrize("compiler", ("gcc", "zig"))
def test_arm_levels_of_a_strictly_aligned_build_for_a_newer_processor(programs: Programs, compiler: str) -> None:
    newer = "-march=armv8.2-a+dotprod" if compiler == "gcc" else "-mcpu=generic+v8_2a+dotprod"
    program = programs.get(compiler, "aarch64", newer, "-mstrict-align")
    for level in ("neon", "dotprod"):
        assert compare([*launcher("aarch64", "max", {"asimddp"}), str(program)], LEVELS[level][0]) > 10_000
