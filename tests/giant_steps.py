"""Steps of a giant in a process of its own, whose memory is nobody else's: giant_steps.py BLOB COUNT prints JSON."""
from __future__ import annotations

import json
import mmap
import resource
import sys
import time
from pathlib import Path

from colibri import library
from colibri.blobfile import BlobFile
from colibri.engine import Limits, Model, Session
from colibri.store import FileStore, Storage


def steps(session: Session, count: int) -> tuple[list[float], list[int]]:
    """Seconds of each decoded token; how many experts each MoE layer has chosen in all of them."""
    info, seconds = session.model.info(), []
    chosen: list[set[int]] = [set() for _ in range(info.layers)]
    for step in range(count):
        begun = time.perf_counter()
        session.feed([(7919 * step + 101) % info.vocab])
        session.finish()
        seconds.append(time.perf_counter() - begun)
        for layer, seen in enumerate(chosen):
            seen.update(expert for expert, _ in session.routing(layer, 0))
    return seconds, [len(seen) for seen in chosen if seen]


def reading(model: Model, storage: Storage) -> float:
    """Bytes per second of a store alone: 200 experts, eight at a time."""
    ffi, lib, c, info = library.ffi(), library.load(), library.constants(), model.info()
    room, store = mmap.mmap(-1, 8 * info.expert_run_bytes), FileStore(model.path, storage)
    first = BlobFile(model.path).find("EXPERT_GATE", 3)
    begun = time.perf_counter()
    for expert in range(200):
        ticket = expert % 8
        request = ffi.new("colibri_fetch_request *", {
            "offset": first.offset + expert * first.stride, "bytes": first.stride, "ticket": ticket,
            "destination": ffi.from_buffer(room) + ticket * first.stride})
        assert lib.colibri_store_fetch(store.host, request) == c.OK
        for other in range(8) if ticket == 7 else ():
            while lib.colibri_store_fetched(store.host, other) == c.WAIT:
                store.wait()
    seconds = time.perf_counter() - begun
    store.close()
    return 200 * first.stride / seconds


def opening(path: Path) -> tuple[float, int]:
    """Seconds, the best of 20, and the most pages that one of them touched."""
    taken, faults = [], []
    for _ in range(20):
        before = resource.getrusage(resource.RUSAGE_SELF)
        begun = time.perf_counter()
        model = Model.open(path)
        taken.append(time.perf_counter() - begun)
        after = resource.getrusage(resource.RUSAGE_SELF)
        faults.append(after.ru_minflt + after.ru_majflt - before.ru_minflt - before.ru_majflt)
        del model
    return min(taken), max(faults)


def main(path: Path, count: int) -> None:
    """Resident weights in place, 48 slots, two workers, past the page cache."""
    model, storage = Model.open(path), Storage("direct")
    taken, pages = opening(path)
    found: dict[str, object] = {"open": taken, "pages": pages, "file_bytes": model.info().file_bytes,
                                "tables_bytes": model.info().tables_bytes}
    limits = Limits(context=128, batch=1, slots=48, stream_experts=True, workers=2)
    with Session(model, limits, storage=storage) as session:
        found["seconds"], found["chosen"] = steps(session, count)
        stats = session.stats()
    status = Path("/proc/self/status").read_text(encoding="ascii")
    found["peak"] = 1024 * next(int(line.split()[1]) for line in status.splitlines() if line.startswith("VmHWM"))
    found.update(hits=stats.expert_hits, misses=stats.expert_misses, read=stats.expert_bytes_fetched,
                 bandwidth=reading(model, storage), expert_bytes=model.info().expert_run_bytes)
    print(json.dumps(found))


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]))
