"""The rules of the house that a script can check: layers, sizes, names, nothing of this machine in the tree."""
from __future__ import annotations

import ast
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from pyflakes.checker import Checker
from pyflakes.messages import UndefinedName, UnusedImport

ROOT = Path(__file__).resolve().parents[1]
BELOW = {                               # room -> rooms it may include; everyone may include colibri.h
    "base": {"base"},
    "blob": {"base", "blob"},
    "pool": {"base", "blob", "pool"},
    "kernels": {"base", "kernels"},
    "nn": {"base", "blob", "pool", "kernels", "nn"},
    "text": {"base", "blob", "pool", "kernels", "nn", "text"},
    "api": {"base", "blob", "pool", "kernels", "nn", "text", "api"},
}
LINES, COLUMNS, FUNCTION_LINES = 700, 120, 64


def tracked(*patterns: str) -> list[Path]:
    """Files of the tree as git sees it, changes included."""
    done = subprocess.run(["git", "ls-files", "-co", "--exclude-standard", "--", *patterns], cwd=ROOT,
                          capture_output=True, text=True, check=True)
    return [ROOT / name for name in done.stdout.splitlines() if (ROOT / name).is_file()]


def places(paths: list[Path], pattern: str) -> list[str]:
    """file:line of every match in text files."""
    found = []
    for path in paths:
        try:
            lines = path.read_text(encoding="utf-8").splitlines()
        except UnicodeDecodeError:
            continue
        found += [f"{path.relative_to(ROOT)}:{n}" for n, line in enumerate(lines, 1) if re.search(pattern, line)]
    return found


def test_a_lower_layer_never_includes_a_higher_one() -> None:
    wrong = []
    for path in tracked("core/**"):
        room = path.parent.name
        if room not in BELOW:
            assert path.name == "colibri.h", f"{path}: no room of the core"
            continue
        for name in re.findall(r'^\s*#\s*include\s+"([^"]+)"', path.read_text(encoding="utf-8"), re.M):
            target = name.split("/")[0] if "/" in name else room
            if name != "colibri.h" and target not in BELOW[room]:
                wrong.append(f"{path.relative_to(ROOT)} includes {name}")
    assert not wrong


def test_targets_see_the_public_header_only() -> None:
    own = {p.name for p in tracked("targets/**")}
    wrong = [f"{p.relative_to(ROOT)} includes {name}" for p in tracked("targets/**/*.c", "targets/**/*.h")
             for name in re.findall(r'^\s*#\s*include\s+"([^"]+)"', p.read_text(encoding="utf-8"), re.M)
             if name != "colibri.h" and name not in own]
    assert not wrong


def test_names_of_core_files_are_unique() -> None:
    names = [p.name for p in tracked("core/**")]
    assert len(names) == len(set(names)), sorted(n for n in names if names.count(n) > 1)


def test_the_core_has_no_mutable_static_and_no_va_or_long_double() -> None:
    sources = tracked("core/**/*.c", "core/**/*.h")
    assert not places(sources, r"^\s*static\s+(?!const\b|inline\b)[^(]*(=|;)")
    assert not places(sources, r"\b(__int128|long double|va_list|alloca|goto)\b")


def test_no_file_is_longer_than_it_may_be() -> None:
    code = tracked("*.c", "*.h", "*.inc", "*.S", "*.py", "*.mjs", "SConstruct", "run-tests")
    long = [f"{p.relative_to(ROOT)}: {n}" for p in code
            if (n := len(p.read_text(encoding="utf-8").splitlines())) > LINES and "_tables" not in p.name]
    assert not long


def test_no_line_is_wider_than_it_may_be() -> None:
    code = [p for p in tracked("*.c", "*.h", "*.inc", "*.S", "*.py", "*.mjs", "SConstruct") if "_tables" not in p.name]
    assert not places(code, rf"^.{{{COLUMNS + 1},}}$")


def functions(text: str) -> list[tuple[str, int]]:
    """(first line, lines) of every function of a C file in our style: `{` and `}` alone in column 0."""
    lines = text.splitlines()
    starts = [i for i, line in enumerate(lines) if line == "{"]
    return [(lines[i - 1].strip(), next(j for j in range(i, len(lines)) if lines[j] == "}") - i + 1) for i in starts]


def test_no_function_is_longer_than_a_screen() -> None:
    long = [f"{p.relative_to(ROOT)}: {name} {count} lines" for p in tracked("core/**/*.c", "targets/**/*.c")
            for name, count in functions(p.read_text(encoding="utf-8")) if count > FUNCTION_LINES]
    assert not long


def test_no_name_is_undefined_and_no_import_unused() -> None:
    """An undefined name is said only when the line is reached. Fixtures that a test file imports bear a noqa."""
    found: list[str] = []
    for path in tracked("*.py"):
        text = path.read_text(encoding="utf-8")
        kept = {n for n, line in enumerate(text.splitlines(), 1) if "noqa" in line}
        for message in Checker(compile(text, str(path), "exec", ast.PyCF_ONLY_AST), str(path)).messages:
            if isinstance(message, UndefinedName | UnusedImport) and message.lineno not in kept:
                found.append(str(message))
    assert not found, "\n".join(found)


def test_nothing_of_a_machine_stands_in_the_tree() -> None:
    files = [p for p in tracked() if p.suffix != ".lock" and p != Path(__file__)]
    assert not places(files, r"(?<![A-Za-z0-9_.-])/(work|farm)/")
    hosts = ("py" + "pi.org", "python" + "hosted", "registry." + "npmjs", "deb." + "debian.org",
             "security." + "debian.org")
    assert not places(files, "|".join(re.escape(host) for host in hosts))      # in pieces, or this line were one


@pytest.mark.sampled(6)
@pytest.mark.parametrize(("in_ci", "reason", "code"), [
    ("true", "qemu-system-nothing is not installed", 1),
    ("true", "cpu: no avx512", 0),
    ("", "qemu-system-nothing is not installed", 0),
])
@pytest.mark.parametrize("how", ("-n0", "-n2"))
def test_a_skip_fails_under_ci_unless_the_processor_is_the_reason(how: str, in_ci: str, reason: str, code: int,
                                                                  tmp_path: Path) -> None:
    (tmp_path / "conftest.py").write_text((ROOT / "tests" / "conftest.py").read_text(encoding="utf-8"), "utf-8")
    (tmp_path / "test_it.py").write_text(
        f"import pytest\ndef test_one(): pass\ndef test_two(): pytest.skip({reason!r})\n", "utf-8")
    record = tmp_path / "record"
    without = {name: value for name, value in os.environ.items() if not name.startswith("PYTEST_XDIST")}
    done = subprocess.run([sys.executable, "-m", "pytest", "-q", how, "-p", "no:cacheprovider", tmp_path], cwd=tmp_path,
                          capture_output=True, text=True, check=False, timeout=120,
                          env=without | {"CI": in_ci, "COLIBRI_NOT_TESTED": str(record)})
    assert done.returncode == code, done.stdout
    assert record.read_text(encoding="utf-8") == reason + "\n"
    assert f"not tested: {reason}" in done.stdout
