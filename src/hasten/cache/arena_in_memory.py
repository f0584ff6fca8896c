"""Arenas in memory: room for some cases, copies of them, and items that are prepared already."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate
from typing import Any

import numpy as np
import torch
from torch import Tensor

from hasten.cache.arena import Arena, PointSets, Store
from hasten.config.schema import CacheConfig
from hasten.prepare.foreground import foreground_points
from hasten.prepare.types import Geometry


@dataclass(frozen=True, kw_only=True, slots=True)
class CaseRow:
    """What must be known of a case to make room for it."""

    id: str
    shape: tuple[int, int, int]
    num_points: tuple[int, ...]
    """Points of each foreground class."""
    geometry: Geometry | None = None


def case_rows(arena: Arena) -> tuple[CaseRow, ...]:
    """The rows of an arena's cases, in its order."""
    assert arena.store.sets is not None
    counts = arena.store.sets.num.tolist()
    geometry = arena.geometry or (None,) * len(arena.ids)
    return tuple(
        CaseRow(id=name, shape=shape, num_points=tuple(num_points), geometry=case_geometry)
        for name, shape, num_points, case_geometry in zip(arena.ids, arena.shapes, counts, geometry, strict=True)
    )


def empty_like(arena: Arena, rows: Sequence[CaseRow], device: torch.device | str) -> Arena:
    """An empty arena (`empty_arena`) with the channels, classes and type of `arena`."""
    return empty_arena(
        rows,
        device,
        num_channels=arena.num_channels,
        num_classes=arena.num_classes,
        dtype=arena.store.values["image"].dtype,
        spatial_dims=arena.store.spatial_dims,
    )


def empty_arena(
    rows: Sequence[CaseRow],
    device: torch.device | str,
    *,
    num_channels: int,
    num_classes: int,
    dtype: torch.dtype,
    spatial_dims: int,
) -> Arena:
    """An arena on `device` with room for these cases, whose voxels and points are still to be written.

    Raises torch.OutOfMemoryError.
    """
    shape = torch.tensor([row.shape for row in rows], dtype=torch.int64).view(-1, 3)
    voxels = shape.prod(1)
    offset = voxels.cumsum(0) - voxels
    counts = torch.tensor([row.num_points for row in rows], dtype=torch.int64).view(len(rows), num_classes - 1)
    starts = counts.flatten().cumsum(0).view_as(counts) - counts
    num_voxels, num_points = int(voxels.sum()), int(counts.sum())
    store = Store(
        values={
            "image": torch.empty(num_voxels * num_channels, dtype=dtype, device=device),
            "label": torch.empty(num_voxels, dtype=torch.uint8, device=device),
        },
        channels={"image": num_channels, "label": 1},
        offset=offset.to(device),
        shape=shape.to(device),
        spatial_dims=spatial_dims,
        ids=tuple(row.id for row in rows),
        sets=PointSets(torch.empty(num_points, dtype=torch.int32, device=device), starts.to(device), counts.to(device)),
    )
    return Arena(
        store=store,
        shapes=tuple(row.shape for row in rows),
        offsets=tuple(offset.tolist()),
        geometry=tuple(row.geometry for row in rows if row.geometry is not None),
        num_classes=num_classes,
        home="ram" if torch.device(device).type == "cpu" else "device",
    )


def point_slices(rows: Sequence[CaseRow]) -> list[slice]:
    """The slice of each case's points in the arena of `empty_arena`."""
    ends = list(accumulate(sum(row.num_points) for row in rows))
    return [slice(start, end) for start, end in zip([0, *ends], ends, strict=False)]


def case_values(arena: Arena, case: int, points: slice) -> tuple[Tensor, ...]:
    """Flat views of one case: image (C * V,), label (V,) and points (P,), which lie there in its arena."""
    assert arena.store.sets is not None
    return arena.image(case).view(-1), arena.label(case).view(-1), arena.store.sets.points[points]


def copy_values(source: tuple[Tensor, ...], target: tuple[Tensor, ...]) -> None:
    """Copy the values of one case, flat tensors (n,) as `case_values` returns them, from one arena to another."""
    for values, room in zip(source, target, strict=True):
        room.copy_(values)


