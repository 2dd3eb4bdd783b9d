"""What the tensors of an unknown checkpoint are, guessed from their names and shapes alone.

A tensor gets a role if its shape allows it and either its name says so or nothing else is left; two that could
be exchanged are never guessed. What has no place is kept with the reason.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, fields
from typing import Any

from .family_table import Moe
from .library import values

Shape = tuple[int, ...]

# What families call a role: the last part of the name, without ".weight".
HINTS = {
    "EMBED": "embed_tokens wte word_embeddings tok_embeddings embedding embeddings embed in_embed",
    "HEAD": "lm_head head output embed_out unembed out_embed",
    "FINAL_NORM": "norm final_layernorm ln_f norm_f final_norm embedding_norm ln_out",
    "ATTENTION_NORM": "input_layernorm attention_norm attn_norm ln_1 ln1 norm1 norm_1 operator_norm input_norm",
    "FFN_NORM": "post_attention_layernorm ffn_norm ln_2 ln2 norm2 norm_2 mlp_norm pre_ff_layernorm moe_norm",
    "Q": "q_proj wq q query to_q q_lin",
    "K": "k_proj wk k key to_k k_lin",
    "V": "v_proj wv v value to_v v_lin",
    "O": "o_proj wo o out_proj dense to_out out_lin c_proj",
    "Q_NORM": "q_norm q_layernorm query_layernorm query_norm q_ln",
    "K_NORM": "k_norm k_layernorm key_layernorm key_norm k_ln",
    "GATE": "gate_proj w1 gate wi_0 linear gate_w",
    "UP": "up_proj w3 up wi_1 v1 linear_v up_w",
    "DOWN": "down_proj w2 down wo c_proj linear_1 down_w",
    "ROUTER": "gate router wg classifier router_weights layer",
    "SHARED_SWITCH": "shared_expert_gate shared_gate",
    "CORRECTION": "e_score_correction_bias expert_bias correction_bias router_bias",
}
_KNOWN = {role: frozenset(text.split()) for role, text in HINTS.items()}
_IN_ONE = frozenset("qkv_proj qkv wqkv query_key_value c_attn w_pack in_proj_qkv".split())
_ATTENTION = re.compile(r"attn|attention", re.IGNORECASE)
_FEED = re.compile(r"mlp|ffn|feed_forward|moe|expert", re.IGNORECASE)
NO_HIDDEN = "the hidden size is not known: no config.json, and no vector as long as a matrix's side"
_BUFFER = re.compile(r"rotary_emb\.|inv_freq$|attn\.masked_bias$")


@dataclass(frozen=True)
class Pattern:
    """Tensors whose names differ in the number of the layer, {L}, and of the expert, {E}, only."""

    name: str
    shape: Shape
    dtype: str = "F32"
    layers: frozenset[int] = frozenset()
    experts: int = 0

    @property
    def leaf(self) -> str:
        """The last part of the name that says something."""
        parts = [part for part in self.name.split(".") if part not in ("weight", "{L}", "{E}")]
        return parts[-1] if parts else ""

    @property
    def of_model(self) -> bool:
        """Whether it belongs to no layer."""
        return not self.layers

    def says(self, role: str) -> bool:
        """Whether its name is one that families use for this role."""
        return self.leaf.lower() in _KNOWN[role]


@dataclass(frozen=True)
class Placed:
    """A role and where it was found."""

    role: str
    pattern: Pattern
    how: str


@dataclass(frozen=True)
class Unplaced:
    """What has no role, and why."""

    pattern: Pattern
    why: str


@dataclass
class Match:
    """What was found out."""

    hidden: int = 0
    layers: int = 0
    experts: int = 0
    placed: list[Placed] = field(default_factory=list)
    unplaced: list[Unplaced] = field(default_factory=list)
    missing: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)

    def pattern(self, role: str) -> Pattern | None:
        """The pattern of a role."""
        return next((one.pattern for one in self.placed if one.role == role), None)

    @property
    def whole(self) -> bool:
        """Whether everything has its place."""
        return not self.unplaced and not self.missing


def patterns_of(entries: Iterable[tuple[str, Shape, str]]) -> list[Pattern]:
    """Names with their numbers taken out. The first number is the layer's, a second one the expert's; the same
    name in two shapes (layers of different widths) is two patterns."""
    found: dict[tuple[str, Shape, str], tuple[set[int], set[int]]] = {}
    for name, shape, dtype in entries:
        parts = name.split(".")
        numbers: list[int] = []
        for place, part in enumerate(parts):
            if part.isdigit() and len(numbers) < 2:
                parts[place] = ("{L}", "{E}")[len(numbers)]
                numbers.append(int(part))
        layers, experts = found.setdefault((".".join(parts), shape, dtype), (set(), set()))
        layers.update(numbers[:1])
        experts.update(numbers[1:])
    return [
        Pattern(name, shape, dtype, frozenset(layers), len(experts))
        for (name, shape, dtype), (layers, experts) in found.items()
    ]


class _Matcher:
    """The steps of one match; `left` shrinks as patterns find their place."""

    def __init__(self, patterns: list[Pattern], config: Mapping[str, Any], can_fuse: bool) -> None:
        self.config, self.match, self.can_fuse = config, Match(), can_fuse
        self.left = []
        for one in patterns:
            if not _BUFFER.search(one.name):
                self.left.append(one)
        self.match.layers = len(frozenset().union(*(one.layers for one in self.left)))
        self.match.hidden = self._number("hidden_size", "d_model", "n_embd", "dim") or self._guessed_hidden()
        heads = self._number("num_attention_heads", "n_heads", "n_head")
        kv_heads = self._number("num_key_value_heads", "n_kv_heads", "num_kv_heads")
        head_dim = self._number("head_dim") or (self.match.hidden // heads if heads else 0)
        keys = [one.shape[0] for one in self.left if one.layers and len(one.shape) == 2 and one.says("K")]
        self.wide = heads * head_dim  # 0: not known
        self.narrow = kv_heads * head_dim or (keys[0] if len(keys) == 1 else self.wide)

    def _number(self, *names: str) -> int:
        values = [self.config.get(name) for name in names]
        return next((value for value in values if isinstance(value, int) and value > 0), 0)

    def _guessed_hidden(self) -> int:
        """The length of most vectors that is also a side of a matrix of the model."""
        sides = {side for one in self.left if one.of_model and len(one.shape) == 2 for side in one.shape}
        counts = Counter(one.shape[0] for one in self.left if len(one.shape) == 1 and one.shape[0] in sides)
        return counts.most_common(1)[0][0] if counts else 0

    def place(self, role: str, pattern: Pattern, how: str) -> None:
        self.match.placed.append(Placed(role, pattern, how))
        self.left.remove(pattern)

    def refuse(self, pattern: Pattern, why: str) -> None:
        self.match.unplaced.append(Unplaced(pattern, why))
        self.left.remove(pattern)

    def choose(self, role: str, candidates: list[Pattern], others: Iterable[str] = ()) -> Pattern | None:
        """The candidate whose name says the role; else the only one that no other role's name fits."""
        named = [one for one in candidates if one.says(role)]
        if len(named) == 1:
            self.place(role, named[0], "name and shape")
            return named[0]
        free = [one for one in candidates if not any(one.says(other) for other in others)]
        if not named and len(free) == 1:
            self.place(role, free[0], "shape")
            return free[0]
        return None

    def exchangeable(self, roles: tuple[str, str], candidates: list[Pattern]) -> None:
        """Two roles of one shape: by names, or not at all; one name that is sure leaves the other."""
        for role, other in (roles, roles[::-1]):
            still = [one for one in candidates if one in self.left]
            self.choose(role, [one for one in still if one.says(role) or len(still) == 1], (other,))
        still = [one for one in candidates if one in self.left]
        have = [role for role in roles if self.match.pattern(role)]
        if len(still) == 1 and len(have) == 1:
            self.place(roles[1 - roles.index(have[0])], still[0], "shape; the other one is named")
        elif still and not have:
            for one in still:
                self.refuse(one, f"its shape fits {roles[0]} and {roles[1]}, and its name says neither")

    def run(self) -> Match:
        """All steps, from what is surest on."""
        hidden = self.match.hidden
        if not hidden:
            for one in list(self.left):
                self.refuse(one, NO_HIDDEN)
            return self.match
        self._of_model(hidden)
        self._experts(hidden)
        self._router(hidden)
        self._norms(hidden)
        self._attention(hidden)
        self._dense(hidden)
        self._biases()
        self._rest()
        return self.match

    def _of_model(self, hidden: int) -> None:
        matrices = [one for one in self.left if one.of_model and len(one.shape) == 2 and one.shape[1] == hidden]
        if len(matrices) == 1:
            self.place("EMBED", matrices[0], "the only matrix of the model: the head is tied to it")
        else:
            self.exchangeable(("EMBED", "HEAD"), matrices)
        vectors = [one for one in self.left if one.of_model and one.shape == (hidden,)]
        self.choose("FINAL_NORM", [one for one in vectors if not one.name.endswith(".bias")])

    def _experts(self, hidden: int) -> None:
        matrices = [one for one in self.left if one.experts and len(one.shape) == 2]
        self.match.experts = max((one.experts for one in matrices), default=0)
        fused = [one for one in self.left if len(one.shape) == 3 and one.layers and _FEED.search(one.name)]
        self.match.experts = max([self.match.experts, *(one.shape[0] for one in fused)])
        self._fused(fused, hidden)
        self._triple("EXPERT_", matrices, hidden)

    def _fused(self, fused: list[Pattern], hidden: int) -> None:
        """Stacks of all experts: gate above up in one, down in the other, if this version's rows can say that."""
        pairs = [(both, down) for both in fused for down in fused if both is not down and both.layers == down.layers]
        fits = [(both, down) for both, down in pairs if both.shape[1:] == (2 * down.shape[2], hidden)
                and down.shape[1] == hidden and not both.leaf.endswith("_blocks")]  # fmt: skip
        if len(fits) == 1 and len(fused) == 2 and hidden != fits[0][1].shape[2] and self.can_fuse:
            self.place("EXPERT_GATE_UP", fits[0][0], "shape, if gate comes before up: whether they alternate look up")
            self.place("EXPERT_DOWN", fits[0][1], "shape")
            return
        for one in fused:
            self.refuse(one, _about_fused(one, hidden))

    def _triple(self, prefix: str, matrices: list[Pattern], hidden: int) -> None:
        """Gate and up have one shape, down the other way round."""
        shapes = Counter(one.shape for one in matrices)
        if not matrices:
            return
        if len(matrices) > 3 and len(shapes) > 2:
            for one in matrices:
                self.refuse(one, "layers have feed-forward parts of different widths under one name")
            return
        square = len(shapes) == 1
        if not square and shapes.most_common(1)[0][1] == 2 and shapes.most_common(1)[0][0][1] != hidden:
            pair = shapes.most_common(1)[0][0]
            turned = f"stored transposed: gate and up are {list(pair)}, hidden {hidden} must come last"
            for one in matrices:
                self.refuse(one, turned + "; this version reads [rows, columns]")
            return
        down = [one for one in matrices if one.shape[0] == hidden and (square or shapes[one.shape] == 1)]
        if square:
            down = [one for one in down if one.says("DOWN")]
        if len(down) == 1:
            self.place(prefix + "DOWN", down[0], "name" if square else "shape")
        self._gate_and_up(prefix, [one for one in matrices if one in self.left])

    def _gate_and_up(self, prefix: str, pair: list[Pattern]) -> None:
        gate = [one for one in pair if one.says("GATE")]
        up = [one for one in pair if one.says("UP")]
        if len(pair) == 2 and len(gate) + len(up) >= 1 and len(gate) < 2 and len(up) < 2:
            first = gate[0] if gate else next(one for one in pair if one is not up[0])
            second = up[0] if up else next(one for one in pair if one is not first)
            if first is not second:
                self.place(prefix + "GATE", first, "name and shape" if gate else "shape; the other one is named")
                self.place(prefix + "UP", second, "name and shape" if up else "shape; the other one is named")
                return
        for one in pair:
            alone = f"no second matrix of its shape: {prefix}GATE and {prefix}UP may be in one"
            why = f"its shape fits {prefix}GATE and {prefix}UP, and its name says neither"
            self.refuse(one, alone if len(pair) == 1 else why)

    def _router(self, hidden: int) -> None:
        experts = self.match.experts
        if not experts:
            return
        rows = [one for one in self.left if one.layers and one.shape == (experts, hidden)]
        feeding = [one for one in rows if not _ATTENTION.search(one.name)]
        self.choose("ROUTER", feeding, ("Q", "K", "V"))
        for one in [one for one in self.left if one.layers and one.shape == (hidden, experts) and one.says("ROUTER")]:
            self.refuse(one, f"{list(one.shape)} is the router stored transposed; this version reads [experts, hidden]")
        vectors = [one for one in self.left if one.layers and one.shape in ((experts,), (1, experts))]
        vectors = [one for one in vectors if not _ATTENTION.search(one.name) and not one.name.endswith(".bias")]
        self.choose("CORRECTION", vectors)
        self.choose("SHARED_SWITCH", [one for one in self.left if one.layers and one.shape == (1, hidden)])

    def _norms(self, hidden: int) -> None:
        vectors = [one for one in self.left if one.layers and len(one.shape) == 1 and not one.name.endswith(".bias")]
        plain = [one for one in vectors if one.shape == (hidden,) and not one.says("Q_NORM") and not one.says("K_NORM")]
        self.exchangeable(("ATTENTION_NORM", "FFN_NORM"), plain)
        for role in ("Q_NORM", "K_NORM"):
            self.choose(role, [one for one in vectors if one in self.left and one.says(role)])

    def _attention(self, hidden: int) -> None:
        def shaped(rows: int) -> list[Pattern]:
            fits = [one for one in self.left if one.layers and not one.experts and len(one.shape) == 2]
            fits = [one for one in fits if one.shape[1] == hidden and (not rows or one.shape[0] == rows)]
            return [one for one in fits if _ATTENTION.search(one.name) or not _FEED.search(one.name)]

        for one in [one for one in self.left if one.layers and one.leaf.lower() in _IN_ONE]:
            self.refuse(one, self._about_one(one))
        back = [one for one in self.left if one.layers and not one.experts and len(one.shape) == 2]
        back = [one for one in back if one.shape[0] == hidden and (not self.wide or one.shape[1] == self.wide)]
        back = [one for one in back if not _FEED.search(one.name)]
        self.choose("O", back, ("Q", "K", "V"))
        if self.wide != self.narrow or not self.wide:
            self.choose("Q", [one for one in shaped(self.wide) if one.shape[0] != self.narrow or not self.wide],
                        ("K", "V", "GATE", "UP"))  # fmt: skip
            if self.wide:
                self.exchangeable(("K", "V"), shaped(self.narrow))
        for role in ("Q", "K", "V"):
            if not self.match.pattern(role):
                self.choose(role, [one for one in shaped(self.narrow if role != "Q" else self.wide) if one.says(role)])

    def _about_one(self, one: Pattern) -> str:
        together = self.wide + 2 * self.narrow
        if self.wide and one.shape[0] == together:
            cuts = f"rows 0, {self.wide} and {self.wide + self.narrow} on, if they are not interleaved by head"
            return f"one tensor for q, k and v ({cuts}); this version does not split it"
        return "one tensor for q, k and v; this version does not split it"

    def _dense(self, hidden: int) -> None:
        known = [one.pattern for one in (*self.match.placed, *self.match.unplaced)]
        with_experts = frozenset().union(*(one.layers for one in known if one.experts or len(one.shape) == 3))
        matrices = [one for one in self.left if one.layers and not one.experts and len(one.shape) == 2]
        matrices = [one for one in matrices if hidden in one.shape and not _ATTENTION.search(one.name)]
        matrices = [one for one in matrices if min(one.shape) > 1]
        shared = [one for one in matrices if one.layers & with_experts]
        self._triple("SHARED_", shared, hidden)
        self._triple("", [one for one in matrices if one not in shared], hidden)

    def _biases(self) -> None:
        for one in [one for one in self.left if one.name.endswith(".bias") and len(one.shape) == 1]:
            beside = one.name.removesuffix("bias") + "weight"
            owner = next((it for it in self.match.placed if it.pattern.name == beside), None)
            if owner is None:
                continue
            role = ("FFN_" if owner.role in ("GATE", "UP", "DOWN") else "") + owner.role + "_BIAS"
            if owner.role == "ROUTER":
                self.refuse(one, "a bias of ROUTER: whether of the choice alone or of the weights too no shape can say")
            elif role in values("colibri_role") and one.shape[0] == owner.pattern.shape[0]:
                self.place(role, one, "beside its matrix")
            else:
                self.refuse(one, f"a bias of {owner.role}, for which this version has no place")

    def _rest(self) -> None:
        for one in list(self.left):
            self.refuse(one, _about_rest(one, self.match))


