"""nnU-Net as a peer: the task in its layout, and, slow, a training of seconds on a few cases."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from benchmarks.ladder.arms import nnunet
from benchmarks.ladder.nnunet_raw import DATASET, write_raw, write_split
from benchmarks.ladder.task import Task
from hasten.recipes.recipe import PeerSettings


def test_cases_are_linked_and_the_split_is_the_tasks(make_task: Callable[..., Task], tmp_path: Path) -> None:
    task = make_task()
    folder = write_raw(task, tmp_path / "raw")
    assert (folder / "imagesTr/case_000_0000.nii.gz").resolve() == Path(task.train[0].image[0]).resolve()
    assert (folder / "labelsTr/case_003.nii.gz").resolve() == Path(task.validation[0].label).resolve()
    assert json.loads((folder / "dataset.json").read_text()) == {
        "channel_names": {"0": "MRI"}, "labels": {"background": 0, "class1": 1, "class2": 2}, "numTraining": 4,
        "file_ending": ".nii.gz",
    }  # fmt: skip
    (tmp_path / DATASET).mkdir()
    write_split(task, tmp_path)
    split = json.loads((tmp_path / DATASET / "splits_final.json").read_text())
    assert split == [{"train": ["case_000", "case_001", "case_002"], "val": ["case_003"]}]


def test_features_and_batch_of_the_plan() -> None:
    planned: dict[str, Any] = {"n_stages": 3, "features_per_stage": [32, 64, 128]}
    plan: dict[str, Any] = {"batch_size": 7, "architecture": {"arch_kwargs": planned}}
    nnunet.change_plan(plan, PeerSettings(nnunet_features=(8, 16, 32), nnunet_batch_size=2))
    assert (plan["batch_size"], planned["features_per_stage"]) == (2, [8, 16, 32])
    with pytest.raises(ValueError, match=r"peer.nnunet_features: \[8, 16\] are of 2 stages, but nnU-Net plans 3"):
        nnunet.change_plan(plan, PeerSettings(nnunet_features=(8, 16)))


@pytest.mark.slow
@pytest.mark.parametrize("changes", [{}, {"channels": 2, "regions": {"ball": (1, 2), "core": (2,)}, "metric": "iou"}])
def test_a_training_of_seconds(
    changes: dict[str, Any], make_task: Callable[..., Task], run_arm: Callable[..., dict[str, Any]]
) -> None:
    pytest.importorskip("nnunetv2")
    task = make_task(**changes)
    result = run_arm(nnunet.main, task, "--max-epochs", "2", seconds=40)
    assert result["stopped"] in ("max_seconds", "max_epochs")
    assert len(result["seconds_per_epoch"]) == result["settings"]["epochs"]
    last = result["curve"][-1]
    assert len(last["per_class"]) == 2
    # Nothing is resampled or cropped here, so the voxels are the same ones; but a map of regions hides some of each.
    assert last["prepared"] == pytest.approx(last[task.metric], abs=0.5 if task.regions else 1e-4)
