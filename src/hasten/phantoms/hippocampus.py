"""Procedural MR crops of a hippocampus in two parts, as small as the Decathlon's.

A phantom is a pure function of (seed, index, shape).
"""

from __future__ import annotations

from pathlib import Path

import numpy as np

from hasten.cases.types import Shape
from hasten.phantoms.write import numbered, smooth_field, write_volumes

LABELS = {0: "background", 1: "Anterior", 2: "Posterior"}


def make_hippocampus(index: int, *, shape: Shape = (36, 52, 36), seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    """One crop of 1 mm voxels: image (D, H, W) int16, label (D, H, W) uint8 with 1 the front part (head), 2 the rest.

    The crop's own size varies from case to case by up to a tenth. Raises ValueError below 16 voxels a side.
    """
    if min(shape) < 16:
        raise ValueError(f"hippocampus phantom shape {shape}: needs 16 voxels a side.")
    rng = np.random.default_rng((seed, index))
    depth, height, width = (round(n * rng.uniform(0.92, 1.0)) for n in shape)
    size = depth, height, width
    z, y, x = (
        (((np.arange(n) - (n - 1) / 2) / n * 2).astype(np.float32)).reshape([-1 if k == axis else 1 for k in range(3)])
        for axis, n in enumerate(size)
    )
    # A curved tube from back to front (y) that grows thicker to the front, its end turned in and down.
    along = np.clip((y - np.float32(rng.uniform(-0.03, 0.03)) + np.float32(0.72)) / np.float32(1.44), -0.2, 1.2)
    bend, drop = rng.uniform(0.22, 0.42), rng.uniform(0.25, 0.45)
    centre_x = np.float32(bend) * (np.square(2 * along - 1) - np.float32(0.35)) + np.float32(rng.normal(0, 0.05))
    centre_z = np.float32(drop) * (np.float32(0.45) - along) + np.float32(rng.normal(0, 0.05))
    ends = np.sqrt(np.clip(1 - np.square(2 * along - 1), 0, None)) ** np.float32(0.6)
    thick = ends * (np.float32(0.23) + np.float32(0.19) * np.square(along)) * np.float32(rng.uniform(0.88, 1.14))
    lumpy = smooth_field(rng, size, 6.0)
    gap = np.sqrt(np.square((x - centre_x) / np.float32(1.15)) + np.square(z - centre_z)) - thick
    gap += np.float32(0.035) * lumpy + np.clip(0.03 - thick, 0, None) * 20
    head = along + np.float32(0.05) * lumpy > np.float32(rng.uniform(0.5, 0.62))
    label = np.where(gap < 0, np.where(head, 1, 2), 0).astype(np.uint8)
    return _picture(rng, size, gap, label), label


def write_hippocampi(
    out: str | Path, *, num_cases: int = 40, shape: Shape = (36, 52, 36), seed: int = 0, num_threads: int = 2
) -> Path:
    """A Decathlon folder of them; returns `out`. Raises ValueError for an impossible number or shape."""
    return write_volumes(
        Path(out),
        numbered("hippocampus", num_cases),
        lambda index: make_hippocampus(index, shape=shape, seed=seed),
        title="Procedural MR phantoms of a hippocampus in two parts",
        channels=("MRI",),
        labels=LABELS,
        spacing=(1.0, 1.0, 1.0),
        num_threads=num_threads,
    )


def _picture(rng: np.random.Generator, shape: Shape, gap: np.ndarray, label: np.ndarray) -> np.ndarray:
    """T1 contrast: grey matter in white, fluid along one side, other grey structures of the same brightness."""
    white, grey, fluid = rng.normal(115, 6), rng.normal(82, 4), rng.normal(30, 4)
    others = smooth_field(rng, shape, 8.0)
    image = np.full(shape, np.float32(white))
    image += np.float32(grey - white) * np.clip(0.5 + (others - np.float32(0.35)) * 1.5, 0, 1)
    side = np.clip(1 - np.abs(gap - np.float32(0.13)) * 14, 0, 1) * np.clip(others * 2 + np.float32(0.2), 0, 1)
    image += np.float32(fluid - white) * side
    soft = np.clip(0.5 - gap * 9, 0, 1)
    image += soft * (np.float32(grey) - image)
    image *= 1 + np.float32(0.05) * smooth_field(rng, shape, 30.0)
    image += np.float32(rng.uniform(6, 10)) * rng.standard_normal(shape, np.float32)
    image *= np.float32(np.exp(rng.normal(0.5, 0.6)))  # scanners differ in gain, which a z-score takes away
    return np.rint(np.clip(image, 0, 32000)).astype(np.int16)
