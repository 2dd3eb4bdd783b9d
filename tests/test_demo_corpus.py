"""The demo model's corpus: same bytes every time, nothing held out in training, sound grammar."""
import hashlib
import itertools
import json
import re
import sys
from pathlib import Path

import numpy as np
import pytest

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "pytools"))

from colibri.demo import commands, corpus, evaluate, split, tales
from colibri.demo.dice import Dice

CHECKPOINT = Path(__file__).parent / "data" / "demo-checkpoint"
STREAM_SHA256 = "e037bebd2d408e8fe91a7162d4a1ce940d759fcd35c323a484f0587d48593ec6"
# The streams of train.py (which itself needs torch): its READING and STYLE.
PHASES = (corpus.Mixture(25, 50, 15, 10, 4), corpus.Mixture(55, 15, 0, 30, 1))


def stream(phase: corpus.Mixture, count: int) -> list[corpus.Document]:
    """The first documents of a training stream."""
    return list(itertools.islice(corpus.training_stream((1, 0), phase), count))


@pytest.fixture(scope="module")
def trained() -> list[corpus.Document]:
    """Documents of both phases."""
    return [document for phase in PHASES for document in stream(phase, 18000)]


def held_out_found(words: str, finders: list[re.Pattern[str]]) -> bool:
    """True if the words contain a held-out pattern, whatever the generator says it drew."""
    return any(finder.search(words) for finder in finders)


def finders() -> list[re.Pattern[str]]:
    """One big finder (fast) over all held-out patterns."""
    whole = "|".join(commands.matcher(pattern).pattern for pattern in sorted(split.load_split().patterns))
    return [re.compile(whole)]


def test_generator_is_deterministic() -> None:
    digest = hashlib.sha256()
    for phase in PHASES:
        for document in stream(phase, 2000):
            digest.update(repr([(p.text, p.weight) for p in document.pieces]).encode())
    assert digest.hexdigest() == STREAM_SHA256


def test_split_file_is_what_the_seed_makes() -> None:
    assert split.make_split() == split.SPLIT_FILE.read_text(encoding="utf-8")


def test_split_holds_out_a_fifth_and_two_pairs() -> None:
    held, everything = split.load_split(), commands.templates()
    assert held.patterns <= {t.pattern for t in everything}
    assert len(held.patterns) / len(everything) == pytest.approx(0.2, abs=0.01)
    assert len(held.pairs) == 2
    for intent in commands.INTENTS:
        mine = [t.pattern for t in everything if t.intent == intent]
        assert 0.15 <= sum(p in held.patterns for p in mine) / len(mine) <= 0.25, intent


def test_patterns_mean_one_intent() -> None:
    patterns = [t.pattern for t in commands.templates()]
    assert len(patterns) == len(set(patterns))


def test_matcher_finds_every_spoken_form() -> None:
    dice = Dice("matcher")
    for template in commands.templates():
        find = commands.matcher(template.pattern).search
        for room in commands.ROOMS:
            words = commands.say(template, room, dice).words
            assert find(words), (template.pattern, words)


def test_nothing_held_out_is_trained(trained: list[corpus.Document]) -> None:
    held, look = split.load_split(), finders()
    spoken = [d.command for d in trained if d.command is not None]
    assert len(spoken) > 7000
    for command in spoken:
        assert command.template.pattern not in held.patterns
        assert (command.room, command.intent) not in held.pairs
    for document in trained:
        if document.command is not None:
            text = document.text.lower()
            assert not held_out_found(text, look), text
            for room, intent in held.pairs:
                assert f'{{"intent":"{intent}","room":"{room}"}}' not in text


def test_the_proof_can_fail() -> None:
    """The finder does see held-out commands of the test set, and the pair check its pairs."""
    look, held = finders(), split.load_split()
    for group, command in corpus.test_commands():
        if group == "held_out_template":
            assert held_out_found(command.words, look), command.words
        if group == "held_out_pair":
            assert (command.room, command.intent) in held.pairs
        if group == "seen":
            assert held.may_train(command.template, command.room)


def test_every_known_word_is_trained(trained: list[corpus.Document]) -> None:
    """A held-out template is new as a sentence, not in its words: those occur in training."""
    known = {word for d in trained if d.command is not None for word in d.command.words.split()}
    for group, command in corpus.test_commands():
        assert set(command.words.split()) <= known, (group, command.words)


def test_test_set() -> None:
    cases = corpus.test_commands()
    assert len(cases) == 500 and len({c.words for _, c in cases}) == 500
    assert split.test_hash(cases) == split.load_split().test_sha256
    counts = {name: sum(group == name for group, _ in cases) for name in split.TEST_SHARES}
    assert counts == split.TEST_SHARES
    assert {c.intent for _, c in cases} == set(commands.INTENTS)
    assert {c.room for _, c in cases} == set(commands.ROOMS)


def test_test_tales_are_not_trained(trained: list[corpus.Document]) -> None:
    bodies = {tale.body for tale, _, _ in corpus.test_questions()}
    assert len(bodies) == corpus.TEST_QUESTIONS
    assert not bodies & {document.body for document in trained}
    openings = corpus.test_openings()
    assert len(dict(openings)) == corpus.TEST_TALES


def test_prompts_begin_like_trained_documents(trained: list[corpus.Document]) -> None:
    """The frame of the test is the frame of training, up to a space the answer's first token carries."""
    plain = [d for d in trained if d.command is not None
             and d.text == f"{commands.command_prompt(d.command.words)} {d.command.answer}"]
    assert len(plain) > 0.6 * sum(d.command is not None for d in trained)
    for document in trained[:2000]:
        if document.command is None and not document.text.startswith("Echo: "):
            assert re.search(r" Question: [^?]+\? Answer: [^?]+\.$", document.text), document.text


