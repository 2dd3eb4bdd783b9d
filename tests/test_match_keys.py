"""Roles from names and shapes: every known family is recognised, renamed ones convert, and nothing is guessed."""

import json
import re
from collections.abc import Callable
from dataclasses import fields
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from cli_kit import Capture, document
from colibri import cli, family_places, match_keys, match_keys_row
from colibri.blobfile import BlobFile
from colibri.convert import ConvertOptions, convert
from colibri.family_table import FAMILIES, Family, Moe
from colibri.source import LocalFile
from oracles import checkpoints, tensorfile
from oracles.cases import CASES

Named = list[tuple[str, tuple[int, ...]]]
PLAIN = ConvertOptions(weights="f32", tokenizer=False)


def matched(tensors: Named, config: dict[str, Any] | None = None) -> match_keys.Match:
    return match_keys.match_keys(match_keys.patterns_of((n, s, "F32") for n, s in tensors), config or {})


def renamed(case: str, *changes: tuple[str, str]) -> Named:
    """A case's tensors with other names."""
    out = []
    for name, shape in checkpoints.tensors(CASES[case]):
        for pattern, new in changes:
            name = re.sub(pattern, new, name)
        out.append((name, shape))
    return out


def folder(case: str, where: Path, tensors: Named, **config: Any) -> Path:
    """A checkpoint of these tensors, in the order and with the values of the case's own ones."""
    where.mkdir()
    mine = CASES[case]
    (where / "config.json").write_text(json.dumps({**mine.config, **config}))
    own = checkpoints.tensors(mine)

    def value(number: int, shape: tuple[int, ...]) -> Callable[[], np.ndarray]:
        return lambda: checkpoints.values(mine, *own[number]).reshape(shape)

    entries = [tensorfile.Entry(name, shape, mine.dtype, value(n, shape)) for n, (name, shape) in enumerate(tensors)]
    tensorfile.write(where / "model.safetensors", entries)
    return where


def roles(match: match_keys.Match) -> dict[str, str]:
    return {one.role: one.pattern.name for one in match.placed}


# ---- known families ----


# Families whose layout a proposed row says whole; of the others match-keys says what it could not place.
PROPOSED = frozenset(
    "llama mistral qwen2 qwen3 granite ernie4_5 mixtral qwen2_moe qwen3_moe olmoe ernie4_5_moe dots1 glm4_moe".split()
)


@pytest.mark.parametrize("name", [name for name, case in CASES.items() if case.family in PROPOSED])
def test_every_family_is_recognised(name: str) -> None:
    """All its tensors have a place, its names are those of its family, and the row needs no other names."""
    case = CASES[name]
    match = matched(checkpoints.tensors(case), case.config)
    assert match.whole, match.unplaced
    assert case.family in match_keys_row.known_families(match)
    row = match_keys_row.row_of(match, case.config)
    assert match_keys_row.other_names(match, row.value()) == [] and row.kind == case.family
    assert match.hidden == case.shape.hidden and match.layers == case.shape.layers
    assert match.experts == case.shape.experts


@pytest.mark.parametrize("name", CASES)
def test_nothing_is_lost(name: str) -> None:
    """Every pattern of every case is placed once or refused with a reason, and whole means both lists agree."""
    case = CASES[name]
    patterns = match_keys.patterns_of((n, s, "F32") for n, s in checkpoints.tensors(case))
    match = match_keys.match_keys(patterns, case.config)
    known = [one.pattern for one in match.placed] + [one.pattern for one in match.unplaced]
    assert sorted(one.name for one in known) == sorted(one.name for one in patterns)
    assert all(one.why for one in match.unplaced) and len({one.role for one in match.placed}) == len(match.placed)
    assert match.whole == (not match.unplaced and not match.missing)
    assert match_keys_row.row_of(match, case.config).text()


@pytest.mark.parametrize("name", ["mixtral_mha", "qwen2_moe_renorm", "olmoe_wide", "dots_sigmoid", "llama_mha"])
def test_without_a_config(name: str) -> None:
    """Shapes alone give the hidden size and every role whose name says it."""
    case = CASES[name]
    match = matched(checkpoints.tensors(case))
    assert match.whole and match.hidden == case.shape.hidden and case.family in match_keys_row.known_families(match)


# ---- renamed families ----


