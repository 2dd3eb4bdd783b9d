"""`colibri run` and `colibri chat`: texts, ids, limits, ends, templates, targets."""

import io
import json
import sys
from pathlib import Path

import pytest

from cli_kit import CHECKPOINT, Capture, document, random_blob, talker  # noqa: F401
from colibri import cli, targets
from colibri.chat import render
from colibri.engine import Model
from colibri.errors import InputError
from colibri.limits import HINT_NAMES


# ---- run ----


def test_run_continues_a_text(talker: Path, capsys: Capture) -> None:
    """The document is enough to replay the answer elsewhere: same digest, same tokens."""
    made = document(capsys, "run", talker, "-p", "Once upon a time", "-n", "40")
    assert len(made["text"]) > 60 and len(made["tokens"]) == 40 and made["finish"] == "length"
    assert (
        made["prompt_tokens"] == len(made["prompt_ids"])
        and made["identity"] == Model.open(talker).info().identity
    )
    assert made["planned_bytes"] == made["used_bytes"] and set(made["experts"]) == {
        "hits",
        "misses",
        "bytes_read",
        *HINT_NAMES,
    }
    assert cli.main(["run", str(talker), "-p", "Once upon a time", "-n", "40", "-q"]) == 0
    assert capsys.readouterr().out.rstrip("\n") == made["text"].rstrip("\n")


def test_run_replays_its_own_document(talker: Path, tmp_path: Path, capsys: Capture) -> None:
    """--tokens with -n 0 over prompt and answer hashes the same rows, here and on another target."""
    made = document(capsys, "run", talker, "-p", "Once upon a time", "-n", "12")
    replay = tmp_path / "ids.json"
    replay.write_text(json.dumps(made["prompt_ids"] + made["tokens"][:-1]))
    again = document(capsys, "run", talker, "--tokens", replay, "-n", "0")
    assert again["digest"] == made["digest"] and again["tokens"] == [] and again["text"] == ""
    if not targets.pick(["wasm"])[0].missing():
        assert (
            document(capsys, "run", talker, "--tokens", replay, "-n", "0", "--target", "wasm")["digest"]
            == made["digest"]
        )
    replay.write_text(json.dumps(made))
    assert (
        document(capsys, "run", talker, "--tokens", replay, "-n", "0")["prompt_ids"]
        == made["prompt_ids"] + made["tokens"]
    )


@pytest.mark.parametrize("name", [name for name in targets.names() if name != "linux"])
def test_run_on_a_target(name: str, talker: Path, capsys: Capture) -> None:
    """Text goes in and out through the target's own tokenizer; the answer is the same."""
    if how := targets.pick([name])[0].missing():
        pytest.skip(f"target {name}: {how}")
    options = [
        "-p",
        "Command: please close the blinds. Intent:",
        "-n",
        "24",
        "--temperature",
        "0.7",
        "--seed",
        "5",
    ]
    here = document(capsys, "run", talker, *options)
    there = document(capsys, "run", talker, *options, "--target", name)
    for key in ("text", "tokens", "prompt_ids", "digest", "finish", "planned_bytes", "used_bytes"):
        assert there[key] == here[key], key


def test_run_ends_where_it_is_told(talker: Path, capsys: Capture) -> None:
    """Stop strings are cut off, end ids end, several of each may be given."""
    free = document(capsys, "run", talker, "-p", "Once upon a time", "-n", "40")
    word = free["text"].split()[5]
    stopped = document(
        capsys, "run", talker, "-p", "Once upon a time", "-n", "40", "--stop", "@@", "--stop", word
    )
    assert stopped["finish"] == "stop" and stopped["text"] == free["text"][: free["text"].index(word)]
    end = free["tokens"][7]
    ended = document(capsys, "run", talker, "-p", "Once upon a time", "-n", "40", "--end", "3", "--end", end)
    assert ended["finish"] == "stop" and ended["tokens"] == free["tokens"][: free["tokens"].index(end) + 1]
    assert cli.main(["run", str(talker), "-p", "x", "--stop", "a", "--target", "wasm"]) == 2


