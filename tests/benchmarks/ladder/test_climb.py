from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

from benchmarks.ladder import climb as module
from benchmarks.ladder.climb import Attempt, climb, result_path
from benchmarks.ladder.outcome import Time, time_to
from benchmarks.ladder.rungs import rungs_named
from benchmarks.ladder.task import Task, read_task
from tests.benchmarks.ladder.results import run

SILENT: Callable[[str], None] = lambda line: None  # noqa: E731


@pytest.fixture
def launched(monkeypatch: pytest.MonkeyPatch) -> list[dict[str, str]]:
    """Flags of the runs, which are played by a stand-in that writes a result."""
    flags: list[dict[str, str]] = []

    def play(command: Sequence[str], log: Path, limit: float) -> int:
        given = dict(zip(command[3::2], command[4::2], strict=True)) | {"module": command[2], "limit": str(limit)}
        flags.append(given)
        Path(given["--out"]).write_text(json.dumps(run((10, 0.9)) | {"seed": int(given["--seed"])}))
        return 0

    monkeypatch.setattr(module, "_run", play)
    return flags


def attempt(name: str, **changes: Any) -> Attempt:
    [rung] = rungs_named([name])
    return Attempt(rung=rung, **{"target": 0.9, "cap": 60.0, "seeds": 2, **changes})


def test_rungs_take_turns_over_the_seeds(
    launched: list[dict[str, str]], make_task: Callable[..., Task], tmp_path: Path
) -> None:
    task = make_task()
    wanted = [attempt("regular", seeds=1, cap=30.0), attempt("program"), attempt("hasten", device="cpu")]
    results = climb(task, wanted, tmp_path, tell=SILENT)
    assert {name: [each["seed"] for each in result] for name, result in results.items()} == {
        "regular": [0], "program": [0, 1], "hasten": [0, 1]
    }  # fmt: skip
    order = [(flags["module"].rsplit(".", 1)[1], flags["--seed"]) for flags in launched]
    assert order == [("monai", "0"), ("program", "0"), ("hasten", "0"), ("program", "1"), ("hasten", "1")]
    first = launched[0]
    assert (first["--rung"], first["--max-seconds"], first["--target"]) == ("regular", "30", "0.9")
    assert "--rung" not in launched[1]
    assert launched[2]["--device"] == "cpu"
    assert read_task(Path(first["--task"])) == task


def test_finished_runs_are_not_repeated(
    launched: list[dict[str, str]], make_task: Callable[..., Task], tmp_path: Path
) -> None:
    task, one = make_task(), attempt("hasten")
    first = climb(task, [one], tmp_path, tell=SILENT)
    launched.clear()
    assert climb(task, [one], tmp_path, tell=SILENT) == first
    assert launched == []
    # One that was killed is run again, and so is another task, target or cap.
    out = result_path(task, one, 1, tmp_path)
    out.write_text(json.dumps({**json.loads(out.read_text()), "stopped": None}))
    climb(task, [one], tmp_path, tell=SILENT)
    assert [flags["--seed"] for flags in launched] == ["1"]
    climb(task, [attempt("hasten", cap=61.0)], tmp_path, tell=SILENT)
    climb(make_task(target=0.5), [one], tmp_path, tell=SILENT)
    assert len(launched) == 5


def test_a_run_past_its_cap_is_ended_and_counts(
    make_task: Callable[..., Task], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    task, one = make_task(), attempt("regular", seeds=1)
    out = result_path(task, one, 0, tmp_path)

    def hang(command: Sequence[str], log: Path, limit: float) -> None:
        assert limit > 60
        out.write_text(json.dumps(run(stopped=None, cap=60.0)))  # type: ignore[arg-type]

    monkeypatch.setattr(module, "_run", hang)
    [result] = climb(task, [one], tmp_path, tell=SILENT)["regular"]
    assert time_to(result, 0.9) == Time(60.0, False)
    assert module.has_ended(out)
