"""Losses for segmentation with the arguments, values and gradients of MONAI's, in fewer passes over the scores.

All take scores (B, K, ...) of any floating-point type and a target (B, 1, ...) of class index. They compute in float32
whatever autocast says, read no device value and compile whole. `OverlapLoss` explains the arguments that all share. A
gradient can be taken once, not of a gradient.
"""

from __future__ import annotations

from typing import Any, Unpack

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.autograd.function import once_differentiable

from hasten.nets.losses.overlap import OverlapLoss, OverlapOptions, check_shapes, lifted, without_autocast
from hasten.nets.losses.soft_counts import Counts


class _Focal(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, signed: Tensor, gamma: float) -> Tensor:
        surprise, wrong = F.softplus(signed), signed.sigmoid()
        much = wrong.square() if gamma == 2 else wrong.pow(gamma)
        sums = torch.linalg.vecdot(much, surprise)
        slope = surprise.addcmul_(surprise, wrong, value=-1).mul_(gamma).add_(wrong).mul_(much)
        ctx.save_for_backward(slope)
        return sums

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None]:
        (slope,) = ctx.saved_tensors
        return slope * gradient.unsqueeze(2), None


def focal_sums(signed: Tensor, *, gamma: float) -> Tensor:
    """(B, K): the focal loss summed over space. signed: (B, K, N) scores, negated where the label holds.

    Differentiable once. A score of minus infinity counts nothing.
    """
    return _Focal.apply(signed, gamma)


class DiceLoss(OverlapLoss):
    """1 - Dice: MONAI's DiceLoss."""

    def score(self, counts: Counts) -> Tensor:
        return 1 - (2 * counts.hit + self.smooth_nr) / (counts.predicted + counts.labelled + self.smooth_dr)


class TverskyLoss(OverlapLoss):
    """MONAI's: the overlap with false positives weighed by `alpha`, false negatives by `beta`.

    beta > alpha seeks the small structures that Dice leaves out. Dice is alpha = beta = 0.5, but for the smoothing.
    """

    def __init__(self, *, alpha: float = 0.5, beta: float = 0.5, **options: Unpack[OverlapOptions]) -> None:
        super().__init__(**options)
        self.alpha, self.beta = alpha, beta

    def score(self, counts: Counts) -> Tensor:
        wrong = self.alpha * (counts.predicted - counts.hit) + self.beta * (counts.labelled - counts.hit)
        return 1 - (counts.hit + self.smooth_nr) / (counts.hit + wrong + self.smooth_dr)


class FocalTverskyLoss(TverskyLoss):
    """Each class's Tversky loss to the power of `gamma`, before the mean (Abraham and Khan, 2018, use 0.75).

    Above 1, a well segmented class counts less; below 1 it counts more. Not in MONAI.
    """

    def __init__(
        self, *, alpha: float = 0.3, beta: float = 0.7, gamma: float = 0.75, **options: Unpack[OverlapOptions]
    ) -> None:
        super().__init__(alpha=alpha, beta=beta, **options)
        self.gamma = gamma

    def score(self, counts: Counts) -> Tensor:
        # Rounding can put a perfect class below 0, where a power has no value; at 0 its slope is infinite if gamma < 1.
        return super().score(counts).clamp(min=1e-6).pow(self.gamma)


class DiceCELoss(DiceLoss):
    """`lambda_dice` DiceLoss + `lambda_ce` cross-entropy: MONAI's DiceCELoss.

    ignore_index: left out of both terms, as in nnU-Net.
    """

    def __init__(self, *, lambda_dice: float = 1.0, lambda_ce: float = 1.0, **options: Unpack[OverlapOptions]) -> None:
        super().__init__(**options)
        self.lambda_dice, self.lambda_ce = lambda_dice, lambda_ce

    def forward(self, input: Tensor, target: Tensor) -> Tensor:
        dice, entropy = self.with_entropy(input, target)
        return self.lambda_dice * dice + self.lambda_ce * entropy


class TverskyCELoss(TverskyLoss):
    """`lambda_tversky` TverskyLoss + `lambda_ce` cross-entropy; MONAI has none."""

    def __init__(
        self,
        *,
        alpha: float = 0.3,
        beta: float = 0.7,
        lambda_tversky: float = 1.0,
        lambda_ce: float = 1.0,
        **options: Unpack[OverlapOptions],
    ) -> None:
        super().__init__(alpha=alpha, beta=beta, **options)
        self.lambda_tversky, self.lambda_ce = lambda_tversky, lambda_ce

    def forward(self, input: Tensor, target: Tensor) -> Tensor:
        tversky, entropy = self.with_entropy(input, target)
        return self.lambda_tversky * tversky + self.lambda_ce * entropy


class DiceFocalLoss(DiceLoss):
    """`lambda_dice` DiceLoss + `lambda_focal` FocalLoss: MONAI's DiceFocalLoss.

    As there, the focal term is of sigmoids, each class against the rest. gamma: the larger, the less a voxel counts
    that is classified well; 0 is cross-entropy. ignore_index: of neither term; the focal one stays a mean over the
    classes.
    """

    def __init__(
        self,
        *,
        gamma: float = 2.0,
        lambda_dice: float = 1.0,
        lambda_focal: float = 1.0,
        **options: Unpack[OverlapOptions],
    ) -> None:
        super().__init__(**options)
        self.gamma, self.lambda_dice, self.lambda_focal = gamma, lambda_dice, lambda_focal

    def forward(self, input: Tensor, target: Tensor) -> Tensor:
        check_shapes(input, target)
        with without_autocast(input):
            scores, label = lifted(input, target)
            return self.lambda_dice * super().forward(scores, label) + self.lambda_focal * self._focal(scores, label)

    def _focal(self, scores: Tensor, label: Tensor) -> Tensor:
        index, scores = label.flatten(2).long(), scores.flatten(2)
        ignored = None if self.ignore_index is None else index == self.ignore_index
        index = index if ignored is None else index.masked_fill(ignored, 0)
        signed = scores * torch.ones_like(scores).scatter_(1, index, -1.0)
        signed = signed if self.include_background else signed[:, 1:]
        size: int | Tensor = index.numel()
        if ignored is not None:
            signed, size = signed.masked_fill(ignored, -torch.inf), (~ignored).sum().clamp(min=1)
        return focal_sums(signed, gamma=self.gamma).sum() / (size * signed.shape[1])
