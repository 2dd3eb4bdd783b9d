"""The firmware on QEMU's virt board: every way to boot, and every way to fail, which must never be silence."""
from __future__ import annotations

import struct
import subprocess
from dataclasses import dataclass, field, replace
from pathlib import Path

import pytest

from colibri.engine import UNLIMITED, Limits, Model
from colibri.jobs import Job, JobResult, constants, parse_report
from colibri.synth import write_random_blob
from colibri.board import layout as board
from colibri.targets import artefact, program, run_local

pytestmark = pytest.mark.qemu
FLAGS_AT = 12                                   # runner_job.flags
TIME_LIMIT = 60                                 # seconds of one boot
DATA_ABORT, TRANSLATION_FAULT, ALIGNMENT_FAULT = 0x25, 0x06, 0x21


@dataclass
class Boot:
    """What a boot of the firmware gave."""

    code: int
    report: str
    result: JobResult = field(init=False)

    def __post_init__(self) -> None:
        self.result = parse_report("baremetal", self.report)

    def fault(self) -> dict[str, int]:
        """The registers of the fault line."""
        line = next(line for line in self.report.splitlines() if line.startswith("fault "))
        words = line.split()[1:]
        return {name: int(value, 16) for name, value in zip(words[::2], words[1::2], strict=True)}


@dataclass(frozen=True)
class Bench:
    """A model and a job to boot with."""

    folder: Path
    model: Model
    job: Job

    def packed(self, board_flags: int = 0) -> bytes:
        """The job as bytes, with flags that only boards know."""
        data = bytearray(self.job.pack(self.model.bytes, self.model.plan(self.job.planned())))
        flags = struct.unpack_from("<I", data, FLAGS_AT)[0] | board_flags
        struct.pack_into("<I", data, FLAGS_AT, flags)
        return bytes(data)

    def boot(self, job: bytes | None, blob: bytes | None = None, machine: str = "virt", cpu: str = "cortex-a76",
             memory: str = "256M", cores: int = 1, options: tuple[str, ...] = ()) -> Boot:
        """Run the firmware until it ends."""
        emulator = program("qemu-system-aarch64")
        if emulator is None:
            pytest.skip("qemu-system-aarch64 is not installed")
        place = board()
        loads: list[str] = []
        for name, data in (("JOB", job), ("BLOB", self.model.path.read_bytes() if blob is None else blob)):
            if data is not None:
                path = self.folder / name
                path.write_bytes(data)
                loads += ["-device", f"loader,file={path},addr={place[name]:#x},force-raw=on"]
        command = [emulator, "-M", machine, "-cpu", cpu, "-m", memory, "-smp", str(cores),
                   "-display", "none", "-monitor", "none", "-serial", "stdio", "-nic", "none", "-no-reboot",
                   "-semihosting-config", "enable=on,target=native",
                   "-kernel", str(artefact("baremetal_arm64", "firmware.elf")),
                   *loads, *options]
        done = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False,
                              timeout=TIME_LIMIT)
        return Boot(done.returncode, done.stdout)


@pytest.fixture(scope="module")
def bench(tmp_path_factory: pytest.TempPathFactory) -> Bench:
    """A small random mixture of experts."""
    folder = tmp_path_factory.mktemp("board")
    write_random_blob(folder / "random.colibri", "moe", kinds="q4")
    job = Job("board", Limits(context=32, batch=8, logit_rows=8), prompt=[1, 2, 3, 4, 5], generate=3)
    return Bench(folder, Model.open(folder / "random.colibri"), job)


@pytest.fixture(scope="module")
def expected(bench: Bench) -> str:
    """The digest of the same job in this process."""
    result = run_local(None, bench.job, bench.model, TIME_LIMIT)            # type: ignore[arg-type]
    assert result.error is None and result.digest
    return result.digest


@pytest.mark.parametrize(("machine", "level"), [
    ("virt", "el1"), ("virt,virtualization=on", "el2"), ("virt,secure=on", "el3"),
    ("virt,secure=on,virtualization=on", "el3"),
])
def test_every_exception_level_leads_to_the_same_answer(bench: Bench, expected: str, machine: str, level: str) -> None:
    boot = bench.boot(bench.packed(), machine=machine)
    assert boot.code == 0, boot.report
    assert f"board {level} mmu on" in boot.report
    assert boot.result.digest == expected


@pytest.mark.parametrize(("cpu", "level"), [("cortex-a53", "neon"), ("cortex-a72", "neon"), ("cortex-a76", "dotprod"),
                                            ("max", "dotprod")])
def test_every_processor_gives_the_same_answer(bench: Bench, expected: str, cpu: str, level: str) -> None:
    """With the best kernels its ID register speaks of, and with the portable ones."""
    boot = bench.boot(bench.packed(), cpu=cpu)
    assert (boot.code, boot.result.digest, boot.result.kernel) == (0, expected, level), boot.report
    plain = replace(bench, job=replace(bench.job, kernel="portable"))
    boot = plain.boot(plain.packed(), cpu=cpu)
    assert (boot.code, boot.result.digest, boot.result.kernel) == (0, expected, "portable"), boot.report


def test_without_mmu_and_with_alignment_checked_the_answer_is_the_same(bench: Bench, expected: str) -> None:
    boot = bench.boot(bench.packed(constants().BOARD_MMU_OFF))
    assert "mmu off" in boot.report and boot.result.kernel == "portable"
    assert (boot.code, boot.result.digest) == (0, expected), boot.report


