"""Safetensors files: every header is checked before a byte of it is used, every number arrives as it is."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from checkpoint_kit import entries_of, folder_of, raw_file, refused, tensor
from colibri import safetensors_reader
from colibri.errors import ConvertError
from colibri.safetensors_reader import Checkpoint, read_entries
from colibri.source import LocalFile
from oracles import draw, tensorfile


@pytest.mark.parametrize(
    "header, words",
    [
        (b"not json", "is not JSON"),
        (b"[" * 100000, "is not JSON"),
        (b"[]", "the header is not a JSON object"),
        (b'{"a": {}, "a": {}}', "'a' stands there twice"),
        ({"a": {"dtype": "F32"}}, "expected dtype, shape and data_offsets"),
        ({"a": tensor("F33")}, "dtype 'F33' is not known"),
        ({"a": tensor(["F32"])}, "dtype ['F32'] is not known"),
        ({"a": tensor(shape=(-4, 4))}, "shape [-4, 4]"),
        ({"a": tensor(shape=(4, 4.0))}, "expected up to 8 whole numbers"),
        ({"a": tensor(shape="4")}, "expected up to 8 whole numbers"),
        ({"a": tensor(shape=(1,) * 7 + (4, 4))}, "expected up to 8 whole numbers"),
        ({"a": tensor(shape=(2**62, 2**62))}, "needs"),
        ({"a": tensor(span=(64, 0))}, "data_offsets [64, 0]"),
        ({"a": tensor(span=(0, 64, 128))}, "data_offsets"),
        ({"a": tensor(span=(0, 2**60))}, "it was cut short"),
        ({"a": tensor(span=(0, 60))}, "needs 64 bytes, data_offsets give 60"),
        ({"a": tensor(span=(4, 68))}, "it was cut short"),
        ({"a": tensor(shape=(8,), span=(16, 48))}, "16 bytes before tensor 'a' belong to no tensor"),
        ({"a": tensor(shape=(8,), span=(0, 32))}, "its tensors end at byte"),
        ({"a": tensor(), "b": tensor(shape=(4,), span=(48, 64))}, "inside tensor 'a'"),
        ({"a": tensor(), "b": tensor()}, "inside tensor 'a'"),
    ],
)
def test_broken_headers_are_refused_in_one_sentence(tmp_path: Path, header: Any, words: str) -> None:
    with pytest.raises(ConvertError) as caught:
        read_entries(LocalFile(raw_file(tmp_path / "m.safetensors", header)))
    assert words in str(caught.value) and "m.safetensors" in str(caught.value)


@pytest.mark.parametrize("length", [2**63, 2**64 - 1, 10**9, 1000])
def test_a_header_length_beyond_the_file_is_refused(tmp_path: Path, length: int) -> None:
    path = tmp_path / "m.safetensors"
    path.write_bytes(length.to_bytes(8, "little") + b"{}" + bytes(100))
    with pytest.raises(ConvertError, match=f"the header says it is {length} bytes long"):
        read_entries(LocalFile(path))
    path.write_bytes(b"abc")
    with pytest.raises(ConvertError, match="has 3 bytes"):
        read_entries(LocalFile(path))


def test_odd_offsets_types_and_strips_read_right(tmp_path: Path) -> None:
    """A byte tensor in front and a header of odd length put every float at an odd address."""
    values = draw.bell(1, "odd", (50, 7))
    half = values.astype(np.float16)
    half[0, :4] = [6e-8, -6e-8, 3e-5, 65504]  # subnormals are kept
    brain = tensorfile.to_bf16(values)
    blocks = [b"\7", values.tobytes(), half.tobytes(), brain.tobytes()]
    ends = np.cumsum([len(block) for block in blocks]).tolist()
    header = {"pad": tensor("U8", (1,), (0, 1))}
    for name, dtype, begin, end in (("f", "F32", ends[0], ends[1]), ("h", "F16", ends[1], ends[2]),
                                    ("b", "BF16", ends[2], ends[3])):  # fmt: skip
        header[name] = tensor(dtype, (50, 7), (begin, end))
    text = json.dumps(header).encode()
    raw_file(tmp_path / "model.safetensors", text + b" " * (1 - len(text) % 2), b"".join(blocks))
    expected = {"f": values, "h": half.astype(np.float32), "b": tensorfile.from_bf16(brain)}
    with Checkpoint(tmp_path) as checkpoint:
        for name, wanted in expected.items():
            entry = checkpoint.expect(name, (50, 7))
            strips = [checkpoint.floats(entry, first * 7, 5 * 7).reshape(5, 7) for first in range(0, 50, 5)]
            assert np.array_equal(np.concatenate(strips).view(np.uint32), wanted.view(np.uint32))
        assert any(entry.begin % 4 for entry in checkpoint.entries.values() if entry.dtype == "F32")


def test_files_of_the_formats_own_library_are_read(tmp_path: Path) -> None:
    safetensors_numpy = pytest.importorskip("safetensors.numpy", reason="safetensors is not installed")
    tensors = {"a": draw.bell(1, "a", (3, 5)), "b": draw.bell(1, "b", (7,)).astype(np.float16)}
    safetensors_numpy.save_file(tensors, tmp_path / "model.safetensors", metadata={"format": "pt"})
    with Checkpoint(tmp_path) as checkpoint:
        assert set(checkpoint.entries) == {"a", "b"}
        assert np.array_equal(checkpoint.floats(checkpoint.expect("a", (3, 5)), 0, 15), tensors["a"].ravel())
        assert np.array_equal(checkpoint.floats(checkpoint.expect("b", (7,)), 2, 3), tensors["b"][2:5])


def test_shards_that_do_not_belong_together_are_refused(tmp_path: Path) -> None:
    folder_of("mixtral_one", tmp_path)
    (tmp_path / "model.safetensors").unlink()
    entries = entries_of("mixtral_one")
    tensorfile.write_sharded(tmp_path, [entries[:9], entries[9:]])
    index = tmp_path / safetensors_reader.INDEX
    whole = json.loads(index.read_text())
    first, second = sorted(path.name for path in tmp_path.glob("*.safetensors"))

    def with_map(**changes: Any) -> str:
        where = {k: v for k, v in {**whole["weight_map"], **changes}.items() if v is not ...}
        index.write_text(json.dumps({"weight_map": where}))
        return refused(tmp_path)

    name = entries[0].name
    assert f"{second}: has no tensor {name!r}" in with_map(**{name: second})
    assert f"{first}: tensor {name!r} is not in" in with_map(**{name: ...})
    assert "none.safetensors: is missing" in with_map(**{name: "none.safetensors"})
    assert "expected a .safetensors file of the folder" in with_map(**{name: "../x.safetensors"})
    index.write_text("{}")
    assert "has no weight_map" in refused(tmp_path)
    index.write_text(json.dumps(whole))
    tensorfile.write(tmp_path / second, [*entries[9:], entries[0]])
    assert f"tensor {name!r} is in {first} too" in refused(tmp_path)
