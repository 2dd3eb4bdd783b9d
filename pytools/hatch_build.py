"""Build hooks of the Python package: the version comes from the C header, the binaries from SCons.

The SCons alias `package` fills pytools/colibri/_data with every target's artefacts. An editable install reads
that folder where it is; a wheel gets its files, without the shared library of the other architecture.
COLIBRI_WHEEL_ARCH=aarch64 makes the aarch64 wheel on any build host (zig cross-compiles everything).
"""
import os
import platform
import re
import subprocess
import sys
from pathlib import Path

from hatchling.builders.hooks.plugin.interface import BuildHookInterface
from hatchling.metadata.plugin.interface import MetadataHookInterface

WHEEL_ARCHES = ("x86_64", "aarch64")


def header_version(root: Path) -> str:
    """The library's version out of core/colibri.h, where it is declared once."""
    text = (root / "core" / "colibri.h").read_text(encoding="utf-8")
    numbers = [re.search(rf"^#define\s+COLIBRI_VERSION_{part}\s+(\d+)", text, re.M)
               for part in ("MAJOR", "MINOR", "PATCH")]
    if not all(numbers):
        raise SystemExit("core/colibri.h: COLIBRI_VERSION_MAJOR, _MINOR and _PATCH must be plain numbers")
    return ".".join(n[1] for n in numbers if n)


class VersionHook(MetadataHookInterface):
    """Fills the dynamic field `version`."""

    def update(self, metadata: dict) -> None:
        """hatchling calls this with the project table."""
        metadata["version"] = header_version(Path(self.root))


class ArtefactHook(BuildHookInterface):
    """Runs SCons and adds the artefacts to the wheel."""

    def initialize(self, version: str, build_data: dict) -> None:
        """hatchling calls this before it collects files; version is 'standard' or 'editable'."""
        root = Path(self.root)
        arch = os.environ.get("COLIBRI_WHEEL_ARCH") or platform.machine()
        if arch not in WHEEL_ARCHES:
            raise SystemExit(f"colibri-moe: no wheel for {arch}; set COLIBRI_WHEEL_ARCH to one of {WHEEL_ARCHES}")
        subprocess.run([sys.executable, "-m", "SCons", "-s", "package"], cwd=root, check=True)
        build_data["pure_python"] = False
        build_data["tag"] = f"py3-none-manylinux_2_17_{arch}"
        if version == "editable":
            return
        data = root / "pytools" / "colibri" / "_data"
        for file in sorted(p for p in data.rglob("*") if p.is_file()):
            other = file.suffix == ".so" and file.parent.name != f"linux_{arch}"
            if not other:
                build_data["force_include"][str(file)] = f"colibri/_data/{file.relative_to(data).as_posix()}"
