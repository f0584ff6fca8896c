"""Bounding boxes of the foreground."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

Box = tuple[slice, slice, slice]


def max_profiles(volume: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """The largest value of (D, H, W) in each plane across D, H and W: all that a box at any threshold needs."""
    over_depth = volume.max(axis=0)
    return volume.max(axis=2).max(axis=1), over_depth.max(axis=1), over_depth.max(axis=0)


def box_above(profiles: tuple[np.ndarray, np.ndarray, np.ndarray], threshold: float) -> Box | None:
    """The bounding box of all voxels above `threshold`; None if there are none."""
    spans = []
    for profile in profiles:
        inside = np.flatnonzero(profile > threshold)
        if len(inside) == 0:
            return None
        spans.append(slice(int(inside[0]), int(inside[-1]) + 1))
    return spans[0], spans[1], spans[2]


def foreground_box(array: np.ndarray, thresholds: Sequence[float | None]) -> Box:
    """The box that a case is cropped to, from (C, D, H, W).

    It holds every voxel that is above its channel's threshold in some channel, or above the channel's own minimum where
    that is None. Preparing passes the lower end of an intensity window, below which every voxel becomes 0 anyway. The
    result is the whole volume where no voxel is above.
    """
    boxes = [
        box_above(max_profiles(volume), float(volume.min()) if threshold is None else threshold)
        for volume, threshold in zip(array, thresholds, strict=True)
    ]
    return union(boxes) or (slice(0, array.shape[1]), slice(0, array.shape[2]), slice(0, array.shape[3]))


def union(boxes: Sequence[Box | None]) -> Box | None:
    """The smallest box that contains all of them; None if there are none."""
    present = [box for box in boxes if box is not None]
    if not present:
        return None
    spans = [slice(min(box[a].start for box in present), max(box[a].stop for box in present)) for a in range(3)]
    return spans[0], spans[1], spans[2]
