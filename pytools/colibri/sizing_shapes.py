"""Shapes of models that the core's description cannot say yet: names, rows, columns, and the group of their kind.

Only sizes are read here, for `colibri plan --config`: switches that change no byte are not looked at, and nothing
that stands here can be converted. A family of family_table.py has its shapes there, and only there.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from .config_file import Config
from .description import EVERY_LAYER, Layer, Model
from .errors import ConvertError
from .library import constants

NORM_EPS = 1e-5  # of the stand-in: it has no effect on a size


@dataclass(frozen=True)
class Sizes:
    """What a family calls the numbers that its shapes follow from."""

    attention: str = "mla"  # "mla": a latent and one rotary key for all heads; "gqa": keys and values per head
    experts: str = "n_routed_experts"
    ff: str = "moe_intermediate_size"
    shared: str = "n_shared_experts"  # number of shared experts; empty: none
    dense: str = "first_k_dense_replace"  # number of leading layers without experts; empty: none
    block: str = "mlp"
    router: str = "gate"
    correction: str = "e_score_correction_bias"
    indexer: bool = False  # every layer's queries choose their keys
    sinks: bool = False
    biases: str = ""  # of "qkvo" and "e" (experts) and "r" (router), without a switch in the config


SIZED = {
    "deepseek_v2": Sizes(correction=""),
    "deepseek_v3": Sizes(),
    "deepseek_v32": Sizes(indexer=True),
    "glm4_moe_lite": Sizes(),
    "glm_moe_dsa": Sizes(indexer=True),
    "gpt_oss": Sizes(
        "gqa", "num_local_experts", "intermediate_size", "", "", router="router", correction="", sinks=True,
        biases="qkvoer",
    ),
    "granitemoe": Sizes(
        "gqa", "num_local_experts", "intermediate_size", "", "", "block_sparse_moe", "router.layer", ""
    ),
}  # fmt: skip


@dataclass(frozen=True)
class Part:
    """One tensor, or one of every expert of a layer."""

    name: str
    rows: int
    columns: int
    group: str = ""  # of format.Kinds; empty: f32
    layer: int = EVERY_LAYER
    count: int = 0  # experts; 0: a resident tensor
    vector: bool = False

    @property
    def of_experts(self) -> bool:
        """Whether it is resident, but a token needs its own experts' share of it."""
        return self.name.endswith(".biases")


@dataclass
class Shapes:
    """A model by its shapes."""

    model_type: str
    model: Model  # the stand-in that the core plans: the same widths, its own kind of attention
    parts: list[Part]
    halved_kv: bool = False  # MLA: one plane (latent and rotary key) instead of the stand-in's two
    latent: int = 0  # numbers of it in a position and layer
    index_dim: int = 0
    index_layers: int = 0
    drafts: list[Part] = field(default_factory=list)  # of the draft layers (MTP) behind the last layer
    draft_layers: int = 0


def shapes_of(document: Any, subject: str) -> Shapes | None:
    """The shapes of a config.json whose model_type is in SIZED."""
    config = Config(document, subject)
    kind = config.take("model_type")
    return _Reader(config, kind, SIZED[kind]).shapes() if kind in SIZED else None


@dataclass(frozen=True)
class _Latent:
    """The numbers of MLA."""

    query: int  # 0: queries come straight from the hidden state
    rank: int
    plain: int
    rotary: int
    value: int


