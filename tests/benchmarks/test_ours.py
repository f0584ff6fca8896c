"""What benchmarks share: tasks, Hasten's feed and fill, and scores in the files' own voxels."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest
import torch

from benchmarks.ladder.arms.hasten import hasten_config, train_and_record
from benchmarks.ladder.record import Record, arm_arguments
from benchmarks.ladder.task import write_task
from benchmarks.ours.feed import hasten_feed
from benchmarks.rescore import rescored
from benchmarks.tasks import NETWORK, bench_task, network, rows_of_all
from hasten.config.load import load_run, to_dict


def test_tasks(boxes: Path, ct_boxes: Path) -> None:
    task = bench_task(boxes)
    assert (len(task.train), len(task.validation)) == (3, 1)
    assert [Path(row["label"]).name for row in rows_of_all(task)] == [f"case_{index:03d}.nii.gz" for index in range(4)]
    assert (task.spacing, task.prepare.intensity) == (None, "zscore")
    task = bench_task(ct_boxes, "ct", spacing=(2, 1, 1), patch=(8, 16, 24), crops=3)
    assert (task.spacing, task.prepare.window, task.prepare.crop_foreground) == ((2, 1, 1), (-57.0, 164.0), True)
    assert task.patches_per_epoch == 9
    assert bench_task(None).train == ()
    assert network(3)(torch.zeros(1, 1, 8, 16, 8)).shape == (1, 3, 8, 16, 8)


def test_feed_goes_on_where_it_stopped(boxes: Path) -> None:
    ids = [case.id for case in bench_task(boxes).train]

    def made() -> list[torch.Tensor]:
        feed = hasten_feed(boxes, ids, (16, 24, 32), 4, 0, compile=False, device="cpu")
        return [image.clone() for steps in (2, 1) for image, _ in feed(steps)]

    batches = made()
    assert [batch.shape for batch in batches] == [(4, 1, 16, 24, 32)] * 3
    assert all(not torch.equal(batches[0], other) for other in batches[1:])
    assert all(torch.equal(a, b) for a, b in zip(batches, made(), strict=True))


@pytest.mark.slow
def test_scores_in_the_files_own_voxels(boxes: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Which here are the prepared ones, so that a run's best validation comes out again."""
    monkeypatch.setenv("HASTEN_CACHE", str(tmp_path))
    task = bench_task(boxes, patch=(24, 24, 24))
    held = [case.id for case in task.validation]
    run = load_run(None, [
        f"data.source={boxes}", "data.split.by=list", f"data.split.validation={held}", "sample.patch=[24,24,24]",
        "sample.batch_size=2", "sample.stages=[]", "sample.compile=false", "train.steps=4", "train.validate_every=2",
        "train.learning_rate=0.01", "train.checkpoint_every=2",
        "train.precision=fp32", "train.channels_last=false", "train.compile=false", "prepare.spacing=[0,0,0]",
    ])  # fmt: skip
    task = dataclasses.replace(task, run=to_dict(run))
    assert task.network == NETWORK
    weights = tmp_path / "best.pt"
    words = ["--task", str(write_task(tmp_path / "t.json", task)), "--out", str(tmp_path / "r.json"), "--device", "cpu"]
    given = arm_arguments("x", [*words, "--weights", str(weights), "--threads", "1", "--max-seconds", "1e6"])
    record = Record(arm="hasten", given=given, notes="")
    threads = torch.get_num_threads()
    train_and_record(record, hasten_config(given), tmp_path / "run")
    torch.set_num_threads(threads)
    # The clock counts from the start of the process, imports included.
    assert record.curve[0]["seconds"] > record.seconds["import"] + record.seconds["tune"]
    dice = rescored(task, weights, depth_first=True)
    assert dice == pytest.approx(max(point["dice"] for point in record.curve), abs=0.02)
