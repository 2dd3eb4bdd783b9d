"""The file: what Python writes is what the C headers say, what C accepts, and the same bytes every time."""

from __future__ import annotations

import dataclasses
import hashlib
import re
import resource
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from colibri import blobwriter, description, library, strips, synth, unfinished
from colibri.blobfile import BlobFile, aligned_bytes
from colibri.errors import BlobError, ConvertError, Detail, DoesNotFit, InputError, detail_sentence
from colibri.format import Kinds, required
from colibri.library import constants, ffi, load
from colibri.tables import pack_struct
from colibri.unfinished import Work
from reference.matrix import Matrix

ROOT = Path(__file__).resolve().parents[1]
TEXTS = {
    "TOKENIZER": b"not read by open",
    "CHAT_TEMPLATE": "{{ 'π' }}".encode(),
    "GENERATION": pack_struct("record", **description.record("colibri_generation_key", "END", 2)),
    "PROVENANCE": b"{}",
}
KINDS = ("f32", "f16", "q8", "q4")


# --- the headers ---


def test_structures_have_the_sizes_the_header_states() -> None:
    c, size = constants(), ffi().sizeof
    stated = {
        "blob_header": c.HEADER_BYTES,
        "section": c.SECTION_BYTES,
        "record": c.RECORD_BYTES,
        "tensor": c.TENSOR_BYTES,
        "expert_sum": c.EXPERT_SUM_BYTES,
        "rope": c.ROPE_BYTES,
    }
    assert {name: size(f"colibri_{name}") for name in stated} == stated


def test_every_key_of_the_header_is_a_field_of_the_description_or_reserved() -> None:
    text = library.header_text("colibri_format.h")
    for enum, holder in (("colibri_model_key", description.Model), ("colibri_layer_key", description.Layer)):
        body = re.search(rf"enum {enum} \{{(.*?)\}};", text, re.S)
        assert body is not None
        reserved = re.findall(r"COLIBRI_[A-Z]+?_(\w+) = \d+,?\s*/\* reserved", body[1])
        typed = library.key_types(enum)
        assert set(typed) | set(reserved) == set(library.values(enum))
        assert not set(typed) & set(reserved)
        counted = {name for name, value in vars(holder).items() if isinstance(value, property)}
        assert {name.lower() for name in typed} <= {f.name for f in dataclasses.fields(holder)} | counted
    assert {f.name.upper() for f in dataclasses.fields(description.Layer)} == set(
        library.key_types("colibri_layer_key")
    )


def test_declarations_survive_what_the_headers_may_contain() -> None:
    text = """
    /* a comment with ; and { */
    #ifndef X_H
    #define X_H
    #define X_LIMIT 0x10u
    #ifdef __cplusplus
    extern "C" {
    #endif
    enum { X_ONE = -1 };
    typedef struct x_pair { COLIBRI_POINTER(void *, user); uint32_t n; } x_pair;
    COLIBRI_API int x_call(const x_pair *pair) __attribute__((const));
    #ifdef __cplusplus
    }
    #endif
    #endif
    """
    import cffi

    maker = cffi.FFI()
    maker.cdef(library.declarations(text))
    assert maker.sizeof("x_pair") == 16
    assert maker.typeof("enum colibri_anonymous_0").relements == {"X_ONE": -1}


def test_the_version_is_the_headers() -> None:
    import colibri

    text = library.header_text("colibri.h")
    parts = ("MAJOR", "MINOR", "PATCH")
    numbers = [re.search(rf"VERSION_{part} (\d+)", text)[1] for part in parts]  # type: ignore[index]
    assert colibri.__version__ == ".".join(numbers)


# --- writing and reading ---


def rounded(value: Any) -> Any:
    return float(np.float32(value)) if isinstance(value, float) else value


