"""`colibri match-keys`: what the tensors of an unknown checkpoint are, from names and shapes alone."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

from ..errors import InputError
from ..match_keys import Match, match_keys, patterns_of
from ..match_keys_row import UNSEEN, Row, known_families, other_names, row_of
from ..output import Output, table
from ..safetensors_reader import Checkpoint
from ..source import Folder

EXAMPLES = ("colibri match-keys ./SomeNewMoE", "colibri match-keys ./SomeNewMoE --json")


def arguments(parser: argparse.ArgumentParser) -> None:
    """Options."""
    parser.add_argument(
        "source",
        type=Path,
        metavar="FOLDER",
        help="a folder with *.safetensors and, better, config.json; or its config.json. Only headers are read",
    )


def run(options: argparse.Namespace, output: Output) -> int:
    """Match and say what came out: 1 if something has no place."""
    folder = options.source.parent if options.source.is_file() else options.source
    if not options.source.exists():
        raise InputError(f"{options.source}: no such folder; give the folder of a Hugging Face model")
    with Folder(folder) as files:
        config = files.document("config.json", needed=False)
        checkpoint = Checkpoint(files)
        entries = [(entry.name, entry.shape, entry.dtype) for entry in checkpoint.entries.values()]
    match = match_keys(patterns_of(entries), config)
    families, row = known_families(match) if match.placed else [], row_of(match, config)
    output.document(document_of(match, families, row))
    for text in texts_of(match, families, row):
        output.result(text)
    return 0 if match.whole else 1


def document_of(match: Match, families: list[str], row: Row) -> dict[str, Any]:
    """The JSON document."""
    def about(pattern: Any) -> dict[str, Any]:
        return {"name": pattern.name, "shape": list(pattern.shape), "layers": len(pattern.layers),
                "experts": pattern.experts}  # fmt: skip

    return {
        "whole": match.whole,
        "hidden": match.hidden,
        "layers": match.layers,
        "experts": match.experts,
        "placed": [{"role": one.role, **about(one.pattern), "how": one.how} for one in match.placed],
        "unplaced": [{**about(one.pattern), "why": one.why} for one in match.unplaced],
        "missing": match.missing,
        "families": families,
        "row": row.text() if match.placed else None,
        "other_names": [
            {"role": role, "name": name, "row_means": means} for role, name, means in other_names(match, row.value())
        ],
        "unseen": UNSEEN,
    }


def texts_of(match: Match, families: list[str], row: Row) -> list[str]:
    """The answer for people."""
    out = []
    if match.placed:
        rows = [["role", "name", "shape", "known by"]]
        rows += [[one.role, one.pattern.name, str(list(one.pattern.shape)), one.how] for one in match.placed]
        out.append(table(rows))
    for one in match.unplaced:
        out.append(f"no place: {one.pattern.name} {list(one.pattern.shape)}: {one.why}")
    if match.missing:
        out.append(f"not found: {', '.join(match.missing)}")
    if not match.placed:
        return out
    if families:
        out.append(f"\nnames and shapes are those of {', '.join(families)} in pytools/colibri/family_table.py")
    out.append(f"\na row for pytools/colibri/family_table.py:\n{row.text()}")
    renamed = other_names(match, row.value())
    if renamed:
        out.append("\nnames that no row can say; rename them in the checkpoint, or teach the table:")
        out.append(table([["role", "name found", "name of the row"], *map(list, renamed)]))
    out.append(f"\nneither names nor shapes tell: {UNSEEN}. Look them up in the model's own code.")
    return out
