"""`colibri bench`: prefill and decode beside what the memory can deliver."""

from __future__ import annotations

import argparse
import statistics
import time
from pathlib import Path
from typing import Any

from .. import bench_machine as machine
from .. import kernels, library
from ..bench_bandwidth import Meter, meter
from ..bench_binding import binding_ns
from ..bench_profile import counter
from ..bench_rows import Course, Row, Case, Track
from ..bench_svg import roofline_svg
from ..bench_targets import OTHER_TARGETS, measure_target
from ..bench_traffic import traffic_of
from ..blobfile import BlobFile
from ..engine import KV_KINDS, Limits, Model, Session
from ..errors import UsageError
from ..output import Output, table
from ..written import write_whole
from .common import blob_argument, natural, positive

EXAMPLES = (
    "colibri bench olmoe.colibri --threads 1,2 --pp 64,256 --tg 64 --depth 0,1024",
    "colibri bench model.colibri --kv q8 --svg roofline.svg --json",
)
OPENINGS = 21


def numbers(text: str) -> list[int]:
    """64,256; nothing for an empty text."""
    try:
        found = [int(word) for word in text.split(",") if word]
    except ValueError:
        raise argparse.ArgumentTypeError(
            f"expected whole numbers with commas between, found {text!r}"
        ) from None
    if any(not 0 <= number < 1 << 24 for number in found):
        raise argparse.ArgumentTypeError(f"expected numbers in 0 .. {(1 << 24) - 1}, found {text!r}")
    return found


def arguments(parser: argparse.ArgumentParser) -> None:
    """Options."""
    blob_argument(parser)
    lists = {
        "--pp": ("64,256", "prompt lengths to prefill"),
        "--tg": ("64", "how many tokens to decode"),
        "--depth": ("0", "how many positions lie before the decoded tokens"),
        "--threads": ("1", "workers"),
    }
    for name, (default, what) in lists.items():
        parser.add_argument(
            name, type=numbers, default=numbers(default), metavar="N,..", help=f"{what} (default {default})"
        )
    parser.add_argument(
        "--reps", type=positive, default=5, metavar="N", help="repeats after a warm-up (default 5)"
    )
    parser.add_argument("--kv", choices=KV_KINDS, default="f16", help="kind of the cached keys and values")
    parser.add_argument(
        "--batch", type=positive, default=256, metavar="N", help="most rows of one feed (default 256)"
    )
    parser.add_argument(
        "--kernel",
        default=kernels.AUTO,
        metavar="NAME",
        help="instruction-set level of the kernels: portable, avx2, ... (any other word lists them), or auto",
    )
    parser.add_argument(
        "--target",
        choices=("linux", *OTHER_TARGETS),
        default="linux",
        help="wasm, node: tokens per CPU second; baremetal: instructions per token, exact, under QEMU",
    )
    parser.add_argument(
        "--quiet-s",
        type=float,
        default=0.0,
        metavar="S",
        help="before every repeat wait so long for an idle machine",
    )
    parser.add_argument(
        "--quiet-share",
        type=float,
        default=0.1,
        metavar="C",
        help="cores that others may use on an idle machine",
    )
    parser.add_argument(
        "--no-bandwidth", action="store_true", help="do not read the memory bandwidth beside the runs"
    )
    parser.add_argument(
        "--evict",
        action="store_true",
        help="first take the file out of the page cache, so that it comes in huge pages",
    )
    parser.add_argument("--profile", action="store_true", help="also where the time goes, by op of the tape")
    parser.add_argument("--micro", action="store_true", help="also what binding a resident expert costs")
    parser.add_argument("--svg", type=Path, metavar="FILE", help="draw the roofline and what was reached")
    parser.add_argument(
        "--time-limit",
        type=natural,
        default=3600,
        metavar="S",
        help="of one run on another target (default 3600)",
    )


