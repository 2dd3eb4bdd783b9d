"""`colibri verify`: one job on all targets; the answer is whether the bits are equal."""

from __future__ import annotations

import argparse
from dataclasses import replace
from typing import Any

from .. import factors, placement, targets
from ..engine import Info, Model
from ..errors import MissingTool
from ..jobs import Job, JobResult
from ..output import Output, table
from .common import blob_argument, limits_of, natural, positive, store_options, worker_options

EXAMPLES = (
    "colibri verify model.colibri --target linux,wasm --thorough --json",
    "colibri verify model.colibri --target linux,baremetal --store ram,flash,block --slots 8",
)
DIFFERENT = 1


def arguments(parser: argparse.ArgumentParser) -> None:
    """Options."""
    blob_argument(parser)
    parser.add_argument(
        "--target",
        action="append",
        default=[],
        metavar="NAME",
        help="a target or several with commas between; may be repeated (default all)",
    )
    parser.add_argument(
        "--allow-missing", action="store_true", help="go on without targets that are not here"
    )
    parser.add_argument(
        "--thorough",
        action="store_true",
        help="per target also: budgets, prompt splits, filled pools, second sequences and sessions, "
        "a hostile float environment, workers, every kernel level it has, and mixtures of them",
    )
    store_options(parser, several=True)
    parser.add_argument(
        "--prompt-tokens", type=positive, default=24, metavar="N", help="length of the prompt"
    )
    parser.add_argument("-n", "--count", type=natural, default=8, metavar="N", help="tokens to generate")
    parser.add_argument(
        "--time-limit",
        type=positive,
        default=int(targets.TIME_LIMIT),
        metavar="SECONDS",
        help="of each run (default %(default)s)",
    )
    parser.add_argument(
        "--kv", choices=("f32", "f16", "q8"), default="f16", help="kind of the cached keys and values"
    )
    worker_options(parser, "; targets of another architecture than the level's choose for themselves")


def base_job(model: Model, info: Info, options: argparse.Namespace) -> Job:
    """The run that is compared: a fixed prompt of ids spread over the vocabulary, greedy."""
    count = options.prompt_tokens
    prompt = [(7919 * i + 101) % info.vocab for i in range(count)]
    defaults = argparse.Namespace(context=count + options.count, kv=options.kv, batch=16, text_bytes=0)
    limits = limits_of(defaults, info, logit_rows=16, workers=options.workers, kernel=options.kernel)
    return Job(f"verify {model.path.name}", limits, prompt, generate=options.count, companion=prompt[::-1])


def run(options: argparse.Namespace, output: Output) -> int:
    """Run everywhere, compare, print."""
    model = Model.open(options.blob)
    job = base_job(model, model.info(), options)
    report = compare(
        targets.pick(options.target),
        model,
        job,
        output,
        options.time_limit,
        options.thorough,
        placement.names_of(options.store),
        options.slots,
        options.ram,
        options.look_ahead,
    )
    document = {"model": model.info().identity, **report.document()}
    output.document(document)
    report.show(output)
    return report.code(options.allow_missing)


class Report:
    """Rows, what is missing, what went wrong."""

    def __init__(self) -> None:
        self.results: list[tuple[str, JobResult]] = []
        self.missing: list[dict[str, str]] = []
        self.problems: list[str] = []

    def add(self, name: str, result: JobResult) -> None:
        """A run that must have the first one's digest."""
        place = f"{result.target} {result.store}" if result.target == targets.BOARD else result.target
        expected = next((r.digest for _, r in self.results if r.digest), result.digest)
        self.results.append((name, result))
        self.problems += [f"{sentence} ({name})" for sentence in result.bad_checks()]
        if result.error:
            self.problems.append(f"{place}: {name}: {result.error}")
        elif result.digest != expected:
            self.problems.append(f"{place}: {name}: digest {result.digest}, expected {expected}")

    def digests(self) -> set[str]:
        """The different digests of all runs."""
        return {result.digest for _, result in self.results}

    def one_answer(self) -> bool:
        """Equal over at least two targets, and nothing else wrong."""
        places = {result.target for _, result in self.results}
        return len(places) > 1 and len(self.digests()) == 1 and "" not in self.digests() and not self.problems

    def document(self) -> dict[str, Any]:
        """As DESIGN's section 7 has it; a row is a target's base run."""
        rows = [result.row() for name, result in self.results if name == "base"]
        varied = [
            {"target": result.target, "variation": name, "digest": result.digest}
            for name, result in self.results
            if name != "base"
        ]
        return {
            "rows": rows,
            "variations": varied,
            "missing": self.missing,
            "problems": self.problems,
            "one_answer": self.one_answer(),
        }

    def code(self, allow_missing: bool) -> int:
        """The exit code."""
        if self.problems or len(self.digests()) > 1:
            return DIFFERENT
        if self.missing and not allow_missing:
            return MissingTool.exit_code
        return 0 if self.one_answer() else DIFFERENT

    def show(self, output: Output) -> None:
        """For people."""
        cells = [["target", "variant", "runner", "store", "threads", "pool planned", "used", "seconds", "digest"]]
        for name, result in self.results:
            if name == "base":
                cells.append(
                    [
                        result.target,
                        result.variant,
                        result.runner,
                        result.store,
                        str(result.threads),
                        f"{result.planned_bytes:,}",
                        f"{result.used_bytes:,}",
                        f"{result.seconds:.2f}",
                        result.digest[:16],
                    ]
                )
        output.result(table(cells, right={4, 5, 6, 7}))
        varied = [name for name, _ in self.results if name != "base"]
        if varied:
            output.result(f"{len(varied)} runs with {len(set(varied))} variations")
        for row in self.missing:
            output.result(f"missing: {row['target']}: {row['how']}")
        for problem in self.problems:
            output.result(problem)
        output.result(
            "one answer"
            if self.one_answer()
            else "not shown: fewer than two targets ran"
            if len({r.target for _, r in self.results}) < 2
            else "NOT one answer"
        )


def placed(
    target: targets.Target, job: Job, model: Model, stores: list[str], slots: int, memory: int, ahead: bool
) -> list[Job]:
    """The job once for each place asked for that a target may have the model in."""
    suited = targets.suited(target, job)
    found = placement.places(target.name, stores, slots, memory)
    placement.bring_ahead(found, ahead)
    return [
        replace(suited, limits=placement.limits_at(place, model, suited.limits, slots, memory, ahead), **place.job())
        for place in found or placement.places(target.name, [placement.STORES[0]])
    ]


def compare(
    chosen: list[targets.Target],
    model: Model,
    job: Job,
    output: Output,
    limit: float = targets.TIME_LIMIT,
    thorough: bool = False,
    stores: list[str] | None = None,
    slots: int = 0,
    memory: int = 0,
    ahead: bool = False,
) -> Report:
    """Run a job on targets, with all its variations if thorough; every digest must be the first one's, every check
    good, planned = used. stores, slots, memory, ahead: see placement."""
    report = Report()
    for target in chosen:
        how = target.missing()
        if how:
            report.missing.append({"target": target.name, "how": how})
            continue
        for suited in placed(target, job, model, stores or [], slots, memory, ahead):
            jobs = [("base", suited)]
            if thorough:
                jobs = factors.variations(suited, levels=targets.levels(target, suited, model))
            for name, varied in jobs:
                output.detail(f"{target.name}: {name}")
                named = replace(varied, name=f"{name} on {target.name}")
                report.add(name, target.run(named, model, limit))
    return report
