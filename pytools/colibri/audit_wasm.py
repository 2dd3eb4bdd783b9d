"""Reads WebAssembly object files and modules: symbols, sizes, call graph, shadow stack, float opcodes.

Owns the opcode walk. Knows nothing about archives, ELF or what is allowed: `audit.py` judges.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

from .audit_model import Function, Member

CUSTOM, IMPORT, FUNCTION, CODE, DATA = 0, 2, 3, 10, 11
SYMBOL_FUNCTION, SYMBOL_DATA, SYMBOL_GLOBAL, SYMBOL_SECTION = 0, 1, 2, 3
FLAG_WEAK, FLAG_LOCAL, FLAG_HIDDEN, FLAG_UNDEFINED, FLAG_EXPLICIT_NAME = 1, 2, 4, 16, 64

# prefix 0xFD: float operations whose result an engine may choose (relaxed-simd)
RELAXED_FUSED = {
    0x105: "f32x4.relaxed_madd",
    0x106: "f32x4.relaxed_nmadd",
    0x107: "f64x2.relaxed_madd",
    0x108: "f64x2.relaxed_nmadd",
}
RELAXED_FLOAT = {
    0x101: "i32x4.relaxed_trunc_f32x4_s",
    0x102: "i32x4.relaxed_trunc_f32x4_u",
    0x103: "i32x4.relaxed_trunc_f64x2_s_zero",
    0x104: "i32x4.relaxed_trunc_f64x2_u_zero",
    0x10D: "f32x4.relaxed_min",
    0x10E: "f32x4.relaxed_max",
    0x10F: "f64x2.relaxed_min",
    0x110: "f64x2.relaxed_max",
}


class Reader:
    """A cursor over bytes with WebAssembly's number encodings."""

    def __init__(self, data: bytes, at: int = 0, end: int | None = None) -> None:
        self.data, self.at, self.end = data, at, len(data) if end is None else end

    def byte(self) -> int:
        """One byte."""
        self.at += 1
        return self.data[self.at - 1]

    def take(self, count: int) -> bytes:
        """`count` bytes."""
        self.at += count
        return self.data[self.at - count : self.at]

    def number(self) -> int:
        """An unsigned LEB128 number."""
        value, shift = 0, 0
        while True:
            byte = self.byte()
            value |= (byte & 0x7F) << shift
            shift += 7
            if byte < 0x80:
                return value

    def signed(self) -> int:
        """A signed LEB128 number."""
        value, shift = 0, 0
        while True:
            byte = self.byte()
            value |= (byte & 0x7F) << shift
            shift += 7
            if byte < 0x80:
                return value - (1 << shift) if byte & 0x40 else value

    def name(self) -> str:
        """A length and UTF-8 bytes."""
        return self.take(self.number()).decode("utf-8", "replace")

    def limits(self) -> None:
        """Skip the limits of a memory or table."""
        flags = self.byte()
        self.number()
        if flags & 1:
            self.number()


@dataclass
class Symbol:
    """An entry of the linking section's symbol table."""

    kind: int
    flags: int
    name: str
    index: int = -1


@dataclass
class Module:
    """What the audit needs of one WebAssembly binary."""

    imported_functions: list[str] = field(default_factory=list)
    symbols: list[Symbol] = field(default_factory=list)
    segments: list[tuple[str, int]] = field(default_factory=list)
    bodies: list[tuple[int, int]] = field(
        default_factory=list
    )  # start and end offset of each function's code
    data: bytes = b""


def sections(data: bytes) -> Iterator[tuple[int, Reader]]:
    """The sections in file order: (id, reader of its content)."""
    top = Reader(data, 8)
    while top.at < top.end:
        kind = top.byte()
        size = top.number()
        yield kind, Reader(data, top.at, top.at + size)
        top.at += size


