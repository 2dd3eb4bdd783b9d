"""Models of a hub, through the real huggingface_hub client, against a hub server of our own.

The client reads its settings when it is imported, so it runs in a process of its own; one for all tests.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from checkpoint_kit import entries_of, folder_of
from colibri.blobfile import BlobFile
from colibri.convert import ConvertOptions, convert
from hubserver import Faults, HubServer, Repository, commit
from oracles import tensorfile

pytestmark = pytest.mark.slow
CASE, NAME = "mixtral_one", "acme/tiny"
FIRST, SECOND = commit("first"), commit("second")
CHILD = """
import contextlib, io, json, os, sys
from colibri import cli, hub
hub.FIRST_WAIT = 0.01
for line in sys.stdin:
    arguments, environment = json.loads(line)
    os.environ.update(environment)
    out, err = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        try:
            code = cli.main(arguments)
        except SystemExit as usage:
            code = usage.code
    for name in environment:
        del os.environ[name]
    print(json.dumps([code, out.getvalue(), err.getvalue()]), flush=True)
"""


@dataclass
class Answer:
    """What a command ended with."""

    code: int
    out: str
    err: str


class Client:
    """The command line in a process whose hub is ours."""

    def __init__(self, endpoint: str, home: Path, **settings: str) -> None:
        kept = {name: value for name, value in os.environ.items() if not name.startswith(("HF_", "HUGGING"))}
        self.environment = (
            kept | {"HF_ENDPOINT": endpoint, "HF_HOME": str(home), "HF_HUB_DISABLE_XET": "1"} | settings
        )
        self.process = subprocess.Popen(
            [sys.executable, "-c", CHILD],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env=self.environment,
        )

    def __call__(self, *arguments: Any, **environment: str) -> Answer:
        assert self.process.stdin and self.process.stdout
        self.process.stdin.write(json.dumps([[str(word) for word in arguments], environment]) + "\n")
        self.process.stdin.flush()
        return Answer(*json.loads(self.process.stdout.readline()))

    def convert(self, name: str, output: Path, *arguments: Any, **environment: str) -> Answer:
        """The usual command."""
        words = (
            "convert",
            name,
            "-o",
            output,
            "--weights",
            "f16",
            "--no-tokenizer",
            "--threads",
            1,
            "--json",
        )
        return self(*words, *arguments, **environment)

    def close(self) -> None:
        """End the process."""
        assert self.process.stdin
        self.process.stdin.close()
        self.process.wait()


def build(folder: Path, case: str = CASE, shards: int = 3) -> Path:
    """A sharded checkpoint."""
    folder_of(case, folder)
    (folder / "model.safetensors").unlink()
    entries = entries_of(case)
    tensorfile.write_sharded(folder, [entries[i::shards] for i in range(shards)])
    return folder


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Two revisions of a model."""
    top = tmp_path_factory.mktemp("repositories")
    return {FIRST: build(top / "first"), SECOND: build(top / "second", "llama_mha", 2)}


@pytest.fixture(scope="module")
def server(folders: dict[str, Path]) -> Iterator[HubServer]:
    with HubServer() as made:
        yield made


@pytest.fixture(scope="module")
def client(server: HubServer, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Client]:
    made = Client(server.endpoint, tmp_path_factory.mktemp("home"))
    yield made
    made.close()


@pytest.fixture
def hub(server: HubServer, folders: dict[str, Path]) -> HubServer:
    """The server, healthy, with one public and one gated model."""
    refs = {"main": SECOND, "v1": FIRST, "feature/x": FIRST}
    server.repositories = {
        NAME: Repository(dict(folders), refs),
        "acme/gated": Repository(dict(folders), refs, token="open sesame"),
    }
    server.faults = Faults()
    server.log.clear()
    return server


def weights(path: Path) -> bytes:
    """All of a blob but its provenance and what vouches for it."""
    blob = BlobFile(path)
    start, end = (blob._named[name] for name in ("RESIDENT", "GENERATION"))
    return bytes(blob.data[start.offset : end.offset + end.bytes])


def local(folder: Path, output: Path) -> Path:
    return convert(folder, output, ConvertOptions(weights="f16", tokenizer=False)).path


