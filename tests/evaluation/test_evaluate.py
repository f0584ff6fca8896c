from __future__ import annotations

import csv
import json
import math
import re
from pathlib import Path

import nibabel as nib
import numpy as np
import pytest
import torch
from monai.metrics import compute_surface_dice
from typer.testing import CliRunner

import hasten
from hasten.cases.sources import load_case_set
from hasten.cli.main import app
from hasten.evaluation.evaluate import evaluate, write_evaluation
from hasten.evaluation.examples import examples_of
from hasten.report.evaluation_page import write_evaluation_page

SPACING = (1.0, 1.2, 2.5)  # x, y, z


def save(path: Path, array: np.ndarray, affine: np.ndarray | None = None) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    nib.save(nib.Nifti1Image(array, np.diag([*SPACING, 1.0]) if affine is None else affine), path)
    return path


def label_of(number: int) -> np.ndarray:
    label = np.zeros((10, 9, 8), np.uint8)
    label[1 : 4 + number % 3, 2:6, 2:6] = 3
    label[6:9, 2:7, 1:5] = 7
    return label


@pytest.fixture
def folders(tmp_path: Path) -> tuple[Path, Path]:
    for number in range(3):
        label = label_of(number)
        save(tmp_path / f"data/imagesTr/c{number}_0000.nii.gz", label.astype(np.float32))
        save(tmp_path / f"data/labelsTr/c{number}.nii.gz", label)
        save(tmp_path / f"predictions/c{number}.nii.gz", np.roll(label, number, 1))
    labels = {"background": 0, "tumour": [3, 7], "core": 7}
    content = {"channel_names": {"0": "T1"}, "file_ending": ".nii.gz", "numTraining": 3}
    (tmp_path / "data/dataset.json").write_text(json.dumps({**content, "labels": {"background": 0, "a": 3, "b": 7}}))
    (tmp_path / "regions.json").write_text(json.dumps({**content, "labels": labels, "regions_class_order": [3, 7]}))
    return tmp_path / "predictions", tmp_path / "data"


def test_scores_of_a_folder_against_a_data_set(folders: tuple[Path, Path]) -> None:
    predictions, data = folders
    result = hasten.evaluate(predictions, data)
    assert result.cases == ["c0", "c1", "c2"]
    assert result.names == ("a", "b")
    by_hand = []
    for number in range(3):
        label = label_of(number)
        shifted = np.roll(label, number, 1)
        for value in (3, 7):
            one, other = shifted == value, label == value
            by_hand.append(2 * (one & other).sum() / (one.sum() + other.sum()))
    assert [score.dice for score in result.scores] == pytest.approx(by_hand)
    # Moved along y, by a voxel of 1.2 mm and by two.
    assert [score.hd95 for score in result.scores if score.name == "b"] == pytest.approx([0, 1.2, 2.4])
    assert result.mean() == pytest.approx(np.mean(by_hand))
    assert result.summary("a", "dice").count == 3


def test_ignored_voxels_are_not_scored(folders: tuple[Path, Path]) -> None:
    predictions, data = folders
    plain = hasten.evaluate(predictions, data)
    content = json.loads((data / "dataset.json").read_text())
    (data / "dataset.json").write_text(json.dumps({**content, "labels": {**content["labels"], "ignore": 9}}))
    for number in range(3):
        label = label_of(number)
        wrong = np.roll(label, number, 1) != label
        save(data / f"labelsTr/c{number}.nii.gz", np.where(wrong, 9, label).astype(np.uint8))
    result = hasten.evaluate(predictions, data)
    assert result.mean("dice") == 1.0 > plain.mean("dice")
    assert result.names == plain.names
    assert hasten.evaluate(predictions, data / "labelsTr").mean("dice") == 1.0


def test_a_part_of_a_data_set_may_be_predicted_but_not_of_a_folder(folders: tuple[Path, Path]) -> None:
    predictions, data = folders
    (predictions / "c1.nii.gz").unlink()
    result = evaluate(predictions, data, surfaces=False)
    assert result.cases == ["c0", "c2"]
    assert result.pairs.num_labelled == 3
    with pytest.raises(ValueError, match=r"c1\.nii\.gz: has no prediction in"):
        evaluate(predictions, data / "labelsTr")


@pytest.mark.parametrize("form", ["csv", "training"])
def test_cases_to_test_have_label_maps(tmp_path: Path, form: str) -> None:
    for number in range(3):
        save(tmp_path / "files" / f"c{number}.nii.gz", label_of(number))
    parts = ["train", "val", "test"]
    rows = [{"image": f"files/c{i}_image.nii.gz", "label": f"files/c{i}.nii.gz", "id": f"c{i}"} for i in range(3)]
    for row in rows:
        save(tmp_path / row["image"], label_of(0))
    if form == "csv":
        lines = [f"{row['id']},{row['image']},{row['label']},{part}" for row, part in zip(rows, parts, strict=True)]
        source = tmp_path / "list.csv"
        source.write_text("\n".join(["id,image,label,split", *lines]))
    else:
        content = {"training": rows[:1], "validation": rows[1:2], "testing": ["files/c9.nii.gz", rows[2]]}
        source = tmp_path / "list.json"
        source.write_text(json.dumps(content))
    save(tmp_path / "predicted" / "c2.nii.gz", label_of(2))
    scores = evaluate(tmp_path / "predicted", source, num_workers=1)
    assert (scores.cases, scores.mean(), scores.pairs.num_labelled) == (["c2"], 1.0, 3)
    assert [case.id for case in load_case_set(source).cases] == ["c0", "c1"]


