"""The losses of overlapping classes against MONAI's on a target with one channel a region, value and gradient."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, get_args

import monai.losses
import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from hasten.config.schema import LossConfig, LossName
from hasten.nets.build import build_loss
from hasten.nets.losses import DiceLoss
from hasten.nets.losses.regions import RegionLoss, region_masks, sigmoid_counts

NESTED = ((1, 2, 3), (2, 3), (3,))
ALPHA, BETA, GAMMA = 0.2, 0.9, 1.5
Reference = Callable[[Tensor, Tensor], Tensor]


def plain_masks(label: Tensor, members: Sequence[Sequence[int]]) -> Tensor:
    """(B, R, ...): voxel by voxel, as anybody would write it."""
    result = torch.zeros(len(label), len(members), *label.shape[2:], dtype=torch.bool)
    for region, indices in enumerate(members):
        for index in indices:
            result[:, region][label[:, 0] == index] = True
    return result


def reference(name: str, batch: bool) -> Reference:
    """MONAI's on the masks; a binary cross-entropy is torch's, as MONAI's DiceCELoss takes a soft-max there."""
    common: Any = {"sigmoid": True, "batch": batch}
    dice = monai.losses.DiceLoss(**common)
    tversky = monai.losses.TverskyLoss(alpha=ALPHA, beta=BETA, **common)
    each = monai.losses.TverskyLoss(alpha=ALPHA, beta=BETA, reduction="none", **common)
    known: dict[str, Reference] = {
        "dice": dice,
        "dice_ce": lambda scores, masks: dice(scores, masks) + F.binary_cross_entropy_with_logits(scores, masks),
        "dice_focal": monai.losses.DiceFocalLoss(gamma=GAMMA, **common),
        "tversky": tversky,
        "tversky_ce": lambda scores, masks: tversky(scores, masks) + F.binary_cross_entropy_with_logits(scores, masks),
        "focal_tversky": lambda scores, masks: each(scores, masks).clamp(min=1e-6).pow(GAMMA).mean(),
    }
    return known[name]


NAMES = get_args(LossName)


def of_name(name: Any, members: Sequence[Sequence[int]], *, batch: bool = True) -> Any:
    config = LossConfig(name=name, batch=batch, alpha=ALPHA, beta=BETA, gamma=GAMMA)
    return build_loss(config, regions=members)


def drawn(seed: int, classes: int, count: int, outputs: int, sides: Sequence[int]) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(seed)
    scores = (3 * torch.randn(count, outputs, *sides, generator=generator)).requires_grad_()
    return scores, torch.randint(0, classes, (count, 1, *sides), generator=generator).to(torch.uint8)


families = st.lists(
    st.lists(st.integers(1, 6), min_size=1, max_size=6, unique=True).map(sorted), min_size=1, max_size=4
)


@settings(max_examples=60, deadline=None)
@given(members=families, kind=st.sampled_from([torch.uint8, torch.int64, torch.float32]), seed=st.integers(0, 99))
def test_the_masks_are_those_of_every_voxel(members: list[list[int]], kind: torch.dtype, seed: int) -> None:
    _, label = drawn(seed, 8, 2, 1, (4, 5, 6))
    assert torch.equal(region_masks(label.to(kind), members), plain_masks(label, members))