def failed(answer: Answer, code: int, words: str, folder: Path, left: int = 0) -> str:
    """One sentence, the code, and how many files stay."""
    assert answer.code == code and answer.out == "", answer
    assert answer.err.count("\n") == 1 and words in answer.err, answer.err
    assert len(list(folder.iterdir())) == left
    return answer.err


def test_a_model_is_converted_without_being_stored(
    hub: HubServer, client: Client, folders: dict[str, Path], tmp_path: Path
) -> None:
    answer = client.convert(NAME, tmp_path / "m.colibri")
    assert answer.code == 0, answer.err
    document, blob = json.loads(answer.out), BlobFile(tmp_path / "m.colibri")
    assert document["identity"] == blob.identity
    assert blob.provenance()["source"] == NAME and blob.provenance()["revision"] == SECOND
    assert weights(blob.path) == weights(local(folders[SECOND], tmp_path / "n.colibri"))
    asked = hub.requests("store")
    assert all(line.range for line in asked) and asked
    stored = [path for path in Path(client.environment["HF_HOME"]).rglob("*") if path.is_file()]
    assert stored and all(path.stat().st_size < 20000 for path in stored)
    assert not any("safetensors" in path.name and path.suffix != ".json" for path in stored)


@pytest.mark.parametrize("how", ["v1", FIRST, "feature/x", "option"])
def test_a_revision_is_a_branch_a_tag_or_a_commit(
    hub: HubServer, client: Client, folders: dict[str, Path], tmp_path: Path, how: str
) -> None:
    arguments = (
        (NAME, tmp_path / "m.colibri", "--revision", "v1")
        if how == "option"
        else (f"{NAME}@{how}", tmp_path / "m.colibri")
    )
    answer = client.convert(*arguments)
    assert answer.code == 0, answer.err
    assert BlobFile(tmp_path / "m.colibri").provenance()["revision"] == FIRST
    assert weights(tmp_path / "m.colibri") == weights(local(folders[FIRST], tmp_path / "n.colibri"))


def test_what_is_not_there_is_named(hub: HubServer, client: Client, tmp_path: Path) -> None:
    out = tmp_path / "m.colibri"
    failed(client.convert("acme/none", out), 3, "acme/none: 127.0.0.1:", tmp_path)
    failed(client.convert(f"{NAME}@v9", out), 3, f"{NAME}@v9: the model has no revision 'v9'", tmp_path)
    words = "names a revision, so does --revision v1; give one"
    failed(client.convert(f"{NAME}@v9", out, "--revision", "v1"), 2, words, tmp_path)
    failed(client.convert("acme/-x", out), 3, "is no model id", tmp_path)
    failed(client.convert(str(tmp_path), out, "--offline"), 2, "are for a model of the hub", tmp_path)


def test_missing_files_are_named(
    hub: HubServer, client: Client, folders: dict[str, Path], tmp_path: Path
) -> None:
    broken, out = tmp_path / "broken", tmp_path / "out"
    out.mkdir()
    sha = commit("broken")
    hub.repositories[NAME] = Repository({sha: broken}, {"main": sha})
    for gone, words in (
        ("model-00002-of-00002.safetensors", "/model-00002-of-00002.safetensors: is missing"),
        ("model.safetensors.index.json", "has neither model.safetensors nor model.safetensors.index.json"),
        ("config.json", "/config.json: is missing"),
    ):
        shutil.rmtree(broken, ignore_errors=True)
        shutil.copytree(folders[SECOND], broken)
        (broken / gone).unlink()
        failed(client.convert(NAME, out / "m.colibri"), 3, f"{NAME}@{sha[:12]}", out)
        assert words in client.convert(NAME, out / "m.colibri").err


def test_a_gated_model_wants_a_token(hub: HubServer, client: Client, tmp_path: Path) -> None:
    out = tmp_path / "m.colibri"
    failed(client.convert("acme/gated", out), 3, "acme/gated: is gated", tmp_path)
    failed(client.convert("acme/gated", out, "--token", "wrong"), 3, "acme/gated: is gated", tmp_path)
    assert client.convert("acme/gated", out, "--token", "open sesame").code == 0
    assert client.convert("acme/gated", out, "--overwrite", HF_TOKEN="open sesame").code == 0
    assert all(line.token == "" for line in hub.requests("store"))  # it is nobody's business but the hub's
    assert "open sesame" in {line.token for line in hub.log}
    assert b"sesame" not in out.read_bytes()


