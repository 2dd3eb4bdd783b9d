"""A Hugging Face tokenizer.json becomes the tokenizer section of a blob (core/text/tokenizer_format.h).

Everything in the file is understood here, known to change neither ids nor text, or refused by name: a
tokenizer that is nearly right is wrong.
"""

from __future__ import annotations

from functools import lru_cache
from types import SimpleNamespace
from typing import Any

import cffi
import numpy as np

from . import tokenizer_tables as tables
from .library import declarations, header_text
from .tokenizer_markers import NAMES as MARKERS
from .tokenizer_markers import role_markers
from .tokenizer_rules import SPACE_MARK, Rules, TokenizerError, read_rules, refuse

__all__ = ["TokenizerError", "build_tokenizer_section", "layout"]

NONE = 0xFFFFFFFF


@lru_cache(maxsize=1)
def layout() -> tuple[Any, SimpleNamespace]:
    """cffi with the section's structures, and the header's constants without their COLIBRI_."""
    maker = cffi.FFI()
    text = declarations(header_text("tokenizer_format.h"))
    maker.cdef(text)
    found: dict[str, int] = {}
    for name in [line.split()[1] for line in text.splitlines() if line.startswith("enum ")]:
        found.update(maker.typeof(f"enum {name}").relements)
    return maker, SimpleNamespace(**{name.removeprefix("COLIBRI_"): value for name, value in found.items()})


def byte_alphabet() -> dict[str, int]:
    """GPT-2's alphabet: the character that stands for each byte in a byte-level vocabulary."""
    plain = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = [byte for byte in range(256) if byte not in plain]
    return {chr(byte): byte for byte in plain} | {chr(256 + n): byte for n, byte in enumerate(others)}


def _content(token: Any) -> str | None:
    """A token of tokenizer_config.json: a text or an object with a content."""
    return token.get("content") if isinstance(token, dict) else token


class _Model:
    """The checked content of `model` and `added_tokens`."""

    def __init__(self, document: dict[str, Any]) -> None:
        model = document.get("model")
        if not isinstance(model, dict) or model.get("type", "BPE") != "BPE" or "merges" not in model:
            kind = model.get("type") if isinstance(model, dict) else model
            raise refuse("model.type", kind, "BPE")
        for name in ("dropout", "continuing_subword_prefix", "end_of_word_suffix"):
            if model.get(name):
                raise refuse(f"model.{name}", model[name], "models without it")
        self.fuse = bool(model.get("fuse_unk"))
        self.fallback = bool(model.get("byte_fallback"))
        self.ignore_merges = bool(model.get("ignore_merges"))
        self.vocab: dict[str, int] = self._vocab(model.get("vocab"))
        self.unk = model.get("unk_token")
        if self.unk is not None and self.unk not in self.vocab:
            raise refuse("model.unk_token", self.unk, "an unk_token that is in the vocabulary")
        self.merges = [self._pair(number, merge) for number, merge in enumerate(model["merges"] or [])]
        self.added: list[dict[str, Any]] = document.get("added_tokens") or []
        self.ids = dict(self.vocab)
        owners = {number: token for token, number in self.vocab.items()}
        if len(owners) != len(self.vocab):
            raise refuse("model.vocab", len(self.vocab) - len(owners), "ids that stand for one token each")
        seen: set[str] = set()
        for token in self.added:
            content, number = token.get("content"), token.get("id")
            if not isinstance(content, str) or not isinstance(number, int) or number < 0:
                raise refuse("added_tokens", token, "a content and an id for each")
            known = self.ids.setdefault(content, number), owners.setdefault(number, content)
            if known != (number, content) or not content or content in seen:
                raise refuse("added_tokens", token, "contents and ids that occur once")
            seen.add(content)
        self.size = max(self.ids.values()) + 1
        if self.size > layout()[1].TOKENIZER_VOCAB_LIMIT:
            raise refuse("model.vocab", self.size, "at most 2^28 ids")

    @staticmethod
    def _vocab(found: Any) -> dict[str, int]:
        if not isinstance(found, dict) or not found:
            raise refuse("model.vocab", found, "an object of tokens and their ids")
        for token, number in found.items():
            if not isinstance(number, int) or number < 0:
                raise refuse(f"model.vocab[{token!r}]", number, "ids from 0 on")
        return found

    def _pair(self, number: int, merge: Any) -> tuple[str, str]:
        parts = merge.split(" ") if isinstance(merge, str) else merge
        good = isinstance(parts, list) and len(parts) == 2 and all(isinstance(part, str) for part in parts)
        if not good or any(part not in self.vocab for part in (*parts, "".join(parts))):
            raise refuse(f"model.merges[{number}]", merge, "pairs of tokens whose sum is a token")
        return parts[0], parts[1]


