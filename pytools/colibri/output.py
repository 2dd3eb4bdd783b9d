"""Where a command's words go: results to stdout, progress and logs to stderr.

Owns verbosity, colour and the shape of JSON documents. Knows no command.
"""

from __future__ import annotations

import json
import os
import re
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

SCHEMA = 1  # of every JSON document; raised when a field changes its meaning


class Output:
    """One run's view of the two streams."""

    def __init__(self, as_json: bool = False, verbosity: int = 0) -> None:
        self.as_json = as_json
        self.verbosity = verbosity  # -1 quiet, 0 normal, 1 verbose, 2 with tracebacks

    def result(self, text: str) -> None:
        """A line of the answer for people; nothing under --json."""
        if not self.as_json:
            print(text, flush=True)

    def piece(self, text: str) -> None:
        """A piece of streamed text for people; nothing under --json."""
        if not self.as_json:
            sys.stdout.write(text)
            sys.stdout.flush()

    def document(self, values: dict[str, Any]) -> None:
        """The one JSON document of --json; nothing without it."""
        if self.as_json:
            text = json.dumps({"schema": SCHEMA, **values}, ensure_ascii=False, indent=2)
            # lists of numbers on one line; a raw line break cannot stand inside a JSON string
            text = re.sub(
                r"\[\n\s*(-?[\d.e+-]+(?:,\n\s*-?[\d.e+-]+)*)\n\s*\]",
                lambda found: "[" + re.sub(r",\n\s*", ", ", found[1]) + "]",
                text,
            )
            sys.stdout.write(text + "\n")
            sys.stdout.flush()

    def line(self, values: dict[str, Any]) -> None:
        """The JSON document of --json on one line, for programs that read the last one."""
        if self.as_json:
            print(json.dumps({"schema": SCHEMA, **values}, ensure_ascii=False), flush=True)

    def note(self, text: str) -> None:
        """A remark to the side, silenced by -q."""
        if self.verbosity >= 0:
            print(text, file=sys.stderr, flush=True)

    def detail(self, text: str) -> None:
        """A remark only -v shows."""
        if self.verbosity >= 1:
            print(text, file=sys.stderr, flush=True)

    @contextmanager
    def progress(self, what: str) -> Iterator[Callable[[int, int], None]]:
        """A bar on a terminal, nothing elsewhere. Yields report(done, total)."""
        if self.verbosity < 0 or not sys.stderr.isatty():
            yield lambda done, total: None
            return
        from rich.console import Console
        from rich.progress import Progress

        console = Console(stderr=True, no_color="NO_COLOR" in os.environ or None)
        with Progress(console=console, transient=True) as bars:
            task = bars.add_task(what, total=None)
            yield lambda done, total: bars.update(task, completed=done, total=total)

    def warm(self, text: str) -> str:
        """Emphasis where stdout is a terminal that wants colour."""
        plain = self.as_json or "NO_COLOR" in os.environ or not sys.stdout.isatty()
        return text if plain else f"\033[1m{text}\033[0m"


def table(rows: list[list[str]], right: frozenset[int] | set[int] = frozenset()) -> str:
    """Columns padded to their widest cell; the first row is the heading, `right` are right-aligned
    columns."""
    widths = [max(len(row[i]) for row in rows) for i in range(len(rows[0]))]
    lines = []
    for row in rows:
        cells = [cell.rjust(widths[i]) if i in right else cell.ljust(widths[i]) for i, cell in enumerate(row)]
        lines.append("  ".join(cells).rstrip())
    lines.insert(1, "  ".join("-" * width for width in widths))
    return "\n".join(lines)


def bytes_text(count: int) -> str:
    """A number of bytes for people: exact below 10 KiB, else with one decimal."""
    if count < 10240:
        return f"{count} B"
    value = float(count)
    for unit in ("KiB", "MiB", "GiB", "TiB"):
        value /= 1024
        if value < 1024 or unit == "TiB":
            break
    return f"{value:.1f} {unit}"
