"""A Hugging Face checkpoint becomes one blob: description, weights in strips, tokenizer, template, defaults.

The result depends on the checkpoint's content and the options alone: no dates, no paths, no host.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from . import calibrate, latent
from .blobwriter import Written, check_target, write_blob
from .description import EVERY_LAYER, Model
from .errors import ConvertError, UsageError
from .families import Described, describe
from .family_table import IGNORED_TENSORS
from .format import Kinds, Tensor, required
from .library import version
from .parts import join_parts, write_part
from .places import Place, Places, used_names
from .safetensors_reader import Checkpoint, Entry
from .sidefiles import texts_of
from .source import Folder, Source
from .unfinished import Unfinished, Work

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
    source_name: str = ""  # in the provenance; default: the folder's name or the hub's id
    router: str = "float"  # or "int": the integer router
    router_text: str = ""  # what its spans are calibrated on; empty: calibrate.TEXT

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
        self.places = Places(checkpoint, described.float8_blocks)

    def place(self, tensor: Tensor, expert: int) -> Place:
        return self.described.place(tensor, expert, self.checkpoint.entries)

    def entry(self, tensor: Tensor, expert: int) -> Entry:
        return self.places.expect(self.place(tensor, expert))

    def rows(self, tensor: Tensor, expert: int, first: int, count: int) -> np.ndarray:
        tensor_place = self.place(tensor, expert)
        if tensor.role in latent.FACTORS:
            layer = self.described.model.layers[tensor.layer]

            def read(first: int, count: int) -> np.ndarray:
                return self.places.rows(tensor_place, first, count, layer.need("latent"))

            return latent.factor_rows(read, layer, tensor.role, first, count)
        return self.places.rows(tensor_place, first, count, tensor.columns)

    def name(self, tensor: Tensor, expert: int) -> str:
        entry = self.entry(tensor, expert)
        return f"{entry.file}: tensor {entry.name!r}"

    def check(self, model: Model, strict: bool) -> None:
        """Every tensor that is needed is there in its shape, and (strict) nothing else is."""
        used = set()
        for tensor in required(model):
            for expert in range(tensor.count):
                self.entry(tensor, expert)
                used |= used_names(self.place(tensor, expert), self.checkpoint.entries)
        if model.tied:
            used |= self._second_head(model)
        if not strict:
            return
        for name, entry in self.checkpoint.entries.items():
            if name not in used and not IGNORED_TENSORS.fullmatch(name) and not self.described.draft(name):
                raise ConvertError(
                    f"{entry.file}: tensor {entry.name!r} belongs to nothing that config.json describes; "
                    "weights and config do not belong together, or a newer Colibri may know it"
                )

    def _second_head(self, model: Model) -> set[str]:
        """Some checkpoints store a tied head once more: fine as long as it says the same."""
        head = Tensor("HEAD", EVERY_LAYER, model.vocab, model.hidden)
        name = self.described.place(head, 0, self.checkpoint.entries).name
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


def read_document(path: Path) -> dict[str, Any]:
    """The JSON object of a config.json that stands alone."""
    return Folder(Path(path).parent).document(Path(path).name)


def _provenance(described: Described, options: ConvertOptions, kinds: Kinds, source: Source) -> bytes:
    document = {
        "source": options.source_name or source.name,
        "model_type": described.model_type,
        "weights": options.weights,
        "kinds": vars(kinds),
        "tool": f"colibri {version()}",
    }
    if options.router != "float":
        document["router"] = options.router
    if source.revision:
        document["revision"] = source.revision
    return json.dumps(document, sort_keys=True, separators=(",", ":"), ensure_ascii=False).encode()


def _router_words(options: ConvertOptions) -> dict[str, str]:
    if options.router == "float":
        return {}
    return {"router": options.router, "text": hashlib.sha256(options.router_text.encode()).hexdigest()}


def _about(source: Source, checkpoint: Checkpoint, options: ConvertOptions, kinds: Kinds) -> dict[str, Any]:
    """What an interrupted conversion, or a part, must agree in with the one that goes on."""
    return {
        "source": options.source_name or source.name,
        "revision": source.revision,
        "weights": source.content(checkpoint.files),
        "options": {**vars(kinds), "tokenizer": options.tokenizer, **_router_words(options)},
        "tool": f"colibri {version()}",
    }


@dataclass(frozen=True)
class _Prepared:
    """A conversion before its first strip: everything is checked but the values of the weights."""

    described: Described
    kinds: Kinds
    weights: _Weights
    texts: dict[str, bytes]
    about: dict[str, Any]
    stamp: str


Patch = Callable[[Model], Model | None]


@contextmanager
def _prepared(
    source: Source | Path, options: ConvertOptions, work: Work, patch: Patch | None = None
) -> Iterator[_Prepared]:
    with source if isinstance(source, Source) else Folder(source) as files:
        config = files.document("config.json")
        described = describe(config, files.subject("config.json"))
        if options.router == "int":
            integer = calibrate.integer_routers(described.model, files.subject("config.json"))
            described = replace(described, model=integer)
        if patch:
            described = replace(described, model=patch(described.model) or described.model)
        kinds = options.kinds(described.model.tied)
        checkpoint = Checkpoint(files, work.profile)
        weights = _Weights(checkpoint, described)
        weights.check(described.model, strict=patch is None)
        with work.profile("texts"):
            texts = texts_of(files, config, options.tokenizer, described.model.vocab)
        texts["PROVENANCE"] = _provenance(described, options, kinds, files)
        about = _about(files, checkpoint, options, kinds)
        yield _Prepared(described, kinds, weights, texts, about, files.stamp(checkpoint.files))
        work.profile.stop()


def convert(
    source: Source | Path,
    output: Path,
    options: ConvertOptions | None = None,
    patch_description: Patch | None = None,
    work: Work | None = None,
) -> ConvertResult:
    """Convert a source (a Path is a folder) with config.json, safetensors and tokenizer.json.

    Interrupted, the same call goes on. patch_description may change the description before anything is
    written (tests set wrong switches with it); tensors that are then left over are not an error.
    """
    options, work = options or ConvertOptions(), work or Work()
    if not Unfinished.journal_path(Path(output)).exists():  # else it may be the end of this very conversion
        check_target(Path(output), options.overwrite)
    with _prepared(source, options, work, patch_description) as made:
        about = {**made.about, "times of the files": made.stamp}
        written = write_blob(
            output,
            made.described.model,
            made.kinds,
            made.weights,
            made.texts,
            options.overwrite,
            about,
            work,
            _settle(options, work),
        )
    return _result(written, made)


def convert_share(
    source: Source | Path, output: Path, options: ConvertOptions, share: tuple[int, int], work: Work
) -> Path:
    """Make one part, (2, 8) is the second of eight; returns its path. Copies of a source count as one."""
    with _prepared(source, options, work) as made:
        return write_part(
            Path(output),
            made.described.model,
            made.kinds,
            made.weights,
            made.texts,
            share,
            options.overwrite,
            made.about,
            work,
        )


def join(source: Source | Path, output: Path, options: ConvertOptions, work: Work) -> ConvertResult:
    """Put the parts of a conversion together; the source says what they must be."""
    with _prepared(source, options, work) as made:
        written = join_parts(
            Path(output),
            made.described.model,
            made.kinds,
            made.texts,
            options.overwrite,
            made.about,
            work,
            _settle(options, work),
        )
    return _result(written, made)


def _settle(options: ConvertOptions, work: Work) -> Callable[[Path, Model], None] | None:
    """The spans of the integer router come from the finished weights."""
    if options.router != "int":
        return None

    def settle(path: Path, model: Model) -> None:
        work.note(calibrate.calibrate(path, model, options.router_text))

    return settle


def _result(written: Written, made: _Prepared) -> ConvertResult:
    sizes = {name: len(data) for name, data in made.texts.items() if data}
    return ConvertResult(written, made.described, made.kinds, sizes)
