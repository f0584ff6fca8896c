"""Losses for segmentation with the arguments, values and gradients of MONAI's, in fewer passes over the scores.

All take scores (B, K, ...) of any floating-point type and a target (B, 1, ...) of class index (to_onehot_y=True) or
(B, K, ...) of 0 and 1, where several classes may hold in a voxel (sigmoid=True). They compute in float32 whatever
autocast says, read no device value and compile whole. K = 1 is one class against nothing: to_onehot_y and
include_background=False change nothing then. Scores (B, K) without spatial axes are for FocalLoss, and for the others
with batch=True; else a ValueError. `OverlapLoss` explains the arguments that all share. Class weights are a buffer:
move the loss to the scores' device once. A gradient can be taken once, not of a gradient.
"""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from typing import Any, Literal, Unpack

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

from hasten.nets.losses.overlap import (
    OverlapLoss,
    OverlapOptions,
    Reduction,
    Weight,
    check_factors,
    check_reduction,
    check_shapes,
    check_spatial,
    check_terms,
    class_weight,
    cross_entropy,
    indexed,
    lifted,
    prepared,
    reduced,
    warn_of_one_channel,
    weighted,
    without_autocast,
)
from hasten.nets.losses.soft_counts import Counts, surprised_counts


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


class DiceLoss(OverlapLoss):
    """1 - Dice, or 1 - IoU with `jaccard`: MONAI's DiceLoss.

    weight: one per class that counts, or one for all.
    """

    weight: Tensor | None
    """(K,) float32 for the K classes that count, or () for all of them alike."""

    def __init__(
        self,
        *,
        squared_pred: bool = False,
        jaccard: bool = False,
        weight: Weight = None,
        **options: Unpack[OverlapOptions],
    ) -> None:
        super().__init__(squared_pred=squared_pred, **options)
        self.jaccard = jaccard
        self.register_buffer("weight", class_weight(weight))

    def score(self, counts: Counts) -> Tensor:
        union = counts.predicted + counts.labelled
        if self.jaccard:
            union = 2 * (union - counts.hit)
        losses = 1 - (2 * counts.hit + self.smooth_nr) / (union + self.smooth_dr)
        return losses if losses.shape[-1] == 1 else weighted(losses, self.weight)


class GeneralizedDiceLoss(OverlapLoss):
    """MONAI's: one Dice over all classes, each weighed by the inverse of its labelled volume.

    w_type: "square" (of the volume), "simple" or "uniform". A class in no label gets the largest of the other weights.
    """

    def __init__(
        self, *, w_type: Literal["square", "simple", "uniform"] = "square", **options: Unpack[OverlapOptions]
    ) -> None:
        super().__init__(**options)
        if w_type not in ("square", "simple", "uniform"):
            raise ValueError(f"w_type: {w_type!r}; use 'square', 'simple' or 'uniform'")
        self.w_type = w_type

    def score(self, counts: Counts) -> Tensor:
        power = {"square": 2, "simple": 1, "uniform": 0}[self.w_type]
        weight = counts.labelled.pow(-power)
        absent = weight.isinf()
        weight = weight.masked_fill(absent, 0.0)
        weight = torch.where(absent, weight.amax(-1, keepdim=True), weight)
        hit = (counts.hit * weight).sum(-1, keepdim=True)
        union = ((counts.predicted + counts.labelled) * weight).sum(-1, keepdim=True)
        return 1 - (2 * hit + self.smooth_nr) / (union + self.smooth_dr)


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

    def reduced(self, score: Tensor, ndim: int) -> Tensor:
        """The reduced score; (B, K) or (K,) with reduction "none", as in MONAI."""
        return reduced(score, self.reduction)


class FocalTverskyLoss(TverskyLoss):
    """Each class's Tversky loss to the power of `gamma`, before the reduction (Abraham and Khan, 2018, use 0.75).

    Above 1, a well segmented class counts less; below 1 it counts more. Not in MONAI.
    """

    def __init__(
        self, *, alpha: float = 0.3, beta: float = 0.7, gamma: float = 0.75, **options: Unpack[OverlapOptions]
    ) -> None:
        super().__init__(alpha=alpha, beta=beta, **options)
        if gamma <= 0:
            raise ValueError(f"gamma: {gamma}; give a positive number")
        self.gamma = gamma

    def score(self, counts: Counts) -> Tensor:
        # Rounding can put a perfect class below 0, where a power has no value; at 0 its slope is infinite if gamma < 1.
        return super().score(counts).clamp(min=1e-6).pow(self.gamma)


