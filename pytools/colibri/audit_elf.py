"""Reads ELF object files: symbols, sizes, call graph by disassembly, stack frames, fused instructions.

Owns the disassembly. Knows nothing about archives, WebAssembly or what is allowed: `audit.py` judges.
"""

from __future__ import annotations

import io
import re
from bisect import bisect_right
from collections import deque
from collections.abc import Iterable, Iterator
from typing import Any

from elftools.elf.elffile import ELFFile
from elftools.elf.relocation import RelocationSection
from elftools.elf.sections import SymbolTableSection

from .audit_model import Function, Member
from .errors import MissingTool

EXECUTABLE, WRITE, ALLOC = 4, 1, 2

# One rounding where NUMERICS wants two.
FUSED = {
    "x64": re.compile(r"vf(n?m(add|sub)|maddsub|msubadd)|v4f"),
    "AArch64": re.compile(r"f(n?m(add|sub)|ml[as]l?2?|cmla|mmla|nml[as])$|bf(dot|mmla|mlal[bt]?)$"),
    "RISC-V": re.compile(r"fn?m(add|sub)\."),
}
# Approximations that differ from machine to machine.
ESTIMATES = {
    "x64": re.compile(r"v?r(cp|sqrt)(14|28)?[ps]s$|vr(cp|sqrt)(14|28)[ps][sd]$"),
    "AArch64": re.compile(r"f?r(sqrt|ecp)[esx]$|[uf]r(sqrt|ecp)e$"),
    "RISC-V": re.compile(r"vfr(sqrt7|ec7)"),
}
# What LLVM's frame sizes leave out: the return address that a call pushes, and the red zone below the stack
# pointer that a function without calls may use.
CALL_BYTES = {"x64": 8}
LEAF_BYTES = {"x64": 128}
SWITCH_WINDOW = 12  # instructions between a switch's addition and its jump


def disassembler(arch: str) -> Any:
    """A capstone decoder for one of pyelftools' architecture names."""
    try:
        import capstone as cs
    except ImportError:
        raise MissingTool(
            "the audit disassembles with capstone, which is not here: pip install capstone"
        ) from None
    kinds = {
        "x64": (cs.CS_ARCH_X86, cs.CS_MODE_64),
        "AArch64": (cs.CS_ARCH_ARM64, cs.CS_MODE_ARM),
        "RISC-V": (cs.CS_ARCH_RISCV, cs.CS_MODE_RISCV64 | cs.CS_MODE_RISCVC),
    }
    decoder = cs.Cs(*kinds[arch])
    decoder.skipdata = True
    return decoder


def decoded(arch: str, code: bytes, start: int) -> Iterator[tuple[int, int, str, str]]:
    """Address, size, mnemonic and operands of a function's instructions.

    Capstone 5 does not know AVX-VNNI (VEX.66.0F38.W0 50 .. 53) and would read on in the middle of one; it is shown
    VPSHUFB (VEX.66.0F38 00) instead, which has the same form and length.
    """
    shown = bytearray(code)
    while True:
        lines = list(disassembler(arch).disasm_lite(bytes(shown), start))
        unknown = [at - start for at, _, mnemonic, _ in lines if mnemonic == ".byte"] if arch == "x64" else []
        dots = [at for at in unknown if is_vex_dot(shown[at : at + 4])]
        if not dots:
            return iter(lines)
        for at in dots:
            shown[at + 3] = 0


def is_vex_dot(code: bytes) -> bool:
    """Do these four bytes begin VPDPBUSD, VPDPBUSDS, VPDPWSSD or VPDPWSSDS in VEX form?"""
    return len(code) == 4 and code[0] == 0xC4 and code[1] & 31 == 2 and code[2] & 0x83 == 1 and 0x50 <= code[3] <= 0x53


def read_member(name: str, data: bytes) -> Member:
    """The audit's view of one ELF object."""
    elf = ELFFile(io.BytesIO(data))
    return Object(name, elf).member


