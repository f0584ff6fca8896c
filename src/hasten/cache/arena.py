"""The arena: every prepared case of a data set in one flat tensor per key, with tables that say where each lies.

The same layout serves three homes: a memory-mapped file, host memory, device memory. Moving between them is one copy.
"""

from __future__ import annotations

from dataclasses import dataclass, fields, replace
from pathlib import Path

import torch
from torch import Tensor

from hasten.cache.pages import Pages
from hasten.prepare.types import Geometry


@dataclass(frozen=True, kw_only=True, slots=True)
class Tables:
    """The tensors that a batch is made from. N cases, C channels, K classes, V voxels in all, P points in all."""

    image: Tensor
    """(V * C,) float16 or float32: case after case, each (C, D, H, W)."""
    label: Tensor
    """(V,) uint8 class index: case after case, each (D, H, W)."""
    offset: Tensor
    """(N,) int64: first voxel of each case in `label`; its image starts at offset * C."""
    shape: Tensor
    """(N, 3) int64: (D, H, W) of each case."""
    points: Tensor
    """(P,) int32: remembered foreground voxels, as linear indices within their case."""
    point_start: Tensor
    """(N, K - 1) int64: first point of each case and foreground class."""
    point_count: Tensor
    """(N, K - 1) int64: number of points of each case and foreground class; 0 where the class is absent."""

    def to(self, device: torch.device, *, pin: bool = False) -> Tables:
        """Copy to `device`; `pin` page-locks host memory so that a later copy to a GPU is asynchronous."""
        moved = {field.name: getattr(self, field.name).to(device) for field in fields(self)}
        if pin:
            moved = {name: value.pin_memory() for name, value in moved.items()}
        return Tables(**moved)


@dataclass(frozen=True, kw_only=True, slots=True)
class Part:
    """Some of the cases, in device memory."""

    tables: Tables
    """Of these cases only, without points."""
    position: Tensor
    """(N,) int64 on the host: where each case of the arena is in `tables`, -1 for one that is not."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Arena:
    """Tables, and what they hold."""

    tables: Tables
    ids: tuple[str, ...]
    shapes: tuple[tuple[int, int, int], ...]
    offsets: tuple[int, ...]
    geometry: tuple[Geometry, ...]
    num_channels: int
    num_classes: int
    home: str
    """`file`, `ram`, `device`, or how many cases are in each."""
    num_voxels: tuple[tuple[int, ...], ...] = ()
    """Of each case and foreground class; () of cases that were copied from another arena."""
    pages: Pages | None = None
    """For reading ahead, where cases lie in the file only."""
    files: tuple[Path, ...] = ()
    """What `tables` are mapped from, if they are."""
    part: Part | None = None
    """What is in device memory besides, where the device holds some of the cases; `tables` hold all."""

    @property
    def num_bytes(self) -> int:
        image, label = self.tables.image, self.tables.label
        return image.numel() * image.element_size() + label.numel()

    @property
    def case_bytes(self) -> tuple[int, ...]:
        """Bytes of each case, image and label."""
        per_voxel = self.num_channels * self.tables.image.element_size() + 1
        return tuple(shape[0] * shape[1] * shape[2] * per_voxel for shape in self.shapes)

    def index(self, ids: tuple[str, ...]) -> tuple[int, ...]:
        """Position of each id."""
        position = {name: number for number, name in enumerate(self.ids)}
        return tuple(position[name] for name in ids)

    def image(self, case: int) -> Tensor:
        """(C, D, H, W) view of one case."""
        shape, start = self.shapes[case], self.offsets[case] * self.num_channels
        size = shape[0] * shape[1] * shape[2] * self.num_channels
        return self.tables.image[start : start + size].view(self.num_channels, *shape)

    def label(self, case: int) -> Tensor:
        """(D, H, W) uint8 view of one case."""
        shape, start = self.shapes[case], self.offsets[case]
        return self.tables.label[start : start + shape[0] * shape[1] * shape[2]].view(shape)

    def to(self, device: torch.device | str, *, home: str, pin: bool = False) -> Arena:
        """The same arena in another home."""
        tables = self.tables.to(torch.device(device), pin=pin)
        return replace(self, tables=tables, home=home, pages=None, files=(), part=None)
