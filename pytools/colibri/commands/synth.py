"""`colibri synth`: a random model, small and odd for testing, or of a real model's exact shape for measuring."""

from __future__ import annotations

import argparse
from pathlib import Path

from ..errors import UsageError
from ..format import KINDS, PRESETS, Kinds
from ..output import Output, bytes_text
from ..progress import progress_bar
from ..synth import SPECS, write_random_blob
from ..synth_shapes import SHAPES, shape_of, write_shape_blob
from ..synth_sparse import write_sparse_blob
from ..unfinished import Work
from .common import natural, positive

EXAMPLES = (
    "colibri synth random.colibri --spec mixed --weights q4 --seed 7",
    "colibri synth giant.colibri --shape glm-5.2 --weights q4-all --sparse",
)
GROUPS = ("embed", "head", "attention", "ffn", "experts")


def arguments(parser: argparse.ArgumentParser) -> None:
    """Options."""
    parser.add_argument("output_path", type=Path, metavar="OUT", help="the file to write")
    what = parser.add_mutually_exclusive_group()
    what.add_argument("--spec", choices=sorted(SPECS), default="moe", help="a small model of odd sizes")
    what.add_argument(
        "--shape", choices=sorted(SHAPES), help="a real model's exact shape, random blocks as weights"
    )
    parser.add_argument(
        "--layers", type=positive, metavar="N", help="with --shape: so many layers instead of the model's"
    )
    parser.add_argument(
        "--sparse",
        action="store_true",
        help="with --shape: embedding, head, routers and norms are random, everything else is zero and takes no space "
        "on the disk",
    )
    parser.add_argument(
        "--weights",
        choices=PRESETS,
        default="q8",
        help="kind of the weights; q4 means the experts (dense: FFN) and the rest stays q8, q4-all every matrix "
        "but the router (default q8)",
    )
    for group in GROUPS:
        parser.add_argument(f"--{group}", choices=KINDS, help=f"kind of the {group} weights")
    parser.add_argument("--seed", type=natural, default=1, metavar="N", help="of the random weights")
    parser.add_argument("--overwrite", action="store_true", help="replace an existing file")


def run(options: argparse.Namespace, output: Output) -> int:
    """Write it."""
    kinds = Kinds.preset(options.weights, **{group: getattr(options, group) for group in GROUPS})
    path = options.output_path
    if options.layers and not options.shape:
        raise UsageError("--layers belongs to --shape: a --spec has its own number of layers")
    if options.sparse and not options.shape:
        raise UsageError("--sparse belongs to --shape: a --spec is small anyway")
    if options.sparse:
        written = write_sparse_blob(
            path, shape_of(options.shape, options.layers), kinds, options.seed, options.overwrite
        )
    elif options.shape:
        work = Work(note=output.note)
        with progress_bar(output.verbosity >= 0, "writing") as work.progress:
            written = write_shape_blob(
                path,
                shape_of(options.shape, options.layers),
                kinds,
                options.seed,
                options.shape,
                options.overwrite,
                work,
            )
        work.profile.stop()
        output.detail(f"{work.profile.wall:.1f} s; thread seconds: {work.profile.seconds}")
    else:
        written = write_random_blob(
            path, options.spec, options.seed, kinds, overwrite=options.overwrite
        ).written
    output.document({"path": str(path), "identity": written.identity, "file_bytes": written.file_bytes})
    output.result(f"{path}: {bytes_text(written.file_bytes)}, identity {written.identity}")
    return 0
