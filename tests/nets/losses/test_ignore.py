"""Voxels labelled to be ignored, against the same losses of the others alone, and against nnU-Net's definition."""

from __future__ import annotations

from pathlib import Path
from typing import Any, get_args

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from hasten.config.schema import LossConfig, LossName
from hasten.nets.build import build_loss
from hasten.nets.losses import DiceLoss, regions, soft_counts
from tests.hot_path import violations

IGNORED = 255
REGIONS = ((1, 2, 3), (2, 3), (3,))
CLASSES = 4
every_loss = pytest.mark.parametrize("name", get_args(LossName))
both_forms = pytest.mark.parametrize("members", [(), REGIONS], ids=["classes", "regions"])


def example(seed: int, share: float, sides: tuple[int, ...], members: Any = ()) -> tuple[Tensor, Tensor]:
    """Scores and a uint8 label, of which about this share is ignored."""
    generator = torch.Generator().manual_seed(seed)
    scores = 3 * torch.randn(2, len(members) or CLASSES, *sides, generator=generator)
    label = torch.randint(0, CLASSES, (2, 1, *sides), generator=generator)
    ignored = torch.rand(label.shape, generator=generator) < share
    return scores.requires_grad_(), label.masked_fill(ignored, IGNORED).to(torch.uint8)


def others(scores: Tensor, label: Tensor) -> tuple[Tensor, Tensor]:
    """The voxels that are not ignored in a row, (1, K, N) and (1, 1, N)."""
    kept = (label != IGNORED).flatten()
    rows = scores.movedim(1, -1).reshape(-1, scores.shape[1])[kept]
    return rows.T[None], label.flatten()[kept][None, None]


def outcome(loss: Any, scores: Any, label: Tensor) -> tuple[Tensor, Tensor]:
    value = loss(scores, label)
    (gradient,) = torch.autograd.grad(value, scores)
    return value.detach(), gradient


def same(result: tuple[Tensor, Tensor], wanted: tuple[Tensor, Tensor]) -> bool:
    return torch.allclose(result[0], wanted[0], rtol=1e-5) and torch.allclose(
        result[1], wanted[1], rtol=1e-4, atol=1e-7
    )


@both_forms
@every_loss
def test_the_loss_is_that_of_the_other_voxels(name: Any, members: Any) -> None:
    config = LossConfig(name=name, batch=True, alpha=0.2, beta=0.9, gamma=1.5)
    loss, plain = (build_loss(config, regions=members, ignore_index=index) for index in (IGNORED, None))
    for share, sides in ((0.0, (4, 5, 3)), (0.05, (5, 4)), (0.5, (4, 3, 5)), (0.95, (9, 7, 2))):
        scores, label = example(1, share, sides, members)
        wanted = outcome(lambda given, label: plain(*others(given, label)), scores, label)
        value, gradient = outcome(loss, scores, label)
        assert same((value, gradient), wanted)
        wild = torch.where(label == IGNORED, 1e4 * scores, scores).detach().requires_grad_()
        assert same(outcome(loss, wild, label), (value, gradient))
        assert float((gradient * (label == IGNORED)).abs().amax()) == 0


@both_forms
@pytest.mark.parametrize("batch", [False, True])
@every_loss
def test_where_all_is_ignored_loss_and_gradient_are_0(name: Any, batch: bool, members: Any) -> None:
    scores, label = example(3, 2.0, (4, 5, 3), members)
    loss = build_loss(LossConfig(name=name, batch=batch), regions=members, ignore_index=IGNORED)
    value, gradient = outcome(loss, scores, label)
    assert float(value) == pytest.approx(0.0, abs=1e-6)
    assert torch.equal(gradient, torch.zeros_like(gradient))


def nnunet(scores: Tensor, label: Tensor, *, batch: bool) -> Tensor:
    """nnU-Net 2's DC_and_CE_loss with ignore_label, MemoryEfficientSoftDiceLoss without background, class by class."""
    mask = label != IGNORED
    share = scores.softmax(1)
    terms = []
    for number in range(1, scores.shape[1]):
        truth = (label == number).float()
        axes = (0, *range(2, scores.ndim)) if batch else tuple(range(2, scores.ndim))
        hit = (share[:, number : number + 1] * truth * mask).sum(axes)
        total = (share[:, number : number + 1] * mask).sum(axes) + (truth * mask).sum(axes)
        terms.append((2 * hit + 1e-5) / (total + 1e-5).clip(1e-8))
    entropy = F.cross_entropy(scores, label[:, 0].long(), ignore_index=IGNORED)
    return entropy - torch.stack(terms).mean()


@pytest.mark.parametrize("batch", [False, True])
def test_dice_ce_is_nnunets(batch: bool) -> None:
    scores, label = example(7, 0.3, (6, 5, 4))
    loss = build_loss(LossConfig(batch=batch), ignore_index=IGNORED)
    value, gradient = outcome(lambda *given: nnunet(*given, batch=batch), scores, label)
    assert same(outcome(loss, scores, label), (value + 1, gradient))  # theirs is minus the Dice, ours 1 minus it


def test_coarser_heads_ignore_the_voxels_that_they_take() -> None:
    fine, label = example(9, 0.5, (8, 8, 4))
    coarse = example(10, 0.0, (4, 4, 2))[0]
    plain = build_loss(LossConfig())
    result = build_loss(LossConfig(), ignore_index=IGNORED)([fine, coarse], label)
    wanted = 2 * plain(*others(fine, label)) + plain(*others(coarse, label[..., 1::2, 1::2, 1::2]))
    assert torch.allclose(result, wanted / 3)


def test_an_ignored_class_is_left_out_like_another_value() -> None:
    scores, label = example(11, 0.4, (6, 5))
    result = DiceLoss(softmax=True, to_onehot_y=True, batch=True, ignore_index=2)(scores, label.clamp(max=2))
    other = DiceLoss(softmax=True, to_onehot_y=True, batch=True, ignore_index=IGNORED)
    assert torch.allclose(result, other(scores, torch.where(label >= 2, IGNORED, label)))


@both_forms
def test_it_compiles_whole(members: Any) -> None:
    scores, label = example(13, 0.5, (4, 4, 4), members)
    loss = build_loss(LossConfig(), regions=members, ignore_index=IGNORED)
    whole = torch.compile(loss, fullgraph=True, backend="aot_eager")
    assert same(outcome(whole, scores, label), outcome(loss, scores, label))


def test_nothing_waits_for_the_device() -> None:
    for module in (regions, soft_counts):
        assert not violations(Path(str(module.__file__)).read_text())
