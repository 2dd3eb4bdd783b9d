"""What the tests of conversion share: small checkpoints to convert and to break."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from colibri.convert import ConvertOptions, convert
from colibri.errors import InputError
from oracles import cases, checkpoints, tensorfile

PLAIN = ConvertOptions(weights="f32", tokenizer=False)


def folder_of(case: str, folder: Path) -> Path:
    """A tiny checkpoint to break."""
    checkpoints.build(case, folder)
    return folder


def change_config(folder: Path, **fields: Any) -> None:
    """Set fields of config.json; a field set to ... is taken out."""
    path = folder / "config.json"
    config = {**json.loads(path.read_text()), **fields}
    path.write_text(json.dumps({k: v for k, v in config.items() if v is not ...}))


def entries_of(name: str) -> list[tensorfile.Entry]:
    """The tensors of a case, ready to be written."""
    case = cases.CASES[name]
    return [
        tensorfile.Entry(tensor, shape, case.dtype, lambda t=tensor, s=shape: checkpoints.values(case, t, s))
        for tensor, shape in checkpoints.tensors(case)
    ]


def refused(folder: Path, options: ConvertOptions = PLAIN) -> str:
    """Convert, expect one sentence and nothing left behind; returns the sentence."""
    target = folder / "out"
    target.mkdir(exist_ok=True)
    with pytest.raises(InputError) as caught:
        convert(folder, target / "model.colibri", options)
    assert list(target.iterdir()) == []
    sentence = str(caught.value)
    assert "\n" not in sentence and caught.value.exit_code == 3
    return sentence


def raw_file(path: Path, header: Any, data: bytes = bytes(64)) -> Path:
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    path.write_bytes(len(text).to_bytes(8, "little") + text + data)
    return path


def tensor(dtype: Any = "F32", shape: Any = (4, 4), span: Any = (0, 64)) -> dict[str, Any]:
    return {"dtype": dtype, "shape": list(shape) if isinstance(shape, tuple) else shape,
            "data_offsets": list(span) if isinstance(span, tuple) else span}  # fmt: skip


def small_tokenizer() -> dict[str, Any]:
    """A byte-level BPE of 260 tokens, as tokenizer.json spells it."""
    alphabet = [*range(33, 127), *range(161, 173), *range(174, 256)]
    letters = [chr(b) if b in alphabet else chr(256 + n) for n, b in enumerate(
        sorted(range(256), key=lambda b: (b in alphabet, b)))]  # fmt: skip
    vocab = {letter: number for number, letter in enumerate(letters)}
    vocab["th"], vocab["the"] = 256, 257
    steps = {"type": "ByteLevel", "trim_offsets": True, "use_regex": True}
    return {
        "version": "1.0", "truncation": None, "padding": None, "normalizer": None, "post_processor": None,
        "added_tokens": [{"id": 258, "content": "<|end|>", "special": True, "single_word": False,
                          "lstrip": False, "rstrip": False, "normalized": False}],
        "pre_tokenizer": {**steps, "add_prefix_space": False},
        "decoder": {**steps, "add_prefix_space": True},
        "model": {"type": "BPE", "dropout": None, "unk_token": None, "continuing_subword_prefix": None,
                  "end_of_word_suffix": None, "fuse_unk": False, "byte_fallback": False,
                  "vocab": vocab, "merges": [["t", "h"], ["th", "e"]]},
    }  # fmt: skip
