"""Kernel levels by name: what this build and this processor offer, and which one a session here runs.

The names are the C header's (enum colibri_kernel) in lower case, with hyphens. "auto" is the best level there is;
"fastest" is the one that wins a short race in this process, and the target's own choice anywhere else.
"""

from __future__ import annotations

import platform
import time
from functools import cache

from . import library
from .errors import MissingTool, UsageError

AUTO = "auto"
FASTEST = "fastest"
# the architecture whose processors have a level; the portable one is everywhere
_ARCH = {"avx": "x86_64", "neon": "aarch64", "dotprod": "aarch64", "simd128": "wasm32", "relaxed": "wasm32"}


@cache
def numbers() -> dict[str, int]:
    """Name -> number, "auto" first, the better ones of an architecture later."""
    found = library.values("colibri_kernel")
    return {name.lower().replace("_", "-"): found[name] for name in sorted(found, key=found.__getitem__)}


def name_of(number: int) -> str:
    """A level's name."""
    return next((name for name, value in numbers().items() if value == number), str(number))


def number_of(name: str) -> int:
    """A name's number; whether the level can run is another question."""
    if name == FASTEST:
        return numbers()[AUTO]
    if name not in numbers():
        raise UsageError(f"kernel {name!r}: expected one of {', '.join(numbers())} or {FASTEST}")
    return numbers()[name]


def in_mask(mask: int) -> list[str]:
    """The levels of a bit mask, the better ones later."""
    return [name for name, value in numbers().items() if value and mask >> value & 1]


def architecture(name: str) -> str:
    """Where a level can be; empty: everywhere."""
    return next((arch for start, arch in _ARCH.items() if name.startswith(start)), "")


def for_architecture(name: str, arch: str) -> str:
    """The level for a target that may be of another architecture than the level: those choose for themselves."""
    return name if architecture(name) in ("", arch) else AUTO


def here() -> list[str]:
    """Levels that are compiled into this process's library and that its processor has, the best one last."""
    lib = library.load()
    return in_mask(lib.colibri_kernels() & lib.colibri_host_kernels())


def fastest() -> int:
    """The number of the level that the core finds the fastest here, by the clock; a race of a millisecond."""
    lib = library.load()
    clock = library.ffi().callback("colibri_clock_hook", lambda user: time.perf_counter_ns())
    return int(lib.colibri_fastest_kernel(lib.colibri_host_kernels(), clock, library.ffi().NULL))


def chosen(name: str) -> int:
    """The number of the level that a session in this process runs: the named one, the best, or the fastest."""
    lib, level = library.load(), number_of(name)
    if name == FASTEST:
        return fastest()
    if name == AUTO:
        return int(lib.colibri_host_kernel(lib.colibri_kernels()))
    for mask, who in (
        (lib.colibri_kernels(), "this build does not have it"),
        (lib.colibri_host_kernels(), "this processor does not have it"),
    ):
        if not mask >> level & 1:
            raise MissingTool(
                f"kernel {name}: {who}; here ({platform.machine()}) there are {', '.join(here())}, "
                "and auto takes the best"
            )
    return level
