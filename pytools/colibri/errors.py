"""What can go wrong, as types with an exit code; one clear sentence each.

A sentence names the file, the field, what was expected, what was found, and what to do about it.
"""

from __future__ import annotations

from dataclasses import dataclass


class ColibriError(Exception):
    """Base of all errors that the command line prints as one sentence."""

    exit_code = 70


class UsageError(ColibriError):
    """The options contradict each other or name something that does not exist."""

    exit_code = 2


class InputError(ColibriError):
    """A file given by the user is not what it should be."""

    exit_code = 3


class ConvertError(InputError):
    """A checkpoint cannot be converted."""


class MissingTool(ColibriError):
    """A target or a tool is not here; the sentence says how to get it."""

    exit_code = 4


class Unreachable(MissingTool):
    """What is needed lies behind a network that is not there now; work that was begun can go on later."""


class DoesNotFit(ColibriError):
    """Not enough memory or disk space for what was asked."""

    exit_code = 5


class InternalError(ColibriError):
    """Our bug."""

    exit_code = 70


@dataclass(frozen=True)
class Detail:
    """A colibri_detail with its numbers turned into the header's names."""

    status: str = "FORMAT"
    section: str = ""
    field: str = ""
    index: int = 0
    offset: int = 0
    expected: int = 0
    found: int = 0
    name: str = ""  # of the key that was found


_AGAIN = "the file is damaged or was cut short: copy it again or convert it again"
_REMEDIES = {
    "MAGIC": "it is not a Colibri blob: make one with `colibri convert`",
    "VERSION": "this build cannot read it: use the matching Colibri or convert the checkpoint again",
    "TRUNCATED": _AGAIN,
    "CORRUPT": _AGAIN,
    "FORMAT": "the tool that wrote it contradicts itself: convert the checkpoint again",
    "UNSUPPORTED": "this build cannot run it: use a newer Colibri",
    "UNKNOWN_SECTION": "it needs a newer Colibri",
    "UNKNOWN_KEY": "it needs a newer Colibri",
    "CONTENT": _AGAIN,
    "OVERFLOW": "no file is that big: " + _AGAIN,
    "ADDRESS": "it lies beyond what this target can address: use a smaller model or a 64-bit target",
    "ALIGN": "place the blob at a multiple of 64 bytes",
}
# What a checksum or content fault counts; elsewhere a number may as well be a record or a section's place.
_NOUNS = {"TENSORS": "tensor", "RESIDENT": "section", "EXPERTS": "expert"}
_HEXADECIMAL = {"MAGIC", "CRC", "FLAGS", "SCALE", "DIGEST", "IDENTITY"}


def detail_sentence(subject: str, detail: Detail) -> str:
    """One sentence for one detail; `subject` is the file or the thing the numbers are about."""
    status = detail.status.removeprefix("ERROR_")
    where = []
    if detail.section:
        where.append(f"section {detail.section}")
    if detail.section or detail.index:
        noun = _NOUNS.get(detail.section, "entry") if status in {"CORRUPT", "CONTENT"} else "entry"
        where.append(f"{noun} {detail.index}")
    if detail.field and detail.field != "NONE":
        where.append(f"field {detail.field}")
    if detail.offset:
        where.append(f"at byte {detail.offset}")
    place = ", ".join(where) or "header"
    form = "#x" if detail.field in _HEXADECIMAL else "d"
    if detail.field == "MISSING":
        numbers = "what must be there is missing"
    elif detail.name and status == "FORMAT":
        numbers = f"{detail.name} has no place beside what else is said there"
    elif detail.field == "DUPLICATE":
        numbers = "it is there twice"
    elif status == "CONTENT":
        numbers = f"tile {detail.found} breaks the format's contract"
    elif detail.field in {"DIGEST", "IDENTITY"} and detail.expected == detail.found:
        numbers = "the checksum does not match"
    else:
        numbers = f"expected {detail.expected:{form}}, found {detail.found:{form}}"
    remedy = _REMEDIES.get(status, f"status {status}")
    return f"{subject}: {place}: {numbers}; {remedy}"


class BlobError(InputError):
    """A blob was refused; `detail` holds the core's numbers by name."""

    def __init__(self, path: object, detail: Detail, sentence: str = "") -> None:
        self.path = str(path)
        self.detail = detail
        super().__init__(sentence or detail_sentence(self.path, detail))
