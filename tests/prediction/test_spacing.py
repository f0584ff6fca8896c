from __future__ import annotations

import numpy as np
import pytest

from hasten.cases.types import Volume
from hasten.config.schema import PrepareConfig
from hasten.prediction.foreground import spacing_warning, training_spacing
from hasten.prepare.case import prepare_case

TRAINED = training_spacing([(3.0, 0.8, 0.8), (5.0, 0.7, 0.7), (2.0, 0.9, 0.9)])
AS_IT_IS = PrepareConfig(spacing=(0, 0, 0), intensity="zscore", crop_foreground=False)


def warning(affine: np.ndarray, shape: tuple[int, int, int] = (4, 6, 8)) -> str | None:
    array = np.random.default_rng(0).normal(size=(1, *shape)).astype(np.float32)
    return spacing_warning(prepare_case(Volume(array, affine), None, id="a", spec=AS_IT_IS).geometry, TRAINED)


def test_the_range_of_the_training_cases() -> None:
    assert TRAINED == {"smallest": [2.0, 0.7, 0.7], "median": [3.0, 0.8, 0.8], "largest": [5.0, 0.9, 0.9]}


@pytest.mark.parametrize(
    ("xyz", "is_far"),
    [((0.8, 0.8, 3), False), ((0.36, 0.36, 9.9), False), ((0.8, 0.8, 10.1), True), ((0.3, 0.8, 3), True)],
)
def test_twice_beyond_the_range_is_far(xyz: tuple[float, ...], is_far: bool) -> None:
    assert (warning(np.diag([*xyz, 1.0])) is not None) == is_far


def test_axes_are_compared_in_space() -> None:
    """A sagittal file, whose first axis is the thick one."""
    straight = np.diag([0.8, 0.8, 10.5, 1.0])
    turned = straight[:, [2, 0, 1, 3]]  # of the file's axes, x is what z was
    assert warning(straight) == warning(turned)
    assert "its voxels are 10.5 x 0.8 x 0.8 mm (D, H, W)" in str(warning(turned))
    assert warning(np.diag([0.8, 0.8, 4.0, 1.0])[:, [2, 0, 1, 3]]) is None


def test_an_axis_of_one_voxel_has_no_spacing() -> None:
    assert warning(np.diag([0.8, 0.8, 30.0, 1.0]), (1, 6, 8)) is None
