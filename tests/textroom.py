"""The text room's own functions, compiled for tests: tokenizer, sampler and stop strings through cffi.

Only tests may include internal headers. The sources are compiled as they are (gcc, else zig); results through
a session, on every target, are tested elsewhere.
"""

from __future__ import annotations

import functools
import shutil
import subprocess
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import cffi
import pytest
from colibri.library import declarations

CORE = Path(__file__).resolve().parents[1] / "core"
UNLIMITED = 0xFFFFFFFF
OK, DONE, AGAIN = 0, 1, 2
ERROR_LIMIT, ERROR_TEXT_LONG, ERROR_TEXT, ERROR_UNSUPPORTED = -12, -21, -22, -7
SPECIAL, BOS = 1, 2
SPARE = 64  # bytes behind every buffer that must stay as they are
FLAGS = ["-std=c99", "-O2", "-ffp-contract=off", "-fno-math-errno", "-I", str(CORE)]
HEADERS = ("colibri.h", "text/tokenizer_format.h", "text/tokenizer.h", "text/sampler.h", "text/stop.h")


def compiler() -> list[str]:
    """A C compiler of this machine."""
    if shutil.which("gcc"):
        return ["gcc"]
    ziglang = pytest.importorskip("ziglang", reason="neither gcc nor the Python package ziglang is installed")
    return [str(Path(ziglang.__file__).parent / "zig"), "cc"]


def sources() -> list[str]:
    """The text room and what it stands on."""
    return [str(path) for room in ("base", "text") for path in sorted((CORE / room).glob("*.c"))]


@functools.cache
def library() -> tuple[Any, Any]:
    """(ffi, library) of the text room."""
    folder = Path(tempfile.mkdtemp(prefix="colibri-text-"))
    try:
        path = folder / "text.so"
        command = [*compiler(), "-shared", "-fPIC", *FLAGS, "-o", str(path), *sources()]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr
        ffi = cffi.FFI()
        for name in HEADERS:
            ffi.cdef(declarations((CORE / name).read_text(encoding="utf-8")))
        return ffi, ffi.dlopen(str(path))
    finally:
        shutil.rmtree(folder)  # the library stays mapped


class Refused(Exception):
    """A call returned an error: its status, and the number it gave."""

    def __init__(self, status: int, number: int = 0) -> None:
        self.status, self.number = status, number
        super().__init__(f"status {status}, number {number}")


class Tokenizer:
    """One section bound in place."""

    def __init__(self, section: bytes) -> None:
        self.ffi, self.lib = library()
        self.memory = self.ffi.new("uint64_t[]", len(section) // 8 + 1)
        self.ffi.memmove(self.memory, section, len(section))
        self.view = self.ffi.new("colibri_tokenizer *")
        self.detail = self.ffi.new("colibri_detail *")
        status = self.lib.colibri_tokenizer_bind(self.view, self.memory, len(section), self.detail)
        if status != OK:
            raise Refused(status, self.detail.offset)
        self.limit = -1

    def plan(self, limit: int) -> None:
        """Make a scratch for texts of `limit` bytes; what lies behind it is watched."""
        if limit != self.limit:
            self.bytes = self.lib.colibri_tokenizer_scratch(self.view, limit)
            self.scratch = self.ffi.new("uint64_t[]", (self.bytes + SPARE) // 8 + 1)
            self.ffi.buffer(self.scratch)[self.bytes : self.bytes + SPARE] = b"\xa5" * SPARE
            self.limit = limit

    def encode(
        self,
        text: bytes,
        flags: int = SPECIAL,
        budget: int = UNLIMITED,
        limit: int | None = None,
        capacity: int | None = None,
    ) -> list[int]:
        """The ids of a text; self.most is then the most steps of one call, self.steps those of all."""
        self.plan(max(3 * len(text), 256) if limit is None else limit)
        room = 2 * len(text) + 16 if capacity is None else capacity
        ids = self.ffi.new("uint32_t[]", [0xA5A5A5A5] * (room + 1))
        count = self.ffi.new("uint32_t *")
        self.most, self.steps = 0, 0
        while True:
            status = self.lib.colibri_tokenizer_encode(
                self.view, self.scratch, self.limit, text, len(text), flags, budget, ids, room, count
            )
            before, self.steps = self.steps, self.lib.colibri_tokenizer_steps(self.scratch)
            self.most = max(self.most, self.steps - before)
            if status != AGAIN:
                break
        assert self.ffi.buffer(self.scratch)[self.bytes : self.bytes + SPARE] == b"\xa5" * SPARE
        assert ids[room] == 0xA5A5A5A5
        if status != DONE:
            assert all(number == 0xA5A5A5A5 for number in ids), "outputs stay untouched after an error"
            raise Refused(status, count[0])
        return list(ids[0 : count[0]])

    def decode(self, ids: Sequence[int], flags: int = SPECIAL) -> bytes:
        """The text of ids, token by token; every piece must be UTF-8 by itself."""
        room = self.lib.colibri_tokenizer_decode_room(self.view)
        out, written = self.ffi.new("uint8_t[]", room), self.ffi.new("uint32_t *")
        stream = self.ffi.new("colibri_text_stream *")
        pieces = []
        for number in ids:
            status = self.lib.colibri_tokenizer_decode(self.view, stream, number, flags, out, room, written)
            if status != OK:
                raise Refused(status, written[0])
            pieces.append(bytes(self.ffi.buffer(out, written[0])))
        assert self.lib.colibri_tokenizer_decode_end(stream, out, room, written) == OK
        pieces.append(bytes(self.ffi.buffer(out, written[0])))
        for piece in pieces:
            piece.decode("utf-8")
        return b"".join(pieces)
