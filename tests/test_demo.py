"""The shipped demo model under the C engine: it is what its checkpoint converts to, and it does what it is for."""

from __future__ import annotations

from pathlib import Path

import pytest

from colibri.convert import ConvertOptions, convert
from colibri.demo import evaluate
from colibri.engine import Limits, Model, Session
from colibri.generation import Request, generate
from colibri.text import Decoder, encode

ROOT = Path(__file__).resolve().parents[1]
CHECKPOINT = ROOT / "tests/data/demo-checkpoint"
SHIPPED = ROOT / "pytools/colibri/demo/demo.colibri"
CONTEXT = 512


def test_the_shipped_blob_is_its_checkpoint_converted(tmp_path: Path) -> None:
    out = tmp_path / "demo.colibri"
    convert(CHECKPOINT, out, ConvertOptions(weights="q4"))
    assert out.read_bytes() == SHIPPED.read_bytes(), (
        "the demo blob is stale: colibri convert tests/data/demo-checkpoint -o pytools/colibri/demo/demo.colibri "
        "--weights q4 --overwrite")
    assert SHIPPED.stat().st_size <= 3_000_000


class Encoded:
    """Token ids under the name the judge asks for."""

    def __init__(self, ids: list[int]) -> None:
        self.ids = ids


class Codec:
    """The core's tokenizer in the judge's words; encode begins with <s>."""

    def __init__(self, session: Session) -> None:
        self.session = session

    def encode(self, text: str) -> Encoded:
        return Encoded(encode(self.session, text, bos=True))

    def decode(self, ids: list[int]) -> str:
        decoder = Decoder(self.session)
        return "".join(decoder.push(token) for token in ids) + decoder.end()


@pytest.mark.slow
def test_commands_names_and_answers() -> None:
    """Must hold in q4 under the engine: 95 % of 500 commands, 95 of 100 heroes' names, 40 of 60 answers."""
    model = Model.open(SHIPPED)
    with Session(model, Limits(context=CONTEXT, batch=32, text_bytes=2048)) as session:
        def answer(prompts: list[list[int]], most: int, ends: list[int]) -> list[list[int]]:
            out = []
            for prompt in prompts:
                session.reset()
                made = generate(session, Request(prompt, most, ends=ends, digest=False)).tokens
                out.append(made[:-1] if made and made[-1] in ends else made)
            return out

        result = evaluate.evaluate(answer, Codec(session))
    print(evaluate.summary(result))
    for fault in result.faults[:20]:
        print("  ", fault)
    assert sum(result.commands_total.values()) == 500 and result.tales == 100 and result.questions == 60
    assert result.exact_share >= 0.95
    assert result.names_held >= 95
    assert result.questions_right >= 40
