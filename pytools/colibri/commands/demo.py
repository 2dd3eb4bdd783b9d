"""`colibri demo`: the shipped model on every target that is here, and the proof that all answers are
equal."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

from .. import library, targets
from ..demo.commands import command_prompt
from ..engine import Limits, Model
from ..errors import MissingTool
from ..jobs import Job, JobResult
from ..output import Output, bytes_text, table
from .common import worker_options
from .verify import Report

EXAMPLES = ("colibri demo", "colibri demo --target linux,wasm --json")
CONTEXT = 256
TALE_PROMPT = "Once upon a time"
COMMAND = "please make the bedroom a bit warmer"


def arguments(parser: argparse.ArgumentParser) -> None:
    """Options."""
    parser.add_argument(
        "--target",
        action="append",
        default=[],
        metavar="NAME",
        help="a target or several with commas between; may be repeated (default all)",
    )
    parser.add_argument("-p", "--prompt", metavar="TEXT", help="another beginning for the tale")
    parser.add_argument("--command", metavar="TEXT", default=COMMAND, help="another command for the home")
    worker_options(parser, "; targets of another architecture than the level's choose for themselves")


def demo_blob() -> Path:
    """The shipped model."""
    path = Path(__file__).resolve().parent.parent / "demo" / "demo.colibri"
    if not path.is_file():
        raise MissingTool(f"{path}: the demo model is not here; install the package again")
    return path


def jobs(model: Model, options: argparse.Namespace) -> tuple[Job, Job]:
    """A tale and a command. The plan is the same for both: context 256."""
    ends = model.end_tokens()
    limits = Limits(
        context=CONTEXT,
        batch=16,
        logit_rows=16,
        text_bytes=256,
        workers=options.workers,
        kernel=options.kernel,
    )
    tale = Job("a tale", limits, text=options.prompt or TALE_PROMPT, generate=CONTEXT, ends=ends, bos=True)
    command = Job("a command", limits, text=command_prompt(options.command), generate=40, ends=ends, bos=True)
    return tale, command


def run(options: argparse.Namespace, output: Output) -> int:
    """Run on every target; missing ones are named and do not stop the others."""
    model = Model.open(demo_blob())
    tale, command = jobs(model, options)
    chosen, report = targets.pick(options.target), Report()
    rates: dict[str, float] = {}
    intents: dict[str, JobResult] = {}
    for target in chosen:
        if how := target.missing():
            report.missing.append({"target": target.name, "how": how})
            continue
        output.detail(f"{target.name}: {tale.name}")
        result = collect(report, target, tale, model)
        rates[target.name] = rate(result)
        if not output.as_json and len(report.results) == 1:
            output.result(f"{output.warm(tale.text)}{result.text}\n")
        output.detail(f"{target.name}: {command.name}")
        intents[target.name] = target.run(targets.suited(target, command), model)
        if not output.as_json and len(report.results) == 1:
            output.result(f"{output.warm(command.text)}{intents[target.name].text}\n")
    judge(report, intents)
    show(report, rates, model, output)
    output.document(document(report, rates, intents, model))
    alone = len(report.results) == 1 and not report.problems
    return 0 if report.one_answer() or alone else 1


def collect(report: Report, target: targets.Target, job: Job, model: Model) -> JobResult:
    """One base row."""
    result = target.run(targets.suited(target, job), model)
    report.results.append(("base", result))
    report.problems += result.bad_checks()
    if result.error:
        report.problems.append(f"{target.name}: {result.error}")
    return result


def rate(result: JobResult) -> float:
    """Tokens per second of the writing part; where a target has no clock, of the whole run."""
    made = len(result.tokens.get(0, []))
    if result.seconds_decode:
        return (made - 1) / result.seconds_decode
    return made / result.seconds if result.seconds > 0 else 0.0


def judge(report: Report, intents: dict[str, JobResult]) -> None:
    """Both texts and digests must be equal everywhere."""
    if len(report.digests()) > 1:
        report.problems.append("the tale's digests differ")
    if len({(result.digest, result.text) for result in intents.values()}) > 1:
        report.problems.append("the command's answers differ")
    for name, result in intents.items():
        report.problems += result.bad_checks()
        if result.error:
            report.problems.append(f"{name}: {result.error}")


def show(report: Report, rates: dict[str, float], model: Model, output: Output) -> None:
    """The table for people."""
    cells = [["target", "variant", "runner", "tokens/s", "pool planned", "used", "digest"]]
    for _, result in report.results:
        cells.append(
            [
                result.target,
                result.variant,
                result.runner,
                f"{rates[result.target]:.0f}",
                f"{result.planned_bytes:,}",
                f"{result.used_bytes:,}",
                result.digest[:16],
            ]
        )
    output.result(table(cells, right={3, 4, 5}))
    info = model.info()
    output.result(
        f"\nmodel {bytes_text(info.file_bytes)}, {info.parameters:,} parameters, {info.active_parameters:,} "
        f"of them per token; context {CONTEXT}"
    )
    for row in report.missing:
        output.result(f"not here: {row['target']}: {row['how']}")
    for problem in report.problems:
        output.result(problem)
    if report.one_answer():
        output.result(f"{len(report.results)} targets, one answer: every bit of every logit is equal")


def document(
    report: Report, rates: dict[str, float], intents: dict[str, JobResult], model: Model
) -> dict[str, Any]:
    """verify's document with text and speed."""
    first = report.results[0][1] if report.results else JobResult()
    intent = next(iter(intents.values()), JobResult())
    rows = [
        {
            **result.row(),
            "tokens_per_second": rates[result.target],
            "text": result.text,
            "intent": intents[result.target].text,
        }
        for _, result in report.results
    ]
    return {
        "model": model.info().identity,
        "library": library.version(),
        **report.document(),
        "rows": rows,
        "text": first.text,
        "intent": intent.text.strip(),
        "tokens_per_second": rates.get(first.target, 0.0),
    }
