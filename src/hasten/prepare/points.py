"""Foreground voxels that crops are centred on."""

from __future__ import annotations

import numpy as np

from hasten.cases.labels import IGNORED


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