FAULTS = re.compile(r"\b[Aa] [aeiou]|\b[Aa]n [^aeiou]|\b[Aa]n? (bread|soup|honey|cheese)\b"
                    r"|\b[Ss]ome (apple|pear|plum|cookie|orange|muffin|cake|pie|pancake|omelette)\b"
                    r"|\b(\w+) \3\b|  | [.,?!]")


def test_grammar_of_tales(trained: list[corpus.Document]) -> None:
    texts = [d.text for d in trained if d.command is None]
    assert len(texts) > 5000
    for text in texts:
        assert not FAULTS.search(text), (FAULTS.search(text), text)


@pytest.mark.parametrize("wrong", ["a owl", "an dog", "a bread", "some cookie", "A orange hat", "the the"])
def test_grammar_check_can_fail(wrong: str) -> None:
    assert FAULTS.search(f"Mia saw {wrong} there.")


def test_one_child_and_one_pet_per_tale() -> None:
    dice, children = Dice("cast"), set(tales.GIRLS) | set(tales.BOYS)
    for _ in range(3000):
        tale = tales.tell(dice)
        text = tale.body + " ".join(q + " " + a for q, a in tale.questions)
        words = set(re.findall(r"[A-Za-z]+", text))
        assert words & children == {tale.hero}, text
        assert len(words & set(tales.PET_NAMES)) == 1, text
        question, answer = tale.questions[0]
        assert evaluate.hero_holds(f"{tale.body} Question: {question} Answer: {answer}", tale.hero)


def test_hero_check_can_fail() -> None:
    end = " Question: Who? Answer: Mia."
    assert evaluate.hero_holds("There was a girl named Mia. Mia sang." + end, "Mia")
    assert not evaluate.hero_holds("There was a girl named Mia. Anna sang." + end, "Mia")
    assert not evaluate.hero_holds("There was a girl named Mia. Mia sang.", "Mia")
    assert not evaluate.hero_holds("There was a girl named Mia. She sang. Question: Who? Answer: She.", "Mia")


def test_answers_are_in_the_tale() -> None:
    """Every answer's last word can be read in its tale, so a question needs reading, not guessing."""
    dice = Dice("answers")
    for _ in range(2000):
        tale = tales.tell(dice)
        for question, answer in tale.questions:
            last = re.findall(r"\w+", answer)[-1]
            assert re.search(rf"\b{last}\b", tale.body), (tale.body, question, answer)


class Oracle:
    """A perfect and a broken "model", to see that evaluate() counts."""

    def __init__(self) -> None:
        self.answers = {commands.command_prompt(c.words): " " + c.answer for _, c in corpus.test_commands()}
        self.answers |= {tales.question_prompt(t, q): " " + a for t, q, a in corpus.test_questions()}
        self.answers |= {o: f" {hero} sang. Question: Who sang? Answer: {hero}." for o,
                         hero in corpus.test_openings()}

    class Encoding:
        def __init__(self, ids: list[int]) -> None:
            self.ids = ids

    def encode(self, text: str) -> "Oracle.Encoding":
        return self.Encoding([ord(c) for c in text])

    def decode(self, ids: list[int]) -> str:
        return "".join(map(chr, ids))

    def generate(self, prompts: list[list[int]], most: int, stops: list[int]) -> list[list[int]]:
        return [[ord(c) for c in self.answers[self.decode(p)]] for p in prompts]


def test_evaluate_counts() -> None:
    oracle = Oracle()
    good = evaluate.evaluate(oracle.generate, oracle)
    assert good.met() and good.exact_share == 1 and good.names_held == 100 and good.questions_right == 60
    bad = evaluate.evaluate(lambda p, most, stops: [[] for _ in p], oracle)
    assert not bad.met() and bad.exact_share == 0 and bad.names_held == 0 and bad.questions_right == 0
    assert len(bad.faults) == 660


def expert_weights() -> list[tuple[str, np.ndarray]]:
    """The expert matrices of the shipped checkpoint, bf16 widened to float32."""
    found = []
    for shard in sorted(CHECKPOINT.glob("*.safetensors")):
        data = shard.read_bytes()
        size = int.from_bytes(data[:8], "little")
        for name, entry in json.loads(data[8:8 + size]).items():
            if ".experts." in name:
                start, end = (8 + size + offset for offset in entry["data_offsets"])
                bits = np.frombuffer(data[start:end], "<u2").astype(np.uint32) << 16
                assert entry["dtype"] == "BF16"
                found.append((name, bits.view(np.float32).reshape(entry["shape"])))
    return found


def off_grid(weight: np.ndarray) -> int:
    """How many groups of 32 are not a scale times whole steps with the largest at -8, 7 or -7."""
    groups = weight.reshape(-1, 32).astype(np.float64)
    largest = np.take_along_axis(groups, np.abs(groups).argmax(1)[:, None], 1)
    fits = np.zeros(len(groups), bool)
    for step in (-8, 7):
        steps = groups / np.where(largest == 0, 1, largest / step)
        fits |= ((steps == np.rint(steps)) & (steps <= 7) & (steps >= -8)).all(1)
    return int((~fits).sum())


def test_the_shipped_experts_are_on_the_q4_grid() -> None:
    """Training ended with experts on the grid (quantize.snap_q4): their q4 form loses nothing."""
    weights = expert_weights()
    assert len(weights) == 4 * 8 * 3
    for name, weight in weights:
        assert off_grid(weight) == 0, name
    assert off_grid(weights[0][1] * np.linspace(1, 1.1, weights[0][1].shape[1])) > 0
