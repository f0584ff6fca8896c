"""Detections in a heat map and the reference lesions, by Camelyon16's rules."""

from __future__ import annotations

import csv
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from scipy import ndimage

from hasten.cases.slide import Slide
from hasten.cases.slide.annotation import read_lesions
from hasten.cases.slide.listing import SlideCase
from hasten.pathology.config import DetectConfig

Detection = tuple[str, float, int, int]
"""Slide, score, and row and column on level 0."""


def suppress(heat: np.ndarray, *, threshold: float, box: int) -> tuple[np.ndarray, np.ndarray]:
    """(N,) values above the threshold, falling, and (N, 2) their rows and columns, no two in one box: MONAI's ProbNMS.

    The largest value is a detection, and the square of `box` values around it is left out; then the largest of the
    rest, the first of equal ones, and so on. heat: (H, W), as it is left.
    """
    rows, columns = np.nonzero(heat > threshold)
    values = heat[rows, columns]
    lower, upper = box // 2, box - box // 2
    free = np.ones(heat.shape, bool)
    selected = []
    for at in np.argsort(-values, kind="stable").tolist():
        y, x = int(rows[at]), int(columns[at])
        if free[y, x]:
            selected.append(at)
            free[max(y - lower, 0) : y + upper, max(x - lower, 0) : x + upper] = False
    return values[selected], np.stack([rows[selected], columns[selected]], axis=1)


def on_slide(cells: np.ndarray, cell: float) -> np.ndarray:
    """(N, 2) int64 row and column on level 0 of the middles of cells. cell: pixels of level 0 that one is long."""
    return ((cells + 0.5) * cell).astype(np.int64)


def lesions_of(
    mask: np.ndarray, pixel_um: float, *, grow_um: float = 75.0, itc_um: float = 200.0
) -> tuple[np.ndarray, list[int]]:
    """(H, W) int32, each lesion of a mask (H, W) bool with a number from 1 on; and the numbers that do not count.

    Camelyon16's rule: what lies within `grow_um` of each other is one lesion, so that the mask is grown by half of it
    before its pieces are numbered, holes filled. A lesion whose major axis is below `itc_um` and what it was grown by
    is isolated tumour cells: finding it is no error, and missing it neither. pixel_um: how long a pixel is.
    """
    grown = ndimage.distance_transform_edt(~mask) < grow_um / (2 * pixel_um) if mask.any() else mask
    labels, number = ndimage.label(ndimage.binary_fill_holes(grown), np.ones((3, 3)))
    axes = major_axes(labels, number)
    return labels, (np.flatnonzero(axes < (itc_um + grow_um) / pixel_um) + 1).tolist()


def major_axes(labels: np.ndarray, number: int) -> np.ndarray:
    """(number,) the major axis of the ellipse with the same second moments as each piece, in pixels.

    Pixels are points, so that a single one has length 0.
    """
    rows, columns = np.nonzero(labels)
    which = labels[rows, columns]

    def mean(values: np.ndarray) -> np.ndarray:
        return np.bincount(which, values, number + 1)[1:] / size

    size = np.bincount(which, minlength=number + 1)[1:]
    y, x = mean(rows.astype(float)), mean(columns.astype(float))
    dy, dx = rows - y[which - 1], columns - x[which - 1]
    yy, xx, xy = mean(dy * dy), mean(dx * dx), mean(dy * dx)
    return 4 * np.sqrt((yy + xx) / 2 + np.sqrt(((yy - xx) / 2) ** 2 + xy**2))


def lesions_on(slide: Slide, case: SlideCase, detect: DetectConfig) -> tuple[np.ndarray, list[int], float]:
    """Lesions of a slide's mask, as from `lesions_of`, and the size of a pixel of it in pixels of level 0.

    The lesions are (H, W) int32. Raises ValueError if the pixel size of the slide is not known.
    """
    level = slide.level_near(detect.mask_downsample)
    pyramid_level = slide.levels[level]
    if case.mask is None:
        return np.zeros((pyramid_level.height, pyramid_level.width), np.int32), [], pyramid_level.downsample
    if slide.mpp is None:
        raise ValueError(
            f"{slide.path}: does not state the size of its pixels, by which lesions are measured; set data.mpp to the "
            "micrometres of a pixel of level 0"
        )
    mask = read_lesions(case.mask, slide, level)
    rules = {"grow_um": detect.grow_um, "itc_um": detect.itc_um}
    return *lesions_of(mask, slide.mpp * pyramid_level.downsample, **rules), pyramid_level.downsample


def write_detections(path: Path, rows: Sequence[Detection]) -> None:
    """CSV with the columns slide, score, y and x."""
    with path.open("w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file)
        writer.writerow(("slide", "score", "y", "x"))
        writer.writerows((slide, f"{score:.6f}", y, x) for slide, score, y, x in rows)