@pytest.mark.slow
@pytest.mark.parametrize("cores", [2, 4])
@pytest.mark.parametrize(("machine", "threads"), [("virt", 4), ("virt,virtualization=on", 4), ("virt,secure=on", 1)])
def test_further_cores_run_units_where_they_can_be_had(bench: Bench, machine: str, threads: int, cores: int) -> None:
    """PSCI by hvc at EL1, by smc at EL2; at EL3 there is none, and one core does it all. One host thread for all cores:
    each has its turns, of a tenth of a second, whatever else this machine does."""
    limits = replace(bench.job.limits, context=1024, workers=4)
    one = replace(bench, job=replace(bench.job, limits=limits, generate=1000))
    boot = one.boot(one.packed(), machine=machine, cores=cores, options=("-accel", "tcg,thread=single"))
    assert boot.code == 0, boot.report
    assert boot.result.digest == run_local(None, one.job, one.model, TIME_LIMIT).digest     # type: ignore[arg-type]
    assert boot.result.threads == min(threads, cores)       # CPU_ON for a core that is not there is refused
    assert (boot.result.helped > 0) == (threads > 1)


def test_cores_that_are_not_there_or_not_wanted_are_done_without(bench: Bench, expected: str) -> None:
    for workers, flags, cores in ((3, 0, 1), (2, constants().BOARD_MMU_OFF, 2), (1, 0, 2)):
        one = replace(bench, job=replace(bench.job, limits=replace(bench.job.limits, workers=workers)))
        boot = one.boot(one.packed(flags), cores=cores)
        assert (boot.code, boot.result.digest, boot.result.threads) == (0, expected, 1), boot.report


def test_a_fault_on_any_core_ends_the_run(bench: Bench) -> None:
    boot = bench.boot(bench.packed(constants().BOARD_FAULT), cores=4)
    assert boot.code == board()["EXIT_FAULT"] and boot.fault()["far"] == board()["FAULT_ADDRESS"]


def test_stack_use_is_measured(bench: Bench) -> None:
    boot = bench.boot(bench.packed())
    assert 256 < boot.result.stack_bytes < 65536


def longest_instructions(boot: Boot) -> int:
    """Instructions of the longest colibri_advance: with -icount shift=0 a nanosecond is an instruction."""
    line = next(line for line in boot.report.splitlines() if line.startswith("time "))
    return int(line.split()[3]) * 1000


def test_a_call_takes_no_more_instructions_than_its_budget_allows(bench: Bench, expected: str) -> None:
    counted = ("-icount", "shift=0")
    plan = bench.model.plan(bench.job.planned())
    runs = []
    for _ in range(2):
        boots = {budget: replace(bench, job=replace(bench.job, budget=budget)) for budget in (1, 7, UNLIMITED)}
        found = {budget: one.boot(one.packed(), options=counted) for budget, one in boots.items()}
        assert {boot.result.digest for boot in found.values()} == {expected}
        longest = {budget: longest_instructions(boot) for budget, boot in found.items()}
        print(f"longest call: {longest} instructions, largest unit {plan.largest_unit_macs} multiply-adds")
        # one unit: the portable kernel's instructions per multiply-add, and the walk of the tape around it
        assert longest[1] <= 5 * plan.largest_unit_macs + 20_000
        assert longest[1] < longest[7] < longest[UNLIMITED]
        runs.append(longest)
    for budget in runs[0]:                                  # it repeats, but for the clock's last digit
        assert abs(runs[0][budget] - runs[1][budget]) <= 2000


def test_a_fault_reports_what_the_hardware_knows_and_exits_with_its_own_code(bench: Bench) -> None:
    boot = bench.boot(bench.packed(constants().BOARD_FAULT))
    assert boot.code == board()["EXIT_FAULT"]
    fault = boot.fault()
    assert fault["esr"] >> 26 == DATA_ABORT and fault["esr"] & 0x3F == TRANSLATION_FAULT
    assert fault["far"] == board()["FAULT_ADDRESS"]
    assert 0x40200000 <= fault["elr"] < 0x40400000          # inside the image's code
    assert boot.result.error is not None                    # a report without its last line is an error


def test_an_unaligned_access_is_caught_while_the_mmu_is_off(bench: Bench) -> None:
    boot = bench.boot(bench.packed(constants().BOARD_FAULT | constants().BOARD_MMU_OFF))
    assert boot.code == board()["EXIT_FAULT"]
    assert boot.fault()["esr"] & 0x3F == ALIGNMENT_FAULT
    assert boot.fault()["far"] == board()["JOB"] + 1


def test_memory_that_is_not_there_is_a_fault_not_silence(bench: Bench) -> None:
    boot = bench.boot(bench.packed(), memory="50M")         # RAM ends inside the job's region
    assert boot.code != 0
    assert "done 0" not in boot.report


def test_without_a_job_the_board_says_so(bench: Bench) -> None:
    boot = bench.boot(None)
    assert boot.code == board()["EXIT_NO_JOB"]
    assert "no job" in boot.report


def test_a_damaged_blob_is_refused_by_name(bench: Bench) -> None:
    blob = bytearray(bench.model.path.read_bytes())
    blob[200] ^= 1
    boot = bench.boot(bench.packed(), bytes(blob))
    assert boot.code == 3
    assert boot.report.splitlines()[-2].startswith("error open ")


def test_an_unknown_job_flag_is_refused(bench: Bench) -> None:
    boot = bench.boot(bench.packed(1 << 30))
    assert boot.code == 3
    assert "error job_flags" in boot.report
