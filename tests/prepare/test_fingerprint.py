from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import nibabel
import numpy as np
import pytest
from PIL import Image

from hasten.cases.formats import read_file
from hasten.cases.sources import load_case_set
from hasten.cases.types import Case, CaseSet
from hasten.config.fingerprint import COARSER
from hasten.config.schema import PrepareConfig
from hasten.prepare.case import load_prepared, restore_label
from hasten.prepare.fingerprint import fingerprint_from_dict, fingerprint_to_dict, take_fingerprint


def write_set(folder: Path, num_cases: int = 5, *, channels: int = 1, modality: str = "MRI") -> CaseSet:
    """Cases of growing size with axes A, S, R, air of -1000 and -990, tissue of 0..99 in a box and labels 0, 2, 5."""
    cases = []
    affine = np.array([[0, 0, 2.0, 0], [0.5, 0, 0, 0], [0, 1.0, 0, 0], [0, 0, 0, 1]])
    for i in range(num_cases):
        rng = np.random.default_rng(i)
        shape = (10 + i, 12, 14)
        image = np.full((*shape, channels), -1000, np.int16)
        image[0, 0, 0] = -990
        image[2:7, 4:8, 6:12] = rng.integers(0, 100, (5, 4, 6, channels))
        label = np.zeros(shape, np.uint8)
        label[2:7, 4:8, 6:9] = 2
        label[2:7, 4:8, 9:12] = 5
        files = (folder / f"c{i}.nii.gz", folder / f"c{i}_label.nii.gz")
        nibabel.save(nibabel.Nifti1Image(image if channels > 1 else image[..., 0], affine), files[0])
        nibabel.save(nibabel.Nifti1Image(label, affine), files[1])
        cases.append(Case(id=f"c{i}", image=(files[0],), label=files[1]))
    return CaseSet(
        name="toy",
        source=folder,
        cases=tuple(cases),
        labels={0: "background", 2: "left", 5: "right"},
        channels=tuple(f"ch{c}" for c in range(channels)),
        modality=modality,
    )


def test_facts_of_a_set(tmp_path: Path) -> None:
    fingerprint = take_fingerprint(write_set(tmp_path))
    # The file's x runs along A, y along S, z along R: RAS in (D, H, W) is (y, x, z).
    assert fingerprint.shapes == tuple((12, 10 + i, 14) for i in range(5))
    assert fingerprint.spacings == ((1.0, 0.5, 2.0),) * 5
    assert (fingerprint.num_cases, fingerprint.sampled_cases) == (5, 5)
    assert fingerprint.intensity["min"] == (-1000,)

    tissue = np.concatenate([np.random.default_rng(i).integers(0, 100, (5, 4, 6, 1)).ravel() for i in range(5)])
    figures = fingerprint.foreground_intensity
    assert figures["mean"] == pytest.approx((tissue.mean(),))
    assert figures["std"] == pytest.approx((tissue.std(),))
    assert figures["p99_5"] == pytest.approx((np.percentile(tissue, 99.5),))
    assert (figures["min"], figures["max"]) == ((tissue.min(),), (tissue.max(),))


def test_sample_is_evenly_spaced(tmp_path: Path) -> None:
    case_set = write_set(tmp_path, 7)
    for i in (0, 2, 3, 4, 6):
        label = case_set.cases[i].label
        assert label is not None
        volume = read_file(label)
        undeclared = np.full(volume.array.shape[:0:-1], 99, np.uint8)  # an error where it is read
        nibabel.save(nibabel.Nifti1Image(undeclared, volume.affine), label)
    fingerprint = take_fingerprint(case_set, max_sampled=2)
    assert fingerprint.sampled_cases == 2
    assert fingerprint.num_cases == len(fingerprint.shapes) == 7


def test_errors(tmp_path: Path) -> None:
    case_set = write_set(tmp_path, 1, channels=2)
    with pytest.raises(ValueError, match=r"c0\.nii\.gz: case c0 .*2 channels, .* 1 \(image\)"):
        take_fingerprint(replace(case_set, channels=("image",)))
    with pytest.raises(ValueError, match=r"holds no cases; check data\.source"):
        take_fingerprint(replace(case_set, cases=()))


def test_ignored_voxels_are_no_foreground(tmp_path: Path) -> None:
    case_set = write_set(tmp_path)
    ignoring = replace(case_set, labels={0: "background", 2: "a"}, ignore=5)
    fingerprint = take_fingerprint(ignoring)
    for case in case_set.cases:  # the same with background in their place
        image = nibabel.load(case.label)
        label = np.asarray(image.dataobj).copy()
        label[label == 5] = 0
        nibabel.save(nibabel.Nifti1Image(label, image.affine), case.label)
    wanted = take_fingerprint(replace(ignoring, ignore=None))
    assert fingerprint.foreground_intensity == wanted.foreground_intensity


