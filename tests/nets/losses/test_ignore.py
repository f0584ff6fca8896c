"""Voxels labelled to be ignored, against the same losses of the others alone, and against nnU-Net's definition."""

from __future__ import annotations

from pathlib import Path
from typing import Any, get_args

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

from hasten.config.schema import LossConfig, LossName
from hasten.nets.build import build_loss
from hasten.nets.losses import DiceCELoss, DiceLoss, RegionLoss, regions, soft_counts
from tests.hot_path import violations

IGNORED = 255
NAMES = get_args(LossName)
REGIONS = ((1, 2, 3), (2, 3), (3,))
CLASSES = 4


def config_of(name: Any, *, batch: bool = True) -> LossConfig:
    return LossConfig(name=name, batch=batch, alpha=0.2, beta=0.9, gamma=1.5)


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


@pytest.mark.parametrize("members", [(), REGIONS], ids=["classes", "regions"])
@pytest.mark.parametrize("name", NAMES)
@given(
    seed=st.integers(0, 1000), share=st.sampled_from([0.05, 0.5, 0.95]),
    sides=st.sampled_from([(5, 4), (4, 3, 5), (1, 7, 2)]),
)  # fmt: skip
@settings(max_examples=8)
def test_the_loss_is_that_of_the_other_voxels(
    name: Any, members: Any, seed: int, share: float, sides: tuple[int, ...]
) -> None:
    scores, label = example(seed, share, sides, members)
    if bool((label == IGNORED).all()):
        return
    loss = build_loss(config_of(name), regions=members, ignore_index=IGNORED)
    plain = build_loss(config_of(name), regions=members)
    assert same(outcome(loss, scores, label), outcome(lambda given, label: plain(*others(given, label)), scores, label))


@pytest.mark.parametrize("members", [(), REGIONS], ids=["classes", "regions"])
@pytest.mark.parametrize("batch", [False, True])
@pytest.mark.parametrize("name", NAMES)
def test_without_an_ignored_voxel_it_is_the_plain_loss(name: Any, batch: bool, members: Any) -> None:
    scores, label = example(3, 0.0, (4, 5, 3), members)
    loss = build_loss(config_of(name, batch=batch), regions=members, ignore_index=IGNORED)
    assert same(
        outcome(loss, scores, label), outcome(build_loss(config_of(name, batch=batch), regions=members), scores, label)
    )


@pytest.mark.parametrize("members", [(), REGIONS], ids=["classes", "regions"])
@pytest.mark.parametrize("batch", [False, True])
@pytest.mark.parametrize("name", NAMES)
def test_where_all_is_ignored_loss_and_gradient_are_0(name: Any, batch: bool, members: Any) -> None:
    scores, label = example(3, 2.0, (4, 5, 3), members)
    loss = build_loss(config_of(name, batch=batch), regions=members, ignore_index=IGNORED)
    value, gradient = outcome(loss, scores, label)
    assert float(value) == pytest.approx(0.0, abs=1e-6)
    assert torch.equal(gradient, torch.zeros_like(gradient))


@pytest.mark.parametrize("members", [(), REGIONS], ids=["classes", "regions"])
@pytest.mark.parametrize("name", NAMES)
def test_scores_of_ignored_voxels_change_nothing(name: Any, members: Any) -> None:
    scores, label = example(5, 0.6, (4, 5, 3), members)
    loss = build_loss(config_of(name, batch=False), regions=members, ignore_index=IGNORED)
    value, gradient = outcome(loss, scores, label)
    wild = torch.where(label == IGNORED, 1e4 * scores, scores).detach().requires_grad_()
    assert same(outcome(loss, wild, label), (value, gradient))
    assert float(gradient.abs().amax()) > 0
    assert float((gradient * (label == IGNORED)).abs().amax()) == 0


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
    entropy = F.cross_entropy(scores, label[:, 0].long(), ignore_index=IGNORED) if bool(mask.any()) else 0.0
    return entropy - torch.stack(terms).mean()


