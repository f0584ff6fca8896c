"""Procedural brain MR of four contrasts with nested tumours, laid out as the Decathlon's brain tumour set.

All channels are of one anatomy, so that they go together as those of a patient do: FLAIR, T1w, T1 with gadolinium and
T2w, outside of the brain exactly 0. A phantom is a pure function of (seed, index, shape, spacing).
"""

from __future__ import annotations

from pathlib import Path

import numpy as np

from hasten.cases.types import Shape
from hasten.phantoms.write import numbered, smooth_field, write_volumes

CHANNELS = ("FLAIR", "T1w", "t1gd", "T2w")
LABELS = {0: "background", 1: "edema", 2: "non-enhancing tumor", 3: "enhancing tumour"}
_BRAIN_MM = (62.0, 84.0, 66.0)
"""Half axes (z, y, x) of a brain."""
_SMALLEST_MM, _LARGEST_MM, _MEDIAN_MM, _SPREAD = 9.0, 41.0, 22.0, 0.37
"""Radii of whole tumours: their logarithm is normal with this spread, cut off at either end."""
_WITHOUT_ENHANCEMENT = 0.15
_WHITE, _GREY, _CSF = 4, 5, 6
_LEAST_VOXELS = 16
"""A tumour on a coarse grid is enlarged until it holds so many."""
_TISSUES = (
    (0.0, 660.0, 400.0, 580.0, 360.0, 430.0, 160.0),
    (0.0, 400.0, 270.0, 400.0, 540.0, 400.0, 180.0),
    (0.0, 425.0, 300.0, 860.0, 570.0, 430.0, 190.0),
    (0.0, 680.0, 760.0, 610.0, 370.0, 480.0, 900.0),
)
"""Mean of air, the three parts of a tumour, white matter, grey matter and CSF in each channel."""
Spacing = tuple[float, float, float]


def make_tumour_phantom(
    index: int, *, shape: Shape = (155, 240, 240), spacing: Spacing = (1.0, 1.0, 1.0), seed: int = 0
) -> tuple[np.ndarray, np.ndarray]:
    """One patient: image (4, D, H, W) int16, label (D, H, W) uint8 with 1 edema, 2 non-enhancing, 3 enhancing tumour.

    `spacing` (D, H, W) is in mm. The brain is of its natural size if the field of view has room, else as large as that.
    Raises ValueError for a shape too small to hold one.
    """
    if min(shape) < 16 or min(spacing) <= 0:
        raise ValueError(f"tumour phantom shape {shape}, spacing {spacing}: needs 16 voxels a side, spacing above 0.")
    rng = np.random.default_rng((seed, index))
    zoom = min(1.0, *(0.46 * n * mm / r for n, mm, r in zip(shape, spacing, _BRAIN_MM, strict=True)))
    step = tuple(mm / zoom for mm in spacing)
    radius = _distance(shape, step, np.zeros(3), np.array(_BRAIN_MM) * rng.uniform(0.92, 1.06, 3))
    radius *= 1 + np.float32(0.025) * _field(rng, shape, step, 45.0)
    # Folded cortex over white matter, CSF around it.
    folds = np.float32(0.05) * _field(rng, shape, step, 7.0)
    tissue = np.where(radius + folds > 0.93, _CSF, np.where(radius - folds > 0.82, _GREY, _WHITE))
    tissue[radius > 1] = 0
    label = _tumour(rng, shape, step, radius)
    image = _contrasts(rng, np.where(label > 0, label, tissue), _field(rng, shape, step, 90.0))
    return image, label


def write_tumour_phantoms(
    out: str | Path,
    *,
    num_cases: int = 20,
    shape: Shape = (155, 240, 240),
    spacing: Spacing = (1.0, 1.0, 1.0),
    seed: int = 0,
    num_threads: int = 2,
) -> Path:
    """A Decathlon folder of them with 4-D images; returns `out`. Raises ValueError for an impossible one."""
    return write_volumes(
        Path(out),
        numbered("brain", num_cases),
        lambda index: make_tumour_phantom(index, shape=shape, spacing=spacing, seed=seed),
        title="Procedural brain MR phantoms with nested tumours",
        channels=CHANNELS,
        labels=LABELS,
        spacing=spacing,
        num_threads=num_threads,
    )


def _field(rng: np.random.Generator, shape: Shape, step: tuple[float, ...], over_mm: float) -> np.ndarray:
    """A random field that is smooth over so many mm. step: mm of a voxel."""
    return smooth_field(rng, shape, tuple(max(1.0, over_mm / mm) for mm in step))


def _distance(shape: Shape, step: tuple[float, ...], centre: np.ndarray, radii: np.ndarray) -> np.ndarray:
    """Distance (D, H, W) from `centre` in `radii`, both in mm from the middle of the grid."""
    z, y, x = (
        np.square(((np.arange(n) - (n - 1) / 2) * mm - at) / radius).astype(np.float32)
        for n, mm, at, radius in zip(shape, step, centre, radii, strict=True)
    )
    return np.asarray(np.sqrt(z[:, None, None] + y[:, None] + x))


def _tumour(rng: np.random.Generator, shape: Shape, step: tuple[float, ...], brain: np.ndarray) -> np.ndarray:
    """Label map of an edema around a core, whose outer part enhances. brain: distance from its middle."""
    size = float(np.clip(np.exp(rng.normal(np.log(_MEDIAN_MM), _SPREAD)), _SMALLEST_MM, _LARGEST_MM))
    direction = rng.normal(0, 1, 3)
    centre = direction / np.linalg.norm(direction) * np.array(_BRAIN_MM) * rng.uniform(0.3, 0.6)
    distance = _distance(shape, step, centre, size * rng.uniform(0.85, 1.18, 3))
    distance *= 1 + np.float32(0.15) * _field(rng, shape, step, max(6.0, 0.6 * size))
    distance[brain > 0.97] = np.inf
    distance /= max(1.0, float(np.partition(distance.ravel(), _LEAST_VOXELS)[_LEAST_VOXELS]))
    core, inner = rng.uniform(0.55, 0.85), rng.uniform(0.4, 0.85)
    if rng.random() < _WITHOUT_ENHANCEMENT:
        inner = 1.0
    label = (distance < 1).astype(np.uint8)
    label[distance < core] = 3
    label[distance < core * inner] = 2
    return label


def _contrasts(rng: np.random.Generator, tissue: np.ndarray, shading: np.ndarray) -> np.ndarray:
    """The four images (4, D, H, W) int16 of a map of tissues, with the scanner's gain, shading and noise."""
    out = np.zeros((len(CHANNELS), *tissue.shape), np.int16)
    for channel, means in zip(out, _TISSUES, strict=True):
        drawn = np.array(means, np.float32) * rng.normal(1, 0.06, len(means)).astype(np.float32)
        image = drawn[tissue] * np.float32(np.exp(rng.normal(0, 0.25))) * (1 + np.float32(0.06) * shading)
        image += np.float32(rng.uniform(20, 45)) * rng.standard_normal(tissue.shape, np.float32)
        channel[tissue > 0] = np.rint(np.clip(image, 1, 32000))[tissue > 0]
    return out
