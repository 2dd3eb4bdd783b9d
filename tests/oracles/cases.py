"""The configurations the outside oracle answers for: which family, which sizes, which switch is exercised.

Every case is a config.json as it would stand on the hub (old and new spellings on purpose) and the sizes its
tensors follow from. Sizes are tiny, but no two that could be confused are equal: head_dim is rarely
hidden / heads, vocabularies are no multiple of a tile, windows and trained contexts are shorter than the
prompt, and epsilons are large enough to be seen in the logits.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any

LLAMA3 = {
    "rope_type": "llama3",
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 32,
}
VISION = {"model_type": "llama4_vision_model", "hidden_size": 16, "num_hidden_layers": 1}
YARN = {"factor": 4.0, "beta_fast": 4.0, "beta_slow": 0.5, "original_max_position_embeddings": 32}

PROMPT = 32  # teacher-forced positions
GREEDY = 20  # tokens generated after them


@dataclass(frozen=True)
class Shape:
    """Sizes and optional parts of one tiny model, from which its tensors follow."""

    hidden: int = 64
    layers: int = 3
    heads: int = 4
    kv_heads: int = 2
    head_dim: int = 16
    ff: int = 96  # dense layers
    vocab: int = 120
    tied: bool = False
    bias: str = ""  # which of q, k, v, o have one
    qk_norm: bool = False
    qk_norm_wide: bool = False  # over all heads at once
    ffn_bias: bool = False  # of a dense layer
    norm_bias: bool = False  # norms have one
    head_bias: bool = False
    experts: int = 0
    top_k: int = 0
    expert_ff: int = 0
    dense_layers: tuple[int, ...] = ()  # layers without experts in a MoE
    shared_ff: int = 0
    shared_gate: bool = False
    correction: float = 0.0  # spread of the router's bias, where the family has one
    latent: int = 0  # latent attention
    q_latent: int = 0
    nope: int = 0
    rope: int = 0
    v: int = 0
    index_heads: int = 0  # sparse latent attention
    index_dim: int = 0
    index_layers: tuple[int, ...] | None = None  # layers with index heads, None: all
    conv_layers: tuple[int, ...] = ()  # layers with a short convolution instead of attention
    taps: int = 0
    wrapped: str = ""  # the model_type around it; then there are tensors of another part too


@dataclass(frozen=True)
class Case:
    """One checkpoint: its config.json, its sizes, its tensors' type on disk and the seed of its weights."""

    name: str
    what: str
    config: dict[str, Any]
    shape: Shape
    seed: int
    dtype: str = "F32"

    @property
    def family(self) -> str:
        """model_type in config.json, of its text model where there are several."""
        return str(self.config.get("text_config", self.config)["model_type"])


_CLASSES = {
    "llama": "LlamaForCausalLM",
    "mistral": "MistralForCausalLM",
    "qwen2": "Qwen2ForCausalLM",
    "qwen3": "Qwen3ForCausalLM",
    "granite": "GraniteForCausalLM",
    "ernie4_5": "Ernie4_5ForCausalLM",
    "mixtral": "MixtralForCausalLM",
    "qwen2_moe": "Qwen2MoeForCausalLM",
    "qwen3_moe": "Qwen3MoeForCausalLM",
    "olmoe": "OlmoeForCausalLM",
    "ernie4_5_moe": "Ernie4_5_MoeForCausalLM",
    "dots1": "Dots1ForCausalLM",
    "glm4_moe": "Glm4MoeForCausalLM",
    "minimax_m2": "MiniMaxM2ForCausalLM",
    "granitemoe": "GraniteMoeForCausalLM",
    "granitemoeshared": "GraniteMoeSharedForCausalLM",
    "gpt_oss": "GptOssForCausalLM",
    "llama4_text": "Llama4ForCausalLM",
    "lfm2_moe": "Lfm2MoeForCausalLM",
    "dbrx": "DbrxForCausalLM",
    "afmoe": "AfmoeForCausalLM",
    "gemma3_text": "Gemma3ForCausalLM",
    "llama4": "Llama4ForConditionalGeneration",
    "hunyuan_v1_moe": "HunYuanMoEV1ForCausalLM",
    "kolibri1": "Kolibri1ForCausalLM",
    "phimoe": "PhimoeForCausalLM",
    "deepseek_v2": "DeepseekV2ForCausalLM",
    "deepseek_v3": "DeepseekV3ForCausalLM",
    "deepseek_v32": "DeepseekV32ForCausalLM",
    "glm4_moe_lite": "Glm4MoeLiteForCausalLM",
    "glm_moe_dsa": "GlmMoeDsaForCausalLM",
}