def parse(data: bytes) -> Module:
    """Read imports, function bodies, data segments and the linking section."""
    module = Module(data=data)
    sizes: list[int] = []
    names: list[str] = []
    imports: dict[int, list[str]] = {kind: [] for kind in range(5)}
    for kind, reader in sections(data):
        if kind == IMPORT:
            read_imports(reader, imports)
        elif kind == CODE:
            for _ in range(reader.number()):
                size = reader.number()
                module.bodies.append((reader.at, reader.at + size))
                reader.at += size
        elif kind == DATA:
            sizes = read_segment_sizes(reader)
        elif kind == CUSTOM and reader.name() == "linking":
            names = read_linking(reader, module, imports)
    module.imported_functions = imports[0]
    names += [".data"] * (len(sizes) - len(names))
    module.segments = list(zip(names, sizes, strict=False))
    return module


def read_imports(reader: Reader, imports: dict[int, list[str]]) -> None:
    """Sort the imports' names by kind: 0 function, 1 table, 2 memory, 3 global, 4 tag."""
    for _ in range(reader.number()):
        reader.name()
        name = reader.name()
        kind = reader.byte()
        imports[kind].append(name)
        if kind == 0:
            reader.number()
        elif kind == 1:
            reader.byte()
            reader.limits()
        elif kind == 2:
            reader.limits()
        elif kind == 3:
            reader.take(2)
        else:
            reader.byte()
            reader.number()


def read_segment_sizes(reader: Reader) -> list[int]:
    """Bytes of every data segment."""
    sizes = []
    for _ in range(reader.number()):
        flags = reader.number()
        if flags == 2:
            reader.number()
        if flags != 1:
            while reader.byte() != 0x0B:  # the offset expression: one constant
                reader.signed()
        size = reader.number()
        reader.take(size)
        sizes.append(size)
    return sizes


def read_linking(reader: Reader, module: Module, imports: dict[int, list[str]]) -> list[str]:
    """Fill the symbols; return the data segments' names."""
    names: list[str] = []
    reader.number()  # version
    while reader.at < reader.end:
        kind = reader.byte()
        size = reader.number()
        part = Reader(reader.data, reader.at, reader.at + size)
        reader.at += size
        if kind == 5:
            for _ in range(part.number()):
                names.append(part.name())
                part.number()
                part.number()
        elif kind == 8:
            module.symbols = [read_symbol(part, imports) for _ in range(part.number())]
    return names


def read_symbol(part: Reader, imports: dict[int, list[str]]) -> Symbol:
    """One symbol; an undefined one without a name of its own has its import's."""
    kind, flags = part.byte(), part.number()
    if kind == SYMBOL_DATA:
        symbol = Symbol(kind, flags, part.name())
        if not flags & FLAG_UNDEFINED:
            symbol.index = part.number()
            part.number()
            part.number()
        return symbol
    if kind == SYMBOL_SECTION:
        return Symbol(kind, flags, "", part.number())
    index = part.number()
    if flags & FLAG_UNDEFINED and not flags & FLAG_EXPLICIT_NAME:
        table = imports[{SYMBOL_FUNCTION: 0, SYMBOL_GLOBAL: 3, 4: 4, 5: 1}[kind]]
        return Symbol(kind, flags, table[index], index)
    return Symbol(kind, flags, part.name(), index)


def instructions(data: bytes, start: int, end: int) -> Iterator[tuple[int, int]]:
    """Walk one function body: (opcode, first immediate). Prefixed opcodes are prefix << 16 | number."""
    reader = Reader(data, start, end)
    for _ in range(reader.number()):  # local declarations
        reader.number()
        reader.byte()
    while reader.at < end:
        opcode = reader.byte()
        if opcode in (0xFC, 0xFD, 0xFE):
            opcode = opcode << 16 | reader.number()
        yield opcode, skip_immediate(reader, opcode)
    if reader.at != end:
        raise ValueError("a function body does not end where its size says")


def skip_immediate(reader: Reader, opcode: int) -> int:
    """Move behind an instruction's immediates and return the first of them (0 if there is none)."""
    if opcode in (0x0C, 0x0D, 0x10, 0x12, 0x25, 0x26, 0x3F, 0x40, 0xD2) or 0x20 <= opcode <= 0x24:
        return reader.number()
    if opcode in (0x02, 0x03, 0x04, 0x41, 0x42, 0xD0):
        return reader.signed()
    if opcode in (0x11, 0x13):
        first = reader.number()
        reader.number()
        return first
    if 0x28 <= opcode <= 0x3E:
        return memory_argument(reader)
    if opcode == 0x43:
        reader.take(4)
    elif opcode == 0x44:
        reader.take(8)
    elif opcode == 0x0E:
        for _ in range(reader.number() + 1):
            reader.number()
    elif opcode == 0x1C:
        reader.take(reader.number())
    elif opcode > 0xFFFF:
        skip_prefixed(reader, opcode >> 16, opcode & 0xFFFF)
    elif not (opcode in (0x00, 0x01, 0x05, 0x0B, 0x0F, 0x1A, 0x1B, 0xD1) or 0x45 <= opcode <= 0xC4):
        raise ValueError(f"unknown WebAssembly opcode 0x{opcode:02x}")
    return 0


