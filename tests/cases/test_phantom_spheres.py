from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from hasten.cases.phantom_spheres import make_spheres, write_spheres
from hasten.cases.read import read_image
from hasten.cases.sources import load_case_set


def test_the_volumes_are_those_of_monai_s_test() -> None:
    from monai.data import create_test_image_3d

    generator = np.random.RandomState(0)
    for image, label in make_spheres(num_cases=3, shape=(72, 64, 80)):
        theirs, classes = create_test_image_3d(80, 64, 72, num_seg_classes=1, random_state=generator)
        np.testing.assert_allclose(image, theirs.T, atol=1e-6)
        np.testing.assert_array_equal(label, classes.T)
        assert (image.dtype, label.dtype) == (np.float32, np.uint8)


def test_written_names_sort_as_monai_s_do(tmp_path: Path) -> None:
    write_spheres(tmp_path, num_cases=12, shape=(61, 61, 61))
    cases = load_case_set(tmp_path)
    assert sorted(case.id for case in cases.cases)[:4] == ["img0", "img1", "img10", "img11"]
    image, _ = list(make_spheres(num_cases=12, shape=(61, 61, 61)))[11]
    last = next(case for case in cases.cases if case.id == "img11")
    np.testing.assert_array_equal(read_image(last).array[0], image)


def test_too_small_a_volume_is_refused() -> None:
    with pytest.raises(ValueError, match="over 60 voxels a side"):
        make_spheres(shape=(60, 80, 80))
