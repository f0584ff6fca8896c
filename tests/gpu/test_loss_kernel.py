"""The Triton kernels of Dice and cross-entropy on the card, against the losses without them."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn

from hasten.config.schema import LossConfig
from hasten.kernels.use import kernels_take, triton_as
from hasten.nets.build import build_loss
from hasten.nets.losses import DiceCELoss, DiceLoss, TverskyCELoss

USUAL = {"softmax": True, "to_onehot_y": True}
LOSSES = {
    "dice_ce": DiceCELoss(**USUAL),
    "dice_ce of the batch, no background": DiceCELoss(batch=True, include_background=False, **USUAL),
    "dice_ce weighed": DiceCELoss(lambda_dice=0.5, lambda_ce=2.0, smooth_nr=0.0, **USUAL),
    "tversky_ce": TverskyCELoss(alpha=0.2, beta=0.8, batch=True, **USUAL),
    "dice_ce, a class ignored": DiceCELoss(batch=True, ignore_index=1, **USUAL),
    "dice, a class ignored": DiceLoss(ignore_index=0, **USUAL),
}


def batch(classes: int, dtype: torch.dtype, last: bool, label: torch.dtype) -> tuple[Tensor, Tensor]:
    generator = torch.Generator("cuda").manual_seed(0)
    scores = torch.randn(2, classes, 33, 40, 29, device="cuda", generator=generator).mul(3).to(dtype)
    scores = scores.contiguous(memory_format=torch.channels_last_3d if last else torch.contiguous_format)
    index = torch.randint(0, classes, (2, 1, 33, 40, 29), device="cuda", generator=generator)
    return scores.requires_grad_(), index.to(label)


def outcome(loss: nn.Module, scores: Tensor, label: Tensor) -> tuple[Tensor, Tensor]:
    with torch.autocast("cuda", torch.bfloat16):
        value = loss(scores, label)
    return value.detach(), torch.autograd.grad(value, scores)[0]


@pytest.mark.parametrize("name", LOSSES)
@pytest.mark.parametrize("classes", [2, 3, 14, 128])
@pytest.mark.parametrize(
    ("dtype", "last", "kind"),
    [(torch.float32, False, torch.int64), (torch.bfloat16, True, torch.uint8), (torch.float16, False, torch.uint8)],
    ids=str,
)
def test_value_and_gradient(name: str, classes: int, dtype: torch.dtype, last: bool, kind: torch.dtype) -> None:
    loss = LOSSES[name].cuda()
    scores, label = batch(classes, dtype, last, kind)
    assert kernels_take(scores), "Triton does not work here"
    assert loss.by_kernels(scores)
    result, mine = outcome(loss, scores, label)
    with triton_as(False):
        wanted, theirs = outcome(loss, scores, label)
    assert torch.allclose(result, wanted, rtol=1e-4)
    assert mine.dtype == dtype
    assert mine.stride() == scores.stride()
    share = {torch.float32: 1e-4, torch.bfloat16: 1e-2, torch.float16: 1e-2}[dtype]
    assert (mine.float() - theirs.float()).abs().max() <= share * theirs.float().abs().max() + 1e-7


def test_a_label_that_is_no_class_is_told_by_nan() -> None:
    scores, label = batch(3, torch.float32, False, torch.uint8)
    label[0, 0, 5, 6, 7] = 255
    assert LOSSES["dice_ce"](scores, label).isnan()


@pytest.mark.parametrize("name", ["dice_ce", "tversky_ce", "dice_focal"])
@pytest.mark.parametrize("regions", [(), ((1, 2), (2,), (1,))], ids=["classes", "regions"])
def test_ignored_voxels_agree_with_the_cpu_and_all_ignored_is_0(name: Any, regions: Any) -> None:
    loss: Any = build_loss(LossConfig(name=name), regions=regions, ignore_index=255)
    scores, label = batch(3, torch.float32, True, torch.uint8)
    label[:, :, ::3] = 255
    host = scores.detach().cpu().requires_grad_()
    (result, mine), (wanted, theirs) = outcome(loss, scores, label), outcome(loss, host, label.cpu())
    assert torch.allclose(result.cpu(), wanted, rtol=1e-4)
    assert (mine.cpu() - theirs).abs().max() <= 1e-4 * theirs.abs().max() + 1e-7
    value, gradient = outcome(loss, scores, torch.full_like(label, 255))
    assert abs(float(value)) < 1e-6
    assert not gradient.any()
