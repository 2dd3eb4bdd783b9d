"""The build itself: reproducible, complete, without a libc, usable as one file, and packed as it says.

Everything is built here in folders of its own; the tree's own build folder is only read.
"""
from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest
from elftools.elf.elffile import ELFFile

ROOT = Path(__file__).resolve().parents[1]
ELF_TARGETS = ("linux_x86_64", "linux_aarch64", "linux_riscv64", "baremetal_arm64")
MODULES = ("colibri.wasm", "colibri_simd128.wasm", "colibri_relaxed.wasm")
PRODUCTS = {
    "zig": [f"{t}/libcolibri.a" for t in (*ELF_TARGETS, "wasm")] + [
        "linux_x86_64/libcolibri.so", "linux_aarch64/libcolibri.so", "linux_x86_64/runner", "linux_aarch64/runner",
        "linux_riscv64/runner", *(f"wasm/{m}" for m in MODULES), "baremetal_arm64/firmware.elf",
        "baremetal_arm64/firmware.bin",
        "dist/colibri.c", "dist/colibri.h"],
}
PRODUCTS["gcc"] = [p for p in PRODUCTS["zig"] if not p.startswith("wasm/")]
NOT_PRODUCTS = ("zig-cache", ".sconsign")


def run(*command: str | Path, cwd: Path = ROOT, code: int = 0, **variables: str) -> str:
    """Run a command, expect its exit code, return what it printed."""
    done = subprocess.run([str(c) for c in command], cwd=cwd, capture_output=True, text=True, timeout=900,
                          env=os.environ | variables)
    assert done.returncode == code, f"{command}: exit {done.returncode}\n{done.stdout}\n{done.stderr}"
    return done.stdout + done.stderr


def scons(*arguments: str, cwd: Path = ROOT, code: int = 0) -> str:
    """Run SCons in a tree."""
    return run(sys.executable, "-m", "SCons", "-s", *arguments, cwd=cwd, code=code)


def tool(name: str) -> str:
    """A program that must be there, or the test skips (which is a failure under CI)."""
    if shutil.which(name) is None:
        pytest.skip(f"{name} is not installed")
    return name


@pytest.fixture(scope="session")
def zig() -> str:
    """The zig binary of the installed ziglang package."""
    ziglang = pytest.importorskip("ziglang", reason="the Python package ziglang is not installed")
    return str(Path(ziglang.__file__).parent / "zig")


@pytest.fixture(scope="session")
def build() -> Path:
    """The tree's own zig build, brought up to date."""
    scons("linux", "wasm", "baremetal", "dist", "build/zig/compile_commands.json")
    return ROOT / "build" / "zig"


