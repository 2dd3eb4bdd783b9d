"""From what was matched to a row of the family table, and to the names that no row can say."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, fields
from typing import Any

from .description import EVERY_LAYER
from .family_places import layer_prefix, source_name
from .family_table import FAMILIES, Family, Moe
from .format import Tensor
from .library import values
from .match_keys import Match, Pattern

# A number far beyond any model's, so that its place in a name is seen.
LAYER, EXPERT = 777001, 777002
_FEED_BIASES = ("FFN_GATE_BIAS", "FFN_UP_BIAS", "FFN_DOWN_BIAS")
_SWITCHED = ("attention_bias", "qkv_bias", "use_bias")
# What decides how a model computes and shows in neither names nor shapes.
UNSEEN = (
    "router score, renormalisation and scale; activation; rotary pairs (halves or interleaved), theta and scaling; "
    "windows; multipliers; clamps"
)


@dataclass(frozen=True)
class Row:
    """A proposed row of the family table."""

    kind: str
    family: dict[str, Any]
    moe: dict[str, Any]

    def value(self) -> Family:
        """The row as the table holds it."""
        return Family(**self.family, moe=Moe(**self.moe) if self.moe else None)

    def text(self) -> str:
        """The row as it is typed."""
        def call(name: str, values: Mapping[str, Any], more: str, pad: str) -> str:
            lines = [f"{pad}    {key}={_quoted(value)},\n" for key, value in values.items()]
            return f"{name}(\n{''.join(lines)}{more}{pad})" if lines or more else f"{name}()"

        inner = f"        moe={call('Moe', self.moe, '', '        ')},\n" if self.moe else ""
        return f"    {_quoted(self.kind)}: {call('Family', self.family, inner, '    ')},"


def _quoted(value: Any) -> str:
    if isinstance(value, str):
        return '"' + value + '"'
    if isinstance(value, tuple):
        return "(" + ", ".join(map(_quoted, value)) + ("," if len(value) == 1 else "") + ")"
    if isinstance(value, dict):
        return "{" + ", ".join(f"{_quoted(key)}: {_quoted(held)}" for key, held in value.items()) + "}"
    return repr(value)


def expected_name(family: Family, role: str) -> str:
    """The pattern that a family's table gives to a role, empty if it has none."""
    if role == "CORRECTION":
        found = family.moe.correction if family.moe else ""
        return f"{family.prefix}{{L}}.{family.moe.block}.{found}" if family.moe and found else ""
    stacks = getattr(family.moe, "fused", ("", ""))
    if role == "EXPERT_GATE_UP" or (role == "EXPERT_DOWN" and stacks[0]):
        return f"{family.prefix}{{L}}.{stacks[role == 'EXPERT_DOWN']}" if stacks[0] else ""
    layer = EVERY_LAYER if role.removesuffix("_BIAS") in ("EMBED", "HEAD", "FINAL_NORM") else LAYER
    name = source_name(family, Tensor(role, layer, 1, 1), EXPERT)
    return name.replace(str(LAYER), "{L}").replace(str(EXPERT), "{E}")


def known_families(match: Match) -> list[str]:
    """The families of the table whose names and switches are all of what was placed."""
    return [name for name, family in FAMILIES.items() if _is_of(family, match)]


def _is_of(family: Family, match: Match) -> bool:
    placed = {one.role: one.pattern for one in match.placed}
    if any(expected_name(family, role) != pattern.name for role, pattern in placed.items()):
        return False
    moe = family.moe
    biases = set(_biases(placed))
    feeding = {role[4].lower() for role in placed if role.startswith("FFN_") and role in _FEED_BIASES}
    norms = {role for role in placed if role.endswith("_NORM_BIAS")}
    return (
        (moe is not None) == bool(match.experts)
        and biases <= set(family.biases)
        and (not family.biases or bool(family.bias_field) or biases == set(family.biases))
        and feeding <= set(getattr(family, "ffn_biases", ""))
        and (getattr(family, "norm", "") == "LAYER_BIAS") == bool(norms)
        and ("Q_NORM" in placed) in ({family.qk_norm} | ({True, False} if family.qk_norm_field else set()))
        and (moe is None or bool(moe.shared) or "SHARED_GATE" not in placed)
        and (moe is None or moe.shared_gate == ("SHARED_SWITCH" in placed) or "SHARED_GATE" not in placed)
        and _wide(placed) in (None, family.qk_norm_wide)
    )


