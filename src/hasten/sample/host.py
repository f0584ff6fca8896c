"""The batch program's second half on a CPU: sample by sample, doing only what was drawn.

It gives what `render` gives (whole coordinates and labels bit for bit, the rest within float32 rounding), many times
faster than running `render` operation by operation: the voxels that a patch can touch are cut out once, with zeros
around the case, so that no neighbour needs a mask, and a sample that drew no rotation is a plain copy. It reads drawn
values on the host, which on a CPU costs nothing; it is never used on a GPU.
"""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional

from hasten.cache.arena import Tables
from hasten.config.schema import Triple
from hasten.observe.ranges import Range
from hasten.sample.geometry import source_coordinates
from hasten.sample.intensity import Intensity, augment_intensity
from hasten.sample.types import BatchSpec, Draw

_LARGE = 2**18
"""Voxels of a patch from which torch's own kernel is faster, twice at 96^3; at 40x56x40 it takes a third longer."""


def render_on_host(spec: BatchSpec, tables: Tables, drawn: Draw) -> tuple[Tensor, Tensor]:
    """Image (B, C, D, H, W) float32 and label (B, 1, D, H, W) uint8, as `render` gives them."""
    patch = spec.sample.patch
    assert patch is not None
    size = drawn.case.shape[0]
    image = torch.empty(size, spec.num_channels, *patch)
    label = torch.empty(size, 1, *patch, dtype=torch.uint8)
    shapes, offsets = tables.shape[drawn.case].tolist(), tables.offset[drawn.case].tolist()
    starts, matrices = drawn.start.tolist(), drawn.matrix.tolist()
    for number in range(size):
        depth, height, width = shapes[number]
        voxels, first = depth * height * width, offsets[number]
        channels = spec.num_channels
        volume = tables.image[first * channels : (first + voxels) * channels].view(channels, depth, height, width)
        classes = tables.label[first : first + voxels].view(1, depth, height, width)
        signs = _signs(matrices[number])
        if signs is not None:
            backward = [axis + 1 for axis in range(3) if signs[axis] < 0]
            with Range("crop and flip"):
                for target, source in ((image[number], volume), (label[number], classes)):
                    target.copy_(torch.flip(cut(source, starts[number], patch), backward))
            continue
        with Range("rotate and scale"):
            coordinates = source_coordinates(drawn.matrix[number : number + 1], patch)
            flat = tuple(axis.reshape(-1) for axis in coordinates)
            interpolate(volume, starts[number], flat, spec.spatial_dims, out=image[number])
            nearest(classes, starts[number], flat, out=label[number])
    return _augment(image, drawn, spec), label


def _signs(matrix: list[list[float]]) -> list[float] | None:
    """The diagonal of a matrix that only flips; None for any other."""
    diagonal = [matrix[axis][axis] for axis in range(3)]
    others = any(matrix[row][column] for row in range(3) for column in range(3) if row != column)
    return None if others or any(abs(entry) != 1.0 for entry in diagonal) else diagonal


def cut(volume: Tensor, start: list[int], size: Triple | list[int]) -> Tensor:
    """(C, *size) from `start`, zeros outside the volume; a view where nothing lies outside."""
    shape = volume.shape[1:]
    low = [max(0, at) for at in start]
    high = [min(extent, at + side) for extent, at, side in zip(shape, start, size, strict=True)]
    inside = volume[:, low[0] : max(low[0], high[0]), low[1] : max(low[1], high[1]), low[2] : max(low[2], high[2])]
    if tuple(inside.shape[1:]) == tuple(size):
        return inside
    found = volume.new_zeros((volume.shape[0], *size))
    d, h, w = (at - begin for at, begin in zip(low, start, strict=True))
    found[:, d : d + inside.shape[1], h : h + inside.shape[2], w : w + inside.shape[3]] = inside
    return found


def _box(volume: Tensor, start: list[int], lows: list[int], highs: list[int]) -> Tensor:
    """The part of a case between two offsets from `start`, both included."""
    first = [at + low for at, low in zip(start, lows, strict=True)]
    return cut(volume, first, [high - low + 1 for low, high in zip(lows, highs, strict=True)])


def bounds_of(coordinates: tuple[Tensor, ...]) -> list[tuple[float, float]]:
    """The smallest and largest coordinate along each axis."""
    found = [torch.aminmax(axis) for axis in coordinates]
    return [(float(low), float(high)) for low, high in found]


