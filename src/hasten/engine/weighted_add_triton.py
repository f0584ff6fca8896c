# mypy: disallow-untyped-defs = False, disallow-incomplete-defs = False
"""`weighted_add.add_weighted` in Triton. Importing this needs Triton; see `hasten.kernels.use.triton_runs`."""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from hasten.kernels.use import power_of_two

_TILE = 2048
"""Elements that a program adds."""


@triton.jit
def add_weighted_kernel(
    sums, scores, weight, rows, length, middle, inner, sums_0, sums_1, sums_2, scores_0, scores_1, scores_2,
    weight_0, weight_1, weight_2, weight_3, REPEAT: tl.constexpr, ROWS: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """Rows over three axes, the last two of `middle` and `inner` places, with the strides of each tensor; a row is
    contiguous in sums and scores, and REPEAT elements of it share a weight.
    """
    row = (tl.program_id(0) * ROWS + tl.arange(0, ROWS)[:, None]).to(tl.int64)
    at = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)[None, :]
    mask = (row < rows) & (at < length)
    first, second, third = row // (middle * inner), row // inner % middle, row % inner
    place = sums + first * sums_0 + second * sums_1 + third * sums_2 + at
    score = tl.load(scores + first * scores_0 + second * scores_1 + third * scores_2 + at, mask, other=0.0)
    factor = weight + first * weight_0 + second * weight_1 + third * weight_2 + at // REPEAT * weight_3
    product = score.to(tl.float32) * tl.load(factor, mask, other=0.0).to(tl.float32)
    total = tl.load(place, mask, other=0.0).to(tl.float32) + product
    tl.store(place, total.to(sums.dtype.element_ty), mask)


def rows_alike(sums: Tensor, scores: Tensor) -> bool:
    """Whether the kernel takes these (K, d, h, w): both with neighbouring classes, or both with neighbouring voxels."""
    return all(_classes_last(each) for each in (sums, scores)) or all(each.stride(3) == 1 for each in (sums, scores))


def _classes_last(value: Tensor) -> bool:
    return value.stride(0) == 1 and value.stride(3) == len(value)


def add_weighted_by_kernel(sums: Tensor, scores: Tensor, weight: Tensor) -> None:
    """sums += scores * weight, in place: (K, d, h, w) each, which are `rows_alike`, and (d, h, w) of any strides."""
    classes, *sides = scores.shape
    if _classes_last(sums) and _classes_last(scores):
        repeat, length, axes = classes, classes * sides[2], (1, *sides[:2])
        strides = [(0, *each.stride()[1:3]) for each in (sums, scores)] + [(0, *weight.stride()[:2])]
    else:
        repeat, length, axes = 1, sides[2], (classes, *sides[:2])
        strides = [each.stride()[:3] for each in (sums, scores)] + [(0, *weight.stride()[:2])]
    block = min(power_of_two(length), _TILE)
    height, rows = _TILE // block, axes[0] * axes[1] * axes[2]
    with torch.cuda.device_of(sums):
        add_weighted_kernel[(triton.cdiv(rows, height), triton.cdiv(length, block))](
            sums, scores, weight, rows, length, *axes[1:], *strides[0], *strides[1], *strides[2], weight.stride(2),
            REPEAT=repeat, ROWS=height, BLOCK=block, num_warps=4,
        )  # fmt: skip