@pytest.mark.parametrize("cut", [1, 1000, 5000])
def test_a_cut_connection_goes_on_at_the_byte(
    hub: HubServer, client: Client, folders: dict[str, Path], tmp_path: Path, cut: int
) -> None:
    hub.faults = Faults(cut_after=cut, cuts=20)
    answer = client.convert(NAME, tmp_path / "m.colibri")
    assert answer.code == 0 and hub.faults.cuts == 0, answer.err
    assert weights(tmp_path / "m.colibri") == weights(local(folders[SECOND], tmp_path / "n.colibri"))
    spans = [tuple(map(int, line.range.removeprefix("bytes=").split("-"))) for line in hub.requests("store")]
    continued = [b for a, b in zip(spans, spans[1:], strict=False) if a[1] == b[1] and b[0] == a[0] + cut]
    assert len(continued) == 20


def test_a_network_that_stays_away_is_said_and_the_work_is_kept(
    hub: HubServer, client: Client, folders: dict[str, Path], tmp_path: Path
) -> None:
    out = tmp_path / "m.colibri"
    whole = client.convert(NAME, tmp_path / "n.colibri")
    hub.log.clear()
    hub.faults = Faults(busy=3)
    assert client.convert(NAME, tmp_path / "o.colibri").code == 0  # three times busy is no reason to give up
    reads = len(hub.requests("store")) - 3
    (tmp_path / "o.colibri").unlink()
    server = hub.faults = Faults()
    seen = len(hub.requests("store"))

    class Later(list):
        """After some requests the store answers none."""

        def append(self, line: Any) -> None:
            super().append(line)
            if line.server == "store" and len(hub.requests("store")) > seen + reads // 2:
                server.status = 503

    hub.log = Later(hub.log)
    answer = client.convert(NAME, out)
    assert answer.code == 4 and "status 503); run the same command again to go on" in answer.err, answer.err
    assert sorted(path.name for path in tmp_path.iterdir()) == [
        ".m.colibri.journal",
        ".m.colibri.part",
        "n.colibri",
    ]
    hub.log = []
    hub.faults = Faults()
    again = client.convert(NAME, out)
    assert again.code == 0 and "going on with an interrupted conversion" in again.err
    assert len(hub.requests("store")) < reads
    assert out.read_bytes() == (tmp_path / "n.colibri").read_bytes() and whole.code == 0


def test_another_revision_starts_anew(hub: HubServer, client: Client, tmp_path: Path) -> None:
    out = tmp_path / "m.colibri"
    hub.faults = Faults()
    hub.log.clear()
    faults = hub.faults

    class Later(list):
        def append(self, line: Any) -> None:
            super().append(line)
            faults.status = 503 if len(self) > 12 and line.server == "store" else 0

    hub.log = Later()
    assert client.convert(NAME, out).code == 4
    hub.log, hub.faults = [], Faults()
    answer = client.convert(f"{NAME}@v1", out)
    assert answer.code == 0 and f"revision was {SECOND}, is {FIRST}" in answer.err
    assert client.convert(f"{NAME}@v1", tmp_path / "n.colibri").code == 0
    assert out.read_bytes() == (tmp_path / "n.colibri").read_bytes()


@pytest.mark.parametrize(
    "faults, code, words",
    [
        (
            Faults(no_range=True),
            3,
            "serves no byte ranges (status 200 to a Range request); download the model",
        ),
        (Faults(sent_total=-5), 3, "bytes, its server has"),
        (Faults(sent_total=5), 3, "bytes, its server has"),
        (Faults(listed=1), 3, "bytes, its server has"),
        (Faults(shifted=True), 3, "were asked for, the server sent 'bytes 1-"),
        (Faults(longer=True), 3, "more bytes than were asked for"),
        (Faults(status=403), 3, "the server answered with status 403"),
        (Faults(status=404), 3, "the server answered with status 404"),
        (Faults(status=500), 4, "attempts brought no more (status 500)"),
        (Faults(api_status=500), 4, "answered with status 500; try again later"),
        (Faults(api_status=401), 3, "refuses access (status 401); log in"),
        (Faults(api_status=403), 3, "refuses access (status 403)"),
    ],
)
def test_a_server_that_misbehaves_is_refused_in_one_sentence(
    hub: HubServer, client: Client, tmp_path: Path, faults: Faults, code: int, words: str
) -> None:
    hub.faults = faults
    failed(client.convert(NAME, tmp_path / "m.colibri"), code, words, tmp_path)