@pytest.mark.parametrize(("case", "changes", "config"), [
    ("mixtral_mha", [("block_sparse_moe", "sparse_ffn"), (r"\.w1\.", ".gate."), (r"\.w3\.", ".up."),
                     (r"\.w2\.", ".down.")], {}),
    ("qwen2_moe_renorm", [("shared_expert_gate", "common_expert_gate"), (r"shared_expert\.", "common_expert."),
                          ("mlp", "mlp")], {}),
    ("dots_sigmoid_plain", [("shared_experts", "always_on"), ("gate.e_score_correction_bias", "gate.expert_bias")], {}),
])  # fmt: skip
def test_a_proposed_row_converts(case: str, changes: list[tuple[str, str]], config: dict[str, Any], tmp_path: Path,
                                 monkeypatch: pytest.MonkeyPatch, capsys: Capture) -> None:
    """Pasted into the table, the row converts the renamed checkpoint into the very weights of the original."""
    source = folder(case, tmp_path / "new", renamed(case, *changes), model_type="novel", **config)
    made = document(capsys, "match-keys", source, code=0)
    if case == "qwen2_moe_renorm":  # the gate of the shared expert is named after its block
        assert made["row"].count("common_expert") == 1
    row: dict[str, Family] = eval("{" + made["row"] + "}", {"Family": Family, "Moe": Moe})  # what a person pastes
    assert made["whole"] and made["other_names"] == [] and list(row) == ["novel"]
    monkeypatch.setitem(FAMILIES, "novel", row["novel"])
    checkpoints.build(case, tmp_path / "old")
    convert(source, tmp_path / "new.colibri", PLAIN)
    convert(tmp_path / "old", tmp_path / "old.colibri", PLAIN)
    new, old = (BlobFile(tmp_path / f"{name}.colibri") for name in ("new", "old"))
    assert [(t.role, t.layer, t.offset) for t in new.tensors] == [(t.role, t.layer, t.offset) for t in old.tensors]
    start = old.tables_bytes
    end = max(t.offset + t.bytes for t in old.tensors)
    assert bytes(new.data[start:end]) == bytes(old.data[start:end])


def test_another_prefix_is_a_list_of_names() -> None:
    """What no row can say: every role is found, and renaming by the list gives the original names back."""
    case = CASES["mixtral_mha"]
    tensors = renamed("mixtral_mha", (r"model\.layers\.", "transformer.h."), ("self_attn", "attn"),
                      (r"([qkvo])_proj", r"w\1"), ("input_layernorm", "ln_1"), ("post_attention_layernorm", "ln_2"),
                      ("model.embed_tokens", "transformer.wte"), (r"^model\.norm", "transformer.ln_f"))
    match = matched(tensors, case.config)
    assert match.whole
    back = {one.pattern.name: match_keys_row.expected_name(FAMILIES["mixtral"], one.role) for one in match.placed}
    others = match_keys_row.other_names(match, match_keys_row.row_of(match, case.config).value())
    assert ("Q", "transformer.h.{L}.attn.wq.weight", "model.layers.{L}.self_attn.q_proj.weight") in others
    assert {role for role, name, _ in others} >= {one.role for one in match.placed if one.pattern.layers}
    mended = []
    for name, shape in tensors:
        numbers = re.findall(r"\.(\d+)\.", name)
        pattern = name
        for number, place in zip(numbers, ("{L}", "{E}"), strict=False):
            pattern = pattern.replace(f".{number}.", f".{place}.", 1)
        meant = back.get(pattern, pattern)
        for number, place in zip(numbers, ("{L}", "{E}"), strict=False):
            meant = meant.replace(place, number)
        mended.append((meant, shape))
    assert mended == checkpoints.tensors(case)


def test_shapes_decide_where_names_say_nothing() -> None:
    """Only down has its shape, only q and o theirs, and the router has as many rows as there are experts."""
    tensors = renamed("mixtral_gqa_yarn", (r"\.w2\.", ".third."), (r"gate\.weight", "choice.weight"),
                      ("q_proj", "alpha"), ("o_proj", "omega"))  # fmt: skip
    case = CASES["mixtral_gqa_yarn"]
    found = roles(matched(tensors, {**case.config, "head_dim": 24}))
    tensors = [(n, (96, 64) if "alpha" in n else (64, 96) if "omega" in n else (48, 64) if "_proj" in n else s)
               for n, s in tensors]  # fmt: skip
    match = matched(tensors, {**case.config, "head_dim": 24})
    found = roles(match)
    assert found["EXPERT_DOWN"].endswith("third.weight") and found["ROUTER"].endswith("choice.weight")
    assert found["Q"].endswith("alpha.weight") and found["O"].endswith("omega.weight") and match.whole
    assert {one.how for one in match.placed if one.role in ("Q", "O", "ROUTER", "EXPERT_DOWN")} == {"shape"}


def test_a_row_gives_its_own_names_where_the_table_can() -> None:
    """Names below model.layers.N that differ go into the row, if this version's rows have a place for them."""
    case = CASES["mixtral_mha"]
    match = matched(renamed("mixtral_mha", ("self_attn", "attn"), ("model.norm", "model.ln_f")), case.config)
    row = match_keys_row.row_of(match, case.config)
    others = {role for role, _, _ in match_keys_row.other_names(match, row.value())}
    if "names" in {field.name for field in fields(Family)}:
        assert others == set() and row.family["names"]["Q"] == "attn.q_proj.weight"
        assert row.family["names"]["FINAL_NORM"] == "model.ln_f.weight"
    else:
        assert others == {"Q", "K", "V", "O", "FINAL_NORM"}


