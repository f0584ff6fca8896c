"""Positions and weights of sliding windows, and their sums, cell by cell, each freed once no further window covers it.

Of K scores for each voxel of a volume only those are in memory that are still being summed: with windows taken in
slabs along the longest axis, about the overlap of two slabs and one row of windows.
"""

from __future__ import annotations

import dataclasses
import logging
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import product
from typing import Literal

import torch
from torch import Tensor

from hasten.config.schema import Triple
from hasten.devices import empty_cache
from hasten.runtime.out_of_memory import out_of_memory, out_of_memory_ends_block

log = logging.getLogger(__name__)

Mode = Literal["constant", "gaussian"]
Sigma = tuple[float, float, float]
"""Deviation of the Gaussian along each axis as a share of the window's side."""

_FLOOR = 1e-3
"""MONAI's minimum weight. Because of it the map is not separable into three profiles."""


@dataclass(frozen=True, slots=True)
class Overlap:
    """The overlap of a window and a cell along one axis."""

    cell: int
    in_window: slice
    in_cell: slice
    whole: bool
    """The window covers the cell's whole side."""


@dataclass(frozen=True, slots=True)
class Axis:
    """Windows and cells along one axis of a volume, in voxels of the padded volume."""

    size: int
    """The padded side: the volume's, but at least the window's."""
    before: int
    """Padding in front."""
    starts: tuple[int, ...]
    """First voxel of each window."""
    cells: tuple[slice, ...]
    """Cells do not overlap and together cover the volume without its padding."""
    parts: tuple[tuple[Overlap, ...], ...]
    """The cells that each window meets."""

    def meeting(self, cell: int) -> list[Overlap]:
        """The part of every window that overlaps a cell."""
        return [part for parts in self.parts for part in parts if part.cell == cell]


def make_axis(side: int, window: int, overlap: float) -> Axis:
    """Windows as MONAI's `sliding_window_inference` lays them, and cells that windows cover as a whole where they can.

    Cells end where windows begin or end, so that a cell's sums are complete, and can be given up, as early as possible.
    Of such places that are closer than a fifth of a window only the first counts: cells would be many and thin.
    """
    size = max(side, window)
    before = (size - side) // 2
    starts = window_starts(size, window, overlap)
    cuts = [before]
    for place in sorted({*starts, *(start + window for start in starts)}):
        if before + side - place >= window / 5 and place - cuts[-1] >= window / 5:
            cuts.append(place)
    cells = tuple(slice(first, last) for first, last in zip(cuts, [*cuts[1:], before + side], strict=True))
    parts = tuple(tuple(_parts(start, window, cells)) for start in starts)
    return Axis(size, before, tuple(starts), cells, parts)


def restricted(axis: Axis, window: int, part: slice) -> Axis:
    """The cells, cut off where need be, and the windows that some voxels of the volume need."""
    first, last = part.start + axis.before, part.stop + axis.before
    cut = (slice(max(first, cell.start), min(last, cell.stop)) for cell in axis.cells)
    cells = tuple(cell for cell in cut if cell.start < cell.stop)
    starts = tuple(start for start in axis.starts if start < last and start + window > first)
    parts = tuple(tuple(_parts(start, window, cells)) for start in starts)
    return dataclasses.replace(axis, starts=starts, cells=cells, parts=parts)


def _parts(start: int, window: int, cells: tuple[slice, ...]) -> list[Overlap]:
    parts = []
    for number, cell in enumerate(cells):
        first, last = max(start, cell.start), min(start + window, cell.stop)
        if first < last:
            whole = (first, last) == (cell.start, cell.stop)
            inside = slice(first - cell.start, last - cell.start)
            parts.append(Overlap(number, slice(first - start, last - start), inside, whole))
    return parts


