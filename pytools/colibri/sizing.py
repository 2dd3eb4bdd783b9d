"""What a model needs, from its config.json alone: memory, and bytes from storage for every token.

Sizes are the core's: it plans header and tables of the blob that the config would become, made in memory. For a
family that the core cannot run yet it plans a stand-in of the same widths, and the rest is summed from shapes.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from .blobfile import aligned_bytes
from .blobwriter import blank_tables
from .config_file import Config
from .convert import ConvertOptions
from .description import EVERY_LAYER
from .engine import Info, Limits, Model, Plan
from .errors import ConvertError
from .families import describe
from .format import Kinds, Layout, align, packed_bytes
from .library import constants
from .sizing_shapes import Part, Shapes, shapes_of

# Fields that change how a model computes but not one byte of it; left out where only they are in the way.
WITHOUT_BYTES = frozenset(
    """
    quantization_config auto_map num_nextn_predict_layers num_mtp_layers n_group topk_group rope_scaling
    rope_parameters rope_theta partial_rotary_factor hidden_act index_share_for_mtp_iteration ep_size moe_layer_freq
    topk_method scoring_func swiglu_limit initial_context_length experts_per_token
    """.split()
)
INDEX_BYTES = {"f32": 4.0, "f16": 2.0, "q8": 34 / 32}  # of one number of an indexer's key
TILE = 16  # positions


@dataclass(frozen=True)
class ExpertLayer:
    """The routed experts of one layer."""

    experts: int
    top_k: int
    run_bytes: int  # of one expert in the blob, padding included
    weights: int  # of one expert


@dataclass
class Sized:
    """The sizes of one model in one choice of kinds."""

    subject: Path
    model_type: str
    why_not: str  # why this build cannot run it; empty: it can
    kinds: Kinds
    layers: int
    info: Info = field(repr=False)  # the core's, of the stand-in where there is one
    parameters: int
    looked_up: int  # of the embedding: a token reads one row of them
    active: int  # parameters a token is multiplied with
    resident_bytes: int
    moe: list[ExpertLayer]
    plan: Callable[[Limits], Plan] = field(repr=False)  # the core's, or the stand-in's put right
    latent_bytes: float = 0.0  # MLA: of one position in one layer at f16
    index_layers: int = 0
    draft_layers: int = 0
    draft_experts: int = 0
    draft_bytes: int = 0

    @property
    def experts(self) -> int:
        """Routed experts that tokens can reach, all layers together."""
        return sum(layer.experts for layer in self.moe)

    @property
    def expert_bytes(self) -> int:
        """All of them."""
        return sum(layer.experts * layer.run_bytes for layer in self.moe)

    @property
    def chosen(self) -> int:
        """Experts of one token."""
        return sum(layer.top_k for layer in self.moe)

    @property
    def cold_bytes(self) -> int:
        """What one token reads if none of its experts is in memory."""
        return sum(layer.top_k * layer.run_bytes for layer in self.moe)

    def uniform_bytes(self, slots: int) -> float:
        """What one token reads on average if all experts of a layer are equally likely and `slots` are kept.

        The last experts used are kept: with fewer slots than one token has experts, none is there when its layer
        comes again.
        """
        if slots < min(self.chosen, self.experts):
            return float(self.cold_bytes)
        return self.cold_bytes * (1 - min(slots, self.experts) / self.experts) if self.experts else 0.0

    def streamed(self, limits: Limits, slots: int) -> Plan:
        """A plan that needs nothing but its pool: resident weights copied, experts in slots."""
        return self.plan(replace(limits, slots=slots, stream_experts=slots > 0, resident_copy=True))

    def fitting(self, limits: Limits, memory: int) -> Plan:
        """The plan with the most slots in `memory` bytes; the smallest one if none fits."""
        low, high = min(1, self.experts), self.experts
        best = self.streamed(limits, low)
        while low < high:
            middle = (low + high + 1) // 2
            plan = self.streamed(limits, middle)
            low, high, best = (middle, high, plan) if plan.pool_bytes <= memory else (low, middle - 1, best)
        return best


def sized(document: dict[str, Any], subject: Path, weights: str) -> Sized:
    """The sizes of the model that a config.json is about."""
    why, plain = "", {name: value for name, value in document.items() if name not in WITHOUT_BYTES}
    try:
        described = describe(document, str(subject))
    except ConvertError as error:
        why = str(error).removeprefix(f"{subject}: ")
        try:
            described = describe(plain, str(subject))
        except ConvertError:
            shapes = shapes_of(document, str(subject))
            if shapes is None:
                raise error from None
            return _of_shapes(shapes, subject, why, _kinds(weights, shapes.model.tied))
    kinds = _kinds(weights, described.model.tied)
    layout = Layout(described.model, kinds, {})
    model = _opened(layout, subject)
    info = model.info()
    moe = [
        ExpertLayer(run.experts, layout.model.layers[run.layer].need("top_k"), run.bytes,
                    sum(tensor.rows * tensor.columns for tensor in run.tensors))
        for run in layout.runs
        if run.layer < len(layout.model.layers)
    ]  # fmt: skip
    made = Sized(
        subject, described.model_type, why, kinds, info.layers, info, info.parameters,
        info.vocab * info.hidden, info.active_parameters, info.resident_bytes, moe, model.plan,
    )  # fmt: skip
    shapes = shapes_of(document, str(subject))
    if shapes:
        made.latent_bytes, made.index_layers = 2.0 * shapes.latent, shapes.index_layers
    _add_drafts(made, layout, document)
    return made


def _add_drafts(made: Sized, layout: Layout, document: dict[str, Any]) -> None:
    """What draft layers (MTP) are in the file; of a family whose drafts are not converted, one more layer like the
    last and a projection of both of its inputs."""
    count = len(layout.model.layers)
    if layout.model.drafts:
        own = [run for run in layout.runs if run.layer >= count]
        made.draft_layers, made.draft_experts = len(layout.model.drafts), max((run.experts for run in own), default=0)
        made.draft_bytes = sum(run.experts * run.bytes for run in own) + sum(
            tensor.bytes for tensor in layout.tensors if count <= tensor.layer < EVERY_LAYER and not tensor.expert
        )
        return
    config = Config(document, str(made.subject))
    name, last = config.first(("num_nextn_predict_layers", "num_mtp_layers")), len(layout.model.layers) - 1
    made.draft_layers = config.integer(name, 0, low=0, null=0)
    runs = [run for run in layout.runs if run.layer == last]
    hidden = layout.model.hidden
    inputs = packed_bytes(made.kinds.attention, hidden, 2 * hidden) + 3 * 4 * hidden
    one = inputs + sum(tensor.bytes for tensor in layout.tensors if tensor.layer == last and not tensor.expert)
    made.draft_experts = sum(run.experts for run in runs) if made.draft_layers else 0
    made.draft_bytes = made.draft_layers * (one + sum(run.experts * run.bytes for run in runs))


def _kinds(weights: str, tied: bool) -> Kinds:
    return ConvertOptions(weights=weights).kinds(tied)


def _opened(layout: Layout, subject: Path) -> Model:
    """The core's view of a blob of which only header and tables are there."""
    tables = blank_tables(layout)
    content = aligned_bytes(len(tables))
    content[:] = bytearray(tables)
    return Model(subject, content, layout.file_bytes)


