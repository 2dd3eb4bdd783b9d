"""Routers at their edges: sizes, ties at both levels, biases that hide the scores, values that do not fit together.

The engine has the numpy model's bits in every one of them; what the numpy router chose and weighed is looked at here
by other means: float64 scores, and plain rules of the choice.
"""
from __future__ import annotations

import importlib.util
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from colibri.blobwriter import write_blob
from colibri.engine import CoreError
from colibri.format import Kinds
from colibri.library import constants, names, values
from colibri.synth import SPECS, Spec, Weights, random_weights, write_random_blob
from editing import Edited, Opened
from oracles import bridge
from reference import model as reference_model
from reference.description import MoeFfn
from reference.model import Model as Reference
from reference.router import route
from reference.vecmath import sigmoid
from test_truth import engine_logits, prompt

BASE = Spec(layers=1, hidden=48, head_dim=8, expert_ff=8, tied=True)
F = np.float32
Weight = Callable[[dict[str, np.ndarray]], None]


class Routed:
    """A model run by engine and reference, with every row's logits and weights as the reference saw them."""

    def __init__(self, spec: Spec, tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
                 change: Weight | None = None) -> None:
        self.rows: list[tuple[MoeFfn, np.ndarray, np.ndarray | None, np.ndarray]] = []

        def watched(ffn: MoeFfn, logits: np.ndarray, bias: np.ndarray | None, at: str,
                    listed: np.ndarray | None = None) -> np.ndarray:
            w = route(ffn, logits, bias, at, listed)
            self.rows += [(ffn, z, bias, row) for z, row in zip(logits, w, strict=True)]
            return w

        monkeypatch.setattr(reference_model, "route", watched)
        model = spec.model()
        weights = random_weights(model, 7)
        if change:
            change(weights)
        write_blob(tmp_path / "m.colibri", model, Kinds.preset("f32"), Weights(weights), overwrite=True)
        tokens = prompt(spec.vocab)
        expected = Reference(bridge.description(model), weights).logits(tokens)
        found = engine_logits(tmp_path / "m.colibri", tokens, kv="f32")
        assert np.array_equal(found.view(np.uint32), expected.view(np.uint32))


def chosen(row: np.ndarray) -> list[int]:
    return np.flatnonzero(~np.isnan(row)).tolist()


def set_router(scale: float = 1.0, bias: np.ndarray | None = None) -> Weight:
    def change(weights: dict[str, np.ndarray]) -> None:
        weights["layers.0.router"] *= F(scale)
        if bias is not None:
            weights["layers.0.router_bias"] = bias.astype(F)

    return change


PLAIN: dict[str, dict[str, Any]] = {
    "softmax": {},
    "sigmoid": {"score": "sigmoid", "router_eps": 1e-20},
    "bias": {"score": "sigmoid", "router_bias": "score"},
    "softmax and bias": {"router_bias": "score", "renormalise": False},
    "choice": {"score": "sigmoid", "router_bias": "choice", "renormalise": "root"},
    "chosen": {"score": "logit", "renormalise": "softmax", "router_bias": "logit"},
    "root of softplus": {"score": "sqrt_softplus"},
    "on the input": {"weight_on": "input"},
}


