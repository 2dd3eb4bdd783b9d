"""Builds for processors without a floating-point unit, and the boards that run the router alone.

The compiler is zig (a build dependency) whatever the toolchain of the house: it alone brings the functions that do
float arithmetic by integers for every processor.
"""

from __future__ import annotations

import atexit
import functools
import os
import shutil
import subprocess
import tempfile
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest

import smollm2
from colibri import library, targets

ROOT = Path(__file__).resolve().parents[1]
FLAGS = """-std=c99 -O2 -g0 -ffreestanding -fno-builtin -ffp-contract=off -fno-math-errno -fno-sanitize=undefined
    -fno-stack-protector -fno-unwind-tables -fno-asynchronous-unwind-tables -ffunction-sections -fdata-sections
    -DCOLIBRI_TEXT=1 -DCOLIBRI_STATUS_TEXTS=1 -DCOLIBRI_KERNELS_PORTABLE=1 -DCOLIBRI_HUGEPAGES=0 -nostdlib -static
    -Wl,--gc-sections""".split()
RISCV = ["-target", "riscv64-freestanding-none", "-mcpu=generic_rv64+m+a+c"]
CORTEX_M3 = ["-target", "thumb-freestanding-eabi", "-mcpu=cortex_m3"]
LINUX = ("crew_linux", "host_linux", "linux_port", "linux_threads", "store", "store_ring")
ARM64 = ["-target", "aarch64-freestanding-none", "-mcpu=generic", "-mstrict-align"]


@functools.cache
def _folder() -> Path:
    folder = Path(tempfile.mkdtemp(prefix="soft-", dir=smollm2.cache_root()))
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    return folder


def zig(*arguments: object) -> None:
    """Run zig; a failure is the test's."""
    ziglang = pytest.importorskip("ziglang", reason="the Python package ziglang is not installed")
    cache = str(smollm2.cache_root() / "zig")
    done = subprocess.run([str(Path(ziglang.__file__).parent / "zig"), *map(str, arguments)], capture_output=True,
                          text=True, check=False,
                          env={**os.environ, "ZIG_GLOBAL_CACHE_DIR": cache, "ZIG_LOCAL_CACHE_DIR": cache})
    if done.returncode:
        pytest.fail(f"zig {' '.join(map(str, arguments))}\n{done.stderr[-4000:]}")


@functools.cache
def float_functions(target: tuple[str, ...]) -> Path:
    """Float arithmetic by integers, as an archive."""
    out, empty = _folder() / f"rt-{target[1]}.a", _folder() / "empty.c"
    empty.write_text("")
    zig("build-lib", *target, "-OReleaseSmall", "-fcompiler-rt", f"-femit-bin={out}", empty)
    return out


def core() -> list[Path]:
    """Every C file of the core."""
    return sorted((ROOT / "core").glob("*/*.c"))


def firmware_core() -> Path:
    """The core as the ARM64 firmware has it."""
    return library.data_folder() / "baremetal_arm64" / "libcolibri.a"


@functools.cache
def riscv_runner() -> Path:
    """The runner with the whole core, for a RISC-V without floating-point registers."""
    out, host = _folder() / "runner", ROOT / "targets"
    ports = [*sorted((host / "runner").glob("*.c")), host / "workers/crew.c", host / "host/host.c"]
    ports += [host / "linux" / f"{name}.c" for name in LINUX]
    include = [f"-I{path}" for path in (ROOT / "core", host / "runner", host / "workers", host / "host")]
    zig("cc", *RISCV, "-mabi=lp64", *FLAGS, *include, *core(), *ports, float_functions(tuple(RISCV)), "-o", out)
    return out


