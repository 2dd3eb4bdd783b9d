"""From tokenizer.json to the section: what is refused, what is the same bytes, what every code point is."""

from __future__ import annotations

import copy
import re
from typing import Any

import numpy as np
import pytest
import textroom
from colibri import tokenizer_tables
from colibri.chat import render
from colibri.tokenizer import TokenizerError, build_tokenizer_section
from colibri.tokenizer_markers import NAMES as MARKERS
from colibri.tokenizer_markers import compose
from tokenizer_cases import CL100K, MARK, case
from tokenizer_texts import corpus

Path = tuple[str | int, ...]


def change(name: str, path: Path, value: Any) -> dict[str, Any]:
    """A small tokenizer.json with one thing set."""
    document = copy.deepcopy(case(name)[0])
    place: Any = document
    for key in path[:-1]:
        place = place[key]
    place[path[-1]] = value
    return document


SPLIT = {"type": "Split", "behavior": "Isolated", "invert": False}
REFUSALS: list[tuple[str, Path, Any, str]] = [
    ("smollm", ("model", "type"), "WordPiece", "model.type"),
    ("smollm", ("model", "type"), "Unigram", "model.type"),
    ("smollm", ("model", "dropout"), 0.1, "model.dropout"),
    ("smollm", ("model", "continuing_subword_prefix"), "##", "model.continuing_subword_prefix"),
    ("smollm", ("model", "end_of_word_suffix"), "</w>", "model.end_of_word_suffix"),
    ("smollm", ("model", "unk_token"), "<nowhere>", "model.unk_token"),
    ("smollm", ("model", "merges", 0), "a b c", "model.merges[0]"),
    ("smollm", ("model", "merges", 3), ["q", "never"], "model.merges[3]"),
    ("smollm", ("normalizer",), {"type": "NFKC"}, "NFKC"),
    ("smollm", ("normalizer",), {"type": "Lowercase"}, "Lowercase"),
    ("smollm", ("normalizer",), {"type": "Replace", "pattern": {"String": "a"}, "content": "b"}, "Replace"),
    (
        "smollm",
        ("normalizer",),
        {"type": "Replace", "pattern": {"String": " "}, "content": "\u2581"},
        "U+2581",
    ),
    ("smollm", ("pre_tokenizer",), {"type": "Whitespace"}, "Whitespace"),
    (
        "smollm",
        ("pre_tokenizer", "pretokenizers", 0),
        {"pattern": {"Regex": r"\p{N}{1,4}"}, **SPLIT},
        "{1,4}",
    ),
    (
        "smollm",
        ("pre_tokenizer", "pretokenizers", 0),
        {"pattern": {"Regex": r"\p{N}"}, **SPLIT, "invert": True},
        "invert",
    ),
    (
        "smollm",
        ("pre_tokenizer", "pretokenizers", 0),
        {"pattern": {"Regex": r"\p{N}"}, **SPLIT, "behavior": "Removed"},
        "Removed",
    ),
    ("smollm", ("pre_tokenizer", "pretokenizers", 1, "add_prefix_space"), True, "add_prefix_space"),
    ("smollm", ("pre_tokenizer", "pretokenizers"), [{"type": "ByteLevel"}, {"type": "Digits"}], "Digits"),
    ("smollm", ("pre_tokenizer",), "ByteLevel", "pre_tokenizer"),
    ("smollm", ("decoder",), None, "decoder"),
    ("smollm", ("decoder",), {"type": "WordPiece"}, "WordPiece"),
    ("smollm", ("post_processor",), {"type": "BertProcessing"}, "BertProcessing"),
    (
        "smollm",
        ("post_processor",),
        {"type": "TemplateProcessing", "single": [{"SpecialToken": {"id": "<s>"}}]},
        "<s>",
    ),
    ("smollm", ("added_tokens", 0, "id"), 5, "added_tokens"),
    ("smollm", ("added_tokens", 0, "content"), "<|im_end|>", "added_tokens"),
    ("smollm", ("added_tokens", 0, "content"), "x" * 1025, "1024"),
    ("llama2", ("added_tokens", 0, "normalized"), True, "normalized"),
    ("llama2", ("model", "ignore_merges"), True, "ignore_merges"),
    ("llama2", ("decoder", "decoders", 3, "stop"), 1, "Strip"),
    ("llama2", ("model", "vocab", "<0x41>"), None, "<0x41>"),
]