@pytest.mark.sampled(3)
@pytest.mark.parametrize(("experts", "top_k"), [(1, 1), (9, 1), (9, 9), (33, 33), (40, 17), (512, 8), (512, 64)])
@pytest.mark.parametrize("kind", PLAIN)
def test_sizes(kind: str, experts: int, top_k: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    spec = replace(BASE, experts=experts, top_k=top_k, **PLAIN[kind])
    routed = Routed(spec, tmp_path, monkeypatch)
    for ffn, z, bias, w in routed.rows:
        number = z.astype(np.float64)
        if ffn.bias == "score":
            number = (np.exp(number - number.max()) / np.exp(number - number.max()).sum() if ffn.score == "softmax"
                      else 1 / (1 + np.exp(-number)))
        number = number + (0 if bias is None else bias)
        best = np.sort(number)[::-1]
        sure = top_k == experts or best[top_k - 1] - best[top_k] > 1e-6
        assert len(chosen(w)) == top_k
        assert not sure or chosen(w) == sorted(np.argsort(-number)[:top_k].tolist())
        total = np.nansum(w.astype(np.float64) ** (2 if ffn.renormalise == "root" else 1))
        assert not ffn.renormalise or abs(total - 1) < 1e-5


@pytest.mark.parametrize(("experts", "top_k"), [(1, 1), (9, 1), (9, 9), (40, 17)])
def test_sizes_of_the_sparse_mixer(experts: int, top_k: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    spec = replace(BASE, experts=experts, top_k=top_k, score="sparse_mixer", router_jitter=0.2, renormalise=False)
    for _, z, _, w in Routed(spec, tmp_path, monkeypatch).rows:
        assert chosen(w) == sorted(np.argsort(-z, kind="stable")[:top_k].tolist())
        assert (w[chosen(w)] > 0).all() and (w[chosen(w)] <= 1).all()


@pytest.mark.parametrize(("groups", "top_groups", "top_k"), [(64, 64, 64), (64, 8, 64), (8, 4, 1), (8, 8, 512),
                                                             (1, 1, 64)])
def test_sizes_with_groups(groups: int, top_groups: int, top_k: int, tmp_path: Path,
                           monkeypatch: pytest.MonkeyPatch) -> None:
    """512 experts, up to all of the kept groups and all there are."""
    spec = replace(BASE, experts=512, top_k=top_k, score="sigmoid", router_bias="score", groups=groups,
                   top_groups=top_groups, group_score="top_two", router_eps=1e-20)
    for _, _, _, w in Routed(spec, tmp_path, monkeypatch).rows:
        at = chosen(w)
        assert len(at) == top_k and len({e // (512 // groups) for e in at}) <= top_groups
        assert abs(np.nansum(w.astype(np.float64)) - 1) < 1e-5


@pytest.mark.parametrize("slots", [64, 511])
def test_64_of_512_experts_through_a_few_slots(slots: int, tmp_path: Path) -> None:
    """The passes of a batch that wants more experts at once than there are slots."""
    made = write_random_blob(tmp_path / "m.colibri", replace(BASE, experts=512, top_k=64), 5, "q8")
    tokens = prompt(made.model.vocab)
    whole = engine_logits(tmp_path / "m.colibri", tokens)
    few = engine_logits(tmp_path / "m.colibri", tokens, stream_experts=True, slots=slots)
    assert few.tobytes() == whole.tobytes()


@pytest.mark.parametrize(("hidden", "heads", "head_dim"), [(48, 4, 6), (48, 4, 24), (40, 5, 36), (64, 2, 130),
                                                           (32, 1, 8), (24, 8, 2)])
@pytest.mark.parametrize("kv", ["f32", "f16", "q8"])
def test_heads_as_wide_as_they_like(hidden: int, heads: int, head_dim: int, kv: str, tmp_path: Path) -> None:
    """Widths of all heads below, above and unlike that of the residual stream."""
    assert heads * head_dim != hidden
    spec = replace(BASE, layers=2, hidden=hidden, heads=heads, kv_heads=1, head_dim=head_dim, experts=5, expert_ff=24)
    made = write_random_blob(tmp_path / "m.colibri", spec, 5, "f32")
    tokens = prompt(spec.vocab)
    expected = Reference(replace(bridge.description(made.model), kv_kind=kv), made.weights).logits(tokens)
    assert engine_logits(tmp_path / "m.colibri", tokens, kv=kv).tobytes() == expected.tobytes()


@pytest.mark.sampled(4)
@pytest.mark.parametrize(("groups", "top_groups", "score"), [(1, 1, "top_two"), (64, 64, "max"), (64, 3, "top_two"),
                                                             (8, 4, "top_two"), (2, 1, "max"), (40, 9, "max")])
@pytest.mark.parametrize("base", [0.0, -3.0])
def test_groups(groups: int, top_groups: int, score: str, base: float, tmp_path: Path,
                monkeypatch: pytest.MonkeyPatch) -> None:
    """Biases far below zero: what is not in a kept group must not win because of a 0 in its place."""
    experts = 256 if groups != 40 else 120
    spec = replace(BASE, experts=experts, top_k=9, score="sigmoid", router_bias="score", groups=groups,
                   top_groups=top_groups, group_score=score)
    bias = base + 0.3 * np.random.default_rng(3).standard_normal(experts)
    routed = Routed(spec, tmp_path, monkeypatch, set_router(1.0, bias))
    size = experts // groups
    for _, z, b, w in routed.rows:
        number = 1 / (1 + np.exp(-z.astype(np.float64))) + b
        parts = np.sort(number.reshape(groups, size), axis=-1)
        of_group = parts[:, -1] if score == "max" else parts[:, -2:].sum(axis=-1)
        kept = set(np.argsort(-of_group)[:top_groups].tolist())
        left = sorted((e for e in range(experts) if e // size in kept), key=lambda e: -number[e])
        assert chosen(w) == sorted(left[:9])


def test_weights_are_not_recovered_from_biased_scores(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Scores of about 1e-8 under a bias of 12: 12 + s has forgotten s, and the weights have not."""
    spec = replace(BASE, experts=16, top_k=4, score="sigmoid", router_bias="score", router_eps=1e-20)

    def change(weights: dict[str, np.ndarray]) -> None:
        weights["embed"][:, 0] = 3                      # a direction all rows share
        weights["layers.0.o"][:] = 0
        weights["layers.0.ffn_norm"][:] = 1
        router = weights["layers.0.router"]
        router[::2, 0] = -9
        weights["layers.0.router_bias"] = np.where(np.arange(16) % 2, 0, 12).astype(F)

    seen = []
    for _, z, _, w in Routed(spec, tmp_path, monkeypatch, change).rows:
        at = chosen(w)
        assert all(e % 2 == 0 for e in at)
        s = 1 / (1 + np.exp(-z[at].astype(np.float64)))
        assert np.abs(w[at] / (s / s.sum()) - 1).max() < 2e-6
        seen += s.tolist()
    assert np.median(seen) < 1e-7 and max(seen) < 1e-4


@pytest.mark.sampled(3)
@pytest.mark.parametrize(("score", "scale"), [("softmax", 1.0), ("sigmoid", 1.0), ("sigmoid", 400.0),
                                              ("sqrt_softplus", 1.0), ("logit", 1.0), ("sparse_mixer", 1.0)])
def test_equal_logits_go_to_the_lower_index(score: str, scale: float, tmp_path: Path,
                                            monkeypatch: pytest.MonkeyPatch) -> None:
    """All experts the same pairwise, beyond every fast path's room: and saturated sigmoids, which are all 1."""
    for experts, top_k in ((8, 3), (64, 5), (96, 31)):
        spec = replace(BASE, experts=experts, top_k=top_k, score=score, renormalise=False, router_jitter=0.2)

        def change(weights: dict[str, np.ndarray]) -> None:
            router = weights["layers.0.router"]
            router[1::2] = router[::2]
            router *= F(scale)

        for _, z, _, w in Routed(spec, tmp_path, monkeypatch, change).rows:
            at = chosen(w)
            assert all(e - 1 in at for e in at if e % 2)
            if scale > 1:
                ones = np.flatnonzero(sigmoid(z) == 1)
                assert at == ones[:top_k].tolist() or len(ones) < top_k


def test_saturated_sigmoids_are_told_apart_by_their_logits(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    spec = replace(BASE, experts=32, top_k=2, score="sigmoid", renormalise=False, by_logit=True)
    saturated = 0
    for _, z, _, w in Routed(spec, tmp_path, monkeypatch, set_router(400.0)).rows:
        assert chosen(w) == sorted(np.argsort(-z)[:2].tolist())
        saturated += (sigmoid(z) == 1).sum() > 2
    assert saturated > 20


@pytest.mark.parametrize("score", ["max", "top_two"])
def test_equal_groups_go_to_the_lower_index(score: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    spec = replace(BASE, experts=24, top_k=4, score="sigmoid", router_bias="score", groups=6, top_groups=3,
                   group_score=score)

    def change(weights: dict[str, np.ndarray]) -> None:
        router = weights["layers.0.router"]
        for first in (4, 12, 20):                       # groups 1, 3 and 5 equal 0, 2 and 4
            router[first:first + 4] = router[first - 4:first]
        weights["layers.0.router_bias"][:] = -0.25

    for _, _, _, w in Routed(spec, tmp_path, monkeypatch, change).rows:
        for group in {e // 4 for e in chosen(w)}:
            assert group % 2 == 0 or {e - 4 for e in chosen(w) if e // 4 == group} & set(chosen(w))


@pytest.mark.sampled(4)
@pytest.mark.parametrize(("experts", "groups", "top_k"), [(24, 6, 6), (24, 6, 18), (64, 8, 8), (64, 64, 64),
                                                          (512, 8, 64), (9, 1, 4), (12, 12, 12)])
@pytest.mark.parametrize("kind", ["softmax", "bias", "logit"])
def test_every_group_gives_as_many(kind: str, experts: int, groups: int, top_k: int, tmp_path: Path,
                                   monkeypatch: pytest.MonkeyPatch) -> None:
    """The best of each group, whatever the others have; and not those that are best over all."""
    spec = replace(BASE, experts=experts, top_k=top_k, groups=groups, top_groups=groups, group_score="each", **{
        "softmax": {"renormalise": False}, "bias": {"score": "sigmoid", "router_bias": "score"},
        "logit": {"score": "logit", "renormalise": "softmax"}}[kind])
    routed, size, each, other = Routed(spec, tmp_path, monkeypatch), experts // groups, top_k // groups, 0
    for _, z, bias, w in routed.rows:
        number = z.astype(np.float64) if bias is None else 1 / (1 + np.exp(-z.astype(np.float64))) + bias
        parts = number.reshape(groups, size)
        best = np.argsort(-parts, axis=-1, kind="stable")[:, :each] + size * np.arange(groups)[:, None]
        assert chosen(w) == sorted(best.reshape(-1).tolist())
        other += chosen(w) != sorted(np.argsort(-number, kind="stable")[:top_k].tolist())
    assert (other > 0) == (1 < groups and top_k < experts)


def test_ties_inside_every_group_and_between_groups(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """All experts of a group the same, and all groups the same: the first ones of each."""
    spec = replace(BASE, experts=24, top_k=8, groups=4, top_groups=4, group_score="each")

    def change(weights: dict[str, np.ndarray]) -> None:
        weights["layers.0.router"][:] = weights["layers.0.router"][0]

    for _, _, _, w in Routed(spec, tmp_path, monkeypatch, change).rows:
        assert chosen(w) == [0, 1, 6, 7, 12, 13, 18, 19]


@pytest.mark.sampled(4)
@pytest.mark.parametrize(("experts", "top_k"), [(1, 1), (9, 1), (9, 9), (512, 64)])
@pytest.mark.parametrize("score", ["softmax", "sigmoid", "sqrt_softplus", "logit"])
def test_a_token_chooses_its_experts(score: str, experts: int, top_k: int, tmp_path: Path,
                                     monkeypatch: pytest.MonkeyPatch) -> None:
    spec = replace(BASE, experts=experts, top_k=top_k, score=score, token_layers=(0,), router_scale=1.5,
                   renormalise="softmax" if score == "logit" else True)
    table = random_weights(spec.model(), 7)["layers.0.token_routes"].reshape(spec.vocab, top_k)
    for token, (_, z, _, w) in zip(prompt(spec.vocab), Routed(spec, tmp_path, monkeypatch).rows, strict=True):
        at = table[token].astype(int).tolist()
        assert chosen(w) == at == sorted(set(at))
        number = z[at].astype(np.float64)
        number = {"softmax": np.exp(number), "logit": np.exp(number), "sigmoid": 1 / (1 + np.exp(-number)),
                  "sqrt_softplus": np.sqrt(np.logaddexp(0, number))}[score]
        assert np.abs(w[at] / (1.5 * number / number.sum()) - 1).max() < 1e-5


@pytest.mark.oracle
@pytest.mark.skipif(not importlib.util.find_spec("transformers"), reason="transformers is not installed")
def test_transformers_routes_tokens_the_same() -> None:
    """DeepSeek-V4's hash router: its table, its square root of softplus, its sum and its scale."""
    import torch
    from transformers.models.deepseek_v4 import modeling_deepseek_v4 as theirs
    from transformers.models.deepseek_v4.configuration_deepseek_v4 import DeepseekV4Config

    config = DeepseekV4Config(vocab_size=50, hidden_size=24, n_routed_experts=16, num_local_experts=16,
                              num_experts_per_tok=4, routed_scaling_factor=1.5, scoring_func="sqrtsoftplus")
    rng = np.random.default_rng(2)
    router = theirs.DeepseekV4HashRouter(config)
    weight, x = (rng.standard_normal((n, 24)).astype(F) for n in (router.num_experts, 40))
    table = np.stack([np.sort(rng.permutation(router.num_experts)[:router.top_k]) for _ in range(50)])
    ids = rng.integers(0, 50, 40)
    router.weight.data = torch.from_numpy(weight)
    router.tid2eid = torch.from_numpy(table)
    with torch.no_grad():
        logits, expected, at = (v.numpy() for v in router(torch.from_numpy(x), torch.from_numpy(ids)))
    ffn = MoeFfn(router.num_experts, router.top_k, 8, score="sqrt_softplus", scale=F(1.5), renormalise_eps=F(1e-20),
                 by_token=True)
    found = route(ffn, logits, None, "router", table[ids].astype(F))
    assert np.array_equal(np.flatnonzero(~np.isnan(found[0])), at[0])
    assert np.abs(np.take_along_axis(found, at, axis=1) / expected - 1).max() < 2e-6
    plain = route(replace(ffn, by_token=False), logits, None, "router")          # the wrong switch
    assert np.isnan(np.take_along_axis(plain, at, axis=1)).any()


@pytest.mark.parametrize(("at", "value"), [(0, 9.0), (1, 0.5), (2, -1.0), (3, np.nan), (3, np.inf), (1, 0.0),
                                           (5, 65536.0), (0, 1e30)])
def test_a_table_of_something_else_is_found_and_never_followed(at: int, value: float, tmp_path: Path) -> None:
    """Beyond the experts, between them, twice, out of order: `check` names the tensor, a run ends."""
    blob = edited("by_token", tmp_path)
    tensor = blob.tensor("TOKEN_ROUTES", 0)
    clean = Opened(blob.sum_data().seal())
    assert clean.problems() == []
    table = blob.floats(tensor)
    row = 4 * prompt(SPECS["by_token"].vocab)[3]
    table[row + at % 4] = value if value else table[row]
    opened, c = Opened(blob.sum_data().seal()), constants()
    problems = opened.problems()
    assert problems and {status for status, *_ in problems} == {c.ERROR_CONTENT}
    assert {field for _, _, field, _ in problems} <= {c.FIELD_VALUE, c.FIELD_WEIGHT}
    (tmp_path / "spoiled.colibri").write_bytes(blob.seal())
    with pytest.raises(CoreError, match="NOT_FINITE"):
        engine_logits(tmp_path / "spoiled.colibri", prompt(SPECS["by_token"].vocab))


def test_a_sparse_mixer_is_what_its_authors_wrote() -> None:
    """Twice the largest, and its share among those within the distance: masks as in the original."""
    rng = np.random.default_rng(5)
    ffn = MoeFfn(8, 2, 8, False, score="sparse_mixer", jitter=F(0.2))
    z = (rng.standard_normal((200, 8)) * 2 - 0.5).astype(F)
    z[:20] = -np.abs(z[:20])
    for row, w in zip(z.astype(np.float64), route(ffn, z, None, "router"), strict=True):
        left, expected = row.copy(), {}
        for _ in range(2):
            most, winner = left.max(), int(left.argmax())
            far = (most - row) / np.maximum(np.abs(row), most) > 0.4
            gates = np.exp(np.where(far, -np.inf, left) - most)
            expected[winner] = gates[winner] / gates.sum()
            left[winner] = -np.inf
        assert chosen(w) == sorted(expected)
        assert all(abs(w[e] - expected[e]) < 1e-6 for e in expected)


def edited(name: str, tmp_path: Path) -> Edited:
    write_random_blob(tmp_path / "m.colibri", name, 3, "q8")
    return Edited(tmp_path / "m.colibri")


LIES: dict[str, tuple[str, dict[str, int], str]] = {
    "groups that do not divide": ("groups", {"ROUTER_GROUPS": 5}, "COUNT"),
    "groups of one with a sum of two": ("groups", {"ROUTER_GROUPS": 12}, "COUNT"),
    "more groups kept than there are": ("groups", {"ROUTER_TOP_GROUPS": 5}, "COUNT"),
    "too few experts in the kept groups": ("groups", {"ROUTER_TOP_GROUPS": 1}, "COUNT"),
    "more groups than there is room for": ("groups", {"ROUTER_GROUPS": 65}, "VALUE"),
    "an unknown bias": ("groups", {"ROUTER_BIAS": 4}, "VALUE"),
    "an unknown score": ("groups", {"ROUTER_SCORE": 6}, "VALUE"),
    "an unknown renormalising": ("groups", {"ROUTER_RENORMALISE": 4}, "VALUE"),
    "an unknown score of groups": ("groups", {"ROUTER_GROUP_SCORE": 4}, "VALUE"),
    "a sparse mixer with groups": ("group_max", {"ROUTER_SCORE": 5}, "VALUE"),
    "a sparse mixer with a bias on scores": ("bias", {"ROUTER_SCORE": 5}, "VALUE"),
    "a least sum below zero": ("bias", {"ROUTER_SUM_MIN": 0xBF800000}, "VALUE"),
    "a least sum that is no number": ("bias", {"ROUTER_SUM_MIN": 0x7FC00000}, "VALUE"),
    "a distance below zero": ("mixer", {"ROUTER_JITTER": 0xBF800000}, "VALUE"),
    "an unknown choice": ("on_input", {"ROUTER_CHOICE": 2}, "VALUE"),
    "groups that each give a part of an expert": ("each_group", {"TOP_K": 7}, "COUNT"),
    "groups that each give, and some do not stay": ("each_group", {"ROUTER_TOP_GROUPS": 3}, "COUNT"),
    "a token's choice beside a sparse mixer": ("by_token", {"ROUTER_SCORE": 5}, "KEY"),
    "a token's choice that is neither yes nor no": ("by_token", {"ROUTER_BY_TOKEN": 2}, "VALUE"),
    "a span that is no power of two": ("fixed", {"ROUTER_SPAN": 12}, "VALUE"),
    "a span of nothing": ("fixed", {"ROUTER_SPAN": 0}, "VALUE"),
    "a span beyond the tables": ("fixed", {"ROUTER_SPAN": 32}, "VALUE"),
    "an integer router of roots": ("fixed_plain", {"ROUTER_RENORMALISE": 3}, "KEY"),
    "an integer router of softplus": ("fixed_sigmoid", {"ROUTER_SCORE": 3}, "KEY"),
    "an integer router of logits": ("fixed_sigmoid", {"ROUTER_SCORE": 4}, "KEY"),
    "an integer router with sums of two": ("fixed_plain", {"ROUTER_GROUP_SCORE": 2}, "KEY"),
    "an integer router of groups that each give": ("fixed_plain", {"ROUTER_GROUP_SCORE": 3}, "KEY"),
    "an integer router with a bias on scores": ("fixed_chosen", {"ROUTER_BIAS": 1}, "KEY"),
    "an integer router with a bias of the choice": ("fixed_chosen", {"ROUTER_BIAS": 2}, "KEY"),
    "an integer router with an eps that counts": ("fixed", {"ROUTER_EPS": 0x33000000}, "KEY"),
    "an integer router with an eps below zero": ("fixed", {"ROUTER_EPS": 0xB3000000}, "KEY"),
    "a weight on neither side": ("on_input", {"ROUTER_WEIGHT_ON": 2}, "VALUE"),
}


@pytest.mark.parametrize("lie", LIES)
def test_a_lie_is_refused_by_name(lie: str, tmp_path: Path) -> None:
    name, records, field = LIES[lie]
    blob = edited(name, tmp_path)
    assert Opened(blob.seal()).status == constants().OK
    for key, value in records.items():
        blob.record("LAYERS", key).value = value
    opened = Opened(blob.seal())
    assert (opened.status, opened.detail.section) == (constants().ERROR_FORMAT, constants().SECTION_LAYERS)
    assert names("colibri_field")[opened.detail.field] == field


@pytest.mark.parametrize("key", ["ROUTER_GROUPS", "ROUTER_TOP_GROUPS", "ROUTER_GROUP_SCORE"])
def test_groups_are_described_whole_or_not_at_all(key: str, tmp_path: Path) -> None:
    """The record becomes one that may be skipped."""
    blob = edited("group_max", tmp_path)
    record = blob.record("LAYERS", key)
    others = [r for r in blob.rows("LAYERS", "record") if r.key > record.key]
    for r in [record, *others]:                         # keys keep ascending
        r.key, r.flags = (r.key + 1000, 0) if r.key == record.key else (r.key, r.flags)
    record.flags = 0
    rows = sorted((bytes(memoryview(blob.data)[i:i + 16]) for i in range(
        blob.section("LAYERS").offset, blob.section("LAYERS").offset + blob.section("LAYERS").payload, 16)),
        key=lambda raw: (int.from_bytes(raw[:4], "little") + 1 & 0xFFFFFFFF, int.from_bytes(raw[4:6], "little")))
    at = blob.section("LAYERS").offset
    blob.data[at:at + 16 * len(rows)] = b"".join(rows)
    opened = Opened(blob.seal())
    assert opened.status == constants().ERROR_FORMAT
    assert names("colibri_field")[opened.detail.field] == "MISSING"


def test_a_bias_without_its_vector_and_a_vector_without_its_bias(tmp_path: Path) -> None:
    c = constants()
    blob = edited("bias", tmp_path)
    blob.record("LAYERS", "ROUTER_BIAS").value = 0
    opened = Opened(blob.seal())
    assert (opened.status, opened.detail.section, opened.detail.field) == (
        c.ERROR_FORMAT, c.SECTION_TENSORS, c.FIELD_ROLE)
    blob = edited("bias", tmp_path)
    blob.tensor("ROUTER_BIAS", 1).role = values("colibri_role")["SHARED_SWITCH"]
    assert Opened(blob.seal()).status == c.ERROR_FORMAT


@pytest.mark.parametrize("name", ["bias", "groups", "choice", "chosen"])
@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
def test_a_bias_that_is_not_a_number_ends_the_run(name: str, value: float, tmp_path: Path) -> None:
    blob = edited(name, tmp_path)
    blob.floats(blob.tensor("ROUTER_BIAS", 0))[2] = value
    path = tmp_path / "spoiled.colibri"
    path.write_bytes(blob.sum_data().seal())
    with pytest.raises(CoreError, match="NOT_FINITE"):
        engine_logits(path, prompt(SPECS[name].vocab))


def test_a_sum_of_logits_that_is_nothing_ends_the_run(tmp_path: Path) -> None:
    """Logits need not be positive, so what they are divided by may be 0: never a NaN in the answer."""
    spec = replace(BASE, experts=4, top_k=2, score="logit")
    model = spec.model()
    weights = random_weights(model, 7)
    weights["layers.0.router"][:] = 0
    write_blob(tmp_path / "m.colibri", model, Kinds.preset("f32"), Weights(weights))
    with pytest.raises(CoreError, match="NOT_FINITE"):
        engine_logits(tmp_path / "m.colibri", prompt(spec.vocab))
