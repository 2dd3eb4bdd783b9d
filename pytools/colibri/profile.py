"""Where the time of a conversion goes: seconds per stage, added up over all threads.

"texts" is the tokenizer with its Unicode tables, made once before the weights; "calibration", where there is
one, comes after them.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager

STAGES = ("texts", "read", "widen", "pack", "write", "sums")


class Profile:
    """Seconds per stage; `with profile("read"):` counts, from any thread."""

    def __init__(self) -> None:
        self.seconds = dict.fromkeys(STAGES, 0.0)
        self.source_bytes = 0
        self._lock = threading.Lock()
        self._start = time.perf_counter()
        self.wall = 0.0

    @contextmanager
    def __call__(self, stage: str) -> Iterator[None]:
        start = time.perf_counter()
        try:
            yield
        finally:
            passed = time.perf_counter() - start
            with self._lock:
                self.seconds[stage] = self.seconds.get(stage, 0.0) + passed

    def count(self, source_bytes: int) -> None:
        """Bytes of the checkpoint that are done."""
        with self._lock:
            self.source_bytes += source_bytes

    def stop(self) -> None:
        """The work is over."""
        self.wall = time.perf_counter() - self._start

    @property
    def gigabytes_per_minute(self) -> float:
        """Of the checkpoint."""
        return self.source_bytes / 1e9 / self.wall * 60 if self.wall else 0.0

    @property
    def bound(self) -> str:
        """The stage that took most."""
        return max(self.seconds, key=lambda stage: self.seconds[stage])

    def document(self) -> dict[str, object]:
        """For --json."""
        return {
            "source_bytes": self.source_bytes,
            "seconds": round(self.wall, 3),
            "thread_seconds": {stage: round(value, 3) for stage, value in self.seconds.items()},
            "bound": self.bound,
            "gigabytes_per_minute": round(self.gigabytes_per_minute, 3),
        }

    def sentence(self) -> str:
        """For people."""
        stages = ", ".join(f"{stage} {value:.1f}" for stage, value in self.seconds.items())
        return (
            f"{self.source_bytes / 1e9:.3f} GB of checkpoint in {self.wall:.1f} s, "
            f"{self.gigabytes_per_minute:.2f} GB a minute; thread seconds: {stages}; bound by: {self.bound}"
        )
