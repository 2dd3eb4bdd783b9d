"""The audit: every rule is seen to fire on an archive that breaks it, and the core's archives keep them
all."""

import json
import os
import subprocess
from pathlib import Path

import pytest

from colibri import audit, cli, library

ROOT = Path(__file__).resolve().parent.parent
ACCEPTED = ROOT / "tests" / "data" / "audit.json"
FLAGS = """-std=c99 -O2 -g0 -ffreestanding -fno-builtin -ffp-contract=off -fno-math-errno
-fno-sanitize=undefined -fno-stack-protector -ffunction-sections -fdata-sections
-fno-unwind-tables -fno-asynchronous-unwind-tables -fvisibility=hidden -fPIC -fstack-size-section""".split()
MACHINES = {
    "x86_64": ("x86_64-linux-musl", "x86_64_v3"),
    "aarch64": ("aarch64-linux-musl", "generic"),
    "wasm32": ("wasm32-freestanding", "generic+simd128+relaxed_simd"),
}
HEAD = '#define API __attribute__((visibility("default")))\n#define ALONE __attribute__((noinline))\n'

GOOD = (
    HEAD
    + """
typedef int (*hook)(int);
ALONE static int leaf(int n) { volatile char room[400]; room[n] = 1; return room[3] + n; }
ALONE static int middle(int n) { volatile char room[160]; room[n] = 1; return leaf(n) + room[2]; }
API int colibri_deep(int n) { volatile char room[80]; room[n] = 1; return middle(n) + leaf(n + 1) + room[1]; }
API int colibri_flat(int n) { return n + 1; }
int colibri_hidden(int n) { return leaf(n) + 1; }
API int colibri_hook(hook h, int n) { return h(n) + 1; }
API float colibri_sum(float a, float b, float c) { return a * b + c; }
API int colibri_switch(int x, int y)
{
    switch (x) {
    case 0: return y * 3;
    case 1: return y + 7;
    case 2: return y / 3;
    case 3: return leaf(y);
    case 4: return y << 3;
    case 5: return y * y;
    case 6: return y % 5;
    case 7: return y ^ 55;
    default: return 0;
    }
}
"""
)
BAD = {
    "undefined": (
        "extern int missing(int);\nAPI int colibri_a(int n) { return missing(n) + 1; }",
        "undefined symbol missing",
    ),
    "foreign": ("API int other_name(int n) { return n + 1; }", "global symbol other_name"),
    "data": ("static int counter = 3;\nAPI int colibri_a(void) { return counter++; }", "data is 4 bytes"),
    "bss": ("static int counter;\nAPI int colibri_a(void) { return counter++; }", "bss is 4 bytes"),
    "recursion": (
        "API int colibri_a(int n);\n"
        "ALONE static int b(int n) { volatile int k = n; return colibri_a(k) + 1; }\n"
        "API int colibri_a(int n) { volatile int k = n; return k < 2 ? 1 : b(n - 1) * b(n - 2); }",
        "recursion",
    ),
}


def zig_archive(folder: Path, machine: str, source: str, extra: tuple[str, ...] = ()) -> Path:
    """Compile one C file with zig and archive it."""
    ziglang = pytest.importorskip("ziglang")
    pytest.importorskip("capstone")
    zig = str(Path(ziglang.__file__).with_name("zig"))
    cache = str(folder / "zig-cache")
    environment = {**os.environ, "ZIG_GLOBAL_CACHE_DIR": cache, "ZIG_LOCAL_CACHE_DIR": cache}
    (folder / "part.c").write_text(source)
    triple, cpu = MACHINES[machine]
    subprocess.run(
        [zig, "cc", "-target", triple, f"-mcpu={cpu}", *FLAGS, *extra, "-c", "part.c", "-o", "part.o"],
        cwd=folder,
        check=True,
        env=environment,
    )
    archive = folder / machine / "libcolibri.a"
    archive.parent.mkdir()
    subprocess.run([zig, "ar", "rcsD", str(archive), "part.o"], cwd=folder, check=True, env=environment)
    return archive


