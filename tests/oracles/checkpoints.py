"""The checkpoints of the oracle cases, drawn from their seeds with numpy alone: always the same bytes.

Weights are drawn anew instead of initialised: matrices scaled by their fan-in, norms near one, biases far
from zero. A default initialisation (deviation 0.02) gives flat logits in which a wrong switch would hide.
"""

from __future__ import annotations

import hashlib
import json
from pathlib import Path

import numpy as np

from oracles import draw, tensorfile
from oracles.cases import CASES, PROMPT, Case, Shape

_EXPERT_PARTS = dict.fromkeys(("mixtral", "minimax_m2", "phimoe"), ("w1", "w3", "w2"))
_BLOCKS = {"llama4_text": "feed_forward"}
_SPARSE_BLOCK = ("mixtral", "minimax_m2", "phimoe", "granitemoe", "granitemoeshared")
_QK_NORMS = {"hunyuan_v1_moe": {"q": "query_layernorm", "k": "key_layernorm"}}
_ROUTERS = {"hunyuan_v1_moe": "gate.wg", "afmoe": "router.gate"}
# norms beside input_layernorm, where they are not post_attention_layernorm alone
_NORMS = {
    "afmoe": ("post_attention_layernorm", "pre_mlp_layernorm", "post_mlp_layernorm"),
    "gemma3_text": ("post_attention_layernorm", "pre_feedforward_layernorm", "post_feedforward_layernorm"),
}
_SHARED = {"qwen2_moe": "shared_expert", "hunyuan_v1_moe": "shared_mlp"}
_ROUTER_ENDS = (".gate.weight", ".router.layer.weight", ".router.weight", ".wg.weight")
_DEFAULT_PARTS = ("gate_proj", "up_proj", "down_proj")


def prompt(case: Case) -> list[int]:
    """The tokens of the teacher-forced positions."""
    return draw.integers(case.seed, f"{case.name}/prompt", PROMPT, case.shape.vocab)


def _ffn(prefix: str, parts: tuple[str, ...], hidden: int, width: int) -> list[tuple[str, tuple[int, ...]]]:
    gate, up, down = (f"{prefix}.{part}.weight" for part in parts)
    return [(gate, (width, hidden)), (up, (width, hidden)), (down, (hidden, width))]


def _attention(prefix: str, family: str, shape: Shape) -> list[tuple[str, tuple[int, ...]]]:
    rows = {"q": shape.heads * shape.head_dim, "k": shape.kv_heads * shape.head_dim}
    rows.update(v=rows["k"], o=shape.hidden)
    tensors: list[tuple[str, tuple[int, ...]]] = []
    for part, count in rows.items():
        columns = rows["q"] if part == "o" else shape.hidden
        tensors.append((f"{prefix}.{part}_proj.weight", (count, columns)))
        if part in shape.bias:
            tensors.append((f"{prefix}.{part}_proj.bias", (count,)))
    if family == "afmoe":
        tensors.append((f"{prefix}.gate_proj.weight", (rows["q"], shape.hidden)))
    if shape.qk_norm:
        names = _QK_NORMS.get(family, {"q": "q_norm", "k": "k_norm"})
        tensors += [(f"{prefix}.{names[part]}.weight", (rows[part] if shape.qk_norm_wide else shape.head_dim,))
                    for part in "qk"]
    return tensors


def _oss(prefix: str, shape: Shape) -> list[tuple[str, tuple[int, ...]]]:
    experts, hidden, ff, block = shape.experts, shape.hidden, shape.expert_ff, f"{prefix}.experts"
    return [(f"{prefix}.router.weight", (experts, hidden)), (f"{prefix}.router.bias", (experts,)),
            (f"{block}.gate_up_proj", (experts, hidden, 2 * ff)), (f"{block}.gate_up_proj_bias", (experts, 2 * ff)),
            (f"{block}.down_proj", (experts, ff, hidden)), (f"{block}.down_proj_bias", (experts, hidden))]


