"""Options and small steps that several commands share."""

from __future__ import annotations

import argparse
import json
import re
from pathlib import Path
from typing import Any

from .. import kernels
from ..engine import KV_KINDS, Info, Limits, Model, Sampling
from ..errors import InputError, UsageError
from ..limits import POLICIES

DEFAULT_CONTEXT = 2048
DEFAULT_TEXT_BYTES = 1024
# limits before a place is chosen: --slots says more
IN_PLACE: dict[str, Any] = {"slots": 0, "stream_experts": False, "look_ahead": False}


def positive(text: str) -> int:
    """An option's number of at least 1."""
    return bounded(text, 1)


def natural(text: str) -> int:
    """An option's number of at least 0."""
    return bounded(text, 0)


def bounded(text: str, least: int) -> int:
    """A 32-bit number of at least `least`."""
    try:
        value = int(text, 0)
    except ValueError:
        raise argparse.ArgumentTypeError(f"expected a whole number, found {text!r}") from None
    if not least <= value < 1 << 32:
        raise argparse.ArgumentTypeError(f"expected {least} .. {(1 << 32) - 1}, found {value}")
    return value


UNITS = {"": 0, "K": 1, "M": 2, "G": 3, "T": 4}


def memory_size(text: str) -> int:
    """A number of bytes with an optional unit: KB, MB, GB and TB count in thousands, KiB (or K) in 1024s."""
    found = re.fullmatch(r"(\d{1,15}(?:\.\d{1,6})?)\s*(?:([KMGT])(iB|B)?|B)?", text, re.IGNORECASE)
    if not found:
        raise argparse.ArgumentTypeError(f"expected a size such as 25GB or 16GiB, found {text!r}")
    base = 1000 if (found[3] or "").upper() == "B" else 1024
    size = int(float(found[1]) * base ** UNITS[(found[2] or "").upper()])
    if not 0 < size < 1 << 63:
        raise argparse.ArgumentTypeError(f"expected a size above 0, found {text!r}")
    return size


def store_options(parser: argparse.ArgumentParser, several: bool = False) -> None:
    """Options that say where the model's bytes are; none changes an answer."""
    more = "; several with commas between, or all" if several else ""
    parser.add_argument(
        "--store",
        action="append",
        default=[],
        metavar="NAME",
        help="where the model is: mapped (default, in place), streamed (experts come from the file into slots: "
        "io_uring or threads), uring, pread, direct (past the page cache); on the board ram, flash (in place, at most "
        "64 MiB) or block (a disk: the model may be larger than the memory)" + more,
    )
    parser.add_argument(
        "--ram",
        type=memory_size,
        default=0,
        metavar="SIZE",
        help="memory for the pool, such as 4GiB or 900MB: streamed, with as many expert slots as fit",
    )
    parser.add_argument(
        "--slots", type=natural, default=0, metavar="N", help="streamed, with so many expert slots over all layers"
    )
    look_ahead_option(parser)


def look_ahead_option(parser: argparse.ArgumentParser) -> None:
    """Hints for the store."""
    parser.add_argument(
        "--look-ahead",
        action="store_true",
        help="streamed: ask for what the next layer may need while this one works, into some more slots (default: off, "
        "docs/PERFORMANCE.md says when it helps)",
    )


def blob_argument(parser: argparse.ArgumentParser) -> None:
    """The model file."""
    parser.add_argument("blob", type=Path, metavar="BLOB", help="a .colibri file")


def worker_options(parser: argparse.ArgumentParser, other: str = "") -> None:
    """Options that change the speed and never a bit."""
    parser.add_argument("--workers", type=positive, default=1, metavar="N", help="threads that run units (default 1)")
    parser.add_argument(
        "--kernel",
        default=kernels.AUTO,
        metavar="NAME",
        help="instruction-set level of the kernels: portable, avx2, ... (any other word lists them), "
        f"auto, the best the processor has{other}, or fastest, the winner of a short race here",
    )


def limit_options(parser: argparse.ArgumentParser, full: bool = False) -> None:
    """Options that enter the plan."""
    parser.add_argument(
        "--context",
        type=positive,
        metavar="N",
        help=f"positions per sequence (default: the model's, at most {DEFAULT_CONTEXT})",
    )
    parser.add_argument("--kv", choices=KV_KINDS, default="f16", help="kind of the cached keys and values")
    parser.add_argument("--batch", type=positive, default=16, metavar="N", help="rows of one feed")
    parser.add_argument(
        "--text-bytes",
        type=natural,
        metavar="N",
        help=f"longest text to encode (default {DEFAULT_TEXT_BYTES} if the model has a tokenizer)",
    )
    worker_options(parser)
    parser.add_argument(
        "--policy", choices=POLICIES, default=POLICIES[0], help="which expert gives up its slot; changes no answer"
    )
    if full:
        parser.add_argument(
            "--slots", type=natural, default=0, metavar="N", help="expert slots; 0: experts are used in place"
        )
        look_ahead_option(parser)
        parser.add_argument(
            "--logit-rows",
            type=positive,
            default=1,
            metavar="N",
            help="rows of one feed that may want logits; `run` takes a whole batch for its digest",
        )
        parser.add_argument(
            "--sequences", type=positive, default=1, metavar="N", help="sequences in one session"
        )
        parser.add_argument(
            "--rewind", type=natural, default=0, metavar="N", help="positions a rewind may take back"
        )
        parser.add_argument(
            "--resident-copy",
            action="store_true",
            help="the file is not addressable: resident weights are copied into the pool",
        )