# How each family spells number of experts, experts per token and the width of one expert.
_MOE_KEYS = {
    "mixtral": ("num_local_experts", "num_experts_per_tok", "intermediate_size"),
    "qwen2_moe": ("num_experts", "num_experts_per_tok", "moe_intermediate_size"),
    "qwen3_moe": ("num_experts", "num_experts_per_tok", "moe_intermediate_size"),
    "olmoe": ("num_experts", "num_experts_per_tok", "intermediate_size"),
    "ernie4_5_moe": ("moe_num_experts", "moe_k", "moe_intermediate_size"),
    "dots1": ("n_routed_experts", "num_experts_per_tok", "moe_intermediate_size"),
    "glm4_moe": ("n_routed_experts", "num_experts_per_tok", "moe_intermediate_size"),
    "minimax_m2": ("num_local_experts", "num_experts_per_tok", "intermediate_size"),
    "granitemoe": ("num_local_experts", "num_experts_per_tok", "intermediate_size"),
    "granitemoeshared": ("num_local_experts", "num_experts_per_tok", "intermediate_size"),
    "gpt_oss": ("num_local_experts", "num_experts_per_tok", "intermediate_size"),
    "llama4_text": ("num_local_experts", "num_experts_per_tok", "intermediate_size"),
    "hunyuan_v1_moe": ("num_experts", "moe_topk", "intermediate_size"),
    "afmoe": ("num_experts", "num_experts_per_tok", "moe_intermediate_size"),
    "lfm2_moe": ("num_experts", "num_experts_per_tok", "moe_intermediate_size"),
    "dbrx": ("moe_num_experts", "moe_top_k", "ffn_hidden_size"),
    "kolibri1": ("num_experts", "num_experts_per_tok", "moe_intermediate_size"),
    "phimoe": ("num_local_experts", "num_experts_per_tok", "intermediate_size"),
    **{name: ("n_routed_experts", "num_experts_per_tok", "moe_intermediate_size")
       for name in ("deepseek_v2", "deepseek_v3", "deepseek_v32", "glm4_moe_lite", "glm_moe_dsa")},
}
# What dbrx calls the model's own fields, and which ones stand in an object of their own.
_DBRX = {"hidden_size": "d_model", "num_attention_heads": "n_heads", "num_hidden_layers": "n_layers",
         "max_position_embeddings": "max_seq_len"}
_DBRX_PARTS = {
    "attn_config": ("clip_qkv", "kv_n_heads", "rope_theta"),
    "ffn_config": ("ffn_act_fn", "ffn_hidden_size", "moe_num_experts", "moe_top_k", "moe_normalize_expert_weights",
                   "moe_jitter_eps", "moe_loss_weight"),
}
_TYPES = {"F32": "float32", "F16": "float16", "BF16": "bfloat16"}


@dataclass
class _Table:
    cases: dict[str, Case] = field(default_factory=dict)

    def add(self, name: str, family: str, what: str, shape: Shape, *, seed: int = 0, dtype: str = "F32",
            absent: tuple[str, ...] = (), **own: Any) -> None:
        """Put one case into the table; `absent` keys are left out of config.json, `own` ones are added."""
        config: dict[str, Any] = {
            "architectures": [_CLASSES[family]],
            "model_type": family,
            "vocab_size": shape.vocab,
            "hidden_size": shape.hidden,
            "intermediate_size": shape.ff,
            "num_hidden_layers": shape.layers,
            "num_attention_heads": shape.heads,
            "num_key_value_heads": shape.kv_heads,
            "head_dim": shape.head_dim,
            "hidden_act": "silu",
            "max_position_embeddings": 128,
            "rms_norm_eps": 1e-2,
            "tie_word_embeddings": shape.tied,
            "bos_token_id": 1,
            "eos_token_id": 2,
            "torch_dtype": _TYPES[dtype],
        }
        if shape.experts:
            experts, top_k, width = _MOE_KEYS[family]
            config.update({experts: shape.experts, top_k: shape.top_k, width: shape.expert_ff})
        if shape.latent:
            config.update({"kv_lora_rank": shape.latent, "q_lora_rank": shape.q_latent or None,
                           "qk_nope_head_dim": shape.nope, "qk_rope_head_dim": shape.rope,
                           "v_head_dim": shape.v, "num_key_value_heads": shape.heads})
            del config["head_dim"]
        if shape.index_heads:
            config.update({"index_n_heads": shape.index_heads, "index_head_dim": shape.index_dim})
        config.update(own)
        for key in absent:
            del config[key]
        if family == "dbrx":
            config = _dbrx(config)
        if shape.wrapped:
            kept = {"architectures": [_CLASSES[shape.wrapped]], "torch_dtype": config.pop("torch_dtype")}
            del config["architectures"]
            config = {**kept, "model_type": shape.wrapped, "text_config": config, "tie_word_embeddings": False,
                      "vision_config": VISION, "image_token_index": 9, "boi_token_index": 7, "eoi_token_index": 8}
        self.cases[name] = Case(name, what, config, shape, seed, dtype)


