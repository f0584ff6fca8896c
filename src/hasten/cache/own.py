"""Copies some cases of an arena to separate memory, for a process that trains on a part of a data set."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import accumulate

import torch
from torch import Tensor

from hasten.cache.arena import Arena, PointSets, Store
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
    assert arena.store.sets is not None
    counts = arena.store.sets.num.tolist()
    geometry = arena.geometry or (None,) * len(arena.ids)
    return tuple(
        CaseRow(id=name, shape=shape, num_points=tuple(num_points), geometry=case_geometry)
        for name, shape, num_points, case_geometry in zip(arena.ids, arena.shapes, counts, geometry, strict=True)
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
    dtype = like.store.values["image"].dtype
    store = Store(
        values={
            "image": torch.empty(sum(voxels) * like.num_channels, dtype=dtype, device=device),
            "label": torch.empty(sum(voxels), dtype=torch.uint8, device=device),
        },
        channels=like.store.channels,
        offset=offset.to(device),
        shape=torch.tensor([row.shape for row in rows], dtype=torch.int64).view(-1, 3).to(device),
        spatial_dims=like.store.spatial_dims,
        ids=tuple(row.id for row in rows),
        sets=PointSets(
            torch.empty(int(counts.sum()), dtype=torch.int32, device=device), starts.to(device), counts.to(device)
        ),
    )
    return Arena(
        store=store,
        shapes=tuple(row.shape for row in rows),
        offsets=tuple(offset.tolist()),
        geometry=tuple(row.geometry for row in rows if row.geometry is not None),
        num_classes=like.num_classes,
        home="ram" if torch.device(device).type == "cpu" else "device",
    )


def point_slices(rows: Sequence[CaseRow]) -> list[slice]:
    """The slice of each case's points in the arena of `room_for`."""
    ends = list(accumulate(sum(row.num_points) for row in rows))
    return [slice(start, end) for start, end in zip([0, *ends], ends, strict=False)]


def values_of(arena: Arena, case: int, points: slice) -> tuple[Tensor, Tensor, Tensor]:
    """Flat views of one case: image (C * V,), label (V,) and points (P,), which lie there in its arena."""
    assert arena.store.sets is not None
    return arena.image(case).view(-1), arena.label(case).view(-1), arena.store.sets.points[points]


def own_cases(arena: Arena, cases: Sequence[int], device: torch.device | str) -> Arena:
    """Copy cases, by position, to a new arena. Raises torch.OutOfMemoryError."""
    rows, sets = rows_of(arena), arena.store.sets
    assert sets is not None
    selected = [rows[case] for case in cases]
    copied = room_for(selected, arena, device)
    # In an arena on disk the points of the cases are in any order.
    starts = sets.first[:, 0].tolist() if arena.num_classes > 1 else [0] * len(rows)
    for number, (case, to_points) in enumerate(zip(cases, point_slices(selected), strict=True)):
        from_points = slice(starts[case], starts[case] + sum(rows[case].num_points))
        for target, source in zip(
            values_of(copied, number, to_points), values_of(arena, case, from_points), strict=True
        ):
            target.copy_(source)
    return replace(copied, num_voxels=tuple(arena.num_voxels[case] for case in cases) if arena.num_voxels else ())
