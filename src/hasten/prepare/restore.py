"""From the grid of a prepared case back to the voxels of its source file."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from hasten.prepare.orient import unorient
from hasten.prepare.resample import resample_label
from hasten.prepare.types import Geometry


def restore_label(label: np.ndarray, geometry: Geometry, label_values: Sequence[int]) -> np.ndarray:
    """A predicted label map in its source file's own voxel grid.

    `label` is (D, H, W) uint8, class index, of geometry.shape; `label_values` holds the label value of each class
    index, background first. Returns geometry.source_shape, C-contiguous, in the smallest integer dtype that holds
    the values. Voxels outside the foreground box become the background. Resampling is by nearest neighbour, so the
    inverse is exact where the spacing was kept.
    """
    assert label.shape == geometry.shape, f"label {label.shape}, geometry {geometry.shape}"
    values = np.array(label_values, np.result_type(*map(np.min_scalar_type, label_values)))
    oriented_shape = [geometry.source_shape[axis] for axis in geometry.permute]
    whole = np.full(oriented_shape, values[0])
    box = tuple(slice(a, a + n) for a, n in zip(geometry.crop_start, geometry.crop_shape, strict=True))
    whole[box] = values[resample_label(label, geometry.crop_shape)]
    return np.ascontiguousarray(unorient(whole, geometry.permute, geometry.flip))
