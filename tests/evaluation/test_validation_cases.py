"""The validation cases of a run on the images' own voxels."""

from __future__ import annotations

from pathlib import Path

import pytest

from hasten.evaluation.crossval import predict_validation
from hasten.evaluation.evaluate import evaluate
from hasten.phantoms.organs import write_phantoms
from hasten.training.run import train
from tests.training.runs import config_of

RESAMPLED = ("prepare.spacing=[3.5,1.5,1.5]", "prepare.crop_foreground=true", "train.steps=6")


def test_the_dice_of_a_resampled_run_is_that_of_its_label_maps(tmp_path: Path) -> None:
    data, out = write_phantoms(tmp_path / "set", num_cases=6, shape=(16, 24, 24)), tmp_path / "run"
    summary = train(config_of(data, tmp_path / "cache", *RESAMPLED), out)
    predict_validation(out)
    by_folder = evaluate(out / "validation", data, surfaces=False)
    assert len(by_folder.cases) == summary["cases"]["validation"]
    assert summary["best"]["value"] == pytest.approx(by_folder.mean())
    assert by_folder.mean() > 0
