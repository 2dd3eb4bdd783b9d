"""Saved sessions for people: Session.save and restore, and the files of `run` and `chat`."""
from __future__ import annotations

import io
import json
import os
import resource
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from cli_kit import Capture, document, process, random_blob, talker  # noqa: F401
from colibri import cli, saved
from colibri.blobfile import aligned_bytes
from colibri.engine import Limits, Model, SaveError, Session
from colibri.synth import write_random_blob

LIMITS = Limits(context=64, batch=8, kv="q8", swaps=1)
TOKENS = [(7 * i + 3) % 77 for i in range(30)]


def test_a_session_goes_on_elsewhere(random_blob: Path) -> None:  # noqa: F811
    """Into more context, streamed experts, Python's own hooks; the last logits are there."""
    model = Model.open(random_blob)
    with Session(model, LIMITS) as session:
        for part in (TOKENS[:8], TOKENS[8:12]):
            session.feed(part)
            session.finish()
        data, bare, logits = session.save(), session.save(logits=False), session.logits().copy()
        session.feed(TOKENS[12:20])
        session.finish()
        expected = session.logits().copy()
    assert len(data) == len(bare) + 4 * model.info().vocab
    plans = [LIMITS, replace(LIMITS, context=4096, workers=2), replace(LIMITS, slots=2, stream_experts=True),
             replace(LIMITS, resident_copy=True)]
    memory = aligned_bytes(random_blob.stat().st_size)
    memory[:] = np.fromfile(random_blob, np.uint8)
    for plan, source in ((plan, source) for plan in plans for source in (model, Model(random_blob, memory))):
        with Session(source, plan) as session:
            session.restore(data)
            assert session.length() == 12 and np.array_equal(session.logits(), logits)
            session.feed(TOKENS[12:20])
            session.finish()
            assert np.array_equal(session.logits(), expected)
            session.restore(bare)
            with pytest.raises(Exception, match="no logits"):
                session.logits()


def test_refusals_in_words(random_blob: Path, tmp_path: Path) -> None:  # noqa: F811
    """One sentence each, with what to do; the session goes on."""
    write_random_blob(tmp_path / "other.colibri", "mixed", seed=5, kinds="q4")
    model, other = Model.open(random_blob), Model.open(tmp_path / "other.colibri")
    with Session(model, LIMITS) as session:
        session.feed(TOKENS[:20][:8])
        session.finish()
        data = session.save()

    def refused(plan: Limits, bad: bytes, source: Model = model) -> SaveError:
        with Session(source, plan) as session:
            session.feed(TOKENS[:3])
            session.finish()
            before = session.save()
            with pytest.raises(SaveError) as caught:
                session.restore(bad)
            assert session.save() == before
        return caught.value

    found = refused(LIMITS, data, other)
    assert (found.status, found.exit_code, found.detail.field) == ("IDENTITY", 3, "IDENTITY")
    assert model.info().identity[:16] in str(found) and other.info().identity[:16] in str(found)
    for plan, status, words in ((replace(LIMITS, kv="f16"), "LIMIT", "KV cache q8, this session has f16"),
                                (replace(LIMITS, context=5), "LIMIT", "needs context 8, this session has 5"),
                                (replace(LIMITS, top_k=1), "LIMIT", "--experts-per-token")):
        found = refused(plan, data)
        assert found.status == status and words in str(found) and found.exit_code == 2
    for bad, status, words in ((b"", "TRUNCATED", "found 0"), (data[:-1], "TRUNCATED", "cut short"),
                               (data + b"x", "FORMAT", "added to"), (b"X" + data[1:], "MAGIC", "not a saved session"),
                               (data[:-1] + b"\0", "CORRUPT", "damaged"),
                               (data[:4] + b"\7" + data[5:], "VERSION", "form 7")):
        found = refused(LIMITS, bad)
        assert (found.status, found.exit_code) == (status, 3) and words in str(found)
    with Session(model, LIMITS) as session:
        session.feed(TOKENS[:8])
        session.advance(1)
        for call in (session.save, lambda: session.restore(data)):
            with pytest.raises(SaveError, match="between feeds only") as caught:
                call()
            assert caught.value.status == "BUSY"
        session.finish()


def test_swaps_follow(random_blob: Path, tmp_path: Path) -> None:  # noqa: F811
    write_random_blob(tmp_path / "other.colibri", "mixed", seed=5, kinds="q4")
    model, other = Model.open(random_blob), Model.open(tmp_path / "other.colibri")
    with Session(model, LIMITS) as session:
        session.swaps.put(2, 0, other)
        session.feed(TOKENS[:8])
        session.finish()
        data = session.save()
    with Session(model, LIMITS) as session:
        with pytest.raises(SaveError, match="replace the same experts"):
            session.restore(data)
        session.swaps.put(2, 0, other)
        session.restore(data)
        assert session.save() == data


# ---- run ----

