"""Judges what the README's first command printed in the fresh system: `check_output.py OUTPUT`.

Without QEMU the demo must have run on linux and wasm with equal digests, and must name the one line that
installs what bare metal needs.
"""
import re
import sys
from collections import Counter
from pathlib import Path


def problems(text: str) -> list[str]:
    """What is missing from the demo's output."""
    found = []
    digests = Counter(re.findall(r"\b[0-9a-f]{16,64}\b", text))
    if not digests or max(digests.values()) < 2:
        found.append(f"expected one digest on at least two rows, found {dict(digests)}")
    if "one answer" not in text:
        found.append("the demo did not conclude 'one answer'")
    for word in ("linux", "wasm", "apt-get install"):
        if word not in text:
            found.append(f"the output does not mention {word!r}")
    return found


if __name__ == "__main__":
    missing = problems(Path(sys.argv[1]).read_text(encoding="utf-8"))
    for line in missing:
        print(f"check_output.py: {line}", file=sys.stderr)
    sys.exit(1 if missing else 0)
