"""An nnU-Net data set on the command line: planned as it is, and named where it is not quite one."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from typer.testing import CliRunner

from hasten.cases.nifti import write_nifti
from hasten.cli.main import app

DESCRIBED = {
    "channel_names": {"0": "noNorm"},
    "labels": {"background": 0, "organ": 1},
    "numTraining": 3,
    "file_ending": ".nii.gz",
}


@pytest.fixture
def raw(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """nnUNet_raw with one data set."""
    monkeypatch.setenv("HASTEN_CACHE", str(tmp_path / "cache"))
    monkeypatch.chdir(tmp_path)
    folder = tmp_path / "nnUNet_raw/Dataset007_Organ"
    rng = np.random.default_rng(0)
    for number in range(3):
        label = np.zeros((12, 16, 16), np.uint8)
        label[4:8, 5:10, 5:10] = 1
        image = (label * 100 + rng.normal(0, 5, label.shape)).astype(np.float32)
        write_nifti(folder / f"imagesTr/case_{number}_0000.nii.gz", image, np.eye(4))
        write_nifti(folder / f"labelsTr/case_{number}.nii.gz", label, np.eye(4))
    (folder / "dataset.json").write_text(json.dumps(DESCRIBED))
    return folder.parent


def said(*words: str) -> tuple[int, str]:
    done = CliRunner().invoke(app, list(words))
    return done.exit_code, " ".join(done.output.split())


def test_plan(raw: Path) -> None:
    code, text = said("plan", str(raw / "Dataset007_Organ"), "train.device=cpu", "data.split.by=nnunet")
    assert code == 2
    assert "makes 5 folds, but there are 3 cases; use by=fraction" in text
    code, text = said("plan", str(raw / "Dataset007_Organ"), "train.device=cpu")
    assert code == 0, text
    assert "noNorm: nnU-Net's word for values that are kept" in Path("plan.json").read_text()