class DiceCELoss(DiceLoss):
    """`lambda_dice` DiceLoss + `lambda_ce` cross-entropy: MONAI's DiceCELoss.

    As there, the cross-entropy is that of a soft-max where K > 1, whatever the Dice term uses, and a binary one where
    K = 1, with `weight` as its pos_weight. weight: (K,), also of the Dice term. reduction: "mean" or "sum".
    ignore_index: left out of both terms, as in nnU-Net; for softmax and to_onehot_y, without the rest of its options.
    """

    ce_weight: Tensor | None

    def __init__(
        self,
        *,
        squared_pred: bool = False,
        jaccard: bool = False,
        weight: Weight = None,
        lambda_dice: float = 1.0,
        lambda_ce: float = 1.0,
        label_smoothing: float = 0.0,
        **options: Unpack[OverlapOptions],
    ) -> None:
        whole = class_weight(weight)
        counted = whole if whole is None or whole.ndim == 0 or options.get("include_background", True) else whole[1:]
        super().__init__(squared_pred=squared_pred, jaccard=jaccard, weight=counted, **options)
        check_terms(self, lambda_dice=lambda_dice, lambda_ce=lambda_ce)
        self.lambda_dice, self.lambda_ce, self.label_smoothing = lambda_dice, lambda_ce, label_smoothing
        self.register_buffer("ce_weight", whole)

    def forward(self, input: Tensor, target: Tensor) -> Tensor:
        check_spatial(input, batch=self.batch)
        check_shapes(input, target)
        with without_autocast(input):
            scores, target = self.lifted(input, target)
            kernels = self.by_kernels(scores, target)
            if not self.fused(scores, target) or self.label_smoothing:
                if self.ignore_index is not None:
                    raise ValueError(
                        "ignore_index: DiceCELoss supports it for softmax=True, to_onehot_y=True and K >= 2, without "
                        "squared_pred and label_smoothing; leave those out, or use DiceLoss"
                    )
                dice = self.of_counts(self.counts(scores, target), scores.ndim)
                return self.lambda_dice * dice + self.lambda_ce * self._entropy(scores, target)
            counts, surprise = surprised_counts(scores, target, kernels=kernels, ignore_index=self.ignore_index)
            entropy = cross_entropy(counts, surprise, self.ce_weight, self.reduction, self.ignore_index)
            return self.lambda_dice * self.of_counts(counts, scores.ndim) + self.lambda_ce * entropy

    def by_kernels(self, scores: Tensor, target: Tensor) -> bool:
        return not self.label_smoothing and super().by_kernels(scores, target)

    def _entropy(self, scores: Tensor, target: Tensor) -> Tensor:
        weight = None if self.ce_weight is None else self.ce_weight.to(scores)
        if scores.shape[1] == 1:
            truth = target.to(scores.dtype)
            return F.binary_cross_entropy_with_logits(scores, truth, pos_weight=weight, reduction=self.reduction)
        weight = weight if weight is None else weighted(scores.new_ones(scores.shape[1]), weight)
        truth = target[:, 0].long() if target.shape[1] == 1 else target.to(scores.dtype)
        return F.cross_entropy(scores, truth, weight, reduction=self.reduction, label_smoothing=self.label_smoothing)


class TverskyCELoss(TverskyLoss):
    """`lambda_tversky` TverskyLoss + `lambda_ce` cross-entropy, of the soft-max and class index; MONAI has none.

    weight: (K,), of the cross-entropy alone. reduction: "mean" or "sum".
    """

    ce_weight: Tensor | None

    def __init__(
        self,
        *,
        alpha: float = 0.3,
        beta: float = 0.7,
        lambda_tversky: float = 1.0,
        lambda_ce: float = 1.0,
        weight: Weight = None,
        **options: Unpack[OverlapOptions],
    ) -> None:
        super().__init__(alpha=alpha, beta=beta, **options)
        check_terms(self, lambda_tversky=lambda_tversky, lambda_ce=lambda_ce)
        if not (self.softmax and self.to_onehot_y):
            raise ValueError("softmax, to_onehot_y: TverskyCELoss is of the soft-max and class index; set both True")
        self.lambda_tversky, self.lambda_ce = lambda_tversky, lambda_ce
        self.register_buffer("ce_weight", class_weight(weight))

    def forward(self, input: Tensor, target: Tensor) -> Tensor:
        check_spatial(input, batch=self.batch)
        check_shapes(input, target)
        with without_autocast(input):
            scores, target = self.lifted(input, target)
            if not self.fused(scores, target):
                raise ValueError(f"target: shape {tuple(target.shape)}; TverskyCELoss takes class index, K >= 2 scores")
            kernels = self.by_kernels(scores, target)
            counts, surprise = surprised_counts(scores, target, kernels=kernels, ignore_index=self.ignore_index)
            entropy = cross_entropy(counts, surprise, self.ce_weight, self.reduction, self.ignore_index)
            return self.lambda_tversky * self.of_counts(counts, scores.ndim) + self.lambda_ce * entropy