@pytest.mark.parametrize("batch", [False, True])
@pytest.mark.parametrize("share", [0.0, 0.3, 0.9])
def test_dice_ce_is_nnunets(share: float, batch: bool) -> None:
    scores, label = example(7, share, (6, 5, 4))
    loss = build_loss(LossConfig(batch=batch), ignore_index=IGNORED)
    value, gradient = outcome(lambda *given: nnunet(*given, batch=batch), scores, label)
    assert same(outcome(loss, scores, label), (value + 1, gradient))  # theirs is minus the Dice, ours 1 minus it


def test_regions_are_nnunets_but_for_the_mean_over_regions() -> None:
    scores, label = example(7, 0.5, (6, 5, 4), REGIONS)
    masks = torch.cat([torch.isin(label, torch.tensor(members, dtype=torch.uint8)) for members in REGIONS], 1).float()

    def theirs(scores: Tensor, label: Tensor) -> Tensor:
        mask = (label != IGNORED).float()
        share, axes = scores.sigmoid() * mask, (0, 2, 3, 4)
        dice = (2 * (share * masks).sum(axes) + 1e-5) / (share.sum(axes) + (masks * mask).sum(axes) + 1e-5)
        entropy = F.binary_cross_entropy_with_logits(scores, masks, reduction="none")
        # nnU-Net divides by the voxels alone with an ignore label, and by the regions, too, without one.
        return (entropy * mask).sum() / (mask.sum() * len(REGIONS)) + 1 - dice.mean()

    loss = build_loss(LossConfig(), regions=REGIONS, ignore_index=IGNORED)
    assert same(outcome(loss, scores, label), outcome(theirs, scores, label))


def test_coarser_heads_ignore_the_voxels_that_they_take() -> None:
    fine, label = example(9, 0.5, (8, 8, 4))
    coarse = example(10, 0.0, (4, 4, 2))[0]
    plain = build_loss(LossConfig())
    result = build_loss(LossConfig(), ignore_index=IGNORED)([fine, coarse], label)
    wanted = 2 * plain(*others(fine, label)) + plain(*others(coarse, label[..., 1::2, 1::2, 1::2]))
    assert torch.allclose(result, wanted / 3)


@pytest.mark.parametrize(
    ("loss", "scores", "target"),
    [
        (DiceCELoss(softmax=True, ignore_index=1), (1, 3, 4), (1, 3, 4)),
        (DiceCELoss(softmax=True, to_onehot_y=True, label_smoothing=0.1, ignore_index=1), (1, 3, 4), (1, 1, 4)),
        (DiceCELoss(sigmoid=True, to_onehot_y=True, ignore_index=1), (1, 3, 4), (1, 1, 4)),
    ],
)
def test_what_has_no_ignored_voxels_says_so(loss: nn.Module, scores: Any, target: Any) -> None:
    with pytest.raises(ValueError, match="ignore_index: DiceCELoss supports it for softmax=True"):
        loss(torch.zeros(scores), torch.zeros(target))


def test_an_ignored_class_is_left_out_like_another_value() -> None:
    scores, label = example(11, 0.4, (6, 5))
    result = DiceLoss(softmax=True, to_onehot_y=True, batch=True, ignore_index=2)(scores, label.clamp(max=2))
    other = DiceLoss(softmax=True, to_onehot_y=True, batch=True, ignore_index=IGNORED)
    assert torch.allclose(result, other(scores, torch.where(label >= 2, IGNORED, label)))


@pytest.mark.parametrize("compiled", [RegionLoss, DiceCELoss])
def test_it_compiles_whole(compiled: type[nn.Module]) -> None:
    members = REGIONS if compiled is RegionLoss else ()
    scores, label = example(13, 0.5, (4, 4, 4), members)
    loss = build_loss(LossConfig(), regions=members, ignore_index=IGNORED)
    whole = torch.compile(loss, fullgraph=True, backend="aot_eager")
    assert same(outcome(whole, scores, label), outcome(loss, scores, label))


def test_nothing_waits_for_the_device() -> None:
    for module in (regions, soft_counts):
        assert not violations(Path(str(module.__file__)).read_text())
