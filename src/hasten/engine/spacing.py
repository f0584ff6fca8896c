"""The voxel spacings that a network was trained on, and images that are far from them."""

from __future__ import annotations

from collections.abc import Sequence
from statistics import median

import numpy as np

from hasten.cases.types import spacing_of
from hasten.config.schema import Spacing
from hasten.prepare.orient import orientation_of
from hasten.prepare.types import Geometry

_TIMES = 2.0
"""A spacing this many times larger than in any training image, or smaller, shows other things in a window."""


def training_spacing(spacings: Sequence[Spacing]) -> dict[str, list[float]]:
    """Smallest, median and largest spacing (D, H, W) of the cases, turned to RAS, in mm."""
    columns = list(zip(*spacings, strict=True))
    return {
        name: [float(of(column)) for column in columns]
        for name, of in (("smallest", min), ("median", median), ("largest", max))
    }


def spacing_warning(geometry: Geometry, trained: dict[str, list[float]]) -> str | None:
    """Why an image is unlikely to be segmented well, after training cases as `training_spacing` gives them."""
    if not trained:
        return None
    affine = np.array(geometry.source_affine)
    permute, _ = orientation_of(affine, "RAS", geometry.source_shape)
    spacing = spacing_of(affine)
    sizes = [(spacing[axis], geometry.source_shape[axis]) for axis in permute]
    far = any(
        side > 1 and not low / _TIMES <= mm <= high * _TIMES
        for (mm, side), low, high in zip(sizes, trained["smallest"], trained["largest"], strict=True)
    )
    if not far:
        return None
    shown, smallest, middle, largest = (
        " x ".join(f"{mm:.3g}" for mm in row) for row in ([mm for mm, _ in sizes], *trained.values())
    )
    return (
        f"its voxels are {shown} mm (D, H, W), but those of the training images are {smallest} to {largest} mm "
        f"(median {middle}); check the spacing in the header: the network has not learned images of this resolution"
    )
