"""Which cases are shown, and which slice of them."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import pytest

from hasten.cases.types import Case
from hasten.evaluation.examples import chosen_cases, to_example
from hasten.prepare.types import Geometry

NIFTI, PICTURE, STACK = (Case(id="c", image=(Path(name),)) for name in ("c.nii.gz", "c.png", "c.tif"))


@pytest.mark.parametrize(
    ("scores", "lowest", "expected"),
    [
        ([0.5], 1, ["the only case"]),
        ([0.5, 0.2], 1, ["best", "worst"]),
        ([0.9, 0.1, 0.5], 1, ["best", "worst", "median"]),
        ([0.9, math.nan, 0.5, 0.1], 1, ["best", None, "median", "worst"]),
        ([0.1, 0.2, 0.3, 0.4, 0.5], 2, ["worst", "2nd lowest", "median", None, "best"]),
        ([math.nan], 1, [None]),
    ],
)
def test_the_worst_the_median_and_the_best(scores: list[float], lowest: int, expected: list[str | None]) -> None:
    chosen = chosen_cases({f"c{k}": score for k, score in enumerate(scores)}, lowest=lowest)
    assert chosen == {f"c{k}": which for k, which in enumerate(expected) if which}
    values = [scores[int(case[1:])] for case in chosen]
    assert values == sorted(values)


def blank(shape: tuple[int, int, int]) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    image = np.random.default_rng(0).random((1, *shape), np.float32)
    return image, np.zeros(shape, np.uint8), np.zeros(shape, np.uint8)


@pytest.mark.parametrize(
    ("case", "spacing", "at", "where"),
    [
        (NIFTI, (1.0, 1.0, 1.0), (2, 5, 6), "axial slice 3 of 8"),
        (NIFTI, (3.0, 1.0, 1.0), (2, 5, 6), "axial slice 3 of 8"),
        (NIFTI, (1.0, 3.0, 1.0), (2, 5, 6), "coronal slice 6 of 9"),
        (NIFTI, (1.0, 1.0, 3.0), (2, 5, 6), "sagittal slice 7 of 10"),
        (STACK, (1.0, 1.0, 1.0), (2, 5, 6), "slice 3 of 8"),
    ],
)
@pytest.mark.parametrize("signs", [(1, 1, 1), (-1, -1, 1), (1, 1, -1)])
def test_the_slice_with_the_error_in_the_plane_of_thick_slices(
    case: Case, spacing: tuple[float, float, float], at: tuple[int, int, int], where: str, signs: tuple[int, int, int]
) -> None:
    """Slices are counted as the file has them, whichever way its axes run."""
    image, label, prediction = blank((8, 9, 10))
    label[6], prediction[6] = 1, 1
    prediction[at] = 2
    affine = np.diag([sign * side for sign, side in zip(signs, spacing[::-1], strict=True)] + [1.0])
    shown = to_example(case, image, label, prediction, Geometry.of_file((8, 9, 10), affine), which="worst", dice=0.5)
    assert shown.where == where
    assert (shown.prediction == 2).sum() == 1
    assert shown.label.shape == shown.image.shape
