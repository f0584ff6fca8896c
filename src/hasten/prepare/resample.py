"""Resampling between voxel grids that cover the same extent.

Voxels are boxes: the source and the result fill the same box in space, so that the centre of output voxel i lies at
(i + 0.5) * n_in / n_out - 0.5 in source voxels (torch's `align_corners=False`, MONAI's `Spacing(scale_extent=True)`).
MONAI's default keeps the centre of the first voxel in place instead, which moves the volume by up to half a voxel.
Coarser grids are sampled without a low-pass filter, as in MONAI's Spacing.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import product

import numpy as np
import torch
from torch.nn.functional import interpolate

from hasten.config.schema import Spacing, Triple

_SLAB_VOXELS = 1 << 19
"""Voxels that go through all the steps together: 2 MiB of float32, which fits into a core's cache."""
_SLAB_PLANES = 8
"""A slab that interpolates along D reads one plane more than it advances; fewer planes would waste too much."""


def resampled_shape(shape: Triple, spacing: Spacing, target: Spacing) -> Triple:
    """Shape of a volume of `shape` and `spacing` at the `target` spacing, all (D, H, W) and mm.

    A target of 0 keeps an axis, and so does an axis of one voxel. Raises ValueError for a negative target and for a
    result of 2**31 voxels or more, which is the sign of a spacing in the wrong unit.
    """
    if min(target) < 0:
        raise ValueError(f"prepare.spacing: {target} is negative; write mm, or 0 to keep each case's own")
    sizes = [
        n if n == 1 or new == 0 else max(1, round(n * old / new))
        for n, old, new in zip(shape, spacing, target, strict=True)
    ]
    if sizes[0] * sizes[1] * sizes[2] >= 2**31:
        raise ValueError(
            f"resampling {shape} voxels of {spacing} mm to prepare.spacing {target} mm gives {tuple(sizes)} voxels; "
            f"check the spacing in the file's header, or set a coarser prepare.spacing"
        )
    return sizes[0], sizes[1], sizes[2]


def slabs(volume: np.ndarray, shape: Triple) -> Iterator[tuple[slice, torch.Tensor]]:
    """Resample (D, H, W) of any real dtype trilinearly to `shape`, a few output planes at a time.

    Yields the planes' place along D and a float32 tensor of them, small enough for a core's cache, which the caller may
    change and must be done with before the next.
    """
    depth, planes = volume.shape[0], max(_SLAB_PLANES, _SLAB_VOXELS // (shape[1] * shape[2]))
    low, high, weight = linear_taps(depth, shape[0])
    for start in range(0, shape[0], planes):
        stop = min(start + planes, shape[0])
        first, last = int(low[start]), int(high[stop - 1])
        # numpy's copy takes reversed, permuted, read-only and byte-swapped sources, which torch does not.
        slab = torch.from_numpy(volume[first : last + 1].astype(np.float32, order="C"))
        if volume.shape[1:] != shape[1:]:
            slab = interpolate(slab[:, None], size=shape[1:], mode="bilinear", align_corners=False)[:, 0]
        if depth != shape[0]:
            below, above = (torch.from_numpy(index[start:stop] - first) for index in (low, high))
            part = torch.from_numpy(weight[start:stop])[:, None, None]
            slab = slab.index_select(0, below).lerp_(slab.index_select(0, above), part)
        yield slice(start, stop), slab


def resample_label(label: np.ndarray, shape: Triple) -> np.ndarray:
    """(D, H, W) to C-contiguous `shape` in the same dtype: each value's mask trilinearly, and the highest one.

    As nnU-Net does it with order 1. The same shape gives `label` itself. Of values that are equally high the smallest
    is taken.
    """
    if label.shape == shape:
        return label
    along, *across = [_sides(n, m) for n, m in zip(label.shape, shape, strict=True)]
    result = np.empty(shape, label.dtype)
    for number, plane in enumerate(result):
        sources = [(label[planes[number]], weights[number]) for planes, weights in along]
        places = list(product(sources, *across))
        corners = np.stack([source[rows].take(columns, axis=1) for (source, _), (rows, _), (columns, _) in places])
        corners.min(0, out=plane)
        row, column = np.nonzero(plane != corners.max(0))
        if len(row):
            shares = [share * of_row[row] * of_column[column] for (_, share), (_, of_row), (_, of_column) in places]
            plane[row, column] = _heaviest(corners[:, row, column], np.stack(shares))
    return result


def _sides(size: int, new_size: int) -> list[tuple[np.ndarray, np.ndarray]]:
    """The source voxels beside each output voxel along an axis, with their weights: one where no axis is resampled."""
    low, high, weight = linear_taps(size, new_size)
    return [(low, 1 - weight)] if size == new_size else [(low, 1 - weight), (high, weight)]


def _heaviest(values: np.ndarray, weights: np.ndarray) -> np.ndarray:
    """(N,) the value with the largest sum of weights in each column of (K, N), the smallest of equal ones."""
    sums = np.stack([(weights * (values == each)).sum(0) for each in values]).round(5)  # summed in any order
    largest = np.iinfo(values.dtype).max
    return np.where(sums == sums.max(0), values, largest).min(0)


def nearest_index(size: int, new_size: int) -> np.ndarray:
    """(new_size,) int64: the source voxel that holds the centre of each output voxel, in whole-number arithmetic."""
    return (2 * np.arange(new_size) + 1) * size // (2 * new_size)


def linear_taps(size: int, new_size: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Lower and upper source voxel of each output voxel, and the weight of the upper one; the edge is repeated.

    Voxels are (new_size,) int64, weights (new_size,) float32.
    """
    if size == new_size:
        same = np.arange(size)
        return same, same, np.zeros(size, np.float32)
    centre = ((np.arange(new_size) + 0.5) * (size / new_size) - 0.5).clip(0, size - 1)
    low = centre.astype(np.int64)
    return low, np.minimum(low + 1, size - 1), (centre - low).astype(np.float32)
