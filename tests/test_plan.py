"""Known memory: the plan is one number everywhere, exact to the byte, and nothing is written where it is
refused."""

import json
import re
import shutil
import subprocess
import xml.etree.ElementTree as ElementTree
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as some

from colibri import cli, library, targets
from colibri.engine import CoreError, Limits, Model, Session
from colibri.jobs import Job
from colibri.local import RED, Pool
from colibri.synth import write_random_blob

NAMES = targets.names()
PROMPT = [5, 1, 4, 1, 5, 9, 2, 6, 5, 3, 5]
LIMITS = {
    "small": Limits(context=16, batch=1, logit_rows=1),
    "digest": Limits(context=24, batch=16, logit_rows=16, kv="f32"),
    "many": Limits(context=33, batch=7, logit_rows=3, sequences=3, workers=4, kv="q8", rewind=9),
    "streamed": Limits(context=20, batch=5, logit_rows=5, slots=3, stream_experts=True, resident_copy=True),
    "ahead": Limits(context=20, batch=11, logit_rows=11, slots=3, stream_experts=True, look_ahead=True),
}


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Model:
    """A model with dense and MoE layers and a shared expert."""
    path = tmp_path_factory.mktemp("plan") / "mixed.colibri"
    write_random_blob(path, "mixed", seed=2, kinds="q4")
    return Model.open(path)


@pytest.mark.parametrize("which", LIMITS)
@pytest.mark.parametrize("name", NAMES)
def test_one_number_on_every_target(name: str, which: str, model: Model) -> None:
    """Each target plans for itself: the same bytes as here, all used; one byte less and odd addresses are
    refused with
    nothing written; red zones of 4 KiB on both sides stay as they were."""
    target = targets.pick([name])[0]
    if how := target.missing():
        pytest.skip(f"target {name}: {how}")
    limits = LIMITS[which]
    store = "COPY" if limits.stream_experts else "ADDRESSABLE"
    job = Job(
        f"plan {which}",
        limits,
        PROMPT,
        generate=2,
        digest=limits.logit_rows == limits.batch,
        fill=0x5AA5C33C,
        plan_check=True,
        store=store,
    )
    result = target.run(job, model)
    assert result.error is None and result.bad_checks() == []
    assert result.planned_bytes == model.plan(limits).pool_bytes == result.used_bytes
    assert {"pool_small", "pool_align", "red_zones", "used_is_planned"} <= set(result.checks)
    assert any(check.endswith("nothing_written") for check in result.checks)


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=some.data())
def test_any_limits_fill_their_pool_exactly(model: Model, data: some.DataObject) -> None:
    """For limits of any mixture: the session uses all its pool, keeps out of the red zones, and runs in
    it."""
    batch = data.draw(some.integers(1, 20))
    streamed = data.draw(some.booleans())
    context = data.draw(some.integers(1, 70))
    limits = Limits(
        context=context,
        batch=batch,
        sequences=data.draw(some.integers(1, 3)),
        workers=data.draw(some.integers(1, 3)),
        logit_rows=data.draw(some.integers(1, batch)),
        rewind=data.draw(some.integers(0, min(20, context))),
        kv=data.draw(some.sampled_from(("f32", "f16", "q8"))),
        slots=data.draw(some.integers(1, 8)) if streamed else 0,
        stream_experts=streamed,
        look_ahead=streamed and data.draw(some.booleans()),
        resident_copy=data.draw(some.booleans()),
    )
    plan = model.plan(limits)
    assert plan == model.plan(limits)
    pool = Pool(plan.pool_bytes, data.draw(some.sampled_from((0, 0xFFFFFFFF, 0x7FC0A5C3))))
    with Session(model, limits, pool=pool.view) as session:
        tokens = PROMPT[: min(limits.context, batch)]
        for sequence in range(limits.sequences):
            session.feed(tokens, sequence)
            session.finish()
        assert session.stats().pool_used == plan.pool_bytes
    assert pool.damage() == 0


@pytest.mark.parametrize("which", LIMITS)
def test_regions_lie_side_by_side(which: str, model: Model) -> None:
    """Regions ascend, do not overlap, begin at multiples of 64, and end where the pool ends."""
    plan = model.plan(LIMITS[which])
    end = 0
    for region in [region for region in plan.regions if region.bytes]:
        assert region.offset >= end and region.offset % 64 == 0
        assert region.offset - end < 64
        end = region.offset + region.bytes
    assert plan.align == 64 and 0 <= plan.pool_bytes - end < 64
    assert sum(region.bytes for region in plan.regions) <= plan.pool_bytes


