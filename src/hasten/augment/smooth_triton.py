# mypy: disallow-untyped-defs = False, disallow-incomplete-defs = False
"""A filter along one axis as one Triton kernel instead of a pass over the image for each weight.

Importing this needs Triton; see `hasten.kernels.use.triton_runs`.
"""

from __future__ import annotations

import math

import torch
import triton
import triton.language as tl
from torch import Tensor

_BLOCK = 1024


# Sides are not specialized: Triton would make 1 a constant and compile a kernel for each divisibility by 16.
@triton.jit(do_not_specialize=["channels", "groups", "voxels", "length", "inner"])
def along_kernel(
    image, weight, out, channels, groups, voxels, length, inner,
    COUNT: tl.constexpr, REFLECT: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """image, out: (B, channels, voxels), voxels as (outer, length, inner); weight: (B, groups, COUNT), groups 1 or
    channels. A channel has fewer than 2**31 voxels."""
    blocks = tl.cdiv(voxels, BLOCK)
    row = tl.program_id(0) // blocks
    voxel = (tl.program_id(0) % blocks) * BLOCK + tl.arange(0, BLOCK)
    place = voxel // inner % length
    weight += (row // channels * groups + row % channels % groups) * COUNT
    first = row.to(tl.int64) * voxels
    total = tl.zeros((BLOCK,), tl.float32)
    for number in tl.static_range(COUNT):
        at = place + (number - COUNT // 2)
        inside = voxel < voxels
        if REFLECT:
            near = tl.where(at < 0, -at, tl.where(at >= length, 2 * (length - 1) - at, at))
        else:
            near = at
            inside = inside & (at >= 0) & (at < length)
        value = tl.load(image + first + (voxel + (near - place) * inner), inside, other=0.0)
        total += value * tl.load(weight + number)
    tl.store(out + first + voxel, total, voxel < voxels)


def along(image: Tensor, weight: Tensor, axis: int, mode: str) -> Tensor:
    """Like `_along` of `hasten.augment.smooth`, for float32 on a GPU.

    image: (B, C, *S); weight: (B, 1 or C, n), n odd. Returns the filtered image, of the same shape.
    """
    image, weight = image.contiguous(), weight.contiguous()
    out = torch.empty_like(image)
    batch, channels, *sides = image.shape
    voxels = math.prod(sides)
    if out.numel():
        along_kernel[(batch * channels * triton.cdiv(voxels, _BLOCK),)](
            image, weight, out, channels, weight.shape[1], voxels, image.shape[axis], math.prod(sides[axis - 1 :]),
            COUNT=weight.shape[-1], REFLECT=mode == "reflect", BLOCK=_BLOCK, num_warps=8,
        )  # fmt: skip
    return out
