"""What a family calls its tensors, and where in them a matrix or vector lies: by its row of the table, or a layout."""

from __future__ import annotations

from collections.abc import Container
from dataclasses import replace

from .description import EVERY_LAYER, Layer
from .family_table import Family, Moe
from .format import Tensor
from .library import constants
from .places import Place, whole

_OF_THE_MODEL = {
    "EMBED": "model.embed_tokens.weight",
    "FINAL_NORM": "model.norm.weight",
    "HEAD": "lm_head.weight",
    "FINAL_NORM_BIAS": "model.norm.bias",
    "HEAD_BIAS": "lm_head.bias",
}
_GATED = ("gate_proj", "up_proj", "down_proj")


def layer_prefix(family: Family, layer: int) -> str:
    """What stands before every tensor name of a layer."""
    return f"{family.prefix}{layer}."


def source_name(family: Family, tensor: Tensor, expert: int = 0) -> str:
    """The name a family gives to a matrix or vector."""
    role = tensor.role
    if tensor.layer == EVERY_LAYER:
        return family.names.get(role, _OF_THE_MODEL[role])
    if role in family.names:
        return layer_prefix(family, tensor.layer) + family.names[role]
    moe = family.moe or Moe()
    fixed = {
        "ATTENTION_NORM": "input_layernorm.weight",
        "FFN_NORM": "post_attention_layernorm.weight",
        "ROUTER": f"{moe.block}.{moe.router}",
        "ROUTER_BIAS": f"{moe.block}.{moe.correction}",
        "TOKEN_ROUTES": f"{moe.block}.gate.tid2eid",
        "SHARED_SWITCH": f"{moe.block}.{moe.shared_block}_gate.weight",
        "ATTENTION_NORM_BIAS": "input_layernorm.bias",
        "FFN_NORM_BIAS": "post_attention_layernorm.bias",
        "POST_ATTENTION_NORM": "post_self_attn_layernorm.weight",
        "POST_FFN_NORM": "post_mlp_layernorm.weight",
        "SINKS": "self_attn.sinks",
        "HEAD_GATE": "self_attn.gate_proj.weight",
        "DRAFT_EMBED_NORM": "enorm.weight",
        "DRAFT_HIDDEN_NORM": "hnorm.weight",
        "DRAFT_JOIN": "eh_proj.weight",
        "DRAFT_FINAL_NORM": "shared_head.norm.weight",
        "FFN_GATE_BIAS": "mlp.gate_proj.bias",
        "FFN_UP_BIAS": "mlp.up_proj.bias",
        "FFN_DOWN_BIAS": "mlp.down_proj.bias",
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
    return layer_prefix(family, tensor.layer) + name


def source_place(
    family: Family, tensor: Tensor, layer: Layer | None, expert: int, present: Container[str]
) -> Place:
    """Where a matrix or vector lies. layer: what it is of, if it is a layer's; present: the names of the checkpoint."""
    experts = (layer.experts if layer and layer.moe else None) or 1
    moe, (kind, _, part) = family.moe or Moe(), tensor.role.rpartition("_")
    prefix = layer_prefix(family, tensor.layer)
    shape: tuple[int, ...] = (tensor.columns,) if tensor.vector else (tensor.rows, tensor.columns)
    if family.norms_from_one and part == "NORM":
        return replace(whole(source_name(family, tensor), shape), add=1.0)
    if tensor.role == "ROUTER_BIAS":
        shape = (*moe.correction_shape, *shape)
    if moe.layout and (tensor.expert or tensor.role.startswith("FFN_") and part == "BIAS"):
        return LAYOUTS[moe.layout](tensor, expert, experts, prefix, present)
    if layer and layer.attention == constants().ATTENTION_CONV:
        own = _convolution(tensor, layer, prefix + "conv.")
        if own:
            return own
    if family.fused_qkv and layer and tensor.role in ("Q", "K", "V"):
        q, k = layer.need("heads") * layer.need("head_dim"), layer.need("kv_heads") * layer.need("head_dim")
        first = {"Q": 0, "K": q, "V": q + k}[tensor.role]
        columns = tensor.columns
        return Place(prefix + family.fused_qkv, (q + 2 * k, columns), first * columns, columns)
    fused = {"EXPERT": moe.fused, "SHARED": moe.fused_shared}.get(kind, ("", ""))
    if not fused[0] or part not in ("GATE", "UP", "DOWN"):
        return whole(source_name(family, tensor, expert), shape)
    both = 1 if part == "DOWN" else 2
    size = tensor.rows * tensor.columns
    block = (both * tensor.rows, tensor.columns)
    return Place(
        prefix + fused[part == "DOWN"],
        (experts, *block) if kind == "EXPERT" else block,
        (both * expert + (part == "UP")) * size,
        tensor.columns,
    )


def _convolution(tensor: Tensor, layer: Layer, prefix: str) -> Place | None:
    """in_proj: the rows of what gates the input, of what gates the output, of the input; None: of another part."""
    channels, taps, columns = layer.need("head_dim"), layer.need("window"), tensor.columns
    which = {"K": 0, "Q": 1, "V": 2}.get(tensor.role.removesuffix("_BIAS"))
    if which is not None and tensor.vector:
        return Place(prefix + "in_proj.bias", (3 * channels,), which * channels, columns)
    if which is not None:
        return Place(prefix + "in_proj.weight", (3 * channels, columns), which * channels * columns, columns)
    rest = {
        "O": ("out_proj.weight", (tensor.rows, columns)),
        "O_BIAS": ("out_proj.bias", (columns,)),
        "TAPS": ("conv.weight", (channels, 1, taps)),
        "TAPS_BIAS": ("conv.bias", (channels,)),
    }
    if tensor.role not in rest:
        return None
    name, shape = rest[tensor.role]
    return Place(prefix + name, shape, 0, columns)


def _oss(tensor: Tensor, expert: int, experts: int, prefix: str, present: Container[str]) -> Place:
    """gate_up_proj [E, H, 2 I] and down_proj [E, I, H], gate and up columns in turn; packed ones lie by rows."""
    role, down = tensor.role, "DOWN" in tensor.role
    name = prefix + "mlp.experts." + ("down_proj" if down else "gate_up_proj")
    turn, start = (1, 0) if down else (2, int("UP" in role))
    if tensor.vector:  # of all experts one after the other; a bias of gate or up is every second number
        return Place(name + "_bias", (experts, turn * tensor.columns // experts), start, 0, turn)
    wide = turn * tensor.rows
    if name + "_blocks" in present:
        return Place(name, (experts, wide, tensor.columns), expert * wide + start, turn, 1, "mxfp4")
    return Place(name, (experts, tensor.columns, wide), expert * tensor.columns * wide + start, turn, wide)


def _columns(tensor: Tensor, expert: int, experts: int, prefix: str, present: Container[str]) -> Place:
    """gate_up_proj [E, H, 2 I] and down_proj [E, I, H]: all gate columns, then all up columns."""
    down, rows, columns = tensor.role.endswith("DOWN"), tensor.rows, tensor.columns
    wide = rows if down else 2 * rows
    start = expert * columns * wide + (rows if tensor.role.endswith("UP") else 0)
    name = prefix + "feed_forward.experts." + ("down_proj" if down else "gate_up_proj")
    return Place(name, (experts, columns, wide), start, 1, wide)


def _stacks(tensor: Tensor, expert: int, experts: int, prefix: str, present: Container[str]) -> Place:
    """w1 (gate), v1 (up) and w2 (down, turned) [E I, H]: the experts' rows one below the other."""
    down = tensor.role.endswith("DOWN")
    inner, hidden = (tensor.columns, tensor.rows) if down else (tensor.rows, tensor.columns)
    part = "w2" if down else "v1" if tensor.role.endswith("UP") else "w1"
    turn = (1, hidden) if down else (hidden, 1)
    name = f"{prefix}ffn.experts.mlp.{part}"
    return Place(name, (experts * inner, hidden), expert * inner * hidden, *turn)


LAYOUTS = {"oss": _oss, "columns": _columns, "stacks": _stacks}
