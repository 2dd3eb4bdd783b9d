"""Reading a blob from Python: for `info`, for inspection and for tests. The engine reads it in C, in place.

`BlobFile` maps the file and asks the core's colibri_open to judge header and tables before it believes them.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from .description import EVERY_LAYER, Layer, Model, Rope, f32_of
from .errors import BlobError, Detail, InputError, InternalError
from .format import Kinds, Tensor
from .library import blob_error, constants, ffi, key_types, load, names

ALIGN = 64


def aligned_bytes(size: int) -> np.ndarray:
    """uint8 memory that begins at a multiple of 64, as the core wants a blob."""
    room = np.zeros(size + ALIGN, dtype=np.uint8)
    start = -room.ctypes.data % ALIGN
    return room[start : start + size]


class BlobFile:
    """One `.colibri` file, mapped."""

    def __init__(self, path: Path | str, check: bool = True) -> None:
        self.path = Path(path)
        self.data = self._map()
        if check:
            self._open()
        header = self._struct("blob_header", 0)
        c = constants()
        if header.magic != c.FORMAT_MAGIC or header.version != c.FORMAT_VERSION:
            raise BlobError(self.path, Detail("ERROR_MAGIC", "", "MAGIC", 0, 0, c.FORMAT_MAGIC, header.magic))
        self.file_bytes = int(header.file_bytes)
        self.tables_bytes = int(header.tables_bytes)
        self.identity = bytes(header.identity).hex()
        count = int(header.section_count)
        self.sections = self._array("section", int(header.header_bytes), count)
        kinds = names("colibri_section_type")
        self._named = {kinds.get(s.type, str(s.type)): s for s in self.sections}
        self.tensors = [self._tensor(t) for t in self._records("TENSORS", "tensor")]
        self._where = {}
        for tensor in self.tensors:
            self._where[tensor.role, tensor.layer] = tensor
            if tensor.second_role:
                self._where[tensor.second_role, tensor.layer] = tensor

    def _map(self) -> np.ndarray:
        try:
            if self.path.stat().st_size < constants().HEADER_BYTES:
                raise BlobError(
                    self.path,
                    Detail(
                        "ERROR_TRUNCATED",
                        "",
                        "FILE_BYTES",
                        0,
                        0,
                        constants().HEADER_BYTES,
                        self.path.stat().st_size,
                    ),
                )
            return np.memmap(self.path, dtype=np.uint8, mode="r")
        except OSError as error:
            raise InputError(
                f"{self.path}: cannot be read ({error.strerror}); give the path of a .colibri file"
            ) from None

    def _open(self) -> None:
        cffi = ffi()
        model, detail = cffi.new("colibri_model *"), cffi.new("colibri_detail *")
        size = len(self.data)
        status = load().colibri_open(model, cffi.from_buffer(self.data), size, size, detail)
        if status < 0:
            raise blob_error(self.path, detail)

    def _struct(self, name: str, offset: int) -> Any:
        return self._array(name, offset, 1)[0]

    def _array(self, name: str, offset: int, count: int) -> Any:
        cffi = ffi()
        end = offset + count * cffi.sizeof(f"colibri_{name}")
        if end > len(self.data):
            raise BlobError(
                self.path, Detail("ERROR_TRUNCATED", "", "FILE_BYTES", 0, offset, end, len(self.data))
            )
        return cffi.from_buffer(f"colibri_{name}[{count}]", self.data[offset:end])

    def section(self, name: str) -> bytes:
        """The payload of a section, empty if it is not there; for tables and texts, not for weights."""
        if name not in self._named:
            return b""
        found = self._named[name]
        return self.data[found.offset : found.offset + found.payload].tobytes()

    def _records(self, section: str, struct: str) -> Any:
        found = self._named.get(section)
        return self._array(struct, found.offset, found.count) if found is not None else []

    def _tensor(self, t: Any) -> Tensor:
        roles = names("colibri_role")
        return Tensor(
            roles.get(t.role, str(t.role)),
            t.layer,
            t.rows,
            t.columns,
            t.layout == constants().LAYOUT_VECTOR,
            t.count,
            roles.get(t.second_role, ""),
            names("colibri_kind").get(t.kind, str(t.kind)).lower(),
            t.offset,
            t.bytes,
            t.stride,
        )

    @staticmethod
    def _value(enum: str, record: Any) -> tuple[str, Any]:
        name = names(enum).get(record.key, str(record.key))
        if key_types(enum).get(name) == "f32":
            return name, f32_of(record.value)
        return name, int(record.value)

    def model(self) -> Model:
        """The description, as the writer was given it."""
        keys = dict(self._value("colibri_model_key", r) for r in self._records("MODEL", "record"))
        count, drafts = keys.pop("LAYERS"), keys.pop("DRAFT_LAYERS", 0)
        layers = [Layer() for _ in range(count + drafts)]
        for record in self._records("LAYERS", "record"):  # defaults come first, a layer's own record wins
            name, value = self._value("colibri_layer_key", record)
            for layer in layers if record.layer == EVERY_LAYER else [layers[record.layer]]:
                setattr(layer, name.lower(), value)
        fractions = np.frombuffer(self.section("ROPE_FRACTIONS"), dtype="<u8")
        ropes = [
            Rope(
                tuple(int(f) for f in fractions[r.first : r.first + r.pairs]),
                bool(r.interleaved),
                f32_of(r.amplitude),
            )
            for r in self._records("ROPE", "rope")
        ]
        tied = any(t.second_role == "HEAD" for t in self.tensors)
        return Model(
            **{name.lower(): value for name, value in keys.items()},
            tied=tied,
            layers=layers[:count],
            ropes=ropes,
            drafts=layers[count:],
        )

    @property
    def drafts_from(self) -> int:
        """The number of the first draft layer, were there one."""
        return dict(self._value("colibri_model_key", r) for r in self._records("MODEL", "record"))["LAYERS"]

    def draft_bytes(self) -> int:
        """Bytes of the weights of draft layers, with what lies between experts."""
        mine = [t for t in self.tensors if self.drafts_from <= t.layer < EVERY_LAYER]
        runs = sum(t.stride * t.count for t in mine if t.role == "EXPERT_GATE")
        return runs + sum(t.bytes for t in mine if not t.expert)

    def kinds(self) -> Kinds:
        """The kind of every group of tensors; a group without tensors has the default."""
        found: dict[str, str] = {}
        drafts = self.drafts_from
        for tensor in self.tensors:
            group = Kinds.group(tensor.role)
            if group and (tensor.layer == EVERY_LAYER or tensor.layer < drafts):
                found[group] = tensor.kind
        found.setdefault("head", found.get("embed", "q8"))
        return Kinds(**found)

    def find(self, role: str, layer: int = EVERY_LAYER) -> Tensor | None:
        """A tensor by its role (first or second)."""
        return self._where.get((role, layer))

    def packed(self, tensor: Tensor, expert: int = 0) -> np.ndarray:
        """The bytes of one matrix or vector, in place."""
        start = tensor.offset + expert * tensor.stride
        return self.data[start : start + tensor.bytes]

    def floats(self, tensor: Tensor, expert: int = 0) -> np.ndarray:
        """The float32 values that one matrix [rows, columns] or vector [columns] stands for."""
        raw = self.packed(tensor, expert)
        if tensor.vector:
            return np.frombuffer(raw.tobytes(), dtype="<f4").astype(np.float32)
        source = aligned_bytes(len(raw))
        source[:] = raw
        out = np.empty((tensor.rows, tensor.columns), dtype=np.float32)
        cffi = ffi()
        kind = getattr(constants(), "KIND_" + tensor.kind.upper())
        status = load().colibri_unpack(
            kind,
            tensor.rows,
            tensor.columns,
            cffi.from_buffer(source),
            cffi.from_buffer("float[]", out, require_writable=True),
        )
        if status != constants().OK:
            raise InternalError(f"{self.path}: {tensor.label}: colibri_unpack returned {status}")
        return out

    def matrices(self) -> Iterator[tuple[Tensor, int]]:
        """Every matrix and vector with its expert number, in the order of the tensor table."""
        for tensor in self.tensors:
            for expert in range(tensor.count):
                yield tensor, expert

    def chat_template(self) -> str:
        """The Jinja template, empty if there is none."""
        return self.section("CHAT_TEMPLATE").decode("utf-8")

    def provenance(self) -> dict[str, Any]:
        """Where the weights came from and what wrote them."""
        text = self.section("PROVENANCE")
        return json.loads(text) if text else {}

    def generation(self) -> dict[str, Any]:
        """Defaults for writing text: "end" is a list of token ids, the others are numbers."""
        out: dict[str, Any] = {"end": []}
        for record in self._records("GENERATION", "record"):
            name, value = self._value("colibri_generation_key", record)
            if name == "END":
                out["end"].append(value)
            else:
                out[name.lower()] = value
        return out