@pytest.mark.parametrize(("name", "path", "value", "word"), REFUSALS)
def test_what_cannot_be_done_exactly_is_refused_by_name(name: str, path: Path, value: Any, word: str) -> None:
    document = change(name, path, value)
    if value is None and path[-1] == "<0x41>":
        del document["model"]["vocab"]["<0x41>"]
    with pytest.raises(TokenizerError, match=re.escape(word)) as refusal:
        build_tokenizer_section(document, {})
    sentence = str(refusal.value)
    assert sentence.startswith("tokenizer.json: ") and "\n" not in sentence and "--no-tokenizer" in sentence


def test_merges_may_be_texts_or_pairs() -> None:
    document = copy.deepcopy(case("smollm")[0])
    pairs = document["model"]["merges"]
    assert isinstance(pairs[0], list)
    whole = build_tokenizer_section(document, {})
    document["model"]["merges"] = [" ".join(pair) for pair in pairs]
    assert build_tokenizer_section(document, {}) == whole


def test_fields_without_effect_change_no_byte() -> None:
    document, settings, _ = case("smollm")
    whole = build_tokenizer_section(document, settings)
    assert build_tokenizer_section(copy.deepcopy(document), copy.deepcopy(settings)) == whole
    for path, value in (
        (("truncation",), {"max_length": 5}),
        (("padding",), {"length": 9}),
        (("version",), "9"),
        (("model", "byte_fallback"), True),
        (("decoder", "trim_offsets"), False),
    ):
        assert build_tokenizer_section(change("smollm", path, value), settings) == whole


def test_ids_of_the_settings_stand_in_the_header() -> None:
    document = case("smollm")[0]
    start, end = (token["id"] for token in document["added_tokens"][:2])
    settings = {
        "bos_token": "<|im_start|>",
        "eos_token": {"content": "<|im_end|>"},
        "pad_token": None,
        "add_eos_token": True,
    }
    core = textroom.Tokenizer(build_tokenizer_section(document, settings))
    head = core.view.head
    assert (head.bos, head.eos, head.pad, head.unk) == (start, end, 0xFFFFFFFF, 0xFFFFFFFF)
    assert core.encode(b"a", textroom.BOS) == [*core.encode(b"a"), end]


@pytest.mark.all
@pytest.mark.parametrize("name", ["smollm", "o200k", "deepseek", "qwen"])
def test_every_code_point_is_cut_as_the_library_cuts_it(name: str) -> None:
    """Each character between letters, a digit and a space, plane by plane."""
    document, settings, library = case(name)
    core = textroom.Tokenizer(build_tokenizer_section(document, settings))
    library.encode_special_tokens = False
    for plane in range(17):
        codes = [code for code in range(plane << 16, (plane + 1) << 16) if not 0xD800 <= code < 0xE000]
        text = "".join(f"a{chr(code)}B1 {chr(code)}" for code in codes)
        ids = core.encode(text.encode())
        assert ids == library.encode(text, add_special_tokens=False).ids, f"plane {plane}"


def test_the_classes_are_those_of_known_characters() -> None:
    """A few characters whose classes the Unicode standard fixes; the general classes do not overlap."""
    known = {
        "UPPER": "AZ\u00c9\u01c5",
        "LOWER": "az\u00e9",
        "OTHER_LETTER": "\u65e5\u02b0\u00aa",
        "MARK": "\u0301\u0903",
        "NUMBER": "0\u00bd\u2167",
        "PUNCTUATION": "!_\u2014",
        "SYMBOL": "+$\u20ac",
        "SPACE": " \n\u00a0\u3000",
        "NUMERIC": "0\u00bd\u2167",
        "STRIP": " \n\u00a0\u3000",
        "WORD": "aZ0_\u0301\u65e5",
    }
    for name, characters in known.items():
        inside = tokenizer_tables.character_class(name)
        assert all(inside[ord(character)] for character in characters), name
        assert not inside[0xE000] and not inside[0xD800] and not inside[0x200B], name
    general = [tokenizer_tables.character_class(name) for name in list(known)[:8]]
    assert int(np.sum(general, axis=0).max()) == 1, "the general classes are apart"


