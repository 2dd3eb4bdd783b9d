"""SCons tool: builder `FlatBin`, an ELF's loadable segments as one flat image (what a flash loader wants)."""
from SCons.Action import Action
from SCons.Builder import Builder


def exists(env):
    """pyelftools is imported when the builder runs."""
    return True


def flatten(target, source, env):
    """Write the PT_LOAD bytes of source[0], lowest physical address first, gaps as zeros."""
    from elftools.elf.elffile import ELFFile
    with open(str(source[0]), "rb") as f:
        loads = [s for s in ELFFile(f).iter_segments() if s["p_type"] == "PT_LOAD" and s["p_filesz"]]
        base = min(s["p_paddr"] for s in loads)
        image = bytearray(max(s["p_paddr"] + s["p_filesz"] for s in loads) - base)
        for s in loads:
            start = s["p_paddr"] - base
            image[start:start + s["p_filesz"]] = s.data()
    with open(str(target[0]), "wb") as f:
        f.write(image)


def generate(env):
    """Add the builder."""
    env["BUILDERS"]["FlatBin"] = Builder(action=Action(flatten, "  $TARGET"), suffix=".bin", src_suffix=".elf")
