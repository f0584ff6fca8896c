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
from PIL import Image

from benchmarks.ladder.arms import lightning, torchio
from benchmarks.ladder.chain import deterministic, rows_of
from benchmarks.ladder.task import Task, TaskCase, task_of, write_task
from hasten.cases.phantom import write_phantoms
from hasten.config.load import load_run

LABELS = {0: "background", 1: "ring", 2: "core"}
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


def test_torchio_resamples_to_the_tasks_spacing(data: Path) -> None:
    job = task(data, "prepare.spacing=[4, 3, 2]", "prepare.crop_foreground=false", "prepare.intensity=none")
    ours = Compose(deterministic(job))(rows_of(job.validation)[0])
    theirs = next(iter(torchio._volumes(job)))
    assert all(abs(a - b) <= 1 for a, b in zip(theirs["image"].shape[2:], ours["image"].shape[1:], strict=True))


def test_patches_of_a_queue(data: Path) -> None:
    import torchio as tio

    job = task(data, "prepare.intensity=zscore")
    chain = tio.Compose([*torchio.transforms(job), torchio.Padded((16, 32, 8))])
    subject = chain(torchio._subjects(job.train)[0])
    assert subject.spatial_shape[1] == 32
    patch = next(iter(torchio._sampler(job)(subject, num_patches=1)))
    assert patch.spatial_shape == (16, 16, 8)


@pytest.mark.parametrize(
    ("arm", "package"), [(torchio, "torchio"), (lightning, "lightning")], ids=["torchio", "lightning"]
)
def test_a_peer_that_is_not_installed(
    arm: Any, package: str, data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = write_task(tmp_path / "task.json", task(data))
    monkeypatch.setitem(sys.modules, package, None)
    monkeypatch.setitem(sys.modules, f"{package}.pytorch", None)
    with pytest.raises(ValueError, match=rf"--peer {package}: .*pip install 'hasten\[peers\]'"):
        arm.main(["--task", str(path), "--out", str(tmp_path / "out.json")])


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


@pytest.mark.slow
@pytest.mark.parametrize("arm", ["torchio", "lightning"])
def test_an_arm_that_runs_out_of_time_has_a_last_validation(arm: str, data: Path, tmp_path: Path) -> None:
    result = run(arm, task(data), tmp_path, "--max-seconds", "1", "--workers", "0")
    assert result["stopped"] == "max_seconds"
    assert len(result["curve"]) == 1


@pytest.mark.slow
@pytest.mark.parametrize("arm", ["torchio", "lightning"])
def test_an_arm_on_regions(arm: str, tmp_path: Path) -> None:
    """Pictures of two nested discs, which also shows flat images."""
    rng = np.random.default_rng(0)
    cases = []
    for number in range(3):
        radius = np.hypot(*(np.indices((48, 40)) - np.array([24, 20])[:, None, None] - rng.uniform(-2, 2)))
        label = np.select([radius < 6, radius < 12], [2, 1], 0).astype(np.uint8)
        image = (label * 60 + rng.normal(60, 10, label.shape)).clip(0, 255).astype(np.uint8)
        for name, array in (("image", image), ("label", label)):
            Image.fromarray(array).save(tmp_path / f"{name}{number}.png")
        images, target = (str(tmp_path / f"image{number}.png"),), str(tmp_path / f"label{number}.png")
        cases.append(TaskCase(id=str(number), image=images, label=target))
    config = load_run(overrides=["data.source=none", *SMALL, "prepare.intensity=zscore", "sample.patch=[1, 16, 16]",
                                 "network.strides=[[1, 2, 2]]"])  # fmt: skip
    job = Task(
        name="discs", train=tuple(cases[:2]), validation=tuple(cases[2:]), labels=LABELS,
        regions={"whole": (1, 2), "core": (2,)}, spatial_dims=2, prepare=config.prepare, network=config.network,
        target=1.0, patch=(1, 16, 16), roi=(1, 16, 16), schedule=100, run={},
    )  # fmt: skip
    result = run(arm, job, tmp_path, "--max-epochs", "1", "--workers", "0")
    assert result["classes"] == ["whole", "core"]
    assert len(result["curve"][0]["per_class"]) == 2
