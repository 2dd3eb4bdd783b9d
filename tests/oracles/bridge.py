"""From the converter's description of a checkpoint to the numpy reference: the same words, other names.

So one description is judged three times: by transformers, by the slow reference and by the engine.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np

from colibri.convert import read_document
from colibri.families import Described, describe
from colibri.description import EVERY_LAYER, Layer, Model
from colibri.format import required
from colibri.library import constants, names
from colibri.places import Places
from colibri.safetensors_reader import Checkpoint
from reference.description import (Attention, Convolution, DenseFfn, Description, LatentAttention, LayerDesc, MoeFfn,
                                   Rope)

F = np.float32
_NAMES = {
    "EMBED": "embed", "HEAD": "head", "FINAL_NORM": "norm", "ATTENTION_NORM": "attn_norm",
    "FFN_NORM": "ffn_norm",
    "Q": "q", "K": "k", "V": "v", "O": "o", "Q_BIAS": "q_bias", "K_BIAS": "k_bias", "V_BIAS": "v_bias",
    "O_BIAS": "o_bias", "Q_NORM": "q_norm", "K_NORM": "k_norm", "HEAD_GATE": "head_gate", "Q_A": "q_a",
    "INDEX_Q": "index_q", "INDEX_K": "index_k", "INDEX_K_NORM": "index_k_norm", "INDEX_K_SHIFT": "index_k_shift",
    "INDEX_WEIGHT": "index_weight",
    "GATE": "ffn.gate", "UP": "ffn.up", "DOWN": "ffn.down",
    "ROUTER": "router", "ROUTER_BIAS": "router_bias", "SHARED_SWITCH": "shared_gate",
    **{role: role.lower() for role in (
        "FFN_GATE_BIAS", "FFN_UP_BIAS", "FFN_DOWN_BIAS", "SINKS", "FFN_NORM_BIAS", "HEAD_BIAS", "POST_ATTENTION_NORM",
        "POST_FFN_NORM", "TAPS", "TAPS_BIAS", "TOKEN_ROUTES")},
    "ATTENTION_NORM_BIAS": "attn_norm_bias", "FINAL_NORM_BIAS": "norm_bias",
    "SHARED_GATE": "shared.gate", "SHARED_UP": "shared.up", "SHARED_DOWN": "shared.down",
}


_BIAS = ("", "score", "choice", "logit")  # by colibri_router_bias


def _f32(value: float | None) -> np.float32 | None:
    return None if value is None else F(value)


def _named(enum: str, value: int | None, default: str) -> str:
    return default if value is None else names(enum)[value].lower()


def _rope(number: int | None, model: Model) -> Rope | None:
    if number is None:
        return None
    own = model.ropes[number]
    return Rope(2 * len(own.fractions), np.array(own.fractions, dtype=np.uint64), F(own.amplitude), own.interleaved)


def _attention(layer: Layer, model: Model) -> Attention | LatentAttention | Convolution:
    c, rope = constants(), _rope(layer.rope, model)
    biases = layer.biases or 0
    if layer.attention == c.ATTENTION_CONV:
        bits = [bool(biases & getattr(c, "BIAS_" + part)) for part in ("Q", "K", "V", "O", "TAPS")]
        return Convolution(layer.head_dim, layer.window, *bits)
    if layer.attention == c.ATTENTION_MLA:
        eps = layer.norm_eps if layer.latent_eps is None else layer.latent_eps
        return LatentAttention(
            layer.heads, layer.latent, layer.nope_dim, layer.rope_dim, layer.v_dim, layer.q_latent or 0,
            F(layer.score_scale), rope, F(eps), bool(biases & c.BIAS_Q), bool(biases & c.BIAS_K),
            bool(biases & c.BIAS_O), layer.window or 0, layer.index_top_k or 0, layer.index_heads or 0,
            layer.index_dim or 0, _rope(layer.index_rope, model))
    gates = {c.HEAD_GATES_HEAD: "head", c.HEAD_GATES_ELEMENT: "element"}
    after = {c.QK_NORM_HEAD_AFTER_ROPE: "head", c.QK_NORM_L2_AFTER_ROPE: "l2"}
    return Attention(
        layer.heads, layer.kv_heads, layer.head_dim, F(layer.score_scale), rope, bool(biases & c.BIAS_Q),
        bool(biases & c.BIAS_K), bool(biases & c.BIAS_V), bool(biases & c.BIAS_O),
        layer.qk_norm in (c.QK_NORM_HEAD, c.QK_NORM_WIDTH), layer.window or 0, layer.qk_norm == c.QK_NORM_WIDTH,
        _f32(layer.clip_qkv), after.get(layer.qk_norm, ""), layer.chunk or 0, bool(layer.sinks),
        layer.query_floor or 0, F(layer.query_step or 0), gates.get(layer.head_gates, ""))


def _ffn(layer: Layer) -> DenseFfn | MoeFfn:
    c = constants()
    own = {"activation": _named("colibri_activation_kind", layer.activation, "silu"),
           "limit": _f32(layer.swiglu_limit),
           "biases": tuple(part for part in ("gate", "up", "down")
                           if (layer.ffn_biases or 0) & getattr(c, "FFN_BIAS_" + part.upper()))}
    if not layer.moe:
        return DenseFfn(layer.ff, **own)
    renormalise = names("colibri_renormalise")[layer.router_renormalise].lower()
    return MoeFfn(
        layer.experts, layer.top_k, layer.ff, False if renormalise == "none" else renormalise,
        F(1 if layer.router_scale is None else layer.router_scale),
        names("colibri_router_score")[layer.router_score].lower(),
        None if layer.router_eps is None else F(layer.router_eps), layer.shared_ff or 0,
        bool(layer.shared_gate), _BIAS[layer.router_bias or c.ROUTER_BIAS_NONE], layer.router_groups or 0,
        layer.router_top_groups or 0,
        _named("colibri_group_score", layer.router_group_score, "max"),
        "input" if layer.router_weight_on == c.ROUTER_ON_INPUT else "output", F(layer.router_sum_min or 0),
        F(layer.router_jitter or 0), layer.router_choice == c.CHOICE_BY_LOGIT, bool(layer.router_by_token),
        layer.router_span or 0, **own)


def _posts(layer: Layer) -> tuple[str, ...]:
    c, bits = constants(), layer.post_norms or 0
    return ("attention",) * bool(bits & c.POST_NORM_ATTENTION) + ("ffn",) * bool(bits & c.POST_NORM_FFN)


def description(model: Model) -> Description:
    """The reference's description; it knows one epsilon and one residual multiplier for all layers."""
    one_eps = {layer.norm_eps for layer in model.layers} | {model.final_eps}
    one_multiplier = {layer.residual_multiplier for layer in model.layers}
    if len(one_eps) > 1 or len(one_multiplier) > 1:
        raise ValueError("the numpy reference has one epsilon and one residual multiplier for all layers")
    optional = [None if x is None else F(x) for x in
                (model.embed_multiplier, one_multiplier.pop(), model.logit_multiplier)]
    layers = [LayerDesc(_attention(layer, model), _ffn(layer), _named("colibri_norm", layer.norm, "rms"), _posts(layer))
              for layer in model.layers]
    return Description(model.vocab, model.hidden, layers, F(one_eps.pop()), model.tied, *optional,
                       _named("colibri_norm", model.final_norm, "rms"), bool(model.head_bias),
                       _f32(model.logit_softcap))