@pytest.mark.sampled(5)
@pytest.mark.parametrize("name", synth.SPECS)
@pytest.mark.parametrize("kind", KINDS)
def test_the_core_accepts_and_the_reader_gives_back_what_was_written(
    tmp_path: Path, name: str, kind: str
) -> None:
    made = synth.write_random_blob(tmp_path / "a.colibri", name, 7, kind, TEXTS)
    blob = BlobFile(made.written.path)
    assert check_all(blob) == []
    assert blob.identity == made.written.identity
    assert blob.file_bytes == made.written.path.stat().st_size
    read, wrote = blob.model(), made.written.layout.model
    assert [vars(layer) for layer in read.layers] == [
        {key: rounded(value) for key, value in vars(layer).items()} for layer in wrote.layers
    ]
    for key in ("vocab", "hidden", "trained_context", "final_eps", "embed_multiplier", "logit_multiplier"):
        assert getattr(read, key) == rounded(getattr(wrote, key))
    assert (read.ropes, read.tied) == (wrote.ropes, wrote.tied)
    assert {name: blob.section(name) for name in TEXTS} == TEXTS
    assert blob.generation() == {"end": [2]}
    assert len({synth.plain_name(t, e) for t, e in blob.matrices()}) == len(made.weights)


@pytest.mark.parametrize("kind", KINDS)
def test_weights_are_those_of_the_independent_packer(tmp_path: Path, kind: str) -> None:
    made = synth.write_random_blob(tmp_path / "a.colibri", "mixed", 3, kind)
    blob = BlobFile(made.written.path)
    for tensor, expert in blob.matrices():
        weights = made.weights[synth.plain_name(tensor, expert)]
        if tensor.vector:
            assert np.array_equal(blob.floats(tensor), weights)
            continue
        expected = Matrix.from_floats(tensor.kind, weights)
        assert blob.packed(tensor, expert).tobytes() == expected.tiles(), tensor.label
        assert np.array_equal(blob.floats(tensor, expert), expected.rows_of(np.arange(tensor.rows))), (
            tensor.label
        )


def test_q4_means_experts_and_dense_ffn_and_leaves_router_and_switch_alone(tmp_path: Path) -> None:
    blob = BlobFile(synth.write_random_blob(tmp_path / "a.colibri", "mixed", 1, "q4").written.path)
    kinds: dict[str, set[str]] = {}
    for tensor in blob.tensors:
        kinds.setdefault(tensor.kind, set()).add(tensor.role)
    assert kinds["q4"] == {"EXPERT_GATE", "EXPERT_UP", "EXPERT_DOWN", "GATE", "UP", "DOWN"}
    assert kinds["q8"] == {
        "EMBED", "HEAD", "Q", "K", "V", "O", "SHARED_GATE", "SHARED_UP", "SHARED_DOWN",
    }  # fmt: skip
    assert {"ROUTER", "SHARED_SWITCH", "Q_NORM", "Q_BIAS"} <= kinds["f32"]


