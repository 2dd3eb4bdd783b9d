"""Prints the first shell block of a README, as it is to be run inside a clone: `first_command.py README.md`.

Lines that get the clone (`git clone ...` and the `cd` behind it) are left out: the clone is made from this tree.
"""
import re
import sys
from pathlib import Path


def first_command(text: str) -> str:
    """The first ```sh (or bash, shell, console) block without the lines that clone."""
    block = re.search(r"^```(?:sh|bash|shell|console)\n(.*?)^```", text, re.M | re.S)
    if block is None:
        raise SystemExit("first_command.py: README has no shell block; its first screen must show one")
    lines = [line.removeprefix("$ ") for line in block[1].splitlines()]
    kept = [re.sub(r"^git clone [^&]*(&&\s*cd \S+\s*)?(&&\s*)?", "", line) for line in lines
            if not re.fullmatch(r"cd \S+", line)]
    return "\n".join(line for line in kept if line.strip()) + "\n"


if __name__ == "__main__":
    print(first_command(Path(sys.argv[1]).read_text(encoding="utf-8")), end="")
