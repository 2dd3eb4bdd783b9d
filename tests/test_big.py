"""Checkpoints of real size: memory that does not grow, kills at random moments, parts, and speed."""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from checkpoint_kit import small_tokenizer
from colibri.families import describe
from colibri.format import required
from oracles import tensorfile

MIB = 1 << 20
LIMIT = 300 * MIB  # whatever the checkpoint's size
PLAIN = ("--weights", "q8", "--no-tokenizer")
CONFIG = {
    "model_type": "mixtral", "vocab_size": 8192, "hidden_size": 1024, "intermediate_size": 3456,
    "num_hidden_layers": 8, "num_attention_heads": 16, "num_key_value_heads": 8, "head_dim": 64,
    "num_local_experts": 8, "num_experts_per_tok": 2, "max_position_embeddings": 2048, "rms_norm_eps": 1e-5,
}  # fmt: skip
RUN = """
import json, resource, sys
from colibri import cli
code = cli.main(sys.argv[1:])
status = open("/proc/self/status").read()  # ru_maxrss would count the parent before exec
peak = next(int(line.split()[1]) for line in status.splitlines() if line.startswith("VmHWM"))
used = resource.getrusage(resource.RUSAGE_SELF)
print(json.dumps({"peak": peak * 1024, "cpu": used.ru_utime + used.ru_stime}), file=sys.stderr)
sys.exit(code)
"""


def command(*words: Any) -> list[str]:
    return [sys.executable, "-c", RUN, "convert", *map(str, words), "--json"]


@dataclass
class Run:
    """A conversion in a process of its own."""

    document: dict[str, Any]
    peak: int
    cpu: float
    seconds: float


