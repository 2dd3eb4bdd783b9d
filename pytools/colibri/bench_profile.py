"""Where a token's time goes, by op of the tape: the core's counters, a counter of the processor as their clock."""

from __future__ import annotations

import time
from dataclasses import dataclass, fields
from typing import Any

from . import library
from .bench_bandwidth import measure_library
from .engine import CoreError, Session

CALIBRATION = 0.03  # seconds


def counter() -> tuple[Any, float]:
    """The clock as a hook, and how many of its ticks are a nanosecond."""
    maker, lib = measure_library()
    ticks, begun = lib.colibri_measure_clock(maker.NULL), time.perf_counter_ns()
    time.sleep(CALIBRATION)
    rate = (lib.colibri_measure_clock(maker.NULL) - ticks) / (time.perf_counter_ns() - begun)
    address = int(maker.cast("uintptr_t", maker.addressof(lib, "colibri_measure_clock")))
    counter._kept = lib  # type: ignore[attr-defined]  # a library that is let go takes its code along
    return library.ffi().cast("colibri_clock_hook", address), rate


@dataclass
class Entry:
    """colibri_profile_entry by name."""

    runs: int
    units: int
    macs: int
    nanoseconds: int


def read_profile(session: Session) -> dict[str, Entry]:
    """The counters by op, which begin anew."""
    room = library.constants().OP_ROOM
    entries = library.ffi().new("colibri_profile_entry[]", room)
    status = library.load().colibri_profile(session.c, entries, room, 1)
    if status < 0:
        raise CoreError("colibri_profile", status)
    named = library.names("colibri_op_kind")
    kept = [kind for kind in sorted(named) if kind < room and entries[kind].runs]
    return {
        named[kind]: Entry(*(getattr(entries[kind], field.name) for field in fields(Entry))) for kind in kept
    }


def profile_of(
    session: Session, bytes_of: dict[str, float], router_macs: int, tokens: int, ticks_per_ns: float
) -> list[dict[str, Any]]:
    """Per token, since the last reading: time, multiply-adds and bytes of every op that ran. The core counts the
    experts' multiply-adds where they are chosen; here they stand where they are done."""
    found = read_profile(session)
    if "ROUTE" in found:
        moved = found["ROUTE"].macs - router_macs * tokens
        found["ROUTE"].macs -= moved
        found["EXPERT_UP"].macs += moved * 2 // 3
        found["EXPERT_DOWN"].macs += moved - moved * 2 // 3
    whole = sum(entry.nanoseconds for entry in found.values()) or 1
    rows = []
    for op, entry in found.items():
        spent = entry.nanoseconds / ticks_per_ns / tokens
        size = bytes_of.get(op, 0.0)
        rows.append(
            {
                "op": op.lower(),
                "share": entry.nanoseconds / whole,
                "us": spent / 1e3,
                "runs": entry.runs / tokens,
                "units": entry.units / tokens,
                "macs": entry.macs // tokens,
                "bytes": round(size),
                "gmacs": entry.macs / tokens / spent if spent else 0.0,
                "gbs": size / spent if spent else 0.0,
            }
        )
    return rows
