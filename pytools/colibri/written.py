"""Small files that a command leaves: whole, or what was there before."""

from __future__ import annotations

import contextlib
import os
import tempfile
from collections.abc import Iterable
from pathlib import Path

from .errors import InputError


def write_whole(path: Path, parts: Iterable[bytes]) -> None:
    """The parts as a file, which is there when it is whole, and until then the old one. What is no regular file (a
    pipe, a device) is written to as it is."""
    try:
        place = path.resolve()  # behind links
        if place.exists() and not place.is_file():
            with place.open("wb") as file:
                file.writelines(parts)
            return
        mode = place.stat().st_mode & 0o777 if place.exists() else 0o666 & ~_mask()
        handle, name = tempfile.mkstemp(dir=place.parent, prefix=place.name + ".")
        try:
            with os.fdopen(handle, "wb") as file:
                file.writelines(parts)
                file.flush()
                os.fchmod(file.fileno(), mode)
                os.fsync(file.fileno())
            os.replace(name, place)
        except BaseException:
            with contextlib.suppress(OSError):
                os.unlink(name)
            raise
    except OSError as error:
        raise InputError(f"{path}: cannot be written ({error.strerror}); choose another place") from None


def _mask() -> int:
    mask = os.umask(0o077)
    os.umask(mask)
    return mask
