"""Gaussian filters, one axis after the other, each voxel a sum of shifted copies.

On a CPU the sum of shifted slices is five to twenty times as fast as a grouped convolution. The number of weights
follows from the largest sigma, so that shapes are static; weights beyond what a drawn sigma reaches in the original
are zero.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn.functional import pad

from hasten.augment.op import Drawn, Operation, Prob, RangeFrom0, spread
from hasten.kernels.use import triton_runs
from hasten.sample.random import uniform, uniform_in

_X = 1
_SIGMA, _CHANNEL = 1, 2


@dataclass(frozen=True, kw_only=True, slots=True)
class GaussianSmooth(Operation):
    """A Gaussian filter with a sigma for each axis in voxels, from U(sigma_x) for the first and so on.

    `drawn`: sigma (B, dims). MONAI's RandGaussianSmooth with `approx="erf"`: weights are cut off at four sigma, not
    scaled to sum to 1, and the image is 0 beyond its border.
    """

    sigma_x: RangeFrom0 = (0.25, 1.5)
    sigma_y: RangeFrom0 = (0.25, 1.5)
    sigma_z: RangeFrom0 = (0.25, 1.5)

    def draw(self, key: Tensor, shape: tuple[int, ...]) -> Drawn:
        ranges = (self.sigma_x, self.sigma_y, self.sigma_z)[: len(shape) - 1]
        return {"sigma": torch.cat([uniform_in(key, _X + axis, *each) for axis, each in enumerate(ranges)], dim=1)}

    def apply(self, image: Tensor, drawn: Mapping[str, Tensor]) -> Tensor:
        largest = [each[1] for each in (self.sigma_x, self.sigma_y, self.sigma_z)]
        for axis in range(2, image.ndim):
            radius = min(int(max(4 * largest[axis - 2], 0.5) + 0.5), image.shape[axis] - 1)
            image = _along(image, _erf(drawn["sigma"][:, axis - 2, None], radius), axis, "constant")
        return image


@dataclass(frozen=True, kw_only=True, slots=True)
class Blur(Operation):
    """A Gaussian filter with a sigma in voxels for each channel and axis, from U(blur_sigma).

    `drawn`: sigma (B, C, dims), 0 where a channel is left as it is. batchgeneratorsv2's GaussianBlurTransform with
    `benchmark=False`: weights are cut off at three sigma and sum to 1, and the image is reflected at its border. An
    axis shorter than a filter's reach, which it refuses, takes the weights that fit.
    """

    prob: Prob = 0.2
    blur_sigma: RangeFrom0 = (0.5, 1.0)
    p_per_channel: Prob = 1.0

    def draw(self, key: Tensor, shape: tuple[int, ...]) -> Drawn:
        channels, dims = shape[0], len(shape) - 1
        sigma = uniform_in(key, _SIGMA, *self.blur_sigma, count=channels * dims).view(-1, channels, dims)
        if self.p_per_channel < 1.0:
            chosen = uniform(key, _CHANNEL, channels) < self.p_per_channel
            sigma = torch.where(chosen[..., None], sigma, 0.0)
        return {"sigma": sigma}

    def apply(self, image: Tensor, drawn: Mapping[str, Tensor]) -> Tensor:
        result = image
        for axis in range(2, image.ndim):
            weight = _sampled(drawn["sigma"][..., axis - 2], self.radius(image.shape[axis]))
            result = _along(result, weight, axis, "reflect")
        return result

    def radius(self, side: int) -> int:
        """Voxels that a filter reaches to either side, along an axis of this length."""
        return min(int(3 * self.blur_sigma[1] + 0.25), side - 1)


def _erf(sigma: Tensor, radius: int) -> Tensor:
    """(B, G, 2 * radius + 1) shares of a Gaussian that fall on each voxel, as MONAI's `gaussian_1d`. sigma: (B, G)."""
    place = torch.arange(-radius, radius + 1, device=sigma.device, dtype=torch.float32)
    scale = 0.70710678 / sigma[..., None]
    share = 0.5 * (torch.erf(scale * (place + 0.5)) - torch.erf(scale * (place - 0.5)))
    reached = place.abs() - 0.5 <= (4 * sigma[..., None]).clamp(min=0.5)
    return torch.where(reached, share.clamp(min=0), 0.0)


def _sampled(sigma: Tensor, radius: int) -> Tensor:
    """(B, G, 2 * radius + 1) of a Gaussian at each voxel, summing to 1, as batchgeneratorsv2's. sigma: (B, G)."""
    place = torch.arange(-radius, radius + 1, device=sigma.device, dtype=torch.float32)
    height = torch.exp(-0.5 * (place / sigma[..., None].clamp(min=1e-3)).square())
    height = torch.where(place.abs() - 0.25 <= 3 * sigma[..., None].clamp(min=0.1), height, 0.0)
    return height / height.sum(-1, keepdim=True)


def _along(image: Tensor, weight: Tensor, axis: int, mode: str) -> Tensor:
    """image: (B, C, *S); weight: (B, 1 or C, 2 * radius + 1) along one axis; mode: of `pad`, for what lies beyond."""
    if triton_runs(image):
        from hasten.augment.smooth_triton import along

        return along(image, weight, axis, mode)
    count, length = weight.shape[-1], image.shape[axis]
    after = image.ndim - 1 - axis
    padding = [0, 0] * after + [count // 2] * 2 + [0, 0] * (axis - 2)
    wide = pad(image, padding, mode=mode)
    result = wide.narrow(axis, 0, length) * spread(weight[..., 0], image)
    for place in range(1, count):
        result.addcmul_(wide.narrow(axis, place, length), spread(weight[..., place], image))
    return result
