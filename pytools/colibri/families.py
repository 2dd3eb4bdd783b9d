"""From a config.json to a description of the model.

Every field of a config is understood, known to be without effect, or refused by name. The core knows no
family: all that differs between them is in family_table.py and ends here, as records of the blob.
"""

from __future__ import annotations

import re
from collections.abc import Container, Iterable, Mapping
from dataclasses import dataclass, field, replace
from decimal import ROUND_CEILING, Context, Decimal, localcontext
from typing import Any

from . import latent
from .config_file import MISSING, Config, shown
from .description import EVERY_LAYER, Layer, Model, Rope
from .errors import ConvertError
from .expert_map import slots_of
from .family_places import layer_prefix, source_place
from .family_table import (
    ACTIVATIONS,
    FAMILIES,
    FIXED,
    IGNORED,
    WRAPPERS,
    Family,
    Moe,
)
from .format import Tensor
from .places import Place, whole
from .library import constants
from .rope import DIGITS, Scaling, decimal, inverse_root, nearest_f32, root
from .unsupported import REFUSED

GROUP_LIMIT = 64  # COLIBRI_GROUP_LIMIT of the core
DRAFTS = ("num_nextn_predict_layers", "num_mtp_layers")
DRAFT_COPIES = {"embed_tokens.weight": "EMBED", "shared_head.head.weight": "HEAD"}
LATENT_EPS = Decimal("1e-6")  # of the norms of latents, whatever rms_norm_eps says


@dataclass(frozen=True)
class Described:
    """A checkpoint's description and the names of its tensors."""

    model_type: str
    family: Family
    model: Model
    float8_blocks: tuple[int, int] | None = None  # rows and columns that share a scale
    drafts: int = 0  # layers behind the last that guess further tokens: model.drafts, or left out
    others: Mapping[str, str] = field(default_factory=dict)  # prefix of another part's tensors -> what it is
    slots: Mapping[int, tuple[int, ...]] = field(default_factory=dict)  # of experts on disk, if not in order

    def draft(self, name: str) -> bool:
        """Whether a tensor is of a layer that guesses further tokens."""
        layer = re.match(re.escape(self.family.prefix) + r"(\d+)\.", name)
        last = len(self.model.layers)
        return layer is not None and last <= int(layer[1]) < last + self.drafts

    def left_out(self, name: str) -> str:
        """What a tensor belongs to that is no part of the description; empty: nothing."""
        if self.draft(name) and not self.model.drafts:
            return "a layer that guesses further tokens"
        return next((what for other, what in self.others.items() if name.startswith(other)), "")

    def with_drafts(self, wanted: bool, present: Iterable[str]) -> Described:
        """With its drafts only if they are wanted and there: many a checkpoint was saved again without them."""
        if wanted and any(self.draft(name) for name in present):
            return self
        return replace(self, model=replace(self.model, drafts=[]))

    def with_slots(self, rows: list[list[int]]) -> Described:
        """With experts that lie in slots in another order than the router's, or more than once."""
        if self.family.moe and (self.family.moe.layout or self.family.moe.fused[0]):
            raise ConvertError(
                f"--expert-map: {self.model_type} keeps all experts in one tensor; a map is for experts that are "
                "tensors of their own"
            )
        return replace(self, slots=slots_of(self.model, rows))

    def slot_names(self, tensor: Tensor) -> list[str]:
        """The tensors of all slots of a layer's experts, copies too."""
        held = self.slots.get(tensor.layer, ()) if tensor.expert else ()
        layer = self.model.layers[tensor.layer] if held else None
        return [source_place(self.family, tensor, layer, slot, ()).name for slot in range(len(held))]

    def draft_copies(self) -> list[tuple[str, str]]:
        """Names under which draft layers may hold the model's embedding and head again, and what those are called."""
        prefixes = [layer_prefix(self.family, len(self.model.layers) + n) for n in range(len(self.model.drafts))]
        outer = [(part, self._outer(role)) for part, role in DRAFT_COPIES.items()]
        return [(prefix + part, name) for prefix in prefixes for part, name in outer]

    def _outer(self, role: str) -> str:
        used = "EMBED" if self.model.tied else role
        return self.tensor_name(Tensor(used, EVERY_LAYER, self.model.vocab, self.model.hidden))

    def place(self, tensor: Tensor, expert: int = 0, present: Container[str] = ()) -> Place:
        """Where a matrix or vector lies in a checkpoint that has these names."""
        layer = self.model.all_layers[tensor.layer] if tensor.layer != EVERY_LAYER else None
        if layer and layer.latent:
            own = latent.tensor_name(layer, tensor.role)
            if own:
                name = f"{layer_prefix(self.family, tensor.layer)}self_attn.{own}"
                return whole(name, latent.source_shape(layer, tensor))
        if tensor.expert and tensor.layer in self.slots:
            expert = self.slots[tensor.layer].index(expert)
        return source_place(self.family, tensor, layer, expert, present)

    def tensor_name(self, tensor: Tensor, expert: int = 0) -> str:
        """The name of the tensor with a matrix or vector, as it is saved unpacked."""
        return self.place(tensor, expert).name


