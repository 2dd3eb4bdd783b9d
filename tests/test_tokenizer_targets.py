"""The same ids on wasm and bare metal: every real tokenizer in a small random model, one text of many scripts."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from colibri import targets
from colibri.engine import Limits, Model
from colibri.jobs import Job
from colibri.synth import Spec, write_random_blob
from colibri.tokenizer import build_tokenizer_section
from test_tokenizer_files import NAMES, _documents
from tokenizer_texts import corpus
from tokenizers import Tokenizer

pytestmark = pytest.mark.all
TEXTS = 60
OTHERS = ("linux", "wasm", "baremetal")


def _text() -> str:
    """Many scripts, emoji, code and spaces in one text without NUL."""
    joined = "\n".join(data.decode("utf-8", "replace") for data in corpus(TEXTS, 9, []))
    return joined.replace("\0", "")[:6000]


@pytest.mark.parametrize("name", NAMES)
def test_same_ids_everywhere(name: str, tmp_path: Path) -> None:
    document, settings = _documents(name)
    section = build_tokenizer_section(document, settings)
    document["truncation"] = document["padding"] = None
    library = Tokenizer.from_str(json.dumps(document))
    vocab = library.get_vocab_size(with_added_tokens=True)
    vocab = max(vocab, max(library.get_vocab(with_added_tokens=True).values()) + 1)
    spec = Spec(vocab=vocab, hidden=16, layers=1, heads=1, kv_heads=1, head_dim=16, ff=16, tied=True)
    path = tmp_path / f"{name}.colibri"
    write_random_blob(path, spec, seed=1, kinds="q4", texts={"TOKENIZER": section})
    text = _text()
    expected = library.encode(text, add_special_tokens=False).ids
    limits = Limits(context=len(expected) + 1, batch=1, text_bytes=2 * len(text.encode()))
    job = Job(f"ids of {name}", limits, text=text, special=True, encode_only=True, digest=False)
    model = Model.open(path)
    for target in targets.pick(list(OTHERS)):
        how = target.missing()
        if how:
            pytest.skip(f"target {target.name}: {how}")
        result = target.run(job, model)
        assert result.error is None, result.error
        assert result.prompt == expected, target.name
    print(f"{name}: {len(expected)} ids equal on {', '.join(OTHERS)}")
