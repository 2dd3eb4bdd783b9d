"""The board's model on a disk or in flash: the same bits, memory that does not grow with the file, errors with a name.

The disk is QEMU's virtio block device; what goes wrong on it is QEMU's doing (blkdebug) or stands in the file.
"""
from __future__ import annotations

import json
import os
import re
import tempfile
from dataclasses import dataclass, replace
from pathlib import Path

import pytest

from colibri import board, cli
from colibri.engine import Limits, Model
from colibri.errors import DoesNotFit, InputError, UsageError
from colibri.format import Kinds
from colibri.jobs import Job, JobRefused, JobResult
from colibri.library import constants
from colibri.store import NOWHERE
from colibri.synth import write_random_blob
from colibri.synth_shapes import SMALL, write_shape_blob
from colibri.targets import artefact, pick, program, run_local, run_program
from editing import Edited

pytestmark = pytest.mark.qemu
TIME_LIMIT = 60
NO_DISK = 66
MEBIBYTE = 1 << 20
BLOCK_TOO_LARGE = ",logical_block_size=8192,physical_block_size=8192"


@dataclass(frozen=True)
class Case:
    """A model, a run of it, and the digest the run has on this machine."""

    model: Model
    job: Job
    right: str

    def on(self, store: str, slots: int = 0, **changes: object) -> Job:
        """The job with the model in another place; slots: experts come on demand."""
        job = replace(self.job, board_store=store, **changes)
        if not slots:
            return job
        return replace(job, limits=replace(job.limits, slots=slots, stream_experts=True), store="COPY")


def case_of(path: Path, limits: Limits, prompt: int, generate: int) -> Case:
    """The case of a blob."""
    model = Model.open(path)
    job = Job("disk", limits, [(7919 * i + 101) % model.info().vocab for i in range(prompt)], generate=generate)
    result = run_local(None, job, model, TIME_LIMIT)                            # type: ignore[arg-type]
    assert result.error is None and result.digest
    return Case(model, job, result.digest)


@pytest.fixture(scope="module")
def small(tmp_path_factory: pytest.TempPathFactory) -> Case:
    """Dense and MoE layers, three of four experts, a shared one; 36 blocks of 4096 bytes."""
    path = tmp_path_factory.mktemp("disk") / "small.colibri"
    write_random_blob(path, "mixed", 21, "q4")
    assert path.stat().st_size % 4096 == 0
    return case_of(path, Limits(context=32, batch=6, logit_rows=6, kv="q8"), 11, 6)


@pytest.fixture(scope="module")
def big(tmp_path_factory: pytest.TempPathFactory) -> Case:
    """256 experts of 0.6 MB."""
    path = tmp_path_factory.mktemp("disk") / "big.colibri"
    write_shape_blob(path, replace(SMALL, vocab=2048, expert_ff=384), Kinds.preset("q8"))
    return case_of(path, Limits(context=16, batch=4, logit_rows=4, kv="q8"), 4, 3)


def baremetal() -> object:
    """The target, or a skip with the line that brings it."""
    target = pick(["baremetal"])[0]
    if target.missing():
        pytest.skip(target.missing())
    return target


def good(result: JobResult) -> JobResult:
    """A result without an error and without a bad check."""
    assert result.error is None and result.bad_checks() == [] and result.code == 0
    return result


