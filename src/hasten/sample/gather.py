"""Reading the flat arena at fractional coordinates. Outside a case both image and label are 0 (air, or the mean of a z-score)."""

from __future__ import annotations

import torch
from torch import Tensor

from hasten.cache.arena import Tables

Coordinates = tuple[Tensor, Tensor, Tensor]


def gather_image(tables: Tables, case: Tensor, coordinates: Coordinates, num_channels: int, spatial_dims: int) -> Tensor:
    """(B, C, D, H, W) float32, trilinear (bilinear in 2-D). coordinates: three (B, D, H, W) float32 in voxels of the case.

    A coordinate that is a whole number gives the stored voxel bit for bit.
    """
    shape = tables.shape[case]
    extent = [shape[:, axis].view(-1, 1, 1, 1) for axis in range(3)]
    base = tables.offset[case].view(-1, 1, 1, 1) * num_channels
    volume = extent[0] * extent[1] * extent[2]
    floor = [torch.floor(axis) for axis in coordinates]
    part = [axis - whole for axis, whole in zip(coordinates, floor, strict=True)]
    whole = [axis.to(torch.int64) for axis in floor]
    channels: list[Tensor] = []
    for channel in range(num_channels):
        start = base + channel * volume
        total: Tensor | None = None
        for corner in range(8 if spatial_dims == 3 else 4):
            step = (corner >> 2 & 1, corner >> 1 & 1, corner & 1)
            weight, index = _corner(whole, part, extent, step)
            value = tables.image[start + index].to(torch.float32) * weight
            total = value if total is None else total + value
        assert total is not None
        channels.append(total)
    return torch.stack(channels, dim=1)


def _corner(whole: list[Tensor], part: list[Tensor], extent: list[Tensor], step: tuple[int, int, int]) -> tuple[Tensor, Tensor]:
    """Weight and linear index of one of the neighbours of every coordinate; weight 0 outside the case."""
    weight: Tensor | None = None
    index: Tensor | None = None
    for axis in range(3):
        place = whole[axis] + step[axis]
        inside = (place >= 0) & (place < extent[axis])
        share = part[axis] if step[axis] else 1.0 - part[axis]
        share = torch.where(inside, share, 0.0)
        place = torch.minimum(place.clamp(min=0), extent[axis] - 1)
        weight = share if weight is None else weight * share
        index = place if index is None else index * extent[axis] + place
    assert weight is not None
    assert index is not None
    return weight, index


def gather_label(tables: Tables, case: Tensor, coordinates: Coordinates) -> Tensor:
    """(B, 1, D, H, W) uint8 class index of the nearest voxel (halves round up)."""
    shape = tables.shape[case]
    index: Tensor | None = None
    inside: Tensor | None = None
    for axis in range(3):
        extent = shape[:, axis].view(-1, 1, 1, 1)
        place = torch.floor(coordinates[axis] + 0.5).to(torch.int64)
        within = (place >= 0) & (place < extent)
        place = torch.minimum(place.clamp(min=0), extent - 1)
        inside = within if inside is None else inside & within
        index = place if index is None else index * extent + place
    assert index is not None
    assert inside is not None
    value = tables.label[tables.offset[case].view(-1, 1, 1, 1) + index]
    return torch.where(inside, value, 0).to(torch.uint8)[:, None]
