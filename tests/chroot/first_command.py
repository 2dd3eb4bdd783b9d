"""Prints the first command of a README, as it is to be run inside a clone: `first_command.py README.md`.

The first command is the first line of the first shell block (with its continuation lines) that does more than
get the clone: `git clone ...` and `cd ...` are left out, the clone is made from this tree.
"""
import re
import sys
from pathlib import Path


def first_command(text: str) -> str:
    """The first command of the first ```sh (or bash, shell, console) block."""
    block = re.search(r"^```(?:sh|bash|shell|console)\n(.*?)^```", text, re.M | re.S)
    if block is None:
        raise SystemExit("first_command.py: README has no shell block; its first screen must show one")
    for line in block[1].replace("\\\n", "").splitlines():
        parts = [part.strip() for part in line.removeprefix("$ ").split("&&")]
        kept = [part for part in parts if part and not re.match(r"(git clone|cd|#)(\s|$)", part)]
        if kept:
            return " && ".join(kept) + "\n"
    raise SystemExit("first_command.py: README's first shell block holds no command besides getting the clone")


if __name__ == "__main__":
    print(first_command(Path(sys.argv[1]).read_text(encoding="utf-8")), end="")
