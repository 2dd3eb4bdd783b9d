"""A blob is untrusted input: every bit flipped, every truncation, tables that lie although their sums are right.

The programs (tests/c) run under AddressSanitizer and UndefinedBehaviorSanitizer with every blob and pool in memory of
exactly its size. A crash, a read outside, an undefined conversion or a missed flip ends them with an error.
"""
from __future__ import annotations

import random
from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from c.programs import Sanitized
from colibri.blobwriter import tables_only
from colibri.engine import new
from colibri.format import Kinds
from colibri.library import constants, ffi, load, names, values
from colibri.synth import SPECS, Spec, write_random_blob
from editing import Edited, Opened

TEXTS = {"PROVENANCE": b"random weights\n"}
KINDS = Kinds(embed="q8", head="q8", attention="q4", ffn="q4", experts="q4", shared="f16")
# every key of the format in a model as small as can be: a dense layer, and a windowed one with experts
EVERY = Spec(vocab=13, hidden=16, layers=2, heads=2, kv_heads=1, head_dim=8, ff=16, experts=2, top_k=1, expert_ff=12,
             dense_layers=(0,), router_scale=1.5, router_eps=1e-9, router_sum_min=0.1, router_jitter=0.1,
             router_bias="logit", by_logit=True, groups=2, top_groups=1, weight_on="input", shared_ff=16,
             shared_gate=True, biases="qkvo", qk_norm=True, window=7, window_layers=(1,), clip_qkv=8.0,
             query_floor=3, query_step=0.3, residual_multiplier=0.5, embed_multiplier=3.0, logit_multiplier=0.25,
             head_gates="head")
# what the integer router goes together with
FIXED = replace(SPECS["tiny"], experts=2, top_k=1, groups=2, top_groups=1, router_bias="logit", router_span=8,
                score="logit", renormalise="softmax", router_scale=1.5)


