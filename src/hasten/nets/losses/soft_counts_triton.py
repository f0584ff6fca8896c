"""Soft counts on a GPU, in Triton: one pass over scores and label forward, one backward, which writes the gradient.

The derivative is that of `soft_counts`. Nothing of the scores' size is kept but the scores, of whatever float type,
and their soft-max is computed again. Sums are of chunks of voxels, added up without atomics, so that they repeat bit by
bit.

Importing this needs Triton; see `hasten.kernels.use.kernels_take`.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from hasten.kernels.use import power_of_two
from hasten.nets.losses.soft_counts_kernels import counts_kernel, scores_gradient_kernel
from hasten.nets.surgery.layout import layout_of

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
                scores, label, grad_scores, *factors, scores[0, 0].numel(), ctx.tiles, **ctx.shape,
                IGNORED=ctx.ignored, num_warps=8,
            )  # fmt: skip
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
