"""Unicode tables for the tokenizer section, asked from the `tokenizers` library itself.

Python's own tables (and those of other regular-expression engines) follow other Unicode versions, and one
character in another class gives other tokens. So the library is asked about every code point, through the
very pre-tokenizers and normalizers whose results have to be met.
"""

from __future__ import annotations

from functools import cache, lru_cache
from typing import Any

import numpy as np

from .errors import MissingTool

CODES = 0x110000
_SURROGATES = range(0xD800, 0xE000)  # no characters: a text cannot hold them
_GENERAL = {  # class of the format -> expression of the general categories
    "UPPER": r"[\p{Lu}\p{Lt}]",
    "LOWER": r"\p{Ll}",
    "OTHER_LETTER": r"[\p{Lm}\p{Lo}]",
    "MARK": r"\p{M}",
    "NUMBER": r"\p{N}",
    "PUNCTUATION": r"\p{P}",
    "SYMBOL": r"\p{S}",
    "SPACE": r"\s",
}


def library() -> Any:
    """The tokenizers package."""
    try:
        import tokenizers
    except ImportError:
        raise MissingTool(
            "converting a tokenizer needs the Python package tokenizers, whose tables decide "
            "the tokens; install it with `pip install tokenizers`"
        ) from None
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

    One pass cuts all characters into runs of one class; then a character of each run is asked for its class.
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


@cache
def character_class(name: str) -> np.ndarray:
    """Which code points are in a class of the format (colibri_tokenizer_class), as an array of bools."""
    if name in _GENERAL:
        return _general()[name]
    pre = library().pre_tokenizers
    text, codes = _every_character()
    inside = np.zeros(CODES, dtype=bool)
    if name == "NUMERIC":  # runs of numeric and other characters take turns; the first character is a control
        for number, (start, end) in enumerate(_ranges(pre.Digits(individual_digits=False), text)):
            inside[codes[start:end]] = number % 2 == 1
    elif name == "STRIP":
        inside[codes] = True
        for start, end in _ranges(pre.WhitespaceSplit(), text):
            inside[codes[start:end]] = False
    elif name == "WORD":  # Whitespace() cuts into \w+ and [^\w\s]+; an "a" in front tells which one a run is
        for start, end in _ranges(pre.Whitespace(), text):
            inside[codes[start:end]] = len(_ranges(pre.Whitespace(), "a" + text[start])) == 1
    else:
        raise ValueError(name)
    return inside


def two_level(values: np.ndarray, shift: int = 7) -> tuple[np.ndarray, np.ndarray]:
    """A table of bytes over all code points as (leaf of each block, leaves), without the zeros at its end."""
    used = np.flatnonzero(values)
    blocks = (int(used[-1]) >> shift) + 1 if used.size else 0
    rows = values[: blocks << shift].reshape(blocks, 1 << shift)
    leaves, top = np.unique(rows, axis=0, return_inverse=True)
    return top.reshape(-1).astype("<u2"), leaves.reshape(-1).astype("u1")


def class_table(bits: dict[str, int]) -> dict[str, np.ndarray]:
    """The section's class tables for the classes named in `bits` (class -> its bit)."""
    combined = np.zeros(CODES, dtype="<u4")
    for name, bit in bits.items():
        combined[character_class(name)] |= bit
    masks, which = np.unique(combined, return_inverse=True)  # ascending: mask 0 is number 0
    top, leaves = two_level(which.reshape(-1).astype("u1"))
    return {"class_top": top, "class_leaves": leaves, "class_masks": masks.astype("<u4")}


def nfc(text: str) -> str:
    """A text in NFC, by the library."""
    return str(library().normalizers.NFC().normalize_str(text))


_HANGUL = range(0xAC00, 0xD7A4)  # arithmetic, in the core
_LOW, _HIGH = "\u0334", "\u0345"  # combining classes 1 (the lowest but for starters) and 240 (the highest)


def _one_by_one(normalize: Any, strings: list[str]) -> list[str]:
    """Each string normalized on its own; a newline between them keeps them apart."""
    return str(normalize("\n".join(strings))).split("\n")


def _combining_ranks(marks: list[str], nfd: Any) -> dict[str, int]:
    """Combining classes, as ranks from 1: two marks change places where the second one's class is lower."""
    groups: list[list[str]] = []  # ascending
    for mark in marks:
        low, high = 0, len(groups)
        while low < high:
            middle = (low + high) // 2
            other = groups[middle][0]
            if nfd(mark + other) == other + mark:
                low = middle + 1
            elif nfd(other + mark) == mark + other:
                high = middle
            else:
                groups[middle].append(mark)
                break
        else:
            groups.insert(low, [mark])
    return {mark: rank for rank, group in enumerate(groups, 1) for mark in group}


@lru_cache(maxsize=1)
def normalization() -> dict[str, np.ndarray]:
    """The tables of NFC by their names in the section."""
    nfd, both = library().normalizers.NFD().normalize_str, library().normalizers.NFC().normalize_str
    text, _ = _every_character()
    single = [character for character in text if character != "\n" and ord(character) not in _HANGUL]
    apart = dict(zip(single, _one_by_one(nfd, single), strict=True))
    whole = dict(zip(single, _one_by_one(both, single), strict=True))
    plain = [character for character in single if apart[character] == character]
    between = _one_by_one(nfd, [_HIGH + c + _LOW for c in plain])  # a starter keeps the two apart
    marks = [c for c, after in zip(plain, between, strict=True) if after != _HIGH + c + _LOW]
    ranks = _combining_ranks(marks, nfd)
    split = [c for c in single if apart[c] != c]
    spans: list[tuple[int, int, int]] = []
    pieces: list[int] = []
    pairs: list[tuple[int, int, int]] = []
    for character in split:
        codes = [ord(c) for c in apart[character]]
        spans.append((ord(character), len(pieces), len(codes)))
        pieces += codes
        if whole[character] == character:  # composed again by itself: a primary composite
            first, second = both(apart[character][:-1]), apart[character][-1]
            if len(first) != 1 or both(first + second) != character:
                raise ValueError(f"U+{ord(character):04X} composes in an unknown way")
            pairs.append((ord(first), ord(second), ord(character)))
    table = np.zeros(CODES, dtype="u1")
    for character, rank in ranks.items():
        table[ord(character)] = rank
    for character in split:
        table[ord(character)] |= 0x80 if whole[character] != character else 0
    table[[second for _, second, _ in pairs]] |= 0x80
    table[[*range(0x1161, 0x1176), *range(0x11A8, 0x11C3)]] |= 0x80  # vowels and finals of Hangul syllables
    top, leaves = two_level(table)
    return {
        "combining_top": top,
        "combining_leaves": leaves,
        "decompositions": np.array(spans, dtype="<u4").reshape(-1, 3),
        "decomposed": np.array(pieces, dtype="<u4"),
        "compositions": np.array(sorted(pairs), dtype="<u4").reshape(-1, 3),
    }