def test_run_sampling_options(talker: Path, capsys: Capture) -> None:
    """Seeds matter at a temperature; every option reaches the sampler; bad values are usage errors."""
    base = ["run", talker, "-p", "Once upon a time", "-n", "30"]
    greedy = document(capsys, *base)["tokens"]
    hot = [document(capsys, *base, "--temperature", "2", "--seed", seed)["tokens"] for seed in (1, 1, 2)]
    assert hot[0] == hot[1] != hot[2] and greedy not in hot
    assert document(capsys, *base, "--temperature", "2", "--top-k", "1")["tokens"] == greedy
    assert document(capsys, *base, "--temperature", "2", "--top-p", "0.000001")["tokens"] == greedy
    assert document(capsys, *base, "--temperature", "2", "--min-p", "1")["tokens"] == greedy
    assert document(capsys, *base, "--repetition-penalty", "50")["tokens"] != greedy
    for option in (
        ["--temperature", "-1"],
        ["--top-p", "0"],
        ["--min-p", "2"],
        ["--repetition-penalty", "0"],
        ["--seed", "-1"],
    ):
        assert cli.main([str(word) for word in [*base, *option]]) == 2, option


def test_run_limits(talker: Path, capsys: Capture) -> None:
    """A full context ends the text; a prompt longer than the context is refused; KV kinds have their own
    bits."""
    full = document(
        capsys, "run", talker, "-p", "Once upon a time", "-n", "500", "--context", "24", "--end", "0"
    )
    assert full["finish"] in ("context", "stop") and full["prompt_tokens"] + len(full["tokens"]) <= 24
    assert cli.main(["run", str(talker), "-p", "word " * 40, "--context", "16"]) == 5
    assert "--context" in capsys.readouterr().err
    digests = {
        document(capsys, "run", talker, "-p", "Once", "-n", "4", "--kv", kv)["digest"]
        for kv in ("f32", "f16", "q8")
    }
    assert len(digests) == 3
    bare = document(capsys, "run", talker, "-p", "Once", "-n", "4", "--no-digest")
    assert bare["digest"] is None and len(bare["tokens"]) == 4


def test_run_reads_a_prompt_file(talker: Path, tmp_path: Path, capsys: Capture) -> None:
    """The same answer as with -p, and bytes that are not UTF-8 are taken."""
    file = tmp_path / "prompt.txt"
    file.write_text("Once upon a time")
    options = ["-n", "8"]
    assert (
        document(capsys, "run", talker, "--prompt-file", file, *options)["tokens"]
        == document(capsys, "run", talker, "-p", "Once upon a time", *options)["tokens"]
    )
    file.write_bytes(b"Once \xff\xfe upon")
    assert document(capsys, "run", talker, "--prompt-file", file, "-n", "2")["prompt_tokens"] > 2
    assert cli.main(["run", str(talker), "--prompt-file", str(tmp_path / "gone")]) == 3


def test_run_logs_the_routing(talker: Path, tmp_path: Path, capsys: Capture) -> None:
    """One line per position and MoE layer: ascending experts, weights that add up to one."""
    log = tmp_path / "routes.jsonl"
    made = document(capsys, "run", talker, "-p", "Once upon a time", "-n", "5", "--log-routing", log)
    lines = [json.loads(line) for line in log.read_text().splitlines()]
    assert len(lines) == 4 * (made["prompt_tokens"] + 4)
    assert {(line["position"], line["layer"]) for line in lines} == {
        (p, la) for p in range(made["prompt_tokens"] + 4) for la in range(4)
    }
    for line in lines:
        assert len(line["experts"]) == 2 and line["experts"][0] < line["experts"][1] < 8
        assert sum(line["weights"]) == pytest.approx(1, abs=1e-6)


