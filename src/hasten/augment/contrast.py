"""Contrast: powers of intensities, and stretching about the mean."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from hasten.augment.channels import PerChannel, deviation, grouped, within
from hasten.augment.op import Drawn, Operation, Prob, Range, RangeAbove0
from hasten.sample.random import uniform, uniform_in

_FACTOR, _CHANNEL, _INVERT, _RETAIN = 1, 2, 3, 4
_TINY = 1e-7
"""Guards the division by an empty range, as in both sources."""


@dataclass(frozen=True, kw_only=True, slots=True)
class AdjustContrast(Operation):
    """((v - min) / range) ^ gamma * range + min with gamma from U(gamma), min and range those of the sample.

    `drawn`: gamma (B,). `invert_image`: of -v, and negated again. `retain_stats`: mean and deviation are restored.
    MONAI's RandAdjustContrast.
    """

    gamma: RangeAbove0 = (0.5, 4.5)
    invert_image: bool = False
    retain_stats: bool = False

    def draw(self, key: Tensor, shape: tuple[int, ...]) -> Drawn:
        return {"gamma": uniform_in(key, _FACTOR, *self.gamma)[:, 0]}

    def apply(self, image: Tensor, drawn: Mapping[str, Tensor]) -> Tensor:
        flat, gamma = grouped(image, False), drawn["gamma"][:, None, None]
        lowest, highest = flat.amin(-1, keepdim=True), flat.amax(-1, keepdim=True)
        sign, origin = (-1.0, highest) if self.invert_image else (1.0, lowest)
        span = highest - lowest
        unit = (flat - origin).mul_(sign / (span + _TINY))
        if not self.retain_stats:
            return _power_(unit, gamma).mul_(sign * span).add_(origin).view(image.shape)
        mean, std = _mean_std(unit)
        power = _power_(unit, gamma)
        centred, _, after = _centred_(power)
        scale = span * std * (span + _TINY) / (after * span + 1e-8)
        return centred.mul_(sign * scale).add_(origin + sign * (span + _TINY) * mean).view(image.shape)


@dataclass(frozen=True, kw_only=True, slots=True)
class Gamma(PerChannel):
    """((v - min) / range) ^ gamma * range + min for each channel, gamma below and above 1 by halves.

    `drawn`: gamma (B, C), 1 where a channel is left as it is; invert, retain (B, C) bool: whether of -v and negated
    again, and whether mean and deviation are restored (`retain` is read where 0 < p_retain_stats < 1).
    batchgeneratorsv2's GammaTransform: `around_one=True` is its `BGContrast(gamma)`, `False` its plain range.
    """

    prob: Prob = 0.3
    gamma: RangeAbove0 = (0.7, 1.5)
    p_invert_image: Prob = 0.0
    p_retain_stats: Prob = 1.0

    def check(self) -> None:
        self.check_halves("gamma")

    def draw(self, key: Tensor, shape: tuple[int, ...]) -> Drawn:
        channels = shape[0]
        return {
            "gamma": self.factors(key, _FACTOR, channels, self.gamma),
            "invert": uniform(key, _INVERT, channels) < self.p_invert_image,
            "retain": uniform(key, _RETAIN, channels) < self.p_retain_stats,
        }

    def apply(self, image: Tensor, drawn: Mapping[str, Tensor]) -> Tensor:
        flat, gamma, invert = grouped(image, True), drawn["gamma"][..., None], drawn["invert"][..., None]
        lowest, highest = flat.amin(-1, keepdim=True), flat.amax(-1, keepdim=True)
        origin, span = torch.where(invert, highest, lowest), highest - lowest
        sign = 1.0 - 2.0 * invert.to(torch.float32)
        unit = (flat - origin).mul_(sign / span.clamp(min=_TINY))
        if self.p_retain_stats == 0.0:
            result = _power_(unit, gamma).mul_(sign * span).add_(origin)
        else:
            mean, std = _mean_std(unit)
            centred, middle, after = _centred_(_power_(unit, gamma))
            scale = span * (std * span.clamp(min=_TINY)) / (after * span).clamp(min=_TINY)
            shift = span.clamp(min=_TINY) * mean
            if self.p_retain_stats < 1.0:
                retain = drawn["retain"][..., None]
                scale, shift = torch.where(retain, scale, span), torch.where(retain, shift, span * middle)
            result = centred.mul_(sign * scale).add_(origin + sign * shift)
        if self.p_per_channel < 1.0:
            result = torch.where(gamma == 1.0, flat, result)
        return result.view(image.shape)


def _power_(unit: Tensor, gamma: Tensor) -> Tensor:
    """unit ^ gamma in its own memory, unit in [0, 1]. Half the time of `torch.pow` on a CPU, within 1e-5 of it."""
    return unit.log2_().mul_(gamma).exp2_()


def _mean_std(flat: Tensor) -> tuple[Tensor, Tensor]:
    """(B, G, 1) each, the deviation with N - 1."""
    mean = flat.mean(-1, keepdim=True)
    return mean, deviation(flat - mean, max(flat.shape[-1] - 1, 1))


def _centred_(flat: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """The values less their mean, in their own memory, that mean and the deviation with N - 1."""
    mean = flat.mean(-1, keepdim=True)
    centred = flat.sub_(mean)
    return centred, mean, deviation(centred, max(flat.shape[-1] - 1, 1))


@dataclass(frozen=True, kw_only=True, slots=True)
class Contrast(PerChannel):
    """(v - mean) * multiplier + mean for each channel, the multiplier below and above 1 by halves.

    `drawn`: multiplier (B, C), 1 where a channel is left as it is. `preserve_range`: clipped to the old range.
    batchgeneratorsv2's ContrastTransform: `around_one=True` is its `BGContrast(contrast_range)`, `False` a plain range.
    """

    prob: Prob = 0.15
    contrast_range: Range = (0.75, 1.25)
    preserve_range: bool = True

    def check(self) -> None:
        self.check_halves("contrast_range")

    def draw(self, key: Tensor, shape: tuple[int, ...]) -> Drawn:
        return {"multiplier": self.factors(key, _FACTOR, shape[0], self.contrast_range)}

    def apply(self, image: Tensor, drawn: Mapping[str, Tensor]) -> Tensor:
        flat, multiplier = grouped(image, True), drawn["multiplier"][..., None]
        result = (flat * multiplier).add_((1 - multiplier) * flat.mean(-1, keepdim=True))
        return (within(result, flat) if self.preserve_range else result).view(image.shape)