def test_a_place_that_expired_is_asked_for_again(hub: HubServer, client: Client, tmp_path: Path) -> None:
    hub.faults = Faults(expired=1)
    assert client.convert(NAME, tmp_path / "m.colibri").code == 0
    assert hub.faults.expired == 0


def test_without_a_network(hub: HubServer, client: Client, folders: dict[str, Path], tmp_path: Path) -> None:
    """No server, an empty cache, a cache of small files only, a cache with everything."""
    out, home = tmp_path / "out", tmp_path / "home"
    out.mkdir()
    nobody = Client("http://127.0.0.1:9", home)  # the discard port: nothing listens
    try:
        words = f"{NAME}: 127.0.0.1:9 cannot be reached"
        assert "--offline" in failed(nobody.convert(NAME, out / "m.colibri"), 4, words, out)
        words = f"{NAME}/config.json: is not in the hub's cache"
        failed(nobody.convert(NAME, out / "m.colibri", "--offline"), 4, words, out)
        cache = home / "hub" / "models--acme--tiny"
        snapshot = cache / "snapshots" / SECOND
        snapshot.mkdir(parents=True)
        (cache / "refs").mkdir()
        (cache / "refs" / "main").write_text(SECOND)
        for path in folders[SECOND].iterdir():
            if path.suffix != ".safetensors":
                shutil.copy(path, snapshot)
        words = "model-00001-of-00002.safetensors: is not in the hub's cache"
        failed(nobody.convert(NAME, out / "m.colibri", "--offline"), 4, words, out)
        for path in folders[SECOND].glob("*.safetensors"):
            shutil.copy(path, snapshot)
        assert nobody.convert(NAME, out / "m.colibri", "--offline").code == 0
    finally:
        nobody.close()
    offline = Client("http://127.0.0.1:9", home, HF_HUB_OFFLINE="1")
    try:
        assert offline.convert(NAME, out / "n.colibri").code == 0
        failed(
            offline.convert(f"{NAME}@v1", out / "o.colibri"), 4, f"{NAME}@v1/config.json: is not in", out, 2
        )
    finally:
        offline.close()
    assert client.convert(NAME, out / "online.colibri").code == 0
    images = {path.read_bytes() for path in out.iterdir()}
    assert len(images) == 1  # the same bytes, wherever the files lay


def test_a_cache_that_cannot_be_written_is_named(hub: HubServer, tmp_path: Path) -> None:
    home, out = tmp_path / "home", tmp_path / "out"
    home.write_text("not a folder")
    out.mkdir()
    client = Client(hub.endpoint, home)
    try:
        words = f"{home}/hub: the hub's cache cannot be used (Not a directory); make room, or set HF_HOME"
        failed(client.convert(NAME, out / "m.colibri"), 3, words, out)
    finally:
        client.close()


def test_weights_in_the_cache_are_read_there(
    hub: HubServer, client: Client, folders: dict[str, Path], tmp_path: Path
) -> None:
    assert client.convert(NAME, tmp_path / "m.colibri").code == 0
    snapshot = Path(client.environment["HF_HOME"]) / "hub" / "models--acme--tiny" / "snapshots" / SECOND
    cached = [Path(shutil.copy(path, snapshot)) for path in folders[SECOND].glob("*.safetensors")]
    hub.log.clear()
    try:
        assert client.convert(NAME, tmp_path / "n.colibri").code == 0
    finally:
        for path in cached:
            path.unlink()
    assert hub.requests("store") == []
    assert (tmp_path / "m.colibri").read_bytes() == (tmp_path / "n.colibri").read_bytes()


def test_parts_are_made_from_the_hub_too(hub: HubServer, client: Client, tmp_path: Path) -> None:
    assert client.convert(NAME, tmp_path / "whole.colibri").code == 0
    for share in ("1/3", "2/3", "3/3"):
        answer = client.convert(NAME, tmp_path / "m.colibri", "--shard", share)
        assert answer.code == 0 and json.loads(answer.out)["part"] == share
    assert client.convert(NAME, tmp_path / "m.colibri", "--join").code == 0
    assert (tmp_path / "m.colibri").read_bytes() == (tmp_path / "whole.colibri").read_bytes()
