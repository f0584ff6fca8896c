"""What a batch program is made for, and what it draws."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from hasten.config.schema import SampleConfig
from hasten.sample.intensity import Intensity


@dataclass(frozen=True, kw_only=True, slots=True)
class BatchSpec:
    """What is fixed for a run: everything that shapes the program."""

    sample: SampleConfig
    """With `patch` and `batch_size` set."""
    num_channels: int
    spatial_dims: int
    spacing: tuple[float, float, float] = (1.0, 1.0, 1.0)
    """Voxel size (D, H, W) that rotations are made in."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Draw:
    """What was drawn for each of B samples."""

    case: Tensor
    """(B,) int64 position in the arena."""
    key: Tensor
    """(B, 2) int64 words that further randomness (the noise) is keyed by."""
    start: Tensor
    """(B, 3) int64 first voxel of the patch in its case."""
    matrix: Tensor
    """(B, 3, 3) float32 from output to source offsets about the patch centre."""
    intensity: Intensity
