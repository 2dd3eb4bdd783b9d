"""Building the C test programs: host programs on a libc, with gcc's sanitizers and the core's own sources."""
from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
HERE = Path(__file__).resolve().parent
BITS = ["-ffp-contract=off", "-fno-math-errno"]             # what the bits depend on, as in SConstruct
SANITIZE = ["-g1", "-O1", "-fsanitize=address,undefined,float-cast-overflow", "-fno-sanitize-recover=all"]
# what a program may not do at the end, and how much freed memory is kept as a trap
ENVIRONMENT = {"ASAN_OPTIONS": "detect_leaks=1:quarantine_size_mb=4:allocator_may_return_null=0",
               "UBSAN_OPTIONS": "print_stacktrace=1"}


def core_sources(*rooms: str) -> list[Path]:
    """The core's C files; without mem.c, whose functions a libc has."""
    return [path for room in rooms for path in sorted((ROOT / "core" / room).glob("*.c")) if path.name != "mem.c"]


def gcc(*arguments: object) -> None:
    """Run gcc; a failure is the test's."""
    done = subprocess.run(["gcc", "-std=gnu99", "-Wall", "-Wextra", "-Werror", f"-I{ROOT / 'core'}",
                           *map(str, arguments)], capture_output=True, text=True, check=False)
    if done.returncode:
        pytest.fail(f"gcc {' '.join(map(str, arguments))}\n{done.stderr[-4000:]}")


class Sanitized:
    """The core compiled once with the sanitizers, and programs linked with it."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.objects: list[Path] = []

    def program(self, name: str) -> Path:
        """tests/c/NAME.c with the core, without the text room."""
        rooms = ("base", "blob", "kernels", "pool", "nn", "api")
        if not self.objects:
            for source in core_sources(*rooms):
                made = self.folder / f"{source.stem}.o"
                # sessions here take the portable kernels; the others' reading is watched by test_kernel_levels.py
                gcc("-DCOLIBRI_TEXT=0", "-DCOLIBRI_KERNELS_PORTABLE=1", *BITS, *SANITIZE, "-c", source, "-o", made)
                self.objects.append(made)
        out = self.folder / name
        if not out.is_file():
            gcc(*BITS, *SANITIZE, HERE / f"{name}.c", *self.objects, "-o", out)
        return out

    def run(self, name: str, *arguments: object, timeout: float = 600) -> list[tuple[str, int]]:
        """Run a program that prints "name number" lines; a report of a sanitizer fails the test."""
        done = subprocess.run([self.program(name), *map(str, arguments)], capture_output=True, text=True, check=False,
                              timeout=timeout, env=ENVIRONMENT)
        if done.returncode:
            pytest.fail(f"{name} {' '.join(map(str, arguments))}: exit {done.returncode}\n{done.stdout[-2000:]}\n"
                        f"{done.stderr[-4000:]}")
        return [(key, int(value)) for key, value in (line.split(" ") for line in done.stdout.splitlines())]
