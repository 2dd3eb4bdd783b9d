"""What a model needs, from its config.json alone: memory, and bytes from storage for every token.

Sizes are the core's: it plans header and tables of the blob that the config would become, made in memory.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from .blobfile import BlobFile, aligned_bytes
from .blobwriter import blank_tables
from .config_file import Config
from .convert import ConvertOptions
from .description import EVERY_LAYER
from .engine import Info, Limits, Model, Plan
from .errors import ConvertError
from .families import describe
from .format import Kinds, Layout, Tensor, packed_bytes

# Fields that change how a model computes but not one byte of it; left out where only they are in the way.
WITHOUT_BYTES = frozenset(
    """
    quantization_config auto_map num_nextn_predict_layers num_mtp_layers n_group topk_group rope_scaling
    rope_parameters rope_theta partial_rotary_factor hidden_act index_share_for_mtp_iteration ep_size moe_layer_freq
    topk_method scoring_func swiglu_limit initial_context_length experts_per_token
    """.split()
)


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
    info: Info = field(repr=False)  # the core's
    parameters: int
    looked_up: int  # of the embedding: a token reads one row of them
    active: int  # parameters a token is multiplied with
    resident_bytes: int
    moe: list[ExpertLayer]
    plan: Callable[[Limits], Plan] = field(repr=False)  # the core's
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
        return cold_bytes(self.moe)

    def uniform_bytes(self, slots: int) -> float:
        """What one token reads on average if all experts of a layer are equally likely and `slots` are kept."""
        return uniform_bytes(self.moe, slots)

    def streamed(self, limits: Limits, slots: int) -> Plan:
        """A plan that needs nothing but its pool: resident weights copied, experts in slots."""
        return self.plan(streamed(limits, slots))

    def fitting(self, limits: Limits, memory: int) -> Plan:
        """The plan with the most slots in `memory` bytes; the smallest one if none fits."""
        return fitting(self.plan, limits, self.experts, memory)


def expert_layers(blob: BlobFile) -> list[ExpertLayer]:
    """The routed experts of a blob that is here, layer by layer."""
    runs: dict[int, list[Tensor]] = {}
    layers = blob.model().layers
    for tensor in blob.tensors:
        if tensor.role.startswith("EXPERT_"):
            runs.setdefault(tensor.layer, []).append(tensor)
    return [
        ExpertLayer(parts[0].count, int(layers[layer].need("top_k")), parts[0].stride,
                    sum(tensor.rows * tensor.columns for tensor in parts))
        for layer, parts in sorted(runs.items())
    ]  # fmt: skip


def cold_bytes(layers: list[ExpertLayer]) -> int:
    """What one token reads if none of its experts is in memory."""
    return sum(layer.top_k * layer.run_bytes for layer in layers)


def uniform_bytes(layers: list[ExpertLayer], slots: int) -> float:
    """What one token reads on average if all experts of a layer are equally likely and `slots` are kept.

    The last experts used are kept: with fewer slots than one token has experts, none is there when its layer comes
    again.
    """
    experts, chosen = sum(layer.experts for layer in layers), sum(layer.top_k for layer in layers)
    if slots < min(chosen, experts):
        return float(cold_bytes(layers))
    return cold_bytes(layers) * (1 - min(slots, experts) / experts) if experts else 0.0


def streamed(limits: Limits, slots: int) -> Limits:
    """Limits of a session that needs nothing but its pool: resident weights copied, experts in slots."""
    return replace(limits, slots=slots, stream_experts=slots > 0, resident_copy=True)


def fitting(plan_of: Callable[[Limits], Plan], limits: Limits, experts: int, memory: int) -> Plan:
    """The core's plan with the most slots in `memory` bytes; the smallest one if none fits."""
    low, high = min(1, experts), experts
    best = plan_of(streamed(limits, low))
    while low < high:
        middle = (low + high + 1) // 2
        plan = plan_of(streamed(limits, middle))
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
            raise error from None
    kinds = ConvertOptions(weights=weights).kinds(described.model.tied)
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
        max(2.0 * ((layer.latent or 0) + (layer.rope_dim or 0)) for layer in layout.model.layers),
        sum(bool(layer.index_heads) for layer in layout.model.layers),
    )  # fmt: skip
    _add_drafts(made, layout, document)
    return made


def _add_drafts(made: Sized, layout: Layout, document: dict[str, Any]) -> None:
    """What draft layers (MTP) are in the file; of a family whose drafts are not converted, one more layer like the
    last and a projection of both of its inputs."""
    count = len(layout.model.layers)
    if layout.model.drafts:
        own = [run for run in layout.runs if run.layer >= count]
        made.draft_layers, made.draft_experts = len(layout.model.drafts), sum(run.experts for run in own)
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


def _opened(layout: Layout, subject: Path) -> Model:
    """The core's view of a blob of which only header and tables are there."""
    tables = blank_tables(layout)
    content = aligned_bytes(len(tables))
    content[:] = bytearray(tables)
    return Model(subject, content, layout.file_bytes)
