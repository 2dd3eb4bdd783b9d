"""The demo model in torch: its shape, fast experts, its tokenizer, and batches of whole documents."""
import json
from pathlib import Path
from collections.abc import Callable, Iterator

import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, processors, trainers
from torch import Tensor, nn
from transformers import MixtralConfig, MixtralForCausalLM
from transformers.models.mixtral import modeling_mixtral

from .corpus import Document
from .quantize import snap_q4, straight_through

VOCABULARY = 1024
CONTEXT = 512
BEGIN, END = 0, 1
SPECIAL = ("<s>", "</s>")
END_WEIGHT = 1.0


def make_config() -> MixtralConfig:
    """Mixtral's layout at 3.5 million parameters."""
    return MixtralConfig(
        vocab_size=VOCABULARY, hidden_size=128, intermediate_size=256, num_hidden_layers=4,
        num_attention_heads=4, num_key_value_heads=2, head_dim=32, num_local_experts=8, num_experts_per_tok=2,
        max_position_embeddings=CONTEXT, sliding_window=None, tie_word_embeddings=True,
        router_aux_loss_coef=0.02,
        bos_token_id=BEGIN, eos_token_id=END, initializer_range=0.04, rms_norm_eps=1e-5,
        rope_parameters={"rope_type": "default", "rope_theta": 10000.0})


