"""The foreground of a case: bounding boxes, and the voxels that crops are centred on."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from hasten.cases.labels import IGNORED
from hasten.config.schema import triple

Box = tuple[slice, slice, slice]


def max_profiles(volume: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """The largest value of (D, H, W) in each plane across D, H and W: all that a box at any threshold needs."""
    over_depth = volume.max(axis=0)
    return volume.max(axis=2).max(axis=1), over_depth.max(axis=1), over_depth.max(axis=0)


def box_above(profiles: tuple[np.ndarray, np.ndarray, np.ndarray], threshold: float) -> Box | None:
    """The bounding box of all voxels above `threshold`; None if there are none.

    profiles: (D,), (H,) and (W,), as `max_profiles` returns them.
    """
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
    return triple(slice(min(box[a].start for box in present), max(box[a].stop for box in present)) for a in range(3))


def foreground_points(
    label: np.ndarray, num_classes: int, max_points: int, seed: int
) -> tuple[list[np.ndarray], tuple[int, ...]]:
    """Up to `max_points` voxels of each class 1 .. num_classes - 1, drawn evenly and without replacement.

    `label` is (D, H, W) uint8, class index or IGNORED. Each array holds sorted int32 linear indices into it, and is
    empty where the class is absent. The draw depends on `seed`, the class and its voxels alone. Beside them: how many
    voxels each of the classes has.
    """
    flat = label.reshape(-1)
    assert flat.size < 2**31
    where = np.flatnonzero(flat)
    classes = flat[where]
    annotated = classes != IGNORED
    if not annotated.all():
        where, classes = where[annotated], classes[annotated]
    counts = np.bincount(classes, minlength=num_classes)
    assert len(counts) == num_classes, f"class index {len(counts) - 1} in a label of {num_classes} classes"
    # A stable sort of bytes is a counting sort, and keeps the voxels of a class in order.
    by_class = where[np.argsort(classes, kind="stable")].astype(np.int32)
    ends = np.cumsum(counts[1:])
    points = []
    for index, (end, count) in enumerate(zip(ends, counts[1:], strict=True), start=1):
        voxels = by_class[end - count : end]
        if count > max_points:
            draw = np.random.default_rng([seed, index]).choice(count, max_points, replace=False, shuffle=False)
            voxels = voxels[np.sort(draw)]
        points.append(voxels.copy())
    return points, tuple(counts[1:].tolist())
