"""Families as tables: which model_type has which switches, and what it calls its tensors.

The defaults are those of the families' own classes in transformers, for fields that a config.json leaves out.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from .description import EVERY_LAYER
from .format import Tensor


@dataclass(frozen=True)
class Moe:
    """How a family names and runs its experts."""

    experts: tuple[str, ...] = ("num_experts", "num_local_experts")
    top_k: str = "num_experts_per_tok"
    ff: str = "moe_intermediate_size"
    block: str = "mlp"
    parts: tuple[str, str, str] = ("gate_proj", "up_proj", "down_proj")
    layers: str = "step"  # "all", "step", "after first", "range": see families._sparse_layers
    dense_first: int = 0  # default of first_k_dense_replace
    score: str = "SOFTMAX"
    renormalise: str = "norm_topk_prob"  # config field; empty: always
    renormalise_default: bool = False
    scale: str = ""  # config field that multiplies the weights
    eps: str = ""  # added to their sum
    shared: str = ""  # config field of the shared expert
    shared_counts: int | None = (
        None  # None: the field is a width; else the default number of experts it counts
    )
    shared_default: int | None = None  # what an absent width means; None: it must be there
    shared_block: str = "shared_expert"
    shared_gate: bool = False
    router: str = "gate.weight"  # below the block
    correction: str = ""  # the router's bias, below the block
    correction_shape: tuple[int, ...] = ()  # what stands before [experts]
    bias: str = "SCORE"  # what the correction is added to
    normal: str = "SUM"  # how weights are renormalised, where they are
    sum_min: str = ""  # config field: the least sum they are divided by
    groups: bool = False  # n_group and topk_group
    groups_default: tuple[int, int] = (1, 1)  # what they mean where they are absent
    groups_when: str = ""  # the value of topk_method without which they say nothing
    group_score: str = "TOP_TWO"
    weight_on: str = "OUTPUT"
    # tensors that hold all experts (or gate and up of the shared one): gate and up rows together, then down
    fused: tuple[str, str] = ("", "")
    fused_shared: tuple[str, str] = ("", "")


@dataclass(frozen=True)
class Family:
    """One model_type."""

    theta: int = 10000
    kv_heads: int = 0  # what an absent num_key_value_heads means; 0: heads
    head_dim: int = 0  # what an absent head_dim means; 0: hidden_size / heads
    tied: bool = False
    biases: str = ""  # letters of the projections with a bias
    bias_field: str = ""  # config field that switches them; empty: always
    bias_default: bool = False
    qk_norm: bool = False
    qk_norm_wide: bool = False  # over all heads at once
    qk_norm_field: str = ""
    clip_field: str = ""  # config field of the clamp of q, k and v
    window: str = ""  # "", "always", "switch", "upper layers", "even layers", "upper layers, always"
    window_size: int | None = None  # what an absent sliding_window means
    window_border: int = 28  # what an absent max_window_layers means
    interleaved: bool = False
    interleaved_field: str = ""  # config field that switches it
    latent: bool = False  # latent attention (MLA)
    q_latent: int = 0  # what an absent q_lora_rank means
    index_heads: int = 0  # what an absent index_n_heads means; 0: the family chooses no positions
    index_interleaved: bool = False
    index_shared: bool = False  # layers may take over a former one's choice
    partial: str = "1"  # default share of head_dim that is rotated; "1": no other is known
    rotary_field: str = ""  # config field that says how many of head_dim are rotated
    ones: str = ""  # config field that lists a 1 for every layer
    multipliers: bool = False  # embedding, residual, attention and logits
    moe: Moe | None = None
    fixed: Mapping[str, Any] = field(
        default_factory=dict
    )  # fields that must have this value if they are there
    ignored: frozenset[str] = frozenset()


_DEEPSEEK_ROUTER: dict[str, Any] = {
    "experts": ("n_routed_experts", "num_local_experts", "num_experts"),
    "score": "SIGMOID",
    "scale": "routed_scaling_factor",
    "eps": "1e-20",
    "layers": "after first",
    "shared": "n_shared_experts",
    "shared_block": "shared_experts",
    "correction": "gate.e_score_correction_bias",
    "groups": True,
}
_QKVO: dict[str, Any] = {"biases": "qkvo", "bias_field": "attention_bias"}
_GRANITE_EXPERTS: dict[str, Any] = {
    "experts": ("num_local_experts", "num_experts"),
    "ff": "intermediate_size",
    "layers": "all",
    "block": "block_sparse_moe",
    "router": "router.layer.weight",
    "score": "LOGIT",
    "renormalise": "",
    "normal": "SOFTMAX",
    "fused": ("block_sparse_moe.input_linear.weight", "block_sparse_moe.output_linear.weight"),
}

_LATENT_ATTENTION: dict[str, Any] = {
    "latent": True,
    "interleaved": True,
    "ignored": frozenset("auto_map aux_loss_alpha ep_size head_dim pretraining_tp seq_aux".split()),
}
_NO_AUXILIARY = {"moe_layer_freq": 1, "scoring_func": "sigmoid", "topk_method": "noaux_tc"}
_DEEPSEEK_EXPERTS: dict[str, Any] = {
    **_DEEPSEEK_ROUTER,
    "shared_counts": 1,
    "dense_first": 3,
    "renormalise_default": True,
}

FAMILIES = {
    "llama": Family(**_QKVO, fixed={"mlp_bias": False}, ignored=frozenset({"pretraining_tp"})),
    "mistral": Family(kv_heads=8, window="always", window_size=4096),
    "qwen2": Family(kv_heads=32, biases="qkv", window="upper layers", window_size=4096),
    "qwen3": Family(
        **_QKVO, kv_heads=32, head_dim=128, qk_norm=True, window="upper layers", window_size=4096
    ),
    "granite": Family(**_QKVO, multipliers=True, fixed={"mlp_bias": False}),
    "ernie4_5": Family(
        theta=500000, kv_heads=2, head_dim=128, tied=True, interleaved=True, fixed={"use_bias": False}
    ),
    "mixtral": Family(
        theta=1000000,
        kv_heads=8,
        window="always",
        ignored=frozenset({"router_jitter_noise"}),
        moe=Moe(
            experts=("num_local_experts", "num_experts"),
            ff="intermediate_size",
            layers="all",
            block="block_sparse_moe",
            parts=("w1", "w3", "w2"),
            renormalise="",
        ),
    ),
    "qwen2_moe": Family(
        kv_heads=16,
        biases="qkv",
        bias_field="qkv_bias",
        bias_default=True,
        window="even layers",
        window_size=4096,
        moe=Moe(shared="shared_expert_intermediate_size", shared_gate=True),
    ),
    "qwen3_moe": Family(
        **_QKVO,
        kv_heads=4,
        qk_norm=True,
        window="switch",
        window_size=4096,
        moe=Moe(),
        ignored=frozenset({"max_window_layers"}),
    ),
    "olmoe": Family(
        **_QKVO,
        qk_norm=True,
        qk_norm_wide=True,
        clip_field="clip_qkv",
        moe=Moe(ff="intermediate_size", layers="all"),
    ),
    "ernie4_5_moe": Family(
        theta=500000,
        kv_heads=4,
        tied=True,
        interleaved=True,
        fixed={"use_bias": False},
        moe=Moe(
            experts=("moe_num_experts", "num_experts"),
            top_k="moe_k",
            layers="range",
            renormalise="",
            shared="moe_num_shared_experts",
            shared_counts=2,
            shared_block="shared_experts",
            correction="moe_statics.e_score_correction_bias",
            correction_shape=(1,),
            sum_min="moe_norm_min",
        ),
    ),
    "dots1": Family(
        **_QKVO,
        kv_heads=32,
        qk_norm=True,
        window="upper layers, always",
        window_size=4096,
        window_border=62,
        moe=Moe(**_DEEPSEEK_ROUTER, shared_counts=0),
    ),
    "glm4_moe": Family(
        kv_heads=8,
        biases="qkv",
        bias_field="attention_bias",
        qk_norm_field="use_qk_norm",
        partial="0.5",
        fixed={"num_nextn_predict_layers": 0, "num_mtp_layers": 0},
        moe=Moe(**_DEEPSEEK_ROUTER, shared_counts=1, dense_first=1, renormalise_default=True),
    ),
    "minimax_m2": Family(
        theta=5000000,
        kv_heads=8,
        head_dim=128,
        qk_norm=True,
        qk_norm_wide=True,
        rotary_field="rotary_dim",
        ones="attn_type_list",
        fixed={
            "scoring_func": "sigmoid",
            "use_qk_norm": True,
            "qk_norm_type": "per_layer",
            "use_routing_bias": True,
            "sliding_window": None,
            "shared_intermediate_size": 0,
            "layernorm_full_attention_beta": 1,
            "layernorm_linear_attention_beta": 1,
            "layernorm_mlp_beta": 1,
            "use_mtp": False,
        },
        ignored=frozenset({"mlp_intermediate_size", "router_jitter_noise", "shared_moe_mode"}),
        moe=Moe(
            experts=("num_local_experts", "num_experts"),
            ff="intermediate_size",
            layers="all",
            block="block_sparse_moe",
            parts=("w1", "w3", "w2"),
            score="SIGMOID",
            renormalise="",
            correction="e_score_correction_bias",
        ),
    ),
    "granitemoe": Family(**_QKVO, multipliers=True, moe=Moe(**_GRANITE_EXPERTS)),
    "granitemoeshared": Family(
        **_QKVO,
        multipliers=True,
        moe=Moe(
            **_GRANITE_EXPERTS,
            shared="shared_intermediate_size",
            shared_default=0,
            fused_shared=("shared_mlp.input_linear.weight", "shared_mlp.output_linear.weight"),
        ),
    ),
    "deepseek_v2": Family(
        **_LATENT_ATTENTION,
        q_latent=1536,
        fixed={
            "mlp_bias": False,
            "moe_layer_freq": 1,
            "norm_topk_prob": False,
            "scoring_func": "softmax",
        },
        moe=Moe(
            **{**_DEEPSEEK_ROUTER, "score": "SOFTMAX", "eps": "", "correction": ""},
            shared_counts=2,
            group_score="MAX",
            groups_when="group_limited_greedy",
        ),
    ),
    "deepseek_v3": Family(
        **_LATENT_ATTENTION,
        interleaved_field="rope_interleave",
        q_latent=1536,
        fixed=_NO_AUXILIARY,
        moe=Moe(**_DEEPSEEK_EXPERTS, groups_default=(8, 4)),
    ),
    "deepseek_v32": Family(
        **_LATENT_ATTENTION,
        q_latent=1536,
        index_heads=64,
        fixed={**_NO_AUXILIARY, "mlp_bias": False, "rope_interleave": True},
        moe=Moe(**{**_DEEPSEEK_EXPERTS, "layers": "named"}, groups_default=(8, 4)),
    ),
    "glm4_moe_lite": Family(
        **{**_LATENT_ATTENTION, "ignored": _LATENT_ATTENTION["ignored"] - {"head_dim"}},
        interleaved_field="rope_interleave",
        q_latent=768,
        fixed={**_NO_AUXILIARY, "first_k_dense_replace": 1},
        moe=Moe(**{**_DEEPSEEK_EXPERTS, "layers": "named", "dense_first": 1}),
    ),
    "glm_moe_dsa": Family(
        **_LATENT_ATTENTION,
        q_latent=2048,
        index_heads=32,
        index_interleaved=True,
        index_shared=True,
        fixed={
            **_NO_AUXILIARY,
            "indexer_rope_interleave": True,
            "mlp_bias": False,
            "rope_interleave": True,
        },
        moe=Moe(**{**_DEEPSEEK_EXPERTS, "layers": "named"}),
    ),
}
REFUSED = {
    "gpt_oss": "its attention sinks and clamped experts with biases have no switch in this version",
}
# Without effect on the logits.
IGNORED = frozenset(
    """
    _attn_implementation_autoset _name_or_path architectures attention_dropout bos_token_id
    chunk_size_feed_forward dtype eos_token_id id2label initializer_range is_llama_config label2id model_type
    output_attentions output_hidden_states output_router_logits pad_token_id problem_type return_dict
    router_aux_loss_coef torch_dtype transformers.js_config transformers_version unsloth_fixed use_cache
    """.split()
)
FIXED = {
    "hidden_act": "silu",
    "quantization_config": None,
    "rope_interleaved": False,
    "is_encoder_decoder": False,
    "add_cross_attention": False,
    "is_decoder": False,
    "tie_encoder_decoder": False,
    "auto_map": None,
}
# Buffers of old checkpoints; the frequencies come from the config.
IGNORED_TENSORS = re.compile(r"model\.layers\.\d+\.self_attn\.rotary_emb\.inv_freq")

_OF_THE_MODEL = {
    "EMBED": "model.embed_tokens.weight",
    "FINAL_NORM": "model.norm.weight",
    "HEAD": "lm_head.weight",
}
_GATED = ("gate_proj", "up_proj", "down_proj")


def layer_prefix(layer: int) -> str:
    """What stands before every tensor name of a layer."""
    return f"model.layers.{layer}."


def source_name(family: Family, tensor: Tensor, expert: int = 0) -> str:
    """The name a family gives to a matrix or vector."""
    role = tensor.role
    if tensor.layer == EVERY_LAYER:
        return _OF_THE_MODEL[role]
    moe = family.moe or Moe()
    fixed = {
        "ATTENTION_NORM": "input_layernorm.weight",
        "FFN_NORM": "post_attention_layernorm.weight",
        "ROUTER": f"{moe.block}.{moe.router}",
        "ROUTER_BIAS": f"{moe.block}.{moe.correction}",
        "SHARED_SWITCH": f"{moe.block}.{moe.shared_block}_gate.weight",
    }
    if role in fixed:
        name = fixed[role]
    elif role in ("Q", "K", "V", "O"):
        name = f"self_attn.{role.lower()}_proj.weight"
    elif role.endswith("_BIAS"):
        name = f"self_attn.{role[0].lower()}_proj.bias"
    elif role.endswith("_NORM"):
        name = f"self_attn.{role.lower()}.weight"
    else:
        kind, _, part = role.rpartition("_")
        which = ("GATE", "UP", "DOWN").index(part)
        block, parts = {
            "EXPERT": (f"{moe.block}.experts.{expert}", moe.parts),
            "SHARED": (f"{moe.block}.{moe.shared_block}", _GATED),
            "": ("mlp", _GATED),
        }[kind]
        name = f"{block}.{parts[which]}.weight"
    return layer_prefix(tensor.layer) + name


@dataclass(frozen=True)
class Place:
    """Where a matrix or vector stands in a checkpoint: from number `first` on in a tensor of this shape."""

    name: str
    shape: tuple[int, ...]
    first: int = 0


def source_place(family: Family, tensor: Tensor, experts: int, expert: int = 0) -> Place:
    """The place a family gives to a matrix or vector; `experts` is how many its layer has."""
    moe, (kind, _, part) = family.moe or Moe(), tensor.role.rpartition("_")
    shape: tuple[int, ...] = (tensor.columns,) if tensor.vector else (tensor.rows, tensor.columns)
    if tensor.role == "ROUTER_BIAS":
        shape = (*moe.correction_shape, *shape)
    fused = {"EXPERT": moe.fused, "SHARED": moe.fused_shared}.get(kind, ("", ""))
    if not fused[0] or part not in ("GATE", "UP", "DOWN"):
        return Place(source_name(family, tensor, expert), shape)
    both = 1 if part == "DOWN" else 2
    size = tensor.rows * tensor.columns
    whole = (both * tensor.rows, tensor.columns)
    return Place(
        layer_prefix(tensor.layer) + fused[part == "DOWN"],
        (experts, *whole) if kind == "EXPERT" else whole,
        (both * expert + (part == "UP")) * size,
    )
