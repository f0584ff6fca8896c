from __future__ import annotations

from argparse import Namespace
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from benchmarks.data import phantoms
from benchmarks.ladder import __main__ as driver
from benchmarks.ladder.climb import Attempt
from benchmarks.ladder.task import Task
from benchmarks.tasks import bench_task
from tests.benchmarks.ladder.results import CUT_OFF, run


def given(tmp_path: Path, **changes: Any) -> Namespace:
    plain = {
        "data": tmp_path, "quick": False, "part": "all", "seeds": None, "seeds_slow": None, "rungs": [], "cap": None,
        "cap_slow": None, "override": [], "membrane": None, "work": None, "out": tmp_path / "out",
    }  # fmt: skip
    return Namespace(**plain | changes)


@pytest.fixture
def no_data(monkeypatch: pytest.MonkeyPatch) -> list[Sequence[str]]:
    """Settings of the hippocampus' tasks, which are not looked for."""
    overrides: list[Sequence[str]] = []

    def task(name: str, data: Path, settings: Sequence[str]) -> Task:
        overrides.append(settings)
        return bench_task(None)

    monkeypatch.setattr(driver, "recipe_task", task)
    return overrides


def by_name(attempts: Sequence[Attempt]) -> dict[str, Attempt]:
    return {attempt.rung.name: attempt for attempt in attempts}


@pytest.mark.usefixtures("no_data")
def test_the_slow_rungs_have_a_target_and_a_cap_of_their_own(tmp_path: Path) -> None:
    part = driver.hippocampus(given(tmp_path), tmp_path)
    result = by_name(part.attempts)
    assert len(result) == 9
    assert (result["regular"].target, result["regular"].cap, result["regular"].seeds) == (0.85, 300, 1)
    assert (result["hasten"].target, result["hasten"].cap, result["hasten"].seeds) == (0.88, 500, 3)
    part = driver.hippocampus(given(tmp_path, cap=60.0, seeds_slow=2, rungs=["hasten", "device"]), tmp_path)
    result = by_name(part.attempts)
    assert {name: (each.cap, each.seeds) for name, each in result.items()} == {"device": (300, 2), "hasten": (60, 3)}


@pytest.mark.usefixtures("no_data")
def test_claims_of_the_hippocampus(tmp_path: Path) -> None:
    part = driver.hippocampus(given(tmp_path), tmp_path)
    results = {
        "regular": [run((99, 0.8), **CUT_OFF)],
        "algorithms": [run((25, 0.86), (50, 0.87))],
        "hasten": [run((10, 0.89))],
    }
    claims = driver.claims_of(part, results)
    assert [(claim.value, claim.holds) for claim in claims] == [(5.0, True), (2.5, True), (10.0, True)]
    assert "at least: stopped after 100 s" in claims[2].name
    for alone in results:
        assert driver.claims_of(part, {alone: results[alone]}) == []


def test_nnunet_has_a_small_plan_and_hours(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(driver, "check_installed", lambda rungs: None)
    data = phantoms(tmp_path / "set", 6, {"shape": (24, 32, 24)})
    part = driver.nnunet(given(tmp_path, data=data, override=["train.budget=1min"]), tmp_path)
    assert {name: (each.cap, each.target, each.seeds) for name, each in by_name(part.attempts).items()} == {
        "hasten": (7200, 1.0, 3), "nnunet": (7200, 1.0, 1)
    }  # fmt: skip
    assert part.task.peer.nnunet_batch_size == 2
    assert part.task.run["train"]["budget"] == "1min"
    assert part.task.run["data"]["split"]["by"] == "fold"
    results = {"hasten": [run((100, 0.87), (500, 0.89))], "nnunet": [run((3600, 0.86), (7100, 0.88))]}
    claims = driver.claims_of(part, results)
    assert [(claim.value, claim.holds) for claim in claims] == [(0.01, True), (0.01, True), (14.2, True)]
    claims = driver.claims_of(part, {"hasten": [run((590, 0.87))], "nnunet": [run((600, 0.88))]})
    assert not any(claim.holds for claim in claims)
    assert [claim.value for claim in driver.claims_of(part, {})] == [None, None]
