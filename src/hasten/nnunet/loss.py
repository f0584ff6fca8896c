"""nnU-Net's loss of a batch, and what it counts in validation, from one target of full size."""

from __future__ import annotations

from typing import Any

import torch
from nnunetv2.training.loss.compound_losses import DC_and_CE_loss
from nnunetv2.training.loss.deep_supervision import DeepSupervisionWrapper
from nnunetv2.training.loss.dice import MemoryEfficientSoftDiceLoss
from nnunetv2.training.loss.robust_ce_loss import RobustCrossEntropyLoss
from nnunetv2.utilities.helpers import softmax_helper_dim1
from torch import Tensor

from hasten.evaluation.dice import confusion_counts
from hasten.nets.build import Loss
from hasten.nets.losses.deep_supervision import nearest
from hasten.nets.losses.modules import DiceCELoss


def objective(loss: Any) -> Loss:
    """nnU-Net's loss as a function of (output or outputs, target): the targets of coarser outputs are made here.

    Its default, Dice and cross-entropy of a soft-max, is one operation of the same value.
    """
    weights = loss.weight_factors if type(loss) is DeepSupervisionWrapper else None
    each = _dice_ce(loss if weights is None else loss.loss)

    def value(output: Any, target: Tensor) -> Tensor:
        if isinstance(output, Tensor):
            return each(output.float(), target)
        scores = [head.float() for head in output]
        targets = [nearest(target, head.shape[2:]) for head in scores]
        if weights is None:
            return each(scores, targets)
        terms = [
            share * each(head, part) for share, head, part in zip(weights, scores, targets, strict=True) if share != 0
        ]
        return sum(terms[1:], start=terms[0])

    return value


def asks_host(loss: Any) -> bool:
    """Whether nnU-Net's loss reads a value: with a label to ignore, whether any voxel has another one."""
    each = loss.loss if type(loss) is DeepSupervisionWrapper else loss
    return getattr(each, "ignore_label", None) is not None


def _dice_ce(loss: Any) -> Any:
    """`loss` as one operation, or `loss` itself where it is not nnU-Net's default."""
    if type(loss) is not DC_and_CE_loss:
        return loss
    dice, entropy = getattr(loss.dc, "_orig_mod", loss.dc), loss.ce
    is_default = (
        type(dice) is MemoryEfficientSoftDiceLoss
        and type(entropy) is RobustCrossEntropyLoss
        and dice.apply_nonlin is softmax_helper_dim1
        and dice.smooth == 1e-5
        and loss.weight_ce == loss.weight_dice == 1
        and loss.ignore_label is None
        and entropy.weight is None
        and entropy.label_smoothing == 0
        and entropy.reduction == "mean"
    )
    if not is_default:
        return loss
    fused = DiceCELoss(include_background=dice.do_bg, batch=dice.batch_dice, to_onehot_y=True, softmax=True)
    fused.over_ranks, fused.kernels = dice.ddp, False
    return lambda scores, label: fused(scores, label) - 1  # nnU-Net's Dice is negative, not taken from 1


def hard_counts(scores: Tensor, target: Tensor, *, regions: bool, ignore: int | None) -> Tensor:
    """(3, K) true positives, false positives and false negatives of each class or region over the batch.

    scores: (B, K, ...), with the background first unless `regions`. target: (B, 1, ...) classes; with `regions` masks,
    that of the label to ignore last. ignore: that label; None if there is none.
    """
    if regions:
        predicted, truth = torch.sigmoid(scores) > 0.5, target.bool()
        if ignore is not None:
            valid, truth = ~truth[:, -1:], truth[:, :-1]
            predicted, truth = predicted & valid, truth & valid
        counts = confusion_counts(predicted, truth)
    else:
        predicted = scores.argmax(1, keepdim=True)
        if ignore is not None:
            # A number that is no class is counted for none.
            predicted, target = (each.masked_fill(target == ignore, -1) for each in (predicted, target.long()))
        counts = confusion_counts(predicted, target, scores.shape[1])[:, 1:]
    hit, extra, _, missed = counts.sum(0).unbind(1)
    return torch.stack([hit, extra, missed])
