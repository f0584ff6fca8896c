"""Channels that are scaled apart, from the settings of a run to predictions and exports."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import nibabel as nib
import numpy as np
import pytest
import torch

from hasten.checkpoint.weights import model_file, read_model
from hasten.config.load import load_run
from hasten.prediction.model import load_model
from hasten.prediction.predict import predict
from hasten.training.run import train
from tests.training.test_regions import SETTINGS, tumour


@pytest.fixture(scope="module")
def petct(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A CT of one scale beside a PET whose scale differs from case to case, in nnU-Net's layout."""
    folder = tmp_path_factory.mktemp("petct")
    for part in ("imagesTr", "labelsTr"):
        (folder / part).mkdir()
    for number in range(6):
        bright, label = tumour(number)
        files = {
            f"imagesTr/case{number}_0000": (100 * bright - 50).astype(np.int16),
            f"imagesTr/case{number}_0001": bright * 10.0**number,
            f"labelsTr/case{number}": (label > 0).astype(np.uint8),
        }
        for name, array in files.items():
            nib.save(nib.Nifti1Image(array, np.eye(4)), folder / f"{name}.nii.gz")
    described = {"channel_names": {"0": "CT", "1": "PET"}, "labels": {"background": 0, "tumour": 1}, "numTraining": 6}
    (folder / "dataset.json").write_text(json.dumps(described | {"file_ending": ".nii.gz"}))
    return folder


def config_of(source: Path, *overrides: str) -> Any:
    return load_run(None, (f"data.source={source}", f"cache.dir={source / 'cache'}", *SETTINGS[1:], *overrides))


def test_a_run_predicts_and_exports_with_the_same_scaling(petct: Path, tmp_path: Path) -> None:
    safetensors = pytest.importorskip("safetensors")
    from hasten.prediction.export import export_weights

    train(config_of(petct, "train.steps=40"), tmp_path / "run")
    content = read_model(tmp_path / "run")
    model = load_model(content, where=str(model_file(tmp_path / "run")), device="cpu")
    assert model.prepare.intensity == ("window", "zscore")
    (file,) = predict(
        tmp_path / "run", [petct / f"imagesTr/case5_{channel:04d}.nii.gz" for channel in range(2)], tmp_path / "out",
        device="cpu",
    )  # fmt: skip
    result, truth = (np.asarray(nib.load(path).dataobj) for path in (file, petct / "labelsTr/case5.nii.gz"))
    assert 2 * (result * truth).sum() / (result.sum() + truth.sum()) > 0.7
    export_weights(tmp_path / "run", tmp_path / "w.safetensors")
    with safetensors.safe_open(tmp_path / "w.safetensors", "pt") as exported:
        prepare = json.loads(exported.metadata()["config"])["prepare"]
    assert prepare["intensity"] == ["window", "zscore"]
    assert torch.is_tensor(next(iter(content["weights"].values())))
