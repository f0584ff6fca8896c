"""The benchmark of accuracy runs end to end on phantoms."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from benchmarks.accuracy import main


@pytest.mark.slow
def test_a_quick_run(tmp_path: Path) -> None:
    main(["--quick", "--out", str(tmp_path), "--work", str(tmp_path / "work"), "--folds", "0,1"])
    [file] = tmp_path.glob("accuracy_*_quick.json")
    results = json.loads(file.read_text())["results"]
    assert len(results["folds/dice by fold"]["raw"]) == 2
    assert 0 <= results["folds/dice by case"]["median"] <= 1
    assert len(results["ensemble/dice of each seed"]["raw"]) == len(results["ensemble/dice by fold"]["raw"]) == 2
    assert results["ensemble/dice by case"]["n"] == results["folds/dice by case"]["n"]
    assert results["start/first_step_s"]["median"] > 0
