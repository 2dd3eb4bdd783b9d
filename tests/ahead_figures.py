"""What look-ahead is worth: the figures of docs/PERFORMANCE.md. python tests/ahead_figures.py [--clock] [MODEL ...]

For each model, from the same text and seed: how many of the next layer's experts are foretold, what hints save and
waste, how much sooner tokens would come from a played device to a played processor (a clock that counts units of work
and knows no other load), and how fast they come here with and without hints from stores of several speeds, pair by
pair in one run. Both sides of a pair have the same memory: without hints there are as many more slots as hints would
land in.
"""
from __future__ import annotations

import statistics
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent))

from colibri.engine import Limits, Model, Sampling, Session  # noqa: E402
from colibri.library import constants, ffi  # noqa: E402
from colibri.store import Storage  # noqa: E402
from colibri.text import encode  # noqa: E402
from rawsession import Raw, Store, opened  # noqa: E402

ROOT = Path(__file__).resolve().parents[1]
TEXT = "Once upon a time there was a fox that lived in the deep forest. "
SHARES = (0.10, 0.25, 0.50)
TOKENS, ROUNDS = 32, 5


def models() -> dict[str, Path]:
    """The two that routers were trained or made for."""
    import smollm2

    return {"demo": ROOT / "pytools" / "colibri" / "demo" / "demo.colibri",
            "SmolLM2 as a MoE": smollm2.blob("moe", "q4")}


def limits_of(slots: int, ahead: bool, **changes: Any) -> Limits:
    """Of every session here."""
    return Limits(**{"context": 256, "batch": 16, "text_bytes": 1024, "slots": slots, "stream_experts": True,
                     "resident_copy": False, "look_ahead": ahead, **changes})


def story(path: Path, count: int) -> list[int]:
    """A prompt and `count` drawn tokens, the same for all that follows."""
    model = Model.open(path)
    with Session(model, Limits(context=512, batch=16, text_bytes=1024)) as session:
        tokens, fed = encode(session, TEXT, special=True, bos=True), 0
        begin = len(tokens)
        while len(tokens) < begin + count:
            session.feed(tokens[fed:][:16])
            session.finish()
            fed = min(fed + 16, len(tokens))
            if fed == len(tokens):
                tokens.append(session.sample(Sampling(temperature=0.8, top_p=0.95, seed=7), position=fed))
        return tokens


class Quick(Store):
    """Bytes go straight to where they are wanted; `due` says when they count."""

    def __init__(self, image: bytes) -> None:
        super().__init__(image)
        self.bytes = ffi().from_buffer(image)
        self.due: dict[int, float] = {}

    def fetch(self, user: Any, request: Any) -> int:
        """The hook."""
        self.hints = self.hints | {len(self.asked)} if request.hint else self.hints
        self.asked.append((request.offset, request.bytes, request.layer, request.expert))
        ffi().memmove(request.destination, self.bytes + request.offset, request.bytes)
        self.due[request.ticket] = self.clock()
        return int(constants().OK)

    def fetched(self, user: Any, ticket: int) -> int:
        """The hook."""
        if self.clock() < self.due[ticket]:
            return int(constants().WAIT)
        del self.due[ticket]
        return int(constants().DONE)

    def clock(self) -> float:
        """Now."""
        return 0.0


def foretold(path: Path, tokens: list[int]) -> dict[int, float]:
    """Share of each layer's experts that were foretold in the layer before. LRU with a slot for each expert of a row
    holds nothing of other layers, so that every choice foretold is a hint."""
    model = opened(path)
    store = Quick(path.read_bytes())
    top_k = Model.open(path).info().top_k
    raw = Raw(model, limits_of(top_k, True, policy="lru", batch=1), store=store).started()
    right: dict[int, list[float]] = {}
    for token in tokens:
        before = len(store.asked)
        assert raw.feed([(0, token)]) == constants().OK
        raw.finish()
        hinted: dict[int, set[int]] = {}
        for number in range(before, len(store.asked)):
            if number in store.hints:
                hinted.setdefault(store.asked[number][2], set()).add(store.asked[number][3])
        for layer, experts in hinted.items():
            true = needed(raw, layer)
            right.setdefault(layer, []).append(len(true & experts) / len(true))
    return {layer: statistics.mean(values) for layer, values in right.items()}