def _dbrx(config: dict[str, Any]) -> dict[str, Any]:
    """The fields as dbrx has them."""
    config = {_DBRX.get(name, name): value for name, value in config.items()}
    config["kv_n_heads"] = config.pop("num_key_value_heads")
    config["ffn_act_fn"] = {"name": config.pop("hidden_act")}
    for name in ("intermediate_size", "rms_norm_eps", "head_dim"):
        del config[name]
    for part, names in _DBRX_PARTS.items():
        inside = {name: config.pop(name) for name in names if name in config}
        config[part] = {"model_type": "", **inside}
    return {**config, "rope_parameters": {"rope_type": "default", "rope_theta": config["attn_config"]["rope_theta"]}}


def _table() -> dict[str, Case]:
    table = _Table()
    _dense(table)
    _switches(table)
    _activations(table)
    _mixtral(table)
    _experts(table)
    _routers(table)
    _frontier(table)
    _latent(table)
    _gated(table)
    return table.cases


def _dense(table: _Table) -> None:
    base = Shape()
    table.add("llama_mha", "llama",
              "one KV head per head, default rope, own head, old spelling",
              replace(base, kv_heads=4), seed=2, rope_theta=500.0)
    table.add("llama_gqa_bias", "llama",
              "grouped KV heads, biases on q, k, v and o, tied head, linear rope",
              replace(base, tied=True, bias="qkvo"), seed=2, attention_bias=True, rope_theta=100.0,
              rope_scaling={"type": "linear", "factor": 4.0})
    table.add("llama_mqa", "llama",
              "one KV head for all, head_dim unlike hidden / heads, new spelling",
              replace(base, kv_heads=1, head_dim=24), seed=3,
              rope_parameters={"rope_type": "linear", "rope_theta": 200.0, "factor": 2.5})
    table.add("llama_llama3", "llama",
              "llama3 rope in the old spelling",
              replace(base, heads=6, kv_heads=3, hidden=96, layers=2), seed=2, rope_theta=300.0,
              rope_scaling=LLAMA3)
    table.add("llama_yarn", "llama",
              "yarn rope in the oldest spelling, attention factor from the formula",
              base, seed=8, rope_theta=100.0,
              rope_scaling={"type": "yarn", **YARN})
    table.add("llama_odd", "llama",
              "no size a multiple of a tile or a group, bfloat16 on disk, defaults left out",
              replace(base, hidden=72, heads=3, kv_heads=3, head_dim=24, ff=88, vocab=101, layers=2), seed=3,
              dtype="BF16", absent=("head_dim", "num_key_value_heads", "tie_word_embeddings", "bos_token_id"))
    table.add("mistral_window", "mistral",
              "sliding window shorter than the prompt, float16 on disk",
              replace(base, head_dim=20), seed=2, dtype="F16", sliding_window=11, rope_theta=1000.0)


