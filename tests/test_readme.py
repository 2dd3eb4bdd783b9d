"""The README: its examples compile and run, and it names only what exists."""

import os
import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from cli_kit import ROOT, Capture, document, talker  # noqa: F401
from colibri import cli, library, targets

README = (ROOT / "README.md").read_text(encoding="utf-8")


def readme_blocks(kind: str) -> list[str]:
    """The fenced blocks of one language."""
    return re.findall(rf"```{kind}\n(.*?)```", README, re.S)


def test_readme_c_example_works(talker: Path, tmp_path: Path, capsys: Capture) -> None:
    """The C example compiles without a warning against header and archive alone, and writes what run
    writes."""
    compiler = shutil.which("gcc")
    if compiler is None:
        pytest.skip("gcc is not installed")
    (source,) = readme_blocks("c")
    assert len(source.splitlines()) <= 45
    (tmp_path / "example.c").write_text(source)
    data = library.data_folder()
    archive = data / f"linux_{targets.platform.machine()}" / "libcolibri.a"
    subprocess.run(
        [
            compiler,
            "-std=c11",
            "-O1",
            "-Wall",
            "-Wextra",
            "-Werror",
            "-I",
            str(data / "include"),
            "-o",
            str(tmp_path / "example"),
            str(tmp_path / "example.c"),
            str(archive),
        ],
        check=True,
    )
    done = subprocess.run(
        [str(tmp_path / "example"), str(talker), "Once upon a time"],
        capture_output=True,
        text=True,
        check=True,
    )
    made = document(
        capsys, "run", talker, "-p", "Once upon a time", "-n", "101", "--batch", "1", "--context", "256"
    )
    assert done.stdout == made["text"] and len(done.stdout) > 100
    assert subprocess.run([str(tmp_path / "example")], capture_output=True, check=False).returncode == 2


def test_readme_python_example_works(talker: Path, tmp_path: Path) -> None:
    """The Python example runs as it stands, beside a model of that name."""
    (source,) = readme_blocks("python")
    shutil.copy(talker, tmp_path / "m.colibri")
    done = subprocess.run(
        [sys.executable, "-c", source],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, "PYTHONPATH": str(ROOT / "pytools")},
    )
    assert done.returncode == 0, done.stderr
    assert re.search(r"\b[0-9a-f]{64}\n$", done.stdout)


def test_readme_first_screen() -> None:
    """The two commands, what Debian needs, the picture and the other project stand on the first screen."""
    screen = "\n".join(README.splitlines()[:60])
    for piece in (
        "python3 -m venv .venv && .venv/bin/pip install . && .venv/bin/colibri demo",
        "./run-tests",
        "git python3 python3-venv",
        "desktop inference engine of the same name",
        "one digest",
    ):
        assert piece in screen, piece


def test_documents_name_only_what_exists() -> None:
    """Commands, options of the examples, and linked files in the README are real."""
    for name in re.findall(r"`colibri (\w+)", README):
        assert name in cli.COMMANDS, name
    for row in re.findall(r"^\| `(colibri [^`]*)`", README, re.M):
        words = shlex.split(row.split(" / ")[0])
        if words[1] in ("convert", "plan", "run", "verify", "chat"):
            cli.command_parser(words[1])[0].parse_args(words[2:])
    for link in re.findall(r"\]\(([\w/.]+)\)", README):
        assert (ROOT / link).is_file(), link
