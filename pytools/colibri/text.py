"""Text in and out of a session: encoding, streaming decoding, stop strings.

The core does the tokenizing; here text becomes bytes and bytes text.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate
from typing import Any

from . import library
from .engine import UNLIMITED, CoreError, Session

PIECE_BYTES = 4096  # room for one token's text; longer ones are refused by the core


def encode(
    session: Session, text: str, *, special: bool = False, bos: bool = False, budget: int = UNLIMITED
) -> list[int]:
    """Token ids of a text. special: recognise special tokens written in it; bos: begin with the bos token."""
    ffi, c, lib = library.ffi(), library.constants(), library.load()
    content = text.encode("utf-8", "surrogateescape")
    flags = c.TEXT_SPECIAL * special + c.TEXT_BOS * bos
    capacity = len(content) + 8
    ids, count = ffi.new("uint32_t[]", capacity), ffi.new("uint32_t *")
    while True:
        status = lib.colibri_encode(session.c, content, len(content), flags, budget, ids, capacity, count)
        if status == c.ERROR_LIMIT and count[0] > capacity:
            capacity = count[0]
            ids = ffi.new("uint32_t[]", capacity)
        elif status == c.ERROR_TEXT_LONG:
            raise CoreError(
                "colibri_encode",
                status,
                f"the text has {len(content)} bytes, the session is planned "
                f"for {session.limits.text_bytes}; plan more with --text-bytes",
            )
        elif status < 0:
            raise CoreError("colibri_encode", status)
        elif status != c.AGAIN:
            return [ids[i] for i in range(count[0])]


class Decoder:
    """Token ids to text, as a stream: never half a character."""

    def __init__(self, session: Session, special: bool = False) -> None:
        self.session = session
        self.flags = library.constants().TEXT_SPECIAL if special else 0
        self.state = library.ffi().new("colibri_decoder *")
        self.out = library.ffi().new("char[]", PIECE_BYTES)
        self.written = library.ffi().new("uint32_t *")

    def push(self, token: int) -> str:
        """The text that this token completes."""
        status = library.load().colibri_decode(
            self.session.c, self.state, token, self.flags, self.out, PIECE_BYTES, self.written
        )
        return self._text("colibri_decode", status)

    def end(self) -> str:
        """What is pending."""
        status = library.load().colibri_decode_end(
            self.session.c, self.state, self.out, PIECE_BYTES, self.written
        )
        return self._text("colibri_decode_end", status)

    def _text(self, call: str, status: int) -> str:
        if status < 0:
            raise CoreError(call, status)
        return bytes(library.ffi().buffer(self.out, self.written[0])).decode("utf-8")


def decode(session: Session, tokens: Sequence[int], special: bool = False) -> str:
    """The text of a whole list of ids."""
    decoder = Decoder(session, special)
    return "".join(decoder.push(token) for token in tokens) + decoder.end()


class StopWatch:
    """Holds text back while it may still turn into a stop string, and cuts it off when it does.

    The core's own matcher. What it holds back begins a stop string, so its cuts never split a character.
    """

    def __init__(self, stops: Sequence[str]) -> None:
        ffi, encoded = library.ffi(), [stop.encode() for stop in stops]
        self._bytes = ffi.from_buffer(b"".join(encoded) or b"\0")
        self._ends = ffi.new("uint32_t[]", list(accumulate(map(len, encoded))) or 1)
        self._set = ffi.new("colibri_stop_set *", {"bytes": self._bytes, "ends": self._ends,
                                                   "count": len(encoded)})
        self._state = ffi.new("colibri_stop_state *")
        self.hit = False

    def push(self, text: str) -> str:
        """Text that can be shown now; `hit` is set when a stop string is complete."""
        piece = text.encode()
        return self._show(library.load().colibri_stop_feed, (piece, len(piece)), len(piece))

    def end(self) -> str:
        """What was held back, at the end of a text without a stop string."""
        return self._show(library.load().colibri_stop_end, (), 0)

    def _show(self, call: Any, piece: tuple[Any, ...], size: int) -> str:
        room = self._state.held + size
        out, written = library.ffi().new("char[]", max(room, 1)), library.ffi().new("uint32_t *")
        status = call(self._set, self._state, *piece, out, room, written)
        if status < 0:
            raise CoreError("colibri_stop", status)
        self.hit = self.hit or status == library.constants().DONE
        return bytes(library.ffi().buffer(out, written[0])).decode("utf-8")
