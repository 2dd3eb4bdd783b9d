"""Parts of a blob that processes apart make, and their joining.

A part is the range of the blob's bytes that its strips take up, then a manifest (JSON: the same head that a
journal has, the share, every strip's sum), then the manifest's length and a magic number. Joining copies the
strips to their places and seals the file as any other, so the bytes are those of a single run.
"""

from __future__ import annotations

import json
import re
import struct
from pathlib import Path
from typing import Any

from .blobwriter import Settle, Written, check_target, fill_and_seal, head_of
from .description import Model
from .errors import InputError
from .format import Kinds, Layout
from .journal import Journal, changes
from .seal import write_all
from .source import LocalFile
from .strips import Strip, WeightSource, pack_strip, share_of, strips_of
from .tables import crc32c
from .unfinished import Unfinished, Work, said_plainly

MAGIC = b"COLIPART"
END = struct.Struct("<Q8s")
AGAIN = "make this part again"


def part_path(output: Path, share: int, shares: int) -> Path:
    """Where a part lies."""
    return output.with_name(f"{output.name}.{share}of{shares}")


def _window(strips: list[Strip]) -> tuple[int, int]:
    return (strips[0].offset, strips[-1].offset + strips[-1].bytes) if strips else (0, 0)


def write_part(
    output: Path,
    model: Model,
    kinds: Kinds,
    source: WeightSource,
    texts: dict[str, bytes],
    share: tuple[int, int],
    overwrite: bool,
    about: dict[str, Any],
    work: Work,
) -> Path:
    """Make one share of a blob; a part that is there already is kept if it is the same."""
    layout = Layout(model, kinds, texts)
    path, head = part_path(output, *share), {**head_of(layout, about), "share": f"{share[0]}/{share[1]}"}
    if not path.parent.is_dir():
        check_target(path, overwrite)
    if path.exists() and not overwrite:
        with Part(path) as there:
            there.compare(head, "give --overwrite or remove it")
        if Unfinished.journal_path(path).exists():  # interrupted after the part had its name
            Journal(Unfinished.journal_path(path)).remove()
        work.note(f"{path}: is there already")
        return path
    strips = share_of(strips_of(layout), *share)
    with Unfinished(path, head, _window(strips), strips, work) as part:
        part.fill(lambda strip: pack_strip(source, strip, work.profile))
        with said_plainly(path):
            sums = [crc32c(part.read(strip)) for strip in strips]
            manifest = json.dumps({"head": head, "sums": sums}, sort_keys=True).encode()
            end = part.window[1] - part.window[0]
            write_all(part.handle, manifest + END.pack(len(manifest), MAGIC), end)
        part.publish()
    return path


class Part:
    """A finished part."""

    def __init__(self, path: Path) -> None:
        self.file = LocalFile(path)
        try:
            self.head, self.sums = self._manifest()
        except (ValueError, KeyError, TypeError, struct.error):
            self.file.close()
            raise InputError(f"{path}: is no part of a blob, or was cut short; {AGAIN}") from None

    def _manifest(self) -> tuple[dict[str, Any], list[int]]:
        size = self.file.size
        length, magic = END.unpack(self.file.read(max(0, size - END.size), min(size, END.size)))
        if magic != MAGIC or length > size - END.size:
            raise ValueError
        manifest = json.loads(self.file.read(size - END.size - length, length))
        self.bytes = size - END.size - length
        return dict(manifest["head"]), [int(one) for one in manifest["sums"]]

    def compare(self, head: dict[str, Any], remedy: str) -> None:
        """Refuse a part of something else."""
        if named := ", ".join(changes(self.head, head)):
            raise InputError(f"{self.file}: is a part of another conversion ({named}); {remedy}")

    def own(self, strips: list[Strip]) -> None:
        """The strips this part should have."""
        start, end = _window(strips)
        if len(strips) != len(self.sums) or end - start != self.bytes:
            raise InputError(f"{self.file}: has {self.bytes} bytes, expected {end - start}; {AGAIN}")
        self._start = start
        self._sum_of = {strip.number: crc for strip, crc in zip(strips, self.sums, strict=True)}

    def strip(self, strip: Strip) -> bytes:
        """The bytes of a strip."""
        data = self.file.read(strip.offset - self._start, strip.bytes)
        if (found := crc32c(data)) != self._sum_of[strip.number]:
            raise InputError(
                f"{self.file}: {strip.tensor.label} from row {strip.first} on has the sum {found:#x}, "
                f"expected {self._sum_of[strip.number]:#x}; the part is damaged, {AGAIN} or copy it again"
            )
        return data

    def __enter__(self) -> Part:
        return self

    def __exit__(self, *_: object) -> None:
        self.file.close()


def _all_parts(output: Path) -> list[Path]:
    """The paths of all parts; refused by name when one is missing."""
    form = re.compile(re.escape(output.name) + r"\.(\d+)of(\d+)")
    found = [m for path in output.parent.glob("*") if (m := form.fullmatch(path.name))]
    if not found:
        raise InputError(
            f"{part_path(output, 1, 2)}: no part is there; make parts with --shard 1/2 and so on"
        )
    counts = sorted({int(m[2]) for m in found})
    if len(counts) > 1:
        names = ", ".join(min(m[0] for m in found if int(m[2]) == n) for n in counts)
        raise InputError(
            f"{output.parent}: parts of several divisions are there ({names}); remove the others"
        )
    paths = [part_path(output, share, counts[0]) for share in range(1, counts[0] + 1)]
    for share, path in enumerate(paths, 1):
        if not path.is_file():
            raise InputError(f"{path}: is missing; make it with --shard {share}/{counts[0]}")
    return paths


def join_parts(
    output: Path,
    model: Model,
    kinds: Kinds,
    texts: dict[str, bytes],
    overwrite: bool,
    about: dict[str, Any],
    work: Work,
    settle: Settle | None = None,
) -> Written:
    """Put all parts together; they stay where they are."""
    if not output.parent.is_dir():
        check_target(output, overwrite)
    paths, layout = _all_parts(output), Layout(model, kinds, texts)
    check_target(output, overwrite)
    head, strips, parts, where = head_of(layout, about), strips_of(layout), [], {}
    try:
        for share, path in enumerate(paths, 1):
            parts.append(Part(path))
            parts[-1].compare({**head, "share": f"{share}/{len(paths)}"}, AGAIN)
            own = share_of(strips, share, len(paths))
            parts[-1].own(own)
            where.update(dict.fromkeys((strip.number for strip in own), parts[-1]))
        return fill_and_seal(output, layout, head, lambda strip: where[strip.number].strip(strip), work, settle)
    finally:
        for part in parts:
            part.file.close()