def describe(document: Any, subject: str = "config.json") -> Described:
    """The description of the model that a config.json is about."""
    config = Config(document, subject)
    kind = config.take("model_type")
    if isinstance(kind, str) and kind in REFUSED:
        raise ConvertError(f"{subject}: model_type {kind!r} cannot be converted: {REFUSED[kind]}")
    if isinstance(kind, str) and kind in WRAPPERS:
        return _part(config, kind)
    if not isinstance(kind, str) or kind not in FAMILIES:
        raise ConvertError(
            f"{subject}: model_type {shown(kind)} is not known; this version converts "
            f"{', '.join(sorted([*FAMILIES, *WRAPPERS]))}"
        )
    return _described(Config(document, subject, FAMILIES[kind].spelling), kind)


def text_part(document: dict[str, Any]) -> dict[str, Any]:
    """The fields of a config.json that are about the model that is converted: all, or one part's before the rest."""
    wrapper = WRAPPERS.get(str(document.get("model_type")))
    part = document.get(wrapper.field) if wrapper else None
    return {**document, **part} if isinstance(part, dict) else document


def _part(config: Config, kind: str) -> Described:
    """The one part of a model that is a family's."""
    wrapper = WRAPPERS[kind]
    part = config.take(wrapper.field)
    if not isinstance(part, dict) or part.get("model_type", wrapper.family) != wrapper.family:
        raise config.refuse(wrapper.field, f"the config of a {wrapper.family}")
    config.fix("tie_word_embeddings", part.get("tie_word_embeddings", False))
    quantized = config.take("quantization_config", None)
    if quantized is not None:
        part = {"quantization_config": quantized, **part}
    config.finish(IGNORED | wrapper.ignored)
    family = FAMILIES[wrapper.family]
    made = _described(Config(part, config.subject, family.spelling, wrapper.field + "."), wrapper.family)
    return replace(made, model_type=kind, others=wrapper.others)


def _described(config: Config, kind: str) -> Described:
    """A family's own config."""
    family = FAMILIES[kind]
    for name, value in {**FIXED, **family.fixed}.items():
        if name not in family.ignored:
            config.fix(name, value)
    model = _model(config, family)
    blocks = _float8_blocks(config, family)
    drafts = config.integer(config.first(DRAFTS), 0, low=0, null=0) if family.drafts else 0
    model.drafts = [_draft(model) for _ in range(drafts)]
    config.finish(IGNORED | family.ignored, frozenset(FIXED))
    return Described(kind, family, model, blocks, drafts)