def _latent(prefix: str, shape: Shape, layer: int) -> list[tuple[str, tuple[int, ...]]]:
    """Latent attention: biases, if any, where latents are made and at o."""
    rows, both = shape.heads * (shape.nope + shape.rope), shape.latent + shape.rope
    tensors: list[tuple[str, tuple[int, ...]]] = []
    if shape.q_latent:
        tensors += [(f"{prefix}.q_a_proj.weight", (shape.q_latent, shape.hidden)),
                    (f"{prefix}.q_a_layernorm.weight", (shape.q_latent,)),
                    (f"{prefix}.q_b_proj.weight", (rows, shape.q_latent))]
        tensors += [(f"{prefix}.q_a_proj.bias", (shape.q_latent,))] if shape.bias else []
    else:
        tensors.append((f"{prefix}.q_proj.weight", (rows, shape.hidden)))
    tensors += [(f"{prefix}.kv_a_proj_with_mqa.weight", (both, shape.hidden)),
                (f"{prefix}.kv_a_layernorm.weight", (shape.latent,)),
                (f"{prefix}.kv_b_proj.weight", (shape.heads * (shape.nope + shape.v), shape.latent)),
                (f"{prefix}.o_proj.weight", (shape.hidden, shape.heads * shape.v))]
    if shape.bias:
        tensors += [(f"{prefix}.kv_a_proj_with_mqa.bias", (both,)), (f"{prefix}.o_proj.bias", (shape.hidden,))]
    if shape.index_heads and (shape.index_layers is None or layer in shape.index_layers):
        at, width = f"{prefix}.indexer", shape.index_dim
        tensors += [(f"{at}.wq_b.weight", (shape.index_heads * width, shape.q_latent)),
                    (f"{at}.wk.weight", (width, shape.hidden)), (f"{at}.k_norm.weight", (width,)),
                    (f"{at}.k_norm.bias", (width,)), (f"{at}.weights_proj.weight", (shape.index_heads, shape.hidden))]
    return tensors


def _experts(prefix: str, family: str, shape: Shape) -> list[tuple[str, tuple[int, ...]]]:
    if family.startswith("granitemoe"):
        return _fused_experts(prefix, shape)
    tensors: list[tuple[str, tuple[int, ...]]] = [
        (f"{prefix}.{_ROUTERS.get(family, 'gate')}.weight", (shape.experts, shape.hidden))]
    if family == "afmoe":
        tensors.append((f"{prefix}.expert_bias", (shape.experts,)))
    if family == "minimax_m2":
        tensors.append((f"{prefix}.e_score_correction_bias", (shape.experts,)))
    if family == "ernie4_5_moe":
        tensors.append((f"{prefix}.moe_statics.e_score_correction_bias", (1, shape.experts)))
    if family in ("dots1", "glm4_moe", "deepseek_v3", "deepseek_v32", "glm4_moe_lite", "glm_moe_dsa"):
        tensors.append((f"{prefix}.gate.e_score_correction_bias", (shape.experts,)))
    if family == "gpt_oss":
        return _oss(prefix, shape)
    parts = _EXPERT_PARTS.get(family, _DEFAULT_PARTS)
    if family == "llama4_text":
        return [(f"{prefix}.router.weight", (shape.experts, shape.hidden)),
                (f"{prefix}.experts.gate_up_proj", (shape.experts, shape.hidden, 2 * shape.expert_ff)),
                (f"{prefix}.experts.down_proj", (shape.experts, shape.expert_ff, shape.hidden)),
                *_ffn(f"{prefix}.shared_expert", _DEFAULT_PARTS, shape.hidden, shape.shared_ff)]
    for expert in range(shape.experts):
        tensors += _ffn(f"{prefix}.experts.{expert}", parts, shape.hidden, shape.expert_ff)
    if shape.shared_ff:
        shared = _SHARED.get(family, "shared_experts")
        tensors += _ffn(f"{prefix}.{shared}", _DEFAULT_PARTS, shape.hidden, shape.shared_ff)
    if shape.shared_gate:
        tensors.append((f"{prefix}.shared_expert_gate.weight", (1, shape.hidden)))
    return tensors


def _fused_experts(prefix: str, shape: Shape) -> list[tuple[str, tuple[int, ...]]]:
    """Granite's: all experts in one tensor, gate and up rows together."""
    shared = prefix.replace("block_sparse_moe", "shared_mlp")
    tensors: list[tuple[str, tuple[int, ...]]] = [
        (f"{prefix}.router.layer.weight", (shape.experts, shape.hidden)),
        (f"{prefix}.input_linear.weight", (shape.experts, 2 * shape.expert_ff, shape.hidden)),
        (f"{prefix}.output_linear.weight", (shape.experts, shape.hidden, shape.expert_ff)),
    ]
    if shape.shared_ff:
        tensors += [(f"{shared}.input_linear.weight", (2 * shape.shared_ff, shape.hidden)),
                    (f"{shared}.output_linear.weight", (shape.hidden, shape.shared_ff))]
    return tensors


