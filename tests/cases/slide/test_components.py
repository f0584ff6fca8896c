from __future__ import annotations

import numpy as np
import pytest

from hasten.cases.slide.components import filled, grown, label_components, major_axes, without_small

ndimage = pytest.importorskip("scipy.ndimage")
measure = pytest.importorskip("skimage.measure")

SHAPES = [(40, 57), (1, 9), (7, 1), (90, 33)]


def masks() -> list[np.ndarray]:
    rng = np.random.default_rng(0)
    return [rng.random(shape) < share for shape in SHAPES for share in (0.0, 0.05, 0.4, 0.6, 0.9, 1.0)]


@pytest.mark.parametrize("diagonal", [True, False])
def test_pieces_are_numbered_as_scikit_image_does(diagonal: bool) -> None:
    for mask in masks():
        labels, number = label_components(mask, diagonal=diagonal)
        np.testing.assert_array_equal(labels, measure.label(mask, connectivity=2 if diagonal else 1))
        assert number == labels.max()


def test_a_spiral_is_one_piece() -> None:
    mask = np.zeros((9, 9), bool)
    mask[0], mask[:, 8], mask[8], mask[2:, 0], mask[2, :7], mask[2:7, 6], mask[6, 2:7], mask[4:7, 2] = (True,) * 8
    assert label_components(mask, diagonal=False)[1] == 1


def test_holes_are_filled_as_scipy_does() -> None:
    for mask in masks():
        np.testing.assert_array_equal(filled(mask), ndimage.binary_fill_holes(mask))


@pytest.mark.parametrize("distance", [0.0, 0.5, 1.0, 1.2, 2.5, 5.0, 7.3])
def test_growing_is_a_threshold_on_the_distance(distance: float) -> None:
    for mask in masks():
        expected = ndimage.distance_transform_edt(~mask) < distance if mask.any() else mask
        np.testing.assert_array_equal(grown(mask, distance), expected)


def test_axes_are_those_of_scikit_image() -> None:
    for mask in masks():
        labels, number = label_components(mask)
        expected = [each.axis_major_length for each in measure.regionprops(labels)]
        np.testing.assert_allclose(major_axes(labels, number), expected, atol=1e-6)


def test_small_pieces_go() -> None:
    mask = np.zeros((10, 10), bool)
    mask[1, 1:4] = mask[5:9, 5:9] = True
    kept = without_small(mask, 4)
    assert kept.sum() == 16
    assert not kept[1].any()
