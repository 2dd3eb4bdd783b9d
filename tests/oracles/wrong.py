"""Wrong values for every switch of a description: what the outside oracle has to notice.

A change takes the converter's description and alters it; the weights stay as they are. `CHANGES` are wrong
values a blob can be made with, each listed with the case that shows it; `REFUSED` are sizes that no longer
fit the checkpoint's tensors and kinds the core does not run, which never become an answer at all.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from typing import Any

from colibri.description import Layer, Model, Rope
from colibri.library import constants

Change = Callable[[Model], None]


def layers(only: Callable[[Layer], bool] = lambda _: True, **values: Any) -> Change:
    """Set fields of the layers for which `only` holds."""

    def change(model: Model) -> None:
        chosen = [layer for layer in model.layers if only(layer)]
        assert chosen, "the change touches no layer"
        for layer in chosen:
            for name, value in values.items():
                assert getattr(layer, name) != value, f"{name} is {value} already"
                setattr(layer, name, value)

    return change


def experts(**values: Any) -> Change:
    """Set fields of the MoE layers."""
    return layers(lambda layer: layer.moe, **values)


def model(**values: Any) -> Change:
    """Set fields of the model."""

    def change(target: Model) -> None:
        for name, value in values.items():
            assert getattr(target, name) != value, f"{name} is {value} already"
            setattr(target, name, value)

    return change


def rope(alter: Callable[[Rope], Rope]) -> Change:
    """Change the model's only rope."""

    def change(target: Model) -> None:
        (old,) = target.ropes
        target.ropes = [alter(old)]
        assert target.ropes != [old], "the change leaves the rope as it is"

    return change


