"""From a description to a layout: which tensors must exist, in which kind, and where everything lies."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, fields, replace
from typing import Any

from .description import EVERY_LAYER, Layer, Model, Rope, layer_records, model_records
from .errors import InternalError, UsageError
from .library import constants, ffi, load, values

__all__ = [
    "EVERY_LAYER",
    "KINDS",
    "PRESETS",
    "Kinds",
    "Layer",
    "Layout",
    "Model",
    "Rope",
    "Run",
    "Section",
    "Tensor",
    "align",
    "kind_value",
    "packed_bytes",
    "required",
]

KINDS = ("f32", "f16", "q8", "q4")
PRESETS = (*KINDS, "q4-all")
DRAFT_NORMS = ("DRAFT_EMBED_NORM", "DRAFT_HIDDEN_NORM", "DRAFT_FINAL_NORM")


@dataclass(frozen=True)
class Kinds:
    """The weight kind of every group of tensors; router, gates, norms and biases are always f32."""

    embed: str = "q8"
    head: str = "q8"
    attention: str = "q8"
    ffn: str = "q8"
    shared: str = "q8"
    experts: str = "q8"

    @classmethod
    def preset(cls, weights: str, **overrides: str | None) -> Kinds:
        """What --weights means: one kind everywhere; q4 means experts and dense FFN, the rest stays q8; q4-all
        means q4 everywhere."""
        if weights not in PRESETS:
            raise UsageError(f"--weights {weights}: expected one of {', '.join(PRESETS)}")
        kind = weights.removesuffix("-all")
        base = cls(ffn="q4", experts="q4") if weights == "q4" else cls(*[kind] * len(fields(cls)))
        for name, kind in overrides.items():
            if kind is not None and kind not in KINDS:
                raise UsageError(f"--{name} {kind}: expected one of {', '.join(KINDS)}")
        return replace(base, **{name: kind for name, kind in overrides.items() if kind is not None})

    @staticmethod
    def group(role: str) -> str:
        """The group a role belongs to; empty for what is always f32."""
        return _GROUPS.get(role, "")

    def of(self, role: str) -> str:
        """The kind of one role's matrices."""
        group = self.group(role)
        return getattr(self, group) if group else "f32"


_GROUPS = {
    "EMBED": "embed",
    "HEAD": "head",
    "Q": "attention",
    "K": "attention",
    "V": "attention",
    "O": "attention",
    "Q_A": "attention",
    "DRAFT_JOIN": "attention",
    "K_UP": "attention",
    "V_UP": "attention",
    "HEAD_GATE": "attention",
    "INDEX_Q": "attention",
    "INDEX_K": "attention",
    "GATE": "ffn",
    "UP": "ffn",
    "DOWN": "ffn",
    "EXPERT_GATE": "experts",
    "EXPERT_UP": "experts",
    "EXPERT_DOWN": "experts",
    "SHARED_GATE": "shared",
    "SHARED_UP": "shared",
    "SHARED_DOWN": "shared",
}


@dataclass(frozen=True)
class Tensor:
    """One entry of the tensor table."""

    role: str
    layer: int
    rows: int
    columns: int
    vector: bool = False
    count: int = 1
    second_role: str = ""
    kind: str = "f32"
    offset: int = 0
    bytes: int = 0
    stride: int = 0

    @property
    def expert(self) -> bool:
        """Whether it lies in the EXPERTS section."""
        return self.role.startswith("EXPERT_")

    @property
    def label(self) -> str:
        """The way a sentence names it."""
        return self.role if self.layer == EVERY_LAYER else f"layer {self.layer} {self.role}"


def _attention_tensors(layer: Layer, number: int, hidden: int) -> Iterator[Tensor]:
    c = constants()
    wide, narrow = (
        layer.need("heads") * layer.need("head_dim"),
        layer.need("kv_heads") * layer.need("head_dim"),
    )

    def vector(role: str, columns: int) -> Tensor:
        return Tensor(role, number, 1, columns, vector=True)

    for role, rows, columns, bit in (
        ("Q", wide, hidden, c.BIAS_Q),
        ("K", narrow, hidden, c.BIAS_K),
        ("V", narrow, hidden, c.BIAS_V),
        ("O", hidden, wide, c.BIAS_O),
    ):
        yield Tensor(role, number, rows, columns)
        if (layer.biases or 0) & bit:
            yield vector(role + "_BIAS", rows)
    if layer.head_gates:
        gates = wide if layer.head_gates == c.HEAD_GATES_ELEMENT else layer.need("heads")
        yield Tensor("HEAD_GATE", number, gates, hidden)
    if layer.qk_norm and layer.qk_norm != c.QK_NORM_L2_AFTER_ROPE:
        whole = layer.qk_norm == c.QK_NORM_WIDTH
        yield vector("Q_NORM", wide if whole else layer.need("head_dim"))
        yield vector("K_NORM", narrow if whole else layer.need("head_dim"))


