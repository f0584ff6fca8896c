"""Renders a batch from its draws, all samples at once: no value is read on the host and shapes are static."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from hasten.augment.chain import Batch, ChainOp, Fixed, Stage, Warp
from hasten.augment.draw import Draws, Maps
from hasten.augment.op import spread
from hasten.augment.read import PackedCases, read_mapped, samples_as_cases


def render(stages: Sequence[Stage], cases: Mapping[str, PackedCases], draws: Draws, spatial_dims: int) -> Batch:
    """(B, C, *S) by key: float32, but labels are in their stored type unless an operation makes other values of them.

    cases: of each key. stages: without PerSample ones; the first is a Warp.
    """
    first = stages[0]
    assert isinstance(first, Warp)
    batch = warped(first, cases, draws.stages[0], draws.case, draws.start, spatial_dims)
    return follow(stages[1:], batch, draws.stages[1:], spatial_dims)


def follow(stages: Sequence[Stage], batch: Batch, numbers: Sequence[Any], spatial_dims: int) -> Batch:
    """The later stages, on a batch (B, C, *S) by key."""
    for stage, drawn in zip(stages, numbers, strict=True):
        if isinstance(stage, Warp):
            cases, case, start = samples_as_cases(batch)
            batch = batch | warped(stage, cases, drawn, case, start, spatial_dims)
        else:
            batch = changed(stage, batch, drawn)
    return batch


def changed(stage: ChainOp, batch: Batch, drawn: Mapping[str, Tensor]) -> Batch:
    """The batch, (B, C, *S) by key, after an operation on values. drawn: its numbers, (B, ...) each."""
    op = stage.op
    if isinstance(op, Fixed):
        return op.apply(batch)
    result = dict(batch)
    for key in op.keys:
        image = batch[key].to(torch.float32)
        new = op.apply(image, drawn)
        result[key] = new if op.prob >= 1 else torch.where(spread(drawn["use"], image), new, image)
    return result


def warped(
    warp: Warp, cases: Mapping[str, PackedCases], maps: Maps, case: Tensor, start: Tensor, spatial_dims: int
) -> Batch:
    """The keys of a Warp, read from the cases: (B, C, *S) each."""
    result = {}
    for key, reading in warp.readings.items():
        value = read_mapped(
            cases[key],
            case,
            start,
            maps[key],
            warp.size,
            warp.out,
            mode=reading.mode,
            padding_mode=reading.padding_mode,
            spatial_dims=spatial_dims,
        )
        value = value.view(len(case), -1, *warp.out[3 - spatial_dims :])
        result[key] = value if reading.is_label else value.to(torch.float32)
    return result
