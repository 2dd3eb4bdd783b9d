"""The command line: exit codes, streams, documents, help, and the commands that run no model."""

import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from cli_kit import CHECKPOINT, ROOT, Capture, document, process, random_blob, talker  # noqa: F401
from colibri import cli, draw, targets
from colibri.commands import demo as demo_command
from colibri.engine import Limits, Model
from colibri.output import bytes_text, table


# ---- help, usage, streams, exit codes ----


@pytest.mark.parametrize("name", cli.COMMANDS)
def test_every_help_has_two_examples_that_parse(name: str, capsys: Capture) -> None:
    """Each example is a command line of this command that its own parser takes."""
    with pytest.raises(SystemExit) as caught:
        cli.main([name, "--help"])
    assert caught.value.code == 0
    examples = capsys.readouterr().out.split("examples:")[1].strip().splitlines()
    assert len(examples) == 2
    for example in examples:
        words = shlex.split(example.strip().split("|")[-1].strip())
        assert words[0] == "colibri" and words[1] in (name, "doctor", "targets")
        cli.command_parser(words[1])[0].parse_args(words[2:])


def test_top_level(capsys: Capture) -> None:
    """Help to stdout, usage errors to stderr with exit code 2, the version from the C header."""
    assert cli.main(["--help"]) == 0
    out = capsys.readouterr().out
    assert all(f"  {name} " in out for name in cli.COMMANDS) and out.count("\n  colibri ") == 2
    assert cli.main([]) == 2 and capsys.readouterr().out == ""
    assert cli.main(["fly"]) == 2 and "no command 'fly'" in capsys.readouterr().err
    assert cli.main(["--version"]) == 0
    header = (ROOT / "core" / "colibri.h").read_text()
    parts = [re.search(rf"VERSION_{part} (\d+)", header)[1] for part in ("MAJOR", "MINOR", "PATCH")]
    assert capsys.readouterr().out == f"colibri {'.'.join(parts)}\n"


@pytest.mark.parametrize(
    "words",
    (
        ["run"],
        ["run", "x", "-p", "a", "--tokens", "b"],
        ["plan", "x", "--context", "0"],
        ["plan", "x", "--kv", "q2"],
        ["info"],
        ["check", "x", "--level", "3"],
        ["run", "x", "-p", "a", "-n", "-1"],
        ["verify", "x", "--nonsense"],
    ),
)
def test_usage_errors(words: list[str], capsys: Capture) -> None:
    """Exit code 2 and one sentence on stderr, nothing on stdout."""
    with pytest.raises(SystemExit) as caught:
        cli.main(words)
    assert caught.value.code == 2
    streams = capsys.readouterr()
    assert streams.out == "" and streams.err.count("\n") == 1


@pytest.mark.parametrize("command", (["info"], ["check"], ["plan"], ["run", "-p", "x"], ["verify"], ["chat"]))
def test_bad_input(command: list[str], tmp_path: Path, capsys: Capture) -> None:
    """A file that is not there, or is something else, is exit code 3 (check: 1) and names file and remedy."""
    gone = tmp_path / "gone.colibri"
    assert cli.main([command[0], str(gone), *command[1:]]) == 3
    streams = capsys.readouterr()
    assert streams.out == "" and str(gone) in streams.err and streams.err.count("\n") == 1
    other = tmp_path / "other.colibri"
    other.write_bytes(b"PK" + bytes(5000))
    assert cli.main([command[0], str(other), *command[1:]]) == (1 if command[0] == "check" else 3)
    streams = capsys.readouterr()
    assert "not a Colibri blob" in streams.out + streams.err


def test_our_bug_is_exit_70(monkeypatch: pytest.MonkeyPatch, capsys: Capture, random_blob: Path) -> None:
    """Anything unexpected is said to be our bug; -vv shows where."""

    def broken(self: Model) -> None:
        raise ZeroDivisionError("seven")

    monkeypatch.setattr(Model, "info", broken)
    assert cli.main(["info", str(random_blob)]) == 70
    err = capsys.readouterr().err
    assert "our bug" in err and "ZeroDivisionError: seven" in err and "Traceback" not in err
    assert cli.main(["info", str(random_blob), "-vv"]) == 70 and "Traceback" in capsys.readouterr().err


def test_interruption_is_exit_130(monkeypatch: pytest.MonkeyPatch, random_blob: Path) -> None:
    """Control-C inside a command."""

    def interrupted(self: Model) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(Model, "info", interrupted)
    assert cli.main(["info", str(random_blob)]) == 130


@pytest.mark.slow
def test_a_real_interruption(talker: Path) -> None:
    """A running process ends at once with 130."""
    child = subprocess.Popen(
        [sys.executable, "-m", "colibri", "chat", str(talker)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        # a shell starts its background jobs, and so this test's children, with the signal ignored
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),  # noqa: PLW1509
    )
    time.sleep(4)
    child.send_signal(signal.SIGINT)
    assert child.wait(20) == 130


