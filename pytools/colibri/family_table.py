"""Families as tables: which model_type has which switches, and what it calls its tensors (family_places.py).

The defaults are those of the families' own classes in transformers, for fields that a config.json leaves out.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from decimal import Decimal
from typing import Any


@dataclass(frozen=True)
class Moe:
    """How a family names and runs its experts."""

    experts: tuple[str, ...] = ("num_experts", "num_local_experts")
    top_k: str = "num_experts_per_tok"
    ff: str = "moe_intermediate_size"
    block: str = "mlp"
    parts: tuple[str, str, str] = ("gate_proj", "up_proj", "down_proj")
    layers: str = "step"  # "all", "step", "after first", "range", "listed": see families._sparse_layers
    dense_first: int = 0  # default of first_k_dense_replace or num_dense_layers
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
    layout: str = ""  # where experts that are not single tensors lie: a key of LAYOUTS
    correction_field: str = ""  # config field that switches it (default: yes); empty: always
    correction_shape: tuple[int, ...] = ()  # what stands before [experts]
    bias: str = "SCORE"  # what the correction is added to
    normal: str = "SUM"  # how weights are renormalised, where they are
    power: bool = False  # the field says by which norm (1, 2), or null
    jitter: str = ""  # config field: the sparse mixer's distance
    sum_min: str = ""  # config field: the least sum they are divided by
    groups: bool = False  # n_group and topk_group
    groups_default: tuple[int, int] = (1, 1)  # what they mean where they are absent
    groups_when: str = ""  # the value of topk_method without which they say nothing
    group_score: str = "TOP_TWO"
    weight_on: str = "OUTPUT"
    by_logit: bool = False  # the choice, though weights are of the score
    # tensors that hold all experts (or gate and up of the shared one): gate and up rows together, then down
    fused: tuple[str, str] = ("", "")
    fused_shared: tuple[str, str] = ("", "")


@dataclass(frozen=True)
class Family:
    """One model_type."""

    spelling: Mapping[str, str] = field(default_factory=dict)  # config field -> its usual name: see config_file.Config
    prefix: str = "model.layers."  # of the tensors of layers; the number follows
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
    # "", "always", "switch", "upper layers", "even layers", "upper layers, always", "types", "types, always"
    window: str = ""
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
    names: Mapping[str, str] = field(default_factory=dict)  # role -> name, below the layer or of the model
    rope: Mapping[str, Any] = field(default_factory=dict)  # what an absent rope_parameters means
    full_every: int = 0  # "types": what an absent layer_types means, every n-th layer sees everything
    full_every_field: str = ""  # config field that says it
    local_theta: int = 0  # default theta of the layers with a window, where they rotate in their own way
    head_gates: str = ""  # HEAD, ELEMENT: what was attended, times sigmoids
    embed_root: str = ""  # embeddings times the root of their width: "always", or the config field that switches it
    score_field: str = ""  # config field whose root scores are divided by, instead of head_dim's
    softcap_field: str = ""  # config field of the soft cap of the logits
    norms_from_one: bool = False  # what a checkpoint holds of a norm's weights is their distance from 1
    nope_full: bool = False  # layers without a window do not rotate
    sinks: bool = False
    act: str = "silu"  # what an absent hidden_act means
    activation: str = "SILU"
    limit: str = ""  # default of swiglu_limit; empty: there is none
    ffn_biases: str = ""  # letters of the parts of the experts, or of a dense FFN, with a bias: g, u, d
    ffn_bias_field: str = ""  # config field that switches them (default: no); empty: always
    norm: str = ""  # of colibri_norm; empty: RMS
    norm_eps: str = ""  # of a family whose config does not say it
    head_bias_field: str = ""  # config field that gives the head a bias
    post_norms: tuple[str, ...] = ()  # ATTENTION, FFN
    qk_norm_after: str = ""  # HEAD, L2: q/k norm after the rotation
    by_turns: bool = False  # layers that rotate and see their stretch, and layers that do neither
    dense_ff: tuple[str, int | None] = ("intermediate_size", None)  # config field and default of dense layers' width
    convolution: bool = False  # layers named conv have a short convolution instead of attention
    fused_qkv: str = ""  # the tensor with the rows of q, then k, then v, below the layer
    multipliers: bool = False  # embedding, residual, attention and logits
    drafts: bool = False  # checkpoints may hold layers that guess further tokens
    moe: Moe | None = None
    fixed: Mapping[str, Any] = field(
        default_factory=dict
    )  # fields that must have this value if they are there
    ignored: frozenset[str] = frozenset()


@dataclass(frozen=True)
class Wrapper:
    """A model of several parts, of which one is a family's (its tensors are called as if it stood alone:
    safetensors_reader); the others are left out."""

    family: str
    field: str  # of config.json, with the family's own config
    others: Mapping[str, str]  # prefix of the tensors of another part -> what it is
    ignored: frozenset[str]


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
    "drafts": True,
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
    "llama": Family(
        **_QKVO, ffn_biases="gud", ffn_bias_field="mlp_bias", ignored=frozenset({"pretraining_tp"})
    ),
    "mistral": Family(kv_heads=8, window="always", window_size=4096),
    "qwen2": Family(kv_heads=32, biases="qkv", window="upper layers", window_size=4096),
    "qwen3": Family(
        **_QKVO, kv_heads=32, head_dim=128, qk_norm=True, window="upper layers", window_size=4096
    ),
    "granite": Family(**_QKVO, multipliers=True, ffn_biases="gud", ffn_bias_field="mlp_bias"),
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
        drafts=True,
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
        **{**_LATENT_ATTENTION, "ignored": _LATENT_ATTENTION["ignored"] | {"index_share_for_mtp_iteration"}},
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
FAMILIES["gpt_oss"] = Family(
    **{**_QKVO, "bias_default": True},
    theta=150000,
    kv_heads=8,
    head_dim=64,
    window="types",
    window_size=128,
    full_every=2,
    sinks=True,
    activation="CLAMPED_PLUS_ONE",
    limit="7.0",
    ffn_biases="gud",
    rope={
        "rope_type": "yarn",
        "factor": 32,
        "beta_fast": 32,
        "beta_slow": 1,
        "truncate": False,
        "original_max_position_embeddings": 4096,
    },
    fixed={"swiglu_alpha": Decimal("1.702")},
    ignored=frozenset({"initial_context_length", "experts_per_token"}),
    moe=Moe(
        experts=("num_local_experts", "num_experts"),
        ff="intermediate_size",
        layers="all",
        renormalise="",
        layout="oss",
        router="router.weight",
        correction="router.bias",
        bias="LOGIT",
        score="LOGIT",
        normal="SOFTMAX",
    ),
)
FAMILIES["hunyuan_v1_moe"] = Family(
    **_QKVO,
    qk_norm_after="HEAD",
    names={"Q_NORM": "self_attn.query_layernorm.weight", "K_NORM": "self_attn.key_layernorm.weight"},
    # one of its hub configs says these; the others are how training cut it up, or what its text needs
    fixed={"use_qk_norm": True, "use_cla": False, "use_mixed_mlp_moe": True, "norm_type": "rms"},
    ignored=frozenset(
        {"pretraining_tp", "eod_token_id", "sep_token_id", "org_vocab_size", "capacity_factor", "mask_init_id"}
    ),
    moe=Moe(
        experts=("num_experts", "num_local_experts"),
        top_k="moe_topk",
        ff="intermediate_size",
        layers="all",
        renormalise="",
        shared="intermediate_size",
        shared_block="shared_mlp",
        router="gate.wg.weight",
    ),
)
FAMILIES["kolibri1"] = Family(
    kv_heads=4,
    head_dim=128,
    qk_norm=True,
    window="types",
    window_size=513,
    full_every=5,
    nope_full=True,
    post_norms=("ATTENTION", "FFN"),
    names={
        "POST_ATTENTION_NORM": "post_attn_norm.weight",
        "POST_FFN_NORM": "post_ffn_norm.weight",
        "ROUTER_BIAS": "moe.router.expert_bias",
    },
    moe=Moe(
        experts=("num_experts", "num_local_experts"),
        layers="all",
        score="SIGMOID",
        correction="gate.e_score_correction_bias",
        bias="CHOICE",
        shared="shared_expert_intermediate_size",
        shared_default=512,
        shared_block="shared_experts",
    ),
)
FAMILIES["phimoe"] = Family(
    **_QKVO,
    theta=1000000,
    kv_heads=8,
    window="always",
    norm="LAYER_BIAS",
    head_bias_field="lm_head_bias",
    fixed={"num_experts_per_tok": 2},
    ignored=frozenset({"input_jitter_noise"}),
    moe=Moe(
        experts=("num_local_experts", "num_experts"),
        ff="intermediate_size",
        layers="all",
        block="block_sparse_moe",
        parts=("w1", "w3", "w2"),
        score="SPARSE_MIXER",
        renormalise="",
        normal="NONE",
        jitter="router_jitter_noise",
    ),
)
FAMILIES["llama4_text"] = Family(
    **_QKVO,
    theta=500000,
    kv_heads=8,
    head_dim=128,
    interleaved=True,
    by_turns=True,
    dense_ff=("intermediate_size_mlp", 16384),
    names={
        "GATE": "feed_forward.gate_proj.weight",
        "UP": "feed_forward.up_proj.weight",
        "DOWN": "feed_forward.down_proj.weight",
    },
    fixed={"for_llm_compressor": False},
    ignored=frozenset({"router_jitter_noise"}),
    moe=Moe(
        experts=("num_local_experts", "num_experts"),
        ff="intermediate_size",
        layers="listed",
        block="feed_forward",
        layout="columns",
        router="router.weight",
        score="SIGMOID",
        by_logit=True,
        renormalise="",
        normal="NONE",
        weight_on="INPUT",
        shared="intermediate_size",
        shared_block="shared_expert",
    ),
)
FAMILIES["dbrx"] = Family(
    spelling={
        "d_model": "hidden_size",
        "n_heads": "num_attention_heads",
        "n_layers": "num_hidden_layers",
        "max_seq_len": "max_position_embeddings",
        "attn_config.kv_n_heads": "num_key_value_heads",
        "attn_config.clip_qkv": "clip_qkv",
        "attn_config.rope_theta": "rope_theta",
        "ffn_config.ffn_act_fn.name": "hidden_act",
        "ffn_config.ffn_hidden_size": "moe_intermediate_size",
        "ffn_config.moe_num_experts": "num_experts",
        "ffn_config.moe_top_k": "num_experts_per_tok",
        "ffn_config.moe_normalize_expert_weights": "norm_topk_prob",
    },
    prefix="transformer.blocks.",
    kv_heads=1,
    clip_field="clip_qkv",
    norm="LAYER",
    norm_eps="1e-5",
    fused_qkv="norm_attn_norm.attn.Wqkv.weight",
    names={
        "EMBED": "transformer.wte.weight",
        "FINAL_NORM": "transformer.norm_f.weight",
        "ATTENTION_NORM": "norm_attn_norm.norm_1.weight",
        "FFN_NORM": "norm_attn_norm.norm_2.weight",
        "O": "norm_attn_norm.attn.out_proj.weight",
    },
    fixed={"tie_word_embeddings": False},
    ignored=frozenset(
        """
        auto_map emb_pdrop resid_pdrop attn_config.attn_pdrop ffn_config.hidden_size ffn_config.moe_jitter_eps
        ffn_config.moe_loss_weight
        """.split()
    ),
    moe=Moe(
        experts=("num_experts",),
        layers="all",
        block="ffn",
        layout="stacks",
        router="router.layer.weight",
        power=True,
    ),
)
FAMILIES["lfm2_moe"] = Family(
    spelling={"norm_eps": "rms_norm_eps", "tie_embedding": "tie_word_embeddings"},
    theta=1000000,
    kv_heads=8,
    tied=True,
    qk_norm=True,
    convolution=True,
    names={
        "FINAL_NORM": "model.embedding_norm.weight",
        "ATTENTION_NORM": "operator_norm.weight",
        "FFN_NORM": "ffn_norm.weight",
        "O": "self_attn.out_proj.weight",
        "Q_NORM": "self_attn.q_layernorm.weight",
        "K_NORM": "self_attn.k_layernorm.weight",
        "GATE": "feed_forward.w1.weight",
        "UP": "feed_forward.w3.weight",
        "DOWN": "feed_forward.w2.weight",
    },
    fixed={"hidden_act": "silu"},
    moe=Moe(
        experts=("num_experts", "num_local_experts"),
        block="feed_forward",
        parts=("w1", "w3", "w2"),
        layers="after dense",
        dense_first=2,
        score="SIGMOID",
        scale="routed_scaling_factor",
        eps="1e-6",
        renormalise_default=True,
        correction="expert_bias",
        correction_field="use_expert_bias",
    ),
)
FAMILIES["afmoe"] = Family(
    **_QKVO,
    head_dim=128,
    qk_norm=True,
    window="types, always",
    window_size=1024,
    full_every=4,
    full_every_field="global_attn_every_n_layers",
    nope_full=True,
    head_gates="ELEMENT",
    embed_root="mup_enabled",
    post_norms=("ATTENTION", "FFN"),
    names={
        "POST_ATTENTION_NORM": "post_attention_layernorm.weight",
        "FFN_NORM": "pre_mlp_layernorm.weight",
        "POST_FFN_NORM": "post_mlp_layernorm.weight",
    },
    fixed={
        "n_group": 1,
        "num_expert_groups": 1,
        "num_limited_groups": 1,
        "route_norm": True,
        "score_func": "sigmoid",
        "topk_group": 1,
    },
    ignored=frozenset("auto_map load_balance_coeff use_grouped_mm".split()),
    moe=Moe(
        experts=("num_experts", "num_local_experts"),
        layers="after dense",
        dense_first=1,
        router="router.gate.weight",
        score="SIGMOID",
        correction="expert_bias",
        renormalise="",
        eps="1e-20",
        scale="route_scale",
        shared="num_shared_experts",
        shared_counts=2,
        shared_block="shared_experts",
    ),
)
FAMILIES["gemma3_text"] = Family(
    **_QKVO,
    spelling={"hidden_activation": "hidden_act"},
    theta=1000000,
    local_theta=10000,
    kv_heads=4,
    head_dim=256,
    tied=True,
    qk_norm=True,
    window="types, always",
    window_size=4096,
    full_every=6,
    full_every_field="sliding_window_pattern",
    act="gelu_pytorch_tanh",
    embed_root="always",
    score_field="query_pre_attn_scalar",
    softcap_field="final_logit_softcapping",
    norms_from_one=True,
    post_norms=("ATTENTION", "FFN"),
    names={
        "POST_ATTENTION_NORM": "post_attention_layernorm.weight",
        "FFN_NORM": "pre_feedforward_layernorm.weight",
        "POST_FFN_NORM": "post_feedforward_layernorm.weight",
    },
    fixed={"attn_logit_softcapping": None, "use_bidirectional_attention": False},
    ignored=frozenset({"cache_implementation"}),
)
WRAPPERS = {
    "llama4": Wrapper(
        "llama4_text",
        "text_config",
        {"vision_model.": "the vision model", "multi_modal_projector.": "the vision model's projector"},
        frozenset("boi_token_index eoi_token_index image_token_index vision_config".split()),
    ),
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
# hidden_act -> colibri_activation_kind
ACTIVATIONS = {
    "silu": "SILU",
    "swish": "SILU",
    "gelu": "GELU_ERF",
    "gelu_new": "GELU_TANH",
    "gelu_pytorch_tanh": "GELU_TANH",
}
FIXED = {
    "rope_interleaved": False,
    "is_encoder_decoder": False,
    "add_cross_attention": False,
    "is_decoder": False,
    "tie_encoder_decoder": False,
    "auto_map": None,
}
# Buffers of old checkpoints; the frequencies come from the config.
IGNORED_TENSORS = re.compile(r"model\.layers\.\d+\.self_attn\.rotary_emb\.inv_freq")
