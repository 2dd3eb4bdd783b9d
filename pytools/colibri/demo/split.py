"""What training never sees: 20 % of the sentence templates and two (room, intent) pairs.

`split.json` beside this file is the record; it was committed before the first training run. `python -m
colibri.demo.split` writes it again from the seed (and must give the same bytes).
"""
import hashlib
import json
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from .commands import INTENTS, ROOMS, Command, Template, matcher, say, templates
from .dice import Dice

SEED = "colibri-demo-split-1"
SHARE = 0.2
HELD_OUT_PAIRS = (("nursery", "blinds.close"), ("garage", "music.play"))
SPLIT_FILE = Path(__file__).with_name("split.json")
# How the 500 test commands are shared out.
TEST_SHARES = {"seen": 200, "held_out_template": 200, "held_out_pair": 100}


@dataclass(frozen=True)
class Split:
    """The held-out templates by their pattern, the held-out pairs, and the hash of the test commands."""

    patterns: frozenset[str]
    pairs: frozenset[tuple[str, str]]
    test_sha256: str

    def may_train(self, template: Template, room: str) -> bool:
        """True if training may see this template with this room."""
        return template.pattern not in self.patterns and (room, template.intent) not in self.pairs


@cache
def load_split() -> Split:
    """The committed split."""
    record = json.loads(SPLIT_FILE.read_text(encoding="utf-8"))
    patterns = [pattern for group in record["held_out_templates"].values() for pattern in group]
    return Split(frozenset(patterns), frozenset((room, intent) for room, intent in record["held_out_pairs"]),
                 record["test_sha256"])


def _choose() -> dict[str, list[str]]:
    """Held-out patterns per intent. Every stem keeps at least half of its templates in training, every word
    stays in a trained pattern of the same intent, and no held-out pattern is part of what another one says
    ("dim the {r}" is part of "dim the {r} lights")."""
    everything, rooms = templates(), tuple(ROOMS)
    dice = Dice(SEED, "samples")
    spoken = {t: [say(t, dice.pick(rooms), dice).words for _ in range(12)] for t in everything}
    chosen: dict[str, list[str]] = {}
    for intent in INTENTS:
        mine = [t for t in everything if t.intent == intent]
        wanted = round(SHARE * len(mine))
        taken: list[str] = []
        left = {stem: sum(t.stem == stem for t in mine) for stem in {t.stem for t in mine}}
        whole = dict(left)
        for candidate in Dice(SEED, intent).shuffled(mine):
            if len(taken) == wanted:
                break
            if 2 * (left[candidate.stem] - 1) < whole[candidate.stem]:
                continue
            find = matcher(candidate.pattern).search
            others = " ".join(t.pattern for t in mine if t != candidate and t.pattern not in taken).split()
            if not set(candidate.pattern.split()) <= set(others):
                continue
            if any(find(words) for t, said in spoken.items() if t != candidate for words in said):
                continue
            left[candidate.stem] -= 1
            taken.append(candidate.pattern)
        chosen[intent] = sorted(taken)
    return chosen


def draw_test(patterns: frozenset[str], pairs: frozenset[tuple[str, str]]) -> list[tuple[str, Command]]:
    """The 500 test commands, all different, each with the name of its group."""
    dice = Dice(SEED, "test")
    found: list[tuple[str, Command]] = []
    seen: set[str] = set()
    everything, rooms = templates(), tuple(ROOMS)
    held = [t for t in everything if t.pattern in patterns]
    known = [t for t in everything if t.pattern not in patterns]
    for group, count in TEST_SHARES.items():
        while sum(name == group for name, _ in found) < count:
            if group == "held_out_pair":
                room, intent = dice.pick(sorted(pairs))
                template = dice.pick([t for t in everything if t.intent == intent])
            else:
                template, room = dice.pick(held if group == "held_out_template" else known), dice.pick(rooms)
                if (room, template.intent) in pairs:
                    continue
            command = say(template, room, dice)
            if command.words not in seen:
                seen.add(command.words)
                found.append((group, command))
    return found


def test_hash(test: list[tuple[str, Command]]) -> str:
    """SHA-256 over the test commands and their answers."""
    lines = "".join(f"{group}\t{command.words}\t{command.answer}\n" for group, command in test)
    return hashlib.sha256(lines.encode()).hexdigest()


def make_split() -> str:
    """The text of split.json, made from the seed."""
    chosen = _choose()
    patterns = frozenset(pattern for group in chosen.values() for pattern in group)
    record = {
        "about": "Held out of the training of the demo model. Committed before training; see split.py.",
        "seed": SEED, "templates": len(templates()), "held_out": len(patterns),
        "held_out_pairs": [list(pair) for pair in HELD_OUT_PAIRS], "held_out_templates": chosen,
        "test_sha256": test_hash(draw_test(patterns, frozenset(HELD_OUT_PAIRS))),
    }
    return json.dumps(record, indent=1, ensure_ascii=True) + "\n"


if __name__ == "__main__":
    SPLIT_FILE.write_text(make_split(), encoding="utf-8")
    print(f"{SPLIT_FILE.name}: {len(load_split().patterns)} of {len(templates())} templates held out")
