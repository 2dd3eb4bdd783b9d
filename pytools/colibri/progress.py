"""A bar with rate and remaining time, on a terminal only; NO_COLOR is honoured."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager


@contextmanager
def progress_bar(shown: bool, task: str = "converting") -> Iterator[Callable[[int, int, str], None]]:
    """Yields report(done, total, what): weights done and all of them; what is "sums" in the last pass."""
    if not (shown and sys.stderr.isatty()):
        yield lambda done, total, what: None
        return
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn, TimeRemainingColumn

    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        TaskProgressColumn(),
        TextColumn("{task.fields[rate]}"),
        TimeRemainingColumn(),
        TextColumn("{task.fields[what]}"),
    )
    console = Console(stderr=True, no_color="NO_COLOR" in os.environ or None)
    with Progress(*columns, console=console, transient=True) as bars:
        weights = bars.add_task(task, total=None, rate="", what="")
        sums = None

        def report(done: int, total: int, what: str) -> None:
            nonlocal sums
            if what == "sums":
                if sums is None:
                    sums = bars.add_task("sums", total=total, rate="", what="")
                bars.update(sums, completed=done)
                return
            if not what:  # what was there already is no work of this run
                bars.reset(weights, total=total, completed=done)
            speed = bars.tasks[0].speed
            rate = f"{speed / 1e6:.1f} M weights/s" if speed else ""
            bars.update(weights, completed=done, total=total, rate=rate, what=what)

        yield report
