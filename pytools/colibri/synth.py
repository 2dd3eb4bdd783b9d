"""Random blobs of any description, for verification: small, odd-sized, and the same bytes on every machine.

Numbers are cut from SHAKE-256 streams that belong to (seed, name), so that they depend on nothing else.
"""

from __future__ import annotations

import hashlib
import math
from dataclasses import dataclass, field, replace
from decimal import Decimal
from pathlib import Path
from typing import Any

import numpy as np

from .blobwriter import Written, write_blob
from .description import EVERY_LAYER, Layer, Model, Rope
from .errors import UsageError
from .format import Kinds, Tensor, required
from .library import constants
from .rope import Scaling, inverse_root

LLAMA3 = {
    "rope_type": "llama3",
    "factor": 8,
    "low_freq_factor": 1,
    "high_freq_factor": 4,
    "original_max_position_embeddings": 64,
}
YARN = {"rope_type": "yarn", "factor": 4, "original_max_position_embeddings": 32}
LINEAR = {"rope_type": "linear", "factor": 2}


@dataclass(frozen=True)
class Spec:
    """A model in a few numbers; the defaults are a small dense model of odd sizes."""

    vocab: int = 77
    hidden: int = 40
    layers: int = 2
    heads: int = 4
    kv_heads: int = 2
    head_dim: int = 20
    ff: int = 40
    experts: int = 0  # 0: dense
    top_k: int = 2
    expert_ff: int = 24
    dense_layers: tuple[int, ...] = ()  # layers of a MoE that have no experts
    uneven: bool = False  # every layer has one expert and eight columns more than the one before
    score: str = "softmax"
    renormalise: bool | str = True  # or one of colibri_renormalise
    router_scale: float | None = None
    router_eps: float | None = None
    router_sum_min: float | None = None
    router_jitter: float | None = None
    router_bias: str = ""  # score, choice or logit
    by_logit: bool = False  # the choice
    groups: int = 0
    top_groups: int = 0
    group_score: str = "max"
    weight_on: str = "output"
    router_span: int = 0  # of the integer router
    shared_ff: int = 0
    shared_gate: bool = False
    biases: str = ""  # any of q, k, v, o
    qk_norm: bool = False
    qk_norm_wide: bool = False  # over all heads at once
    clip_qkv: float | None = None
    qk_after: str = ""  # "head", "l2": q/k norm after the rotation
    sinks: bool = False
    head_gates: str = ""  # head, element
    chunk: int = 0
    query_floor: int = 0
    query_step: float = 0.0
    activation: str = "silu"
    swiglu_limit: float | None = None
    ffn_biases: str = ""  # any of g, u, d
    norm: str = "rms"  # rms, layer, layer_bias
    post_norms: str = ""  # any of a, f
    head_bias: bool = False
    softcap: float | None = None
    conv: int = 0  # taps of a convolution
    conv_layers: tuple[int, ...] = ()  # layers that have one instead of attention
    latent: int = 0  # latent attention of this width; then head_dim is nope_dim + rope_dim
    q_latent: int = 0
    rope_dim: int = 8
    v_dim: int = 16
    latent_eps: float | None = None
    index_heads: int = 0  # sparse latent attention
    index_dim: int = 12
    index_top_k: int = 7
    index_layers: tuple[int, ...] = (0,)  # layers with index heads; the others take over
    index_interleaved: bool = False
    window: int = 0
    window_layers: tuple[int, ...] | None = None  # None: all layers, if there is a window
    rope: dict[str, Any] | None = field(default_factory=dict)  # scaling fields; None: no rotation
    rope_layers: tuple[int, ...] | None = None  # None: all layers
    theta: int = 10000
    rotary: str = "1"  # rotated share of head_dim
    interleaved: bool = False
    tied: bool = False
    eps: float = 1e-5
    score_scale: float | None = None  # None: 1 / sqrt(head_dim)
    residual_multiplier: float | None = None
    embed_multiplier: float | None = None
    logit_multiplier: float | None = None
    trained_context: int = 256
    token_layers: tuple[int, ...] = ()  # layers whose experts are those of the token
    drafts: int = 0  # layers like the last one behind it that guess further tokens

    def model(self) -> Model:
        """The description."""
        ropes = []
        if self.rope is not None:
            fields = {**self.rope, "partial_rotary_factor": Decimal(self.rotary)}
            width = self.rope_dim if self.latent else self.head_dim
            scaling = Scaling(fields, self.theta, width, self.trained_context, "synth")
            ropes = [Rope(scaling.fractions(), self.interleaved, scaling.amplitude())]
            if self.index_heads:
                ropes.append(replace(ropes[0], interleaved=self.index_interleaved))
        return Model(
            self.vocab,
            self.hidden,
            self.trained_context,
            self.eps,
            self.embed_multiplier,
            self.logit_multiplier,
            self.tied,
            [self._layer(i) for i in range(self.layers)],
            ropes,
            self.softcap,
            _norm(self.norm),
            int(self.head_bias) or None,
            [replace(self._layer(self.layers + i), draft=1) for i in range(self.drafts)],
        )

    def _attention(self) -> dict[str, Any]:
        """The kind of attention and its widths."""
        if not self.latent:
            return {
                "attention": constants().ATTENTION_GQA,
                "kv_heads": self.kv_heads,
                "head_dim": self.head_dim,
            }
        return {
            "attention": constants().ATTENTION_MLA,
            "kv_heads": 1,
            "head_dim": self.latent + self.rope_dim,
            "latent": self.latent,
            "nope_dim": self.head_dim - self.rope_dim,
            "rope_dim": self.rope_dim,
            "v_dim": self.v_dim,
            "q_latent": self.q_latent or None,
            "latent_eps": self.latent_eps,
        }

    def _index(self, number: int) -> dict[str, Any]:
        """Which positions a layer looks at."""
        if not self.index_heads:
            return {}
        if number not in self.index_layers:
            return {"index_top_k": self.index_top_k}
        return {
            "index_heads": self.index_heads,
            "index_dim": self.index_dim,
            "index_top_k": self.index_top_k,
            "index_rope": 1 if self.rope is not None else None,
        }

    def _layer(self, number: int) -> Layer:
        c = constants()
        windowed = self.window and (self.window_layers is None or number in self.window_layers)
        rotated = self.rope is not None and (self.rope_layers is None or number in self.rope_layers)
        layer = Layer(
            **self._attention(),
            **self._index(number),
            heads=self.heads,
            rope=0 if rotated else None,
            window=self.window if windowed else None,
            score_scale=self.score_scale or inverse_root(self.head_dim),
            norm_eps=self.eps,
            qk_norm=_qk_norm(self),
            clip_qkv=self.clip_qkv,
            biases=sum(getattr(c, "BIAS_" + letter.upper()) for letter in self.biases),
            activation=getattr(c, "ACTIVATION_" + self.activation.upper()),
            swiglu_limit=self.swiglu_limit,
            ffn_biases=sum({"g": c.FFN_BIAS_GATE, "u": c.FFN_BIAS_UP, "d": c.FFN_BIAS_DOWN}[x] for x in self.ffn_biases)
            or None,
            norm=_norm(self.norm),
            post_norms=sum({"a": c.POST_NORM_ATTENTION, "f": c.POST_NORM_FFN}[x] for x in self.post_norms) or None,
            sinks=int(self.sinks) or None,
            head_gates=getattr(c, "HEAD_GATES_" + self.head_gates.upper()) if self.head_gates else None,
            chunk=self.chunk or None,
            query_floor=self.query_floor or None,
            query_step=self.query_step if self.query_floor else None,
            residual_multiplier=self.residual_multiplier,
        )
        if number in self.conv_layers:
            biases = sum(getattr(c, "BIAS_" + x.upper()) for x in self.biases) | (c.BIAS_TAPS if self.biases else 0)
            layer = replace(
                layer, attention=c.ATTENTION_CONV, heads=1, kv_heads=1, head_dim=self.hidden - 3, window=self.conv,
                rope=None, score_scale=1.0, qk_norm=c.QK_NORM_NONE, biases=biases, clip_qkv=None, sinks=None,
                head_gates=None, chunk=None, query_floor=None, query_step=None,
            )  # fmt: skip
        if not self.experts or number in self.dense_layers:
            return replace(layer, ffn=c.FFN_DENSE, ff=self.ff)
        return replace(
            layer,
            ffn=c.FFN_MOE,
            ff=self.expert_ff + (8 * number if self.uneven else 0),
            experts=self.experts + (number if self.uneven else 0),
            top_k=self.top_k,
            router_score=getattr(c, "ROUTER_" + self.score.upper()),
            router_scale=self.router_scale,
            router_eps=self.router_eps,
            router_renormalise=_renormalise(self.renormalise),
            router_sum_min=self.router_sum_min,
            router_jitter=self.router_jitter,
            router_bias=getattr(c, "ROUTER_BIAS_" + self.router_bias.upper()) if self.router_bias else None,
            router_choice=c.CHOICE_BY_LOGIT if self.by_logit else None,
            router_groups=self.groups or None,
            router_top_groups=self.top_groups or None,
            router_group_score=getattr(c, "GROUP_" + self.group_score.upper()) if self.groups else None,
            router_weight_on=c.ROUTER_ON_INPUT if self.weight_on == "input" else None,
            router_by_token=int(number in self.token_layers) or None,
            router_span=self.router_span or None,
            shared_ff=self.shared_ff or None,
            shared_gate=int(self.shared_gate) if self.shared_ff else None,
        )


