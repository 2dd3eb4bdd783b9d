"""The floating-point control register of this thread, set against us on purpose.

A host may arrive with flush-to-zero and another rounding mode (some compilers' start code does that). The
core must compute the same bits and hand the register back as it was; here a test can play such a host.
"""

from __future__ import annotations

import ctypes
import platform
from collections.abc import Iterator
from contextlib import contextmanager

from .errors import MissingTool

# machine -> (bytes of fenv_t, offset of the control word, what is set, what is compared)
# x86-64: MXCSR with flush-to-zero, toward zero, denormals-are-zero; the sticky flags are not compared.
# aarch64: FPCR with FZ and toward zero.
_LAYOUT = {"x86_64": (32, 28, 0xE040, 0xFFC0), "aarch64": (8, 0, 0x01C00000, 0x01C00000)}


@contextmanager
def hostile() -> Iterator[None]:
    """Run the body with flush-to-zero and rounding toward zero; fails if the body leaves the register
    changed."""
    machine = platform.machine()
    if machine not in _LAYOUT:
        raise MissingTool(f"no hostile float environment for {machine}: use the target's own runner")
    size, offset, wanted, compared = _LAYOUT[machine]
    libm = ctypes.CDLL("libm.so.6")
    saved = ctypes.create_string_buffer(size)
    libm.fegetenv(saved)
    word = int.from_bytes(saved.raw[offset : offset + 4], "little") | wanted
    image = saved.raw[:offset] + word.to_bytes(4, "little") + saved.raw[offset + 4 :]
    changed = ctypes.create_string_buffer(image, size)
    libm.fesetenv(changed)
    try:
        yield
        found = ctypes.create_string_buffer(size)
        libm.fegetenv(found)
    finally:
        libm.fesetenv(saved)
    after = int.from_bytes(found.raw[offset : offset + 4], "little")
    if (after ^ word) & compared:
        raise AssertionError(f"the float control word was {word:#x} and came back as {after:#x}")