def _switches(table: _Table) -> None:
    base = Shape()
    table.add("qwen2_window", "qwen2",
              "biases on q, k and v only, full first layer, windows above, tied head",
              replace(base, bias="qkv", tied=True), seed=1, use_sliding_window=True, sliding_window=9,
              max_window_layers=1, rope_theta=1000.0, absent=("head_dim",))
    table.add("qwen3_norm", "qwen3",
              "q/k norm per head, windows by layer_types, new rope spelling",
              replace(base, head_dim=24, qk_norm=True), seed=4, use_sliding_window=True, sliding_window=7,
              layer_types=["sliding_attention", "full_attention", "sliding_attention"],
              rope_parameters={"rope_type": "default", "rope_theta": 250.0})
    table.add("granite_multipliers", "granite",
              "embedding, residual, attention and logit multipliers",
              replace(base, tied=True), seed=1, embedding_multiplier=1.5, residual_multiplier=0.7,
              attention_multiplier=0.4, logits_scaling=0.8, rope_theta=1000.0, absent=("head_dim",))
    table.add("ernie_interleaved", "ernie4_5",
              "interleaved rotary pairs in a dense model",
              replace(base, head_dim=20), seed=2, use_bias=False, rope_theta=100.0)


def _activations(table: _Table) -> None:
    base = Shape()
    table.add("llama_gelu", "llama",
              "gelu by the error function, biases in the feed-forward part",
              replace(base, ffn_bias=True), seed=2, mlp_bias=True, hidden_act="gelu", rope_theta=500.0)
    table.add("llama_gelu_tanh", "llama",
              "gelu by its tanh approximation",
              base, seed=1, hidden_act="gelu_pytorch_tanh", rope_theta=500.0)


def _mixtral(table: _Table) -> None:
    base = Shape(ff=80, experts=8, top_k=2, expert_ff=80)
    table.add("mixtral_mha", "mixtral",
              "one KV head per head, 8 experts, top 2, old spelling",
              replace(base, kv_heads=4), seed=4, rope_theta=1000.0)
    table.add("mixtral_gqa_yarn", "mixtral",
              "grouped KV heads, yarn with its own attention factor, new spelling",
              replace(base, layers=2), seed=6,
              rope_parameters={"rope_type": "yarn", "rope_theta": 100.0, **YARN, "attention_factor": 1.25,
                               "truncate": False})
    table.add("mixtral_mqa_window", "mixtral",
              "one KV head, head_dim unlike hidden / heads, window, llama3 rope",
              replace(base, kv_heads=1, head_dim=28), seed=1, sliding_window=10,
              rope_parameters={**LLAMA3, "rope_theta": 300.0})
    table.add("mixtral_defaults", "mixtral",
              "optional keys left out: eight KV heads, theta 1e6, no window",
              replace(base, heads=16, kv_heads=8, head_dim=4, layers=2), seed=2, dtype="BF16",
              absent=("head_dim", "num_key_value_heads", "tie_word_embeddings"))
    table.add("mixtral_tied", "mixtral",
              "tied head, 5 experts, top 3, linear rope",
              replace(base, tied=True, experts=5, top_k=3, layers=2), seed=1, rope_theta=100.0,
              rope_scaling={"type": "linear", "factor": 4.0}, head_dim=None, sliding_window=None)
    table.add("mixtral_one", "mixtral",
              "a single expert per token",
              replace(base, experts=6, top_k=1, layers=2), seed=4, rope_theta=1000.0)
    table.add("mixtral_all", "mixtral",
              "every expert for every token",
              replace(base, experts=4, top_k=4, layers=2), seed=1, rope_theta=1000.0)


