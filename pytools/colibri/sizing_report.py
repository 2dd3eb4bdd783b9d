"""What the sizes of a model mean on a machine: bytes per token, tokens per second, and what would help most."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from .engine import Info, Limits, Plan
from .format import PRESETS
from .output import table
from .sizing import Sized, sized

SHORTEST = 256  # a context that nobody halves for memory


@dataclass(frozen=True)
class Machine:
    """What the model would run on."""

    memory: int  # bytes for everything; 0: not said
    rate: float  # bytes per second from storage; 0: not said


@dataclass(frozen=True)
class Change:
    """One thing that could be done, and the tokens per second it would bring; None: storage no longer matters."""

    what: str
    rate: float | None


@dataclass(frozen=True)
class Report:
    """One model on one machine."""

    model: Sized
    limits: Limits
    machine: Machine
    plan: Plan  # with the most slots that fit; without a memory: as the limits say
    changes: tuple[Change, ...]
    cure: str = ""  # what would make it fit

    @property
    def fits(self) -> bool:
        """Whether the smallest plan fits."""
        return not self.machine.memory or self.plan.pool_bytes <= self.machine.memory

    @property
    def cold(self) -> float | None:
        """Tokens per second if every expert comes from storage."""
        return _rate(self.machine.rate, self.model.cold_bytes)

    @property
    def uniform(self) -> float | None:
        """Tokens per second with the slots that fit, all experts equally likely."""
        return _rate(self.machine.rate, self.model.uniform_bytes(self.plan.slots))

    def sentence(self) -> str:
        """What would help most."""
        model, machine = self.model, self.machine
        if not machine.memory:
            return ""
        if not self.fits:
            least = f"the least this plan runs in is {gigabytes(self.plan.pool_bytes)} of memory"
            return f"What would help most: {self.cure or 'more memory'}; {least}."
        if self.plan.slots >= model.experts:
            return "Everything fits: after its first use no weight comes from storage again."
        if not machine.rate:
            return ""
        best = max(self.changes, key=lambda change: float("inf") if change.rate is None else change.rate)
        now = f"instead of {per_second(self.uniform)}"
        gain = "no weight would come from storage again," if best.rate is None else per_second(best.rate)
        return f"What would help most: {best.what}: {gain} {now}."


def report(document: dict[str, Any], subject: Path, weights: str, wanted: Callable[[Info], Limits],
           machine: Machine) -> Report:  # fmt: skip
    """Size a model and judge it; what limits leave open depends on the model."""
    model = sized(document, subject, weights)
    limits = wanted(model.info)
    if not machine.memory:
        return Report(model, limits, machine, model.plan(limits), ())
    plan = model.fitting(limits, machine.memory)
    changes: tuple[Change, ...] = ()
    if plan.pool_bytes > machine.memory:
        return Report(model, limits, machine, plan, (), _cure(document, model, weights, limits, machine.memory))
    if plan.slots < model.experts and machine.rate:
        changes = tuple(_changes(document, model, weights, limits, machine))
    return Report(model, limits, machine, plan, changes)


def _cure(document: Any, model: Sized, weights: str, limits: Limits, memory: int) -> str:
    """The first of what costs no machine and makes the model fit: a shorter context, smaller kinds."""
    context = limits.context
    while context >= 2 * SHORTEST:
        context //= 2
        size = model.streamed(replace(limits, context=context), min(1, model.experts)).pool_bytes
        if size <= memory:
            return f"a shorter context, {context} positions need {gigabytes(size)}"
    for kind in PRESETS[PRESETS.index(weights) + 1 :]:
        other = sized(document, model.subject, kind)
        size = other.streamed(limits, min(1, other.experts)).pool_bytes
        if size <= memory:
            return f"fewer bytes, --weights {kind} needs {gigabytes(size)}"
    return ""


def _rate(rate: float, needed: float) -> float | None:
    return rate / needed if rate and needed else None


def _changes(document: Any, model: Sized, weights: str, limits: Limits, machine: Machine) -> Iterator[Change]:
    """Each the smallest step of its kind: half the context, the next smaller kind, twice the rest. Cheapest first."""

    def rate(other: Sized, limits: Limits, memory: int, speed: float) -> float | None:
        return _rate(speed, other.uniform_bytes(other.fitting(limits, memory).slots))

    if limits.context >= 2 * SHORTEST:
        shorter = replace(limits, context=limits.context // 2)
        gain = rate(model, shorter, machine.memory, machine.rate)
        yield Change(f"half the context, {shorter.context} positions", gain)
    at = PRESETS.index(weights)
    if at + 1 < len(PRESETS):
        fewer = sized(document, model.subject, PRESETS[at + 1])
        yield Change(f"fewer bytes, --weights {PRESETS[at + 1]}", rate(fewer, limits, machine.memory, machine.rate))
    yield Change(
        f"twice the memory, {gigabytes(2 * machine.memory)}", rate(model, limits, 2 * machine.memory, machine.rate)
    )
    yield Change(
        f"storage twice as fast, {gigabytes(2 * machine.rate)}/s", rate(model, limits, machine.memory, 2 * machine.rate)
    )


def document_of(made: Report) -> dict[str, Any]:
    """The part of `plan --json` that is about sizes."""
    model, plan, machine = made.model, made.plan, made.machine
    return {
        "model_type": model.model_type,
        "runs_here": not model.why_not,
        "why_not": model.why_not or None,
        "parameters": model.parameters,
        "active_parameters": model.active,
        "embedding_parameters": model.looked_up,
        "layers": model.layers,
        "moe_layers": len(model.moe),
        "experts": model.experts,
        "experts_per_token": model.chosen,
        "expert_bytes_each": max((layer.run_bytes for layer in model.moe), default=0),
        "expert_weights_each": max((layer.weights for layer in model.moe), default=0),
        "drafts": {
            "layers": model.draft_layers,
            "experts": model.draft_experts * model.draft_layers,
            "bytes": model.draft_bytes,
        },
        "latent_bytes_per_token_and_layer": model.latent_bytes or None,
        "memory_bytes": machine.memory or None,
        "storage_bytes_per_second": machine.rate or None,
        "slots": plan.slots,
        "bytes_per_token": {"cold": model.cold_bytes, "uniform": round(model.uniform_bytes(plan.slots))},
        "tokens_per_second": {"cold": made.cold, "uniform": made.uniform},
        "changes": [{"what": change.what, "tokens_per_second": change.rate} for change in made.changes],
        "advice": made.sentence(),
    }


def text_of(made: Report) -> str:
    """The same for people."""
    model, plan, machine = made.model, made.plan, made.machine
    counts = f"{billions(model.parameters)} parameters, {billions(model.active)} at work for a token"
    lines = [f"{model.model_type}: {counts}; {model.layers} layers, {len(model.moe)} of them with experts"]
    if model.why_not:
        lines.append(f"this build can size this model but not run it: {model.why_not}")
    pool = sum(region.bytes for region in plan.regions if region.name not in ("kv", "slots", "resident"))
    sizes = {region.name: region.bytes for region in plan.regions}
    rows = [
        ["what", "bytes", ""],
        ["resident weights", gigabytes(model.resident_bytes), ""],
        ["keys and values", gigabytes(sizes["kv"]),
         f"{made.limits.kv}, {made.limits.context} positions of {plan.kv_bytes_per_token} bytes"],
        ["rest of the pool", gigabytes(pool), ""],
    ]  # fmt: skip
    if plan.slots:
        rows.append(["expert slots", gigabytes(sizes["slots"]), f"{plan.slots:,} of {model.experts:,} experts"])
    if machine.memory:
        rows.append(["together", gigabytes(plan.pool_bytes), f"of {gigabytes(machine.memory)}"])
    if model.moe:
        layers = f"{len(model.moe)} layers"
        rows.append(["experts", gigabytes(model.expert_bytes), f"{model.experts:,} in {layers}, {_each(model)}"])
    if model.draft_layers:
        rows.append(["draft layers", gigabytes(model.draft_bytes),
                     f"{model.draft_layers * model.draft_experts:,} more experts, kept beside"])  # fmt: skip
    if model.moe:
        rows.append(["read per token, cold", gigabytes(model.cold_bytes), f"{model.chosen:,} experts"])
    if machine.memory and plan.slots:
        read = model.uniform_bytes(plan.slots)
        rows.append(["read per token, uniform", gigabytes(read), "all experts equally likely, the last ones kept"])
    lines += ["", table(rows, right={1}), ""]
    if made.cold is not None:
        speed = f"floor at {gigabytes(machine.rate)}/s from storage: {per_second(made.cold)} cold"
        if machine.memory and plan.slots and made.fits:
            speed += f", {per_second(made.uniform)} with these slots"
        lines.append(speed)
    return "\n".join([*lines, *filter(None, [made.sentence()])])


def _each(model: Sized) -> str:
    sizes = sorted({layer.run_bytes for layer in model.moe})
    return f"{' .. '.join(dict.fromkeys(map(gigabytes, (sizes[0], sizes[-1]))))} each"


def gigabytes(count: float) -> str:
    """Decimal units, as memory and storage are sold."""
    for unit, size in (("TB", 1e12), ("GB", 1e9), ("MB", 1e6), ("kB", 1e3)):
        if count >= size:
            return f"{count / size:.1f} {unit}"
    return f"{count:.0f} B"


def billions(count: int) -> str:
    """A number of parameters."""
    return f"{count / 1e9:.1f} B" if count >= 1e9 else f"{count / 1e6:.1f} M"


def per_second(rate: float | None) -> str:
    """Tokens per second with two digits that mean something."""
    return "no limit from storage" if rate is None else f"{rate:.2g} tokens/s"
