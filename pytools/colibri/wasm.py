"""Runs a job inside a Colibri module with wasmtime, in this process.

A module imports its memory and a store; job, blob (or only its tables, where the store brings the rest) and the job's
region are laid out behind `__heap_base`. An engine takes a module as a whole or not at all, so there is one for each
kernel level; which one runs is decided here.
"""

from __future__ import annotations

import ctypes
import os
import threading
from collections.abc import Callable
from functools import lru_cache
from pathlib import Path
from typing import Any

from . import library
from .engine import Model
from .errors import DoesNotFit, InternalError, MissingTool

PAGE = 65536
WAITING = 2  # what a turn returns when there is nothing to do before something arrives
MOST_PAGES = 65536  # of a 32-bit memory
MODULES = {"relaxed": "colibri_relaxed.wasm", "simd128": "colibri_simd128.wasm", "portable": "colibri.wasm"}


def settings() -> Any:
    """How engines are configured."""
    import wasmtime

    config = wasmtime.Config()
    config.epoch_interruption = True  # so that a run can be ended from outside
    return config


@lru_cache(maxsize=4)
def compiled(path: Path, stamp: int) -> tuple[Any, Any] | None:
    """Engine and module, or None if the engine does not take the module or answers its known vectors wrongly; `stamp`
    makes a rebuilt file a new entry."""
    import wasmtime

    engine = wasmtime.Engine(settings())
    try:
        module = wasmtime.Module.from_file(engine, str(path))
    except wasmtime.WasmtimeError:
        return None
    store, _, exports = instance(engine, module, 64)
    return (engine, module) if exports["colibri_runner_engine_fits"](store) == 1 else None


def usable(folder: Path, name: str) -> tuple[Any, Any] | None:
    """Engine and module of a kernel level, or None if it cannot run here."""
    path = folder / MODULES[name]
    return compiled(path, path.stat().st_mtime_ns)


def choose(folder: Path, kernel: str) -> tuple[Any, Any]:
    """Engine and module of a kernel level, or of the best one that runs here."""
    names = [kernel] if kernel in MODULES else list(MODULES)
    for name in names:
        found = usable(folder, name)
        if found:
            return found
    raise MissingTool(f"kernel {names[-1]}: the wasmtime here does not take {MODULES[names[-1]]}; choose kernel auto")


def levels(folder: Path) -> list[str]:
    """The kernel levels whose modules can run here, the best one last."""
    return [name for name in reversed(MODULES) if usable(folder, name)]


def round64(value: int) -> int:
    """Up to a multiple of 64."""
    return (value + 63) & ~63


Fetch = Callable[[int, int, int, int], int]  # offset, bytes, to, ticket -> status


def no_store(offset: int, size: int, to: int, ticket: int) -> int:
    """The import of a job whose blob is in memory."""
    return int(library.constants().ERROR_FETCH)


def instance(engine: Any, module: Any, pages: int, fetch: Fetch = no_store) -> tuple[Any, Any, Any]:
    """Store, memory and exports."""
    import wasmtime

    store = wasmtime.Store(engine)
    store.set_epoch_deadline(1)
    memory = wasmtime.Memory(store, wasmtime.MemoryType(wasmtime.Limits(pages, None)))
    i32, i64 = wasmtime.ValType.i32, wasmtime.ValType.i64
    bring = wasmtime.Func(store, wasmtime.FuncType([i64(), i32(), i32(), i32()], [i32()]), fetch)
    given = {"memory": memory, "colibri_store": bring}
    imports = [given[wanted.name] for wanted in module.imports]
    return store, memory, wasmtime.Instance(store, module, imports).exports(store)


