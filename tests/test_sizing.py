"""Sizing from a config alone: published figures come out, the core's plan stays the truth, and the advice follows.

The configs in tests/data/configs are the models' public ones, as far as they say something about sizes.
"""

import importlib.util
import json
import os
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest
from cli_kit import Capture, document
from colibri import cli, sizing, sizing_report
from colibri.convert import ConvertOptions, convert
from colibri.engine import Info, Limits, Model
from oracles import checkpoints
from oracles.cases import CASES

CONFIGS = Path(__file__).resolve().parent / "data" / "configs"
NAMES = sorted(path.stem for path in CONFIGS.glob("*.json"))
LIVE = [
    pytest.mark.oracle,
    pytest.mark.skipif(not os.environ.get("CI") and not importlib.util.find_spec("transformers"),
                       reason="torch or transformers is not installed (extra [oracle])"),
]  # fmt: skip
# name: (parameters, at work for a token, whether the publisher counts the whole embedding as at work), in billions.
# DeepSeek's own page on its weights says 36.6 with the output head and without the embedding; OpenAI's model card
# counts in the same way, Qwen's and Mistral's round figures come out only with the embedding.
PUBLISHED = {
    "deepseek-v3": (671, 36.6, False),
    "glm-5.2": (744, 40, False),
    "gpt-oss-120b": (116.83, 5.13, False),
    "mixtral-8x7b": (46.7, 12.9, True),
    "qwen3-235b-a22b": (235, 22, True),
}
SMALL = {  # a mixtral that is planned in no time
    "model_type": "mixtral", "vocab_size": 96, "hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 3,
    "num_attention_heads": 4, "num_key_value_heads": 2, "num_local_experts": 8, "num_experts_per_tok": 2,
    "max_position_embeddings": 4096, "rms_norm_eps": 1e-5, "rope_theta": 10000.0, "hidden_act": "silu",
}  # fmt: skip


def config(name: str) -> dict[str, Any]:
    """One of the public configs."""
    return json.loads((CONFIGS / f"{name}.json").read_text(), parse_float=Decimal)


def sized(name: str, weights: str = "q4") -> sizing.Sized:
    return sizing.sized(config(name), Path(f"{name}.json"), weights)


def report(fields: dict[str, Any], weights: str = "q4", memory: float = 0, rate: float = 0,
           **limits: Any) -> sizing_report.Report:  # fmt: skip
    machine = sizing_report.Machine(int(memory), rate)

    def wanted(info: Info) -> Limits:
        return Limits(**{"context": min(info.trained_context, 2048), **limits})

    return sizing_report.report(fields, Path("c.json"), weights, wanted, machine)


# ---- published figures ----


def test_every_config_has_its_figures() -> None:
    assert NAMES == sorted(PUBLISHED)


@pytest.mark.parametrize("name", NAMES)
def test_parameters_are_the_published_ones(name: str) -> None:
    total, active, whole_embedding = PUBLISHED[name]
    made = sized(name)
    assert made.parameters == pytest.approx(total * 1e9, rel=0.01)
    assert made.active + made.looked_up * whole_embedding == pytest.approx(active * 1e9, rel=0.01)


def test_glm_in_25_gigabytes() -> None:
    """19,456 routed experts of 19 MB, 10 GB resident, 11 GB per cold token, 0.05 to 0.1 tokens per second."""
    made = sized("glm-5.2", "q4-all")
    assert made.experts + made.draft_experts == 19456 == 76 * 256 and len(made.moe) == 75
    run = made.moe[0].run_bytes
    assert made.moe[0].weights / 2 == pytest.approx(19e6, rel=0.01)  # four bits of each weight, and nothing else
    assert run == pytest.approx(made.moe[0].weights * 4.5 / 8, abs=4096)  # with a scale of 16 bits for 32 weights
    assert made.resident_bytes == pytest.approx(10e9, rel=0.1)
    assert made.chosen * made.moe[0].weights / 2 == pytest.approx(11e9, rel=0.05)
    assert made.cold_bytes == 600 * run < 13e9
    for weights in ("q4", "q4-all"):
        judged = report(config("glm-5.2"), weights, memory=25e9, rate=1e9)
        assert judged.fits and judged.plan.slots >= 100 and 0.05 <= judged.cold <= 0.1
        assert judged.cold <= judged.uniform < 0.1
        assert judged.plan.pool_bytes <= 25e9