def test_crop_fraction_takes_each_channel_as_its_name_asks(tmp_path: Path) -> None:
    case_set = replace(write_set(tmp_path, 1, channels=2, modality="CT"), channels=("CT", "CT venous"))
    assert take_fingerprint(case_set).crop_fraction == pytest.approx(5 * 4 * 6 / (10 * 12 * 14))
    mixed = take_fingerprint(replace(case_set, channels=("CT", "PET")))
    assert mixed.crop_fraction == take_fingerprint(replace(case_set, channels=("PET", "MR"))).crop_fraction


@pytest.mark.parametrize("odd", [0, 3])
def test_the_images_with_other_channels_than_most_are_named(tmp_path: Path, odd: int) -> None:
    rng = np.random.default_rng(0)
    for number in range(5):
        shape = (16, 16, 3) if number == odd else (16, 16)
        for folder, side in (("images", shape), ("labels", (16, 16))):
            (tmp_path / folder).mkdir(exist_ok=True)
            picture = Image.fromarray(rng.integers(0, 2, side).astype(np.uint8))
            picture.save(tmp_path / f"{folder}/im{number}.png")
    with pytest.raises(ValueError, match=rf"4 of 5 images .*1 channel, .*im{odd}\.png \(3\)"):
        take_fingerprint(load_case_set(tmp_path))


def _slices(folder: Path, axes: list[int]) -> Path:
    """Cases of one slice across the NIfTI axis that `axes` states, with spacings 5 across it, 2 and 3 in its plane."""
    rng = np.random.default_rng(0)
    for name in ("images", "labels"):
        (folder / name).mkdir(parents=True)
    for number, axis in enumerate(axes):
        sides = [2.0, 3.0]
        sides.insert(axis, 5.0)
        plane = rng.integers(0, 100, (20, 30)).astype(np.int16)
        for name, array in (("images", plane), ("labels", (plane > 50).astype(np.uint8))):
            image = nibabel.Nifti1Image(np.expand_dims(array, axis), np.diag([*sides, 1]))
            nibabel.save(image, folder / name / f"{number}.nii.gz")
    return folder


@pytest.mark.parametrize("axes", [[0, 0], [1, 1], [2, 2], [2, 0, 1]])
def test_a_slice_is_2d_across_whichever_axis_it_is_stored(tmp_path: Path, axes: list[int]) -> None:
    case_set = load_case_set(_slices(tmp_path, axes))
    fingerprint = take_fingerprint(case_set)
    assert (case_set.spatial_dims, fingerprint.spatial_dims) == (2, 2)
    assert fingerprint.shapes == ((1, 30, 20),) * len(axes)
    assert fingerprint.spacings == ((5.0, 3.0, 2.0),) * len(axes)
    spec = PrepareConfig(spacing=(0, 0, 0), intensity="zscore", crop_foreground=False)
    for case in case_set.cases:
        done = load_prepared(case, case_set.labels, spec)
        assert done.image.shape == (1, 1, 30, 20)
        stored = nibabel.load(case.label).get_fdata().T
        assert np.array_equal(restore_label(done.label, done.geometry, [0, 1]), stored)


def test_a_slice_across_another_axis_does_not_pass_for_a_volume(tmp_path: Path) -> None:
    folder = _slices(tmp_path, [2, 0])
    for name in ("images", "labels"):
        nibabel.save(nibabel.Nifti1Image(np.ones((20, 30, 9), np.uint8), np.eye(4)), folder / name / "0.nii.gz")
    with pytest.raises(ValueError, match=r"1\.nii\.gz: is one slice, of shape \(30, 20, 1\) .*among 3-D images"):
        take_fingerprint(load_case_set(folder))


def test_labels_on_coarser_grids(tmp_path: Path) -> None:
    """What is kept is the Dice of labels that were resampled there and back; thick slices stay as they are."""
    shape, affine = (24, 20, 4), np.diag([1.0, 1.0, 4.0, 1.0])
    label = np.zeros(shape, np.uint8)
    label[6:18, 5:15, 1:3] = 1
    label[10, 10, 2] = 2  # one voxel, which no coarser grid keeps
    for name, array in (("image", label.astype(np.int16)), ("label", label)):
        nibabel.save(nibabel.Nifti1Image(array, affine), tmp_path / f"{name}.nii.gz")
    case_set = CaseSet(
        name="toy", labels={0: "background", 1: "a", 2: "b"}, channels=("MRI",), spatial_dims=3, modality="MRI",
        cases=(Case(id="a", image=(tmp_path / "image.nii.gz",), label=tmp_path / "label.nii.gz"),), source=tmp_path,
    )  # fmt: skip
    found = take_fingerprint(case_set)
    assert found.foreground_box == (8.0, 10.0, 12.0)
    assert found.kept_dice.keys() == set(COARSER)
    assert found.kept_dice[2.0][1] > 0.95
    assert found.kept_dice[2.0][2] == 0
    assert found.kept_dice[4.0][1] < found.kept_dice[2.0][1]
    assert fingerprint_from_dict(json.loads(json.dumps(fingerprint_to_dict(found)))) == found