def _qk_norm(spec: Spec) -> int:
    c = constants()
    if spec.qk_after:
        return {"head": c.QK_NORM_HEAD_AFTER_ROPE, "l2": c.QK_NORM_L2_AFTER_ROPE}[spec.qk_after]
    wide = c.QK_NORM_WIDTH if spec.qk_norm_wide else c.QK_NORM_HEAD
    return wide if spec.qk_norm else c.QK_NORM_NONE


def _renormalise(how: bool | str) -> int:
    name = ("SUM" if how else "NONE") if isinstance(how, bool) else how.upper()
    return int(getattr(constants(), "RENORMALISE_" + name))


def _norm(kind: str) -> int | None:
    """None: RMS, as in a blob without the key."""
    return None if kind == "rms" else getattr(constants(), "NORM_" + kind.upper())


SPECS = {
    "dense": Spec(),
    "tied": Spec(tied=True, kv_heads=4, head_dim=8, ff=33),
    "moe": Spec(experts=5, top_k=2),
    "mixed": Spec(
        layers=3,
        experts=4,
        top_k=3,
        dense_layers=(0,),
        renormalise=False,
        router_scale=1.5,
        shared_ff=36,
        shared_gate=True,
        biases="qkv",
        qk_norm=True,
    ),
    "shared": Spec(
        experts=6,
        top_k=6,
        shared_ff=17,
        biases="qkvo",
        kv_heads=1,
        heads=3,
        tied=True,
        router_eps=1e-9,
        router_scale=0.75,
    ),
    "window": Spec(layers=3, window=7, window_layers=(0, 2), rope=LLAMA3, qk_norm=True),
    "yarn": Spec(rope=YARN, rotary="0.5", interleaved=True, heads=2, kv_heads=2, head_dim=24),
    "linear": Spec(
        rope=LINEAR, experts=3, top_k=1, theta=1000000, hidden=64, ff=64, expert_ff=64, head_dim=16
    ),
    "nope": Spec(rope_layers=(1,), residual_multiplier=0.5, embed_multiplier=3.0, logit_multiplier=0.25),
    "wide": Spec(experts=4, qk_norm=True, qk_norm_wide=True, clip_qkv=0.75, renormalise=False),
    "sigmoid": Spec(experts=6, top_k=3, score="sigmoid", router_scale=2.5, router_eps=1e-20, qk_norm=True),
    "bias": Spec(experts=9, top_k=4, router_bias="score", router_sum_min=0.4, router_scale=1.25),
    "groups": Spec(
        layers=3,
        experts=12,
        top_k=4,
        dense_layers=(1,),
        score="sigmoid",
        router_bias="score",
        groups=4,
        top_groups=2,
        group_score="top_two",
        router_scale=2.5,
        router_eps=1e-20,
        shared_ff=24,
    ),
    "group_max": Spec(experts=12, top_k=3, groups=6, top_groups=3, renormalise=False, router_scale=4.0),
    "choice": Spec(experts=40, top_k=6, score="sigmoid", router_bias="choice", renormalise=False),
    "chosen": Spec(experts=7, top_k=3, score="logit", renormalise="softmax", router_bias="logit"),
    "softplus": Spec(experts=6, top_k=2, score="sqrt_softplus", router_bias="score", renormalise="root"),
    "each_group": Spec(experts=12, top_k=8, groups=4, top_groups=4, group_score="each", shared_ff=20),
    "each_bias": Spec(experts=40, top_k=5, groups=5, top_groups=5, group_score="each", score="sigmoid",
                      router_bias="score", renormalise=False, router_scale=1.5),
    "by_token": Spec(layers=3, experts=9, top_k=4, score="sqrt_softplus", router_eps=1e-20, router_scale=1.5,
                     token_layers=(0, 1), shared_ff=20),
    "by_token_softmax": Spec(experts=7, top_k=3, token_layers=(1,), renormalise=False, router_bias="logit"),
    "drafts": Spec(experts=5, top_k=2, shared_ff=20, drafts=2, uneven=True, dense_layers=(0,), qk_norm=True),
    "latent-drafts": Spec(
        heads=3,
        latent=32,
        q_latent=24,
        head_dim=20,
        interleaved=True,
        index_heads=5,
        index_layers=(0, 2),
        experts=4,
        drafts=1,
    ),
    "on_input": Spec(experts=5, top_k=2, score="sigmoid", renormalise=False, weight_on="input", by_logit=True,
                     shared_ff=20),
    "mixer": Spec(experts=8, top_k=2, score="sparse_mixer", renormalise=False, router_jitter=0.3),
    "fixed": Spec(layers=3, experts=9, top_k=3, router_span=4, router_scale=1.5, router_eps=1e-20, dense_layers=(1,)),
    "fixed_plain": Spec(
        experts=24, top_k=5, groups=6, top_groups=3, renormalise=False, router_scale=16.0, router_span=8, shared_ff=20
    ),
    "fixed_chosen": Spec(
        experts=40, top_k=6, score="logit", renormalise="softmax", router_bias="logit", router_span=1
    ),
    "fixed_sigmoid": Spec(experts=6, top_k=3, score="sigmoid", router_span=16, router_eps=1e-20),
    "fixed_input": Spec(
        experts=5, top_k=2, score="sigmoid", renormalise=False, weight_on="input", by_logit=True, router_span=2
    ),
    "latent": Spec(
        heads=3,
        latent=48,
        q_latent=24,
        v_dim=16,
        head_dim=20,
        interleaved=True,
        biases="qko",
        latent_eps=1e-3,
        rope=YARN,
        layers=3,
        experts=5,
        shared_ff=17,
        dense_layers=(0,),
        window=9,
        window_layers=(1,),
    ),
    "latent-plain": Spec(heads=10, latent=16, v_dim=32, head_dim=11, rope_dim=6, interleaved=True, kv_heads=1),
    "sparse": Spec(
        heads=3,
        latent=32,
        q_latent=24,
        v_dim=16,
        head_dim=20,
        interleaved=True,
        layers=4,
        index_heads=11,
        index_layers=(0, 2),
    ),
    "uneven": Spec(layers=3, experts=1, top_k=1, uneven=True, expert_ff=40, hidden=70, kv_heads=4),
    "oss": Spec(
        experts=5,
        sinks=True,
        window=9,
        window_layers=(0,),
        activation="clamped_plus_one",
        swiglu_limit=0.7,
        ffn_biases="gud",
        biases="qkvo",
    ),
    "clamped": Spec(activation="clamped", swiglu_limit=0.5, ffn_biases="ud", sinks=True, kv_heads=1, norm="layer"),
    "norms": Spec(
        experts=3,
        norm="layer_bias",
        post_norms="af",
        qk_after="head",
        head_bias=True,
        softcap=3.0,
        residual_multiplier=0.5,
        shared_ff=20,
    ),
    "posts": Spec(
        layers=3,
        post_norms="f",
        qk_after="l2",
        chunk=11,
        activation="gelu_tanh",
        ffn_biases="g",
        experts=4,
        dense_layers=(1,),
        tied=True,
        head_bias=True,
    ),
    "turns": Spec(
        layers=3,
        rope_layers=(0, 2),
        interleaved=True,
        qk_after="l2",
        chunk=7,
        query_floor=4,
        query_step=0.5,
        experts=4,
        top_k=1,
        dense_layers=(0,),
        score="sigmoid",
        by_logit=True,
        renormalise=False,
        weight_on="input",
        shared_ff=24,
    ),
    "head-gates": Spec(head_gates="head", heads=5, kv_heads=1, biases="qo", window=9, window_layers=(1,), qk_norm=True,
                       experts=4, dense_layers=(0,)),
    "gates": Spec(layers=3, head_gates="element", heads=6, head_dim=11, rope=None, clip_qkv=0.75, sinks=True,
                  post_norms="af", score_scale=0.3),
    "gated-conv": Spec(layers=3, head_gates="element", heads=7, kv_heads=7, head_dim=12, hidden=50, conv=3,
                       conv_layers=(1,), tied=True),
    "conv": Spec(layers=4, conv=3, conv_layers=(0, 2, 3), biases="qkvo", qk_norm=True, experts=5, dense_layers=(0,),
                 score="sigmoid", router_bias="score", router_eps=1e-6),
    "conv-long": Spec(layers=2, conv=19, conv_layers=(0,), hidden=70, window=9),
    "gelu": Spec(activation="gelu_erf", post_norms="a", chunk=20, ff=33, hidden=50),
    # small enough to flip every bit of it: at most 24 KiB in q8 and q4
    "tiny": Spec(
        vocab=13,
        hidden=16,
        layers=1,
        heads=2,
        kv_heads=1,
        head_dim=8,
        experts=2,
        top_k=1,
        expert_ff=12,
        tied=True,
        biases="q",
        qk_norm=True,
        trained_context=32,
    ),
}

