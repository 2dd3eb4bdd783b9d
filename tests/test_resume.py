"""Interrupted conversions go on, parts are joined, and the bytes are always those of a single run."""

from __future__ import annotations

import dataclasses
import errno
import json
import os
import resource
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from checkpoint_kit import entries_of
from colibri import strips, unfinished
from colibri.blobfile import BlobFile
from colibri.convert import ConvertOptions, convert, convert_share, join
from colibri.errors import ColibriError, ConvertError, DoesNotFit, InputError, Unreachable
from colibri.journal import Journal
from colibri.parts import END, part_path
from colibri.safetensors_reader import Checkpoint
from colibri.unfinished import Work
from oracles import checkpoints, tensorfile

CASE = "qwen2_moe_plain"
OPTIONS = ConvertOptions(weights="q8", tokenizer=False)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A checkpoint of 3 MoE layers or so, some hundred strips."""
    made = tmp_path_factory.mktemp("checkpoint")
    checkpoints.build(CASE, made)
    return made


@pytest.fixture(scope="module")
def whole(folder: Path, tmp_path_factory: pytest.TempPathFactory) -> bytes:
    """The bytes of a conversion that nothing interrupts."""
    return convert(folder, tmp_path_factory.mktemp("whole") / "m.colibri", OPTIONS).path.read_bytes()


class Counter:
    """Counts the strips that are read, and stops at one of them."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, stop_at: int = -1, stop: Any = None) -> None:
        self.seen = 0
        before = Checkpoint.floats

        def floats(checkpoint: Checkpoint, *where: Any) -> np.ndarray:
            if self.seen == stop_at:
                raise stop
            self.seen += 1
            return before(checkpoint, *where)

        monkeypatch.setattr(Checkpoint, "floats", floats)


def interrupt(
    folder: Path, output: Path, at: int, options: ConvertOptions = OPTIONS, stop: Any = None
) -> int:
    """Convert until a strip fails as a cut network does; returns how many strips were made."""
    with pytest.MonkeyPatch.context() as patch:
        Counter(patch, at, stop or Unreachable("the network went away"))
        with pytest.raises((Unreachable, KeyboardInterrupt)):
            convert(folder, output, options, work=Work(1))
    return at


