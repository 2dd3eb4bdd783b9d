"""A file as the store of a session: targets/linux/store.c with its threads, and what it says when something is wrong.

The bytes go from the file into the pool without passing through Python: hooks, reads and retries are C.
"""

from __future__ import annotations

import os
import threading
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from . import library
from .errors import DoesNotFit, InputError, MissingTool, UsageError

STREAMED = ("streamed", "direct", "uring", "pread")  # ways that need slots
STORES = ("mapped", *STREAMED)
NOWHERE = 0xFFFFFFFF  # layer and expert of resident weights
NO_SYSTEM_CALL, NOT_PERMITTED, INVALID = 38, 1, 22


@dataclass(frozen=True)
class Storage:
    """How bytes are read. None of it changes an answer."""

    kind: str = "streamed"  # streamed: io_uring where the kernel has it, else threads; direct: so past the page cache
    depth: int = 0  # requests in flight; 0: the store's own number
    threads: int = 0  # that read, without io_uring; 0: the store's own number
    retries: int = 3  # times a read that failed is begun again
    piece: int = 0  # bytes of one read; 0: all
    bytes_per_second: int = 0  # plays a device; 0: as fast as it goes
    poison: bool = False  # destinations hold nonsense until their bytes are there

    def c(self) -> Any:
        """The C structure."""
        if self.kind not in STREAMED:
            raise UsageError(f"store {self.kind!r}: expected one of {', '.join(STREAMED)}")
        c, ffi = library.constants(), library.ffi()
        kinds = {"uring": c.STORE_URING, "pread": c.STORE_PREAD}
        return ffi.new(
            "colibri_store_options *",
            {
                "struct_bytes": ffi.sizeof("colibri_store_options"),
                "kind": kinds.get(self.kind, c.STORE_BEST),
                "flags": c.STORE_DIRECT * (self.kind == "direct") | c.STORE_POISON * self.poison,
                "depth": self.depth,
                "threads": self.threads,
                "retries": self.retries,
                "piece_bytes": self.piece,
                "bytes_per_second": self.bytes_per_second,
            },
        )


class FileStore:
    """An open store. `host` is what hooks are called with: this store, and a crew if there is one."""

    def __init__(self, path: Path, storage: Storage | None = None, crew: Any = None) -> None:
        ffi, lib = library.ffi(), library.load()
        self.path, self.storage = path, storage or Storage()
        self.c = ffi.new("colibri_store *")
        self.host = ffi.new("colibri_store_host *", {"store": self.c, "crew": crew or ffi.NULL})
        status = int(lib.colibri_store_open(self.c, os.fsencode(path), self.storage.c()))
        if status < 0:
            raise refusal(path, self.storage.kind, -status)
        self._threads: list[threading.Thread] = []
        self._open = True
        for number in range(self.c.threads):
            thread = threading.Thread(
                target=lib.colibri_store_work, args=(self.c,), name=f"colibri-store-{number}", daemon=True
            )
            try:
                thread.start()
            except RuntimeError as error:
                self.close()
                raise DoesNotFit(f"a thread that reads {path} cannot be had ({error})") from None
            self._threads.append(thread)

    @property
    def kind(self) -> str:
        """What reads: uring or pread."""
        return "uring" if self.c.kind == library.constants().STORE_URING else "pread"

    @property
    def direct(self) -> bool:
        """Whether reads go past the page cache."""
        return self.storage.kind == "direct"

    def hook(self, hooks: Any) -> None:
        """Put this store into a session's hooks."""
        ffi, lib = library.ffi(), library.load()
        hooks.fetch = ffi.addressof(lib, "colibri_store_fetch")
        hooks.fetched = ffi.addressof(lib, "colibri_store_fetched")
        if self.host.crew != ffi.NULL:
            hooks.parallel = ffi.addressof(lib, "colibri_store_parallel")
        hooks.user = self.host

    def wait(self) -> None:
        """Sleep until something has arrived."""
        library.load().colibri_store_wait(self.c)

    def lost(self, wrong: tuple[int, int, int] | None = None) -> str:
        """One sentence about what was asked for last: why a fetch failed, or whose checksum was not right. wrong:
        layer, expert and offset of bytes that have come, and are not the file's."""
        layer, expert, offset = wrong or (self.c.last_layer, self.c.last_expert, self.c.last_offset)
        error = 0 if wrong else self.c.last_error
        what = "resident weights" if layer == NOWHERE else f"expert {expert} of layer {layer}"
        place = f"{self.path}: {what}: byte {offset}"
        if error == 0:
            return (
                f"{self.path}: {what}: the bytes from {offset} on do not have their checksum, and none "
                "was used; repair the file (`colibri check` lists all that is wrong) or get it again"
            )
        if error == library.constants().STORE_END_OF_FILE:
            return f"{place} is behind the end of the file; get the file again"
        return (
            f"{place} cannot be read ({os.strerror(error)}), {self.storage.retries} more tries included; "
            "repair the storage, then the session can go on"
        )

    def counters(self) -> dict[str, int]:
        """What it has done so far."""
        names = ("requests", "reads", "bytes", "shorts", "retries", "failures", "most_in_flight")
        return {name: int(getattr(self.c, name)) for name in names}

    def close(self) -> None:
        """Let reads end, threads return, and the file go; a second time there is nothing to do."""
        if not self._open:
            return
        self._open = False
        lib = library.load()
        lib.colibri_store_end(self.c)
        for thread in self._threads:
            thread.join()
        lib.colibri_store_close(self.c)


def refusal(path: Path, kind: str, error: int) -> InputError | MissingTool:
    """Why a store cannot be opened."""
    if kind == "uring" and error in (NO_SYSTEM_CALL, NOT_PERMITTED):
        return MissingTool(
            f"store uring: this kernel offers no io_uring to this process ({os.strerror(error)}); use --store pread"
        )
    if kind == "direct" and error == INVALID:
        return MissingTool(f"{path}: its file system has no direct reads; use --store streamed")
    return InputError(f"{path}: cannot be read ({os.strerror(error)}); give the path of a .colibri file")
