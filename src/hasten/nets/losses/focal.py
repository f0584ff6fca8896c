"""The sigmoid focal loss as one differentiable operation in few passes, equal to MONAI's `sigmoid_focal_loss`.

With s = -z where the label holds and z elsewhere, q = sigmoid(s) is the share of the wrong answer, and the loss
q^g softplus(s). Its derivative q^g (g (1 - q) softplus(s) + q) in s is computed in the forward pass, from its terms.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.autograd.function import once_differentiable


def _sums_and_slope(signed: Tensor, gamma: float) -> tuple[Tensor, Tensor]:
    """(B, K) sums of the loss over space for signed scores (B, K, N), and its derivative in each score."""
    surprise, wrong = F.softplus(signed), signed.sigmoid()
    much = wrong.square() if gamma == 2 else wrong.pow(gamma)
    sums = torch.linalg.vecdot(much, surprise)
    slope = surprise.addcmul_(surprise, wrong, value=-1).mul_(gamma).add_(wrong).mul_(much)
    return sums, slope


class _Focal(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, scores: Tensor, label: Tensor, gamma: float, first: int) -> Tensor:
        index = label.reshape(label.shape[0], 1, -1).long()
        flat = scores.flatten(2)
        signed = flat.scatter(1, index, -flat.gather(1, index))[:, first:]
        sums, slope = _sums_and_slope(signed, gamma)
        ctx.save_for_backward(slope, index)
        ctx.shape, ctx.first = scores.shape, first
        return sums

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None, None, None]:
        slope, index = ctx.saved_tensors
        grad_scores = slope.new_zeros(*ctx.shape[:2], slope.shape[2])
        grad_scores[:, ctx.first :] = slope * gradient.unsqueeze(2)
        grad_scores.scatter_(1, index, -grad_scores.gather(1, index))
        return grad_scores.reshape(ctx.shape), None, None, None


class _FocalOfSigned(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, signed: Tensor, gamma: float) -> Tensor:
        sums, slope = _sums_and_slope(signed, gamma)
        ctx.save_for_backward(slope)
        return sums

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None]:
        (slope,) = ctx.saved_tensors
        return slope * gradient.unsqueeze(2), None


def focal_of_signed(signed: Tensor, *, gamma: float) -> Tensor:
    """(B, K): the focal loss summed over space. signed: (B, K, N) scores, negated where the label holds.

    Differentiable once.
    """
    return _FocalOfSigned.apply(signed, gamma)


def focal_sums(scores: Tensor, label: Tensor, *, gamma: float, first: int = 0) -> Tensor:
    """(B, K - first): the focal loss of each class against the rest, summed over space.

    scores: (B, K, ...) float32. label: (B, 1, ...) class index, any integer type, each in 0..K-1. gamma: 0 or more.
    first: classes before it are left out. Differentiable once, in scores.
    """
    return _Focal.apply(scores, label, gamma, first)


Alpha = float | Sequence[float] | None


def focal_voxels(scores: Tensor, target: Tensor, *, gamma: float, alpha: Alpha) -> Tensor:
    """The focal loss (B, K, ...) of each voxel by plain operations. target: (B, K, ...) float, 0 to 1.

    alpha: weight of the voxels of a class; its other voxels get 1 - alpha. With one number for each class, its other
    voxels get 1; with None, all get 1. Raises ValueError unless there is one for each class.
    """
    entropy = scores - scores * target - F.logsigmoid(scores)
    losses = (gamma * F.logsigmoid(-scores * (target * 2 - 1))).exp() * entropy
    if alpha is None:
        return losses
    if isinstance(alpha, Sequence):
        return torch.where(target == 1, _of_classes(alpha, scores), 1.0) * losses
    return (target * alpha + (1 - target) * (1 - alpha)) * losses


def focal_voxels_of_softmax(scores: Tensor, target: Tensor, *, gamma: float, alpha: Alpha) -> Tensor:
    """Like `focal_voxels`, (B, K, ...), for soft-max shares: 0 for the classes that a voxel does not have.

    scores, target: (B, K, ...). alpha: weight of each class; one number is that of all but the first, which gets
    1 - alpha. Raises ValueError unless there is one for each class.
    """
    log = scores.log_softmax(1)
    losses = -(1 - log.exp()).pow(gamma) * log * target
    if alpha is None:
        return losses
    each = alpha if isinstance(alpha, Sequence) else [1 - alpha, *[alpha] * (scores.shape[1] - 1)]
    return _of_classes(each, scores) * losses


def _of_classes(alpha: Sequence[float], scores: Tensor) -> Tensor:
    """(K, 1, ...)."""
    if len(alpha) != scores.shape[1]:
        raise ValueError(f"alpha: {len(alpha)} for {scores.shape[1]} classes that count; give one for each")
    # Filled on the device: a copy from the host would wait, and can't be captured.
    return torch.stack([scores.new_full([1] * (scores.ndim - 2), value) for value in alpha])
