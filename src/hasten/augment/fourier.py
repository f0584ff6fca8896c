"""Artefacts of MR images, which are measured as spatial frequencies."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import cast

import torch
from torch import Tensor

from hasten.augment.op import Drawn, Operation, Range, RangeTo1, check_range, space, spread, uniform_between
from hasten.sample.constant import constant
from hasten.sample.random import below, random_words, uniform_in

_ALPHA = 1
_PLACE, _INTENSITY = 1, 2


@dataclass(frozen=True, kw_only=True, slots=True)
class GibbsNoise(Operation):
    """Leaves out the frequencies beyond a radius, which puts ripples beside edges. MONAI's RandGibbsNoise.

    `drawn`: alpha (B,) from U(alpha); the radius is (1 - alpha) * longest side / sqrt(2), so that 0 changes nothing.
    As in MONAI it is counted from half a step beside frequency 0 where a side is even, and the real part is kept.
    """

    alpha: RangeTo1 = (0.0, 1.0)

    def draw(self, key: Tensor, shape: tuple[int, ...]) -> Drawn:
        return {"alpha": uniform_in(key, _ALPHA, *self.alpha)[:, 0]}

    def apply(self, image: Tensor, drawn: Mapping[str, Tensor]) -> Tensor:
        sides, axes = image.shape[2:], space(image)
        radius = spread((1.0 - drawn["alpha"]) * (max(sides) / math.sqrt(2)), image)
        forth, back = _distances(sides, image.device)
        # Keeping the real part of what an uneven mask leaves is the same as the mean of the mask and its mirror image,
        # and with an even mask half of the spectrum determines the other half.
        mask = ((forth <= radius * radius).to(image.dtype) + (back <= radius * radius)) * 0.5
        return torch.fft.irfftn(torch.fft.rfftn(image, dim=axes).mul_(mask), s=sides, dim=axes)


@dataclass(frozen=True, kw_only=True, slots=True)
class KSpaceSpikeNoise(Operation):
    """Sets the log of one frequency's magnitude, which lays stripes over the image. MONAI's RandKSpaceSpikeNoise.

    intensity_range: of the log, (low, high) or one such pair a channel; None: 0.95 to 1.1 times 2.5 times the mean log
    of the channel, as in MONAI. channel_wise: each channel has a frequency of its own.
    `drawn`: loc (B, C or 1, number of axes) int64, as MONAI counts it, frequency 0 at side // 2; intensity (B, C), the
    log, and where intensity_range is None as a multiple of 2.5 times the mean log.
    One frequency is a plane wave: no Fourier transform is needed, except for the mean log if intensity_range is None.
    """

    intensity_range: Range | tuple[Range, ...] | None = None
    channel_wise: bool = True

    def check(self) -> None:
        ranges = _ranges(self.intensity_range)
        if not self.channel_wise and ranges and ranges == self.intensity_range:
            raise ValueError(
                f"KSpaceSpikeNoise: intensity_range={self.intensity_range} differs by channel; "
                "write one (low, high), or channel_wise=True"
            )
        for each in ranges:
            check_range("KSpaceSpikeNoise", "intensity_range", each)

    def draw(self, key: Tensor, shape: tuple[int, ...]) -> Drawn:
        channels, sides = shape[0], shape[1:]
        ranges = _ranges(self.intensity_range) or ((0.95, 1.1),)
        if len(ranges) not in (1, channels):
            raise ValueError(
                f"KSpaceSpikeNoise: intensity_range={self.intensity_range} has {len(ranges)} pairs, "
                f"but the image has {channels} channels"
            )
        count = channels if self.channel_wise else 1
        words = random_words(key, _PLACE, count * len(sides)).view(-1, count, len(sides))
        return {
            "loc": below(words, constant(tuple(sides), key.device)),
            "intensity": uniform_between(key, _INTENSITY, ranges, channels),
        }

    def apply(self, image: Tensor, drawn: Mapping[str, Tensor]) -> Tensor:
        batch, channels, *sides = image.shape
        size = math.prod(sides)
        intensity = drawn["intensity"]
        if self.intensity_range is None:
            intensity = intensity * (2.5 * _mean_log(image))
        *first, last = _angles(drawn["loc"], sides)
        lead = first[0] if len(first) == 1 else (first[0][..., :, None] + first[1][..., None, :]).flatten(-2)
        lead = lead.expand(batch, channels, -1).flatten(0, 1)
        last = last.expand(batch, channels, -1).flatten(0, 1)
        lines = image.reshape(batch * channels, -1, sides[-1])
        cosine, sine = torch.cos(lead), torch.sin(lead)
        # The image's coefficient of this frequency.
        part = torch.bmm(lines, torch.stack([torch.cos(last), -torch.sin(last)], dim=2))
        real = (part[..., 0] * cosine + part[..., 1] * sine).sum(1, keepdim=True)
        imaginary = (part[..., 1] * cosine - part[..., 0] * sine).sum(1, keepdim=True)
        present = torch.sqrt(real * real + imaginary * imaginary)
        target = torch.exp(intensity).reshape(-1, 1)
        # From the present to the target magnitude, with the same phase (phase 0 where the present one is 0).
        factor = (target / present.clamp(min=1e-30) - 1.0) / size
        real = torch.where(present > 0, real * factor, target / size)
        imaginary = imaginary * factor
        wave = torch.stack([real * cosine - imaginary * sine, -(real * sine + imaginary * cosine)], dim=2)
        return torch.baddbmm(lines, wave, torch.stack([torch.cos(last), torch.sin(last)], dim=1)).view(image.shape)


def _ranges(value: Range | tuple[Range, ...] | None) -> tuple[Range, ...]:
    """One pair for all channels, one a channel, or none."""
    if value is None:
        return ()
    pairs = tuple(each for each in value if isinstance(each, tuple))
    return pairs or (cast("Range", value),)


def _distances(sides: tuple[int, ...], device: torch.device) -> tuple[Tensor, Tensor]:
    """Squared distance of each frequency from the middle, and that of its negative, in the order of rfftn."""
    totals: list[Tensor] = []
    for sign in (1.0, -1.0):
        parts = []
        for axis, side in enumerate(sides):
            count = side // 2 + 1 if axis == len(sides) - 1 else side
            frequency = torch.remainder(sign * torch.arange(count, device=device) + side // 2, side) - side // 2
            middle = (side - 1) / 2 - side // 2
            parts.append(((frequency - middle) ** 2).view(-1, *[1] * (len(sides) - 1 - axis)))
        total = parts[0]
        for part in parts[1:]:
            total = total + part
        totals.append(total)
    return totals[0], totals[1]


def _angles(loc: Tensor, sides: list[int]) -> list[Tensor]:
    """The phase of the frequency at each voxel of an axis, from 0 to 2 pi; (B, C or 1, side) for each axis."""
    angles = []
    for axis, side in enumerate(sides):
        frequency = loc[..., axis, None] - side // 2
        turns = torch.remainder(frequency * torch.arange(side, device=loc.device), side)  # exact, being whole
        angles.append(turns.to(torch.float32) * (2 * math.pi / side))
    return angles


def _mean_log(image: Tensor) -> Tensor:
    """(B, C): mean over all frequencies of the log of the magnitude."""
    axes, side = space(image), image.shape[-1]
    log = torch.log(torch.fft.rfftn(image, dim=axes).abs() + 1e-10).mean(axes[:-1])
    count = torch.arange(side // 2 + 1, device=image.device)
    # A half spectrum holds each frequency for its negative too, but for those that are their own.
    twice = 2.0 - ((count == 0) | (2 * count == side)).to(image.dtype)
    return (log * twice).sum(-1) / side