def _experts(table: _Table) -> None:
    base = Shape(experts=8, top_k=2, expert_ff=56)
    table.add("qwen2_moe_plain", "qwen2_moe",
              "weights not renormalised, gated shared expert, dense layers mixed in",
              replace(base, bias="qkv", shared_ff=72, shared_gate=True, dense_layers=(0, 2), layers=4),
              seed=2, norm_topk_prob=False, shared_expert_intermediate_size=72, decoder_sparse_step=2,
              rope_theta=1000.0, absent=("head_dim",))
    table.add("qwen2_moe_renorm", "qwen2_moe",
              "weights renormalised, gated shared expert, one layer dense by name",
              replace(base, bias="qkv", shared_ff=40, shared_gate=True, dense_layers=(1,)), seed=8,
              norm_topk_prob=True, shared_expert_intermediate_size=40, mlp_only_layers=[1],
              rope_theta=1000.0, absent=("head_dim",))
    table.add("qwen3_moe_norm", "qwen3_moe",
              "q/k norm per head, top 4 renormalised, yarn with mscale",
              replace(base, head_dim=20, qk_norm=True, top_k=4, dense_layers=(0,)), seed=4,
              norm_topk_prob=True, mlp_only_layers=[0],
              rope_parameters={"rope_type": "yarn", "rope_theta": 100.0, **YARN, "mscale": 0.9,
                               "mscale_all_dim": 0.3})
    table.add("qwen3_moe_plain", "qwen3_moe",
              "weights not renormalised (the default), biases on q, k, v and o",
              replace(base, qk_norm=True, bias="qkvo", layers=2), seed=1, attention_bias=True,
              rope_theta=1000.0)
    table.add("olmoe_wide", "olmoe",
              "q/k norm over the whole width, q, k and v clamped, weights not renormalised",
              replace(base, qk_norm=True, qk_norm_wide=True, top_k=3), seed=3, norm_topk_prob=False,
              clip_qkv=0.9, rope_theta=1000.0, absent=("head_dim",))
    table.add("ernie_moe", "ernie4_5_moe",
              "interleaved pairs, shared experts without gate, first layer dense",
              replace(base, top_k=3, shared_ff=112, dense_layers=(0,), tied=True), seed=5, use_bias=False,
              moe_num_shared_experts=2, moe_layer_start_index=1, moe_layer_interval=1, rope_theta=100.0)
    table.add("dots_sigmoid", "dots1",
              "sigmoid scores renormalised and scaled, ungated shared expert, q/k norm",
              replace(base, top_k=3, qk_norm=True, shared_ff=56, dense_layers=(0,)), seed=2, n_group=1,
              topk_group=1, n_shared_experts=1, first_k_dense_replace=1, norm_topk_prob=True,
              routed_scaling_factor=2.5, rope_theta=1000.0)
    table.add("dots_sigmoid_plain", "dots1",
              "sigmoid scores as they are, scaled",
              replace(base, qk_norm=True, shared_ff=56, layers=2), seed=5, n_group=1, topk_group=1,
              n_shared_experts=1, first_k_dense_replace=0, norm_topk_prob=False, routed_scaling_factor=1.5,
              rope_theta=1000.0)
    table.add("glm_partial", "glm4_moe",
              "rotation of half of each head, biases on q, k and v, sigmoid router",
              replace(base, head_dim=24, bias="qkv", qk_norm=True, shared_ff=56, dense_layers=(0,)), seed=1,
              n_group=1, topk_group=1, n_shared_experts=1, first_k_dense_replace=1, norm_topk_prob=True,
              routed_scaling_factor=1.5, partial_rotary_factor=0.5, use_qk_norm=True, attention_bias=True,
              rope_theta=1000.0)


def _routers(table: _Table) -> None:
    base = Shape(experts=8, top_k=2, expert_ff=56)
    table.add("granite_moe", "granitemoe",
              "experts fused on disk, softmax of the chosen logits, all multipliers",
              replace(base, top_k=3, tied=True), seed=1, embedding_multiplier=1.5, residual_multiplier=0.7,
              attention_multiplier=0.4, logits_scaling=0.8, rope_theta=1000.0, absent=("head_dim",))
    table.add("granite_shared", "granitemoeshared",
              "a shared expert fused on disk, bfloat16, biases on q, k, v and o",
              replace(base, shared_ff=40, bias="qkvo", layers=2), seed=1, dtype="BF16", attention_bias=True,
              shared_intermediate_size=40, residual_multiplier=0.8, attention_multiplier=0.3, rope_theta=1000.0,
              absent=("head_dim",))
    table.add("dots_groups", "dots1",
              "the choice by score plus bias among the experts of the best groups",
              replace(base, experts=12, top_k=4, qk_norm=True, shared_ff=56, dense_layers=(0,), correction=0.3),
              seed=16, n_group=4, topk_group=2, n_shared_experts=1, first_k_dense_replace=1, norm_topk_prob=True,
              routed_scaling_factor=2.5, rope_theta=1000.0)
    table.add("glm_groups", "glm4_moe",
              "one of two groups, biases that decide, rotation of half of each head",
              replace(base, head_dim=24, bias="qkv", top_k=3, shared_ff=56, dense_layers=(0,), correction=0.5), seed=2,
              n_group=2, topk_group=1, n_shared_experts=1, first_k_dense_replace=1, norm_topk_prob=True,
              routed_scaling_factor=1.5, partial_rotary_factor=0.5, use_qk_norm=False, attention_bias=True,
              rope_theta=1000.0)
    table.add("ernie_bias", "ernie4_5_moe",
              "softmax scores, the choice by score plus bias, a least sum that is met",
              replace(base, top_k=3, shared_ff=56, dense_layers=(0,), tied=True, correction=0.2), seed=6,
              use_bias=False, moe_num_shared_experts=1, moe_layer_start_index=1, moe_layer_interval=1, moe_norm_min=0.6,
              rope_theta=100.0)
    table.add("minimax_bias", "minimax_m2",
              "sigmoid scores plus bias, q/k norm over the width, a third of each head rotated",
              replace(base, head_dim=24, qk_norm=True, qk_norm_wide=True, top_k=3, ff=56, correction=0.4), seed=1,
              rotary_dim=8, rope_theta=1000.0)