def tests_of(options: argparse.Namespace) -> list[Case]:
    """The rows, in the order in which depths fill up."""
    made = [Case("pp", count) for count in options.pp if count]
    made += [
        Case("tg", count, depth) for depth in sorted(set(options.depth)) for count in options.tg if count
    ]
    if not made:
        raise UsageError("nothing to measure: give --pp or --tg a number above 0")
    return made


def limits_of(options: argparse.Namespace, tests: list[Case], workers: int) -> Limits:
    """Room for the longest test, and to take back every decode."""
    batch = min(
        options.batch,
        max([case.count for case in tests if case.kind == "pp"] + [max(options.depth, default=0)]),
    )
    return Limits(
        context=max(case.depth + case.count for case in tests),
        batch=max(1, batch),
        workers=workers,
        rewind=max(case.count for case in tests),
        kv=options.kv,
        kernel=options.kernel,
    )


def run(options: argparse.Namespace, output: Output) -> int:
    """Measure, print, draw."""
    tests = tests_of(options)
    if options.target != "linux":
        document = measure_target(options.target, options, tests, output)
    else:
        with meter(not options.no_bandwidth) as bandwidth:
            document = run_here(options, tests, bandwidth, output)
    show(document, output)
    if options.svg:
        draw(options.svg, document, output)
    output.line(document)
    return 0


def run_here(
    options: argparse.Namespace, tests: list[Case], bandwidth: Meter | None, output: Output
) -> dict[str, Any]:
    """In this process."""
    library.load()
    memory = {"before": machine.memory()}
    if options.evict:
        machine.evict(options.blob)
    begun = time.perf_counter()
    model = Model.open(options.blob)
    loaded = time.perf_counter() - begun
    memory["open"] = machine.memory()
    traffic, course = (
        traffic_of(BlobFile(options.blob)),
        Course(options.reps, options.quiet_s, options.quiet_share),
    )
    course.meter, course.tell = bandwidth, lambda row: output.note(sentence(row))
    clock, course.ticks_per_ns = counter() if options.profile else (None, 1.0)
    rows: list[Row] = []
    pools, starts, overhead = [], [], 0.0
    for workers in options.threads:
        limits = limits_of(options, tests, workers)
        begun = time.perf_counter()
        with Session(model, limits, clock=clock) as session:
            starts.append(time.perf_counter() - begun)
            pools.append(session.plan.pool_bytes)
            track = Track(session, traffic)
            rows += [track.measure(case, course) for case in tests]
            overhead = track.overhead_ns()
            memory[f"threads {workers}"] = {**machine.memory(), "huge": machine.huge_mapped()}
    peak = machine.memory()
    info = model.info()
    micro = {"binding_ns": round(binding_ns(options.kernel), 1)} if options.micro else {}
    return {
        "engine": f"colibri {library.version()} ({session.kernel})",
        "model": str(options.blob),
        "identity": info.identity,
        "target": "linux",
        "processor": machine.processor(),
        "kernel": session.kernel,
        "kv": options.kv,
        "load_s": round(loaded, 6),
        "open_us": open_times(options.blob),
        "start_us": [round(1e6 * seconds, 1) for seconds in starts],
        "rss_load_mib": memory["open"].get("all"),
        "rss_peak_mib": peak.get("peak"),
        "memory_mib": memory,
        "file_bytes": info.file_bytes,
        "pool_bytes": pools,
        "batch": limits.batch,
        "loop_overhead_ns": round(overhead),
        **micro,
        "rows": [row.document() for row in rows],
    }


def open_times(path: Path) -> dict[str, float]:
    """Microseconds of an open with the tables in the page cache: with Python's mapping of the file, and the core's
    part alone."""
    whole, core = [], []
    ffi, opened = library.ffi(), library.load().colibri_open
    for _ in range(OPENINGS):
        begun = time.perf_counter_ns()
        model = Model.open(path)
        whole.append(time.perf_counter_ns() - begun)
        made, detail = ffi.new("colibri_model *"), ffi.new("colibri_detail *")
        begun = time.perf_counter_ns()
        opened(made, model.address, model.bytes, model.bytes, detail)
        core.append(time.perf_counter_ns() - begun)
    return {"all": statistics.median(whole) / 1e3, "core": statistics.median(core) / 1e3}


