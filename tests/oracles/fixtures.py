"""The frozen answers: tests/data/oracles/NAME.json, readable without torch."""

from __future__ import annotations

import base64
import json
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np

FOLDER = Path(__file__).resolve().parents[1] / "data" / "oracles"


@dataclass
class Fixture:
    """What transformers answered for one case, and how sure the answer is."""

    name: str
    what: str
    family: str
    seed: int
    transformers: str
    checkpoint_sha256: str
    prompt: list[int]
    argmax: list[int]
    greedy: list[int]
    margin: float  # smallest gap between the best two logits, prompt and greedy rows
    router_margin: float | None  # smallest gap at the edge of the expert choice, in router logits
    float32_difference: float  # transformers in float32 against float64, largest over the logits
    logits: np.ndarray  # float32 [prompt, vocab]


def path(name: str) -> Path:
    """The file of one fixture."""
    return FOLDER / f"{name}.json"


def save(fixture: Fixture) -> int:
    """Write a fixture; returns its size in bytes."""
    document = asdict(fixture)
    raw = np.ascontiguousarray(fixture.logits, dtype="<f4")
    document["logits"] = {"shape": list(raw.shape), "float32": base64.b64encode(raw.tobytes()).decode()}
    FOLDER.mkdir(parents=True, exist_ok=True)
    fields = [f" {json.dumps(key)}: {json.dumps(value)}" for key, value in document.items()]
    text = "{\n" + ",\n".join(fields) + "\n}\n"
    path(fixture.name).write_text(text, encoding="utf-8")
    return len(text)


def load(name: str) -> Fixture:
    """Read a fixture back."""
    document = json.loads(path(name).read_text(encoding="utf-8"))
    packed = document["logits"]
    raw = np.frombuffer(base64.b64decode(packed["float32"]), dtype="<f4")
    document["logits"] = raw.reshape(packed["shape"]).astype(np.float32)
    return Fixture(**document)
