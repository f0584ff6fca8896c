from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image
from scipy import ndimage

from hasten.cases.phantom_cells import make_cells, write_cells
from hasten.cases.sources import load_case_set


@settings(max_examples=25)
@given(
    index=st.integers(0, 10_000),
    seed=st.integers(0, 10_000),
    shape=st.tuples(*[st.integers(48, 130)] * 2),
    radius=st.floats(8.0, 20.0),
    filled=st.floats(0.3, 1.0),
)
def test_any_size_holds_cells(index, seed, shape, radius, filled) -> None:
    image, label = make_cells(index, shape=shape, radius=radius, filled=filled, seed=seed)
    assert (image.dtype, image.shape) == (np.uint8, shape)
    assert (label.dtype, label.shape) == (np.uint8, shape)
    assert set(np.unique(label)) <= {0, 1}
    assert image.std() > 3


def test_pure_function_of_its_arguments() -> None:
    image, label = make_cells(3, shape=(96, 128))
    make_cells(5, shape=(96, 128))
    np.testing.assert_array_equal(image, make_cells(3, shape=(96, 128))[0])
    np.testing.assert_array_equal(label, make_cells(3, shape=(96, 128))[1])
    for other in (make_cells(4, shape=(96, 128)), make_cells(3, shape=(96, 128), seed=1)):
        assert (other[1] != label).mean() > 0.1


@pytest.mark.parametrize(("filled", "share"), [(0.55, (0.35, 0.65)), (1.0, (0.65, 0.92))])
def test_cells_touch_and_are_told_apart(filled: float, share: tuple[float, float]) -> None:
    radius = 20.0
    _, label = make_cells(0, shape=(512, 512), radius=radius, filled=filled)
    assert share[0] < label.mean() < share[1]
    parts, count = ndimage.label(label)
    sizes = np.bincount(parts.ravel())[1:] / (np.pi * radius**2)
    assert count > 0.3 * 512**2 / (np.pi * radius**2)
    assert sizes.max() < 8  # hardly any two run together
    # Many neighbours are only the thin line apart: closing it joins them.
    assert ndimage.label(ndimage.binary_closing(label, iterations=4))[1] < 0.6 * count


def test_walls_are_dark_and_the_noise_does_not_hide_them() -> None:
    image, label = make_cells(0, shape=(256, 256), filled=1.0)
    assert image[label == 0].mean() < 0.85 * image[label == 1].mean()


def test_written_folder_is_a_set_of_pictures_with_the_value_that_is_asked_for(tmp_path: Path) -> None:
    for threads in (1, 3):
        write_cells(tmp_path / str(threads), num_cases=3, shape=(64, 80), radius=12, value=255, num_threads=threads)
    cases = load_case_set(tmp_path / "1")
    assert (cases.spatial_dims, cases.labels) == (2, {0: "background", 255: "cell"})
    image, label = make_cells(2, shape=(64, 80), radius=12)
    np.testing.assert_array_equal(np.asarray(Image.open(cases.cases[2].image[0])), image)
    np.testing.assert_array_equal(np.asarray(Image.open(cases.cases[2].label)), label * np.uint8(255))
    for path in sorted((tmp_path / "1").rglob("*.png")):
        assert path.read_bytes() == (tmp_path / "3" / path.relative_to(tmp_path / "1")).read_bytes()


@pytest.mark.parametrize("wrong", [{"shape": (8, 90)}, {"radius": 1.0}, {"filled": 0.0}, {"filled": 1.5}])
def test_impossible_cells_are_refused(wrong: dict) -> None:
    with pytest.raises(ValueError, match="needs 16 pixels a side, a radius"):
        make_cells(0, **{"shape": (64, 64), **wrong})


@pytest.mark.parametrize("wrong", [{"num_cases": 0}, {"value": 256}])
def test_an_impossible_set_is_refused(tmp_path: Path, wrong: dict) -> None:
    with pytest.raises(ValueError, match="|".join(f"{name} is {value}; needs" for name, value in wrong.items())):
        write_cells(tmp_path / "cells", **wrong)