class _Section:
    """A section under construction: the header and the tables behind it."""

    def __init__(self) -> None:
        self.ffi, self.c = layout()
        self.header = self.ffi.new("colibri_tokenizer_header *")
        self.body = bytearray()

    def table(self, name: str, values: np.ndarray | bytes, element: int = 1) -> None:
        """Append a table; `values` is an array of little-endian words, or bytes of `element` each."""
        data = values if isinstance(values, bytes) else values.tobytes()
        if isinstance(values, np.ndarray):
            element = values.dtype.itemsize * (values.shape[1] if values.ndim > 1 else 1)
        entry = getattr(self.header, name)
        entry.offset = self.ffi.sizeof("colibri_tokenizer_header") + len(self.body)
        entry.count = len(data) // element
        self.body += data + bytes(-len(data) % 4)

    def finish(self) -> bytes:
        """The whole section."""
        head = self.header
        head.magic, head.version = self.c.TOKENIZER_MAGIC, self.c.TOKENIZER_VERSION
        head.header_bytes = self.ffi.sizeof("colibri_tokenizer_header")
        head.bytes = head.header_bytes + len(self.body)
        return bytes(self.ffi.buffer(head)) + bytes(self.body)


def _token_bytes(token: str, rules: Rules, alphabet: dict[str, int]) -> bytes:
    """What a token decodes to, as the library's decoders see it."""
    if rules.byte_level:
        if all(character in alphabet for character in token):
            return bytes(alphabet[character] for character in token)
        return token.encode("utf-8")
    if rules.decode_marks:
        token = token.replace(SPACE_MARK, " ")
    if rules.decode_bytes and len(token) == 6 and token.startswith("<0x") and token.endswith(">"):
        try:
            return bytes([int(token[3:5], 16)])
        except ValueError:
            pass
    return token.encode("utf-8")


def _read(token: dict[str, Any], rules: Rules) -> str:
    """An added token's content as it is looked for, which is also what the library's decoders get."""
    content = str(token["content"])
    if token.get("normalized"):
        if "PREFIX_MARK" in rules.flags:
            raise refuse("added_tokens", token, "normalized ones where no normalizer prepends")
        content = content.replace(" ", SPACE_MARK) if "SPACE_MARK" in rules.flags else content
        content = tables.nfc(content) if "NFC" in rules.flags else content
    return content


def _texts(section: _Section, model: _Model, rules: Rules) -> None:
    alphabet = byte_alphabet()
    tokens = {number: token for token, number in model.vocab.items()}
    tokens.update({token["id"]: _read(token, rules) for token in model.added})
    special = {token["id"] for token in model.added if token.get("special")}
    texts = [_token_bytes(tokens[n], rules, alphabet) if n in tokens else b"" for n in range(model.size)]
    lengths = np.array([0] + [len(text) for text in texts], dtype=np.int64)
    first = np.cumsum(lengths).astype("<u4")
    for number in special:
        first[number] |= section.c.TEXT_FIRST_SPECIAL
    section.header.vocab = model.size
    section.header.longest = int(lengths.max())
    if section.header.longest > section.c.TOKENIZER_TEXT_LIMIT:
        longest = tokens[int(lengths.argmax()) - 1]
        raise refuse("model.vocab", longest, f"tokens of at most {section.c.TOKENIZER_TEXT_LIMIT} bytes")
    section.table("text_first", first)
    section.table("texts", b"".join(texts))
    whole: list[int] = []
    if model.ignore_merges:
        if not rules.byte_level:
            raise refuse("model.ignore_merges", True, "it with ByteLevel only")
        within = [(texts[n], n) for token, n in model.vocab.items() if all(c in alphabet for c in token)]
        whole = [number for _, number in sorted(within)]
    section.table("whole", np.array(whole, dtype="<u4"))


def _symbols(section: _Section, model: _Model, rules: Rules) -> None:
    """The ids of single bytes and characters, and the merges."""
    byte_ids = np.full(256, NONE, dtype="<u4")
    chars: list[tuple[int, int]] = []
    if rules.byte_level:
        for character, byte in byte_alphabet().items():
            byte_ids[byte] = model.vocab.get(character, NONE)
    else:
        chars = sorted((ord(token), number) for token, number in model.vocab.items() if len(token) == 1)
        if model.fallback:
            missing = [f"<0x{byte:02X}>" for byte in range(256) if f"<0x{byte:02X}>" not in model.vocab]
            if missing:
                raise refuse("model.byte_fallback", True, f"it with {missing[0]} and all others like it")
            byte_ids[:] = [model.vocab[f"<0x{byte:02X}>"] for byte in range(256)]
        if rules.flags & {"SPACE_MARK", "PREFIX_MARK"} and SPACE_MARK not in model.vocab:
            raise refuse("normalizer", "U+2581", "U+2581 where it is a token")
    section.table("byte_ids", byte_ids)
    section.table("chars", np.array(chars, dtype="<u4").reshape(-1, 2))
    vocab = model.vocab
    rows = {(vocab[a], vocab[b]): (rank, vocab[a + b]) for rank, (a, b) in enumerate(model.merges)}
    merges = np.array([pair + result for pair, result in rows.items()], dtype="<u4").reshape(-1, 4)
    merges = merges[np.lexsort((merges[:, 1], merges[:, 0]))]
    section.table("merge_first", np.searchsorted(merges[:, 0], np.arange(model.size + 1)).astype("<u4"))
    section.table("merges", np.ascontiguousarray(merges[:, 1:]))


