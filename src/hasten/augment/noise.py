"""Noise, keyed by a voxel's place in the patch, channel included, never by an order of evaluation."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from torch import Tensor

from hasten.augment.op import Drawn, Operation, RangeFrom0, spread
from hasten.sample.random import normal, uniform_in

_STD, VOXEL = 1, 2


@dataclass(frozen=True, kw_only=True, slots=True)
class GaussianNoise(Operation):
    """Adds N(mean, std) with std from U(std). `drawn`: std (B,), key (B, 2).

    MONAI's RandGaussianNoise: `std=(0, std)` where it samples the deviation, `(std, std)` where it does not.
    nnU-Net's: the range is of the variance there.
    """

    mean: float = 0.0
    std: RangeFrom0 = (0.0, 0.1)

    def draw(self, key: Tensor, shape: tuple[int, ...]) -> Drawn:
        return {"std": uniform_in(key, _STD, *self.std)[:, 0], "key": key}

    def apply(self, image: Tensor, drawn: Mapping[str, Tensor]) -> Tensor:
        voxels = normal(drawn["key"], VOXEL, image[0].numel()).view(image.shape)
        return image + (self.mean + spread(drawn["std"], image) * voxels)
