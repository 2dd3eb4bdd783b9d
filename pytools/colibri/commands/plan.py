"""`colibri plan`: how much memory a session needs, to the byte, before anything runs."""

from __future__ import annotations

import argparse
import os
from pathlib import Path
from typing import Any

from .. import draw
from ..engine import Model, Plan
from ..errors import DoesNotFit, InputError, UsageError
from ..format import KINDS
from ..output import Output, bytes_text, table
from .common import limit_options, limits_of, positive

EXAMPLES = (
    "colibri plan model.colibri --context 256 --header pool.h --svg pool.svg",
    "colibri plan --config config.json --weights q4 --kv q8",
)


def arguments(parser: argparse.ArgumentParser) -> None:
    """Options."""
    parser.add_argument("blob", type=Path, nargs="?", metavar="BLOB", help="a .colibri file")
    parser.add_argument(
        "--config",
        type=Path,
        metavar="FILE",
        help="a Hugging Face config.json instead: plan before weights are there",
    )
    parser.add_argument("--weights", choices=KINDS, default="q8", help="with --config: kind of the weights")
    limit_options(parser, full=True)
    parser.add_argument(
        "--memory",
        type=positive_bytes,
        metavar="BYTES",
        help="exit 5 if the pool is larger (K, M and G may follow the number)",
    )
    parser.add_argument(
        "--header", type=Path, metavar="FILE", help="write a C header with the pool's size and limits"
    )
    parser.add_argument("--svg", type=Path, metavar="FILE", help="draw the pool")


def positive_bytes(text: str) -> int:
    """A number of bytes with an optional K, M or G."""
    factor = {"K": 1 << 10, "M": 1 << 20, "G": 1 << 30}.get(text[-1:].upper(), 0)
    return (
        positive(text[:-1]) * factor
        if factor
        else int(text)
        if text.isdigit() and int(text)
        else positive(text)
    )


def free_memory() -> int:
    """Bytes this machine could give now."""
    try:
        for line in Path("/proc/meminfo").read_text(encoding="ascii").splitlines():
            if line.startswith("MemAvailable:"):
                return int(line.split()[1]) * 1024
    except OSError:
        pass
    return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")


def source(options: argparse.Namespace) -> Model:
    """The blob, or header and tables of the blob that a config.json would become."""
    if (options.blob is None) == (options.config is None):
        raise UsageError("give either a BLOB or --config FILE")
    if options.blob:
        return Model.open(options.blob)
    from ..blobfile import aligned_bytes
    from ..blobwriter import tables_only
    from ..convert import ConvertOptions, read_document
    from ..families import describe

    described = describe(read_document(options.config), str(options.config))
    tables, size = tables_only(
        described.model, ConvertOptions(weights=options.weights).kinds(described.model.tied)
    )
    content = aligned_bytes(len(tables))
    content[:] = bytearray(tables)
    return Model(options.config, content, size)


def run(options: argparse.Namespace, output: Output) -> int:
    """Plan, print, write."""
    model = source(options)
    info = model.info()
    plan = model.plan(limits_of(options, info))
    room = options.memory if options.memory is not None else free_memory()
    fits = plan.pool_bytes <= room
    output.document(
        {
            "model": None if options.config else info.identity,
            "pool_bytes": plan.pool_bytes,
            "align": plan.align,
            "regions": [{"name": region.name, "bytes": region.bytes} for region in plan.regions],
            "slots": plan.slots,
            "slots_floor": plan.slots_floor,
            "resident_bytes": plan.resident_bytes,
            "expert_bytes": plan.expert_bytes,
            "kv_bytes_per_token": plan.kv_bytes_per_token,
            "largest_unit_macs": plan.largest_unit_macs,
            "ops": plan.ops,
            "limits": plan.limits.numbers(),
            "fits": fits,
        }
    )
    show(plan, output)
    if options.header:
        write(options.header, draw.c_header(plan, model.path.name, info.identity), output)
    if options.svg:
        write(options.svg, draw.plan_svg(plan, model.path.name), output)
    if options.memory is not None and not fits:
        raise DoesNotFit(
            f"{model.path}: the pool needs {plan.pool_bytes} bytes, {room} are allowed; "
            "plan a shorter --context, a smaller --batch or --kv q8"
        )
    return 0


def write(path: Path, text: str, output: Output) -> None:
    """One output file."""
    try:
        path.write_text(text, encoding="utf-8")
    except OSError as error:
        raise InputError(f"{path}: cannot be written ({error.strerror}); choose another place") from None
    output.note(f"{path} written")


def show(plan: Plan, output: Output) -> None:
    """The table for people."""
    rows: list[list[Any]] = [["region", "bytes", "share"]]
    for region in plan.regions:
        if region.bytes:
            rows.append([region.name, f"{region.bytes:,}", f"{100 * region.bytes / plan.pool_bytes:.1f} %"])
    rows.append(["pool", f"{plan.pool_bytes:,}", "100.0 %"])
    output.result(table(rows, right={1, 2}))
    limits = plan.limits
    output.result(
        f"\ncontext {limits.context}, batch {limits.batch}, {limits.sequences} sequence(s), {limits.workers} "
        f"worker(s), KV {limits.kv}: {plan.kv_bytes_per_token} bytes per position"
    )
    output.result(
        f"outside the pool: {bytes_text(plan.resident_bytes)} resident weights, "
        f"{bytes_text(plan.expert_bytes)} experts"
    )
    output.result(
        f"largest unit {plan.largest_unit_macs:,} multiply-adds, {plan.ops} ops; "
        f"the pool begins at a multiple of {plan.align}"
    )