@pytest.mark.parametrize("machine", MACHINES)
def test_clean_archive(machine: str, tmp_path: Path) -> None:
    """No problem is found where there is none; entries and hook callers are named, stacks add up."""
    found = audit.read_archive(machine, zig_archive(tmp_path, machine, GOOD))
    assert found.problems() == []
    assert found.hook_callers == ["colibri_hook"]
    assert set(found.stack) == {
        "colibri_deep",
        "colibri_flat",
        "colibri_hook",
        "colibri_sum",
        "colibri_switch",
    }
    frames = {f.name: f.frame for member in found.members for f in member.functions}
    assert 640 <= found.stack["colibri_deep"] <= 640 + 3 * 32 + 128
    assert found.stack["colibri_deep"] >= frames["colibri_deep"] + frames["middle"] + frames["leaf"]
    assert found.stack["colibri_switch"] >= frames["leaf"] > found.stack["colibri_flat"]
    assert 100 < found.total("text") < 1500 and found.total("data") == found.total("bss") == 0


@pytest.mark.parametrize("machine", MACHINES)
@pytest.mark.parametrize("rule", BAD)
def test_broken_rule(machine: str, rule: str, tmp_path: Path) -> None:
    """An archive that breaks one rule is told so, and only that."""
    source, sentence = BAD[rule]
    problems = audit.read_archive(machine, zig_archive(tmp_path, machine, HEAD + source)).problems()
    assert problems and all(sentence in problem for problem in problems)


@pytest.mark.parametrize("machine", ["x86_64", "aarch64"])
def test_table_of_pointers(machine: str, tmp_path: Path) -> None:
    """A constant table of addresses is written by the loader: it counts as data."""
    source = (
        HEAD
        + """API int colibri_a(int n) { return n + 1; }
API int colibri_b(int n) { return n * 3; }
static int (*const table[2])(int) = {colibri_a, colibri_b};
API int colibri_c(int n) { return table[n & 1](n) + 1; }
"""
    )
    found = audit.read_archive(machine, zig_archive(tmp_path, machine, source))
    assert found.total("data") == 16 and found.hook_callers == ["colibri_c"]


@pytest.mark.parametrize(
    "machine,source,name",
    [
        (
            "x86_64",
            "API float colibri_a(float a, float b, float c) { return __builtin_fmaf(a, b, c); }",
            "vfmadd",
        ),
        (
            "aarch64",
            "API float colibri_a(float a, float b, float c) { return __builtin_fmaf(a, b, c); }",
            "fmadd",
        ),
        (
            "x86_64",
            "#include <immintrin.h>\nAPI __m128 colibri_a(__m128 a) { return _mm_rsqrt_ps(a); }",
            "rsqrtps",
        ),
        (
            "aarch64",
            "#include <arm_neon.h>\nAPI float32x4_t colibri_a(float32x4_t a) { return vrecpeq_f32(a); }",
            "frecpe",
        ),
        (
            "aarch64",
            "#include <arm_neon.h>\nAPI float32x4_t colibri_a(float32x4_t a, float32x4_t b, float32x4_t c) "
            "{ return vfmaq_f32(a, b, c); }",
            "fmla",
        ),
        (
            "wasm32",
            "#include <wasm_simd128.h>\nAPI v128_t colibri_a(v128_t a, v128_t b, v128_t c) "
            "{ return wasm_f32x4_relaxed_madd(a, b, c); }",
            "f32x4.relaxed_madd",
        ),
        (
            "wasm32",
            "#include <wasm_simd128.h>\nAPI v128_t colibri_a(v128_t a, v128_t b) "
            "{ return wasm_f32x4_relaxed_min(a, b); }",
            "f32x4.relaxed_min",
        ),
    ],
)
def test_float_that_is_not_canonical(machine: str, source: str, name: str, tmp_path: Path) -> None:
    """Fused operations and estimates are found by disassembly."""
    problems = audit.read_archive(machine, zig_archive(tmp_path, machine, HEAD + source)).problems()
    assert len(problems) == 1 and name in problems[0]


def test_contraction_is_seen(tmp_path: Path) -> None:
    """The compiler's own contraction, not only intrinsics: the same source with the flag turned round."""
    source = HEAD + "API float colibri_a(float a, float b, float c) { return a * b + c; }"
    found = audit.read_archive("x86_64", zig_archive(tmp_path, "x86_64", source, ("-ffp-contract=fast",)))
    assert len(found.fused) == 1