def test_latent_cache_of_glm() -> None:
    """1152 bytes per token and layer in f16: latent and rotary key; indexers keep a key of 128 numbers besides."""
    made = sized("glm-5.2")
    assert made.latent_bytes == 1152 == 2 * (512 + 64)
    assert made.index_layers == 21  # the first three, then every fourth
    plans = {kv: made.plan(Limits(context=1024, kv=kv)) for kv in ("f32", "f16", "q8")}
    assert plans["f16"].kv_bytes_per_token == 78 * 1152 + 21 * 256
    assert plans["f32"].kv_bytes_per_token == 2 * plans["f16"].kv_bytes_per_token
    assert plans["q8"].kv_bytes_per_token < 0.54 * plans["f16"].kv_bytes_per_token
    kv = {region.name: region.bytes for region in plans["f16"].regions}["kv"]
    assert kv == 1024 * plans["f16"].kv_bytes_per_token


def test_windows_of_gpt_oss() -> None:
    """Half of the layers keep a window only: a long context costs half of kv_bytes_per_token."""
    made = sized("gpt-oss-120b")
    a, b = (made.plan(Limits(context=n)) for n in (65536, 131072))
    assert b.pool_bytes - a.pool_bytes == pytest.approx(65536 * a.kv_bytes_per_token / 2, rel=0.05)
    assert a.kv_bytes_per_token == 36 * 2 * 8 * 64 * 2


# ---- the core is the truth ----


@pytest.mark.sampled(4)
@pytest.mark.parametrize("case", [
    "mixtral_mqa_window", "qwen2_moe_plain", "ernie_moe", "glm_partial", "llama_odd", "deepseek_v2_yarn",
    "deepseek_v3_groups", "deepseek_v32_sparse", "glm_dsa_shared", "gpt_oss_sinks", "phimoe_norms",
])  # fmt: skip
@pytest.mark.parametrize("weights", ["q4", "f16"])
def test_sizes_are_those_of_the_blob(case: str, weights: str, tmp_path: Path) -> None:
    """What the config says beforehand is what the converted checkpoint is."""
    checkpoints.build(case, tmp_path / "source")
    convert(tmp_path / "source", tmp_path / "m.colibri", ConvertOptions(weights=weights, tokenizer=False))
    real, info = Model.open(tmp_path / "m.colibri"), Model.open(tmp_path / "m.colibri").info()
    made = sizing.sized(CASES[case].config, Path("config.json"), weights)
    assert not made.why_not
    assert (made.resident_bytes, made.expert_bytes, made.experts) == (
        info.resident_bytes, info.expert_bytes, info.expert_count)  # fmt: skip
    assert (made.parameters, made.active) == (info.parameters, info.active_parameters)
    for limits in (Limits(context=50, kv="q8"), Limits(context=9, batch=3, resident_copy=True),
                   Limits(context=40, slots=min(2, info.expert_count), stream_experts=info.expert_count > 0)):
        assert made.plan(limits) == real.plan(limits)


@pytest.mark.parametrize("name", NAMES)
def test_published_configs_are_read_whole(name: str) -> None:
    """No field of a public config is in the way: what is sized here is what convert writes and the core runs."""
    assert sized(name).why_not == ""


@pytest.mark.parametrize("name", [pytest.param(name, marks=LIVE) for name in NAMES])
def test_shapes_are_those_of_transformers(name: str) -> None:
    """Exactly as many numbers as the model that transformers builds (without memory) from the same config."""
    import torch
    import transformers

    fields = json.loads((CONFIGS / f"{name}.json").read_text())
    for away in ("quantization_config", "auto_map", "architectures"):
        fields.pop(away, None)
    built = transformers.AutoConfig.for_model(fields.pop("model_type"), **fields)
    with torch.device("meta"):
        model = transformers.AutoModelForCausalLM.from_config(built)
    found = sum(p.numel() for p in model.parameters())
    found += sum(b.numel() for n, b in model.named_buffers() if n.endswith("e_score_correction_bias"))
    assert sized(name).parameters == found


