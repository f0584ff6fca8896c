"""Reads flat cases at the coordinates of a map, for a whole batch at once, on a GPU."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, NamedTuple

import torch
from torch import Tensor

from hasten.augment.maps import Map
from hasten.config.schema import Triple
from hasten.kernels.use import triton_runs
from hasten.sample.gather import gather_flat, majority_flat, nearest_flat

Coordinates = tuple[Tensor, Tensor, Tensor]


class PackedCases(NamedTuple):
    """One key of N cases, one behind the other."""

    values: Tensor
    """(V * C,) of any type."""
    shape: Tensor
    """(N, 3) int64."""
    offset: Tensor
    """(N,) int64 voxels before each case."""
    channels: int


def as_cases(image: Tensor) -> PackedCases:
    """A batch (B, C, *S) as B cases."""
    batch, channels, *sides = image.shape
    size = (1, *sides)[-3:]
    whole = torch.stack([torch.full((batch,), side, dtype=torch.int64, device=image.device) for side in size], dim=1)
    return PackedCases(image.reshape(-1), whole, torch.arange(batch, device=image.device) * math.prod(size), channels)


def samples_as_cases(batch: Mapping[str, Tensor]) -> tuple[dict[str, PackedCases], Tensor, Tensor]:
    """Samples (B, C, *S) by key as B cases each; (B,) int64 the case of each sample and (B, 3) int64 its start, 0."""
    first = next(iter(batch.values()))
    case = torch.arange(len(first), device=first.device)
    start = torch.zeros(len(first), 3, dtype=torch.int64, device=first.device)
    return {key: as_cases(value) for key, value in batch.items() if value.ndim > 3}, case, start


def coordinates_of(affine: Map, size: Triple, out: Triple) -> Coordinates:
    """Position in the input of each voxel of the output, in voxels: three of (B, D, H, W) float32."""
    device = affine.linear.device
    axes = [torch.arange(side, device=device, dtype=torch.float32) - (side - 1) / 2 for side in out]
    d, h, w = axes[0][:, None, None], axes[1][None, :, None], axes[2][None, None, :]
    rows = []
    for axis in range(3):
        a, b, c = (affine.linear[:, axis, column].reshape(-1, 1, 1, 1) for column in range(3))
        start = affine.shift[:, axis].reshape(-1, 1, 1, 1) + (size[axis] - 1) / 2
        # In this order all but the last sum are of a plane only.
        rows.append(a * d + start + b * h + c * w)
    return rows[0], rows[1], rows[2]


def read(
    cases: PackedCases,
    case: Tensor,
    start: Tensor,
    coordinates: Coordinates,
    *,
    mode: str,
    padding_mode: str,
    spatial_dims: int,
) -> Tensor:
    """(B, C, D, H, W): float32 for `bilinear`, as stored for `nearest` and `majority`.

    case: (B,) int64; start: (B, 3) int64 voxels of the case that coordinates are counted from.
    """
    extent = cases.shape[case]
    d, h, w = (
        bounded(axis, start[:, number], extent[:, number], padding_mode) for number, axis in enumerate(coordinates)
    )
    if mode == "nearest":
        return nearest_flat(cases.values, extent, cases.offset[case], start, (d, h, w), cases.channels)
    between = majority_flat if mode == "majority" else gather_flat
    return between(cases.values, extent, cases.offset[case], start, (d, h, w), cases.channels, spatial_dims)


def read_mapped(
    cases: PackedCases,
    case: Tensor,
    start: Tensor,
    place: Map,
    size: Triple,
    out: Triple,
    *,
    mode: str,
    padding_mode: str,
    spatial_dims: int,
) -> Tensor:
    """(B, C, *out): `read` at `coordinates_of` the map, by one kernel where Triton runs, but for `majority`.

    Arguments as there.
    """
    how: dict[str, Any] = {"mode": mode, "padding_mode": padding_mode, "spatial_dims": spatial_dims}
    if mode != "majority" and triton_runs(cases.values):
        from hasten.augment.read_triton import read_by_kernel

        return read_by_kernel(*cases, case, start, place, size, out, **how)
    return read(cases, case, start, coordinates_of(place, size, out), **how)


def bounded(coordinate: Tensor, start: Tensor, extent: Tensor, padding_mode: str) -> Tensor:
    """Coordinates (B, ...) from `start` (B,), mapped back into a case of length `extent` (B,) by the padding mode."""
    if padding_mode in ("zeros", ""):
        return coordinate
    first = -start.to(torch.float32).reshape(-1, *[1] * (coordinate.ndim - 1))
    length = extent.to(torch.float32).reshape(first.shape)
    last = first + length - 1
    if padding_mode == "reflection":
        # About the outer faces of the first and last voxel, as grid_sample without align_corners.
        beyond = torch.remainder((coordinate - (first - 0.5)).abs(), 2 * length)
        coordinate = first - 0.5 + torch.minimum(beyond, 2 * length - beyond)
    return torch.minimum(torch.maximum(coordinate, first), last)
