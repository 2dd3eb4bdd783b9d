"""Rules for every test: a missing tool is a failure under CI, and what was not tested is said at the end.

Tests skip with a plain reason (`pytest.skip("qemu-system-aarch64 is not installed")`). Elsewhere than in CI that is
a skip; with CI=true it is a failure, because CI has to bring its tools. The one exception is a reason that begins
with "cpu:", an instruction set this machine's processor does not have. All reasons go to the end of the run, and
into the file that COLIBRI_NOT_TESTED names, from which ./run-tests makes its last line.
"""
import os

import pytest

IN_CI = os.environ.get("CI", "").lower() in ("1", "true", "yes")
_reasons: list[str] = []


def _settle(report: pytest.TestReport | pytest.CollectReport) -> None:
    """Note a skip's reason; in CI turn the skip into a failure unless the processor is the reason."""
    if report.outcome != "skipped" or hasattr(report, "wasxfail"):
        return
    detail = report.longrepr
    reason = str(detail[2] if isinstance(detail, tuple) else detail).removeprefix("Skipped: ")
    if reason not in _reasons:
        _reasons.append(reason)
    if IN_CI and not reason.startswith("cpu:"):
        report.outcome = "failed"
        report.longrepr = f"skipped under CI, where every tool must be there: {reason}"


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
    """Say what this run did not test."""
    if _reasons:
        terminalreporter.write_line("not tested: " + "; ".join(_reasons))
    path = os.environ.get("COLIBRI_NOT_TESTED")
    if path and _reasons:
        with open(path, "a", encoding="utf-8") as file:
            file.writelines(reason + "\n" for reason in _reasons)
