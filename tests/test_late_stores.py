"""Stores that answer later, at WebAssembly's import: the module goes on with what it has, told in between what came.

In node the reads are real ones, under way at once, and tests/native/late.cjs plays with when their answers come; in
wasmtime the host reads when it pleases.
"""
from __future__ import annotations

import json
import random
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

import pytest

from cli_kit import ROOT, Capture
from colibri import cli, library, wasm
from colibri.jobs import JobRefused, JobResult
from colibri.targets import pick
from test_stores import ALL, Case, mixed, uneven  # noqa: F401

NAMES = ("wasm", "node")
HOW = ("random", "reversed", "short", "once")
POISON = 0xA5
FileReader = wasm.FileReader


@dataclass
class Seen:
    """What a late host has done."""

    how: str
    byte: int = -1      # of the file: reads that have it fail
    reads: int = 0
    most: int = 0       # at once
    passed: int = 0     # answers that passed an older read's
    turned_away: int = 0
    file: Path | None = None

    def collect(self) -> Seen:
        """What node's hook wrote."""
        if self.file and self.file.is_file():
            self.reads, self.most, self.passed = map(int, self.file.read_text().split())
        return self


def late_reader(seen: Seen) -> type[FileReader]:
    """FileReader that answers OK, and brings the bytes some turns later."""
    dice, c = random.Random(seen.how), library.constants()

    class Late(FileReader):
        """Nonsense lies where the bytes will be until they are there."""

        def __init__(self, path: Path) -> None:
            super().__init__(path)
            self.held: list[tuple[int, int, tuple[int, int, int], int]] = []    # number, turns left, what, ticket

        def fetch(self, offset: int, size: int, to: int, ticket: int) -> int:
            if len(self.held) > 2 and dice.random() < 0.3:
                seen.turned_away += 1
                return int(c.WAIT)
            at = to & 0xFFFFFFFF
            self.room[at : at + size] = bytes([POISON]) * size
            self.held.append((seen.reads, dice.randrange(30), (offset, size, to), ticket))
            seen.reads += 1
            seen.most = max(seen.most, len(self.held))
            return int(c.OK)

        def arrivals(self, idle: bool) -> list[tuple[int, int]]:
            self.held = [(number, turns - 1, what, ticket) for number, turns, what, ticket in self.held]
            due = [one for one in self.held if one[1] < 0]
            if seen.how == "reversed":          # the latest first, once there is nothing else to do or one has waited
                due = self.held[-1:] if idle or due else []
            for one in due:
                self.held.remove(one)
                seen.passed += any(other[0] < one[0] for other in self.held)
            return [(ticket, self.become(number, *what, ticket)) for number, _, what, ticket in due]

        def become(self, number: int, offset: int, size: int, to: int, ticket: int) -> int:
            if (seen.how == "once" and number == 4) or offset <= seen.byte < offset + size:
                return int(c.ERROR_FETCH)
            return super().fetch(offset, size, to, ticket)

    return Late