def plain(theta: float, width: int) -> Change:
    """Unscaled frequencies; the amplitude stays."""
    turns = [theta ** (-2 * j / width) / (2 * math.pi) for j in range(width // 2)]
    return rope(lambda old: replace(old, fractions=tuple(round(t * 2.0**64) for t in turns)))


def without_bias(letter: str) -> Change:
    """Clear one bias bit."""

    def change(target: Model) -> None:
        bit = getattr(constants(), "BIAS_" + letter.upper())
        for layer in target.layers:
            assert layer.biases & bit
            layer.biases &= ~bit

    return change


def windowed(step: int) -> Change:
    """Windows a little too wide or too narrow."""

    def change(target: Model) -> None:
        for layer in target.layers:
            if layer.window:
                layer.window += step

    return change


def swapped_windows(target: Model) -> None:
    """Windows where there were none, and none where there were."""
    (size,) = {layer.window for layer in target.layers if layer.window}
    for layer in target.layers:
        layer.window = None if layer.window else size


def everywhere(target: Model) -> None:
    """The model's rope in the layers that have none."""
    for layer in target.layers:
        layer.rope = 0


def swapped_ropes(target: Model) -> None:
    """Either kind of layers with the other kind's rope."""
    for layer in target.layers:
        layer.rope = 1 - layer.rope


def taken_over(target: Model) -> None:
    """No layer but the first chooses positions."""
    for layer in target.layers[1:]:
        layer.index_heads = layer.index_dim = layer.index_rope = None


def convolved(alter: Callable[[Layer], Any]) -> Change:
    """Change the layers with a convolution."""

    def change(target: Model) -> None:
        chosen = [layer for layer in target.layers if layer.attention == constants().ATTENTION_CONV]
        assert chosen, "no layer has a convolution"
        for layer in chosen:
            alter(layer)

    return change


def regroup(layer: Layer) -> None:
    """Two heads, half as wide."""
    layer.heads = layer.kv_heads = 2
    layer.head_dim //= 2


def shorter(target: Model) -> None:
    """One layer too few."""
    target.layers.pop()


def regrouped(target: Model) -> None:
    """Half the heads, twice as wide: the same tensors cut in another way."""
    for layer in target.layers:
        layer.heads, layer.kv_heads = layer.heads // 2, layer.kv_heads // 2
        layer.head_dim *= 2


def ungrouped(target: Model) -> None:
    """All experts in the choice."""
    for layer in target.layers:
        layer.router_groups = layer.router_top_groups = layer.router_group_score = None


def _changes() -> list[tuple[str, str, str, Change]]:
    """(keys of the format, case, what is wrong, change)"""
    c = constants()
    return [
        ("LAYERS", "llama_mha", "one layer too few", shorter),
        ("FINAL_EPS", "llama_mha", "1e-5", model(final_eps=1e-5)),
        ("EMBED_MULTIPLIER", "granite_multipliers", "none", model(embed_multiplier=None)),
        ("EMBED_MULTIPLIER", "llama_mha", "2", model(embed_multiplier=2.0)),
        ("LOGIT_MULTIPLIER", "granite_multipliers", "none", model(logit_multiplier=None)),
        ("LOGIT_MULTIPLIER", "mixtral_mha", "1.01", model(logit_multiplier=1.01)),
        ("HEADS KV_HEADS HEAD_DIM", "mixtral_gqa_yarn", "half the heads, twice as wide", regrouped),
        ("ROPE", "llama_mha", "no rotation", layers(rope=None)),
        ("ROPE", "mixtral_mha", "slower by 1 %", rope(lambda r: replace(
            r, fractions=tuple(f - f // 100 for f in r.fractions)))),
        ("ROPE", "llama_mha", "interleaved pairs", rope(lambda r: replace(r, interleaved=True))),
        ("ROPE", "ernie_interleaved", "halves", rope(lambda r: replace(r, interleaved=False))),
        ("ROPE", "ernie_moe", "halves", rope(lambda r: replace(r, interleaved=False))),
        ("ROPE", "llama_gqa_bias", "linear scaling ignored", plain(100, 16)),
        ("ROPE", "llama_llama3", "llama3 scaling ignored", plain(300, 16)),
        ("ROPE", "mixtral_mqa_window", "llama3 scaling ignored", plain(300, 28)),
        ("ROPE", "llama_yarn", "yarn scaling ignored", plain(100, 16)),
        ("ROPE", "llama_yarn", "yarn's amplitude ignored", rope(lambda r: replace(r, amplitude=1.0))),
        ("ROPE", "mixtral_gqa_yarn", "its own attention factor ignored", rope(lambda r: replace(
            r, amplitude=1.0 + 0.1 * math.log(4.0)))),
        ("ROPE", "qwen3_moe_norm", "mscale ignored", rope(lambda r: replace(
            r, amplitude=1.0 + 0.1 * math.log(4.0)))),
        ("ROPE", "mixtral_defaults", "theta 1e4", plain(1e4, 4)),
        ("ROPE", "glm_partial", "fewer pairs", rope(lambda r: replace(r, fractions=r.fractions[:-1]))),
        ("WINDOW", "mistral_window", "none", layers(window=None)),
        ("WINDOW", "mistral_window", "one too wide", windowed(1)),
        ("WINDOW", "mixtral_mqa_window", "one too narrow", windowed(-1)),
        ("WINDOW", "qwen2_window", "in the other layers", swapped_windows),
        ("WINDOW", "qwen3_norm", "in the other layers", swapped_windows),
        ("SCORE_SCALE", "llama_mha", "1 / head_dim", layers(score_scale=1 / 16)),
        ("SCORE_SCALE", "granite_multipliers", "1 / sqrt(head_dim)", layers(score_scale=0.25)),
        ("QK_NORM", "qwen3_norm", "none", layers(qk_norm=c.QK_NORM_NONE)),
        ("QK_NORM", "qwen3_moe_norm", "none", layers(qk_norm=c.QK_NORM_NONE)),
        ("QK_NORM", "olmoe_wide", "none", layers(qk_norm=c.QK_NORM_NONE)),
        ("QK_NORM", "hunyuan_after", "none", layers(qk_norm=c.QK_NORM_NONE)),
        ("QK_NORM", "hunyuan_after", "before the rotation", layers(qk_norm=c.QK_NORM_HEAD)),
        ("QK_NORM", "qwen3_norm", "after the rotation", layers(qk_norm=c.QK_NORM_HEAD_AFTER_ROPE)),
        ("QK_NORM", "llama_mha", "after the rotation, without weights", layers(qk_norm=c.QK_NORM_L2_AFTER_ROPE)),
        ("SINKS", "gpt_oss_sinks", "none", layers(sinks=None)),
        ("CHUNK", "llama_mha", "10", layers(chunk=10)),
        ("CHUNK", "llama4_turns", "none", layers(lambda layer: bool(layer.chunk), chunk=None)),
        ("QUERY_FLOOR QUERY_STEP", "llama4_turns", "queries as they are", layers(
            lambda layer: bool(layer.query_floor), query_floor=None, query_step=None)),
        ("QUERY_FLOOR", "llama4_turns", "later", layers(lambda layer: bool(layer.query_floor), query_floor=7)),
        ("QUERY_STEP", "llama4_turns", "less", layers(lambda layer: bool(layer.query_floor), query_step=0.1)),
        ("QK_NORM", "llama4_turns", "none", layers(lambda layer: bool(layer.chunk), qk_norm=c.QK_NORM_NONE)),
        ("ROUTER_WEIGHT_ON", "llama4_turns", "the output", experts(router_weight_on=None)),
        ("ROPE", "llama4_turns", "halves", rope(lambda r: replace(r, interleaved=False))),
        ("ROPE", "llama4_turns", "every layer rotates", everywhere),
        ("SHARED_FF", "llama4_turns", "no shared expert", experts(shared_ff=None)),
        ("ROUTER_RENORMALISE", "llama4_turns", "yes", experts(router_renormalise=c.RENORMALISE_SUM)),
        ("ROUTER_SCORE", "llama4_turns", "softmax", experts(router_score=c.ROUTER_SOFTMAX)),
        ("CHUNK", "llama4_wrapped", "one more", layers(lambda layer: bool(layer.chunk), chunk=10)),
        ("QK_NORM", "llama4_wrapped", "L2 after the rotation", layers(qk_norm=c.QK_NORM_L2_AFTER_ROPE)),
        ("ROPE", "llama4_wrapped", "llama3 scaling ignored", plain(300, 16)),
        ("QUERY_FLOOR", "llama4_wrapped", "one later", layers(lambda layer: bool(layer.query_floor), query_floor=6)),
        ("TOP_K", "llama4_wrapped", "2", experts(top_k=2)),
        ("WINDOW", "lfm2_taps", "tap by tap, but of attention", layers(
            lambda layer: layer.attention == c.ATTENTION_GQA, window=3)),
        ("ROUTER_BIAS", "lfm2_taps", "none", experts(router_bias=None)),
        ("ROUTER_BIAS", "lfm2_taps", "in the logit", experts(router_bias=c.ROUTER_BIAS_LOGIT)),
        ("ROUTER_EPS", "lfm2_taps", "0.1", experts(router_eps=0.1)),
        ("ROUTER_SCALE", "lfm2_taps", "none", experts(router_scale=None)),
        ("QK_NORM", "lfm2_taps", "none", layers(lambda layer: layer.attention == c.ATTENTION_GQA,
                                                qk_norm=c.QK_NORM_NONE)),
        ("BIASES", "lfm2_biased", "none on the taps", convolved(lambda layer: setattr(
            layer, "biases", layer.biases & ~c.BIAS_TAPS))),
        ("BIASES", "lfm2_biased", "none on the gates", convolved(lambda layer: setattr(
            layer, "biases", layer.biases & ~(c.BIAS_Q | c.BIAS_K)))),
        ("ROUTER_RENORMALISE", "lfm2_biased", "yes", experts(router_renormalise=c.RENORMALISE_SUM)),
        ("NORM", "dbrx_clip", "RMS", layers(norm=None)),
        ("FINAL_NORM", "dbrx_clip", "RMS", model(final_norm=None)),
        ("CLIP_QKV", "dbrx_clip", "none", layers(clip_qkv=None)),
        ("CLIP_QKV", "dbrx_root", "none", layers(clip_qkv=None)),
        ("ROPE", "dbrx_clip", "theta 1e4", plain(1e4, 16)),
        ("ROPE", "dbrx_clip", "interleaved pairs", rope(lambda r: replace(r, interleaved=True))),
        ("ROUTER_RENORMALISE", "dbrx_clip", "no", experts(router_renormalise=c.RENORMALISE_NONE)),
        ("ROUTER_RENORMALISE", "dbrx_clip", "by the root of the squares", experts(
            router_renormalise=c.RENORMALISE_ROOT)),
        ("ROUTER_RENORMALISE", "dbrx_root", "by the sum", experts(router_renormalise=c.RENORMALISE_SUM)),
        ("ACTIVATION", "dbrx_root", "silu", layers(activation=c.ACTIVATION_SILU)),
        ("TOP_K", "dbrx_clip", "2", experts(top_k=2)),
        ("CHUNK", "mistral_window", "instead of a window", layers(chunk=11, window=None)),
        ("CLIP_QKV", "olmoe_wide", "none", layers(clip_qkv=None)),
        ("CLIP_QKV", "qwen3_moe_norm", "0.9", layers(clip_qkv=0.9)),
        ("NORM_EPS", "llama_mha", "1e-5", layers(norm_eps=1e-5)),
        ("NORM_EPS", "mixtral_mha", "1e-5", layers(norm_eps=1e-5)),
        ("BIASES", "llama_gqa_bias", "no bias on q", without_bias("q")),
        ("BIASES", "llama_gqa_bias", "no bias on k", without_bias("k")),
        ("BIASES", "llama_gqa_bias", "no bias on v", without_bias("v")),
        ("BIASES", "llama_gqa_bias", "no bias on o", without_bias("o")),
        ("BIASES", "qwen2_window", "no bias on v", without_bias("v")),
        ("POST_NORMS", "kolibri_posts", "none after attention", layers(post_norms=c.POST_NORM_FFN)),
        ("POST_NORMS", "kolibri_posts", "none after the experts", layers(post_norms=c.POST_NORM_ATTENTION)),
        ("ROUTER_BIAS", "kolibri_posts", "on the score", experts(router_bias=c.ROUTER_BIAS_SCORE)),
        ("ROUTER_BIAS", "gpt_oss_sinks", "none", experts(router_bias=None)),
        ("ROPE", "kolibri_posts", "every layer rotates", everywhere),
        ("NORM", "phimoe_norms", "RMS", layers(norm=None)),
        ("NORM", "phimoe_norms", "without biases", layers(norm=c.NORM_LAYER)),
        ("FINAL_NORM", "phimoe_norms", "without a bias", model(final_norm=c.NORM_LAYER)),
        ("HEAD_BIAS", "phimoe_norms", "none", model(head_bias=None)),
        ("ROUTER_JITTER", "phimoe_norms", "0.01", experts(router_jitter=0.01)),
        ("NORM", "llama_mha", "LayerNorm", layers(norm=c.NORM_LAYER)),
        ("FINAL_NORM", "llama_mha", "LayerNorm", model(final_norm=c.NORM_LAYER)),
        ("LOGIT_SOFTCAP", "llama_mha", "5", model(logit_softcap=5.0)),
        ("ACTIVATION", "llama_mha", "gelu", layers(activation=c.ACTIVATION_GELU_ERF)),
        ("ACTIVATION", "llama_gelu", "silu", layers(activation=c.ACTIVATION_SILU)),
        ("ACTIVATION", "llama_gelu", "the other gelu", layers(activation=c.ACTIVATION_GELU_TANH)),
        ("ACTIVATION", "llama_gelu_tanh", "the other gelu", layers(activation=c.ACTIVATION_GELU_ERF)),
        ("ACTIVATION", "gpt_oss_sinks", "without one more", experts(activation=c.ACTIVATION_CLAMPED)),
        ("ACTIVATION SWIGLU_LIMIT", "gpt_oss_sinks", "plain silu", experts(
            activation=c.ACTIVATION_SILU, swiglu_limit=None)),
        ("SWIGLU_LIMIT", "gpt_oss_sinks", "7", experts(swiglu_limit=7.0)),
        ("FFN_BIASES", "gpt_oss_sinks", "none on gate", experts(ffn_biases=c.FFN_BIAS_UP | c.FFN_BIAS_DOWN)),
        ("FFN_BIASES", "gpt_oss_sinks", "none on up", experts(ffn_biases=c.FFN_BIAS_GATE | c.FFN_BIAS_DOWN)),
        ("FFN_BIASES", "gpt_oss_sinks", "none on down", experts(ffn_biases=c.FFN_BIAS_GATE | c.FFN_BIAS_UP)),
        ("FFN_BIASES", "llama_gelu", "none on down", layers(ffn_biases=c.FFN_BIAS_GATE | c.FFN_BIAS_UP)),
        ("FFN_BIASES", "llama_gelu", "none", layers(ffn_biases=None)),
        ("TOP_K", "mixtral_mha", "1", experts(top_k=1)),
        ("TOP_K", "mixtral_tied", "4", experts(top_k=4)),
        ("TOP_K", "mixtral_all", "3", experts(top_k=3)),
        ("ROUTER_SCORE", "mixtral_mha", "sigmoid", experts(router_score=c.ROUTER_SIGMOID)),
        ("ROUTER_SCORE", "dots_sigmoid", "softmax", experts(router_score=c.ROUTER_SOFTMAX)),
        ("ROUTER_RENORMALISE", "mixtral_mha", "no", experts(router_renormalise=c.RENORMALISE_NONE)),
        ("ROUTER_RENORMALISE", "qwen2_moe_plain", "yes", experts(router_renormalise=c.RENORMALISE_SUM)),
        ("ROUTER_RENORMALISE", "dots_sigmoid_plain", "yes", experts(router_renormalise=c.RENORMALISE_SUM)),
        ("ROUTER_SCALE", "dots_sigmoid", "none", experts(router_scale=None)),
        ("ROUTER_SCALE", "mixtral_mha", "1.05", experts(router_scale=1.05)),
        ("ROUTER_EPS", "mixtral_mha", "0.05", experts(router_eps=0.05)),
        ("ROUTER_SCORE", "minimax_bias", "softmax", experts(router_score=c.ROUTER_SOFTMAX)),
        ("ROUTER_SCORE", "minimax_bias", "root of softplus", experts(router_score=c.ROUTER_SQRT_SOFTPLUS)),
        ("ROUTER_SCORE", "dots_sigmoid", "the logit", experts(router_score=c.ROUTER_LOGIT)),
        ("ROUTER_SCORE ROUTER_JITTER", "mixtral_mha", "the sparse mixer", experts(
            router_score=c.ROUTER_SPARSE_MIXER, router_jitter=0.01)),
        ("ROUTER_RENORMALISE", "granite_moe", "by the sum", experts(router_renormalise=c.RENORMALISE_SUM)),
        ("ROUTER_RENORMALISE", "granite_moe", "no", experts(router_renormalise=c.RENORMALISE_NONE)),
        ("ROUTER_RENORMALISE", "mixtral_mha", "by the root of the squares", experts(
            router_renormalise=c.RENORMALISE_ROOT)),
        ("ROUTER_RENORMALISE", "mixtral_mha", "softmax of the chosen probabilities", experts(
            router_renormalise=c.RENORMALISE_SOFTMAX)),
        ("ROUTER_BIAS", "dots_groups", "none", experts(router_bias=None)),
        ("ROUTER_BIAS", "ernie_bias", "none", experts(router_bias=None)),
        ("ROUTER_BIAS", "minimax_bias", "none", experts(router_bias=None)),
        ("ROUTER_BIAS", "minimax_bias", "on the logit of the choice", experts(router_bias=c.ROUTER_BIAS_CHOICE)),
        ("ROUTER_BIAS", "minimax_bias", "in the logit", experts(router_bias=c.ROUTER_BIAS_LOGIT)),
        ("ROUTER_GROUPS ROUTER_TOP_GROUPS ROUTER_GROUP_SCORE", "glm_groups", "none", ungrouped),
        ("ROUTER_GROUPS", "dots_groups", "two", experts(router_groups=2)),
        ("ROUTER_TOP_GROUPS", "dots_groups", "three", experts(router_top_groups=3)),
        ("ROUTER_GROUP_SCORE", "dots_groups", "the best expert's", experts(router_group_score=c.GROUP_MAX)),
        ("ROUTER_GROUP_SCORE", "glm_groups", "the best expert's", experts(router_group_score=c.GROUP_MAX)),
        ("ROUTER_GROUP_SCORE ROUTER_TOP_GROUPS", "dots_groups", "as many of each", experts(
            router_group_score=c.GROUP_EACH, router_top_groups=4)),
        ("ROUTER_GROUPS ROUTER_GROUP_SCORE", "mixtral_mha", "one of each half", experts(
            router_groups=2, router_top_groups=2, router_group_score=c.GROUP_EACH)),
        ("ROUTER_SUM_MIN", "ernie_bias", "none", experts(router_sum_min=None)),
        ("ROUTER_SUM_MIN", "mixtral_mha", "1.5", experts(router_sum_min=1.5)),
        ("ROUTER_CHOICE", "glm_groups", "by logit", experts(router_bias=None, router_choice=c.CHOICE_BY_LOGIT)),
        ("ROUTER_WEIGHT_ON", "mixtral_mha", "the input", experts(router_weight_on=c.ROUTER_ON_INPUT)),
        ("ROUTER_SPAN", "mixtral_mha", "logits told apart up to 1", experts(router_span=1)),
        ("SHARED_FF", "granite_shared", "no shared expert", experts(shared_ff=None, shared_gate=None)),
        ("ROUTER_SCORE", "granite_shared", "sigmoid", experts(router_score=c.ROUTER_SIGMOID)),
        ("SHARED_FF", "qwen2_moe_plain", "no shared expert", experts(shared_ff=None, shared_gate=None)),
        ("SHARED_FF", "ernie_moe", "no shared expert", experts(shared_ff=None)),
        ("SHARED_GATE", "qwen2_moe_renorm", "not gated", experts(shared_gate=None)),
        ("ROPE", "deepseek_v2_plain", "halves", rope(lambda r: replace(r, interleaved=False))),
        ("ROPE", "deepseek_v2_yarn", "yarn's amplitude ignored", rope(lambda r: replace(r, amplitude=1.0))),
        ("SCORE_SCALE", "deepseek_v2_yarn", "without yarn's factor", layers(score_scale=32 ** -0.5)),
        ("WINDOW", "deepseek_v2_plain", "9", layers(window=9)),
        ("ROPE", "deepseek_v3_halves", "interleaved", rope(lambda r: replace(r, interleaved=True))),
        ("SCORE_SCALE", "deepseek_v3_groups", "without yarn's factor", layers(score_scale=20 ** -0.5)),
        ("INDEX_TOP_K", "deepseek_v32_sparse", "one fewer", layers(index_top_k=11)),
        ("INDEX_TOP_K INDEX_HEADS INDEX_DIM", "deepseek_v32_sparse", "all positions", layers(
            index_top_k=None, index_heads=None, index_dim=None, index_rope=None)),
        ("INDEX_TOP_K", "deepseek_v32_short", "4", layers(index_top_k=4)),
        ("INDEX_ROPE", "deepseek_v32_sparse", "interleaved pairs", layers(index_rope=0)),
        ("INDEX_ROPE", "glm_dsa_shared", "no rotation", layers(lambda layer: bool(layer.index_heads), index_rope=None)),
        ("INDEX_HEADS INDEX_DIM INDEX_ROPE", "glm_dsa_shared", "the first layer's choice for all", taken_over),
        ("LATENT_EPS", "deepseek_v2_plain", "that of the layer", layers(latent_eps=None)),
        ("LATENT_EPS", "deepseek_v2_yarn", "1e-3", layers(latent_eps=1e-3)),
        ("BIASES", "deepseek_v2_yarn", "no bias on the latent of the queries", without_bias("q")),
        ("BIASES", "deepseek_v2_yarn", "no bias on the latent", without_bias("k")),
        ("BIASES", "deepseek_v2_yarn", "no bias on o", without_bias("o")),
        ("HEAD_GATES", "afmoe_gates", "none", layers(head_gates=None)),
        ("HEAD_GATES", "afmoe_biases", "none", layers(head_gates=None)),
        ("EMBED_MULTIPLIER", "afmoe_gates", "none", model(embed_multiplier=None)),
        ("EMBED_MULTIPLIER", "afmoe_biases", "the root of the width", model(embed_multiplier=8.0)),
        ("ROPE", "afmoe_gates", "every layer rotates", everywhere),
        ("WINDOW", "afmoe_gates", "one too wide", windowed(1)),
        ("WINDOW", "afmoe_biases", "in the other layers", swapped_windows),
        ("POST_NORMS", "afmoe_gates", "none after attention", layers(post_norms=c.POST_NORM_FFN)),
        ("POST_NORMS", "afmoe_gates", "none after the feed-forward part", layers(post_norms=c.POST_NORM_ATTENTION)),
        ("QK_NORM", "afmoe_gates", "none", layers(qk_norm=c.QK_NORM_NONE)),
        ("QK_NORM", "afmoe_biases", "after the rotation", layers(qk_norm=c.QK_NORM_HEAD_AFTER_ROPE)),
        ("ROUTER_SCALE", "afmoe_biases", "none", experts(router_scale=None)),
        ("ROUTER_BIAS", "afmoe_gates", "none", experts(router_bias=None)),
        ("ROUTER_SCORE", "afmoe_gates", "softmax", experts(router_score=c.ROUTER_SOFTMAX)),
        ("ROUTER_RENORMALISE", "afmoe_gates", "no", experts(router_renormalise=c.RENORMALISE_NONE)),
        ("SHARED_FF", "afmoe_gates", "no shared expert", experts(shared_ff=None, shared_gate=None)),
        ("EMBED_MULTIPLIER", "gemma3_turns", "none", model(embed_multiplier=None)),
        ("EMBED_MULTIPLIER", "gemma3_listed", "1 % more", model(embed_multiplier=72 ** 0.5 * 1.01)),
        ("SCORE_SCALE", "gemma3_turns", "1 / sqrt(head_dim)", layers(score_scale=24 ** -0.5)),
        ("LOGIT_SOFTCAP", "gemma3_turns", "none", model(logit_softcap=None)),
        ("ACTIVATION", "gemma3_turns", "silu", layers(activation=c.ACTIVATION_SILU)),
        ("ACTIVATION", "gemma3_listed", "silu", layers(activation=c.ACTIVATION_SILU)),
        ("ROPE", "gemma3_turns", "that of the other layers", swapped_ropes),
        ("ROPE", "gemma3_turns", "one for all", layers(lambda layer: layer.rope == 1, rope=0)),
        ("ROPE", "gemma3_listed", "that of the other layers", swapped_ropes),
        ("WINDOW", "gemma3_turns", "one too wide", windowed(1)),
        ("WINDOW", "gemma3_listed", "in the other layers", swapped_windows),
        ("POST_NORMS", "gemma3_turns", "none after attention", layers(post_norms=c.POST_NORM_FFN)),
        ("POST_NORMS", "gemma3_turns", "none after the feed-forward part", layers(post_norms=c.POST_NORM_ATTENTION)),
        ("QK_NORM", "gemma3_turns", "none", layers(qk_norm=c.QK_NORM_NONE)),
        ("BIASES", "gemma3_listed", "no bias on o", without_bias("o")),
        ("RESIDUAL_MULTIPLIER", "granite_multipliers", "none", layers(residual_multiplier=None)),
        ("RESIDUAL_MULTIPLIER", "mixtral_mha", "0.9", layers(residual_multiplier=0.9)),
    ]


def _first(**values: Any) -> Change:
    """Set fields of the first layer only."""

    def change(target: Model) -> None:
        for name, value in values.items():
            setattr(target.layers[0], name, value)

    return change


def _refused() -> list[tuple[str, str, str, Change]]:
    """(keys of the format, case, what is wrong, change)"""
    c = constants()
    return [
        ("VOCAB", "llama_mha", "one token too few", model(vocab=119)),
        ("HIDDEN", "llama_mha", "half", model(hidden=32)),
        ("HEAD", "llama_mha", "tied", model(tied=True)),
        ("HEAD", "llama_gqa_bias", "not tied", model(tied=False)),
        ("HEADS", "llama_mha", "half", layers(heads=2, kv_heads=2)),
        ("KV_HEADS", "llama_gqa_bias", "one", layers(kv_heads=1)),
        ("HEAD_DIM", "llama_mha", "8", layers(head_dim=8)),
        ("BIASES", "llama_mha", "biases that are not there", layers(biases=c.BIAS_Q)),
        ("QK_NORM", "llama_mha", "norms that are not there", layers(qk_norm=c.QK_NORM_HEAD)),
        ("ATTENTION", "llama_mha", "latent attention", layers(attention=c.ATTENTION_MLA)),
        ("ACTIVATION", "llama_mha", "an unknown one", layers(activation=c.ACTIVATION_GELU_ERF + 1)),
        ("ACTIVATION", "llama_mha", "a clamped one without a limit", layers(activation=c.ACTIVATION_CLAMPED)),
        ("SWIGLU_LIMIT", "llama_mha", "a limit of nothing", layers(swiglu_limit=7.0)),
        ("SWIGLU_LIMIT", "gpt_oss_sinks", "not above zero", layers(swiglu_limit=-1.0)),
        ("SINKS", "llama_mha", "sinks that are not there", layers(sinks=1)),
        ("FFN_BIASES", "llama_mha", "biases that are not there", layers(ffn_biases=c.FFN_BIAS_UP)),
        ("NORM", "llama_mha", "biases that are not there", layers(norm=c.NORM_LAYER_BIAS)),
        ("FINAL_NORM", "llama_mha", "a bias that is not there", model(final_norm=c.NORM_LAYER_BIAS)),
        ("HEAD_BIAS", "llama_mha", "a bias that is not there", model(head_bias=1)),
        ("POST_NORMS", "llama_mha", "a norm that is not there", layers(post_norms=c.POST_NORM_FFN)),
        ("CHUNK", "mistral_window", "beside a window", layers(chunk=11)),
        ("WINDOW", "lfm2_taps", "one tap fewer", convolved(lambda layer: setattr(layer, "window", 2))),
        ("WINDOW", "lfm2_taps", "no taps", convolved(lambda layer: setattr(layer, "window", None))),
        ("ATTENTION", "lfm2_taps", "attention instead of a convolution", convolved(
            lambda layer: setattr(layer, "attention", c.ATTENTION_GQA))),
        ("ATTENTION WINDOW", "llama_mha", "a convolution of several heads", layers(
            attention=c.ATTENTION_CONV, window=3, rope=None)),
        ("HEADS KV_HEADS HEAD_DIM", "lfm2_taps", "two heads of a convolution", convolved(regroup)),
        ("ROPE", "lfm2_taps", "a convolution that rotates", convolved(lambda layer: setattr(layer, "rope", 0))),
        ("QK_NORM", "lfm2_taps", "norms in a convolution", convolved(
            lambda layer: setattr(layer, "qk_norm", c.QK_NORM_L2_AFTER_ROPE))),
        ("CLIP_QKV", "lfm2_taps", "a clamped convolution", convolved(lambda layer: setattr(layer, "clip_qkv", 1.0))),
        ("CHUNK", "lfm2_taps", "a convolution of stretches", convolved(lambda layer: setattr(layer, "chunk", 3))),
        ("QUERY_FLOOR QUERY_STEP", "lfm2_taps", "growing queries", convolved(
            lambda layer: (setattr(layer, "query_floor", 3), setattr(layer, "query_step", 0.1)))),
        ("BIASES", "lfm2_taps", "biases that are not there", convolved(
            lambda layer: setattr(layer, "biases", c.BIAS_TAPS))),
        ("BIASES", "llama_mha", "a bias of taps", layers(biases=c.BIAS_TAPS)),
        ("KV_HEADS", "dbrx_clip", "one", layers(kv_heads=1)),
        ("NORM", "dbrx_clip", "biases that are not there", layers(norm=c.NORM_LAYER_BIAS)),
        ("FF", "dbrx_clip", "narrower", layers(ff=48)),
        ("EXPERTS", "dbrx_clip", "fewer", experts(experts=5)),
        ("POST_NORMS", "phimoe_norms", "norms that are not there", layers(post_norms=c.POST_NORM_ATTENTION)),
        ("LOGIT_SOFTCAP", "llama_mha", "not above zero", model(logit_softcap=-5.0)),
        ("ATTENTION", "deepseek_v2_plain", "of heads", layers(attention=c.ATTENTION_GQA)),
        ("LATENT HEAD_DIM", "deepseek_v2_plain", "narrower", layers(latent=16, head_dim=24)),
        ("HEAD_DIM", "deepseek_v2_plain", "without the rope key", layers(head_dim=32)),
        ("KV_HEADS", "deepseek_v2_plain", "two", layers(kv_heads=2)),
        ("NOPE_DIM ROPE_DIM", "deepseek_v2_plain", "shared out in another way", layers(nope_dim=16, rope_dim=4)),
        ("NOPE_DIM V_DIM", "deepseek_v2_plain", "exchanged", layers(nope_dim=16, v_dim=12)),
        ("V_DIM", "deepseek_v2_plain", "wider", layers(v_dim=32)),
        ("Q_LATENT", "deepseek_v2_plain", "one that is not there", layers(q_latent=24)),
        ("Q_LATENT", "deepseek_v2_yarn", "none", layers(q_latent=None)),
        ("Q_LATENT", "llama_mha", "without latent attention", layers(q_latent=64)),
        ("INDEX_TOP_K", "llama_mha", "without latent attention", layers(index_top_k=4)),
        ("INDEX_TOP_K", "deepseek_v2_plain", "without a latent of the queries", layers(index_top_k=4)),
        ("INDEX_HEADS", "deepseek_v32_sparse", "a choice nobody made", layers(
            index_heads=None, index_dim=None, index_rope=None)),
        ("INDEX_HEADS INDEX_DIM", "deepseek_v32_sparse", "half the heads, twice as wide", layers(
            index_heads=8, index_dim=48)),
        ("INDEX_DIM", "deepseek_v32_sparse", "narrower than its rotation", layers(index_heads=64, index_dim=6)),
        ("WINDOW", "deepseek_v32_sparse", "beside a choice of positions", layers(window=9)),
        ("QK_NORM", "deepseek_v2_plain", "norms of heads", layers(qk_norm=c.QK_NORM_HEAD)),
        ("CLIP_QKV", "deepseek_v2_plain", "a clamp", layers(clip_qkv=1.0)),
        ("CHUNK", "deepseek_v2_plain", "chunks", layers(chunk=11)),
        ("QUERY_FLOOR QUERY_STEP", "deepseek_v2_plain", "growing queries", layers(query_floor=3, query_step=0.1)),
        ("QUERY_STEP", "llama4_turns", "none", layers(lambda layer: bool(layer.query_floor), query_step=None)),
        ("QUERY_FLOOR", "llama4_turns", "none", layers(lambda layer: bool(layer.query_floor), query_floor=None)),
        ("CHUNK", "llama4_turns", "beside a window", layers(lambda layer: bool(layer.chunk), window=9)),
        ("FFN", "llama4_turns", "experts in a dense layer", _first(
            ffn=c.FFN_MOE, experts=6, top_k=2, router_score=c.ROUTER_SIGMOID, router_renormalise=c.RENORMALISE_NONE)),
        ("BIASES", "deepseek_v2_plain", "a bias on v", layers(biases=c.BIAS_V)),
        ("FFN", "qwen2_moe_plain", "experts in a dense layer", _first(
            ffn=c.FFN_MOE, experts=8, top_k=2, router_score=c.ROUTER_SOFTMAX)),
        ("FFN", "mixtral_mha", "a dense layer instead of experts", _first(
            ffn=c.FFN_DENSE, experts=None, top_k=None, router_score=None, router_renormalise=None)),
        ("FF", "llama_mha", "narrower", layers(ff=64)),
        ("FF", "mixtral_mha", "narrower", layers(ff=64)),
        ("EXPERTS", "mixtral_mha", "fewer", experts(experts=4)),
        ("TOP_K", "mixtral_all", "more than there are experts", experts(top_k=5)),
        ("ROUTER_BIAS", "mixtral_mha", "a bias that is not there", experts(router_bias=c.ROUTER_BIAS_SCORE)),
        ("ROUTER_GROUPS", "dots_groups", "no divisor", experts(router_groups=5)),
        ("ROUTER_SPAN", "mixtral_mha", "no power of two", experts(router_span=12)),
        ("ROUTER_SPAN", "mixtral_mha", "beyond the tables", experts(router_span=32)),
        ("ROUTER_SPAN", "minimax_bias", "with a bias on the score", experts(router_span=8)),
        ("ROUTER_TOP_GROUPS", "dots_groups", "too few for the experts chosen", experts(router_top_groups=1)),
        ("ROUTER_GROUP_SCORE", "glm_groups", "as many of each, and one group stays", experts(
            router_group_score=c.GROUP_EACH)),
        ("ROUTER_BY_TOKEN", "mixtral_mha", "a table that is not there", experts(router_by_token=1)),
        ("ROUTER_BY_TOKEN", "dots_groups", "a table that is not there", experts(router_by_token=1)),
        ("DRAFT DRAFT_LAYERS", "deepseek_v3_groups", "a layer of the run", layers(draft=1)),
        ("SINKS", "deepseek_v2_plain", "sinks", layers(sinks=1)),
        ("HEAD_GATES", "llama_mha", "gates that are not there", layers(head_gates=c.HEAD_GATES_ELEMENT)),
        ("HEAD_GATES", "afmoe_gates", "one a head", layers(head_gates=c.HEAD_GATES_HEAD)),
        ("HEAD_GATES", "afmoe_gates", "of an unknown kind", layers(head_gates=c.HEAD_GATES_ELEMENT + 1)),
        ("HEAD_GATES", "deepseek_v2_plain", "gates of latent attention", layers(head_gates=c.HEAD_GATES_HEAD)),
        ("HEAD_GATES", "lfm2_taps", "gates of a convolution", convolved(
            lambda layer: setattr(layer, "head_gates", c.HEAD_GATES_ELEMENT))),
        ("SHARED_FF", "qwen2_moe_plain", "narrower", experts(shared_ff=64)),
        ("SHARED_GATE", "ernie_moe", "a gate that is not there", experts(shared_gate=1)),
    ]


CHANGES = _changes()
REFUSED = _refused()
