"""The roofline as a picture: multiply-adds a second over multiply-adds per byte, both logarithmic.

The slope is the memory bandwidth that was read beside the runs; a point on it uses all of it. Text and lines are
dark on a panel of their own, so that they can be read on light and dark pages.
"""

from __future__ import annotations

import math
from html import escape
from typing import Any

from .draw import COLOURS

WIDTH, HEIGHT = 820, 520
LEFT, RIGHT, TOP, BOTTOM = 80, 250, 60, 60
PLAIN = "#555555"


class Axis:
    """Decades along one side."""

    def __init__(self, values: list[float], start: float, end: float) -> None:
        self.low = math.floor(math.log10(min(values)) - 0.05)
        self.high = max(self.low + 1, math.ceil(math.log10(max(values)) + 0.05))
        self._start, self._step = start, (end - start) / (self.high - self.low)

    def at(self, value: float) -> float:
        """Where a value lies."""
        return self._start + self._step * (math.log10(value) - self.low)

    @property
    def ticks(self) -> list[float]:
        """Powers of ten."""
        return [10.0**power for power in range(self.low, self.high + 1)]


def intensity(row: dict[str, Any]) -> float:
    """Multiply-adds per byte."""
    return float(row["macs_per_token"] / row["bytes_per_token"])


def roofline_svg(document: dict[str, Any]) -> str:
    """All rows of a bench document as points, one slope for every number of workers."""
    rows = [row for row in document["rows"] if row["gmacs"] and row["bytes_per_token"]]
    slopes = {row["threads"]: row["bandwidth"] for row in rows if row.get("bandwidth")}
    across = Axis([intensity(row) for row in rows] or [1.0], LEFT, WIDTH - RIGHT)
    reached = [row["gmacs"] for row in rows]
    roofs = [slopes[row["threads"]] * intensity(row) for row in rows if row["threads"] in slopes]
    up = Axis(reached + roofs or [1.0], HEIGHT - BOTTOM, TOP)
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" width="{WIDTH}" height="{HEIGHT}" '
        f'font-family="sans-serif" font-size="12" fill="#111111">',
        f"<title>{escape(document['engine'])}: roofline of {escape(document['model'])}</title>",
        f'<rect width="{WIDTH}" height="{HEIGHT}" rx="6" fill="#ffffff"/>',
        f'<text x="{LEFT}" y="26" font-size="16">{escape(document["model"].split("/")[-1])}: reached, and the '
        "roof of the memory</text>",
        f'<text x="{LEFT}" y="44" fill="{PLAIN}">{escape(document["engine"])}, kernel {escape(document["kernel"])}, '
        f"KV {escape(document['kv'])}; {escape(document.get('processor', ''))}</text>",
        *_grid(across, up),
        *_slopes(slopes, across, up),
        *_points(rows, across, up),
        "</svg>",
    ]
    return "\n".join(parts) + "\n"


def _grid(across: Axis, up: Axis) -> list[str]:
    bottom, right = HEIGHT - BOTTOM, WIDTH - RIGHT
    parts = []
    for value in across.ticks:
        x = across.at(value)
        parts.append(f'<line x1="{x:.1f}" y1="{TOP}" x2="{x:.1f}" y2="{bottom}" stroke="#dddddd"/>')
        parts.append(f'<text x="{x:.1f}" y="{bottom + 18}" text-anchor="middle">{value:g}</text>')
    for value in up.ticks:
        y = up.at(value)
        parts.append(f'<line x1="{LEFT}" y1="{y:.1f}" x2="{right}" y2="{y:.1f}" stroke="#dddddd"/>')
        parts.append(f'<text x="{LEFT - 8}" y="{y + 4:.1f}" text-anchor="end">{value:g}</text>')
    middle = (LEFT + right) / 2
    parts.append(
        f'<text x="{middle:.0f}" y="{bottom + 40}" text-anchor="middle" fill="{PLAIN}">multiply-adds per byte</text>'
    )
    parts.append(
        f'<text transform="translate(22 {(TOP + bottom) / 2:.0f}) rotate(-90)" text-anchor="middle" '
        f'fill="{PLAIN}">1e9 multiply-adds per second</text>'
    )
    return parts


def _slopes(slopes: dict[int, float], across: Axis, up: Axis) -> list[str]:
    """GB/s times multiply-adds per byte, inside the frame."""
    parts = []
    for number, (threads, speed) in enumerate(sorted(slopes.items())):
        colour = COLOURS[number % len(COLOURS)]
        low = max(10.0**across.low, 10.0**up.low / speed)
        high = min(10.0**across.high, 10.0**up.high / speed)
        parts.append(
            f'<line x1="{across.at(low):.1f}" y1="{up.at(low * speed):.1f}" x2="{across.at(high):.1f}" '
            f'y2="{up.at(high * speed):.1f}" stroke="{colour}" stroke-width="2"/>'
        )
        y = TOP + 14 + 20 * number
        parts.append(
            f'<line x1="{WIDTH - RIGHT + 15}" y1="{y - 4}" x2="{WIDTH - RIGHT + 35}" y2="{y - 4}" '
            f'stroke="{colour}" stroke-width="2"/>'
        )
        parts.append(f'<text x="{WIDTH - RIGHT + 42}" y="{y}">{threads} worker(s): {speed:.1f} GB/s</text>')
    return parts


def _points(rows: list[dict[str, Any]], across: Axis, up: Axis) -> list[str]:
    """A letter on every point, explained at the side."""
    parts = []
    threads = sorted({row["threads"] for row in rows})
    for number, row in enumerate(rows):
        x, y = across.at(intensity(row)), up.at(row["gmacs"])
        colour = COLOURS[threads.index(row["threads"]) % len(COLOURS)]
        letter = chr(ord("a") + number % 26)
        share = "" if row.get("share") is None else f", {100 * row['share']:.0f} %"
        text = f"{row['test']}, depth {row['depth']}, {row['threads']}: {row['median']:,.1f}/s{share}"
        parts.append(
            f'<circle cx="{x:.1f}" cy="{y:.1f}" r="4" fill="{colour}"><title>{escape(text)}</title></circle>'
        )
        parts.append(f'<text x="{x + 7:.1f}" y="{y + 4:.1f}">{letter}</text>')
        line = TOP + 70 + 18 * number
        parts.append(f'<text x="{WIDTH - RIGHT + 15}" y="{line}">{letter}  {escape(text)}</text>')
    return parts
