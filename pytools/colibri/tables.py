"""Header, section table and table sections: what `open` reads, and what vouches for all other bytes."""

from __future__ import annotations

import hashlib
from typing import Any

from .description import Model, f32_bits, layer_records, model_records
from .format import Layout, Section, Tensor, kind_value
from .library import constants, ffi, load, values


def crc32c(data: Any, before: int = 0) -> int:
    """CRC32C of bytes, or going on from a CRC."""
    return int(load().colibri_crc32c(before, ffi().from_buffer(data), len(data)))


class Sum:
    """CRC32C and SHA-256 of what passes by."""

    def __init__(self) -> None:
        self.crc = 0
        self.sha = hashlib.sha256()

    def add(self, data: Any) -> None:
        self.crc = crc32c(data, self.crc)
        self.sha.update(data)

    def half(self) -> bytes:
        return self.sha.digest()[:16]


def tables(layout: Layout, tensor_sums: dict[tuple[int, str], Any], expert_sums: list[Any]) -> bytes:
    """Header, section table and table sections; an absent sum is zero."""
    model, cffi = layout.model, ffi()
    bodies = {
        "MODEL": b"".join(pack_struct("record", **r) for r in model_records(model)),
        "LAYERS": b"".join(pack_struct("record", **r) for r in layer_records(model.all_layers)),
        "TENSORS": b"".join(_tensor(t, tensor_sums.get((t.layer, t.role))) for t in layout.tensors),
        "EXPERT_SUMS": b"".join(pack_struct("expert_sum", crc=s.crc, digest=s.half()) for s in expert_sums),
        "ROPE": _ropes(model),
        "ROPE_FRACTIONS": b"".join(f.to_bytes(8, "little") for rope in model.ropes for f in rope.fractions),
    }
    image = bytearray(layout.tables_bytes)
    at = cffi.sizeof("colibri_blob_header")
    for section in layout.sections:
        image[at : at + cffi.sizeof("colibri_section")] = _section(section)
        at += cffi.sizeof("colibri_section")
        body = bodies.get(section.type, b"")
        image[section.offset : section.offset + len(body)] = body
    return _sealed(image, layout)


def pack_struct(name: str, **members: Any) -> bytes:
    """The bytes of one structure of the format header."""
    made = ffi().new(f"colibri_{name} *", members)
    return bytes(ffi().buffer(made))


def _section(section: Section) -> bytes:
    c = constants()
    flags = 0 if section.type in Layout.TEXTS else c.SECTION_CRITICAL
    flags |= c.SECTION_TABLE if section.type in Layout.TABLES else 0
    flags |= c.SECTION_BY_EXPERT if section.type == "EXPERTS" else 0
    return pack_struct(
        "section",
        type=values("colibri_section_type")[section.type],
        flags=flags,
        offset=section.offset,
        bytes=section.bytes,
        payload=section.payload,
        count=section.count,
        record_bytes=section.record_bytes,
        crc=section.crc,
        digest=section.digest,
    )


def _tensor(tensor: Tensor, total: Sum | None) -> bytes:
    c, roles = constants(), values("colibri_role")
    return pack_struct(
        "tensor",
        role=roles[tensor.role],
        second_role=roles.get(tensor.second_role, 0),
        kind=kind_value(tensor.kind),
        layout=c.LAYOUT_VECTOR if tensor.vector else c.LAYOUT_TILES,
        layer=tensor.layer,
        count=tensor.count,
        rows=tensor.rows,
        columns=tensor.columns,
        group=c.GROUP if tensor.kind in ("q4", "q8") else 0,
        offset=tensor.offset,
        bytes=tensor.bytes,
        stride=tensor.stride,
        crc=total.crc if total else 0,
        digest=total.half() if total else bytes(16),
    )


def _ropes(model: Model) -> bytes:
    out, first = b"", 0
    for rope in model.ropes:
        out += pack_struct(
            "rope",
            first=first,
            pairs=len(rope.fractions),
            interleaved=int(rope.interleaved),
            amplitude=f32_bits(rope.amplitude),
        )
        first += len(rope.fractions)
    return out


def _sealed(image: bytearray, layout: Layout) -> bytes:
    """The image with its header, whose sums are taken with the sum fields as zero."""
    c = constants()
    header = {
        "magic": c.FORMAT_MAGIC,
        "version": c.FORMAT_VERSION,
        "header_bytes": ffi().sizeof("colibri_blob_header"),
        "section_count": len(layout.sections),
        "file_bytes": layout.file_bytes,
        "tables_bytes": layout.tables_bytes,
    }
    size = header["header_bytes"]
    image[:size] = pack_struct("blob_header", **header)
    total = Sum()
    total.add(bytes(image))
    identity = total.sha.digest()
    image[:size] = pack_struct(
        "blob_header", **header, tables_crc=total.crc, identity=identity, identity_crc=crc32c(identity)
    )
    return bytes(image)
