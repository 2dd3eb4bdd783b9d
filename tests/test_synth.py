"""Blobs of real shapes out of random blocks: valid to the last padding nibble, plausible, the same everywhere."""

import hashlib
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from cli_kit import document

from colibri import cli, strips, synth, synth_blocks
from colibri.blobfile import BlobFile
from colibri.blobwriter import tables_only, write_blob
from colibri.engine import Limits, Model, Session
from colibri.format import KINDS, Kinds
from colibri.synth_blocks import RandomBlocks, words
from colibri.synth_shapes import SHAPES, shape_of, write_shape_blob

Capture = pytest.CaptureFixture[str]
SMALL_IDENTITY = "12ba51c8212b3c8c0f5fc02218caf8a44e3d67c56e50e4ad6eb578793264bbb7"
NARROW_SHA256 = "1f537d40a096cc74716544a6eca280c52629c74158ea42a813d2dcbb66a9c2fe"


def problems(path: Path) -> list[Any]:
    """What a level-2 check finds."""
    return [problem for _, problem in Model.open(path).check(2) if problem]


def blocks(path: Path, spec: synth.Spec, kind: str, seed: int = 1) -> BlobFile:
    """A blob of random blocks."""
    write_blob(path, spec.model(), Kinds.preset(kind), RandomBlocks(seed, spec.model()), overwrite=True)
    return BlobFile(path)


# ---- the stream ----


def test_the_stream_is_the_documented_one() -> None:
    """PCG64's words, seeded by the name, entered anywhere."""
    key = hashlib.sha256(b"layers.3.q").digest()[:16]
    seeds = [7] + [int.from_bytes(key[i : i + 4], "little") for i in (0, 4, 8, 12)]
    plain = np.random.PCG64(np.random.SeedSequence(seeds)).random_raw(1000)
    assert (words(7, "layers.3.q", 0, 1000) == plain).all()
    assert (words(7, "layers.3.q", 613, 100) == plain[613:713]).all()
    assert words(7, "layers.3.q", 0, 4).tolist() != words(8, "layers.3.q", 0, 4).tolist()
    assert hashlib.sha256(words(1, "embed", 5, 64).tobytes()).hexdigest() == (
        "82c4b01440b00cca7595dfd95ba516e749712aa303be09a5d98575b97e9763b4"
    )


def test_a_narrowed_shape_has_known_bytes(tmp_path: Path) -> None:
    """The same bytes on every machine, for good: a change needs another STREAM."""
    path = tmp_path / "a.colibri"
    write_shape_blob(path, shape_of("small", 1), Kinds.preset("q4-all"), name="small")
    assert synth_blocks.STREAM == 1
    assert hashlib.sha256(path.read_bytes()).hexdigest() == NARROW_SHA256