def _bytes(part: Part, kinds: Kinds) -> int:
    kind = getattr(kinds, part.group) if part.group else "f32"
    size = 4 * part.columns if part.vector else packed_bytes(kind, part.rows, part.columns)
    return align(size, constants().TENSOR_ALIGN)


def _of_shapes(shapes: Shapes, subject: Path, why: str, kinds: Kinds) -> Sized:
    model, layers = shapes.model, shapes.model.layers
    layout = Layout(model, kinds, {})
    core = _opened(layout, subject)
    moe = []
    for run in layout.runs:
        mine = [part for part in shapes.parts if part.count and part.layer == run.layer]
        run_bytes = align(sum(_bytes(part, kinds) for part in mine), constants().EXPERT_ALIGN)
        moe.append(ExpertLayer(run.experts, layers[run.layer].need("top_k"), run_bytes, _weights(mine, 1)))
    drafts = [part for part in shapes.drafts if part.count]
    draft_run = align(sum(_bytes(part, kinds) for part in drafts), constants().EXPERT_ALIGN)
    draft_experts = max((part.count for part in drafts), default=0)
    resident = sum(_bytes(part, kinds) for part in shapes.parts if not part.count)
    return Sized(
        subject, shapes.model_type, why, kinds, len(layers), core.info(),
        _weights(shapes.parts, None), model.vocab * model.hidden, _active(shapes),
        resident, moe,
        _stand_in_plan(shapes, core, resident),
        latent_bytes=2.0 * shapes.latent, index_layers=shapes.index_layers,
        draft_layers=shapes.draft_layers, draft_experts=draft_experts,
        draft_bytes=sum(_bytes(part, kinds) for part in shapes.drafts if not part.count) + draft_experts * draft_run,
    )  # fmt: skip


def _weights(parts: list[Part], experts: int | None) -> int:
    """Numbers in parts; of `experts` experts, None: of all."""
    return sum(part.rows * part.columns * ((part.count if experts is None else experts) if part.count else 1)
               for part in parts)  # fmt: skip


def _active(shapes: Shapes) -> int:
    """As the core counts: a row of the embedding, unless it is the head too; the chosen experts; the rest whole."""
    total = 0
    for part in shapes.parts:
        size = part.rows * part.columns
        if part.layer == EVERY_LAYER:
            total += part.columns if part.group == "embed" and not shapes.model.tied else size
            continue
        layer = shapes.model.layers[part.layer]
        if part.count:
            size *= layer.need("top_k")
        elif part.of_experts:
            size = size * layer.need("top_k") // layer.need("experts")
        total += size
    return total


def _stand_in_plan(shapes: Shapes, model: Model, resident: int) -> Callable[[Limits], Plan]:
    """The stand-in's plan with the model's own cache and resident weights instead of the stand-in's."""

    def plan(limits: Limits) -> Plan:
        made = model.plan(replace(limits, resident_copy=False))
        before = {region.name: region.bytes for region in made.regions}
        each = shapes.index_layers * shapes.index_dim * INDEX_BYTES[limits.kv]
        halved = 2 if shapes.halved_kv else 1
        after = {
            "kv": before["kv"] // halved + math.ceil(each * align(limits.context, TILE)) * limits.sequences,
            "resident": align(resident, made.align) if limits.resident_copy else 0,
        }
        regions = tuple(replace(r, bytes=after.get(r.name, r.bytes)) for r in made.regions)
        return replace(
            made,
            limits=limits,
            regions=regions,
            pool_bytes=made.pool_bytes + sum(size - before[name] for name, size in after.items()),
            resident_bytes=resident,
            kv_bytes_per_token=made.kv_bytes_per_token // halved + math.ceil(each),
        )

    return plan
