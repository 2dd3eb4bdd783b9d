"""Memory of other processes: what is theirs alone, and a limit the kernel keeps for them."""
from __future__ import annotations

import contextlib
import os
import subprocess
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

ROOT = Path("/sys/fs/cgroup")


def anonymous(process: int) -> int:
    """Bytes of a process that no file backs; 0 when it is gone."""
    try:
        text = Path(f"/proc/{process}/smaps_rollup").read_text(encoding="ascii")
    except (OSError, ValueError):
        return 0
    return sum(int(line.split()[1]) * 1024 for line in text.splitlines() if line.startswith("Anonymous:"))


class Group:
    """A memory cgroup below this process's own, version 1 or 2, with a limit."""

    def __init__(self, folder: Path, limit: int, version: int) -> None:
        self.folder, self.version = folder, version
        name = "memory.max" if version == 2 else "memory.limit_in_bytes"
        (folder / name).write_text(str(limit), encoding="ascii")
        if version == 2 and (folder / "memory.swap.max").exists():
            (folder / "memory.swap.max").write_text("0", encoding="ascii")

    def run(self, command: Sequence[str], **options: Any) -> subprocess.CompletedProcess[str]:
        """A command inside, from its first instruction on."""
        procs = str(self.folder / "cgroup.procs")
        shell = ["sh", "-c", 'echo $$ > "$0" && exec "$@"', procs, *command]
        return subprocess.run(shell, capture_output=True, text=True, check=False, **options)

    def peak(self) -> int:
        """The most it ever used, cached files included."""
        name = "memory.peak" if self.version == 2 else "memory.max_usage_in_bytes"
        return int((self.folder / name).read_text(encoding="ascii"))

    def killed(self) -> int:
        """How often the kernel ended a process for want of memory."""
        name = "memory.events" if self.version == 2 else "memory.oom_control"
        words = dict(line.split() for line in (self.folder / name).read_text(encoding="ascii").splitlines())
        return int(words.get("oom_kill", 0))


def own(controller: str) -> str:
    """The path of this process's group in a hierarchy; "" names version 2."""
    for line in Path("/proc/self/cgroup").read_text(encoding="ascii").splitlines():
        _, names, path = line.split(":", 2)
        if controller in names.split(",") if controller else not names:
            return path
    return "/"


@contextlib.contextmanager
def limited(limit: int) -> Iterator[Group]:
    """A group of its own for the time of a test; skipped where this machine gives none to this user."""
    places = [(ROOT / "memory" / own("memory").lstrip("/"), 1), (ROOT / own("").lstrip("/"), 2), (ROOT / "memory", 1)]
    for parent, version in places:
        folder = parent / f"colibri-test-{os.getpid()}"
        try:
            if version == 2 and "memory" not in (parent / "cgroup.subtree_control").read_text(encoding="ascii"):
                continue
            folder.mkdir()
        except OSError:
            continue
        try:
            yield Group(folder, limit, version)
            return
        finally:
            folder.rmdir()
    pytest.skip("no memory cgroup can be made here: run as root, or in a container that may")
