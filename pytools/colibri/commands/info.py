"""`colibri info`: what a file holds."""

from __future__ import annotations

import argparse
from dataclasses import asdict, fields
from typing import Any

from ..engine import Model
from ..output import Output, bytes_text
from .common import blob_argument, describe

EXAMPLES = ("colibri info model.colibri", "colibri info --json model.colibri")


def arguments(parser: argparse.ArgumentParser) -> None:
    """Options."""
    blob_argument(parser)
    parser.add_argument("--tensors", action="store_true", help="list every tensor")


def run(options: argparse.Namespace, output: Output) -> int:
    """Read header and tables, print."""
    model = Model.open(options.blob)
    info, blob = model.info(), describe(model)
    described = blob.model()
    kinds = blob.kinds()
    layers, drafts = (
        [
            {f.name: getattr(layer, f.name) for f in fields(layer) if getattr(layer, f.name) is not None}
            for layer in listed
        ]
        for listed in (described.layers, described.drafts)
    )
    tensors = [
        {
            "name": tensor.label,
            "kind": tensor.kind,
            "rows": tensor.rows,
            "columns": tensor.columns,
            "count": tensor.count,
            "offset": tensor.offset,
            "bytes": tensor.bytes,
        }
        for tensor in blob.tensors
    ]
    document: dict[str, Any] = {
        "path": str(options.blob),
        **asdict(info),
        "kinds": asdict(kinds),
        "tied": described.tied,
        "tokenizer": info.tokenizer_bytes > 0,
        "chat_template": bool(blob.chat_template()),
        "generation": blob.generation(),
        "provenance": blob.provenance(),
        "layer_descriptions": layers,
        "draft_layers": len(described.drafts),
        "draft_bytes": blob.draft_bytes(),
        "draft_descriptions": drafts,
    }
    if options.tensors:
        document["tensors"] = tensors
    output.document(document)
    show(document, output)
    if options.tensors:
        for tensor in tensors:
            times = f" x{tensor['count']}" if tensor["count"] > 1 else ""
            output.result(
                f"  {tensor['name']}: {tensor['kind']} {tensor['rows']} x {tensor['columns']}{times}, "
                f"{tensor['bytes']} bytes at {tensor['offset']}"
            )
    return 0


def show(d: dict[str, Any], output: Output) -> None:
    """For people."""
    experts = f"{d['experts']} experts, {d['top_k']} per token" if d["experts"] else "dense"
    share = (
        f", {d['active_parameters']:,} of them per token" if d["active_parameters"] != d["parameters"] else ""
    )
    source = d["provenance"].get("source", "not said")
    kinds = ", ".join(f"{group} {kind}" for group, kind in d["kinds"].items())
    sizes = (
        f"{bytes_text(d['resident_bytes'])} resident, {bytes_text(d['expert_bytes'])} in {d['expert_count']} "
        f"experts of at most {bytes_text(d['expert_run_bytes'])}"
    )
    words = ("tokenizer" if d["tokenizer"] else "no tokenizer") + (
        ", chat template" if d["chat_template"] else ", no chat template"
    )
    for name, value in (
        ("file", f"{d['path']} ({bytes_text(d['file_bytes'])}, format {d['format_version']})"),
        ("identity", d["identity"]),
        ("source", source),
        ("model", f"{d['layers']} layers, {d['hidden']} wide, vocabulary {d['vocab']}, {experts}"),
        ("parameters", f"{d['parameters']:,}{share}"),
        ("weights", kinds),
        ("bytes", sizes),
        *([("drafts", f"{d['draft_layers']} layers that guess further tokens, {bytes_text(d['draft_bytes'])}, "
            "no run reads them")] if d["draft_layers"] else []),
        ("context", d["trained_context"] or "not said"),
        ("text", f"{words}, end ids {d['generation'].get('end', [])}"),
    ):
        output.result(f"{name:10}  {value}")
