"""What a data set looks like, as far as a plan needs to know it."""

from __future__ import annotations

from dataclasses import dataclass, field

from hasten.config.schema import Spacing, Triple


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
    """Statistics of the whole sampled images, one value per channel for each of min, p0_5, p50, p99_5, max, mean, std.
    """
    foreground_intensity: dict[str, tuple[float, ...]]
    """Statistics of the labelled voxels only, as in `intensity`."""
    class_voxels: dict[int, float]
    """Label value to its mean share of a case's voxels in the sampled cases (0..1)."""
    class_cases: dict[int, int]
    """Label value to the number of sampled cases that hold it."""
    crop_fraction: float
    """Mean share of a sampled case's voxels inside its foreground box (1.0: cropping gains nothing)."""
    misplaced: dict[str, float] = field(default_factory=dict)
    """Files whose corners lie beside those of their case's first image, and how far at most, in voxels."""

    def __repr__(self) -> str:
        kind = f"{self.spatial_dims}-D, {', '.join(self.channels)}"
        return f"<Fingerprint of {self.name}: {self.num_cases} cases, {kind}; {len(self.labels)} classes>"
