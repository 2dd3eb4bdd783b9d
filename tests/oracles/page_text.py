"""The words of docs/MODELS.md: figures in, Markdown out. Measures nothing."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable
from decimal import Decimal
from functools import cache
from pathlib import Path
from typing import Any

from colibri import sizing_report
from colibri.description import Model
from colibri.engine import Limits
from colibri.library import constants, header_text, key_types, names
from colibri.unsupported import REFUSED
from oracles.cases import GREEDY, PROMPT

# Keys that give a size or a number whatever it is, not a choice between ways to compute.
NUMBERS = frozenset(
    """
    HEADS KV_HEADS HEAD_DIM ROPE SCORE_SCALE NORM_EPS FF EXPERTS TOP_K EXPERT_RUN ROUTER_EPS BIASES ROUTER_TOP_GROUPS
    QUERY_STEP LATENT NOPE_DIM ROPE_DIM V_DIM ROUTER_SPAN
    """.split()
)
WORDS = {
    "ATTENTION: GQA": "grouped heads", "ATTENTION: MLA": "latent attention",
    "ATTENTION: CONV": "short convolutions", "FFN: DENSE": "dense layers",
    "FFN: MOE": "experts",
    "ACTIVATION: SILU": "SiLU", "QK_NORM: HEAD": "q/k norm per head", "QK_NORM: WIDTH": "q/k norm over all heads",
    "ROUTER_SCORE: SOFTMAX": "softmax router", "ROUTER_SCORE: SIGMOID": "sigmoid router",
    "ROUTER_RENORMALISE: NONE": "weights as they are", "ROUTER_RENORMALISE: SUM": "weights divided by their sum",
    "ROUTER_SCORE: SQRT_SOFTPLUS": "router by the root of softplus", "ROUTER_SCORE: LOGIT": "router by the logit",
    "ROUTER_SCORE: SPARSE_MIXER": "sparse mixer", "ROUTER_RENORMALISE: SOFTMAX": "softmax of the chosen",
    "ROUTER_RENORMALISE: ROOT": "weights divided by the root of their squares",
    "ROUTER_BIAS: SCORE": "router bias on the score", "ROUTER_BIAS: CHOICE": "router bias of the choice",
    "ROUTER_BIAS: LOGIT": "router bias in the logit", "ROUTER_GROUPS": "groups of experts",
    "ROUTER_GROUP_SCORE: MAX": "a group's best", "ROUTER_GROUP_SCORE: TOP_TWO": "a group's best two",
    "ROUTER_GROUP_SCORE: EACH": "as many of every group", "ROUTER_BY_TOKEN": "routing by token",
    "ROUTER_WEIGHT_ON: INPUT": "weights on the input", "ROUTER_SUM_MIN": "a least sum of weights",
    "ROUTER_CHOICE: LOGIT": "choice by the logit",
    "QUERY_FLOOR": "queries that grow with the position", "CHUNK": "stretches of positions",
    "QK_NORM: HEAD_AFTER_ROPE": "q/k norm per head after the rotation",
    "QK_NORM: L2_AFTER_ROPE": "q/k norm without weights after the rotation",
    "ACTIVATION: GELU_ERF": "GELU", "ACTIVATION: GELU_TANH": "GELU by tanh",
    "NORM: LAYER": "LayerNorm", "NORM: LAYER_BIAS": "LayerNorm with bias",
    "ROUTER_SCALE": "weights scaled", "SHARED_FF": "shared expert", "SHARED_GATE": "gated shared expert",
    "HEAD_GATES: HEAD": "gates of heads", "HEAD_GATES: ELEMENT": "gates of every number of a head",
    "WINDOW": "windows", "RESIDUAL_MULTIPLIER": "residual multiplier", "CLIP_QKV": "q, k and v clamped",
}  # fmt: skip


@cache
def enumerated() -> dict[str, str]:
    """Layer key -> the enum of its values, as the format's header says."""
    line = r"COLIBRI_LAYER_(\w+)\s*=\s*\d+\s*,?\s*/\*\s*u32 (colibri_\w+)"
    return dict(re.findall(line, header_text("colibri_format.h")))