def _latent(table: _Table) -> None:
    base = Shape(experts=8, top_k=2, expert_ff=56, shared_ff=112, latent=32, nope=12, rope=8, v=16)
    table.add("deepseek_v2_plain", "deepseek_v2",
              "latent attention, queries straight from the norm, softmax scores as they are, two shared experts",
              replace(base, dense_layers=(0,)), seed=3, n_shared_experts=2, first_k_dense_replace=1,
              topk_method="greedy", n_group=1, topk_group=1, routed_scaling_factor=1.0, rope_theta=100.0)
    table.add("deepseek_v2_yarn", "deepseek_v2",
              "a latent of the queries too, biases, yarn whose mscale is on the scores, weights scaled",
              replace(base, q_latent=24, heads=5, nope=24, v=32, latent=48, bias="yes", layers=2, hidden=80,
                      shared_ff=56), seed=6, n_shared_experts=1, first_k_dense_replace=0,
              attention_bias=True, routed_scaling_factor=1.5, rope_theta=100.0,
              rope_scaling={"type": "yarn", **YARN, "mscale": 0.8, "mscale_all_dim": 0.5})
    table.add("deepseek_v2_groups", "deepseek_v2",
              "the best experts of the best groups, a group by its largest score",
              replace(base, experts=12, top_k=3, shared_ff=56, layers=2), seed=91, n_shared_experts=1,
              first_k_dense_replace=0, topk_method="group_limited_greedy", n_group=4, topk_group=2,
              routed_scaling_factor=4.0, rope_theta=100.0)
    experts = replace(base, shared_ff=56, correction=0.3, q_latent=24)
    table.add("deepseek_v3_groups", "deepseek_v3",
              "latent attention, yarn on the scores, the choice by score plus bias in groups",
              replace(experts, experts=12, top_k=4, dense_layers=(0,)), seed=1, n_shared_experts=1,
              first_k_dense_replace=1, n_group=4, topk_group=2, norm_topk_prob=True, routed_scaling_factor=2.5,
              num_nextn_predict_layers=0, rope_theta=100.0,
              rope_scaling={"type": "yarn", **YARN, "mscale": 1.0, "mscale_all_dim": 1.0})
    table.add("deepseek_v3_halves", "deepseek_v3",
              "queries straight from the norm, half-split pairs",
              replace(experts, q_latent=0, layers=2, dense_layers=(0,)), seed=2, n_shared_experts=1,
              first_k_dense_replace=1, n_group=1, topk_group=1, norm_topk_prob=False, routed_scaling_factor=1.5,
              num_nextn_predict_layers=0, rope_interleave=False, rope_theta=100.0)
    table.add("glm_lite", "glm4_moe_lite",
              "values wider than keys, biases on the latents, dense layers by name",
              replace(experts, v=48, bias="yes", dense_layers=(1,)), seed=3, n_shared_experts=1, n_group=1,
              topk_group=1, norm_topk_prob=True, routed_scaling_factor=1.8, attention_bias=True, rope_theta=100.0,
              mlp_layer_types=["sparse", "dense", "sparse"])
    sparse = replace(experts, index_heads=16, index_dim=24)
    table.add("deepseek_v32_sparse", "deepseek_v32",
              "a row looks at 12 positions, index rotation half-split, groups",
              replace(sparse, experts=8, top_k=3, dense_layers=(0,)), seed=1, n_shared_experts=1,
              first_k_dense_replace=1, n_group=2, topk_group=1, norm_topk_prob=True, routed_scaling_factor=2.5,
              index_topk=12, rope_theta=100.0)
    table.add("deepseek_v32_short", "deepseek_v32",
              "all positions, since none has more than it may choose",
              replace(sparse, layers=2, dense_layers=(0,)), seed=4, n_shared_experts=1,
              first_k_dense_replace=1, n_group=1, topk_group=1, norm_topk_prob=True, routed_scaling_factor=2.5,
              index_topk=64, rope_theta=100.0)
    table.add("glm_dsa_shared", "glm_moe_dsa",
              "a row looks at 9 positions, index rotation interleaved, layers that take over a choice",
              replace(sparse, layers=4, dense_layers=(0,), index_layers=(0, 2)), seed=33, n_shared_experts=1,
              first_k_dense_replace=1, n_group=1, topk_group=1, norm_topk_prob=True, routed_scaling_factor=2.5,
              index_topk=9, indexer_types=["full", "shared", "full", "shared"], rope_theta=100.0)