def _wide(placed: Mapping[str, Pattern]) -> bool | None:
    """Whether q's norm is as long as all heads together; None: there is none, or one head cannot tell."""
    norm, q = placed.get("Q_NORM"), placed.get("Q")
    if norm is None or q is None:
        return None
    return norm.shape[0] == q.shape[0]


def row_of(match: Match, config: Mapping[str, Any]) -> Row:
    """The row that says as much as a row can."""
    placed = {one.role: one.pattern for one in match.placed}
    family: dict[str, Any] = {}
    if "HEAD" not in placed and match.pattern("EMBED") is not None:
        family["tied"] = True
    biases = _biases(placed)
    if biases:
        family["biases"] = biases
        switch = next((name for name in _SWITCHED if name in config), "")
        if switch:
            family["bias_field"] = switch
    if "Q_NORM" in placed:
        family["qk_norm"] = True
        if _wide(placed):
            family["qk_norm_wide"] = True
    if config.get("multipliers") or "embedding_multiplier" in config:
        family["multipliers"] = True
    feeding = "".join(role[4].lower() for role in _FEED_BIASES if role in placed)
    if feeding:
        family["ffn_biases"] = feeding
        if "mlp_bias" in config:
            family["ffn_bias_field"] = "mlp_bias"
    if any(role.endswith("_NORM_BIAS") for role in placed):
        family["norm"] = "LAYER_BIAS"
    groups = {name: 1 for name in ("n_group", "topk_group") if config.get(name) == 1}
    if groups:
        family["fixed"] = groups
    kind = config.get("model_type")
    row = Row(kind if isinstance(kind, str) else "new_family", family, _moe(match, placed, config))
    own = _own_names(match, row) if "names" in {field.name for field in fields(Family)} else {}
    return Row(row.kind, {**family, "names": own}, row.moe) if own else row


def _biases(placed: Mapping[str, Pattern]) -> str:
    return "".join(letter for letter in "qkvo" if f"{letter.upper()}_BIAS" in placed)


def _own_names(match: Match, row: Row) -> dict[str, str]:
    """Names that the row has to give itself: what is the model's, and what lies below the table's layer."""
    roles, layer = values("colibri_role"), layer_prefix(Family(), LAYER).replace(str(LAYER), "{L}")
    own = {}
    for role, name, _ in other_names(match, row.value()):
        if role in roles and "{E}" not in name and (name.startswith(layer) or "{L}" not in name):
            own[role] = name.removeprefix(layer)
    return own


