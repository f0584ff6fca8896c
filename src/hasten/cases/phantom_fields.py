"""Smooth random fields, which phantoms get their shapes and textures from."""

from __future__ import annotations

import numpy as np


def smooth_field(rng: np.random.Generator, shape: tuple[int, ...], scale: tuple[float, ...] | float) -> np.ndarray:
    """A random field of `shape` (any number of axes), float32, mean 0 and standard deviation about 1.

    It varies over `scale` voxels, which may differ from axis to axis: cubic splines through white noise.
    """
    scales = scale if isinstance(scale, tuple) else (scale,) * len(shape)
    knots = [max(4, round(size / step) + 3) for size, step in zip(shape, scales, strict=True)]
    field = rng.standard_normal(knots, np.float32)
    for axis, (size, count) in enumerate(zip(shape, knots, strict=True)):
        weights = _spline(size, count)
        field = np.moveaxis(np.tensordot(weights, field, axes=(1, axis)), 0, axis)
    return np.ascontiguousarray(field)


def _spline(size: int, num_knots: int) -> np.ndarray:
    """(size, num_knots) weights of a cubic B-spline, each row of unit norm so that noise keeps its strength."""
    place = np.linspace(1, num_knots - 2, size)[:, None]
    t = np.abs(place - np.arange(num_knots))
    near, far = 2 / 3 - t * t + t**3 / 2, np.clip(2 - t, 0, None) ** 3 / 6
    weights = np.where(t < 1, near, far)
    return (weights / np.sqrt((weights**2).sum(1, keepdims=True))).astype(np.float32)
