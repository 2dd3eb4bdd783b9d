"""Audits the core's archives: what they need, define, weigh, and how much stack they take.

The rules: no undefined symbol; every global is `colibri_*` (weak mem* may stand in a member of their own); no
data and no bss; no fused multiply-add, no reciprocal estimate, no relaxed float; no recursion; calls through
a pointer only in the functions that call the host's hooks. The figures: bytes, worst-case stack per public
entry, lines per room. Accepted figures stand in tests/data/audit.json: a number moves only together with that
file.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from . import audit_elf, audit_wasm
from .audit_model import Function, Member
from .errors import InputError

MEMORY_NAMES = frozenset(("memcpy", "memmove", "memset", "memcmp"))
ROOMS = ("base", "blob", "pool", "kernels", "nn", "text", "api")


@dataclass
class Archive:
    """What was found in one archive."""

    target: str
    path: Path
    members: list[Member]
    undefined: list[str] = field(default_factory=list)
    foreign: list[str] = field(default_factory=list)
    stack: dict[str, int] = field(default_factory=dict)
    hook_callers: list[str] = field(default_factory=list)
    fused: list[str] = field(default_factory=list)
    estimates: list[str] = field(default_factory=list)
    recursion: list[str] = field(default_factory=list)

    def total(self, kind: str) -> int:
        """Bytes of one kind over all members."""
        return sum(getattr(member, kind) for member in self.members)

    def problems(self) -> list[str]:
        """Every rule this archive breaks, as sentences."""
        found = [
            f"{self.target}: undefined symbol {name}; the core must link with nothing"
            for name in self.undefined
        ]
        found += [
            f"{self.target}: global symbol {name}; every name must begin with colibri_"
            for name in self.foreign
        ]
        found += [
            f"{self.target}: {kind} is {self.total(kind)} bytes, expected 0; the core owns no mutable global "
            "and no table of pointers"
            for kind in ("data", "bss")
            if self.total(kind)
        ]
        found += [
            f"{self.target}: {text}; every float operation rounds once (docs/NUMERICS.md)"
            for text in self.fused + self.estimates
        ]
        found += [
            f"{self.target}: recursion {text}; the worst-case stack must be known" for text in self.recursion
        ]
        return found

    def figures(self, lines: dict[str, int]) -> dict[str, Any]:
        """The document's part about this archive."""
        return {
            "target": self.target,
            "undefined": self.undefined,
            "foreign_symbols": self.foreign,
            "text_bytes": self.total("text"),
            "rodata_bytes": self.total("rodata"),
            "data_bytes": self.total("data"),
            "bss_bytes": self.total("bss"),
            "stack_bytes": self.stack,
            "fused_ops": len(self.fused),
            "estimate_ops": len(self.estimates),
            "hook_callers": self.hook_callers,
            "lines": lines,
        }


def archive_members(path: Path) -> Iterator[tuple[str, bytes]]:
    """The members of an `ar` archive: (name, bytes)."""
    data = path.read_bytes()
    if data[:8] != b"!<arch>\n":
        raise InputError(f"{path}: not an ar archive (its first bytes are {data[:8]!r}); give a libcolibri.a")
    at, long_names = 8, b""
    while at + 60 <= len(data):
        name = data[at : at + 16].rstrip()
        size = int(data[at + 48 : at + 58])
        body = data[at + 60 : at + 60 + size]
        if name == b"//":
            long_names = body
        elif name.startswith(b"/") and name[1:].isdigit():
            start = int(name[1:])
            yield long_names[start : long_names.index(b"/\n", start)].decode(), body
        elif name.startswith(b"#1/"):
            length = int(name[3:])
            yield body[:length].rstrip(b"\0").decode(), body[length:]
        elif name not in (b"/", b"/SYM64/"):
            yield name.rstrip(b"/").decode(), body
        at += 60 + size + (size & 1)


def read_archive(target: str, path: Path) -> Archive:
    """Read and judge one archive."""
    members = []
    for name, data in archive_members(path):
        if data[:4] == b"\x7fELF":
            members.append(audit_elf.read_member(name, data))
        elif data[:4] == b"\0asm":
            members.append(audit_wasm.read_member(name, data))
        else:
            raise InputError(f"{path}: member {name} is neither ELF nor WebAssembly; rebuild the archive")
    if not members:
        raise InputError(f"{path}: the archive is empty; rebuild it")
    archive = Archive(target, path, members)
    judge(archive)
    return archive