def _latent_tensors(layer: Layer, number: int, hidden: int) -> Iterator[Tensor]:
    c = constants()
    heads, latent, v_dim = layer.need("heads"), layer.need("latent"), layer.need("v_dim")
    key, first = latent + layer.need("rope_dim"), layer.q_latent or hidden
    matrices = [
        ("Q", heads * (layer.need("nope_dim") + layer.need("rope_dim")), first),
        ("K", key, hidden),
        ("O", hidden, heads * v_dim),
        ("K_UP", heads * latent, layer.need("nope_dim")),
        ("V_UP", heads * v_dim, latent),
    ]
    vectors = [("K_NORM", latent)]
    if layer.q_latent:
        matrices.append(("Q_A", layer.q_latent, hidden))
        vectors.append(("Q_NORM", layer.q_latent))
    if layer.index_heads:
        width = layer.need("index_dim")
        matrices.append(("INDEX_Q", layer.index_heads * width, layer.need("q_latent")))
        matrices += [("INDEX_K", width, hidden), ("INDEX_WEIGHT", layer.index_heads, hidden)]
        vectors += [("INDEX_K_NORM", width), ("INDEX_K_SHIFT", width)]
    biases = (("Q_BIAS", layer.q_latent or 0, c.BIAS_Q), ("K_BIAS", key, c.BIAS_K), ("O_BIAS", hidden, c.BIAS_O))
    vectors += [(role, width) for role, width, bit in biases if (layer.biases or 0) & bit]
    for role, rows, columns in matrices:
        yield Tensor(role, number, rows, columns)
    for role, columns in vectors:
        yield Tensor(role, number, 1, columns, vector=True)


def _layer_tensors(layer: Layer, number: int, hidden: int) -> Iterator[Tensor]:
    if layer.draft:
        yield from (Tensor(role, number, 1, hidden, vector=True) for role in DRAFT_NORMS)
        yield Tensor("DRAFT_JOIN", number, hidden, 2 * hidden)
    yield Tensor("ATTENTION_NORM", number, 1, hidden, vector=True)
    yield from _extra_vectors(layer, number, hidden)
    yield from (_latent_tensors if layer.latent else _attention_tensors)(layer, number, hidden)
    yield Tensor("FFN_NORM", number, 1, hidden, vector=True)
    if not layer.moe:
        yield from _gated("", number, layer.need("ff"), hidden, 1)
        return
    yield Tensor("ROUTER", number, layer.need("experts"), hidden)
    if layer.router_bias:
        yield Tensor("ROUTER_BIAS", number, 1, layer.need("experts"), vector=True)
    yield from _gated("EXPERT_", number, layer.need("ff"), hidden, layer.need("experts"))
    if layer.shared_ff:
        yield from _gated("SHARED_", number, layer.shared_ff, hidden, 1)
        if layer.shared_gate:
            yield Tensor("SHARED_SWITCH", number, 1, hidden)


def _extra_vectors(layer: Layer, number: int, hidden: int) -> Iterator[Tensor]:
    """Vectors of switches that few models have."""
    c = constants()
    experts, ff = layer.need("experts") if layer.moe else 1, layer.need("ff")
    biases, posts = layer.ffn_biases or 0, layer.post_norms or 0
    biased, conv = layer.norm == c.NORM_LAYER_BIAS, layer.attention == c.ATTENTION_CONV
    channels, taps = layer.need("head_dim"), (layer.window or 0) if conv else 0
    for role, there, columns in (
        ("FFN_GATE_BIAS", biases & c.FFN_BIAS_GATE, experts * ff),
        ("FFN_UP_BIAS", biases & c.FFN_BIAS_UP, experts * ff),
        ("FFN_DOWN_BIAS", biases & c.FFN_BIAS_DOWN, experts * hidden),
        ("TAPS", taps, channels * taps),
        ("TAPS_BIAS", (layer.biases or 0) & c.BIAS_TAPS, channels),
        ("SINKS", layer.sinks, layer.need("heads")),
        ("ATTENTION_NORM_BIAS", biased, hidden),
        ("FFN_NORM_BIAS", biased, hidden),
        ("POST_ATTENTION_NORM", posts & c.POST_NORM_ATTENTION, hidden),
        ("POST_FFN_NORM", posts & c.POST_NORM_FFN, hidden),
    ):
        if there:
            yield Tensor(role, number, 1, columns, vector=True)


