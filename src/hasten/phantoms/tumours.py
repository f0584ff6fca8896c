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
"""Half axes (z, y, x) of a brain of middling size."""
_SMALLEST_ML, _LARGEST_ML, _MEDIAN_ML, _SPREAD = 3.0, 300.0, 45.0, 1.1
"""Whole tumours: the logarithm of the volume is normal with this spread, cut off at either end."""
_WITHOUT_ENHANCEMENT = 0.15
_TISSUES = {
    #             FLAIR  T1w  t1gd  T2w
    "csf": (160.0, 180.0, 190.0, 900.0),
    "grey": (430.0, 400.0, 430.0, 480.0),
    "white": (360.0, 540.0, 570.0, 370.0),
    "edema": (660.0, 400.0, 425.0, 680.0),
    "necrotic": (400.0, 270.0, 300.0, 760.0),
    "enhancing": (580.0, 400.0, 860.0, 610.0),
}
"""Mean of each tissue in each channel, in the units of an uncalibrated scanner."""
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
    scale = _Scale(shape, tuple(mm / zoom for mm in spacing), rng)
    radius = _brain(scale)
    tissues = _healthy(scale, radius)
    depth, parts = _tumour(scale, radius, tissues["csf"])
    label = np.zeros(shape, np.uint8)
    for value, inside in enumerate(parts, start=1):
        label[inside] = value
    _infiltrate(tissues, depth, label)
    return _contrasts(scale, tissues, radius <= 1), label


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


class _Scale:
    """A grid with the patient's generator: voxel places in mm of a natural brain, and fields smooth over mm."""

    def __init__(self, shape: Shape, mm: tuple[float, ...], rng: np.random.Generator) -> None:
        self.shape, self.mm, self.rng = shape, mm, rng
        self.place = tuple(
            ((np.arange(n) - (n - 1) / 2) * at).astype(np.float32).reshape([-1 if k == axis else 1 for k in range(3)])
            for axis, (n, at) in enumerate(zip(shape, mm, strict=True))
        )

    def field(self, over_mm: float) -> np.ndarray:
        return smooth_field(self.rng, self.shape, tuple(max(1.0, over_mm / at) for at in self.mm))

    def ellipsoid(self, centre: np.ndarray, radii: np.ndarray) -> np.ndarray:
        """Distance from `centre` in `radii` (both in mm, (z, y, x)); 1 on the surface."""
        z, y, x = (
            np.square((place - np.float32(at)) / np.float32(radius))
            for place, at, radius in zip(self.place, centre, radii, strict=True)
        )
        return np.asarray(np.sqrt(z + y + x))

    @property
    def voxel_ml(self) -> float:
        return float(np.prod(self.mm)) / 1000


def _brain(scale: _Scale) -> np.ndarray:
    """Share of the way from the brain's middle to its surface, above 1 outside."""
    radii = np.array(_BRAIN_MM) * scale.rng.uniform(0.92, 1.06, 3)
    radius = scale.ellipsoid(np.zeros(3), radii)
    radius *= 1 + np.float32(0.025) * scale.field(45.0)
    z, y, _ = scale.place
    # Flat below, and a little narrower in front.
    radius += np.float32(0.35) * np.square(np.clip(-z / np.float32(radii[0]) - np.float32(0.55), 0, None))
    radius += np.float32(0.04) * np.clip(y / np.float32(radii[1]), 0, None)
    return radius


def _healthy(scale: _Scale, radius: np.ndarray) -> dict[str, np.ndarray]:
    """Share of each tissue in each voxel (D, H, W), together 1: folded cortex over white matter, ventricles, CSF."""
    x = scale.place[2]
    folds = scale.field(7.0)
    cortex = np.clip(0.5 + (radius - np.float32(0.84) + np.float32(0.09) * folds) * 25, 0, 1)
    sulci = np.clip((radius - np.float32(0.80)) * 8, 0, 1) * np.clip((np.abs(folds) * -6) + np.float32(1.2), 0, 1)
    sulci = np.maximum(sulci, np.clip((radius - np.float32(0.975)) * 50, 0, 1))
    # The two hemispheres meet in a thin gap, wider at the surface.
    gap = np.clip(1.6 - np.abs(x + np.float32(1.2) * folds) / np.float32(1.2), 0, 1) * np.clip(radius * 4 - 1.7, 0, 1)
    size = scale.rng.uniform(0.8, 1.3)
    csf = np.maximum(sulci, gap)
    for side in (-1, 1):
        ventricle = scale.ellipsoid(np.array([6, 2, side * 11.0]), np.array([10, 31, 7.0]) * size)
        ventricle += np.float32(0.12) * folds
        csf = np.maximum(csf, np.clip(0.5 - (ventricle - 1) * 6, 0, 1))
        nucleus = scale.ellipsoid(np.array([-5, 0, side * 22.0]), np.array([11, 17, 8.0])) + np.float32(0.1) * folds
        cortex = np.maximum(cortex, np.float32(0.8) * np.clip(0.5 - (nucleus - 1) * 5, 0, 1))
    grey = (1 - csf) * cortex
    return {"csf": csf, "grey": grey, "white": 1 - csf - grey}