def test_a_closed_pipe_is_quiet(random_blob: Path) -> None:
    """`colibri ... | head -1` ends without a traceback."""
    line = f"{shlex.quote(sys.executable)} -m colibri info --tensors {random_blob} | head -1"
    done = subprocess.run(["bash", "-o", "pipefail", "-c", line], capture_output=True, text=True, check=False)
    assert done.stdout.count("\n") == 1 and done.stderr == "" and done.returncode in (0, 141)


def test_quiet_and_colour(talker: Path) -> None:
    """-q leaves stderr empty; where stdout is no terminal there are no control characters."""
    done = process("run", talker, "-p", "Once", "-n", "3", "-q", env={**os.environ, "NO_COLOR": "1"})
    assert done.returncode == 0 and done.stderr == "" and done.stdout.endswith("\n")
    loud = process("run", talker, "-p", "Once", "-n", "3", "-v")
    assert loud.stdout == done.stdout and "digest" in loud.stderr and "\033" not in loud.stdout + loud.stderr


def test_python_dash_m(random_blob: Path) -> None:
    """`python -m colibri` is the command."""
    assert process("--version").stdout.startswith("colibri ")


# ---- info, check, synth, convert, luts, doctor ----


def test_info(talker: Path, capsys: Capture) -> None:
    """What the file holds, for people and as a document."""
    made = document(capsys, "info", talker, "--tensors")
    assert made["layers"] == 4 and made["experts"] == 8 and made["tokenizer"] and made["chat_template"]
    assert made["kinds"]["experts"] == "q4" and len(made["identity"]) == 64
    assert sum(tensor["bytes"] * tensor["count"] for tensor in made["tensors"]) <= made["file_bytes"]
    assert made["generation"]["end"] == [1] == Model.open(talker).end_tokens()
    assert cli.main(["info", str(talker)]) == 0
    out = capsys.readouterr().out
    assert made["identity"] in out and "8 experts, 2 per token" in out


