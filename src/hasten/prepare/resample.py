"""Resampling between voxel grids that cover the same extent.

Voxels are boxes: the source and the result fill the same box in space, so that the centre of output voxel i lies at
(i + 0.5) * n_in / n_out - 0.5 in source voxels (torch's `align_corners=False`, MONAI's `Spacing(scale_extent=True)`).
MONAI's default keeps the centre of the first voxel in place instead, which moves the volume by up to half a voxel.
Coarser grids are sampled without a low-pass filter, as in MONAI's Spacing.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import torch
from torch.nn.functional import interpolate

Triple = tuple[int, int, int]
Spacing = tuple[float, float, float]

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
    """Nearest: (D, H, W) to C-contiguous `shape` in the same dtype. The same shape gives `label` itself.

    Where the centre of an output voxel lies between two source voxels, it takes the upper one (torch's
    `nearest-exact`).
    """
    if label.shape == shape:
        return label
    depth, rows, columns = (nearest_index(n, m) for n, m in zip(label.shape, shape, strict=True))
    result = np.empty(shape, label.dtype)
    source, resampled = -1, result[0]
    for plane, index in zip(result, depth, strict=True):
        if index == source:
            plane[:] = resampled
            continue
        picked = label[index]
        if label.shape[1] != shape[1]:
            picked = picked[rows]
        if label.shape[2] != shape[2]:
            picked = picked.take(columns, axis=1)
        plane[:] = picked
        source, resampled = index, plane
    return result


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
