"""Positions of sliding windows on a volume, the cells that they share, and the weights of their voxels."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import product
from typing import Literal

import torch
from torch import Tensor

from hasten.config.schema import Triple

Mode = Literal["constant", "gaussian"]
Sigma = tuple[float, float, float]
"""Deviation of the Gaussian along each axis as a share of the window's side."""

_FLOOR = 1e-3
"""MONAI's minimum weight. Because of it the map is not separable into three profiles."""


@dataclass(frozen=True, slots=True)
class Overlap:
    """The overlap of a window and a cell along one axis."""

    cell: int
    in_window: slice
    in_cell: slice
    whole: bool
    """The window covers the cell's whole side."""


@dataclass(frozen=True, slots=True)
class Axis:
    """Windows and cells along one axis of a volume, in voxels of the padded volume."""

    size: int
    """The padded side: the volume's, but at least the window's."""
    before: int
    """Padding in front."""
    starts: tuple[int, ...]
    """First voxel of each window."""
    cells: tuple[slice, ...]
    """Cells do not overlap and together cover the volume without its padding."""
    parts: tuple[tuple[Overlap, ...], ...]
    """The cells that each window meets."""

    def meeting(self, cell: int) -> list[Overlap]:
        """The part of every window that overlaps a cell."""
        return [part for parts in self.parts for part in parts if part.cell == cell]


def make_axis(side: int, window: int, overlap: float) -> Axis:
    """Windows as MONAI's `sliding_window_inference` lays them, and cells that windows cover as a whole where they can.

    Cells end where windows begin or end, so that a cell's sums are complete, and can be given up, as early as possible.
    Of such places that are closer than a fifth of a window only the first counts: cells would be many and thin.
    """
    size = max(side, window)
    before = (size - side) // 2
    starts = window_starts(size, window, overlap)
    cuts = [before]
    for place in sorted({*starts, *(start + window for start in starts)}):
        if before + side - place >= window / 5 and place - cuts[-1] >= window / 5:
            cuts.append(place)
    cells = tuple(slice(first, last) for first, last in zip(cuts, [*cuts[1:], before + side], strict=True))
    parts = tuple(tuple(_parts(start, window, cells)) for start in starts)
    return Axis(size, before, tuple(starts), cells, parts)


def restricted(axis: Axis, window: int, part: slice) -> Axis:
    """The cells, cut off where need be, and the windows that some voxels of the volume need."""
    first, last = part.start + axis.before, part.stop + axis.before
    cut = (slice(max(first, cell.start), min(last, cell.stop)) for cell in axis.cells)
    cells = tuple(cell for cell in cut if cell.start < cell.stop)
    starts = tuple(start for start in axis.starts if start < last and start + window > first)
    parts = tuple(tuple(_parts(start, window, cells)) for start in starts)
    return dataclasses.replace(axis, starts=starts, cells=cells, parts=parts)


def _parts(start: int, window: int, cells: tuple[slice, ...]) -> list[Overlap]:
    parts = []
    for number, cell in enumerate(cells):
        first, last = max(start, cell.start), min(start + window, cell.stop)
        if first < last:
            whole = (first, last) == (cell.start, cell.stop)
            inside = slice(first - cell.start, last - cell.start)
            parts.append(Overlap(number, slice(first - start, last - start), inside, whole))
    return parts


def window_starts(side: int, window: int, overlap: float) -> list[int]:
    """First voxel of each window along an axis; the last one ends with the volume."""
    interval = max(1, int(window * (1 - overlap)))
    count = -(-(side - window) // interval) + 1 if side > window else 1
    return [min(number * interval, side - window) for number in range(count)]


def weight_map(window: Triple, mode: Mode, sigma: Sigma, device: torch.device) -> Tensor:
    """(d, h, w) float32, positive: the weight of each voxel of a window, 1 or a Gaussian.

    The Gaussian is floored at a thousandth, as in MONAI.
    """
    if mode == "constant":
        return torch.ones((), device=device).expand(window)
    weight = torch.ones((), device=device)
    for axis, side in enumerate(window):
        offset = torch.arange(side, device=device, dtype=torch.float32) - (side - 1) / 2
        profile = torch.exp(-0.5 * (offset / (sigma[axis] * side)) ** 2)
        weight = weight * profile.view([-1 if place == axis else 1 for place in range(3)])
    return weight.clamp(min=_FLOOR)


def cover(axes: Sequence[Axis], cell: Triple, weight: Tensor) -> Tensor:
    """Sum of the window weights in one cell, by which its sums of scores are divided. Shape of the cell, float32."""
    sides = (axis.cells[number] for axis, number in zip(axes, cell, strict=True))
    total = weight.new_zeros([side.stop - side.start for side in sides])
    for parts in product(*(axis.meeting(number) for axis, number in zip(axes, cell, strict=True))):
        total[tuple(part.in_cell for part in parts)] += weight[tuple(part.in_window for part in parts)]
    return total
