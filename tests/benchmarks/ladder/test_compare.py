"""`python -m benchmarks.ladder.compare`: what it is given becomes a task; mistakes are told first."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from benchmarks.ladder import climb as climb_module
from benchmarks.ladder.climb import Attempt
from benchmarks.ladder.compare import app
from benchmarks.ladder.task import Task
from tests.benchmarks.ladder.results import run

SETTINGS = ["train.steps=4", "sample.batch_size=2", "sample.patch=[8,16,16]", "network.channels=[4,8]",
            "network.strides=[[2,2,2]]"]  # fmt: skip


@pytest.fixture
def climbed(monkeypatch: pytest.MonkeyPatch) -> list[tuple[Task, Sequence[Attempt]]]:
    """What would have been run; every run takes 10 s."""
    seen: list[tuple[Task, Sequence[Attempt]]] = []

    def climb(task: Task, wanted: Sequence[Attempt], work: Path, **_: Any) -> dict[str, list[dict[str, Any]]]:
        seen.append((task, wanted))
        seconds = {"seconds": {"import": 1.0, "total": 10.0}, "seed": 0}
        return {attempt.rung.name: [run((10, 0.9)) | seconds] * attempt.seeds for attempt in wanted}

    monkeypatch.setattr(climb_module, "climb", climb)
    return seen


def invoke(*words: str, cache: Path) -> Any:
    return CliRunner().invoke(app, [*words], env={"COLUMNS": "200", "HASTEN_CACHE": str(cache)})


def test_phantoms_of_a_recipe(climbed: list[tuple[Task, Sequence[Attempt]]], tmp_path: Path) -> None:
    recipe = tmp_path / "small.yaml"
    recipe.write_text(
        "name: small\ntitle: A small one\nkind: segmentation\nlabels: {0: background, 1: spleen}\ntarget: 0.7\n"
        "peer: {cases: 3, crops: 1, patch: [8, 16, 16]}\n"
        "reduced: {make: ct, cases: 5, shape: [16, 32, 32], spacing: [10, 5, 5]}\n"
    )
    words = [str(recipe), *SETTINGS, "--out", str(tmp_path / "out"), "--seeds", "2", "--rungs", "cache,hasten"]
    done = invoke(*words, "--reduced", "--cap", "7", cache=tmp_path)
    assert done.exit_code == 0, done.output
    [(task, wanted)] = climbed
    assert task.name == "small, reduced phantoms"
    assert (len(task.train), len(task.validation)) == (4, 1)
    assert (task.peer.cases, task.peer.crops, task.target) == (3, 1, 0.7)
    assert [(attempt.rung.name, attempt.seeds, attempt.cap) for attempt in wanted] == [
        ("cache", 2, 7),
        ("hasten", 2, 7),
    ]
    assert "Hasten reaches Dice 0.70" in done.output.replace("\N{NO-BREAK SPACE}", " ")
    output = json.loads((tmp_path / "out" / "ladder.json").read_text())
    assert [rung["name"] for rung in output["rungs"]] == ["cache", "hasten"]
    # Again: the phantoms are there, and another target is another task.
    done = invoke(*words, "--reduced", "--target", "0.5", cache=tmp_path)
    assert done.exit_code == 0, done.output
    assert climbed[1][0].train == task.train
    assert climbed[1][0].target == 0.5
    assert not list((tmp_path / "out" / "work").glob(".phantoms*"))
