"""The core's tokenizer against the `tokenizers` library: ids and text, on small tokenizers trained here.

The real ones (SmolLM2, Llama, Qwen, DeepSeek, ...) are in test_tokenizer_files.py.
"""

from __future__ import annotations

import functools
import math
import random
import shutil
import subprocess
from pathlib import Path

import pytest
import textroom
from colibri.tokenizer import build_tokenizer_section, layout
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from textroom import BOS, SPECIAL, Refused
from tokenizer_cases import CASES, case
from tokenizer_texts import corpus

TEXTS = 500
SLOW = ("qwen", "added")  # asking the library for their tables takes a while
EXAMPLES = settings(max_examples=80, deadline=None, suppress_health_check=list(HealthCheck))


def cases(*names: str) -> pytest.MarkDecorator:
    """A test over these small tokenizers; those with large tables belong to the slow tests."""
    slow = [pytest.param(name, marks=pytest.mark.slow) if name in SLOW else name for name in names]
    return pytest.mark.parametrize("name", slow)


@functools.cache
def section(name: str) -> bytes:
    """The section of a small tokenizer."""
    document, options, _ = case(name)
    return build_tokenizer_section(document, options)


@functools.cache
def tokenizer(name: str) -> textroom.Tokenizer:
    """A small tokenizer in the core."""
    return textroom.Tokenizer(section(name))


@functools.cache
def texts(name: str) -> list[bytes]:
    """Texts for one tokenizer, with its own added tokens among them."""
    added = [token["content"] for token in case(name)[0]["added_tokens"]]
    return corpus(TEXTS, sum(name.encode()), added)


def expected(name: str, text: bytes, special: bool = True) -> list[int]:
    """The library's ids."""
    reference = case(name)[2]
    reference.encode_special_tokens = not special
    return list(reference.encode(text.decode("utf-8", "replace"), add_special_tokens=False).ids)


@pytest.mark.sampled(3)
@cases(*CASES)
def test_ids_are_the_librarys(name: str) -> None:
    core = tokenizer(name)
    for text in texts(name):
        assert core.encode(text) == expected(name, text), ascii(text)


@pytest.mark.sampled(4)
@cases(*CASES)
def test_ids_are_the_librarys_where_special_tokens_are_text(name: str) -> None:
    core = tokenizer(name)
    for text in texts(name)[::2]:
        assert core.encode(text, flags=0) == expected(name, text, special=False), ascii(text)


@cases("gpt2", "smollm", "llama3", "qwen", "o200k", "deepseek", "added", "llama2")
@EXAMPLES
@given(text=st.text(max_size=40) | st.text("ab \n'sS1\u00e9\u0301\u0323\u1100\u1161<>", max_size=40))
def test_ids_of_generated_text_are_the_librarys(name: str, text: str) -> None:
    data = text.encode("utf-8", "replace")
    assert tokenizer(name).encode(data) == expected(name, data)


@EXAMPLES
@given(data=st.binary(max_size=40))
def test_bytes_that_are_not_utf8_count_as_python_reads_them(data: bytes) -> None:
    for name in ("gpt2", "llama3"):
        assert tokenizer(name).encode(data) == expected(name, data)


@cases(*CASES)
def test_text_is_the_librarys(name: str) -> None:
    core, reference = tokenizer(name), case(name)[2]
    for text in texts(name)[::3]:
        ids = core.encode(text)
        for flags in (0, SPECIAL):
            whole = reference.decode(ids, skip_special_tokens=not flags)
            assert core.decode(ids, flags) == whole.encode("utf-8"), ascii(text)


@cases("gpt2", "smollm", "qwen", "added")
def test_text_of_any_ids_is_the_librarys(name: str) -> None:
    """Ids in random order make broken UTF-8 of every kind."""
    core, reference = tokenizer(name), case(name)[2]
    dice = random.Random(3)
    for _ in range(300):
        ids = [dice.randrange(core.view.head.vocab) for _ in range(dice.randrange(1, 30))]
        assert core.decode(ids) == reference.decode(ids, skip_special_tokens=False).encode("utf-8"), ids


@cases("gpt2", "smollm", "llama3", "o200k", "deepseek")
def test_decoding_gives_the_text_back(name: str) -> None:
    core = tokenizer(name)
    for text in texts(name):
        clean = text.decode("utf-8", "replace").encode("utf-8")
        assert core.decode(core.encode(text)) == clean


def test_bos_comes_where_the_checkpoint_says() -> None:
    for name in ("llama3", "llama2"):
        core = tokenizer(name)
        (start,) = core.encode(b"<|im_start|>")
        assert core.encode(b"a", SPECIAL | BOS) == [start, *core.encode(b"a")]
    assert tokenizer("gpt2").encode(b"a", SPECIAL | BOS) == tokenizer("gpt2").encode(b"a")


@cases("smollm", "qwen", "added", "llama2", "llama3", "gpt2-prefix")
def test_the_budget_changes_nothing_and_bounds_every_call(name: str) -> None:
    core = tokenizer(name)
    long = b" ".join(texts(name)[:60]) + b"a" * 3000 + "e\u0301\u0323".encode() * 300
    for text in [*texts(name)[:40], long]:
        whole = core.encode(text)
        for budget in (1, 7, 1000):
            assert core.encode(text, budget=budget) == whole
            assert core.most <= budget + 64