def _model(config: Config, family: Family) -> Model:
    hidden, layers = config.integer("hidden_size"), config.integer("num_hidden_layers")
    context = config.integer("max_position_embeddings")
    eps = nearest_f32(Decimal(family.norm_eps) if family.norm_eps else config.positive("rms_norm_eps"))
    local: list[Scaling] = []
    if family.latent:
        base = _latent_attention(config, family, eps)
        scaling = _scaling(config, family, base.need("rope_dim"), context)
        base.score_scale = scaling.latent_scale(base.need("nope_dim") + base.need("rope_dim"))
    else:
        base = _attention(config, family, hidden, eps)
        scaling, *local = _scalings(config, family, base.need("head_dim"), context)
    interleaved = family.interleaved
    if family.interleaved_field:
        interleaved = config.boolean(family.interleaved_field, interleaved)
    ropes = [Rope(own.fractions(), interleaved, own.amplitude()) for own in (scaling, *local)]
    windows = _windows(config, family, layers)
    dense_field, dense_default = family.dense_ff
    dense_ff = config.integer(dense_field, dense_default)
    sparse = _sparse_layers(config, family.moe, layers)
    if family.ones and config.items(family.ones, int) not in (None, [1] * layers):
        raise config.refuse(family.ones, f"{layers} times 1")
    model = Model(
        config.integer("vocab_size"),
        hidden,
        context,
        eps,
        ropes=ropes,
        tied=config.boolean("tie_word_embeddings", family.tied),
    )
    _outside(config, family, model)
    nope = family.nope_full and config.take("sliding_window", family.window_size, null=False)
    if family.norm:
        model.final_norm = getattr(constants(), "NORM_" + family.norm)
    if family.head_bias_field:
        model.head_bias = int(config.boolean(family.head_bias_field, False)) or None
    choices = _choices(config, family, model, layers)
    for number in range(layers):
        layer = replace(base, window=windows[number], **choices[number])
        if nope and windows[number] is None:
            layer.rope = None
        if local and windows[number] is not None:
            layer.rope = 1
        if family.moe and sparse[number]:
            _experts(config, family.moe, layer)
        else:
            layer.ffn, layer.ff = constants().FFN_DENSE, dense_ff or config.integer(dense_field)
        _extras(config, family, layer)
        model.layers.append(layer)
    if family.multipliers:
        _multipliers(config, model)
    if family.by_turns:
        _turns(config, model.layers)
    if family.convolution:
        _convolutions(config, model)
    return model


def _outside(config: Config, family: Family, model: Model) -> None:
    """What some families do to embeddings and logits."""
    if family.embed_root == "always" or (family.embed_root and config.boolean(family.embed_root, False)):
        model.embed_multiplier = root(model.hidden)
    if family.softcap_field and config.take(family.softcap_field, None) is not None:
        model.logit_softcap = nearest_f32(config.positive(family.softcap_field))


def _turns(config: Config, layers: list[Layer]) -> None:
    """Layers that rotate and see their own stretch of positions, and layers that do neither: their queries grow."""
    c, count = constants(), len(layers)
    interval = config.integer("no_rope_layer_interval", 4)
    rotated = config.items("no_rope_layers", int) or [int((n + 1) % interval != 0) for n in range(count)]
    if len(rotated) < count or not set(rotated) <= {0, 1}:
        raise config.refuse("no_rope_layers", f"{count} times 0 or 1")
    chunk, kinds = config.integer("attention_chunk_size", 8192, null=None), config.items("layer_types", str)
    if kinds is None:
        kinds = ["chunked_attention" if turns and chunk else "full_attention" for turns in rotated[:count]]
    if len(kinds) != count or not set(kinds) <= {"full_attention", "chunked_attention"}:
        raise config.refuse("layer_types", f"{count} times full_attention or chunked_attention")
    if "chunked_attention" in kinds and not chunk:
        raise config.refuse("attention_chunk_size", "a number of positions, for layer_types names chunked_attention")
    normed, tuned = config.boolean("use_qk_norm", True), config.take("attn_temperature_tuning", True)
    if not isinstance(tuned, (bool, int)):
        raise config.refuse("attn_temperature_tuning", "true or false, or a number that is one of both")
    floor, step = config.integer("floor_scale", 8192), config.positive("attn_scale", Decimal("0.1"))
    for layer, turns, kind in zip(layers, rotated, kinds, strict=False):
        layer.chunk = chunk if kind == "chunked_attention" else None
        layer.qk_norm = c.QK_NORM_L2_AFTER_ROPE if normed and turns else c.QK_NORM_NONE
        if not turns:
            layer.rope = None
            if tuned:
                layer.query_floor, layer.query_step = floor, nearest_f32(step)


def _convolutions(config: Config, model: Model) -> None:
    """Layers with a short convolution instead of attention: what attention alone has is taken away."""
    c, layers = constants(), model.layers
    kinds = config.items("layer_types", str)
    if kinds is None or len(kinds) != len(layers) or not set(kinds) <= {"conv", "full_attention"}:
        raise config.refuse("layer_types", f"{len(layers)} times conv or full_attention")
    biases = c.BIAS_Q | c.BIAS_K | c.BIAS_V | c.BIAS_O | c.BIAS_TAPS
    biases, taps = biases if config.boolean("conv_bias", False) else 0, config.integer("conv_L_cache", 3)
    for number, kind in enumerate(kinds):
        if kind == "conv":
            layers[number] = replace(
                layers[number], attention=c.ATTENTION_CONV, heads=1, kv_heads=1, head_dim=model.hidden, window=taps,
                rope=None, score_scale=1.0, qk_norm=c.QK_NORM_NONE, biases=biases,
            )  # fmt: skip


