from __future__ import annotations

import json
import subprocess
from argparse import Namespace
from pathlib import Path
from typing import Any

import pytest

from benchmarks import time_to_dice as driver

GIVEN = {"arms": list(driver.MODULES), "cap_fast": None, "cap_regular": None, "override": [],
         "rescore": False, "quick": False, "part": "all"}  # fmt: skip


def given(tmp_path: Path, **changes: Any) -> Namespace:
    return Namespace(**{**GIVEN, "data": tmp_path, "seeds_regular": None, "seeds": 2, **changes})


@pytest.fixture
def launched(monkeypatch: pytest.MonkeyPatch) -> list[list[str]]:
    """Commands of the runs, which are played by a stand-in that writes a result: Hasten after 10 s, others 80 s."""
    commands: list[list[str]] = []

    def play(command: list[str], **_: Any) -> subprocess.CompletedProcess[str]:
        commands.append(command)
        flags = dict(zip(command[3::2], command[4::2], strict=False))
        seconds = 10.0 if "benchmarks.ours.train" in command else 80.0
        point = {"seconds": seconds, "dice": 0.89, "step": 1}
        result = {"curve": [point], "stopped": "target", "best": 0.89, "seconds_per_epoch": [1.0],
                  "settings": {"max_seconds": float(flags["--max-seconds"])}, "seed": int(flags["--seed"])}  # fmt: skip
        Path(flags["--out"]).write_text(json.dumps(result))
        return subprocess.CompletedProcess(command, 0)

    monkeypatch.setattr("benchmarks.time_to_dice.subprocess.run", play)
    return commands


def test_arms_take_turns_over_the_seeds(tmp_path: Path, launched: list[list[str]]) -> None:
    settings = given(tmp_path)
    part, results = driver.run_part(driver.hippocampus(settings, tmp_path), settings, tmp_path)
    assert list(results) == ["hasten", "fast", "regular"]
    assert [[run["seed"] for run in runs] for runs in results.values()] == [[0, 1]] * 3
    order = [(command[2].rsplit(".", 1)[1], command[command.index("--seed") + 1]) for command in launched]
    assert order == [(name, seed) for seed in "01" for name in ("train", "monai_fast", "regular")]
    claims = driver.claims_of(part, results)
    assert [claim.value for claim in claims] == [8.0, 8.0, 8.0]
    assert [claim.holds for claim in claims] == [True, True, True]


def test_finished_runs_are_not_repeated(tmp_path: Path, launched: list[list[str]]) -> None:
    settings = given(tmp_path)
    part = driver.hippocampus(settings, tmp_path)
    _, first = driver.run_part(part, settings, tmp_path)
    launched.clear()
    _, again = driver.run_part(part, settings, tmp_path)
    assert launched == []
    assert again == first
    cut_off = next(tmp_path.glob("hippocampus_fast_1_*.json"))
    cut_off.write_text(json.dumps({**json.loads(cut_off.read_text()), "stopped": None}))
    driver.run_part(part, settings, tmp_path)
    assert ["benchmarks.peers.monai_fast" in command for command in launched] == [True]


def test_other_flags_are_another_run(tmp_path: Path, launched: list[list[str]]) -> None:
    settings = given(tmp_path, seeds=1)
    driver.run_part(driver.hippocampus(settings, tmp_path), settings, tmp_path)
    launched.clear()
    changed = given(tmp_path, seeds=1, override=["train.steps=300"], cap_fast=77.0)
    driver.run_part(driver.hippocampus(changed, tmp_path), changed, tmp_path)
    assert len(launched) == 2  # Hasten's run and the fast arm; the regular one is as it was
    assert launched[0][-1] == "train.steps=300"
    assert launched[1][launched[1].index("--max-seconds") + 1] == "77.0"


def test_arms_can_be_chosen(tmp_path: Path, launched: list[list[str]]) -> None:
    settings = given(tmp_path, arms=["hasten"], seeds=1)
    part, results = driver.run_part(driver.hippocampus(settings, tmp_path), settings, tmp_path)
    assert len(launched) == 1
    assert all(claim.value is None for claim in driver.claims_of(part, results))


def test_best_dice_within_ten_minutes(tmp_path: Path, launched: list[list[str]]) -> None:
    settings = given(tmp_path, seeds=None)
    part, results = driver.run_part(driver.best(settings, tmp_path), settings, tmp_path)
    [claim] = driver.claims_of(part, results)
    assert (claim.value, claim.holds) == (0.89, True)
    assert len(launched) == 1


def test_a_failed_run_ends_the_benchmark(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    failed = subprocess.CompletedProcess([], 3)
    monkeypatch.setattr("benchmarks.time_to_dice.subprocess.run", lambda *_, **__: failed)
    settings = given(tmp_path)
    with pytest.raises(RuntimeError, match="hasten with seed 0 failed"):
        driver.run_part(driver.hippocampus(settings, tmp_path), settings, tmp_path)


def test_without_the_real_data_the_phantoms_are_left(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(driver, "written", lambda folder, *_: folder)
    assert [part.name for part in driver.parts(given(tmp_path, data=None), tmp_path)] == ["phantoms"]
    names = [part.name for part in driver.parts(given(tmp_path), tmp_path)]
    assert names == ["hippocampus", "best", "phantoms"]
