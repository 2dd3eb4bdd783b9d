"""Texts that tell tokenizers apart: scripts, spaces, code, contractions, marks, broken UTF-8, specials."""

from __future__ import annotations

import random
from collections.abc import Sequence

POOLS = (
    "abcdefghijklmnopqrstuvwxyz",
    "ABCDEFXYZ",
    " \t\n\r\x0b\x0c\x1c\x85\u00a0\u1680\u2003\u2028\u2029\u202f\u3000\u200b\u180e",
    "0123456789\u00b2\u00bd\u2167\u2460\u0663\u0967\u0e53\u3007\u4e09\U0001d7d8",
    "'\"!?.,;:-_()[]{}<>|/\\@#$%^&*+=~`",
    "\u00e9\u00e8\u00fc\u00df\u00f1\u00e7\u00f8\u00e6\u0131\u0130\u017f\u212a\u212b",
    "\u0430\u0431\u0432\u0433\u0416\u0429\u042e",
    "\u65e5\u672c\u8a9e\u6f22\u5b57\u304b\u306a\u30ab\u30ca\u30fc\u4e2d\u6587\u9fa6\u3400",
    "\ud55c\uad6d\uc5b4\uac00\u1100\u1161\u11a8\u1112\u1175\u11c2",
    "\u0627\u0644\u0639\u0631\u0628\u064a\u0629\u064b\u0651\u0640",
    "\u0939\u093f\u0928\u094d\u0926\u0940\u0958\u093c\u0bca\u0dda",
    "\u0e44\u0e17\u0e22\u0e20\u0e32\u0e29\u0e31\u0e38",
    "\u0301\u0308\u0323\u0327\u0345\u0344\u0334\u05b0\u20d7\ufe0f",
    "\U0001f642\U0001f469\u200d\U0001f467\U0001f3fd\ufe0f\U0001f1eb\U0001f1f7\u2764",
    "\ue000\uf8ff\U000f0000\U0010fffd\ufdd0\uffff",
    "\x00\x01\x1f\x7f\x80\x9f\ufffd\ufeff\u00ad",
    "\u01c5\u01c8\u02b0\u00aa\u00ba\u2c7c\U00010400\U00010428",
    "\U0001d49c\U00010348\U00012000\U00020000\U0002f81d",
    "\u2581\u0120\u010a\u00a1\u00ff",
)
WORDS = (
    "the",
    "don't",
    "I'll",
    "we've",
    "it'S",
    "'RE",
    "'Ll",
    "x'\u017f",
    "'",
    "''s",
    "HeLLo",
    "camelCase",
    "HTTPServer",
    "snake_case",
    "3.14",
    "1,000,000",
    "2024-01-31",
    "x=[1,2];",
    "http://a.b/c?d=e&f#g",
    "user@host",
    "C++",
    "f(x)",
    "for (int i = 0; i < 10; i++) {\n    x += 1;\n}",
    "def f(x):\n\treturn x\r\n",
    "  ",
    "   ",
    "\n\n\n",
    "\r\n",
    "\r",
    " \n \n x",
    "\t\t",
    "a b",
    "caf\u00e9",
    "cafe\u0301",
    "na\u00efve",
    "\u1e69s\u0323\u0307",
    "\u00bfqu\u00e9?",
    "\u2581hello",
    "...",
    "!!",
    "--",
    "/*",
    "*/",
    "\u201cquoted\u201d",
    "\u2014",
    "\u20ac5",
    "#1",
)


def _break(data: bytes, dice: random.Random) -> bytes:
    """Make it (almost surely) not UTF-8."""
    broken = bytearray(data)
    for _ in range(dice.randrange(1, 4)):
        place = dice.randrange(len(broken) + 1)
        kind = dice.randrange(3)
        if kind == 0 or place == len(broken):
            broken.insert(place, dice.randrange(0x80, 0x100))
        elif kind == 1:
            broken[place] = dice.randrange(256)
        else:
            del broken[place]
    return bytes(broken)


def text(dice: random.Random, specials: Sequence[str] = ()) -> str:
    """One text of a few words, spaces, specials and runs out of one script."""
    if dice.random() < 0.1:
        codes = [dice.randrange(0x110000) for _ in range(dice.randrange(1, 12))]
        return "".join(chr(code) for code in codes if not 0xD800 <= code < 0xE000)
    parts = []
    for _ in range(dice.randrange(1, 12)):
        choice = dice.random()
        if specials and choice < 0.15:
            parts.append(dice.choice(specials))
        elif choice < 0.4:
            parts.append(dice.choice(WORDS))
        elif choice < 0.55:
            parts.append(" ")
        else:
            pool = dice.choice(POOLS)
            parts.append("".join(dice.choice(pool) for _ in range(dice.randrange(1, 6))))
    return "".join(parts)


def corpus(count: int, seed: int, specials: Sequence[str] = ()) -> list[bytes]:
    """`count` texts as bytes; about one in seven is not UTF-8, one in thirty is random bytes."""
    dice = random.Random(seed)
    out = [
        b"",
        b" ",
        b"\n",
        b"\xef\xbf\xbd",
        b"\xf0\x9f\x99",
        b"\xed\xa0\x80",
        b"\xc0\xaf",
        b"\xf4\x90\x80\x80",
    ]
    while len(out) < count:
        data = text(dice, specials).encode("utf-8")
        choice = dice.random()
        if choice < 0.15:
            data = _break(data, dice)
        elif choice < 0.18:
            data = bytes(dice.randrange(256) for _ in range(dice.randrange(1, 40)))
        out.append(data)
    return out[:count]