@dataclass(frozen=True)
class Board:
    """A machine of QEMU with a clock that counts instructions."""

    name: str
    emulator: str
    machine: tuple[str, ...]
    target: tuple[str, ...]
    memory: str
    per_tick: float  # instructions

    def run(self, vectors: Vectors, with_float: bool) -> list[Routed]:
        """Compile, link and boot tests/c/router_board.c; what it printed."""
        more: list[Path] = []
        if with_float and self.target == tuple(CORTEX_M3):
            more = [*(path for path in core() if path.name != "router.c"), float_functions(self.target)]
        elif with_float:
            more = [firmware_core()]
        return parsed(self.boot("router", vectors.header(), [f"-DWITH_FLOAT={int(with_float)}"], more), self.per_tick)

    def boot(self, program: str, header: str, flags: list[str], more: list[Path], options: tuple[str, ...] = ()) -> str:
        """Compile tests/c/PROGRAM_board.c with its header, link it with more and boot it; what it said."""
        emulator = targets.program(self.emulator)
        if emulator is None:
            pytest.skip(f"{self.emulator} is not installed; apt-get install --no-install-recommends qemu-system-arm")
        folder = Path(tempfile.mkdtemp(prefix=f"{program}-{self.name}-", dir=_folder()))
        (folder / f"{program}_vectors.h").write_text(header)
        (folder / "link.ld").write_text(
            "ENTRY(_start)\nSECTIONS {\n" + self.memory + ".text : { KEEP(*(.start)) *(.text*) *(.rodata*) }\n"
            ".data : { *(.data*) }\n.bss : { *(.bss*) *(COMMON) }\n. = ALIGN(16); . += 0x8000; stack_top = .;\n"
            "/DISCARD/ : { *(.ARM.*) *(.note*) *(.comment*) }\n}\n")
        out = folder / "board.elf"
        zig("cc", *self.target, *FLAGS, *flags, f"-I{folder}", f"-I{ROOT / 'core'}",
            ROOT / f"tests/c/{program}_board.c", *more, "-Wl,-T," + str(folder / "link.ld"), "-o", out)
        done = subprocess.run([emulator, *self.machine, "-nographic", "-monitor", "none", "-serial", "none",
                               "-semihosting-config", "enable=on,target=native", *options, "-kernel", str(out)],
                              capture_output=True, text=True, check=False, timeout=120, stdin=subprocess.DEVNULL)
        if done.returncode:
            pytest.fail(f"{self.name}: exit {done.returncode}\n{done.stdout[-1000:]}\n{done.stderr[-1000:]}")
        return done.stdout + done.stderr


@dataclass(frozen=True)
class Vectors:
    """Rows of logits, and (experts, experts chosen, renormalise) that are routed of each row's beginning."""

    shapes: tuple[tuple[int, int, int], ...]
    logits: np.ndarray  # float32 [rows, 256]

    def header(self) -> str:
        """router_vectors.h"""
        rows = ", \\\n".join("{" + ", ".join(f"0x{bits:08X}u" for bits in row) + "}"
                             for row in self.logits.view(np.uint32).tolist())
        shapes = ", ".join("{" + ", ".join(map(str, shape)) + "}" for shape in self.shapes)
        return (f"#define SHAPE_COUNT {len(self.shapes)}\n#define SHAPES {{{shapes}}}\n"
                f"#define ROWS {len(self.logits)}\n#define LOGITS {{ \\\n{rows} }}\n")


@dataclass
class Routed:
    """Experts and weights (2^-16, or float32 bits) of all rows, and the instructions they took together."""

    experts: np.ndarray
    weights: np.ndarray
    instructions: float


def parsed(text: str, per_tick: float) -> list[Routed]:
    """The boards' lines."""
    out, rows = [], []
    for line in text.splitlines():
        word, *numbers = line.split()
        if word == "row":
            rows.append([int(n) for n in numbers])
        elif word == "ticks":
            made = np.array(rows, dtype=np.int64)
            out.append(Routed(made[:, ::2], made[:, 1::2], int(numbers[0]) * per_tick))
            rows = []
    return out


BOARDS = {
    "cortex-m3": Board("cortex-m3", "qemu-system-arm", ("-M", "mps2-an385", "-icount", "shift=6"), tuple(CORTEX_M3),
                       ". = 0;\n", 40 / 64),
    "arm64": Board("arm64", "qemu-system-aarch64",
                   ("-M", "virt", "-cpu", "cortex-a57", "-nic", "none", "-icount", "shift=4"), tuple(ARM64),
                  ". = 0x40100000;\n", 1.0),
}