def test_the_sections_of_different_rules_differ_where_it_matters() -> None:
    """A test of the tests: with another rule the ids would not be the library's."""
    wrong: list[tuple[str, Path, Any]] = [
        ("qwen", ("normalizer",), None),
        ("gpt2-prefix", ("pre_tokenizer", "add_prefix_space"), False),
        ("o200k", ("pre_tokenizer", "pretokenizers", 0, "pattern", "Regex"), CL100K % r"\p{N}{1,3}"),
        ("smollm", ("added_tokens",), []),
        ("llama3", ("model", "ignore_merges"), False),
        (
            "llama2",
            ("normalizer", "normalizers"),
            [{"type": "Replace", "pattern": {"String": " "}, "content": MARK}],
        ),
    ]
    for name, path, value in wrong:
        library = case(name)[2]
        texts = corpus(300, 8, ["<|im_start|>"])
        core = textroom.Tokenizer(build_tokenizer_section(change(name, path, value), {}))
        library.encode_special_tokens = False
        equal = [
            core.encode(text) == library.encode(text.decode("utf-8", "replace"), add_special_tokens=False).ids
            for text in texts
        ]
        assert not all(equal), name


CHATML = (
    "{% if messages[0].role != 'system' %}{{ bos_token }}system\nbe kind<|im_end|>\n{% endif %}"
    "{% for message in messages %}{{ '<|im_start|>' + message['role'] + '\n' + message['content'] }}"
    "<|im_end|>\n{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)


def markers(core: textroom.Tokenizer) -> list[bytes] | int:
    """The section's role markers as the core finds them, or its refusal."""
    text, count = core.ffi.new("const uint8_t **"), core.ffi.new("uint32_t *")
    out = []
    for marker in range(len(MARKERS)):
        status = core.lib.colibri_tokenizer_marker_text(core.view, marker, text, count)
        if status != textroom.OK:
            return status
        out.append(bytes(core.ffi.buffer(text[0], count[0])))
    assert core.lib.colibri_tokenizer_marker_text(core.view, len(MARKERS), text, count) == -1
    return out


def test_a_plain_chat_template_becomes_role_markers() -> None:
    document = case("smollm")[0]
    settings = {"bos_token": "<|im_start|>", "chat_template": CHATML}
    found = markers(textroom.Tokenizer(build_tokenizer_section(document, settings)))
    assert isinstance(found, list)
    start, end = "<|im_start|>", "<|im_end|>\n"
    assert [text.decode() for text in found] == [
        f"{start}system\nbe kind{end}",
        f"{start}system\n",
        end,
        f"{start}user\n",
        end,
        f"{start}assistant\n",
        end,
    ]
    named = dict(zip(MARKERS, (text.decode() for text in found), strict=True))
    chat = [
        {"role": "user", "content": " a "},
        {"role": "assistant", "content": "b"},
        {"role": "user", "content": "c"},
    ]
    for messages in (chat, [{"role": "system", "content": "s"}, *chat]):
        assert compose(named, messages) == render(CHATML, messages, {"bos_token": start}, "test")


@pytest.mark.parametrize(
    "template",
    [
        "",
        "{{ messages[0].content }}{{ raise_exception('no') }}",
        "{% for m in messages %}{{ m.content | upper }}{% endfor %}",
        CHATML.replace("'\n' + message['content']", "'\n' + message['content'] + loop.index | string"),
        "{% for m in messages %}[{{ m.role }}]{{ m.content }}{% endfor %}{{ messages | length }}",
    ],
)
def test_a_template_that_does_more_has_no_markers(template: str) -> None:
    document, settings, _ = case("smollm")
    core = textroom.Tokenizer(build_tokenizer_section(document, settings, template))
    assert markers(core) == -26