def _draft(model: Model) -> Layer:
    """A draft layer is one more like the last; it chooses its positions itself, if any layer does."""
    own = next((layer for layer in reversed(model.layers) if layer.index_heads), None)
    index = {name: getattr(own, name) for name in ("index_heads", "index_dim", "index_rope")} if own else {}
    return replace(model.layers[-1], draft=1, **index)


def _extras(config: Config, family: Family, layer: Layer) -> None:
    """Switches that few families have; None where a family does not."""
    c = constants()
    act = config.take("hidden_act", family.act)
    if act not in ACTIVATIONS or (family.limit and act != "silu"):
        expected = "silu" if family.limit else ", ".join(ACTIVATIONS)
        raise config.refuse("hidden_act", f"one of {expected}: this version runs nothing else")
    layer.activation = getattr(c, "ACTIVATION_" + (family.activation if family.limit else ACTIVATIONS[act]))
    if family.limit:
        layer.swiglu_limit = nearest_f32(config.positive("swiglu_limit", Decimal(family.limit)))
    parts = {"g": c.FFN_BIAS_GATE, "u": c.FFN_BIAS_UP, "d": c.FFN_BIAS_DOWN}
    biased = config.boolean(family.ffn_bias_field, False) if family.ffn_bias_field else True
    layer.ffn_biases = sum(parts[letter] for letter in family.ffn_biases if biased) or None
    layer.norm = getattr(c, "NORM_" + family.norm) if family.norm else None
    layer.post_norms = sum(getattr(c, "POST_NORM_" + part) for part in family.post_norms) or None
    layer.sinks = int(family.sinks) or None
    if family.qk_norm_after:
        layer.qk_norm = getattr(c, f"QK_NORM_{family.qk_norm_after}_AFTER_ROPE")


def _float8_blocks(config: Config, family: Family) -> tuple[int, int] | None:
    """What quantization_config says: nothing, 8-bit floats with scales of blocks, or packed 4-bit experts."""
    fields = config.take("quantization_config", None)
    if fields is None:
        return None
    method = fields.get("quant_method") if isinstance(fields, dict) else None
    if method == "mxfp4" and family.moe and family.moe.layout == "oss":
        return None
    blocks = fields.get("weight_block_size") if method == "fp8" else None
    if fields.get("fmt", "e4m3") != "e4m3" if isinstance(fields, dict) else True:
        blocks = None
    if isinstance(blocks, list) and len(blocks) == 2 and all(type(b) is int and b > 0 for b in blocks):
        return blocks[0], blocks[1]
    raise config.refuse(
        "quantization_config", "none, fp8 (e4m3) with a weight_block_size of two numbers, or mxfp4 of gpt_oss"
    )


def _choices(config: Config, family: Family, model: Model, layers: int) -> list[dict[str, Any]]:
    """The choice of positions of every layer, where the family makes one; its rotation is the model's own."""
    if not family.index_heads:
        return [{}] * layers
    rope = model.ropes[0]
    if rope.interleaved != family.index_interleaved:
        model.ropes.append(replace(rope, interleaved=family.index_interleaved))
    fields = latent.read_index(config, family.index_heads, family.index_shared, layers)
    last = len(model.ropes) - 1
    return [{**own, "index_rope": last} if "index_heads" in own else own for own in fields]


def _clip(config: Config, name: str) -> float | None:
    """The clamp of q, k and v; absent and null mean none."""
    if not name or config.take(name, None) is None:
        return None
    return float(config.positive(name))


