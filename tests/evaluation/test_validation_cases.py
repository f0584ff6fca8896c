"""The validation cases of a run on the images' own voxels."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from hasten.evaluation import crossval as own
from hasten.evaluation.evaluate import evaluate
from hasten.phantoms.organs import write_phantoms
from hasten.training.run import train
from tests.training.runs import config_of


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_phantoms(tmp_path_factory.mktemp("own") / "set", num_cases=6, shape=(16, 24, 24))


RESAMPLED = ("prepare.spacing=[3.5,1.5,1.5]", "prepare.crop_foreground=true", "train.steps=6")


@pytest.fixture(scope="module")
def scored(data: Path, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[str, Any]]:
    """A run and its summary; copied by those that change it."""
    folder = tmp_path_factory.mktemp("scored")
    summary = train(config_of(data, folder / "cache", *RESAMPLED), folder / "run")
    own.predict_validation(folder / "run")
    own.score_validation(folder / "run", surfaces=False)
    return folder / "run", summary


def test_the_dice_of_a_resampled_run_is_that_of_its_label_maps(scored: tuple[Path, dict[str, Any]], data: Path) -> None:
    out, summary = scored
    by_folder = evaluate(out / "validation", data, surfaces=False)
    assert len(by_folder.cases) == summary["cases"]["validation"]
    assert summary["best"]["value"] == pytest.approx(by_folder.mean())
    assert by_folder.mean() > 0