def run_weights(model: Model, named: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    """Weights without those of draft layers, which no run reads."""
    drafts = tuple(f"layers.{len(model.layers) + number}." for number in range(len(model.drafts)))
    return {name: value for name, value in named.items() if not drafts or not name.startswith(drafts)}


def _factor(checkpoint: Checkpoint, name: str, layer: Layer, role: str) -> np.ndarray:
    """The heads' key factors, transposed, or their value factors, out of kv_b_proj."""
    both, latent = layer.nope_dim + layer.v_dim, layer.latent
    entry = checkpoint.expect(name, (layer.heads * both, latent))
    heads = np.array(checkpoint.floats(entry, 0, layer.heads * both * latent), dtype=F)
    heads = heads.reshape(layer.heads, both, latent)
    if role == "K_UP":
        return np.ascontiguousarray(heads[:, :layer.nope_dim].transpose(0, 2, 1)).reshape(-1, layer.nope_dim)
    return np.ascontiguousarray(heads[:, layer.nope_dim:]).reshape(-1, latent)


def weights(folder: Path, described: Described) -> dict[str, np.ndarray]:
    """The float32 tensors of a checkpoint by the reference's names."""
    found: dict[str, np.ndarray] = {}
    with Checkpoint(folder) as checkpoint:
        places = Places(checkpoint, described.float8_blocks)
        for tensor in required(described.model):
            shape = (tensor.columns,) if tensor.vector else (tensor.rows, tensor.columns)
            if tensor.role in ("K_UP", "V_UP"):
                own = described.model.layers[tensor.layer]
                found[f"layers.{tensor.layer}.{tensor.role.lower()}"] = _factor(
                    checkpoint, described.place(tensor).name, own, tensor.role)
                continue
            for expert in range(tensor.count):
                place = described.place(tensor, expert, checkpoint.entries)
                if tensor.expert:
                    name = f"experts.{expert}.{tensor.role.removeprefix('EXPERT_').lower()}"
                else:
                    name = _NAMES[tensor.role]
                prefix = "" if tensor.layer == EVERY_LAYER else f"layers.{tensor.layer}."
                values = places.rows(place, 0, tensor.rows, tensor.columns)
                found[prefix + name] = np.array(values, dtype=F).reshape(shape)
    return found


def described(folder: Path) -> Described:
    """The converter's reading of a folder's config.json."""
    return describe(read_document(folder / "config.json"), str(folder / "config.json"))