def skip_prefixed(reader: Reader, prefix: int, number: int) -> None:
    """Immediates of the bulk (0xFC), SIMD (0xFD) and atomic (0xFE) instructions."""
    if prefix == 0xFC:
        for _ in range({8: 2, 10: 2, 12: 2, 14: 2}.get(number, 1) if number >= 8 else 0):
            reader.number()
    elif prefix == 0xFE:
        if number == 3:
            reader.byte()
        else:
            memory_argument(reader)
    elif number <= 11 or 0x54 <= number <= 0x5D:
        memory_argument(reader)
        if 0x54 <= number <= 0x5B:
            reader.byte()
    elif number in (12, 13):
        reader.take(16)
    elif 21 <= number <= 34:
        reader.byte()


def memory_argument(reader: Reader) -> int:
    """Alignment and offset of a load or store; bit 6 of the alignment announces a memory index."""
    align = reader.number()
    if align & 0x40:
        reader.number()
    return reader.number()


def read_member(name: str, data: bytes) -> Member:
    """The audit's view of one WebAssembly object."""
    module = parse(data)
    member = Member(name)
    by_index: dict[int, Symbol] = {}
    for symbol in module.symbols:
        if symbol.kind == SYMBOL_FUNCTION:
            by_index.setdefault(symbol.index, symbol)
        if symbol.kind in (SYMBOL_FUNCTION, SYMBOL_DATA):
            if symbol.flags & FLAG_UNDEFINED:
                member.undefined.add(symbol.name)
            elif not symbol.flags & FLAG_LOCAL:
                member.defined[symbol.name] = "weak" if symbol.flags & FLAG_WEAK else "global"
                if symbol.kind == SYMBOL_FUNCTION and not symbol.flags & FLAG_HIDDEN:
                    member.entries.add(symbol.name)
    first = len(module.imported_functions)
    for number, (start, end) in enumerate(module.bodies):
        symbol_here = by_index.get(first + number)
        label = symbol_here.name if symbol_here else f"function {number}"
        is_local = symbol_here is None or bool(symbol_here.flags & FLAG_LOCAL)
        member.functions.append(read_function(module, label, is_local, start, end, by_index))
        member.text += end - start
    for label, size in module.segments:
        kind = "rodata" if label.startswith(".rodata") else "bss" if label.startswith(".bss") else "data"
        setattr(member, kind, getattr(member, kind) + size)
    return member


def read_function(
    module: Module, name: str, is_local: bool, start: int, end: int, by_index: dict[int, Symbol]
) -> Function:
    """One body: calls, indirect calls, refused opcodes and the bytes it takes from the shadow stack."""
    function = Function(name, is_local=is_local, frame=0)
    window: list[tuple[int, int]] = []
    for opcode, value in instructions(module.data, start, end):
        if opcode in (0x10, 0x12):
            target = by_index.get(value)
            function.calls.add(target.name if target else f"function {value}")
        elif opcode in (0x11, 0x13):
            function.indirect += 1
        elif opcode >> 16 == 0xFD:
            number = opcode & 0xFFFF
            if number in RELAXED_FUSED:
                function.fused.append(RELAXED_FUSED[number])
            elif number in RELAXED_FLOAT:
                function.estimates.append(RELAXED_FLOAT[number])
        window = [*window[-2:], (opcode, value)]
        # the prologue: global.get $__stack_pointer, i32.const N, i32.sub
        if opcode == 0x6B and [op for op, _ in window] == [0x23, 0x41, 0x6B] and not function.frame:
            function.frame = window[1][1]
    return function
