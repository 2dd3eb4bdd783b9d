"""The description of a model: what a checkpoint's config says, in the terms of docs/NUMERICS.md."""
from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from .attention import KV_KINDS
from .matrix import KINDS
from .rope import rope_fractions

F = np.float32
SCORES = ("softmax", "sigmoid", "sqrt_softplus", "logit", "sparse_mixer")


@dataclass(frozen=True)
class Rope:
    """Rotary positions of a layer."""

    rope_dim: int
    fractions: NDArray[np.uint64]
    amplitude: np.float32 = F(1)
    interleaved: bool = False

    @classmethod
    def make(cls, theta: float, rope_dim: int, scaling: Mapping | None = None,
             interleaved: bool = False) -> Rope:
        """From a config's numbers."""
        return cls(rope_dim, *rope_fractions(theta, rope_dim, scaling), interleaved)


@dataclass(frozen=True)
class Attention:
    """Attention of a layer. window 0 means none; rope None means no rotation.

    qk_norm is over each head, or with qk_norm_wide over all heads at once; clip clamps q, k and v after it.
    """

    heads: int
    kv_heads: int
    head_dim: int
    score_scale: np.float32
    rope: Rope | None
    q_bias: bool = False
    k_bias: bool = False
    v_bias: bool = False
    o_bias: bool = False
    qk_norm: bool = False
    window: int = 0
    qk_norm_wide: bool = False
    clip: np.float32 | None = None
    after_rope: str = ""  # "head" or "l2": q/k norm per head after the rotation
    chunk: int = 0
    sinks: bool = False
    query_floor: int = 0  # 0: queries do not grow with the position
    query_step: np.float32 = F(0)
    gates: str = ""  # "head" or "element": what was attended, times sigmoids


@dataclass(frozen=True)
class LatentAttention:
    """Latent attention of a layer. q_latent 0 means that queries come straight from the norm."""

    heads: int
    latent: int
    nope_dim: int
    rope_dim: int
    v_dim: int
    q_latent: int
    score_scale: np.float32
    rope: Rope | None
    latent_eps: np.float32
    q_bias: bool = False  # of the matrix that makes the latent of the queries
    k_bias: bool = False
    o_bias: bool = False
    window: int = 0
    index_top_k: int = 0  # positions a row looks at, 0 means all
    index_heads: int = 0  # 0: those that the nearest layer before with index heads chose
    index_dim: int = 0
    index_rope: Rope | None = None

    @property
    def key_dim(self) -> int:
        """Width of a cached key: the latent, then the rope key."""
        return self.latent + self.rope_dim


@dataclass(frozen=True)
class Convolution:
    """A short convolution instead of attention: taps a channel, gated on both sides."""

    channels: int
    taps: int
    q_bias: bool = False
    k_bias: bool = False
    v_bias: bool = False
    o_bias: bool = False
    taps_bias: bool = False


@dataclass(frozen=True)
class DenseFfn:
    """A gated feed-forward block; biases: which of "gate", "up", "down" have one."""

    ff: int
    activation: str = "silu"
    limit: np.float32 | None = None
    biases: tuple[str, ...] = ()


@dataclass(frozen=True)
class MoeFfn:
    """Routed experts, with an optional shared one (shared_ff 0 means none)."""

    experts: int
    top_k: int
    ff: int
    renormalise: bool | str = True  # True is "sum"; or "softmax" of the chosen, or "root" of the squares
    scale: np.float32 = F(1)
    score: str = "softmax"  # or one of SCORES
    renormalise_eps: np.float32 | None = None
    shared_ff: int = 0
    shared_gate: bool = False
    bias: str = ""  # on the "score" or the "logit" of the "choice" alone, or in the "logit" itself
    groups: int = 0  # 0: none; else equal groups of neighbours
    top_groups: int = 0
    group_score: str = "max"  # or "top_two"; "each": every group gives as many of its experts
    weight_on: str = "output"  # or "input"
    sum_min: np.float32 = F(0)
    jitter: np.float32 = F(0)
    by_logit: bool = False  # the choice
    by_token: bool = False  # the experts of a row are those of its token in a table
    span: int = 0  # of the integer router, 0: float router
    activation: str = "silu"
    limit: np.float32 | None = None
    biases: tuple[str, ...] = ()  # of every routed expert: "gate", "up", "down"


