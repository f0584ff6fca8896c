"""The validation cases of a run on the images' own voxels."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from hasten.config.load import load_run
from hasten.distribute.world import World
from hasten.evaluation import validation_cases as own
from hasten.evaluation.evaluate import evaluate
from hasten.observe.clock import Clock
from hasten.phantoms.organs import write_phantoms
from hasten.report.page import write_report
from hasten.training.run import train
from tests.training.runs import config_of, resumed


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_phantoms(tmp_path_factory.mktemp("own") / "set", num_cases=6, shape=(16, 24, 24))


SINGLE = World(size=1, rank=0, local_rank=0, local_size=1)
RESAMPLED = ("prepare.spacing=[3.5,1.5,1.5]", "train.steps=6")


@pytest.fixture(scope="module")
def scored(data: Path, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[str, Any]]:
    """A run and its summary; copied by those that change it."""
    folder = tmp_path_factory.mktemp("scored")
    return folder / "run", train(config_of(data, folder / "cache", *RESAMPLED), folder / "run")


def test_a_resampled_run_is_scored_on_the_label_files_own_voxels(
    scored: tuple[Path, dict[str, Any]], data: Path, tmp_path: Path
) -> None:
    out, summary = shutil.copytree(scored[0], tmp_path / "run"), scored[1]
    maps = [path for path in (out / "validation").iterdir() if path.name.endswith(".nii.gz")]
    assert len(maps) == summary["cases"]["validation"]
    by_folder = evaluate(out / "validation", data, surfaces=False)
    assert summary["own_grid"]["dice"] == pytest.approx(by_folder.mean())
    assert summary["own_grid"]["iou"] == pytest.approx(by_folder.mean("iou"))
    assert json.loads((out / "summary.json").read_text())["own_grid"] == summary["own_grid"]
    assert summary["best"]["value"] is not None
    page = write_report([out], tmp_path / "report.html").read_text()
    assert "Mean Dice on the images&#39; own voxels" in page
    # A run that is complete says the same again; one that goes on is scored anew.
    assert train(resumed(out), out, resume=True) == summary
    longer = train(resumed(out, "train.steps=8"), out, resume=True)
    assert longer["steps"] == 8
    assert "own_grid" in longer


def test_a_time_limit_leaves_it_out_where_there_is_no_time(
    scored: tuple[Path, dict[str, Any]], tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    out = shutil.copytree(scored[0], tmp_path / "run")
    summary = {name: value for name, value in scored[1].items() if name != "own_grid"}
    text = (out / "run.yaml").read_text()
    (out / "run.yaml").write_text(text.replace("max_seconds: null", "max_seconds: 0.001"))
    assert load_run(out / "run.yaml").train.max_seconds == 0.001
    assert "own_grid" not in own.with_own_grid(summary, out, Clock(None), 0.0, world=SINGLE, device="cpu")
    assert "leaves no time" in caplog.text


def test_ranks_share_the_cases(
    scored: tuple[Path, dict[str, Any]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    out, expected = shutil.copytree(scored[0], tmp_path / "run"), scored[1]["own_grid"]
    summary = {name: value for name, value in scored[1].items() if name != "own_grid"}
    shutil.rmtree(out / "validation")
    predicted: list[list[str]] = []
    plain = own.predict_cases
    monkeypatch.setattr(
        own,
        "predict_cases",
        lambda m, cases, *a, **k: [predicted.append([c.id for c in cases]), plain(m, cases, *a, **k)],
    )
    for rank in (1, 0):
        world = World(size=2, rank=rank, local_rank=rank, local_size=2)
        actual = own.with_own_grid(summary, out, Clock(None), 0.0, world=world, device="cpu")
        assert ("own_grid" in actual) == (rank == 0)
    assert actual["own_grid"] == expected
    assert len(predicted) == 2
    assert not set(predicted[0]) & set(predicted[1])
