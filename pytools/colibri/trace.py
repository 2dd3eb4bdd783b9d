"""Traces: which experts the routers chose, feed by feed, layer by layer, row by row.

A trace is a text file of JSON lines. The first line is the header:

    {"trace": 1, "model": IDENTITY, "layers": [[LAYER, EXPERTS, TOP_K, EXPERT_BYTES], ...]}

with one entry for each layer that has routed experts, ascending. Every other line is one feed (rows that ran together):

    [[[EXPERT, ...], ...], ...]         a list for each of those layers, in it a list for each row, experts ascending

Experts are numbered inside their layer. Only what was used is there: not what `--skip-below` left out. 1 is the version
of this format; a reader refuses any other.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from .blobfile import BlobFile
from .engine import Session
from .errors import InputError
from .written import write_whole

VERSION = 1
Feed = list[list[list[int]]]  # [layer with experts][row][choice]


@dataclass(frozen=True)
class ExpertLayer:
    """A layer with routed experts."""

    layer: int
    experts: int
    top_k: int
    expert_bytes: int


@dataclass
class Trace:
    """A whole trace. Experts of all layers are numbered through: `first[i]` is the first one of layers[i]."""

    model: str
    layers: tuple[ExpertLayer, ...]
    feeds: list[Feed] = field(default_factory=list)

    @property
    def experts(self) -> int:
        """Of all layers."""
        return sum(layer.experts for layer in self.layers)

    @property
    def window(self) -> int:
        """The largest top_k: the slots that pins leave free."""
        return max((layer.top_k for layer in self.layers), default=1)

    @property
    def first(self) -> list[int]:
        """Number of each layer's expert 0."""
        made = [0]
        for layer in self.layers:
            made.append(made[-1] + layer.experts)
        return made[:-1]

    @property
    def rows(self) -> int:
        """Of all feeds."""
        return sum(len(feed[0]) for feed in self.feeds if feed)

    def turns(self) -> Iterator[tuple[int, list[int]]]:
        """(index of the layer, its distinct experts, ascending) in the order they are needed."""
        for feed in self.feeds:
            for index, rows in enumerate(feed):
                yield index, sorted({expert for row in rows for expert in row})

    def words(self) -> np.ndarray:
        """All turns as colibri_replay_turns reads them."""
        first, made = self.first, []
        for index, needed in self.turns():
            made += [first[index], self.layers[index].experts, len(needed), *needed]
        return np.array(made, dtype=np.uint32)

    def uses(self) -> np.ndarray:
        """Turns that needed each expert, by its number over all layers."""
        counts, first = np.zeros(self.experts, dtype=np.int64), self.first
        for index, needed in self.turns():
            counts[np.array(needed, dtype=np.int64) + first[index]] += 1
        return counts

    def place(self, number: int) -> tuple[int, int]:
        """(layer, expert) of a number over all layers."""
        index = int(np.searchsorted(self.first, number, side="right")) - 1
        return self.layers[index].layer, number - self.first[index]


def expert_layers(blob: BlobFile, top_k: int = 0) -> tuple[ExpertLayer, ...]:
    """The layers of a file that have routed experts; top_k: of a row at most, 0 = the model's."""
    made = []
    for number, layer in enumerate(blob.model().layers):
        gate = blob.find("EXPERT_GATE", number)
        if gate:
            most = int(layer.top_k or 1)
            made.append(ExpertLayer(number, gate.count, min(most, top_k or most), gate.stride))
    return tuple(made)


def feed_of(session: Session, layers: Sequence[ExpertLayer], rows: int) -> Feed:
    """What the routers chose in the session's last feed."""
    skips = session.limits.skip_below > 0
    return [
        [[e for e, weight in session.routing(layer.layer, row) if weight or not skips] for row in range(rows)]
        for layer in layers
    ]


def write(path: Path, trace: Trace) -> None:
    """A whole trace."""
    write_whole(path, _lines(trace))


def _lines(trace: Trace) -> Iterator[bytes]:
    layers = [[layer.layer, layer.experts, layer.top_k, layer.expert_bytes] for layer in trace.layers]
    lines: Iterable[Any] = [{"trace": VERSION, "model": trace.model, "layers": layers}, *trace.feeds]
    for line in lines:
        yield json.dumps(line, separators=(",", ":")).encode() + b"\n"


def read(path: Path) -> Trace:
    """A trace from its file, every number checked."""
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
        parsed = [json.loads(line) for line in lines]
    except OSError as error:
        raise InputError(f"{path}: cannot be read ({error.strerror}); give a file of `colibri run --trace`") from None
    except ValueError as error:
        raise InputError(f"{path}: not a trace ({error}); give a file of `colibri run --trace`") from None
    trace = Trace(*_header(path, parsed[0] if parsed else None))
    for number, feed in enumerate(parsed[1:], 2):
        _check_feed(path, number, trace, feed)
        trace.feeds.append(feed)
    return trace


def _header(path: Path, head: Any) -> tuple[str, tuple[ExpertLayer, ...]]:
    if not isinstance(head, dict) or head.get("trace") != VERSION:
        found = head.get("trace") if isinstance(head, dict) else None
        raise InputError(f"{path}: line 1: expected a trace of version {VERSION}, found version {found}")
    layers = head.get("layers")
    right = isinstance(layers, list) and all(
        isinstance(row, list) and len(row) == 4 and all(type(n) is int and n >= 0 for n in row) for row in layers
    )
    if not right or not layers or any(row[1] < 1 or not 1 <= row[2] <= row[1] for row in layers):
        raise InputError(f"{path}: line 1: `layers` is not a list of [layer, experts, top_k, expert_bytes]")
    return str(head.get("model", "")), tuple(ExpertLayer(*row) for row in layers)


def _check_feed(path: Path, number: int, trace: Trace, feed: Any) -> None:
    try:
        rows = len(feed[0])
        right = len(feed) == len(trace.layers) and rows > 0
        for layer, chosen in zip(trace.layers, feed, strict=True):
            right &= len(chosen) == rows
            for row in chosen:
                right &= 1 <= len(row) <= layer.top_k and row == sorted(set(row))
                right &= all(type(expert) is int and 0 <= expert < layer.experts for expert in row)
    except (TypeError, IndexError, KeyError, ValueError):
        right = False
    if not right:
        raise InputError(
            f"{path}: line {number}: expected {len(trace.layers)} layers of equally many rows of ascending experts"
        )
