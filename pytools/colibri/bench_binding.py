"""What it costs to bind an expert that is resident: streamed with every expert in its slot, against in place.

A model of its own is written for it, with many small experts, so that the bindings are a measurable part of a
token. The two sessions take turns, token by token, on the same tokens.
"""

from __future__ import annotations

import statistics
import tempfile
from dataclasses import replace
from pathlib import Path

from .bench_rows import Case, Track
from .bench_traffic import traffic_of
from .blobfile import BlobFile
from .engine import Limits, Model, Session
from .synth import Spec, write_random_blob

SPEC = Spec(
    vocab=64, hidden=32, layers=4, heads=1, kv_heads=1, head_dim=32, experts=64, top_k=8, expert_ff=32
)
CONTEXT, ROUNDS = 32, 40


def binding_ns(kernel: str = "auto") -> float:
    """Nanoseconds per binding, the median over many tokens."""
    with tempfile.TemporaryDirectory(prefix="colibri-") as folder:
        path = Path(folder) / "experts.colibri"
        write_random_blob(path, SPEC, kinds="q4")
        model, traffic = Model.open(path), traffic_of(BlobFile(path))
        slots = SPEC.layers * SPEC.experts
        limits = Limits(context=CONTEXT, batch=CONTEXT, kernel=kernel)
        with (
            Session(model, limits) as plain,
            Session(model, replace(limits, slots=slots, stream_experts=True)) as streamed,
        ):
            tracks = [Track(session, traffic) for session in (plain, streamed)]
            return _difference(tracks) / (SPEC.layers * SPEC.top_k)


def _difference(tracks: list[Track]) -> float:
    """Nanoseconds that a token takes longer on the second track, which does not miss any more."""
    while True:  # every expert has been asked for
        missed = tracks[1].session.stats().expert_misses
        for _ in range(4):
            tracks[1].go_to(0)
            tracks[1].once(Case("pp", CONTEXT))
        if tracks[1].session.stats().expert_misses == missed:
            break
    times: list[list[int]] = [[], []]
    for _ in range(ROUNDS):
        for track, each in zip(tracks, times, strict=True):
            track.go_to(0)
            begun, stamps = track.once(Case("tg", CONTEXT))
            each += [end - start for start, end in zip([begun, *stamps], stamps, strict=False)]
    return statistics.median(times[1]) - statistics.median(times[0])