def run(*words: Any) -> Run:
    start = time.perf_counter()
    done = subprocess.run(command(*words), capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    measured = json.loads(done.stderr.splitlines()[-1])
    return Run(json.loads(done.stdout), measured["peak"], measured["cpu"], time.perf_counter() - start)


def shapes(config: dict[str, Any]) -> list[tuple[str, tuple[int, ...]]]:
    described = describe(config)
    return [
        (described.place(t, expert).name, described.place(t, expert).shape)
        for t in required(described.model)
        for expert in range(t.count)
    ]


def patterned(folder: Path, config: dict[str, Any], shards: int) -> int:
    """A bf16 checkpoint with a tokenizer, every tensor another window of one random pattern; its bytes."""
    folder.mkdir(exist_ok=True)
    (folder / "config.json").write_text(json.dumps(config))
    (folder / "tokenizer.json").write_text(json.dumps(small_tokenizer()))
    pattern = (np.random.default_rng(7).standard_normal(1 << 23) * 0.02).astype(np.float32)

    def entry(number: int, name: str, shape: tuple[int, ...]) -> tensorfile.Entry:
        def data() -> np.ndarray:
            return np.resize(np.roll(pattern, 7919 * number), shape)

        return tensorfile.Entry(name, shape, "BF16", data)

    entries = [entry(number, *one) for number, one in enumerate(shapes(config))]
    tensorfile.write_sharded(folder, [entries[i::shards] for i in range(shards)])
    return sum(one.size() for one in entries)


def sparse(folder: Path, config: dict[str, Any], shards: int) -> int:
    """A bf16 checkpoint of zeros that takes no room on the disk; its bytes."""
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps(config))
    where, total = {}, 0
    for shard in range(shards):
        name, header, at = f"model-{shard + 1:05d}-of-{shards:05d}.safetensors", {}, 0
        for tensor, shape in shapes(config)[shard::shards]:
            size = 2 * int(np.prod(shape))
            header[tensor] = {"dtype": "BF16", "shape": list(shape), "data_offsets": [at, at + size]}
            where[tensor], at = name, at + size
        text = json.dumps(header).encode()
        (folder / name).write_bytes(len(text).to_bytes(8, "little") + text)
        os.truncate(folder / name, 8 + len(text) + at)
        total += at
    (folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": where}))
    return total


@pytest.mark.slow
def test_memory_does_not_grow_with_the_model(tmp_path: Path) -> None:
    peaks = []
    for layers in (1, 8):
        size = sparse(
            tmp_path / str(layers), {**CONFIG, "num_hidden_layers": layers, "num_local_experts": 2}, 3
        )
        output = tmp_path / f"{layers}.colibri"
        peaks.append(run(tmp_path / str(layers), "-o", output, "--no-tokenizer").peak)
        output.unlink()
    assert size > 300e6
    assert peaks[1] - peaks[0] < 24 * MIB and peaks[1] < 200 * MIB, peaks


@dataclass
class Big:
    """The large checkpoint and what a single run makes of it."""

    folder: Path
    bytes: int
    output: Path
    first: Run


@pytest.fixture(scope="module")
def big(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Big]:
    """1.4 GB in five shards."""
    top = tmp_path_factory.mktemp("big")
    size = patterned(top / "hf", CONFIG, 5)
    output = top / "whole.colibri"
    yield Big(top / "hf", size, output, run(top / "hf", "-o", output, *PLAIN))
    for path in [*(top / "hf").iterdir(), *top.glob("*.colibri*")]:
        path.unlink()


def same(first: Path, second: Path) -> bool:
    """Byte by byte, without holding them."""
    return subprocess.run(["cmp", first, second], check=False).returncode == 0


TOKENIZER = """
import json, sys
from colibri.tokenizer import build_tokenizer_section
build_tokenizer_section(json.load(open(sys.argv[1])), {})
print(next(int(line.split()[1]) * 1024 for line in open("/proc/self/status") if line.startswith("VmHWM")))
"""


@pytest.mark.all
def test_a_large_checkpoint_needs_little_memory(big: Big, tmp_path: Path) -> None:
    """300 MiB for the weights; the tokenizer, made before them and let go, costs what it costs alone."""
    words = [sys.executable, "-c", TOKENIZER, str(big.folder / "tokenizer.json")]
    tokenizer = int(subprocess.run(words, capture_output=True, text=True, check=True).stdout)
    both = run(big.folder, "-o", tmp_path / "m.colibri", "--weights", "q8")
    (tmp_path / "m.colibri").unlink()
    print(
        f"\n{big.bytes / 1e9:.2f} GB: {big.first.peak / MIB:.0f} MiB at the peak, the tokenizer alone "
        f"{tokenizer / MIB:.0f}, both {both.peak / MIB:.0f}; {big.first.seconds:.1f} s; "
        f"{big.first.document['profile']}"
    )
    assert 1.4e9 < big.bytes < 1.5e9
    assert big.first.peak < LIMIT
    assert both.peak < max(big.first.peak, tokenizer) + 64 * MIB


@pytest.mark.all
def test_killed_at_ten_random_moments(big: Big, tmp_path: Path) -> None:
    output, draw, kills, strips = tmp_path / "m.colibri", random.Random(5), 0, []
    words = command(big.folder, "-o", output, *PLAIN)
    while kills < 10:
        process = subprocess.Popen(words, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        try:
            process.wait(draw.uniform(0.15, 0.4) * big.first.seconds)
        except subprocess.TimeoutExpired:
            process.send_signal(signal.SIGKILL)
            kills += 1
        if process.wait() == 0:  # it was faster than we: compare and begin again
            assert same(output, big.output)
            output.unlink()
        journal = tmp_path / ".m.colibri.journal"
        strips.append(journal.read_bytes().count(b"\nstrip") if journal.exists() else 0)
    print(f"\nstrips after each kill: {strips}")
    assert max(strips) > 20
    if not output.exists():
        run(big.folder, "-o", output, *PLAIN)
    assert same(output, big.output)
    assert [path.name for path in tmp_path.iterdir()] == ["m.colibri"]
    output.unlink()


@pytest.mark.all
def test_large_parts_are_joined(big: Big, tmp_path: Path) -> None:
    output = tmp_path / "m.colibri"
    for share in (2, 3, 1):
        run(big.folder, "-o", output, *PLAIN, "--shard", f"{share}/3")
    run(big.folder, "-o", output, *PLAIN, "--join")
    assert same(output, big.output)
    for path in tmp_path.iterdir():
        path.unlink()


HUGE = {**CONFIG, "hidden_size": 4096, "intermediate_size": 3072, "num_hidden_layers": 30, "head_dim": 128,
        "num_attention_heads": 32}  # fmt: skip


@pytest.mark.all
def test_twenty_gigabytes_need_no_more_memory_than_one(tmp_path: Path) -> None:
    """The beginning, the middle and the end of it as parts, and half a minute of the whole.

    All of it would take several minutes and 10 GB of disk to say the same.
    """
    size = sparse(tmp_path / "hf", HUGE, 20)
    assert size > 20e9
    peaks = {}
    for share in (1, 30, 60):
        made = run(tmp_path / "hf", "-o", tmp_path / "m.colibri", "--no-tokenizer", "--shard", f"{share}/60")
        peaks[f"part {share} of 60"] = made.peak
        Path(made.document["path"]).unlink()
    words = command(tmp_path / "hf", "-o", tmp_path / "m.colibri", "--no-tokenizer")
    process = subprocess.Popen(words, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
    try:
        for moment in (10, 30):
            with pytest.raises(subprocess.TimeoutExpired):
                process.wait(moment if moment == 10 else 20)
            status = Path(f"/proc/{process.pid}/status").read_text()
            peaks[f"after {moment} s"] = 1024 * int(status.partition("VmHWM:")[2].split()[0])
    finally:
        process.kill()
        process.communicate()
    done = (tmp_path / ".m.colibri.journal").read_bytes().count(b"\nstrip")
    print(
        f"\n{size / 1e9:.1f} GB, {done} strips in 30 s: "
        + ", ".join(f"{n} {p / MIB:.0f} MiB" for n, p in peaks.items())
    )
    assert done > 20
    assert max(peaks.values()) < 200 * MIB
    assert peaks["after 30 s"] - peaks["after 10 s"] < 24 * MIB
    for path in tmp_path.glob(".m.colibri.*"):
        path.unlink()


@pytest.mark.all
@pytest.mark.parametrize("weights", ["q8", "q4"])
def test_throughput(tmp_path: Path, weights: str) -> None:
    """At least 0.4 GB of checkpoint a minute on two cores; what bounds it is printed.

    Judged by processor time spread over two cores, because wall time measures the machine's other users too;
    by wall time as well where there are none.
    """
    quiet = os.getloadavg()[0] < 1
    size = patterned(tmp_path / "hf", {**CONFIG, "num_hidden_layers": 1}, 2)
    made = run(
        tmp_path / "hf", "-o", tmp_path / "m.colibri", "--weights", weights, "--threads", 2, "--no-tokenizer"
    )
    profile = made.document["profile"]
    of_two_cores = size / 1e9 / (made.cpu / 2) * 60
    print(f"\n{weights}: {size / 1e9:.3f} GB, {of_two_cores:.2f} GB a minute by processor time; {profile}")
    assert profile["source_bytes"] == size
    assert of_two_cores > 0.4
    assert not quiet or profile["gigabytes_per_minute"] > 0.4
    assert profile["bound"] in profile["thread_seconds"]