def boot(case: Case, job: Job, drive: str | None, device: str = "", legacy: bool = False, cpu: str = "cortex-a76"
         ) -> tuple[JobResult, str]:
    """Boot with a disk of our own; the result and all that came over the UART."""
    baremetal()
    job = board.suited(job)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "job"
        path.write_bytes(board.packed(job, case.model))
        uart = Path(folder) / "uart"
        command = [
            str(program("qemu-system-aarch64")), "-M", "virt", "-cpu", cpu, "-nodefaults", "-display", "none",
            "-m", f"{board.memory(job, case.model) // MEBIBYTE + 2}M", "-no-reboot",
            "-chardev", f"stdio,id=uart,logfile={board.escape(uart)}", "-serial", "chardev:uart",
            "-semihosting-config", "enable=on,target=native",
            "-kernel", str(artefact("baremetal_arm64", "firmware.elf")),
            "-device", f"loader,file={board.escape(path)},addr={board.layout()['JOB']:#x},force-raw=on",
            *(board.disk(drive, device, legacy) if drive is not None else []),
        ]
        result = run_program("baremetal", command, TIME_LIMIT)
        return result, uart.read_text("utf-8")


def raw(path: Path) -> str:
    """A drive that reads a file."""
    return f"format=raw,file={board.escape(path)}"


# ---- the same bits from everywhere ----

@pytest.mark.sampled(4)
@pytest.mark.parametrize("workers", (1, 2, 3))
@pytest.mark.parametrize("slots", (1, 3))
def test_a_model_larger_than_the_memory_runs_from_the_disk(big: Case, slots: int, workers: int) -> None:
    """160 MB of experts, and 64 MiB of RAM for firmware, resident weights, slots and stacks."""
    job = board.suited(big.on("block", slots=slots, workers=workers))
    ram = board.memory(job, big.model)
    assert ram <= 64 * MEBIBYTE and big.model.bytes > 2.5 * ram
    result = good(baremetal().run(job, big.model, TIME_LIMIT))
    assert (result.digest, result.store) == (big.right, "block")
    assert result.threads == workers and (result.helped > 0) == (workers > 1)
    assert result.planned_bytes == result.used_bytes == big.model.plan(job.planned()).pool_bytes
    info, stats = big.model.info(), result.stats
    assert stats["expert_misses"] > info.experts and result.disk["most_in_flight"] == slots
    resident = stats["bytes_fetched"] - stats["expert_misses"] * info.expert_run_bytes
    assert 0 < resident <= info.resident_bytes                      # padding between tensors is not read
    assert result.disk["bytes"] == info.tables_bytes + stats["bytes_fetched"]


@pytest.mark.sampled(5)
@pytest.mark.parametrize("workers", (1, 3))
@pytest.mark.parametrize("slots", (0, 1, 3, 8))
@pytest.mark.parametrize("store", board.STORES)
def test_every_place_and_number_of_slots_gives_the_same_bits(small: Case, store: str, slots: int, workers: int) -> None:
    job = small.on(store, slots, workers=workers)
    result = good(baremetal().run(job, small.model, TIME_LIMIT))
    assert (result.digest, result.store) == (small.right, store)
    assert result.planned_bytes == small.model.plan(board.suited(job).planned()).pool_bytes
    assert bool(result.disk) == (store == "block")
    assert slots or store == "block" or result.stats["bytes_fetched"] == 0


@pytest.mark.sampled(4)
@pytest.mark.parametrize("change", ({"budget": 1}, {"reset": True}, {"two_sessions": True}, {"two_sequences": True},
                                    {"hostile_float": True}, {"fill": 0x7FC0A5C3}, {"store_faults": 5},
                                    {"kernel": "portable"}))
@pytest.mark.parametrize("store", ("flash", "block"))
def test_what_must_not_matter(small: Case, store: str, change: dict) -> None:
    result = good(baremetal().run(small.on(store, 3, **change), small.model, TIME_LIMIT))
    assert result.digest == small.right
    assert (result.recovered > 0) == ("store_faults" in change)