def test_every_case_that_cannot_be_compared_is_listed(folders: tuple[Path, Path]) -> None:
    predictions, data = folders
    save(predictions / "c0.nii.gz", np.zeros((10, 9, 7), np.uint8))
    save(predictions / "c1.nii.gz", label_of(1), np.diag([1.0, 1.2, 2.6, 1.0]))
    save(predictions / "unknown.nii.gz", label_of(1))
    (predictions / "c2.nii.gz").unlink()
    with pytest.raises(ValueError, match="4 cases cannot be compared") as error:
        evaluate(predictions, data / "labelsTr")
    text = str(error.value)
    assert "unknown.nii.gz: is predicted, but" in text
    assert "c2.nii.gz: has no prediction" in text
    assert "c0.nii.gz: its shape (7, 9, 10) differs from (8, 9, 10)" in text
    assert "c1.nii.gz: its affine differs" in text


def test_predictions_are_paired_with_label_maps_of_similar_names(
    folders: tuple[Path, Path], caplog: pytest.LogCaptureFixture
) -> None:
    predictions, data = folders
    before = evaluate(predictions, data / "labelsTr", surfaces=False)
    for path in sorted((data / "labelsTr").iterdir()):
        path.rename(path.with_name(path.name.replace(".nii", "_mask.nii")))
    affine = np.diag([1.0, 1.2, 2.5, 1.0])
    affine[0, 3] = 0.1
    save(predictions / "c0.nii.gz", label_of(0), affine)
    after = evaluate(predictions, data / "labelsTr", surfaces=False)
    assert after.case_means() == before.case_means()
    assert "corners of 1 predictions" in caplog.text
    assert "by up to 0.1 voxels" in caplog.text


@pytest.mark.parametrize(
    ("predictions", "labels", "tolerance", "message"),
    [
        ("nowhere", "data", 1.0, "nowhere: no such folder; name the folder of the predictions"),
        ("empty", "data", 1.0, "empty: holds no label maps"),
        ("run", "data", 1.0, "run: is a run, whose validation cases .*predict them"),
        ("predictions", "nowhere", 1.0, "nowhere: no such folder; name the folder of the label maps"),
        ("predictions", "data", -1.0, "tolerance_mm=-1.0: use a distance in mm"),
        ("predictions", "data", math.nan, "tolerance_mm=nan"),
    ],
)
def test_bad_input(folders: tuple[Path, Path], predictions: str, labels: str, tolerance: float, message: str) -> None:
    root = folders[0].parent
    (root / "empty").mkdir()
    (root / "run").mkdir()
    (root / "run" / "run.yaml").touch()
    with pytest.raises(ValueError, match=message):
        evaluate(root / predictions, root / labels, tolerance_mm=tolerance)


@pytest.mark.parametrize(("unit", "mm"), [("micron", 1e-3), ("mm", 1.0), ("meter", 1e3), ("unknown", 1.0)])
def test_distances_are_in_mm_whatever_unit_a_header_states(tmp_path: Path, unit: str, mm: float) -> None:
    label = np.zeros((10, 12, 14), np.uint8)
    label[3:7, 4:8, 4:8] = 1
    for folder, array in (("labels", label), ("predictions", np.roll(label, 2, 2))):
        (tmp_path / folder).mkdir()
        image = nib.Nifti1Image(array, np.diag([0.5 / mm, 0.5 / mm, 0.8 / mm, 1.0]))
        image.header.set_xyzt_units(unit)
        nib.save(image, tmp_path / folder / "c.nii.gz")
    result = evaluate(tmp_path / "predictions", tmp_path / "labels", tolerance_mm=0.9)
    assert result.unit == "mm"
    assert result.scores[0].hd95 == pytest.approx(1.6, rel=1e-4)
    # As nibabel and MONAI measure it with the spacing in mm.
    masks = [torch.from_numpy(array)[None, None] for array in (np.roll(label, 2, 2), label)]
    [[nsd]] = compute_surface_dice(*masks, [0.9], include_background=True, spacing=(0.5, 0.5, 0.8))
    assert result.scores[0].nsd == pytest.approx(float(nsd), abs=1e-4)


def test_files_and_page(folders: tuple[Path, Path], tmp_path: Path) -> None:
    predictions, data = folders
    save(predictions / "c1.nii.gz", np.zeros((10, 9, 8), np.uint8))
    result = evaluate(predictions, data, tolerance_mm=2.0)
    write_evaluation(result, tmp_path / "out")
    rows = list(csv.DictReader((tmp_path / "out/evaluation.csv").open()))
    assert [(row["case"], row["class"]) for row in rows][:2] == [("c0", "a"), ("c0", "b")]
    assert rows[2]["hd95"] == "inf"
    content = json.loads((tmp_path / "out/evaluation.json").read_text())
    assert content["classes"]["a"]["dice"]["mean"] == pytest.approx(result.summary("a", "dice").mean)
    assert content["scores"][2]["hd95"] is None
    page = write_evaluation_page(result, tmp_path / "out/evaluation.html", examples=examples_of(result)).read_text()
    for which, case in {"worst": "c1", "best": "c0"}.items():
        dice = result.case_means()[case]
        assert re.search(rf"<b>{case}</b>: {which}, axial slice \d+ of 8, Dice of the case {dice:.3f}", page)


def test_the_verb(folders: tuple[Path, Path], tmp_path: Path) -> None:
    predictions, data = folders
    out = tmp_path / "out"
    result = CliRunner().invoke(app, ["evaluate", str(predictions), str(data), "--out", str(out)])
    assert result.exit_code == 0, result.output
    assert {path.suffix for path in out.iterdir()} == {".csv", ".json", ".html"}
    assert result.stdout.split()[:4] == ["Class", "Dice", "IoU", "HD95"]
    assert CliRunner().invoke(app, ["evaluate", str(predictions), str(tmp_path / "nowhere")]).exit_code == 2