def _about_fused(one: Pattern, hidden: int) -> str:
    """A stack of matrices of all experts."""
    _, rows, columns = one.shape
    if hidden not in (rows, columns):
        return "a stack of experts none of whose sides is the hidden size"
    gated = any(word in one.leaf.lower() for word in ("gate_up", "input", "w13", "fc1", "up"))
    turned = (rows == hidden) if gated else (columns == hidden)
    what = "gate and up of all experts in one tensor" if gated else "down of all experts in one tensor"
    order = ", stored transposed" if turned and rows != columns else ""
    hidden_order = "; whether gate and up alternate no shape can say" if gated else ""
    return f"{what}{order}{hidden_order}; this row cannot say that"


def _about_rest(one: Pattern, match: Match) -> str:
    if one.name.endswith(("weight_scale_inv", "_scales", "_scale", "weight_scale")):
        return "a scale of quantized weights; convert an unquantized checkpoint"
    if one.layers and len(one.shape) == 1 and one.shape == (match.hidden,) and "norm" in one.name.lower():
        return "one more norm than a layer of this version has"
    if one.name.endswith(".bias"):
        return "a bias beside nothing that has a place"
    if "lora" in one.name or "_a_proj" in one.name or "kv_b" in one.name:
        return "part of a latent attention (MLA)"
    if len(one.shape) not in (1, 2):
        return f"no role has {len(one.shape)} dimensions"
    return "no role left has its shape, or its name says another one"


def match_keys(patterns: list[Pattern], config: Mapping[str, Any]) -> Match:
    """Roles for patterns, as far as they can be known."""
    match = _Matcher(patterns, config, "fused" in {one.name for one in fields(Moe)}).run()
    have = {one.role for one in match.placed}
    need = ["EMBED", "FINAL_NORM", "ATTENTION_NORM", "Q", "K", "V", "O", "FFN_NORM"]
    if match.experts:
        need += ["ROUTER", *(["EXPERT_GATE_UP"] if "EXPERT_GATE_UP" in have else ["EXPERT_GATE", "EXPERT_UP"])]
        need.append("EXPERT_DOWN")
    else:
        need += ["GATE", "UP", "DOWN"]
    for group in (("SHARED_GATE", "SHARED_UP", "SHARED_DOWN"), ("GATE", "UP", "DOWN"), ("Q_NORM", "K_NORM")):
        if have & set(group):
            need += [role for role in group if role not in need]
    match.missing = [role for role in need if role not in have]
    return match
