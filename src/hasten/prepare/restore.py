"""Maps a prediction from the foreground box of a prepared case back to the grid of its source file."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from hasten.prepare.orient import unorient
from hasten.prepare.types import Geometry


def restore_label(label: np.ndarray, geometry: Geometry, label_values: Sequence[int]) -> np.ndarray:
    """A predicted label map in the voxel grid of its source file.

    `label` is (D, H, W) class index, of geometry.crop_shape; `label_values` holds the label value of each class index,
    background first. Returns geometry.source_shape, C-contiguous, in the smallest integer dtype that holds the values.
    Voxels outside the foreground box become the background.
    """
    assert label.shape == geometry.crop_shape, f"label {label.shape}, box {geometry.crop_shape}"
    values = np.array(label_values, np.result_type(*map(np.min_scalar_type, label_values)))
    # Class indices are mostly the values themselves, and then need no pass over all voxels.
    same = np.array_equal(values, np.arange(len(values)))
    restored = label.astype(values.dtype, copy=False) if same else values[label]
    oriented_shape = tuple(geometry.source_shape[axis] for axis in geometry.permute)
    if restored.shape != oriented_shape:
        volume = np.full(oriented_shape, values[0])
        volume[tuple(slice(a, a + n) for a, n in zip(geometry.crop_start, geometry.crop_shape, strict=True))] = restored
        restored = volume
    return np.ascontiguousarray(unorient(restored, geometry.permute, geometry.flip))
