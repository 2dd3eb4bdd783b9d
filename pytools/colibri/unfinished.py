"""A file that is being written beside its target: a window of a blob, its strips at their final places.

The window is the whole blob, or the range of one share. With a journal it survives an interruption; without
one it is gone when the process fails. A refusal leaves nothing behind.
"""

from __future__ import annotations

import errno
import os
import shutil
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from .errors import DoesNotFit, InputError, Unreachable
from .journal import Journal, changes
from .profile import Profile
from .seal import read_all, write_all
from .strips import Strip
from .tables import crc32c

NO_ROOM = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
Progress = Callable[[int, int, str], None]
Note = Callable[[str], None]


def default_threads() -> int:
    """Threads that pack: more than four wait for each other's memory."""
    return min(4, len(os.sched_getaffinity(0)))


@dataclass
class Work:
    """How to work, and whom to tell."""

    threads: int = field(default_factory=default_threads)
    progress: Progress = lambda done, total, what: None
    note: Note = lambda text: None
    profile: Profile = field(default_factory=Profile)


def check_space(folder: Path, needed: int) -> None:
    """Refuse before the work when the disk cannot hold the result."""
    free = shutil.disk_usage(folder).free
    if free < needed:
        raise DoesNotFit(
            f"{folder}: {free} bytes are free, the blob needs {needed} more; make room or choose another "
            "folder or smaller --weights"
        )


@contextmanager
def said_plainly(path: Path) -> Iterator[None]:
    """What the system says about writing becomes one sentence."""
    try:
        yield
    except OSError as error:
        kind = DoesNotFit if error.errno in NO_ROOM else InputError
        raise kind(
            f"{path}: cannot be written ({error.strerror}); make room or choose another folder"
        ) from error


def sync_folder(folder: Path) -> None:
    """A new name is on the disk when its folder is."""
    handle = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(handle)
    except OSError:
        pass  # some network file systems cannot, and need not
    finally:
        os.close(handle)


class Unfinished:
    """The unfinished file of `target`. `head` says what it will be: None for one that does not outlive us."""

    def __init__(
        self,
        target: Path,
        head: dict[str, Any] | None,
        window: tuple[int, int],
        strips: Sequence[Strip],
        work: Work,
    ) -> None:
        self.target, self.head, self.window, self.work = target, head, window, work
        owner = "" if head else f".{os.getpid()}"
        self.path = target.with_name(f".{target.name}{owner}.part")
        self.strips = {strip.number: strip for strip in strips}
        self.ready: set[int] = set()
        self.journal: Journal | None = None
        self.handle = -1

    @staticmethod
    def journal_path(target: Path) -> Path:
        """Beside the target."""
        return target.with_name(f".{target.name}.journal")

    def __enter__(self) -> Unfinished:
        try:
            with said_plainly(self.target):
                if self.head:
                    self.journal = Journal(self.journal_path(self.target))
                    self._compare(self.journal)
                self._room()
                self.handle = os.open(self.path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666)
                os.ftruncate(self.handle, self.window[1] - self.window[0])
            if self.journal:
                self._resume(self.journal)
        except BaseException as error:
            self.__exit__(type(error), error, None)
            raise
        return self

    def _room(self) -> None:
        there = self.path.stat().st_blocks * 512 if self.path.exists() else 0
        check_space(self.path.parent, self.window[1] - self.window[0] - there)

    def _compare(self, journal: Journal) -> None:
        """Go on with the same work, throw away any other."""
        if journal.head == self.head and self.path.exists():
            return
        if journal.head and journal.head != self.head and self.path.exists():
            named = ", ".join(changes(journal.head, self.head or {}))
            self.work.note(f"{self.target}: an unfinished conversion is thrown away ({named}); starting anew")
        self.path.unlink(missing_ok=True)
        journal.begin(self.head or {})

    def _resume(self, journal: Journal) -> None:
        """Believe the journal where the bytes agree."""
        known = [self.strips[number] for number in journal.strips if number in self.strips]
        with ThreadPoolExecutor(self.work.threads) as pool:
            found = pool.map(lambda strip: crc32c(self.read(strip)), known)
            self.ready = {
                s.number for s, crc in zip(known, found, strict=True) if crc == journal.strips[s.number]
            }
        if self.ready:
            self.work.note(
                f"{self.target}: going on with an interrupted conversion, {len(self.ready)} of "
                f"{len(self.strips)} strips are there"
            )

    def read(self, strip: Strip) -> bytes:
        """A strip's bytes."""
        return read_all(self.handle, strip.offset - self.window[0], strip.bytes)

    def fill(self, make: Callable[[Strip], bytes | bytearray]) -> None:
        """Make what is missing, a few strips at a time."""
        total, done = sum(s.numbers for s in self.strips.values()), 0
        for number in self.ready:
            done += self.strips[number].numbers
        self.work.progress(done, total, "")
        waiting: list[tuple[Strip, Future[None]]] = []
        todo = (strip for number, strip in self.strips.items() if number not in self.ready)
        with ThreadPoolExecutor(self.work.threads) as pool:
            try:
                while True:
                    while len(waiting) < 2 * self.work.threads and (strip := next(todo, None)) is not None:
                        waiting.append((strip, pool.submit(self._make, make, strip)))
                    if not waiting:
                        return
                    strip, future = waiting.pop(0)
                    future.result()
                    done += strip.numbers
                    self.work.progress(done, total, strip.tensor.label)
            finally:
                for _, future in waiting:
                    future.cancel()

    def _make(self, make: Callable[[Strip], bytes | bytearray], strip: Strip) -> None:
        data = make(strip)
        with said_plainly(self.target):
            with self.work.profile("write"):
                write_all(self.handle, data, strip.offset - self.window[0])
            if self.journal:
                with self.work.profile("sums"):
                    crc = crc32c(data)
                self.journal.add(strip.number, crc)

    def publish(self, identity: str = "") -> None:
        """The bytes are complete: on the disk first, then under their name."""
        with said_plainly(self.target):
            with self.work.profile("write"):
                os.fsync(self.handle)
            if self.journal:
                self.journal.done(identity)
            os.replace(self.path, self.target)
            sync_folder(self.target.parent)

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        """Kept is only what a second run can go on with."""
        kept = (
            self.journal is not None
            and kind is not None
            and issubclass(kind, (KeyboardInterrupt, Unreachable))
        )
        if self.handle >= 0:
            os.close(self.handle)
            self.handle = -1
            if not kept:
                self.path.unlink(missing_ok=True)
        if self.journal:
            if kept:
                self.journal.close()
            else:
                self.path.unlink(missing_ok=True)
                self.journal.remove()