def sentence(row: Row) -> str:
    """One row as soon as it is known."""
    share = "" if row.share is None else f", {row.share:.2f} of {row.bandwidth:.1f} GB/s"
    return (
        f"{row.test} at depth {row.depth}, {row.threads} worker(s): {row.median:.2f} tokens/s "
        f"({row.min:.2f} .. {row.max:.2f}){share}, others {max(row.others):.2f} cores"
    )


def show(document: dict[str, Any], output: Output) -> None:
    """For people."""
    rate = document.get("unit", "tokens/s")
    cells = [
        ["test", "depth", "workers", rate, "min", "max", "others", "GMAC/s", "MB/token", "GB/s", "share"]
    ]
    cells[0] += ["p50 us", "p99 us", "p99.9 us", "per MAC"]
    for row in document["rows"]:
        share, speed = row.get("share"), row.get("bandwidth")
        cells.append(
            [row["test"], str(row["depth"]), str(row["threads"])]
            + [f"{row[name]:,.2f}" for name in ("median", "min", "max")]
            + [
                f"{max(row['others']):.2f}" if row["others"] else "",
                f"{row['gmacs']:.1f}" if row["gmacs"] else "",
            ]
            + [f"{row['bytes_per_token'] / 1e6:.2f}"]
            + ["" if speed is None else f"{speed:.1f}", "" if share is None else f"{share:.2f}"]
            + [
                "" if row.get(name) is None else f"{row[name]:,.0f}"
                for name in ("p50_us", "p99_us", "p999_us")
            ]
            + [f"{row['instructions_per_mac']:.4f}" if "instructions_per_mac" in row else ""]
        )
    keep = [i for i in range(len(cells[0])) if i < 6 or any(row[i] for row in cells[1:])]
    output.result(
        f"{document['engine']} on {document['model']}, {document.get('processor', document['target'])}"
    )
    output.result(table([[row[i] for i in keep] for row in cells], right=set(range(1, len(keep)))))
    for row in document["rows"]:
        if row.get("profile"):
            show_profile(row, output)
    if "open_us" in document:
        output.result(
            f"open {document['open_us']['all']:.0f} us (core {document['open_us']['core']:.0f}), "
            f"pool {', '.join(f'{size:,}' for size in document['pool_bytes'])} bytes, "
            f"loop {document['loop_overhead_ns']} ns a token"
        )
        if "binding_ns" in document:
            output.result(f"binding a resident expert: {document['binding_ns']:.0f} ns")
        for name, sizes in document["memory_mib"].items():
            output.result(
                f"memory, {name}: "
                + ", ".join(f"{kind} {size:,.1f}" for kind, size in sizes.items())
                + " MiB"
            )


def show_profile(row: dict[str, Any], output: Output) -> None:
    """One row's ops."""
    cells = [["op", "us/token", "share", "runs", "units", "GMAC/s", "GB/s"]]
    for op in row["profile"]:
        cells.append(
            [
                op["op"],
                f"{op['us']:,.2f}",
                f"{100 * op['share']:.1f} %",
                f"{op['runs']:,.2f}",
                f"{op['units']:,.1f}",
            ]
            + [f"{op[name]:.1f}" if op[name] else "" for name in ("gmacs", "gbs")]
        )
    output.result(f"\n{row['test']} at depth {row['depth']}, {row['threads']} worker(s), per token:")
    output.result(table(cells, right=set(range(1, 7))) + "\n")


def draw(path: Path, document: dict[str, Any], output: Output) -> None:
    """--svg."""
    write_whole(path, [roofline_svg(document).encode()])
    output.note(f"{path}: roofline and what was reached")
