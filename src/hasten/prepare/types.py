"""The result of preparing a case, and the geometry that maps a prediction back."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from hasten.cases.types import spacing_of
from hasten.config.schema import triple


@dataclass(frozen=True, kw_only=True, slots=True)
class Geometry:
    """Everything between a prepared array and the voxels of its source file; plain numbers that go into JSON."""

    source_shape: tuple[int, int, int]
    """(D, H, W) of the file."""
    source_affine: tuple[tuple[float, float, float, float], ...]
    """(4, 4) of the file, (x, y, z) index to mm."""
    permute: tuple[int, int, int]
    """Source axis, in (D, H, W) numbering, that each oriented axis comes from."""
    flip: tuple[bool, bool, bool]
    """Whether each oriented axis runs against its source axis."""
    crop_start: tuple[int, int, int]
    """First voxel of the foreground box in the oriented array, before resampling."""
    crop_shape: tuple[int, int, int]
    """Shape of the foreground box in the oriented array, before resampling."""
    spacing: tuple[float, float, float]
    """Spacing (D, H, W) of the oriented array before resampling, in mm."""
    shape: tuple[int, int, int]
    """Shape (D, H, W) after resampling: that of the prepared array."""

    @classmethod
    def from_json(cls, values: dict[str, Any]) -> Geometry:
        """The inverse of `dataclasses.asdict`, also after a trip through JSON, which keeps float64 exactly."""
        rows = tuple(map(tuple, values["source_affine"]))
        return cls(**{**{key: tuple(value) for key, value in values.items()}, "source_affine": rows})

    @classmethod
    def of_file(cls, shape: tuple[int, int, int], affine: np.ndarray) -> Geometry:
        """Geometry of an array that holds the voxels of its file as they are. shape: (D, H, W)."""
        rows = tuple((float(a), float(b), float(c), float(d)) for a, b, c, d in affine)
        return cls(
            source_shape=shape,
            source_affine=rows,
            permute=(0, 1, 2),
            flip=(False, False, False),
            crop_start=(0, 0, 0),
            crop_shape=shape,
            spacing=spacing_of(affine),
            shape=shape,
        )

    @property
    def prepared_spacing(self) -> tuple[float, float, float]:
        """Spacing (D, H, W) of the prepared array, in mm."""
        sides = zip(self.spacing, self.crop_shape, self.shape, strict=True)
        return triple(mm * before / after for mm, before, after in sides)

    def directions(self) -> np.ndarray:
        """The affine (4, 4) of the prepared array without its translation: (x, y, z) index to mm."""
        source, affine = np.array(self.source_affine), np.eye(4)
        for axis, (from_axis, reverse) in enumerate(zip(self.permute, self.flip, strict=True)):
            scale = self.crop_shape[axis] / self.shape[axis]
            affine[:3, 2 - axis] = source[:3, 2 - from_axis] * (-scale if reverse else scale)
        return affine

    def source_slice(self, axis: int, index: int) -> tuple[int, int]:
        """The slice of the file, from 0, that slice `index` across an axis (D, H, W) shows, and how many there are."""
        count = self.source_shape[self.permute[axis]]
        centre = (index + 0.5) * self.crop_shape[axis] / self.shape[axis]
        oriented = self.crop_start[axis] + min(int(centre), self.crop_shape[axis] - 1)
        return count - 1 - oriented if self.flip[axis] else oriented, count


@dataclass(frozen=True, slots=True)
class PreparedCase:
    """One prepared case."""

    id: str
    image: np.ndarray
    """(C, D, H, W), float16 or float32, C-contiguous."""
    label: np.ndarray | None
    """(D, H, W) uint8, class *index* (position in the sorted label values, background 0), C-contiguous."""
    geometry: Geometry
