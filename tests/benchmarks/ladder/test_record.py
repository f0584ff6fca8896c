from __future__ import annotations

import json
import math
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from benchmarks.ladder.record import (
    Record,
    arm_arguments,
    case_scores,
    class_masks,
    iou_of,
    mean_score,
)
from benchmarks.ladder.task import Task, write_task


@pytest.fixture
def task(make_task: Callable[..., Task]) -> Task:
    return make_task()


def draw(classes: int) -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(0)
    prediction = torch.randint(0, classes, (5, 6, 5, 4), generator=generator)
    label = torch.randint(0, classes, (5, 6, 5, 4), generator=generator)
    label[1][label[1] == 2] = 0  # a class that one case lacks
    prediction[2][prediction[2] == 1] = 0
    return prediction, label


def test_scores_are_monais_and_hastens(task: Task) -> None:
    from monai.metrics import DiceMetric, MeanIoU

    from hasten.evaluation.dice import counts_of, dice_of

    prediction, label = draw(3)
    mine = [case_scores(class_masks(p, task), class_masks(t, task)) for p, t in zip(prediction, label, strict=True)]
    assert math.isnan(mine[1][1])
    metric = DiceMetric(include_background=False, reduction="mean", num_classes=3)
    metric(prediction[:, None], label[:, None])
    theirs = metric.get_buffer()
    torch.testing.assert_close(torch.tensor(mine), theirs.to(torch.get_default_dtype()), equal_nan=True)
    mean, per_class = mean_score(mine)
    assert mean == pytest.approx(metric.aggregate().item(), abs=1e-6)
    assert per_class == pytest.approx(theirs.nanmean(0).tolist(), abs=1e-6)
    counts = torch.stack([counts_of(p, t, num_classes=3) for p, t in zip(prediction, label, strict=True)])
    assert dice_of(counts, ["a", "b"]).mean == pytest.approx(mean, abs=1e-12)
    iou = MeanIoU(include_background=False, reduction="none")
    hot = [torch.nn.functional.one_hot(each, 3).movedim(-1, 1) for each in (prediction, label)]
    iou(*hot)
    own = torch.tensor([[iou_of(value) for value in row] for row in mine])
    torch.testing.assert_close(own, iou.get_buffer().to(own.dtype), equal_nan=True)


def test_record_of_a_run(make_task: Callable[..., Task], tmp_path: Path) -> None:
    write_task(tmp_path / "t.json", make_task(metric="iou"))
    out = tmp_path / "new" / "r.json"
    given = arm_arguments(
        "x", ["--task", str(tmp_path / "t.json"), "--out", str(out), "--seed", "3", "--target", ".75"]
    )
    record = Record(arm="arm", given=given, notes="notes")
    begun = json.loads(out.read_text())
    assert (begun["curve"], begun["stopped"], begun["best"]) == ([], None, None)
    assert record.validated(1, [[0.8, math.nan], [0.9, 0.8]], loss=0.5) < 0.75
    assert record.stopped is None
    record.steps = 7
    record.validated(2, [[0.9, 0.8], [0.95, 0.85]])
    result = json.loads(out.read_text())
    assert [point["dice"] for point in result["curve"]] == [0.825, 0.875]
    assert result["curve"][0]["per_class"] == [0.85, 0.8]
    assert result["curve"][0]["loss"] == 0.5
    assert result["best"] == pytest.approx(result["curve"][1]["iou"])
    assert (result["steps"], result["seed"], result["stopped"]) == (7, 3, "target")
    assert result["cases"] == {"train": 3, "validation": 1}
    assert str(tmp_path) not in out.read_text()
