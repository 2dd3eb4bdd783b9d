"""Train the demo model: `python -m colibri.demo.train SCRATCH --seconds 2400`.

The scratch folder gets a checkpoint every few minutes and a Hugging Face folder `hf/` at every checkpoint; a
run that finds a checkpoint there continues it. Never run in CI. On shared cores set OMP_WAIT_POLICY=passive.

How the shipped checkpoint came about (some 16.6 million tokens, 5,000 seconds of training on two busy cores,
in nine runs that each continued the last): it began with tales and commands only, embeddings of standard
deviation 0.04 with weight decay, rate 4e-3; drills came at 3.3, echoes at 6.0 million tokens; embeddings were
moved apart (`--spread`) at 6.7 and 9.4 million; HEAD_NOISE was 500, 2000, 6000, then 15000 from 11.8
million on; at 16.3 million the final norm was multiplied by 0.8, which quiets the head's noise. The constants
below are the lessons of that run: a new run starts with them, and so gives another model, not the same one.
"""
import argparse
import itertools
import time
from pathlib import Path

import torch
from tokenizers import Tokenizer
from transformers import MixtralForCausalLM

from . import corpus
from .evaluate import evaluate, summary
from .model import Batches, balance_loss, greedy, make_config, make_tokenizer, save_folder, settle_experts
from .quantize import head_divergence

SEED = 1
ROWS, LENGTH = 10, 256
RATE, WARMUP, DECAY, BETAS = 2e-3, 100, 0.05, (0.9, 0.99)
# Weight of the head's quantization loss while the model settles (with STYLE): a KL of 1e-5 nats counts 0.15.
HEAD_NOISE = 15000.0
# Reading first; in the end tales carry one question, because that is how a tale shall look.
EMBEDDING_STD = 0.1
READING, STYLE = corpus.Mixture(25, 50, 15, 10, 4), corpus.Mixture(55, 15, 0, 30, 1)
STYLE_AFTER = 0.78
SEPARATE_SHARE = 0.85


def spread_embeddings(model: MixtralForCausalLM, closest: float = 0.55, size: float = 0.1) -> int:
    """Move embedding rows apart that became nearly equal; returns how many.

    Words of one kind ("Pip", "Coco", ...) get the same gradient until the model can look up which one the
    text names; if decay wipes out their small differences first, it never can. So embeddings start wide and
    have no weight decay; this function repairs a run that had it (questions right: 19 of 60 before, 34 after
    500 steps).
    """
    rows = model.get_input_embeddings().weight
    with torch.no_grad():
        unit = torch.nn.functional.normalize(rows, dim=1)
        alike = (unit @ unit.T).fill_diagonal_(-1).amax(1) > closest
        rows[alike] += size * torch.randn(int(alike.sum()), rows.shape[1])
    return int(alike.sum())


def rate_at(done: float, step: int) -> float:
    """Learning rate: warm up, hold, then fall in a line over the second half to 2 % (done is 0..1)."""
    return RATE * min(1.0, (step + 1) / WARMUP) * min(1.0, max(0.02, 2 * (1 - done)))