def make_tokenizer(texts: Iterator[str]) -> Tokenizer:
    """Byte-level BPE with GPT-2's word splitting; every encoding starts with <s>."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.train_from_iterator(texts, trainers.BpeTrainer(
        vocab_size=VOCABULARY, special_tokens=list(SPECIAL), show_progress=False,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet()))
    tokenizer.post_processor = processors.TemplateProcessing(
        single="<s> $A", pair="<s> $A <s> $B", special_tokens=[("<s>", BEGIN)])
    return tokenizer


def settle_experts(model: MixtralForCausalLM) -> None:
    """From now on the experts compute with weights on the q4 grid; gradients pass through to the weights."""
    for module in model.modules():
        if hasattr(module, "gate_up_proj"):
            module.snap_weights = lambda weight: straight_through(weight, snap_q4)


def save_folder(model: MixtralForCausalLM, tokenizer: Tokenizer, folder: Path) -> None:
    """Write a Hugging Face folder: bf16 shards below 4 MiB, tokenizer, configs."""
    folder.mkdir(parents=True, exist_ok=True)
    for old in folder.glob("*.safetensors*"):
        old.unlink()
    copy = MixtralForCausalLM(model.config).to(torch.bfloat16)
    copy.load_state_dict(model.state_dict())
    for module, settled in zip(copy.modules(), model.modules()):
        if hasattr(settled, "snap_weights"):
            with torch.no_grad():
                module.gate_up_proj.copy_(snap_q4(settled.gate_up_proj))
                module.down_proj.copy_(snap_q4(settled.down_proj))
    copy.save_pretrained(folder, max_shard_size="3900KB")
    tokenizer.save(str(folder / "tokenizer.json"))
    config = {"tokenizer_class": "PreTrainedTokenizerFast", "bos_token": "<s>", "eos_token": "</s>",
              "add_bos_token": True, "clean_up_tokenization_spaces": False, "model_max_length": CONTEXT}
    (folder / "tokenizer_config.json").write_text(json.dumps(config, indent=2) + "\n", encoding="utf-8")


def batched_experts(self: nn.Module, rows: Tensor, chosen: Tensor, weights: Tensor) -> Tensor:
    """All experts as two batched products over equal shares of rows (a loop over experts is 7 times slower).

    In training an expert takes at most 1.4 times its fair share (what is over is dropped from that step) and
    the products run in bf16 (a third faster); otherwise nothing is dropped and everything is float32.
    """
    quantize: Callable[[Tensor], Tensor] = getattr(self, "quantize_rows", lambda x: x)
    (count, top), experts = chosen.shape, self.num_experts
    flat = chosen.flatten()
    order = flat.argsort(stable=True)
    owner, load = flat[order], torch.bincount(flat, minlength=experts)
    room = int(1.4 * count * top / experts) + 8 if self.training else int(load.max())
    rank = torch.arange(count * top) - (load.cumsum(0) - load)[owner]
    kept = rank < room
    slot, source = (owner * room + rank)[kept], order[kept]
    inputs = rows.new_zeros(experts * room, rows.shape[1]).index_copy(0, slot, quantize(rows)[source // top])
    kind = torch.bfloat16 if self.training else rows.dtype
    snap: Callable[[Tensor], Tensor] = getattr(self, "snap_weights", lambda x: x)
    gate_up = snap(self.gate_up_proj).to(kind).transpose(1, 2)
    down = snap(self.down_proj).to(kind).transpose(1, 2)
    gate, up = torch.bmm(inputs.to(kind).view(experts, room, -1), gate_up).chunk(2, -1)
    out = torch.bmm(quantize(nn.functional.silu(gate) * up), down).to(rows.dtype).flatten(0, 1)[slot]
    return torch.zeros_like(rows).index_add(0, source // top, out * weights.flatten()[source, None])


modeling_mixtral.MixtralExperts.forward = batched_experts


def balance_loss(router_logits: tuple[Tensor, ...], top: int = 2) -> Tensor:
    """Mean over the layers of experts * sum(share of choices * mean probability): `top` when all is even."""
    losses = []
    for logits in router_logits:
        chances = logits.flatten(0, -2).softmax(-1)
        experts = chances.shape[-1]
        share = torch.bincount(chances.topk(top).indices.flatten(), minlength=experts) / chances.shape[0]
        losses.append(experts * (share * chances.mean(0)).sum())
    return torch.stack(losses).mean()


class Batches:
    """Rows of whole documents. Each document sees only itself and starts at position 0, as it will when the
    model runs; in a share of the batches the rows are plain text instead, so that long contexts also work."""

    def __init__(self, documents: Iterator[Document], tokenizer: Tokenizer, rows: int, length: int) -> None:
        self._documents, self._tokenizer, self._rows, self._length = documents, tokenizer, rows, length
        self._causal = torch.ones(length, length, dtype=torch.bool).tril()
        self._waiting: list[tuple[list[int], list[float]]] = []

    def _more(self) -> None:
        documents = [next(self._documents) for _ in range(256)]
        pieces = [piece for document in documents for piece in document.pieces]
        encoded = iter(self._tokenizer.encode_batch([p.text for p in pieces], add_special_tokens=False))
        for document in documents:
            ids, weights = [BEGIN], [0.05]
            for piece in document.pieces:
                part = next(encoded).ids
                ids += part
                weights += [piece.weight] * len(part)
            self._waiting.append((ids + [END], weights + [END_WEIGHT]))

    def _row(self) -> tuple[list[int], list[float], list[int], list[int]]:
        ids: list[int] = []
        weights: list[float] = []
        owner: list[int] = []
        places: list[int] = []
        while len(ids) < self._length + 1:
            room = self._length + 1 - len(ids)
            if not self._waiting:
                self._more()
            # a document that fits the rest of the row, if one is near; else the next one, cut
            fit = next((i for i, d in enumerate(self._waiting[:24]) if len(d[0]) <= room), 0)
            one, weight = self._waiting.pop(fit)
            owner += [len(owner)] * min(len(one), room)
            places += range(min(len(one), room))
            ids += one[:room]
            weights += weight[:room]
        return ids, weights, owner, places

    def draw(self, separate: bool) -> dict[str, Tensor]:
        """input_ids, labels, weights, position_ids and the attention mask of one batch."""
        ids, weights, owner, places = zip(*(self._row() for _ in range(self._rows)))
        tokens, of = torch.tensor(ids), torch.tensor(owner)[:, :-1]
        mask = self._causal.expand(self._rows, 1, -1, -1)
        positions = torch.arange(self._length).expand(self._rows, -1)
        if separate:
            mask = mask & (of[:, None, :, None] == of[:, None, None, :])
            positions = torch.tensor(places)[:, :-1]
        return {"input_ids": tokens[:, :-1], "labels": tokens[:, 1:], "weights": torch.tensor(weights)[:, 1:],
                "position_ids": positions, "attention_mask": mask}


@torch.no_grad()
def greedy(model: MixtralForCausalLM, prompts: list[list[int]], most: int,
           stops: list[int]) -> list[list[int]]:
    """Greedy continuations of the prompts, without the stop token. Prompts of one length run as one batch."""
    model.eval()
    results: list[list[int]] = [[] for _ in prompts]
    by_length: dict[int, list[int]] = {}
    for index, prompt in enumerate(prompts):
        by_length.setdefault(len(prompt), []).append(index)
    for members in by_length.values():
        tokens, cache, alive = torch.tensor([prompts[i] for i in members]), None, [True] * len(members)
        for _ in range(most):
            out = model(input_ids=tokens, cache=cache, use_cache=True, output_router_logits=False)
            cache, tokens = out.cache, out.logits[:, -1].argmax(-1, keepdim=True)
            for row, token in enumerate(tokens.flatten().tolist()):
                alive[row] = alive[row] and token not in stops
                if alive[row]:
                    results[members[row]].append(token)
            if not any(alive):
                break
    return results


@torch.no_grad()
def divergence(model: MixtralForCausalLM, other: MixtralForCausalLM, rows: list[list[int]]) -> float:
    """Mean KL divergence of the other model's next-token distributions from the model's."""
    total, count = 0.0, 0
    for row in rows:
        ours, theirs = (m(input_ids=torch.tensor([row])).logits[0].log_softmax(-1) for m in (model, other))
        total += float((ours.exp() * (ours - theirs)).sum())
        count += len(row)
    return total / count


@torch.no_grad()
def expert_shares(model: MixtralForCausalLM, rows: list[list[int]]) -> list[list[float]]:
    """Per layer, the share of all choices that went to each expert."""
    experts, top = model.config.num_local_experts, model.config.num_experts_per_tok
    counts = torch.zeros(model.config.num_hidden_layers, experts)
    for row in rows:
        out = model.model(input_ids=torch.tensor([row]), output_router_logits=True)
        for layer, logits in enumerate(out.router_logits):
            counts[layer] += torch.bincount(logits.topk(top).indices.flatten(), minlength=experts)
    return (counts / counts.sum(1, keepdim=True)).tolist()