def files(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


LEFT = [".m.colibri.journal", ".m.colibri.part"]


@pytest.mark.parametrize("stop", [Unreachable("gone"), KeyboardInterrupt()])
def test_an_interrupted_conversion_goes_on(
    folder: Path, whole: bytes, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, stop: BaseException
) -> None:
    output, notes = tmp_path / "m.colibri", []
    made = interrupt(folder, output, 40, stop=stop)
    assert files(tmp_path) == LEFT
    rest = Counter(monkeypatch)
    convert(folder, output, OPTIONS, work=Work(1, note=notes.append))
    assert output.read_bytes() == whole and files(tmp_path) == ["m.colibri"]
    total = len(strips.strips_of(convert(folder, tmp_path / "n.colibri", OPTIONS).written.layout))
    assert notes == [f"{output}: going on with an interrupted conversion, {made} of {total} strips are there"]
    assert rest.seen == 2 * total - made  # this run and the whole one after it


def test_it_goes_on_from_every_moment(folder: Path, whole: bytes, tmp_path: Path) -> None:
    output = tmp_path / "m.colibri"
    total = len(strips.strips_of(convert(folder, tmp_path / "n.colibri", OPTIONS).written.layout))
    for _ in range(total // 7):
        interrupt(folder, output, 7 - (total % 7 == 0))  # each run makes some more, then stops again
    convert(folder, output, OPTIONS)
    assert output.read_bytes() == whole and total > 60


@pytest.mark.parametrize(
    "change, words",
    [
        ({"weights": "q4"}, "options experts was q8, is q4"),
        ({"head": "f16"}, "options head was q8, is f16"),
        ({"source_name": "other"}, "source was "),
    ],
)
def test_other_options_start_anew_and_say_so(
    folder: Path, tmp_path: Path, change: dict[str, str], words: str
) -> None:
    options, notes = dataclasses.replace(OPTIONS, **change), []
    wanted = convert(folder, tmp_path / "n.colibri", options).path.read_bytes()
    interrupt(folder, tmp_path / "m.colibri", 40)
    made = convert(folder, tmp_path / "m.colibri", options, work=Work(note=notes.append))
    assert made.path.read_bytes() == wanted and files(tmp_path) == ["m.colibri", "n.colibri"]
    assert len(notes) == 1 and "is thrown away" in notes[0] and words in notes[0]


def test_changed_weights_start_anew(folder: Path, tmp_path: Path) -> None:
    copy, notes = tmp_path / "hf", []
    checkpoints.build(CASE, copy)
    interrupt(copy, tmp_path / "m.colibri", 40)
    changed = entries_of(CASE)
    changed[-1] = changed[-1]._replace(data=lambda: np.ones(changed[-1].shape, np.float32))
    tensorfile.write(copy / "model.safetensors", changed)
    convert(copy, tmp_path / "m.colibri", OPTIONS, work=Work(note=notes.append))
    wanted = convert(copy, tmp_path / "n.colibri", OPTIONS).path.read_bytes()
    assert (tmp_path / "m.colibri").read_bytes() == wanted
    assert "another times of the files, another weights" in notes[0]


def damage(path: Path, offset: int, data: bytes) -> None:
    with open(path, "r+b") as file:
        file.seek(offset)
        file.write(data)


@pytest.mark.parametrize(
    "harm", ["torn line", "zeros in the journal", "no journal", "no part", "other bytes", "no end"]
)
def test_what_the_disk_lost_is_made_again(folder: Path, whole: bytes, tmp_path: Path, harm: str) -> None:
    output, notes = tmp_path / "m.colibri", []
    interrupt(folder, output, 40)
    journal, part = tmp_path / LEFT[0], tmp_path / LEFT[1]
    lines = journal.read_bytes().splitlines(keepends=True)
    if harm == "torn line":
        journal.write_bytes(b"".join(lines)[:-4])
    elif harm == "zeros in the journal":
        journal.write_bytes(b"".join(lines[:20]) + bytes(200))
    elif harm == "no journal":
        journal.unlink()
    elif harm == "no part":
        part.unlink()
    elif harm == "other bytes":
        damage(part, part.stat().st_size // 4, b"\xff" * 512)
    else:
        os.truncate(part, 5000)
    convert(folder, output, OPTIONS, work=Work(note=notes.append))
    assert output.read_bytes() == whole and files(tmp_path) == ["m.colibri"]
    assert all("going on" in note for note in notes) and len(notes) <= 1


def test_a_refusal_leaves_nothing_even_after_an_interruption(tmp_path: Path) -> None:
    copy = tmp_path / "hf"
    checkpoints.build(CASE, copy)
    bad = entries_of(CASE)
    at = max(number for number, entry in enumerate(bad) if ".layers.3." in entry.name)
    poisoned = bad[at].data().copy()
    poisoned.flat[3] = np.nan
    bad[at] = bad[at]._replace(data=lambda: poisoned, dtype="F32")
    tensorfile.write(copy / "model.safetensors", bad)
    out = tmp_path / "out"
    out.mkdir()
    interrupt(copy, out / "m.colibri", 10)
    with pytest.raises(ConvertError, match="column 3 is nan"):
        convert(copy, out / "m.colibri", OPTIONS)
    assert files(out) == []


def test_two_conversions_into_one_file_are_refused(folder: Path, whole: bytes, tmp_path: Path) -> None:
    output = tmp_path / "m.colibri"
    interrupt(folder, output, 40)
    other = Journal(tmp_path / LEFT[0])
    with pytest.raises(InputError, match="another conversion is writing this file"):
        convert(folder, output, OPTIONS)
    other.close()
    assert convert(folder, output, OPTIONS).path.read_bytes() == whole


KILL = """
import os, signal, sys
from pathlib import Path
from colibri import unfinished
from colibri.convert import ConvertOptions, convert
name = sys.argv[3]
owner = unfinished.Journal if hasattr(unfinished.Journal, name) else unfinished.os
before = getattr(owner, name)
def stop(*arguments, **named):
    if sys.argv[4] == "after":
        before(*arguments, **named)
    os.kill(os.getpid(), signal.SIGKILL)
setattr(owner, name, stop)
convert(Path(sys.argv[1]), Path(sys.argv[2]), ConvertOptions(weights="q8", tokenizer=False))
"""


@pytest.mark.parametrize("when", ["before", "after"])
@pytest.mark.parametrize("step", ["begin", "ftruncate", "done", "replace", "remove"])
def test_killed_at_every_step_of_a_files_life(
    folder: Path, whole: bytes, tmp_path: Path, step: str, when: str
) -> None:
    output = tmp_path / "m.colibri"
    command = [sys.executable, "-c", KILL, str(folder), str(output), step, when]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == -signal.SIGKILL, done.stderr
    assert output.exists() == (step == "remove" or (step, when) == ("replace", "after"))
    if (step, when) != ("remove", "after"):  # then nothing is left to do, and nothing tells us so
        made = convert(folder, output, OPTIONS)
        assert made.written.identity == BlobFile(output).identity
    assert output.read_bytes() == whole and files(tmp_path) == ["m.colibri"]


def test_what_an_existing_file_is_is_said(folder: Path, whole: bytes, tmp_path: Path) -> None:
    output = tmp_path / "m.colibri"
    convert(folder, output, dataclasses.replace(OPTIONS, source_name="acme/other"))
    with pytest.raises(InputError, match=r"exists already \(a blob made of acme/other\); .* --overwrite"):
        convert(folder, output, OPTIONS)
    convert(folder, output, dataclasses.replace(OPTIONS, overwrite=True))
    assert output.read_bytes() == whole
    output.write_bytes(b"a letter")
    with pytest.raises(InputError, match=r"exists already \(and is no blob of this version\)"):
        convert(folder, output, OPTIONS)
    assert output.read_bytes() == b"a letter"
    with pytest.raises(InputError, match="is a folder"):
        convert(folder, tmp_path, dataclasses.replace(OPTIONS, overwrite=True))


# --- parts ---


@pytest.mark.parametrize("shares", [1, 2, 3, 7])
def test_joined_parts_are_the_bytes_of_one_run(
    folder: Path, whole: bytes, tmp_path: Path, shares: int
) -> None:
    output = tmp_path / "m.colibri"
    for share in reversed(range(1, shares + 1)):
        made = convert_share(folder, output, OPTIONS, (share, shares), Work())
        assert made == part_path(output, share, shares)
    join(folder, output, OPTIONS, Work())
    assert output.read_bytes() == whole
    assert files(tmp_path) == ["m.colibri", *(f"m.colibri.{s}of{shares}" for s in range(1, shares + 1))]


def test_more_parts_than_strips_are_joined_too(folder: Path, whole: bytes, tmp_path: Path) -> None:
    output = tmp_path / "m.colibri"
    for share in range(1, 401):
        if share % 40 == 0 or share < 5:  # the rest goes the fast way
            convert_share(folder, output, OPTIONS, (share, 400), Work(1))
    with pytest.raises(InputError, match=r"m\.colibri\.5of400: is missing; make it with --shard 5/400"):
        join(folder, output, OPTIONS, Work())


def test_a_part_from_a_copy_of_the_folder_is_as_good(folder: Path, whole: bytes, tmp_path: Path) -> None:
    copy = tmp_path / "elsewhere" / folder.name
    checkpoints.build(CASE, copy)
    os.utime(copy / "model.safetensors", (1, 1))
    output = tmp_path / "m.colibri"
    convert_share(folder, output, OPTIONS, (1, 2), Work())
    convert_share(copy, output, OPTIONS, (2, 2), Work())
    assert join(folder, output, OPTIONS, Work()).path.read_bytes() == whole


def test_an_interrupted_part_goes_on(folder: Path, whole: bytes, tmp_path: Path) -> None:
    output, notes = tmp_path / "m.colibri", []
    convert_share(folder, output, OPTIONS, (1, 2), Work())
    with pytest.MonkeyPatch.context() as patch:
        Counter(patch, 20, Unreachable("gone"))
        with pytest.raises(Unreachable):
            convert_share(folder, output, OPTIONS, (2, 2), Work(1))
    assert files(tmp_path) == [".m.colibri.2of2.journal", ".m.colibri.2of2.part", "m.colibri.1of2"]
    convert_share(folder, output, OPTIONS, (2, 2), Work(note=notes.append))
    convert_share(folder, output, OPTIONS, (2, 2), Work(note=notes.append))
    assert "going on" in notes[0] and "is there already" in notes[1]
    assert join(folder, output, OPTIONS, Work()).path.read_bytes() == whole


def parts(folder: Path, output: Path, options: ConvertOptions = OPTIONS) -> None:
    for share in (1, 2):
        convert_share(folder, output, options, (share, 2), Work())


def test_parts_that_do_not_belong_together_are_named(folder: Path, tmp_path: Path) -> None:
    output = tmp_path / "m.colibri"

    def refused(words: str) -> None:
        with pytest.raises(InputError) as caught:
            join(folder, output, OPTIONS, Work())
        assert words in str(caught.value) and "\n" not in str(caught.value)
        assert not output.exists() and not any(name.startswith(".") for name in files(tmp_path))

    refused("m.colibri.1of2: no part is there; make parts with --shard 1/2")
    parts(folder, output)
    second, data = part_path(output, 2, 2), part_path(output, 2, 2).read_bytes()
    second.unlink()
    refused("m.colibri.2of2: is missing; make it with --shard 2/2")
    convert_share(folder, output, ConvertOptions(weights="q4", tokenizer=False), (2, 2), Work())
    refused("m.colibri.2of2: is a part of another conversion (another layout, options experts was q4, is q8")
    second.write_bytes(part_path(output, 1, 2).read_bytes())
    refused("m.colibri.2of2: is a part of another conversion (share was 1/2, is 2/2)")
    for cut in (data[:-1], data[:100], b"", data[: len(data) // 2]):
        second.write_bytes(cut)
        refused("m.colibri.2of2: is no part of a blob, or was cut short")
    second.write_bytes(data[1000:])
    refused("m.colibri.2of2: has")
    second.write_bytes(data)
    damage(second, 1000, b"\x5a\x5a\x5a")
    refused("the part is damaged, make this part again or copy it again")
    second.write_bytes(data)
    part_path(output, 1, 3).write_bytes(data)
    refused("parts of several divisions are there (m.colibri.1of2, m.colibri.1of3)")


def test_the_shares_are_about_equal_and_cover_everything(folder: Path, tmp_path: Path) -> None:
    layout = convert(folder, tmp_path / "m.colibri", OPTIONS).written.layout
    everything = strips.strips_of(layout)
    for shares in (1, 2, 5, 1000):
        cut = [strips.share_of(everything, share, shares) for share in range(1, shares + 1)]
        assert [strip for part in cut for strip in part] == everything
    halves = [sum(s.effort for s in strips.share_of(everything, share, 2)) for share in (1, 2)]
    assert abs(halves[0] - halves[1]) <= 2 * max(s.effort for s in everything)


def test_a_part_of_another_conversion_is_not_overwritten_unasked(folder: Path, tmp_path: Path) -> None:
    output = tmp_path / "m.colibri"
    convert_share(folder, output, OPTIONS, (1, 2), Work())
    other = ConvertOptions(weights="q4", tokenizer=False)
    with pytest.raises(InputError, match="1of2: is a part of another conversion .* --overwrite or remove it"):
        convert_share(folder, output, other, (1, 2), Work())
    convert_share(folder, output, dataclasses.replace(other, overwrite=True), (1, 2), Work())
    manifest = part_path(output, 1, 2).read_bytes()
    length = END.unpack(manifest[-END.size :])[0]
    assert json.loads(manifest[-END.size - length : -END.size])["head"]["options"]["experts"] == "q4"


# --- the disk ---


def with_room(room: int, monkeypatch: pytest.MonkeyPatch) -> None:
    free = dataclasses.make_dataclass("Free", ["free"])(room)
    monkeypatch.setattr(unfinished.shutil, "disk_usage", lambda folder: free)


def test_space_is_checked_before_the_work(
    folder: Path, whole: bytes, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with_room(len(whole) - 1, monkeypatch)
    reads = Counter(monkeypatch)
    with pytest.raises(DoesNotFit, match=f"{len(whole) - 1} bytes are free, the blob needs {len(whole)}"):
        convert(folder, tmp_path / "m.colibri", OPTIONS)
    assert reads.seen == 0 and files(tmp_path) == []


ROOM = 64 << 10


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[tuple[Path, str]]:
    """A file system of 64 KiB, or (mounting needs root) files of at most 64 KiB; and what the system says."""
    folder = tmp_path / "disk"
    folder.mkdir()
    words = ["mount", "-t", "tmpfs", "-o", f"size={ROOM}", "tmpfs", str(folder)]
    if subprocess.run(words, capture_output=True, check=False).returncode == 0:
        yield folder, "No space left on device"
        subprocess.run(["umount", str(folder)], check=True)
        return
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (ROOM, before[1]))
    yield folder, "File too large"
    resource.setrlimit(resource.RLIMIT_FSIZE, before)


def test_a_full_disk_is_said_and_left_clean(
    folder: Path, small_disk: tuple[Path, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    disk, words = small_disk

    def full(action: Callable[[], Any]) -> None:
        with pytest.raises(DoesNotFit) as caught:
            action()
        assert caught.value.exit_code == 5 and files(disk) == []
        assert f"cannot be written ({words}); make room" in str(caught.value)

    if words.startswith("No space"):
        with pytest.raises(DoesNotFit, match="bytes are free, the blob needs"):
            convert(folder, disk / "m.colibri", OPTIONS)
        assert files(disk) == []
    with_room(1 << 40, monkeypatch)  # as if another process took the room after the check
    full(lambda: convert(folder, disk / "m.colibri", OPTIONS))
    full(lambda: convert_share(folder, disk / "m.colibri", OPTIONS, (1, 2), Work()))


def test_errors_of_the_disk_have_their_exit_codes(tmp_path: Path) -> None:
    for number, code in (
        (errno.ENOSPC, 5),
        (errno.EDQUOT, 5),
        (errno.EFBIG, 5),
        (errno.EROFS, 3),
        (errno.EIO, 3),
    ):
        with pytest.raises(ColibriError) as caught, unfinished.said_plainly(tmp_path):
            raise OSError(number, os.strerror(number))
        assert caught.value.exit_code == code
