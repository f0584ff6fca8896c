"""An arena of some of the cases, in memory of their own: what a process keeps that trains on a part of a data set."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate

import torch
from torch import Tensor

from hasten.cache.arena import Arena, Tables
from hasten.prepare.types import Geometry


@dataclass(frozen=True, kw_only=True, slots=True)
class CaseRow:
    """What must be known of a case to make room for it."""

    id: str
    shape: tuple[int, int, int]
    num_points: tuple[int, ...]
    """Of each foreground class."""
    geometry: Geometry | None = None

    def num_bytes(self, num_channels: int, item_bytes: int) -> int:
        """Of image, label and points. item_bytes: of a voxel of one channel."""
        return math.prod(self.shape) * (num_channels * item_bytes + 1) + 4 * sum(self.num_points)


def rows_of(arena: Arena) -> tuple[CaseRow, ...]:
    """Of each case of an arena, in its order."""
    counts = arena.tables.point_count.tolist()
    geometry = arena.geometry or (None,) * len(arena.ids)
    return tuple(
        CaseRow(id=name, shape=shape, num_points=tuple(own), geometry=place)
        for name, shape, own, place in zip(arena.ids, arena.shapes, counts, geometry, strict=True)
    )


def room_for(rows: Sequence[CaseRow], like: Arena, device: torch.device | str) -> Arena:
    """An arena on `device` with room for these cases, whose voxels and points are still to be written.

    like: an arena with the same channels, classes and type. Raises torch.OutOfMemoryError.
    """
    voxels = [math.prod(row.shape) for row in rows]
    counts = torch.tensor([row.num_points for row in rows], dtype=torch.int64).view(len(rows), like.num_classes - 1)
    starts = counts.flatten().cumsum(0).view_as(counts) - counts
    sizes = torch.tensor(voxels, dtype=torch.int64)
    offset = sizes.cumsum(0) - sizes
    tables = Tables(
        image=torch.empty(sum(voxels) * like.num_channels, dtype=like.tables.image.dtype, device=device),
        label=torch.empty(sum(voxels), dtype=torch.uint8, device=device),
        offset=offset.to(device),
        shape=torch.tensor([row.shape for row in rows], dtype=torch.int64).view(-1, 3).to(device),
        points=torch.empty(int(counts.sum()), dtype=torch.int32, device=device),
        point_start=starts.to(device),
        point_count=counts.to(device),
    )
    return Arena(
        tables=tables,
        ids=tuple(row.id for row in rows),
        shapes=tuple(row.shape for row in rows),
        offsets=tuple(offset.tolist()),
        geometry=tuple(row.geometry for row in rows if row.geometry is not None),
        num_channels=like.num_channels,
        num_classes=like.num_classes,
        home="ram" if torch.device(device).type == "cpu" else "device",
    )


def point_starts(rows: Sequence[CaseRow]) -> list[int]:
    """Where the points of each case begin, and at last where they end."""
    return [0, *accumulate(sum(row.num_points) for row in rows)]


def values_of(arena: Arena, case: int, starts: Sequence[int]) -> tuple[Tensor, Tensor, Tensor]:
    """Flat views of one case: image (C * V,), label (V,) and points (P,). starts: `point_starts` of its arena."""
    points = arena.tables.points[starts[case] : starts[case + 1]]
    return arena.image(case).view(-1), arena.label(case).view(-1), points


def own_cases(arena: Arena, cases: Sequence[int], device: torch.device | str) -> Arena:
    """Copy cases, by position, to memory of their own. Raises torch.OutOfMemoryError."""
    rows = rows_of(arena)
    own = tuple(rows[case] for case in cases)
    found = room_for(own, arena, device)
    starts, own_starts = point_starts(rows), point_starts(own)
    for number, case in enumerate(cases):
        for target, source in zip(values_of(found, number, own_starts), values_of(arena, case, starts), strict=True):
            target.copy_(source)
    return found