def _gated(prefix: str, number: int, ff: int, hidden: int, count: int) -> Iterator[Tensor]:
    for part, rows, columns in (("GATE", ff, hidden), ("UP", ff, hidden), ("DOWN", hidden, ff)):
        yield Tensor(prefix + part, number, rows, columns, count=count)


def required(model: Model) -> list[Tensor]:
    """The tensors a description needs, in table order: the model's, then layer by layer, by role."""
    out = [
        Tensor("EMBED", EVERY_LAYER, model.vocab, model.hidden, second_role="HEAD" if model.tied else ""),
        Tensor("FINAL_NORM", EVERY_LAYER, 1, model.hidden, vector=True),
    ]
    if model.final_norm == constants().NORM_LAYER_BIAS:
        out.append(Tensor("FINAL_NORM_BIAS", EVERY_LAYER, 1, model.hidden, vector=True))
    if model.head_bias:
        out.append(Tensor("HEAD_BIAS", EVERY_LAYER, 1, model.vocab, vector=True))
    if not model.tied:
        out.append(Tensor("HEAD", EVERY_LAYER, model.vocab, model.hidden))
    for number, layer in enumerate(model.all_layers):
        out.extend(_layer_tensors(layer, number, model.hidden))
        if layer.moe and layer.router_by_token:
            out.append(Tensor("TOKEN_ROUTES", number, 1, model.vocab * layer.need("top_k"), vector=True))
    order = values("colibri_role")
    return sorted(out, key=lambda t: (t.layer != EVERY_LAYER, t.layer, order[t.role]))


def kind_value(kind: str) -> int:
    """The number of a kind's name."""
    return values("colibri_kind")[kind.upper()]


def packed_bytes(kind: str, rows: int, columns: int) -> int:
    """Bytes of one packed matrix, asked from the core."""
    size = int(load().colibri_packed_bytes(kind_value(kind), rows, columns))
    if not size:
        raise InternalError(f"the core packs no {kind} matrix of {rows} x {columns}")
    return size