_PLAIN = {
    "EMBED": "embed",
    "HEAD": "head",
    "FINAL_NORM": "norm",
    "ATTENTION_NORM": "attn_norm",
    "FFN_NORM": "ffn_norm",
    "ROUTER": "router",
    "ROUTER_BIAS": "router_bias",
    "SHARED_SWITCH": "shared_gate",
    "ATTENTION_NORM_BIAS": "attn_norm_bias",
    "FINAL_NORM_BIAS": "norm_bias",
}


def plain_name(tensor: Tensor, expert: int = 0, dense: str = "ffn.") -> str:
    """The name the numpy reference in tests/reference uses for a matrix or vector."""
    role = tensor.role
    if role in _PLAIN:
        name = _PLAIN[role]
    elif tensor.expert:
        name = f"experts.{expert}.{role.removeprefix('EXPERT_').lower()}"
    elif role.startswith("SHARED_"):
        name = f"shared.{role.removeprefix('SHARED_').lower()}"
    else:
        name = (dense if role in ("GATE", "UP", "DOWN") else "") + role.lower()
    return name if tensor.layer == EVERY_LAYER else f"layers.{tensor.layer}.{name}"


def random_floats(seed: int, name: str, count: int) -> np.ndarray:
    """`count` bell-shaped numbers of mean 0 and deviation 1 (a sum of four bytes pairs), as float64."""
    raw = hashlib.shake_256(f"{seed}/{name}".encode()).digest(8 * count)
    quarters = np.frombuffer(raw, dtype="<u2").reshape(count, 4).sum(axis=1, dtype=np.int64)
    return (quarters - 2 * 65535) / math.sqrt((65536.0**2 - 1) / 3)