def test_what_costs_what(model: Model) -> None:
    """A longer context costs kv_bytes_per_token per position in whole tiles; slots cost whole experts."""
    base = Limits(context=256)
    plan, longer = model.plan(base), model.plan(replace(base, context=512))

    def kv(p):
        return next(region.bytes for region in p.regions if region.name == "kv")

    assert kv(longer) - kv(plan) == 256 * plan.kv_bytes_per_token
    assert kv(model.plan(replace(base, sequences=2))) == 2 * kv(plan)
    assert kv(plan) * 2 == kv(model.plan(replace(base, kv="f32")))
    assert model.plan(replace(base, batch=64)).pool_bytes > plan.pool_bytes
    assert plan.resident_bytes > 0 and plan.expert_bytes > 0 and plan.largest_unit_macs > 0
    info = model.info()
    few = replace(base, stream_experts=True, slots=3)
    more = model.plan(replace(few, slots=4)).pool_bytes - model.plan(few).pool_bytes
    assert info.expert_run_bytes <= more <= info.expert_run_bytes + 4096
    ahead = model.plan(replace(few, look_ahead=True)).pool_bytes - model.plan(few).pool_bytes
    assert info.top_k * info.expert_run_bytes < ahead <= info.top_k * info.expert_run_bytes + 4096
    with pytest.raises(CoreError, match="SLOTS|slots"):
        model.plan(replace(base, stream_experts=True, slots=0))