@pytest.fixture
def late(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Callable[..., Seen]:
    """Makes a target's host a late one."""

    def made(name: str, how: str, byte: int = -1) -> Seen:
        if pick([name])[0].missing():
            pytest.skip(f"{name}: {pick([name])[0].missing()}")
        seen = Seen(how, byte, file=tmp_path / "seen" if name == "node" else None)
        monkeypatch.setattr(wasm, "FileReader", late_reader(seen))
        monkeypatch.setenv("NODE_OPTIONS", f"--require {ROOT / 'tests/native/late.cjs'}")
        monkeypatch.setenv("LATE", f"{how} {byte}")
        monkeypatch.setenv("LATE_SEEN", str(tmp_path / "seen"))
        return seen

    return made


def run(name: str, case: Case, slots: int, **changes: object) -> JobResult:
    """The case's job with its experts, and its resident weights, from the host."""
    job = replace(case.job, limits=replace(case.limits, slots=slots, **ALL), store="PORT", **changes)
    return pick([name])[0].run(job, case.model)


def place_of(case: Case) -> tuple[int, int, int]:
    """Layer, expert and offset of an expert that the case's run chooses first of all in its layer."""
    with case.streamed(1) as session:
        session.feed(case.prompt[:1])
        session.finish()
        chosen = {(layer, expert) for layer in range(case.model.info().layers)
                  for expert, _ in session.routing(layer, 0)}
    return next((layer, expert, offset) for layer, expert, offset, _ in case.runs() if (layer, expert) in chosen)


CHANGES: dict[str, dict[str, object]] = {
    "plain": {}, "two sequences": {"two_sequences": True}, "two sessions": {"two_sessions": True},
    "small steps": {"budget": 3}, "reset": {"reset": True},
}


@pytest.mark.sampled(5)
@pytest.mark.parametrize("change", CHANGES)
@pytest.mark.parametrize(("name", "how"), [(n, h) for n in NAMES for h in HOW if (n, h) != ("wasm", "short")])
@pytest.mark.parametrize("spec", ("mixed", "uneven"))
def test_late_answers_change_no_bit(late: Callable[..., Seen], spec: str, name: str, how: str, change: str,
                                    request: pytest.FixtureRequest) -> None:
    """Several reads at once, answers that pass others, one that fails and is asked for again."""
    case: Case = request.getfixturevalue(spec)
    for slots in (1, 3, case.experts) if change == "plain" else (3,):
        seen = late(name, how)
        result = run(name, case, slots, store_resumes=int(how == "once"), **CHANGES[change])
        assert result.error is None and not result.bad_checks() and result.code == 0
        assert result.digest == case.right and result.used_bytes == result.planned_bytes
        assert result.stats["expert_misses"] > 0 and len(result.again) == (how == "once")
        seen.collect()
        assert seen.reads >= result.stats["expert_misses"]
        if slots > 1 and how != "once" and spec == "mixed":     # of the other a token takes one expert a layer
            assert seen.most > 1 and (how == "short" or seen.passed > 0)


@pytest.mark.parametrize("resumes", (0, 2))
@pytest.mark.parametrize("name", NAMES)
def test_what_never_comes_is_named(late: Callable[..., Seen], name: str, resumes: int, mixed: Case) -> None:
    """After as many tries as the job has: layer, expert, offset, exit code; no answer."""
    layer, expert, offset = place_of(mixed)
    late(name, "never", offset + 5)
    result = run(name, mixed, 3, store_resumes=resumes)
    assert isinstance(result.error, JobRefused) and (result.error.status, result.code) == ("FETCH", 3)
    assert result.lost == (layer, expert, offset) and result.again == [result.lost] * resumes
    assert str(result.error) == (
        f"target {name}: expert {expert} of layer {layer}: the bytes from {offset} on could not be read; repair the "
        "file (`colibri check` lists all that is wrong) or get it again")
    assert result.error.exit_code == 3 and not result.digests


@pytest.mark.parametrize("name", NAMES)
def test_the_command_goes_on_or_says_what_was_lost(late: Callable[..., Seen], name: str, mixed: Case, tmp_path: Path,
                                                   capsys: Capture) -> None:
    ids, command = tmp_path / "ids.json", ["run", str(mixed.path), "-n", "6", "--context", "32", "--slots", "3"]
    ids.write_text(json.dumps(mixed.prompt))
    command += ["--tokens", str(ids), "--json"]
    assert cli.main([*command, "-q"]) == 0
    right = json.loads(capsys.readouterr().out)["digest"]
    late(name, "once")
    assert cli.main([*command, "--target", name]) == 0
    said = capsys.readouterr()
    assert json.loads(said.out)["digest"] == right and "could not be had, and were asked for again" in said.err
    layer, expert, offset = place_of(mixed)
    late(name, "never", offset)
    assert cli.main([*command, "--target", name]) == 3
    said = capsys.readouterr()
    assert f"expert {expert} of layer {layer}: the bytes from {offset} on could not be read" in said.err
    assert "digest" not in said.out and "Traceback" not in said.err
