"""Simulation of images of lower resolution."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn import functional

from hasten.augment.op import Drawn, Operation, Prob, RangeAbove0
from hasten.sample.constant import constant
from hasten.sample.random import uniform, uniform_in

_ZOOM, _CHANNEL = 1, 2


@dataclass(frozen=True, kw_only=True, slots=True)
class SimulateLowResolution(Operation):
    """Makes the image smaller, taking nearest voxels, and large again by linear interpolation.

    nnU-Net's SimulateLowResolutionTransform (batchgeneratorsv2), and MONAI's RandSimulateLowResolution with its default
    modes. `drawn`: zoom (B, C or 1, number of axes) from U(zoom_range), 1 where nothing changes; the small image has
    round(side * zoom) voxels on an axis, at least 1. It is never stored, as its size differs from sample to
    sample: each voxel is computed directly from the voxels of the image that it depends on.

    half_pixel: True takes the voxel that lies nearest, as nnU-Net does. MONAI takes the one at or before the corner of
    the small voxel, which moves the image by up to half a small voxel against its labels: False gives MONAI's result
    exactly, and differs from the default on purpose.
    """

    zoom_range: RangeAbove0 = (0.5, 1.0)
    half_pixel: bool = True
    synchronize_channels: bool = True
    """One zoom for all channels, or one for each."""
    ignore_axes: tuple[int, ...] = ()
    """Axes that stay as they are: 0 is the first of the image, D in 3-D."""
    p_per_channel: Prob = 1.0
    """Probability that each channel changes."""

    def draw(self, key: Tensor, shape: tuple[int, ...]) -> Drawn:
        channels, dims = shape[0], len(shape) - 1
        if any(not -dims <= each < dims for each in self.ignore_axes):
            raise ValueError(f"SimulateLowResolution: ignore_axes={self.ignore_axes}; the image has {dims} axes")
        count = 1 if self.synchronize_channels else channels
        zoom = uniform_in(key, _ZOOM, *self.zoom_range, count=count)[..., None].expand(-1, count, dims)
        if self.p_per_channel < 1:
            selected = uniform(key, _CHANNEL, channels) < self.p_per_channel
            zoom = torch.where(selected[..., None], zoom, torch.ones_like(zoom))
        if self.ignore_axes:
            kept = {each % dims for each in self.ignore_axes}
            stays = constant(tuple(int(axis in kept) for axis in range(dims)), key.device) > 0
            zoom = torch.where(stays, torch.ones_like(zoom), zoom)
        return {"zoom": zoom}

    def apply(self, image: Tensor, drawn: Mapping[str, Tensor]) -> Tensor:
        *lead, last = [
            _taps(drawn["zoom"][..., axis], side, self.half_pixel) for axis, side in enumerate(image.shape[2:])
        ]
        rows = _mixed_rows(image, lead)
        shape = (*last.first.shape[:2], *[1] * len(lead), image.shape[-1])
        result = rows.gather(-1, last.first.view(shape).expand(image.shape))
        other = rows.gather(-1, last.second.view(shape).expand(image.shape))
        return result.lerp_(other, last.weight.view(shape))


class _Taps(NamedTuple):
    """Linear interpolation on an axis: out = (1 - weight) * x[first] + weight * x[second]; each (B, C or 1, side)."""

    first: Tensor
    second: Tensor
    weight: Tensor


def _taps(zoom: Tensor, side: int, half_pixel: bool) -> _Taps:
    """zoom: (B, C or 1). Places are rounded as torch's `interpolate` rounds them on a CPU."""
    # In float64, side * zoom is exact, so that halves are rounded as MONAI and nnU-Net round them.
    whole = torch.round(zoom.to(torch.float64) * side).clamp(min=1.0)[..., None]
    small = whole.to(torch.float32)
    place = ((torch.arange(side, device=zoom.device) + 0.5) * (small / side) - 0.5).clamp(min=0.0)
    before = torch.minimum(torch.floor(place), small - 1)
    after = torch.minimum(before + 1, small - 1)
    step = (side / whole).to(torch.float32)
    first, second = (_nearest(at, step, half_pixel).clamp(max=side - 1) for at in (before, after))
    return _Taps(first, second, place - before)


def _nearest(at: Tensor, step: Tensor, half_pixel: bool) -> Tensor:
    """(B, C or 1, side) int64: which voxel a small voxel is taken from. step: voxels from one small one to the next."""
    # float32 products by way of float64: a fused or reciprocal one would take another voxel where two are as near.
    place = ((at + (0.5 if half_pixel else 0.0)).to(torch.float64) * step).to(torch.float32)
    return torch.floor(place - 0.5 + 0.5 if half_pixel else place).to(torch.int64)


def _mixed_rows(image: Tensor, lead: list[_Taps]) -> Tensor:
    """The image after the axes before the last: each row along the last axis is a weighted sum of 2 or 4 rows."""
    batch, channels, *sides = image.shape
    count = math.prod(sides[:-1])
    row, weight = (torch.stack([lead[0].first, lead[0].second], dim=-1), _weights(lead[0]))
    for taps, side in zip(lead[1:], sides[1:-1], strict=True):
        next_row, next_weight = torch.stack([taps.first, taps.second], dim=-1), _weights(taps)
        row = (row[:, :, :, None, :, None] * side + next_row[:, :, None, :, None, :]).flatten(4).flatten(2, 3)
        weight = (weight[:, :, :, None, :, None] * next_weight[:, :, None, :, None, :]).flatten(4).flatten(2, 3)
    start = (torch.arange(batch * channels, device=image.device) * count).view(batch, channels, 1, 1)
    row = (row + start).flatten(0, 2)
    weight = weight.expand(batch, channels, -1, -1).flatten(0, 2)
    table = image.reshape(-1, sides[-1])
    return functional.embedding_bag(row, table, mode="sum", per_sample_weights=weight).view(image.shape)


def _weights(taps: _Taps) -> Tensor:
    return torch.stack([1.0 - taps.weight, taps.weight], dim=-1)
