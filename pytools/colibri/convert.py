"""A Hugging Face checkpoint becomes one blob: description, weights in strips, tokenizer, template, defaults.

The result depends on the checkpoint's content and the options alone: no dates, no paths, no host.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from difflib import get_close_matches
from pathlib import Path
from typing import Any

import numpy as np

from . import latent
from .blobwriter import Written, check_target, write_blob
from .description import EVERY_LAYER, Model
from .errors import ConvertError, UsageError
from .families import Described, describe, text_part
from .family_table import IGNORED_TENSORS
from .format import Kinds, Tensor, required
from .library import version
from .parts import join_parts, write_part
from .places import Place, Places, used_names
from .safetensors_reader import Checkpoint, Entry, MissingTensor
from .sidefiles import texts_of
from .source import Folder, Source
from .unfinished import Unfinished, Work

COMPARE = 1 << 20  # numbers compared at a time where a tied head is there twice
NEAR = 2000  # names looked at for one that resembles a missing one


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
    expert_map: tuple[tuple[int, ...], ...] = ()  # see expert_map.py; empty: experts lie in order
    drafts: bool = True  # False: without layers that guess further tokens (MTP)
    overwrite: bool = False
    source_name: str = ""  # in the provenance; default: the folder's name or the hub's id

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
            layer = self.described.model.all_layers[tensor.layer]

            def read(first: int, count: int) -> np.ndarray:
                return self.places.rows(tensor_place, first, count, layer.need("latent"))

            return latent.factor_rows(read, layer, tensor.role, first, count)
        return self.places.rows(tensor_place, first, count, tensor.columns)

    def name(self, tensor: Tensor, expert: int) -> str:
        entry = self.entry(tensor, expert)
        return f"{entry.file}: tensor {entry.name!r}"

    def check(self, model: Model, strict: bool) -> list[str]:
        """Every tensor that is needed is there in its shape, and (strict) nothing else is but what is known to be
        left out: that is what comes back, counted."""
        used = set()
        for tensor in required(model):
            for expert in range(tensor.count):
                try:
                    self.entry(tensor, expert)
                except MissingTensor as missing:
                    raise ConvertError(f"{missing}; {self._remedy(model, tensor, expert)}") from None
                used |= used_names(self.place(tensor, expert), self.checkpoint.entries)
            for name in self.described.slot_names(tensor):
                used |= used_names(self.places.copy(name, tensor), self.checkpoint.entries)
        if model.tied:
            used |= self._second_head(model)
        for name, outer in self.described.draft_copies():
            used |= self._copy(model, name, outer)
        if not strict:
            return []
        out: Counter[str] = Counter()
        for name, entry in self.checkpoint.entries.items():
            if name in used or IGNORED_TENSORS.fullmatch(name):
                continue
            part = self.described.left_out(name)
            out[part] += 1
            if not part:
                raise ConvertError(
                    f"{entry.file}: tensor {entry.name!r} belongs to nothing that config.json describes; "
                    "weights and config do not belong together, or a newer Colibri may know it"
                )
        return [f"{count} tensors of {part}" for part, count in out.items()]

    def _remedy(self, model: Model, tensor: Tensor, expert: int) -> str:
        """What to do about a tensor that is not there: it may stand there under another name."""
        places = (self.place(t, e) for t in required(model) for e in range(t.count))
        wanted = {name for place in places for name in used_names(place, self.checkpoint.entries)}
        left = [name for name in self.checkpoint.entries if name not in wanted and not self.described.draft(name)]
        near = get_close_matches(self.place(tensor, expert).name, left[:NEAR], 1, 0.8)
        if near:
            return f"the model has no use for {near[0]!r}: `colibri match-keys` finds what else has another name"
        return "fetch the checkpoint again, or the config.json that belongs to it"

    def _second_head(self, model: Model) -> set[str]:
        """Some checkpoints store a tied head once more: fine as long as it says the same."""
        head = Tensor("HEAD", EVERY_LAYER, model.vocab, model.hidden)
        name = self.described.place(head, 0, self.checkpoint.entries).name
        if name not in self.checkpoint.entries:
            return set()
        embed = self.place(Tensor("EMBED", EVERY_LAYER, model.vocab, model.hidden), 0).name
        if not self._same(model, name, embed):
            raise ConvertError(
                f"{self.checkpoint.entries[name].file}: tensor {name!r} differs from the embedding, but config.json "
                "says tie_word_embeddings; set it to false or remove the tensor"
            )
        return {name}

    def _copy(self, model: Model, name: str, outer: str) -> set[str]:
        """A draft layer's own copy of the embedding or the head: the blob has one of each."""
        if name not in self.checkpoint.entries:
            return set()
        if not self._same(model, name, outer):
            raise ConvertError(
                f"{self.checkpoint.entries[name].file}: tensor {name!r} differs from {outer!r}, and a draft layer "
                "reads the model's own; give --no-drafts to leave draft layers out"
            )
        return {name}

    def _same(self, model: Model, one: str, other: str) -> bool:
        """Whether two tensors of embedding or head say the same."""
        shape = (model.vocab, model.hidden)
        two, total = [self.checkpoint.expect(name, shape) for name in (one, other)], model.vocab * model.hidden
        for first in range(0, total, COMPARE):
            a, b = (self.checkpoint.floats(entry, first, min(COMPARE, total - first)) for entry in two)
            if not np.array_equal(a.view(np.uint32), b.view(np.uint32)):
                return False
        return True


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
    if source.revision:
        document["revision"] = source.revision
    return json.dumps(document, sort_keys=True, separators=(",", ":"), ensure_ascii=False).encode()


def _about(source: Source, checkpoint: Checkpoint, options: ConvertOptions, kinds: Kinds) -> dict[str, Any]:
    """What an interrupted conversion, or a part, must agree in with the one that goes on."""
    return {
        "source": options.source_name or source.name,
        "revision": source.revision,
        "weights": source.content(checkpoint.files),
        "options": {**vars(kinds), "tokenizer": options.tokenizer, "drafts": options.drafts},
        "experts": [list(row) for row in options.expert_map],
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
        kinds = options.kinds(described.model.tied)
        checkpoint = Checkpoint(files, work.profile)
        described = described.with_drafts(options.drafts, checkpoint.entries)
        if options.expert_map:
            described = described.with_slots([list(row) for row in options.expert_map])
        if patch:
            described = replace(described, model=patch(described.model) or described.model)
        weights = _Weights(checkpoint, described)
        left_out = weights.check(described.model, strict=patch is None)
        if left_out:
            subject = files.subject("config.json")
            work.note(f"{subject}: left out are {', '.join(left_out)}; the text model is converted")
        with work.profile("texts"):
            texts = texts_of(files, text_part(config), options.tokenizer, described.model.vocab)
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
            output, made.described.model, made.kinds, made.weights, made.texts, options.overwrite, about, work
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
            Path(output), made.described.model, made.kinds, made.texts, options.overwrite, made.about, work
        )
    return _result(written, made)


def _result(written: Written, made: _Prepared) -> ConvertResult:
    sizes = {name: len(data) for name, data in made.texts.items() if data}
    return ConvertResult(written, made.described, made.kinds, sizes)
