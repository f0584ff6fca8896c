"""What every arm of `benchmarks.augment` is given: the parameters of each workload and the cases in memory.

An arm is a function of cases and a workload that returns an iterator of batches, (B, C, x, y, z) images with labels or
(B, 3, H, W) tiles. It starts its threads or worker processes at the first `next` and ends them at `close`.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch.nn import functional

Range = tuple[float, float]
Batch = tuple[torch.Tensor, torch.Tensor]
"""Images float32 (B, C, x, y, z), and label maps (B, 1, x, y, z) of the arm's own type."""


@dataclass(frozen=True, slots=True)
class Case:
    image: torch.Tensor
    """float32 (C, x, y, z), 0..1, and 0 outside the body."""
    label: torch.Tensor
    """uint8 (1, x, y, z), 0 is background."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Nnunet:
    """nnU-Net 2.8's `nnUNetTrainer.get_training_transforms` for an isotropic 3-D patch of one image channel."""

    side: int = 96
    batch: int = 8
    rotate_prob: float = 0.2
    rotate_deg: float = 30.0
    """Largest angle about each axis."""
    scale_prob: float = 0.2
    scale_range: Range = (0.7, 1.4)
    """One factor for all axes, drawn uniformly; above 1 objects get smaller."""
    noise_prob: float = 0.1
    noise_std: Range = (0.0, 0.1)
    """nnU-Net calls it variance, but uses it as the standard deviation."""
    blur_prob: float = 0.2
    blur_sigma: Range = (0.5, 1.0)
    """Voxels, of each axis its own."""
    lowres_prob: float = 0.25
    lowres_scale: Range = (0.5, 1.0)
    channel_prob: float = 0.5
    """Probability that blur, or low resolution, once applied to a patch, takes in a channel."""
    brightness_prob: float = 0.15
    brightness_range: Range = (0.75, 1.25)
    contrast_prob: float = 0.15
    contrast_range: Range = (0.75, 1.25)
    """About the mean, clipped to the range before."""
    gamma_inverted_prob: float = 0.1
    gamma_prob: float = 0.3
    gamma_range: Range = (0.7, 1.5)
    """Half of the draws below 1, half above; mean and standard deviation are restored."""
    flip_prob: float = 0.5
    """Of each axis."""

    @property
    def patch(self) -> tuple[int, int, int]:
        return (self.side,) * 3

    @property
    def source(self) -> int:
        """Side of what is cut first, so that a rotated patch has few empty corners: nnU-Net's `get_patch_size`.

        For a cube that is the patch turned by the largest angle about one axis, over 0.85 whatever the scale range.
        """
        angle = math.radians(self.rotate_deg)
        return int(self.side * (math.cos(angle) + math.sin(angle)) / 0.85)

    def spatial_probs(self) -> tuple[float, float, float, float]:
        """Of neither, of rotation alone, of scaling alone, of both: the two are drawn independently."""
        rotate, scale = self.rotate_prob, self.scale_prob
        return (1 - rotate) * (1 - scale), rotate * (1 - scale), (1 - rotate) * scale, rotate * scale


@dataclass(frozen=True, kw_only=True, slots=True)
class Spleen:
    """The random part of MONAI's spleen tutorial: crops, about foreground half of the time, and nothing else."""

    side: int = 96
    cases: int = 2
    samples: int = 4
    """Crops of each case, so that a batch has `cases * samples` patches."""

    @property
    def patch(self) -> tuple[int, int, int]:
        return (self.side,) * 3


@dataclass(frozen=True, kw_only=True, slots=True)
class Brats:
    """The random part of MONAI's BraTS tutorial (and the normalization that stands in its midst), at 96^3."""

    side: int = 96
    batch: int = 4
    flip_prob: float = 0.5
    """Of each axis."""
    scale_factors: float = 0.1
    """v * (1 + f), f within +-0.1, one for all channels, always applied."""
    shift_offsets: float = 0.1
    """v + o, o within +-0.1, one for all channels, always applied."""

    @property
    def patch(self) -> tuple[int, int, int]:
        return (self.side,) * 3


@dataclass(frozen=True, kw_only=True, slots=True)
class Tiles:
    """Random part of MONAI's pathology tutorial (tumor detection); its one flip of both axes is a flip of each here."""

    side: int = 224
    batch: int = 64
    brightness: float = 0.25
    """Factors within 1 +- this, as torchvision's ColorJitter has it; the tutorial has 64 / 255."""
    contrast: float = 0.75
    saturation: float = 0.25
    hue: float = 0.04
    """Turns, within +- this."""
    flip_prob: float = 0.5
    rotate90_prob: float = 0.5
    zoom_prob: float = 0.5
    zoom_range: Range = (0.9, 1.1)
    zoom_mode: str = "area"
    """What MONAI's RandZoomd does unless told otherwise."""


def volumes(count: int, shape: Sequence[int], channels: int = 1, seed: int = 0, classes: int = 2) -> list[Case]:
    """Ellipsoid bodies of smooth noise with a ball of each of the `classes`; the same for the same seed.

    The number of classes matters to nnU-Net's arm, which resamples a label map once for each.
    """
    generator = torch.Generator().manual_seed(seed)
    axes = [torch.linspace(-1, 1, side) for side in shape]
    grid = torch.meshgrid(*axes, indexing="ij")
    body = sum(axis**2 for axis in grid) < 0.9
    cases = []
    for _ in range(count):
        label = torch.zeros(1, *shape, dtype=torch.uint8)
        for value in range(1, classes + 1):
            centre = (torch.rand(3, generator=generator) - 0.5).tolist()
            distance = sum((axis - at) ** 2 for axis, at in zip(grid, centre, strict=True))
            label[0][(distance < 0.08) & body] = value
        coarse = torch.rand(1, channels, 8, 8, 8, generator=generator)
        image = functional.interpolate(coarse, tuple(shape), mode="trilinear", align_corners=True)[0]
        image = (0.1 + 0.5 * image + 0.3 * label / classes + 0.1 * torch.rand(image.shape, generator=generator)) * body
        cases.append(Case(image, label))
    return cases


def tiles(count: int, side: int, seed: int = 0) -> list[torch.Tensor]:
    """Smooth RGB noise, float32 (3, side, side) in 0..1; the same for the same seed."""
    generator = torch.Generator().manual_seed(seed)
    coarse = torch.rand(count, 3, 16, 16, generator=generator)
    smooth = functional.interpolate(coarse, (side, side), mode="bilinear", align_corners=True)
    noise = torch.rand(smooth.shape, generator=generator)
    return list((0.8 * smooth + 0.2 * noise).unbind())


def check_room(cases: Sequence[Case], side: int) -> None:
    """Raise ValueError where a case is too small to be cut from."""
    small = [index for index, case in enumerate(cases) if min(case.image.shape[1:]) < side]
    if small:
        shape = tuple(cases[small[0]].image.shape[1:])
        raise ValueError(f"case {small[0]} of shape {shape} is smaller than the {side} voxels a side cut of it")
