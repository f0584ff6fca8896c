"""The benchmark of accuracy: its choices are settings, and its parts run end to end on phantoms."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path

import pytest

from benchmarks.accuracy import CHOICES, GOALS, RECIPE, SPLIT, main
from hasten.config.load import load_run


def test_each_choice_is_different() -> None:
    for every in (CHOICES, RECIPE):
        configs = [load_run(None, ["data.source=x", *SPLIT, *words.split()]) for words in every.values()]
        assert len({json.dumps(dataclasses.asdict(config), default=str) for config in configs}) == len(every)
    for budget in GOALS:
        assert load_run(None, ["data.source=x", f"train.budget={budget}"]).train.budget == budget


@pytest.mark.slow
def test_a_quick_run(tmp_path: Path) -> None:
    main(["--quick", "--out", str(tmp_path), "--work", str(tmp_path / "work"), "--folds", "0,1"])
    [file] = tmp_path.glob("accuracy_*_quick.json")
    results = json.loads(file.read_text())["results"]
    assert len(results["folds/dice by fold"]["raw"]) == 2
    assert 0 <= results["folds/dice by case"]["median"] <= 1
    assert len(results["ensemble/dice of each seed"]["raw"]) == len(results["ensemble/dice by fold"]["raw"]) == 2
    assert results["ensemble/dice by case"]["n"] == results["folds/dice by case"]["n"]
    assert 0 <= results["learning/base/dice"]["median"] <= 1
    assert 0 <= results["recipe/500 steps/dice"]["median"] <= 1
    assert results["start/first_step_s"]["median"] > 0
