"""Intensities shifted, scaled, clipped and normalised."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from hasten.augment.channels import PerChannel, deviation, grouped, not_zero
from hasten.augment.op import Deterministic, Drawn, Operation, Prob, Range, spread
from hasten.sample.constant import constant
from hasten.sample.random import uniform_in

_FACTOR = 1


def _drawn(key: Tensor, value: Range, shape: tuple[int, ...], channel_wise: bool) -> Tensor:
    """(B,), or (B, C) where each channel has a number of its own."""
    numbers = uniform_in(key, _FACTOR, *value, count=shape[0] if channel_wise else 1)
    return numbers if channel_wise else numbers[:, 0]


@dataclass(frozen=True, kw_only=True, slots=True)
class ShiftIntensity(Operation):
    """v + offset with offset from U(offsets). `drawn`: offset (B,), with `channel_wise` (B, C).

    MONAI's RandShiftIntensity, without its `factor_key`.
    """

    offsets: Range
    channel_wise: bool = False

    def draw(self, key: Tensor, shape: tuple[int, ...]) -> Drawn:
        return {"offset": _drawn(key, self.offsets, shape, self.channel_wise)}

    def apply(self, image: Tensor, drawn: Mapping[str, Tensor]) -> Tensor:
        return image + spread(drawn["offset"], image)


@dataclass(frozen=True, kw_only=True, slots=True)
class ScaleIntensity(Operation):
    """v * (1 + factor) with factor from U(factors). `drawn`: factor (B,), with `channel_wise` (B, C).

    MONAI's RandScaleIntensity.
    """

    factors: Range
    channel_wise: bool = False

    def draw(self, key: Tensor, shape: tuple[int, ...]) -> Drawn:
        return {"factor": _drawn(key, self.factors, shape, self.channel_wise)}

    def apply(self, image: Tensor, drawn: Mapping[str, Tensor]) -> Tensor:
        return image * spread(1 + drawn["factor"], image)


@dataclass(frozen=True, kw_only=True, slots=True)
class Brightness(PerChannel):
    """v * multiplier with one for each channel, from U(multiplier_range) below and above 1 by halves.

    `drawn`: multiplier (B, C), 1 where a channel is left as it is.
    batchgeneratorsv2's MultiplicativeBrightnessTransform: `around_one=True` is its `BGContrast(multiplier_range)`, as
    in nnU-Net, `False` its plain range.
    """

    prob: Prob = 0.15
    multiplier_range: Range = (0.75, 1.25)

    def check(self) -> None:
        self.check_halves("multiplier_range")

    def draw(self, key: Tensor, shape: tuple[int, ...]) -> Drawn:
        return {"multiplier": self.factors(key, _FACTOR, shape[0], self.multiplier_range)}

    def apply(self, image: Tensor, drawn: Mapping[str, Tensor]) -> Tensor:
        return image * spread(drawn["multiplier"], image)


@dataclass(frozen=True, kw_only=True, slots=True)
class ScaleIntensityRange(Deterministic):
    """[a_min, a_max] taken to [b_min, b_max], or to [0, 1] where one of these is None, and clipped there on request.

    `drawn` is empty. MONAI's ScaleIntensityRange, but a range without length is refused.
    """

    a_min: float
    a_max: float
    b_min: float | None = None
    b_max: float | None = None
    clip: bool = False

    def check(self) -> None:
        if self.a_min == self.a_max:
            raise ValueError(
                f"ScaleIntensityRange: a_min and a_max are both {self.a_min}; a range with a length is needed"
            )
        if self.clip and self.b_min is None and self.b_max is None:
            raise ValueError("ScaleIntensityRange: clip=True needs b_min or b_max")

    def apply(self, image: Tensor, drawn: Mapping[str, Tensor]) -> Tensor:
        result = image - self.a_min
        if self.b_min is None or self.b_max is None:
            result = result.mul_(1 / (self.a_max - self.a_min))
        else:
            result = result.mul_((self.b_max - self.b_min) / (self.a_max - self.a_min)).add_(self.b_min)
        return torch.clamp(result, self.b_min, self.b_max) if self.clip else result


@dataclass(frozen=True, kw_only=True, slots=True)
class Normalize(Deterministic):
    """(v - subtrahend) / divisor; what is None is the mean, or the standard deviation, of the sample or the channel.

    `drawn` is empty. subtrahend, divisor: one number, or with `channel_wise` one for each channel. `nonzero`: zeros
    neither count nor change. MONAI's NormalizeIntensity, which takes a deviation of 0 as 1; here within rounding.
    """

    subtrahend: float | tuple[float, ...] | None = None
    divisor: float | tuple[float, ...] | None = None
    nonzero: bool = False
    channel_wise: bool = False

    def check(self) -> None:
        for field in ("subtrahend", "divisor"):
            value = getattr(self, field)
            if isinstance(value, tuple) and not self.channel_wise:
                raise ValueError(f"Normalize: {field}={value}; numbers for each channel need channel_wise=True")

    def apply(self, image: Tensor, drawn: Mapping[str, Tensor]) -> Tensor:
        flat = grouped(image, self.channel_wise)
        mask = not_zero(flat) if self.nonzero else None
        subtrahend, divisor = _constant_of(self, "subtrahend", image), _constant_of(self, "divisor", image)
        count: Tensor | float = flat.shape[-1] if mask is None else mask.sum(-1, keepdim=True).clamp(min=1)
        mean = flat.sum(-1, keepdim=True) / count if subtrahend is None or divisor is None else None
        centred = _less(flat, mean if subtrahend is None else subtrahend, mask)
        if divisor is None:
            assert mean is not None
            scale = deviation(centred if subtrahend is None else _less(flat, mean, mask), count)
            # Where all values are the same, the rounding of their mean is all the deviation there is.
            divisor = torch.where(scale <= 1e-6 * mean.abs(), 1.0, scale)
        return centred.div_(divisor).view(image.shape)


def _less(flat: Tensor, value: Tensor | float | None, mask: Tensor | None) -> Tensor:
    assert value is not None
    return flat - value if mask is None else (flat - value).mul_(mask)


def _constant_of(op: Normalize, field: str, image: Tensor) -> Tensor | float | None:
    """A number, numbers as (1, C, 1), or None. Raises ValueError where they are not one for each channel."""
    value = getattr(op, field)
    if not isinstance(value, tuple):
        return 1.0 if field == "divisor" and value == 0 else value
    if len(value) != image.shape[1]:
        raise ValueError(
            f"Normalize: {field}={value}; the image has {image.shape[1]} channels and needs as many numbers"
        )
    values = tuple(1.0 if field == "divisor" and each == 0 else float(each) for each in value)
    return constant(values, image.device)[None, :, None]
