"""Where a slide has tissue, by Otsu's threshold on the saturation of a coarse level, and the grid that it is cut into.

The grid has one cell for each value of a heat map, and one tile around each cell with tissue.
"""

from __future__ import annotations

from dataclasses import dataclass
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


@dataclass(frozen=True, kw_only=True, slots=True)
class Grid:
    """Cells of `stride` pixels of a level; a tile of `tile` pixels has its middle in that of its cell.

    A heat map is an image of the cells, so that it is a slide's level of downsample `cell`.
    """

    level: int
    downsample: float
    """Downsample of the level."""
    tile: int
    stride: int
    shape: tuple[int, int]
    """Rows and columns of cells."""
    cells: np.ndarray
    """(N, 2) int64 row and column of the cells with tissue, in the order of rows."""

    @property
    def cell(self) -> float:
        """Pixels of level 0 that a cell is long."""
        return self.stride * self.downsample

    def corner(self, number: int) -> tuple[int, int]:
        """Row and column, in pixels of the level, of a tile's upper left corner. It may lie outside the slide."""
        row, column = self.cells[number]
        shift = self.stride // 2 - self.tile // 2
        return int(row) * self.stride + shift, int(column) * self.stride + shift


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


def grid_of(slide: Slide, tissue: Tissue, *, level: int, tile: int, stride: int, min_tissue: float = 0.1) -> Grid:
    """The cells of which a share of at least `min_tissue`, and more than 0, is tissue.

    Raises ValueError for a level that the slide does not have, and where no cell has tissue.
    """
    pyramid_level = slide.levels[slide.level(level)]
    shape = -(-pyramid_level.height // stride), -(-pyramid_level.width // stride)
    share = cell_shares(tissue.mask, tissue.downsample, shape, stride * pyramid_level.downsample)
    cells = np.argwhere((share >= min_tissue) & (share > 0))
    if not len(cells):
        raise ValueError(
            f"{slide.path}: no tile of {tile} pixels on level {level} has {min_tissue:.0%} tissue; "
            "lower tiles.min_tissue"
        )
    return Grid(level=level, downsample=pyramid_level.downsample, tile=tile, stride=stride, shape=shape, cells=cells)


def cell_shares(
    mask: np.ndarray, downsample: float, shape: tuple[int, int], cell: float, *, size: float | None = None
) -> np.ndarray:
    """(rows, columns) float64: the share of the mask in the square of `size` around the middle of each cell.

    mask: (H, W) bool or 0 and 1, `downsample` pixels of level 0 long each. cell, size: in pixels of level 0; None takes
    the cell itself. A square smaller than a pixel of the mask takes the pixel that it lies in.
    """
    side = cell if size is None else size
    sums = np.zeros((mask.shape[0] + 1, mask.shape[1] + 1))
    sums[1:, 1:] = mask.astype(float).cumsum(0).cumsum(1)

    def bounds(count: int, length: int) -> tuple[np.ndarray, np.ndarray]:
        middle = (np.arange(count) + 0.5) * cell
        first = np.floor((middle - side / 2) / downsample + 1e-6).astype(int)
        last = np.ceil((middle + side / 2) / downsample - 1e-6).astype(int)
        return np.clip(first, 0, length), np.clip(last, 0, length)

    (top, bottom), (left, right) = (bounds(count, length) for count, length in zip(shape, mask.shape, strict=True))
    rows = sums[bottom] - sums[top]
    return np.asarray((rows[:, right] - rows[:, left]) / np.maximum(np.outer(bottom - top, right - left), 1))