def _dbrx(shape: Shape) -> list[tuple[str, tuple[int, ...]]]:
    """A whole dbrx: its names are its own throughout."""
    stack = (shape.experts * shape.expert_ff, shape.hidden)
    wide, narrow = shape.heads * shape.head_dim, shape.kv_heads * shape.head_dim
    listed: list[tuple[str, tuple[int, ...]]] = [("transformer.wte.weight", (shape.vocab, shape.hidden))]
    for layer in range(shape.layers):
        block = f"transformer.blocks.{layer}"
        listed += [(f"{block}.norm_attn_norm.norm_1.weight", (shape.hidden,)),
                   (f"{block}.norm_attn_norm.attn.Wqkv.weight", (wide + 2 * narrow, shape.hidden)),
                   (f"{block}.norm_attn_norm.attn.out_proj.weight", (shape.hidden, wide)),
                   (f"{block}.norm_attn_norm.norm_2.weight", (shape.hidden,)),
                   (f"{block}.ffn.router.layer.weight", (shape.experts, shape.hidden)),
                   *((f"{block}.ffn.experts.mlp.{part}", stack) for part in ("w1", "v1", "w2"))]
    return [*listed, ("transformer.norm_f.weight", (shape.hidden,)), ("lm_head.weight", (shape.vocab, shape.hidden))]


def _lfm2(shape: Shape, biased_router: bool) -> list[tuple[str, tuple[int, ...]]]:
    """A whole lfm2_moe: most names are its own."""
    hidden, listed = shape.hidden, [("model.embed_tokens.weight", (shape.vocab, shape.hidden))]
    wide, narrow = shape.heads * shape.head_dim, shape.kv_heads * shape.head_dim
    for layer in range(shape.layers):
        at = f"model.layers.{layer}"
        if layer in shape.conv_layers:
            listed += [(f"{at}.conv.in_proj.weight", (3 * hidden, hidden)),
                       (f"{at}.conv.conv.weight", (hidden, 1, shape.taps)),
                       (f"{at}.conv.out_proj.weight", (hidden, hidden))]
            if shape.bias:
                listed += [(f"{at}.conv.{part}.bias", (rows,)) for part, rows in
                           (("in_proj", 3 * hidden), ("conv", hidden), ("out_proj", hidden))]
        else:
            listed += [(f"{at}.self_attn.{part}.weight", size) for part, size in (
                ("q_proj", (wide, hidden)), ("k_proj", (narrow, hidden)), ("v_proj", (narrow, hidden)),
                ("out_proj", (hidden, wide)), ("q_layernorm", (shape.head_dim,)), ("k_layernorm", (shape.head_dim,)))]
        listed += [(f"{at}.{norm}.weight", (hidden,)) for norm in ("operator_norm", "ffn_norm")]
        parts = ("w1", "w3", "w2")
        if layer in shape.dense_layers:
            listed += _ffn(f"{at}.feed_forward", parts, hidden, shape.ff)
            continue
        listed.append((f"{at}.feed_forward.gate.weight", (shape.experts, hidden)))
        if biased_router:
            listed.append((f"{at}.feed_forward.expert_bias", (shape.experts,)))
        for expert in range(shape.experts):
            listed += _ffn(f"{at}.feed_forward.experts.{expert}", parts, hidden, shape.expert_ff)
    listed.append(("model.embedding_norm.weight", (hidden,)))
    return listed if shape.tied else [*listed, ("lm_head.weight", (shape.vocab, hidden))]


