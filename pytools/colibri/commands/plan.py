"""`colibri plan`: how much memory a session needs, to the byte, before anything runs."""

from __future__ import annotations

import argparse
import os
from pathlib import Path
from typing import Any

from .. import draw
from ..blobfile import BlobFile
from ..engine import Model, Plan
from ..errors import DoesNotFit, UsageError
from ..format import PRESETS
from ..output import Output, bytes_text, table
from ..placement import fitted
from ..sizing import cold_bytes, expert_layers, uniform_bytes
from ..written import write_whole
from .common import describe, limit_options, limits_of, memory_size, positive

EXAMPLES = (
    "colibri plan model.colibri --context 1024 --ram 4GiB --storage-gbps 2 --svg pool.svg",
    "colibri plan --config config.json --weights q4 --ram 25GB --storage-gbps 1",
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
    parser.add_argument(
        "--weights", choices=PRESETS, default="q8", help="with --config: kind of the weights; q4-all: also the rest"
    )
    parser.add_argument(
        "--ram",
        type=memory_size,
        metavar="SIZE",
        help="memory for everything, such as 25GB or 16GiB; as many experts as fit stay there",
    )
    parser.add_argument(
        "--storage-gbps",
        type=gigabytes_per_second,
        metavar="N",
        help="with --config: gigabytes per second from storage, for the floor in tokens per second",
    )
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


def gigabytes_per_second(text: str) -> float:
    """Bytes per second."""
    try:
        value = float(text)
    except ValueError:
        value = 0.0
    if not 0 < value < 1e6:
        raise argparse.ArgumentTypeError(f"expected gigabytes per second above 0, found {text!r}")
    return value * 1e9


def free_memory() -> int:
    """Bytes this machine could give now."""
    try:
        for line in Path("/proc/meminfo").read_text(encoding="ascii").splitlines():
            if line.startswith("MemAvailable:"):
                return int(line.split()[1]) * 1024
    except OSError:
        pass
    return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")


def document_of(plan: Plan, identity: str | None, fits: bool) -> dict[str, Any]:
    """The fields of every plan."""
    return {
        "model": identity,
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


def run(options: argparse.Namespace, output: Output) -> int:
    """Plan, print, write."""
    if (options.blob is None) == (options.config is None):
        raise UsageError("give either a BLOB or --config FILE")
    if options.config:
        return run_config(options, output)
    if options.storage_gbps and not options.ram:
        raise UsageError("--storage-gbps is about experts that do not fit: give --ram too")
    model = Model.open(options.blob)
    info = model.info()
    if options.ram:
        if options.slots or options.resident_copy or options.memory is not None:
            raise UsageError("--ram finds the slots itself: leave out --slots, --resident-copy and --memory")
        plan = fitted(model.path, model, limits_of(options, info), info.expert_count, options.ram)
    else:
        plan = model.plan(limits_of(options, info))
    room = options.memory if options.memory is not None else free_memory()
    traffic = traffic_of(model.path, plan, options) if options.ram else {}
    blob = describe(model)
    drafts = {"draft_layers": len(blob.model().drafts), "draft_bytes": blob.draft_bytes()}
    whole = {"file_bytes": info.file_bytes, **drafts}
    output.document({**document_of(plan, info.identity, plan.pool_bytes <= room), **whole, **traffic})
    show(plan, output)
    if traffic:
        tell(plan, info.expert_count, traffic, output)
    if drafts["draft_layers"]:
        output.result(
            f"in the file beside: {drafts['draft_layers']} draft layer(s), {bytes_text(drafts['draft_bytes'])} that no "
            "run reads"
        )
    if options.header:
        write(options.header, draw.c_header(plan, model.path.name, info.identity), output)
    if options.svg:
        write(options.svg, draw.plan_svg(plan, model.path.name), output)
    judge(options, model.path, plan)
    return 0


def traffic_of(path: Path, plan: Plan, options: argparse.Namespace) -> dict[str, Any]:
    """What a token reads from storage with these slots, and how many tokens a second that allows at most."""
    layers = expert_layers(BlobFile(path))
    needed = {"cold": cold_bytes(layers), "uniform": round(uniform_bytes(layers, plan.slots))}
    rate = options.storage_gbps or 0.0
    return {
        "memory_bytes": options.ram,
        "storage_bytes_per_second": rate or None,
        "bytes_per_token": needed,
        "tokens_per_second": {name: rate / size if rate and size else None for name, size in needed.items()},
    }


def tell(plan: Plan, experts: int, traffic: dict[str, Any], output: Output) -> None:
    """The same for people."""
    needed, rates = traffic["bytes_per_token"], traffic["tokens_per_second"]
    output.result(
        f"\n{plan.slots:,} of {experts:,} experts have a slot; a token reads {bytes_text(needed['cold'])} if none of "
        f"its experts is there, {bytes_text(needed['uniform'])} if all are equally likely"
    )
    if traffic["storage_bytes_per_second"]:
        fastest = [f"{name} {'no limit' if rate is None else f'{rate:.2g} tokens/s'}" for name, rate in rates.items()]
        rate = traffic["storage_bytes_per_second"] / 1e9
        output.result(f"at {rate:g} GB/s from storage at most: {', '.join(fastest)}")


def run_config(options: argparse.Namespace, output: Output) -> int:
    """Size a model whose weights are not here."""
    from .. import sizing_report as sizes
    from ..convert import read_document

    if options.header:
        raise UsageError("--header needs a BLOB: the header names the model's identity")
    if options.ram and options.memory is not None:
        raise UsageError("--ram and --memory: give one; --ram counts the weights too, --memory the pool alone")
    if options.ram and (options.slots or options.resident_copy):
        raise UsageError("--ram finds the slots and copies the weights itself: leave out --slots and --resident-copy")
    machine = sizes.Machine(options.ram or 0, options.storage_gbps or 0.0)
    document = read_document(options.config)
    made = sizes.report(document, options.config, options.weights, lambda info: limits_of(options, info), machine)
    plan = made.plan
    room = options.ram or (options.memory if options.memory is not None else free_memory())
    fields_of_plan = document_of(plan, None, plan.pool_bytes <= room)
    output.document({**fields_of_plan, "sizing": sizes.document_of(made)})
    if not options.ram:
        show(plan, output)
        output.result("")
    output.result(sizes.text_of(made))
    if options.svg:
        write(options.svg, draw.plan_svg(plan, options.config.name), output)
    if not made.fits:
        raise DoesNotFit(
            f"{options.config}: needs at least {plan.pool_bytes} bytes ({sizes.gigabytes(plan.pool_bytes)}: resident "
            f"weights {made.model.resident_bytes}, the rest its pool with {plan.slots} expert slot), --ram gives "
            f"{options.ram}; give more, smaller --weights or a shorter --context"
        )
    judge(options, options.config, plan)
    return 0


def judge(options: argparse.Namespace, path: Path, plan: Plan) -> None:
    """Exit 5 if --memory is too small."""
    if options.memory is not None and plan.pool_bytes > options.memory:
        raise DoesNotFit(
            f"{path}: the pool needs {plan.pool_bytes} bytes, {options.memory} are allowed; "
            "plan a shorter --context, a smaller --batch or --kv q8"
        )


def write(path: Path, text: str, output: Output) -> None:
    """One output file."""
    write_whole(path, [text.encode()])
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