def test_bytes_do_not_depend_on_threads_or_strips(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made = synth.write_random_blob(tmp_path / "a.colibri", "mixed", 5, "q4", TEXTS)
    monkeypatch.setattr(strips, "STRIP_BYTES", 1)  # strips of 16 rows
    source = synth.Weights(made.weights)
    again = blobwriter.write_blob(tmp_path / "b.colibri", made.model, made.kinds, source, TEXTS, work=Work(5))
    assert again.identity == made.written.identity
    assert (tmp_path / "a.colibri").read_bytes() == (tmp_path / "b.colibri").read_bytes()


def test_sections_follow_each_other_and_everything_is_aligned(tmp_path: Path) -> None:
    made = synth.write_random_blob(tmp_path / "a.colibri", "shared", 2, "q8", TEXTS)
    data, layout = made.written.path.read_bytes(), made.written.layout
    at = ffi().sizeof("colibri_blob_header") + len(layout.sections) * ffi().sizeof("colibri_section")
    for section in layout.sections:
        assert section.offset == at
        assert not any(data[section.offset + section.payload : section.offset + section.bytes])
        at += section.bytes
    assert at == len(data)
    assert all(tensor.offset % 64 == 0 for tensor in layout.tensors)
    for run in layout.runs:
        assert run.offset % 4096 == 0 and run.bytes % 4096 == 0
        inside = sum(tensor.bytes for tensor in run.tensors)
        for expert in range(run.experts):
            start = run.offset + expert * run.bytes
            assert not any(data[start + inside : start + run.bytes])


def test_the_small_blob_is_small_enough_to_flip_every_bit(tmp_path: Path) -> None:
    for kind in ("q8", "q4"):
        made = synth.write_random_blob(tmp_path / f"{kind}.colibri", "tiny", 1, kind)
        assert made.written.file_bytes <= 24 * 1024
        assert {"EXPERTS", "ROPE", "RESIDENT"} <= {s.type for s in made.written.layout.sections}


def test_header_and_tables_alone_can_be_opened(tmp_path: Path) -> None:
    model = synth.SPECS["mixed"].model()
    image, size = blobwriter.tables_only(model, Kinds.preset("q4"))
    written = synth.write_random_blob(tmp_path / "a.colibri", model, 1, "q4").written
    assert size == written.file_bytes
    assert len(image) == written.layout.tables_bytes
    assert opened(image, size)[0] == constants().OK


# --- refusals ---


def opened(image: bytes, size: int) -> tuple[int, Any]:
    memory = aligned_bytes(len(image))
    memory[:] = np.frombuffer(image, dtype=np.uint8)
    model, detail = ffi().new("colibri_model *"), ffi().new("colibri_detail *")
    return load().colibri_open(model, ffi().from_buffer(memory), len(image), size, detail), detail


def check_all(blob: BlobFile) -> list[Detail]:
    """The problems that the core finds in every byte."""
    cffi = ffi()
    memory = aligned_bytes(len(blob.data))
    memory[:] = blob.data
    model, state = cffi.new("colibri_model *"), cffi.new("colibri_check_state *")
    view = cffi.from_buffer(memory)
    assert load().colibri_open(model, view, len(memory), len(memory), cffi.NULL) == constants().OK
    problems = []
    while True:
        detail = cffi.new("colibri_detail *")
        status = load().colibri_check(model, state, 2, 1 << 16, detail)
        if status == constants().DONE:
            return problems
        if status < 0:
            problems.append(library.detail_of(detail))


def resealed(data: bytearray) -> bytes:
    """A blob whose tables were changed, with sums that match again."""
    cffi = ffi()
    header = cffi.from_buffer("colibri_blob_header *", data)
    header.tables_crc, header.identity_crc, header.identity = 0, 0, bytes(32)
    tables = bytes(data[: header.tables_bytes])
    identity = hashlib.sha256(tables).digest()
    header.tables_crc = load().colibri_crc32c(0, tables, len(tables))
    header.identity = identity
    header.identity_crc = load().colibri_crc32c(0, identity, 32)
    return bytes(data)


def test_an_unknown_section_is_skipped_if_ancillary_and_refused_if_critical(tmp_path: Path) -> None:
    c, cffi = constants(), ffi()
    made = synth.write_random_blob(tmp_path / "a.colibri", "moe", 1, "q4", {"PROVENANCE": b"{}"})
    data = bytearray(made.written.path.read_bytes())
    count = len(made.written.layout.sections)
    at = cffi.sizeof("colibri_blob_header") + (count - 1) * cffi.sizeof("colibri_section")
    section = cffi.cast("colibri_section *", cffi.from_buffer(data) + at)
    assert section.type == c.SECTION_PROVENANCE
    section.type = 250
    assert opened(resealed(data), len(data))[0] == c.OK
    section.flags = c.SECTION_CRITICAL
    status, detail = opened(resealed(data), len(data))
    assert (status, detail.section, detail.found) == (c.ERROR_UNKNOWN_SECTION, 250, 250)


def test_an_unknown_record_is_skipped_unless_it_must_be_understood(tmp_path: Path) -> None:
    c, cffi = constants(), ffi()
    made = synth.write_random_blob(tmp_path / "a.colibri", "nope", 1, "q8")
    data = bytearray(made.written.path.read_bytes())
    place = next(s for s in made.written.layout.sections if s.type == "MODEL")
    last = place.offset + place.payload - cffi.sizeof("colibri_record")
    record = cffi.cast("colibri_record *", cffi.from_buffer(data) + last)
    assert record.flags == c.RECORD_MUST
    record.key = 999
    status, detail = opened(resealed(data), len(data))
    assert (status, detail.field, detail.found) == (c.ERROR_UNKNOWN_KEY, c.FIELD_KEY, 999)
    record.flags = 0
    assert opened(resealed(data), len(data))[0] == c.OK


def test_a_damaged_byte_is_found_in_its_section(tmp_path: Path) -> None:
    made = synth.write_random_blob(tmp_path / "a.colibri", "moe", 1, "q8", TEXTS)
    path, good = made.written.path, made.written.path.read_bytes()
    for section in made.written.layout.sections:
        bad = bytearray(good)
        bad[section.offset + section.payload // 2] ^= 4
        path.write_bytes(bad)
        if section.type in made.written.layout.TABLES:
            with pytest.raises(BlobError) as caught:
                BlobFile(path)
            assert (caught.value.detail.status, caught.value.detail.field) == ("ERROR_CORRUPT", "CRC")
            assert str(path) in str(caught.value) and caught.value.exit_code == 3
        else:
            assert section.type in {problem.section for problem in check_all(BlobFile(path))}


def test_a_file_that_was_cut_short_is_refused_in_one_sentence(tmp_path: Path) -> None:
    path = synth.write_random_blob(tmp_path / "a.colibri", "dense", 1, "q8").written.path
    data = path.read_bytes()
    for size in (0, 1, 127, 128, 2000, len(data) - 1):
        path.write_bytes(data[:size])
        with pytest.raises(BlobError, match=r"cut short|not a Colibri blob") as caught:
            BlobFile(path)
        assert "\n" not in str(caught.value)
    path.write_bytes(b"PK\3\4" + data[4:])
    with pytest.raises(BlobError, match="colibri convert"):
        BlobFile(path)
    with pytest.raises(InputError, match="cannot be read"):
        BlobFile(tmp_path / "none.colibri")


def test_a_sentence_names_section_field_offset_and_both_numbers() -> None:
    sentence = detail_sentence("m.colibri", Detail("ERROR_FORMAT", "TENSORS", "OFFSET", 3, 4512, 64, 65))
    assert sentence == (
        "m.colibri: section TENSORS, entry 3, field OFFSET, at byte 4512: expected 64, found 65; "
        "the tool that wrote it contradicts itself: convert the checkpoint again"
    )


class Broken(synth.Weights):
    """A source that fails in the middle."""

    def rows(self, tensor: Any, expert: int, first: int, count: int) -> np.ndarray:
        if tensor.role == "EXPERT_DOWN" and expert == 1:
            raise ConvertError("the disk went away")
        return super().rows(tensor, expert, first, count)


def test_nothing_is_left_behind_when_writing_fails(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    model = synth.SPECS["moe"].model()
    weights, kinds = synth.random_weights(model, 1), Kinds.preset("q8")
    with pytest.raises(ConvertError, match="went away"):
        blobwriter.write_blob(tmp_path / "a.colibri", model, kinds, Broken(weights))
    weights["layers.0.experts.2.up"][3, 5] = np.nan
    with pytest.raises(ConvertError, match=r"layers\.0\.experts\.2\.up: row 3, column 5 is nan"):
        blobwriter.write_blob(tmp_path / "a.colibri", model, kinds, synth.Weights(weights))
    free = dataclasses.make_dataclass("Free", ["free"])(1000)
    monkeypatch.setattr(unfinished.shutil, "disk_usage", lambda folder: free)
    with pytest.raises(DoesNotFit, match="1000 bytes are free, the blob needs") as caught:
        blobwriter.write_blob(tmp_path / "a.colibri", model, kinds, synth.Weights(weights))
    assert caught.value.exit_code == 5
    assert list(tmp_path.iterdir()) == []


def test_a_full_disk_is_said_and_nothing_is_left_behind(tmp_path: Path) -> None:
    model = synth.SPECS["dense"].model()
    source = synth.Weights(synth.random_weights(model, 1))
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(
        resource.RLIMIT_FSIZE, (40000, before[1])
    )  # the kernel refuses to write on, as when full
    try:
        with pytest.raises(DoesNotFit, match=r"a\.colibri: cannot be written \(File too large\); make room"):
            blobwriter.write_blob(tmp_path / "a.colibri", model, Kinds(), source)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    assert list(tmp_path.iterdir()) == []


def test_an_existing_file_is_kept_unless_asked(tmp_path: Path) -> None:
    model = synth.SPECS["dense"].model()
    source, path = synth.Weights(synth.random_weights(model, 1)), tmp_path / "a.colibri"
    path.write_bytes(b"precious")
    with pytest.raises(InputError, match="--overwrite"):
        blobwriter.write_blob(path, model, Kinds(), source)
    assert path.read_bytes() == b"precious"
    blobwriter.write_blob(path, model, Kinds(), source, overwrite=True)
    assert BlobFile(path).model().vocab == 77
    with pytest.raises(InputError, match="no such folder"):
        blobwriter.write_blob(tmp_path / "none" / "a.colibri", model, Kinds(), source)


def test_half_floats_that_would_overflow_are_refused(tmp_path: Path) -> None:
    model = synth.SPECS["dense"].model()
    weights = synth.random_weights(model, 1)
    weights["layers.1.q"][0, 0] = 70000
    with pytest.raises(ConvertError, match="70000 does not fit into f16"):
        blobwriter.write_blob(tmp_path / "a.colibri", model, Kinds.preset("f16"), synth.Weights(weights))


def test_the_tensor_table_is_sorted_the_models_first(tmp_path: Path) -> None:
    roles = library.values("colibri_role")
    listed = [(t.layer, roles[t.role]) for t in required(synth.SPECS["mixed"].model())]
    models = [role for layer, role in listed if layer == description.EVERY_LAYER]
    assert models == [roles["EMBED"], roles["HEAD"], roles["FINAL_NORM"]]
    assert listed[len(models) :] == sorted(listed[len(models) :])


# --- the worked example of docs/BLOB_FORMAT.md ---

PAGE = ROOT / "docs" / "BLOB_FORMAT.md"
HEX_LINE = re.compile(r"^([0-9a-f]{5})  ((?:[0-9a-f]{2} ?)+)", re.M)


def example(folder: Path) -> bytes:
    """The file that the page shows."""
    texts = {"PROVENANCE": b'{"source":"docs"}'}
    return synth.write_random_blob(folder / "a.colibri", "tiny", 1, "q4", texts).written.path.read_bytes()


def test_the_worked_example_of_the_documentation_is_true(tmp_path: Path) -> None:
    data, text = example(tmp_path), PAGE.read_text(encoding="utf-8")
    lines = HEX_LINE.findall(text)
    assert len(lines) > 40
    for offset, digits in lines:
        found, at = bytes.fromhex(digits), int(offset, 16)
        assert data[at : at + len(found)] == found, f"docs/BLOB_FORMAT.md: bytes at {offset} are others now"
    assert f"{len(data)} bytes" in text


def renew_example() -> None:
    """Put today's bytes into the page (`python tests/test_format.py`); the comments are checked by eye."""
    with tempfile.TemporaryDirectory() as folder:
        data = example(Path(folder))

    def line(found: re.Match[str]) -> str:
        at, length = int(found[1], 16), len(bytes.fromhex(found[2]))
        return f"{found[1]}  {data[at : at + length].hex(' ')}".ljust(len(found[0]))

    PAGE.write_text(HEX_LINE.sub(line, PAGE.read_text(encoding="utf-8")), encoding="utf-8")


if __name__ == "__main__":
    renew_example()