def tensors(case: Case) -> list[tuple[str, tuple[int, ...]]]:
    """Names and shapes of all tensors of a case, as its family names them on disk."""
    shape, family = case.shape, case.family
    if family == "dbrx":
        return _dbrx(shape)
    if family == "lfm2_moe":
        return _lfm2(shape, case.config.get("use_expert_bias", True))
    listed: list[tuple[str, tuple[int, ...]]] = [("model.embed_tokens.weight", (shape.vocab, shape.hidden))]
    for layer in range(shape.layers):
        prefix = f"model.layers.{layer}"
        listed.append((f"{prefix}.input_layernorm.weight", (shape.hidden,)))
        at = f"{prefix}.self_attn"
        listed += _latent(at, shape, layer) if shape.latent else _attention(at, family, shape)
        if family == "gpt_oss":
            listed.append((f"{at}.sinks", (shape.heads,)))
        listed += [(f"{prefix}.{norm}.weight", (shape.hidden,))
                   for norm in _NORMS.get(family, ("post_attention_layernorm",))]
        if shape.experts and layer not in shape.dense_layers:
            block = "block_sparse_moe" if family in _SPARSE_BLOCK else _BLOCKS.get(family, "mlp")
            listed += _experts(f"{prefix}.{block}", family, shape)
        else:
            dense = _ffn(f"{prefix}.{_BLOCKS.get(family, 'mlp')}", _DEFAULT_PARTS, shape.hidden, shape.ff)
            listed += dense
            if shape.ffn_bias:
                listed += [(name.removesuffix("weight") + "bias", rows[:1]) for name, rows in dense]
        if family == "kolibri1":
            listed += [(f"{prefix}.post_{part}_norm.weight", (shape.hidden,)) for part in ("attn", "ffn")]
            listed.append((f"{prefix}.moe.router.expert_bias", (shape.experts,)))
    listed.append(("model.norm.weight", (shape.hidden,)))
    if shape.norm_bias:
        listed += [(name.removesuffix("weight") + "bias", size) for name, size in listed
                   if name.endswith("norm.weight")]
    if shape.head_bias:
        listed.append(("lm_head.bias", (shape.vocab,)))
    if not shape.tied:
        listed.append(("lm_head.weight", (shape.vocab, shape.hidden)))
    if shape.wrapped:
        listed = [("language_model." + name, size) for name, size in listed]
        listed += [("vision_model.patch_embedding.linear.weight", (16, 12)),
                   ("vision_model.layernorm_post.weight", (16,)),
                   ("multi_modal_projector.linear_1.weight", (shape.hidden, 16))]
    return listed


def values(case: Case, name: str, shape: tuple[int, ...]) -> np.ndarray:
    """The float32 values of one tensor."""
    if name.endswith(("e_score_correction_bias", "expert_bias")):
        if not case.shape.correction:
            return np.zeros(shape, dtype=np.float32)  # part of the layout; the router then works without it
        return draw.bell(case.seed, f"{case.name}/{name}", shape, case.shape.correction)
    drawn = draw.bell(case.seed, f"{case.name}/{name}", shape)
    if name.endswith((".bias", "_proj_bias")):
        return drawn * np.float32(0.4)
    if name.endswith(".sinks"):
        return drawn
    if name.endswith(("gate_up_proj", "down_proj")):  # transposed experts
        return drawn * np.float32((2.0 if "down" in name else 1.0) * shape[1] ** -0.5)
    if name.endswith(".conv.conv.weight"):
        return drawn * np.float32(0.7)
    if name.endswith(".mlp.w2"):  # used turned
        return drawn * np.float32(2.0 * case.shape.expert_ff ** -0.5)
    if len(shape) == 1 and case.family == "gemma3_text":  # how far from 1; embeddings are large beside a norm's output
        return drawn * np.float32(0.25) + np.float32(3.0 if ".post_" in name else 0.0)
    if len(shape) == 1:
        return np.float32(1.0) + drawn * np.float32(0.25)
    scale = shape[-1] ** -0.5
    name = name.removeprefix("language_model.")
    if name in ("model.embed_tokens.weight", "transformer.wte.weight"):
        scale = 0.25 if case.shape.tied else 1.0
    elif (name == "lm_head.weight" or any(part in name for part in (".q_proj", ".k_proj", ".q_b_proj"))
          or name.endswith(_ROUTER_ENDS)):
        scale *= 1.5
    elif name.endswith(("down_proj.weight", "w2.weight", "output_linear.weight")):
        scale *= 2.0
    return drawn * np.float32(scale)


def build_case(case: Case, folder: Path) -> str:
    """Write config.json and model.safetensors of a case; returns the SHA-256 over both files."""
    folder.mkdir(parents=True, exist_ok=True)
    text = json.dumps(case.config, indent=1) + "\n"
    (folder / "config.json").write_text(text, encoding="utf-8")
    entries = [
        tensorfile.Entry(tensor, shape, case.dtype, lambda t=tensor, s=shape: values(case, t, s))
        for tensor, shape in tensors(case)
    ]
    tensorfile.write(folder / "model.safetensors", entries)
    return hashlib.sha256(text.encode() + (folder / "model.safetensors").read_bytes()).hexdigest()


def build(name: str, folder: Path) -> str:
    """Write the checkpoint of the case `name`; returns the SHA-256 over its two files."""
    return build_case(CASES[name], folder)
