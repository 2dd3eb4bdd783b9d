"""A Hugging Face folder becomes one blob: description, weights in strips, tokenizer, template, defaults.

The result depends on the folder's content and the options alone: no dates, no paths, no host.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from dataclasses import dataclass, replace
from decimal import Decimal
from pathlib import Path
from typing import Any

import numpy as np

from .blobwriter import Progress, Written, write_blob
from .description import EVERY_LAYER, Model, record
from .errors import ConvertError, UsageError
from .families import Described, describe
from .family_table import IGNORED_TENSORS
from .format import Kinds, Tensor, required
from .library import values, version
from .safetensors_reader import Checkpoint, Entry, parse_json
from .tables import pack_struct

COMPARE = 1 << 20  # numbers compared at a time where a tied head is there twice


@dataclass(frozen=True)
class ConvertOptions:
    """What the command line may ask for."""

    weights: str = "q8"
    embed: str | None = None
    head: str | None = None
    attention: str | None = None
    ffn: str | None = None  # dense feed-forward and shared experts
    experts: str | None = None
    tokenizer: bool = True  # False: a blob that takes token ids only
    overwrite: bool = False
    source_name: str = ""  # in the provenance; default: the folder's name
    threads: int | None = None

    def kinds(self, tied: bool) -> Kinds:
        """The kind of every group of tensors; a tied head has one kind with the embedding."""
        kinds = Kinds.preset(
            self.weights,
            embed=self.embed,
            head=self.head,
            attention=self.attention,
            ffn=self.ffn,
            shared=self.ffn,
            experts=self.experts,
        )
        if not tied:
            return kinds
        if self.embed and self.head and self.embed != self.head:
            raise UsageError(
                f"--embed {self.embed} and --head {self.head}: the model ties both to one tensor; give "
                "them the same kind"
            )
        one = self.embed or self.head or kinds.embed
        return replace(kinds, embed=one, head=one)


@dataclass(frozen=True)
class ConvertResult:
    """A finished conversion."""

    written: Written
    described: Described
    kinds: Kinds
    texts: dict[str, int]  # section name -> bytes

    @property
    def path(self) -> Path:
        """The blob."""
        return self.written.path


class _Weights:
    """The checkpoint as the blob writer wants it."""

    def __init__(self, checkpoint: Checkpoint, described: Described) -> None:
        self.checkpoint, self.described = checkpoint, described

    def shape(self, tensor: Tensor) -> tuple[int, ...]:
        return (tensor.columns,) if tensor.vector else (tensor.rows, tensor.columns)

    def entry(self, tensor: Tensor, expert: int) -> Entry:
        return self.checkpoint.expect(self.described.tensor_name(tensor, expert), self.shape(tensor))

    def rows(self, tensor: Tensor, expert: int, first: int, count: int) -> np.ndarray:
        flat = self.checkpoint.floats(
            self.entry(tensor, expert), first * tensor.columns, count * tensor.columns
        )
        return flat.reshape(count, tensor.columns)

    def name(self, tensor: Tensor, expert: int) -> str:
        entry = self.entry(tensor, expert)
        return f"{entry.file}: tensor {entry.name!r}"

    def check(self, model: Model, strict: bool) -> None:
        """Every tensor that is needed is there in its shape, and (strict) nothing else is."""
        used = set()
        for tensor in required(model):
            for expert in range(tensor.count):
                used.add(self.entry(tensor, expert).name)
        if model.tied:
            used |= self._second_head(model)
        used |= self._zeros()
        if not strict:
            return
        for name, entry in self.checkpoint.entries.items():
            if name not in used and not IGNORED_TENSORS.fullmatch(name):
                raise ConvertError(
                    f"{entry.file}: tensor {name!r} belongs to nothing that config.json describes; "
                    "weights and config do not belong together, or a newer Colibri may know it"
                )

    def _zeros(self) -> set[str]:
        """Tensors whose effect the core does not compute: fine as long as they have none."""
        found = {
            name: shape for name, shape in self.described.zero_tensors() if name in self.checkpoint.entries
        }
        for name, shape in found.items():
            entry = self.checkpoint.expect(name, shape)
            if self.checkpoint.floats(entry, 0, int(np.prod(shape))).any():
                raise ConvertError(
                    f"{entry.file}: tensor {name!r} is not zero; this version's router has no correction bias"
                )
        return set(found)

    def _second_head(self, model: Model) -> set[str]:
        """Some checkpoints store a tied head once more: fine as long as it says the same."""
        head = Tensor("HEAD", EVERY_LAYER, model.vocab, model.hidden)
        name = self.described.tensor_name(head)
        if name not in self.checkpoint.entries:
            return set()
        two = self.entry(head, 0), self.entry(Tensor("EMBED", EVERY_LAYER, model.vocab, model.hidden), 0)
        total = model.vocab * model.hidden
        for first in range(0, total, COMPARE):
            count = min(COMPARE, total - first)
            a, b = (self.checkpoint.floats(entry, first, count) for entry in two)
            if not np.array_equal(a.view(np.uint32), b.view(np.uint32)):
                raise ConvertError(
                    f"{two[0].file}: tensor {name!r} differs from the embedding, but config.json says "
                    "tie_word_embeddings; set it to false or remove the tensor"
                )
        return {name}


def read_document(path: Path, needed: bool = True, fraction: type = Decimal) -> dict[str, Any]:
    """A JSON object; an absent one is {} unless it is needed."""
    if not path.is_file():
        if needed:
            raise ConvertError(f"{path}: is missing; give the folder of a Hugging Face model")
        return {}
    try:
        document = parse_json(path.read_bytes(), str(path), fraction)
    except OSError as error:
        raise ConvertError(f"{path}: cannot be read ({error.strerror}); check the folder") from None
    if not isinstance(document, dict):
        raise ConvertError(f"{path}: is not a JSON object; fetch it again")
    return document


def _tokenizer(folder: Path, settings: dict[str, Any], vocab: int) -> bytes:
    from .tokenizer import build_tokenizer_section

    path = folder / "tokenizer.json"
    if not path.is_file():
        raise ConvertError(
            f"{path}: is missing; fetch it, or give --no-tokenizer for a blob that takes token ids only"
        )
    document = read_document(path, fraction=float)
    entries = document.get("model", {}).get("vocab", {})
    ids = list(entries.values()) if isinstance(entries, dict) else list(range(len(entries)))
    ids += [token.get("id") for token in document.get("added_tokens") or []]
    highest = max((i for i in ids if isinstance(i, int)), default=-1)
    if highest >= vocab:
        raise ConvertError(
            f"{path}: has a token with id {highest}, config.json says vocab_size {vocab}; tokenizer and "
            "weights do not belong together"
        )
    return build_tokenizer_section(document, settings)


def _chat_template(folder: Path, settings: dict[str, Any]) -> str:
    """chat_template.jinja, else the (default) template of tokenizer_config.json."""
    path = folder / "chat_template.jinja"
    if path.is_file():
        return path.read_text(encoding="utf-8")
    template = settings.get("chat_template") or ""
    if isinstance(template, list):
        named = {t.get("name"): t.get("template") for t in template if isinstance(t, dict)}
        template = named.get("default") or ""
    if not isinstance(template, str):
        raise ConvertError(
            f"{folder / 'tokenizer_config.json'}: chat_template is neither a text nor a list with a "
            "default; fetch it again"
        )
    return template


def _ids(document: dict[str, Any], key: str, vocab: int, subject: Path) -> list[int]:
    value = document.get(key)
    listed = value if isinstance(value, list) else [] if value is None else [value]
    for one in listed:
        if not isinstance(one, int) or isinstance(one, bool) or not 0 <= one < vocab:
            raise ConvertError(f"{subject}: {key} is {one!r}; expected a token id below {vocab}")
    return listed


_SAMPLING = {
    "temperature": ("TEMPERATURE", 0, None),
    "top_k": ("TOP_K", 0, None),
    "top_p": ("TOP_P", 0, 1),
    "min_p": ("MIN_P", 0, 1),
    "repetition_penalty": ("REPETITION", 0, None),
}


def generation_records(folder: Path, config: dict[str, Any], vocab: int) -> bytes:
    """End ids of both files; sampling defaults only where generation_config.json says that it samples."""
    path = folder / "generation_config.json"
    settings = read_document(path, needed=False)
    pairs: list[tuple[str, Any]] = []
    ends = set(_ids(settings, "eos_token_id", vocab, path))
    ends |= set(_ids(config, "eos_token_id", vocab, folder / "config.json"))
    pairs += [("END", end) for end in sorted(ends)]
    begins = _ids(settings, "bos_token_id", vocab, path) or _ids(
        config, "bos_token_id", vocab, folder / "config.json"
    )
    pairs += [("BOS", begin) for begin in begins[:1]]
    for name, (key, low, high) in _SAMPLING.items() if settings.get("do_sample") is True else ():
        value = settings.get(name)
        if value is None:
            continue
        if (
            isinstance(value, bool)
            or not isinstance(value, (int, Decimal))
            or value < low
            or (high and value > high)
        ):
            raise ConvertError(
                f"{path}: {name} is {value!r}; expected a number from {low}"
                + (f" to {high}" if high else " on")
            )
        pairs.append((key, int(value) if key == "TOP_K" else float(value)))
    order = values("colibri_generation_key")
    rows = [
        record("colibri_generation_key", key, value)
        for key, value in sorted(pairs, key=lambda p: order[p[0]])
    ]
    return b"".join(pack_struct("record", **row) for row in rows)


def _provenance(described: Described, options: ConvertOptions, kinds: Kinds, name: str) -> bytes:
    document = {
        "source": name,
        "model_type": described.model_type,
        "weights": options.weights,
        "kinds": vars(kinds),
        "tool": f"colibri {version()}",
    }
    return json.dumps(document, sort_keys=True, separators=(",", ":"), ensure_ascii=False).encode()


def _texts(folder: Path, config: dict[str, Any], options: ConvertOptions, vocab: int) -> dict[str, bytes]:
    texts = {"GENERATION": generation_records(folder, config, vocab)}
    if options.tokenizer:
        settings = read_document(folder / "tokenizer_config.json", needed=False, fraction=float)
        texts["TOKENIZER"] = _tokenizer(folder, settings, vocab)
        texts["CHAT_TEMPLATE"] = _chat_template(folder, settings).encode()
    return texts


def convert(
    source: Path,
    output: Path,
    options: ConvertOptions | None = None,
    patch_description: Callable[[Model], Model | None] | None = None,
    progress: Progress | None = None,
) -> ConvertResult:
    """Convert a folder with config.json, safetensors and tokenizer.json.

    patch_description may change the description before anything is written (tests set wrong switches with
    it); tensors that are then left over are not an error.
    """
    folder, options = Path(source), options or ConvertOptions()
    if not folder.is_dir():
        raise ConvertError(f"{folder}: no such folder; give the folder of a Hugging Face model")
    config = read_document(folder / "config.json")
    described = describe(config, str(folder / "config.json"))
    if patch_description:
        described = replace(described, model=patch_description(described.model) or described.model)
    model = described.model
    kinds = options.kinds(model.tied)
    with Checkpoint(folder) as checkpoint:
        weights = _Weights(checkpoint, described)
        weights.check(model, strict=patch_description is None)
        texts = _texts(folder, config, options, model.vocab)
        name = options.source_name or re.sub(r"\s+", " ", folder.resolve().name)
        texts["PROVENANCE"] = _provenance(described, options, kinds, name)
        written = write_blob(
            output, model, kinds, weights, texts, progress, options.overwrite, options.threads
        )
    return ConvertResult(written, described, kinds, {key: len(data) for key, data in texts.items() if data})
