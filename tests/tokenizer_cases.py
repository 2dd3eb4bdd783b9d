"""Small tokenizers, trained here with the `tokenizers` library: one for every way the core can cut text.

Each is a pair (tokenizer.json, tokenizer_config.json) as documents. The regular expressions are those of the
families that the names say.
"""

from __future__ import annotations

import functools
import json
import random
from typing import Any

from tokenizer_texts import WORDS, text
from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, trainers

Document = dict[str, Any]
MARK = "\u2581"
CONTRACTION = "(?i:'s|'t|'re|'ve|'m|'ll|'d)"
TAIL = r"\s*[\r\n]+|\s+(?!\S)|\s+"
CL100K = CONTRACTION + r"|[^\r\n\p{L}\p{N}]?\p{L}+|%s| ?[^\s\p{L}\p{N}]+[\r\n]*|" + TAIL
O200K = (
    r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+" + CONTRACTION + "?|"
    r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*" + CONTRACTION + "?|"
    r"\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n/]*|" + TAIL
)
DEEPSEEK = (
    r"\p{N}{1,3}",
    "[\u4e00-\u9fa5\u3040-\u309f\u30a0-\u30ff]+",
    r"""[!"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+|[^"""
    "\r\n"
    + r"\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+| ?[\p{P}\p{S}]+["
    + "\r\n"
    + r"]*|\s*["
    + "\r\n"
    + r"]+|\s+(?!\S)|\s+",
)


def _texts() -> list[str]:
    dice = random.Random(11)
    prose = "the quick brown fox don't jump over 12345 lazy dogs, it said; HTTPServer() and the theatre " * 3
    runs = ["a" * n for n in (2, 4, 8, 16)] + [" " * n for n in (2, 4, 8)] + list(WORDS)
    return [prose] * 5 + runs * 5 + [text(dice) for _ in range(600)]


def _train(
    pre: Any, normalizer: Any = None, size: int = 700, alphabet: bool = True, **options: Any
) -> Document:
    tokenizer = Tokenizer(models.BPE(**options))
    if normalizer is not None:
        tokenizer.normalizer = normalizer
    tokenizer.pre_tokenizer = pre
    tokenizer.decoder = decoders.ByteLevel()
    letters = pre_tokenizers.ByteLevel.alphabet() if alphabet else []
    unknown = [options["unk_token"]] if options.get("unk_token") else []
    tokenizer.train_from_iterator(
        _texts(),
        trainers.BpeTrainer(
            vocab_size=size, initial_alphabet=letters, special_tokens=unknown, show_progress=False
        ),
    )
    return json.loads(tokenizer.to_str())


def _with(document: Document, *tokens: AddedToken) -> Document:
    tokenizer = Tokenizer.from_str(json.dumps(document))
    tokenizer.add_tokens(list(tokens))
    return json.loads(tokenizer.to_str())


def _isolated(*expressions: str) -> Any:
    splits = [pre_tokenizers.Split(Regex(expression), "isolated") for expression in expressions]
    return pre_tokenizers.Sequence(
        [*splits, pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)]
    )


def _byte_level(prefix: bool = False) -> Any:
    return pre_tokenizers.ByteLevel(add_prefix_space=prefix, use_regex=True)


CHAT = (
    AddedToken("<|im_start|>", special=True),
    AddedToken("<|im_end|>", special=True),
    AddedToken("<|end", special=True),
    AddedToken("<tool>", special=False, normalized=False),
)


def _marked(pre: Any, normalizer: Any, strip: bool) -> Document:
    """A SentencePiece-like model: characters, U+2581 for spaces, bytes for what is unknown."""
    document = _train(pre, normalizer, alphabet=False, unk_token="<unk>", fuse_unk=True)
    model = document["model"]
    model["byte_fallback"] = True
    for byte in range(256):
        model["vocab"][f"<0x{byte:02X}>"] = len(model["vocab"])
    parts: list[Document] = [
        {"type": "Replace", "pattern": {"String": MARK}, "content": " "},
        {"type": "ByteFallback"},
        {"type": "Fuse"},
    ]
    if strip:
        parts.append({"type": "Strip", "content": " ", "start": 1, "stop": 0})
    document["decoder"] = {"type": "Sequence", "decoders": parts}
    return document


