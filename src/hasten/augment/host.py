"""Renders a batch on a CPU, sample by sample, running only the operations that were drawn.

The result is that of `render` (copies and labels bit for bit, the rest to float32 rounding) at a fraction of the work:
a sample that drew no rotation is a strided copy, and an operation runs on the samples that drew it. Working sample by
sample keeps a patch in the processor's cache and the memory beside the batch at a few patches. Drawn values are
read on the host, which on a CPU costs nothing; this is never used on a GPU.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from hasten.augment.chain import Batch, ChainOp, KeyRead, Stage, Warp, groups_of
from hasten.augment.draw import Draws, Maps
from hasten.augment.maps import Map
from hasten.augment.op import ValueOp
from hasten.augment.read import Coordinates, PackedCases, bounded, coordinates_of, samples_as_cases
from hasten.augment.render import changed
from hasten.sample.host import READ, cut, places_at


def render_on_host(stages: Sequence[Stage], cases: Mapping[str, PackedCases], draws: Draws, spatial_dims: int) -> Batch:
    """(B, C, *S) by key, as `render` returns it."""
    first = stages[0]
    assert isinstance(first, Warp)
    batch = _Reader(first, spatial_dims, cases, draws.case, draws.start, draws.stages[0]).read()
    return follow_on_host(stages[1:], batch, draws.stages[1:], spatial_dims)


def follow_on_host(stages: Sequence[Stage], batch: Batch, numbers: Sequence[Any], spatial_dims: int) -> Batch:
    """The later stages, in place on a batch (B, C, *S) by key."""
    at = 0
    while at < len(stages):
        stage, drawn = stages[at], numbers[at]
        run = _run_from(stages, at)
        if isinstance(stage, Warp):
            batch = _Reader(stage, spatial_dims, *samples_as_cases(batch), drawn).read()
        elif run:
            batch = _applied(run, batch, numbers[at : at + len(run)])
        else:
            batch = changed(stage, batch, drawn)
        at += max(len(run), 1)
    return batch


def _run_from(stages: Sequence[Stage], at: int) -> list[ChainOp]:
    """The operations on values that follow each other from here on."""
    run: list[ChainOp] = []
    for stage in stages[at:]:
        if isinstance(stage, Warp) or not isinstance(stage.op, ValueOp):
            break
        run.append(stage)
    return run


def _applied(run: Sequence[ChainOp], batch: Batch, numbers: Sequence[Mapping[str, Tensor]]) -> Batch:
    """Apply a run of operations sample by sample, so that a patch is written back once."""
    uses = [drawn["use"].tolist() for drawn in numbers]
    result = dict(batch)
    for key in dict.fromkeys(key for stage in run for key in stage.op.keys):
        image = result[key] = batch[key].to(torch.float32)
        for row in range(image.shape[0]):
            before = value = image[row : row + 1]
            for stage, use, drawn in zip(run, uses, numbers, strict=True):
                if use[row] and key in stage.op.keys:
                    of_row = {name: each[row : row + 1] for name, each in drawn.items() if name != "use"}
                    value = stage.op.apply(value, of_row)
            if value is not before:
                before.copy_(value)
    return result


@dataclass(frozen=True, slots=True)
class _Reader:
    """One stage, and what it reads of which cases."""

    warp: Warp
    spatial_dims: int
    cases: Mapping[str, PackedCases]
    case: Tensor
    start: Tensor
    maps: Maps

    def read(self) -> Batch:
        """(B, C, *S) by key."""
        batch = {}
        for key, reading in self.warp.readings.items():
            dtype = self.cases[key].values.dtype if reading.is_label else torch.float32
            shape = (self.case.shape[0], self.cases[key].channels, *self.warp.out)
            batch[key] = torch.empty(shape, dtype=dtype)
        for keys in groups_of(self.warp):
            self._group(keys, batch)
        space = self.warp.out[3 - self.spatial_dims :]
        return {key: value.view(*value.shape[:2], *space) for key, value in batch.items()}

    def _group(self, keys: tuple[str, ...], batch: Batch) -> None:
        cases, case, start = self.cases, self.case, self.start
        lead, reading = cases[keys[0]], self.warp.readings[keys[0]]
        affine, size = self.maps[keys[0]], case.shape[0]
        shapes, offsets = lead.shape[case].tolist(), lead.offset[case].tolist()
        linears, shifts, starts = affine.linear.tolist(), affine.shift.tolist(), start.tolist()
        for row in range(size):
            volumes = [_volume(cases[key], offsets[row], shapes[row]) for key in keys]
            out = [batch[key][row] for key in keys]
            copied = _copy_of(shapes[row], starts[row], linears[row], shifts[row], self.warp, reading)
            if copied is not None:
                for volume, target in zip(volumes, out, strict=True):
                    target.copy_(copied.of(volume))
                continue
            sample_map = Map(affine.linear[row : row + 1], affine.shift[row : row + 1])
            coordinates = coordinates_of(sample_map, self.warp.size, self.warp.out)
            self._between(keys, volumes, start[row], coordinates, out)

    def _between(
        self, keys: tuple[str, ...], volumes: list[Tensor], start: Tensor, places: Coordinates, out: list[Tensor]
    ) -> None:
        extent, padding_mode = torch.tensor(volumes[0].shape[1:]), self.warp.readings[keys[0]].padding_mode
        coordinates = tuple(
            bounded(axis, start[number : number + 1], extent[number : number + 1], padding_mode).reshape(-1)
            for number, axis in enumerate(places)
        )
        at = places_at(start.tolist(), coordinates, self.spatial_dims)
        for key, volume, target in zip(keys, volumes, out, strict=True):
            READ[self.warp.readings[key].mode](volume, at, target)


def _volume(cases: PackedCases, offset: int, shape: list[int]) -> Tensor:
    voxels = shape[0] * shape[1] * shape[2]
    flat = cases.values[offset * cases.channels : (offset + voxels) * cases.channels]
    return flat.view(cases.channels, *shape)


@dataclass(frozen=True, slots=True)
class _Copy:
    """Whole voxels of a case: a box, axes turned backward, and their order in the output."""

    lows: list[int]
    sides: list[int]
    backward: list[int]
    order: list[int]

    def of(self, volume: Tensor) -> Tensor:
        """(C, *out), a view where nothing lies outside and nothing is turned."""
        box = cut(volume, self.lows, self.sides)
        return (torch.flip(box, self.backward) if self.backward else box).permute(0, *self.order)


def _copy_of(
    shape: list[int], start: list[int], linear: list[list[float]], shift: list[float], warp: Warp, reading: KeyRead
) -> _Copy | None:
    """The box that a map copies; None if it interpolates, or reads outside and padding is not zeros.

    linear of a flip, a quarter turn or a swap has one 1 or -1 in each row; all else needs interpolation.
    """
    order, signs = [], []
    for row in linear:
        places = [axis for axis in range(3) if row[axis] != 0.0]
        if len(places) != 1 or abs(row[places[0]]) != 1.0:
            return None
        order.append(places[0])
        signs.append(row[places[0]])
    if sorted(order) != [0, 1, 2]:
        return None
    lows, sides = [], []
    for axis in range(3):
        side = warp.out[order[axis]]
        low = shift[axis] + (warp.size[axis] - 1) / 2 - (side - 1) / 2
        if low != round(low):
            return None
        lows.append(start[axis] + round(low))
        sides.append(side)
    outside = any(low < 0 or low + side > extent for low, side, extent in zip(lows, sides, shape, strict=True))
    if outside and reading.padding_mode != "zeros":
        return None
    backward = [axis + 1 for axis in range(3) if signs[axis] < 0]
    return _Copy(lows, sides, backward, [order.index(axis) + 1 for axis in range(3)])
