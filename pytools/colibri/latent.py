"""Latent attention (MLA) in a checkpoint: its fields, its tensors' names, and the heads' factors in kv_b_proj.

A checkpoint stores one matrix that makes keys and values of all heads out of the latent: head by head first
the rows of the key, then those of the value. A blob holds the two factors apart and every head's key factor
transposed, since the core reads the cache without ever expanding it (docs/NUMERICS.md, section 6).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from .config_file import Config
from .description import Layer
from .format import Tensor
from .library import constants

FACTORS = ("K_UP", "V_UP")
_NAMES = {
    "Q_A": "q_a_proj.weight",
    "Q_BIAS": "q_a_proj.bias",
    "Q_NORM": "q_a_layernorm.weight",
    "K": "kv_a_proj_with_mqa.weight",
    "K_BIAS": "kv_a_proj_with_mqa.bias",
    "K_NORM": "kv_a_layernorm.weight",
    "K_UP": "kv_b_proj.weight",
    "V_UP": "kv_b_proj.weight",
    "INDEX_Q": "indexer.wq_b.weight",
    "INDEX_K": "indexer.wk.weight",
    "INDEX_K_NORM": "indexer.k_norm.weight",
    "INDEX_K_SHIFT": "indexer.k_norm.bias",
    "INDEX_WEIGHT": "indexer.weights_proj.weight",
}
Read = Callable[[int, int], np.ndarray]  # first row of kv_b_proj, count -> float32 [count, latent]


def read_widths(config: Config, q_latent: int, heads: int) -> dict[str, Any]:
    """The layer's fields that a config.json gives; `q_latent` is what an absent q_lora_rank means."""
    c = constants()
    if config.integer("num_key_value_heads", heads, null=heads) != heads:
        raise config.refuse("num_key_value_heads", f"{heads}, as num_attention_heads: all heads share the latent")
    tile = int(c.TILE_ROWS)
    latent, v_dim = config.integer("kv_lora_rank"), config.integer("v_head_dim")
    for name, width in (("kv_lora_rank", latent), ("v_head_dim", v_dim)):
        if width % tile:
            raise config.refuse(name, f"a multiple of {tile}")
    nope, rope = config.integer("qk_nope_head_dim"), config.integer("qk_rope_head_dim")
    config.fix("qk_head_dim", nope + rope)
    queries = config.integer("q_lora_rank", q_latent, null=0) or None
    return {
        "attention": c.ATTENTION_MLA,
        "kv_heads": 1,
        "head_dim": latent + rope,
        "latent": latent,
        "nope_dim": nope,
        "rope_dim": rope,
        "v_dim": v_dim,
        "q_latent": queries,
        "biases": _biases(config, queries is not None),
    }


def _biases(config: Config, queries: bool) -> int:
    """attention_bias: of the two matrices that make latents, and of o. A plain q has none."""
    c = constants()
    if not config.boolean("attention_bias", False):
        return 0
    return int(c.BIAS_K | c.BIAS_O | (c.BIAS_Q if queries else 0))


def read_index(config: Config, heads: int, shared: bool, layers: int) -> list[dict[str, Any]]:
    """The fields of every layer's choice of positions; `heads` is what an absent index_n_heads means."""
    kinds = config.items("layer_types", str)
    if kinds is not None and kinds != ["indexed_attention"] * layers:
        raise config.refuse("layer_types", f"{layers} times indexed_attention")
    top_k = config.integer("index_topk", 2048)
    own = {
        "index_heads": config.integer("index_n_heads", heads),
        "index_dim": config.integer("index_head_dim", 128),
        "index_top_k": top_k,
    }
    full = _full_layers(config, layers) if shared else [True] * layers
    return [own if chooses else {"index_top_k": top_k} for chooses in full]


def _full_layers(config: Config, layers: int) -> list[bool]:
    """Which layers choose themselves: by a list, by a pattern of letters, or every so many."""
    names, pattern = config.items("indexer_types", str), config.take("index_topk_pattern", None)
    often, offset = config.integer("index_topk_freq", 1, low=0), config.integer("index_skip_topk_offset", 2, low=0)
    field = "indexer_types"
    if names is None and pattern is not None:
        field, letters = "index_topk_pattern", {"F": "full", "S": "shared"}
        listed = pattern if isinstance(pattern, (str, list)) else [None]
        names = [letters.get(one, one) if isinstance(pattern, str) else one for one in listed]
    if names is None:
        return [max(n - offset + 1, 0) % max(often, 1) == 0 for n in range(layers)]
    if len(names) != layers or names[0] != "full" or set(names) - {"full", "shared"}:
        raise config.refuse(field, f"full or shared for each of the {layers} layers, the first of them full")
    return [name == "full" for name in names]


def tensor_name(layer: Layer, role: str) -> str | None:
    """The name of a tensor below self_attn, None if latent attention calls it as any other does."""
    if role == "Q":
        return "q_b_proj.weight" if layer.q_latent else "q_proj.weight"
    return _NAMES.get(role)


def _of_head(layer: Layer) -> int:
    """Rows of one head in kv_b_proj."""
    return layer.need("nope_dim") + layer.need("v_dim")


def source_shape(layer: Layer, tensor: Tensor) -> tuple[int, ...]:
    """The shape of the tensor that a matrix or vector comes from."""
    if tensor.role in FACTORS:
        return factor_shape(layer)
    return (tensor.columns,) if tensor.vector else (tensor.rows, tensor.columns)


def factor_shape(layer: Layer) -> tuple[int, int]:
    """The shape of kv_b_proj."""
    return layer.need("heads") * _of_head(layer), layer.need("latent")


def factor_rows(read: Read, layer: Layer, role: str, first: int, count: int) -> np.ndarray:
    """Rows first .. first + count - 1 of K_UP or V_UP."""
    nope, latent = layer.need("nope_dim"), layer.need("latent")
    each = latent if role == "K_UP" else layer.need("v_dim")
    out = []
    while count:
        head, at = divmod(first, each)
        part = min(count, each - at)
        row = head * _of_head(layer)
        if role == "K_UP":
            out.append(read(row, nope)[:, at : at + part].T)
        else:
            out.append(read(row + nope + at, part))
        first, count = first + part, count - part
    return np.concatenate(out)