def copy_of_tree(to: Path) -> Path:
    """The tree as git would commit it, changes included."""
    names = run("git", "ls-files", "-co", "--exclude-standard").splitlines()
    for name in names:
        if (ROOT / name).is_file():
            (to / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(ROOT / name, to / name)
    return to


def undefined(path: Path) -> list[str]:
    """Undefined symbols of an ELF object."""
    with path.open("rb") as file:
        table = ELFFile(file).get_section_by_name(".symtab")
        return sorted({s.name for s in table.iter_symbols() if s["st_shndx"] == "SHN_UNDEF" and s.name})


# ---- reproducible ----

@pytest.mark.slow
@pytest.mark.parametrize("toolchain", ["zig", "gcc"])
def test_two_builds_in_different_folders_are_byte_equal(toolchain: str, tmp_path: Path) -> None:
    if toolchain == "gcc":
        for name in ("gcc", "aarch64-linux-gnu-gcc", "riscv64-linux-gnu-gcc"):
            tool(name)
    trees = [copy_of_tree(tmp_path / "a"), copy_of_tree(tmp_path / "somewhere deeper" / "with a space" / "b")]
    outs = [trees[0] / "build" / toolchain, tmp_path / "out of the tree"]
    scons(f"toolchain={toolchain}", "-j1", "linux", "wasm", "baremetal", "dist", cwd=trees[0])
    scons(f"toolchain={toolchain}", f"build={outs[1]}", "linux", "wasm", "baremetal", "dist", cwd=trees[1])
    files = [sorted(p.relative_to(out).as_posix() for p in out.rglob("*")
                    if p.is_file() and not p.relative_to(out).parts[0].startswith(NOT_PRODUCTS)) for out in outs]
    assert files[0] == files[1]
    assert set(PRODUCTS[toolchain]) <= set(files[0])
    differing = [f for f in files[0] if (outs[0] / f).read_bytes() != (outs[1] / f).read_bytes()]
    assert not differing


def test_compile_commands_name_every_source_for_every_target(build: Path) -> None:
    entries = json.loads((build / "compile_commands.json").read_text(encoding="utf-8"))
    core = {str(p.relative_to(ROOT)) for p in ROOT.glob("core/*/*.c")}
    for target in (*ELF_TARGETS, "wasm"):
        seen = {e["file"] for e in entries if f"/{target}/core/" in e["output"]}
        assert seen == core, target
    assert all("-ffp-contract=off" in e["command"] for e in entries if e["file"].endswith(".c"))


def test_an_unknown_switch_is_refused() -> None:
    assert "unknown switch kernel;" in scons("kernel=portable", code=1)


@pytest.mark.slow
@pytest.mark.parametrize(("switches", "smaller"), [
    ("text=0", True), ("status_texts=0", True), ("kernels=portable hugepages=0", False),
    ("isa=avx2,dotprod,simd128", False), ("isa=avx512", False),
])
def test_every_switch_builds_and_leaves_out_what_it_says(switches: str, smaller: bool, build: Path,
                                                         tmp_path: Path) -> None:
    wanted = ["linux_x86_64/libcolibri.so", "wasm/colibri.wasm"]
    scons(*switches.split(), f"build={tmp_path}", *(str(tmp_path / name) for name in wanted))
    for name in wanted:
        size, usual = ((folder / name).stat().st_size for folder in (tmp_path, build))
        assert size < usual if smaller else size > 0, f"{name}: {size} bytes, {usual} without the switch"


# ---- alone ----

@pytest.mark.parametrize("path", ["linux_x86_64/libcolibri.so", "linux_aarch64/libcolibri.so"])
def test_shared_library_needs_nothing_and_exports_the_public_api(build: Path, path: str) -> None:
    with (build / path).open("rb") as file:
        elf = ELFFile(file)
        tags = [t.entry.d_tag for t in elf.get_section_by_name(".dynamic").iter_tags()]
        exported = {s.name for s in elf.get_section_by_name(".dynsym").iter_symbols() if s.name}
    assert "DT_NEEDED" not in tags and "DT_RELA" not in tags
    ports = ("workers/crew.h", "host/host.h", "linux/store.h")
    assert exported == public_names().union(*(public_names(f"targets/{name}") for name in ports))


def public_names(header: str = "core/colibri.h") -> set[str]:
    """The functions a header declares."""
    names = set(re.findall(r"^COLIBRI_API[^;(]*?\b(colibri_\w+)\(", (ROOT / header).read_text(encoding="utf-8"), re.M))
    assert len(names) > (20 if header == "core/colibri.h" else 0)
    return names


@pytest.mark.parametrize("name", MODULES)
def test_wasm_imports_its_memory_and_a_store_and_exports_the_public_api(build: Path, name: str) -> None:
    wasmtime = pytest.importorskip("wasmtime", reason="the Python package wasmtime is not installed")
    module = wasmtime.Module.from_file(wasmtime.Engine(), str(build / "wasm" / name))
    assert {(i.module, i.name) for i in module.imports} == {("env", "memory"), ("env", "colibri_store")}
    exported = {e.name for e in module.exports}
    runner = {f"colibri_runner_{n}" for n in ("open", "turn", "exit_code", "output", "output_bytes",
                                              "engine_fits", "arrived")}
    assert exported == public_names() | public_names("targets/host/host.h") | runner | {
        "__heap_base", "__stack_pointer"}


# ---- as one file ----

def fused(path: Path) -> list[str]:
    """Fused multiply-adds in an x86-64 object's code."""
    capstone = pytest.importorskip("capstone", reason="the Python package capstone is not installed")
    engine = capstone.Cs(capstone.CS_ARCH_X86, capstone.CS_MODE_64)
    engine.skipdata = True
    with path.open("rb") as file:
        code = [s.data() for s in ELFFile(file).iter_sections() if s["sh_flags"] & 4]
    return sorted({i.mnemonic for data in code for i in engine.disasm(data, 0)
                   if i.mnemonic.startswith(("vfmadd", "vfmsub", "vfnmadd", "vfnmsub"))})


@pytest.mark.parametrize("compiler", [pytest.param("gcc", marks=pytest.mark.slow), "zig"])
def test_the_one_file_build_compiles_alone_and_never_fuses(build: Path, compiler: str, zig: str,
                                                           tmp_path: Path) -> None:
    """Without -ffp-contract on the command line the pragmas have to do it, on a machine with FMA."""
    level = {"gcc": ["-march=x86-64-v3"], "zig": ["-mcpu=x86_64_v3", "-target", "x86_64-linux-musl"]}[compiler]
    command = [tool("gcc")] if compiler == "gcc" else [zig, "cc"]
    flags = ["-std=gnu99", "-O2", "-ffreestanding", "-fno-stack-protector", "-fno-math-errno", "-Wall", "-Wextra",
             "-Werror"]
    made = tmp_path / "colibri.o"
    run(*command, *level, *flags, "-c", build / "dist" / "colibri.c", "-o", made, cwd=tmp_path,
        ZIG_GLOBAL_CACHE_DIR=str(build / "zig-cache"), ZIG_LOCAL_CACHE_DIR=str(build / "zig-cache"))
    assert fused(made) == []
    assert undefined(made) == []
    control = tmp_path / "control.c"                    # the same compiler does fuse when nothing forbids it
    control.write_text("float f(float a, float b, float c) { return a * b + c; }\n", encoding="utf-8")
    run(*command, *level, *flags, "-c", control, "-o", tmp_path / "control.o", cwd=tmp_path,
        ZIG_GLOBAL_CACHE_DIR=str(build / "zig-cache"), ZIG_LOCAL_CACHE_DIR=str(build / "zig-cache"))
    assert fused(tmp_path / "control.o") != []


# ---- the public header and the example ----

@pytest.mark.parametrize("language", ["c99", "c11", "c++11", "c++20"])
def test_the_header_compiles_in_both_languages(language: str, tmp_path: Path) -> None:
    compiler, suffix = (tool("g++"), "cc") if "+" in language else (tool("gcc"), "c")
    source = tmp_path / f"include.{suffix}"
    arguments, zero = ("", "") if "+" in language else ("void", "0")
    source.write_text(f"""#include "colibri.h"
int main({arguments}) {{ colibri_limits limits = {{{zero}}}; return (int)limits.flags; }}
""", encoding="utf-8")
    run(compiler, f"-std={language}", "-Wall", "-Wextra", "-Wpedantic", "-Werror", "-I", ROOT / "core",
        "-c", source, "-o", tmp_path / "include.o")


@pytest.mark.parametrize("toolchain", ["gcc", "zig"])
def test_the_c_example_links_and_refuses_a_wrong_command_line(toolchain: str, tmp_path: Path) -> None:
    if toolchain == "gcc":
        tool("gcc")
    scons(f"toolchain={toolchain}", "example")
    example = ROOT / "build" / toolchain / "example" / "example"
    assert "usage" in run(example, code=2)
    nonsense = tmp_path / "nonsense.colibri"
    nonsense.write_bytes(bytes(4096))
    assert run(example, nonsense, "hello", code=3).startswith("open: ")


@pytest.mark.parametrize("toolchain", ["gcc", "zig"])
def test_the_example_on_the_readme_compiles_and_runs(toolchain: str, zig: str, build: Path, tmp_path: Path) -> None:
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    code = re.search(r"^```c\n(.*?)^```", text, re.M | re.S)
    assert code and 20 <= code[1].count("\n") <= 50, "README shows a C example of about 40 lines"
    source, made = tmp_path / "example.c", tmp_path / "example"
    source.write_text(code[1], encoding="utf-8")
    compiler = [tool("gcc")] if toolchain == "gcc" else [zig, "cc", "-target", "x86_64-linux-gnu"]
    run(*compiler, "-Wall", "-Wextra", "-Werror", "-O2", "-I", ROOT / "core", source,
        build / "linux_x86_64" / "libcolibri.a", "-o", made, cwd=tmp_path,
        ZIG_GLOBAL_CACHE_DIR=str(build / "zig-cache"), ZIG_LOCAL_CACHE_DIR=str(build / "zig-cache"))
    assert "usage" in run(made, code=2)
    demo = ROOT / "pytools" / "colibri" / "demo" / "demo.colibri"
    assert len(run(made, demo, "Once upon a time")) > 40


# ---- the Python package ----

@pytest.mark.slow
@pytest.mark.parametrize("arch", ["x86_64", "aarch64"])
def test_a_wheel_holds_what_its_tag_says(arch: str, tmp_path: Path) -> None:
    pytest.importorskip("hatchling", reason="the Python package hatchling is not installed")
    run(sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", tmp_path, COLIBRI_WHEEL_ARCH=arch)
    wheels = list(tmp_path.glob("*.whl"))
    assert len(wheels) == 1
    assert wheels[0].name.endswith(f"-py3-none-manylinux_2_17_{arch}.whl")
    with zipfile.ZipFile(wheels[0]) as wheel:
        names = set(wheel.namelist())
        runner = wheel.getinfo("colibri/_data/linux_x86_64/runner")
    other = {"x86_64": "aarch64", "aarch64": "x86_64"}[arch]
    assert f"colibri/_data/linux_{arch}/libcolibri.so" in names
    assert f"colibri/_data/linux_{other}/libcolibri.so" not in names
    data = [f"{t}/libcolibri.a" for t in (*ELF_TARGETS, "wasm")] + [
        *(f"wasm/{m}" for m in MODULES), "wasm/node_runner.mjs",
        "baremetal_arm64/firmware.elf", "baremetal_arm64/firmware.bin",
        "linux_x86_64/runner", "linux_aarch64/runner", "linux_riscv64/runner", "include/colibri.h",
        "include/colibri_format.h", "include/runner.h", "include/layout.h", "include/crew.h",
        "include/host.h", "include/store.h"]
    assert {f"colibri/_data/{d}" for d in data} | {"colibri/demo/demo.colibri"} <= names
    assert runner.external_attr >> 16 & 0o111, "the runner must stay executable"


def test_the_wheel_of_an_unknown_architecture_is_refused(tmp_path: Path) -> None:
    pytest.importorskip("hatchling", reason="the Python package hatchling is not installed")
    said = run(sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", tmp_path, code=1,
               COLIBRI_WHEEL_ARCH="sparc")
    assert "no wheel for sparc" in said
