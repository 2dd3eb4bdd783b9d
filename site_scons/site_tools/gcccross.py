"""SCons tool: GNU gcc, ar and ld behind a prefix such as `aarch64-linux-gnu-`.

The raw linker is used, as with zig, so that both toolchains share one set of link flags.
Construction variable read here: GCC_PREFIX.
"""
import shutil


def find(prefix):
    """Path of the prefixed gcc, or None."""
    return shutil.which(prefix + "gcc")


def exists(env):
    """SCons asks whether the tool can be used here."""
    return find(env.get("GCC_PREFIX", "")) is not None


def generate(env):
    """Point the environment's compiler, archiver and linker at the prefixed GNU tools."""
    env.Replace(CC="${GCC_PREFIX}gcc", CXX="${GCC_PREFIX}g++", AR="${GCC_PREFIX}ar", LINK="${GCC_PREFIX}ld")