def test_flash_takes_no_memory_from_the_model(big: Case, tmp_path: Path) -> None:
    """40 MB of flash in place: the board's RAM is what it is with no model at all, and nothing is copied."""
    path = tmp_path / "flash.colibri"
    write_shape_blob(path, replace(SMALL, vocab=2048, expert_ff=384, layers=2), Kinds.preset("q8"))
    case = case_of(path, big.job.limits, 4, 3)
    job = case.on("flash")
    assert 40e6 < case.model.bytes < board.layout()["FLASH_BYTES"]
    assert board.memory(job, case.model) < 50 * MEBIBYTE < board.memory(case.on("ram"), case.model) - 35 * MEBIBYTE
    result = good(baremetal().run(job, case.model, TIME_LIMIT))
    assert (result.digest, result.stats["bytes_fetched"]) == (case.right, 0)
    with pytest.raises(DoesNotFit, match="do not fit into the board's flash of 67108864; use --store block"):
        baremetal().run(big.on("flash"), big.model, TIME_LIMIT)


def test_an_unknown_place_is_refused(small: Case) -> None:
    with pytest.raises(UsageError, match="expected one of ram, flash, block"):
        board.suited(small.on("tape"))


@pytest.mark.parametrize(("device", "legacy", "virtio"), [
    ("", False, 2), ("", True, 1), (",queue-size=8", False, 2), (",queue-size=64", True, 1),
    (",logical_block_size=4096,physical_block_size=4096", False, 2),
    (",logical_block_size=1024,physical_block_size=4096", True, 1),
])
def test_every_kind_of_disk(small: Case, device: str, legacy: bool, virtio: int) -> None:
    """Both versions of virtio, short queues, blocks larger than a tensor's alignment."""
    result, _ = boot(small, small.on("block", 3), raw(small.model.path), device, legacy)
    assert (good(result).digest, result.disk["virtio"]) == (small.right, virtio)
    assert result.disk["most_in_flight"] == 3


def test_answers_come_in_any_order(small: Case) -> None:
    """Nobody can order which: of several runs in some an answer passed an older request."""
    passed = [boot(small, small.on("block", 4), raw(small.model.path))[0] for _ in range(5)]
    assert {good(result).digest for result in passed} == {small.right}
    assert sum(result.disk["passed"] for result in passed) > 0


def test_the_mmu_is_not_needed(small: Case) -> None:
    """With it off, all memory is Device memory and nothing is cached."""
    job = board.suited(replace(small.on("block", 2), board_mmu_off=True))
    result, uart = boot(small, job, raw(small.model.path))
    assert good(result).digest == small.right and "mmu off" in uart
    flash = replace(small.on("flash"), board_mmu_off=True)
    assert good(baremetal().run(flash, small.model, TIME_LIMIT)).digest == small.right


# ---- what a disk can do wrong ----

