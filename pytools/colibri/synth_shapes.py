"""The exact shapes of real models, for benchmarks: what their config.json says, and nothing of their weights."""

from __future__ import annotations

from dataclasses import replace
from decimal import Decimal
from pathlib import Path

from . import __name__ as package
from .blobwriter import Written, write_blob
from .errors import UsageError
from .format import Kinds
from .rope import nearest_f32
from .synth import Spec
from .synth_blocks import STREAM, RandomBlocks
from .unfinished import Work

OLMOE = Spec(
    vocab=50304,
    hidden=2048,
    layers=16,
    heads=16,
    kv_heads=16,
    head_dim=128,
    experts=64,
    top_k=8,
    expert_ff=1024,
    renormalise=False,
    qk_norm=True,
    qk_norm_wide=True,
    trained_context=4096,
)
GRANITE_1B = Spec(
    vocab=49155,
    hidden=1024,
    layers=24,
    heads=16,
    kv_heads=8,
    head_dim=64,
    experts=32,
    top_k=8,
    expert_ff=512,
    tied=True,
    eps=1e-6,
    score_scale=0.015625,
    embed_multiplier=12.0,
    residual_multiplier=nearest_f32(Decimal("0.22")),
    logit_multiplier=nearest_f32(1 / Decimal(6)),
    trained_context=4096,
)
QWEN3_30B = Spec(
    vocab=151936,
    hidden=2048,
    layers=48,
    heads=32,
    kv_heads=4,
    head_dim=128,
    experts=128,
    top_k=8,
    expert_ff=768,
    qk_norm=True,
    theta=1000000,
    eps=1e-6,
    trained_context=40960,
)
SMALL = Spec(
    vocab=32000,
    hidden=512,
    layers=8,
    heads=8,
    kv_heads=4,
    head_dim=64,
    experts=32,
    top_k=4,
    expert_ff=256,
    qk_norm=True,
    theta=1000000,
    eps=1e-6,
    trained_context=4096,
)
SMOLLM2 = Spec(
    vocab=49152,
    hidden=576,
    layers=30,
    heads=9,
    kv_heads=3,
    head_dim=64,
    ff=1536,
    tied=True,
    theta=100000,
    trained_context=8192,
)
GLM_5_2 = Spec(
    vocab=154880,
    hidden=6144,
    layers=78,
    heads=64,
    head_dim=256,  # 192 and 64 that are rotated
    latent=512,
    q_latent=2048,
    rope_dim=64,
    v_dim=256,
    latent_eps=1e-6,
    interleaved=True,
    index_heads=32,
    index_dim=128,
    index_top_k=2048,
    index_layers=(0, 1, *range(2, 78, 4)),
    index_interleaved=True,
    ff=12288,
    dense_layers=(0, 1, 2),
    experts=256,
    top_k=8,
    expert_ff=2048,
    shared_ff=2048,
    score="sigmoid",
    router_bias="score",
    router_scale=2.5,
    router_eps=1e-20,
    theta=8000000,
    trained_context=1048576,
)
SHAPES = {
    "glm-5.2": GLM_5_2,  # GLM-5.2 without its draft layer: for --sparse, 419 GB otherwise
    "granite-1b": GRANITE_1B,  # Granite-3.0-1B-A400M
    "olmoe": OLMOE,  # OLMoE-1B-7B-0924
    "qwen3-30b": QWEN3_30B,  # Qwen3-30B-A3B
    "qwen3-30b-4l": replace(QWEN3_30B, layers=4),
    "small": SMALL,  # a small model of Qwen3's MoE family
    "smollm2": SMOLLM2,  # SmolLM2-135M
}


def shape_of(name: str, layers: int | None = None) -> Spec:
    """A shape by name, with another number of layers if that is given."""
    if name not in SHAPES:
        raise UsageError(f"--shape {name}: expected one of {', '.join(SHAPES)}")
    return replace(SHAPES[name], layers=layers) if layers else SHAPES[name]


def write_shape_blob(
    path: Path,
    spec: Spec,
    kinds: Kinds,
    seed: int = 1,
    name: str = "",
    overwrite: bool = False,
    work: Work | None = None,
) -> Written:
    """Write a blob of random blocks. Interrupted, a second run goes on where the first was."""
    about = {
        "source": f"{package} synth {name}".rstrip(),
        "seed": seed,
        "stream": STREAM,
        "kinds": vars(kinds),
    }
    source = RandomBlocks(seed, spec.model())
    return write_blob(path, spec.model(), kinds, source, overwrite=overwrite, about=about, work=work)
