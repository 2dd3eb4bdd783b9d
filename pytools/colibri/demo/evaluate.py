"""Judge a demo model: exact commands of 500, heroes' names of 100 tales, answers of 60 questions.

`evaluate()` takes any generator of tokens: the C engine, transformers, or a quantized simulation. On the
command line it judges a Hugging Face folder: `python -m colibri.demo.evaluate FOLDER --weights q4`.
"""
import argparse
import json
import re
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol
from collections.abc import Callable

from . import commands, corpus, tales

END = 1
MOST_INTENT, MOST_ANSWER, MOST_TALE = 40, 24, 260

Generate = Callable[[list[list[int]], int, list[int]], list[list[int]]]
"""generate(prompts, most new tokens, stop tokens) -> new tokens of each prompt, without the stop token."""


class Codec(Protocol):
    """What is needed of a tokenizer (the `tokenizers` package fits as it is); `encode` adds <s>."""

    def encode(self, text: str) -> object:
        """An object whose `ids` are the tokens."""

    def decode(self, ids: list[int]) -> str:
        """The text of the tokens."""


@dataclass
class Result:
    """Counts, and what went wrong."""

    commands_right: dict[str, int] = field(default_factory=dict)
    commands_total: dict[str, int] = field(default_factory=dict)
    names_held: int = 0
    tales: int = 0
    questions_right: int = 0
    questions: int = 0
    faults: list[str] = field(default_factory=list)
    samples: list[str] = field(default_factory=list)

    @property
    def exact_share(self) -> float:
        """Share of commands answered exactly."""
        return sum(self.commands_right.values()) / max(1, sum(self.commands_total.values()))

    def met(self) -> bool:
        """True if every goal of the demo model is met."""
        return (self.exact_share >= 0.95 and self.names_held >= 0.95 * self.tales
                and self.questions_right * 60 >= 40 * self.questions)


def hero_holds(tale: str, hero: str) -> bool:
    """True if the tale is a whole one (it ends with a question and an answer), speaks of the hero after its
    first sentence, and names no other child."""
    rest = tale.partition(". ")[2]
    words = set(re.findall(r"[A-Za-z]+", tale))
    others = (set(tales.GIRLS) | set(tales.BOYS)) - {hero}
    return (not words & others and hero in re.findall(r"[A-Za-z]+", rest)
            and re.search(r" Question: [^?]+\? Answer: [^?]+\.$", tale) is not None)


def evaluate(generate: Generate, codec: Codec, command_count: int = 500, question_count: int = 60,
             tale_count: int = 100) -> Result:
    """Run the tests (greedy decoding is expected of `generate`). Smaller counts take an even sample."""
    result = Result()

    def ask(prompts: list[str], most: int) -> list[str]:
        ids = [list(codec.encode(prompt).ids) for prompt in prompts]      # type: ignore[attr-defined]
        return [codec.decode(new) for new in generate(ids, most, [END])]

    cases = corpus.test_commands()
    cases = cases[::max(1, len(cases) // command_count)]
    replies = ask([commands.command_prompt(command.words) for _, command in cases], MOST_INTENT)
    for (group, command), reply in zip(cases, replies):
        right = reply.strip() == command.answer
        result.commands_total[group] = result.commands_total.get(group, 0) + 1
        result.commands_right[group] = result.commands_right.get(group, 0) + right
        if not right:
            result.faults.append(f"{group}: {command.words} -> {reply.strip()} (expected {command.answer})")
    asked = corpus.test_questions()[:question_count]
    replies = ask([tales.question_prompt(tale, question) for tale, question, _ in asked], MOST_ANSWER)
    result.questions = len(asked)
    for (tale, question, answer), reply in zip(asked, replies):
        result.questions_right += reply.strip() == answer
        if reply.strip() != answer:
            result.faults.append(f"question: {question} -> {reply.strip()} (expected {answer}) {tale.body}")
    openings = corpus.test_openings()[:tale_count]
    result.tales = len(openings)
    for (opening, hero), reply in zip(openings, ask([opening for opening, _ in openings], MOST_TALE)):
        whole = opening + reply
        result.names_held += hero_holds(whole, hero)
        result.samples.append(whole)
        if not hero_holds(whole, hero):
            result.faults.append(f"tale of {hero}: {whole}")
    return result


def summary(result: Result) -> str:
    """One line."""
    groups = ", ".join(f"{name} {right}/{result.commands_total[name]}"
                       for name, right in result.commands_right.items())
    return (f"commands exact {100 * result.exact_share:.1f} % ({groups}); hero's name holds in "
            f"{result.names_held} of {result.tales} tales; questions right {result.questions_right} of "
            f"{result.questions}")


def judge_folder(folder: Path, weights: str) -> tuple[Result, dict]:
    """evaluate() with torch on a Hugging Face folder, weights as they are ("float") or quantized ("q8",
    "q4"); also its divergence from float and its use of the experts, on the 60 tales of the questions."""
    import torch
    from tokenizers import Tokenizer
    from transformers import MixtralForCausalLM

    from .model import divergence, expert_shares, greedy
    from .quantize import quantize_model
    torch.set_num_threads(2)
    float_model = MixtralForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()
    model = MixtralForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()
    if weights != "float":
        quantize_model(model, weights)
    codec = Tokenizer.from_file(str(folder / "tokenizer.json"))
    result = evaluate(lambda prompts, most, stops: greedy(model, prompts, most, stops), codec)
    texts = [f"{tales.question_prompt(tale, question)} {answer}"
             for tale, question, answer in corpus.test_questions()]
    rows = [codec.encode(text).ids for text in texts]
    return result, {"mean_kl": divergence(float_model, model, rows),
                    "expert_shares": expert_shares(model, rows)}


def main() -> None:
    """Command line."""
    parser = argparse.ArgumentParser(description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path, help="Hugging Face folder of the demo model")
    parser.add_argument("--weights", choices=("float", "q8", "q4"), default="float",
                        help="simulate quantized weights and activations")
    parser.add_argument("--faults", type=int, default=10, help="how many wrong answers to print")
    parser.add_argument("--samples", type=int, default=3, help="how many tales to print")
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    result, torch_facts = judge_folder(options.folder, options.weights)
    if options.json:
        print(json.dumps({"schema": 1, "exact_share": result.exact_share,
                          "commands_right": result.commands_right,
                          "commands_total": result.commands_total, "names_held": result.names_held,
                          "tales": result.tales, "questions_right": result.questions_right,
                          "questions": result.questions, "met": result.met(), **torch_facts}, indent=1))
        return
    print(f"{options.weights}: {summary(result)}; mean KL from float {torch_facts['mean_kl']:.2e}")
    for layer, shares in enumerate(torch_facts["expert_shares"]):
        print(f"layer {layer}: expert shares " + " ".join(f"{100 * share:.1f}" for share in shares) + " %")
    print("\n".join(result.faults[:options.faults] + result.samples[:options.samples]))


if __name__ == "__main__":
    main()
