"""`colibri convert`: a Hugging Face folder becomes one .colibri file."""

from __future__ import annotations

import argparse
import re
from pathlib import Path

from ..convert import ConvertOptions, convert
from ..errors import InputError, UsageError
from ..format import KINDS
from ..output import Output, bytes_text
from .common import positive

EXAMPLES = (
    "colibri convert ./SmolLM2-135M-Instruct -o smol.colibri",
    "colibri convert ./Mixtral -o mixtral.colibri --weights q4 --attention q8",
)


def arguments(parser: argparse.ArgumentParser) -> None:
    """Options."""
    parser.add_argument(
        "source", metavar="FOLDER", help="a folder with config.json, *.safetensors and tokenizer.json"
    )
    parser.add_argument(
        "-o", "--output", type=Path, metavar="FILE", help="the file to write (default: FOLDER's name)"
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
    parser.add_argument("--overwrite", action="store_true", help="replace an existing file")
    parser.add_argument(
        "--source-name", default="", metavar="NAME", help="name kept in the file as its source"
    )
    parser.add_argument("--threads", type=positive, metavar="N", help="threads that pack weights")


def local_folder(source: str) -> Path:
    """The folder; an id of the hub is refused by name."""
    path = Path(source)
    if path.is_dir():
        return path
    if (
        re.fullmatch(r"(hf:|hf://|https://huggingface\.co/)?[\w.-]+/[\w.-]+", source)
        and not path.parent.is_dir()
    ):
        raise UsageError(
            f"{source}: looks like a model id of a hub; this version converts local folders only: "
            "download the model first and give its folder"
        )
    raise InputError(
        f"{source}: no such folder; give the folder of a Hugging Face model (config.json, "
        "*.safetensors, tokenizer.json)"
    )


def run(options: argparse.Namespace, output: Output) -> int:
    """Convert and say what came out."""
    source = local_folder(options.source)
    target = options.output or Path(f"{source.resolve().name}.colibri")
    chosen = ConvertOptions(
        weights=options.weights,
        embed=options.embed,
        head=options.head,
        attention=options.attention,
        ffn=options.ffn,
        experts=options.experts,
        tokenizer=not options.no_tokenizer,
        overwrite=options.overwrite,
        source_name=options.source_name,
        threads=options.threads,
    )
    with output.progress("converting") as report:
        made = convert(source, target, chosen, progress=lambda done, total, what: report(done, total))
    output.document(
        {
            "path": str(made.path),
            "identity": made.written.identity,
            "file_bytes": made.written.file_bytes,
            "model_type": made.described.model_type,
            "kinds": vars(made.kinds),
        }
    )
    output.result(f"{made.path}: {bytes_text(made.written.file_bytes)}, identity {made.written.identity}")
    return 0
