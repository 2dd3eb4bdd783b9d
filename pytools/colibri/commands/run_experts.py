"""What `colibri run` does about experts: traces, profiles, and the two options that change answers."""

from __future__ import annotations

import argparse
import struct
from pathlib import Path

import numpy as np

from .. import trace as traces
from .. import usage
from ..engine import Session
from ..errors import UsageError
from ..output import Output
from .common import natural


def share(text: str) -> float:
    """A weight, 0 .. 1, as float32."""
    try:
        value = float(text)
    except ValueError:
        raise argparse.ArgumentTypeError(f"expected a number, found {text!r}") from None
    if not 0 <= value <= 1:
        raise argparse.ArgumentTypeError(f"expected 0 .. 1, found {text}")
    return float(struct.unpack("<f", struct.pack("<f", abs(value)))[0])


def expert_options(parser: argparse.ArgumentParser) -> None:
    """Options about experts."""
    parser.add_argument("--trace", type=Path, metavar="FILE", help="record the chosen experts for `colibri replay`")
    parser.add_argument(
        "--profile",
        type=Path,
        metavar="FILE",
        help="keep how often each expert is used there, and pin what earlier runs used most (needs --slots to pin)",
    )
    parser.add_argument(
        "--skip-below",
        type=share,
        default=0.0,
        metavar="W",
        help="leave out a token's experts of a lower weight, but for its best one: CHANGES THE ANSWER (default 0: off)",
    )
    parser.add_argument(
        "--experts-per-token",
        type=natural,
        default=0,
        metavar="N",
        help="choose no more experts for a token: CHANGES THE ANSWER (default 0: as many as the model says)",
    )


def recorded(options: argparse.Namespace) -> bool:
    """Whether the chosen experts of this run are wanted."""
    return bool(options.trace or options.profile)


def use_profile(
    options: argparse.Namespace, session: Session, trace: traces.Trace | None, output: Output
) -> np.ndarray | None:
    """Load the profile of earlier runs and pin by it; returns its counts."""
    if trace is not None and not trace.layers:
        raise UsageError(f"--trace, --profile: {session.model.path} has no routed experts to record")
    if not options.profile or trace is None:
        return None
    counts = usage.load(options.profile, trace.model, trace.layers)
    if counts is not None and session.plan.slots:
        pinned = usage.pin(session, trace, counts)
        output.note(f"{options.profile}: {pinned} of {session.plan.slots} slots pinned")
    return counts


def keep_records(
    options: argparse.Namespace, trace: traces.Trace | None, before: np.ndarray | None, output: Output
) -> None:
    """Write the trace and the profile."""
    if trace and options.trace:
        traces.write(options.trace, trace)
        output.note(f"{options.trace}: {trace.rows} rows in {len(trace.feeds)} feeds")
    if trace and options.profile:
        usage.save(options.profile, trace, before)
