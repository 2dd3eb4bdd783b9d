"""The sampler against a slow numpy one (docs/NUMERICS.md section 8), and stop strings against a search."""

from __future__ import annotations

import itertools
import math
import random
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
import textroom
from hypothesis import given, settings
from hypothesis import strategies as st
from reference import vecmath

F = np.float32
MASK = (1 << 64) - 1


def mix(z: int) -> int:
    """The finaliser of splitmix64."""
    z = ((z ^ (z >> 30)) * 0xBF58476D1CE4E5B9) & MASK
    z = ((z ^ (z >> 27)) * 0x94D049BB133111EB) & MASK
    return z ^ (z >> 31)


def bits(seed: int, sequence: int, position: int) -> int:
    """The 64 bits of a draw."""
    return mix(mix((seed + 0x9E3779B97F4A7C15) & MASK) ^ (sequence << 32 | position))


def running(values: np.ndarray) -> np.ndarray:
    """Running sums, one float32 addition after the other."""
    return np.add.accumulate(values, dtype=F)


def reference(logits: np.ndarray, recent: Sequence[int], options: dict[str, Any]) -> int:
    """The token by the definition, everything sorted, nothing clever."""
    row = logits.astype(F).copy()
    penalty = F(options["repetition_penalty"])
    for number in set(recent):
        row[number] = row[number] / penalty if row[number] > 0 else row[number] * penalty
    order = sorted(range(len(row)), key=lambda number: (-row[number], number))
    if options["temperature"] == 0:
        return order[0]
    weight = vecmath.exp((row - row[order[0]]) / F(options["temperature"]))
    top_k = options["top_k"] or len(order)
    order = order[:top_k]
    kept = weight[order]
    whole = F(vecmath.sum16(weight)) if top_k >= len(row) else running(kept)[-1]
    cut = top_k < len(row)
    if options["top_p"] < 1:
        enough = np.flatnonzero(running(kept) >= F(options["top_p"]) * whole)
        cut, order = True, order[: int(enough[0]) + 1] if enough.size else order
    if options["min_p"] > 0:
        low = [place for place, number in enumerate(order) if place and weight[number] < F(options["min_p"])]
        cut, order = True, order[: low[0]] if low else order
    sums = running(weight[order])
    total = sums[-1] if cut else whole
    u = F(bits(options["seed"], options["sequence"], options["position"]) >> 40) * F(2.0**-24)
    beyond = np.flatnonzero(sums > u * total)
    return order[int(beyond[0])] if beyond.size else order[-1]


def draw(logits: np.ndarray, recent: Sequence[int] = (), **changes: Any) -> tuple[int, dict[str, Any]]:
    """(token or negative status of the core, all options)."""
    ffi, lib = textroom.library()
    options: dict[str, Any] = {
        "temperature": 1.0,
        "top_k": 0,
        "top_p": 1.0,
        "min_p": 0.0,
        "repetition_penalty": 1.0,
        "seed": 1,
        "sequence": 0,
        "position": 0,
        **changes,
    }
    given_options = ffi.new("colibri_sampling *", options)
    row = np.ascontiguousarray(logits, dtype=F)
    vocab = len(row)
    size = lib.colibri_sampler_scratch(vocab)
    scratch = ffi.new("uint8_t[]", size + textroom.SPARE)
    ffi.buffer(scratch)[size:] = b"\xa5" * textroom.SPARE
    token = ffi.new("uint32_t *", 0xFFFFFFFF)
    status = lib.colibri_sampler_draw(
        ffi.from_buffer("float[]", row), vocab, given_options, list(recent), len(recent), scratch, token
    )
    assert ffi.buffer(scratch)[size:] == b"\xa5" * textroom.SPARE
    if status < 0:
        assert token[0] == 0xFFFFFFFF
        return status, options
    return token[0], options


def test_the_bits_of_a_draw_are_those_of_the_definition() -> None:
    _, lib = textroom.library()
    dice = random.Random(1)
    assert bits(0, 0, 0) == lib.colibri_sampler_bits(0, 0, 0) == mix(mix(0x9E3779B97F4A7C15))
    for _ in range(500):
        seed, sequence, position = dice.getrandbits(64), dice.getrandbits(32), dice.getrandbits(32)
        assert lib.colibri_sampler_bits(seed, sequence, position) == bits(seed, sequence, position)


def test_every_combination_gives_the_token_of_the_definition() -> None:
    dice, numbers = random.Random(2), np.random.default_rng(2)
    seen = set()
    for turn in range(1500):
        vocab = dice.choice([1, 2, 15, 16, 17, 100, 1000])
        logits = numbers.normal(0, dice.choice([0.01, 1, 4, 30]), vocab).astype(F)
        if dice.random() < 0.5:
            logits = np.round(logits)  # ties
        recent = [dice.randrange(vocab) for _ in range(dice.choice([0, 3, 20]))]
        token, options = draw(
            logits,
            recent,
            seed=dice.getrandbits(64),
            sequence=dice.randrange(4),
            position=turn,
            temperature=dice.choice([0.0, 0.01, 0.7, 1.0, 2.5]),
            top_k=dice.choice([0, 0, 1, 5, 40, 5000]),
            top_p=dice.choice([1.0, 1.0, 0.9, 0.5, 1e-6]),
            min_p=dice.choice([0.0, 0.0, 0.05, 0.5, 1.0]),
            repetition_penalty=dice.choice([1.0, 1.3, 0.8]),
        )
        assert token == reference(logits, recent, options), (turn, vocab, options)
        seen.add(token)
    assert len(seen) > 100


