from __future__ import annotations

from functools import partial
from pathlib import Path

import nibabel as nib
import numpy as np
import pytest

from hasten.cases.formats import read_file_header
from hasten.cases.read import check_affine, misplaced_files, read_image, read_label, refuse_misplaced
from hasten.cases.types import Case

AFFINE = np.diag([-0.5, 0.5, 2.0, 1.0])
LABELS = {0: "background", 1: "a", 2: "b"}


def save(path: Path, values: np.ndarray, affine: np.ndarray = AFFINE) -> Path:
    """Values are (D, H, W) or (C, D, H, W)."""
    nib.save(nib.Nifti1Image(values.T if values.ndim == 3 else values.transpose(3, 2, 1, 0), affine), path)
    return path


def case_of(tmp_path: Path, image: np.ndarray, label: np.ndarray, affine: np.ndarray = AFFINE) -> Case:
    return Case(
        id="one",
        image=(save(tmp_path / "image.nii.gz", image),),
        label=save(tmp_path / "label.nii.gz", label, affine),
    )


def test_channels_are_joined_in_order(tmp_path: Path) -> None:
    first = np.full((3, 4, 5), 7, np.int16)
    pair = np.stack([np.full((3, 4, 5), 0.5, np.float32), np.full((3, 4, 5), 1.5, np.float32)])
    case = Case(id="one", image=(save(tmp_path / "a.nii.gz", first), save(tmp_path / "b.nii.gz", pair)))
    volume = read_image(case)
    assert volume.array.shape == (3, 3, 4, 5)
    assert volume.array[:, 0, 0, 0].tolist() == [7, 0.5, 1.5]
    np.testing.assert_allclose(volume.affine, AFFINE)
    shape, _, affine = read_file_header(case.image[0])
    assert shape == (3, 4, 5)
    np.testing.assert_array_equal(affine, volume.affine)


def test_channels_must_share_a_grid(tmp_path: Path) -> None:
    a = save(tmp_path / "a.nii.gz", np.zeros((3, 4, 5), np.int16))
    b = save(tmp_path / "b.nii.gz", np.zeros((3, 4, 6), np.int16))
    c = save(tmp_path / "c.nii.gz", np.zeros((3, 4, 5), np.int16), AFFINE + np.eye(4) * [0, 0, 0.4, 0])
    with pytest.raises(ValueError, match=r"b.nii.gz: .*shape \(3, 4, 6\) .*\(3, 4, 5\) of .*a.nii.gz"):
        read_image(Case(id="one", image=(a, b)))
    with pytest.raises(ValueError, match=r"c.nii.gz: its affine .*a.nii.gz by up to 0.\d+ voxels"):
        read_image(Case(id="one", image=(a, c)))


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_voxels_must_be_finite(tmp_path: Path, value: float, dtype: type) -> None:
    image = np.zeros((3, 4, 5), dtype)
    image[1, 2, 3] = image[2, 0, 0] = value
    case = case_of(tmp_path, image, np.zeros((3, 4, 5), np.uint8))
    with pytest.raises(ValueError, match=r"image.nii.gz: 2 voxels .* = \(1, 2, 3\) of channel 0"):
        read_image(case)


@pytest.mark.parametrize("dtype", [np.uint8, np.int16, np.float32, np.float64])
def test_label_is_mapped_to_class_indices(tmp_path: Path, dtype: type) -> None:
    label = np.random.default_rng(0).choice([0, 2, 5], (3, 4, 5)).astype(dtype)
    case = case_of(tmp_path, np.zeros((3, 4, 5), np.int16), label)
    index = read_label(case, {0: "background", 5: "b", 2: "a"}, read_image(case))
    assert index.dtype == np.uint8
    assert index.shape == (3, 4, 5)
    np.testing.assert_array_equal(index, np.select([label == 2, label == 5], [1, 2], 0))