def interpolate(
    volume: Tensor,
    start: list[int],
    coordinates: tuple[Tensor, ...],
    spatial_dims: int,
    *,
    out: Tensor,
    bounds: list[tuple[float, float]] | None = None,
) -> None:
    """Trilinear (bilinear in 2-D) values of every channel at (M,) coordinates counted from `start`.

    bounds: what `bounds_of` gives, where it is known.
    """
    upper = [1, 1, 1] if spatial_dims == 3 else [0, 1, 1]
    ranges = bounds or bounds_of(coordinates)
    lows = [math.floor(low) for low, _ in ranges]
    highs = [math.floor(high) + up for (_, high), up in zip(ranges, upper, strict=True)]
    box = _box(volume, start, lows, highs).to(torch.float32)
    if spatial_dims == 2 or coordinates[0].numel() >= _LARGE:
        _sample(box, lows, coordinates, spatial_dims, out=out)
        return
    box = box.contiguous()
    height, width = box.shape[2], box.shape[3]
    floors = [torch.floor(axis) for axis in coordinates]
    parts = [axis - floor for axis, floor in zip(coordinates, floors, strict=True)]
    whole = [(floor - low).to(torch.int32) for floor, low in zip(floors, lows, strict=True)]
    index = (whole[0] * height + whole[1]) * width + whole[2]
    corners = [(d * height + h) * width for d in (0, 1) for h in (0, 1)]
    for channel in range(box.shape[0]):
        flat = box[channel].reshape(-1)
        rows = [
            torch.lerp(flat[at:].index_select(0, index), flat[at + 1 :].index_select(0, index), parts[2])
            for at in corners
        ]
        planes = [torch.lerp(rows[at], rows[at + 1], parts[1]) for at in (0, 2)]
        out[channel] = torch.lerp(planes[0], planes[1], parts[0]).view(out.shape[1:])


def _sample(box: Tensor, lows: list[int], coordinates: tuple[Tensor, ...], spatial_dims: int, *, out: Tensor) -> None:
    """The same by torch's own kernel. box: (C, D, H, W) float32, which begins at `lows`."""
    grid = torch.empty(*out.shape[4 - spatial_dims :], spatial_dims)
    for number in range(spatial_dims):  # counted from the last axis, -1 and 1 being the first and last voxel
        scale = 2.0 / max(box.shape[3 - number] - 1, 1)
        shift = torch.tensor(-lows[2 - number] * scale - 1.0)
        torch.add(shift, coordinates[2 - number].view(grid.shape[:-1]), alpha=scale, out=grid[..., number])
    # Its threads share a batch, of which there is one: halves of the output stand in for it.
    halves = 2 if grid.shape[0] % 2 == 0 else 1
    pieces = grid.view(halves, -1, *grid.shape[1:])
    source = (box if spatial_dims == 3 else box[:, 0])[None]
    found = functional.grid_sample(source.expand(halves, *source.shape[1:]), pieces, align_corners=True)
    out.view(out.shape[0], halves, -1).copy_(found.flatten(2).transpose(0, 1))


def nearest(
    classes: Tensor,
    start: list[int],
    coordinates: tuple[Tensor, ...],
    *,
    out: Tensor,
    bounds: list[tuple[float, float]] | None = None,
) -> None:
    """The nearest voxel of every channel (halves round up) at (M,) coordinates counted from `start`."""
    half = np.float32(0.5)  # as below, where the sum may round
    found = bounds or bounds_of(coordinates)
    ranges = [(math.floor(np.float32(low) + half), math.floor(np.float32(high) + half)) for low, high in found]
    lows = [low for low, _ in ranges]
    box = _box(classes, start, lows, [high for _, high in ranges]).contiguous()
    height, width = box.shape[2], box.shape[3]
    d, h, w = (torch.floor(axis + 0.5) for axis in coordinates)
    if box[0].numel() < 2**23:  # whole numbers up to twice that are float32's own
        index = d.sub_(lows[0]).mul_(height).add_(h).sub_(lows[1]).mul_(width).add_(w).sub_(lows[2]).to(torch.int32)
    else:
        whole = [(place - low).to(torch.int32) for place, low in zip((d, h, w), lows, strict=True)]
        index = (whole[0] * height + whole[1]) * width + whole[2]
    for channel in range(box.shape[0]):
        out[channel] = box[channel].reshape(-1).index_select(0, index).view(out.shape[1:])


def _augment(image: Tensor, drawn: Draw, spec: BatchSpec) -> Tensor:
    """Each sample through the operations that it drew; the rest of them would be identities."""
    strength = drawn.intensity
    off = {"brightness": 1.0, "contrast": 1.0, "gamma": 1.0, "noise": 0.0}
    used = {name: (getattr(strength, name) != value).tolist() for name, value in off.items()}
    for number in range(image.shape[0]):
        names = [name for name in off if used[name][number]]
        if not names:
            continue
        one = slice(number, number + 1)
        own = Intensity(**{name: getattr(strength, name)[one] for name in off})
        probability: dict[str, Any] = {f"{name}_prob": 0.0 for name in off if name not in names}
        with Range(" + ".join(names)):
            image[one] = augment_intensity(image[one], drawn.key[one], own, replace(spec.sample, **probability))
    return image
