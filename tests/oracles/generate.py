"""Ask transformers for the truth about the oracle cases and freeze it (needs the extra `[oracle]`).

    python tests/oracles/generate.py              freeze every case that has no fixture yet
    python tests/oracles/generate.py --all NAME   freeze again (all, or the cases named)
    python tests/oracles/generate.py --search     look for the first seed of each case that keeps the margins

The truth is the float64 model with eager attention and without a key/value cache; transformers itself rounds
norms, softmaxes and rotary angles to float32 inside. How far its float32 model is from that is stored too.
"""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
os.environ.setdefault("HF_HUB_OFFLINE", "1")

from oracles import cases, checkpoints, fixtures  # noqa: E402

MARGIN = 0.01  # between the best two logits of every row
ROUTER_MARGIN = 0.001  # between the last expert chosen and the first one not chosen, in router logits
_ROUTERS = ("topkrouter", "v1gate", "llama4router", "dbrxrouter", "choicerouter")  # how their classes' names end
OTHER_PARTS = ("vision_model.", "multi_modal_projector.")  # tensors that a text model leaves alone
VARIETY = 8  # different tokens among the greedy ones


@dataclass
class Answer:
    """What one live run of transformers gave."""

    logits: np.ndarray  # float64 [PROMPT, vocab]
    greedy: list[int]
    margin: float
    router_margin: float

    def telling(self) -> bool:
        """Whether rounding cannot change the choices, and the text is more than one token repeated."""
        sure = self.margin >= MARGIN and self.router_margin >= ROUTER_MARGIN
        return sure and len(set(self.greedy)) >= VARIETY


class Live:
    """A case loaded into transformers; the folder must hold its checkpoint."""

    def __init__(self, case: cases.Case, folder: Path, double: bool = True) -> None:
        import torch
        import transformers

        transformers.utils.logging.set_verbosity_error()
        transformers.utils.logging.disable_progress_bar()
        torch.set_num_threads(1)
        self.torch, self.case = torch, case
        self.model, info = transformers.AutoModelForCausalLM.from_pretrained(
            folder, dtype=torch.float64 if double else torch.float32, attn_implementation="eager",
            experts_implementation="eager", output_loading_info=True,
        )
        for kind in ("missing_keys", "unexpected_keys", "mismatched_keys"):
            found = [name for name in info[kind] if not (case.shape.wrapped and name.startswith(OTHER_PARTS))]
            if found:
                raise ValueError(f"{case.name}: transformers reports {kind}: {sorted(found)}")
        self.model.eval()
        self.router_margin = float("inf")
        if case.shape.experts > case.shape.top_k:
            for module in self.model.modules():
                if type(module).__name__.lower().endswith(_ROUTERS):
                    module.register_forward_hook(self._watch)

    def _watch(self, module: object, inputs: object, output: Any) -> None:
        """Router hook: remember the smallest gap at the edge of the choice."""
        if isinstance(output, tuple):
            output = output[type(module).__name__ == "Llama4Router"]
        numbers = output.detach().double()
        if self.case.shape.correction or self.case.config.get("n_group", 1) > 1:
            numbers = self._numbers_of_the_choice(module, inputs, numbers)
        best = numbers.topk(self.case.shape.top_k + 1, dim=-1).values
        self.router_margin = min(self.router_margin, float((best[:, -2] - best[:, -1]).min()))

    def _numbers_of_the_choice(self, module: Any, inputs: Any, logits: Any) -> Any:
        """What a router with a bias chooses by, with the gap between its groups watched on the way."""
        softmax = self.case.family in ("ernie4_5_moe", "deepseek_v2")
        scores = logits.softmax(dim=-1) if softmax else logits.sigmoid()
        scores = logits if self.case.family == "kolibri1" else scores
        owner = getattr(module, "moe_statics", module)
        numbers = scores
        if self.case.shape.correction:
            apart = self.case.family in ("minimax_m2", "lfm2_moe", "afmoe")
            bias = inputs[1] if apart else owner.e_score_correction_bias
            numbers = scores + bias.detach().double().reshape(-1)
        groups, kept = self.case.config.get("n_group", 1), self.case.config.get("topk_group", 1)
        if groups > kept:
            parts = numbers.unflatten(-1, (groups, -1))
            of_group = parts.topk(1 if self.case.family == "deepseek_v2" else 2, dim=-1).values.sum(dim=-1)
            best = of_group.topk(kept + 1, dim=-1)
            gap = best.values[:, -2] - best.values[:, -1]
            self.router_margin = min(self.router_margin, float(gap.min()))
            mask = self.torch.ones_like(of_group, dtype=bool).scatter(1, best.indices[:, :-1], False)
            numbers = parts.masked_fill(mask[..., None], float("-inf")).flatten(1)
        return numbers

    def logits(self, tokens: list[int]) -> np.ndarray:
        """float64 logits of every position."""
        with self.torch.no_grad():
            out = self.model(self.torch.tensor([tokens]), use_cache=False).logits[0]
        return out.double().numpy()

    def run(self) -> Answer:
        """Teacher-forced logits of the prompt, then greedy tokens, recomputed from the start each time."""
        tokens = checkpoints.prompt(self.case)
        first = self.logits(tokens)
        rows, greedy = list(first), []
        while len(greedy) < cases.GREEDY:
            greedy.append(int(rows[-1].argmax()))
            rows.append(self.logits(tokens + greedy)[-1])
        best = np.sort(np.array(rows), axis=-1)[:, -2:]
        return Answer(first, greedy, float((best[:, 1] - best[:, 0]).min()), self.router_margin)


