"""Soft overlap of the soft-max of scores with class index labels: the counts that Dice and Tversky losses are made of.

One differentiable operation in few passes. Its derivative is written out: with p = softmax(z), one-hot labels t and
A_k = dL/dhit_k t_k + dL/dpredicted_k, c_k = dL/dsurprise_k, it is
dL/dz_k = p_k (A_k - sum_j p_j A_j + c_label) - c_k t_k.

On a CPU it is one C++ function each way, `hasten/nets/cpu/soft_counts.cpp`, which keeps nothing of the scores' size but
the scores.
"""

from __future__ import annotations

import ctypes
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from hasten.nets.cpu.kernels import call, cpu_kernels
from hasten.nets.over_ranks import counts_over_ranks
from hasten.nets.surgery.layout import layout_of, on_cpu_only

_MOST = 64
"""Classes."""
_NO_LABEL = -(1 << 63)


class _Settings(ctypes.Structure):
    """`ScoreSettings` of `soft_counts.cpp`."""

    _fields_ = (
        *((name, ctypes.c_int64) for name in ("samples", "classes", "voxels", "ignored")),
        *((name, ctypes.c_int32) for name in ("last", "wide", "surprised", "threads")),
    )


def cpu_counts_take(scores: Tensor, label: Tensor) -> bool:
    """Whether the C++ functions may run now on scores (B, K, ...) and a label (B, 1, ...)."""
    plain = type(scores) is Tensor and type(label) is Tensor and scores.dtype == torch.float32 and scores.numel() > 0
    return plain and scores.shape[1] <= _MOST and on_cpu_only(scores, label) and cpu_kernels().functions is not None


class _CpuCounts(torch.autograd.Function):
    """Three counts, and the surprise if `surprised`, else None."""

    @staticmethod
    def forward(
        ctx: Any, scores: Tensor, label: Tensor, surprised: bool, ignore_index: int | None
    ) -> tuple[Tensor | None, ...]:
        scores = scores.contiguous(memory_format=layout_of(scores))
        label = (label if label.dtype == torch.uint8 else label.long()).contiguous()
        counts = torch.empty(4, *scores.shape[:2])
        ctx.settings = _Settings(
            samples=scores.shape[0],
            classes=scores.shape[1],
            voxels=scores[0, 0].numel(),
            ignored=_NO_LABEL if ignore_index is None else ignore_index,
            last=layout_of(scores) is not torch.contiguous_format,
            wide=label.dtype == torch.int64,
            surprised=surprised,
            threads=torch.get_num_threads(),
        )
        call("soft_counts", ctx.settings, (scores, label, counts))
        ctx.save_for_backward(scores, label)
        hit, predicted, labelled, surprise = counts.unbind()
        ctx.mark_non_differentiable(labelled)
        return hit, predicted, labelled, surprise if surprised else None

    @staticmethod
    @once_differentiable
    def backward(
        ctx: Any, to_hit: Tensor, to_predicted: Tensor, _: Any, to_surprise: Tensor | None
    ) -> tuple[Tensor, None, None, None]:
        scores, label = ctx.saved_tensors
        gradient = torch.empty_like(scores)
        factors = (None if each is None else each.contiguous() for each in (to_hit, to_predicted, to_surprise))
        call("soft_counts_backward", ctx.settings, (scores, label, *factors, gradient))
        return gradient, None, None, None


@dataclass(frozen=True, slots=True)
class Counts:
    """Voxels, soft ones, of each sample and class (B, K), or of each class (K,)."""

    hit: Tensor
    """Sum of share times target."""
    predicted: Tensor
    labelled: Tensor

    def foreground(self) -> Counts:
        """Counts without class 0."""
        return Counts(self.hit[:, 1:], self.predicted[:, 1:], self.labelled[:, 1:])

    def over_batch(self) -> Counts:
        return Counts(self.hit.sum(0), self.predicted.sum(0), self.labelled.sum(0))

    def over_ranks(self) -> Counts:
        """Counts of all ranks together, for a loss that each computes from the same sums."""
        return Counts(*counts_over_ranks(torch.stack([self.hit, self.predicted, self.labelled])))


class _SoftCounts(torch.autograd.Function):
    """Three counts, and the surprise if `surprised`, else None. Voxels labelled `ignore_index` are in none of them."""

    @staticmethod
    def forward(
        ctx: Any, scores: Tensor, label: Tensor, surprised: bool, ignore_index: int | None
    ) -> tuple[Tensor | None, ...]:
        count, classes = scores.shape[:2]
        flat, index = scores.reshape(count, classes, -1), label.reshape(count, 1, -1).long()
        share = flat.log_softmax(1) if surprised else flat.softmax(1)
        ignored = None if ignore_index is None else index == ignore_index
        index = index if ignored is None else index.masked_fill(ignored, 0)
        target = torch.zeros_like(share).scatter_(1, index, 1.0)
        if ignored is not None:
            target.masked_fill_(ignored, 0.0)
        surprise = None
        if surprised:
            surprise = -torch.linalg.vecdot(share, target)
            share.exp_()
        if ignored is not None:
            share.masked_fill_(ignored, 0.0)  # with the target's 0, all that the gradient has of these voxels is 0, too
        hit, predicted, labelled = torch.linalg.vecdot(share, target), share.sum(2), target.sum(2)
        ctx.mark_non_differentiable(labelled)
        ctx.save_for_backward(share, target, index if surprised else None)
        ctx.shape = scores.shape
        return hit, predicted, labelled, surprise

    @staticmethod
    @once_differentiable
    def backward(
        ctx: Any, to_hit: Tensor, to_predicted: Tensor, _: Any, to_surprise: Tensor | None
    ) -> tuple[Tensor, None, None, None]:
        share, target, index = ctx.saved_tensors
        grad_scores = torch.addcmul(to_predicted.unsqueeze(2), target, to_hit.unsqueeze(2))
        common = (grad_scores * share).sum(1, keepdim=True)
        if index is not None:
            assert to_surprise is not None
            common -= to_surprise.gather(1, index.squeeze(1)).unsqueeze(1)
        grad_scores.sub_(common).mul_(share)
        if index is not None:
            assert to_surprise is not None
            grad_scores.addcmul_(target, to_surprise.unsqueeze(2), value=-1)
        return grad_scores.reshape(ctx.shape), None, None, None


def soft_counts(
    scores: Tensor, label: Tensor, *, surprised: bool = False, kernels: bool = False, ignore_index: int | None = None
) -> tuple[Counts, Tensor | None]:
    """Counts (B, K) of the soft-max of the scores; if `surprised` also the sum (B, K) of -log p over a class's voxels.

    scores: (B, K, ...) float32 or float64, K >= 2. label: (B, 1, ...) class index, any integer type, each in 0..K-1 or
    `ignore_index`, whose voxels are left out. kernels: by Triton, on a GPU, where scores may be float16 or bfloat16,
    too. Differentiable once, in scores. The C++ functions raise IndexError for any other label.
    """
    if kernels:
        from hasten.nets.losses.soft_counts_triton import triton_counts

        *counts, surprise = triton_counts(scores, label, surprised=surprised, ignore_index=ignore_index)
    else:
        function: Any = _CpuCounts if cpu_counts_take(scores, label) else _SoftCounts
        *counts, surprise = function.apply(scores, label, surprised, ignore_index)
    return Counts(*counts), surprise  # type: ignore[arg-type]
