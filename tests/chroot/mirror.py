"""Prints the Debian mirror of this machine that has a suite, and its keyring: `mirror.py bookworm`.

Read from apt's own sources, so that no host's name stands in the repository.
"""
import re
import sys
from collections.abc import Iterator
from pathlib import Path


def sources(apt: Path) -> Iterator[tuple[str, list[str], list[str], str]]:
    """(address, suites, components, keyring) of every binary source, in both of apt's notations."""
    lists = [apt / "sources.list", *sorted(apt.glob("sources.list.d/*.list"))]
    for path in (p for p in lists if p.is_file()):
        for line in path.read_text(encoding="utf-8").splitlines():
            match = re.match(r"\s*deb\s+(?:\[([^]]*)\]\s+)?(\S+)\s+(\S+)\s+(.*)", line)
            if match:
                key = re.search(r"signed-by=(\S+)", match[1] or "")
                yield match[2], [match[3]], match[4].split(), key[1] if key else ""
    for path in sorted(apt.glob("sources.list.d/*.sources")):
        for stanza in re.split(r"\n\s*\n", path.read_text(encoding="utf-8")):
            fields = {k.lower(): v.split() for k, v in re.findall(r"^([A-Za-z-]+):[ \t]*(.*)$", stanza, re.M)}
            for address in fields.get("uris", []):
                if "deb" in fields.get("types", []):
                    yield (address, fields.get("suites", []), fields.get("components", []),
                           " ".join(fields.get("signed-by", [])[:1]))


def main() -> int:
    """Print `MIRROR KEYRING` (the keyring may be empty) or say what is missing."""
    suite = sys.argv[1]
    for address, suites, components, keyring in sources(Path("/etc/apt")):
        if suite in suites and "main" in components:
            print(address, keyring if Path(keyring).is_file() else "")
            return 0
    print(f"mirror.py: no source of /etc/apt has the suite {suite} with main; add one", file=sys.stderr)
    return 4


if __name__ == "__main__":
    sys.exit(main())
