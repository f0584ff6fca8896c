"""Tissue detection: Otsu's threshold on the saturation of a coarse level."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from scipy import ndimage

from hasten.cases.slide.open import Slide

_LEAST_SATURATION = 12
"""Smallest threshold, of 255: glass is less saturated. Keeps the noise of a slide without tissue from being split."""


class Tissue(NamedTuple):
    """A mask of one level."""

    mask: np.ndarray
    """(H, W) bool."""
    downsample: float


def tissue_of(slide: Slide, *, downsample: float = 32.0, min_pixels: int = 16) -> Tissue:
    """The tissue, on the coarsest level that is no coarser than `downsample`, without specks below `min_pixels`.

    Raises ValueError naming the slide where there is none.
    """
    level = slide.level_near(downsample)
    saturation = saturation_of(slide.read_level(level))
    parts, _ = ndimage.label(saturation > max(otsu(saturation), _LEAST_SATURATION), np.ones((3, 3)))
    large = np.bincount(parts.ravel()) >= min_pixels
    large[0] = False
    if not large.any():
        raise ValueError(
            f"{slide.path}: no tissue found on level {level} (the largest saturation is {int(saturation.max())} of "
            "255); take the slide out of the list, or lower tiles.min_tissue_pixels if its tissue is very small"
        )
    return Tissue(large[parts], slide.levels[level].downsample)


def saturation_of(image: np.ndarray) -> np.ndarray:
    """(H, W) uint8, the S of HSV. image: (H, W, 3) uint8."""
    high, low = image.max(-1).astype(np.uint16), image.min(-1).astype(np.uint16)
    return ((high - low) * 255 // np.maximum(high, 1)).astype(np.uint8)


def otsu(values: np.ndarray) -> int:
    """Otsu's threshold, which splits uint8 values into two classes as far apart as possible; the upper is `> it`.

    values: uint8, of any shape.
    """
    count = np.bincount(values.ravel(), minlength=256).astype(float)
    below, total = count.cumsum(), count.sum()
    weighted = (count * np.arange(256)).cumsum()
    above = total - below
    with np.errstate(divide="ignore", invalid="ignore"):
        apart = below * above * (weighted / below - (weighted[-1] - weighted) / above) ** 2
    return int(np.nan_to_num(apart, nan=-1.0).argmax())
