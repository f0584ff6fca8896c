"""Read-ahead for parts of an arena's files."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from torch import Tensor

from hasten.cache.libc import read_ahead


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
