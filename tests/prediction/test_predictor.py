"""Arrays in, label maps and probabilities out; the same as `predict` writes for files."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import nibabel as nib
import numpy as np
import pytest
from PIL import Image

import hasten
from hasten.prediction.predict import Predictor, load_predictor, predict
from tests.training.phantom_runs import (
    AFFINES,
    SPACING,
    anatomy,
    array_of,
    picture,
    save,
    variant,
)

PREPARE: dict[str, dict[str, Any]] = {
    "plain": {},
    "resampled": {"spacing": [2.0, 1.0, 0.7]},
    "cropped": {"crop_foreground": True, "spacing": [1.0, 1.0, 1.0]},
    "thick": {"spacing": [4.5, 1.2, 1.0]},
}


@pytest.mark.parametrize(("orientation", "prepare"), zip(AFFINES, PREPARE, strict=True))
def test_an_array_gets_the_label_map_of_its_file(run: Path, tmp_path: Path, orientation: str, prepare: str) -> None:
    image = anatomy(5)[0]
    image[:2] = image.min()  # air, for the crop to find
    path, other = save(tmp_path / "new.nii.gz", image, AFFINES[orientation]), tmp_path / "run"
    variant(run, other, **PREPARE[prepare])
    [written] = predict(other, path, tmp_path / "out", probabilities=True)
    predictor = load_predictor(other)
    result = predictor(image.T, affine=AFFINES[orientation])
    assert np.array_equal(result, array_of(written).T)
    assert result.dtype == np.uint8
    chances = predictor(image.T, affine=AFFINES[orientation], probabilities=True)
    assert chances.dtype == np.float32
    assert np.array_equal(np.array([0, 3, 7])[chances.argmax(0)], result)
    np.testing.assert_allclose(chances.sum(0), 1, atol=1e-5)
    with np.load(tmp_path / "out/new.npz") as kept:
        assert kept["classes"].tolist() == ["background", "a", "b"]
        assert kept["probabilities"].dtype == np.float16
        assert np.array_equal(kept["probabilities"].argmax(0), chances.argmax(0))
        np.testing.assert_allclose(kept["probabilities"], chances, atol=2e-3)
    assert sorted(path.name for path in (tmp_path / "out").iterdir()) == ["new.nii.gz", "new.npz", "prediction.json"]


def test_a_spacing_stands_for_axes_as_the_run_turns_them(run: Path, tmp_path: Path) -> None:
    predictor, image = hasten.load_predictor(run, device="cpu"), anatomy(5)[0].T
    assert isinstance(predictor, Predictor)
    result = predictor(image, spacing=SPACING[::-1])
    assert np.array_equal(result, predictor(image[None].astype(np.float64), affine=AFFINES["RAS"]))
    turned = load_predictor(variant(run, tmp_path / "lps", orientation="LPS"))
    assert np.array_equal(turned(image, spacing=SPACING[::-1]), turned(image, affine=AFFINES["LPS"]))


def test_pictures(run_of_pictures: Path, tmp_path: Path) -> None:
    (tmp_path / "images").mkdir()
    (tmp_path / "labels").mkdir()
    path, _ = picture(tmp_path, 9)
    [written] = predict(run_of_pictures, path, tmp_path / "out", probabilities=True)
    predictor, pixels = load_predictor(run_of_pictures), np.asarray(Image.open(path))
    result = predictor(pixels)
    assert np.array_equal(result, np.asarray(Image.open(written)))
    assert np.array_equal(result, predictor(pixels[None], spacing=(1, 1)))
    chances = predictor(pixels, probabilities=True)
    assert chances.shape == (3, *pixels.shape)
    with np.load(tmp_path / "out/p9.npz") as kept:
        assert np.array_equal(kept["probabilities"][:, 0].argmax(0), chances.argmax(0))


NAN = np.full((4, 4, 4), 1.0)
NAN[1, 2, 3] = np.nan


@pytest.mark.parametrize(
    ("array", "where", "message"),
    [
        (np.zeros((2, 8, 8, 8)), {"spacing": (1, 1, 1)}, "array: 2 channels.*trained on 1 .T0.; give"),
        (np.zeros((8, 8)), {"spacing": (1, 1, 1)}, r"array: its shape is \(8, 8\); give \(D, H, W\) or"),
        (NAN, {"spacing": (1, 1, 1)}, r"array: 1 voxels .*NaN or infinite, .* = \(1, 2, 3\)"),
        (np.zeros((8, 8, 8), complex), {"spacing": (1, 1, 1)}, "array: holds complex128; give"),
        (np.zeros((8, 8, 8)), {}, "spacing, affine: give one of them"),
        (np.zeros((8, 8, 8)), {"spacing": (1, 1, 1), "affine": np.eye(4)}, "not both"),
        (np.zeros((8, 8, 8)), {"spacing": (1, 0, 1)}, "spacing: .* is no voxel spacing"),
        (np.zeros((8, 8, 8)), {"affine": np.zeros((4, 4))}, "affine: .* maps no volume"),
    ],
)
def test_what_is_no_image_is_refused(run: Path, array: np.ndarray, where: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        load_predictor(run)(array, **where)


def test_going_on_wants_probabilities_too(run: Path, tmp_path: Path) -> None:
    path, out = save(tmp_path / "new.nii.gz", anatomy(5)[0], np.eye(4)), tmp_path / "out"
    predict(run, path, out)
    with pytest.raises(ValueError, match="not all that belongs to it is there; add --overwrite"):
        predict(run, path, out, probabilities=True, resume=True)
    predict(run, path, out, probabilities=True, resume=True, overwrite=True)
    before = (out / "new.npz").stat().st_mtime_ns
    predict(run, path, out, probabilities=True, resume=True)
    assert (out / "new.npz").stat().st_mtime_ns == before
    assert nib.load(out / "new.nii.gz").shape == anatomy(5)[0].shape