def _tumour(scale: _Scale, radius: np.ndarray, csf: np.ndarray) -> tuple[np.ndarray, list[np.ndarray]]:
    """How deep inside the tumour a voxel is, and the masks of edema, non-enhancing and enhancing tumour.

    The masks do not overlap, and each is as many voxels as its drawn volume; edema avoids CSF.
    """
    rng = scale.rng
    volume = 0.0
    while not _SMALLEST_ML <= volume <= _LARGEST_ML:
        volume = float(np.exp(rng.normal(np.log(_MEDIAN_ML), _SPREAD)))
    core_share, enhancing_share = rng.uniform(0.15, 0.7), rng.uniform(0.25, 0.85)
    if rng.random() < _WITHOUT_ENHANCEMENT:
        enhancing_share = 0.0
    centre, mm = _centre(rng), (volume * 1000 * 3 / (4 * np.pi)) ** (1 / 3)
    stretch = rng.uniform(0.8, 1.25, 3)
    distance = scale.ellipsoid(centre, mm * stretch / np.prod(stretch) ** (1 / 3))
    edema = distance * (1 + np.float32(0.22) * scale.field(max(6.0, 0.6 * mm)))
    edema += 3 * np.clip(csf - np.float32(0.5), 0, None)
    edema += 8 * np.clip((radius - np.float32(0.97)) * 20, 0, 1)
    count = max(4, round(volume / scale.voxel_ml))
    whole, depth = _fullest(edema, count)
    core_mm = mm * core_share ** (1 / 3)
    off = rng.normal(0, 0.12, 3) * mm
    lumpy = np.float32(0.18) * scale.field(max(4.0, 0.5 * core_mm))
    core_distance = scale.ellipsoid(centre + off, np.full(3, core_mm)) + lumpy
    core_distance[~whole] = np.inf
    core, inside = _fullest(core_distance, max(2, round(core_share * whole.sum())))
    # Enhancement is a rim of uneven width around what is necrotic within.
    rim = np.where(core, inside + np.float32(0.12) * scale.field(max(4.0, 0.3 * core_mm)), np.float32(np.inf))
    enhancing, _ = _fullest(rim, round(enhancing_share * core.sum()))
    return depth, [whole & ~core, core & ~enhancing, enhancing]


def _centre(rng: np.random.Generator) -> np.ndarray:
    """A point in the white matter of one hemisphere, mm (z, y, x)."""
    direction = rng.normal(0, 1, 3)
    direction /= np.linalg.norm(direction)
    place = direction * np.array(_BRAIN_MM) * rng.uniform(0.3, 0.62)
    place[0] = max(place[0], -22.0)
    place[2] = np.copysign(max(abs(place[2]), 20.0), place[2])
    return place


def _fullest(value: np.ndarray, count: int) -> tuple[np.ndarray, np.ndarray]:
    """The `count` voxels of lowest value as a mask, and how far below the limit each voxel is (negative outside)."""
    if count == 0:
        return np.zeros(value.shape, bool), np.full(value.shape, -np.inf, np.float32)
    flat = value.ravel()
    lowest = np.argpartition(flat, count - 1)[:count]
    mask = np.zeros(flat.size, bool)
    mask[lowest] = True
    return mask.reshape(value.shape), flat[lowest].max() - value


def _infiltrate(tissues: dict[str, np.ndarray], depth: np.ndarray, label: np.ndarray) -> None:
    """Put the tumour's tissues into the shares: soft at the edge of the edema, which leaves some of what was there."""
    soft = np.clip(0.75 + depth * 4, 0, 1) * (label > 0)
    for share in tissues.values():
        share *= 1 - np.where(label > 1, np.float32(0.95), np.float32(0.8) * soft)
    tissues["edema"] = np.where(label == 1, np.float32(0.8) * soft, 0).astype(np.float32)
    tissues["necrotic"] = np.where(label == 2, np.float32(0.95), np.float32(0))
    tissues["enhancing"] = np.where(label == 3, np.float32(0.95), np.float32(0))


def _contrasts(scale: _Scale, tissues: dict[str, np.ndarray], brain: np.ndarray) -> np.ndarray:
    """The four images (4, D, H, W) int16 of shares of tissue, with the scanner's gain, shading, texture and noise."""
    rng = scale.rng
    texture = np.float32(0.05) * scale.field(5.0)
    shading = np.float32(0.06) * scale.field(90.0)
    out = np.zeros((len(CHANNELS), *scale.shape), np.int16)
    for channel in range(len(CHANNELS)):
        image = np.zeros(scale.shape, np.float32)
        for name, share in tissues.items():
            image += np.float32(_TISSUES[name][channel] * rng.normal(1, 0.06)) * share
        image *= np.float32(np.exp(rng.normal(0, 0.25))) * (1 + texture + shading)
        noise = np.float32(rng.uniform(0.025, 0.05) * float(image[brain].mean()))
        image += noise * rng.standard_normal(scale.shape, np.float32)
        out[channel][brain] = np.rint(np.clip(image[brain], 1, 32000))
    return out
