"""A real language model, end to end: SmolLM2-135M-Instruct, and an 8-expert MoE made from it.

The weights come from a Python package (tests/smollm2.py), the answers from `colibri run --chat`. In float32
the smallest margin of the answer is 0.86 for the dense model and 1.4 for the MoE, so 4 bits leave it alone.
"""

from __future__ import annotations

import functools
import json
import subprocess
import sys
from typing import Any

import numpy as np
import pytest

import smollm2
from colibri import targets
from oracles import draw, tensorfile

TARGETS = [
    "linux",
    pytest.param("wasm", marks=pytest.mark.wasm),
    pytest.param("baremetal", marks=pytest.mark.qemu),
]
SECONDS = 1800  # for one run, an emulator on a busy machine included
COUNT = 40  # tokens at most; the answer takes 8 with its end


@functools.cache
def run(model: str, weights: str, target: str) -> dict[str, Any]:
    """The document of `colibri run --chat --json`."""
    command = [sys.executable, "-m", "colibri", "run", str(smollm2.blob(model, weights)), "--chat", "-p",
               smollm2.QUESTION, "-n", str(COUNT), "--context", "128", "--target", target, "--json"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=SECONDS, check=False)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


@pytest.mark.all
@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("weights", ["q8", "q4"])
@pytest.mark.parametrize("model", ["dense", "moe"])
def test_the_capital_of_france(model: str, weights: str, target: str) -> None:
    (chosen,) = targets.pick([target])
    if how := chosen.missing():
        pytest.skip(how)
    print(f"{model} {weights} on {target}", flush=True)
    here, there = run(model, weights, "linux"), run(model, weights, target)
    assert there["text"] == smollm2.ANSWER
    assert there["finish"] == "stop"
    assert there["digest"] == here["digest"] and there["tokens"] == here["tokens"]
    assert there["planned_bytes"] == there["used_bytes"] == here["planned_bytes"]


@pytest.mark.all
def test_the_prompt_is_the_one_transformers_makes() -> None:
    reason = "torch or transformers is not installed (extra [oracle])"
    transformers = pytest.importorskip("transformers", reason=reason)
    tokenizer = transformers.AutoTokenizer.from_pretrained(smollm2.hf_folder("f32"))
    messages = [{"role": "user", "content": smollm2.QUESTION}]
    made = tokenizer.apply_chat_template(messages, add_generation_prompt=True, return_dict=True)
    assert run("dense", "q8", "linux")["prompt_ids"] == made["input_ids"]


def test_bfloat16_rounds_to_nearest_even() -> None:
    words = np.array([0x3F808000, 0x3F818000, 0x3F808001, 0x3F807FFF, 0x80000000, 0x00008000, 0xC0490FDB],
                     dtype=np.uint32)
    rounded = tensorfile.to_bf16(words.view(np.float32))
    assert rounded.tolist() == [0x3F80, 0x3F82, 0x3F81, 0x3F80, 0x8000, 0x0000, 0xC049]
    assert tensorfile.to_bf16(tensorfile.from_bf16(rounded)).tolist() == rounded.tolist()
    with pytest.raises(ValueError, match="not finite"):
        tensorfile.to_bf16(np.array([np.inf], dtype=np.float32))


def test_drawn_numbers_are_pinned_and_bell_shaped() -> None:
    drawn = draw.bell(7, "some.tensor", (300, 400), scale=2.0)
    assert drawn[0, :3].tolist() == draw.bell(7, "some.tensor", (3,), scale=2.0).tolist()
    assert drawn.std() == pytest.approx(2.0, rel=0.01) and abs(float(drawn.mean())) < 0.02
    assert draw.bell(8, "some.tensor", (3,)).tolist() != draw.bell(7, "some.tensor", (3,)).tolist()
    assert draw.bits(0, 0, 2).tolist() == [0xE220A8397B1DCDAF, 0x6E789E6AA1B965F4]  # SplitMix64's own vector
