"""Reading between the voxels of one case on a CPU.

The voxels that a patch can touch are cut out once, with zeros around the case, so that no neighbour needs a mask: many
times faster than `gather`, which reads a whole batch at once, operation by operation.
"""

from __future__ import annotations

import math
from itertools import product
from operator import mul
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional

from hasten.config.schema import Triple
from hasten.sample.gather import majority

_LARGE = 2**18
"""Voxels of a patch from which torch's own kernel is faster, twice at 96^3; at 40x56x40 it takes a third longer."""


def cut(volume: Tensor, start: list[int], size: Triple | list[int]) -> Tensor:
    """(C, *size) from `start`, zeros outside the volume; a view where nothing lies outside."""
    shape = volume.shape[1:]
    low = [max(0, at) for at in start]
    high = [min(extent, at + side) for extent, at, side in zip(shape, start, size, strict=True)]
    inside = volume[:, low[0] : max(low[0], high[0]), low[1] : max(low[1], high[1]), low[2] : max(low[2], high[2])]
    if tuple(inside.shape[1:]) == tuple(size):
        return inside
    out = volume.new_zeros((volume.shape[0], *size))
    d, h, w = (at - begin for at, begin in zip(low, start, strict=True))
    out[:, d : d + inside.shape[1], h : h + inside.shape[2], w : w + inside.shape[3]] = inside
    return out


class Places(NamedTuple):
    """Positions at which M values of a case are read."""

    start: list[int]
    """Voxel of the case that coordinates are counted from."""
    coordinates: tuple[Tensor, ...]
    """(M,) each, along D, H, W."""
    bounds: list[tuple[float, float]]
    """The smallest and largest coordinate along each axis."""
    spatial_dims: int

    def box(self, volume: Tensor, lows: list[int], highs: list[int]) -> Tensor:
        """The part (C, d, h, w) of a case (C, D, H, W) between two offsets from `start`, both included."""
        first = [at + low for at, low in zip(self.start, lows, strict=True)]
        return cut(volume, first, [high - low + 1 for low, high in zip(lows, highs, strict=True)])

    def around(self, box: Tensor, lows: list[int]) -> tuple[list[Tensor], Tensor]:
        """How far each place lies behind the voxel below it along each axis, and that voxel's index in the box.

        box: (C, d, h, w), which begins at `lows`. Returns (M,) float32 for each axis, and (M,) int32.
        """
        floors = [torch.floor(axis) for axis in self.coordinates]
        parts = [axis - floor for axis, floor in zip(self.coordinates, floors, strict=True)]
        whole = [(floor - low).to(torch.int32) for floor, low in zip(floors, lows, strict=True)]
        return parts, (whole[0] * box.shape[2] + whole[1]) * box.shape[3] + whole[2]


def places_at(start: list[int], coordinates: tuple[Tensor, ...], spatial_dims: int) -> Places:
    """`Places` with their bounds. start: voxel (D, H, W) of the case; coordinates: (M,) float32 for each axis."""
    ranges = [torch.aminmax(axis) for axis in coordinates]
    return Places(start, coordinates, [(float(low), float(high)) for low, high in ranges], spatial_dims)


def interpolate(volume: Tensor, places: Places, out: Tensor) -> None:
    """Write trilinear (bilinear in 2-D) values of every channel of `volume` (C, D, H, W) to `out` (C, *S) float32."""
    upper = [1, 1, 1] if places.spatial_dims == 3 else [0, 1, 1]
    lows = [math.floor(low) for low, _ in places.bounds]
    highs = [math.floor(high) + up for (_, high), up in zip(places.bounds, upper, strict=True)]
    box = places.box(volume, lows, highs).to(torch.float32)
    if places.spatial_dims == 2 or places.coordinates[0].numel() >= _LARGE:
        _sample(box, lows, places, out)
        return
    box = box.contiguous()
    height, width = box.shape[2], box.shape[3]
    parts, index = places.around(box, lows)
    corners = [(d * height + h) * width for d in (0, 1) for h in (0, 1)]
    for channel in range(box.shape[0]):
        flat = box[channel].reshape(-1)
        rows = [
            torch.lerp(flat[at:].index_select(0, index), flat[at + 1 :].index_select(0, index), parts[2])
            for at in corners
        ]
        planes = [torch.lerp(rows[at], rows[at + 1], parts[1]) for at in (0, 2)]
        out[channel] = torch.lerp(planes[0], planes[1], parts[0]).view(out.shape[1:])