def test_every_smaller_pool_is_refused(model: Model) -> None:
    """Not only one byte less: any pool that is too small, down to nothing."""
    limits = LIMITS["small"]
    size = model.plan(limits).pool_bytes
    for taken in [size - 1, size - 64, size // 2, 4096, 64, 1]:
        pool = Pool(size, 0xA5A5A5A5)
        before = bytes(pool.view)
        with pytest.raises(CoreError) as caught:
            Session(model, limits, pool=pool.view[:taken])
        assert caught.value.status == "POOL_SMALL" and caught.value.exit_code == 5
        assert bytes(pool.view) == before and pool.damage() == 0


def test_a_larger_pool_is_not_touched_beyond_the_plan(model: Model) -> None:
    """What is given beyond the plan stays as it was."""
    limits = LIMITS["digest"]
    size = model.plan(limits).pool_bytes
    pool = Pool(size + 8192, 0x5A5A5A5A)
    with Session(model, limits, pool=pool.view) as session:
        session.feed(PROMPT)
        session.finish()
    assert bytes(pool.view[size:]) == b"\x5a" * 8192 and pool.damage() == 0


def test_damage_is_seen() -> None:
    """The red zones can fail."""
    pool = Pool(1000, None)
    assert pool.damage() == 0
    pool.memory[RED - 1] = 0
    pool.memory[RED + 1000] = 0
    assert pool.damage() == 2


# ---- the command ----


def test_document_of_the_contract(model: Model, capsys: pytest.CaptureFixture[str]) -> None:
    """`plan --json` has the promised fields, and its limits are those of the plan."""
    assert cli.main(["plan", str(model.path), "--context", "64", "--kv", "q8", "--json"]) == 0
    document = json.loads(capsys.readouterr().out)
    assert {
        "schema",
        "pool_bytes",
        "align",
        "regions",
        "slots",
        "resident_bytes",
        "expert_bytes",
        "kv_bytes_per_token",
        "largest_unit_macs",
        "fits",
    } <= set(document)
    assert (
        document["pool_bytes"] == model.plan(Limits(context=64, kv="q8")).pool_bytes
        and document["fits"] is True
    )
    assert document["limits"]["context"] == 64 and all(
        set(r) == {"name", "bytes"} for r in document["regions"]
    )


def test_memory_that_is_too_small_is_exit_5(model: Model, capsys: pytest.CaptureFixture[str]) -> None:
    """--memory is judged to the byte."""
    size = model.plan(Limits(context=64)).pool_bytes
    assert cli.main(["plan", str(model.path), "--context", "64", "--memory", str(size)]) == 0
    assert cli.main(["plan", str(model.path), "--context", "64", "--memory", str(size - 1)]) == 5
    assert f"needs {size} bytes, {size - 1} are allowed" in capsys.readouterr().err
    assert cli.main(["plan", str(model.path), "--context", "64", "--memory", "1G"]) == 0
    with pytest.raises(SystemExit) as caught:
        cli.main(["plan", str(model.path), "--memory", "much"])
    assert caught.value.code == 2


def test_header_compiles_and_starts_a_session(model: Model, tmp_path: Path) -> None:
    """The C header's pool and limits are what colibri_start accepts; a pool one byte smaller is refused."""
    compiler = shutil.which("gcc")
    archive = library.data_folder() / f"linux_{targets.platform.machine()}" / "libcolibri.a"
    if compiler is None:
        pytest.skip("gcc is not installed")
    assert archive.is_file(), "libcolibri.a is not built: run `python -m SCons`"
    assert (
        cli.main(
            [
                "plan",
                str(model.path),
                "--context",
                "40",
                "--sequences",
                "2",
                "-q",
                "--header",
                str(tmp_path / "plan.h"),
            ]
        )
        == 0
    )
    (tmp_path / "main.c").write_text("""#include <stdio.h>
#include "colibri.h"
#include "plan.h"
static unsigned char pool[COLIBRI_PLAN_POOL_BYTES] __attribute__((aligned(COLIBRI_PLAN_ALIGN)));
static unsigned char blob[1 << 20] __attribute__((aligned(64)));
static const colibri_limits limits = COLIBRI_PLAN_LIMITS;
int main(int argc, char **argv)
{
    colibri_model model;
    colibri_session *session = NULL;
    colibri_info info = {.struct_bytes = sizeof info};
    FILE *file = argc > 1 ? fopen(argv[1], "rb") : NULL;
    size_t n = file ? fread(blob, 1, sizeof blob, file) : 0;
    if (colibri_open(&model, blob, n, n, NULL) < 0 || colibri_model_info(&model, &info) < 0) return 1;
    int32_t small = colibri_start(&model, &limits, NULL, pool, sizeof pool - 1, &session, NULL);
    if (small != COLIBRI_ERROR_POOL_SMALL) return 2;
    if (colibri_start(&model, &limits, NULL, pool, sizeof pool, &session, NULL) < 0) return 3;
    printf("%s ", COLIBRI_PLAN_MODEL);
    for (int i = 0; i < 32; i++) printf("%02x", info.identity[i]);
    return 0;
}
""")
    include = library.data_folder() / "include"
    subprocess.run(
        [
            compiler,
            "-std=c99",
            "-Wall",
            "-Wextra",
            "-Werror",
            f"-I{include}",
            f"-I{tmp_path}",
            str(tmp_path / "main.c"),
            str(archive),
            "-o",
            str(tmp_path / "main"),
        ],
        check=True,
    )
    done = subprocess.run(
        [str(tmp_path / "main"), str(model.path)], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0
    planned, found = done.stdout.split()
    assert planned == found == model.info().identity


def test_picture_shows_every_region(model: Model, tmp_path: Path) -> None:
    """The SVG is well formed, its blocks fill the bar, and it names every region with its bytes."""
    picture = tmp_path / "plan.svg"
    assert cli.main(["plan", str(model.path), "--context", "40", "-q", "--svg", str(picture)]) == 0
    root = ElementTree.fromstring(picture.read_text())
    space = "{http://www.w3.org/2000/svg}"
    titles = [element.text or "" for element in root.iter(f"{space}title")]
    plan = model.plan(Limits(context=40))
    for region in plan.regions:
        assert (f"{region.name}: {region.bytes} bytes" in titles) == (region.bytes > 0)
    heights = [
        float(rect.get("height", "0"))
        for rect in root.iter(f"{space}rect")
        if rect.find(f"{space}title") is not None
    ]
    assert abs(sum(heights) - 420) < 2
    assert re.search(r"pool of (\d+) bytes", titles[0])[1] == str(plan.pool_bytes)


def test_plan_from_a_config_alone(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A config.json gives the pool of the blob it would become."""
    config = {
        "model_type": "mixtral",
        "vocab_size": 96,
        "hidden_size": 64,
        "intermediate_size": 96,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "num_local_experts": 4,
        "num_experts_per_tok": 2,
        "max_position_embeddings": 128,
        "rms_norm_eps": 1e-5,
        "rope_theta": 10000.0,
        "hidden_act": "silu",
    }
    file = tmp_path / "config.json"
    file.write_text(json.dumps(config))
    assert cli.main(["plan", "--config", str(file), "--weights", "q4", "--json"]) == 0
    first = json.loads(capsys.readouterr().out)
    assert first["pool_bytes"] > 10000 and first["expert_bytes"] > 0 and first["model"] is None
    assert first["limits"]["context"] == 128
    file.write_text(json.dumps({**config, "num_key_value_heads": 4}))
    assert cli.main(["plan", "--config", str(file), "--weights", "q4", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["kv_bytes_per_token"] == 2 * first["kv_bytes_per_token"]
    assert cli.main(["plan"]) == 2
