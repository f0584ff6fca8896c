"""Shared parts of the operations that treat channels separately: their draws, and statistics in few passes."""

from __future__ import annotations

import torch
from torch import Tensor

from hasten.sample.random import uniform, uniform_in


def per_channel(key: Tensor, stream: int, channels: int, *, same: bool = False) -> Tensor:
    """(B, channels) float32 in [0, 1): one number for each channel, or the same one for all. key: (B, 2)."""
    if same:
        return uniform(key, stream, 1).expand(-1, channels)
    return uniform(key, stream, channels)


def between(unit: Tensor, low: float, high: float) -> Tensor:
    """Numbers of [0, 1) stretched to [low, high]."""
    return low + (high - low) * unit


def around_one(unit: Tensor, low: float, high: float) -> Tensor:
    """Numbers of [0, 1): the lower half stretched to [low, 1], the upper to [1, high]; all to [low, high] if low >= 1.

    nnU-Net's `BGContrast`, so that as many factors darken as brighten whatever the range.
    """
    if low >= 1.0:
        return between(unit, low, high)
    return torch.where(unit < 0.5, between(2 * unit, low, 1.0), between(2 * unit - 1, 1.0, high))


def factors(
    key: Tensor,
    stream: int,
    channels: int,
    value: tuple[float, float],
    *,
    same: bool,
    halves: bool,
    p_per_channel: float,
) -> Tensor:
    """(B, channels) factors, 1 for the channels that are left as they are. Takes `stream` and the one after it."""
    if halves:
        values = around_one(per_channel(key, stream, channels, same=same), *value)
    else:
        values = uniform_in(key, stream, *value, count=1 if same else channels).expand(-1, channels)
    if p_per_channel >= 1.0:
        return values
    return torch.where(uniform(key, stream + 1, channels) < p_per_channel, values, 1.0)


def check_halves(name: str, field: str, value: tuple[float, float], halves: bool) -> None:
    """Raises ValueError where half of the draws would lie above a range that ends below 1."""
    if halves and value[1] < 1.0:
        raise ValueError(
            f"{name}: {field}={value}; half of the draws lie above 1, where the range has ended: write around_one=False"
        )


def grouped(image: Tensor, channel_wise: bool) -> Tensor:
    """(B, C, *S) as (B, C, N), or as (B, 1, C * N) where a sample is one: what statistics are taken of lies last."""
    return image.flatten(2) if channel_wise else image.flatten(1)[:, None]


def not_zero(flat: Tensor) -> Tensor:
    """1.0 where a value is not zero. In float32: comparisons and `where` take five times as long on a CPU."""
    return flat.sign().square_()


def deviation(centred: Tensor, count: Tensor | float) -> Tensor:
    """(B, G, 1) from values less their mean, (B, G, N). A tenth of what `torch.var_mean` takes on a CPU."""
    return torch.sqrt((centred * centred).sum(-1, keepdim=True) / count)


def within(values: Tensor, flat: Tensor) -> Tensor:
    """`values` clipped to the range of `flat`, both (B, G, N). `torch.clamp` is slower with bounds in tensors."""
    lowest, highest = flat.amin(-1, keepdim=True), flat.amax(-1, keepdim=True)
    return torch.minimum(torch.maximum(values, lowest), highest)
