"""What a data set looks like, as far as a plan needs to know it."""

from __future__ import annotations

from dataclasses import dataclass, field

from hasten.config.schema import Spacing, Triple, triple

COARSER = (1.25, 1.5, 2.0, 2.5, 3.0, 4.0)
"""Factors of the finest spacing that a plan chooses among, beside a data set's own grid."""


def coarser_spacing(spacing: Spacing, factor: float) -> Spacing:
    """The spacing (D, H, W) with no side below `factor` times the shortest, so that thick slices stay as they are."""
    return triple(max(side, factor * min(spacing)) for side in spacing)


@dataclass(frozen=True, kw_only=True, slots=True)
class Fingerprint:
    """Facts of a data set. Shapes and spacings are (D, H, W) after orientation, before resampling."""

    name: str
    num_cases: int
    spatial_dims: int
    modality: str
    """The source's own word for the first channel ("MRI", "CT", ...), or ""."""
    channels: tuple[str, ...]
    labels: dict[int, str]
    """Label value to class name, background included."""
    shapes: tuple[Triple, ...]
    """One per case, in the order of the cases."""
    spacings: tuple[Spacing, ...]
    """One per case, in the order of the cases."""
    sampled_cases: int
    """How many cases (evenly spaced over the list) the figures below were read from."""
    intensity: dict[str, tuple[float, ...]]
    """Statistics of the whole sampled images: a value per channel for min, p0_5, p50, p99_5, max, mean and std."""
    foreground_intensity: dict[str, tuple[float, ...]]
    """Statistics of the labelled voxels only, as in `intensity`."""
    crop_fraction: float
    """Mean share of a sampled case's voxels inside its foreground box (1.0: cropping gains nothing)."""
    foreground_box: Spacing = (0.0, 0.0, 0.0)
    """Median size (D, H, W) in mm of the box of all labelled voxels of a sampled case; 0 without labels, and in 2-D."""
    kept_dice: dict[float, dict[int, float]] = field(default_factory=dict)
    """What a coarser grid can keep of the labels: by the factor of `coarser_spacing`, label value to the mean Dice of
    the labels that were brought there and back. Empty without labels, and in 2-D."""
    misplaced: dict[str, float] = field(default_factory=dict)
    """Files whose corners lie beside those of their case's first image, and how far at most, in voxels."""

    def __repr__(self) -> str:
        kind = f"{self.spatial_dims}-D, {', '.join(self.channels)}"
        return f"<Fingerprint of {self.name}: {self.num_cases} cases, {kind}; {len(self.labels)} classes>"
