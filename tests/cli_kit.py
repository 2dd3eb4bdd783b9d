"""What the tests of the command line share: two blobs, and the command as a call or as a process."""

import json
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from colibri import cli
from colibri.synth import write_random_blob

ROOT = Path(__file__).resolve().parent.parent
CHECKPOINT = ROOT / "tests" / "data" / "demo-checkpoint"
TEMPLATE = (
    "{% for m in messages %}<{{ m['role'] }}>{{ m['content'] | trim }}{{ eos_token }}\n{% endfor %}"
    "{% if add_generation_prompt %}<assistant>{% endif %}"
)


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
    """`colibri ... --json`: the document, after a look at the exit code and that stdout holds nothing
    else."""
    capsys.readouterr()
    assert cli.main([*map(str, arguments), "--json"]) == code
    made = json.loads(capsys.readouterr().out)
    assert made["schema"] == 1
    return made


def process(*arguments: object, **options: Any) -> subprocess.CompletedProcess[str]:
    """The command as a process of its own."""
    return subprocess.run(
        [sys.executable, "-m", "colibri", *map(str, arguments)],
        capture_output=True,
        text=True,
        check=False,
        **options,
    )
