from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from hasten.report.read import read_run
from hasten.report.words import common_metric, metric, verdict

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


def test_examples_are_never_unpickled(make_run: MakeRun) -> None:
    folder = make_run()
    np.savez(folder / "examples.npz", image_0=np.array([{"a": 1}], dtype=object))
    run = read_run(folder)
    assert run.examples == ()
    assert any("examples.npz cannot be read" in note for note in run.notes)


# Another metric, and regions


def by_iou(folder: Path) -> Path:
    """The run as one that went by IoU, of a score of 0.1 below its Dice."""
    lines = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    for line in lines:
        if line["kind"] == "validation":
            line["iou"] = line["dice"] - 0.1
            line["iou_per_class"] = {name: value - 0.1 for name, value in line["dice_per_class"].items()}
    (folder / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    return folder


def test_a_run_that_goes_by_iou_is_read_by_it(make_run: MakeRun) -> None:
    target = {"metric": "mean_iou", "value": 0.7, "reached": True, "time_s": 50.0}
    run = read_run(by_iou(make_run(summary={"target": target, "best": {"metric": "mean_iou"}})))
    dice = read_run(by_iou(make_run("other")))
    assert metric(run) == "mean IoU"
    assert metric(dice) == "mean Dice"
    for one, other in zip(run.validations, dice.validations, strict=True):
        assert one.score == pytest.approx(other.score - 0.1)
        assert one.per_class == pytest.approx({name: score - 0.1 for name, score in other.per_class.items()})
    assert run.best_score == max(record.score for record in run.validations)
    assert "IoU" in verdict(run)
    assert common_metric([run, run]) == "mean IoU"
    assert common_metric([run, dice]) == "score (mean IoU or mean Dice)"
