"""Prompt in, tokens out, in this process: the loop that `run`, `chat` and the row `linux` share.

Feeds the prompt in batches, draws tokens, hashes the logits of every row fed (NUMERICS, digest). Budget,
split, a second sequence or a second session change how it is run and must never change an answer.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from . import library
from .engine import UNLIMITED, Sampling, Session
from .errors import DoesNotFit, UsageError
from .text import Decoder, StopWatch


class Digest:
    """SHA-256 over the little-endian float32 logits of every row, by the core's own hash."""

    def __init__(self) -> None:
        self.state = library.ffi().new("colibri_sha256 *")
        self.rows = 0
        library.load().colibri_sha256_start(self.state)

    def add(self, session: Session, index: int) -> None:
        """The index-th row of the last feed that wanted logits."""
        pointer, size = session.logit_bytes(index)
        if pointer == library.ffi().NULL:
            raise UsageError(f"no logits for row {index}: the session's logit_rows are too few for a digest")
        library.load().colibri_sha256_add(self.state, pointer, size)
        self.rows += 1

    def hex(self) -> str:
        """The digest of the rows so far."""
        copy = library.ffi().new("colibri_sha256 *", self.state[0])
        out = library.ffi().new("uint8_t[32]")
        library.load().colibri_sha256_end(copy, out)
        return bytes(out).hex()


@dataclass
class Request:
    """What to generate, and how it is run."""

    prompt: list[int]
    count: int = 0  # tokens to draw; 0: prompt only
    sampling: Sampling = field(default_factory=Sampling)
    ends: Sequence[int] = ()
    stops: Sequence[str] = ()
    digest: bool = True
    routing: bool = False
    sequence: int = 0
    budget: int = UNLIMITED
    split: int = 0  # rows per feed at most, 0: as many as the plan allows
    cached: int = 0  # tokens of the prompt that are in the cache already
    watch: Callable[[int], None] | None = None  # is told of every feed that has run: how many rows


@dataclass
class Answer:
    """What came out."""

    prompt: list[int]
    tokens: list[int] = field(default_factory=list)
    text: str = ""
    finish: str = "length"  # "stop", "length" or "context"
    digest: str = ""
    rows: int = 0  # hashed
    seconds_prefill: float = 0.0
    seconds_decode: float = 0.0
    routes: list[dict[str, Any]] = field(default_factory=list)


class Lane:
    """One stream of tokens through one sequence of a session."""

    def __init__(self, session: Session, request: Request, show: Callable[[str], None] | None = None) -> None:
        self.session, self.request, self.show = session, request, show
        self.tokens = list(request.prompt)
        self.fed = request.cached
        self.finished = ""
        self.digest = Digest()
        self.answer = Answer(list(request.prompt))
        self.watch = StopWatch(request.stops)
        has_text = session.limits.text_bytes > 0 and session.model.info().tokenizer_bytes > 0
        self.decoder = Decoder(session) if has_text else None
        if len(self.tokens) > session.limits.context:
            raise DoesNotFit(
                f"the prompt has {len(self.tokens)} tokens, the context holds {session.limits.context}; "
                "plan more with --context"
            )
        if not self.tokens:
            raise UsageError("the prompt is empty: nothing to feed")

    def rows(self, most: int) -> list[tuple[int, int, bool]]:
        """The next rows, at most `most`."""
        end = min(len(self.tokens), self.fed + most)
        logits = self.session.limits.logit_rows
        if self.request.digest:
            end = min(end, self.fed + logits)
        return [
            (self.request.sequence, self.tokens[i], self.request.digest or i + 1 == len(self.tokens))
            for i in range(self.fed, end)
        ]

    def harvest(self, rows: Sequence[tuple[int, int, bool]], first_logits: int, first_row: int = 0) -> None:
        """The rows are in the cache: hash, log routes, draw the next token where the lane has caught up."""
        index = first_logits
        newest = -1
        for number, (_, _, wanted) in enumerate(rows):
            if self.request.routing:
                self._log_routes(first_row + number)
            self.fed += 1
            if wanted:
                newest, index = index, index + 1
                if self.request.digest:
                    self.digest.add(self.session, newest)
        if self.fed == len(self.tokens) and not self.finished:
            self._caught_up(newest)

    def _log_routes(self, row: int) -> None:
        """What every router chose for one row of the last feed."""
        for layer in range(self.session.model.info().layers):
            chosen = self.session.routing(layer, row)
            if chosen:
                self.answer.routes.append(
                    {
                        "position": self.fed,
                        "layer": layer,
                        "experts": [e for e, _ in chosen],
                        "weights": [w for _, w in chosen],
                    }
                )

    def _caught_up(self, logits: int) -> None:
        if self.request.count == 0:
            self._end("length")
        elif len(self.tokens) == self.session.limits.context:
            self._end("context")
        else:
            self._draw(logits)

    def _draw(self, logits: int) -> None:
        token = self.session.sample(
            self.request.sampling,
            logits,
            recent=self.tokens,
            sequence=self.request.sequence,
            position=len(self.tokens),
        )
        self.tokens.append(token)
        self.answer.tokens.append(token)
        if token in self.request.ends:
            self._end("stop")
            return
        if self.decoder:
            self._show(self.watch.push(self.decoder.push(token)))
        if self.watch.hit:
            self._end("stop")
        elif len(self.answer.tokens) == self.request.count:
            self._end("length")
        elif len(self.tokens) == self.session.limits.context:
            self._end("context")

    def _show(self, text: str) -> None:
        self.answer.text += text
        if text and self.show:
            self.show(text)

    def _end(self, finish: str) -> None:
        if self.decoder and not self.watch.hit:
            self._show(self.watch.push(self.decoder.end()))
            if not self.watch.hit:
                self._show(self.watch.end())
        self.finished = finish
        self.answer.finish = finish
        if self.request.digest:
            self.answer.digest = self.digest.hex()
            self.answer.rows = self.digest.rows


def generate(session: Session, request: Request, show: Callable[[str], None] | None = None) -> Answer:
    """Run one request in one sequence; `show` gets text as it comes."""
    lane = Lane(session, request, show)
    most = min(request.split or session.limits.batch, session.limits.batch)
    begun = time.perf_counter()
    prefilled = begun
    while not lane.finished:
        rows = lane.rows(most)
        session.feed_rows(rows)
        session.finish(request.budget)
        if request.watch:
            request.watch(len(rows))
        lane.harvest(rows, 0)
        if lane.fed == len(request.prompt):
            prefilled = time.perf_counter()
    lane.answer.seconds_prefill = prefilled - begun
    lane.answer.seconds_decode = time.perf_counter() - prefilled
    return lane.answer