@cases(*CASES)
def test_the_scratch_for_a_length_suffices_for_every_text_of_it(name: str) -> None:
    """Behind each scratch lie watched bytes; the tightest limit is the text's own length."""
    core = tokenizer(name)
    for text in texts(name)[:120]:
        whole = core.encode(text)
        read = len(text.decode("utf-8", "replace").encode("utf-8"))
        try:
            assert core.encode(text, limit=read) == whole
        except Refused as refusal:  # longer in NFC than as it was
            assert name == "qwen" and refusal.status == textroom.ERROR_TEXT_LONG and refusal.number > read
        if read and name != "qwen":
            with pytest.raises(Refused) as short:
                core.encode(text, limit=read - 1)
            assert short.value.status == textroom.ERROR_TEXT_LONG


def test_a_text_longer_than_planned_is_refused_with_the_number_needed() -> None:
    core = tokenizer("gpt2")
    for text, limit, needed in ((b"a" * 300, 200, 300), (b"\xff" * 100, 200, 300), (b"", 0, None)):
        if needed is None:
            assert core.encode(text, limit=limit) == []
            continue
        with pytest.raises(Refused) as refusal:
            core.encode(text, limit=limit)
        assert (refusal.value.status, refusal.value.number) == (textroom.ERROR_TEXT_LONG, needed)
    assert core.encode(b"\xff" * 100, limit=300) == expected("gpt2", b"\xff" * 100)


def test_too_little_room_for_ids_is_refused_with_the_number_needed() -> None:
    core = tokenizer("gpt2")
    count = len(core.encode(b"one two three four"))
    with pytest.raises(Refused) as refusal:
        core.encode(b"one two three four", capacity=count - 1)
    assert (refusal.value.status, refusal.value.number) == (textroom.ERROR_LIMIT, count)
    assert len(core.encode(b"one two three four", capacity=count)) == count


@pytest.mark.parametrize("letter", ["a", " ", "\u00e9", "\u65e5", "\n", "1", "!"])
def test_one_letter_repeated_costs_n_log_n(letter: str) -> None:
    """A piece of n symbols takes at most three heap walks a merge: steps grow like n log n at most."""
    core = tokenizer("gpt2")
    steps = {}
    for size in (100_000, 200_000):
        core.encode(letter.encode() * (size // len(letter.encode())), limit=200_000)
        steps[size] = core.steps
        assert core.steps <= 4 * size * math.log2(size)
    growth = 2 * math.log2(200_000) / math.log2(100_000)
    print(f"{letter!a}: {steps[100_000]} and {steps[200_000]} steps, n log n would grow {growth:.3f} times")
    assert steps[200_000] <= steps[100_000] * growth * 1.01


def test_what_the_core_does_not_know_is_refused_by_status() -> None:
    ffi, c = layout()
    good = section("smollm")

    def status(**fields: int) -> int:
        head = ffi.new("colibri_tokenizer_header *")
        ffi.memmove(head, good, ffi.sizeof("colibri_tokenizer_header"))
        for field, value in fields.items():
            if field == "step":
                head.steps[1].id = value
            else:
                setattr(head, field, value)
        try:
            textroom.Tokenizer(bytes(ffi.buffer(head)) + good[ffi.sizeof("colibri_tokenizer_header") :])
        except Refused as refusal:
            return refusal.status
        return textroom.OK

    assert status() == textroom.OK
    assert status(kind=3) == status(version=2) == status(flags=1 << 20) == status(step=99) == -7
    assert status(magic=1) == status(bytes=len(good) + 4) == status(vocab=5) == status(prefix_count=9) == -22
    assert c.TOKENIZER_MAGIC == int.from_bytes(b"CTOK", "little")
    for cut in (0, 4, 399, len(good) - 1):
        with pytest.raises(Refused):
            textroom.Tokenizer(good[:cut])


@pytest.mark.slow
@pytest.mark.parametrize("name", ["smollm", "qwen", "gemma", "llama3"])
def test_a_damaged_section_never_leads_outside(name: str, tmp_path: Path) -> None:
    """Every byte of a section damaged, with the sanitizers watching."""
    if not shutil.which("gcc"):
        pytest.skip("gcc is not installed (its sanitizers are needed)")
    program = tmp_path / "faults"
    source = Path(__file__).resolve().parent / "c" / "tokenizer_faults.c"
    flags = ["-g", "-fsanitize=address,undefined", "-fno-sanitize-recover=all"]
    command = ["gcc", *textroom.FLAGS, *flags, "-o", str(program), str(source), *textroom.sources()]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    (tmp_path / "section").write_bytes(section(name))
    words = "<|im_start|> Hi, we're\r\n\u00e9\u0301\u1112\u1175\u11ab 123 <tool>\u65e5\u0323\u0301 "
    (tmp_path / "text").write_bytes(words.encode() + b"\xff\xe3\x81 aaaaaaaaaaaaaaaa x y")
    done = subprocess.run(
        [str(program), tmp_path / "section", tmp_path / "text"],
        capture_output=True,
        text=True,
        check=False,
        timeout=600,
    )
    print(done.stdout)
    assert done.returncode == 0, done.stderr