def _make(name: str) -> tuple[Document, Document]:
    settings: Document = {}
    if name == "gpt2":
        document = _train(_byte_level())
    elif name == "gpt2-prefix":
        document = _with(_train(_byte_level(prefix=True)), *CHAT)
    elif name == "smollm":
        document = _with(_train(pre_tokenizers.Sequence([pre_tokenizers.Digits(True), _byte_level()])), *CHAT)
    elif name == "digit-runs":
        document = _train(pre_tokenizers.Sequence([pre_tokenizers.Digits(False), _byte_level()]))
    elif name == "llama3":
        document = _with(_train(_isolated(CL100K % r"\p{N}{1,3}")), *CHAT)
        document["model"]["ignore_merges"] = True
        document["model"]["merges"] = document["model"]["merges"][:60]  # so that whole tokens need no merges
        settings = {"bos_token": {"content": "<|im_start|>"}, "add_bos_token": True}
    elif name == "qwen":
        added = (AddedToken("<\u00e9>", normalized=True), AddedToken("e\u0323", normalized=True), *CHAT)
        document = _with(_train(_isolated(CL100K % r"\p{N}"), normalizers.NFC()), *added)
    elif name == "o200k":
        document = _train(_isolated(O200K))
    elif name == "deepseek":
        document = _train(_isolated(*DEEPSEEK))
    elif name == "added":
        flags = [
            {},
            {"lstrip": True},
            {"rstrip": True},
            {"lstrip": True, "rstrip": True},
            {"single_word": True},
        ]
        added = [
            AddedToken(f"<{kind}{n}>", normalized=kind == "n", special=kind == "s", **flag)
            for kind in "nsr"
            for n, flag in enumerate(flags)
        ]
        added += [
            AddedToken("word", single_word=True),
            AddedToken("wordy", lstrip=True),
            AddedToken("  "),
            AddedToken("\n", special=True),
            AddedToken("\ufffd"),
            AddedToken("\u00e9\u00e9"),
        ]
        document = _with(_train(_byte_level()), *added)
    elif name == "no-bytes":  # bytes without a token vanish
        document = _train(_byte_level(), alphabet=False, size=120)
    elif name in ("unknown", "unknown-fused"):
        document = _train(
            _byte_level(), alphabet=False, size=120, unk_token="<unk>", fuse_unk=name != "unknown"
        )
    elif name == "llama2":
        normalizer = normalizers.Sequence([normalizers.Prepend(MARK), normalizers.Replace(" ", MARK)])
        words = pre_tokenizers.Split(MARK, "merged_with_next")
        document = _with(_marked(words, normalizer, strip=True), *CHAT)
        document["pre_tokenizer"] = None
        settings = {"bos_token": "<|im_start|>", "add_bos_token": True, "eos_token": "<|im_end|>"}
    elif name == "gemma":
        words = pre_tokenizers.Split(MARK, "merged_with_next")
        document = _with(
            _marked(words, normalizers.Replace(" ", MARK), strip=False), *CHAT, AddedToken("x y")
        )
        document["pre_tokenizer"] = {
            "type": "Split",
            "pattern": {"String": " "},
            "behavior": "MergedWithPrevious",
            "invert": False,
        }
    else:
        raise ValueError(name)
    return document, settings


CASES = (
    "gpt2",
    "gpt2-prefix",
    "smollm",
    "digit-runs",
    "llama3",
    "qwen",
    "o200k",
    "deepseek",
    "added",
    "no-bytes",
    "unknown",
    "unknown-fused",
    "llama2",
    "gemma",
)


@functools.cache
def case(name: str) -> tuple[Document, Document, Tokenizer]:
    """(tokenizer.json, tokenizer_config.json, the library's tokenizer)."""
    document, settings = _make(name)
    return document, settings, Tokenizer.from_str(json.dumps(document))
