"""What the audit knows about one object file, whatever its format."""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass
class Function:
    """One function: what it calls, what it takes from the stack, what it must not contain."""

    name: str
    is_local: bool = False
    frame: int | None = None  # bytes; None: the object does not say
    calls: set[str] = field(default_factory=set)
    indirect: int = 0  # calls through a pointer
    fused: list[str] = field(default_factory=list)  # multiply-adds with one rounding
    estimates: list[str] = field(
        default_factory=list
    )  # reciprocals and the like that differ between machines


@dataclass
class Member:
    """One object of an archive."""

    name: str
    undefined: set[str] = field(default_factory=set)
    defined: dict[str, str] = field(default_factory=dict)  # name -> "global" | "weak"
    entries: set[str] = field(default_factory=set)  # functions others may call (default visibility)
    functions: list[Function] = field(default_factory=list)
    text: int = 0
    rodata: int = 0
    data: int = 0
    bss: int = 0
