"""`colibri convert`: a Hugging Face folder or hub id becomes one .colibri file."""

from __future__ import annotations

import argparse
import re
from pathlib import Path

from ..convert import ConvertOptions, convert, convert_share, join
from ..errors import InputError, UsageError
from ..expert_map import read_expert_map
from ..format import KINDS
from ..output import Output, bytes_text
from ..progress import progress_bar
from ..source import HUB_ID, Folder, Source
from ..unfinished import Work
from .common import positive

EXAMPLES = (
    "colibri convert HuggingFaceTB/SmolLM2-135M-Instruct -o smol.colibri",
    "colibri convert ./Mixtral -o mixtral.colibri --weights q4 --shard 1/8",
)


def arguments(parser: argparse.ArgumentParser) -> None:
    """Options."""
    parser.add_argument(
        "source",
        metavar="SOURCE",
        help="a folder with config.json, *.safetensors and tokenizer.json, or a model of the hub: "
        "org/name[@revision] (HF_ENDPOINT, HF_TOKEN, HF_HOME hold)",
    )
    parser.add_argument(
        "-o", "--output", type=Path, metavar="FILE", help="the file to write (default: SOURCE's name)"
    )
    parser.add_argument(
        "--weights",
        choices=KINDS,
        default="q8",
        help="kind of the weights; q4 means the experts (dense: FFN), the rest stays q8 (default q8)",
    )
    for group in ("embed", "head", "attention", "ffn", "experts"):
        parser.add_argument(f"--{group}", choices=KINDS, help=f"kind of the {group} weights")
    parser.add_argument("--no-tokenizer", action="store_true", help="a file that takes token ids only")
    parser.add_argument(
        "--expert-map",
        type=Path,
        metavar="FILE",
        help="JSON with the physical_to_logical_map of a checkpoint whose experts lie in balanced slots (EPLB)",
    )
    parser.add_argument(
        "--no-drafts", action="store_true", help="leave out layers that guess further tokens (MTP)"
    )
    parser.add_argument("--overwrite", action="store_true", help="replace an existing file")
    parser.add_argument(
        "--source-name", default="", metavar="NAME", help="name kept in the file as its source"
    )
    parser.add_argument(
        "--threads", type=positive, metavar="N", help="threads that pack weights (default: up to 4)"
    )
    parser.add_argument("--revision", metavar="REV", help="branch, tag or commit of a hub's model")
    parser.add_argument("--token", metavar="TOKEN", help="for gated models (default: HF_TOKEN, or the login)")
    parser.add_argument(
        "--offline", action="store_true", help="use what the hub's cache holds (HF_HUB_OFFLINE says the same)"
    )
    apart = parser.add_mutually_exclusive_group()
    apart.add_argument(
        "--shard",
        type=share,
        metavar="I/N",
        help="write part I of N beside the output, FILE.IofN, for --join; parts may be made anywhere",
    )
    apart.add_argument("--join", action="store_true", help="put the parts beside the output together")


def share(text: str) -> tuple[int, int]:
    """3/8."""
    found = re.fullmatch(r"(\d{1,6})/(\d{1,6})", text)
    if not found or not 1 <= int(found[1]) <= int(found[2]):
        raise argparse.ArgumentTypeError(f"expected I/N such as 1/8 .. 8/8, found {text!r}")
    return int(found[1]), int(found[2])


def source_of(options: argparse.Namespace) -> Source:
    """A folder that is there, else a model of the hub."""
    path, found = Path(options.source), HUB_ID.fullmatch(options.source)
    if path.is_dir():
        if options.revision or options.token or options.offline:
            raise UsageError(
                f"{options.source}: is a folder; --revision, --token and --offline are for a model of the hub"
            )
        return Folder(path)
    if not found or path.parent.is_dir():
        raise InputError(
            f"{options.source}: no such folder; give the folder of a Hugging Face model (config.json, "
            "*.safetensors, tokenizer.json) or a hub's id, org/name[@revision]"
        )
    if options.revision and found["revision"]:
        raise UsageError(
            f"{options.source}: names a revision, so does --revision {options.revision}; give one"
        )
    from ..hub import hub_source  # takes a while to import

    return hub_source(found["name"], options.revision or found["revision"], options.token, options.offline)


def run(options: argparse.Namespace, output: Output) -> int:
    """Convert and say what came out."""
    source = source_of(options)
    target = options.output or Path(f"{source.name.split('/')[-1]}.colibri")
    chosen = ConvertOptions(
        weights=options.weights,
        embed=options.embed,
        head=options.head,
        attention=options.attention,
        ffn=options.ffn,
        experts=options.experts,
        tokenizer=not options.no_tokenizer,
        drafts=not options.no_drafts,
        expert_map=tuple(map(tuple, read_expert_map(options.expert_map))) if options.expert_map else (),
        overwrite=options.overwrite,
        source_name=options.source_name,
    )
    work = Work(note=output.note)
    if options.threads:
        work.threads = options.threads
    with progress_bar(output.verbosity >= 0) as work.progress:
        if options.shard:
            part = convert_share(source, target, chosen, options.shard, work)
        else:
            made = (join if options.join else convert)(source, target, chosen, work=work)
    output.detail(work.profile.sentence())
    if options.shard:
        output.document(
            {"path": str(part), "part": "/".join(map(str, options.shard)), "profile": work.profile.document()}
        )
        output.result(
            f"{part}: part {options.shard[0]} of {options.shard[1]}, {bytes_text(part.stat().st_size)}"
        )
        return 0
    output.document(
        {
            "path": str(made.path),
            "identity": made.written.identity,
            "file_bytes": made.written.file_bytes,
            "model_type": made.described.model_type,
            "kinds": vars(made.kinds),
            "profile": work.profile.document(),
        }
    )
    output.result(f"{made.path}: {bytes_text(made.written.file_bytes)}, identity {made.written.identity}")
    return 0
