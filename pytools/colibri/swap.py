"""Experts of a running session replaced by those of another file, and the log of it. The core does the work."""

from __future__ import annotations

import weakref
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

from . import library
from .errors import InputError, detail_sentence

if TYPE_CHECKING:
    from .engine import Model, Session

STEP = 1 << 20  # bytes of one call: what a step may cost beside tokens


@dataclass(frozen=True)
class Entry:
    """One line of the log."""

    row: int  # rows the session had finished when it was asked for
    layer: int
    expert: int
    source: str  # the file and expert it came from; empty: the file's own came back
    crc: int
    identity: str  # of the session from then on


def expert_of(model: Model, layer: int, expert: int) -> Any:
    """colibri_expert of a file, its run addressed."""
    ffi = library.ffi()
    made = ffi.new("colibri_expert *")
    made.struct_bytes = ffi.sizeof("colibri_expert")
    if library.load().colibri_expert_of(model.c, layer, expert, made) < 0:
        raise InputError(f"{model.path}: no routed expert {expert} in layer {layer}; `colibri info` says how many")
    made.run = ffi.cast("const void *", model.address + made.offset)
    return made


class Swaps:
    """A session's exchanges."""

    def __init__(self, session: Session) -> None:
        self.session: Session = weakref.proxy(session)      # which owns this
        self.log: list[Entry] = []

    def identity(self) -> str:
        """Of what the next feed runs."""
        out = library.ffi().new("uint8_t[32]")
        self.session._call("colibri_identity", self.session.c, out)
        return bytes(out).hex()

    def current(self) -> list[tuple[int, int, int]]:
        """Layer, expert and CRC32C of the experts in others' places."""
        ffi, lib = library.ffi(), library.load()
        count = lib.colibri_swapped(self.session.c, ffi.NULL, 0)
        out = ffi.new("colibri_expert[]", max(count, 1))
        lib.colibri_swapped(self.session.c, out, count)
        return [(entry.layer, entry.expert, entry.crc) for entry in out[0:count]]

    def put(self, layer: int, expert: int, source: Model, at: tuple[int, int] | None = None) -> str:
        """Replace an expert by that of another file (the one in the same place, or `at`); the identity from then on."""
        run = expert_of(source, *(at or (layer, expert)))
        while not self.step(layer, expert, run, source):
            pass
        return self._note(layer, expert, f"{source.path} {run.layer}:{run.expert}" if at else str(source.path), run.crc)

    def step(self, layer: int, expert: int, run: Any, source: Model | None = None, budget: int = STEP) -> bool:
        """A bounded piece of the way there; True when it is done. A refusal changes nothing."""
        c, ffi = library.constants(), library.ffi()
        made = ffi.new("colibri_expert *", run[0])
        made.layer, made.expert = layer, expert
        detail = ffi.new("colibri_detail *")
        status = self.session._run(library.load().colibri_swap_expert, self.session.c, made, budget, detail)
        if status < 0:
            raise self._refusal(status, detail, layer, expert, source)
        return bool(status != c.AGAIN)

    def back(self, layer: int, expert: int) -> str:
        """The file's own expert again; the identity from then on."""
        run = expert_of(self.session.model, layer, expert)
        run.run = library.ffi().NULL
        self.step(layer, expert, run)
        return self._note(layer, expert, "", run.crc)

    def document(self) -> list[dict[str, Any]]:
        """The log as JSON."""
        return [asdict(entry) for entry in self.log]

    def _note(self, layer: int, expert: int, source: str, crc: int) -> str:
        identity = self.identity()
        self.log.append(Entry(int(self.session.stats().rows), layer, expert, source, crc, identity))
        return identity

    def _refusal(self, status: int, detail: Any, layer: int, expert: int, source: Model | None) -> Exception:
        from .engine import CoreError

        what = f"{source.path if source else self.session.model.path}: expert {expert} of layer {layer} stays as it is"
        if detail.status != status:                 # a status without a detail
            return CoreError("colibri_swap_expert", status)
        return CoreError("colibri_swap_expert", status, detail_sentence(what, library.detail_of(detail)))