def _added(section: _Section, model: _Model, rules: Rules) -> set[str]:
    """The added tokens, in the order they are looked up; returns the character classes they need."""
    c = section.c
    flags = {
        "special": c.ADDED_SPECIAL,
        "normalized": c.ADDED_NORMALIZED,
        "lstrip": c.ADDED_LSTRIP,
        "rstrip": c.ADDED_RSTRIP,
        "single_word": c.ADDED_SINGLE_WORD,
    }
    rows = []
    for token in model.added:
        bits = sum(bit for name, bit in flags.items() if token.get(name))
        data = _read(token, rules).encode("utf-8")
        if len(data) > c.TOKENIZER_TEXT_LIMIT:
            raise refuse("added_tokens", token, f"contents of at most {c.TOKENIZER_TEXT_LIMIT} bytes")
        rows.append((bool(bits & c.ADDED_NORMALIZED), data, token["id"], bits))
    rows.sort()
    texts, entries = bytearray(), []
    for normalized, data, number, bits in rows:
        entries.append((number, bits, len(texts), len(data)))
        section.header.added_start[int(normalized)][data[0] >> 5] |= 1 << (data[0] & 31)
        section.header.added_flags |= bits
        section.header.added_longest = max(section.header.added_longest, len(data))
        texts += data
    section.header.added_raw = sum(not row[0] for row in rows)
    section.table("added", np.array(entries, dtype="<u4").reshape(-1, 4))
    section.table("added_texts", bytes(texts))
    strips = section.header.added_flags & (c.ADDED_LSTRIP | c.ADDED_RSTRIP)
    words = section.header.added_flags & c.ADDED_SINGLE_WORD
    return ({"STRIP"} if strips else set()) | ({"WORD"} if words else set())


def _header(section: _Section, model: _Model, rules: Rules, settings: dict[str, Any]) -> None:
    head, c = section.header, section.c
    head.kind = c.TOKENIZER_BYTE_BPE if rules.byte_level else c.TOKENIZER_CHAR_BPE
    flags = set(rules.flags)
    flags |= {"IGNORE_MERGES"} if model.ignore_merges else set()
    flags |= {"BYTE_FALLBACK"} if model.fallback and not rules.byte_level else set()
    flags |= {"FUSE_UNKNOWN"} if model.fuse else set()
    head.flags = sum(getattr(c, "TOKENIZER_" + name) for name in flags)
    head.unk = model.ids[model.unk] if model.unk is not None else NONE
    for name in ("bos", "eos", "pad"):
        setattr(head, name, model.ids.get(_content(settings.get(f"{name}_token")) or "", NONE))
    for name, tokens in (("prefix", rules.prefix), ("suffix", rules.suffix)):
        if len(tokens) > c.TOKENIZER_AFFIXES or any(token not in model.ids for token in tokens):
            raise refuse("post_processor", tokens, f"at most {c.TOKENIZER_AFFIXES} known tokens here")
        setattr(head, f"{name}_count", len(tokens))
        for number, token in enumerate(tokens):
            getattr(head, name)[number] = model.ids[token]
    if len(rules.steps) > c.TOKENIZER_STEPS:
        raise refuse("pre_tokenizer", [step for step, _ in rules.steps], f"at most {c.TOKENIZER_STEPS} steps")
    for number, (step, argument) in enumerate(rules.steps):
        head.steps[number].id = getattr(c, "STEP_" + step)
        head.steps[number].argument = argument


def _markers(section: _Section, template: str, settings: dict[str, Any]) -> None:
    names = [f"{name}_token" for name in ("bos", "eos", "unk", "pad")]
    tokens = {name: content for name in names if (content := _content(settings.get(name)))}
    markers = role_markers(template, tokens) if template else {}
    texts = [markers.get(name, "").encode("utf-8") for name in MARKERS]
    for number, text in enumerate(texts):
        section.header.marker_bytes[number] = len(text)
    section.table("markers", b"".join(texts))


def build_tokenizer_section(document: dict[str, Any], settings: dict[str, Any], template: str = "") -> bytes:
    """The tokenizer section for a tokenizer.json (`document`) and its tokenizer_config.json (`settings`).

    template: the chat template, for role markers; by default that of the settings.
    Raises TokenizerError with the name of whatever the core cannot do exactly as the library does.
    """
    rules = read_rules(document, settings)
    model = _Model(document)
    section = _Section()
    _header(section, model, rules, settings)
    _texts(section, model, rules)
    _symbols(section, model, rules)
    classes = rules.classes() | _added(section, model, rules)
    bits = {name: getattr(section.c, "CLASS_" + name) for name in sorted(classes)}
    for name, values in tables.class_table(bits).items():
        section.table(name, values)
    for name, values in (tables.normalization() if "NFC" in rules.flags else {}).items():
        section.table(name, values)
    own = settings.get("chat_template")
    _markers(section, template or (own if isinstance(own, str) else ""), settings)
    return section.finish()