@pytest.mark.parametrize("option", ([], ["--temperature", "0.8", "--seed", "4"], ["--kv", "q8"]))
def test_run_goes_on_where_it_was(talker: Path, tmp_path: Path, capsys: Capture,  # noqa: F811
                                  option: list[str]) -> None:
    """A text in three runs, the last with more context, is the text of one."""
    whole = document(capsys, "run", talker, "-p", "Once upon a time", "-n", "24", *option)
    parts, file = [], tmp_path / "a.saved"
    for n, more in ((5, ["-p", "Once upon a time"]), (9, ["-p", "", "--restore", file]),
                    (10, ["-p", "", "--restore", file, "--context", "300"])):
        parts.append(document(capsys, "run", talker, "-n", n, *option, *more, "--save", file))
        assert os.listdir(tmp_path) == ["a.saved"]
    assert [token for part in parts for token in part["tokens"]] == whole["tokens"]
    assert [part["restored"] for part in parts] == [0, len(whole["prompt_ids"]) + 4, len(whole["prompt_ids"]) + 13]
    text = document(capsys, "run", talker, "-p", " and", "-n", "3", *option, "--restore", file)
    known = whole["prompt_ids"] + whole["tokens"]
    assert text["prompt_ids"][:len(known)] == known and len(text["prompt_ids"]) > len(known)
    assert text["restored"] == len(known) - 1


def damage(file: Path, how: str) -> None:
    """A file that is not what it should be."""
    data = bytearray(file.read_bytes())
    if how == "cut":
        del data[-100:]
    elif how == "flip":
        data[len(data) // 2] ^= 4
    elif how == "foreign":
        data = bytearray(b"GGUF" + bytes(100))
    elif how == "empty":
        data = bytearray()
    elif how == "first":
        data[-3] ^= 1
        data[18:26] = b"%08x" % saved.crc_of([bytes(data[27:])])            # right by the file, wrong by the core
    elif how == "ids":
        rest = bytes(data[27:]).split(b"\n", 1)
        rest[0] = json.dumps({"ids": [1, 2], "messages": []}).encode()
        rest = [b"\n".join(rest)]
        data = bytearray(saved.FIRST + b"%08x\n" % saved.crc_of(rest) + rest[0])
    file.write_bytes(data)


@pytest.mark.parametrize(("how", "words"), [
    ("cut", "cut short"), ("flip", "damaged"), ("foreign", "not a saved session"), ("empty", "not a saved session"),
    ("first", "damaged"), ("ids", "2 token ids for"), ("missing", "cannot be read")])
def test_a_broken_file_is_one_sentence(talker: Path, tmp_path: Path, capsys: Capture, how: str,  # noqa: F811
                                       words: str) -> None:
    file = tmp_path / "a.saved"
    if how != "missing":
        document(capsys, "run", talker, "-p", "Once upon a time", "-n", "5", "--save", file)
        damage(file, how)
    assert cli.main(["run", str(talker), "-p", " and", "-n", "2", "--restore", str(file)]) == 3
    said = capsys.readouterr().err.strip()
    assert words in said and str(file) in said and len(said.splitlines()) == 1


def test_files_in_other_places(talker: Path, random_blob: Path, tmp_path: Path, capsys: Capture) -> None:  # noqa: F811
    file, tokens = tmp_path / "a.saved", tmp_path / "tokens"
    tokens.write_text("[1, 2, 3]")
    document(capsys, "run", random_blob, "--tokens", tokens, "-n", "2", "--save", file)
    before = file.read_bytes()
    for arguments, code, words in (
        (["run", talker, "-p", "a", "--restore", file], 3, "identity"),
        (["run", random_blob, "--tokens", tokens, "--restore", file, "--context", "2"], 2, "needs context 4"),
        (["run", random_blob, "--tokens", tokens, "--restore", file, "--kv", "q8"], 2, "KV cache"),
        (["run", random_blob, "--tokens", tokens, "--restore", file, "--target", "wasm"], 2, "--restore works on"),
        (["run", random_blob, "--tokens", tokens, "--save", file, "--target", "wasm"], 2, "--save works on"),
        (["run", talker, "-p", "a", "--chat", "--restore", file], 2, "colibri chat --restore"),
        (["run", talker, "-p", "a", "-n", "1", "--save", tmp_path / "no" / "where"], 3, "cannot be written"),
    ):
        assert cli.main([*map(str, arguments)]) == code
        assert words in capsys.readouterr().err
    full = process("run", random_blob, "--tokens", tokens, "-n", "2", "--save", file,
                   preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (300, 300)))
    assert full.returncode == 3 and "cannot be written" in full.stderr     # half-way
    assert file.read_bytes() == before and sorted(os.listdir(tmp_path)) == ["a.saved", "tokens"]


# ---- chat ----

def test_chat_goes_on_where_it_was(talker: Path, tmp_path: Path, capsys: Capture,  # noqa: F811
                                   monkeypatch: pytest.MonkeyPatch) -> None:
    file, options = tmp_path / "talk", ["-n", "6", "--temperature", "0"]

    def talk(lines: str, *more: object) -> dict:
        monkeypatch.setattr(sys, "stdin", io.StringIO(lines))
        return document(capsys, "chat", talker, *options, *more)

    whole = talk("hello there\nand now?\nand then?\n")
    first = talk("hello there\n", "--save", file)
    second = talk("and now?\n", "--restore", file, "--save", file, "--context", "500")
    third = talk("and then?\n", "--restore", file)
    assert first["answers"] + second["answers"] + third["answers"] == whole["answers"]
    assert third["messages"] == whole["messages"]
    monkeypatch.setattr(sys, "stdin", io.StringIO(""))
    assert cli.main(["chat", str(talker), "--restore", str(file), "--system", "x"]) == 2
    document(capsys, "run", talker, "-p", "Once upon", "-n", "2", "--save", file)
    assert cli.main(["chat", str(talker), "--restore", str(file)]) == 3
    assert "colibri run --restore" in capsys.readouterr().err