def window_starts(side: int, window: int, overlap: float) -> list[int]:
    """First voxel of each window along an axis; the last one ends with the volume."""
    interval = max(1, int(window * (1 - overlap)))
    count = -(-(side - window) // interval) + 1 if side > window else 1
    return [min(number * interval, side - window) for number in range(count)]


def weight_map(window: Triple, mode: Mode, sigma: Sigma, device: torch.device) -> Tensor:
    """(d, h, w) float32, positive: the weight of each voxel of a window, 1 or a Gaussian.

    The Gaussian is floored at a thousandth, as in MONAI.
    """
    if mode == "constant":
        return torch.ones((), device=device).expand(window)
    weight = torch.ones((), device=device)
    for axis, side in enumerate(window):
        offset = torch.arange(side, device=device, dtype=torch.float32) - (side - 1) / 2
        profile = torch.exp(-0.5 * (offset / (sigma[axis] * side)) ** 2)
        weight = weight * profile.view([-1 if place == axis else 1 for place in range(3)])
    return weight.clamp(min=_FLOOR)


def cover(axes: Sequence[Axis], cell: Triple, weight: Tensor) -> Tensor:
    """Sum of the window weights in one cell, by which its sums of scores are divided. Shape of the cell, float32."""
    sides = (axis.cells[number] for axis, number in zip(axes, cell, strict=True))
    total = weight.new_zeros([side.stop - side.start for side in sides])
    for parts in product(*(axis.meeting(number) for axis, number in zip(axes, cell, strict=True))):
        total[tuple(part.in_cell for part in parts)] += weight[tuple(part.in_window for part in parts)]
    return total


HOST = torch.device("cpu")
Box = tuple[slice, ...]
"""Voxels of a part of a volume, along D, H and W."""


class Sink:
    """Receives complete cells."""

    repeatable = True
    """Whether `take` may be called again where it ran out of memory."""

    def room(self, slot: Box, like: Tensor) -> Tensor | None:
        """Memory of the result itself for a cell's sums, (K, *slot), or None. `like`: (K, ...) scores."""
        return None

    def take(self, slot: Box, sums: Tensor, weights: Callable[[], Tensor]) -> None:
        """sums: (K, d, h, w) of one cell; weights: gives what they are to be divided by, (d, h, w)."""
        raise NotImplementedError

    def result(self) -> Tensor:
        """All cells together: (K, D, H, W) scores, or (..., D, H, W) of what is decided."""
        raise NotImplementedError


class ArgmaxSink(Sink):
    """What is decided of every voxel as soon as its cell is complete. Weights are positive, so none are summed.

    decide: the sums (K, d, h, w) of a cell to (..., d, h, w) of the result, as `highest` does; or of classes that may
    overlap their masks, where sums are above 0.
    """

    def __init__(self, decide: Callable[[Tensor], Tensor], shape: Triple, device: torch.device) -> None:
        self._decide, self._shape, self._device = decide, shape, device
        self._out: Tensor | None = None

    def take(self, slot: Box, sums: Tensor, weights: Callable[[], Tensor]) -> None:
        result = self._decide(sums)
        if self._out is None:
            with torch.inference_mode(False):  # a result that its owner may change
                self._out = torch.empty((*result.shape[:-3], *self._shape), dtype=result.dtype, device=self._device)
        d, h, w = slot
        self._out[..., d, h, w] = result.to(self._device)

    def result(self) -> Tensor:
        assert self._out is not None
        return self._out


class Scores(Sink):
    """Weighted means, (K, D, H, W). Where type and device allow, the result itself holds the sums."""

    def __init__(self, room: Callable[[int], Tensor], sums: torch.dtype) -> None:
        """room: gives memory for the scores of that many classes, the same one each time; sums: the type of sums."""
        self._allocate, self._sums = room, sums
        self._out: Tensor | None = None

    def room(self, slot: Box, like: Tensor) -> Tensor | None:
        out = self._room(len(like))
        return out[(slice(None), *slot)] if out.dtype == self._sums and out.device == like.device else None

    def take(self, slot: Box, sums: Tensor, weights: Callable[[], Tensor]) -> None:
        out = self._room(len(sums))[(slice(None), *slot)]
        divisor = weights().to(sums.device)
        if sums.data_ptr() == out.data_ptr():
            out.div_(divisor)
        else:
            out.copy_(sums / divisor)

    def _room(self, classes: int) -> Tensor:
        if self._out is None:
            self._out = self._allocate(classes)
        return self._out

    def result(self) -> Tensor:
        assert self._out is not None
        return self._out


def score_room(shape: Sequence[int], device: torch.device, dtype: torch.dtype) -> Tensor:
    """Memory for scores of `shape`, (K, D, H, W) or (N, K, D, H, W): on the device if it has room, else on the host."""
    with torch.inference_mode(False):  # a result that its owner may change
        with out_of_memory_ends_block(device != HOST):
            return torch.empty(*shape, dtype=dtype, device=device)
        log.warning("no room for all scores on %s; they are gathered in host memory", device)
        return torch.empty(*shape, dtype=dtype)


@dataclass(slots=True)
class Canvas:
    """One volume's cells."""

    axes: Sequence[Axis]
    """Axes D, H and W."""
    weight: Tensor
    """(d, h, w) float32 of a window."""
    sink: Sink
    dtype: torch.dtype
    """Data type of the sums."""
    device: torch.device
    """Device of the sums; they move to the host where it has no room."""
    cells: dict[Triple, Tensor] = dataclasses.field(default_factory=dict)
    """(K, d, h, w) sums of each cell that waits for further windows, by its number along each axis."""
    waiting: dict[Triple, int] = dataclasses.field(init=False)
    """Number of windows that each cell still waits for."""

    def __post_init__(self) -> None:
        self.weight = self.weight.to(self.device)
        depth, height, width = ([len(axis.meeting(cell)) for cell in range(len(axis.cells))] for axis in self.axes)
        cells = product(enumerate(depth), enumerate(height), enumerate(width))
        self.waiting = {(d, h, w): along * down * across for (d, along), (h, down), (w, across) in cells}

    def windows(self) -> Iterator[Triple]:
        """Every window as its number along each axis. Along the axis with the most windows the number changes last."""
        order = sorted(range(3), key=lambda axis: -len(self.axes[axis].starts))
        for numbers in product(*(range(len(self.axes[axis].starts)) for axis in order)):
            indices = dict(zip(order, numbers, strict=True))
            yield indices[0], indices[1], indices[2]

    def place(self, window: Triple) -> Box:
        """The window's voxels in the padded volume. `weight` has its size."""
        starts = (axis.starts[number] for axis, number in zip(self.axes, window, strict=True))
        return tuple(slice(start, start + side) for start, side in zip(starts, self.weight.shape, strict=True))

    @property
    def done(self) -> bool:
        return not self.waiting

    def add(self, window: Triple, score: Tensor) -> None:
        """score: (K, d, h, w) of one window, of any float type and on any device."""
        score = self._near(score)
        for parts in product(*(axis.parts[number] for axis, number in zip(self.axes, window, strict=True))):
            cell = (parts[0].cell, parts[1].cell, parts[2].cell)
            self._with_room(partial(self._put, cell, parts, score))
            self.waiting[cell] -= 1
            if not self.waiting[cell]:
                hand_on = partial(self._hand_on, cell)
                self._with_room(hand_on) if self.sink.repeatable else hand_on()
                del self.waiting[cell], self.cells[cell]

    def _with_room(self, act: Callable[[], None]) -> None:
        """Run `act`; if device memory runs out, run it again on the host. A failed `act` must not change the sums."""
        try:
            return act()
        except RuntimeError as error:
            if self.device == HOST or not out_of_memory(error):
                raise
        self.to_host()
        act()

    def to_host(self) -> None:
        """Free what the sums take on their device."""
        log.warning("out of memory on %s; the sums of windows continue in host memory", self.device)
        self.device, self.weight = HOST, self.weight.cpu()
        for cell in list(self.cells):
            self.cells[cell] = self.cells[cell].cpu()
        empty_cache()

    def _near(self, score: Tensor) -> Tensor:
        return score if score.device.type == self.device.type else score.to(self.device)

    def _put(self, cell: Triple, parts: Sequence[Overlap], score: Tensor) -> None:
        d, h, w = (part.in_window for part in parts)
        piece, weight = self._near(score[:, d, h, w]), self.weight[d, h, w]
        sums = self.cells.get(cell)
        if sums is None and all(part.whole for part in parts):
            # The first window covers all of the cell: nothing to clear and nothing to read.
            room = self.sink.room(self._slot(cell), piece)
            self.cells[cell] = torch.mul(piece, weight, out=room).to(self.device, self.dtype)
            return
        if sums is None:
            sums = self._blank(cell, piece)
        d, h, w = (part.in_cell for part in parts)
        sums[:, d, h, w].addcmul_(piece, weight)
        self.cells[cell] = sums

    def _blank(self, cell: Triple, piece: Tensor) -> Tensor:
        room = self.sink.room(self._slot(cell), piece)
        if room is not None:
            return room.zero_()
        shape = [side.stop - side.start for side in self._slot(cell)]
        # Strided as the pieces are: adding channels-last pieces to other sums takes twice as long.
        if piece.stride(0) == 1:
            return torch.zeros([*shape, len(piece)], dtype=self.dtype, device=self.device).permute(3, 0, 1, 2)
        return torch.zeros([len(piece), *shape], dtype=self.dtype, device=self.device)

    def _hand_on(self, cell: Triple) -> None:
        self.sink.take(self._slot(cell), self.cells[cell], lambda: cover(self.axes, cell, self.weight))

    def _slot(self, cell: Triple) -> Box:
        cuts = (axis.cells[number] for axis, number in zip(self.axes, cell, strict=True))
        return tuple(
            slice(cut.start - axis.before, cut.stop - axis.before) for cut, axis in zip(cuts, self.axes, strict=True)
        )