class _Reader:
    """Reads one config."""

    def __init__(self, config: Config, kind: str, sizes: Sizes) -> None:
        self.config, self.kind, self.sizes = config, kind, sizes
        whole = config.integer
        self.hidden, self.layers = whole("hidden_size"), whole("num_hidden_layers")
        self.vocab, self.heads = whole("vocab_size"), whole("num_attention_heads")
        self.kv_heads = whole("num_key_value_heads", self.heads, null=self.heads)
        self.experts = whole(config.first((sizes.experts, "num_experts", "num_local_experts")))
        self.top_k, self.ff = whole("num_experts_per_tok"), whole(sizes.ff)
        self.shared_ff = self.ff * whole(sizes.shared, 0, low=0, null=0) if sizes.shared else 0
        self.biased = "qkvo" if config.boolean("attention_bias", False) else ""
        if self.top_k > self.experts or (sizes.attention == "gqa" and self.heads % self.kv_heads):
            raise ConvertError(
                f"{config.subject}: {self.top_k} of {self.experts} experts, {self.heads} heads for "
                f"{self.kv_heads} KV heads; expected at most all experts and whole groups of heads"
            )
        self.latent = self._latent() if sizes.attention == "mla" else None
        self.head_dim = (
            self.latent.rank + self.latent.rotary if self.latent
            else whole("head_dim", self.hidden // self.heads, null=self.hidden // self.heads)
        )  # fmt: skip

    def _latent(self) -> _Latent:
        whole = self.config.integer
        return _Latent(
            whole("q_lora_rank", 0, null=0), whole("kv_lora_rank"), whole("qk_nope_head_dim"),
            whole("qk_rope_head_dim"), whole("v_head_dim"),
        )  # fmt: skip

    def shapes(self) -> Shapes:
        """All of it."""
        indexed = self._indexed()
        parts = [
            Part("model.embed_tokens", self.vocab, self.hidden, "embed"),
            Part("model.norm", 1, self.hidden, vector=True),
        ]
        if not (tied := self.config.boolean("tie_word_embeddings", False)):
            parts.append(Part("lm_head", self.vocab, self.hidden, "head"))
        sparse = self._sparse()
        for number in range(self.layers):
            parts += self._layer(number, sparse[number], indexed[number])
        model = Model(self.vocab, self.hidden, self.config.integer("max_position_embeddings"), NORM_EPS, tied=tied)
        model.layers = [self._stand_in(number, sparse[number]) for number in range(self.layers)]
        extra = self.config.integer("num_nextn_predict_layers", 0, low=0, null=0)
        latent = self.latent
        return Shapes(
            self.kind, model, parts, latent is not None, self.head_dim if latent else 0,
            self._index_dim() if any(indexed) else 0, sum(indexed),
            [part for n in range(extra) for part in self._draft(self.layers + n)], extra,
        )  # fmt: skip

    def _sparse(self) -> list[bool]:
        """Which layers have experts: by name, else all after the first few."""
        kinds = self.config.items("mlp_layer_types", str)
        first = self.config.integer(self.sizes.dense, 0, low=0) if self.sizes.dense else 0
        if kinds is None:
            return [number >= first for number in range(self.layers)]
        if len(kinds) != self.layers or not set(kinds) <= {"dense", "sparse"}:
            raise self.config.refuse("mlp_layer_types", f"{self.layers} times dense or sparse")
        return [kind == "sparse" for kind in kinds]

    def _indexed(self) -> list[bool]:
        """Which layers have an indexer of their own; the others take the choice of the layer before."""
        if not self.sizes.indexer:
            return [False] * self.layers
        kinds = self.config.items("indexer_types", str)
        if kinds is None:
            every = self.config.integer("index_topk_freq", 1)
            offset = self.config.integer("index_skip_topk_offset", 2, low=0)
            return [max(number - offset + 1, 0) % every == 0 for number in range(self.layers)]
        if len(kinds) != self.layers or not set(kinds) <= {"full", "shared"}:
            raise self.config.refuse("indexer_types", f"{self.layers} times full or shared")
        return [kind == "full" for kind in kinds]

    def _index_dim(self) -> int:
        return int(self.config.integer("index_head_dim"))

    def _layer(self, number: int, sparse: bool, indexed: bool) -> Iterator[Part]:
        def part(name: str, rows: int, columns: int, group: str = "", count: int = 0) -> Part:
            return Part(f"model.layers.{number}.{name}", rows, columns, group, number, count, rows == 1)

        hidden = self.hidden
        yield part("input_layernorm", 1, hidden)
        rows = self._latent_rows(indexed) if self.latent else self._head_rows()
        for name, height, width, group in rows:
            yield part(f"self_attn.{name}", height, width, group)
        yield part("post_attention_layernorm", 1, hidden)
        if not sparse:
            width = self.config.integer("intermediate_size")
            yield from (part(f"mlp.{n}", r, c, "ffn") for n, r, c in _gated(width, hidden))
            return
        block, sizes = self.sizes.block, self.sizes
        yield part(f"{block}.{sizes.router}", self.experts, hidden)
        if sizes.correction or "r" in sizes.biases:
            yield part(f"{block}.{sizes.router}.{sizes.correction or 'bias'}", 1, self.experts)
        yield from (part(f"{block}.experts.{n}", r, c, "experts", self.experts) for n, r, c in _gated(self.ff, hidden))
        if "e" in sizes.biases:  # resident vectors: what an expert's run holds is matrices
            yield from (part(f"{block}.experts.{n}.biases", 1, self.experts * r) for n, r, _ in _gated(self.ff, hidden))
        if self.shared_ff:
            shared = _gated(self.shared_ff, hidden)
            yield from (part(f"{block}.shared_experts.{n}", r, c, "shared") for n, r, c in shared)

    def _head_rows(self) -> Iterator[tuple[str, int, int, str]]:
        wide, narrow, hidden = self.heads * self.head_dim, self.kv_heads * self.head_dim, self.hidden
        for letter, rows, columns in (("q", wide, hidden), ("k", narrow, hidden), ("v", narrow, hidden),
                                      ("o", hidden, wide)):  # fmt: skip
            yield f"{letter}_proj", rows, columns, "attention"
            if letter in self.sizes.biases + self.biased:
                yield f"{letter}_proj.bias", 1, rows, ""
        if self.sizes.sinks:
            yield "sinks", 1, self.heads, ""

    def _latent_rows(self, indexed: bool) -> Iterator[tuple[str, int, int, str]]:
        one, hidden, heads = self.latent or self._latent(), self.hidden, self.heads
        source, key = one.query or hidden, one.plain + one.rotary
        if one.query:
            yield "q_a_proj", one.query, hidden, "attention"
            yield "q_a_layernorm", 1, one.query, ""
        yield ("q_b_proj" if one.query else "q_proj"), heads * key, source, "attention"
        yield "kv_a_proj_with_mqa", one.rank + one.rotary, hidden, "attention"
        yield "kv_a_layernorm", 1, one.rank, ""
        yield "kv_b_proj", heads * (one.plain + one.value), one.rank, "attention"
        yield "o_proj", hidden, heads * one.value, "attention"
        if self.biased:
            yield from (("q_a_proj.bias", 1, one.query or 1, ""), ("o_proj.bias", 1, hidden, ""))
            yield "kv_a_proj_with_mqa.bias", 1, one.rank + one.rotary, ""
        if indexed:
            count, width = self.config.integer("index_n_heads"), self._index_dim()
            yield "indexer.wq_b", count * width, source, "attention"
            yield "indexer.wk", width, hidden, "attention"
            yield from (("indexer.k_norm.weight", 1, width, ""), ("indexer.k_norm.bias", 1, width, ""))
            yield "indexer.weights_proj", count, hidden, ""

    def _draft(self, number: int) -> Iterator[Part]:
        """A draft layer: two norms, a projection of both of its inputs, a whole layer, a norm."""
        yield from (Part(f"model.layers.{number}.{name}", 1, self.hidden, layer=number, vector=True)
                    for name in ("enorm", "hnorm", "shared_head.norm"))  # fmt: skip
        yield Part(f"model.layers.{number}.eh_proj", self.hidden, 2 * self.hidden, "attention", number)
        yield from self._layer(number, True, self.sizes.indexer)

    def _stand_in(self, number: int, sparse: bool) -> Layer:
        """What the core plans instead: MLA, always absorbed, is one KV head as wide as latent and rotary key."""
        c = constants()
        layer = Layer(
            attention=c.ATTENTION_GQA, heads=self.heads, kv_heads=1 if self.latent else self.kv_heads,
            head_dim=self.head_dim, score_scale=1.0, norm_eps=NORM_EPS, activation=c.ACTIVATION_SILU,
            window=self._window(number), ffn=c.FFN_DENSE,
        )  # fmt: skip
        if not sparse:
            layer.ff = self.config.integer("intermediate_size")
            return layer
        layer.ffn, layer.ff, layer.experts, layer.top_k = c.FFN_MOE, self.ff, self.experts, self.top_k
        layer.router_score, layer.router_renormalise = c.ROUTER_SOFTMAX, c.RENORMALISE_SUM
        layer.shared_ff = self.shared_ff or None
        return layer

    def _window(self, number: int) -> int | None:
        """gpt_oss: every other layer, unless layer_types says which."""
        if not self.sizes.sinks:
            return None
        kinds = self.config.items("layer_types", str)
        size = self.config.integer("sliding_window", None)
        return size if (kinds[number] == "sliding_attention" if kinds else number % 2 == 0) else None


def _gated(width: int, hidden: int) -> tuple[tuple[str, int, int], ...]:
    return (("gate_proj", width, hidden), ("up_proj", width, hidden), ("down_proj", hidden, width))