def align(value: int, step: int) -> int:
    """The next multiple of step."""
    return -(-value // step) * step


@dataclass(frozen=True)
class Run:
    """The experts of one layer: where the first run begins, and how far apart they are."""

    layer: int
    experts: int
    offset: int
    bytes: int
    tensors: tuple[Tensor, ...]


@dataclass
class Section:
    """One row of the section table; sums are filled in by the writer."""

    type: str
    offset: int
    payload: int
    bytes: int = 0
    count: int = 0
    record_bytes: int = 0
    crc: int = 0
    digest: Any = b"\0" * 16


class Layout:
    """Where everything lies. `texts` are the small data sections that follow the weights, by section name."""

    TABLES = ("MODEL", "LAYERS", "TENSORS", "EXPERT_SUMS", "ROPE", "ROPE_FRACTIONS")
    TEXTS = ("TOKENIZER", "CHAT_TEMPLATE", "GENERATION", "PROVENANCE")

    def __init__(self, model: Model, kinds: Kinds, texts: dict[str, bytes]) -> None:
        c = constants()
        sized = [self._sized(tensor, kinds, len(model.layers)) for tensor in required(model)]
        copies = {"layers": [replace(own) for own in model.layers], "drafts": [replace(own) for own in model.drafts]}
        self.model = replace(model, **copies)
        for number, layer in enumerate(self.model.all_layers):
            if layer.moe:
                layer.expert_run = self._run_bytes([t for t in sized if t.expert and t.layer == number])
        self.texts = {name: texts[name] for name in self.TEXTS if texts.get(name)}
        self.sections: list[Section] = []
        self.runs: list[Run] = []
        self.tensors: list[Tensor] = []
        self._place_tables(len(sized))
        self.tables_bytes = self._end
        self._place_resident([t for t in sized if not t.expert])
        self._place_experts([t for t in sized if t.expert])
        for name, data in self.texts.items():
            size = ffi().sizeof("colibri_record") if name == "GENERATION" else 0
            self._add(name, len(data), c.TENSOR_ALIGN, len(data) // size if size else 0, size)
        last = self.sections[-1]
        last.bytes = last.payload
        self.file_bytes = last.offset + last.bytes
        order = values("colibri_role")
        self.tensors.sort(key=lambda t: (t.layer != EVERY_LAYER, t.layer, order[t.role]))

    @staticmethod
    def _sized(tensor: Tensor, kinds: Kinds, layers: int) -> Tensor:
        """In a draft layer q8 stands for q4: guesses of 4-bit layers are seldom the model's own."""
        kind = "f32" if tensor.vector else kinds.of(tensor.role)
        if kind == "q4" and layers <= tensor.layer < EVERY_LAYER:
            kind = "q8"
        size = 4 * tensor.columns if tensor.vector else packed_bytes(kind, tensor.rows, tensor.columns)
        return replace(tensor, kind=kind, bytes=size)

    @staticmethod
    def _run_bytes(tensors: list[Tensor]) -> int:
        c = constants()
        return align(sum(align(t.bytes, c.TENSOR_ALIGN) for t in tensors), c.EXPERT_ALIGN)

    @property
    def _end(self) -> int:
        return self.sections[-1].offset + self.sections[-1].bytes

    def _add(self, name: str, payload: int, start: int, count: int = 0, record_bytes: int = 0) -> Section:
        """Append a section that begins at a multiple of `start`: the one before it takes the padding."""
        if self.sections:
            last = self.sections[-1]
            offset = align(last.offset + last.payload, start)
            last.bytes = offset - last.offset
        else:
            offset = self._first
        made = Section(name, offset, payload, payload, count, record_bytes)
        self.sections.append(made)
        return made

    def _place_tables(self, tensors: int) -> None:
        c, size = constants(), ffi().sizeof
        model = self.model
        sums = sum(layer.need("experts") for layer in model.all_layers if layer.moe)
        fractions = sum(len(rope.fractions) for rope in model.ropes)
        rows = (
            ("MODEL", len(model_records(model)), size("colibri_record")),
            ("LAYERS", len(layer_records(model.all_layers)), size("colibri_record")),
            ("TENSORS", tensors, size("colibri_tensor")),
            ("EXPERT_SUMS", sums, size("colibri_expert_sum")),
            ("ROPE", len(model.ropes), size("colibri_rope")),
            ("ROPE_FRACTIONS", fractions, size("uint64_t")),
        )
        present = [row for row in rows if row[1]]
        number = len(present) + 1 + (sums > 0) + len(self.texts)
        self._first = size("colibri_blob_header") + number * size("colibri_section")
        for name, count, each in present:
            self._add(name, count * each, 8, count, each)
        last = self.sections[-1]
        last.bytes = align(last.offset + last.payload, c.TENSOR_ALIGN) - last.offset

    def _place_resident(self, tensors: list[Tensor]) -> None:
        step = constants().TENSOR_ALIGN
        offset = self._end
        for tensor in tensors:
            offset = align(offset, step)
            self.tensors.append(replace(tensor, offset=offset))
            offset += tensor.bytes
        self._add("RESIDENT", offset - self._end, step)

    def _place_experts(self, tensors: list[Tensor]) -> None:
        c = constants()
        moe = [(number, layer) for number, layer in enumerate(self.model.all_layers) if layer.moe]
        if not moe:
            return
        section = self._add(
            "EXPERTS", sum(la.need("experts") * la.need("expert_run") for _, la in moe), c.EXPERT_ALIGN
        )
        offset = section.offset
        for number, layer in moe:
            inside, placed = 0, []
            for tensor in (t for t in tensors if t.layer == number):
                placed.append(replace(tensor, offset=offset + inside, stride=layer.need("expert_run")))
                inside += align(tensor.bytes, c.TENSOR_ALIGN)
            self.tensors.extend(placed)
            self.runs.append(
                Run(number, layer.need("experts"), offset, layer.need("expert_run"), tuple(placed))
            )
            offset += layer.need("experts") * layer.need("expert_run")
