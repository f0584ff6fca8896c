"""The types of a case, a set of cases and a volume. Reads no pixels."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

import numpy as np

Shape = tuple[int, int, int]
"""(D, H, W)."""
IN_MM = {
    **dict.fromkeys(("pm", "picometer", "picometre"), 1e-9),
    **dict.fromkeys(("å", "angstrom", "ångström"), 1e-7),
    **dict.fromkeys(("nm", "nanometer", "nanometre"), 1e-6),
    **dict.fromkeys(("um", "µm", "μm", "\\u00b5m", "micron", "microns", "micrometer", "micrometre"), 1e-3),
    **dict.fromkeys(("mm", "millimeter", "millimetre"), 1.0),
    **dict.fromkeys(("cm", "centimeter", "centimetre"), 10.0),
    **dict.fromkeys(("dm", "decimeter", "decimetre"), 100.0),
    **dict.fromkeys(("m", "meter", "metre"), 1e3),
    **dict.fromkeys(("in", "inch", "inches"), 25.4),
}
"""Units of length, by the names that files give them in lower case, in mm."""


def is_flat(shape: Shape) -> bool:
    """Whether a file of this shape holds one slice: 2-D, across whichever axis."""
    return 1 in shape


@dataclass(frozen=True, kw_only=True, slots=True)
class Case:
    """One subject: an image of one or more channels and, for training, its label map."""

    id: str
    image: tuple[Path, ...]
    """One file per channel, or one file that holds them all."""
    label: Path | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class Declared:
    """What a source says of its cases."""

    name: str
    source: Path
    """The dataset.json, folder or list it was read from (named in errors)."""
    cases: tuple[Case, ...]
    modality: str = ""
    """The first channel's modality as the source names it ("MRI", "CT", ""), used by the plan."""
    regions: dict[str, tuple[int, ...]] = field(default_factory=dict)
    """Overlapping classes to learn instead of `labels`: name to label values, in the order in which a label map is
    painted from them, later ones over earlier ones."""
    region_values: dict[str, int] = field(default_factory=dict)
    """Label value that each region is painted with; empty for the one value that is in no later region."""
    ignore: int | None = None
    """Label value of voxels that are not annotated, which is none of `labels`."""
    held_out: tuple[str, ...] = ()
    """Ids of the cases that the source itself holds out for validation."""
    folds: Mapping[str, int] = field(default_factory=dict)
    """Fold in which the source says a case is validated on, by id; empty where it gives none."""


@dataclass(frozen=True, kw_only=True, slots=True)
class CaseSet(Declared):
    """Cases that share channels and classes."""

    labels: dict[int, str]
    """Label value to class name; 0 is the background. Values need not be contiguous."""
    channels: tuple[str, ...] = ("image",)
    spatial_dims: int = 3

    def __repr__(self) -> str:
        names = ", ".join(name for value, name in sorted(self.labels.items()) if value)
        kind = f"{self.spatial_dims}-D, {', '.join(self.channels)}"
        return f"<CaseSet {self.name}: {len(self.cases)} cases, {kind}; {names}>"


class Segment(NamedTuple):
    """A class of a label map as its file names it (3D Slicer)."""

    name: str
    value: int
    layer: int
    """The channel in which it has its value."""


@dataclass(frozen=True, slots=True)
class Volume:
    """Voxels as read from a file, and where they lie in space."""

    array: np.ndarray
    """(C, D, H, W) in the file's own dtype; D, H, W are the z, y, x of the file; a view of its order, not a copy."""
    affine: np.ndarray
    """(4, 4) float64, voxel index (x, y, z) of the file to mm, as in nibabel. Identity for formats without one."""
    segments: tuple[Segment, ...] = ()
    """What the file says of its label values, if anything."""

    @property
    def spacing(self) -> tuple[float, float, float]:
        """Voxel spacing (D, H, W) in mm."""
        return spacing_of(self.affine)


def spacing_of(affine: np.ndarray) -> tuple[float, float, float]:
    """Voxel spacing (D, H, W) in mm of an affine (4, 4), whose columns are x, y, z."""
    x, y, z = np.sqrt((affine[:3, :3] ** 2).sum(0))
    return (float(z), float(y), float(x))
