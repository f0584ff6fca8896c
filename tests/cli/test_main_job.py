"""The newcomer's way through the command line, at toy size, with nothing replaced by a stand-in."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import nibabel as nib
import numpy as np
import pytest
from typer.testing import CliRunner

from hasten.cli.main import app
from hasten.config.load import load_run
from hasten.observe.rundir import read_jsonl


def run(*words: object) -> Any:
    result = CliRunner().invoke(app, [str(word) for word in words])
    assert result.exit_code == 0, result.output
    return result


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("job")


def test_from_nothing_to_label_maps(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HASTEN_CACHE", str(folder / "cache"))
    data, plan, out = folder / "data", folder / "plan.json", folder / "run"
    output = run("phantom", "--cases", 6, "--shape", 16, 32, 32, "--out", data)
    assert f"hasten train {data}" in output.stdout
    assert len(list((data / "imagesTr").iterdir())) == 6

    run("plan", data, "--out", plan)
    decided = json.loads(plan.read_text())
    assert all(decision["reason"] for decision in decided["decisions"].values())
    assert decided["fingerprint"]["num_cases"] == 6
    settings = (
        "sample.patch=[16,16,16]",
        "sample.batch_size=2",
        "network.channels=[4,8,8]",
        "network.strides=[[2,2,2],[2,2,2]]",
        "train.steps=6",
        "train.validate_every=2",
        "train.checkpoint_every=2",
    )
    output = run("train", data, *settings, "train.target=1e-9", "sample.affine_prob=0.2", "--out", out)
    assert "best Dice" in output.stdout
    assert f"hasten predict {out} IMAGE" in output.stdout
    assert {path.name for path in out.iterdir()} == {
        *("run.yaml", "plan.json", "env.json", "metrics.jsonl", "summary.json", "examples.npz", "report.html"),
        *("checkpoints", "monitor.jsonl", "tensorboard"),
    }
    assert {path.name for path in (out / "checkpoints").iterdir()} == {"best.pt", "last.pt"}
    config = load_run(out / "run.yaml")
    assert config.sample.patch == (16, 16, 16)
    assert config.network.channels == (4, 8, 8)
    assert config.sample.affine_prob == 0.2
    assert None not in (config.train.precision, config.train.channels_last, config.train.compile)
    assert summary(out)["status"] == "target_reached"
    assert summary(out)["steps"] == 2

    page = folder / "report.html"
    assert str(page) in run("report", out, "--out", page).stdout
    assert "</html>" in page.read_text()

    (shown,) = run("view", out, "--quiet").stdout.split()[1:]
    assert Path(shown).parent == out / "view"
    assert "validation case; prediction by its best weights. Mean Dice" in Path(shown).read_text()

    labels = folder / "labels"
    output = run("predict", out, data / "imagesTr", "--out", labels)
    assert output.stdout == f"6 label maps in {labels}\n"
    assert output.stderr.splitlines()[-1] == "6/6  phantom_005.nii.gz"
    for path in (data / "imagesTr").iterdir():
        image, label = nib.load(path), nib.load(labels / path.name)
        assert label.shape == image.shape
        np.testing.assert_array_equal(label.affine, image.affine)
        assert set(np.unique(np.asanyarray(label.dataobj))) <= {0, 1}

    run("train", "--resume", "train.target=null", "--out", out)
    assert summary(out)["status"] == "finished"
    assert summary(out)["steps"] == 6
    records = read_jsonl(out / "metrics.jsonl")
    assert [record["step"] for record in records if record["kind"] == "train"] == [1, 2, 3, 4, 5, 6]
    assert [record["step"] for record in records if record["kind"] == "validation"] == [2, 4, 6]
    run("predict", out, data / "imagesTr", "--out", labels, "--overwrite")


def summary(out: Path) -> dict[str, Any]:
    content: dict[str, Any] = json.loads((out / "summary.json").read_text())
    return content