def routes(layer: Layer, vocab: int, seed: int, name: str) -> np.ndarray:
    """Experts of every token, ascending: those of the largest of some random numbers."""
    experts, top_k = layer.need("experts"), layer.need("top_k")
    drawn = random_floats(seed, name, vocab * experts).reshape(vocab, experts)
    return np.sort(np.argsort(drawn, axis=1)[:, :top_k], axis=1).astype(np.float32).reshape(-1)


def random_weights(model: Model, seed: int) -> dict[str, np.ndarray]:
    """float32 weights for every tensor of a description, under the plain names."""
    out = {}
    for tensor in required(model):
        for expert in range(tensor.count):
            name = plain_name(tensor, expert)
            if tensor.role == "TOKEN_ROUTES":
                out[name] = routes(model.layers[tensor.layer], model.vocab, seed, name)
                continue
            drawn = random_floats(seed, name, tensor.rows * tensor.columns)
            if tensor.vector:
                spread = 0.3 if tensor.role == "ROUTER_BIAS" else 0.1
                drawn = 1 + 0.1 * drawn if tensor.role.endswith("NORM") else spread * drawn
                out[name] = drawn.astype(np.float32)
                continue
            scale = 1.0 if tensor.role == "EMBED" else tensor.columns**-0.5
            out[name] = (drawn * scale).astype(np.float32).reshape(tensor.rows, tensor.columns)
    return out