def _moe(match: Match, placed: Mapping[str, Pattern], config: Mapping[str, Any]) -> dict[str, Any]:
    if not match.experts:
        return {}
    one = placed.get("EXPERT_GATE")
    made: dict[str, Any] = {}
    counts = _fields_with(config, match.experts, ("expert",), ("shared", "per_tok"))
    made["experts"] = tuple(counts) or ("num_experts",)
    chosen = [name for name in config if "per_tok" in name or name in ("moe_k", "moe_topk")]
    made["top_k"] = chosen[0] if chosen else "num_experts_per_tok"
    if "sigmoid" in str(config.get("scoring_func", "")):
        made["score"] = "SIGMOID"
    if "routed_scaling_factor" in config:
        made["scale"] = "routed_scaling_factor"
    if one is not None:
        widths = _fields_with(config, one.shape[0], ("intermediate", "ff"), ("shared",))
        widths.sort(key=lambda name: "moe" not in name and "expert" not in name)
        made["ff"] = widths[0] if widths else "moe_intermediate_size"
        made["block"] = _between(one.name, "{L}.", ".experts.{E}") or "mlp"
        parts = [placed[role].leaf for role in ("EXPERT_GATE", "EXPERT_UP", "EXPERT_DOWN") if role in placed]
        if len(parts) == 3:
            made["parts"] = tuple(parts)
    both = placed.get("EXPERT_GATE_UP")
    if both is not None and "EXPERT_DOWN" in placed:
        down = placed["EXPERT_DOWN"]
        made["ff"] = [*_fields_with(config, down.shape[2], ("intermediate", "ff"), ("shared",)), "intermediate_size"][0]
        made["fused"] = tuple(one.name.partition("{L}.")[2] for one in (both, down))
        made["block"] = _between(both.name, "{L}.", ".") or "mlp"
    router = placed.get("ROUTER")
    if router is not None and "router" in {field.name for field in fields(Moe)}:
        made["router"] = router.name.partition(f"{{L}}.{made.get('block', 'mlp')}.")[2] or "gate.weight"
    made["layers"], first = _rule(match, placed, config)
    if first:
        made["dense_first"] = first
    made["renormalise"] = "norm_topk_prob" if "norm_topk_prob" in config else ""
    made |= _shared(placed, config, made.get("block", "mlp"))
    correction = placed.get("CORRECTION")
    if correction is not None:
        made["correction"] = _between(correction.name, f"{{L}}.{made.get('block', 'mlp')}.", "")
        if len(correction.shape) == 2:
            made["correction_shape"] = correction.shape[:1]
    defaults = {field.name: field.default for field in fields(Moe)}
    return {key: value for key, value in made.items() if value != defaults[key]}


def _shared(placed: Mapping[str, Pattern], config: Mapping[str, Any], block: str) -> dict[str, Any]:
    gate = placed.get("SHARED_GATE")
    if gate is None:
        return {}
    widths = _fields_with(config, gate.shape[0], ("shared",), ())
    counts = [name for name in config if "shared" in name and "expert" in name and name not in widths]
    path = gate.name.split(".")
    made: dict[str, Any] = {"shared": [*widths, *counts, "shared_expert_intermediate_size"][0]}
    if not widths and counts:
        made["shared_counts"] = 1
    made["shared_block"] = _between(".".join(path[:-2]), f"{{L}}.{block}.", "") or path[-3]
    if "SHARED_SWITCH" in placed:
        made["shared_gate"] = True
    return made


def _rule(match: Match, placed: Mapping[str, Pattern], config: Mapping[str, Any]) -> tuple[str, int]:
    """Which layers have experts, in the table's words, and how many dense ones come first."""
    pattern = placed.get("EXPERT_DOWN") or placed.get("ROUTER")
    layers = pattern.layers if pattern else frozenset()
    first = min(layers, default=0)
    if "moe_layer_start_index" in config:
        return "range", 0
    if "decoder_sparse_step" in config or "mlp_only_layers" in config:
        return "step", 0
    if len(layers) == match.layers:
        return ("after first", 0) if "first_k_dense_replace" in config else ("all", 0)
    if layers == frozenset(range(first, match.layers)):
        return "after first", first
    return "step", 0


def _fields_with(config: Mapping[str, Any], value: int, words: Iterable[str], without: Iterable[str]) -> list[str]:
    """The config's fields that have this value and one of the words in their name."""
    found = [name for name, held in config.items() if type(held) is int and held == value]
    return [name for name in found if any(word in name for word in words) and not any(word in name for word in without)]


def _between(name: str, before: str, after: str) -> str:
    """What stands between two pieces of a pattern, without .weight."""
    _, found, rest = name.removesuffix(".weight").partition(before)
    if not found:
        return ""
    return rest.partition(after)[0] if after else rest


def other_names(match: Match, family: Family) -> list[tuple[str, str, str]]:
    """Role, name found, name that a row means: what has to be renamed, or what the table has to learn."""
    rows = [(one.role, one.pattern.name, expected_name(family, one.role)) for one in match.placed]
    return [row for row in rows if row[1] != row[2]]