def test_check_finds_a_flipped_bit(random_blob: Path, tmp_path: Path, capsys: Capture) -> None:
    """A good file is ok; one flipped bit anywhere is exit code 1 with a problem that says where."""
    made = document(capsys, "check", random_blob)
    assert made["ok"] is True and made["problems"] == []
    whole = random_blob.read_bytes()
    file = tmp_path / "flipped.colibri"
    for place in (5, 130, 1000, len(whole) // 2, len(whole) - 5000):
        damaged = bytearray(whole)
        damaged[place] ^= 16
        file.write_bytes(damaged)
        made = document(capsys, "check", file, code=1)
        assert made["ok"] is False
        assert {"code", "section", "field", "offset", "expected", "found"} <= set(made["problems"][0])


def test_check_verbose_tells_each_tensors_health(random_blob: Path, capsys: Capture) -> None:
    """min, max, zeros and constant rows of every tensor."""
    made = document(capsys, "check", random_blob, "--verbose")
    names = [tensor["name"] for tensor in made["tensors"]]
    assert len(names) == len(set(names)) > 30 and made["ok"] is True
    for tensor in made["tensors"]:
        assert tensor["min"] < tensor["max"] and tensor["not_finite"] == 0 and tensor["constants"] == 0
    assert any("EXPERT_GATE" in name for name in names)


def test_check_verbose_sees_constant_and_zero_rows(
    tmp_path: Path, capsys: Capture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The figures can fail: a tensor with zero rows and equal values is counted."""
    from colibri import synth

    drawn = synth.random_weights

    def spoiled(model: Any, seed: int) -> dict[str, Any]:
        weights = drawn(model, seed)
        weights["layers.0.q"][3] = 0.0
        weights["layers.0.q"][5] = 0.25
        return weights

    monkeypatch.setattr(synth, "random_weights", spoiled)
    path = tmp_path / "spoiled.colibri"
    synth.write_random_blob(path, "dense", kinds="f32")
    made = document(capsys, "check", path, "-v")
    row = next(tensor for tensor in made["tensors"] if re.search(r"layer 0 Q\b", tensor["name"]))
    assert row["constants"] == 2 and row["zeros"] == row["columns"]


def test_synth_is_reproducible(tmp_path: Path, capsys: Capture) -> None:
    """The same seed gives the same bytes, another one another file; nothing is overwritten unasked."""
    names = [tmp_path / name for name in ("a", "b", "c")]
    made = [
        document(capsys, "synth", path, "--spec", "tied", "--seed", seed)["identity"]
        for path, seed in zip(names, (1, 1, 2), strict=True)
    ]
    assert made[0] == made[1] != made[2] and names[0].read_bytes() == names[1].read_bytes()
    assert cli.main(["synth", str(names[0])]) == 3 and "--overwrite" in capsys.readouterr().err
    assert cli.main(["synth", str(names[0]), "--overwrite", "-q"]) == 0


def test_convert_names_what_it_cannot_take(tmp_path: Path, capsys: Capture) -> None:
    """A missing folder or an empty one is bad input, options of the hub beside a folder are a usage error."""
    assert cli.main(["convert", str(tmp_path), "--revision", "main"]) == 2
    assert "for a model of the hub" in capsys.readouterr().err
    assert cli.main(["convert", str(tmp_path / "none")]) == 3
    assert cli.main(["convert", str(tmp_path)]) == 3
    assert "config.json" in capsys.readouterr().err


def test_convert_document(tmp_path: Path, capsys: Capture) -> None:
    """The document holds the identity that info prints."""
    made = document(
        capsys, "convert", CHECKPOINT, "-o", tmp_path / "m.colibri", "--weights", "q8", "--no-tokenizer"
    )
    assert made["kinds"]["experts"] == "q8" and made["file_bytes"] == (tmp_path / "m.colibri").stat().st_size
    assert document(capsys, "info", tmp_path / "m.colibri")["identity"] == made["identity"]


def test_luts_are_what_is_committed(tmp_path: Path, capsys: Capture) -> None:
    """The generated tables equal their formulas, and a changed one is seen and repaired."""
    assert cli.main(["luts", "--check", "--root", str(ROOT)]) == 0
    for name in ("core/base",):
        shutil.copytree(ROOT / name, tmp_path / name)
    table_file = tmp_path / "core" / "base" / "trig_tables.h"
    table_file.write_text(table_file.read_text().replace("0x1", "0x2", 1))
    assert cli.main(["luts", "--check", "--root", str(tmp_path)]) == 1
    assert "trig_tables.h" in capsys.readouterr().err
    assert cli.main(["luts", "--root", str(tmp_path)]) == 0
    assert cli.main(["luts", "--check", "--root", str(tmp_path)]) == 0


def test_doctor_lists_every_target(capsys: Capture) -> None:
    """Ready or with the line that brings it; `targets` is the same command."""
    made = document(capsys, "doctor")
    assert [row["target"] for row in made["targets"]] == targets.names()
    assert all(row["ready"] != bool(row["how"]) for row in made["targets"])
    assert [row["target"] for row in made["missing"]] == [
        r["target"] for r in made["targets"] if not r["ready"]
    ]
    assert document(capsys, "targets")["targets"] == made["targets"]


@pytest.mark.parametrize("gone", ("node", "qemu-aarch64", "qemu-system-aarch64"))
def test_doctor_says_how_to_get_what_is_missing(
    gone: str, monkeypatch: pytest.MonkeyPatch, capsys: Capture
) -> None:
    """Without a tool the target is missing, with one install line."""
    real = targets.program
    monkeypatch.setattr(targets, "program", lambda *names: None if gone in names else real(*names))
    missing = document(capsys, "doctor")["missing"]
    assert any("apt-get install" in row["how"] and gone.split("-")[0] in row["how"] for row in missing)


# ---- demo ----


def test_demo_runs_and_names_what_is_missing(
    talker: Path, capsys: Capture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Readable text, equal digests, planned = used; a missing target is named with its line and does not stop
    it."""
    monkeypatch.setattr(demo_command, "demo_blob", lambda: talker)
    linux = targets.all_targets()[0]
    static = targets.all_targets()[1]
    gone = replace(linux, name="gone", how=lambda: "not installed; apt-get install gone")
    monkeypatch.setattr(targets, "all_targets", lambda: (linux, static, gone))
    made = document(capsys, "demo")
    assert made["one_answer"] and [row["target"] for row in made["rows"]] == [linux.name, static.name]
    assert made["missing"] == [{"target": "gone", "how": "not installed; apt-get install gone"}]
    assert len(made["text"].split()) > 20 and made["tokens_per_second"] > 1 and made["intent"].startswith("{")
    for row in made["rows"]:
        assert row["planned_bytes"] == row["used_bytes"] and row["digest"] == made["rows"][0]["digest"]
    assert cli.main(["demo"]) == 0
    out = capsys.readouterr().out
    assert "one answer" in out and "apt-get install gone" in out and made["text"].strip()[:40] in out
    assert f"{made['rows'][0]['planned_bytes']:,}" in out


def test_demo_of_one_target(talker: Path, capsys: Capture, monkeypatch: pytest.MonkeyPatch) -> None:
    """It runs, but one row is not called one answer."""
    monkeypatch.setattr(demo_command, "demo_blob", lambda: talker)
    made = document(capsys, "demo", "--target", "linux", "-p", "Once upon a time there was a girl")
    assert made["one_answer"] is False and len(made["rows"]) == 1


# ---- small things ----


def test_output_helpers() -> None:
    """Byte counts and tables for people."""
    assert [bytes_text(n) for n in (0, 10239, 10240, 3 << 20, 5 << 40)] == [
        "0 B",
        "10239 B",
        "10.0 KiB",
        "3.0 MiB",
        "5.0 TiB",
    ]
    assert table([["a", "n"], ["bb", "7"]], right={1}) == "a   n\n--  -\nbb  7"


def test_c_header_is_closed_against_names(random_blob: Path) -> None:
    """A file name cannot end the comment."""
    plan = Model.open(random_blob).plan(Limits(context=8))
    assert draw.c_header(plan, "a*/b.colibri", "0" * 64).count("*/") == 1
