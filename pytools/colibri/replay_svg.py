"""Hit rate against slots as a picture, one line a policy; readable on light and dark pages."""

from __future__ import annotations

from html import escape
from typing import Any

from .draw import COLOURS

WIDTH, HEIGHT = 760, 440
LEFT, RIGHT, TOP, BOTTOM = 70, 150, 60, 60


def hit_rate_svg(document: dict[str, Any]) -> str:
    """The rows of a replay document."""
    rows = document["rows"]
    most = max(document["experts"], 1)

    def x(slots: float) -> float:
        return LEFT + (WIDTH - LEFT - RIGHT) * slots / most

    def y(rate: float) -> float:
        return HEIGHT - BOTTOM - (HEIGHT - TOP - BOTTOM) * rate

    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" width="{WIDTH}" height="{HEIGHT}" '
        'font-family="sans-serif" font-size="12" fill="#111111">',
        f"<title>{escape(document['trace'])}: hit rate against slots</title>",
        f'<rect width="{WIDTH}" height="{HEIGHT}" rx="6" fill="#ffffff"/>',
        f'<text x="{LEFT}" y="26" font-size="16">{escape(document["trace"])}: hit rate against slots</text>',
        f'<text x="{LEFT}" y="44" fill="#555555">{document["rows_fed"]:,} rows in {document["feeds"]:,} feeds, '
        f"{document['experts']:,} experts, {document['needs']:,} needs</text>",
    ]
    for step in range(5):
        share = step / 4
        parts.append(f'<line x1="{LEFT}" y1="{y(share):.1f}" x2="{x(most):.1f}" y2="{y(share):.1f}" stroke="#dddddd"/>')
        parts.append(f'<text x="{LEFT - 8}" y="{y(share) + 4:.1f}" text-anchor="end">{share:.0%}</text>')
        parts.append(f'<text x="{x(most * share):.1f}" y="{HEIGHT - BOTTOM + 18}" text-anchor="middle">'
                     f"{most * share:.0f}</text>")
    parts.append(f'<text x="{(LEFT + x(most)) / 2:.0f}" y="{HEIGHT - 18}" text-anchor="middle" fill="#555555">'
                 "expert slots</text>")
    for number, name in enumerate(rows[0]["hit_rate"]) if rows else []:
        colour = COLOURS[number % len(COLOURS)]
        points = " ".join(f"{x(row['slots']):.1f},{y(row['hit_rate'][name]):.1f}" for row in rows)
        parts.append(f'<polyline points="{points}" fill="none" stroke="{colour}" stroke-width="2"/>')
        if len(rows) == 1:
            parts.append(f'<circle cx="{x(rows[0]["slots"]):.1f}" cy="{y(rows[0]["hit_rate"][name]):.1f}" r="4" '
                         f'fill="{colour}"/>')
        line = TOP + 14 + 20 * number
        parts.append(f'<line x1="{WIDTH - RIGHT + 20}" y1="{line - 4}" x2="{WIDTH - RIGHT + 40}" y2="{line - 4}" '
                     f'stroke="{colour}" stroke-width="2"/>')
        parts.append(f'<text x="{WIDTH - RIGHT + 47}" y="{line}">{escape(name)}</text>')
    return "\n".join([*parts, "</svg>"]) + "\n"
