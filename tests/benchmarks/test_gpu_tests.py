"""The part that runs the tests of a GPU: what it keeps of their outcomes, and when it ends."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from benchmarks.gpus.sheet import Sheet, new_sheet
from benchmarks.gpus.tests import FIRST, files
from benchmarks.harness import ROOT


@pytest.fixture
def sheet(tmp_path: Path) -> Sheet:
    return new_sheet("tests", tmp_path, torch.device("cpu"), quick=True, seconds=60)


def test_every_file_is_run_and_those_that_tell_most_come_first() -> None:
    names = [path.name for path in files()]
    assert names[: len(FIRST)] == [f"test_{name}.py" for name in FIRST]
    assert sorted(names) == sorted(path.name for path in (ROOT / "tests/gpu").glob("test_*.py"))