def sector_of(case: Case, role: int) -> tuple[int, int, int]:
    """A tensor of a role: the sector its middle lies in, its layer, its offset."""
    rows = Edited(case.model.path).rows("TENSORS", "tensor")
    tensor = next(row for row in rows if row.role == role)
    return (tensor.offset + tensor.bytes // 2) // 512, tensor.layer, tensor.offset


def broken(path: Path, sector: int, times: int = 0) -> str:
    """A drive that answers so many reads of one sector with an error; 0: all of them."""
    drive = f"driver=raw,file.driver=blkdebug,file.image.driver=file,file.image.filename={board.escape(path)}"
    for rule in range(max(times, 1)):
        it = f"file.inject-error.{rule}"
        drive += (f",{it}.event=none,{it}.iotype=read,{it}.errno=5,{it}.sector={sector},"
                  f"{it}.once={'on' if times else 'off'}")
    return drive


def refused(result: JobResult) -> JobRefused:
    """The refusal a result ended with."""
    assert isinstance(result.error, JobRefused) and result.code == 3
    return result.error


TRIES = 4       # of the driver; then the session is told


@pytest.mark.parametrize("times", (1, TRIES - 1, TRIES, 2 * TRIES + 1))
@pytest.mark.parametrize("role", ("ROLE_EXPERT_GATE", "ROLE_Q"))
def test_an_error_that_passes_is_got_over(small: Case, role: str, times: int) -> None:
    """By the driver that reads again; and where it gives up, by the session that is told and goes on."""
    sector, layer, _ = sector_of(small, getattr(constants(), role))
    drive, resumes = broken(small.model.path, sector, times), times // TRIES
    result, uart = boot(small, small.on("block", 2, store_resumes=resumes), drive)
    assert (good(result).digest, result.disk["retries"]) == (small.right, times - resumes)
    assert len(result.again) == resumes == uart.count(f" was answered with status 1, {TRIES} times\n")
    assert result.used_bytes == result.planned_bytes and result.stats["rows"] > 0
    if resumes:
        places = {(NOWHERE, NOWHERE)} if role == "ROLE_Q" else {(layer, expert) for expert in range(4)}
        assert {lost[:2] for lost in result.again} <= places
        fewer = small.on("block", 2, store_resumes=resumes - 1)
        ended, _ = boot(small, fewer, broken(small.model.path, sector, times))
        assert refused(ended).status == "FETCH" and ended.lost == result.again[-1] and not ended.digests


@pytest.mark.parametrize("resumes", (0, 2))
def test_an_expert_that_cannot_be_read_is_named(small: Case, resumes: int) -> None:
    _, layer, offset = sector_of(small, constants().ROLE_EXPERT_GATE)
    drive = broken(small.model.path, offset // 512)
    result, uart = boot(small, small.on("block", 2, store_resumes=resumes), drive)
    error = refused(result)
    assert error.status == "FETCH" and result.lost == (layer, 0, offset) and result.again == [result.lost] * resumes
    assert f"expert 0 of layer {layer}: the bytes from {offset} on could not be read" in str(error)
    said = f"board: the disk cannot be read: sector {offset // 512} was answered with status 1, {TRIES} times\n"
    assert uart.count(said) == 1 + resumes
    assert result.disk["retries"] == (TRIES - 1) * (1 + resumes)


def test_resident_weights_that_cannot_be_read_are_named(small: Case) -> None:
    sector, _, offset = sector_of(small, constants().ROLE_Q)
    result, uart = boot(small, small.on("block", 2), broken(small.model.path, sector))
    error = refused(result)
    assert (error.call, error.status, error.detail.offset) == ("start", "FETCH", offset)
    assert "resident weights" in str(error) and "cannot be read" in uart


@pytest.mark.parametrize("role", ("ROLE_EXPERT_GATE", "ROLE_EXPERT_DOWN"))
def test_a_flipped_byte_of_an_expert_is_named_and_never_used(small: Case, role: str, tmp_path: Path) -> None:
    _, layer, offset = sector_of(small, constants().ROLE_EXPERT_GATE)
    run, blob = small.model.info().expert_run_bytes, bytearray(small.model.path.read_bytes())
    expert = 2
    blob[sector_of(small, getattr(constants(), role))[2] + expert * run + 5] ^= 4
    path = tmp_path / "flipped.colibri"
    path.write_bytes(blob)
    result, _ = boot(small, small.on("block", 3), raw(path))
    error = refused(result)
    assert error.status == "CORRUPT" and result.lost == (layer, expert, offset + expert * run)
    assert f"expert {expert} of layer {layer}" in str(error) and "none was used" in str(error)


def unusable(result: JobResult, uart: str, sentence: str) -> None:
    """The board said why in one sentence, and ended with the code of an input that cannot be read."""
    assert isinstance(result.error, InputError) and str(NO_DISK) in str(result.error)
    assert sentence in str(result.error)
    assert len(re.findall(r"^board: .*$", uart, re.M)) == 1


def test_no_disk(small: Case) -> None:
    """None, and one that takes fewer pieces of memory in a request than the driver needs."""
    drive = raw(small.model.path)
    for drive, device in ((None, ""), (drive, ",queue-size=4"), (drive, BLOCK_TOO_LARGE)):
        unusable(*boot(small, small.on("block", 2), drive, device), "there is no disk: no virtio block device")


def test_a_disk_that_is_too_short(small: Case, tmp_path: Path) -> None:
    path = tmp_path / "short.colibri"
    path.write_bytes(small.model.path.read_bytes()[:-4096])
    unusable(*boot(small, small.on("block", 2), raw(path)), f"the disk is too short: it has {small.model.bytes - 4096} "
             f"bytes, the model {small.model.bytes}")


def test_a_disk_whose_head_cannot_be_read(small: Case) -> None:
    unusable(*boot(small, small.on("block", 2), broken(small.model.path, 3)), "the disk cannot be read: sector 0")


def test_a_disk_with_another_file(small: Case, tmp_path: Path) -> None:
    path = tmp_path / "other"
    for content, status, phrase in ((bytes(small.model.bytes), "MAGIC", "not a Colibri blob"),
                                    (os.urandom(64) + bytes(small.model.bytes), "MAGIC", "not a Colibri blob"),
                                    (small.model.path.read_bytes()[:4096] + bytes(small.model.bytes), "CORRUPT", "")):
        path.write_bytes(content)
        result, uart = boot(small, small.on("block", 2), raw(path))
        assert refused(result).status == status
        assert re.search(rf"^board: the disk does not hold the job's model: .*{phrase}", uart, re.M)


@pytest.mark.slow
def test_a_disk_that_keeps_silent_is_given_up(small: Case) -> None:
    """A drive that brings 512 bytes a second: what is wanted after the head does not come in time."""
    drive = raw(small.model.path) + ",throttling.bps-total=512"
    result, uart = boot(small, small.on("block", 2), drive)
    assert refused(result).status == "FETCH"
    assert "board: the disk does not answer; it was switched off\n" in uart


# ---- the commands ----

def command(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> tuple[int, dict]:
    """`colibri ... --json`: exit code and document."""
    code = cli.main([*arguments, "--json", "-q"])
    return code, json.loads(capsys.readouterr().out)


def test_verify_says_where_the_model_was(small: Case, capsys: pytest.CaptureFixture[str]) -> None:
    baremetal()
    code, document = command(["verify", str(small.model.path), "--target", "linux,baremetal",
                              "--store", "ram,flash,block", "--slots", "2"], capsys)
    assert code == 0 and document["one_answer"]
    assert [(row["target"], row["store"]) for row in document["rows"]] == [
        ("linux", "mapped"), *(("baremetal", store) for store in board.STORES)]
    used = [row["used_bytes"] for row in document["rows"]]
    assert used[0] == used[1] == used[2] != used[3]


def test_run_answers_from_every_place(capsys: pytest.CaptureFixture[str]) -> None:
    """With text: what is read from a disk is tokenized here."""
    baremetal()
    demo = str(next((Path(board.__file__).parent / "demo").glob("demo.colibri")))
    base = ["run", demo, "-p", "Once upon a time", "-n", "6", "--context", "32"]
    code, expected = command(base, capsys)
    assert code == 0 and expected["text"]
    for store in board.STORES:
        code, document = command([*base, "--target", "baremetal", "--store", store], capsys)
        assert code == 0
        for key in ("text", "tokens", "digest", "prompt_ids"):
            assert document[key] == expected[key], key
        assert (document["experts"]["misses"] > 0) == (store == "block")


@pytest.mark.parametrize(("more", "sentence"), [
    (["--store", "flash"], "is a place of the board"),
    (["--target", "baremetal", "--store", "tape"], "ram, flash, block"),
    (["--target", "baremetal", "--store", "all"], "one place"),
])
def test_places_that_make_no_sense_are_a_usage_error(more: list[str], sentence: str,
                                                     capsys: pytest.CaptureFixture[str]) -> None:
    demo = str(Path(board.__file__).parent / "demo" / "demo.colibri")
    assert cli.main(["run", demo, "-p", "x", *more]) == 2
    assert sentence in capsys.readouterr().err
