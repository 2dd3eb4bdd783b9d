"""The C core as Python sees it: its headers read by cffi, and the shared library.

No layout, enum value or version is typed a second time in Python: everything is taken from core/colibri.h,
core/blob/colibri_format.h, targets/workers/crew.h, targets/host/host.h and targets/linux/store.h (shipped as
_data/include).
"""

from __future__ import annotations

import os
import platform
import re
from functools import cache
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import cffi

from .errors import BlobError, Detail, MissingTool

HEADERS = ("colibri.h", "colibri_format.h", "crew.h", "host.h", "store.h")
_PACKAGE = Path(__file__).resolve().parent


def data_folder() -> Path:
    """Where the build puts everything the package ships besides Python."""
    return _PACKAGE / "_data"


def repository() -> Path | None:
    """The source tree this package lies in, if it does."""
    root = _PACKAGE.parents[1]
    return root if (root / "core" / "colibri.h").is_file() else None


def header_path(name: str) -> Path:
    """A header: next to a library named by COLIBRI_LIBRARY the repository's, else the shipped one."""
    shipped = data_folder() / "include" / name
    root = repository()
    in_tree = sorted(path for room in ("core", "targets") for path in root.glob(f"{room}/**/{name}")) if root else []
    if in_tree and (os.environ.get("COLIBRI_LIBRARY") or not shipped.is_file()):
        return in_tree[0]
    if not shipped.is_file():
        raise MissingTool(f"{shipped}: not found; install the package again or run `python -m SCons package`")
    return shipped


@cache
def header_text(name: str) -> str:
    """A header as it is."""
    return header_path(name).read_text(encoding="utf-8")


def declarations(text: str) -> str:
    """A C header of ours without what cffi cannot read: comments, conditions, attributes, our two macros.

    COLIBRI_POINTER(type, name) becomes `type name`; enums without a name get one, so that they can be asked
    for.
    """
    text = re.sub(r"/\*.*?\*/", " ", text, flags=re.S)
    text = re.sub(r"^[ \t]*#[ \t]*ifdef[ \t]+__cplusplus.*?^[ \t]*#[ \t]*endif", "", text, flags=re.S | re.M)
    kept = []
    for line in text.splitlines():
        if line.lstrip().startswith("#"):
            found = re.match(r"\s*#\s*define\s+(\w+)\s+(\(?-?(?:0x[0-9A-Fa-f]+|\d+)[uUlL]*\)?)\s*$", line)
            if found:
                kept.append(f"#define {found[1]} {found[2].strip('()')}")
        else:
            kept.append(line)
    text = "\n".join(kept)
    text = re.sub(r"\bCOLIBRI_API\b", "", text)
    text = re.sub(r"__attribute__\s*\(\(.*?\)\)", "", text)
    text = re.sub(r"\bCOLIBRI_POINTER\(\s*([^,()]+?)\s*,\s*(\w+)\s*\)", r"\1 \2", text)
    numbers = iter(range(1 << 16))
    return re.sub(r"\benum\s*\{", lambda _: f"enum colibri_anonymous_{next(numbers)} {{", text)


@cache
def ffi() -> Any:
    """cffi with all declarations of the headers."""
    maker = cffi.FFI()
    for name in HEADERS:
        maker.cdef(declarations(header_text(name)))
    return maker


@cache
def enums() -> dict[str, dict[str, int]]:
    """Enum name -> (full identifier -> value), for every enum of the headers."""
    found = re.findall(r"\benum\s+(\w+)\s*\{", "\n".join(declarations(header_text(name)) for name in HEADERS))
    return {name: dict(ffi().typeof(f"enum {name}").relements) for name in found}


@cache
def constants() -> SimpleNamespace:
    """Every enum constant and integer macro without its COLIBRI_: constants().SECTION_MODEL."""
    values: dict[str, int] = {}
    for elements in enums().values():
        values.update({name.removeprefix("COLIBRI_"): value for name, value in elements.items()})
    for name in HEADERS:
        for macro, number in re.findall(r"#define (\w+) (\S+)", declarations(header_text(name))):
            values[macro.removeprefix("COLIBRI_")] = int(number.rstrip("uUlL"), 0)
    return SimpleNamespace(**values)


