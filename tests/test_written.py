"""Files that commands leave: whole, or what was there before; pipes and devices stay what they are."""
from __future__ import annotations

import os
import resource
import stat
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from cli_kit import Capture, document, talker  # noqa: F401
from colibri.errors import InputError
from colibri.trace import read
from colibri.written import write_whole

ROOM = 100                                      # bytes that a file may have, where there is too little room
RUN = ("-p", "Once upon a time", "-n", "3", "--slots", "4")
FILES = ("--trace", "--profile", "--save", "--log-routing")


def starved(*arguments: object) -> subprocess.CompletedProcess[str]:
    """The command, as a process whose files cannot grow."""
    return subprocess.run([sys.executable, "-m", "colibri", *map(str, arguments)], capture_output=True, text=True,
                          preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (ROOM, ROOM)), check=False)


@pytest.mark.parametrize("option", (*FILES, "--svg", "--header"))
def test_without_room_the_old_file_stays(option: str, talker: Path, tmp_path: Path, capsys: Capture) -> None:
    place, trace = tmp_path / "kept" / "file", tmp_path / "a.trace"
    place.parent.mkdir()
    document(capsys, "run", talker, *RUN, "--trace", trace)
    command = {"--svg": ("replay", trace), "--header": ("plan", talker)}.get(option, ("run", talker, *RUN))
    document(capsys, *command, option, place)
    before = place.read_bytes()
    assert len(before) > ROOM
    done = starved(*command, option, place)
    assert done.returncode == 3 and f"{place}: cannot be written (File too large)" in done.stderr
    assert place.read_bytes() == before and os.listdir(place.parent) == ["file"]


def test_pipes_and_links_stay(talker: Path, tmp_path: Path, capsys: Capture) -> None:
    pipe, link, real = tmp_path / "pipe", tmp_path / "link", tmp_path / "real"
    os.mkfifo(pipe)
    seen: list[bytes] = []
    reader = threading.Thread(target=lambda: seen.append(pipe.read_bytes()), daemon=True)
    reader.start()
    document(capsys, "run", talker, *RUN, "--trace", pipe)
    reader.join(30)
    assert seen, "nothing came through the pipe"
    assert stat.S_ISFIFO(pipe.lstat().st_mode) and seen[0].startswith(b'{"trace":1')
    real.write_bytes(b"old")
    real.chmod(0o640)
    link.symlink_to(real)
    document(capsys, "run", talker, *RUN, "--trace", link)
    assert link.is_symlink() and real.read_bytes() == seen[0] and stat.S_IMODE(real.stat().st_mode) == 0o640
    assert read(link).rows > 0


def test_a_failure_half_way_leaves_nothing(tmp_path: Path) -> None:
    def parts():
        yield b"begun"
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        write_whole(tmp_path / "file", parts())
    assert not os.listdir(tmp_path)
    with pytest.raises(InputError, match="cannot be written"):
        write_whole(tmp_path / "no" / "file", [b"x"])
