"""Unicode tables for the tokenizer section, asked from the `tokenizers` library itself.

Python's own tables (and those of other regular-expression engines) follow other Unicode versions, and one character
in another class gives other tokens. So the library is asked about every code point, through the very pre-tokenizers
and normalizers whose results have to be met.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Any

import numpy as np

from .errors import MissingTool

CODES = 0x110000
_SURROGATES = range(0xD800, 0xE000)  # no characters: a text cannot hold them
_GENERAL = {  # class of the format -> expression of the general categories
    "UPPER": r"[\p{Lu}\p{Lt}]", "LOWER": r"\p{Ll}", "OTHER_LETTER": r"[\p{Lm}\p{Lo}]", "MARK": r"\p{M}",
    "NUMBER": r"\p{N}", "PUNCTUATION": r"\p{P}", "SYMBOL": r"\p{S}", "SPACE": r"\s"}  # fmt: skip


def library() -> Any:
    """The tokenizers package."""
    try:
        import tokenizers
    except ImportError:
        raise MissingTool("converting a tokenizer needs the Python package tokenizers (its tables decide the tokens); "
                          "install it with `pip install tokenizers`") from None
    return tokenizers


@lru_cache(maxsize=1)
def _every_character() -> tuple[str, np.ndarray]:
    codes = np.array([code for code in range(CODES) if code not in _SURROGATES], dtype=np.uint32)
    return codes.astype("<u4").tobytes().decode("utf-32-le"), codes


def _ranges(pre_tokenizer: Any, text: str) -> list[tuple[int, int]]:
    return [span for _, span in pre_tokenizer.pre_tokenize_str(text)]


@lru_cache(maxsize=1)
def _general() -> dict[str, np.ndarray]:
    """For each general class, which code points are in it.

    One pass cuts all characters into runs of one class; a second asks for the class of one character of each run.
    """
    tokenizers = library()
    split, regex = tokenizers.pre_tokenizers.Split, tokenizers.Regex
    text, codes = _every_character()
    one = "|".join(f"{expression}+" for expression in _GENERAL.values())
    runs = _ranges(split(regex(one), "isolated"), text)
    heads = "".join(text[start] for start, _ in runs)
    out = {}
    for name, expression in _GENERAL.items():
        inside = np.zeros(CODES, dtype=bool)
        for first, stop in _ranges(split(regex(expression), "removed", invert=True), heads):
            for number in range(first, stop):
                start, end = runs[number]
                inside[codes[start:end]] = True
        out[name] = inside
    return out


@lru_cache(maxsize=None)
def character_class(name: str) -> np.ndarray:
    """Which code points are in a class of the format (colibri_tokenizer_class), as an array of bools."""
    if name in _GENERAL:
        return _general()[name]
    pre = library().pre_tokenizers
    text, codes = _every_character()
    inside = np.zeros(CODES, dtype=bool)
    if name == "NUMERIC":  # alternating runs of numeric and other characters; the first character is a control
        for number, (start, end) in enumerate(_ranges(pre.Digits(individual_digits=False), text)):
            inside[codes[start:end]] = number % 2 == 1
    elif name == "STRIP":
        inside[codes] = True
        for start, end in _ranges(pre.WhitespaceSplit(), text):
            inside[codes[start:end]] = False
    elif name == "WORD":  # Whitespace() cuts into \w+ and [^\w\s]+; which of the two a run is, an "a" in front tells
        for start, end in _ranges(pre.Whitespace(), text):
            inside[codes[start:end]] = len(_ranges(pre.Whitespace(), "a" + text[start])) == 1
    else:
        raise ValueError(name)
    return inside


def two_level(values: np.ndarray, shift: int = 7) -> tuple[np.ndarray, np.ndarray]:
    """A table of bytes over all code points as (leaf of each block, leaves); what follows the last non-zero is cut."""
    used = np.flatnonzero(values)
    blocks = (int(used[-1]) >> shift) + 1 if used.size else 0
    rows = values[: blocks << shift].reshape(blocks, 1 << shift)
    leaves, top = np.unique(rows, axis=0, return_inverse=True)
    return top.reshape(-1).astype("<u2"), leaves.reshape(-1).astype("u1")


def class_table(bits: dict[str, int]) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """(top, leaves, masks) for the classes named in `bits` (class -> its bit)."""
    combined = np.zeros(CODES, dtype="<u4")
    for name, bit in bits.items():
        combined[character_class(name)] |= bit
    masks, which = np.unique(combined, return_inverse=True)  # ascending: mask 0 is number 0
    top, leaves = two_level(which.reshape(-1).astype("u1"))
    return top, leaves, masks.astype("<u4")


def nfc(text: str) -> str:
    """A text in NFC, by the library."""
    return library().normalizers.NFC().normalize_str(text)