@settings(max_examples=60, deadline=None)
@given(
    name=st.sampled_from(NAMES),
    members=families,
    batch=st.booleans(),
    count=st.integers(1, 3),
    sides=st.lists(st.integers(2, 6), min_size=2, max_size=3),
    seed=st.integers(0, 99),
)
def test_value_and_gradient_are_monais(
    name: str, members: list[list[int]], batch: bool, count: int, sides: list[int], seed: int
) -> None:
    scores, label = drawn(seed, 7, count, len(members), sides)
    result = of_name(name, members, batch=batch)(scores, label)
    wanted = reference(name, batch)(scores, plain_masks(label, members).float())
    assert result.item() == pytest.approx(wanted.item(), rel=1e-5, abs=1e-6)
    (mine,), (theirs,) = (torch.autograd.grad(2 * each, scores) for each in (result, wanted))
    assert torch.allclose(mine, theirs, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("name", NAMES)
def test_the_written_derivative_is_the_numerical_one(name: str) -> None:
    scores, label = drawn(1, 4, 2, 3, (3, 4))
    assert torch.autograd.gradcheck(lambda given: of_name(name, NESTED)(given, label), (scores.double(),))


@pytest.mark.parametrize("name", NAMES)
def test_sure_and_wrong_scores_stay_finite(name: str) -> None:
    scores = torch.tensor([[[500.0, -500.0]]], requires_grad=True)
    result = of_name(name, [[1]])(scores, torch.tensor([[[0, 1]]]))
    (gradient,) = torch.autograd.grad(result, scores)
    assert result.isfinite()
    assert gradient.isfinite().all()


def test_the_entropy_of_sure_and_right_scores_is_no_difference_of_large_sums() -> None:
    scores = torch.full((1, 1, 64, 64, 64), 20.0)
    _, entropy = sigmoid_counts(scores, torch.ones_like(scores, dtype=torch.bool), entropy=True)
    assert entropy is not None
    assert entropy.item() == pytest.approx(64**3 * 2.0611536e-09, rel=1e-3)


@pytest.mark.parametrize("name", NAMES)
def test_autocast_lowers_nothing(name: str) -> None:
    scores, label = drawn(2, 4, 2, 3, (9, 9, 9))
    wanted = of_name(name, NESTED)(scores, label)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert torch.equal(of_name(name, NESTED)(scores, label), wanted)


@pytest.mark.parametrize("name", ["tversky", "dice_ce", "dice_focal"])
def test_it_compiles_whole(name: str) -> None:
    scores, label = drawn(3, 4, 2, 3, (4, 4, 4))
    loss = of_name(name, NESTED)
    compiled = torch.compile(loss, backend="aot_eager", fullgraph=True)
    assert torch.allclose(compiled(scores, label), loss(scores, label))


def test_heads_of_several_depths_see_the_regions_of_the_nearest_voxel() -> None:
    scores, label = drawn(4, 4, 2, 3, (8, 8))
    coarse = scores[..., ::2, ::2]
    loss = of_name("dice_ce", NESTED)
    wanted = (2 * loss(scores, label) + loss(coarse, label[..., 1::2, 1::2])) / 3
    assert torch.allclose(loss([scores, coarse], label), wanted)


def test_the_counts_of_all_ranks_are_asked_for_where_the_batch_is_theirs(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = []

    def twice(counts: Tensor) -> Tensor:
        asked.append(counts.shape)
        return 2 * counts  # another rank with the same batch

    monkeypatch.setattr("hasten.nets.losses.soft_counts.counts_over_ranks", twice)
    scores, label = drawn(5, 4, 2, 3, (16, 16))
    alone = build_loss(LossConfig(), regions=NESTED)(scores, label)
    assert not asked
    shared = build_loss(LossConfig(), over_ranks=True, regions=NESTED)(scores, label)
    assert asked == [(3, 3)]
    assert torch.allclose(shared, alone, atol=1e-5)  # but for the smoothing


@pytest.mark.parametrize(
    ("scores", "label"), [((2, 2, 4, 4), (2, 1, 4, 4)), ((2, 3, 4, 4), (2, 3, 4, 4)), ((2, 3, 4, 4), (2, 1, 4, 2))]
)
def test_shapes_that_do_not_fit_are_told(scores: tuple[int, ...], label: tuple[int, ...]) -> None:
    loss = RegionLoss(DiceLoss(to_onehot_y=True, softmax=True), NESTED)
    with pytest.raises(ValueError, match=r"target: shape .*for each of the 3 regions"):
        loss(torch.zeros(scores), torch.zeros(label, dtype=torch.uint8))
