"""TorchIO's and Lightning's arms: what they prepare is what the others do, and, slow, trainings of an epoch."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from monai.transforms import Compose

from benchmarks.ladder.arms import torchio
from benchmarks.ladder.chain import deterministic, rows_of
from benchmarks.ladder.task import Task, task_of, write_task
from hasten.cases.phantom import write_phantoms
from hasten.config.load import load_run

SMALL = (
    "sample.patch=[8, 16, 16]",
    "sample.batch_size=2",
    "network.channels=[4, 8]",
    "network.strides=[[2, 2, 2]]",
    "train.target=1.0",
    "train.device=cpu",
)


@pytest.fixture(autouse=True)
def _own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HASTEN_CACHE", str(tmp_path / "cache"))


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("data") / "phantoms"
    return write_phantoms(folder, num_cases=3, shape=(12, 24, 20), spacing=(2.0, 1.5, 1.0))


def task(data: Path, *settings: str) -> Task:
    return task_of(load_run(overrides=[f"data.source={data}", *SMALL, *settings]))


@pytest.mark.parametrize(
    "settings",
    [
        ["prepare.intensity=zscore", "prepare.spacing=[0, 0, 0]", "prepare.crop_foreground=false"],
        ["prepare.intensity=window", "prepare.window=[-57, 164]", "prepare.spacing=[0, 0, 0]",
         "prepare.crop_foreground=true"],
        ["prepare.intensity=none", "prepare.spacing=[0, 0, 0]", "prepare.crop_foreground=true"],
    ],
    ids=["mr", "ct", "box"],
)  # fmt: skip
def test_torchio_prepares_a_case_as_the_ladder_does(data: Path, settings: list[str]) -> None:
    job = task(data, *settings)
    ours = Compose(deterministic(job))(rows_of(job.validation)[0])
    theirs = next(iter(torchio._volumes(job)))
    assert torch.equal(theirs["label"][0].long(), ours["label"].long())
    np.testing.assert_allclose(theirs["image"][0].float().numpy(), np.asarray(ours["image"]), atol=1e-4)


def run(arm: str, job: Task, folder: Path, *flags: str) -> dict[str, Any]:
    path, out = write_task(folder / "task.json", job), folder / "out.json"
    done = subprocess.run(
        [sys.executable, "-m", f"benchmarks.ladder.arms.{arm}", "--task", str(path), "--out", str(out),
         "--threads", "1", "--device", "cpu", "--weights", str(folder / "weights.pt"), *flags],
        env={**os.environ, "OMP_NUM_THREADS": "1"}, capture_output=True, text=True, timeout=240, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-3000:]
    result: dict[str, Any] = json.loads(out.read_text())
    return result


@pytest.mark.slow
@pytest.mark.parametrize("arm", ["torchio", "lightning"])
@pytest.mark.parametrize("workers", ["0", "1"])
def test_an_arm_trains(arm: str, workers: str, data: Path, tmp_path: Path) -> None:
    job = task(data)
    result = run(arm, job, tmp_path, "--max-epochs", "2", "--workers", workers)
    assert (result["arm"], result["stopped"]) == (arm, "max_epochs")
    assert [point["epoch"] for point in result["curve"]] == [1, 2]
    assert result["steps"] == 2 * -(-job.patches_per_epoch // 8)
    assert len(result["seconds_per_epoch"]) == 2
    assert all(0 <= point["dice"] <= 1 for point in result["curve"])
    assert result["seconds"]["cache"] > 0
    assert (tmp_path / "weights.pt").is_file()
