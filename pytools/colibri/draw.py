"""Plans as a picture and as a C header. Draws what the core planned; computes no size."""

from __future__ import annotations

from html import escape

from .engine import Plan
from .output import bytes_text

COLOURS = (
    "#4c78a8",
    "#f58518",
    "#54a24b",
    "#e45756",
    "#72b7b2",
    "#b279a2",
    "#ff9da6",
    "#9d755d",
    "#bab0ac",
    "#eeca3b",
)
WIDTH, BAR, LEFT, TOP, LINE = 760, 420, 250, 60, 22


def plan_svg(plan: Plan, name: str) -> str:
    """The pool as a bar, lowest address at the bottom, one block per region, with a legend."""
    height = TOP + BAR + 40
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{WIDTH}" height="{height}" font-family="sans-serif" '
        'font-size="13">',
        f"<title>{escape(name)}: pool of {plan.pool_bytes} bytes</title>",
        f'<rect width="{WIDTH}" height="{height}" fill="#ffffff"/>',
        f'<text x="20" y="26" font-size="16">{escape(name)}: {plan.pool_bytes:,} bytes of pool</text>',
        f'<text x="20" y="46" fill="#555555">context {plan.limits.context}, batch {plan.limits.batch}, '
        f"{plan.limits.sequences} sequence(s), KV {plan.limits.kv}, known before the program starts</text>",
    ]
    used = [region for region in plan.regions if region.bytes]
    for number, region in enumerate(used):
        top = TOP + BAR * (1 - (region.offset + region.bytes) / plan.pool_bytes)
        tall = BAR * region.bytes / plan.pool_bytes
        colour = COLOURS[number % len(COLOURS)]
        parts.append(
            f'<rect x="20" y="{top:.2f}" width="200" height="{tall:.2f}" fill="{colour}">'
            f"<title>{escape(region.name)}: {region.bytes} bytes</title></rect>"
        )
        y = TOP + 14 + LINE * (len(used) - 1 - number)
        parts.append(f'<rect x="{LEFT}" y="{y - 11}" width="12" height="12" fill="{colour}"/>')
        parts.append(f'<text x="{LEFT + 20}" y="{y}">{escape(region.name)}</text>')
        parts.append(f'<text x="{WIDTH - 130}" y="{y}" text-anchor="end">{region.bytes:,}</text>')
        parts.append(
            f'<text x="{WIDTH - 20}" y="{y}" text-anchor="end" fill="#555555">'
            f"{100 * region.bytes / plan.pool_bytes:.1f} %</text>"
        )
    parts.append(f'<rect x="20" y="{TOP}" width="200" height="{BAR}" fill="none" stroke="#333333"/>')
    y = TOP + 14 + LINE * (len(used) + 1)
    parts.append(
        f'<text x="{LEFT}" y="{y}" fill="#555555">outside the pool: {bytes_text(plan.resident_bytes)} '
        f"resident weights, {bytes_text(plan.expert_bytes)} experts</text>"
    )
    parts.append("</svg>")
    return "\n".join(parts) + "\n"


def c_header(plan: Plan, name: str, identity: str) -> str:
    """A header for firmware: a static pool of exactly the right size, and the limits it was planned for."""
    limits = plan.limits.numbers()
    fields = "".join(f", \\\n      .{key} = {value}u" for key, value in limits.items() if value)
    safe = name.replace("*/", "* /")
    return f"""/* Written by `colibri plan` for {safe}; do not edit.
 *   static unsigned char pool[COLIBRI_PLAN_POOL_BYTES] __attribute__((aligned(COLIBRI_PLAN_ALIGN)));
 *   static const colibri_limits limits = COLIBRI_PLAN_LIMITS;
 * colibri_plan() gives the same number at run time; one byte less is refused. */
#ifndef COLIBRI_PLAN_H
#define COLIBRI_PLAN_H

#define COLIBRI_PLAN_MODEL "{identity}"
#define COLIBRI_PLAN_POOL_BYTES {plan.pool_bytes}u
#define COLIBRI_PLAN_ALIGN {plan.align}u
#define COLIBRI_PLAN_LIMITS \\
    {{ .struct_bytes = sizeof(colibri_limits){fields} }}

#endif
"""