class FileReader:
    """The import: reads the file straight into the module's memory; the bytes are there when it returns."""

    def __init__(self, path: Path) -> None:
        self.file = os.open(path, os.O_RDONLY | getattr(os, "O_CLOEXEC", 0))
        self.room = memoryview(b"")

    def fetch(self, offset: int, size: int, to: int, ticket: int) -> int:
        """offset is a signed 64-bit number, the others are signed 32-bit ones."""
        c, at = library.constants(), to & 0xFFFFFFFF
        view = self.room[at : at + size]
        try:
            while view:
                done = os.preadv(self.file, [view], offset)
                if not done:
                    return int(c.ERROR_FETCH)
                view, offset = view[done:], offset + done
        except OSError:
            return int(c.ERROR_FETCH)
        return int(c.DONE)

    def arrivals(self, idle: bool) -> list[tuple[int, int]]:
        """Tickets that fetch() answered with OK, each with what became of it, DONE or an error: asked for between two
        turns. idle: the module can do nothing before one comes. Here all were there at once."""
        return []

    def close(self) -> None:
        """The file, and the view of a memory that ends with its store."""
        self.room = memoryview(b"")
        os.close(self.file)


def run_job(folder: Path, kernel: str, job: bytes, model: Model, limit: float, head_bytes: int = 0) -> str:
    """Execute a packed job in the module of a kernel level; returns its report. head_bytes: so many of the blob are in
    the module's memory, a store brings the others; 0: all are."""
    import wasmtime

    engine, module = choose(folder, kernel)
    store, memory, exports = instance(engine, module, 64)
    job_at = round64(exports["__heap_base"].value(store))
    blob_at = round64(job_at + len(job))
    blob_bytes = head_bytes or model.bytes
    region_at = round64(blob_at + blob_bytes)
    region_bytes = int.from_bytes(job[24:32], "little")
    pages = -(-(region_at + region_bytes) // PAGE)
    if pages > MOST_PAGES:
        raise DoesNotFit(
            f"{model.path}: blob and pool need {pages * PAGE} bytes, a 32-bit WebAssembly memory has "
            f"{MOST_PAGES * PAGE}; plan a shorter context or use another target"
        )
    reader = FileReader(model.path) if head_bytes else None
    store, memory, exports = instance(engine, module, pages, reader.fetch if reader else no_store)
    base = ctypes.addressof(memory.data_ptr(store).contents)
    if reader:
        reader.room = memoryview((ctypes.c_char * (pages * PAGE)).from_address(base)).cast("B")
    ctypes.memmove(base + job_at, job, len(job))
    ctypes.memmove(base + blob_at, int(library.ffi().cast("uintptr_t", model.address)), blob_bytes)
    alarm = threading.Timer(limit, engine.increment_epoch)
    alarm.daemon = True
    alarm.start()
    try:
        return drive(store, base, exports, (job_at, len(job), blob_at, region_at), reader)
    except wasmtime.Trap as error:
        raise InternalError(
            f"target wasm: the module trapped, or ran longer than {limit:g} s: {error}"
        ) from None
    finally:
        alarm.cancel()
        if reader:
            reader.close()


def signed(value: int) -> int:
    """An address as the i32 wasmtime wants."""
    return value - (1 << 32) if value >= 1 << 31 else value


def drive(
    store: Any, base: int, exports: Any, places: tuple[int, int, int, int], reader: FileReader | None = None
) -> str:
    """Turn after turn until the job is done, collecting what it reports; in between it is told what has arrived."""
    pieces: list[bytes] = []

    def collect() -> None:
        at = exports["colibri_runner_output"](store) & 0xFFFFFFFF
        count = exports["colibri_runner_output_bytes"](store) & 0xFFFFFFFF
        if count:
            pieces.append(ctypes.string_at(base + at, count))

    more = exports["colibri_runner_open"](store, *map(signed, places)) == 0
    collect()
    turn = exports["colibri_runner_turn"]
    while more:
        state = turn(store)
        more = state != 0
        collect()
        for ticket, status in reader.arrivals(state == WAITING) if reader else ():
            exports["colibri_runner_arrived"](store, ticket, status)
    return b"".join(pieces).decode("utf-8", "replace")
