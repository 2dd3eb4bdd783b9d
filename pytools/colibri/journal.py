"""The journal of an unfinished file: what it is going to be, and which strips of it are done.

Lines of text, appended: first a JSON object, then one line for every strip. A line counts only with its end,
and a strip only if its bytes are found with the noted sum: so an interruption at any moment, even of the
power, costs at most the strips whose bytes did not arrive.
"""

from __future__ import annotations

import errno
import fcntl
import json
import os
from pathlib import Path
from typing import Any

from .errors import InputError


class Journal:
    """An open, locked journal."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.head: dict[str, Any] | None = None
        self.strips: dict[int, int] = {}  # number -> CRC32C of its bytes
        self.identity = ""  # of the finished blob, once only its renaming is left
        self._handle = self._locked()
        self._read()

    def _locked(self) -> int:
        while True:
            handle = os.open(self.path, os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o666)
            try:
                fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except OSError as error:
                if error.errno in (errno.EWOULDBLOCK, errno.EACCES):
                    os.close(handle)
                    raise InputError(
                        f"{self.path}: another conversion is writing this file just now; wait for it or "
                        "choose another --output"
                    ) from None  # a file system without locks goes on without
            try:
                if os.path.samestat(os.fstat(handle), os.stat(self.path)):
                    return handle
            except FileNotFoundError:
                pass  # its owner finished and removed it between our two calls
            os.close(handle)

    def _read(self) -> None:
        with open(self.path, "rb") as file:
            *lines, cut = file.read().split(b"\n")
        if cut:  # the line that was being written
            os.ftruncate(self._handle, os.fstat(self._handle).st_size - len(cut))
        try:
            self.head = json.loads(lines.pop(0)) if lines else None
        except ValueError:
            return
        for line in lines:
            words = line.split()
            if len(words) == 3 and words[0] == b"strip" and words[1].isdigit():
                try:
                    self.strips[int(words[1])] = int(words[2], 16)
                except ValueError:
                    continue
            elif len(words) == 2 and words[0] == b"done":
                self.identity = words[1].decode("ascii", "replace")

    def begin(self, head: dict[str, Any]) -> None:
        """Start anew."""
        os.ftruncate(self._handle, 0)
        self.head, self.strips, self.identity = head, {}, ""
        self._append(json.dumps(head, sort_keys=True, ensure_ascii=True))

    def add(self, strip: int, crc: int) -> None:
        """A strip whose bytes were written."""
        self._append(f"strip {strip} {crc:08x}")

    def done(self, identity: str) -> None:
        """The file is complete and about to get its name."""
        self._append(f"done {identity}")

    def _append(self, line: str) -> None:
        os.write(self._handle, line.encode() + b"\n")  # one call: lines of several threads do not mix

    def remove(self) -> None:
        """Finished or given up."""
        self.path.unlink(missing_ok=True)
        self.close()

    def close(self) -> None:
        """Give the lock back."""
        if self._handle >= 0:
            os.close(self._handle)
        self._handle = -1


def changes(before: dict[str, Any], now: dict[str, Any], prefix: str = "") -> list[str]:
    """What differs between two heads, for a sentence."""
    found = []
    for key in sorted({*before, *now}):
        old, new = before.get(key), now.get(key)
        if isinstance(old, dict) and isinstance(new, dict):
            found += changes(old, new, f"{prefix}{key} ")
        elif old != new:
            long = any(len(str(value)) > 60 for value in (old, new))
            found.append(f"another {prefix}{key}" if long else f"{prefix}{key} was {old}, is {new}")
    return found