class Object:
    """One ELF object while it is read."""

    def __init__(self, name: str, elf: ELFFile) -> None:
        self.elf = elf
        self.arch: str = elf.get_machine_arch()
        self.member = Member(name)
        self.sections = list(elf.iter_sections())
        table = elf.get_section_by_name(".symtab")
        self.symbols = list(table.iter_symbols()) if isinstance(table, SymbolTableSection) else []
        self.starts = self._function_starts()
        self._sizes()
        self._names()
        frames = self._frames()
        for index, section in enumerate(self.sections):
            if section["sh_flags"] & EXECUTABLE and section["sh_size"]:
                self._disassemble(index, section, frames)

    def _function_starts(self) -> dict[int, list[tuple[int, str, bool]]]:
        """Section number -> sorted (offset, name, is local) of its functions."""
        starts: dict[int, list[tuple[int, str, bool]]] = {}
        for symbol in self.symbols:
            if symbol["st_info"]["type"] == "STT_FUNC" and isinstance(symbol["st_shndx"], int):
                local = symbol["st_info"]["bind"] == "STB_LOCAL"
                starts.setdefault(symbol["st_shndx"], []).append((symbol["st_value"], symbol.name, local))
        for entries in starts.values():
            entries.sort()
        return starts

    def _function_at(self, section: int, offset: int) -> str | None:
        """The function that covers an offset of a section."""
        entries = self.starts.get(section, [])
        at = bisect_right(entries, (offset, "\U0010ffff", True)) - 1
        return entries[at][1] if at >= 0 else None

    def _sizes(self) -> None:
        """Bytes by kind. A table of pointers is `.data.rel.ro`: writable, so it counts as data."""
        for section in self.sections:
            flags, size = section["sh_flags"], section["sh_size"]
            if not flags & ALLOC or section.name == ".eh_frame":
                continue
            if section["sh_type"] == "SHT_NOBITS":
                self.member.bss += size
            elif flags & WRITE:
                self.member.data += size
            elif flags & EXECUTABLE:
                self.member.text += size
            else:
                self.member.rodata += size

    def _names(self) -> None:
        """Undefined and defined symbols, and the functions others may call."""
        for symbol in self.symbols:
            bind = symbol["st_info"]["bind"]
            if bind == "STB_LOCAL" or not symbol.name:
                continue
            if symbol["st_shndx"] == "SHN_UNDEF":
                self.member.undefined.add(symbol.name)
                continue
            self.member.defined[symbol.name] = "weak" if bind == "STB_WEAK" else "global"
            if symbol["st_info"]["type"] == "STT_FUNC" and symbol["st_other"]["visibility"] == "STV_DEFAULT":
                self.member.entries.add(symbol.name)

    def _relocations(self, index: int) -> dict[int, tuple[str | None, int | None, int]]:
        """Offset -> (symbol name, or None and its section number, addend) of one section's relocations."""
        found: dict[int, tuple[str | None, int | None, int]] = {}
        for section in self.sections:
            if isinstance(section, RelocationSection) and section["sh_info"] == index:
                for entry in section.iter_relocations():
                    symbol = self.symbols[entry["r_info_sym"]]
                    addend = entry["r_addend"] if entry.is_RELA() else 0
                    if symbol["st_info"]["type"] == "STT_SECTION":
                        found[entry["r_offset"]] = (None, symbol["st_shndx"], addend)
                    elif symbol.name:
                        found[entry["r_offset"]] = (symbol.name, None, addend)
        return found

    def _frames(self) -> dict[str, int]:
        """Function -> frame bytes, from `.stack_sizes` (an 8-byte address by relocation, then a LEB128
        size)."""
        frames: dict[str, int] = {}
        for index, section in enumerate(self.sections):
            if section.name != ".stack_sizes":
                continue
            data, at, relocations = section.data(), 0, self._relocations(index)
            while at < len(data):
                name, number, addend = relocations[at]
                if name is None and number is not None:
                    name = self._function_at(number, addend)
                at += 8
                size, shift = 0, 0
                while True:
                    byte = data[at]
                    at += 1
                    size |= (byte & 0x7F) << shift
                    shift += 7
                    if byte < 0x80:
                        break
                if name:
                    frames[name] = size
        return frames

    def _disassemble(self, index: int, section: Any, frames: dict[str, int]) -> None:
        """Every function of one section."""
        entries = self.starts.get(index, [])
        code, relocations = section.data(), self._relocations(index)
        for number, (start, name, local) in enumerate(entries):
            end = entries[number + 1][0] if number + 1 < len(entries) else len(code)
            function = Function(name, is_local=local, frame=frames.get(name))
            lines = decoded(self.arch, code[start:end], start)
            self._walk(function, index, lines, relocations)
            self.member.functions.append(function)

    def _walk(
        self,
        function: Function,
        index: int,
        lines: Iterator[tuple[int, int, str, str]],
        relocations: dict[int, tuple[str | None, int | None, int]],
    ) -> None:
        """Calls and refused instructions of one function."""
        before: deque[str] = deque(maxlen=SWITCH_WINDOW)
        for address, size, mnemonic, operands in lines:
            mnemonic = mnemonic.split()[-1]  # without `lock`, `notrack`, `rep`
            if FUSED[self.arch].match(mnemonic):
                function.fused.append(mnemonic)
            elif ESTIMATES[self.arch].match(mnemonic):
                function.estimates.append(mnemonic)
            relocation = next(
                (relocations[at] for at in range(address, address + size) if at in relocations), None
            )
            kind = branch_kind(self.arch, mnemonic, operands, before, relocation is not None)
            before.append(f"{mnemonic} {operands}")
            if kind == "indirect":
                function.indirect += 1
            elif kind in ("call", "jump"):
                target = self._target(index, operands, relocation)
                if target and (target != function.name or kind == "call"):  # a jump to itself is a loop
                    function.calls.add(target)

    def _target(
        self, index: int, operands: str, relocation: tuple[str | None, int | None, int] | None
    ) -> str | None:
        """Where a call or jump goes."""
        if relocation is None:
            place = immediate(operands)
            return self._function_at(index, place) if place is not None else None
        name, section, addend = relocation
        if name is not None:
            return name
        # x86-64 counts from the end of the 4-byte field
        return self._function_at(section or 0, addend + (4 if self.arch == "x64" else 0))


