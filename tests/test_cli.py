"""The command line: exit codes, streams, documents, help; and the README, whose examples must work."""
import io
import json
import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from colibri import cli, draw, library, targets
from colibri.chat import render
from colibri.commands import demo as demo_command
from colibri.engine import Model
from colibri.errors import InputError
from colibri.output import bytes_text, table
from colibri.synth import write_random_blob

ROOT = Path(__file__).resolve().parent.parent
CHECKPOINT = ROOT / "tests" / "data" / "demo-checkpoint"
README = (ROOT / "README.md").read_text(encoding="utf-8")
TEMPLATE = ("{% for m in messages %}<{{ m['role'] }}>{{ m['content'] | trim }}{{ eos_token }}\n{% endfor %}"
            "{% if add_generation_prompt %}<assistant>{% endif %}")


@pytest.fixture(scope="session")
def talker(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A blob with a tokenizer and a chat template, made by the command itself."""
    folder = tmp_path_factory.mktemp("talker")
    source = folder / "checkpoint"
    shutil.copytree(CHECKPOINT, source)
    settings = json.loads((source / "tokenizer_config.json").read_text())
    (source / "tokenizer_config.json").write_text(json.dumps({**settings, "chat_template": TEMPLATE}))
    out = folder / "talker.colibri"
    assert cli.main(["convert", str(source), "-o", str(out), "--weights", "q4", "-q"]) == 0
    return out


@pytest.fixture(scope="session")
def random_blob(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A blob without a tokenizer."""
    path = tmp_path_factory.mktemp("random") / "moe.colibri"
    write_random_blob(path, "mixed", seed=4, kinds="q4")
    return path


Capture = pytest.CaptureFixture[str]


def document(capsys: Capture, *arguments: object, code: int = 0) -> dict[str, Any]:
    """`colibri ... --json`: the document, after a look at the exit code and that stdout holds nothing else."""
    capsys.readouterr()
    assert cli.main([*map(str, arguments), "--json"]) == code
    made = json.loads(capsys.readouterr().out)
    assert made["schema"] == 1
    return made


def process(*arguments: object, **options: Any) -> subprocess.CompletedProcess[str]:
    """The command as a process of its own."""
    return subprocess.run([sys.executable, "-m", "colibri", *map(str, arguments)], capture_output=True, text=True,
                          check=False, **options)


# ---- help, usage, streams, exit codes ----

@pytest.mark.parametrize("name", cli.COMMANDS)
def test_every_help_has_two_examples_that_parse(name: str, capsys: Capture) -> None:
    """Each example is a command line of this command that its own parser takes."""
    with pytest.raises(SystemExit) as caught:
        cli.main([name, "--help"])
    assert caught.value.code == 0
    examples = capsys.readouterr().out.split("examples:")[1].strip().splitlines()
    assert len(examples) == 2
    for example in examples:
        words = shlex.split(example.strip().split("|")[-1].strip())
        assert words[0] == "colibri" and words[1] in (name, "doctor", "targets")
        cli.command_parser(words[1])[0].parse_args(words[2:])


def test_top_level(capsys: Capture) -> None:
    """Help to stdout, usage errors to stderr with exit code 2, the version from the C header."""
    assert cli.main(["--help"]) == 0
    out = capsys.readouterr().out
    assert all(f"  {name} " in out for name in cli.COMMANDS) and out.count("\n  colibri ") == 2
    assert cli.main([]) == 2 and capsys.readouterr().out == ""
    assert cli.main(["fly"]) == 2 and "no command 'fly'" in capsys.readouterr().err
    assert cli.main(["--version"]) == 0
    header = (ROOT / "core" / "colibri.h").read_text()
    parts = [re.search(rf"VERSION_{part} (\d+)", header)[1] for part in ("MAJOR", "MINOR", "PATCH")]
    assert capsys.readouterr().out == f"colibri {'.'.join(parts)}\n"


@pytest.mark.parametrize("words", (["run"], ["run", "x", "-p", "a", "--tokens", "b"], ["plan", "x", "--context", "0"],
                                   ["plan", "x", "--kv", "q2"], ["info"], ["check", "x", "--level", "3"],
                                   ["run", "x", "-p", "a", "-n", "-1"], ["verify", "x", "--nonsense"]))
def test_usage_errors(words: list[str], capsys: Capture) -> None:
    """Exit code 2 and one sentence on stderr, nothing on stdout."""
    with pytest.raises(SystemExit) as caught:
        cli.main(words)
    assert caught.value.code == 2
    streams = capsys.readouterr()
    assert streams.out == "" and streams.err.count("\n") == 1


@pytest.mark.parametrize("command", (["info"], ["check"], ["plan"], ["run", "-p", "x"], ["verify"], ["chat"]))
def test_bad_input(command: list[str], tmp_path: Path, capsys: Capture) -> None:
    """A file that is not there, or is something else, is exit code 3 (check: 1) and names file and remedy."""
    gone = tmp_path / "gone.colibri"
    assert cli.main([command[0], str(gone), *command[1:]]) == 3
    streams = capsys.readouterr()
    assert streams.out == "" and str(gone) in streams.err and streams.err.count("\n") == 1
    other = tmp_path / "other.colibri"
    other.write_bytes(b"PK" + bytes(5000))
    assert cli.main([command[0], str(other), *command[1:]]) == (1 if command[0] == "check" else 3)
    streams = capsys.readouterr()
    assert "not a Colibri blob" in streams.out + streams.err


def test_our_bug_is_exit_70(monkeypatch: pytest.MonkeyPatch, capsys: Capture, random_blob: Path) -> None:
    """Anything unexpected is said to be our bug; -vv shows where."""
    def broken(self: Model) -> None:
        raise ZeroDivisionError("seven")

    monkeypatch.setattr(Model, "info", broken)
    assert cli.main(["info", str(random_blob)]) == 70
    err = capsys.readouterr().err
    assert "our bug" in err and "ZeroDivisionError: seven" in err and "Traceback" not in err
    assert cli.main(["info", str(random_blob), "-vv"]) == 70 and "Traceback" in capsys.readouterr().err


def test_interruption_is_exit_130(monkeypatch: pytest.MonkeyPatch, random_blob: Path) -> None:
    """Control-C inside a command."""
    def interrupted(self: Model) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(Model, "info", interrupted)
    assert cli.main(["info", str(random_blob)]) == 130


def test_a_real_interruption(talker: Path) -> None:
    """A running process ends at once with 130."""
    child = subprocess.Popen([sys.executable, "-m", "colibri", "chat", str(talker)], stdin=subprocess.PIPE,
                             stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    time.sleep(1.5)
    child.send_signal(signal.SIGINT)
    assert child.wait(20) == 130


def test_a_closed_pipe_is_quiet(random_blob: Path) -> None:
    """`colibri ... | head -1` ends without a traceback."""
    line = f"{shlex.quote(sys.executable)} -m colibri info --tensors {random_blob} | head -1"
    done = subprocess.run(["bash", "-o", "pipefail", "-c", line], capture_output=True, text=True, check=False)
    assert done.stdout.count("\n") == 1 and done.stderr == "" and done.returncode in (0, 141)


def test_quiet_and_colour(talker: Path) -> None:
    """-q leaves stderr empty; where stdout is no terminal there are no control characters."""
    done = process("run", talker, "-p", "Once", "-n", "3", "-q", env={**os.environ, "NO_COLOR": "1"})
    assert done.returncode == 0 and done.stderr == "" and done.stdout.endswith("\n")
    loud = process("run", talker, "-p", "Once", "-n", "3", "-v")
    assert loud.stdout == done.stdout and "digest" in loud.stderr and "\033" not in loud.stdout + loud.stderr


def test_python_dash_m(random_blob: Path) -> None:
    """`python -m colibri` is the command."""
    assert process("--version").stdout.startswith("colibri ")


# ---- info, check, synth, convert, luts, doctor ----

def test_info(talker: Path, capsys: Capture) -> None:
    """What the file holds, for people and as a document."""
    made = document(capsys, "info", talker, "--tensors")
    assert made["layers"] == 4 and made["experts"] == 8 and made["tokenizer"] and made["chat_template"]
    assert made["kinds"]["experts"] == "q4" and len(made["identity"]) == 64
    assert sum(tensor["bytes"] * tensor["count"] for tensor in made["tensors"]) <= made["file_bytes"]
    assert made["generation"]["end"] == [1]
    assert cli.main(["info", str(talker)]) == 0
    out = capsys.readouterr().out
    assert made["identity"] in out and "8 experts, 2 per token" in out


def test_check_finds_a_flipped_bit(random_blob: Path, tmp_path: Path, capsys: Capture) -> None:
    """A good file is ok; one flipped bit anywhere is exit code 1 with a problem that says where."""
    made = document(capsys, "check", random_blob)
    assert made["ok"] is True and made["problems"] == []
    whole = random_blob.read_bytes()
    file = tmp_path / "flipped.colibri"
    for place in (5, 130, 1000, len(whole) // 2, len(whole) - 5000):
        damaged = bytearray(whole)
        damaged[place] ^= 16
        file.write_bytes(damaged)
        made = document(capsys, "check", file, code=1)
        assert made["ok"] is False
        assert {"code", "section", "field", "offset", "expected", "found"} <= set(made["problems"][0])


def test_check_verbose_tells_each_tensors_health(random_blob: Path, capsys: Capture) -> None:
    """min, max, zeros and constant rows of every tensor."""
    made = document(capsys, "check", random_blob, "--verbose")
    names = [tensor["name"] for tensor in made["tensors"]]
    assert len(names) == len(set(names)) > 30 and made["ok"] is True
    for tensor in made["tensors"]:
        assert tensor["min"] < tensor["max"] and tensor["not_finite"] == 0 and tensor["constants"] == 0
    assert any("EXPERT_GATE" in name for name in names)


def test_check_verbose_sees_constant_and_zero_rows(tmp_path: Path, capsys: Capture,
                                                   monkeypatch: pytest.MonkeyPatch) -> None:
    """The figures can fail: a tensor with zero rows and equal values is counted."""
    from colibri import synth

    drawn = synth.random_weights

    def spoiled(model: Any, seed: int) -> dict[str, Any]:
        weights = drawn(model, seed)
        weights["layers.0.q"][3] = 0.0
        weights["layers.0.q"][5] = 0.25
        return weights

    monkeypatch.setattr(synth, "random_weights", spoiled)
    path = tmp_path / "spoiled.colibri"
    synth.write_random_blob(path, "dense", kinds="f32")
    made = document(capsys, "check", path, "-v")
    row = next(tensor for tensor in made["tensors"] if re.search(r"layer 0 Q\b", tensor["name"]))
    assert row["constants"] == 2 and row["zeros"] == row["columns"]


def test_synth_is_reproducible(tmp_path: Path, capsys: Capture) -> None:
    """The same seed gives the same bytes, another one another file; nothing is overwritten unasked."""
    names = [tmp_path / name for name in ("a", "b", "c")]
    made = [document(capsys, "synth", path, "--spec", "tied", "--seed", seed)["identity"]
            for path, seed in zip(names, (1, 1, 2), strict=True)]
    assert made[0] == made[1] != made[2] and names[0].read_bytes() == names[1].read_bytes()
    assert cli.main(["synth", str(names[0])]) == 3 and "--overwrite" in capsys.readouterr().err
    assert cli.main(["synth", str(names[0]), "--overwrite", "-q"]) == 0


def test_convert_names_what_it_cannot_take(tmp_path: Path, capsys: Capture) -> None:
    """A hub id is a usage error that says what to do; a missing folder or an empty one is bad input."""
    assert cli.main(["convert", "HuggingFaceTB/SmolLM2-135M"]) == 2
    assert "local folders only" in capsys.readouterr().err
    assert cli.main(["convert", str(tmp_path / "none")]) == 3
    assert cli.main(["convert", str(tmp_path)]) == 3
    assert "config.json" in capsys.readouterr().err


def test_convert_document(tmp_path: Path, capsys: Capture) -> None:
    """The document holds the identity that info prints."""
    made = document(capsys, "convert", CHECKPOINT, "-o", tmp_path / "m.colibri", "--weights", "q8", "--no-tokenizer")
    assert made["kinds"]["experts"] == "q8" and made["file_bytes"] == (tmp_path / "m.colibri").stat().st_size
    assert document(capsys, "info", tmp_path / "m.colibri")["identity"] == made["identity"]


def test_luts_are_what_is_committed(tmp_path: Path, capsys: Capture) -> None:
    """The generated tables equal their formulas, and a changed one is seen and repaired."""
    assert cli.main(["luts", "--check", "--root", str(ROOT)]) == 0
    for name in ("core/base",):
        shutil.copytree(ROOT / name, tmp_path / name)
    table_file = tmp_path / "core" / "base" / "trig_tables.h"
    table_file.write_text(table_file.read_text().replace("0x1", "0x2", 1))
    assert cli.main(["luts", "--check", "--root", str(tmp_path)]) == 1
    assert "trig_tables.h" in capsys.readouterr().err
    assert cli.main(["luts", "--root", str(tmp_path)]) == 0
    assert cli.main(["luts", "--check", "--root", str(tmp_path)]) == 0


def test_doctor_lists_every_target(capsys: Capture) -> None:
    """Ready or with the line that brings it; `targets` is the same command."""
    made = document(capsys, "doctor")
    assert [row["target"] for row in made["targets"]] == targets.names()
    assert all(row["ready"] != bool(row["how"]) for row in made["targets"])
    assert [row["target"] for row in made["missing"]] == [r["target"] for r in made["targets"] if not r["ready"]]
    assert document(capsys, "targets")["targets"] == made["targets"]


@pytest.mark.parametrize("gone", ("node", "qemu-aarch64", "qemu-system-aarch64"))
def test_doctor_says_how_to_get_what_is_missing(gone: str, monkeypatch: pytest.MonkeyPatch, capsys: Capture) -> None:
    """Without a tool the target is missing, with one install line."""
    real = targets.program
    monkeypatch.setattr(targets, "program", lambda *names: None if gone in names else real(*names))
    missing = document(capsys, "doctor")["missing"]
    assert any("apt-get install" in row["how"] and gone.split("-")[0] in row["how"] for row in missing)


# ---- run ----

def test_run_continues_a_text(talker: Path, capsys: Capture) -> None:
    """The document is enough to replay the answer elsewhere: same digest, same tokens."""
    made = document(capsys, "run", talker, "-p", "Once upon a time", "-n", "40")
    assert len(made["text"]) > 60 and len(made["tokens"]) == 40 and made["finish"] == "length"
    assert made["prompt_tokens"] == len(made["prompt_ids"]) and made["identity"] == Model.open(talker).info().identity
    assert made["planned_bytes"] == made["used_bytes"] and set(made["experts"]) == {"hits", "misses", "bytes_read"}
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
        assert document(capsys, "run", talker, "--tokens", replay, "-n", "0", "--target", "wasm")["digest"] == \
            made["digest"]
    replay.write_text(json.dumps(made))
    assert document(capsys, "run", talker, "--tokens", replay, "-n", "0")["prompt_ids"] == \
        made["prompt_ids"] + made["tokens"]


@pytest.mark.parametrize("name", [name for name in targets.names() if name != "linux"])
def test_run_on_a_target(name: str, talker: Path, capsys: Capture) -> None:
    """Text goes in and out through the target's own tokenizer; the answer is the same."""
    if how := targets.pick([name])[0].missing():
        pytest.skip(f"target {name}: {how}")
    options = ["-p", "Command: please close the blinds. Intent:", "-n", "24", "--temperature", "0.7", "--seed", "5"]
    here = document(capsys, "run", talker, *options)
    there = document(capsys, "run", talker, *options, "--target", name)
    for key in ("text", "tokens", "prompt_ids", "digest", "finish", "planned_bytes", "used_bytes"):
        assert there[key] == here[key], key


def test_run_ends_where_it_is_told(talker: Path, capsys: Capture) -> None:
    """Stop strings are cut off, end ids end, several of each may be given."""
    free = document(capsys, "run", talker, "-p", "Once upon a time", "-n", "40")
    word = free["text"].split()[5]
    stopped = document(capsys, "run", talker, "-p", "Once upon a time", "-n", "40", "--stop", "@@", "--stop", word)
    assert stopped["finish"] == "stop" and stopped["text"] == free["text"][:free["text"].index(word)]
    end = free["tokens"][7]
    ended = document(capsys, "run", talker, "-p", "Once upon a time", "-n", "40", "--end", "3", "--end", end)
    assert ended["finish"] == "stop" and ended["tokens"] == free["tokens"][:free["tokens"].index(end) + 1]
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
    for option in (["--temperature", "-1"], ["--top-p", "0"], ["--min-p", "2"], ["--repetition-penalty", "0"],
                   ["--seed", "-1"]):
        assert cli.main([str(word) for word in [*base, *option]]) == 2, option


def test_run_limits(talker: Path, capsys: Capture) -> None:
    """A full context ends the text; a prompt longer than the context is refused; KV kinds have their own bits."""
    full = document(capsys, "run", talker, "-p", "Once upon a time", "-n", "500", "--context", "24", "--end", "0")
    assert full["finish"] in ("context", "stop") and full["prompt_tokens"] + len(full["tokens"]) <= 24
    assert cli.main(["run", str(talker), "-p", "word " * 40, "--context", "16"]) == 2
    assert "--context" in capsys.readouterr().err
    digests = {document(capsys, "run", talker, "-p", "Once", "-n", "4", "--kv", kv)["digest"]
               for kv in ("f32", "f16", "q8")}
    assert len(digests) == 3
    bare = document(capsys, "run", talker, "-p", "Once", "-n", "4", "--no-digest")
    assert bare["digest"] is None and len(bare["tokens"]) == 4


def test_run_reads_a_prompt_file(talker: Path, tmp_path: Path, capsys: Capture) -> None:
    """The same answer as with -p, and bytes that are not UTF-8 are taken."""
    file = tmp_path / "prompt.txt"
    file.write_text("Once upon a time")
    options = ["-n", "8"]
    assert document(capsys, "run", talker, "--prompt-file", file, *options)["tokens"] == \
        document(capsys, "run", talker, "-p", "Once upon a time", *options)["tokens"]
    file.write_bytes(b"Once \xff\xfe upon")
    assert document(capsys, "run", talker, "--prompt-file", file, "-n", "2")["prompt_tokens"] > 2
    assert cli.main(["run", str(talker), "--prompt-file", str(tmp_path / "gone")]) == 3


def test_run_logs_the_routing(talker: Path, tmp_path: Path, capsys: Capture) -> None:
    """One line per position and MoE layer: ascending experts, weights that add up to one."""
    log = tmp_path / "routes.jsonl"
    made = document(capsys, "run", talker, "-p", "Once upon a time", "-n", "5", "--log-routing", log)
    lines = [json.loads(line) for line in log.read_text().splitlines()]
    assert len(lines) == 4 * (made["prompt_tokens"] + 4)
    assert {(line["position"], line["layer"]) for line in lines} == \
        {(p, la) for p in range(made["prompt_tokens"] + 4) for la in range(4)}
    for line in lines:
        assert len(line["experts"]) == 2 and line["experts"][0] < line["experts"][1] < 8
        assert sum(line["weights"]) == pytest.approx(1, abs=1e-6)


def test_run_needs_what_the_file_has_not(random_blob: Path, tmp_path: Path, capsys: Capture) -> None:
    """No tokenizer, bad token files, contradictory options: each is told."""
    assert cli.main(["run", str(random_blob), "-p", "x"]) == 3 and "--tokens" in capsys.readouterr().err
    file = tmp_path / "ids.json"
    for content, what in (("[1, 2", "JSON"), ("[]", "expected a list"), ("[1, true]", "expected a list"),
                          ("[1, 5000]", "entry 1 is 5000")):
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

MESSAGES = [{"role": "system", "content": " Be brief. "}, {"role": "user", "content": "Ärger & <b> \"q\"?"},
            {"role": "assistant", "content": "No."}, {"role": "user", "content": "Sure\n"}]
TOKENS = {"bos_token": "<s>", "eos_token": "</s>"}
# name -> (template, what it gives for MESSAGES); tests/ --all compares the same with transformers
TEMPLATES = {
    "chatml": ("{% for m in messages %}{{'<|im_start|>' + m['role'] + '\n' + m['content'] + '<|im_end|>' + '\n'}}"
               "{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}",
               "<|im_start|>system\n Be brief. <|im_end|>\n<|im_start|>user\nÄrger & <b> \"q\"?<|im_end|>\n"
               "<|im_start|>assistant\nNo.<|im_end|>\n<|im_start|>user\nSure\n<|im_end|>\n<|im_start|>assistant\n"),
    "blocks": ("{{ bos_token }}\n{% set ns = namespace(n=0) %}\n  {% for m in messages %}\n    "
               "{% if m.role == 'system' %}\n      {% continue %}\n    {% endif %}\n    {% set ns.n = ns.n + 1 %}\n"
               "{{ ns.n }}:{{ m.content | trim }}{{ eos_token }}\n    {% if ns.n == 2 %}{% break %}{% endif %}\n"
               "  {% endfor %}\nend",
               "<s>\n1:Ärger & <b> \"q\"?</s>\n2:No.</s>\nend"),
    "json": ("{% macro one(m) %}{{ m | tojson }}{% endmacro %}{% for m in messages %}{{ one(m) }}{% endfor %}"
             "{{ {'b': 1, 'a': [1, 2]} | tojson(indent=2) }}{{ tools is none }}",
             '{"role": "system", "content": " Be brief. "}{"role": "user", "content": "Ärger & <b> \\"q\\"?"}'
             '{"role": "assistant", "content": "No."}{"role": "user", "content": "Sure\\n"}'
             '{\n  "b": 1,\n  "a": [\n    1,\n    2\n  ]\n}True'),
    "generation": ("{%- for m in messages %}{%- if m.role == 'assistant' %}{% generation %}[{{ m.content }}]"
                   "{% endgeneration %}{%- else %}({{ m.content }}){%- endif %}{%- endfor %}",
                   "( Be brief. )(Ärger & <b> \"q\"?)[No.](Sure\n)"),
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
    template = TEMPLATES[name][0] if name in TEMPLATES else "{{ strftime_now('%d %b %Y') }}{{ messages | length }}"
    tokenizer = transformers.PreTrainedTokenizerFast(tokenizer_file=str(CHECKPOINT / "tokenizer.json"), **TOKENS)
    tokenizer.chat_template = template
    expected = tokenizer.apply_chat_template(MESSAGES, tokenize=False, add_generation_prompt=True)
    assert render(template, MESSAGES, TOKENS, "x") == expected


def test_templates_are_kept_in_their_sandbox() -> None:
    """A template cannot reach Python, and its own refusals and faults are bad input, not our bug."""
    for template in ("{{ messages.__class__.__mro__ }}", "{{ ''.__class__.__base__.__subclasses__() }}",
                     "{{ messages.append(1) }}", "{{ raise_exception('no system role') }}", "{% for %}",
                     "{{ 1 / 0 }}", "{{ nothing.at.all }}", "{{ 'a' * 2 + 1 }}"):
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
    """Two lines get two answers; the second sees the first; each answer is what run gives for the whole talk."""
    monkeypatch.setattr(sys, "stdin", io.StringIO("hello there\nand now?\n"))
    made = document(capsys, "chat", talker, "-n", "6", "--temperature", "0")
    assert [answer["user"] for answer in made["answers"]] == ["hello there", "and now?"]
    assert [message["role"] for message in made["messages"]] == ["user", "assistant", "user", "assistant"]
    prompt = "".join(f"<{m['role']}>{m['content'].strip()}</s>\n" for m in made["messages"][:3]) + "<assistant>"
    ids = [token for token in document(capsys, "run", talker, "-p", prompt, "-n", "0")["prompt_ids"] if token != 0]
    file = talker.parent / "ids.json"
    file.write_text(json.dumps(ids))
    assert document(capsys, "run", talker, "--tokens", file, "-n", "6")["text"] == made["answers"][1]["text"]


def test_chat_needs_a_template(random_blob: Path, capsys: Capture) -> None:
    """A file without one is bad input."""
    assert cli.main(["chat", str(random_blob)]) == 3


# ---- demo ----

def test_demo_runs_and_names_what_is_missing(talker: Path, capsys: Capture, monkeypatch: pytest.MonkeyPatch) -> None:
    """Readable text, equal digests, planned = used; a missing target is named with its line and does not stop it."""
    monkeypatch.setattr(demo_command, "demo_blob", lambda: talker)
    linux = targets.all_targets()[0]
    static = targets.all_targets()[1]
    from dataclasses import replace
    gone = replace(linux, name="gone", how=lambda: "not installed; apt-get install gone")
    monkeypatch.setattr(targets, "all_targets", lambda: (linux, static, gone))
    made = document(capsys, "demo")
    assert made["one_answer"] and [row["target"] for row in made["rows"]] == [linux.name, static.name]
    assert made["missing"] == [{"target": "gone", "how": "not installed; apt-get install gone"}]
    assert len(made["text"].split()) > 20 and made["tokens_per_second"] > 1 and made["intent"].startswith("{")
    for row in made["rows"]:
        assert row["planned_bytes"] == row["used_bytes"] and row["digest"] == made["rows"][0]["digest"]
    assert cli.main(["demo"]) == 0
    out = capsys.readouterr().out
    assert "one answer" in out and "apt-get install gone" in out and made["text"].strip()[:40] in out
    assert f"{made['rows'][0]['planned_bytes']:,}" in out


def test_demo_of_one_target(talker: Path, capsys: Capture, monkeypatch: pytest.MonkeyPatch) -> None:
    """It runs, but one row is not called one answer."""
    monkeypatch.setattr(demo_command, "demo_blob", lambda: talker)
    made = document(capsys, "demo", "--target", "linux", "-p", "Once upon a time there was a girl")
    assert made["one_answer"] is False and len(made["rows"]) == 1


# ---- small things ----

def test_output_helpers() -> None:
    """Byte counts and tables for people."""
    assert [bytes_text(n) for n in (0, 10239, 10240, 3 << 20, 5 << 40)] == \
        ["0 B", "10239 B", "10.0 KiB", "3.0 MiB", "5.0 TiB"]
    assert table([["a", "n"], ["bb", "7"]], right={1}) == "a   n\n--  -\nbb  7"


def test_c_header_is_closed_against_names(random_blob: Path) -> None:
    """A file name cannot end the comment."""
    from colibri.engine import Limits
    plan = Model.open(random_blob).plan(Limits(context=8))
    assert draw.c_header(plan, "a*/b.colibri", "0" * 64).count("*/") == 1


# ---- the README ----

def readme_blocks(kind: str) -> list[str]:
    """The fenced blocks of one language."""
    return re.findall(rf"```{kind}\n(.*?)```", README, re.S)


def test_readme_c_example_works(talker: Path, tmp_path: Path, capsys: Capture) -> None:
    """The C example compiles without a warning against header and archive alone, and writes what run writes."""
    compiler = shutil.which("gcc")
    if compiler is None:
        pytest.skip("gcc is not installed")
    source, = readme_blocks("c")
    assert len(source.splitlines()) <= 45
    (tmp_path / "example.c").write_text(source)
    data = library.data_folder()
    archive = data / f"linux_{targets.platform.machine()}" / "libcolibri.a"
    subprocess.run([compiler, "-std=c11", "-O1", "-Wall", "-Wextra", "-Werror", "-I", str(data / "include"),
                    "-o", str(tmp_path / "example"), str(tmp_path / "example.c"), str(archive)], check=True)
    done = subprocess.run([str(tmp_path / "example"), str(talker), "Once upon a time"], capture_output=True, text=True,
                          check=True)
    made = document(capsys, "run", talker, "-p", "Once upon a time", "-n", "101", "--batch", "1", "--context", "256")
    assert done.stdout.startswith(made["text"]) and len(done.stdout) > 100
    assert subprocess.run([str(tmp_path / "example")], capture_output=True, check=False).returncode == 2


def test_readme_python_example_works(talker: Path, tmp_path: Path) -> None:
    """The Python example runs as it stands, beside a model of that name."""
    source, = readme_blocks("python")
    shutil.copy(talker, tmp_path / "m.colibri")
    done = subprocess.run([sys.executable, "-c", source], cwd=tmp_path, capture_output=True, text=True, check=False,
                          env={**os.environ, "PYTHONPATH": str(ROOT / "pytools")})
    assert done.returncode == 0, done.stderr
    assert re.search(r"\b[0-9a-f]{64}\n$", done.stdout)


def test_readme_first_screen() -> None:
    """The two commands, what Debian needs, the picture and the other project stand on the first screen."""
    screen = "\n".join(README.splitlines()[:60])
    for piece in ("python3 -m venv .venv && .venv/bin/pip install . && .venv/bin/colibri demo", "./run-tests",
                  "git python3 python3-venv", "desktop inference engine of the same name", "one digest"):
        assert piece in screen, piece


def test_documents_name_only_what_exists() -> None:
    """Commands, options of the examples, and linked files in the README are real."""
    for name in re.findall(r"`colibri (\w+)", README):
        assert name in cli.COMMANDS, name
    for row in re.findall(r"^\| `(colibri [^`]*)`", README, re.M):
        words = shlex.split(row.split(" / ")[0])
        if words[1] in ("convert", "plan", "run", "verify", "chat"):
            cli.command_parser(words[1])[0].parse_args(words[2:])
    for link in re.findall(r"\]\(([\w/.]+)\)", README):
        assert (ROOT / link).is_file(), link