def test_run_needs_what_the_file_has_not(random_blob: Path, tmp_path: Path, capsys: Capture) -> None:
    """No tokenizer, bad token files, contradictory options: each is told."""
    assert cli.main(["run", str(random_blob), "-p", "x"]) == 3 and "--tokens" in capsys.readouterr().err
    file = tmp_path / "ids.json"
    for content, what in (
        ("[1, 2", "JSON"),
        ("[]", "expected a list"),
        ("[1, true]", "expected a list"),
        ("[1, 5000]", "entry 1 is 5000"),
    ):
        file.write_text(content)
        assert cli.main(["run", str(random_blob), "--tokens", str(file)]) == 3
        assert what in capsys.readouterr().err
    file.write_text("[1, 2]")
    made = document(capsys, "run", random_blob, "--tokens", file, "-n", "3")
    assert made["text"] == "" and len(made["tokens"]) == 3
    assert cli.main(["run", str(random_blob), "--tokens", str(file), "--chat"]) == 2
    assert cli.main(["run", str(random_blob), "--tokens", str(file), "--target", "moon"]) == 2
    assert cli.main(["run", str(random_blob), "--tokens", str(file), "--target", "all"]) == 2


# ---- chat ----

MESSAGES = [
    {"role": "system", "content": " Be brief. "},
    {"role": "user", "content": 'Ärger & <b> "q"?'},
    {"role": "assistant", "content": "No."},
    {"role": "user", "content": "Sure\n"},
]
TOKENS = {"bos_token": "<s>", "eos_token": "</s>"}
# name -> (template, what it gives for MESSAGES); tests/ --all compares the same with transformers
TEMPLATES = {
    "chatml": (
        "{% for m in messages %}{{'<|im_start|>' + m['role'] + '\n' + m['content'] + '<|im_end|>' + '\n'}}"
        "{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}",
        '<|im_start|>system\n Be brief. <|im_end|>\n<|im_start|>user\nÄrger & <b> "q"?<|im_end|>\n'
        "<|im_start|>assistant\nNo.<|im_end|>\n<|im_start|>user\nSure\n<|im_end|>\n<|im_start|>assistant\n",
    ),
    "blocks": (
        "{{ bos_token }}\n{% set ns = namespace(n=0) %}\n  {% for m in messages %}\n    "
        "{% if m.role == 'system' %}\n      {% continue %}\n    {% endif %}\n    {% set ns.n = ns.n + 1 %}\n"
        "{{ ns.n }}:{{ m.content | trim }}{{ eos_token }}\n    {% if ns.n == 2 %}{% break %}{% endif %}\n"
        "  {% endfor %}\nend",
        '<s>\n1:Ärger & <b> "q"?</s>\n2:No.</s>\nend',
    ),
    "json": (
        "{% macro one(m) %}{{ m | tojson }}{% endmacro %}{% for m in messages %}{{ one(m) }}{% endfor %}"
        "{{ {'b': 1, 'a': [1, 2]} | tojson(indent=2) }}{{ tools is none }}",
        '{"role": "system", "content": " Be brief. "}{"role": "user", "content": "Ärger & <b> \\"q\\"?"}'
        '{"role": "assistant", "content": "No."}{"role": "user", "content": "Sure\\n"}'
        '{\n  "b": 1,\n  "a": [\n    1,\n    2\n  ]\n}True',
    ),
    "generation": (
        "{%- for m in messages %}{%- if m.role == 'assistant' %}{% generation %}[{{ m.content }}]"
        "{% endgeneration %}{%- else %}({{ m.content }}){%- endif %}{%- endfor %}",
        '( Be brief. )(Ärger & <b> "q"?)[No.](Sure\n)',
    ),
}


@pytest.mark.parametrize("name", TEMPLATES)
def test_templates_render_as_checkpoints_expect(name: str) -> None:
    """Trimmed blocks, loop controls, namespaces, macros, plain tojson, the generation block."""
    template, expected = TEMPLATES[name]
    assert render(template, MESSAGES, TOKENS, "x") == expected


