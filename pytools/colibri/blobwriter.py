"""Writing a blob: strips at their final places in any order, sums and tables last; then renamed.

The bytes depend on the description, the weights and the texts alone, never on the host, the strip size, the
number of threads, or on interruptions.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from . import strips
from .blobfile import BlobFile
from .description import Model
from .errors import ColibriError, InputError
from .format import Kinds, Layout
from .journal import Journal
from .library import ffi
from .seal import seal
from .strips import PackedSource, WeightSource, pack_strip, strips_of
from .tables import Sum, tables
from .unfinished import Unfinished, Work, said_plainly

# May change numbers of the description when the weights are in place, in the file named.
Settle = Callable[[Path, Model], None]


@dataclass(frozen=True)
class Written:
    """A finished blob."""

    path: Path
    identity: str
    file_bytes: int
    layout: Layout


def blank_tables(layout: Layout) -> bytes:
    """Header and tables as they are before there are sums."""
    return tables(layout, {}, [Sum() for run in layout.runs for _ in range(run.experts)])


def tables_only(model: Model, kinds: Kinds) -> tuple[bytes, int]:
    """Header and tables of a blob whose weights are not there, and its size: enough for open and plan."""
    layout = Layout(model, kinds, {})
    return blank_tables(layout), layout.file_bytes


def head_of(layout: Layout, about: dict[str, Any]) -> dict[str, Any]:
    """What a journal and the parts of a blob compare: what went in, and everything but the weights."""
    total = hashlib.sha256(blank_tables(layout))
    for name, data in layout.texts.items():
        total.update(f"{name} {len(data)}\n".encode() + data)
    return {**about, "layout": total.hexdigest(), "strip bytes": strips.STRIP_BYTES}


def check_target(output: Path, overwrite: bool) -> None:
    """A folder that is there, a name that is free."""
    if not output.parent.is_dir():
        raise InputError(f"{output.parent}: no such folder; make it first")
    if output.is_dir():
        raise InputError(f"{output}: is a folder; give the name of a file")
    if output.exists() and not overwrite:
        raise InputError(
            f"{output}: exists already ({_what_is(output)}); choose another name or give --overwrite"
        )


def _what_is(path: Path) -> str:
    try:
        source = BlobFile(path).provenance().get("source")
    except ColibriError:
        return "and is no blob of this version"
    return f"a blob made of {source}" if source else "a blob"


def _finished(output: Path, head: dict[str, Any] | None) -> str:
    """The identity, if the last run was interrupted between its renaming and its end."""
    path = Unfinished.journal_path(output)
    if head is None or not output.exists() or not path.exists():
        return ""
    journal = Journal(path)
    try:
        if journal.head == head and journal.identity and BlobFile(output).identity == journal.identity:
            journal.remove()
            return journal.identity
    except ColibriError:
        pass
    finally:
        journal.close()
    return ""


def write_blob(
    output: Path,
    model: Model,
    kinds: Kinds,
    source: WeightSource | PackedSource,
    texts: dict[str, bytes] | None = None,
    overwrite: bool = False,
    about: dict[str, Any] | None = None,
    work: Work | None = None,
    settle: Settle | None = None,
) -> Written:
    """Write a blob; `output` appears only when it is complete.

    `about` says what the weights and texts were made of; with it the work is journalled, and a second run
    goes on where the first was interrupted.
    """
    output, work, layout = Path(output), work or Work(), Layout(model, kinds, texts or {})
    head = head_of(layout, about) if about is not None else None
    if identity := _finished(output, head):
        return Written(output, identity, layout.file_bytes, layout)
    check_target(output, overwrite)
    return fill_and_seal(output, layout, head, lambda strip: pack_strip(source, strip, work.profile), work, settle)


def fill_and_seal(
    output: Path, layout: Layout, head: Any, make: Any, work: Work, settle: Settle | None = None
) -> Written:
    """All strips from `make`, then the sums, then what only the weights can tell."""
    with Unfinished(output, head, (0, layout.file_bytes), strips_of(layout), work) as part:
        part.fill(make)
        with work.profile("sums"), said_plainly(output):
            write = seal(part.handle, layout, work.threads, lambda d, t: work.progress(d, t, "sums"))
            image = write()
        if settle:
            with work.profile("calibration"):
                settle(part.path, layout.model)
            with said_plainly(output):
                image = write()
        identity = bytes(ffi().from_buffer("colibri_blob_header *", image).identity).hex()
        part.publish(identity)
    return Written(output, identity, layout.file_bytes, layout)
