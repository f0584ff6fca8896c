from __future__ import annotations

import itertools

import monai.transforms
import nibabel
import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from monai.data import MetaTensor

from hasten.prepare.orient import orient, orientation_of, unorient

CODES = ["".join(codes) for pairs in itertools.permutations(("LR", "PA", "IS")) for codes in itertools.product(*pairs)]


def affine_of(codes: str, spacing: tuple[float, float, float], tilt: float = 0.0) -> np.ndarray:
    """An affine of a file with these codes and (x, y, z) spacing, rotated by `tilt` rad about z."""
    matrix = nibabel.orientations.inv_ornt_aff(nibabel.orientations.axcodes2ornt(tuple(codes)), (1, 1, 1))
    turn = np.eye(4)
    turn[:2, :2] = [[np.cos(tilt), -np.sin(tilt)], [np.sin(tilt), np.cos(tilt)]]
    affine = turn @ np.linalg.inv(matrix) @ np.diag([*spacing, 1.0])
    affine[:3, 3] = (3.0, -5.0, 7.0)
    return affine


@given(st.sampled_from(CODES), st.sampled_from(CODES), st.floats(-0.3, 0.3))
def test_matches_monai(source: str, target: str, tilt: float) -> None:
    affine = affine_of(source, (1.0, 2.0, 0.5), tilt)
    array = np.arange(2 * 3 * 4 * 5, dtype=np.float32).reshape(2, 3, 4, 5)

    got = orient(array, *orientation_of(affine, target))

    # MONAI's arrays are (C, x, y, z).
    meta = MetaTensor(torch.from_numpy(array.transpose(0, 3, 2, 1).copy()), affine=torch.from_numpy(affine))
    expected = monai.transforms.Orientation(axcodes=target)(meta)
    assert nibabel.aff2axcodes(affine) == tuple(source)
    assert np.array_equal(got, expected.numpy().transpose(0, 3, 2, 1))


@given(st.permutations([0, 1, 2]), st.tuples(st.booleans(), st.booleans(), st.booleans()))
def test_views_and_inverse(permute: list[int], flip: tuple[bool, bool, bool]) -> None:
    order = (permute[0], permute[1], permute[2])
    array = np.arange(2 * 3 * 4 * 5).reshape(2, 3, 4, 5)
    turned = orient(array, order, flip)
    assert turned.base is not None
    assert np.shares_memory(turned, array)
    assert np.array_equal(unorient(turned, order, flip), array)
    assert np.array_equal(orient(array[0], order, flip), turned[0])


def test_affine_without_an_axis() -> None:
    with pytest.raises(ValueError, match="no direction for one of its axes"):
        orientation_of(np.diag([1.0, 0.0, 1.0, 1.0]), "RAS")


@pytest.mark.parametrize("codes", [None, "RAS"])
@pytest.mark.parametrize("letters", ["LPS", "ASR", "RAS", "SRA"])
@pytest.mark.parametrize("across", [1, 2])
def test_a_slice_across_another_axis_is_one_with_that_axis_in_front(
    across: int, letters: str, codes: str | None
) -> None:
    """The file (1, H, W) or (H, 1, W) of a viewer is the picture that (H, W, 1) is."""
    affine = affine_of(letters, (2, 3, 5))
    shape = [8, 9]
    shape.insert(across, 1)
    array = np.arange(72).reshape(shape)
    order = [across, *(axis for axis in range(3) if axis != across)]
    columns = [*(2 - axis for axis in reversed(order)), 3]
    permute, flip = orientation_of(affine, codes, (shape[0], shape[1], shape[2]))
    plane = orient(array, permute, flip)
    assert np.array_equal(plane, orient(array.transpose(order), *orientation_of(affine[:, columns], codes, (1, 8, 9))))
    assert np.array_equal(unorient(plane, permute, flip), array)