def _attention(config: Config, family: Family, hidden: int, eps: float) -> Layer:
    c = constants()
    heads = config.integer("num_attention_heads")
    kv_heads = config.integer("num_key_value_heads", family.kv_heads or heads, null=heads)
    if heads % kv_heads:
        raise config.refuse("num_key_value_heads", f"a divisor of num_attention_heads {heads}")
    head_dim = config.integer("head_dim", family.head_dim, null=0)
    if not head_dim:
        if hidden % heads:
            raise config.refuse(
                "hidden_size", f"a multiple of num_attention_heads {heads}, for there is no head_dim"
            )
        head_dim = hidden // heads
    biased = (
        config.boolean(family.bias_field, family.bias_default) if family.bias_field else bool(family.biases)
    )
    biases = sum(getattr(c, "BIAS_" + letter.upper()) for letter in family.biases) if biased else 0
    normed = config.boolean(family.qk_norm_field, False) if family.qk_norm_field else family.qk_norm
    return Layer(
        attention=c.ATTENTION_GQA,
        heads=heads,
        kv_heads=kv_heads,
        head_dim=head_dim,
        rope=0,
        score_scale=inverse_root(config.integer(family.score_field, 256) if family.score_field else head_dim),
        norm_eps=eps,
        biases=biases,
        activation=c.ACTIVATION_SILU,
        qk_norm=(c.QK_NORM_WIDTH if family.qk_norm_wide else c.QK_NORM_HEAD) if normed else c.QK_NORM_NONE,
        clip_qkv=_clip(config, family.clip_field),
        head_gates=getattr(c, "HEAD_GATES_" + family.head_gates) if family.head_gates else None,
    )


def _latent_attention(config: Config, family: Family, eps: float) -> Layer:
    """All but the scale of the scores, which yarn has a say in."""
    heads = config.integer("num_attention_heads")
    widths = latent.read_widths(config, family.q_latent, heads)
    if "head_dim" not in family.ignored:
        config.fix("head_dim", widths["rope_dim"])
    if family.index_heads and not widths["q_latent"]:
        raise config.refuse("q_lora_rank", "a width: the choice of positions reads the latent of the queries")
    return Layer(
        **widths,
        heads=heads,
        rope=0,
        norm_eps=eps,
        latent_eps=nearest_f32(LATENT_EPS),
        activation=constants().ACTIVATION_SILU,
        qk_norm=constants().QK_NORM_NONE,
    )


def _scalings(config: Config, family: Family, head_dim: int, context: int) -> list[Scaling]:
    """Of all layers; or of those that see everything, then of those with a window."""
    if not family.local_theta:
        return [_scaling(config, family, head_dim, context)]
    new, old = config.take("rope_parameters", None), config.take("rope_scaling", None)
    if new and old:
        raise config.refuse("rope_scaling", "no such field beside rope_parameters: two answers to one question")
    kinds = {"full_attention": "rope_theta", "sliding_attention": "rope_local_base_freq"}
    both = new or {"full_attention": old}
    parts = both.values() if isinstance(both, dict) and set(both) <= set(kinds) else [0]
    if not all(part is None or isinstance(part, dict) for part in parts):
        raise config.refuse("rope_parameters" if new else "rope_scaling", f"fields of {' and '.join(kinds)}")
    out = []
    for (kind, name), theta in zip(kinds.items(), (family.theta, family.local_theta), strict=True):
        fields, outside = dict(both.get(kind) or {}), config.take(name, None)
        if outside is not None and fields.setdefault("rope_theta", outside) != outside:
            raise config.refuse(name, f"{fields['rope_theta']}, as inside rope_parameters")
        if fields.get("partial_rotary_factor") not in (None, 1):
            raise config.refuse("rope_parameters", "a partial_rotary_factor of 1: this family rotates whole heads")
        out.append(Scaling(fields, theta, head_dim, context, config.subject))
    return out


def _scaling(config: Config, family: Family, head_dim: int, context: int) -> Scaling:
    """Both spellings: rope_parameters, or rope_theta with rope_scaling."""
    new, old = config.take("rope_parameters", None), config.take("rope_scaling", None)
    if new and old:
        raise config.refuse(
            "rope_scaling", "no such field beside rope_parameters: two answers to one question"
        )
    fields = new or old or dict(family.rope)
    if not isinstance(fields, dict) or any(isinstance(value, (dict, list)) for value in fields.values()):
        raise config.refuse("rope_parameters" if new else "rope_scaling", "one set of numbers for all layers")
    fields = dict(fields)
    for name in ("rope_theta", "partial_rotary_factor"):
        outside = config.take(name, None)
        if outside is not None and fields.setdefault(name, outside) != outside:
            raise config.refuse(name, f"{fields[name]}, as inside rope_parameters")
    turned = config.integer(family.rotary_field, None) if family.rotary_field else None
    if turned:  # rounded up, so that the width comes out whole again
        fields.setdefault("partial_rotary_factor", Context(rounding=ROUND_CEILING).divide(turned, head_dim))
    elif family.partial != "1":
        fields.setdefault("partial_rotary_factor", Decimal(family.partial))
    elif not family.rotary_field and fields.get("partial_rotary_factor") not in (None, 1):
        raise config.refuse("partial_rotary_factor", "1: this family rotates whole heads")
    original = config.integer("original_max_position_embeddings", None)
    if original and fields.get("rope_type", fields.get("type")) in ("llama3", "yarn"):
        fields["original_max_position_embeddings"] = original
    return Scaling(fields, family.theta, head_dim, context, config.subject)