class Trainer:
    """Model, optimizer and counters of one run."""

    def __init__(self, scratch: Path, tokenizer: Tokenizer, seed: int) -> None:
        torch.manual_seed(seed)
        self.scratch, self.tokenizer, self.seed = scratch, tokenizer, seed
        self.model = MixtralForCausalLM(make_config())
        embedding = self.model.get_input_embeddings().weight
        torch.nn.init.normal_(embedding, std=EMBEDDING_STD)
        matrices = [p for p in self.model.parameters() if p.ndim > 1 and p is not embedding]
        vectors = [embedding, *(p for p in self.model.parameters() if p.ndim < 2)]
        self.optimizer = torch.optim.AdamW([{"params": matrices, "weight_decay": DECAY},
                                            {"params": vectors, "weight_decay": 0.0}],
                                           lr=RATE, betas=BETAS, fused=True)
        self.step, self.tokens, self.seconds, self.resumed, self.settling = 0, 0, 0.0, 0, False

    def save(self) -> None:
        """A checkpoint to continue from, and the model as a Hugging Face folder."""
        state = {"model": self.model.state_dict(), "optimizer": self.optimizer.state_dict(),
                 "step": self.step,
                 "tokens": self.tokens, "seconds": self.seconds, "resumed": self.resumed}
        torch.save(state, self.scratch / "next.pt")
        (self.scratch / "next.pt").rename(self.scratch / "checkpoint.pt")
        save_folder(self.model, self.tokenizer, self.scratch / "hf")

    def load(self, spread: bool) -> None:
        """Continue from the checkpoint; with spread, with repaired embeddings and a new optimizer."""
        state = torch.load(self.scratch / "checkpoint.pt", weights_only=True)
        self.model.load_state_dict(state["model"])
        self.tokens, self.seconds, self.resumed = state["tokens"], state["seconds"], state["resumed"] + 1
        if spread:
            print(f"{spread_embeddings(self.model)} embedding rows moved apart", flush=True)
        else:
            self.optimizer.load_state_dict(state["optimizer"])
            self.step = state["step"]

    def one_step(self, batches: Batches, rate: float, separate: bool) -> float:
        """One step of the optimizer; returns the weighted loss per token."""
        self.model.train()
        batch = batches.draw(separate)
        out = self.model.model(input_ids=batch["input_ids"], attention_mask=batch["attention_mask"],
                               position_ids=batch["position_ids"], output_router_logits=True, use_cache=False)
        logits = self.model.lm_head(out.last_hidden_state)
        each = torch.nn.functional.cross_entropy(logits.flatten(0, 1), batch["labels"].flatten(),
                                                 reduction="none")
        weights = batch["weights"].flatten()
        loss = (each * weights).sum() / weights.sum()
        extra = self.model.config.router_aux_loss_coef * balance_loss(out.router_logits)
        if self.settling:
            head = self.model.lm_head.weight
            extra = extra + HEAD_NOISE * head_divergence(out.last_hidden_state, head, logits)
        self.optimizer.zero_grad(set_to_none=True)
        (loss + extra).backward()
        torch.nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)
        for group in self.optimizer.param_groups:
            group["lr"] = rate
        self.optimizer.step()
        self.step += 1
        self.tokens += batch["labels"].numel()
        return float(loss.detach())

    def run(self, budget: float, save_every: float, test_every: float) -> None:
        """Train until the budget (seconds of training, evaluation not counted) is used."""
        streams: dict[corpus.Mixture, Batches] = {}
        next_save, next_test = self.seconds + save_every, self.seconds + test_every
        next_line, losses, began = 0.0, [], self.tokens
        start = self.seconds
        while self.seconds < budget:
            clock, done = time.monotonic(), self.seconds / budget
            mixture = READING if done < STYLE_AFTER else STYLE
            if mixture is STYLE and not self.settling:
                self.settling = True
                settle_experts(self.model)
            if mixture not in streams:
                documents = corpus.training_stream((self.seed, self.resumed), mixture)
                streams[mixture] = Batches(documents, self.tokenizer, ROWS, LENGTH)
            separate = (self.step * 13) % 20 < 20 * SEPARATE_SHARE
            losses.append(self.one_step(streams[mixture], rate_at(done, self.step), separate))
            self.seconds += time.monotonic() - clock
            if self.seconds >= next_line:
                speed = (self.tokens - began) / max(1e-9, self.seconds - start)
                print(f"{self.seconds:6.0f} s  step {self.step}  tokens {self.tokens / 1e6:.2f} M  "
                      f"{speed:.0f} tok/s  loss {sum(losses) / len(losses):.4f}", flush=True)
                losses, next_line = [], self.seconds + 30
            if self.seconds >= next_save:
                self.save()
                next_save = self.seconds + save_every
            if self.seconds >= next_test:
                print("        " + self.test(quick=True), flush=True)
                next_test = self.seconds + test_every
        self.save()

    def test(self, quick: bool) -> str:
        """The goals, measured on the float model."""
        result = evaluate(lambda p, most, stops: greedy(self.model, p, most, stops), self.tokenizer,
                          100 if quick else 500, 60, 20 if quick else 100)
        return summary(result)


def main() -> None:
    """Command line."""
    parser = argparse.ArgumentParser(description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("scratch", type=Path)
    parser.add_argument("--seconds", type=float, default=2400, help="training time (evaluation not counted)")
    parser.add_argument("--save-every", type=float, default=180)
    parser.add_argument("--test-every", type=float, default=300)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--spread", action="store_true", help="see spread_embeddings")
    parser.add_argument("--seed", type=int, default=SEED)
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    options.scratch.mkdir(parents=True, exist_ok=True)
    kept = options.scratch / "tokenizer.json"
    if kept.exists():
        tokenizer = Tokenizer.from_file(str(kept))
    else:
        documents = itertools.islice(corpus.training_stream("tokenizer", STYLE), 20000)
        tokenizer = make_tokenizer(document.text for document in documents)
        tokenizer.save(str(kept))
    trainer = Trainer(options.scratch, tokenizer, options.seed)
    if (options.scratch / "checkpoint.pt").exists():
        trainer.load(options.spread)
    print(f"parameters {sum(p.numel() for p in trainer.model.parameters())}", flush=True)
    trainer.run(options.seconds, options.save_every, options.test_every)
    print(trainer.test(quick=False))


if __name__ == "__main__":
    main()
