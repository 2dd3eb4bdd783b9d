"""`colibri replay`: a recorded trace through all policies of the slots, and the clairvoyant optimum."""

from __future__ import annotations

import argparse
from pathlib import Path

from .. import replay, trace
from ..limits import POLICIES
from ..output import Output
from ..replay_svg import hit_rate_svg
from ..written import write_whole

EXAMPLES = (
    "colibri replay story.trace",
    "colibri replay story.trace --slots 10% --slots 25% --slots 50% --json --svg hits.svg",
)


def arguments(parser: argparse.ArgumentParser) -> None:
    """Options."""
    parser.add_argument("trace", type=Path, metavar="TRACE", help="a file of `colibri run --trace`")
    parser.add_argument(
        "--slots",
        action="append",
        default=[],
        metavar="N",
        help="expert slots, or a share of all experts such as 25%%; may be repeated (default: twelve steps up to all)",
    )
    parser.add_argument("--svg", type=Path, metavar="FILE", help="draw the hit rates against the slots")


def run(options: argparse.Namespace, output: Output) -> int:
    """Replay and print."""
    recorded = trace.read(options.trace)
    rows = replay.table(recorded, replay.slot_counts(recorded, options.slots))
    document = {
        "trace": options.trace.name,
        "model": recorded.model,
        "default": POLICIES[0],
        "experts": recorded.experts,
        "window": recorded.window,
        "feeds": len(recorded.feeds),
        "rows_fed": recorded.rows,
        "needs": int(recorded.uses().sum()),
        "rows": rows,
    }
    if options.svg:
        write_whole(options.svg, [hit_rate_svg(document).encode()])
        output.note(f"{options.svg}: written")
    output.document(document)
    names = [*POLICIES, *replay.OTHERS]
    output.result(
        f"{recorded.rows:,} rows in {len(recorded.feeds):,} feeds, {recorded.experts:,} experts; hit rates "
        f"({POLICIES[0]} is the default, pins are those of hindsight, the optimum knows the future)"
    )
    output.result(f"{'slots':>8}  " + "  ".join(f"{name:>8}" for name in names) + "  of optimum")
    for row in rows:
        rates = "  ".join(f"{row['hit_rate'][name]:8.3f}" for name in names)
        output.result(f"{row['slots']:8,}  {rates}  {row['share_of_optimum']:10.3f}")
    return 0