def _frontier(table: _Table) -> None:
    base = Shape(experts=8, top_k=3, expert_ff=56)
    table.add("llama4_turns", "llama4_text",
              "weights on the input, layers by turns: rotated in stretches, or whole with growing queries",
              Shape(experts=6, top_k=2, expert_ff=56, shared_ff=56, layers=4, dense_layers=(0, 2), ff=88, head_dim=24),
              seed=3, rope_theta=1000.0, intermediate_size_mlp=88, interleave_moe_layer_step=2, attention_chunk_size=11,
              no_rope_layers=[1, 0, 1, 0], floor_scale=3, attn_scale=0.3, use_qk_norm=True)
    table.add("llama4_wrapped", "llama4_text",
              "the text part of a model that also sees: one expert a token in every layer, llama3 rope, no q/k norm",
              Shape(experts=5, top_k=1, expert_ff=40, shared_ff=40, layers=4, bias="qkvo", wrapped="llama4"), seed=14,
              attention_bias=True, attention_chunk_size=9, use_qk_norm=False, attn_temperature_tuning=True,
              floor_scale=5, attn_scale=0.5, intermediate_size_mlp=72, for_llm_compressor=False,
              router_jitter_noise=0.0, rope_theta=300.0, rope_scaling={**LLAMA3, "high_freq_factor": 1.0})
    conv = Shape(experts=6, top_k=2, expert_ff=40, layers=4, dense_layers=(0,), qk_norm=True, correction=0.3, tied=True)
    table.add("lfm2_taps", "lfm2_moe",
              "short convolutions between layers of attention, the choice by score plus bias, tied head",
              replace(conv, conv_layers=(0, 1, 3), taps=3), seed=51, num_dense_layers=1, norm_eps=1e-2, conv_L_cache=3,
              layer_types=["conv", "conv", "full_attention", "conv"], rope_theta=100.0, routed_scaling_factor=1.5,
              absent=("rms_norm_eps", "head_dim", "hidden_act"))
    table.add("lfm2_biased", "lfm2_moe",
              "five taps and biases in the convolution, no bias of the router, weights not renormalised, own head",
              replace(conv, conv_layers=(1, 2), taps=5, correction=0.0, bias="conv", layers=3, tied=False, experts=4),
              seed=1, num_dense_layers=1, norm_eps=1e-2, conv_L_cache=5, conv_bias=True, use_expert_bias=False,
              layer_types=["full_attention", "conv", "conv"], norm_topk_prob=False, rope_theta=100.0,
              absent=("rms_norm_eps", "head_dim", "hidden_act"))
    table.add("dbrx_clip", "dbrx",
              "LayerNorm without bias, q, k and v in one tensor and clamped, stacked experts, weights by their sum",
              Shape(experts=6, top_k=3, expert_ff=56), seed=3, clip_qkv=0.9, rope_theta=300.0, moe_loss_weight=0.05,
              moe_normalize_expert_weights=1.0, moe_jitter_eps=None)
    table.add("dbrx_root", "dbrx",
              "weights by the root of their squares, one KV head, another clamp, gelu, bfloat16 on disk",
              Shape(hidden=72, heads=3, kv_heads=1, head_dim=24, experts=5, top_k=2, expert_ff=40, layers=2), seed=3,
              dtype="BF16", clip_qkv=1.5, rope_theta=100.0, moe_normalize_expert_weights=2.0, hidden_act="gelu")
    table.add("gpt_oss_sinks", "gpt_oss",
              "sinks, windows in turn, clamped gates with one more, biases everywhere, fused and transposed experts",
              replace(base, head_dim=20, bias="qkvo", expert_ff=48, layers=4), seed=5, sliding_window=9,
              swiglu_limit=1.5, rope_parameters={"rope_type": "yarn", "rope_theta": 100.0, **YARN, "truncate": False})
    table.add("gpt_oss_packed", "gpt_oss",
              "an expert width of whole blocks, the usual limit, no scaling of the rotation",
              replace(base, bias="qkvo", experts=4, top_k=2, expert_ff=64, layers=2), seed=1, sliding_window=5,
              rope_parameters={"rope_type": "default", "rope_theta": 100.0})
    table.add("hunyuan_after", "hunyuan_v1_moe",
              "q/k norm after the rotation, ungated shared expert as wide as the others",
              replace(base, head_dim=24, qk_norm=True, expert_ff=40, shared_ff=40), seed=2, rope_theta=100.0)
    table.add("kolibri_posts", "kolibri1",
              "four norms a layer, a layer without window and rotation, the choice by logit plus bias",
              replace(base, head_dim=24, qk_norm=True, shared_ff=32, correction=0.5, layers=4), seed=11,
              sliding_window=9, shared_expert_intermediate_size=32, norm_topk_prob=True, rope_theta=100.0,
              layer_types=["sliding_attention", "sliding_attention", "full_attention", "sliding_attention"],
              absent=("intermediate_size",))
    table.add("phimoe_norms", "phimoe",
              "LayerNorm with bias, the sparse mixer, biases on q, k, v, o and on the head",
              replace(base, bias="qkvo", top_k=2, norm_bias=True, head_bias=True), seed=7, attention_bias=True,
              lm_head_bias=True, router_jitter_noise=0.1, rope_theta=100.0, absent=("head_dim",))


