"""Asking the disk for parts of an arena's files before they are read."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path


class Pages:
    """The files of an arena, and which of its cases are not kept in memory."""

    def __init__(
        self, image: Path, label: Path, cases: Sequence[int], *,
        shapes: Sequence[tuple[int, int, int]], offsets: Sequence[int], voxel_bytes: int, num_channels: int,
    ) -> None:  # fmt: skip
        """voxel_bytes: of one channel of the image. shapes, offsets: of every case, as in `Arena`."""
        self.cases = frozenset(cases)
        self.shapes, self.offsets = shapes, offsets
        self.voxel_bytes, self.num_channels = voxel_bytes, num_channels
        self.handles = [os.open(image, os.O_RDONLY)]
        self.handles.append(os.open(label, os.O_RDONLY))

    def want(self, case: int, low: Sequence[int], high: Sequence[int]) -> None:
        """Have the box from `low` to before `high` (D, H, W) of a case read in the background, if it is on the disk."""
        if case not in self.cases or not hasattr(os, "posix_fadvise"):
            return
        shape = self.shapes[case]
        low = [max(0, value) for value in low]
        high = [min(size, value) for size, value in zip(shape, high, strict=True)]
        if any(first >= last for first, last in zip(low, high, strict=True)):
            return
        voxels, plane = shape[0] * shape[1] * shape[2], shape[1] * shape[2]
        first, last = low[1] * shape[2], high[1] * shape[2]
        # Rows that are most of their slice: the slices between them are asked for at one stroke.
        whole = 2 * (last - first) >= plane
        runs = [(low[0] * plane + first, (high[0] - 1) * plane + last)] if whole else [
            (depth * plane + first, depth * plane + last) for depth in range(low[0], high[0])
        ]  # fmt: skip
        image, label = self.handles
        for begin, end in runs:
            for channel in range(self.num_channels):
                start = self.offsets[case] * self.num_channels + channel * voxels + begin
                _advise(image, start * self.voxel_bytes, (end - begin) * self.voxel_bytes)
            _advise(label, self.offsets[case] + begin, end - begin)

    def __del__(self) -> None:
        for handle in self.__dict__.pop("handles", []):
            os.close(handle)


def _advise(handle: int, start: int, size: int) -> None:
    os.posix_fadvise(handle, start, size, os.POSIX_FADV_WILLNEED)