@pytest.mark.oracle
@pytest.mark.parametrize("name", [*TEMPLATES, "date"])
def test_templates_equal_transformers(name: str) -> None:
    """The same templates through transformers' own apply_chat_template."""
    transformers = pytest.importorskip("transformers")
    template = (
        TEMPLATES[name][0] if name in TEMPLATES else "{{ strftime_now('%d %b %Y') }}{{ messages | length }}"
    )
    tokenizer = transformers.PreTrainedTokenizerFast(
        tokenizer_file=str(CHECKPOINT / "tokenizer.json"), **TOKENS
    )
    tokenizer.chat_template = template
    expected = tokenizer.apply_chat_template(MESSAGES, tokenize=False, add_generation_prompt=True)
    assert render(template, MESSAGES, TOKENS, "x") == expected


def test_templates_are_kept_in_their_sandbox() -> None:
    """A template cannot reach Python, and its own refusals and faults are bad input, not our bug."""
    for template in (
        "{{ messages.__class__.__mro__ }}",
        "{{ ''.__class__.__base__.__subclasses__() }}",
        "{{ messages.append(1) }}",
        "{{ raise_exception('no system role') }}",
        "{% for %}",
        "{{ 1 / 0 }}",
        "{{ nothing.at.all }}",
        "{{ 'a' * 2 + 1 }}",
    ):
        try:
            text = render(template, MESSAGES, TOKENS, "model.colibri")
        except InputError as error:
            assert "model.colibri" in str(error)
        else:
            assert text == ""
    with pytest.raises(InputError, match="no system role"):
        render("{{ raise_exception('no system role') }}", MESSAGES, TOKENS, "x")
    with pytest.raises(InputError, match="no chat template"):
        render("", MESSAGES, TOKENS, "x")


def test_run_chat_uses_the_template(talker: Path, capsys: Capture) -> None:
    """--chat gives the ids of the rendered text; a system message goes before it."""
    chat = document(capsys, "run", talker, "--chat", "-p", " hello ", "--system", "be kind", "-n", "2")
    text = "<system>be kind</s>\n<user>hello</s>\n<assistant>"
    plain = document(capsys, "run", talker, "-p", text, "-n", "2")
    assert chat["prompt_ids"] == [token for token in plain["prompt_ids"] if token != 0]
    assert plain["prompt_ids"][0] == 0 and 1 in chat["prompt_ids"]
    assert cli.main(["run", str(talker), "-p", "x", "--system", "y"]) == 2


def test_chat_answers_lines(talker: Path, capsys: Capture, monkeypatch: pytest.MonkeyPatch) -> None:
    """Two lines get two answers; the second sees the first; each answer is what run gives for the whole
    talk."""
    monkeypatch.setattr(sys, "stdin", io.StringIO("hello there\nand now?\n"))
    made = document(capsys, "chat", talker, "-n", "6", "--temperature", "0")
    assert [answer["user"] for answer in made["answers"]] == ["hello there", "and now?"]
    assert [message["role"] for message in made["messages"]] == ["user", "assistant", "user", "assistant"]
    prompt = (
        "".join(f"<{m['role']}>{m['content'].strip()}</s>\n" for m in made["messages"][:3]) + "<assistant>"
    )
    ids = [
        token
        for token in document(capsys, "run", talker, "-p", prompt, "-n", "0")["prompt_ids"]
        if token != 0
    ]
    file = talker.parent / "ids.json"
    file.write_text(json.dumps(ids))
    assert document(capsys, "run", talker, "--tokens", file, "-n", "6")["text"] == made["answers"][1]["text"]


def test_chat_needs_a_template(random_blob: Path, capsys: Capture) -> None:
    """A file without one is bad input."""
    assert cli.main(["chat", str(random_blob)]) == 3
