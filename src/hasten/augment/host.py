"""A batch on a CPU, sample by sample, doing only what was drawn.

It gives what `render` gives (copies and labels bit for bit, the rest to float32 rounding) at a fraction of the work:
a sample that drew no rotation is a strided copy, and an operation runs on the samples that drew it. Working sample by
sample keeps a patch in the processor's cache and the memory taken beside the batch to a few patches. Drawn values are
read on the host, which on a CPU costs nothing; this is never used on a GPU.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from hasten.augment.chain import Batch, Placed, Reading, Stage, Warp
from hasten.augment.draw import Bent, Draws
from hasten.augment.maps import Map
from hasten.augment.op import Drawn, ValueOp
from hasten.augment.read import Cases, as_cases, bounded, coordinates_of
from hasten.augment.render import changed
from hasten.sample.host import cut, interpolate, nearest


@dataclass(frozen=True, kw_only=True, slots=True)
class Kernels:
    """What is compiled, each for one sample of fixed size; what is absent runs as written."""

    apply: Mapping[int, Callable[..., Tensor]]
    """By position in the chain."""
    read: Mapping[tuple[int, str], Callable[..., Tensor]]
    """By stage and key."""


NOTHING_COMPILED = Kernels(apply={}, read={})


def render_on_host(
    stages: Sequence[Stage],
    cases: Mapping[str, Cases],
    draws: Draws,
    spatial_dims: int,
    kernels: Kernels = NOTHING_COMPILED,
) -> Batch:
    """(B, C, *S) by key, as `render` gives it."""
    first = stages[0]
    assert isinstance(first, Warp)
    bent: Any = draws.stages[0]
    whole = _Reader(stage=0, warp=first, kernels=kernels, spatial_dims=spatial_dims)
    batch = {key: whole.read(key, cases[key], draws.case, draws.start, bent) for key in first.readings}
    batch = {key: _flat(value, spatial_dims) for key, value in batch.items()}
    return follow_on_host(stages[1:], batch, draws.stages[1:], spatial_dims, kernels, first=1)


def follow_on_host(
    stages: Sequence[Stage],
    batch: Batch,
    numbers: Sequence[Any],
    spatial_dims: int,
    kernels: Kernels = NOTHING_COMPILED,
    *,
    first: int = 0,
) -> Batch:
    """The later stages, on a batch of its own (B, C, *S) by key, which is written to."""
    for stage, drawn, number in zip(stages, numbers, range(first, first + len(stages)), strict=True):
        if isinstance(stage, Warp):
            reader = _Reader(stage=number, warp=stage, kernels=kernels, spatial_dims=spatial_dims)
            size = len(next(iter(batch.values())))
            case, start = torch.arange(size), torch.zeros(size, 3, dtype=torch.int64)
            full = {key: value[:, :, None] if spatial_dims == 2 else value for key, value in batch.items()}
            batch = {
                key: _flat(reader.read(key, as_cases(full[key]), case, start, drawn), spatial_dims)
                for key in stage.readings
            }
        elif isinstance(stage.op, ValueOp):
            batch = _applied(stage, batch, drawn, kernels)
        else:
            batch = changed(stage, batch, drawn)
    return batch


def _applied(stage: Placed, batch: Batch, drawn: Mapping[str, Tensor], kernels: Kernels) -> Batch:
    apply = kernels.apply.get(stage.position, stage.op.apply)
    rows = [number for number, use in enumerate(drawn["use"].tolist()) if use]
    found = dict(batch)
    for key in stage.op.keys:
        image = batch[key] if batch[key].dtype == torch.float32 else batch[key].to(torch.float32)
        for row in rows:
            own = {name: value[row : row + 1] for name, value in drawn.items() if name != "use"}
            image[row : row + 1] = apply(image[row : row + 1], own)
        found[key] = image
    return found


@dataclass(frozen=True, kw_only=True, slots=True)
class _Reader:
    stage: int
    warp: Warp
    kernels: Kernels
    spatial_dims: int

    def read(self, key: str, cases: Cases, case: Tensor, start: Tensor, bent: Bent) -> Tensor:
        """(B, C, D, H, W) of one key."""
        found, uses = bent.maps[key], bent.uses[key].tolist() if key in bent.uses else [False] * case.shape[0]
        reading, size = self.warp.readings[key], case.shape[0]
        dtype = cases.values.dtype if reading.is_label else torch.float32
        out = torch.empty(size, cases.channels, *self.warp.out, dtype=dtype)
        shapes, offsets = cases.shape[case].tolist(), cases.offset[case].tolist()
        linears, shifts, starts = found.linear.tolist(), found.shift.tolist(), start.tolist()
        for row in range(size):
            voxels, channels = shapes[row][0] * shapes[row][1] * shapes[row][2], cases.channels
            flat = cases.values[offsets[row] * channels : (offsets[row] + voxels) * channels]
            volume = flat.view(channels, *shapes[row])
            copied = None
            if not uses[row]:
                copied = _copied(volume, starts[row], linears[row], shifts[row], self.warp, reading)
            if copied is not None:
                out[row].copy_(copied)
                continue
            own = Map(found.linear[row : row + 1], found.shift[row : row + 1])
            numbers = (
                {name: value[row : row + 1] for name, value in bent.numbers.get(key, {}).items()} if uses[row] else None
            )
            self._between(key, cases, case[row : row + 1], volume, start[row : row + 1], own, numbers, out[row])
        return out

    def _between(
        self,
        key: str,
        cases: Cases,
        case: Tensor,
        volume: Tensor,
        start: Tensor,
        own: Map,
        numbers: Drawn | None,
        out: Tensor,
    ) -> None:
        reading = self.warp.readings[key]
        kernel = self.kernels.read.get((self.stage, key))
        if kernel is not None and numbers is None:
            out.copy_(kernel(cases.values, cases.shape[case], cases.offset[case], start, own.linear, own.shift)[0])
            return
        displaced = None
        if numbers is not None and reading.bends is not None:
            displaced = reading.bends.displacement(numbers, self.warp.out, self.spatial_dims)
        extent = torch.tensor([volume.shape[1:]])
        coordinates = tuple(
            bounded(axis, start[:, number], extent[:, number], reading.padding_mode).reshape(-1)
            for number, axis in enumerate(coordinates_of(own, self.warp.size, self.warp.out, displaced))
        )
        if reading.mode == "nearest":
            nearest(volume, start[0].tolist(), coordinates, out=out)
        else:
            interpolate(volume, start[0].tolist(), coordinates, self.spatial_dims, out=out)


def _copied(
    volume: Tensor, start: list[int], linear: list[list[float]], shift: list[float], warp: Warp, reading: Reading
) -> Tensor | None:
    """The patch as a view or copy of whole voxels, (C, *out); None where the map lies between voxels.

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
    outside = any(
        low < 0 or low + side > extent for low, side, extent in zip(lows, sides, volume.shape[1:], strict=True)
    )
    if outside and reading.padding_mode != "zeros":
        return None
    box = cut(volume, lows, sides)
    backward = [axis + 1 for axis in range(3) if signs[axis] < 0]
    if backward:
        box = torch.flip(box, backward)
    return box.permute(0, *(order.index(axis) + 1 for axis in range(3)))


def _flat(value: Tensor, spatial_dims: int) -> Tensor:
    return value[:, :, 0] if spatial_dims == 2 else value