def answer(case: cases.Case, double: bool = True) -> tuple[Answer, str]:
    """Build a checkpoint in a temporary folder and run it; the digest names the checkpoint."""
    with tempfile.TemporaryDirectory() as name:
        digest = checkpoints.build_case(case, Path(name))
        return Live(case, Path(name), double).run(), digest


def freeze(case: cases.Case) -> None:
    """Write the fixture of one case, refusing small margins."""
    import transformers

    truth, digest = answer(case)
    if not truth.telling():
        raise SystemExit(f"{case.name}: seed {case.seed} has margins {truth.margin:.4f} and "
                         f"{truth.router_margin:.5f} and {len(set(truth.greedy))} different tokens; "
                         "take another seed (--search)")
    single, _ = answer(case, double=False)
    if single.greedy != truth.greedy:
        raise SystemExit(f"{case.name}: float32 and float64 choose other tokens; take another seed")
    fixture = fixtures.Fixture(
        name=case.name,
        what=case.what,
        family=case.family,
        seed=case.seed,
        transformers=transformers.__version__,
        checkpoint_sha256=digest,
        prompt=checkpoints.prompt(case),
        argmax=[int(i) for i in truth.logits.argmax(axis=-1)],
        greedy=truth.greedy,
        margin=truth.margin,
        router_margin=truth.router_margin if np.isfinite(truth.router_margin) else None,
        float32_difference=float(np.abs(single.logits - truth.logits).max()),
        logits=truth.logits.astype(np.float32),
    )
    size = fixtures.save(fixture)
    print(f"{case.name:22} margin {truth.margin:.4f} router {truth.router_margin:.4f} "
          f"float32 off by {fixture.float32_difference:.1e} largest logit {np.abs(truth.logits).max():.1f} "
          f"{size} bytes", flush=True)


def search(case: cases.Case) -> int:
    """The first seed from 1 on whose answer is sure and telling."""
    for seed in range(1, 200):
        truth, _ = answer(replace(case, seed=seed))
        if truth.telling():
            return seed
    raise SystemExit(f"{case.name}: no seed below 200 keeps the margins and says enough")


def main(arguments: list[str]) -> int:
    """Freeze or search, one line per case."""
    parser = argparse.ArgumentParser(description="Freeze what transformers answers for the oracle cases.")
    parser.add_argument("--all", action="store_true", help="freeze again what is frozen already")
    parser.add_argument("--search", action="store_true", help="print usable seeds instead of freezing")
    parser.add_argument("names", nargs="*", help="cases (default: all)")
    options = parser.parse_args(arguments)
    for name in options.names or cases.CASES:
        if options.search:
            print(name, search(cases.CASES[name]), flush=True)
        elif options.all or options.names or not fixtures.path(name).exists():
            freeze(cases.CASES[name])
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