@pytest.mark.parametrize("kind", KINDS)
def test_bytes_do_not_depend_on_strips_and_threads(
    tmp_path: Path, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    spec = synth.SPECS["mixed"]
    first = blocks(tmp_path / "a.colibri", spec, kind).path.read_bytes()
    assert first != blocks(tmp_path / "b.colibri", spec, kind, seed=2).path.read_bytes()
    monkeypatch.setattr(strips, "STRIP_BYTES", 4096)
    assert first == blocks(tmp_path / "c.colibri", spec, kind).path.read_bytes()


# ---- validity and plausibility ----


@pytest.mark.sampled(5)
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("name", synth.SPECS)
def test_odd_sizes_pass_the_check_of_every_byte(tmp_path: Path, name: str, kind: str) -> None:
    """Padding lanes, columns and groups of every kind, as the format wants them."""
    blob = blocks(tmp_path / "a.colibri", synth.SPECS[name], kind)
    assert problems(blob.path) == []


@pytest.mark.parametrize("kind", KINDS)
def test_weights_have_the_deviation_they_should(tmp_path: Path, kind: str) -> None:
    """Mean 0 and deviation 1 / sqrt(columns); every number finite, no two rows alike."""
    spec = synth.Spec(vocab=320, hidden=256, layers=1, ff=200, tied=True)
    blob = blocks(tmp_path / "a.colibri", spec, kind)
    seen = 0
    for tensor, expert in blob.matrices():
        if tensor.vector:
            continue
        values = blob.floats(tensor, expert).astype(np.float64) * tensor.columns**0.5
        chance = values.size**-0.5  # the deviation of a mean of so many
        assert abs(values.mean()) < 5 * chance, tensor.label
        assert abs(values.std() - 1) < 4 * chance + 0.02, tensor.label
        assert len(np.unique(values[:, :8], axis=0)) == tensor.rows
        seen += 1
    assert seen == 8


def test_experts_spread_and_activations_stay_of_normal_size(tmp_path: Path) -> None:
    """A router that favours a few experts would make a benchmark's numbers too good."""
    path = tmp_path / "a.colibri"
    write_shape_blob(path, shape_of("small", 2), Kinds.preset("q4-all"))
    model = Model.open(path)
    info, counts = model.info(), np.zeros((2, 32))
    with Session(model, Limits(context=64, batch=64, logit_rows=64)) as session:
        session.feed([(7919 * i + 101) % info.vocab for i in range(64)], want="all")
        session.finish()
        for i in range(64):
            logits = session.logits(i)
            assert np.isfinite(logits).all() and 0.3 < logits.std() < 3
            for layer in range(2):
                for expert, _ in session.routing(layer, i):
                    counts[layer, expert] += 1
    assert counts.sum() == 2 * 64 * 4
    assert (counts > 0).sum(axis=1).min() >= 28 and counts.max() <= 32


# ---- shapes ----


@pytest.mark.parametrize(
    ("name", "parameters", "active"),
    [
        ("olmoe", 6919161856, 1178996736),
        ("granite-1b", 1334628352, 428658688),
        ("smollm2", 134515008, 134515008),
        ("qwen3-30b", 30532122624, 3041869824),
    ],
)
def test_shapes_have_the_real_models_parameters(name: str, parameters: int, active: int) -> None:
    """To the last norm weight; an untied embedding takes no part in a token."""
    tables, size = tables_only(SHAPES[name].model(), Kinds.preset("q4-all"))
    info = Model(Path(name), _aligned(tables), size).info()
    assert (info.parameters, info.active_parameters) == (parameters, active)


def _aligned(data: bytes) -> Any:
    from colibri.engine import new_pool

    pool = new_pool(len(data))
    pool[: len(data)] = data
    return pool


# ---- the command ----


def test_a_whole_small_shape(tmp_path: Path, capsys: Capture) -> None:
    """The benchmark's small model: known identity, every byte in order, all matrices q4 but the router."""
    path = tmp_path / "small.colibri"
    made = document(capsys, "synth", path, "--shape", "small", "--weights", "q4-all")
    assert made == {
        "schema": 1,
        "path": str(path),
        "identity": SMALL_IDENTITY,
        "file_bytes": path.stat().st_size,
    }
    assert problems(path) == []
    kinds = {tensor.role: tensor.kind for tensor in BlobFile(path).tensors if not tensor.vector}
    assert kinds.pop("ROUTER") == "f32" and set(kinds.values()) == {"q4"} and len(kinds) == 9
    assert list(tmp_path.iterdir()) == [path]
    assert (
        cli.main(["synth", str(path), "--shape", "small"]) == 3 and "--overwrite" in capsys.readouterr().err
    )


def test_kinds_by_group(tmp_path: Path, capsys: Capture) -> None:
    """As the peer's file of the dense model: everything q4, the embedding (and head) q8."""
    path = tmp_path / "smol.colibri"
    document(
        capsys, "synth", path, "--shape", "smollm2", "--layers", 1, "--weights", "q4-all", "--embed", "q8"
    )
    kinds = {tensor.role: tensor.kind for tensor in BlobFile(path).tensors if not tensor.vector}
    assert kinds.pop("EMBED") == "q8" and set(kinds.values()) == {"q4"}
    assert cli.main(["synth", str(path), "--layers", "2"]) == 2 and "--shape" in capsys.readouterr().err


@pytest.mark.wasm
def test_one_digest_on_a_narrowed_shape(tmp_path: Path, capsys: Capture) -> None:
    """The random blocks mean the same here and in WebAssembly."""
    pytest.importorskip("wasmtime", reason="wasmtime is not installed")
    path = tmp_path / "a.colibri"
    document(capsys, "synth", path, "--shape", "small", "--layers", 1, "--weights", "q4-all")
    made = document(capsys, "verify", path, "--target", "linux,wasm", "-n", 4)
    assert made["one_answer"] and len({row["digest"] for row in made["rows"]}) == 1 and len(made["rows"]) == 2
