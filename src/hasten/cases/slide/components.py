"""Connected components of a mask, their lengths, grown and filled masks; with NumPy alone.

As scikit-image's `label` and `regionprops` and SciPy's `binary_fill_holes` and `distance_transform_edt` give them.
"""

from __future__ import annotations

import math

import numpy as np


def label_components(mask: np.ndarray, *, diagonal: bool = True) -> tuple[np.ndarray, int]:
    """(H, W) int32: 0 outside, else the number of the piece, 1 ... n in the order of their first pixels; and n.

    mask: (H, W) bool. diagonal: whether pixels that touch by a corner alone belong together.
    """
    height, width = mask.shape
    # An empty column at the end keeps the runs of a row apart from those of the next one.
    flat = np.zeros((height, width + 1), bool)
    flat[:, :width] = mask
    edges = np.flatnonzero(np.diff(np.concatenate([[False], flat.ravel(), [False]]).astype(np.int8)))
    starts, ends = edges[::2], edges[1::2]
    labels = np.zeros(flat.size, np.int32)
    if not len(starts):
        return labels.reshape(flat.shape)[:, :width], 0
    root = _roots(starts, ends, width + 1, 1 if diagonal else 0)
    numbers = np.unique(root, return_inverse=True)[1].astype(np.int32) + 1
    labels[flat.ravel()] = np.repeat(numbers, ends - starts)
    return np.ascontiguousarray(labels.reshape(flat.shape)[:, :width]), int(numbers.max())


def _roots(starts: np.ndarray, ends: np.ndarray, width: int, reach: int) -> np.ndarray:
    """For each run of pixels the first run of its piece."""
    # The runs above a run that touch it are neighbours in the list of all runs.
    low = np.searchsorted(ends, starts - width - reach, side="right")
    high = np.searchsorted(starts, ends - width + reach, side="left")
    count = np.maximum(high - low, 0)
    below = np.repeat(np.arange(len(starts)), count)
    above = np.repeat(low, count) + np.arange(count.sum()) - np.repeat(count.cumsum() - count, count)
    root = np.arange(len(starts))
    while True:
        one, other = root[below], root[above]
        if (one == other).all():
            return root
        # Hang the larger root below the smaller one, then let every run point at its root.
        np.minimum.at(root, np.maximum(one, other), np.minimum(one, other))
        while not np.array_equal(root, root[root]):
            root = root[root]


def without_small(mask: np.ndarray, min_pixels: float) -> np.ndarray:
    """The mask without pieces of fewer pixels."""
    labels, _ = label_components(mask)
    large = np.bincount(labels.ravel()) >= min_pixels
    large[0] = False
    return np.asarray(large[labels])


def filled(mask: np.ndarray) -> np.ndarray:
    """The mask with its holes: what is not connected with the border, sides touching, belongs to it."""
    outside, number = label_components(np.pad(~mask, 1, constant_values=True), diagonal=False)
    return outside[1:-1, 1:-1] != outside[0, 0] if number else mask


def grown(mask: np.ndarray, distance: float) -> np.ndarray:
    """The pixels whose distance to the nearest one of the mask is below `distance`."""
    result = mask.copy() if distance > 0 else np.zeros_like(mask)
    reach = math.ceil(distance) - 1
    height, width = mask.shape
    padded = np.pad(mask, max(reach, 0))
    for dy in range(-reach, reach + 1):
        across = math.ceil(math.sqrt(max(distance**2 - dy**2, 0))) - 1
        if across >= 0:
            row = padded[reach + dy : reach + dy + height]
            # How many of the mask lie in each stretch of the row, from running sums.
            sums = np.pad(np.cumsum(row, axis=1, dtype=np.int32), ((0, 0), (1, 0)))
            first = reach - across
            result |= (sums[:, first + 2 * across + 1 :][:, :width] - sums[:, first : first + width]) > 0
    return result


def major_axes(labels: np.ndarray, number: int) -> np.ndarray:
    """(number,) the major axis of the ellipse with the same second moments as each piece, in pixels.

    Pixels are points, so that a single one has length 0.
    """
    rows, columns = np.nonzero(labels)
    which = labels[rows, columns]

    def mean(values: np.ndarray) -> np.ndarray:
        return np.bincount(which, values, number + 1)[1:] / size

    size = np.bincount(which, minlength=number + 1)[1:]
    y, x = mean(rows.astype(float)), mean(columns.astype(float))
    dy, dx = rows - y[which - 1], columns - x[which - 1]
    yy, xx, xy = mean(dy * dy), mean(dx * dx), mean(dy * dx)
    return 4 * np.sqrt((yy + xx) / 2 + np.sqrt(((yy - xx) / 2) ** 2 + xy**2))
