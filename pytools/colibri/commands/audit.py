"""`colibri audit`: rules and figures of the core's archives."""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

from .. import audit, library
from ..errors import MissingTool
from ..output import SCHEMA, Output, table

EXAMPLES = ("colibri audit", "colibri audit --json build/gcc/linux_x86_64/libcolibri.a")


def arguments(parser: argparse.ArgumentParser) -> None:
    """Options."""
    parser.add_argument(
        "archives",
        nargs="*",
        type=Path,
        metavar="ARCHIVE",
        help="archives to read (default: those this package ships)",
    )
    parser.add_argument(
        "--compare", type=Path, metavar="FILE", help="exit 1 where a figure differs from FILE's"
    )
    parser.add_argument("--write", type=Path, metavar="FILE", help="write the figures to FILE as accepted")


def shipped() -> list[Path]:
    """The archives inside the package."""
    found = sorted(library.data_folder().glob("*/libcolibri.a"))
    if not found:
        raise MissingTool(f"no libcolibri.a below {library.data_folder()}; build them with `python -m SCons`")
    return found


def run(options: argparse.Namespace, output: Output) -> int:
    """Audit, print, compare."""
    root = library.repository()
    lines = audit.count_lines(root / "core") if root else {}
    archives = []
    for path in options.archives or shipped():
        output.detail(f"reading {path}")
        archives.append(audit.read_archive(path.parent.name or path.stem, path))
    document: dict[str, Any] = {"archives": [archive.figures(lines) for archive in archives]}
    problems = [problem for archive in archives for problem in archive.problems()]
    if options.write:
        options.write.write_text(
            json.dumps({"schema": SCHEMA, **document}, indent=2) + "\n", encoding="utf-8"
        )
        output.note(f"{options.write} written")
    if options.compare:
        problems += audit.compare(document, options.compare)
    output.document({**document, "ok": not problems, "problems": problems})
    show(document["archives"], output)
    for problem in problems:
        output.result(problem)
    return 1 if problems else 0


def show(rows: list[dict[str, Any]], output: Output) -> None:
    """The figures as tables."""
    heads = ["target", "text", "rodata", "data", "bss", "undefined", "foreign", "fused", "worst stack"]
    cells = [
        [
            row["target"],
            str(row["text_bytes"]),
            str(row["rodata_bytes"]),
            str(row["data_bytes"]),
            str(row["bss_bytes"]),
            str(len(row["undefined"])),
            str(len(row["foreign_symbols"])),
            str(row["fused_ops"]),
            worst(row["stack_bytes"]),
        ]
        for row in rows
    ]
    output.result(table([heads, *cells], right=set(range(1, 8))))
    lines = rows[0]["lines"]
    if lines:
        output.result("lines of C: " + ", ".join(f"{room} {count}" for room, count in lines.items()))


def worst(stack: dict[str, int]) -> str:
    """The entry that takes most stack."""
    if not stack:
        return "not known"
    entry = max(stack, key=lambda name: stack[name])
    return f"{stack[entry]} B ({entry})"
