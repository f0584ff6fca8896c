"""The step's loss and validation's counts against nnU-Net's own."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from hasten.nets.losses.deep_supervision import nearest
from hasten.nets.losses.regions import region_masks

pytest.importorskip("nnunetv2.training.loss.compound_losses")

CLASSES = 4
SIDES = ((8, 12, 8), (4, 6, 4), (2, 3, 2))


def heads(channels: int) -> list[Tensor]:
    generator = torch.Generator().manual_seed(0)
    return [3 * torch.randn(2, channels, *sides, generator=generator) for sides in SIDES]


def labels(top: int) -> Tensor:
    return torch.randint(0, top, (2, 1, *SIDES[0]), generator=torch.Generator().manual_seed(1), dtype=torch.uint8)


def default(batch_dice: bool, ignore: int | None = None) -> Any:
    from nnunetv2.training.loss.compound_losses import DC_and_CE_loss
    from nnunetv2.training.loss.dice import MemoryEfficientSoftDiceLoss

    options = {"batch_dice": batch_dice, "smooth": 1e-5, "do_bg": False, "ddp": False}
    return DC_and_CE_loss(
        options, {}, weight_ce=1, weight_dice=1, ignore_label=ignore, dice_class=MemoryEfficientSoftDiceLoss
    )


def of_regions() -> Any:
    from nnunetv2.training.loss.compound_losses import DC_and_BCE_loss
    from nnunetv2.training.loss.dice import MemoryEfficientSoftDiceLoss

    options = {"batch_dice": False, "do_bg": True, "smooth": 1e-5, "ddp": False}
    return DC_and_BCE_loss({}, options, use_ignore_label=True, dice_class=MemoryEfficientSoftDiceLoss)


@pytest.mark.parametrize("kind", ["default", "batch_dice", "ignore", "regions"])
def test_value_and_gradient_are_nnunets(kind: str) -> None:
    from nnunetv2.training.loss.deep_supervision import DeepSupervisionWrapper

    from hasten.nnunet.loss import objective

    target, channels = labels(CLASSES), CLASSES
    match kind:
        case "ignore":
            loss, target = default(False, ignore=CLASSES), labels(CLASSES + 1)
        case "regions":
            loss, target, channels = of_regions(), region_masks(labels(4), [[1, 2], [2], [3]]), 2
        case _:
            loss = default(kind == "batch_dice")
    wrapped = DeepSupervisionWrapper(loss, [2 / 3, 1 / 3, 0])
    results = []
    for of_whole in (False, True):
        scores = [head.requires_grad_() for head in heads(channels)]
        if of_whole:
            value = objective(wrapped)(scores, target)
        else:
            value = wrapped(scores, [nearest(target, sides) for sides in SIDES])
        value.backward()
        results.append((value.detach(), *(head.grad for head in scores[:2])))
        assert scores[2].grad is None
    for one, other in zip(*results, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-7)


@pytest.mark.parametrize("regions", [False, True])
@pytest.mark.parametrize("ignored", [False, True])
def test_counts_are_nnunets(regions: bool, ignored: bool) -> None:
    from nnunetv2.training.loss.dice import get_tp_fp_fn_tn

    from hasten.nnunet.loss import hard_counts

    [scores, *_] = heads(3)
    label, ignore = labels(4 if ignored else 3), 3 if ignored else None
    mask = (label != 3).float() if ignored else None
    if regions:
        members = [[0], [1, 2], [2]]
        target = region_masks(label, [*members, [3]] if ignored else members)
        predicted, truth = (torch.sigmoid(scores) > 0.5).long(), target[:, :3]
    else:
        target = label
        predicted = torch.zeros_like(scores).scatter_(1, scores.argmax(1, keepdim=True), 1)
        truth = label.masked_fill(label == 3, 0)
    wanted = torch.stack(get_tp_fp_fn_tn(predicted, truth, axes=[0, 2, 3, 4], mask=mask)[:3])
    result = hard_counts(scores, target, regions=regions, ignore=ignore)
    torch.testing.assert_close(result.float(), wanted if regions else wanted[:, 1:])
