"""Renders nnU-Net's operations on values in the few kernels of `hasten.augment.fused_triton`.

Each operation by itself reads and writes the whole batch, whether or not a sample drew it. Here noise and brightness
are part of the kernels before them, contrast and the two curves are one pass, and what a sample did not draw moves none
of its bytes.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import cast

from hasten.augment.chain import Batch, ChainOp, Stage, Warp
from hasten.augment.contrast import Contrast, Gamma
from hasten.augment.draw import Draws
from hasten.augment.intensity import Brightness
from hasten.augment.lowres import SimulateLowResolution
from hasten.augment.noise import GaussianNoise
from hasten.augment.op import Drawn
from hasten.augment.read import PackedCases
from hasten.augment.render import follow, render, warped
from hasten.augment.smooth import Blur
from hasten.kernels.use import triton_runs

KINDS = (GaussianNoise, Blur, Brightness, Contrast, SimulateLowResolution, Gamma, Gamma)
"""The operations that are fused, in this order. Each may be absent."""
_LARGEST_BLUR = 1.5
"""Sigma in voxels. The taps of two axes are written out in the kernel: beyond this, axis by axis is faster."""


def fused_places(stages: Sequence[Stage]) -> list[int | None]:
    """The place among `stages` of each of `KINDS`; [] where none follows the first stage, or it can't be fused."""
    places: list[int | None] = [None] * len(KINDS)
    at, keys = 0, None
    for number, stage in enumerate(stages[1:], 1):
        if not isinstance(stage, ChainOp) or type(stage.op) not in KINDS[at:] or keys not in (None, stage.op.keys):
            break
        if isinstance(stage.op, Blur) and stage.op.blur_sigma[1] > _LARGEST_BLUR:
            break
        at, keys = KINDS.index(type(stage.op), at) + 1, stage.op.keys
        places[at - 1] = number
    if keys is None or len(keys) != 1:
        return []
    assert isinstance(stages[0], Warp)
    reading = stages[0].readings[keys[0]]
    return [] if reading.is_label or reading.mode == "majority" else places


def render_fused(stages: Sequence[Stage], cases: Mapping[str, PackedCases], draws: Draws, spatial_dims: int) -> Batch:
    """Like `render`, but with the fused kernels.

    Falls back to `render` for a chain that they can't run, and without Triton.
    """
    places = fused_places(stages)
    if not places or not triton_runs(draws.key):
        return render(stages, cases, draws, spatial_dims)
    return launch_fused(stages, places, cases, draws, spatial_dims)


def launch_fused(
    stages: Sequence[Stage],
    places: Sequence[int | None],
    cases: Mapping[str, PackedCases],
    draws: Draws,
    spatial_dims: int,
) -> Batch:
    """(B, C, *S) by key, as `render` returns it. places: of `fused_places`. Needs Triton."""
    from hasten.augment.fused_triton import launch

    warp = cast("Warp", stages[0])
    ops = [None if place is None else cast("ChainOp", stages[place]).op for place in places]
    numbers: list[Drawn | None] = [None if place is None else draws.stages[place] for place in places]
    last = max(place for place in places if place is not None)
    key = cast("ChainOp", stages[last]).op.keys[0]
    batch = launch(ops, numbers, warp, key, _label_beside(warp, key, cases), cases, draws, spatial_dims == 2)
    batch = {name: value.view(*value.shape[:2], *warp.out[3 - spatial_dims :]) for name, value in batch.items()}
    rest = {name: reading for name, reading in warp.readings.items() if name not in batch}
    if rest:
        batch |= warped(replace(warp, readings=rest), cases, draws.stages[0], draws.case, draws.start, spatial_dims)
    batch = {name: batch[name] for name in warp.readings}
    return follow(stages[last + 1 :], batch, draws.stages[last + 1 :], spatial_dims)


def _label_beside(warp: Warp, key: str, cases: Mapping[str, PackedCases]) -> str:
    """A label of one channel, whose nearest voxels are read at the places of the image; "" if there is none."""
    image = warp.readings[key]
    for name, reading in warp.readings.items():
        same = reading.ops == image.ops and (reading.mode, reading.padding_mode) == ("nearest", image.padding_mode)
        if name != key and same and reading.is_label and cases[name].channels == 1:
            return name
    return ""
