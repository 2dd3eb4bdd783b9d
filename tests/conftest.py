"""Rules for every test: a missing tool is a failure under CI, and what was not tested is said at the end.

Tests skip with a plain reason (`pytest.skip("qemu-system-aarch64 is not installed")`). Elsewhere than in CI that is
a skip; with CI=true it is a failure, because CI has to bring its tools. The one exception is a reason that begins
with "cpu:", an instruction set this machine's processor does not have. All reasons go to the end of the run, and
into the file that COLIBRI_NOT_TESTED names, from which ./run-tests makes its last line.
"""
import os
from collections import Counter

import pytest

IN_CI = os.environ.get("CI", "").lower() in ("1", "true", "yes")
FAILED_SKIP = "skipped under CI, where every tool must be there: "
_reasons: list[str] = []


def _reason(report: pytest.TestReport | pytest.CollectReport) -> str | None:
    """Why a report was skipped; None where it was not."""
    if report.outcome != "skipped" or hasattr(report, "wasxfail"):
        return None
    detail = report.longrepr
    return str(detail[2] if isinstance(detail, tuple) else detail).removeprefix("Skipped: ")


def _settle(report: pytest.TestReport | pytest.CollectReport) -> None:
    """In CI turn a skip into a failure unless the processor is the reason."""
    reason = _reason(report)
    if IN_CI and reason is not None and not reason.startswith("cpu:"):
        report.outcome = "failed"
        report.longrepr = f"{FAILED_SKIP}{reason}"


def _note(report: pytest.TestReport | pytest.CollectReport) -> None:
    """Keep a skip's reason for the end; called where reports arrive, which is not where tests run in parallel."""
    text = str(report.longrepr or "")
    reason = text.removeprefix(FAILED_SKIP) if text.startswith(FAILED_SKIP) else _reason(report)
    if reason is not None and reason not in _reasons:
        _reasons.append(reason)


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Of a matrix marked sampled(n) every n-th row is in the fast layers; all others are slow."""
    seen: Counter[str] = Counter()
    for item in items:
        mark = item.get_closest_marker("sampled")
        if mark:
            matrix = item.nodeid.partition("[")[0]
            if seen[matrix] % mark.args[0]:
                item.add_marker(pytest.mark.slow)
            seen[matrix] += 1


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    """Every test's report, in the process that prints."""
    _note(report)


def pytest_collectreport(report: pytest.CollectReport) -> None:
    """Every module's report, in the process that prints."""
    _note(report)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item, call):
    """Every test's report passes here."""
    report = yield
    _settle(report)
    return report


@pytest.hookimpl(wrapper=True)
def pytest_make_collect_report(collector):
    """A module that skips itself as a whole passes here."""
    report = yield
    _settle(report)
    return report


def pytest_terminal_summary(terminalreporter) -> None:
    """Say what this run did not test; a parallel run's workers leave that to the process that prints."""
    if "PYTEST_XDIST_WORKER" in os.environ:
        return
    if _reasons:
        terminalreporter.write_line("not tested: " + "; ".join(_reasons))
    path = os.environ.get("COLIBRI_NOT_TESTED")
    if path and _reasons:
        with open(path, "a", encoding="utf-8") as file:
            file.writelines(reason + "\n" for reason in _reasons)