@dataclass(frozen=True)
class LayerDesc:
    """One layer."""

    attention: Attention | LatentAttention | Convolution
    ffn: DenseFfn | MoeFfn
    norm: str = "rms"  # or "layer", "layer_bias"
    post_norms: tuple[str, ...] = ()  # "attention", "ffn"


@dataclass(frozen=True)
class Kinds:
    """Weight kind per role: f32, f16, q8 or q4."""

    attention: str = "f32"
    dense: str = "f32"
    experts: str = "f32"
    shared: str = "f32"
    embed: str = "f32"
    head: str = "f32"

    @classmethod
    def all(cls, kind: str) -> Kinds:
        """One kind everywhere."""
        return cls(kind, kind, kind, kind, kind, kind)

    @classmethod
    def q4_model(cls) -> Kinds:
        """What the page calls a q4 model: experts and dense FFN q4, the rest q8."""
        return cls("q8", "q4", "q4", "q8", "q8", "q8")


@dataclass(frozen=True)
class Description:
    """A whole model."""

    vocab: int
    hidden: int
    layers: Sequence[LayerDesc]
    eps: np.float32
    tied: bool = False
    embedding_multiplier: np.float32 | None = None
    residual_multiplier: np.float32 | None = None
    logit_multiplier: np.float32 | None = None
    final_norm: str = "rms"
    head_bias: bool = False
    softcap: np.float32 | None = None
    kinds: Kinds = field(default_factory=Kinds)
    kv_kind: str = "f32"


def check(desc: Description) -> None:
    """One clear sentence for a description that has no meaning here."""
    for role, kind in vars(desc.kinds).items():
        if kind not in KINDS:
            raise ValueError(f"kinds.{role}: expected one of {', '.join(KINDS)}, found {kind!r}")
    if desc.kv_kind not in KV_KINDS:
        raise ValueError(f"kv_kind: expected one of {', '.join(KV_KINDS)}, found {desc.kv_kind!r}")
    if desc.tied and desc.kinds.embed != desc.kinds.head:
        raise ValueError(f"kinds.head: expected {desc.kinds.embed!r}, the kind of the tied embedding, found "
                         f"{desc.kinds.head!r}")
    for i, layer in enumerate(desc.layers):
        a = layer.attention
        if isinstance(a, LatentAttention):
            if a.rope and len(a.rope.fractions) * 2 > a.rope_dim:
                raise ValueError(f"layers.{i}: expected at most {a.rope_dim // 2} pairs, found "
                                 f"{len(a.rope.fractions)}")
        elif isinstance(a, Convolution):
            if a.taps < 1:
                raise ValueError(f"layers.{i}: expected at least one tap, found {a.taps}")
        elif a.heads % a.kv_heads:
            raise ValueError(f"layers.{i}: expected heads to be a multiple of kv_heads, found {a.heads} and "
                             f"{a.kv_heads}")
        elif a.rope and (a.rope.rope_dim > a.head_dim or len(a.rope.fractions) * 2 != a.rope.rope_dim):
            raise ValueError(f"layers.{i}: expected rope_dim <= head_dim {a.head_dim} and half as many "
                             f"fractions, found {a.rope.rope_dim} and {len(a.rope.fractions)}")
        if isinstance(layer.ffn, MoeFfn):
            if layer.ffn.score not in SCORES:
                raise ValueError(f"layers.{i}: expected router score {', '.join(SCORES)}, found "
                                 f"{layer.ffn.score!r}")
            if not 1 <= layer.ffn.top_k <= layer.ffn.experts:
                raise ValueError(f"layers.{i}: expected top_k in 1..{layer.ffn.experts}, found "
                                 f"{layer.ffn.top_k}")
