"""SCons tool: compile with `zig cc -c`, archive with `zig ar`, link with `zig ld.lld` or `zig wasm-ld`.

The linkers are called directly and no libc is ever linked: a `zig cc` link would first build musl and
compiler-rt (minutes), and `zig objcopy` would first build itself. Construction variables read here:
ZIG_TARGET (zig's target triple), ZIG_CPU (zig's CPU name, may be empty) and ZIG_CACHE (a folder). Set here:
ZIG_VERSION, on which every object has to depend.
"""
import importlib.metadata
import os


def find():
    """The zig binary inside the ziglang package, or None where the package is not installed."""
    try:
        import ziglang
    except ImportError:
        return None
    path = os.path.join(os.path.dirname(ziglang.__file__), "zig")
    return path if os.path.exists(path) else None


def exists(env):
    """SCons asks whether the tool can be used here."""
    return find() is not None


def generate(env):
    """Point the environment's compiler, archiver and linkers at zig."""
    zig = find()
    if zig is None:
        raise SystemExit("toolchain=zig needs the Python package 'ziglang': pip install ziglang "
                         "(or build with toolchain=gcc)")
    # One cache below the build folder: nothing is written to HOME, and HOME may be unset.
    cache = env.Dir(env["ZIG_CACHE"]).abspath
    os.makedirs(cache, exist_ok=True)
    env["ENV"]["ZIG_GLOBAL_CACHE_DIR"] = cache
    env["ENV"]["ZIG_LOCAL_CACHE_DIR"] = cache
    # Quoted, as the path may hold spaces; between $( and $), so that a zig of the same version at another place
    # (pip's isolated builds have a new one each time) rebuilds nothing. ZIG_VERSION says when it must.
    env.Replace(
        ZIG=f'$( "{zig}" $)',
        ZIG_VERSION=importlib.metadata.version("ziglang"),
        CC="$ZIG cc -target $ZIG_TARGET ${'-mcpu=' + ZIG_CPU if ZIG_CPU else ''}",
        CXX="$ZIG c++ -target $ZIG_TARGET ${'-mcpu=' + ZIG_CPU if ZIG_CPU else ''}",
        AR="$ZIG ar",
        LINK="$ZIG ${'wasm-ld' if ZIG_TARGET.startswith('wasm') else 'ld.lld'}",
    )
