"""The part that runs the tests of a GPU: what it keeps of their outcomes, and when it ends."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

from benchmarks.gpus.sheet import Sheet, new_sheet
from benchmarks.gpus.tests import FAULT, FIRST, Keeper, files
from benchmarks.harness import ROOT


@pytest.fixture
def sheet(tmp_path: Path) -> Sheet:
    return new_sheet("tests", tmp_path, torch.device("cpu"), quick=True, seconds=60)


def report(name: str, outcome: str, text: str = "", when: str = "call") -> SimpleNamespace:
    return SimpleNamespace(nodeid=name, outcome=outcome, longreprtext=text, when=when)


class Interrupted(Exception):
    pass


def ended(keeper: Keeper) -> str | None:
    keeper.pytest_sessionstart(SimpleNamespace(Interrupted=Interrupted))
    try:
        keeper.pytest_runtest_logfinish("a test")
    except Interrupted as why:
        return str(why)
    return None


def test_outcomes_are_kept_after_each_test_with_the_end_of_a_failure(sheet: Sheet) -> None:
    keeper = Keeper(sheet)
    keeper.pytest_collectreport(report("test_a.py", "failed", "no module"))
    keeper.pytest_collectreport(report("test_b.py", "passed"))
    keeper.pytest_xdist_node_collection_finished(["a", "b", "c"])
    long = "\n".join(map(str, range(100)))
    for name, outcome in (("one", "passed"), ("two", "failed")):
        keeper.pytest_runtest_logreport(report(name, "passed", when="setup"))
        keeper.pytest_runtest_logreport(report(name, outcome, long))
        keeper.pytest_runtest_logfinish(name)
    kept = json.loads(sheet.path.read_text())
    counts = {name: row["median"] for name, row in kept["results"].items()}
    assert counts == {"passed": 1, "failed": 2, "skipped": 0, "not reached": 1}
    assert kept["settings"]["failures"]["test_a.py"] == "no module"
    assert kept["settings"]["failures"]["two"].startswith("85\n")
    assert ended(keeper) is None


def test_it_ends_with_its_time_and_after_a_fault_of_the_gpu(sheet: Sheet) -> None:
    keeper = Keeper(sheet)
    keeper.pytest_runtest_logreport(report("one", "failed", f"torch.{FAULT}: CUDA error"))
    assert "fault" in str(ended(keeper))
    sheet.ends = 0.0
    assert "no time" in str(ended(Keeper(sheet)))


def test_every_file_is_run_and_those_that_tell_most_come_first() -> None:
    names = [path.name for path in files()]
    assert names[: len(FIRST)] == [f"test_{name}.py" for name in FIRST]
    assert sorted(names) == sorted(path.name for path in (ROOT / "tests/gpu").glob("test_*.py"))
