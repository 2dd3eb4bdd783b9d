"""What the machine tells about a measurement: who else was running, how much memory this process holds.

Reads /proc; where that does not exist the answers are None.
"""

from __future__ import annotations

import os
import platform
import re
import time
from pathlib import Path

QUIET_LOOK = 0.3  # seconds the others are watched


def busy() -> tuple[float, float] | None:
    """CPU seconds of the whole machine, and of this process with all its threads."""
    try:
        words = Path("/proc/stat").read_text(encoding="ascii").split("\n", 1)[0].split()[1:9]
    except OSError:
        return None
    ticks, own = [int(word) for word in words], os.times()
    return (sum(ticks) - ticks[3] - ticks[4]) / os.sysconf("SC_CLK_TCK"), own.user + own.system


def others(before: tuple[float, float] | None, after: tuple[float, float] | None, seconds: float) -> float:
    """Cores that other processes took between two readings of busy()."""
    if before is None or after is None or seconds <= 0:
        return 0.0
    return max(0.0, (after[0] - before[0] - (after[1] - before[1])) / seconds)


def wait_quiet(limit: float, share: float) -> bool:
    """Wait until the others use less than `share` of a core; False if they did not within `limit` seconds."""
    end = time.monotonic() + limit
    while time.monotonic() < end:
        before = busy()
        time.sleep(QUIET_LOOK)
        if others(before, busy(), QUIET_LOOK) < share:
            return True
    return False


def memory() -> dict[str, float]:
    """MiB of this process now, by what backs them, and the most there ever were."""
    names = {"RssAnon": "anonymous", "RssFile": "file", "RssShmem": "shared", "VmRSS": "all", "VmHWM": "peak"}
    try:
        text = Path("/proc/self/status").read_text(encoding="ascii")
    except OSError:
        return {}
    found = re.findall(r"^(\w+):\s+(\d+) kB$", text, re.MULTILINE)
    return {names[name]: round(int(size) / 1024, 1) for name, size in found if name in names}


def huge_mapped() -> float:
    """MiB of the process that lie in huge pages, anonymous and of files."""
    try:
        text = Path("/proc/self/smaps_rollup").read_text(encoding="ascii")
    except OSError:
        return 0.0
    sizes = re.findall(r"^(?:AnonHugePages|FilePmdMapped|ShmemPmdMapped):\s+(\d+) kB$", text, re.MULTILINE)
    return round(sum(map(int, sizes)) / 1024, 1)


def processor() -> str:
    """The processor's name, as the system has it."""
    try:
        text = Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace")
    except OSError:
        text = ""
    found = re.search(r"^model name\s*:\s*(.+)$", text, re.MULTILINE)
    return found[1].strip() if found else platform.machine()


def evict(path: Path) -> None:
    """Take a file out of the page cache: what is read next comes from the disk, into the pages a mapping asks for."""
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
        os.posix_fadvise(handle, 0, 0, os.POSIX_FADV_DONTNEED)
    finally:
        os.close(handle)
