"""docs/MODELS.md: what is known about every family, measured here and compared with the frozen answers.

    python tests/oracles/page.py                write the page; digests that are not stored yet are measured
    python tests/oracles/page.py --digests      measure all digests again, on every target that is here

Figures are taken from the engine in this process. Digests of other targets take a while and are stored in
tests/data/digests.json; tests/test_families.py proves on every full run that all targets agree with this one.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

ROOT = Path(__file__).resolve().parents[2]
for place in ("tests", "pytools"):
    if str(ROOT / place) not in sys.path:
        sys.path.insert(0, str(ROOT / place))

from colibri import targets  # noqa: E402
from colibri.convert import ConvertOptions, convert  # noqa: E402
from colibri.engine import Limits  # noqa: E402
from colibri.engine import Model as Blob  # noqa: E402
from colibri.families import describe, text_part  # noqa: E402
from colibri.jobs import Job  # noqa: E402
from oracles import checkpoints, fixtures, page_text, wrong  # noqa: E402
from oracles.cases import CASES, GREEDY  # noqa: E402
from oracles.running import Engine  # noqa: E402
from test_families import divergence  # noqa: E402

PAGE = ROOT / "docs" / "MODELS.md"
DIGESTS = ROOT / "tests" / "data" / "digests.json"
WEIGHTS = ("f32", "q8", "q4")
TARGETS = ("linux", "wasm", "baremetal")
CONTEXT = 2048  # of the sizes
Digests = dict[str, dict[str, dict[str, str]]]  # family -> kind of the weights -> target -> digest


@dataclass
class CaseFigures:
    """One oracle case."""

    name: str
    family: str
    what: str
    argmax: int  # of the prompt
    greedy: int  # of GREEDY
    error: float  # largest difference of a logit in f32
    margin: float


@dataclass
class FamilyFigures:
    """One family: its cases, and what quantization costs in the first one."""

    family: str
    cases: list[CaseFigures] = field(default_factory=list)
    switches: list[str] = field(default_factory=list)
    divergence: dict[str, tuple[float, float]] = field(default_factory=dict)  # kind -> (KL in nats, equal argmax)
    wrong: int = 0


def first_case(family: str) -> str:
    """The case that stands for a family where one is enough."""
    return next(name for name, case in CASES.items() if case.family == family)


class Blobs:
    """Blobs of cases, each made once, in a folder that goes away."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def get(self, name: str, weights: str) -> Path:
        """One case in one kind of weights."""
        source, out = self.folder / name, self.folder / f"{name}-{weights}.colibri"
        if not source.is_dir():
            checkpoints.build(name, source)
        if not out.exists():
            convert(source, out, ConvertOptions(weights=weights, tokenizer=False))
        return out


def measure_case(name: str, blobs: Blobs) -> CaseFigures:
    """The engine against what transformers answered."""
    frozen = fixtures.load(name)
    logits, greedy = Engine(blobs.get(name, "f32")).run(frozen.prompt, GREEDY)
    same = int((logits.argmax(axis=-1) == np.array(frozen.argmax)).sum())
    following = sum(a == b for a, b in zip(greedy, frozen.greedy, strict=True))
    error = float(np.abs(logits - frozen.logits).max())
    return CaseFigures(name, frozen.family, frozen.what, same, following, error, frozen.margin)


def measure(blobs: Blobs) -> list[FamilyFigures]:
    """All families in the order of their names."""
    found: dict[str, FamilyFigures] = {}
    for name, case in CASES.items():
        one = found.setdefault(case.family, FamilyFigures(case.family))
        one.cases.append(measure_case(name, blobs))
        described = describe(case.config, name).model
        words = page_text.switches(described, text_part(case.config))
        one.switches += [word for word in words if word not in one.switches]
        one.wrong += sum(row[1] == name for row in wrong.CHANGES + wrong.REFUSED)
    for family, one in found.items():
        frozen = fixtures.load(first_case(family))
        for weights in WEIGHTS[1:]:
            logits = Engine(blobs.get(frozen.name, weights)).logits(frozen.prompt)
            one.divergence[weights] = divergence(frozen.logits, logits)
    return [found[family] for family in sorted(found)]


def digest(family: str, weights: str, target: str, blobs: Blobs) -> str:
    """One run of the first case on one target: prompt and greedy tokens, every logit."""
    name = first_case(family)
    prompt = fixtures.load(name).prompt
    limits = Limits(context=len(prompt) + GREEDY, batch=16, logit_rows=16)
    job = Job(f"{family}-{weights}", limits, prompt, generate=GREEDY)
    result = targets.pick([target])[0].run(job, Blob.open(blobs.get(name, weights)))
    if result.error is not None:
        raise SystemExit(f"{family} {weights} on {target}: {result.error}")
    return str(result.digest)


def stored() -> Digests:
    """The digests of the last measurement."""
    return json.loads(DIGESTS.read_text(encoding="utf-8")) if DIGESTS.exists() else {}


def measure_digests(blobs: Blobs, again: bool) -> Digests:
    """Stored digests, and measured ones for families that have none; several targets or none."""
    before = {} if again else stored()
    out: Digests = {}
    for family in sorted({case.family for case in CASES.values()}):
        out[family] = before.get(family, {})
        for weights in WEIGHTS:
            have = out[family].setdefault(weights, {})
            for target in TARGETS:
                if target not in have:
                    how = targets.pick([target])[0].missing()
                    if how:
                        raise SystemExit(f"target {target}: {how}")
                    have[target] = digest(family, weights, target, blobs)
            print(family, weights, *have.values(), flush=True)
    return out


def render(blobs: Blobs, digests: Digests) -> str:
    """The whole page."""
    return page_text.page(measure(blobs), digests, page_text.sizes(ROOT / "tests" / "data" / "configs", CONTEXT))


def main(arguments: list[str]) -> int:
    """Measure and write."""
    parser = argparse.ArgumentParser(description="Write docs/MODELS.md.")
    parser.add_argument("--digests", action="store_true", help="measure all digests again")
    options = parser.parse_args(arguments)
    with tempfile.TemporaryDirectory() as name:
        blobs = Blobs(Path(name))
        digests: Any = measure_digests(blobs, options.digests)
        DIGESTS.write_text(json.dumps(digests, indent=1) + "\n", encoding="utf-8")
        PAGE.write_text(render(blobs, digests), encoding="utf-8")
    print(f"{PAGE} written")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
