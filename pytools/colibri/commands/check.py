"""`colibri check`: every byte against the checksums; with --verbose the health of every tensor."""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from dataclasses import asdict
from typing import Any

import numpy as np

from ..engine import Model
from ..errors import BlobError, Detail, detail_sentence
from ..output import Output, table
from .common import blob_argument, describe

EXAMPLES = ("colibri check model.colibri", "colibri check --verbose --json model.colibri")


def arguments(parser: argparse.ArgumentParser) -> None:
    """Options; --verbose adds the tensors."""
    blob_argument(parser)
    parser.add_argument(
        "--level",
        type=int,
        choices=(1, 2),
        default=2,
        help="1: header and tables; 2: every byte, scales and padding",
    )


def problem(detail: Detail) -> dict[str, Any]:
    """A problem as the document has it."""
    values = asdict(detail)
    return {"code": values.pop("status").removeprefix("ERROR_"), **values}


def run(options: argparse.Namespace, output: Output) -> int:
    """Walk; exit 1 with all problems."""
    found: list[Detail] = []
    model = None
    try:
        model = Model.open(options.blob)
    except BlobError as error:
        found.append(error.detail)
    if model:
        with output.progress("checking") as report:
            for done, detail in model.check(options.level):
                report(done, model.bytes)
                if detail:
                    found.append(detail)
    document: dict[str, Any] = {"ok": not found, "problems": [problem(detail) for detail in found]}
    if output.verbosity >= 1 and model and not found:
        document["tensors"] = list(health(model, output))
        document["ok"] = all(row["not_finite"] == 0 for row in document["tensors"])
    output.document(document)
    for detail in found:
        output.result(detail_sentence(str(options.blob), detail))
    if "tensors" in document:
        show(document["tensors"], output)
    if document["ok"]:
        output.result(f"{options.blob}: ok")
    return 0 if document["ok"] else 1


def health(model: Model, output: Output) -> Iterator[dict[str, Any]]:
    """min, max, zeros, constant rows and not-finite values per tensor; experts of one tensor are one row."""
    blob = describe(model)
    with output.progress("tensors") as report:
        for number, tensor in enumerate(blob.tensors):
            row: dict[str, Any] = {
                "name": tensor.label,
                "kind": tensor.kind,
                "rows": tensor.rows,
                "columns": tensor.columns,
                "count": tensor.count,
                "min": np.inf,
                "max": -np.inf,
                "zeros": 0,
                "constants": 0,
                "not_finite": 0,
            }
            for expert in range(tensor.count):
                values = blob.floats(tensor, expert).reshape(-1, tensor.columns)
                finite = values[np.isfinite(values)]
                row["not_finite"] += int(values.size - finite.size)
                if finite.size:
                    row["min"] = min(row["min"], float(finite.min()))
                    row["max"] = max(row["max"], float(finite.max()))
                row["zeros"] += int((values == 0).sum())
                if tensor.columns > 1:
                    row["constants"] += int((values == values[:, :1]).all(axis=1).sum())
            if not np.isfinite(row["min"]):
                row["min"] = row["max"] = None
            report(number + 1, len(blob.tensors))
            yield row


def show(rows: list[dict[str, Any]], output: Output) -> None:
    """The tensors as a table."""
    heads = ["tensor", "kind", "shape", "min", "max", "zeros", "constant rows", "not finite"]
    cells = []
    for row in rows:
        shape = f"{row['rows']} x {row['columns']}" + (f" x{row['count']}" if row["count"] > 1 else "")
        total = row["rows"] * row["columns"] * row["count"]
        ends = ["-" if row[end] is None else f"{row[end]:.4g}" for end in ("min", "max")]
        cells.append(
            [
                row["name"],
                row["kind"],
                shape,
                *ends,
                f"{100 * row['zeros'] / total:.1f} %",
                str(row["constants"]),
                str(row["not_finite"]),
            ]
        )
    output.result(table([heads, *cells], right={3, 4, 5, 6, 7}))
