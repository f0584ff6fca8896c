"""Soft counts on a CPU as one C++ function each way: `hasten/nets/cpu/soft_counts.cpp`.

The derivative is that of `soft_counts`. Nothing of the scores' size is kept but the scores.
"""

from __future__ import annotations

import ctypes
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from hasten.nets.cpu.kernels import call, cpu_kernels
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
            samples=scores.shape[0], classes=scores.shape[1], voxels=scores[0, 0].numel(),
            ignored=_NO_LABEL if ignore_index is None else ignore_index,
            last=layout_of(scores) is not torch.contiguous_format, wide=label.dtype == torch.int64,
            surprised=surprised, threads=torch.get_num_threads(),
        )  # fmt: skip
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


def cpu_counts(
    scores: Tensor, label: Tensor, *, surprised: bool, ignore_index: int | None = None
) -> tuple[Tensor | None, ...]:
    """Hit, predicted and labelled (B, K), and the surprise (B, K) or None, in float32.

    scores: (B, K, ...) that `cpu_counts_take`. label: (B, 1, ...) class index of any type, or `ignore_index`, whose
    voxels are left out. Raises IndexError for any other label. Differentiable once, in scores.
    """
    return _CpuCounts.apply(scores, label, surprised, ignore_index)