def copy_cases(arena: Arena, cases: Sequence[int], device: torch.device | str) -> Arena:
    """Copy cases, by position, to a new arena. Raises torch.OutOfMemoryError."""
    rows, sets = case_rows(arena), arena.store.sets
    assert sets is not None
    selected = [rows[case] for case in cases]
    copied = empty_like(arena, selected, device)
    # In an arena on disk the points of the cases are in any order.
    starts = sets.first[:, 0].tolist() if arena.num_classes > 1 else [0] * len(rows)
    for number, (case, points) in enumerate(zip(cases, point_slices(selected), strict=True)):
        source = case_values(arena, case, slice(starts[case], starts[case] + sum(rows[case].num_points)))
        copy_values(source, case_values(copied, number, points))
    return replace(copied, num_voxels=tuple(arena.num_voxels[case] for case in cases) if arena.num_voxels else ())


def arena_from_items(items: Iterable[tuple[str, Any, Any]], *, spatial_dims: int, num_classes: int) -> Arena:
    """Put items one behind the other.

    items: (name, image (C, D, H, W) or (C, H, W), label (1, D, H, W), (D, H, W) or 2-D likewise, whole numbers below
    num_classes). The image is kept in float16 if all are, else in float32. Raises ValueError naming the item.
    """
    rows: list[CaseRow] = []
    values: list[tuple[Tensor, Tensor, Tensor]] = []
    for number, (name, image, label) in enumerate(items):
        volume, classes = _checked(name, _plain(image), _plain(label), spatial_dims, num_classes)
        if values and len(volume) != len(values[0][0]):
            raise ValueError(f"{name}: has {len(volume)} channels, the first item {len(values[0][0])}; make them alike")
        points, _ = foreground_points(classes.numpy(), num_classes, CacheConfig().max_points, number)
        depth, height, width = classes.shape
        rows.append(CaseRow(id=name, shape=(depth, height, width), num_points=tuple(each.size for each in points)))
        values.append((volume, classes, torch.from_numpy(np.concatenate([np.empty(0, np.int32), *points]))))
    if not rows:
        raise ValueError("the data set is empty; give it items")
    is_half = all(volume.dtype == torch.float16 for volume, _, _ in values)
    arena = empty_arena(
        rows,
        "cpu",
        num_channels=len(values[0][0]),
        num_classes=num_classes,
        spatial_dims=spatial_dims,
        dtype=torch.float16 if is_half else torch.float32,
    )
    for case, (item, points_of) in enumerate(zip(values, point_slices(rows), strict=True)):
        copy_values(tuple(each.reshape(-1) for each in item), case_values(arena, case, points_of))
    return arena


def _plain(value: Any) -> Tensor:
    return torch.as_tensor(value).as_subclass(Tensor).detach().cpu()


def _checked(name: str, image: Tensor, label: Tensor, dims: int, num_classes: int) -> tuple[Tensor, Tensor]:
    """Image (C, D, H, W) and label (D, H, W) uint8."""
    if image.ndim != dims + 1:
        raise ValueError(
            f"{name}: its image has shape {tuple(image.shape)}; {dims}-D data need channels first and {dims} axes "
            "(MONAI: EnsureChannelFirstd)"
        )
    classes = label[0] if label.ndim == dims + 1 and len(label) == 1 else label
    if classes.shape != image.shape[1:]:
        raise ValueError(
            f"{name}: its label has shape {tuple(label.shape)}, its image {tuple(image.shape)}; "
            "one class index a voxel is needed"
        )
    low, high = (float(bound) for bound in torch.aminmax(classes)) if classes.numel() else (0.0, 0.0)
    broken = classes.is_floating_point() and bool((classes != classes.round()).any())
    if low < 0 or high >= num_classes or broken:
        raise ValueError(
            f"{name}: its label holds values from {low:g} to {high:g}; whole numbers from 0 to {num_classes - 1} are "
            "needed"
        )
    if dims == 2:
        image, classes = image[:, None], classes[None]
    return image, classes.to(torch.uint8).contiguous()