@pytest.fixture(scope="module")
def sanitized(tmp_path_factory: pytest.TempPathFactory) -> Sanitized:
    """The core and the programs, compiled once."""
    return Sanitized(tmp_path_factory.mktemp("sanitized"))


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A MoE of at most 24 KiB with q8, q4 and f32 weights and a text behind them."""
    path = tmp_path_factory.mktemp("tiny") / "tiny.colibri"
    assert write_random_blob(path, "tiny", 3, KINDS, TEXTS).written.file_bytes <= 24 << 10
    return path


# ---- every bit, every length ----


@pytest.mark.slow
def test_every_flipped_bit_is_refused_where_it_lies(sanitized: Sanitized, tiny: Path) -> None:
    blob = Edited(tiny)
    counts = dict(sanitized.run("flip", tiny, "flips"))
    expected = {"bits": 8 * len(blob.data), "open": 8 * blob.header.tables_bytes}
    for name in ("RESIDENT", "PROVENANCE"):
        section = blob.section(name)
        expected[f"section.{section.type}"] = 8 * section.bytes
    for expert in range(2):
        expected[f"expert.{expert}"] = 8 * blob.tensor("EXPERT_GATE", 0).stride
    assert counts == expected
    assert sum(counts.values()) == 2 * counts["bits"]               # every bit was refused once


@pytest.mark.slow
def test_every_truncation_is_refused(sanitized: Sanitized, tiny: Path) -> None:
    blob = Edited(tiny)
    size, tables = len(blob.data), blob.header.tables_bytes
    assert dict(sanitized.run("flip", tiny, "cuts")) == {"cut": size, "part": size - tables}


# ---- sums that are right over tables that are not ----


def statuses(counts: dict[str, int], kind: str) -> set[str]:
    """The statuses counted under open_refused, run_refused and the like, by name."""
    return {names("colibri_status_code")[-int(key.split(".")[1])] for key in counts if key.startswith(kind + ".")}


def meaning(blob: Edited, byte: int) -> str:
    """Which structure's field a byte of the tables belongs to, records by their key."""
    c, cffi = constants(), ffi()
    kinds = names("colibri_section_type")

    def named(struct: str, offset: int) -> str:
        return next(name for name, field in cffi.typeof(f"colibri_{struct}").fields
                    if field.offset <= offset < field.offset + cffi.sizeof(field.type))

    if byte < c.HEADER_BYTES:
        return "header." + named("blob_header", byte)
    if byte < c.HEADER_BYTES + blob.header.section_count * c.SECTION_BYTES:
        index, inside = divmod(byte - c.HEADER_BYTES, c.SECTION_BYTES)
        kind = "section." if blob.sections()[index].flags else "text."
        return kind + named("section", inside)
    place = next(s for s in blob.sections() if s.offset <= byte < s.offset + s.bytes)
    name = kinds[place.type]
    inside = byte - place.offset
    if inside >= place.payload:
        return name + ".padding"
    struct = {"MODEL": "record", "LAYERS": "record", "TENSORS": "tensor", "EXPERT_SUMS": "expert_sum",
              "ROPE": "rope"}.get(name)
    if struct is None:
        return name
    row = blob.rows(name, struct)[inside // place.record_bytes]
    field = named(struct, inside % place.record_bytes)
    if struct != "record":
        return f"{name}.{field}"
    key = names("colibri_model_key" if name == "MODEL" else "colibri_layer_key")[row.key]
    return f"{name}.{key}.{field}" if field != "flags" else "record.flags"


# What open has to believe, because no other byte says it a second time. Nothing else may be flipped unnoticed.
FREE = {
    "header.tables_crc", "header.identity", "header.identity_crc",          # the seal overwrites the flip
    "section.crc", "section.digest", "section.payload", "section.count",    # of data; check level 2 looks at them
    "text.type", "text.crc", "text.digest", "text.payload", "text.count", "text.record_bytes",  # may be unknown
    "record.flags",                                                         # must-understand of a known key
    "MODEL.TRAINED_CONTEXT.value", "MODEL.FINAL_EPS.value", "LAYERS.NORM_EPS.value", "LAYERS.SCORE_SCALE.value",
    "LAYERS.ACTIVATION.value", "LAYERS.QK_NORM.value",                       # another kind of the same shapes
    "LAYERS.ROUTER_RENORMALISE.value", "LAYERS.ROUTER_SCORE.value", "LAYERS.ROUTER_SCALE.value",
    "LAYERS.ROUTER_EPS.value", "LAYERS.ROUTER_BIAS.value", "LAYERS.ROUTER_TOP_GROUPS.value",
    "LAYERS.ROUTER_WEIGHT_ON.value", "LAYERS.ROUTER_CHOICE.value", "LAYERS.ROUTER_SUM_MIN.value",
    "LAYERS.ROUTER_JITTER.value", "LAYERS.ROUTER_SPAN.value",
    "LAYERS.RESIDUAL_MULTIPLIER.value", "LAYERS.WINDOW.value", "LAYERS.CLIP_QKV.value",
    "LAYERS.QUERY_FLOOR.value", "LAYERS.QUERY_STEP.value",
    "MODEL.EMBED_MULTIPLIER.value", "MODEL.LOGIT_MULTIPLIER.value",
    "TENSORS.crc", "TENSORS.digest", "TENSORS.offset", "EXPERT_SUMS.crc", "EXPERT_SUMS.digest",
    "ROPE.amplitude", "ROPE.interleaved", "ROPE.pairs", "ROPE.first", "ROPE_FRACTIONS",
}


@pytest.mark.slow
@pytest.mark.parametrize("spec", ("tiny", "every", "fixed"))
def test_flipped_tables_with_right_sums_are_refused_or_harmless(sanitized: Sanitized, spec: str, tiny: Path,
                                                                tmp_path: Path) -> None:
    """Every bit of header and tables; what open accepts must plan and run, in place and streamed."""
    path = tiny
    if spec != "tiny":
        path = tmp_path / "blob.colibri"
        write_random_blob(path, EVERY if spec == "every" else FIXED, 3, KINDS)
    blob = Edited(path)
    lines = sanitized.run("flip", path, "sealed")
    counts = dict(lines)
    free = Counter(meaning(blob, byte) for key, byte in lines if key == "free")
    assert counts["tried"] == 8 * blob.header.tables_bytes
    assert counts["accepted"] > 1000 and counts["run"] > counts["accepted"]
    assert set(free) <= FREE, sorted(set(free) - FREE)
    assert statuses(counts, "open_refused") == {"ERROR_MAGIC", "ERROR_VERSION", "ERROR_FORMAT", "ERROR_TRUNCATED",
                                                "ERROR_UNSUPPORTED", "ERROR_UNKNOWN_SECTION", "ERROR_UNKNOWN_KEY"}
    assert statuses(counts, "run_refused") <= {"ERROR_CORRUPT", "ERROR_NOT_FINITE"}
    assert "too_large" not in counts and not statuses(counts, "plan_refused")


@pytest.mark.sampled(4)
@pytest.mark.parametrize("spec", ("tiny", "mixed", "window", "shared", "uneven", "groups", "each_group", "by_token",
                                  "drafts", "latent-drafts", "fixed", "conv", "head-gates"))
def test_corrupted_tables_with_right_sums_are_refused_or_harmless(sanitized: Sanitized, spec: str,
                                                                  tmp_path: Path) -> None:
    """Several words of the tables at once: random, limits of integers, small steps, words from elsewhere."""
    path = tmp_path / "blob.colibri"
    write_random_blob(path, spec, 3, "q4")
    counts = dict(sanitized.run("flip", path, "random", 7, 1500))
    assert counts["tried"] == 1500 and counts["accepted"] > 100 and counts["run"] > 100
    assert statuses(counts, "run_refused") <= {"ERROR_CORRUPT", "ERROR_NOT_FINITE"}


# ---- what may and may not be unknown ----


def test_an_unknown_section_is_skipped_only_if_ancillary(tiny: Path) -> None:
    c = constants()
    blob = Edited(tiny)
    blob.section("PROVENANCE").type = 250
    assert Opened(blob.seal()).status == c.OK and not Opened(blob.seal()).problems()
    blob.sections()[-1].flags = c.SECTION_CRITICAL
    opened = Opened(blob.seal())
    assert opened.status == c.ERROR_UNKNOWN_SECTION
    assert (opened.detail.section, opened.detail.field, opened.detail.found) == (250, c.FIELD_SECTION_TYPE, 250)
    assert opened.detail.offset == c.HEADER_BYTES + (blob.header.section_count - 1) * c.SECTION_BYTES
    blob.sections()[-1].flags = 8                                   # a flag of a later version
    assert (Opened(blob.seal()).status, Opened(blob.seal()).detail.field) == (c.ERROR_FORMAT, c.FIELD_FLAGS)


def with_record(path: Path, key: int, flags: int) -> bytes:
    """The blob with one more record at the end of LAYERS: everything behind it moves by 64 bytes."""
    c, cffi = constants(), ffi()
    old = Edited(path)
    place = old.section("LAYERS")
    at, size = place.offset + place.payload, cffi.sizeof("colibri_record")
    room = 4096                                                     # keeps every alignment
    blob = Edited(bytes(old.data[:at]) + bytes(room) + bytes(old.data[at:]))
    for section in blob.sections():
        section.offset += room if section.offset > place.offset else 0
    grown = blob.section("LAYERS")
    grown.count, grown.payload, grown.bytes = grown.count + 1, grown.payload + size, grown.bytes + room
    for tensor in blob.rows("TENSORS", "tensor"):
        tensor.offset += room
    blob.header.tables_bytes += room
    last = blob.rows("LAYERS", "record")[-1]
    last.layer, last.key, last.type, last.flags, last.value = 0, key, c.TYPE_U32, flags, 5
    return blob.seal()


def test_an_unknown_layer_key_is_refused_only_if_it_must_be_understood(tiny: Path) -> None:
    c = constants()
    accepted = Opened(with_record(tiny, 999, 0))
    assert accepted.status == c.OK and not accepted.problems()
    refused = Opened(with_record(tiny, 999, c.RECORD_MUST))
    assert refused.status == c.ERROR_UNKNOWN_KEY
    assert (refused.detail.section, refused.detail.field, refused.detail.found) == (c.SECTION_LAYERS, c.FIELD_KEY, 999)
    reserved = Opened(with_record(tiny, 19, c.RECORD_MUST))  # a number between known ones
    assert (reserved.status, reserved.detail.found) == (c.ERROR_UNSUPPORTED, 19)


# ---- lies that single bits cannot tell ----


def test_a_table_behind_the_tables_is_refused(tiny: Path) -> None:
    """A table section after the weights would be covered by no checksum, and lie where nothing is addressable."""
    c = constants()
    blob = Edited(tiny)
    names_ = [s.type for s in blob.sections()]
    at = names_.index(c.SECTION_ROPE_FRACTIONS)
    entries = [bytes(ffi().buffer(s)) for s in blob.sections()]
    moved = entries.pop(at)
    start = c.HEADER_BYTES
    blob.data += bytes(-len(blob.data) % 64)
    for i, entry in enumerate([*entries, moved]):
        blob.data[start + i * c.SECTION_BYTES:start + (i + 1) * c.SECTION_BYTES] = entry
    before, last = blob.sections()[at - 1], blob.sections()[-1]
    before.bytes += last.bytes                                      # its place becomes the padding of its neighbour
    blob.sections()[-2].bytes = len(blob.data) - blob.sections()[-2].offset
    body = bytes(blob.data[last.offset:last.offset + last.bytes])
    blob.data[last.offset:last.offset + last.bytes] = bytes(last.bytes)
    last.offset = len(blob.data)
    blob.data += body
    opened = Opened(blob.seal())
    assert (opened.status, opened.detail.section, opened.detail.field) == (
        c.ERROR_FORMAT, c.SECTION_ROPE_FRACTIONS, c.FIELD_TABLES_BYTES)


def test_bytes_that_nothing_vouches_for_are_refused(tiny: Path) -> None:
    """Space between the last run and the next section belongs to no run and to no section's sum."""
    c = constants()
    blob = Edited(tiny)
    place = blob.section("PROVENANCE")
    blob.data[place.offset:place.offset] = bytes(64)
    blob.section("EXPERTS").bytes += 64
    blob.section("PROVENANCE").offset += 64
    opened = Opened(blob.seal())
    assert (opened.status, opened.detail.section, opened.detail.field) == (
        c.ERROR_FORMAT, c.SECTION_EXPERTS, c.FIELD_BYTES)


NEEDED = ("ATTENTION", "HEADS", "KV_HEADS", "HEAD_DIM", "SCORE_SCALE", "NORM_EPS", "FFN", "ACTIVATION", "FF", "EXPERTS",
          "TOP_K", "ROUTER_SCORE", "ROUTER_RENORMALISE", "EXPERT_RUN")


def without(path: Path, section: str, key: str) -> bytes:
    """The blob without one record; what follows in the section moves up."""
    blob = Edited(path)
    rows = blob.rows(section, "record")
    place, size = blob.section(section), ffi().sizeof("colibri_record")
    number = values({"LAYERS": "colibri_layer_key", "MODEL": "colibri_model_key"}[section])[key]
    index = next(i for i, r in enumerate(rows) if r.key == number)
    end = place.offset + place.payload
    blob.data[place.offset + index * size:end] = blob.data[place.offset + (index + 1) * size:end] + bytes(size)
    place.count, place.payload = place.count - 1, place.payload - size
    return blob.seal()


@pytest.mark.parametrize("key", NEEDED)
def test_a_layer_without_a_value_is_refused(tiny: Path, key: str) -> None:
    """An absent scale or epsilon must not become 0."""
    c = constants()
    opened = Opened(without(tiny, "LAYERS", key))
    assert (opened.status, opened.detail.section, opened.detail.field, opened.detail.expected) == (
        c.ERROR_FORMAT, c.SECTION_LAYERS, c.FIELD_MISSING, values("colibri_layer_key")[key])


@pytest.mark.parametrize("key", ("VOCAB", "HIDDEN", "LAYERS", "FINAL_EPS"))
def test_a_model_without_a_value_is_refused(tiny: Path, key: str) -> None:
    c = constants()
    opened = Opened(without(tiny, "MODEL", key))
    assert opened.status == c.ERROR_FORMAT and opened.detail.field in (c.FIELD_MISSING, c.FIELD_ROWS, c.FIELD_LAYER)


def corrupt_eps(blob: Edited) -> None:
    blob.record("LAYERS", "NORM_EPS").value = 0xBF800000             # -1


def infinite_scale(blob: Edited) -> None:
    blob.record("LAYERS", "SCORE_SCALE").value = 0x7F800000


def odd_heads(blob: Edited) -> None:
    blob.record("LAYERS", "HEADS").value = 3
    blob.record("LAYERS", "KV_HEADS").value = 2


def too_many_chosen(blob: Edited) -> None:
    blob.record("LAYERS", "TOP_K").value = 3


def wide_rope(blob: Edited) -> None:
    blob.rows("ROPE", "rope")[0].first = 1


def huge_width(blob: Edited) -> None:
    blob.record("LAYERS", "HEADS").value = 65535
    blob.record("LAYERS", "HEAD_DIM").value = 65535


def run_not_of_pages(blob: Edited) -> None:
    blob.record("LAYERS", "EXPERT_RUN").value = 4096 + 64


def stride_that_wraps(blob: Edited) -> None:
    blob.record("LAYERS", "EXPERT_RUN").value = 1 << 63


def tensor_outside(blob: Edited) -> None:
    blob.tensor("Q", 0).offset += blob.section("RESIDENT").payload


def tensor_before(blob: Edited) -> None:
    blob.tensor("EMBED").offset = 0


def tensor_unaligned(blob: Edited) -> None:
    blob.tensor("EMBED").offset += 16


def two_heads(blob: Edited) -> None:
    blob.tensor("FINAL_NORM").role = constants().ROLE_HEAD


LIES = {corrupt_eps: ("LAYERS", "VALUE"), infinite_scale: ("LAYERS", "VALUE"), odd_heads: ("LAYERS", "VALUE"),
        too_many_chosen: ("LAYERS", "COUNT"), wide_rope: ("ROPE", "COUNT"), huge_width: ("LAYERS", "COLUMNS"),
        run_not_of_pages: ("LAYERS", "STRIDE"), stride_that_wraps: ("LAYERS", "STRIDE"),
        tensor_outside: ("TENSORS", "OFFSET"), tensor_before: ("TENSORS", "OFFSET"),
        tensor_unaligned: ("TENSORS", "OFFSET"), two_heads: ("TENSORS", "ROLE")}


@pytest.mark.parametrize("lie", LIES, ids=lambda lie: lie.__name__)
def test_a_lie_is_refused_by_name(tiny: Path, lie: Any) -> None:
    blob = Edited(tiny)
    lie(blob)
    opened = Opened(blob.seal())
    section, field = LIES[lie]
    assert opened.status == constants().ERROR_FORMAT
    assert names("colibri_section_type")[opened.detail.section] == section
    assert names("colibri_field")[opened.detail.field] == field


# ---- content that no checksum can judge ----


def first_group_scale(blob: Edited) -> int:
    """The first scale of the embedding (q8)."""
    return blob.tensor("EMBED").offset + 1024


CONTENT = {                         # what is put where: the field that check names
    "scale is NaN": (lambda b: (first_group_scale(b), b"\xc0\x7f"), "SCALE"),
    "scale is infinite": (lambda b: (first_group_scale(b), b"\x80\xff"), "SCALE"),
    "padding row has a scale": (lambda b: (first_group_scale(b) + 2 * 15, b"\x80\x3f"), "PADDING"),
    "padding row has a weight": (lambda b: (b.tensor("EMBED").offset + 4 * 15, b"\x01"), "PADDING"),
    "padding column has a weight": (lambda b: (b.tensor("EMBED").offset + 64 * 4, b"\x01"), "PADDING"),
    "q8 is -128": (lambda b: (b.tensor("EMBED").offset, b"\x80"), "WEIGHT"),
    "second group of an odd pair": (lambda b: (b.tensor("EMBED").offset + 512, b"\x01"), "PADDING"),
    "norm is NaN": (lambda b: (b.tensor("FINAL_NORM").offset + 4, b"\x00\x00\xc0\x7f"), "WEIGHT"),
    "router is infinite": (lambda b: (b.tensor("ROUTER", 0).offset, b"\x00\x00\x80\x7f"), "WEIGHT"),
    "router padding row": (lambda b: (b.tensor("ROUTER", 0).offset + 4 * 15, b"\x00\x00\x80\x3f"), "PADDING"),
    "q4 padding row": (lambda b: (b.tensor("EXPERT_GATE", 0).offset + 4 * 15, b"\x87"), "PADDING"),
    "q4 padding column": (lambda b: (b.tensor("EXPERT_GATE", 0).offset + 64 * 2, b"\x98"), "PADDING"),
    "q4 scale of the second expert": (lambda b: (b.tensor("EXPERT_GATE", 0).offset + 4096 + 512, b"\x80\x7f"), "SCALE"),
}


@pytest.mark.parametrize("name", CONTENT)
def test_content_that_breaks_its_contract_is_found_although_all_sums_are_right(tiny: Path, name: str) -> None:
    c = constants()
    blob = Edited(tiny)
    place, field = CONTENT[name]
    at, data = place(blob)
    assert blob.data[at:at + len(data)] != data
    blob.data[at:at + len(data)] = data
    opened = Opened(blob.sum_data().seal())
    assert opened.status == c.OK
    problems = opened.problems()
    assert [(status, section, names("colibri_field")[found]) for status, section, found, _ in problems] == [
        (c.ERROR_CONTENT, c.SECTION_TENSORS, field)]
    assert not opened.problems(level=1)


# ---- a session under the sanitizers ----


@pytest.mark.sampled(5)
@pytest.mark.parametrize("spec", (
    "tiny", "window", "mixed", "groups", "by_token", "drafts", "conv", "gates",
    *(pytest.param(name, marks=pytest.mark.slow)
      for name in ("shared", "uneven", "sigmoid", "wide", "on_input", "softplus", "choice", "turns")),
))
def test_a_monkey_finds_nothing(sanitized: Sanitized, spec: str, tmp_path: Path) -> None:
    """Random feeds, budgets, rewinds, resets and a bad host: the same logits as a plain session, no report."""
    path = tmp_path / "blob.colibri"
    write_random_blob(path, spec, 5, "q4")
    counts = dict(sanitized.run("monkey", path, 11, 80))
    assert counts["rounds"] == 80 and counts["compared"] > 150 and counts["rewinds"] > 200
    if SPECS[spec].experts:
        assert min(counts[key] for key in ("waits", "fetch_refusals", "fetch_failures", "corruptions", "resets_running",
                                           "in_flight_at_stop")) > 0
    if SPECS[spec].window:
        assert counts["rewinds_refused"] > 20


def odd_spec(seed: int) -> Spec:
    """A model of odd sizes: from one of everything to a little more than a tile."""
    draw = random.Random(seed)
    kv_heads = draw.choice((1, 1, 2, 3))
    spec = Spec(vocab=draw.choice((1, 2, 15, 16, 17, 33)), hidden=draw.choice((1, 2, 15, 31, 32, 33, 65)),
                layers=draw.choice((1, 2, 3)), kv_heads=kv_heads, heads=kv_heads * draw.choice((1, 2, 3)),
                head_dim=draw.choice((2, 3, 17, 32, 34)), ff=draw.choice((1, 16, 31, 33)),
                biases=draw.choice(("", "q", "kv", "qkvo")), qk_norm=draw.random() < 0.5, tied=draw.random() < 0.5,
                window=draw.choice((0, 0, 1, 2, 15, 16, 17, 18)), interleaved=draw.random() < 0.5)
    if spec.head_dim % 2 or draw.random() < 0.3:
        spec = replace(spec, rope=None)
    if draw.random() < 0.7:
        experts = draw.choice((1, 2, 5, 17))
        spec = replace(spec, experts=experts, top_k=draw.randint(1, min(experts, 4)),
                       expert_ff=draw.choice((1, 15, 32, 33)), shared_ff=draw.choice((0, 1, 33)),
                       renormalise=draw.random() < 0.5)
        spec = replace(spec, shared_gate=bool(spec.shared_ff) and draw.random() < 0.5)
    return spec


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(12))
def test_models_of_odd_sizes_stay_inside(sanitized: Sanitized, seed: int, tmp_path: Path) -> None:
    path = tmp_path / "blob.colibri"
    write_random_blob(path, odd_spec(seed), seed, ("f32", "f16", "q8", "q4")[seed % 4])
    assert not Opened(path.read_bytes()).problems()
    counts = dict(sanitized.run("monkey", path, seed, 60))
    assert counts["rounds"] == 60 and counts["compared"] > 50


