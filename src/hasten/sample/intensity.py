"""Brightness, contrast, gamma and Gaussian noise. Each is exactly the identity for a sample that did not draw it."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from hasten.config.schema import SampleConfig
from hasten.sample.random import normal, uniform, uniform_in

_BRIGHTNESS, _CONTRAST, _GAMMA, _NOISE, _VOXEL = 0x31, 0x33, 0x35, 0x37, 0x39


@dataclass(frozen=True, kw_only=True, slots=True)
class Intensity:
    """Strength of each operation per sample, (B,) float32; where it was not drawn, the value that changes nothing."""

    brightness: Tensor
    """Factor; 1 is off."""
    contrast: Tensor
    """Factor about the mean; 1 is off."""
    gamma: Tensor
    """Exponent; 1 is off."""
    noise: Tensor
    """Standard deviation; 0 is off."""


def draw_intensity(key: Tensor, config: SampleConfig) -> Intensity:
    """key: (B, 2)."""

    def draw(stream: int, prob: float, bounds: tuple[float, float], off: float) -> Tensor:
        use = uniform(key, stream, 1)[:, 0] < prob
        return torch.where(use, uniform_in(key, stream + 1, *bounds)[:, 0], off)

    return Intensity(
        brightness=draw(_BRIGHTNESS, config.brightness_prob, config.brightness_range, 1.0),
        contrast=draw(_CONTRAST, config.contrast_prob, config.contrast_range, 1.0),
        gamma=draw(_GAMMA, config.gamma_prob, config.gamma_range, 1.0),
        noise=draw(_NOISE, config.noise_prob, config.noise_std, 0.0),
    )


def augment_intensity(image: Tensor, key: Tensor, strength: Intensity, config: SampleConfig) -> Tensor:
    """image: (B, C, D, H, W) float32; key: (B, 2). Operations with probability 0 are left out of the program."""
    if config.brightness_prob > 0:
        image = image * _spread(strength.brightness)
    if config.contrast_prob > 0:
        factor = _spread(strength.contrast)
        image = torch.where(factor == 1.0, image, contrast(image, factor))
    if config.gamma_prob > 0:
        exponent = _spread(strength.gamma)
        image = torch.where(exponent == 1.0, image, gamma(image, exponent))
    if config.noise_prob > 0:
        # The noise of a voxel is keyed by its place in the patch, channel included, never by an order of evaluation.
        voxels = normal(key, _VOXEL, image[0].numel()).view(image.shape)
        image = image + _spread(strength.noise) * voxels
    return image


def _spread(value: Tensor) -> Tensor:
    return value.view(-1, 1, 1, 1, 1)


def contrast(image: Tensor, factor: Tensor) -> Tensor:
    """Stretch about the mean of each sample and channel, clipped to its own range (as nnU-Net's ContrastTransform)."""
    mean = image.mean(dim=(2, 3, 4), keepdim=True)
    low, high = image.amin(dim=(2, 3, 4), keepdim=True), image.amax(dim=(2, 3, 4), keepdim=True)
    return torch.clamp((image - mean) * factor + mean, low, high)


def gamma(image: Tensor, exponent: Tensor) -> Tensor:
    """Raise each sample and channel, scaled to 0..1 by its own range, to a power (as MONAI's AdjustContrast)."""
    low, high = image.amin(dim=(2, 3, 4), keepdim=True), image.amax(dim=(2, 3, 4), keepdim=True)
    span = high - low
    return ((image - low) / (span + 1e-7)).clamp(min=0.0) ** exponent * span + low