def _windows(config: Config, family: Family, layers: int) -> list[int | None]:
    """The window of every layer, None for full attention."""
    if not family.window:
        return [None] * layers
    size = config.integer("sliding_window", family.window_size, low=0, null=None)
    switched = size is not None
    if family.window in ("always", "upper layers, always", "types", "types, always"):
        if size == 0 or (size is None and family.window == "types, always"):
            raise config.refuse("sliding_window", "a width" if family.window == "types, always" else "a width, or null")
    else:
        switched = config.boolean("use_sliding_window", False)
        if switched and not size:
            raise config.refuse("sliding_window", "a width, for use_sliding_window is true")
    if family.window in ("always", "switch"):
        return [size if switched else None] * layers
    kinds = config.items("layer_types", str)
    every = config.integer(family.full_every_field, family.full_every) if family.full_every_field else family.full_every
    by_types = family.window.startswith("types")
    border = layers if by_types else config.integer("max_window_layers", family.window_border, low=0)
    if kinds is None and by_types:
        return [None if (n + 1) % every == 0 else size for n in range(layers)]
    if kinds is None:
        even = family.window == "even layers"
        inside = [n % 2 == 0 and n < border if even else n >= border for n in range(layers)]
        return [size if switched and within else None for within in inside]
    names = {"full_attention": None, "sliding_attention": size}
    if len(kinds) != layers or not set(kinds) <= set(names):
        raise config.refuse("layer_types", f"{layers} times full_attention or sliding_attention")
    if "sliding_attention" in kinds and not switched:
        raise config.refuse("layer_types", "full_attention only, for the sliding window is switched off")
    return [names[name] for name in kinds]


def _sparse_layers(config: Config, moe: Moe | None, layers: int) -> list[bool]:
    """Which layers have experts."""
    numbers = range(layers)
    if moe is None or moe.layers == "all":
        return [moe is not None] * layers
    if moe.layers == "step":
        step, dense = config.integer("decoder_sparse_step", 1), config.items("mlp_only_layers", int) or []
        return [n not in dense and (n + 1) % step == 0 for n in numbers]
    if moe.layers == "listed":
        every, listed = config.integer("interleave_moe_layer_step", 1), config.items("moe_layers", int)
        if listed is not None and not set(listed) <= set(numbers):
            raise config.refuse("moe_layers", f"numbers of the {layers} layers")
        return [(n + 1) % every == 0 if listed is None else n in listed for n in numbers]
    if moe.layers == "after first":
        first = config.integer("first_k_dense_replace", moe.dense_first, low=0)
        return [n >= first for n in numbers]
    if moe.layers == "after dense":
        first = config.integer("num_dense_layers", moe.dense_first, low=0)
        return [n >= first for n in numbers]
    if moe.layers == "named":
        first = config.integer("first_k_dense_replace", moe.dense_first, low=0)
        kinds = config.items("mlp_layer_types", str)
        if kinds is None:
            return [n >= first for n in numbers]
        if len(kinds) != layers or set(kinds) - {"dense", "sparse"}:
            raise config.refuse("mlp_layer_types", f"{layers} times dense or sparse")
        return [kind == "sparse" for kind in kinds]
    start, interval = (
        config.integer("moe_layer_start_index", 1, low=0),
        config.integer("moe_layer_interval", 1),
    )
    end = config.integer("moe_layer_end_index", -1, low=-1)
    end = layers - 1 if end == -1 else end
    return [start <= n <= end and (n + 1) % interval == 0 for n in numbers]