def switches(model: Model, config: dict[str, Any]) -> list[str]:
    """What a description switches on, in words."""
    found = [_said(key, value) for key in key_types("colibri_layer_key") if key not in NUMBERS
             for value in sorted({getattr(layer, key.lower()) for layer in model.layers} - {None, 0})
             ]  # fmt: skip
    zero = [_said(key, 0) for key in ("ROUTER_RENORMALISE",)
            if 0 in {getattr(layer, key.lower()) for layer in model.layers if layer.moe}]  # fmt: skip
    bits = max((layer.biases or 0 for layer in model.layers), default=0)
    letters = [letter for letter in "qkvo" if bits & getattr(constants(), "BIAS_" + letter.upper())]
    more = [
        ("biases on " + ", ".join(letters), bool(letters)),
        ("tied head", model.tied),
        ("embedding multiplier", model.embed_multiplier is not None),
        ("logit multiplier", model.logit_multiplier is not None),
        ("interleaved rotary pairs", any(rope.interleaved for rope in model.ropes)),
        ("part of a head rotated", _partial(model)),
        ("layers without rotation", any(layer.rope is None for layer in model.layers)),
        (f"{_law(config)} rope", _law(config) != "default"),
    ]
    return list(dict.fromkeys([*found, *zero, *(word for word, there in more if there)]))


def _said(key: str, value: Any) -> str:
    name = f"{key}: {names(enumerated()[key]).get(value, value)}" if key in enumerated() else key
    return WORDS.get(name, name.lower().replace("_", " ").replace(":", ""))


def _partial(model: Model) -> bool:
    widths = {2 * len(model.ropes[layer.rope].fractions) < layer.need("head_dim")
              for layer in model.layers if layer.rope is not None and layer.attention == constants().ATTENTION_GQA}
    return True in widths


def _law(config: dict[str, Any]) -> str:
    fields = config.get("rope_parameters") or config.get("rope_scaling") or {}
    return str(fields.get("rope_type", fields.get("type", "default")))


def rows_of(heading: Iterable[str], rows: Iterable[Iterable[Any]]) -> str:
    """A Markdown table."""
    heading = list(heading)
    lines = [heading, ["---"] * len(heading), *([str(cell) for cell in row] for row in rows)]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)


def family_row(one: Any, digests: dict[str, dict[str, str]]) -> list[str]:
    """One family: its worst case, so that nothing hides behind another one."""
    argmax, greedy = (min(getattr(case, name) for case in one.cases) for name in ("argmax", "greedy"))
    cost = [f"{kl:.1e}, {100 * same:.0f} %" for kl, same in one.divergence.values()]
    return [
        f"`{one.family}`", str(len(one.cases)), f"{argmax}/{PROMPT}", f"{greedy}/{GREEDY}",
        f"{max(case.error for case in one.cases):.1e}", *cost, equality(digests), str(one.wrong),
    ]  # fmt: skip


def equality(digests: dict[str, dict[str, str]]) -> str:
    """Whether all targets gave one digest in every kind of weights: never for fewer than two targets."""
    targets = sorted({target for kinds in digests.values() for target in kinds})
    equal = all(len(set(kinds.values())) == 1 and len(kinds) == len(targets) for kinds in digests.values())
    if len(targets) < 2 or not digests:
        return "not compared"
    return f"{len(targets)} targets equal" if equal else "DIFFERS"


def sizes(folder: Path, context: int) -> list[list[str]]:
    """What is not here: the sizes of published models from their configs, on a machine with 25 GB."""
    rows, big = [], sizing_report.gigabytes
    for path in sorted(folder.glob("*.json")):
        document = json.loads(path.read_text(encoding="utf-8"), parse_float=Decimal)
        machine = sizing_report.Machine(25 * 10**9, 1e9)
        made = sizing_report.report(document, path, "q4-all", lambda info: Limits(context=context), machine)
        model, plan = made.model, made.plan
        speed = f"{made.cold:.2g} / {made.uniform:.2g}" if made.cold and made.uniform else "all in memory"
        rows.append([
            path.stem, sizing_report.billions(model.parameters), sizing_report.billions(model.active),
            f"{model.experts + model.draft_experts * model.draft_layers:,} x {big(model.moe[0].run_bytes)}",
            big(model.resident_bytes), f"{plan.kv_bytes_per_token:,}", f"{plan.slots:,}", big(model.cold_bytes), speed,
        ])  # fmt: skip
    return rows


