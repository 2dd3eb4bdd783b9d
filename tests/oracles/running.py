"""Logits of a blob from the engine in this process, in the form the outside judges want them."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np

from colibri.engine import Limits, Model, Session


class Engine:
    """A blob opened for whole texts: logits of every position, and greedy continuation."""

    def __init__(self, path: Path, kv: str = "f32", batch: int = 16, workers: int = 1) -> None:
        self.model = Model.open(path)
        self.kv, self.batch, self.workers = kv, batch, workers

    def _session(self, context: int) -> Session:
        batch = min(self.batch, context)
        limits = Limits(context=context, batch=batch, logit_rows=batch, kv=self.kv, workers=self.workers)
        return Session(self.model, limits)

    def _feed(self, session: Session, tokens: Sequence[int]) -> np.ndarray:
        rows = []
        for first in range(0, len(tokens), self.batch):
            part = tokens[first : first + self.batch]
            session.feed(part, want="all")
            session.finish()
            rows += [session.logits(index).copy() for index in range(len(part))]
        return np.array(rows)

    def logits(self, tokens: Sequence[int]) -> np.ndarray:
        """float32 [tokens, vocab]."""
        with self._session(len(tokens)) as session:
            return self._feed(session, tokens)

    def run(self, tokens: Sequence[int], count: int) -> tuple[np.ndarray, list[int]]:
        """The logits of the tokens and `count` greedy tokens after them, from the cache."""
        greedy: list[int] = []
        with self._session(len(tokens) + count) as session:
            first = self._feed(session, tokens)
            row = first[-1]
            for _ in range(count):
                greedy.append(int(row.argmax()))
                row = self._feed(session, greedy[-1:])[0]
        return first, greedy