def turned(degrees: float, shift: float = 0.0) -> np.ndarray:
    """AFFINE turned about z of the world, and moved along x of the file by `shift` voxels."""
    sine, cosine = np.sin(np.radians(degrees)), np.cos(np.radians(degrees))
    turn = np.eye(4)
    turn[:2, :2] = [[cosine, -sine], [sine, cosine]]
    moved = turn @ AFFINE
    moved[:3, 3] += shift * AFFINE[:3, 0]
    return moved


@pytest.mark.parametrize(
    ("affine", "distance"),
    [
        (turned(0, 0.4), 0.4),
        (turned(0, 0.2), 0.2),
        (turned(0, 0.005), 0.0),
        (turned(0, 1e-5), 0.0),
        (np.full((4, 4), np.nan), np.inf),
    ],
)
def test_grids_are_compared_by_their_corners(tmp_path: Path, affine: np.ndarray, distance: float) -> None:
    image = save(tmp_path / "image.nii.gz", np.zeros((3, 4, 5), np.int16))
    call = partial(check_affine, affine, tmp_path / "label.nii.gz", AFFINE, image, (3, 4, 5))
    if distance > 0.25:
        with pytest.raises(ValueError, match=rf"label.nii.gz: its affine differs .* {distance:.3g} voxels at a corner"):
            call()
    else:
        assert call() == pytest.approx(distance)


def test_a_small_turn_counts_by_the_size_of_the_grid() -> None:
    affine, shape = np.eye(4), (1, 80, 80)
    turn = np.radians(0.07)
    affine[:2, :2] = [[np.cos(turn), -np.sin(turn)], [np.sin(turn), np.cos(turn)]]
    corner = np.hypot(79.5, 79.5) * turn  # the farthest corner from the first voxel, about which it is turned
    assert check_affine(affine, Path("l.nii"), np.eye(4), Path("i.nii"), shape) == pytest.approx(corner, rel=1e-3)
    assert check_affine(affine, Path("l.nii"), np.eye(4), Path("i.nii"), (1, 8, 8)) < 0.02


def test_all_misplaced_files_of_a_set_are_told(tmp_path: Path) -> None:
    shifts = [0, 0.1, 0, 1, 1, 1, 1, 0.003]
    cases = []
    for number, shift in enumerate(shifts):
        folder = tmp_path / f"{number}"
        folder.mkdir()
        cases.append(case_of(folder, np.zeros((3, 4, 5), np.int16), np.ones((3, 4, 5), np.uint8), turned(0, shift)))
    found = [misplaced_files(case, read_file_header(case.image[0])) for case in cases]
    beside = {path: distance for each in found for path, distance in each.items()}
    assert {path.parent.name: round(distance, 3) for path, distance in beside.items()} == {
        "1": 0.1,
        "3": 1,
        "4": 1,
        "5": 1,
        "6": 1,
    }
    refuse_misplaced(found[1], tmp_path)
    with pytest.raises(ValueError, match=r"affine of 4 files differ .*3/label.* and 1 more; resample them") as raised:
        refuse_misplaced(beside, tmp_path)
    assert str(raised.value).count("label.nii.gz") == 3


@pytest.mark.parametrize(
    ("label", "what"),
    [
        (np.zeros((3, 4, 6), np.uint8), r"shape \(3, 4, 6\) .*\(3, 4, 5\) of .*image.nii.gz"),
        (np.zeros((2, 3, 4, 5), np.uint8), "has 2 channels"),
        (np.full((3, 4, 5), 9, np.uint8), "not declared: 9; declared are 0, 1, 2"),
        (np.full((3, 4, 5), 0.5, np.float32), "must be integers, but it holds 0.5"),
        (np.full((3, 4, 5), np.nan, np.float32), "must be integers, but it holds nan"),
    ],
)
def test_bad_label(tmp_path: Path, label: np.ndarray, what: str) -> None:
    case = case_of(tmp_path, np.zeros((3, 4, 5), np.int16), label)
    image = read_image(case)
    with pytest.raises(ValueError, match=what) as error:
        read_label(case, LABELS, image)
    assert "label.nii.gz" in str(error.value)
