"""The arena: every prepared case of a data set in one flat tensor per key, with each case's offset.

The same layout serves three homes: a memory-mapped file, host memory, device memory. Moving between them is one copy.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import NamedTuple

import torch
from torch import Tensor

from hasten.prepare.types import Geometry
from hasten.system import read_ahead


class PointSets(NamedTuple):
    """Voxels that crops are centred on: N cases, K sets (for example one per class), P points in total."""

    points: Tensor
    """(P,) int32: voxels as linear indices within their case."""
    first: Tensor
    """(N, K) int64: first point of each case and set."""
    num: Tensor
    """(N, K) int64: 0 where a case has no such voxel."""

    def to(self, device: torch.device | str) -> PointSets:
        return PointSets(*(each.to(device) for each in self))


@dataclass(frozen=True, kw_only=True, slots=True)
class Store:
    """N cases in one flat tensor for each key, and where each case lies; all tensors are on one device."""

    values: Mapping[str, Tensor]
    """Values of each key, (V * C,): case after case, each (C, D, H, W), as it was stored. V voxels in all."""
    channels: Mapping[str, int]
    shape: Tensor
    """(N, 3) int64: (D, H, W) of each case, the same for all keys. D = 1 in 2-D."""
    offset: Tensor
    """(N,) int64: voxels before each case; its values of a key with C channels start at offset * C."""
    spatial_dims: int = 3
    ids: tuple[str, ...] = ()
    sets: PointSets | None = None
    """The remembered voxels of each foreground class, for prepared cases."""
    per_case: Mapping[str, Tensor] = field(default_factory=dict)
    """(N, ...) by key: one value for each case, such as its class, which batches hold as it is."""

    @property
    def device(self) -> torch.device:
        return self.shape.device

    def to(self, device: torch.device | str) -> Store:
        """Copy to `device`."""
        return replace(
            self,
            values={key: value.to(device) for key, value in self.values.items()},
            per_case={key: value.to(device) for key, value in self.per_case.items()},
            shape=self.shape.to(device),
            offset=self.offset.to(device),
            sets=None if self.sets is None else self.sets.to(device),
        )


@dataclass(frozen=True, slots=True)
class Pages:
    """The mapped files of an arena, and which of its cases are not kept in memory."""

    values: Mapping[str, Tensor]
    """Values as in `Store`, (V * C,) by key, mapped."""
    channels: Mapping[str, int]
    cases: frozenset[int]
    shapes: Sequence[tuple[int, int, int]]
    """Shapes of all cases, as in `Arena`."""
    offsets: Sequence[int]

    def want(self, case: int, low: Sequence[int], high: Sequence[int]) -> None:
        """Read the box from `low` to before `high` (D, H, W) of a case in the background, if it is on the disk."""
        if case not in self.cases:
            return
        shape = self.shapes[case]
        low = [max(0, value) for value in low]
        high = [min(size, value) for size, value in zip(shape, high, strict=True)]
        if any(first >= last for first, last in zip(low, high, strict=True)):
            return
        voxels, plane = shape[0] * shape[1] * shape[2], shape[1] * shape[2]
        first, last = low[1] * shape[2], high[1] * shape[2]
        # The rows are most of their slice: all slices between them are requested in one call.
        whole_plane = 2 * (last - first) >= plane
        runs = (
            [(low[0] * plane + first, (high[0] - 1) * plane + last)]
            if whole_plane
            else [(depth * plane + first, depth * plane + last) for depth in range(low[0], high[0])]
        )
        for key, flat in self.values.items():
            address, item, channels = flat.data_ptr(), flat.element_size(), self.channels[key]
            for begin, end in runs:
                for channel in range(channels):
                    start = self.offsets[case] * channels + channel * voxels + begin
                    read_ahead(address + start * item, (end - begin) * item)


@dataclass(frozen=True, kw_only=True, slots=True)
class Arena:
    """The prepared cases under the keys `image` (float16 or float32) and `label` (uint8 class index)."""

    store: Store
    shapes: tuple[tuple[int, int, int], ...]
    offsets: tuple[int, ...]
    geometry: tuple[Geometry, ...]
    num_classes: int
    home: str
    """`file`, `ram` or `device`."""
    num_voxels: tuple[tuple[int, ...], ...] = ()
    """Voxels of each foreground class, by case; () for cases that came from other processes."""
    pages: Pages | None = None
    """Pages to read ahead, where cases lie in the file only."""

    @property
    def ids(self) -> tuple[str, ...]:
        return self.store.ids

    @property
    def num_channels(self) -> int:
        return self.store.channels["image"]

    @property
    def num_bytes(self) -> int:
        """Size of the cases, image and label."""
        return sum(self.case_bytes)

    @property
    def case_bytes(self) -> tuple[int, ...]:
        """Bytes of each case, image and label."""
        per_voxel = self.num_channels * self.store.values["image"].element_size() + 1
        return tuple(shape[0] * shape[1] * shape[2] * per_voxel for shape in self.shapes)

    def index(self, ids: tuple[str, ...]) -> tuple[int, ...]:
        """Position of each id."""
        position = {name: number for number, name in enumerate(self.ids)}
        return tuple(position[name] for name in ids)

    def image(self, case: int) -> Tensor:
        """(C, D, H, W) view of one case."""
        shape, start = self.shapes[case], self.offsets[case] * self.num_channels
        size = shape[0] * shape[1] * shape[2] * self.num_channels
        return self.store.values["image"][start : start + size].view(self.num_channels, *shape)

    def label(self, case: int) -> Tensor:
        """(D, H, W) uint8 view of one case."""
        shape, start = self.shapes[case], self.offsets[case]
        return self.store.values["label"][start : start + shape[0] * shape[1] * shape[2]].view(shape)

    def to(self, device: torch.device | str, *, home: str) -> Arena:
        """This arena in another home."""
        return replace(self, store=self.store.to(device), home=home, pages=None)
