"""The loss of a config."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch import Tensor, nn

from hasten.config.schema import LossConfig
from hasten.config.user_code import is_user_code
from hasten.nets.losses.custom import custom_loss
from hasten.nets.losses.deep_supervision import DeepSupervisionLoss
from hasten.nets.losses.modules import DiceCELoss, DiceFocalLoss, DiceLoss, FocalTverskyLoss, TverskyCELoss, TverskyLoss
from hasten.nets.losses.overlap import OverlapLoss, OverlapOptions
from hasten.nets.losses.regions import Members, RegionLoss

Loss = Callable[[Any, Tensor], Tensor]
"""(output (B, K, ...) of any float type, stacked or a list of heads, label (B, 1, ...) class index) -> () float32."""


def build_loss(
    config: LossConfig, *, over_ranks: bool = False, regions: Members = (), ignore_index: int | None = None
) -> Loss:
    """The loss of soft-max scores and class index; over all heads where a network gives several in training.

    over_ranks: with `config.batch`, the batch is that of all ranks, whose gradients are averaged. regions: class
    indices of each overlapping class; where there are any, the loss is of the sigmoid of a score for each of them.
    A loss of the user's, whose code is executed, sees one rank's batch. ignore_index: a value of the label that is no
    class, whose voxels do not count; where they are all, the loss is 0.
    """
    if is_user_code(config.name):
        return DeepSupervisionLoss(custom_loss(config, regions, ignore_index)[0])
    loss = _of_regions(config, regions, ignore_index) if regions else _single(config, ignore_index)
    for module in loss.modules():
        if isinstance(module, OverlapLoss):
            module.over_ranks = over_ranks
    return DeepSupervisionLoss(loss)


def _single(config: LossConfig, ignore_index: int | None) -> nn.Module:
    common = OverlapOptions(
        to_onehot_y=True,
        softmax=True,
        include_background=config.include_background,
        batch=config.batch,
        ignore_index=ignore_index,
    )
    match config.name:
        case "dice_ce":
            return DiceCELoss(**common)
        case "dice_focal":
            return DiceFocalLoss(gamma=config.gamma, **common)
        case "tversky_ce":
            return TverskyCELoss(alpha=config.alpha, beta=config.beta, **common)
    return _overlap(config, common)


def _of_regions(config: LossConfig, regions: Members, ignore_index: int | None) -> RegionLoss:
    """Loss of regions by the same names: the cross-entropy is binary for each region; the background is not counted."""
    # The flags are those of the overlap's own forward pass, which regions don't use.
    options = OverlapOptions(to_onehot_y=True, softmax=True, batch=config.batch, ignore_index=ignore_index)
    overlap = _overlap(config, options)
    second: Any = {"dice_ce": "entropy", "tversky_ce": "entropy", "dice_focal": "focal"}.get(config.name)
    return RegionLoss(overlap, regions, second=second, gamma=config.gamma)


def _overlap(config: LossConfig, options: OverlapOptions) -> OverlapLoss:
    """The overlap of a loss, without its second term."""
    match config.name:
        case "dice" | "dice_ce" | "dice_focal":
            return DiceLoss(**options)
        case "tversky" | "tversky_ce":
            return TverskyLoss(alpha=config.alpha, beta=config.beta, **options)
        case "focal_tversky":
            return FocalTverskyLoss(alpha=config.alpha, beta=config.beta, gamma=config.gamma, **options)
    raise AssertionError(config.name)
