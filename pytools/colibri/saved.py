"""A session's texts as bytes, and as a file beside their token ids. The core does the work."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from . import library
from .errors import Detail, InputError
from .limits import KV_KINDS
from .strict_json import parse_json
from .written import write_whole

if TYPE_CHECKING:
    from .engine import Session

STEP = 64 << 20  # bytes of one call
FIRST = b"colibri session 1 "  # of a file; then the CRC32C of all that follows the line, as 8 hex digits


def state_of(session: Session, logits: bool) -> bytearray:
    """The state as bytes, in memory of their own."""
    ffi, c = library.ffi(), library.constants()
    flags = c.SAVE_LOGITS if logits else 0
    made, detail = bytearray(library.load().colibri_save_bytes(session.c, flags)), ffi.new("colibri_detail *")
    room = ffi.from_buffer(made) if made else ffi.new("char[1]")  # an error all the same
    while (status := session._run(library.load().colibri_save, session.c, flags, room, len(made), STEP, detail)) > 0:
        if status == c.DONE:
            return made
    raise _refusal(session, "colibri_save", status, detail, "the session")


def put_back(session: Session, data: Any, subject: str = "the saved state") -> None:
    """Restore; what is refused changes nothing."""
    ffi, c = library.ffi(), library.constants()
    detail, kept = ffi.new("colibri_detail *"), ffi.from_buffer(data)
    room = kept if len(kept) else ffi.new("char[1]")
    while (status := session._run(library.load().colibri_restore, session.c, room, len(kept), STEP, detail)) > 0:
        if status == c.DONE:
            return
    raise _refusal(session, "colibri_restore", status, detail, subject)


def _refusal(session: Session, call: str, status: int, detail: Any, subject: str) -> Exception:
    from .engine import SaveError

    named = library.detail_of(detail)
    return SaveError(call, status, named, sentence_of(session, named, subject))


def sentence_of(session: Session, detail: Detail, subject: str) -> str:
    """Why a save or a restore was refused, and what to do."""
    expected, found = detail.expected, detail.found
    match detail.status.removeprefix("ERROR_"):
        case "MAGIC":
            return f"{subject}: not a saved session (it begins with {found:#x}, expected {expected:#x})"
        case "VERSION":
            return f"{subject}: saved in form {found}, this Colibri reads {expected}; save it again with this one"
        case "TRUNCATED" | "FORMAT" if detail.field == "BYTES":
            return f"{subject}: expected {expected} bytes, found {found}; it was cut short or added to: copy it again"
        case "CORRUPT":
            return f"{subject}: the checksum is {found:#x}, expected {expected:#x}; it is damaged: copy it again"
        case "IDENTITY":
            here, there = (number.to_bytes(8, "little").hex() for number in (expected, found))
            return (
                f"{subject}: saved under identity {there}..., this session's is {here}...; open the same file and "
                "replace the same experts first"
            )
        case "LIMIT" if detail.field == "KV_KIND":
            names = [KV_KINDS[number] if number < len(KV_KINDS) else str(number) for number in (found, expected)]
            return f"{subject}: saved with KV cache {names[0]}, this session has {names[1]}; plan it with {names[0]}"
        case "LIMIT" if detail.field in ("CONTEXT", "SEQUENCES", "LOGIT_ROWS"):
            return f"{subject}: needs {detail.field.lower()} {found}, this session has {expected}; plan more"
        case "LIMIT" if detail.field in ("TOP_K", "SKIP"):
            option = "--experts-per-token" if detail.field == "TOP_K" else "--skip-below"
            return f"{subject}: saved with another {option} ({detail.field.lower()}); give the same one as then"
        case "BUSY":
            return "a session is saved and restored between feeds only: finish what is fed first"
    return f"{subject}: refused, field {detail.field}, expected {expected}, found {found} ({detail.status})"


# ---- files ----


@dataclass
class Saved:
    """A file's content: all token ids of sequence 0, those not fed yet too, a chat's messages, and the state."""

    ids: list[int]
    messages: list[dict[str, str]] = field(default_factory=list)
    state: Any = b""


def crc_of(parts: list[Any]) -> int:
    """CRC32C over all of them."""
    crc = 0
    for part in parts:
        crc = library.load().colibri_crc32c(crc, library.ffi().from_buffer(part), len(part))
    return crc


def write_file(path: Path, session: Session, ids: list[int], messages: list[dict[str, str]]) -> int:
    """Save a session; the file is there when it is whole, and until then the old one. Returns its bytes."""
    text = json.dumps({"ids": ids, "messages": messages}).encode() + b"\n"
    parts = [text, state_of(session, False)]
    parts = [FIRST + b"%08x\n" % crc_of(parts), *parts]
    write_whole(path, parts)
    return sum(map(len, parts))


def read_file(path: Path, vocab: int) -> Saved:
    """A file of write_file, every byte vouched for; what its state is of, the core judges."""
    try:
        data = memoryview(path.read_bytes())
    except OSError as error:
        raise InputError(f"{path}: cannot be read ({error.strerror}); give a file made with --save") from None
    end = len(FIRST) + 9
    if bytes(data[: len(FIRST)]) != FIRST or len(data) < end:
        raise InputError(f"{path}: not a saved session; give a file made with --save")
    found = b"%08x\n" % crc_of([data[end:]])
    if bytes(data[len(FIRST) : end]) != found:
        raise InputError(f"{path}: the checksum does not match; the file is damaged or was cut short: copy it again")
    text = bytes(data[end:]).split(b"\n", 1)[0]
    content = parse_json(text, str(path))
    ids, messages = content.get("ids"), content.get("messages")
    good = isinstance(ids, list) and all(type(token) is int and 0 <= token < vocab for token in ids)
    good = good and isinstance(messages, list) and all(isinstance(message, dict) for message in messages)
    if not good:
        raise InputError(f"{path}: its token ids or messages are none of this model; restore it with its own model")
    return Saved(ids, messages, data[end + len(text) + 1 :])


def restore_file(path: Path, session: Session) -> Saved:
    """Read a file and restore it."""
    saved = read_file(path, session.vocab)
    put_back(session, saved.state, str(path))
    if session.length() > len(saved.ids):
        session.reset()
        raise InputError(f"{path}: has {len(saved.ids)} token ids for {session.length()} positions; save it again")
    return saved