def limits_of(options: argparse.Namespace, info: Info, least_text: int = 0, **fixed: Any) -> Limits:
    """Limits from options; what is not given depends on the model alone, never on the machine."""
    context = options.context or min(info.trained_context or DEFAULT_CONTEXT, DEFAULT_CONTEXT)
    text = options.text_bytes
    if text is None:
        text = max(DEFAULT_TEXT_BYTES, least_text) if info.tokenizer_bytes else 0
    slots = getattr(options, "slots", 0)
    values: dict[str, Any] = {
        "context": context,
        "batch": options.batch,
        "kv": options.kv,
        "text_bytes": text,
        "slots": slots,
        "stream_experts": slots > 0,
    }
    for name in ("logit_rows", "sequences", "workers", "kernel", "rewind", "resident_copy", "policy", "look_ahead"):
        if hasattr(options, name):
            values[name] = getattr(options, name)
    return Limits(**{**values, **fixed})


def sampling_options(parser: argparse.ArgumentParser) -> None:
    """Options of the sampler."""
    parser.add_argument("--temperature", type=float, default=None, metavar="T", help="0: the likeliest token")
    parser.add_argument(
        "--top-k", type=natural, default=None, metavar="N", help="only the N likeliest; 0: all"
    )
    parser.add_argument(
        "--top-p", type=float, default=None, metavar="P", help="only the likeliest P of the mass"
    )
    parser.add_argument(
        "--min-p", type=float, default=None, metavar="P", help="only what has P of the best one's"
    )
    parser.add_argument("--repetition-penalty", type=float, default=None, metavar="R", help="1: off")
    parser.add_argument("--seed", type=int, default=0, metavar="N", help="of the draws")
    parser.add_argument(
        "--end",
        type=natural,
        action="append",
        default=[],
        metavar="ID",
        help="token id that ends the text, besides the model's own; may be repeated",
    )
    parser.add_argument(
        "--stop",
        action="append",
        default=[],
        metavar="TEXT",
        help="text that ends the answer and is not part of it; may be repeated",
    )


def sampling_of(options: argparse.Namespace, defaults: dict[str, float] | None = None) -> Sampling:
    """A sampler's numbers: the option, else the given default, else neutral."""
    neutral: dict[str, float] = {
        "temperature": 0.0,
        "top_k": 0,
        "top_p": 1.0,
        "min_p": 0.0,
        "repetition_penalty": 1.0,
    }
    known = {**neutral, **(defaults or {})}
    chosen = {
        name: value if getattr(options, name) is None else getattr(options, name)
        for name, value in known.items()
        if name in neutral
    }
    for name, low, high in (
        ("temperature", 0.0, 1e4),
        ("top_p", 1e-6, 1.0),
        ("min_p", 0.0, 1.0),
        ("repetition_penalty", 1e-3, 1e3),
    ):
        if not low <= chosen[name] <= high:
            raise UsageError(f"--{name.replace('_', '-')} is {chosen[name]}: expected {low:g} .. {high:g}")
    if not 0 <= options.seed < 1 << 64:
        raise UsageError(f"--seed is {options.seed}: expected 0 .. {(1 << 64) - 1}")
    return Sampling(**{**chosen, "top_k": int(chosen["top_k"])}, seed=options.seed)  # type: ignore[arg-type]


def token_file(path: Path, vocab: int) -> list[int]:
    """A JSON list of token ids, or a document of `run --json` (then prompt and answer together)."""
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise InputError(f"{path}: cannot be read as JSON ({error}); expected a list of token ids") from None
    if isinstance(content, dict):
        content = [*content.get("prompt_ids", []), *content.get("tokens", [])]
    if not isinstance(content, list) or not content or not all(type(token) is int for token in content):
        raise InputError(f"{path}: expected a list of token ids such as [1, 2, 3]")
    for place, token in enumerate(content):
        if not 0 <= token < vocab:
            raise InputError(f"{path}: entry {place} is {token}, expected a token id in 0 .. {vocab - 1}")
    return content


def save_options(parser: argparse.ArgumentParser) -> None:
    """Options about sessions as files."""
    parser.add_argument(
        "--restore", type=Path, metavar="FILE", help="go on with what was saved there, under any --context it fits into"
    )
    parser.add_argument("--save", type=Path, metavar="FILE", help="at the end, save text and cache there")


def read_text(path: Path) -> str:
    """A prompt file; bytes that are not UTF-8 are kept for the core to judge."""
    try:
        return path.read_bytes().decode("utf-8", "surrogateescape")
    except OSError as error:
        raise InputError(f"{path}: cannot be read ({error.strerror}); give a text file") from None


def describe(model: Model) -> Any:
    """The blob as Python reads it: sections for people (template, defaults, provenance)."""
    from ..blobfile import BlobFile

    return BlobFile(model.path)
