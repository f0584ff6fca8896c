"""Shared parts of the operations that treat channels separately: their draws, and statistics in few passes."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from hasten.augment.op import Operation, Prob, Range
from hasten.sample.random import uniform, uniform_in


@dataclass(frozen=True, kw_only=True, slots=True)
class PerChannel(Operation):
    """An operation with a factor for each channel."""

    synchronize_channels: bool = False
    p_per_channel: Prob = 1.0
    around_one: bool = True

    def factors(self, key: Tensor, stream: int, channels: int, value: Range) -> Tensor:
        """(B, channels) factors, 1 for the channels that are left as they are. Takes `stream` and the one after it."""
        count = 1 if self.synchronize_channels else channels
        if self.around_one:
            values = around_one(uniform(key, stream, count), *value)
        else:
            values = uniform_in(key, stream, *value, count=count)
        values = values.expand(-1, channels)
        if self.p_per_channel >= 1.0:
            return values
        return torch.where(uniform(key, stream + 1, channels) < self.p_per_channel, values, 1.0)

    def check_halves(self, field: str) -> None:
        """Raises ValueError where half of the draws would lie above a range that ends below 1."""
        value = getattr(self, field)
        if self.around_one and value[1] < 1.0:
            raise ValueError(
                f"{type(self).__name__}: {field}={value}; half of the draws lie above 1, where the range has ended: "
                "write around_one=False"
            )


def around_one(unit: Tensor, low: float, high: float) -> Tensor:
    """Numbers of [0, 1), of any shape, stretched: the lower half to [low, 1], the upper to [1, high].

    All are stretched to [low, high] if low >= 1. nnU-Net's `BGContrast`, so that as many factors darken as brighten
    whatever the range.
    """
    if low >= 1.0:
        return low + (high - low) * unit
    return torch.where(unit < 0.5, low + (1.0 - low) * (2 * unit), 1.0 + (high - 1.0) * (2 * unit - 1))


def grouped(image: Tensor, channel_wise: bool) -> Tensor:
    """(B, C, *S) as (B, C, N), or as (B, 1, C * N) where a sample is one: what statistics are taken of lies last."""
    return image.flatten(2) if channel_wise else image.flatten(1)[:, None]


def not_zero(flat: Tensor) -> Tensor:
    """1.0 where a value is not zero, else 0.0; of any shape.

    In float32: comparisons and `where` take five times as long on a CPU.
    """
    return flat.sign().square_()


def deviation(centred: Tensor, count: Tensor | float) -> Tensor:
    """(B, G, 1) from values less their mean, (B, G, N). A tenth of what `torch.var_mean` takes on a CPU."""
    return torch.sqrt((centred * centred).sum(-1, keepdim=True) / count)


def within(values: Tensor, flat: Tensor) -> Tensor:
    """`values` clipped to the range of `flat`, both (B, G, N). `torch.clamp` is slower with bounds in tensors."""
    lowest, highest = flat.amin(-1, keepdim=True), flat.amax(-1, keepdim=True)
    return torch.minimum(torch.maximum(values, lowest), highest)
