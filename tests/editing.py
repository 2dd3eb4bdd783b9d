"""Changing a written blob for a test: structures in place, sums made right again afterwards."""
from __future__ import annotations

import hashlib
import weakref
from pathlib import Path
from typing import Any

import numpy as np

from colibri.blobfile import aligned_bytes
from colibri.library import constants, ffi, load, values


ALIVE: weakref.WeakKeyDictionary[Any, bytearray] = weakref.WeakKeyDictionary()


class Edited:
    """A blob in memory as writable structures; seal() makes the sums of header and tables right."""

    def __init__(self, source: Path | bytes) -> None:
        self.data = bytearray(source.read_bytes() if isinstance(source, Path) else source)

    def _at(self, struct: str, offset: int) -> Any:
        cffi = ffi()
        made = cffi.cast(f"colibri_{struct} *", cffi.from_buffer(self.data) + offset)
        ALIVE[made] = self.data                 # a structure may outlive the Edited it came from
        return made

    @property
    def header(self) -> Any:
        """The header."""
        return self._at("blob_header", 0)

    def sections(self) -> list[Any]:
        """The section table."""
        c = constants()
        return [self._at("section", c.HEADER_BYTES + i * c.SECTION_BYTES) for i in range(self.header.section_count)]

    def section(self, name: str) -> Any:
        """One entry of the section table."""
        return next(s for s in self.sections() if s.type == values("colibri_section_type")[name])

    def rows(self, section: str, struct: str) -> list[Any]:
        """All structures of a table section."""
        place = self.section(section)
        return [self._at(struct, place.offset + i * place.record_bytes) for i in range(place.count)]

    def record(self, section: str, key: str) -> Any:
        """The first record with this key, named as in the header: ("LAYERS", "HEADS")."""
        number = values({"LAYERS": "colibri_layer_key", "MODEL": "colibri_model_key"}[section])[key]
        return next(r for r in self.rows(section, "record") if r.key == number)

    def tensor(self, role: str, layer: int = 0xFFFFFFFF) -> Any:
        """The entry of one tensor."""
        number = values("colibri_role")[role]
        return next(t for t in self.rows("TENSORS", "tensor") if (t.role, t.layer) == (number, layer))

    def floats(self, tensor: Any) -> np.ndarray:
        """A float tensor's content as writable numbers, tiles and all."""
        return np.frombuffer(self.data, dtype="<f4", count=tensor.bytes // 4, offset=tensor.offset)

    def sum_data(self) -> Edited:
        """Sums of tensors, experts and data sections taken anew."""
        c = constants()
        for tensor in self.rows("TENSORS", "tensor"):
            if not c.ROLE_EXPERT_GATE <= tensor.role <= c.ROLE_EXPERT_DOWN:
                self._sum(tensor, tensor.offset, tensor.bytes)
        if any(s.type == c.SECTION_EXPERT_SUMS for s in self.sections()):
            sums = iter(self.rows("EXPERT_SUMS", "expert_sum"))
            for tensor in self.rows("TENSORS", "tensor"):
                if tensor.role == c.ROLE_EXPERT_GATE:
                    for expert in range(tensor.count):
                        self._sum(next(sums), tensor.offset + expert * tensor.stride, tensor.stride)
        for section in self.sections():
            if not section.flags & (c.SECTION_TABLE | c.SECTION_BY_EXPERT):
                self._sum(section, section.offset, section.bytes)
        return self

    def _sum(self, entry: Any, offset: int, size: int) -> None:
        data = bytes(self.data[offset:offset + size])
        entry.crc = load().colibri_crc32c(0, data, size)
        entry.digest = hashlib.sha256(data).digest()[:16]

    def seal(self, file_bytes: int = 0) -> bytes:
        """The blob with the sums of header and tables made right; file_bytes: where it is to be another size."""
        header = self.header
        header.file_bytes = file_bytes or len(self.data)
        header.tables_crc, header.identity_crc, header.identity = 0, 0, bytes(32)
        tables = bytes(self.data[:header.tables_bytes])
        header.tables_crc = load().colibri_crc32c(0, tables, len(tables))
        header.identity = hashlib.sha256(tables).digest()
        header.identity_crc = load().colibri_crc32c(0, bytes(header.identity), 32)
        return bytes(self.data)


class Opened:
    """colibri_open's judgement on bytes: status, detail, and the model where they were accepted."""

    def __init__(self, image: bytes, file_bytes: int | None = None) -> None:
        self.memory = aligned_bytes(len(image))
        self.memory[:] = np.frombuffer(image, dtype=np.uint8)
        self.model, self.detail = ffi().new("colibri_model *"), ffi().new("colibri_detail *")
        self.status = load().colibri_open(self.model, ffi().from_buffer(self.memory), len(image),
                                          len(image) if file_bytes is None else file_bytes, self.detail)

    def problems(self, level: int = 2) -> list[tuple[int, int, int, int]]:
        """(status, section, field, index) of everything that colibri_check finds."""
        found = []
        state, detail = ffi().new("colibri_check_state *"), ffi().new("colibri_detail *")
        while (status := load().colibri_check(self.model, state, level, 1 << 20, detail)) != constants().DONE:
            if status < 0:
                found.append((status, detail.section, detail.field, detail.index))
        return found
