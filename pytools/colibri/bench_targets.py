"""`bench` on targets without a steady clock: what a token costs in CPU time, or in instructions.

wasm, node: CPU seconds of the whole process, of a job with the tokens less those of the same job without, so that
start, compilation and loading cancel. baremetal: QEMU with `-icount shift=0`, where the board's clock counts
instructions, a nanosecond each.
"""

from __future__ import annotations

import argparse
import random
import resource
import statistics
import time
from dataclasses import replace
from functools import partial
from typing import Any

from . import library, targets
from .bench_rows import SEED, Row, Case
from .bench_traffic import traffic_of
from .blobfile import BlobFile
from .engine import Limits, Model
from .errors import MissingTool
from .jobs import Job, JobResult
from .output import Output

OTHER_TARGETS = ("wasm", "node", "baremetal")
COUNTED = ("-icount", "shift=0")


def cpu_seconds() -> float:
    """Of this process and the children that have ended."""
    children = resource.getrusage(resource.RUSAGE_CHILDREN)
    return time.process_time() + children.ru_utime + children.ru_stime


class Scale:
    """One target with a way to say what a job cost."""

    def __init__(self, name: str, model: Model, limits: Limits, limit: float) -> None:
        self.target = targets.pick([name])[0]
        how = self.target.missing()
        if how:
            raise MissingTool(f"target {name} cannot run here: {how}")
        self.counted = name == "baremetal"
        if self.counted:
            self.target = replace(self.target, start=partial(targets.run_board, options=COUNTED))
        self.model, self.limits, self.limit = model, limits, limit
        self.kernel = limits.kernel  # the level that ran, once one has
        self._random = random.Random(SEED)
        self._vocab = model.info().vocab

    def job(self, prompt: int, generate: int, started_only: bool = False) -> tuple[float, JobResult]:
        """CPU seconds (or instructions of the tokens) of one job, and its report."""
        tokens = [self._random.randrange(self._vocab) for _ in range(prompt)]
        job = Job("bench", self.limits, tokens, generate=generate, digest=False, encode_only=started_only)
        before = cpu_seconds()
        result = self.target.run(job, self.model, self.limit)
        spent = cpu_seconds() - before
        if result.error:
            raise result.error
        self.kernel = result.kernel or self.kernel
        if self.counted:
            spent = 1e9 * (
                (result.seconds_prefill or 0.0) + (result.seconds_decode or 0.0 if generate else 0.0)
            )
        return spent, result

    def pair(self, case: Case) -> tuple[float, int]:
        """What the tokens of a test cost more than nothing, and their multiply-adds."""
        if case.kind == "pp":
            less = 0.0 if self.counted else self.job(case.count, 0, True)[0]
            more, result = self.job(case.count, 0)
            return more - less, result.stats["macs"]
        prompt = max(1, case.depth)
        (less, before), (more, result) = self.job(prompt, 1), self.job(prompt, 1 + case.count)
        return more - less, result.stats["macs"] - before.stats["macs"]


def measure_target(
    name: str, options: argparse.Namespace, tests: list[Case], output: Output
) -> dict[str, Any]:
    """The document of one target: tokens per CPU second, or instructions per token."""
    model, traffic = Model.open(options.blob), traffic_of(BlobFile(options.blob))
    batch = max([1, *(min(options.batch, max(case.count, case.depth)) for case in tests)])
    limits = Limits(
        context=max(max(1, case.depth) + case.count + 1 for case in tests),
        batch=batch,
        kv=options.kv,
        kernel=options.kernel,
    )
    scale = Scale(name, model, limits, options.time_limit)
    position = model.plan(limits).kv_bytes_per_token
    if not scale.counted:
        scale.job(1, 1)  # what is compiled once in this process belongs to neither side of a pair
    rows = []
    for case in tests:
        row = Row(case.name, 1, case.depth)
        for _ in range(1 if scale.counted else options.reps):
            cost, macs = scale.pair(case)
            row.runs.append(cost / case.count if scale.counted else case.count / max(cost, 1e-9))
            row.macs_per_token = macs // case.count
        row.tokens = case.count * len(row.runs)
        row.median, row.min, row.max = statistics.median(row.runs), min(row.runs), max(row.runs)
        step = 1 if case.kind == "tg" else batch
        row.bytes_per_token = round(
            sum(traffic.run(case.count, step, case.depth, position).values()) / case.count
        )
        row.gmacs = 0.0 if scale.counted else row.median * row.macs_per_token / 1e9
        output.note(f"{row.test} at depth {row.depth} on {name}: {row.median:,.2f} {_unit(scale)}")
        rows.append(row.document())
        if scale.counted:
            rows[-1]["instructions_per_mac"] = round(row.median / row.macs_per_token, 4)
    return {
        "engine": f"colibri {library.version()} on {name} ({scale.kernel})",
        "model": str(options.blob),
        "identity": model.info().identity,
        "target": name,
        "runner": scale.target.runner,
        "kernel": scale.kernel,
        "kv": options.kv,
        "unit": _unit(scale),
        "batch": batch,
        "rows": rows,
    }


def _unit(scale: Scale) -> str:
    return "instructions/token" if scale.counted else "tokens/CPU s"
