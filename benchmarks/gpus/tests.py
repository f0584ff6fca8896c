"""The tests of `tests/gpu` in several processes, the most telling files first, as many as fit into the time.

Most of a test's time passes in the host's compilers, so that one process would need ten minutes. A figure is kept after
every test, so that what was not reached is known, and a failure's last lines are in the file.
"""

from __future__ import annotations

from collections import Counter
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from benchmarks.gpus.sheet import Sheet
from benchmarks.harness import ROOT, Claim
from hasten.observe.cores import usable_cores

FIRST = ("run", "few_channels", "losses", "norm_act", "capture", "loss_kernel", "read", "sliding", "optim", "surgery")
"""Whole runs, then what has changed most since it last ran on a GPU."""
FAULT = "AcceleratorError"
LINES = 15
"""Lines of a failure that are kept."""


def measure(sheet: Sheet) -> None:
    sheet.tell("about", __doc__)
    missing = [name for name in ("pytest", "pytest_timeout", "xdist", "hypothesis") if find_spec(name) is None]
    if missing:
        sheet.skip("tests", f"{', '.join(missing)} is not installed")
        return
    import pytest

    keeper = Keeper(sheet)
    processes = max(1, 3 * usable_cores() // 4)
    options = ["-m", "gpu", "-q", "-p", "no:cacheprovider", "--continue-on-collection-errors", f"--rootdir={ROOT}",
               "-n", str(processes), "--dist", "load", "--maxschedchunk", "2"]  # fmt: skip
    pytest.main([*options, *map(str, files())], plugins=[keeper])
    sheet.claim(Claim.at_most("tests on the GPU that fail", keeper.counts["failed"], 0))


def files() -> list[Path]:
    folder = ROOT / "tests" / "gpu"
    first = [folder / f"test_{name}.py" for name in FIRST]
    return first + sorted(set(folder.glob("test_*.py")) - set(first))


class Keeper:
    """A plugin of pytest's that keeps each outcome on the sheet and ends the session with the sheet's time."""

    def __init__(self, sheet: Sheet) -> None:
        self.sheet = sheet
        self.counts: Counter[str] = Counter()
        self.failures: dict[str, str] = {}
        self.left = 0
        self.session: Any = None

    def pytest_sessionstart(self, session: Any) -> None:
        self.session = session

    def pytest_xdist_node_collection_finished(self, ids: list[str]) -> None:
        self.left = len(ids)

    def pytest_runtest_logreport(self, report: Any) -> None:
        if report.when != "call" and report.outcome == "passed":
            return
        self._count(report)

    def pytest_collectreport(self, report: Any) -> None:
        if report.outcome == "failed":  # a file that can't be imported
            self._count(report)

    def _count(self, report: Any) -> None:
        self.counts[report.outcome] += 1
        if report.outcome == "failed":
            self.failures[report.nodeid] = "\n".join(report.longreprtext.splitlines()[-LINES:])
            self.sheet.tell("failures", self.failures)
        self.sheet.keep({name: [self.counts[name]] for name in ("passed", "failed", "skipped")})

    def pytest_runtest_logfinish(self, nodeid: str) -> None:
        self.left -= 1
        self.sheet.keep({"not reached": [self.left]})
        if self.sheet.left() <= 0:
            raise self.session.Interrupted("no time is left")
        if any(FAULT in text for text in self.failures.values()):
            raise self.session.Interrupted("a fault of the GPU's, after which all tests of a process fail")