def _sample(box: Tensor, lows: list[int], places: Places, out: Tensor) -> None:
    """Interpolate by torch's own kernel. box: (C, D, H, W) float32, which begins at `lows`."""
    coordinates, spatial_dims = places.coordinates, places.spatial_dims
    grid = torch.empty(*out.shape[4 - spatial_dims :], spatial_dims)
    for number in range(spatial_dims):  # counted from the last axis, -1 and 1 being the first and last voxel
        scale = 2.0 / max(box.shape[3 - number] - 1, 1)
        shift = torch.tensor(-lows[2 - number] * scale - 1.0)
        torch.add(shift, coordinates[2 - number].view(grid.shape[:-1]), alpha=scale, out=grid[..., number])
    # Its threads share a batch, of which there is one: halves of the output stand in for it.
    halves = 2 if grid.shape[0] % 2 == 0 else 1
    pieces = grid.view(halves, -1, *grid.shape[1:])
    source = (box if spatial_dims == 3 else box[:, 0])[None]
    sampled = functional.grid_sample(source.expand(halves, *source.shape[1:]), pieces, align_corners=True)
    out.view(out.shape[0], halves, -1).copy_(sampled.flatten(2).transpose(0, 1))


def nearest(classes: Tensor, places: Places, out: Tensor) -> None:
    """Write the nearest voxel of every channel of `classes` (C, D, H, W) to `out` (C, *S); halves round up."""
    half = np.float32(0.5)  # as below, where the sum may round
    lows, highs = ([math.floor(np.float32(each[end]) + half) for each in places.bounds] for end in (0, 1))
    box = places.box(classes, lows, highs).contiguous()
    height, width = box.shape[2], box.shape[3]
    d, h, w = (torch.floor(axis + 0.5) for axis in places.coordinates)
    if box[0].numel() < 2**23:  # float32 holds integers up to 2**24 exactly
        index = d.sub_(lows[0]).mul_(height).add_(h).sub_(lows[1]).mul_(width).add_(w).sub_(lows[2]).to(torch.int32)
    else:
        whole = [(place - low).to(torch.int32) for place, low in zip((d, h, w), lows, strict=True)]
        index = (whole[0] * height + whole[1]) * width + whole[2]
    for channel in range(box.shape[0]):
        out[channel] = box[channel].reshape(-1).index_select(0, index).view(out.shape[1:])


def majority_class(classes: Tensor, places: Places, out: Tensor) -> None:
    """Write the `majority` of every channel of `classes` (C, D, H, W) to `out` (C, *S)."""
    lows = [math.floor(low) for low, _ in places.bounds]
    box = places.box(classes, lows, [math.floor(high) + 1 for _, high in places.bounds]).contiguous()
    height, width, flat_axes = box.shape[2], box.shape[3], 3 - places.spatial_dims
    parts, index = places.around(box, lows)
    corners, steps = list(product((0, 1), repeat=places.spatial_dims)), (height * width, width, 1)[flat_axes:]
    for channel in range(box.shape[0]):
        flat = box[channel].reshape(-1)
        labels = [flat[sum(map(mul, corner, steps)) :].index_select(0, index) for corner in corners]
        out[channel] = majority(labels, corners, parts[flat_axes:]).view(out.shape[1:])


READ = {"bilinear": interpolate, "nearest": nearest, "majority": majority_class}
"""Functions by mode. Arguments: a case (C, D, H, W), the places, and (C, *S) of M voxels to write to."""
