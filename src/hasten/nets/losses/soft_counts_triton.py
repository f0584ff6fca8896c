# mypy: disallow-untyped-defs = False, disallow-incomplete-defs = False
"""Soft counts on a GPU, in Triton: one pass over scores and label forward, one backward, which writes the gradient.

The derivative is that of `soft_counts`. Nothing of the scores' size is kept but the scores, of whatever float type,
and their soft-max is computed again. Sums are of chunks of voxels, added up without atomics, so that they repeat bit by
bit.

Importing this needs Triton; see `hasten.kernels.use.kernels_take`.

Scores (B, C, voxels) are read in tiles of ROWS voxels and COLUMNS classes, the power of two that holds all C, of one
sample. LAST: channels-last; else the voxels of a class lie next to each other.
"""

from __future__ import annotations

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor
from torch.autograd.function import once_differentiable

from hasten.kernels.use import power_of_two
from hasten.nets.surgery.layout import layout_of


@triton.jit
def _start(sample, row, voxels, C: tl.constexpr, LAST: tl.constexpr):
    """Offset of a tile's first element."""
    if LAST:
        return (sample.to(tl.int64) * voxels + row) * C
    return sample.to(tl.int64) * C * voxels + row


@triton.jit
def _offsets(voxels, C: tl.constexpr, LAST: tl.constexpr, ROWS: tl.constexpr, COLUMNS: tl.constexpr):
    """Offsets of a tile's elements from its start."""
    rows, columns = tl.arange(0, ROWS)[:, None], tl.arange(0, COLUMNS)[None, :]
    if LAST:
        return rows * C + columns
    else:
        return rows + columns.to(tl.int64) * voxels


@triton.jit
def _shares(
    place,
    label,
    sample,
    row,
    voxels,
    C: tl.constexpr,
    ROWS: tl.constexpr,
    COLUMNS: tl.constexpr,
    IGNORED: tl.constexpr,
):
    """The soft-max, its logarithm, and where the target is 1; a voxel that is not there has neither share nor target.

    So has one with the label IGNORED, if that is not None. Another label that is no class makes everything NaN.
    """
    rows, columns = row + tl.arange(0, ROWS)[:, None], tl.arange(0, COLUMNS)[None, :]
    there = rows < voxels
    index = tl.load(label + sample.to(tl.int64) * voxels + rows, there, other=0).to(tl.int32)
    score = tl.load(place, there & (columns < C), other=0.0).to(tl.float32)
    if IGNORED is not None:
        there = there & (index != IGNORED)
        index = tl.where(index == IGNORED, 0, index)
    score = tl.where((index < 0) | (index >= C), float("nan"), score)
    score = tl.where(columns < C, score, float("-inf"))
    score -= tl.max(score, 1)[:, None]
    share = tl.exp(score)
    total = tl.sum(share, 1)[:, None]
    return tl.where(there, share / total, 0.0), score - tl.log(total), there & (index == columns)


@triton.jit
def counts_kernel(
    scores, label, partial, voxels, chunks, batch,
    SURPRISED: tl.constexpr, TILES: tl.constexpr, C: tl.constexpr, LAST: tl.constexpr, ROWS: tl.constexpr,
    COLUMNS: tl.constexpr, IGNORED: tl.constexpr,
):  # fmt: skip
    """partial (3 or 4, B, chunks, C): hit, predicted, labelled and the surprise of each chunk of TILES tiles."""
    sample, chunk = tl.program_id(0) // chunks, tl.program_id(0) % chunks
    hit = tl.zeros((ROWS, COLUMNS), tl.float32)
    predicted = tl.zeros((ROWS, COLUMNS), tl.float32)
    labelled = tl.zeros((ROWS, COLUMNS), tl.float32)
    surprise = tl.zeros((ROWS, COLUMNS), tl.float32)
    for tile in range(TILES):
        row = (chunk.to(tl.int64) * TILES + tile) * ROWS
        place = scores + _start(sample, row, voxels, C, LAST) + _offsets(voxels, C, LAST, ROWS, COLUMNS)
        share, logarithm, target = _shares(place, label, sample, row, voxels, C, ROWS, COLUMNS, IGNORED)
        hit += tl.where(target, share, 0.0)
        predicted += share
        labelled += target.to(tl.float32)
        if SURPRISED:
            surprise -= tl.where(target, logarithm, 0.0)
    columns = tl.arange(0, COLUMNS)
    into, layer = partial + (sample * chunks + chunk) * C + columns, batch * chunks * C
    tl.store(into, tl.sum(hit, 0), columns < C)
    tl.store(into + layer, tl.sum(predicted, 0), columns < C)
    tl.store(into + 2 * layer, tl.sum(labelled, 0), columns < C)
    if SURPRISED:
        tl.store(into + 3 * layer, tl.sum(surprise, 0), columns < C)


