"""The benchmark's counts, its line for side-by-side comparisons and its picture. Never the clock."""

import json
import re
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import numpy as np
import pytest
from cli_kit import Capture

from colibri import bench_bandwidth, cli
from colibri import bench_machine as machine
from colibri.bench_profile import counter
from colibri.bench_rows import Course, Case, Track, percentile
from colibri.bench_svg import roofline_svg
from colibri.bench_targets import OTHER_TARGETS
from colibri.bench_traffic import Experts, Traffic, Window, traffic_of
from colibri.blobfile import BlobFile
from colibri.description import EVERY_LAYER
from colibri.engine import Limits, Model, Session
from colibri.library import names
from colibri.synth import Spec, write_random_blob
from colibri.targets import pick

SPEC = Spec(vocab=96, hidden=64, layers=2, heads=2, kv_heads=1, head_dim=32, experts=6, top_k=2, expert_ff=32)
PER_TOKEN = 2 * (64 * 64 * 2 + 64 * 32 * 2 + 6 * 64 + 2 * 3 * 64 * 32)  # multiply-adds without the head
HEAD = 96 * 64
Row = dict[str, Any]


@pytest.fixture(scope="module")
def blob(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A small MoE whose sizes need no padding."""
    path = tmp_path_factory.mktemp("bench") / "moe.colibri"
    write_random_blob(path, SPEC, kinds="q4")
    return path


def as_side_by_side_reads(stdout: str, threads: int) -> list[Row]:
    """What the comparison with another engine takes from a command's output: its last line."""
    line = json.loads(stdout.strip().splitlines()[-1])
    return [
        {
            "test": row["test"],
            "threads": threads,
            "depth": row.get("depth", 0),
            "toks": row["median"] + 0.0,
            "load_s": line.get("load_s") or 0,
            "rss": line.get("rss_peak_mib") or 0,
        }
        for row in line["rows"]
    ]


# ---- bytes and counts ----


def test_bytes_of_a_token_follow_from_the_tables(blob: Path) -> None:
    """Every resident byte but the embedding, of which a row; of the experts the chosen."""
    traffic, made = traffic_of(BlobFile(blob)), BlobFile(blob)
    sizes = {(t.layer, t.role): t.bytes for t in made.tensors}
    embed = next(size for (_, role), size in sizes.items() if role == "EMBED")
    resident = sum(size for (_, role), size in sizes.items() if not role.startswith("EXPERT_")) - embed
    gate, down = 2 * 576, 4 * 576  # tiles of one pair of groups, q4
    matrices = (Experts("EXPERT_UP", gate, 6, 2),) * 2 + (Experts("EXPERT_DOWN", down, 6, 2),)
    assert traffic.experts == matrices * 2
    assert sum(traffic.always.values()) == resident and traffic.per_row == embed // 96
    assert traffic.always["HEAD"] == sizes[EVERY_LAYER, "HEAD"] and set(traffic.always) <= set(
        names("colibri_op_kind").values()
    )
    assert traffic.always["ROUTE"] == 2 * sizes[0, "ROUTER"]
    assert traffic.weights(1) == pytest.approx(resident + embed // 96 + 2 * 2 * (2 * gate + down))
    assert traffic.weights(10000) == pytest.approx(
        resident + 10000 * (embed // 96) + 2 * 6 * (2 * gate + down)
    )


def test_cached_positions_and_windows() -> None:
    """A window ends the growth; rows of one pass read together."""
    traffic = Traffic({}, 0, (), (Window(None, 0.25), Window(8, 0.75)))
    assert traffic.cache(0, 1, 100) == 100
    assert traffic.cache(3, 1, 100) == 400
    assert traffic.cache(99, 1, 100) == 0.25 * 100 * 100 + 0.75 * 8 * 100
    assert traffic.cache(96, 4, 100) == 0.25 * 100 * 100 + 0.75 * 11 * 100
    assert traffic.run(3, 1, 0, 100) == {"EMBED": 0, "ATTEND": 100 + 200 + 300}
    assert traffic.run(5, 4, 0, 100)["ATTEND"] == 400 + 500


def test_rows_and_multiply_adds_are_counted(blob: Path) -> None:
    """What is fed is what the test says: tokens, depths, logits of the rows that count."""
    model, told = Model.open(blob), []
    with Session(model, Limits(context=80, batch=16, rewind=24)) as session:
        track, course = Track(session, traffic_of(BlobFile(blob))), Course(3, tell=told.append)
        prefill = track.measure(Case("pp", 24), course)
        assert session.length() == 24 and session.stats().rows == 4 * 24
        decode = track.measure(Case("tg", 6), course)
        deep = track.measure(Case("tg", 6, 50), course)
        assert session.length() == 56 and session.stats().rows == 4 * (24 + 6) + (50 - 6) + 4 * 6
    assert told == [prefill, decode, deep] and [row.test for row in told] == ["pp24", "tg6", "tg6"]
    assert prefill.macs_per_token == PER_TOKEN + HEAD // 24
    assert decode.macs_per_token == deep.macs_per_token == PER_TOKEN + HEAD
    assert [len(row.runs) for row in told] == [3, 3, 3] and prefill.tokens == 72
    assert deep.bytes_per_token - decode.bytes_per_token == 50 * model.plan(Limits()).kv_bytes_per_token
    assert prefill.p50_us is None and decode.p50_us <= decode.p99_us <= decode.p999_us
    assert prefill.share is None and prefill.gmacs == pytest.approx(
        prefill.median * prefill.macs_per_token / 1e9
    )


def test_a_windowed_model_is_taken_back(tmp_path: Path) -> None:
    """The plan has room for the rewind that repeats need."""
    path = tmp_path / "a.colibri"
    write_random_blob(path, "window", kinds="q8")
    with Session(Model.open(path), Limits(context=60, batch=8, rewind=9)) as session:
        row = Track(session, traffic_of(BlobFile(path))).measure(Case("tg", 9, 40), Course(2))
        assert session.length() == 49 and row.depth == 40


def test_percentiles() -> None:
    """The nearest rank."""
    ordered = list(range(1, 101))
    assert [percentile(ordered, p) for p in (0.5, 0.99, 0.999, 0.001)] == [50, 99, 100, 1]
    assert percentile([7], 0.5) == 7


def test_a_profile_accounts_for_every_op(blob: Path) -> None:
    """Runs, units, multiply-adds and bytes by op add up to what the session and the tables say."""
    model = Model.open(blob)
    clock, rate = counter()
    with Session(model, Limits(context=80, batch=16, rewind=24), clock=clock) as session:
        track = Track(session, traffic_of(BlobFile(blob)))
        row = track.measure(Case("tg", 5, 20), Course(2, ticks_per_ns=rate))
        plain = track.measure(Case("pp", 20), Course(1, ticks_per_ns=rate))
    assert row.profile is not None and plain.profile is not None and rate > 0
    ops = {op["op"]: op for op in row.profile}
    assert sum(op["macs"] for op in row.profile) == row.macs_per_token == PER_TOKEN + HEAD
    assert abs(sum(op["bytes"] for op in row.profile) - row.bytes_per_token) < len(ops)
    assert abs(sum(op["share"] for op in row.profile) - 1) < 1e-9
    assert ops["head"]["macs"] == HEAD and ops["head"]["runs"] == 1 and ops["head"]["units"] == 3
    assert ops["route"]["macs"] == 2 * 6 * 64
    assert (ops["expert_up"]["macs"], ops["expert_down"]["macs"]) == (2 * 2 * 2 * 64 * 32, 2 * 2 * 64 * 32)
    assert list(ops)[0] == "embed" and ops["lease"]["runs"] == ops["route"]["runs"] and ops["lease"]["units"] == 0
    assert ops["route"]["runs"] == 2 and ops["route"]["bytes"] > 0 and "dense_up" not in ops
    assert sum(op["runs"] for op in row.profile) == model.plan(Limits()).ops
    assert {op["op"]: op["runs"] for op in plain.profile}["head"] == 2 / 20
    with Session(model, Limits(context=8)) as session:
        row = Track(session, traffic_of(BlobFile(blob))).measure(Case("tg", 2), Course(1))
        assert row.profile is None


# ---- the machine ----


def test_reading_memory_reads_all_of_it() -> None:
    """The sum of every word, several times over."""
    ffi, lib = bench_bandwidth.measure_library()
    words = np.arange(64 * 1024 + 8, dtype=np.uint64) * np.uint64(0x9E3779B97F4A7C15)
    start = -words.ctypes.data % 64 // 8
    part = words[start : start + 64 * 1024]
    found = lib.colibri_measure_read(ffi.from_buffer(part), part.nbytes, 3)
    assert found == int(part.sum(dtype=np.uint64)) * 3 % 2**64


def test_the_meter_answers_and_ends() -> None:
    """Any positive number, for as many threads as asked."""
    with bench_bandwidth.meter() as found:
        assert found is not None
        assert found.read(1) > 0 and found.read(3) > 0
        process = found._process
        assert process.poll() is None
    assert process.poll() == 0
    with bench_bandwidth.meter(False) as none:
        assert none is None


def test_memory_is_told_by_what_backs_it(blob: Path) -> None:
    """Touched pages of our own are anonymous."""
    before = machine.memory()
    held = bytearray(np.random.default_rng(1).bytes(32 << 20))
    after = machine.memory()
    assert 30 < after["anonymous"] - before["anonymous"] < 80 and len(held) == 32 << 20
    assert after["peak"] >= after["all"] >= after["anonymous"]
    machine.evict(blob)
    assert Model.open(blob).info().vocab == 96


# ---- the command ----


def test_the_last_line_is_what_side_by_side_reads(blob: Path, tmp_path: Path, capsys: Capture) -> None:
    """One line of JSON, and a picture that is well-formed and needs nothing from elsewhere."""
    svg, threads = tmp_path / "a.svg", 2
    options = [
        "--threads",
        "1,2",
        "--pp",
        "8,20",
        "--tg",
        "5",
        "--depth",
        "12,0",
        "--reps",
        "2",
        "--quiet",
        "--micro",
        "--profile",
        "--kernel",
        "portable",
        "--kv",
        "q8",
    ]
    assert cli.main(["bench", str(blob), *options, "--svg", str(svg), "--json"]) == 0
    stdout, stderr = capsys.readouterr()
    assert stderr == "" and len(stdout.splitlines()) == 1
    rows = as_side_by_side_reads(stdout, threads)
    assert [(row["test"], row["depth"]) for row in rows] == [
        ("pp8", 0),
        ("pp20", 0),
        ("tg5", 0),
        ("tg5", 12),
    ] * 2
    assert all(row["toks"] > 0 and row["load_s"] > 0 and row["rss"] > 10 for row in rows)
    made = json.loads(stdout)
    assert made["schema"] == 1 and made["engine"].startswith("colibri ") and made["model"] == str(blob)
    assert [row["threads"] for row in made["rows"]] == [1] * 4 + [2] * 4
    for row in made["rows"]:
        assert len(row["runs"]) == len(row["others"]) == len(row["bandwidths"]) == 2
        assert row["min"] <= row["median"] <= row["max"] and row["bandwidth"] > 0 and row["share"] >= 0
    assert set(made["memory_mib"]) == {"before", "open", "threads 1", "threads 2"}
    assert (
        "(portable)" in made["engine"]
        and made["kernel"] == "portable"
        and isinstance(made["binding_ns"], float)
    )
    assert made["batch"] == 20 and len(made["pool_bytes"]) == 2 and made["open_us"]["core"] > 0
    picture(svg.read_text(encoding="utf-8"), made["rows"])


def picture(text: str, rows: list[Row]) -> None:
    """Every row has a point; nothing is loaded from anywhere."""
    root = ElementTree.fromstring(text)
    space = "{http://www.w3.org/2000/svg}"
    assert root.tag == space + "svg" and len(root.findall(f"{space}circle")) == len(rows)
    words = [element.text or "" for element in root.iter(f"{space}text")]
    for row in rows:
        assert any(f"{row['test']}, depth {row['depth']}, {row['threads']}:" in word for word in words)
    for circle in root.iter(f"{space}circle"):
        assert 0 < float(circle.attrib["cx"]) < 820 and 0 < float(circle.attrib["cy"]) < 520
    assert not re.search(r"href|url\(|<image|<script|@import|style=", text)


def test_a_picture_without_bandwidth_has_no_roof(blob: Path) -> None:
    """And survives names with characters of XML."""
    row = {
        "test": "tg1",
        "depth": 0,
        "threads": 1,
        "gmacs": 2.0,
        "median": 3.0,
        "share": None,
        "bandwidth": None,
    }
    row |= {"macs_per_token": 10, "bytes_per_token": 20}
    text = roofline_svg({"engine": "a<b", "model": "x/a&b", "kernel": "auto", "kv": "f16", "rows": [row]})
    picture(text, [row])
    picture(roofline_svg({"engine": "e", "model": "m", "kernel": "auto", "kv": "f16", "rows": []}), [])


def test_a_table_for_people(blob: Path, capsys: Capture) -> None:
    """Rows with a heading; columns without a value are left out."""
    assert cli.main(["bench", str(blob), "--pp", "", "--tg", "3", "--reps", "1", "--no-bandwidth"]) == 0
    stdout, stderr = capsys.readouterr()
    assert "tokens/s" in stdout and "p99.9 us" in stdout and "\ntg3 " in stdout
    assert "share" not in stdout.splitlines()[1]
    assert "tg3 at depth 0, 1 worker(s)" in stderr


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (["--pp", "0", "--tg", ""], "nothing to measure"),
        (["--pp", "7,x"], "whole numbers"),
        (["--depth", "-4"], "expected"),
        (["--threads", "0", "--reps", "1", "--no-bandwidth"], "WORKERS"),
    ],
)
def test_what_cannot_be_measured_is_refused(
    blob: Path, capsys: Capture, options: list[str], words: str
) -> None:
    """With a usage error."""
    try:
        code = cli.main(["bench", str(blob), *options])
    except SystemExit as end:
        code = end.code
    assert code == 2 and words.lower() in capsys.readouterr().err.lower()


@pytest.mark.slow
@pytest.mark.parametrize("name", OTHER_TARGETS)
def test_other_targets(blob: Path, capsys: Capture, name: str) -> None:
    """CPU seconds or instructions per token; on the board they repeat exactly."""
    if how := pick([name])[0].missing():
        pytest.skip(how)
    options = ["--target", name, "--pp", "24", "--tg", "4", "--depth", "0,8", "--reps", "2", "--json", "-q"]
    found = []
    for _ in range(2):
        assert cli.main(["bench", str(blob), *options]) == 0
        made = json.loads(capsys.readouterr().out.splitlines()[-1])
        assert [(row["test"], row["depth"]) for row in made["rows"]] == [("pp24", 0), ("tg4", 0), ("tg4", 8)]
        assert [row["macs_per_token"] for row in made["rows"]] == [
            PER_TOKEN + HEAD // 24,
            *[PER_TOKEN + HEAD] * 2,
        ]
        found.append(made["rows"])
        if name != "baremetal":
            assert made["unit"] == "tokens/CPU s"
            break
        assert made["unit"] == "instructions/token"
        assert all(0.1 < row["instructions_per_mac"] < 20 for row in made["rows"])
    if name == "baremetal":
        for one, other in zip(*found, strict=True):
            assert abs(one["median"] - other["median"]) <= 1000  # the clock's last digit over four tokens
