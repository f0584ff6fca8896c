"""Reading the flat arena at fractional coordinates. Outside a case image and label are 0 (air, or a z-score's mean).

A coordinate is a whole start and a float32 offset from it, never their float32 sum: far into a large image that would
round to a thousandth of a voxel or worse.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import reduce
from itertools import combinations, product
from operator import and_, mul

import torch
from torch import Tensor

Coordinates = tuple[Tensor, Tensor, Tensor]
Neighbour = tuple[Tensor, Tensor]
"""Weight (float32, 0 outside the case) and place (int32, clamped into the case) along one axis."""
_SHARES = 2000.0
"""Shares of two classes are compared in steps of 1 / _SHARES; equal ones are a tie."""


def gather_flat(
    values: Tensor,
    shape: Tensor,
    offset: Tensor,
    start: Tensor,
    coordinates: Coordinates,
    num_channels: int,
    spatial_dims: int,
) -> Tensor:
    """(B, C, D, H, W) float32, trilinear (bilinear in 2-D), from a flat tensor of cases (C, D, H, W).

    shape: (B, 3), offset: (B,) voxels of each case; start: (B, 3) whole voxels of the case; coordinates: three
    (B, D, H, W) float32 in voxels from there.

    A coordinate that is a whole number gives the stored voxel bit for bit. Indices within a case are int32: a case
    holds fewer than 2**31 voxels; only its place among all cases needs 64 bits.
    """
    extent, origin = _columns(shape), _columns(start)
    along_d, along_h, along_w = map(_neighbours, coordinates, origin, extent)
    if spatial_dims == 2:
        along_d = along_d[:1]
    base = offset.view(-1, 1, 1, 1) * num_channels
    volume = extent[0].to(torch.int64) * extent[1] * extent[2]
    totals: list[Tensor | None] = [None] * num_channels
    for weight_d, place_d in along_d:
        for weight_h, place_h in along_h:
            weight_dh, place_dh = weight_d * weight_h, (place_d * extent[1] + place_h) * extent[2]
            for weight_w, place_w in along_w:
                weight, index = weight_dh * weight_w, base + (place_dh + place_w)
                for channel in range(num_channels):
                    value = values[index + channel * volume].to(torch.float32) * weight
                    total = totals[channel]
                    totals[channel] = value if total is None else total + value
    return torch.stack([total for total in totals if total is not None], dim=1)


def nearest_flat(
    values: Tensor, shape: Tensor, offset: Tensor, start: Tensor, coordinates: Coordinates, num_channels: int
) -> Tensor:
    """(B, C, D, H, W) as stored: the nearest voxel (halves round up), 0 outside. Arguments as in `gather_flat`."""
    extent, origin = _columns(shape), _columns(start)
    inside, places = [], []
    for axis, first, size in zip(coordinates, origin, extent, strict=True):
        place = torch.floor(axis + 0.5).to(torch.int32) + first
        inside.append((place >= 0) & (place < size))
        places.append(torch.minimum(place.clamp(min=0), size - 1))
    index = offset.view(-1, 1, 1, 1) * num_channels + (places[0] * extent[1] + places[1]) * extent[2] + places[2]
    volume = extent[0].to(torch.int64) * extent[1] * extent[2]
    within = inside[0] & inside[1] & inside[2]
    planes = [torch.where(within, values[index + channel * volume], 0) for channel in range(num_channels)]
    return torch.stack(planes, dim=1).to(values.dtype)


def majority_flat(
    values: Tensor,
    shape: Tensor,
    offset: Tensor,
    start: Tensor,
    coordinates: Coordinates,
    num_channels: int,
    spatial_dims: int,
) -> Tensor:
    """(B, C, D, H, W) as stored: the class with the largest linear weight around each place. Outside lies class 0.

    Arguments as in `gather_flat`.
    """
    extent, origin = _columns(shape), _columns(start)
    axes = []
    for axis, first, size in zip(coordinates, origin, extent, strict=True):
        whole = torch.floor(axis)
        lower = whole.to(torch.int32) + first
        places = (lower, lower + 1)
        inside = [(place >= 0) & (place < size) for place in places]
        axes.append((axis - whole, inside, [torch.minimum(place.clamp(min=0), size - 1) for place in places]))
    corners = list(product((0, 1), repeat=spatial_dims))
    parts = [part for part, _, _ in axes[3 - spatial_dims :]]
    base = offset.view(-1, 1, 1, 1) * num_channels
    volume = extent[0].to(torch.int64) * extent[1] * extent[2]
    planes = []
    for channel in range(num_channels):
        labels = []
        for corner in corners:
            at = (0, *corner)[-3:]
            d, h, w = (places[side] for side, (_, _, places) in zip(at, axes, strict=True))
            within = [inside[side] for side, (_, inside, _) in zip(at, axes, strict=True)]
            label = values[base + (d * extent[1] + h) * extent[2] + w + channel * volume]
            labels.append(torch.where(within[0] & within[1] & within[2], label, 0))
        planes.append(majority(labels, corners, parts))
    return torch.stack(planes, dim=1).to(values.dtype)


def majority(labels: Sequence[Tensor], corners: Sequence[Sequence[int]], parts: Sequence[Tensor]) -> Tensor:
    """The class with the largest linear weight among the voxels around each place; in a tie that of the nearest one.

    labels: classes of each corner. corners: 0 for the lower and 1 for the upper voxel along each axis. parts: float32,
    how far each place lies behind the lower voxel along each axis. Labels, parts and the result are of one shape.
    """
    nearest, weights = labels[0], []
    for label, corner in zip(labels, corners, strict=True):
        sides = list(zip(corner, parts, strict=True))
        weights.append(reduce(mul, (part if upper else 1.0 - part for upper, part in sides)))
        closest = reduce(and_, ((part >= 0.5) == bool(upper) for upper, part in sides))
        nearest = torch.where(closest, label, nearest)
    scores = list(weights)
    for one, other in combinations(range(len(labels)), 2):
        same = (labels[one] == labels[other]).to(torch.float32)
        scores[one] = scores[one] + weights[other] * same
        scores[other] = scores[other] + weights[one] * same
    shares = [torch.round(score * _SHARES) for score in scores]
    best, most = nearest, torch.zeros_like(shares[0])
    for label, share in zip(labels, shares, strict=True):
        most = torch.where(label == nearest, share, most)
    for label, share in zip(labels, shares, strict=True):
        ahead = share > most
        best, most = torch.where(ahead, label, best), torch.where(ahead, share, most)
    return best


def _columns(triples: Tensor) -> list[Tensor]:
    """(B, 3) as three (B, 1, 1, 1) int32, along D, H, W."""
    whole = triples.to(torch.int32)
    return [whole[:, axis].view(-1, 1, 1, 1) for axis in range(3)]


def _neighbours(coordinate: Tensor, start: Tensor, size: Tensor) -> list[Neighbour]:
    """The two voxels that a coordinate lies between, along one axis."""
    whole = torch.floor(coordinate)
    part, lower = coordinate - whole, whole.to(torch.int32) + start
    neighbours = []
    for place, share in ((lower, 1.0 - part), (lower + 1, part)):
        inside = (place >= 0) & (place < size)
        neighbours.append((torch.where(inside, share, 0.0), torch.minimum(place.clamp(min=0), size - 1)))
    return neighbours
