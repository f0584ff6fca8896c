from __future__ import annotations

import csv
import json
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from typer.testing import CliRunner

from hasten.checkpoint.file import read_checkpoint
from hasten.cli.main import app
from hasten.pathology import compose
from hasten.pathology.compose import predict_slides
from hasten.pathology.config import DetectionConfig, load
from hasten.pathology.run import train_detection
from hasten.training.loop import Loop
from tests.pathology.conftest import SETTINGS


@pytest.fixture(scope="module")
def run(phantoms: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A finished run of four steps."""
    out = tmp_path_factory.mktemp("runs") / "run"
    train_detection(load(None, [f"data.source={phantoms}", *SETTINGS]), out)
    return out


def test_a_run_leaves_everything(run: Path) -> None:
    summary = json.loads((run / "summary.json").read_text())
    assert (summary["status"], summary["steps"], summary["kind"]) == ("finished", 4, "detection")
    assert summary["slides"] == {"train": 4, "validation": 1}
    assert set(summary["seconds"]) >= {"total", "prepare", "train", "validate", "slides"}
    froc = json.loads((run / "froc.json").read_text())
    assert froc["rates"] == [0.25, 0.5, 1, 2, 4, 8]
    assert froc["images"] == 1
    assert 0 <= froc["score"] <= 1
    assert summary["froc"]["score"] == froc["score"]
    lines = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    assert [line["step"] for line in lines if line["kind"] == "validation"] == [2, 4]
    page = (run / "report.html").read_text()
    assert "Free-response ROC" in page
    assert "Heat map: phantom_002" in page
    assert (run / "run.yaml").read_text().startswith("kind: detection\n")
    assert (run / "env.json").is_file()


def test_a_run_on_a_budget_measures_precision_and_memory_format(phantoms: Path, tmp_path: Path) -> None:
    measured = ("train.precision=", "train.channels_last=")
    given = [one for one in SETTINGS if not one.startswith(measured)]
    train_detection(load(None, [f"data.source={phantoms}", *given, "train.budget=100s"]), tmp_path / "run")
    summary = json.loads((tmp_path / "run" / "summary.json").read_text())
    assert summary["status"] == "finished"
    assert {summary["accelerators"][name]["set_by"] for name in ("precision", "channels-last")} == {"measured"}


def test_prediction_repeats_the_runs_heat_map(
    run: Path, phantoms: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    current: list[str] = []
    monkeypatch.setattr(compose, "current_device", lambda device: nullcontext(current.append(str(device))))
    slides = [phantoms / "slides" / f"phantom_00{number}.tif" for number in (2, 3)]
    result = predict_slides(run, slides, tmp_path / "out", device="cpu")
    assert current == ["cpu", "cpu"]  # Triton launches on no other
    np.testing.assert_array_equal(
        np.load(tmp_path / "out" / "phantom_002.npy"), np.load(run / "heat_maps" / "phantom_002.npy")
    )
    with result.open() as file, (run / "detections.csv").open() as other:
        ours = [row for row in csv.DictReader(file) if row["slide"] == "phantom_002"]
        assert ours == list(csv.DictReader(other))
    assert {path.suffix for path in (tmp_path / "out").glob("phantom_003*")} == {".npy", ".json", ".png"}


def test_the_command_line_predicts_slides_and_replaces_nothing_unasked(
    run: Path, phantoms: Path, tmp_path: Path
) -> None:
    slide, out = str(phantoms / "slides" / "phantom_002.tif"), tmp_path / "out"

    def predict(*more: str) -> Any:
        return CliRunner().invoke(app, ["predict", str(run), slide, "--out", str(out), "--device", "cpu", *more])

    assert "is a run on slides" in predict("--probabilities").output
    assert not out.exists()
    first = predict()
    assert first.exit_code == 0, first.output
    assert first.stdout.startswith("1 heat map in")
    assert (out / "detections.csv").is_file()
    (out / "phantom_002.npy").write_bytes(b"mine")
    again = predict()
    assert again.exit_code == 2
    assert "add --overwrite" in again.output
    assert (out / "phantom_002.npy").read_bytes() == b"mine"
    assert predict("--overwrite").exit_code == 0
    assert (out / "phantom_002.npy").read_bytes() != b"mine"


def test_a_resumed_run_ends_bit_for_bit_as_one_that_never_stopped(
    config: DetectionConfig, run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    after = Loop._after_step

    def stopping(loop: Loop, step: int) -> bool:
        if step == 3 and loop.first == 0:
            loop.stop.ask()
        return after(loop, step)

    monkeypatch.setattr(Loop, "_after_step", stopping)
    out = tmp_path / "run"
    with pytest.raises(KeyboardInterrupt, match="stopped at step 3; continue with: hasten train --resume"):
        train_detection(config, out)
    train_detection(config, out, resume=True)
    for name in ("last.pt", "best.pt"):
        one, other = (read_checkpoint(folder / "checkpoints" / name) for folder in (out, run))
        part = "average" if name == "last.pt" else "weights"
        assert one["step"] == other["step"]
        assert all(torch.equal(one[part][key], value) for key, value in other[part].items())
    ours, theirs = ([json.loads(line) for line in (folder / "metrics.jsonl").open()] for folder in (out, run))
    for one, other in zip(ours, theirs, strict=True):
        assert (one["step"], one["loss"]) == (other["step"], other["loss"])


@pytest.mark.slow
def test_the_command_line_trains_and_resumes_slides(phantoms: Path, tmp_path: Path) -> None:
    settings, out = tmp_path / "slides.yaml", tmp_path / "run"
    settings.write_text(f"kind: detection\ndata: {{source: {phantoms}}}\n")

    def hasten(*words: str) -> Any:
        done = CliRunner().invoke(app, [*words, *(["--quiet"] if words[0] == "train" else [])])
        return done.exit_code, done.output

    code, output = hasten("train", str(settings), *SETTINGS, "--out", str(out))
    assert code == 0, output
    assert f"predict    hasten predict {out} SLIDE..." in output
    for words, message in (
        (("train", str(settings), "--out", str(tmp_path / "other"), "--folds", "all"), "a run on slides has no folds"),
        (("plan", str(settings)), "is a run on slides, which only `hasten train`"),
    ):
        code, output = hasten(*words)
        assert code == 2
        assert message in " ".join(output.split())
    code, output = hasten("train", "--resume", "--out", str(out), "train.steps=5")
    assert code == 0, output
    assert json.loads((out / "summary.json").read_text())["steps"] == 5
    assert (out / "monitor.jsonl").is_file()
    assert "AUC 0." in hasten("watch", str(out), "--once")[1]
