"""Families that are known and cannot run: what each has that the core's layers have not.

A family that is neither here nor in family_table.py is refused as unknown.
"""

from __future__ import annotations

_REASONS = {
    "its layers carry a recurrent state of a state space from token to token; this version runs attention layers": (
        "bamba falcon_h1 falcon_mamba granitemoehybrid jamba mamba mamba2 nemotron_h recurrent_gemma rwkv zamba zamba2"
    ),
    "most of its layers are linear attention with a recurrent state (delta rule or lightning attention); this version "
    "runs layers that look at every cached position": (
        "bailing_hybrid kimi_linear minimax olmo_hybrid qwen3_5 qwen3_5_moe qwen3_5_moe_text qwen3_5_text qwen3_next"
    ),
    "the width of its feed-forward part is worked out from other fields of its config; this version has no rule for "
    "it": "lfm2",
    "its feed-forward part has no gate (one matrix up, an activation, one matrix down); this version runs gated ones": (
        "bloom codegen falcon gpt2 gpt_bigcode gpt_neo gpt_neox gptj mpt nemotron opt persimmon phi starcoder2"
    ),
    "attention and feed-forward part of a layer read the same norm side by side; this version runs one after the "
    "other": "cohere cohere2",
    "it has no row of names and switches in this version, though its layers have nothing that gemma3_text's have not": (
        "gemma"
    ),
    "it soft-caps the scores of its attention; this version soft-caps logits alone": "gemma2",
    "its text model stands beside a vision model; this version converts gemma3_text, the text model alone": "gemma3",
    "its layers take in embeddings of their own, and some read the keys and values of a former layer": (
        "gemma3n gemma4 gemma4_text"
    ),
    "its layers are normed behind attention and feed-forward part alone, or by norms without weights; this version "
    "norms what they read": "flex_olmo olmo olmo2 olmo3",
    "its queries, keys and values (or gate and up) lie in one tensor; this version has no rule that takes them apart": (
        "phi3"
    ),
    "its attention has experts of its own": "jetmoe",
    "its layers hold two attentions, and some experts compute nothing": "longcat_flash",
    "its values are of another width than its keys without a latent": "mimo_v2_flash",
    "its residual stream is several streams that are mixed in every layer, and its attention reads blocks of "
    "compressed positions": "deepseek_v4",
    "it reads all positions at once instead of one after the other; this version generates text": (
        "bert deberta electra modernbert roberta"
    ),
    "it is an encoder and a decoder; this version runs decoders alone": "bart nllb-moe switch_transformers t5 whisper",
}
REFUSED = {kind: why for why, kinds in _REASONS.items() for kind in kinds.split()}