def test_a_vocabulary_of_full_size_gives_the_token_of_the_definition() -> None:
    logits = np.random.default_rng(3).normal(0, 3, 151_936).astype(F)
    for position, changes in enumerate(
        [{}, {"top_p": 0.95}, {"top_k": 50}, {"min_p": 0.02}, {"temperature": 0.0}]
    ):
        token, options = draw(logits, [5, 6], position=position, repetition_penalty=1.1, **changes)
        assert token == reference(logits, [5, 6], options)


def test_frequencies_are_the_probabilities() -> None:
    """Chi-squared over 20,000 positions: 9 degrees of freedom, 1 in 10,000 lies above 33.7."""
    logits = np.log(np.arange(1, 11)).astype(F)
    counts = np.zeros(10)
    for position in range(20_000):
        counts[draw(logits, position=position, seed=99)[0]] += 1
    wanted = 20_000 * np.arange(1, 11) / 55
    assert float(((counts - wanted) ** 2 / wanted).sum()) < 33.7


def test_equal_logits_go_to_the_lower_id() -> None:
    logits = np.array([1, 3, 3, 2], dtype=F)
    assert draw(logits, temperature=0.0)[0] == 1
    assert draw(logits, top_k=1)[0] == 1
    assert draw(logits, [1, 1, 1], temperature=0.0, repetition_penalty=1.1)[0] == 2
    assert draw(np.array([0.0, -0.0], dtype=F), temperature=0.0)[0] == 0


@pytest.mark.parametrize(
    "changes",
    [
        {"temperature": -1.0},
        {"temperature": math.nan},
        {"temperature": math.inf},
        {"top_p": 0.0},
        {"top_p": 1.5},
        {"top_p": math.nan},
        {"min_p": -0.1},
        {"min_p": 1.1},
        {"repetition_penalty": 0.0},
        {"repetition_penalty": math.inf},
    ],
)
def test_parameters_outside_their_range_are_refused(changes: dict[str, float]) -> None:
    assert draw(np.zeros(4), **changes)[0] == -1


def test_what_is_not_finite_is_an_error() -> None:
    for bad in (math.nan, math.inf, -math.inf):
        for place in (0, 3):
            logits = np.zeros(4, dtype=F)
            logits[place] = bad
            assert draw(logits)[0] == draw(logits, temperature=0.0)[0] == -16
    assert draw(np.full(4, 3e38, dtype=F), [1], repetition_penalty=0.5)[0] == -16
    assert draw(np.zeros(4), [4], repetition_penalty=2.0)[0] == -15
    assert draw(np.array([3e38, -3e38], dtype=F), temperature=1e-3)[0] == 0


def first_stop(data: bytes, stops: Sequence[bytes]) -> bytes | None:
    """What comes before the stop string whose last byte comes first; the longest where several end there."""
    for end in range(len(data) + 1):
        ending = [stop for stop in stops if stop and data[:end].endswith(stop)]
        if ending:
            return data[: end - max(map(len, ending))]
    return None


def watch(stops: Sequence[bytes], pieces: Sequence[bytes]) -> tuple[bytes, bool, int]:
    """(text shown, whether it was stopped, most bytes ever held back)."""
    ffi, lib = textroom.library()
    joined = ffi.new("uint8_t[]", b"".join(stops) or b"\0")
    ends = ffi.new("uint32_t[]", list(np.cumsum([len(stop) for stop in stops])) or [0])
    stop_set = ffi.new("colibri_stop_set *", {"bytes": joined, "ends": ends, "count": len(stops)})
    state, written = ffi.new("colibri_stop_state *"), ffi.new("uint32_t *")
    shown, most = b"", 0
    for piece in pieces:
        room = state.held + len(piece)
        out = ffi.new("uint8_t[]", room + 1)
        if room:
            before = bytes(ffi.buffer(state))
            assert lib.colibri_stop_feed(stop_set, state, piece, len(piece), out, room - 1, written) == -12
            assert written[0] == room and bytes(ffi.buffer(state)) == before
        status = lib.colibri_stop_feed(stop_set, state, piece, len(piece), out, room, written)
        shown += bytes(ffi.buffer(out, written[0]))
        most = max(most, state.held)
        assert status == bool(state.stopped)
    out = ffi.new("uint8_t[]", most + 1)
    assert lib.colibri_stop_end(stop_set, state, out, most, written) == 0
    return shown + bytes(ffi.buffer(out, written[0])), bool(state.stopped), most


@settings(max_examples=400, deadline=None)
@given(
    data=st.binary(max_size=30).map(lambda b: bytes(x % 3 for x in b)),
    stops=st.lists(st.binary(max_size=6).map(lambda b: bytes(x % 3 for x in b)), max_size=4),
    cuts=st.lists(st.integers(0, 30), max_size=6),
)
def test_stop_strings_are_found_wherever_the_borders_fall(
    data: bytes, stops: list[bytes], cuts: list[int]
) -> None:
    places = [0, *sorted(min(cut, len(data)) for cut in cuts), len(data)]
    pieces = [data[a:b] for a, b in itertools.pairwise(places)]
    before = first_stop(data, stops)
    shown, stopped, most = watch(stops, pieces)
    assert stopped == (before is not None)
    assert shown == (data if before is None else before)
    assert most < max([len(stop) for stop in stops] + [1])


def test_only_what_may_become_a_stop_string_is_held_back() -> None:
    shown, stopped, most = watch(
        [b"<|end|>", b"\n\n"], [b"one <|en", b"ough\n", b"two", b"<|e", b"nd|> three"]
    )
    assert (shown, stopped, most) == (b"one <|enough\ntwo", True, 4)
