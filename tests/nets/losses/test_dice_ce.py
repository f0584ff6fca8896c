"""Dice and cross-entropy as one operation against MONAI's DiceCELoss, value and gradient."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from monai.losses import DiceCELoss as MonaiDiceCELoss

from hasten.nets.losses import DiceCELoss


def dice_ce(scores: torch.Tensor, label: torch.Tensor, *, include_background: bool, batch: bool) -> torch.Tensor:
    loss = DiceCELoss(include_background=include_background, batch=batch, to_onehot_y=True, softmax=True)
    return loss(scores, label)


@settings(max_examples=60, deadline=None)
@given(
    count=st.integers(1, 3),
    classes=st.integers(2, 5),
    sides=st.lists(st.integers(1, 6), min_size=2, max_size=3),
    spread=st.sampled_from([0.1, 1.0, 20.0]),
    include=st.booleans(),
    batch=st.booleans(),
    kind=st.sampled_from([torch.uint8, torch.int64]),
    seed=st.integers(0, 99),
)
def test_value_and_gradient_are_monais(
    count: int, classes: int, sides: list[int], spread: float, include: bool, batch: bool, kind: torch.dtype, seed: int
) -> None:
    generator = torch.Generator().manual_seed(seed)
    scores = (spread * torch.randn(count, classes, *sides, generator=generator, dtype=torch.float64)).requires_grad_()
    label = torch.randint(0, classes, (count, 1, *sides), generator=generator).to(kind)
    loss = MonaiDiceCELoss(include_background=include, to_onehot_y=True, softmax=True, batch=batch)
    result, wanted = dice_ce(scores, label, include_background=include, batch=batch), loss(scores, label.long())
    # MONAI one-hot encodes in float32, so its sums are that exact.
    assert result.item() == pytest.approx(wanted.item(), rel=1e-6, abs=1e-6)
    (mine,), (theirs,) = torch.autograd.grad(3 * result, scores), torch.autograd.grad(3 * wanted, scores)
    assert torch.allclose(mine, theirs, rtol=1e-5, atol=1e-7)


@pytest.mark.parametrize("include", [False, True])
@pytest.mark.parametrize("batch", [False, True])
def test_the_written_derivative_is_the_numerical_one(include: bool, batch: bool) -> None:
    scores = torch.randn(2, 3, 3, 4, dtype=torch.float64, requires_grad=True)
    label = torch.randint(0, 3, (2, 1, 3, 4))
    assert torch.autograd.gradcheck(
        lambda given: dice_ce(given, label, include_background=include, batch=batch), (scores,)
    )


def test_sure_and_wrong_scores_stay_finite() -> None:
    scores = torch.tensor([[[500.0, -500.0], [-500.0, 500.0]]], requires_grad=True)
    result = dice_ce(scores, torch.tensor([[[1, 0]]]), include_background=False, batch=True)
    (gradient,) = torch.autograd.grad(result, scores)
    assert result.item() == pytest.approx(1000 + 1, rel=1e-3)
    assert gradient.isfinite().all()


def test_autocast_lowers_nothing() -> None:
    scores = torch.randn(2, 3, 9, 9, 9)
    label = torch.randint(0, 3, (2, 1, 9, 9, 9))
    wanted = dice_ce(scores, label, include_background=False, batch=True)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert torch.equal(dice_ce(scores, label, include_background=False, batch=True), wanted)
