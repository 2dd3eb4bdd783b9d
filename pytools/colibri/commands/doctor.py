"""`colibri doctor` (also `colibri targets`): what can run here, and one line for what cannot."""

from __future__ import annotations

import argparse

from .. import doctor
from ..output import Output, table

EXAMPLES = ("colibri doctor", "colibri targets --json")


def arguments(parser: argparse.ArgumentParser) -> None:
    """No options of its own."""


def run(options: argparse.Namespace, output: Output) -> int:
    """Look and tell."""
    report = doctor.examine()
    output.document(report)
    rows = [["target", "variant", "runner", "kernels", "state"]]
    rows += [
        [
            row["target"],
            row["variant"],
            row["runner"],
            ", ".join(row["kernels"]),
            "ready" if row["ready"] else row["how"],
        ]
        for row in report["targets"]
    ]
    output.result(table(rows))
    rows = [["tool", "for", "state"]]
    rows += [[row["tool"], row["for"], row["found"] or row["how"]] for row in report["tools"]]
    output.result("\n" + table(rows))
    return 0