def needed(raw: Raw, layer: int) -> set[int]:
    """The experts that a layer chose for the only row of the last feed."""
    experts, weights = ffi().new("uint32_t[]", 64), ffi().new("float[]", 64)
    return set(experts[0:raw.lib.colibri_routing(raw.c, layer, 0, experts, weights, 64)])


class Played(Quick):
    """A device on a clock that the caller moves: requests one after the other at a bandwidth, each late by as much."""

    def __init__(self, image: bytes, seconds_a_byte: float, late: float) -> None:
        super().__init__(image)
        self.seconds_a_byte, self.late = seconds_a_byte, late
        self.now = self.busy = 0.0

    def fetch(self, user: Any, request: Any) -> int:
        """The hook."""
        status = super().fetch(user, request)
        self.busy = max(self.busy, self.now) + request.bytes * self.seconds_a_byte
        self.due[request.ticket] = self.busy + self.late
        return status

    def clock(self) -> float:
        """The caller's."""
        return self.now


def played(path: Path, limits: Limits, tokens: list[int], prompt: int, device: tuple[float, float]) -> float:
    """Time for the tokens behind the prompt, 1 = what computing one of them takes. device: how long a token's experts
    take if none is held, how late a request is in parts of a layer's computing."""
    info = Model.open(path).info()
    model = opened(path)
    with Session(Model.open(path), Limits(context=8, batch=1)) as session:
        session.feed(tokens[:1])
        session.finish()
        units = session.stats().units
    cold = info.top_k * info.expert_run_bytes * info.expert_count / info.experts
    store = Played(path.read_bytes(), device[0] / cold, device[1] / info.layers)
    raw = Raw(model, limits, store=store).started()
    begun = 0.0
    for number, token in enumerate(tokens):
        begun = store.now if number == prompt else begun
        assert raw.feed([(0, token)]) == constants().OK
        status, done = constants().AGAIN, raw.stats().units
        while status != constants().DONE:
            status = raw.advance(max(1, units // info.layers // 8))
            before, done = done, raw.stats().units
            store.now += (done - before) / units
            if status == constants().WAIT:
                store.now = max(store.now, min(store.due.values()))
    return (store.now - begun) / len(tokens[prompt:])


class Late(Quick):
    """Every request is there so many seconds after it was asked for, however many there are."""

    def __init__(self, image: bytes, seconds: float) -> None:
        super().__init__(image)
        self.seconds = seconds

    def fetch(self, user: Any, request: Any) -> int:
        """The hook."""
        status = super().fetch(user, request)
        self.due[request.ticket] += self.seconds
        return status

    def clock(self) -> float:
        """The machine's."""
        return time.perf_counter()


def decoded(session: Session, tokens: list[int], prompt: int) -> float:
    """Seconds for the tokens behind the prompt, one by one."""
    session.reset()
    for first in range(0, prompt, 16):
        session.feed(tokens[first:prompt][:16])
        session.finish()
    begun = time.perf_counter()
    for token in tokens[prompt:]:
        session.feed([token])
        session.finish()
    return time.perf_counter() - begun


def late(path: Path, limits: Limits, seconds: float, tokens: list[int]) -> Callable[[], float]:
    """The same over a store that is late."""
    store = Late(path.read_bytes(), seconds)
    raw = Raw(opened(path), limits, store=store).started()

    def run() -> float:
        raw.lib.colibri_reset(raw.c, 0)
        begun = time.perf_counter()
        for token in tokens:
            raw.feed([(0, token)])
            while raw.advance() != constants().DONE:
                if store.due:
                    time.sleep(max(0.0, min(store.due.values()) - time.perf_counter()))
        return time.perf_counter() - begun
    return run


def paired(runs: tuple[Callable[[], float], Callable[[], float]], count: int) -> tuple[float, float, str]:
    """Tokens a second of both, and the median of the rounds' ratios with its extremes."""
    for run in runs:
        run()
    rounds = []
    for number in range(ROUNDS):
        order = (0, 1) if number % 2 else (1, 0)
        seconds = {which: runs[which]() for which in order}
        rounds.append((seconds[0], seconds[1]))
    ratios = [plain / ahead for plain, ahead in rounds]
    rate = [count / statistics.median(values) for values in zip(*rounds, strict=True)]
    return rate[0], rate[1], f"{statistics.median(ratios):.2f} ({min(ratios):.2f} .. {max(ratios):.2f})"


def figures(name: str, path: Path) -> None:
    """Everything about one model."""
    model, tokens = Model.open(path), story(path, TOKENS)
    info, prompt = model.info(), len(tokens) - TOKENS
    by_layer = foretold(path, tokens)
    shares = sorted(by_layer.values())
    print(f"{name}: foretold {statistics.mean(shares):.3f} of the next layer's {info.top_k} experts "
          f"(layers {shares[0]:.2f} .. {shares[-1]:.2f})", flush=True)
    for share in SHARES:
        slots = max(1, round(info.expert_count * share))
        sides = (limits_of(slots + info.top_k, False), limits_of(slots, True))
        counted = []
        for limits in sides:
            with Session(model, limits) as session:
                decoded(session, tokens, prompt)
                before = session.stats()
                decoded(session, tokens, prompt)
                counted.append((session.stats(), before))
        plain, ahead = ({key: getattr(after, key) - getattr(before, key) for key in vars(after)}
                        for after, before in counted)
        bytes_read = ahead["bytes_fetched"] / plain["bytes_fetched"]
        print(f"{name}: {slots} + {info.top_k} of {info.expert_count}: misses a token "
              f"{plain['expert_misses'] / TOKENS:.2f}, with hints {ahead['expert_misses'] / TOKENS:.2f}, hints "
              f"{ahead['hints'] / TOKENS:.2f}, of which used {ahead['hints_used'] / max(1, ahead['hints']):.2f}; bytes "
              f"{bytes_read:.2f} x", flush=True)
        for device in ((0.5, 0.0), (1.0, 0.0), (2.0, 0.0), (8.0, 0.0), (0.0, 0.5), (0.0, 1.0), (0.0, 4.0)):
            seconds = [played(path, limits, tokens, prompt, device) for limits in sides]
            print(f"{name}: {slots} slots, played, all experts of a token in {device[0]:g} of its computing, late by "
                  f"{device[1]:g} layers: {seconds[0]:.3f}, with hints {seconds[1]:.3f}, ratio "
                  f"{seconds[0] / seconds[1]:.2f}", flush=True)
        if "--clock" in sys.argv:
            speeds(name, path, sides, tokens, prompt)


def speeds(name: str, path: Path, sides: tuple[Limits, Limits], tokens: list[int], prompt: int) -> None:
    """Pairs over stores of several speeds."""
    model = Model.open(path)
    for rate in (0, 500_000_000, 2_000_000_000):
        with (Session(model, sides[0], storage=Storage(bytes_per_second=rate)) as plain,
              Session(model, sides[1], storage=Storage(bytes_per_second=rate)) as ahead):
            made = paired((lambda: decoded(plain, tokens, prompt), lambda: decoded(ahead, tokens, prompt)), TOKENS)
        print(f"{name}: {sides[1].slots} slots, {f'{rate / 1e9:g} GB/s' if rate else 'page cache'}: "
              f"{made[0]:.1f} tokens/s, with hints {made[1]:.1f}, ratio {made[2]}", flush=True)
    for seconds in (0.0005, 0.003):
        runs = tuple(late(path, replace(limits, context=256), seconds, tokens[prompt:prompt + 24]) for limits in sides)
        made = paired((runs[0], runs[1]), 24)
        print(f"{name}: {sides[1].slots} slots, {seconds * 1e3:g} ms late: {made[0]:.1f} tokens/s, with hints "
              f"{made[1]:.1f}, ratio {made[2]}", flush=True)


if __name__ == "__main__":
    chosen = models()
    for name, path in chosen.items():
        if not set(sys.argv[1:]) - {"--clock"} or name in sys.argv[1:]:
            figures(name, path)