def immediate(operands: str) -> int | None:
    """The last operand as a number, if it is one."""
    found = re.search(r"(?:^|[\s,#])(-?(?:0x[0-9a-f]+|\d+))$", operands)
    return int(found[1], 0) if found else None


def is_sum(register: str, before: Iterable[str]) -> bool:
    """Whether the last instruction that wrote a register was an addition: base plus offset of a switch."""
    for line in reversed(list(before)):
        mnemonic, _, operands = line.partition(" ")
        if operands.split(",")[0] == register and not mnemonic.startswith(("cmp", "test", "str", "push")):
            return mnemonic == "add"
    return False


def branch_kind(arch: str, mnemonic: str, operands: str, before: Iterable[str], relocated: bool) -> str:
    """'call', 'jump', 'indirect' (through a pointer), 'table' (a switch) or ''. A switch jumps to the sum of
    a base and an offset, or through a table at a fixed address (then the jump holds a relocation); a call
    through a pointer does neither."""
    if arch == "x64":
        if mnemonic == "call":
            return "call" if immediate(operands) is not None else "indirect"
        if mnemonic == "jmp":
            if immediate(operands) is not None:
                return "jump"
            switch = is_sum(operands, before) or ("*8" in operands and relocated)
            return "table" if switch else "indirect"
        return "jump" if re.match(r"j[a-z]+$", mnemonic) else ""
    if arch == "AArch64":
        if mnemonic in ("bl", "b") or re.match(r"(b\.|cbn?z|tbn?z)", mnemonic):
            return "call" if mnemonic == "bl" else "jump"
        if mnemonic in ("blr", "br"):
            switch = mnemonic == "br" and is_sum(operands, before)
            return "table" if switch else "indirect"
        return ""
    return ""  # RISC-V: calls are auipc and jalr pairs, not followed here
