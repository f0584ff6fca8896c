from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from hasten.report.read import read_run
from hasten.report.words import time_to

MakeRun = Callable[..., Path]


def append(folder: Path, *lines: dict[str, object]) -> None:
    with (folder / "metrics.jsonl").open("a") as file:
        file.writelines(json.dumps(line) + "\n" for line in lines)


def test_a_finished_run_is_read_whole(make_run: MakeRun) -> None:
    run = read_run(make_run())
    assert run.notes == ()
    assert (run.name, run.status, run.steps) == ("hippocampus", "target_reached", 400)
    assert (run.target, run.target_time_s) == (0.87, 70.5)
    assert len(run.train) == 80
    assert len(run.validations) == 20
    assert run.class_names == {1: "Anterior", 2: "Posterior"}
    assert "total" not in run.seconds
    assert run.total_s == pytest.approx(93.5)
    assert run.wait_share == pytest.approx(0.016)
    assert run.examples[0].image.shape == (24, 32)
    assert run.examples[1].dice == pytest.approx(0.85)


def test_a_resumed_run_has_one_clock(make_run: MakeRun) -> None:
    folder = make_run(final=0.8)
    append(
        folder,
        {"kind": "train", "step": 405, "time_s": 11.0, "loss": 0.1},
        {"kind": "validation", "step": 410, "time_s": 12.0, "dice": 0.875},
    )
    run = read_run(folder)
    assert run.num_processes == 2
    assert run.validations[-1].time_s == pytest.approx(90.5 + 12.0)
    assert time_to(run, 0.87) == pytest.approx(90.5 + 12.0)
    assert any("resumed" in note for note in run.notes)


def test_a_late_line_of_the_other_kind_is_no_resume(make_run: MakeRun) -> None:
    folder = make_run()
    append(folder, {"kind": "train", "step": 405, "time_s": 90.2, "loss": 0.1})
    assert read_run(folder).num_processes == 1


@pytest.mark.parametrize("bad", [float("nan"), float("inf"), "0.5", None, True, [0.5], 10**400])
def test_what_is_no_finite_number_is_left_out(make_run: MakeRun, bad: object) -> None:
    folder = make_run()
    append(
        folder,
        {"kind": "validation", "step": 500, "time_s": 200.0, "dice": bad},
        {"kind": "train", "step": 500, "time_s": 200.0, "loss": bad},
    )
    run = read_run(folder)
    assert len(run.validations) == 20
    assert run.train[-1].loss is None
    assert any("1 of 102 records" in note for note in run.notes)


def test_without_a_plan_classes_are_those_that_were_scored(make_run: MakeRun) -> None:
    folder = make_run()
    (folder / "plan.json").unlink()
    assert read_run(folder).class_names == {1: "Anterior", 2: "Posterior"}


def test_examples_that_do_not_fit_together_are_left_out(make_run: MakeRun) -> None:
    folder = make_run()
    arrays = dict(np.load(folder / "examples.npz"))
    arrays["label_0"] = arrays["label_0"][:-1]
    np.savez(folder / "examples.npz", **arrays)
    run = read_run(folder)
    assert [example.name for example in run.examples] == ["case_001"]
    assert any("example 0" in note for note in run.notes)


def test_examples_are_never_unpickled(make_run: MakeRun) -> None:
    folder = make_run()
    np.savez(folder / "examples.npz", image_0=np.array([{"a": 1}], dtype=object))
    run = read_run(folder)
    assert run.examples == ()
    assert any("examples.npz cannot be read" in note for note in run.notes)