def _experts(config: Config, moe: Moe, layer: Layer) -> None:
    """The feed-forward half of a MoE layer."""
    c = constants()
    layer.ffn = c.FFN_MOE
    layer.experts = config.integer(config.first(moe.experts))
    layer.top_k = config.uniform(moe.top_k)
    if layer.top_k > layer.experts:
        raise config.refuse(moe.top_k, f"at most the {layer.experts} experts")
    layer.ff = config.uniform(moe.ff)
    layer.router_score = getattr(c, "ROUTER_" + moe.score)
    layer.router_renormalise, renormalise = _renormalised(config, moe)
    if moe.eps and renormalise:
        layer.router_eps = nearest_f32(Decimal(moe.eps))
    if moe.scale:
        layer.router_scale = nearest_f32(config.positive(moe.scale, 1))
    if moe.jitter:
        layer.router_jitter = nearest_f32(config.positive(moe.jitter, Decimal("0.01")))
    if moe.sum_min:
        layer.router_sum_min = nearest_f32(config.positive(moe.sum_min, Decimal("1e-12")))
    if moe.correction and (not moe.correction_field or config.boolean(moe.correction_field, True)):
        layer.router_bias = getattr(c, "ROUTER_BIAS_" + moe.bias)
    if moe.by_logit:
        layer.router_choice = c.CHOICE_BY_LOGIT
    if moe.weight_on != "OUTPUT":
        layer.router_weight_on = getattr(c, "ROUTER_ON_" + moe.weight_on)
    if moe.groups and _method(config, moe):
        _groups(config, moe, layer)
    _shared_expert(config, moe, layer)


def _renormalised(config: Config, moe: Moe) -> tuple[int, bool]:
    """How weights are renormalised, and whether by their sum."""
    c = constants()
    if moe.power:
        power = config.take(moe.renormalise, 1, null=None)
        kinds = {None: c.RENORMALISE_NONE, 1: c.RENORMALISE_SUM, 2: c.RENORMALISE_ROOT}
        if isinstance(power, (bool, str, list, dict)) or power not in kinds:
            raise config.refuse(moe.renormalise, "1 or 2, the norm that weights are divided by, or null")
        return kinds[power], power is not None
    switched = config.boolean(moe.renormalise, moe.renormalise_default) if moe.renormalise else True
    return getattr(c, "RENORMALISE_" + (moe.normal if switched else "NONE")), switched


def _method(config: Config, moe: Moe) -> bool:
    """Whether n_group and topk_group have a say."""
    if not moe.groups_when:
        return True
    chosen = config.take("topk_method", "greedy")
    if chosen not in ("greedy", moe.groups_when):
        raise config.refuse("topk_method", f"greedy or {moe.groups_when}")
    for name in ("n_group", "topk_group"):
        config.take(name, None)
    return bool(chosen == moe.groups_when)


def _groups(config: Config, moe: Moe, layer: Layer) -> None:
    """Groups of experts, of which the best stay in the choice; one group is none."""
    c = constants()
    experts, groups = layer.need("experts"), config.integer("n_group", moe.groups_default[0], null=1)
    best = config.integer("topk_group", moe.groups_default[1], null=1)
    if experts % groups or groups > GROUP_LIMIT or (moe.group_score == "TOP_TWO" and groups == experts > 1):
        raise config.refuse("n_group", f"a divisor of the {experts} experts, up to {GROUP_LIMIT}")
    if best > groups or layer.need("top_k") > best * (experts // groups):
        raise config.refuse("topk_group", f"enough of the {groups} groups for {layer.top_k} experts")
    if groups > 1:
        layer.router_groups, layer.router_top_groups = groups, best
        layer.router_group_score = getattr(c, "GROUP_" + moe.group_score)


def _shared_expert(config: Config, moe: Moe, layer: Layer) -> None:
    if not moe.shared:
        return
    if moe.shared_counts is None:
        default = MISSING if moe.shared_default is None else moe.shared_default
        width = config.uniform(moe.shared, default, low=0)
    else:
        width = config.integer(moe.shared, moe.shared_counts, low=0) * (layer.ff or 0)
    if width:
        layer.shared_ff, layer.shared_gate = width, int(moe.shared_gate)


def _multipliers(config: Config, model: Model) -> None:
    """A multiplier of 1 is none."""

    def read(name: str) -> Decimal:
        return config.positive(name, 1)

    with localcontext(Context(prec=DIGITS)):
        factors = {"embed": read("embedding_multiplier"), "logit": 1 / read("logits_scaling")}
        model.embed_multiplier, model.logit_multiplier = (
            None if factor == 1 else nearest_f32(factor) for factor in factors.values()
        )
        residual = decimal(read("residual_multiplier"))
        for layer in model.layers:
            layer.residual_multiplier = None if residual == 1 else nearest_f32(residual)
            layer.score_scale = nearest_f32(read("attention_multiplier"))