@pytest.mark.parametrize("turned", [False, True])
def test_stacks_of_experts(turned: bool) -> None:
    """Gate above up in one stack, down in another: placed where rows have words for it, else refused and said why."""
    case = CASES["mixtral_gqa_yarn"]
    rest = [(n, s) for n, s in checkpoints.tensors(case) if "experts" not in n]
    shapes = {"input_linear": (8, 160, 64), "output_linear": (8, 64, 80)}
    stacks = [(f"model.layers.{n}.block_sparse_moe.{name}.weight", (s[0], *(s[:0:-1] if turned else s[1:])))
              for n in range(2) for name, s in shapes.items()]  # fmt: skip
    match = matched([*rest, *stacks], case.config)
    assert match.experts == 8 and "ROUTER" in roles(match)
    if "fused" in {field.name for field in fields(Moe)} and not turned:
        row = match_keys_row.row_of(match, case.config)
        assert match.whole and match_keys_row.other_names(match, row.value()) == []
        assert row.moe["fused"] == tuple(f"block_sparse_moe.{name}.weight" for name in shapes)
    else:
        assert len(match.unplaced) == 2 and set(match.missing) >= {"EXPERT_DOWN"}
        assert turned == ("stored transposed" in why(match, "input_linear"))


# ---- refusals: what has no place, and why ----


def why(match: match_keys.Match, part: str) -> str:
    """The reason for the one pattern with this part in its name."""
    found = [one.why for one in match.unplaced if part in one.pattern.name]
    assert len(found) == 1, (part, match.unplaced)
    return found[0]


def test_exchangeable_tensors_are_not_guessed() -> None:
    case = CASES["mixtral_gqa_yarn"]
    tensors = renamed("mixtral_gqa_yarn", (r"\.w1\.", ".alpha."), (r"\.w3\.", ".beta."), ("k_proj", "m"),
                      ("v_proj", "n"))  # fmt: skip
    match = matched(tensors, case.config)
    assert {"EXPERT_GATE", "EXPERT_UP", "K", "V"} == set(match.missing) and not match.whole
    assert why(match, "alpha") == why(match, "beta") == (
        "its shape fits EXPERT_GATE and EXPERT_UP, and its name says neither")  # fmt: skip
    assert why(match, ".m.") == "its shape fits K and V, and its name says neither"
    one_named = renamed("mixtral_gqa_yarn", (r"\.w3\.", ".beta."), ("v_proj", "n"))
    assert matched(one_named, case.config).whole  # the other one is known: one is left


def test_fused_qkv() -> None:
    """Three tensors in one: where the rows would be cut is said, and that this version does not."""
    case = CASES["mixtral_gqa_yarn"]
    plain = [(n, s) for n, s in checkpoints.tensors(case) if not re.search("[qkv]_proj", n)]
    wide, narrow = case.shape.heads * case.shape.head_dim, case.shape.kv_heads * case.shape.head_dim
    fused = [(f"model.layers.{n}.self_attn.qkv_proj.weight", (wide + 2 * narrow, case.shape.hidden))
             for n in range(case.shape.layers)]  # fmt: skip
    match = matched([*plain, *fused], case.config)
    assert f"rows 0, {wide} and {wide + narrow} on" in why(match, "qkv_proj") and match.missing == ["Q", "K", "V"]
    assert "EXPERT_GATE" in roles(match) and "O" in roles(match)


def test_transposed_experts() -> None:
    case = CASES["mixtral_gqa_yarn"]
    turned = [(n, s[::-1] if "experts" in n else s) for n, s in checkpoints.tensors(case)]
    match = matched(turned, case.config)
    assert {"EXPERT_GATE", "EXPERT_UP", "EXPERT_DOWN"} == set(match.missing)
    assert len(match.unplaced) == 3 and all("stored transposed" in one.why for one in match.unplaced)