@triton.jit
def scores_gradient_kernel(
    scores, label, out, to_hit, to_predicted, to_surprise, voxels, tiles,
    C: tl.constexpr, LAST: tl.constexpr, ROWS: tl.constexpr, COLUMNS: tl.constexpr, IGNORED: tl.constexpr,
):  # fmt: skip
    """The scores' gradient, from the last tile to the first. to_hit, ...: (B, C), the gradients of the counts."""
    program = tl.num_programs(0) - 1 - tl.program_id(0)
    sample, row = program // tiles, (program % tiles).to(tl.int64) * ROWS
    start, offsets = _start(sample, row, voxels, C, LAST), _offsets(voxels, C, LAST, ROWS, COLUMNS)
    share, _, target = _shares(scores + start + offsets, label, sample, row, voxels, C, ROWS, COLUMNS, IGNORED)
    columns = tl.arange(0, COLUMNS)[None, :]
    at = sample * C + columns
    along = tl.load(to_predicted + at, columns < C, other=0.0)
    along += tl.where(target, tl.load(to_hit + at, columns < C, other=0.0), 0.0)
    common = tl.sum(share * along, 1)[:, None]
    if to_surprise is not None:
        surprise_term = tl.where(target, tl.load(to_surprise + at, columns < C, other=0.0), 0.0)
        result = share * (along - common + tl.sum(surprise_term, 1)[:, None]) - surprise_term
    else:
        result = share * (along - common)
    mask = (row + tl.arange(0, ROWS)[:, None] < voxels) & (columns < C)
    tl.store(out + start + offsets, result.to(out.dtype.element_ty), mask)


_TILE = 4096
"""Scores that a program holds at once: 16 for each of 256 threads."""
_PROGRAMS = 2048
"""Programs that a sum is split over, or up to half as many."""


class _TritonCounts(torch.autograd.Function):
    """Three counts, and the surprise if `surprised`, else None."""

    @staticmethod
    def forward(
        ctx: Any, scores: Tensor, label: Tensor, surprised: bool, ignore_index: int | None
    ) -> tuple[Tensor | None, ...]:
        layout = layout_of(scores)
        scores = scores.contiguous(memory_format=layout)
        label = (label.to(torch.uint8) if label.dtype == torch.bool else label).contiguous()
        batch, classes, voxels = len(scores), scores.shape[1], scores[0, 0].numel()
        shape = _tile(classes, voxels, last=layout is not torch.contiguous_format)
        tiles = -(-voxels // shape["ROWS"])
        each = power_of_two(-(-tiles // max(1, min(tiles, _PROGRAMS // batch))))
        chunks = -(-tiles // each)
        partial = scores.new_empty(4 if surprised else 3, batch, chunks, classes, dtype=torch.float32)
        with torch.cuda.device_of(scores):
            counts_kernel[(batch * chunks,)](
                scores, label, partial, voxels, chunks, batch, SURPRISED=surprised, TILES=each, **shape,
                IGNORED=ignore_index, num_warps=8,
            )  # fmt: skip
        counts = partial.sum(2)
        ctx.save_for_backward(scores, label)
        ctx.shape, ctx.tiles, ctx.surprised, ctx.ignored = shape, tiles, surprised, ignore_index
        hit, predicted, labelled = counts[0], counts[1], counts[2]
        ctx.mark_non_differentiable(labelled)
        return hit, predicted, labelled, counts[3] if surprised else None

    @staticmethod
    @once_differentiable
    def backward(
        ctx: Any, to_hit: Tensor, to_predicted: Tensor, _: Any, to_surprise: Tensor | None
    ) -> tuple[Tensor, None, None, None]:
        scores, label = ctx.saved_tensors
        grad_scores = torch.empty_like(scores)
        factors = [
            each.contiguous() if each is not None and needed else None
            for each, needed in ((to_hit, True), (to_predicted, True), (to_surprise, ctx.surprised))
        ]
        with torch.cuda.device_of(scores):
            scores_gradient_kernel[(len(scores) * ctx.tiles,)](
                scores,
                label,
                grad_scores,
                *factors,
                scores[0, 0].numel(),
                ctx.tiles,
                **ctx.shape,
                IGNORED=ctx.ignored,
                num_warps=8,
            )
        return grad_scores, None, None, None


def _tile(classes: int, voxels: int, *, last: bool) -> dict[str, int | bool]:
    columns = power_of_two(classes)
    return {"C": classes, "LAST": last, "ROWS": min(_TILE // columns, power_of_two(voxels)), "COLUMNS": columns}


def triton_counts(
    scores: Tensor, label: Tensor, *, surprised: bool, ignore_index: int | None = None
) -> tuple[Tensor | None, ...]:
    """Hit, predicted and labelled (B, K), and the surprise (B, K) or None, in float32.

    scores: (B, K, ...) that `kernels_take`, 2 <= K <= 128. label: (B, 1, ...) class index of any type, or
    `ignore_index`, whose voxels are left out. A label that is neither makes `predicted` NaN. Differentiable once, in
    scores.
    """
    return _TritonCounts.apply(scores, label, surprised, ignore_index)
