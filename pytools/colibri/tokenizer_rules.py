"""How a tokenizer.json cuts text, as steps and flags of the tokenizer section.

Reads normalizer, pre_tokenizer, decoder and post_processor, and refuses by name what is not known. The
vocabulary is tokenizer.py's.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from .errors import ConvertError

SPACE_MARK = "\u2581"

_CONTRACTION = "(?i:'s|'t|'re|'ve|'m|'ll|'d)"
_SPACES = r"\s*[\r\n]+|\s+(?!\S)|\s+"
_O200K_START = r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]"
_O200K_REST = r"[\p{Ll}\p{Lm}\p{Lo}\p{M}]"
_ASCII_SIGNS = r"""[!"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~]"""
_DEEPSEEK = _ASCII_SIGNS + r"[A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+| ?[\p{P}\p{S}]+[\r\n]*|" + _SPACES


def _cl100k(numbers: str) -> str:
    words = _CONTRACTION + r"|[^\r\n\p{L}\p{N}]?\p{L}+|"
    return words + numbers + r"| ?[^\s\p{L}\p{N}]+[\r\n]*|" + _SPACES


# Regular expression of a Split -> (step of the section, its argument).
_SPLITS = {
    r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+": ("GPT2", 0),
    _cl100k(r"\p{N}{1,3}"): ("CL100K", 3),
    _cl100k(r"\p{N}"): ("CL100K", 1),
    _cl100k(r"\p{N}+"): ("CL100K", 0),
    f"{_O200K_START}*{_O200K_REST}+{_CONTRACTION}?|{_O200K_START}+{_O200K_REST}*{_CONTRACTION}?"
    + r"|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n/]*|"
    + _SPACES: ("O200K", 0),
    r"\p{N}{1,3}": ("NUMBERS", 3),
    r"\p{N}": ("NUMBERS", 1),
    "[\u4e00-\u9fa5\u3040-\u309f\u30a0-\u30ff]+": ("CJK", 0),
    _DEEPSEEK: ("DEEPSEEK", 0),
}

_LETTERS = ("UPPER", "LOWER", "OTHER_LETTER")
_STEP_CLASSES = {
    "DIGITS": ("NUMERIC",),
    "GPT2": (*_LETTERS, "NUMBER", "SPACE"),
    "CL100K": (*_LETTERS, "NUMBER", "SPACE"),
    "O200K": (*_LETTERS, "MARK", "NUMBER", "SPACE"),
    "NUMBERS": ("NUMBER",),
    "CJK": (),
    "DEEPSEEK": (*_LETTERS, "MARK", "NUMBER", "PUNCTUATION", "SYMBOL", "SPACE"),
    "SPACE_ENDS": (),
}


class TokenizerError(ConvertError):
    """tokenizer.json asks for something the core's tokenizer does not do."""


@dataclass
class Rules:
    """What the section's header says about cutting and joining text."""

    byte_level: bool = False
    steps: list[tuple[str, int]] = field(default_factory=list)
    flags: set[str] = field(default_factory=set)  # colibri_tokenizer_flags without the prefix
    prefix: list[str] = field(default_factory=list)  # tokens put before a text
    suffix: list[str] = field(default_factory=list)
    decode_marks: bool = False  # U+2581 decodes to a space
    decode_bytes: bool = False  # <0x41> decodes to a byte

    def classes(self) -> set[str]:
        """The character classes that the steps ask for."""
        return {name for step, _ in self.steps for name in _STEP_CLASSES[step]}


def show(value: Any) -> str:
    """A piece of the file, short enough for a sentence."""
    text = json.dumps(value, ensure_ascii=True)
    return text if len(text) <= 90 else text[:87] + "..."


def refuse(place: str, found: Any, known: str) -> TokenizerError:
    """One sentence: where, what, what is known."""
    return TokenizerError(
        f"tokenizer.json: {place} is {show(found)}; the core's tokenizer knows {known}; "
        "convert the checkpoint with --no-tokenizer for a blob that takes token ids only"
    )


def _flat(node: Any, place: str, inner: str) -> Iterator[dict[str, Any]]:
    """The parts of a component, sequences taken apart."""
    if node is None:
        return
    if not isinstance(node, dict) or not isinstance(node.get("type"), str):
        raise refuse(place, node, "objects with a type")
    if node["type"] == "Sequence":
        for number, part in enumerate(node.get(inner) or []):
            yield from _flat(part, f"{place}[{number}]", inner)
    else:
        yield node


def _pattern(part: dict[str, Any], kind: str) -> Any:
    pattern = part.get("pattern")
    return pattern.get(kind) if isinstance(pattern, dict) else None


def _normalizer(document: dict[str, Any], rules: Rules) -> None:
    known = "NFC, Prepend of U+2581 and Replace of a space by U+2581"
    for part in _flat(document.get("normalizer"), "normalizer", "normalizers"):
        kind = part["type"]
        if kind == "NFC" and not rules.flags:
            rules.flags.add("NFC")
        elif kind == "Prepend" and part.get("prepend") == SPACE_MARK and rules.flags <= {"SPACE_MARK"}:
            rules.flags.add("PREFIX_MARK")
        elif kind == "Replace" and _pattern(part, "String") == " " and part.get("content") == SPACE_MARK:
            rules.flags.add("SPACE_MARK")
        else:
            raise refuse("normalizer", part, known)


def _pre_tokenizer(document: dict[str, Any], rules: Rules) -> None:
    known = (
        "ByteLevel, Digits and Split with the expressions of GPT-2, Llama 3, Qwen, DeepSeek and o200k "
        "(Isolated), or Split at spaces (MergedWithPrevious)"
    )
    for part in _flat(document.get("pre_tokenizer"), "pre_tokenizer", "pretokenizers"):
        kind = part["type"]
        if rules.byte_level:
            raise refuse("pre_tokenizer after ByteLevel", part, "ByteLevel as the last step only")
        if kind == "ByteLevel":
            rules.byte_level = True
            if part.get("add_prefix_space", True):
                if rules.steps:
                    raise refuse("pre_tokenizer", part, "add_prefix_space where ByteLevel is the only step")
                rules.flags.add("PREFIX_SPACE")
            if part.get("use_regex", True):
                rules.steps.append(("GPT2", 0))
        elif kind == "Digits":
            rules.steps.append(("DIGITS", int(bool(part.get("individual_digits")))))
        elif kind == "Split":
            rules.steps.append(_split(part, known))
        else:
            raise refuse("pre_tokenizer", part, known)


def _split(part: dict[str, Any], known: str) -> tuple[str, int]:
    regex, plain = _pattern(part, "Regex"), _pattern(part, "String")
    if not part.get("invert") and part.get("behavior") == "Isolated" and isinstance(regex, str):
        step = _SPLITS.get(regex.replace("\r", r"\r").replace("\n", r"\n"))
        if step:
            return step
    if not part.get("invert") and part.get("behavior") == "MergedWithPrevious" and plain == " ":
        return "SPACE_ENDS", 0
    raise refuse("pre_tokenizer", part, known)


def _decoder(document: dict[str, Any], rules: Rules) -> None:
    parts = list(_flat(document.get("decoder"), "decoder", "decoders"))
    kinds = [part["type"] for part in parts]
    if rules.byte_level:
        if kinds != ["ByteLevel"]:
            raise refuse("decoder", document.get("decoder"), "ByteLevel behind a ByteLevel pre_tokenizer")
        return
    known = "Replace of U+2581 by a space, ByteFallback, Fuse, Strip of one space at the start, in this order"
    order = ["Replace", "ByteFallback", "Fuse", "Strip"]
    if "Fuse" not in kinds or [kind for kind in order if kind in kinds] != kinds:
        raise refuse("decoder", document.get("decoder"), known)
    for part in parts:
        if part["type"] == "Replace":
            if _pattern(part, "String") != SPACE_MARK or part.get("content") != " ":
                raise refuse("decoder", part, known)
            rules.decode_marks = True
        elif part["type"] == "ByteFallback":
            rules.decode_bytes = True
        elif part["type"] == "Strip":
            if (part.get("content"), part.get("start"), part.get("stop")) != (" ", 1, 0):
                raise refuse("decoder", part, known)
            rules.flags.add("STRIP_SPACE")


def _post_processor(document: dict[str, Any], settings: dict[str, Any], rules: Rules) -> None:
    known = "ByteLevel and TemplateProcessing with special tokens before and behind one text"
    template = False
    for part in _flat(document.get("post_processor"), "post_processor", "processors"):
        if part["type"] == "ByteLevel":
            continue  # offsets only
        if part["type"] != "TemplateProcessing" or template:
            raise refuse("post_processor", part, known)
        template, behind = True, False
        for item in part.get("single") or []:
            if "Sequence" in item:
                behind = True
            elif "SpecialToken" in item:
                (rules.suffix if behind else rules.prefix).append(item["SpecialToken"]["id"])
            else:
                raise refuse("post_processor", item, known)
    if not template:  # what the settings ask for and transformers adds
        for name, place in (("bos", rules.prefix), ("eos", rules.suffix)):
            token = settings.get(f"{name}_token")
            token = token.get("content") if isinstance(token, dict) else token
            if settings.get(f"add_{name}_token") and token:
                place.append(token)


def read_rules(document: dict[str, Any], settings: dict[str, Any]) -> Rules:
    """All rules of a tokenizer.json; `settings` is tokenizer_config.json."""
    rules = Rules()
    _normalizer(document, rules)
    _pre_tokenizer(document, rules)
    _decoder(document, rules)
    _post_processor(document, settings, rules)
    if rules.byte_level and rules.flags & {"SPACE_MARK", "PREFIX_MARK"}:
        raise refuse("normalizer", document.get("normalizer"), "U+2581 without ByteLevel only")
    return rules
