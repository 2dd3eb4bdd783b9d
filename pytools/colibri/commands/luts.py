"""`colibri luts`: the generated C tables; luts.py owns them."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from .. import library, luts
from ..errors import UsageError
from ..output import Output

EXAMPLES = ("colibri luts", "colibri luts --check --root .")


def arguments(parser: argparse.ArgumentParser) -> None:
    """Options."""
    parser.add_argument("--root", type=Path, help="source tree to write into; without it tables go to stdout")
    parser.add_argument("--check", action="store_true", help="compare only; exit 1 when a table differs")


def run(options: argparse.Namespace, output: Output) -> int:
    """Print, write or compare."""
    root = options.root or (library.repository() if options.check else None)
    if root is None and options.check:
        raise UsageError("luts --check compares with a source tree and none is around: add --root FOLDER")
    if root is None:
        if output.as_json:
            output.document({"tables": {name: make() for name, make in luts.HEADERS.items()}})
        else:
            sys.stdout.write("\n".join(make() for make in luts.HEADERS.values()))
        return 0
    differing = luts.stale(root)
    output.document({"root": str(root), "differ": differing, "written": not options.check})
    if options.check:
        for name in differing:
            output.note(
                f"{root / name} differs from its formula; write it again with: colibri luts --root {root}"
            )
        return 1 if differing else 0
    for name in differing:
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(luts.HEADERS[name](), encoding="ascii")
        output.note(f"{name} written")
    return 0