@cache
def names(enum: str) -> dict[int, str]:
    """Value -> short name of one enum: names("colibri_role")[11] is "Q"."""
    elements = enums()[enum]
    own = enum.upper() + "_"
    if all(name.startswith(own) for name in elements):
        prefix = own
    else:
        common = os.path.commonprefix(list(elements))
        prefix = common[: common.rfind("_") + 1]
    return {value: name.removeprefix(prefix) for name, value in elements.items()}


@cache
def values(enum: str) -> dict[str, int]:
    """Short name -> value of one enum."""
    return {name: value for value, name in names(enum).items()}


@cache
def key_types(enum: str) -> dict[str, str]:
    """Short name -> "u32", "f32" or "u64" of the record keys of one enum, read from the header's comments.

    Keys marked as reserved there are left out: nothing writes them yet.
    """
    full = {identifier: name for identifier, name in zip(enums()[enum], names(enum).values(), strict=True)}
    lines = re.findall(
        r"\b(COLIBRI_\w+)\s*=\s*\d+\s*,?\s*/\*\s*(u32|f32|u64)\b", header_text("colibri_format.h")
    )
    return {full[identifier]: kind for identifier, kind in lines if identifier in full}


def version() -> str:
    """The library's version, declared once, in colibri.h."""
    c = constants()
    return f"{c.VERSION_MAJOR}.{c.VERSION_MINOR}.{c.VERSION_PATCH}"


def library_path() -> Path:
    """The shared library: COLIBRI_LIBRARY, else the packaged one, else a build folder of the source tree."""
    named = os.environ.get("COLIBRI_LIBRARY")
    if named:
        if not Path(named).is_file():
            raise MissingTool(
                f"COLIBRI_LIBRARY={named}: no such file; build it with `python -m SCons` or unset it"
            )
        return Path(named)
    target = f"linux_{platform.machine()}"
    places = [data_folder() / target / "libcolibri.so"]
    root = repository()
    if root:
        places += [root / "build" / kind / target / "libcolibri.so" for kind in ("zig", "gcc")]
    for place in places:
        if place.is_file():
            return place
    raise MissingTool(
        f"libcolibri.so for {target} is not here; build it with `python -m SCons` in the source tree"
    )


@cache
def load() -> Any:
    """The shared library, checked to be of the headers' ABI."""
    path = library_path()
    try:
        library = ffi().dlopen(str(path))
        numbers = ffi().new("uint32_t[3]")
        library.colibri_version(numbers, numbers + 1, numbers + 2)
    except (OSError, AttributeError) as error:
        raise MissingTool(
            f"{path}: cannot be loaded ({error}); build it again with `python -m SCons`"
        ) from None
    c = constants()
    expected = (
        c.VERSION_MAJOR << 16 | c.VERSION_MINOR << 8 | c.VERSION_PATCH,
        c.FORMAT_VERSION,
        c.ABI_VERSION,
    )
    if tuple(numbers) != expected:
        raise MissingTool(
            f"{path}: library, format and ABI are {tuple(numbers)}, the headers say {expected}; "
            "build it again with `python -m SCons`"
        )
    return library


def status_name(status: int) -> str:
    """A status by the header's name: "OK", "ERROR_MAGIC"."""
    return names("colibri_status_code").get(status, str(status))


def detail_of(detail: Any) -> Detail:
    """A colibri_detail with names instead of numbers."""
    section = names("colibri_section_type").get(detail.section, str(detail.section) if detail.section else "")
    field = names("colibri_field").get(detail.field, str(detail.field))
    enum = {"MODEL": "colibri_model_key", "LAYERS": "colibri_layer_key"}.get(section, "")
    named = names(enum).get(detail.found, "") if enum and field == "KEY" and not detail.expected else ""
    return Detail(
        status_name(detail.status), section, field, detail.index, detail.offset, detail.expected, detail.found, named
    )


def blob_error(path: object, detail: Any) -> BlobError:
    """The error for a blob that the core refused."""
    return BlobError(path, detail_of(detail))
