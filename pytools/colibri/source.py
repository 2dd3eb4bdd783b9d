"""Where a checkpoint lies: a local folder here, a model hub in hub.py. Both give files by byte range.

Knows files and bytes, not what stands in them.
"""

from __future__ import annotations

import hashlib
import os
import re
import threading
from abc import ABC, abstractmethod
from collections.abc import Iterable
from decimal import Decimal
from pathlib import Path
from typing import Any, Protocol

from .errors import ColibriError, ConvertError
from .strict_json import parse_json

SAMPLES, SAMPLE_BYTES = 16, 4096  # of each file of weights, for a folder's fingerprint
HUB_ID = re.compile(r"(?P<name>[\w.-]+/[\w.-]+)(?:@(?P<revision>[^\s@]+))?")


class ByteFile(Protocol):
    """A file of known size that is read by range, from several threads; str() is what a sentence calls it."""

    name: str
    size: int

    def read(self, offset: int, size: int) -> bytes:
        """Exactly these bytes."""

    def close(self) -> None:
        """Give handles back."""


class LocalFile:
    """A file of a disk."""

    def __init__(self, path: Path) -> None:
        self.path, self.name = Path(path), Path(path).name
        try:
            self._handle = os.open(self.path, os.O_RDONLY | os.O_CLOEXEC)
        except OSError as error:
            raise ConvertError(f"{path}: cannot be read ({error.strerror}); check the folder") from None
        self.size = os.fstat(self._handle).st_size

    def __str__(self) -> str:
        return str(self.path)

    def read(self, offset: int, size: int) -> bytes:
        """See ByteFile."""
        parts, got = [], 0
        while got < size:
            try:
                part = os.pread(self._handle, size - got, offset + got)
            except OSError as error:
                raise ConvertError(
                    f"{self.path}: reading failed at byte {offset + got} ({error.strerror}); check the disk"
                ) from None
            if not part:
                raise ConvertError(
                    f"{self.path}: ends at byte {offset + got}; it became shorter while it was read"
                )
            parts.append(part)
            got += len(part)
        return parts[0] if len(parts) == 1 else b"".join(parts)

    def close(self) -> None:
        """See ByteFile."""
        if self._handle >= 0:
            os.close(self._handle)
        self._handle = -1


class Source(ABC):
    """A checkpoint's files by name."""

    name = ""  # what the blob says it was made of
    revision = ""  # the commit, where the source has commits
    partial = False  # whether a file that is not there may be somewhere else

    def __init__(self) -> None:
        self._opened: dict[str, ByteFile] = {}
        self._lock = threading.Lock()

    @abstractmethod
    def subject(self, file: str) -> str:
        """What a sentence calls a file, whether it is there or not."""

    @abstractmethod
    def names(self) -> list[str]:
        """The files that are there."""

    @abstractmethod
    def small(self, file: str) -> bytes | None:
        """A small file whole, None if it is not there."""

    @abstractmethod
    def _open(self, file: str) -> ByteFile:
        """A file of weights that is there."""

    @abstractmethod
    def content(self, files: Iterable[str]) -> str:
        """What two sources with the same weights have in common, wherever they lie."""

    def missing(self, file: str) -> ColibriError:
        """The error for a file that must be there."""
        return ConvertError(f"{self.subject(file)}: is missing; give a whole Hugging Face model")

    def stamp(self, files: Iterable[str]) -> str:
        """Changes when a file of this very source is touched; empty where files cannot change."""
        return ""

    def open(self, file: str) -> ByteFile:
        """A file of weights; the same object for the same name."""
        with self._lock:
            if file not in self._opened:
                self._opened[file] = self._open(file)
            return self._opened[file]

    def document(self, file: str, needed: bool = True, fraction: type = Decimal) -> dict[str, Any]:
        """A JSON object; an absent one is {} unless it is needed."""
        data = self.small(file)
        if data is None:
            if needed:
                raise self.missing(file)
            return {}
        document = parse_json(data, self.subject(file), fraction)
        if not isinstance(document, dict):
            raise ConvertError(f"{self.subject(file)}: is not a JSON object; fetch it again")
        return document

    def close(self) -> None:
        """Give handles back."""
        with self._lock:
            for file in self._opened.values():
                file.close()
            self._opened.clear()

    def __enter__(self) -> Source:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class Folder(Source):
    """A folder of a disk."""

    def __init__(self, folder: Path, name: str = "", revision: str = "") -> None:
        super().__init__()
        self.folder = Path(folder)
        if not self.folder.is_dir():
            raise ConvertError(f"{folder}: no such folder; give the folder of a Hugging Face model")
        self.name = name or re.sub(r"\s+", " ", self.folder.resolve().name)
        self.revision = revision

    def __str__(self) -> str:
        return str(self.folder)

    def subject(self, file: str) -> str:
        """See Source."""
        return str(self.folder / file)

    def names(self) -> list[str]:
        """See Source."""
        return sorted(path.name for path in self.folder.iterdir() if path.is_file())

    def small(self, file: str) -> bytes | None:
        """See Source."""
        path = self.folder / file
        try:
            return path.read_bytes() if path.is_file() else None
        except OSError as error:
            raise ConvertError(f"{path}: cannot be read ({error.strerror}); check the folder") from None

    def _open(self, file: str) -> ByteFile:
        return LocalFile(self.folder / file)

    def content(self, files: Iterable[str]) -> str:
        """Sizes and a few blocks of every file: any training changes them all."""
        total = hashlib.sha256()
        for name in sorted(files):
            file = self.open(name)
            total.update(f"{name}\n{file.size}\n".encode())
            last = max(0, file.size - SAMPLE_BYTES)
            for number in range(SAMPLES):
                at = last * number // (SAMPLES - 1)
                total.update(file.read(at, min(SAMPLE_BYTES, file.size - at)))
        return total.hexdigest()

    def stamp(self, files: Iterable[str]) -> str:
        """Sizes and times of the files."""
        found = [(name, (self.folder / name).stat()) for name in sorted(files)]
        text = "\n".join(f"{name} {stat.st_size} {stat.st_mtime_ns}" for name, stat in found)
        return hashlib.sha256(text.encode()).hexdigest()
