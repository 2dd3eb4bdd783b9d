"""The training stream and the test sets of the demo model, all from seeds.

Two kinds of document, told apart by their first word:
  tale     <body> Question: <question> Answer: <answer>
  command  Command: <words>. Intent: {"intent":"heat.up","room":"bedroom"}
and, in training only, two that teach reading, because whole tales alone teach it slowly (after 3 million
tokens only heroes' names were found again):
  drill    a few sentences from inside a tale, with questions about them
  echo     Echo: <a sentence of a tale> Again: <the same sentence>
"""
import re
from dataclasses import dataclass
from functools import cache
from collections.abc import Iterator

from . import commands, split, tales
from .dice import Dice

TEST_SEED = "colibri-demo-test-1"
TEST_QUESTIONS = 60
TEST_TALES = 100

# Weight of a piece in the training loss: answers matter most, the free words of a command least.
WEIGHT_TALE, WEIGHT_QUESTION, WEIGHT_ANSWER = 1.0, 0.3, 4.0
WEIGHT_WORDS, WEIGHT_INTENT = 0.3, 2.0


@dataclass(frozen=True)
class Piece:
    """A stretch of text and its weight in the loss."""

    text: str
    weight: float


@dataclass(frozen=True)
class Mixture:
    """How many of 100 documents are of which kind (tokens are shared out differently: a tale is long), and
    the most questions after a tale or a drill."""

    tales: int
    drills: int
    echoes: int
    commands: int
    questions: int


@dataclass(frozen=True)
class Document:
    """One training document; `command` is set for commands, `body` for tales."""

    pieces: tuple[Piece, ...]
    command: commands.Command | None = None
    body: str = ""

    @property
    def text(self) -> str:
        """The whole document."""
        return "".join(piece.text for piece in self.pieces)


def _as_typed(words: str, dice: Dice) -> str:
    """The prompt for a command, now and then as people type it: a capital, another end mark, a line break."""
    if dice.chance(0.75):
        return commands.command_prompt(words)
    if dice.chance(0.5):
        words = words[0].upper() + words[1:]
    return f"Command: {words}{dice.pick(('.', '', '?', '!'))}{dice.pick((' ', chr(10)))}Intent:"


def command_document(dice: Dice) -> Document:
    """A command training may see."""
    allowed, rooms = split.load_split(), tuple(commands.ROOMS)
    by_intent = _training_templates()
    while True:
        template, room = dice.pick(by_intent[dice.pick(commands.INTENTS)]), dice.pick(rooms)
        if allowed.may_train(template, room):
            break
    command = commands.say(template, room, dice)
    pieces = (Piece(_as_typed(command.words, dice), WEIGHT_WORDS), Piece(" " + command.answer, WEIGHT_INTENT))
    return Document(pieces, command=command)


def _new_tale(dice: Dice) -> tales.Tale:
    """A tale that is in no test set."""
    while True:
        tale = tales.tell(dice)
        if tale.body not in _test_bodies():
            return tale


def _asked(text: str, questions: list[tuple[str, str]]) -> Document:
    pieces = [Piece(text, WEIGHT_TALE)]
    for question, answer in questions:
        pieces.append(Piece(f" Question: {question} Answer:", WEIGHT_QUESTION))
        pieces.append(Piece(f" {answer}", WEIGHT_ANSWER))
    return Document(tuple(pieces), body=text)


def tale_document(dice: Dice, most_questions: int) -> Document:
    """A whole tale with 1..most_questions questions."""
    tale = _new_tale(dice)
    return _asked(tale.body, tale.questions[:1 + dice.below(most_questions)])


def drill_document(dice: Dice, most_questions: int) -> Document:
    """One to three sentences of a tale, never its first, and questions whose answers they hold."""
    while True:
        tale = _new_tale(dice)
        start = 1 + dice.below(len(tale.sentences) - 1)
        text = " ".join(tale.sentences[start:start + dice.pick((1, 1, 2, 3))])
        words = set(re.findall(r"\w+", text))
        fitting = [(question, answer) for question, answer in tale.questions
                   if re.findall(r"\w+", answer)[-1] in words]
        if fitting:
            return _asked(text, fitting[:1 + dice.below(most_questions)])


def echo_document(dice: Dice) -> Document:
    """A sentence said twice: every word of the second is a word to look up."""
    sentence = dice.pick(_new_tale(dice).sentences)
    return Document((Piece(f"Echo: {sentence} Again:", WEIGHT_QUESTION), Piece(f" {sentence}", WEIGHT_TALE)),
                    body=sentence)


def training_stream(seed: object, mixture: Mixture) -> Iterator[Document]:
    """Endless training documents."""
    dice = Dice("colibri-demo-train", seed)
    kinds = ["tale"] * mixture.tales + ["drill"] * mixture.drills + ["echo"] * mixture.echoes
    kinds += ["command"] * mixture.commands
    while True:
        kind = dice.pick(kinds)
        if kind == "tale":
            yield tale_document(dice, mixture.questions)
        elif kind == "drill":
            yield drill_document(dice, mixture.questions)
        else:
            yield echo_document(dice) if kind == "echo" else command_document(dice)


@cache
def _training_templates() -> dict[str, tuple[commands.Template, ...]]:
    held = split.load_split().patterns
    return {intent: tuple(t for t in commands.templates() if t.intent == intent and t.pattern not in held)
            for intent in commands.INTENTS}


@cache
def _test_bodies() -> frozenset[str]:
    return frozenset(tale.body for tale, _, _ in test_questions())


def test_commands() -> list[tuple[str, commands.Command]]:
    """The 500 test commands with their groups: seen, held_out_template, held_out_pair."""
    held = split.load_split()
    return split.draw_test(held.patterns, held.pairs)


@cache
def test_questions() -> tuple[tuple[tales.Tale, str, str], ...]:
    """60 tales training never sees, each with one question and its answer."""
    dice = Dice(TEST_SEED, "questions")
    found = []
    for _ in range(TEST_QUESTIONS):
        tale = tales.tell(dice)
        found.append((tale, *tale.questions[0]))
    return tuple(found)


def test_openings() -> list[tuple[str, str]]:
    """100 different first sentences of tales, each with the hero's name. The model has to tell the rest."""
    dice = Dice(TEST_SEED, "openings")
    found: dict[str, str] = {}
    while len(found) < TEST_TALES:
        tale = tales.tell(dice)
        found[tale.sentences[0]] = tale.hero
    return list(found.items())