def test_most_slots_that_fit() -> None:
    """One slot more would not fit; everything fits where there is room for everything."""
    made = sizing.sized(SMALL, Path("c.json"), "q4")
    limits = Limits(context=64)
    least, most = made.streamed(limits, 1), made.streamed(limits, made.experts)
    for memory in (least.pool_bytes, (least.pool_bytes + most.pool_bytes) // 2, most.pool_bytes - 1):
        plan = made.fitting(limits, memory)
        assert plan.pool_bytes <= memory < made.streamed(limits, plan.slots + 1).pool_bytes
    assert made.fitting(limits, most.pool_bytes) == made.fitting(limits, 10**12) == most
    assert made.fitting(limits, least.pool_bytes - 1) == least


def test_bytes_per_token() -> None:
    """Cold: every chosen expert. Uniform: the share that has no slot; none is kept with less than a token's."""
    made = sizing.sized(SMALL, Path("c.json"), "q4")
    assert (made.experts, made.chosen) == (24, 6) and made.cold_bytes == 6 * made.moe[0].run_bytes
    assert made.uniform_bytes(5) == made.cold_bytes and made.uniform_bytes(24) == 0
    assert made.uniform_bytes(6) == made.cold_bytes * 18 / 24
    assert made.uniform_bytes(12) == made.cold_bytes / 2


# ---- the advice ----


@pytest.mark.parametrize(("name", "weights", "memory", "context", "words"), [
    ("glm-5.2", "q4", 25e9, 2048, "storage twice as fast, 2.0 GB/s: 0.16 tokens/s instead of 0.078"),
    ("mixtral-8x7b", "q4", 25e9, 2048, "twice the memory, 50.0 GB: no weight would come from storage again"),
    ("mixtral-8x7b", "q8", 35e9, 2048, "fewer bytes, --weights q4: no weight would come from storage again"),
    ("mixtral-8x7b", "q4", 36e9, 122880, "half the context, 61440 positions: no weight would come"),
    ("mixtral-8x7b", "q4", 90e9, 2048, "Everything fits"),
    ("glm-5.2", "q4", 12e9, 2048, "fewer bytes, --weights q4-all needs 11.1 GB"),
    ("glm-5.2", "q4-all", 12e9, 32768, "a shorter context, 8192 positions need 11.7 GB"),
    ("glm-5.2", "q4-all", 5e9, 2048, "more memory; the least this plan runs in is 11.1 GB"),
])  # fmt: skip
def test_what_would_help_most(name: str, weights: str, memory: float, context: int, words: str) -> None:
    assert words in report(config(name), weights, memory, 1e9, context=context).sentence()


def test_advice_is_the_best_of_the_changes() -> None:
    made = report(config("gpt-oss-120b"), "q4", 25e9, 1e9)
    rates = [change.rate for change in made.changes]
    assert len(rates) == 4 and all(rate is not None and rate >= made.uniform for rate in rates)
    best = next(change for change in made.changes if change.rate == max(rates))
    assert best.what in made.sentence()
    assert made.uniform == pytest.approx(1e9 / made.model.uniform_bytes(made.plan.slots))


# ---- the command ----


def test_document_of_the_command(capsys: Capture) -> None:
    """`plan --config --json`: the fields of every plan, and the sizes besides."""
    file = CONFIGS / "glm-5.2.json"
    made = document(capsys, "plan", "--config", file, "--ram", "25GB", "--storage-gbps", "1", "--weights", "q4-all")
    assert {"pool_bytes", "align", "regions", "slots", "resident_bytes", "expert_bytes", "kv_bytes_per_token",
            "largest_unit_macs", "fits"} <= set(made)  # fmt: skip
    assert made["fits"] is True and made["pool_bytes"] <= 25 * 10**9 and made["model"] is None
    sizes = made["sizing"]
    assert sizes["experts"] + sizes["drafts"]["experts"] == 19456 and sizes["slots"] == made["slots"]
    assert sizes["tokens_per_second"]["cold"] == pytest.approx(1e9 / sizes["bytes_per_token"]["cold"])
    assert sizes["advice"].startswith("What would help most")
    assert sizes["runs_here"] is (sizes["why_not"] is None)
    assert sum(region["bytes"] for region in made["regions"]) <= made["pool_bytes"]


def test_words_of_the_command(capsys: Capture) -> None:
    """What a build cannot run it says plainly; what it can run it does not."""
    assert cli.main(["plan", "--config", str(CONFIGS / "mixtral-8x7b.json"), "--ram", "25GB", "--storage-gbps", "2",
                     "--weights", "q4"]) == 0  # fmt: skip
    out = capsys.readouterr().out
    assert "46.7 B parameters" in out and "232 of 256 experts" in out and "not run it" not in out
    assert "floor at 2.0 GB/s from storage: 0.32 tokens/s cold" in out
    fields = {**SMALL, "quantization_config": {"quant_method": "fp8"}}
    made = sizing.sized(fields, Path("c.json"), "q4")
    assert "quantization_config" in made.why_not and made.parameters == sizing.sized(SMALL, Path("c"), "q4").parameters
    text = sizing_report.text_of(report(fields))
    assert "this build can size this model but not run it: field 'quantization_config'" in text


def test_exit_5_names_the_floor(tmp_path: Path, capsys: Capture) -> None:
    """Too little memory by one byte: exit 5 and the least that would do, which does."""
    file = tmp_path / "config.json"
    file.write_text(json.dumps(SMALL))
    least = sizing.sized(SMALL, file, "q4").streamed(Limits(context=64), 1).pool_bytes
    common = ["plan", "--config", str(file), "--weights", "q4", "--context", "64", "--ram"]
    assert cli.main([*common, str(least)]) == 0
    capsys.readouterr()
    assert cli.main([*common, str(least - 1)]) == 5
    assert f"needs at least {least} bytes" in capsys.readouterr().err
    assert document(capsys, *common, least - 1, code=5)["fits"] is False


def test_draft_layers_of_a_known_family(capsys: Capture) -> None:
    """A config with a draft layer is sized, and the layer counted beside."""
    case = CASES["glm_partial"].config
    plain = sizing.sized(case, Path("c.json"), "q8")
    made = sizing.sized({**case, "num_nextn_predict_layers": 1}, Path("c.json"), "q8")
    assert plain.draft_layers == 0 and made.draft_layers == 1 and made.draft_experts == 8
    assert made.resident_bytes == plain.resident_bytes and made.draft_bytes > 8 * made.moe[0].run_bytes


@pytest.mark.parametrize(("change", "code", "words"), [
    ({"model_type": "mamba9"}, 3, "model_type 'mamba9' is not known"),
    ({"hidden_size": None}, 3, "'hidden_size' is missing"),
    ({"num_experts_per_tok": 9}, 3, "at most the 8 experts"),
    ({"surprise": 1}, 3, "field 'surprise' (1) is not known"),
    ({"model_type": "deepseek_v3"}, 3, "all heads share the latent"),
])  # fmt: skip
def test_refusals(change: dict[str, Any], code: int, words: str, tmp_path: Path, capsys: Capture) -> None:
    file = tmp_path / "config.json"
    file.write_text(json.dumps({**SMALL, **change}))
    assert cli.main(["plan", "--config", str(file), "--ram", "1GB"]) == code
    error = capsys.readouterr().err
    assert words in error and str(file) in error


def test_options_that_contradict(tmp_path: Path, capsys: Capture) -> None:
    file = tmp_path / "config.json"
    file.write_text(json.dumps(SMALL))
    for wrong in (["--ram", "1GB", "--memory", "1G"], ["--ram", "1GB", "--slots", "3"], ["--header", "x.h"]):
        assert cli.main(["plan", "--config", str(file), *wrong]) == 2
    assert cli.main(["plan", str(file), "--storage-gbps", "2"]) == 2
    for wrong in ("much", "0", "-1GB", "5iB", "25Gi"):
        with pytest.raises(SystemExit) as caught:
            cli.main(["plan", "--config", str(file), "--ram", wrong])
        assert caught.value.code == 2
    capsys.readouterr()


@pytest.mark.parametrize(("text", "size"), [
    ("25GB", 25 * 10**9), ("16GiB", 16 << 30), ("1.5G", 3 << 29), ("512k", 512 << 10), ("700", 700),
    ("2 tb", 2 * 10**12),
])  # fmt: skip
def test_sizes_of_memory(text: str, size: int) -> None:
    from colibri.commands.plan import memory_size

    assert memory_size(text) == size