def _gated(table: _Table) -> None:
    base = Shape(experts=8, top_k=3, expert_ff=40, qk_norm=True, correction=0.3)
    table.add("afmoe_gates", "afmoe",
              "every number of a head gated, four norms a layer, layers without window and rotation, embeddings scaled",
              replace(base, layers=4, head_dim=24, shared_ff=80, dense_layers=(0,)), seed=4, sliding_window=9,
              global_attn_every_n_layers=2, num_dense_layers=1, num_shared_experts=2, route_scale=2.5, route_norm=True,
              score_func="sigmoid", mup_enabled=True, rope_theta=100.0)
    table.add("afmoe_biases", "afmoe",
              "windows by layer_types, biases on q, k, v and o, embeddings as they are, no dense layer, linear rope",
              replace(base, heads=6, kv_heads=3, bias="qkvo", shared_ff=40, experts=5, top_k=2), seed=2,
              attention_bias=True, sliding_window=11, num_dense_layers=0, num_shared_experts=1, route_scale=1.5,
              layer_types=["full_attention", "sliding_attention", "sliding_attention"],
              rope_parameters={"rope_type": "linear", "factor": 2.0, "rope_theta": 100.0})
    turns = Shape(layers=4, head_dim=24, qk_norm=True, tied=True)
    table.add("gemma3_turns", "gemma3_text",
              "norms of 1 + w, windows with a theta of their own, linear rope of the others, soft cap",
              turns, seed=20, hidden_activation="gelu_pytorch_tanh", sliding_window=9, sliding_window_pattern=2,
              query_pre_attn_scalar=20, final_logit_softcapping=6.0, rope_theta=1000.0, rope_local_base_freq=50.0,
              rope_scaling={"rope_type": "linear", "factor": 4.0}, absent=("hidden_act",))
    table.add("gemma3_listed", "gemma3_text",
              "kinds of layers and their rotations by name, biases on q, k, v and o, own head, bfloat16 on disk",
              replace(turns, layers=3, heads=3, kv_heads=1, hidden=72, tied=False, bias="qkvo"), seed=1, dtype="BF16",
              attention_bias=True, hidden_activation="gelu_pytorch_tanh", sliding_window=7, query_pre_attn_scalar=32,
              layer_types=["sliding_attention", "full_attention", "sliding_attention"], attn_logit_softcapping=None,
              rope_parameters={"full_attention": {"rope_type": "default", "rope_theta": 500.0},
                               "sliding_attention": {"rope_type": "default", "rope_theta": 40.0}},
              absent=("hidden_act",))


CASES: dict[str, Case] = _table()
