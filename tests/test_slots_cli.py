"""Experts on the command line: traces, replays, profiles, and the two options that change answers."""
from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from cli_kit import Capture, document, random_blob, talker  # noqa: F401
from colibri import cli, replay, targets
from colibri.engine import Limits, Model, Session
from colibri.synth import SPECS, write_random_blob
from colibri.trace import read

PROMPT = ("-p", "Once upon a time", "--slots", "8")


def test_a_run_leaves_a_trace_and_replay_says_what_it_read(talker: Path, tmp_path: Path, capsys: Capture) -> None:
    made = document(capsys, "run", talker, *PROMPT, "-n", 30, "--trace", tmp_path / "a.trace")
    trace = read(tmp_path / "a.trace")
    assert trace.model == made["model"] and trace.rows == made["prompt_tokens"] + 29
    slots = ("--slots", 8, "--slots", "50%")
    played = document(capsys, "replay", tmp_path / "a.trace", *slots, "--svg", tmp_path / "a.svg")
    assert [row["slots"] for row in played["rows"]] == [8, trace.experts // 2] and played["model"] == made["model"]
    first = played["rows"][0]
    assert first["misses"]["adaptive"] == made["experts"]["misses"]
    assert made["experts"]["bytes_read"] == first["misses"]["adaptive"] * trace.layers[0].expert_bytes
    assert first["hit_rate"]["adaptive"] == replay.play(trace, 8, "adaptive").rate <= first["hit_rate"]["optimum"]
    picture = (tmp_path / "a.svg").read_text(encoding="utf-8")
    assert picture.startswith("<svg") and picture.count("<polyline") == 5
    assert cli.main(["replay", str(tmp_path / "a.trace")]) == 0
    assert len(capsys.readouterr().out.splitlines()) == 14                  # two lines of headings, twelve steps


@pytest.mark.parametrize(("slots", "code"), (("0", 2), ("x", 2), ("33", 2), ("-1", 2), ("5%", 0), ("120%", 2)))
def test_slots_of_a_replay(slots: str, code: int, talker: Path, tmp_path: Path, capsys: Capture) -> None:
    document(capsys, "run", talker, *PROMPT, "-n", 2, "--trace", tmp_path / "a.trace")
    assert cli.main(["replay", str(tmp_path / "a.trace"), f"--slots={slots}"]) == code


def test_policies_and_profiles_change_no_answer(talker: Path, tmp_path: Path, capsys: Capture) -> None:
    profile = tmp_path / "uses.json"
    run = ("run", talker, *PROMPT, "-n", 25)
    plain = document(capsys, "run", talker, "-p", "Once upon a time", "-n", 25)
    first = document(capsys, *run, "--profile", profile)
    counts = json.loads(profile.read_text())
    assert counts["model"] == plain["model"] and sum(map(sum, counts["uses"].values())) > 100
    second = document(capsys, *run, "--profile", profile)
    assert {made["digest"] for made in (plain, first, second)} == {plain["digest"]}
    assert second["experts"] != first["experts"]                            # what is pinned stays
    doubled = json.loads(profile.read_text())
    assert doubled["uses"] == {layer: [2 * n for n in row] for layer, row in counts["uses"].items()}
    for policy in ("lru", "lfu"):
        assert document(capsys, *run, "--policy", policy)["digest"] == plain["digest"]


def test_a_profile_of_another_model_is_refused(talker: Path, random_blob: Path, tmp_path: Path,
                                               capsys: Capture) -> None:
    profile, ids = tmp_path / "uses.json", tmp_path / "ids.json"
    ids.write_text("[1, 2, 3]")
    document(capsys, "run", random_blob, "--tokens", ids, "-n", 3, "--profile", profile)
    before = profile.read_bytes()
    assert cli.main(["run", str(talker), *PROMPT, "--profile", str(profile)]) == 3
    said = capsys.readouterr().err
    assert "uses.json" in said and "another model" in said and Model.open(talker).info().identity[:16] in said
    assert profile.read_bytes() == before
    for wrong in ("{}", "[", json.dumps({**json.loads(before), "uses": {}})):
        profile.write_text(wrong)
        assert cli.main(["run", str(random_blob), "--tokens", str(ids), "-n", "3", "--profile", str(profile)]) == 3
        assert "uses.json" in capsys.readouterr().err


def test_what_has_no_experts_is_not_recorded(tmp_path: Path, capsys: Capture) -> None:
    ids = tmp_path / "ids.json"
    ids.write_text("[1, 2, 3]")
    write_random_blob(tmp_path / "dense.colibri", "dense")
    code = cli.main(["run", str(tmp_path / "dense.colibri"), "--tokens", str(ids), "--trace", str(tmp_path / "t")])
    assert code == 2 and "no routed experts" in capsys.readouterr().err


# ---- options that change answers ----


def test_lossy_options_are_off_by_default_and_say_so(talker: Path, capsys: Capture) -> None:
    run = ("run", talker, "-p", "Once upon a time", "-n", 12)
    plain = document(capsys, *run)
    assert plain["lossy"] is None and plain["identity"] == plain["model"]
    identities = {plain["identity"]}
    lossy = {("--skip-below", 0.4): "weight below 0.4", ("--experts-per-token", 1): "at most 1 expert"}
    for options, words in lossy.items():
        made = document(capsys, *run, *options)
        assert words in made["lossy"] and made["model"] == plain["model"] and made["digest"] != plain["digest"]
        identities.add(made["identity"])
        assert cli.main([*map(str, (*run, *options)), "-q"]) == 0
        assert words in capsys.readouterr().out and made["identity"] not in (plain["identity"], "")
        assert cli.main([*map(str, (*run, *options))]) == 0
        assert words in capsys.readouterr().err.splitlines()[-1]            # the line of the digest
    assert len(identities) == 3
    assert document(capsys, *run, "--skip-below", 0, "--experts-per-token", 0)["digest"] == plain["digest"]
    for wrong in ("1.5", "-0.1", "nan", "x"):
        with pytest.raises(SystemExit):
            cli.main([*map(str, run), f"--skip-below={wrong}"])


def test_what_only_linux_does_is_refused_elsewhere(talker: Path, tmp_path: Path, capsys: Capture) -> None:
    for option in (("--trace", tmp_path / "t"), ("--profile", tmp_path / "p")):
        code = cli.main([*map(str, ("run", talker, "-p", "a", "-n", 1, "--target", "wasm", *option))])
        assert code == 2 and option[0] in capsys.readouterr().err


def logits(path: Path, **changes: object) -> tuple[bytes, list[list[tuple[int, float]]]]:
    """Bits of all rows and the routing of the last layer, 3 rows a feed."""
    with Session(Model.open(path), Limits(**{"context": 32, "batch": 3, "logit_rows": 3, **changes})) as session:
        bits, routes = b"", []
        for first in range(0, 12, session.limits.batch):
            part = range(first, min(12, first + session.limits.batch))
            session.feed([7 * i % 77 for i in part], want="all")
            session.finish()
            bits += b"".join(session.logits(i).tobytes() for i in range(len(part)))
            routes += [session.routing(1, i) for i in range(len(part))]
        return bits, routes


@pytest.mark.parametrize("name", ("mixed", "moe"))
def test_fewer_experts_are_those_of_a_model_with_a_smaller_top_k(name: str, tmp_path: Path) -> None:
    full, fewer = tmp_path / "full.colibri", tmp_path / "fewer.colibri"
    write_random_blob(full, SPECS[name], 5, "q8")
    write_random_blob(fewer, replace(SPECS[name], top_k=1), 5, "q8")
    assert logits(full, top_k=1) == logits(fewer) and logits(full, top_k=9) == logits(full) != logits(fewer)
    model = Model.open(full)
    assert model.plan(Limits(top_k=1)).pool_bytes == Model.open(fewer).plan(Limits()).pool_bytes


def test_light_experts_are_left_out_but_for_the_best(tmp_path: Path) -> None:
    """Weights of those that stay are as they were; those below are 0 and their bytes are never asked for; all that must
    not change the bits does not."""
    path = tmp_path / "moe.colibri"
    write_random_blob(path, replace(SPECS["mixed"], renormalise=False, router_scale=None), 5, "q8")
    plain, routes = logits(path)
    weights = sorted(w for row in routes for _, w in row)
    below = float(np.float32(weights[len(weights) // 2]))
    bits, light = logits(path, skip_below=below)
    assert bits != plain and logits(path, skip_below=float(np.float32(weights[0]))) == (plain, routes)
    best = [max(w for _, w in row) for row in light]
    assert all(w == 0 or w >= below or w == most for row, most in zip(light, best, strict=True) for _, w in row)
    assert any(w == 0 for row in light for _, w in row)
    for changes in ({"batch": 1, "logit_rows": 1}, {"slots": 2, "stream_experts": True}, {"workers": 2}):
        assert logits(path, skip_below=below, **changes)[0] == bits
    only = logits(path, skip_below=1.0)[1]
    assert all(sum(w != 0 for _, w in row) == 1 for row in only)


def test_a_trace_has_only_what_was_used(talker: Path, tmp_path: Path, capsys: Capture) -> None:
    made = document(capsys, "run", talker, *PROMPT, "-n", 9, "--skip-below", 0.4, "--trace", tmp_path / "a.trace")
    trace = read(tmp_path / "a.trace")
    assert {len(row) for feed in trace.feeds for rows in feed for row in rows} == {1, 2}
    assert replay.play(trace, 8, "adaptive").misses == made["experts"]["misses"]


KNOBS = {
    "lru": ("--slots", 8, "--policy", "lru"), "lfu": ("--slots", 8, "--policy", "lfu"),
    "skipped": ("--skip-below", 0.4), "fewer": ("--experts-per-token", 1, "--slots", 5),
    "both": ("--skip-below", 0.55, "--experts-per-token", 2, "--policy", "lru", "--slots", 3),
}


@pytest.mark.sampled(5)
@pytest.mark.parametrize("knobs", KNOBS)
@pytest.mark.parametrize("name", [name for name in targets.names() if name != "linux"])
def test_every_target_takes_the_options_and_says_which(talker: Path, name: str, knobs: str, capsys: Capture) -> None:
    """Answer, misses, words and identity are this machine's; a policy alone is no change of the answer."""
    if targets.pick([name])[0].missing():
        pytest.skip(f"{name}: {targets.pick([name])[0].missing()}")
    run = ("run", talker, "-p", "Once upon a time", "-n", 8, "--context", 64, *KNOBS[knobs])
    here, there = document(capsys, *run), document(capsys, *run, "--target", name)
    for key in ("digest", "tokens", "text", "lossy", "identity", "model"):
        assert there[key] == here[key], key
    assert there["slots"] == here["slots"] and there["experts"]["misses"] == here["experts"]["misses"]
    assert (here["lossy"] is None) == (here["identity"] == here["model"]) == (knobs in ("lru", "lfu"))
    assert cli.main([*map(str, (*run, "--target", name)), "-q"]) == 0
    said = capsys.readouterr().out
    assert here["lossy"] is None or (here["lossy"] in said and here["identity"] in said)
