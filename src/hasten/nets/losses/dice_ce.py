"""Soft Dice plus cross-entropy as one differentiable operation: MONAI's DiceCELoss with a soft-max, in fewer passes.

The derivative is written out: with G_k = dDice/dp_k, which is b_k + a_k t_k for numbers a, b of a sample and class,
dL/dz_k = p_k (G_k - sum_j p_j G_j) + (p_k - t_k) / N.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, distributed
from torch.autograd.function import once_differentiable

from hasten.nets.over_ranks import counts_over_ranks, several_ranks

_SMOOTH = 1e-5
"""MONAI's, in numerator and denominator."""


class _DiceCE(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, scores: Tensor, label: Tensor, include_background: bool, batch: bool, over_ranks: bool
    ) -> Tensor:
        count, classes = scores.shape[:2]
        flat = scores.reshape(count, classes, -1)
        index = label.reshape(count, 1, -1).long()
        share = flat.log_softmax(1)
        entropy = -share.gather(1, index).mean()
        share.exp_()
        target = torch.zeros_like(share).scatter_(1, index, 1.0)
        overlap, size = torch.linalg.vecdot(share, target), share.sum(2) + target.sum(2)
        if batch:
            overlap, size = overlap.sum(0, keepdim=True), size.sum(0, keepdim=True)
            if over_ranks:
                overlap, size = counts_over_ranks(torch.stack([overlap, size]))
        first = 0 if include_background else 1
        numerator, denominator = 2 * overlap + _SMOOTH, size + _SMOOTH
        dice = (1 - numerator / denominator)[:, first:].mean()
        weight = 1 / (numerator.shape[0] * (classes - first))
        # Gradients are averaged over the ranks, each of which has only those of its voxels.
        weight *= distributed.get_world_size() if batch and over_ranks and several_ranks() else 1
        to_hit, to_size = -2 * weight / denominator, weight * numerator / denominator**2
        to_hit[:, :first], to_size[:, :first] = 0, 0
        ctx.save_for_backward(share, target, to_hit.expand(count, -1), to_size.expand(count, -1))
        ctx.shape = scores.shape
        return dice + entropy

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None, None, None, None]:
        share, target, to_hit, to_size = ctx.saved_tensors
        each = 1 / (share.numel() // share.shape[1])
        grad_scores = torch.addcmul(to_size.unsqueeze(2), target, to_hit.unsqueeze(2))
        grad_scores -= (grad_scores * share).sum(1, keepdim=True) - each
        grad_scores.mul_(share).sub_(target, alpha=each)
        return grad_scores.mul_(gradient).reshape(ctx.shape), None, None, None, None


def dice_ce(
    scores: Tensor, label: Tensor, *, include_background: bool, batch: bool, over_ranks: bool = False
) -> Tensor:
    """1 - mean soft Dice, plus mean cross-entropy, of the soft-max of the scores.

    scores: (B, K, ...) float32 or float64, K >= 2. label: (B, 1, ...) class index, any integer type, each in 0..K-1.
    batch: sum over the batch before the Dice is divided; with over_ranks over the batches of all ranks, whose gradients
    must be averaged then. Returns (). Differentiable once, in scores.
    """
    # Autocast would take the products in half precision.
    with torch.autocast(scores.device.type, enabled=False):
        result: Tensor = _DiceCE.apply(scores, label, include_background, batch, over_ranks)
    return result