class Weights:
    """A source for the blob writer out of a dict of plain names."""

    def __init__(self, weights: dict[str, np.ndarray]) -> None:
        self.weights = weights

    def rows(self, tensor: Tensor, expert: int, first: int, count: int) -> np.ndarray:
        """See blobwriter.Source."""
        return self.weights[self.name(tensor, expert)].reshape(tensor.rows, tensor.columns)[
            first : first + count
        ]

    def name(self, tensor: Tensor, expert: int) -> str:
        """See blobwriter.Source."""
        return plain_name(tensor, expert)


@dataclass(frozen=True)
class Synthetic:
    """A random blob with everything that went into it."""

    written: Written
    model: Model
    kinds: Kinds
    weights: dict[str, np.ndarray]


def write_random_blob(
    path: Path,
    spec: Spec | Model | str,
    seed: int = 1,
    kinds: Kinds | str = "q8",
    texts: dict[str, bytes] | None = None,
    overwrite: bool = True,
) -> Synthetic:
    """Write a random blob of a spec (or one of SPECS by name, or a description) in the given kinds."""
    if isinstance(spec, str):
        if spec not in SPECS:
            raise UsageError(f"synth {spec}: expected one of {', '.join(SPECS)}")
        spec = SPECS[spec]
    model = spec.model() if isinstance(spec, Spec) else spec
    chosen = Kinds.preset(kinds) if isinstance(kinds, str) else kinds
    weights = random_weights(model, seed)
    written = write_blob(Path(path), model, chosen, Weights(weights), texts, overwrite=overwrite)
    return Synthetic(written, model, chosen, weights)
