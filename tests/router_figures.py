"""What the integer router costs: its choices and weights against the float router's, on real texts.

`pairs` gives both routers the same logits, row by row inside a session (tests/c/router_pairs.c): the router alone.
`apart` runs two files from end to end, so that what a weight's error does to later layers is in the figure: it tips
roundings of quantized activations, as any other change of the last bits does. As a program it prints both:

    python tests/router_figures.py [demo|moe|CASE ...]
"""

from __future__ import annotations

import atexit
import json
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parent))

import quality  # noqa: E402
import smollm2  # noqa: E402
from colibri import calibrate, kernels, library  # noqa: E402
from colibri.convert import ConvertOptions, convert  # noqa: E402
from colibri.engine import Limits, Model, Session  # noqa: E402
from colibri.families import describe  # noqa: E402
from oracles import checkpoints, draw  # noqa: E402
from oracles.cases import CASES  # noqa: E402

ROOT = Path(__file__).resolve().parents[1]
DEMO = ROOT / "tests" / "data" / "demo-checkpoint"
BATCH = 64
ORACLE_TOKENS = 128
FLAGS = "-std=gnu99 -Wall -Wextra -Werror -Wno-missing-field-initializers -O2 -ffp-contract=off -fno-math-errno"
Windows = Sequence[Sequence[int]]


@dataclass(frozen=True)
class Pairs:
    """Both routers on the same logits. Errors are shares of a row's sum of weights where both chose the same."""

    choices: int
    same: int
    largest: float
    relative: float
    mean: float

    def __str__(self) -> str:
        return (f"same experts {100 * self.same / self.choices:.4f} % of {self.choices} choices, weights off by at "
                f"most {100 * self.relative:.4f} %, on average {100 * self.mean:.5f} %")


@dataclass(frozen=True)
class Case:
    """A checkpoint converted both ways, and texts."""

    float_path: Path
    int_path: Path
    windows: Windows


@cache
def program() -> Path:
    """The C program, linked with the library of this build."""
    folder = Path(tempfile.mkdtemp(prefix="router-pairs-", dir=smollm2.cache_root()))
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    out, source = folder / "router_pairs", ROOT / "tests" / "c" / "router_pairs.c"
    archive = Path(library.__file__).parent / "_data" / "linux_x86_64" / "libcolibri.a"
    subprocess.run(["gcc", *FLAGS.split(), f"-I{ROOT / 'core'}", source, archive, "-o", out], check=True)
    return out


def pairs(case: Case) -> Pairs:
    """The routers alone."""
    with tempfile.NamedTemporaryFile() as tokens:
        for window in case.windows:
            tokens.write(np.array([len(window), *window], dtype="<u4").tobytes())
        tokens.flush()
        command = [program(), case.int_path, tokens.name, str(kernels.chosen("auto"))]
        made = subprocess.run(list(map(str, command)), capture_output=True, text=True, check=False)
    if made.returncode:
        raise RuntimeError(f"router_pairs: {made.stderr}")
    return Pairs(**json.loads(made.stdout))


def chosen(path: Path, windows: Windows) -> np.ndarray:
    """[tokens, layers, k] experts of every row, -1 where a layer has none."""
    model, out = Model.open(path), []
    layers, k = model.info().layers, model.info().top_k
    with Session(model, Limits(context=max(map(len, windows)), batch=BATCH)) as session:
        for tokens in windows:
            session.reset()
            for first in range(0, len(tokens), BATCH):
                part = tokens[first:first + BATCH]
                session.feed(part, want="none")
                session.finish()
                for row in range(len(part)):
                    found = [[expert for expert, _ in session.routing(layer, row)] for layer in range(layers)]
                    out.append([one + [-1] * (k - len(one)) for one in found])
    return np.array(out)


def apart(case: Case) -> float:
    """The share of equal choices when each model goes its own way."""
    both = [chosen(path, case.windows) for path in (case.float_path, case.int_path)]
    moe = both[0][:, :, 0] >= 0
    return float((both[0] == both[1]).all(axis=-1)[moe].mean())


@contextmanager
def converted(folder: Path, kind: str, windows: Windows, tokenizer: bool = True) -> Iterator[Case]:
    """A checkpoint both ways."""
    with tempfile.TemporaryDirectory(dir=smollm2.cache_root()) as made:
        case = Case(Path(made) / "float.colibri", Path(made) / "int.colibri", windows)
        for path in (case.float_path, case.int_path):
            convert(folder, path, ConvertOptions(weights=kind, tokenizer=tokenizer, router=path.stem))
        yield case


def demo(kind: str = "q4", tales: int = 40) -> AbstractContextManager[Case]:
    """The demo model on tales it was not trained on."""
    return converted(DEMO, kind, quality.tales(DEMO, tales))


def moe(kind: str = "q8", window: int = 512) -> AbstractContextManager[Case]:
    """The MoE made of SmolLM2, on prose."""
    folder = smollm2.moe_folder()
    return converted(folder, kind, quality.windows(folder, window))


@contextmanager
def oracle(name: str) -> Iterator[Case]:
    """A checkpoint of the outside oracle, on ids drawn from its vocabulary."""
    ids = draw.integers(5, f"router figures {name}", ORACLE_TOKENS, CASES[name].shape.vocab)
    with tempfile.TemporaryDirectory() as made:
        checkpoints.build(name, Path(made) / name)
        with converted(Path(made) / name, "f32", [ids], tokenizer=False) as case:
            yield case


def oracle_names() -> list[str]:
    """Cases whose routers all have an integer form."""
    out = []
    for name, case in CASES.items():
        layers = [layer for layer in describe(case.config, name).model.layers if layer.moe]
        if layers and not any(calibrate.why_not(layer) for layer in layers):
            out.append(name)
    return out


def main(arguments: list[str]) -> int:
    """Print the figures asked for."""
    for name in arguments or ["demo", "moe", *oracle_names()]:
        with {"demo": demo, "moe": moe}.get(name, lambda name=name: oracle(name))() as case:
            print(f"{name}: {pairs(case)}; end to end {100 * apart(case):.3f} %", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