class FocalLoss(nn.Module):
    """MONAI's FocalLoss: each class against the rest, hard voxels before easy ones; scores (B, K) or (B, K, ...).

    gamma: 0 is cross-entropy; the larger, the less a voxel counts that is classified well. alpha: weight of the
    voxels that a class holds, against 1 - alpha of the others; with use_softmax of all classes but the first, against
    1 - alpha of that; or one for each class that counts. weight: one per class that counts, or one for all.
    reduction: "sum" sums the means over space; "none" gives each voxel's (B, K, ...). use_softmax: shares are those of
    a soft-max, and only the class that a voxel has counts there.
    """

    weight: Tensor | None

    def __init__(
        self,
        *,
        include_background: bool = True,
        to_onehot_y: bool = False,
        gamma: float = 2.0,
        alpha: float | Sequence[float] | None = None,
        weight: Weight = None,
        reduction: Reduction = "mean",
        use_softmax: bool = False,
        ignore_index: int | None = None,
    ) -> None:
        super().__init__()
        check_reduction(reduction)
        if gamma < 0:
            raise ValueError(f"gamma: {gamma}; give 0 or more")
        self.include_background, self.to_onehot_y = include_background, to_onehot_y
        self.gamma, self.use_softmax, self.ignore_index = gamma, use_softmax, ignore_index
        self.alpha = tuple(alpha) if isinstance(alpha, Sequence) else alpha
        self.reduction: Reduction = reduction
        self.register_buffer("weight", class_weight(weight))

    def forward(self, input: Tensor, target: Tensor) -> Tensor:
        with without_autocast(input):
            scores, target = lifted(input, target)
            warn_of_one_channel(scores, to_onehot_y=self.to_onehot_y, include_background=self.include_background)
            if scores.ndim == 2 == target.ndim:
                losses = self._reduced(scores.unsqueeze(2), target.unsqueeze(2))
                return losses.squeeze(2) if self.reduction == "none" else losses
            return self._reduced(scores, target)

    def _reduced(self, scores: Tensor, target: Tensor) -> Tensor:
        first = 0 if self.include_background or scores.shape[1] == 1 else 1
        usual = self.alpha is None and self.ignore_index is None and self.reduction != "none"
        if usual and not self.use_softmax and indexed(self, scores, target):
            sums = focal_sums(scores, target, gamma=self.gamma, first=first)
            return reduced(weighted(sums / scores[0, 0].numel(), self.weight), self.reduction)
        return self._by_voxel(scores, target, first)

    def _by_voxel(self, scores: Tensor, target: Tensor, first: int) -> Tensor:
        hot, mask = prepared(scores, target, to_onehot_y=self.to_onehot_y, ignore_index=self.ignore_index)
        alpha = self.alpha
        if self.use_softmax and not self.include_background and isinstance(alpha, int | float):
            warnings.warn("`include_background=False`, scalar `alpha` ignored when using softmax.", stacklevel=4)
            alpha = None
        voxels = focal_voxels_of_softmax if self.use_softmax else focal_voxels
        losses = voxels(scores[:, first:], hot[:, first:], gamma=self.gamma, alpha=alpha)
        if mask is not None:
            losses = losses * mask
        losses = weighted(losses.movedim(1, -1), self.weight).movedim(-1, 1)
        if self.reduction == "none":
            return losses
        if mask is None:
            return reduced(losses.flatten(2).mean(2), self.reduction)
        # As in MONAI: a mean over the voxels that count sums over the classes.
        each = mask.flatten(2).sum(2)
        if self.reduction == "sum":
            return (losses.flatten(2).sum(2) / each.clamp(min=torch.finfo(each.dtype).eps)).sum()
        return losses.sum() / each.sum().clamp(min=torch.finfo(each.dtype).eps)


class DiceFocalLoss(nn.Module):
    """`lambda_dice` DiceLoss + `lambda_focal` FocalLoss: MONAI's DiceFocalLoss.

    As there, the focal term is of sigmoids also with softmax=True. weight: one per class that counts, of both terms.
    reduction: "none" gives (B, K, ...). ignore_index: of neither term; the focal one stays a mean over the classes.
    """

    def __init__(
        self,
        *,
        squared_pred: bool = False,
        jaccard: bool = False,
        gamma: float = 2.0,
        weight: Weight = None,
        lambda_dice: float = 1.0,
        lambda_focal: float = 1.0,
        alpha: float | Sequence[float] | None = None,
        **options: Unpack[OverlapOptions],
    ) -> None:
        super().__init__()
        self.dice = DiceLoss(squared_pred=squared_pred, jaccard=jaccard, weight=weight, **options)
        check_factors(lambda_dice=lambda_dice, lambda_focal=lambda_focal)
        self.focal = FocalLoss(
            include_background=self.dice.include_background,
            to_onehot_y=self.dice.to_onehot_y,
            gamma=gamma,
            alpha=alpha,
            weight=weight,
            reduction=self.dice.reduction,
            ignore_index=self.dice.ignore_index,
        )
        self.lambda_dice, self.lambda_focal = lambda_dice, lambda_focal

    def forward(self, input: Tensor, target: Tensor) -> Tensor:
        check_spatial(input, batch=self.dice.batch)
        scores, target = lifted(input, target)
        focal = self.focal(scores, target)
        if self.focal.ignore_index is not None and self.focal.reduction == "mean":
            focal = focal / max(1, scores.shape[1] - (not self.focal.include_background))
        return self.lambda_dice * self.dice(scores, target) + self.lambda_focal * focal
