"""How fast the memory can be read right now, by 1 .. n threads: the roofline beside a measured rate.

A process of its own holds the buffer (huge pages, 256 MiB, more than caches hold), so that its memory is not
counted as ours. It sleeps on its input between readings.
"""

from __future__ import annotations

import mmap
import os
import platform
import statistics
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import cffi

from . import library
from .errors import InternalError, MissingTool

BUFFER = 256 << 20
PART = 1 << 20  # threads take ranges of whole parts
READINGS = 5


def measure_library() -> Any:
    """libmeasure.so: the package's, or of a build folder."""
    maker = cffi.FFI()
    maker.cdef(
        "uint64_t colibri_measure_read(const void *, uint64_t, uint32_t); uint64_t colibri_measure_clock(void *);"
    )
    folder = f"linux_{platform.machine()}"
    root = library.repository()
    places = [library.data_folder() / folder]
    places += [root / "build" / kind / folder for kind in ("zig", "gcc")] if root else []
    for place in places:
        if (place / "libmeasure.so").is_file():
            return maker, maker.dlopen(str(place / "libmeasure.so"))
    raise MissingTool("libmeasure.so is not built; run `python -m SCons` in the source tree")


class Reader:
    """The buffer and its readers."""

    def __init__(self) -> None:
        self._ffi, self._lib = measure_library()
        memory = mmap.mmap(-1, BUFFER, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
        memory.madvise(mmap.MADV_HUGEPAGE)
        part = os.urandom(PART)
        for at in range(0, BUFFER, PART):
            memory[at : at + PART] = part
        self._start = self._ffi.from_buffer(memory)

    def once(self, threads: int) -> float:
        """GB/s of one reading of the buffer, shared out to threads."""
        share = BUFFER // PART // threads * PART
        barrier, spans = threading.Barrier(threads), [(0, 0)] * threads

        def read(number: int) -> None:
            barrier.wait()
            begun = time.perf_counter_ns()
            self._lib.colibri_measure_read(self._start + number * share, share, 1)
            spans[number] = begun, time.perf_counter_ns()

        workers = [threading.Thread(target=read, args=(number,)) for number in range(1, threads)]
        for worker in workers:
            worker.start()
        read(0)
        for worker in workers:
            worker.join()
        return threads * share / (max(end for _, end in spans) - min(begun for begun, _ in spans))

    def read(self, threads: int) -> float:
        """The median of a few readings."""
        return statistics.median(self.once(threads) for _ in range(READINGS))


class Meter:
    """The other process."""

    def __init__(self) -> None:
        measure_library()  # says what is missing before a process is started
        command = [sys.executable, "-c", "from colibri.bench_bandwidth import serve; serve()"]
        path = os.pathsep.join(filter(None, [str(library._PACKAGE.parent), os.environ.get("PYTHONPATH", "")]))
        self._process = subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env={**os.environ, "PYTHONPATH": path},
        )

    def read(self, threads: int) -> float:
        """GB/s (1e9 bytes a second)."""
        assert self._process.stdin and self._process.stdout
        try:
            print(threads, file=self._process.stdin, flush=True)
            return float(self._process.stdout.readline())
        except (OSError, ValueError):
            raise InternalError("the process that reads the memory bandwidth ended early") from None

    def close(self) -> None:
        """Let it end."""
        assert self._process.stdin and self._process.stdout
        self._process.stdin.close()
        self._process.wait()
        self._process.stdout.close()


@contextmanager
def meter(wanted: bool = True) -> Iterator[Meter | None]:
    """A meter, or None where none is wanted."""
    made = Meter() if wanted else None
    try:
        yield made
    finally:
        if made:
            made.close()


def serve() -> None:
    """The other process: a line with a number of threads in, a line with GB/s out."""
    reader = Reader()
    for line in sys.stdin:
        print(reader.read(int(line)), flush=True)
