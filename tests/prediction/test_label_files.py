from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from PIL import Image
from typer.testing import CliRunner

from hasten.cases.formats import read_file
from hasten.cases.nifti import write_nifti
from hasten.cases.types import Case, Volume
from hasten.cli.main import app
from hasten.prediction.outputs import LABEL_ENDINGS, write_label

AFFINE = np.array([[-0.8, 0.1, 0.0, 30.0], [0.1, 0.8, 0.0, -12.0], [0.0, 0.0, 2.5, 7.0], [0.0, 0.0, 0.0, 1.0]])


def case(path: Path, shape: tuple[int, ...] = (4, 6, 8)) -> Case:
    path.parent.mkdir(parents=True, exist_ok=True)
    if path.suffix == ".png":
        Image.fromarray(np.zeros(shape[-2:], np.uint8)).save(path)
    else:
        write_nifti(path, np.zeros(shape, np.int16), AFFINE)
    return Case(id=path.name.split(".")[0], image=(path,))


@pytest.mark.parametrize("kind", LABEL_ENDINGS)
@pytest.mark.parametrize("highest", [7, 300])
def test_what_is_written_is_read_again(tmp_path: Path, kind: str, highest: int) -> None:
    flat = kind == ".png"
    label = np.random.default_rng(0).choice(np.array([0, 3, highest], np.int32), (1 if flat else 4, 6, 8))
    image = case(tmp_path / ("in/a.png" if flat else "in/a.nii.gz"))
    target = tmp_path / f"a{kind}"
    if kind in (".mha", ".nrrd"):
        pytest.importorskip("SimpleITK")
    write_label(target, label, Volume(np.zeros((1, *label.shape)), np.eye(4) if flat else AFFINE), image)
    text = read_file(target, label=True)
    assert np.array_equal(text.array[0], label)
    if kind not in (".png", ".tif"):
        assert np.allclose(text.affine, AFFINE, atol=1e-5)
    assert [path.name for path in tmp_path.iterdir() if path.is_file()] == [target.name]


def predicted(run: Path, folder: Path, out: Path, *flags: str) -> list[str]:
    done = CliRunner().invoke(app, ["predict", str(run), str(folder / "imagesTs"), "--out", str(out), *flags])
    assert done.exit_code == 0, done.output
    return sorted(path.name for path in out.iterdir() if path.name != "prediction.json")


def test_predict_an_nnunet_folder_of_test_images(run_of_two_channels: Path, tmp_path: Path) -> None:
    pytest.importorskip("SimpleITK")
    best, folder = run_of_two_channels, tmp_path / "Dataset001_A"
    for name in ("p_01", "p_02"):
        for channel in range(2):
            case(folder / f"imagesTs/{name}_{channel:04d}.nii.gz")
    described = {"channel_names": {"0": "T2", "1": "ADC"}, "labels": {"background": 0, "a": 1}, "file_ending": ".mha"}
    (folder / "dataset.json").write_text(json.dumps(described))
    assert predicted(best, folder, tmp_path / "out") == ["p_01.mha", "p_02.mha"]
    assert predicted(best, folder, tmp_path / "nifti", "--ending", ".nii.gz") == ["p_01.nii.gz", "p_02.nii.gz"]
    label = read_file(tmp_path / "out/p_01.mha")
    assert label.array.shape == (1, 4, 6, 8)
    assert np.allclose(label.affine, AFFINE, atol=1e-5)
    assert np.array_equal(label.array, read_file(tmp_path / "nifti/p_01.nii.gz").array)