@pytest.mark.parametrize(("name", "shape", "words"), [
    ("mlp.experts.gate_up_proj", (8, 112, 64), "gate and up of all experts in one tensor; whether gate and up"),
    ("mlp.experts.gate_up_proj", (8, 64, 112), "in one tensor, stored transposed"),
    ("mlp.experts.down_proj", (8, 64, 56), "down of all experts in one tensor; this row cannot say that"),
    ("mlp.experts.down_proj", (8, 56, 64), "down of all experts in one tensor, stored transposed"),
    ("mlp.experts.bank", (8, 5, 7), "none of whose sides is the hidden size"),
    ("post_ffn_layernorm.weight", (64,), "one more norm than a layer of this version has"),
    ("mlp.gate.bias", (8,), "a bias of ROUTER: whether of the choice alone or of the weights too"),
    ("mlp.experts.weight_scale_inv", (3, 5), "a scale of quantized weights"),
    ("self_attn.kv_b_proj.weight", (40, 7), "part of a latent attention (MLA)"),
    ("conv.weight", (64, 1, 3), "no role has 3 dimensions"),
    ("self_attn.surprise", (5, 5), "no role left has its shape"),
])  # fmt: skip
def test_what_has_no_place_says_why(name: str, shape: tuple[int, ...], words: str) -> None:
    """One more tensor in every layer of a known model: the rest keeps its place."""
    case = CASES["qwen3_moe_norm"]
    more = [(f"model.layers.{n}.{name}", shape) for n in range(case.shape.layers)]
    match = matched([*checkpoints.tensors(case), *more], case.config)
    assert words in why(match, name) and len(match.unplaced) == 1 and match.missing == []


def test_a_missing_tensor_is_named() -> None:
    case = CASES["qwen3_moe_norm"]
    rest = [(n, s) for n, s in checkpoints.tensors(case) if "mlp.gate.weight" not in n and "k_norm" not in n]
    assert matched(rest, case.config).missing == ["ROUTER", "K_NORM"]


def test_nothing_to_hold_on_to() -> None:
    """No config and no layer: nothing is placed, and the reason is one."""
    match = matched([("a", (3, 5)), ("b", (7,))])
    assert not match.placed and {one.why for one in match.unplaced} == {match_keys.NO_HIDDEN}


# ---- the command ----


def test_the_command(tmp_path: Path, capsys: Capture) -> None:
    checkpoints.build("mixtral_mha", tmp_path / "m")
    assert cli.main(["match-keys", str(tmp_path / "m")]) == 0
    out = capsys.readouterr().out
    assert '    "mixtral": Family(' in out and "those of mixtral in pytools/colibri/family_table.py" in out
    assert "neither names nor shapes tell: router score" in out and "no place" not in out
    made = document(capsys, "match-keys", tmp_path / "m" / "config.json")
    assert made["families"] == ["mixtral"] and made["whole"] and made["experts"] == 8 and made["layers"] == 3
    assert {one["role"] for one in made["placed"]} >= {"EMBED", "ROUTER", "EXPERT_DOWN"}


def test_the_command_says_no(tmp_path: Path, capsys: Capture) -> None:
    tensors = renamed("mixtral_mha", (r"\.w1\.", ".alpha."), (r"\.w3\.", ".beta."))
    source = folder("mixtral_mha", tmp_path / "m", tensors)
    assert cli.main(["match-keys", str(source)]) == 1
    out = capsys.readouterr().out
    assert "no place: model.layers.{L}.block_sparse_moe.experts.{E}.alpha.weight [80, 64]: its shape fits" in out
    assert "not found: EXPERT_GATE, EXPERT_UP" in out
    (source / "config.json").write_text(json.dumps({"model_type": "unheard_of"}))
    made = document(capsys, "match-keys", source, code=1)
    assert made["row"].startswith('    "unheard_of": Family(') and made["hidden"] == 64


def test_only_headers_are_read(tmp_path: Path, capsys: Capture, monkeypatch: pytest.MonkeyPatch) -> None:
    checkpoints.build("mixtral_mha", tmp_path / "m")
    read, real = [], LocalFile.read

    def counted(self: LocalFile, offset: int, size: int) -> bytes:
        read.append((offset, size))
        return real(self, offset, size)

    monkeypatch.setattr(LocalFile, "read", counted)
    document(capsys, "match-keys", tmp_path / "m")
    length = int.from_bytes((tmp_path / "m" / "model.safetensors").read_bytes()[:8], "little")
    assert read == [(0, 8), (8, length)]


def test_bad_sources(tmp_path: Path, capsys: Capture) -> None:
    assert cli.main(["match-keys", str(tmp_path / "nothing")]) == 3
    assert "no such folder" in capsys.readouterr().err
    assert cli.main(["match-keys", str(tmp_path)]) == 3
    assert "model.safetensors" in capsys.readouterr().err
    (tmp_path / "config.json").write_text("[]")
    assert cli.main(["match-keys", str(tmp_path)]) == 3


def test_the_table_is_what_rows_are_made_for() -> None:
    """The pattern of every role of every family comes from the table's own function."""
    mixtral = FAMILIES["mixtral"]
    name = "model.layers.{L}.block_sparse_moe.experts.{E}.w3.weight"
    assert match_keys_row.expected_name(mixtral, "EXPERT_UP") == name
    assert match_keys_row.expected_name(mixtral, "HEAD") == family_places.source_name(
        mixtral, match_keys_row.Tensor("HEAD", match_keys_row.EVERY_LAYER, 1, 1))  # fmt: skip