def judge(archive: Archive) -> None:
    """Fill what concerns the archive as a whole."""
    defined = {name for member in archive.members for name in member.defined}
    wanted = {name for member in archive.members for name in member.undefined}
    archive.undefined = sorted(wanted - defined)
    for member in archive.members:
        names = set(member.defined)
        own_corner = names <= MEMORY_NAMES and all(kind == "weak" for kind in member.defined.values())
        if not own_corner:
            archive.foreign += sorted(name for name in names if not name.startswith("colibri_"))
        for function in member.functions:
            where = f"{member.name}: {function.name}"
            archive.fused += [f"{where} holds the fused operation {name}" for name in function.fused]
            archive.estimates += [f"{where} holds the estimate {name}" for name in function.estimates]
            if function.indirect:
                archive.hook_callers.append(function.name)
    archive.hook_callers.sort()
    machine = machine_of(archive.path)
    archive.stack, archive.recursion = worst_stacks(
        archive.members, audit_elf.CALL_BYTES.get(machine, 0), audit_elf.LEAF_BYTES.get(machine, 0)
    )


def machine_of(path: Path) -> str:
    """pyelftools' name of the machine of an archive's first ELF member ('' for WebAssembly)."""
    for _, data in archive_members(path):
        if data[:4] == b"\x7fELF":
            return {62: "x64", 183: "AArch64", 243: "RISC-V"}.get(int.from_bytes(data[18:20], "little"), "")
        return ""
    return ""


def worst_stacks(members: list[Member], call_bytes: int, leaf_bytes: int) -> tuple[dict[str, int], list[str]]:
    """Worst-case stack of every public entry, and every cycle of calls. Static functions of one member hide
    equally named functions of other members. An archive without frame sizes (gcc) gives no figure."""
    functions: dict[tuple[str, str], Function] = {}
    public: dict[str, tuple[str, str]] = {}
    for member in members:
        for function in member.functions:
            key = (member.name, function.name)
            functions[key] = function
            if not function.is_local and (
                function.name not in public or member.defined[function.name] == "global"
            ):
                public[function.name] = key
    known = all(f.frame is not None for f in functions.values()) and bool(functions)
    depth: dict[tuple[str, str], int] = {}
    cycles: list[str] = []
    # An explicit stack: (function, its callees still to visit).
    for root in functions:
        path: list[tuple[tuple[str, str], list[tuple[str, str]]]] = []
        if root not in depth:
            path.append((root, callees(root, functions, public)))
        while path:
            key, rest = path[-1]
            if rest:
                child = rest.pop()
                names = [entry[0] for entry in path]
                if child in names:
                    cycles.append(" -> ".join(k[1] for k in [*names[names.index(child) :], child]))
                elif child not in depth:
                    path.append((child, callees(child, functions, public)))
                continue
            below = [depth[c] + call_bytes for c in callees(key, functions, public) if c in depth]
            depth[key] = (functions[key].frame or 0) + max(below, default=leaf_bytes)
            path.pop()
    entries = {name for member in members for name in member.entries if name.startswith("colibri_")}
    stacks = {name: depth[public[name]] + call_bytes for name in sorted(entries) if name in public}
    return (stacks if known else {}), sorted(set(cycles))


def callees(
    key: tuple[str, str], functions: dict[tuple[str, str], Function], public: dict[str, tuple[str, str]]
) -> list[tuple[str, str]]:
    """The functions one function calls, a static one of the same member first."""
    found = []
    for name in functions[key].calls:
        own = (key[0], name)
        target = own if own in functions else public.get(name)
        if target is not None:
            found.append(target)
    return found


def count_lines(core: Path) -> dict[str, int]:
    """Lines of C per room of the core; empty where the sources are not at hand."""
    return {
        room: sum(len(file.read_bytes().splitlines()) for file in sorted((core / room).glob("*.[ch]")))
        for room in ROOMS
        if (core / room).is_dir()
    }


def compare(document: dict[str, Any], accepted_file: Path) -> list[str]:
    """Every figure that differs from the accepted ones, as sentences."""
    accepted = {
        row["target"]: row for row in json.loads(accepted_file.read_text(encoding="utf-8"))["archives"]
    }
    moved = []
    for row in document["archives"]:
        known = accepted.get(row["target"])
        if known is None:
            moved.append(f"{row['target']}: no accepted figures in {accepted_file}")
            continue
        for key, value in row.items():
            if value != known.get(key):
                moved.append(
                    f"{row['target']}: {key} was {known.get(key)}, is {value}; if that is meant, "
                    f"write the new figures with: colibri audit --write {accepted_file}"
                )
    return moved
