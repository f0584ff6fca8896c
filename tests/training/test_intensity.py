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
from hasten.observe.clock import Clock
from hasten.prediction.model import load_model
from hasten.prediction.predict import predict
from hasten.training.compose import prepare_run
from hasten.training.plan import plan_run
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


def test_each_channel_is_prepared_in_its_own_way(petct: Path) -> None:
    parts = prepare_run(config_of(petct), None, Clock())
    assert parts.planned.config.prepare.intensity == ("window", "zscore")
    low, high = parts.planned.config.prepare.window  # type: ignore[misc]
    for case, name in enumerate(parts.arena.ids):
        ct, pet = (
            np.asarray(nib.load(petct / f"imagesTr/{name}_{channel:04d}.nii.gz").dataobj, np.float32).T
            for channel in range(2)
        )
        image = parts.arena.image(case).float().numpy()
        np.testing.assert_allclose(image[0], ((ct - low) / (high - low)).clip(0, 1), atol=1e-3)
        np.testing.assert_allclose(image[1], (pet - pet.mean()) / pet.std(), atol=5e-3)


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


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        (["prepare.intensity=[window, zscore, none]"], r"has 3 values, but the images have 2 channels \(CT, PET\)"),
        (["prepare.window=[[0, 1]]"], r"prepare\.window: .*1 value, .*2 channels \(CT, PET\)"),
        (["prepare.window=[[0, 1], [0, 2]]"], r"channel 1 .*\[0\.0, 2\.0\], .*prepare\.intens"),
        (["prepare.window=[null, [0, 2]]"], "has none for channel 0, which"),
        (["prepare.window=[null, null]", "prepare.intensity=[window, zscore]"], "has none for channel 0, which"),
    ],
)  # fmt: skip
def test_lists_that_do_not_fit_the_channels(petct: Path, overrides: list[str], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        plan_run(config_of(petct, *overrides))