HEAD = f"""# Models

This page is written by `python tests/oracles/page.py` and compared by `tests/test_models_page.py`: no figure here was
typed. A family is a row of names and switches in `pytools/colibri/family_table.py`; the core knows none of them.

Every case is a tiny random checkpoint that transformers answered once in float64; its answers are frozen in
`tests/data/oracles`. The columns of the first table:

* **argmax**: of {PROMPT} teacher-forced positions, those with transformers' likeliest token; **greedy**: of {GREEDY}
  tokens after them, those that are transformers' own. The worst case of the family counts.
* **error**: the largest difference of any logit from transformers, f32 weights and cache.
* **q8**, **q4**: what quantization costs in the family's first case: mean KL divergence from transformers' distribution
  in nats, and positions whose likeliest token stays. Random weights have flat logits, so this is far more than in a
  trained model; it is here to be watched. A router that a rounding tips costs a whole expert: `phimoe`'s sparse mixer
  does so most. With the float32 model's experts held, every family loses little (`tests/test_families.py`).
* **one digest**: one run (prompt and greedy tokens) in f32, q8 and q4 gave one digest of all logits on Linux, in
  WebAssembly and on bare-metal ARM64. The digests stand below; `tests/test_families.py` takes them again.
* **wrong**: wrong values of switches and sizes that `tests/test_oracles.py` sets one by one in the family's cases;
  every one moves a logit by more than ten times the error allowed, or is refused.
"""


def page(families: list[Any], digests: dict[str, Any], sized: list[list[str]]) -> str:
    """The whole page."""
    parts = [
        HEAD,
        rows_of(("family", "cases", "argmax", "greedy", "error", "q8", "q4", "one digest", "wrong"),
                [family_row(one, digests.get(one.family, {})) for one in families]),
        "\n## Switches\n\nWhat the cases of a family switch on, together.\n",
        "\n".join(f"* `{one.family}`: {', '.join(one.switches)}" for one in families),
        "\n## Cases\n",
        rows_of(("case", "family", "what it is about", "argmax", "greedy", "error", "margin"),
                [[f"`{case.name}`", f"`{case.family}`", case.what, f"{case.argmax}/{PROMPT}", f"{case.greedy}/{GREEDY}",
                  f"{case.error:.1e}", f"{case.margin:.3f}"] for one in families for case in one.cases]),
        "\nThe margin is the smallest gap between the two best logits of any row: what rounding would have to bridge.",
        "\n## Digests\n",
        rows_of(("family", "weights", "targets", "SHA-256 of all logits"),
                [[f"`{family}`", weights, ", ".join(found), f"`{one}`"]
                 for family, kinds in digests.items() for weights, found in kinds.items()
                 for one in sorted(set(found.values()))]),
        "\n## Not supported\n\nRefused by name before anything is written:\n",
        "\n".join(f"* `{kind}`: {why}" for kind, why in sorted(REFUSED.items())) or "* nothing",
        SIZES,
        rows_of(("model", "parameters", "at work", "experts", "resident", "KV bytes per token", "slots", "read, cold",
                 "tokens/s, cold / uniform"), sized),
    ]  # fmt: skip
    return "\n".join(parts) + "\n"


SIZES = """
## Sizes of models that are not here

What `colibri plan --config CONFIG --weights q4-all --ram 25GB --storage-gbps 1` says of published configs, at a
context of 2048 in f16: everything in 4 bits and a scale per 32 weights. Slots are the experts that fit beside the
resident weights. `cold` reads every expert a token chooses; `uniform` finds the share in memory that the slots are of
all experts (none, with fewer slots than one token needs). Experts of draft layers (MTP) are counted, and not read.
"""
