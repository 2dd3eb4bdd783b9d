"""A model's description: what the tables of a blob say, and the records that say it.

The field names of `Model` and `Layer` are the keys of core/blob/colibri_format.h in lower case; None means
that the record is absent.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass, field
from typing import Any

from .errors import InternalError
from .library import constants, key_types, values

EVERY_LAYER = 0xFFFFFFFF


@dataclass(frozen=True)
class Rope:
    """One rope kind: a fraction of a turn per pair, and the amplitude of cosine and sine."""

    fractions: tuple[int, ...]
    interleaved: bool = False
    amplitude: float = 1.0


@dataclass
class Layer:
    """One layer; field names are the layer keys of the format, None is an absent record."""

    attention: int | None = None
    heads: int | None = None
    kv_heads: int | None = None
    head_dim: int | None = None
    rope: int | None = None
    window: int | None = None
    score_scale: float | None = None
    qk_norm: int | None = None
    norm_eps: float | None = None
    biases: int | None = None
    ffn: int | None = None
    activation: int | None = None
    ff: int | None = None
    experts: int | None = None
    top_k: int | None = None
    router_score: int | None = None
    router_renormalise: int | None = None
    router_scale: float | None = None
    router_eps: float | None = None
    shared_ff: int | None = None
    shared_gate: int | None = None
    residual_multiplier: float | None = None
    sinks: int | None = None
    clip_qkv: float | None = None
    router_bias: int | None = None
    router_groups: int | None = None
    router_top_groups: int | None = None
    router_group_score: int | None = None
    router_weight_on: int | None = None
    router_sum_min: float | None = None
    router_jitter: float | None = None
    router_choice: int | None = None
    query_floor: int | None = None
    query_step: float | None = None
    router_span: int | None = None  # the integer router
    swiglu_limit: float | None = None
    ffn_biases: int | None = None
    norm: int | None = None
    post_norms: int | None = None
    chunk: int | None = None
    latent: int | None = None  # latent attention: these five, and kv_heads 1, head_dim latent + rope_dim
    nope_dim: int | None = None
    rope_dim: int | None = None
    v_dim: int | None = None
    q_latent: int | None = None
    latent_eps: float | None = None
    index_heads: int | None = None  # sparse latent attention; without heads: the choice of a layer before
    index_dim: int | None = None
    index_top_k: int | None = None
    index_rope: int | None = None
    draft: int | None = None  # 1 in Model.drafts
    router_by_token: int | None = None
    head_gates: int | None = None  # colibri_head_gates: what was attended, times sigmoids
    expert_run: int | None = None  # filled in by Layout

    def need(self, name: str) -> int:
        """A whole number that the layer cannot do without."""
        value = getattr(self, name)
        if value is None:
            raise InternalError(f"the description of a layer lacks {name}")
        return int(value)

    @property
    def moe(self) -> bool:
        """Whether the layer has routed experts."""
        return self.ffn == constants().FFN_MOE


@dataclass
class Model:
    """A whole model; the first fields are the model keys of the format."""

    vocab: int
    hidden: int
    trained_context: int | None = None
    final_eps: float | None = None
    embed_multiplier: float | None = None
    logit_multiplier: float | None = None
    tied: bool = False
    layers: list[Layer] = field(default_factory=list)
    ropes: list[Rope] = field(default_factory=list)
    logit_softcap: float | None = None
    final_norm: int | None = None
    head_bias: int | None = None
    drafts: list[Layer] = field(default_factory=list)  # layers behind the last that guess further tokens

    @property
    def draft_layers(self) -> int | None:
        """How many there are; None is an absent record."""
        return len(self.drafts) or None

    @property
    def all_layers(self) -> list[Layer]:
        """The layers by their numbers in the file: those of a run, then the drafts."""
        return [*self.layers, *self.drafts]


# A record for each layer even where all agree: calibration sets them in a file that is laid out already.
_OWN = frozenset({"ROUTER_SPAN"})
# What may be left unread without changing an answer; everything else must be understood.
_MAY_SKIP = {("colibri_model_key", "TRAINED_CONTEXT")}


def f32_bits(value: float) -> int:
    """The bits of a float32."""
    return struct.unpack("<I", struct.pack("<f", value))[0]


def f32_of(bits: int) -> float:
    """The float32 of its bits."""
    return struct.unpack("<f", struct.pack("<I", bits & 0xFFFFFFFF))[0]


def record(enum: str, key: str, value: Any, layer: int = EVERY_LAYER) -> dict[str, int]:
    """One typed value as the fields of colibri_record."""
    c = constants()
    kind = key_types(enum)[key]
    must = 0 if (enum, key) in _MAY_SKIP or enum == "colibri_generation_key" else c.RECORD_MUST
    raw = f32_bits(value) if kind == "f32" else int(value)
    return {
        "layer": layer,
        "key": values(enum)[key],
        "type": getattr(c, "TYPE_" + kind.upper()),
        "flags": must,
        "value": raw,
    }


def model_records(model: Model) -> list[dict[str, int]]:
    """The MODEL section."""
    out = []
    for key in key_types("colibri_model_key"):
        value = len(model.layers) if key == "LAYERS" else getattr(model, key.lower())
        if value is not None:
            out.append(record("colibri_model_key", key, value))
    return sorted(out, key=lambda r: r["key"])


def layer_records(layers: list[Layer]) -> list[dict[str, int]]:
    """The LAYERS section: what all layers share comes once, then what is a layer's own."""
    rows = []
    for number, layer in enumerate(layers):
        pairs = ((key, getattr(layer, key.lower())) for key in key_types("colibri_layer_key"))
        made = [record("colibri_layer_key", key, value, number) for key, value in pairs if value is not None]
        rows.append({r["key"]: r for r in made})
    common, own = [], {values("colibri_layer_key")[key] for key in _OWN}
    for key, first in sorted(rows[0].items()):
        if key in own:
            continue
        everywhere = [row[key]["value"] for row in rows if key in row]
        if len(everywhere) == len(rows) and len(set(everywhere)) == 1:
            common.append({**first, "layer": EVERY_LAYER})
    shared = {r["key"] for r in common}
    return common + [row[key] for row in rows for key in sorted(row) if key not in shared]
