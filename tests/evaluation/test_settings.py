"""A run on its validation cases: settings of `infer` beside its own, and post-processing for its predictions."""

from __future__ import annotations

import json
import re
import shutil
from pathlib import Path

import numpy as np
import pytest
from typer.testing import CliRunner

from hasten.cache.fingerprint import read_cases
from hasten.cases.nifti import read_nifti, write_nifti
from hasten.cli.main import app
from hasten.config.load import load_run
from hasten.evaluation.crossval import evaluate_run
from hasten.evaluation.evaluate import evaluate
from hasten.observe.rundir import RUN_YAML
from hasten.prediction.postprocess import Cleaning, postprocessed, read_cleanings, write_cleanings
from hasten.prediction.predict import predict
from hasten.report.evaluation_page import write_evaluation_page
from tests.training.phantom_runs import IN_3D, source, trained


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("run")
    # So few steps leave specks, which removing pays.
    return trained(folder, source(folder / "data"), *IN_3D, "train.steps=25")


def images(run: Path) -> Path:
    return run.parent / "data" / "imagesTr"


def test_the_verb_says_what_settings_gain_and_cost(run: Path, tmp_path: Path) -> None:
    words = ["evaluate", str(run), "infer.flip_axes=[2]", "--no-surfaces", "--quiet", "--out", str(tmp_path / "out")]
    result = CliRunner().invoke(app, words)
    assert result.exit_code == 0, result.output
    assert "with infer.flip_axes=[2]" in result.output
    assert "2.00 times the windows through the network" in " ".join(result.output.split())
    scores = [json.loads((tmp_path / "out" / where / "evaluation.json").read_text()) for where in (".", "tried")]
    own, tried = (each["mean"]["dice"] for each in scores)
    page = (tmp_path / "out" / "evaluation.html").read_text()
    assert f"({tried - own:+.4f})" in page
    assert re.search(r'infer.flip_axes</th><td data-label="Own">[^<]*</td><td data-label="Tried">2<', page)
    assert page.count("<figure") == scores[0]["cases"]
    assert [each.get("settings") for each in scores] == [None, ["infer.flip_axes=[2]"]]
    assert not list(run.glob(".evaluate*"))
    assert not (run / "postprocessing.yaml").exists()


def test_post_processing_is_chosen_and_applied_by_predictions_of_the_run(run: Path, tmp_path: Path) -> None:
    try:
        result = CliRunner().invoke(app, ["evaluate", str(run), "--postprocessing", "--no-surfaces", "--quiet"])
        assert result.exit_code == 0, result.output
        assert f"{run / 'postprocessing.yaml'} (`hasten predict` applies it" in result.output
        cleanings = read_cleanings(run, {"0": "background", "3": "a", "7": "b"})
        assert cleanings
        plain = predict(run, images(run), tmp_path / "plain", postprocess=False)
        cleaned = predict(run, images(run), tmp_path / "cleaned")
        before, after = [read_nifti(path) for path in plain], [read_nifti(path).array[0] for path in cleaned]
        for one, other in zip(before, after, strict=True):
            assert np.array_equal(other, postprocessed(one.array[0], cleanings, one.spacing))
        assert any(not np.array_equal(one.array[0], other) for one, other in zip(before, after, strict=True))
    finally:
        (run / "postprocessing.yaml").unlink(missing_ok=True)


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["elsewhere"], "holds no run"),
        (["RUN", "labels", "infer.overlap=0.25"], "leave out LABELS to evaluate a run"),
        (["RUN", "labels", "others"], "others: is one too many"),
        (["RUN", "--tolerance-mm", "2"], "LABELS: is missing"),
        (["RUN", "train.steps=3"], "settings of the section infer only"),
        (["RUN", "infer.overlap=2"], "infer.overlap"),
    ],
)
def test_mistakes(run: Path, words: list[str], message: str) -> None:
    result = CliRunner().invoke(app, ["evaluate", *(str(run) if word == "RUN" else word for word in words)])
    assert result.exit_code != 0
    assert message in " ".join(result.output.split())


def test_training_cases_among_those_that_are_scored_are_counted(
    run: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    data = run.parent / "data"
    _, train, validation = read_cases(load_run(run / RUN_YAML))
    assert train
    assert validation
    # Of the same names, but other images.
    other = tmp_path / "other"
    for case in (*train, *validation):
        for path in (*case.image, case.label):
            assert path is not None
            target = other / path.relative_to(data)
            target.parent.mkdir(parents=True, exist_ok=True)
            volume = read_nifti(path)
            write_nifti(target, np.roll(volume.array[0], 1, 1), volume.affine)
    (other / "dataset.json").write_bytes((data / "dataset.json").read_bytes())
    moved = tmp_path / "moved"
    shutil.copytree(data, moved)
    expected = {case.id: [str(run)] for case in train}
    for source_of_images, trained_cases in ((data, expected), (moved, expected), (other, {})):
        caplog.clear()
        out = tmp_path / f"of_{source_of_images.name}"
        predict([run], source_of_images / "imagesTr", out)
        result = evaluate(out, source_of_images, surfaces=False)
        assert result.trained_on == trained_cases
        counted = f"{len(train)} of {len(train) + len(validation)} cases were training cases of the run {run}"
        assert (counted in caplog.text) == bool(trained_cases)
        page = write_evaluation_page(result, tmp_path / "page.html").read_text()
        assert (counted in page) == bool(trained_cases)
        assert result.to_dict()["training_cases"] == trained_cases
        (out / "prediction.json").unlink()
        assert evaluate(out, source_of_images, surfaces=False).trained_on == {}
        assert evaluate(out, source_of_images, run=run, surfaces=False).trained_on == trained_cases


def test_one_that_was_edited_is_kept(run: Path, caplog: pytest.LogCaptureFixture) -> None:
    path = run / "postprocessing.yaml"
    try:
        write_cleanings(run, {3: Cleaning(min_volume_mm3=3.0)})
        path.write_text(path.read_text().replace("3.0", "4.0"))
        evaluate_run(run, postprocessing=True, surfaces=False)
        assert "was edited, and is kept" in caplog.text
        assert read_cleanings(run, {"3": "a"})[3].min_volume_mm3 == 4.0
    finally:
        path.unlink()
