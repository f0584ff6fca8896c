"""Intensity scaling of voxel values.

The values arrive in slabs that are still in a core's cache from resampling, so that scaling costs no pass over memory
of its own, except that `zscore` has to see every voxel before it can change the first.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import torch

from hasten.config.scalings import Scaling

Slabs = Iterator[tuple[slice, torch.Tensor]]

_FLOAT16_MAX = 65504.0
_CONSTANT = 1e-6
"""An image whose deviation is below this share of its mean differs by float32 rounding only."""
_FAR = 1e5
"""Times as far from the median as other voxels: more than 16 bits can express, so no scanner or camera measured it."""
_LARGEST = 1e15
"""Squares of larger values do not add up in float32."""
_SAMPLE, _LEFT_OUT = 8192, 8
"""Voxels sampled to estimate the usual distance from the median, and how many of the farthest are left out."""


def check_outliers(volume: np.ndarray, channel: int) -> None:
    """Raise ValueError for a voxel that z-scoring would give nearly all of the deviation, and for values too large.

    volume: (D, H, W) of any real dtype, finite. A heavy tail passes, as do 8 and 16 bits, which can't hold more.
    """
    if volume.dtype.kind in "iu" and volume.dtype.itemsize <= 2:
        return
    flat = volume.reshape(-1)
    some = flat if flat.size <= _SAMPLE else flat[np.random.default_rng(0).integers(0, flat.size, _SAMPLE)]
    some = some.astype(np.float64)  # in which sums and squares of float32 don't overflow
    centre = float(np.median(some))
    inliers = np.sort(np.abs(some - centre))[:-_LEFT_OUT]
    usual = float(np.sqrt(np.mean(inliers**2))) if inliers.size else 0.0
    low, high = float(flat.min()), float(flat.max())
    if max(high - centre, centre - low) <= _FAR * usual or usual == 0:
        if max(high, -low) >= _LARGEST:
            raise ValueError(
                f"the values of channel {channel}, {low:g} to {high:g}, are too large for prepare.intensity=zscore; "
                "divide them in the file, or set prepare.intensity=window and prepare.window"
            )
        return
    place = np.unravel_index(int(np.argmax(np.abs(volume - np.float64(centre)))), volume.shape)
    raise ValueError(
        f"the voxel at (D, H, W) = {tuple(map(int, place))} of channel {channel} holds {float(volume[place]):g}, but "
        f"voxels usually lie within {usual:.3g} of {centre:.3g}: prepare.intensity=zscore would make them all alike; "
        "correct the voxel in the file, or set prepare.intensity=window and prepare.window"
    )


def write_scaled(slabs: Slabs, out: np.ndarray, scaling: Scaling) -> None:
    """Scale float32 slabs of one channel and write them to `out`, (D, H, W) float16 or float32.

    `zscore` subtracts the mean over the whole volume that arrives and divides by its standard deviation, at least 1e-8;
    a constant volume becomes 0. It can't leave float16's range: no z-score of n voxels exceeds sqrt(n). `window` maps
    scaling.window to 0..1 and clips. `none` writes the values as they are, and raises ValueError where float16 can't
    hold them.
    """
    target = torch.from_numpy(out)
    match scaling.kind:
        case "zscore":
            _write_zscore(slabs, target)
        case "window":
            assert scaling.window is not None
            low, high = scaling.window
            for place, slab in slabs:
                target[place] = slab.sub_(low).mul_(1 / (high - low)).clamp_(0, 1)
        case "none":
            for place, slab in slabs:
                if out.dtype == np.float16:
                    _check_range(slab)
                target[place] = slab


def _write_zscore(slabs: Slabs, target: torch.Tensor) -> None:
    # A target whose dtype can hold the unscaled values also buffers them until the mean is known.
    values = target if target.dtype == torch.float32 else torch.empty(target.shape, dtype=torch.float32)
    places, total = [], 0.0
    for place, slab in slabs:
        values[place] = slab
        total += float(slab.sum())
        places.append(place)
    mean = total / values.numel()
    # Squares of differences, not a difference of squares, which would lose the deviation of a bright image.
    squares = 0.0
    for place in places:
        part = values[place].sub_(mean).flatten()
        squares += float(torch.dot(part, part))
    std = (squares / values.numel()) ** 0.5
    # 0 for an image that is constant up to rounding.
    scale = 0.0 if std <= _CONSTANT * abs(mean) else 1 / max(std, 1e-8)
    for place in places:
        target[place] = values[place].mul_(scale)


def _check_range(slab: torch.Tensor) -> None:
    low, high = (float(value) for value in slab.aminmax())
    if low < -_FLOAT16_MAX or high > _FLOAT16_MAX:
        raise ValueError(
            f"prepare.intensity=none keeps values of {low:g} to {high:g}, which float16 can't hold (±65504); "
            f"set prepare.dtype=float32, or scale them with prepare.intensity=zscore or window"
        )
