"""The one-file build: the whole core as one colibri.c beside colibri.h, for projects without a build system.

Every quoted include is replaced by the file it names, once; colibri.h stays an include. Nothing is rewritten
otherwise, which is why static names and macros must be unique over the whole core: the compile test of the
result sees it when they are not.
"""
import re
from pathlib import Path

INCLUDE = re.compile(r'^[ \t]*#[ \t]*include[ \t]+"([^"]+)"[^\n]*$', re.M)
HEAD = """/* Colibri, the whole core as one file. Generated from core/; change the sources there, not here.
   Compile with -ffp-contract=off all the same: the pragmas below are a second lock on the door. */
#if defined(__clang__)
#pragma STDC FP_CONTRACT OFF
#pragma clang diagnostic ignored "-Wunused-function"    /* inline helpers of headers that nobody called */
#elif defined(__GNUC__)
#pragma GCC optimize ("fp-contract=off")
#endif
#include "colibri.h"
"""


def resolve(name, includer, root):
    """A quoted include's file: beside the includer, else below core/."""
    for folder in (includer.parent, root):
        if (folder / name).is_file():
            return (folder / name).resolve()
    raise SystemExit(f"amalgamate: {includer} includes {name!r}, which is neither beside it nor below core/")


def expand(path, root, seen):
    """The text of a core file with its core includes in place, each only once."""
    def put(match):
        file = resolve(match.group(1), path, root)
        if file == (root / "colibri.h").resolve() or file in seen:
            return ""
        if file.suffix == ".h":
            seen.add(file)                      # other suffixes are templates: included as often as asked
        return expand(file, root, seen)

    body = INCLUDE.sub(put, path.read_text(encoding="utf-8"))
    return f"/* ---- {path.relative_to(root).as_posix()} ---- */\n{body.rstrip()}\n"


def single_file(target, source, env):
    """SCons action: write target[0] from all .c files among the sources, in the order given."""
    root = Path(env.Dir("#core").abspath).resolve()
    seen = set()
    parts = [expand(Path(s.abspath).resolve(), root, seen) for s in source if str(s).endswith(".c")]
    Path(target[0].abspath).write_text(HEAD + "\n".join(parts), encoding="utf-8")