def test_integer_relaxed_dot_is_allowed(tmp_path: Path) -> None:
    """The relaxed integer dot product has one answer inside its contract."""
    source = HEAD + (
        "#include <wasm_simd128.h>\nAPI v128_t colibri_a(v128_t a, v128_t b, v128_t c) "
        "{ return wasm_i32x4_relaxed_dot_i8x16_i7x16_add(a, b, c); }"
    )
    assert audit.read_archive("wasm32", zig_archive(tmp_path, "wasm32", source)).problems() == []


def test_weak_memory_functions_need_their_own_member(tmp_path: Path) -> None:
    """Weak mem* may be defined, but not beside anything else."""
    weak = (
        "__attribute__((weak)) void *memset(void *to, int byte, unsigned long n)\n"
        "{ volatile char *p = to; while (n--) { *p++ = (char)byte; } return to; }\n"
    )
    alone, beside = tmp_path / "a", tmp_path / "b"
    alone.mkdir()
    beside.mkdir()
    assert audit.read_archive("x86_64", zig_archive(alone, "x86_64", HEAD + weak)).problems() == []
    problems = audit.read_archive(
        "x86_64", zig_archive(beside, "x86_64", HEAD + weak + "API int colibri_a(void){ return 1; }")
    ).problems()
    assert len(problems) == 1 and "global symbol memset" in problems[0]


def test_command_refuses_what_is_no_archive(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Bad input is exit code 3 and one sentence."""
    file = tmp_path / "x.a"
    file.write_bytes(b"hello world, this is no archive")
    assert cli.main(["audit", str(file)]) == 3
    assert "not an ar archive" in capsys.readouterr().err


def shipped() -> list[Path]:
    """The built archives."""
    found = sorted(library.data_folder().glob("*/libcolibri.a"))
    if not found:
        pytest.fail("no libcolibri.a is built: run `python -m SCons`")
    return found


def test_core_keeps_the_rules(capsys: pytest.CaptureFixture[str]) -> None:
    """Every archive of the core: nothing undefined, nothing foreign, no data, no bss, no fused operation."""
    shipped()
    code = cli.main(["audit", "--json"])
    document = json.loads(capsys.readouterr().out)
    assert document["problems"] == [] and code == 0 and document["schema"] == 1
    for row in document["archives"]:
        assert row["undefined"] == row["foreign_symbols"] == []
        assert row["data_bytes"] == row["bss_bytes"] == row["fused_ops"] == row["estimate_ops"] == 0
        if row["target"] in ("linux_x86_64", "linux_aarch64", "baremetal_arm64", "wasm"):
            assert {"colibri_open", "colibri_advance", "colibri_work"} <= set(row["stack_bytes"])
            assert max(row["stack_bytes"].values()) < 16384
    assert sum(document["archives"][0]["lines"].values()) > 1000


def test_figures_are_the_accepted_ones() -> None:
    """A number moves only together with tests/data/audit.json (write it with `colibri audit --write`)."""
    shipped()
    assert cli.main(["audit", "-q", "--compare", str(ACCEPTED)]) == 0


def test_a_moved_figure_is_seen(tmp_path: Path) -> None:
    """The comparison can fail."""
    document = json.loads(ACCEPTED.read_text())
    document["archives"][0]["text_bytes"] += 16
    changed = tmp_path / "audit.json"
    changed.write_text(json.dumps(document))
    assert cli.main(["audit", "-q", "--compare", str(changed)]) == 1


def test_published_stack_holds_on_the_board(tmp_path: Path) -> None:
    """The firmware's stack was painted: what a whole run used is within the worst entry's figure and the port's own
    frames."""
    from colibri import targets
    from colibri.engine import Limits, Model
    from colibri.jobs import Job
    from colibri.synth import write_random_blob

    target = targets.pick(["baremetal"])[0]
    if how := target.missing():
        pytest.skip(f"target baremetal: {how}")
    path = tmp_path / "mixed.colibri"
    write_random_blob(path, "mixed", kinds="q4")
    limits = Limits(context=32, batch=16, logit_rows=16)
    result = target.run(Job("stack", limits, list(range(20)), generate=4), Model.open(path))
    found = audit.read_archive("baremetal_arm64", library.data_folder() / "baremetal_arm64" / "libcolibri.a")
    worst = max(found.stack.values())
    assert result.error is None and 0 < result.stack_bytes < worst + 1024
