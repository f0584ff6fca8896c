"""nnU-Net as a peer: the task in its layout, and, slow, a training of seconds on a few cases."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import nibabel as nib
import numpy as np
import pytest
from PIL import Image

from benchmarks.ladder.arms import nnunet
from benchmarks.ladder.nnunet_raw import DATASET, write_raw, write_split
from benchmarks.ladder.task import Task, TaskCase, write_task
from hasten.config.schema import PrepareConfig
from hasten.config.settled import PlannedNetwork
from hasten.recipes.recipe import PeerSettings

LABELS = {0: "background", 1: "shell", 2: "core"}


def task(cases: list[TaskCase], **changes: Any) -> Task:
    given: dict[str, Any] = {
        "name": "balls",
        "train": tuple(cases[:-1]),
        "validation": tuple(cases[-1:]),
        "labels": LABELS,
        "prepare": PrepareConfig(spacing=(0.0, 0.0, 0.0), intensity="zscore", window=(0.0, 1.0), crop_foreground=False),
        "network": PlannedNetwork(name="unet", channels=(4, 8), strides=((2, 2, 2),)),
        "target": 1.0,
        "patch": (16, 16, 16),
        "roi": (16, 16, 16),
        "schedule": 1000,
        "run": {},
    } | changes
    return Task(**given)


def volumes(folder: Path, count: int, num_channels: int = 1, values: tuple[int, int] = (1, 2)) -> list[TaskCase]:
    """Balls in noise: a shell and a core."""
    rng = np.random.default_rng(0)
    folder.mkdir(parents=True, exist_ok=True)
    cases = []
    for number in range(count):
        shape = (20, 22, 18)
        centre = [side / 2 + rng.uniform(-2, 2) for side in shape]
        radius = np.sqrt(sum((at - middle) ** 2 for at, middle in zip(np.indices(shape), centre, strict=True)))
        label = np.select([radius < 4, radius < 7], [values[1], values[0]], 0).astype(np.uint8)
        image = (label[..., None] * 50 + rng.normal(100, 10, (*shape, num_channels))).astype(np.int16)
        image_path, label_path = folder / f"p{number}.nii.gz", folder / f"p{number}_seg.nii.gz"
        nib.save(nib.Nifti1Image(image.squeeze(), np.eye(4)), image_path)
        nib.save(nib.Nifti1Image(label, np.eye(4)), label_path)
        cases.append(TaskCase(id=f"p{number}", image=(str(image_path),), label=str(label_path)))
    return cases


def pictures(folder: Path, count: int) -> list[TaskCase]:
    """Bright discs, labelled 255."""
    folder.mkdir(parents=True, exist_ok=True)
    cases = []
    for number in range(count):
        y, x = np.indices((40, 48))
        label = (np.hypot(y - 20 - number, x - 24) < 10).astype(np.uint8) * 255
        Image.fromarray(label // 2 + 20).save(folder / f"d{number}.png")
        Image.fromarray(label).save(folder / f"d{number}_seg.png")
        paths = (str(folder / f"d{number}.png"), str(folder / f"d{number}_seg.png"))
        cases.append(TaskCase(id=f"d{number}", image=paths[:1], label=paths[1]))
    return cases


def described(folder: Path) -> dict[str, Any]:
    content: dict[str, Any] = json.loads((folder / "dataset.json").read_text())
    return content


def test_files_that_nnunet_reads_are_linked(tmp_path: Path) -> None:
    cases = volumes(tmp_path / "set", 2)
    folder = write_raw(task(cases, channels=("CT",)), tmp_path / "raw")
    assert folder.name == DATASET
    assert sorted(path.name for path in folder.glob("*Tr/*")) == [
        "p0.nii.gz", "p0_0000.nii.gz", "p1.nii.gz", "p1_0000.nii.gz"
    ]  # fmt: skip
    assert (folder / "imagesTr/p0_0000.nii.gz").resolve() == Path(cases[0].image[0]).resolve()
    assert (folder / "labelsTr/p1.nii.gz").resolve() == Path(cases[1].label).resolve()
    assert described(folder) == {
        "channel_names": {"0": "CT"},
        "labels": {"background": 0, "shell": 1, "core": 2},
        "numTraining": 2,
        "file_ending": ".nii.gz",
    }


def test_the_split_is_the_tasks(tmp_path: Path) -> None:
    (tmp_path / DATASET).mkdir()
    write_split(task(volumes(tmp_path, 3)), tmp_path)
    assert json.loads((tmp_path / DATASET / "splits_final.json").read_text()) == [
        {"train": ["p0", "p1"], "val": ["p2"]}
    ]


def test_features_and_batch_of_the_plan() -> None:
    planned: dict[str, Any] = {"n_stages": 3, "features_per_stage": [32, 64, 128]}
    plan: dict[str, Any] = {"batch_size": 7, "architecture": {"arch_kwargs": planned}}
    nnunet.change_plan(plan, PeerSettings())
    assert (plan["batch_size"], planned["features_per_stage"]) == (7, [32, 64, 128])
    nnunet.change_plan(plan, PeerSettings(nnunet_features=(8, 16, 32), nnunet_batch_size=2))
    assert (plan["batch_size"], planned["features_per_stage"]) == (2, [8, 16, 32])
    with pytest.raises(ValueError, match=r"peer.nnunet_features: \[8, 16\] are of 2 stages, but nnU-Net plans 3"):
        nnunet.change_plan(plan, PeerSettings(nnunet_features=(8, 16)))


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["labels", "regions", "pictures"])
def test_a_training_of_seconds(tmp_path: Path, kind: str) -> None:
    pytest.importorskip("nnunetv2")
    if kind == "pictures":
        given = task(pictures(tmp_path, 5), labels={0: "background", 255: "disc"}, spatial_dims=2)
    elif kind == "regions":
        regions = {"ball": (1, 2), "core": (2,)}
        given = task(volumes(tmp_path, 4, num_channels=2), channels=("T1", "T2"), regions=regions, metric="iou")
    else:
        given = task(volumes(tmp_path, 4))
    path, out, weights = write_task(tmp_path / "task.json", given), tmp_path / "out.json", tmp_path / "best.pth"
    command = [sys.executable, "-m", "benchmarks.ladder.arms.nnunet", "--task", str(path), "--out", str(out)]
    flags = ["--device", "cpu", "--threads", "1", "--workers", "1", "--max-seconds", "40", "--max-epochs", "2"]
    command += [*flags, "--weights", str(weights)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=200, check=False)
    assert done.returncode == 0, done.stderr[-2000:]
    result = json.loads(out.read_text())
    assert result["stopped"] in ("max_seconds", "max_epochs")
    assert result["settings"]["configuration"] == ("2d" if kind == "pictures" else "3d_fullres")
    assert result["steps"] >= 1
    assert len(result["seconds_per_epoch"]) == result["settings"]["epochs"]
    last = result["curve"][-1]
    assert len(last["per_class"]) == len(given.class_names)
    assert all(0 <= value <= 1 for value in last["per_class"])
    # Nothing is resampled or cropped here, so the voxels are the same ones; but a map of regions hides some of each.
    assert last["prepared"] == pytest.approx(last[given.metric], abs=0.5 if kind == "regions" else 1e-4)
    assert all(result["seconds"][phase] > 0 for phase in ("import", "cache", "train", "validate"))
    assert weights.is_file()
