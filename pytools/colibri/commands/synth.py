"""`colibri synth`: a small random model, for trying and testing."""

from __future__ import annotations

import argparse
from pathlib import Path

from ..output import Output
from ..synth import SPECS, write_random_blob
from .common import natural

EXAMPLES = ("colibri synth random.colibri", "colibri synth random.colibri --spec mixed --weights q4 --seed 7")


def arguments(parser: argparse.ArgumentParser) -> None:
    """Options."""
    parser.add_argument("output_path", type=Path, metavar="OUT", help="the file to write")
    parser.add_argument("--spec", choices=sorted(SPECS), default="moe", help="the shape of the model")
    parser.add_argument(
        "--weights", choices=("f32", "f16", "q8", "q4"), default="q8", help="kind of the weights"
    )
    parser.add_argument("--seed", type=natural, default=1, metavar="N", help="of the random weights")
    parser.add_argument("--overwrite", action="store_true", help="replace an existing file")


def run(options: argparse.Namespace, output: Output) -> int:
    """Write it."""
    made = write_random_blob(
        options.output_path, options.spec, options.seed, options.weights, overwrite=options.overwrite
    )
    output.document(
        {
            "path": str(options.output_path),
            "identity": made.written.identity,
            "file_bytes": made.written.file_bytes,
        }
    )
    output.result(f"{options.output_path}: {made.written.file_bytes} bytes, identity {made.written.identity}")
    return 0
