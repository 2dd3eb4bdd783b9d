"""Simulate the converter's q8 and q4 weights and the engine's 8-bit activations in torch.

This judges a model before there is a blob: it follows docs/NUMERICS.md for the scales and the grid, but its
sums are torch's own, so it predicts quality and never bits.
"""
from typing import Callable

import torch
from torch import Tensor, nn
from transformers import MixtralForCausalLM

GROUP = 32
Q4_STEPS = [6.2 + 0.2 * i for i in range(9)] + [8.2 + 0.2 * i for i in range(5)]


def up16(values: Tensor) -> Tensor:
    """The values with their magnitude rounded up to the upper 16 bits of a float32."""
    bits = values.abs().contiguous().view(torch.int32)
    return torch.copysign(((bits + 0xFFFF) & ~0xFFFF).view(torch.float32), values)


def _grid(groups: Tensor, scale: Tensor, low: int, high: int) -> Tensor:
    safe = torch.where(scale == 0, torch.ones_like(scale), scale)
    return torch.where(scale == 0, torch.zeros_like(groups), (groups / safe).round().clamp(low, high))


def quantize_q8(weight: Tensor) -> Tensor:
    """The weight as q8 stores it, widened again."""
    groups = weight.float().reshape(-1, GROUP)
    scale = up16(groups.abs().amax(1, keepdim=True) / 127)
    return (_grid(groups, scale, -127, 127) * scale).reshape(weight.shape)


def quantize_q4(weight: Tensor) -> Tensor:
    """The weight as q4 stores it, widened again: of several scales the one with the least squared error."""
    groups = weight.float().reshape(-1, GROUP)
    largest = groups.gather(1, groups.abs().argmax(1, keepdim=True))
    best_scale = up16(largest / -8)
    best_q = _grid(groups, best_scale, -8, 7)
    best = ((groups - best_q * best_scale) ** 2).sum(1, keepdim=True)

    def consider(scale: Tensor) -> None:
        nonlocal best, best_q, best_scale
        q = _grid(groups, scale, -8, 7)
        error = ((groups - q * scale) ** 2).sum(1, keepdim=True)
        better = error < best
        best, best_q = torch.where(better, error, best), torch.where(better, q, best_q)
        best_scale = torch.where(better, scale, best_scale)

    for step in Q4_STEPS:
        consider(up16(largest / -step))
        consider(up16(largest / step))
    squares = (best_q * best_q).sum(1, keepdim=True)
    fitted = up16((groups * best_q).sum(1, keepdim=True) / squares.clamp(min=1))
    error = ((groups - best_q * fitted) ** 2).sum(1, keepdim=True)
    return (best_q * torch.where(error < best, fitted, best_scale)).reshape(weight.shape)


def snap_q4(weight: Tensor) -> Tensor:
    """The nearest weight that q4 stores without loss.

    The scale gets 5 significant bits, so that scale times q is exact in bf16, and a group's largest value
    is -8, 7 or -7 steps: three scales the converter tries. A checkpoint on this grid is its own q4 form.
    """
    groups = weight.float().reshape(-1, GROUP)
    largest = groups.gather(1, groups.abs().argmax(1, keepdim=True))
    best, best_error = groups, torch.full_like(largest, torch.inf)
    for step in (-8.0, 7.0):
        mantissa, exponent = torch.frexp(largest / step)
        scale = torch.ldexp((mantissa * 32).round() / 32, exponent)
        candidate = _grid(groups, scale, -8, 7) * scale
        error = ((groups - candidate) ** 2).sum(1, keepdim=True)
        best = torch.where(error < best_error, candidate, best)
        best_error = torch.minimum(error, best_error)
    return best.reshape(weight.shape)


def straight_through(values: Tensor, change: Callable[[Tensor], Tensor]) -> Tensor:
    """change(values), with the gradient of the values themselves."""
    return values + (change(values.detach()) - values.detach())


def head_divergence(hidden: Tensor, head: Tensor, logits: Tensor) -> Tensor:
    """Mean KL divergence that a q8 head and its 8-bit input add, as something to train away."""
    noisy = straight_through(hidden, quantize_rows) @ straight_through(head, quantize_q8).T
    clean = logits.log_softmax(-1)
    return (clean.exp() * (clean - noisy.log_softmax(-1))).sum(-1).mean()


def quantize_rows(rows: Tensor) -> Tensor:
    """Activations as the engine feeds them to a quantized matrix: 8 bits per group of 32."""
    groups = rows.float().reshape(-1, GROUP)
    most = groups.abs().amax(1, keepdim=True)
    live = most >= 2.0 ** -100
    scale = torch.where(live, most / 127, torch.zeros_like(most))
    q = (groups * torch.where(live, 127 / most, torch.zeros_like(most))).round().clamp(-127, 127)
    return (q * scale).reshape(rows.shape).to(rows.dtype)


@torch.no_grad()
def quantize_model(model: MixtralForCausalLM, kind: str) -> None:
    """Change the model in place. "q4": experts q4, the rest q8; "q8": all q8. Router and norms stay."""
    expert = quantize_q4 if kind == "q4" else quantize_q8
    for module in model.modules():
        if hasattr(module, "gate_up_proj"):
            module.gate_up_proj.copy_(expert(module.gate_up_proj))
            module.down_proj.copy_(expert(module.down_proj))
            module.quantize_rows = quantize_rows
        elif isinstance(module, nn.Linear):
            if module is not model.lm_head:                 # tied to the embedding, quantized once below
                module.weight.copy_(quantize_q8(module.weight))
            module.register_forward_pre_hook(lambda _, args: (quantize_rows(args[0]), *args[1:]))
    embedding = model.get_input_embeddings().weight
    embedding.copy_(quantize_q8(embedding))
