"""Launches the kernels of `hasten.augment.fused_triton` on a batch. Importing this needs Triton."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any, cast

import torch
import triton
from torch import Tensor

from hasten.augment.chain import Batch, Warp
from hasten.augment.draw import Draws, SamplingGrid
from hasten.augment.fused_space_triton import blur_kernel, low_kernel
from hasten.augment.fused_triton import curve_kernel, open_kernel
from hasten.augment.noise import VOXEL
from hasten.augment.op import Drawn
from hasten.augment.read import PackedCases
from hasten.augment.read_triton import PADDINGS
from hasten.sample.random import salt_of
from hasten.sample.random_triton import signed

_BLOCK = 512
_PARTS = 256
"""Programs for each channel of a sample, at most."""
_DEPTH = 16
"""Voxels along D of a program that blurs."""


def launch(
    ops: Sequence[Any], drawn: Sequence[Drawn | None], warp: Warp, key: str, label: str,
    cases: Mapping[str, PackedCases], draws: Draws, flat: bool,
) -> Batch:  # fmt: skip
    """The image `key`, and the label where it is read by the same kernel, (B, C, D, H, W) each.

    ops, drawn: of each of `KINDS` in `hasten.augment.fused`; None for those that the chain does not have. flat: 2-D.
    """
    noise, blur, _, contrast, low, gamma, second = ops
    place = cast("SamplingGrid", draws.stages[0]).maps[key]
    channels, out, batch_size, device = cases[key].channels, warp.out, len(draws.case), draws.key.device
    rows, voxels = batch_size * channels, math.prod(out)
    image = torch.empty(batch_size, channels, *out, device=device)
    spare = torch.empty_like(image) if blur or low else image
    kinds = cases[label or key].values
    labels = kinds.new_empty((batch_size, 1, *out)) if label else kinds
    result = {key: image, label: labels} if label else {key: image}
    if not image.numel():
        return result
    parts = min(_PARTS, triton.next_power_of_2(triton.cdiv(voxels, _BLOCK)))
    table, low_table = torch.empty(2, rows, 3, parts, device=device)
    moments = torch.empty(2, rows, 5, parts, device=device)
    # The numbers of operations that the chain does not have: not drawn.
    absent = torch.zeros(rows, device=device) if None in ops else table

    def number(place: int, name: str) -> Tensor:
        numbers = drawn[place]
        return absent if numbers is None else _bytes(numbers[name])

    use = [number(place, "use") for place in range(len(ops))]
    shade, stretch = (use[2], number(2, "multiplier")), (use[3], number(3, "multiplier"))
    common: dict[str, Any] = {"CHANNELS": channels, "PARTS": parts, "num_warps": 4, "enable_fp_fusion": False}
    clip, grid = bool(contrast and contrast.preserve_range), (rows * parts,)
    reading, stored = warp.readings[key], cases[key]
    open_kernel[grid](
        _bytes(stored.values), _bytes(kinds), stored.shape.contiguous(), stored.offset.contiguous(), draws.case,
        draws.start.contiguous(), place.linear.contiguous(), place.shift.contiguous(), image, spare, _bytes(labels),
        table, use[0], number(0, "std"), draws.key if noise is None else number(0, "key"), use[1], *shade, use[4],
        signed(salt_of(VOXEL)), noise.mean if noise else 0.0, *warp.size, *out,
        NEAREST=reading.mode == "nearest", PADDING=PADDINGS[reading.padding_mode], FLAT=flat, LABELS=bool(label),
        BLOCK=_BLOCK, **common,
    )  # fmt: skip
    if blur:
        sigma = number(1, "sigma")
        radii = [blur.radius(side) for side in out]
        blur_kernel[grid](
            image, spare, table, use[1], sigma, use[4], *shade, *out, AXES=sigma.shape[-1], RADIUS_D=radii[0],
            RADIUS_H=radii[1], RADIUS_W=radii[2], WIDE=triton.next_power_of_2(2 * max(radii) + 2),
            DEPTH=min(_DEPTH, triton.next_power_of_2(out[0])), BLOCK=_BLOCK // 2, **{**common, "num_warps": 8},
        )  # fmt: skip
    if low:
        zoom = number(4, "zoom")
        low_kernel[grid](
            image, spare, table, low_table, use[4], zoom, *stretch, *out, ZOOMS=zoom.shape[1], AXES=zoom.shape[2],
            HALF=low.half_pixel, CLIP=clip, BLOCK=_BLOCK, **common,
        )  # fmt: skip
    curves = [(use[each], *(number(each, name) for name in ("gamma", "invert", "retain"))) for each in (5, 6)]
    steps = [step for step, op in enumerate((gamma, second)) if op and op.p_retain_stats > 0]
    for step in [*steps, 2] if contrast or gamma or second else []:
        curve_kernel[grid](
            image, table, low_table, moments, use[4], *stretch, *curves[0], *curves[1], voxels, rows, CLIP=clip,
            STEP=step, BLOCK=_BLOCK, **common,
        )  # fmt: skip
    return result


def _bytes(value: Tensor) -> Tensor:
    """`value`, contiguous; booleans as uint8, since Triton has no pointers to booleans."""
    value = value.contiguous()
    return value.view(torch.uint8) if value.dtype == torch.bool else value
