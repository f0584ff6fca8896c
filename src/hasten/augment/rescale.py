"""Intensities stretched from the range that an image has to a given one."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from hasten.augment.channels import grouped
from hasten.augment.op import Drawn, check_prob


@dataclass(frozen=True, kw_only=True, slots=True)
class Rescale:
    """From the smallest and largest value of the sample, or of each channel, to [minv, maxv]. `drawn` is empty.

    An image of one value becomes that value times minv. MONAI's ScaleIntensity with `minv` and `maxv`.
    """

    keys: tuple[str, ...] = ("image",)
    prob: float = 1.0
    minv: float = 0.0
    maxv: float = 1.0
    channel_wise: bool = False

    def __post_init__(self) -> None:
        check_prob("Rescale", self.prob)

    def draw(self, key: Tensor, shape: tuple[int, ...]) -> Drawn:
        return {}

    def apply(self, image: Tensor, drawn: Mapping[str, Tensor]) -> Tensor:
        flat = grouped(image, self.channel_wise)
        lowest, highest = flat.amin(-1, keepdim=True), flat.amax(-1, keepdim=True)
        span = highest - lowest
        stretched = (flat - lowest) * ((self.maxv - self.minv) / span.clamp(min=1e-30)) + self.minv
        return torch.where(span > 0, stretched, flat * self.minv).view(image.shape)