def test_the_small_blob_holds_what_the_flips_are_to_reach(tiny: Path) -> None:
    """Kinds and sections of the blob that the flips are made in."""
    kinds = {names("colibri_kind")[t.kind] for t in Edited(tiny).rows("TENSORS", "tensor")}
    assert kinds == {"F32", "Q8", "Q4"} and SPECS["tiny"].tied


# ---- the largest numbers a table can hold ----


MOST = (1 << 26) - 1                # COLIBRI_VALUE_LIMIT
HUGE = {
    "width": Spec(vocab=MOST, hidden=MOST, layers=1, heads=65535, kv_heads=65535, head_dim=1024, ff=MOST, rope=None),
    "experts": Spec(vocab=MOST, hidden=1, layers=2, heads=1, kv_heads=1, head_dim=65535, experts=65535, top_k=65535,
                    expert_ff=MOST, rope=None),
    "runs": Spec(vocab=1, hidden=MOST, layers=2, heads=1, kv_heads=1, head_dim=2, experts=300, top_k=300,
                 expert_ff=MOST, shared_ff=MOST, rope=None),
    "window": Spec(vocab=1, hidden=1, layers=2, heads=65535, kv_heads=1, head_dim=2, window=MOST, rope=None),
}


@pytest.mark.parametrize("name", HUGE)
def test_the_largest_numbers_are_planned_without_wrapping_or_refused(name: str) -> None:
    """Tables may speak of files of 2^62 bytes; sizes are exact or the plan says OVERFLOW."""
    c, spec = constants(), HUGE[name]
    image, size = tables_only(spec.model(), Kinds.preset("q4"))
    opened = Opened(bytes(image), size)
    assert opened.status == c.OK
    for flags in (0, c.LIMIT_RESIDENT_COPY | c.LIMIT_STREAM_EXPERTS):
        limits = new("colibri_limits", context=1 << 26, batch=65535, sequences=65535, workers=1024, logit_rows=65535,
                     rewind=1 << 26, flags=flags, slots=spec.experts * spec.layers if flags else 0)
        plan, detail = new("colibri_plan_result"), ffi().new("colibri_detail *")
        status = load().colibri_plan(opened.model, limits, plan, detail)
        if name in ("width", "experts"):
            assert status == c.ERROR_OVERFLOW and detail.field == c.FIELD_POOL_BYTES
            continue
        assert status == c.OK
        regions = {key: value for value, key in names("colibri_region").items() if value < c.REGION_COUNT}
        sizes = {key: plan.region_bytes[value] for key, value in regions.items()}
        assert sum(sizes.values()) == plan.pool_bytes
        tile = 2 * 64 * spec.head_dim                               # 16 positions of K and of V as f32
        assert sizes["KV"] == 65535 * spec.layers * spec.kv_heads * tile * (1 << 22)
        assert sizes["LOGITS"] == 65535 * 64 * (spec.vocab + 15 >> 4)
        expert = opened_info(opened).expert_run_bytes
        assert sizes["SLOTS"] >= limits.slots * expert and (not flags or sizes["RESIDENT"] >= plan.resident_bytes > 0)


def opened_info(opened: Opened) -> Any:
    """colibri_model_info."""
    info = new("colibri_info")
    assert load().colibri_model_info(opened.model, info) == constants().OK
    return info
