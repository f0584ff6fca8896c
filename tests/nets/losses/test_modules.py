"""One contract of all losses: MONAI's value and gradient, or the plain formulas where MONAI has none."""

from __future__ import annotations

from typing import Any, get_args

import monai.losses
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from monai.data import MetaTensor
from torch import Tensor, nn

from hasten.config.schema import LossConfig, LossName
from hasten.nets.losses.make_loss import build_loss
from hasten.nets.losses.modules import (
    DiceCELoss,
    DiceFocalLoss,
    DiceLoss,
    FocalTverskyLoss,
    TverskyCELoss,
    TverskyLoss,
)

INDEX: Any = {"to_onehot_y": True, "softmax": True}
ALL = [
    DiceLoss(**INDEX),
    DiceLoss(ignore_index=1, **INDEX),
    DiceCELoss(lambda_ce=0.5, **INDEX),
    DiceFocalLoss(**INDEX),
    DiceFocalLoss(gamma=1.5, include_background=False, ignore_index=1, **INDEX),
    TverskyLoss(**INDEX),
    TverskyCELoss(batch=True, **INDEX),
    FocalTverskyLoss(**INDEX),
]
every_loss = pytest.mark.parametrize("loss", ALL, ids=lambda loss: type(loss).__name__)


def scores_of(seed: int, count: int, classes: int, sides: list[int], spread: float) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    return (spread * torch.randn(count, classes, *sides, generator=generator)).requires_grad_()


def index_of(seed: int, count: int, classes: int, sides: list[int], kind: torch.dtype = torch.uint8) -> Tensor:
    """Class index; every third time without the last class."""
    generator = torch.Generator().manual_seed(seed + 1)
    return torch.randint(0, classes - (seed % 3 == 0), (count, 1, *sides), generator=generator).to(kind)


def agree(result: Tensor, wanted: Tensor, scores: Tensor) -> None:
    assert torch.allclose(result, wanted, rtol=1e-5, atol=1e-5)
    (mine,), (theirs,) = (torch.autograd.grad(loss, scores, retain_graph=True) for loss in (result, wanted))
    assert torch.allclose(mine, theirs, rtol=1e-4, atol=1e-5 * float(theirs.abs().max()) + 1e-9)


@settings(max_examples=150, deadline=None)
@given(
    case=st.sampled_from(
        [
            (DiceLoss, {}),
            (DiceLoss, {"smooth_nr": 0.1, "smooth_dr": 1.0}),
            (DiceLoss, {"ignore_index": 1}),
            (DiceCELoss, {"lambda_dice": 0.3, "lambda_ce": 2.0}),
            (DiceFocalLoss, {}),
            (DiceFocalLoss, {"gamma": 1.5, "lambda_dice": 0.3, "lambda_focal": 2.0}),
            (TverskyLoss, {"alpha": 0.3, "beta": 0.7}),
            (TverskyLoss, {"smooth_nr": 0.1, "smooth_dr": 1.0}),
            (TverskyLoss, {"ignore_index": 1}),
        ]
    ),
    classes=st.integers(2, 5),
    kind=st.sampled_from([torch.uint8, torch.int64, torch.float32]),
    count=st.integers(1, 3),
    sides=st.lists(st.integers(1, 6), min_size=2, max_size=3),
    spread=st.sampled_from([0.1, 1.0, 8.0]),
    include=st.booleans(),
    batch=st.booleans(),
    seed=st.integers(0, 99),
)
def test_value_and_gradient_are_monais(
    case: tuple[type[nn.Module], dict[str, Any]],
    classes: int,
    kind: torch.dtype,
    count: int,
    sides: list[int],
    spread: float,
    include: bool,
    batch: bool,
    seed: int,
) -> None:
    scores, target = scores_of(seed, count, classes, sides, spread), index_of(seed, count, classes, sides, kind)
    options = {"include_background": include, "batch": batch, **INDEX, **case[1]}
    wanted = getattr(monai.losses, case[0].__name__)(**options)(scores, target)
    agree(case[0](**options)(scores, target), wanted, scores)


def tversky_by_hand(scores: Tensor, target: Tensor, alpha: float, beta: float) -> Tensor:
    """1 - Tversky index of each foreground class over the batch."""
    share = scores.softmax(1)
    truth = nn.functional.one_hot(target[:, 0].long(), scores.shape[1]).movedim(-1, 1).float()
    axes = (0, *range(2, scores.ndim))
    hit = (share * truth).sum(axes)
    wrong = alpha * (share * (1 - truth)).sum(axes) + beta * ((1 - share) * truth).sum(axes)
    return (1 - (hit + 1e-5) / (hit + wrong + 1e-5))[1:]


@pytest.mark.parametrize("gamma", [0.75, 2.0])
def test_focal_tversky_and_tversky_with_cross_entropy_by_hand(gamma: float) -> None:
    scores, target = scores_of(3, 2, 4, [5, 4, 3], 2.0), index_of(1, 2, 4, [5, 4, 3])
    each = tversky_by_hand(scores, target, 0.2, 0.9)
    common = {"alpha": 0.2, "beta": 0.9, "include_background": False, "batch": True, **INDEX}
    entropy = nn.functional.cross_entropy(scores, target[:, 0].long())
    agree(FocalTverskyLoss(gamma=gamma, **common)(scores, target), (each**gamma).mean(), scores)
    agree(TverskyCELoss(lambda_ce=0.5, **common)(scores, target), each.mean() + 0.5 * entropy, scores)


def test_a_perfect_class_has_a_finite_slope_in_focal_tversky() -> None:
    target = index_of(1, 2, 3, [4, 4])
    scores = (100 * nn.functional.one_hot(target[:, 0].long(), 3).movedim(-1, 1).float()).requires_grad_()
    loss = FocalTverskyLoss(**INDEX)(scores, target)
    loss.backward()
    assert loss < 1e-3
    assert scores.grad is not None
    assert scores.grad.isfinite().all()


@pytest.mark.parametrize("include", [False, True])
@pytest.mark.parametrize("batch", [False, True])
def test_a_config_is_the_loss_of_its_fields(include: bool, batch: bool) -> None:
    scores, label = scores_of(1, 2, 4, [5, 4, 3], 1.0), index_of(1, 2, 4, [5, 4, 3])
    common = {"include_background": include, "batch": batch, **INDEX}
    named: dict[str, nn.Module] = {
        "dice_ce": DiceCELoss(**common),
        "dice_focal": DiceFocalLoss(gamma=1.5, **common),
        "dice": DiceLoss(**common),
        "tversky": TverskyLoss(alpha=0.2, beta=0.9, **common),
        "tversky_ce": TverskyCELoss(alpha=0.2, beta=0.9, **common),
        "focal_tversky": FocalTverskyLoss(alpha=0.2, beta=0.9, gamma=1.5, **common),
    }
    assert set(get_args(LossName)) == set(named)
    for name, single in named.items():
        config = LossConfig(name=name, include_background=include, batch=batch, gamma=1.5, alpha=0.2, beta=0.9)  # type: ignore[arg-type]
        assert torch.equal(build_loss(config)(scores, label), single(scores, label))
        coarse = scores[..., ::2, ::3]
        wanted = (2 * single(scores, label) + single(coarse, label[..., 1::2, 1::3])) / 3
        assert torch.allclose(build_loss(config)([scores, coarse], label), wanted)


@every_loss
def test_half_precision_and_autocast_change_nothing_but_the_scores(loss: nn.Module) -> None:
    short = scores_of(3, 2, 3, [9, 8, 7], 2.0).detach().bfloat16().requires_grad_()
    target = index_of(1, 2, 3, [9, 8, 7])
    wanted = loss(short.detach().float(), target)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        value = loss(short, target)
    assert value.dtype == torch.float32
    assert torch.equal(value, wanted)
    value.backward()
    assert short.grad is not None
    assert short.grad.dtype == torch.bfloat16
    assert short.grad.any()


@every_loss
def test_the_derivative_is_the_numerical_one(loss: nn.Module) -> None:
    scores = scores_of(3, 2, 3, [2, 3], 1.0).detach().double().requires_grad_()
    target = index_of(1, 2, 3, [2, 3])
    assert torch.autograd.gradcheck(lambda given: loss(given, target), (scores,))


@every_loss
def test_it_compiles_whole(loss: nn.Module) -> None:
    torch._dynamo.reset()
    scores, target = scores_of(3, 2, 3, [5, 4, 3], 2.0), index_of(1, 2, 3, [5, 4, 3])
    agree(torch.compile(loss, backend="aot_eager", fullgraph=True)(scores, target), loss(scores, target), scores)


@every_loss
def test_monais_tensors_and_channels_last_are_taken(loss: nn.Module) -> None:
    scores, target = scores_of(3, 2, 3, [5, 4, 3], 2.0), index_of(1, 2, 3, [5, 4, 3])
    wanted = loss(scores, target)
    last = scores.detach().contiguous(memory_format=torch.channels_last_3d).requires_grad_()
    value = loss(last, target)
    assert torch.allclose(value, wanted)
    (mine,), (theirs,) = torch.autograd.grad(value, last), torch.autograd.grad(wanted, scores)
    assert torch.allclose(mine, theirs, atol=1e-7)
    meta = MetaTensor(scores.detach().clone()).requires_grad_()
    value = loss(meta, MetaTensor(target))
    assert type(value) is Tensor
    value.backward()
    assert torch.allclose(torch.as_tensor(meta.grad), theirs, atol=1e-7)


@every_loss
def test_sure_and_wrong_scores_stay_finite(loss: nn.Module) -> None:
    scores = torch.tensor([[[500.0, -500.0], [-500.0, 500.0]]], requires_grad=True)
    value = loss(scores, torch.tensor([[[1, 0]]]))
    (gradient,) = torch.autograd.grad(value, scores)
    assert value.isfinite()
    assert gradient.isfinite().all()


@every_loss
@pytest.mark.parametrize(
    ("scores", "target"),
    [
        ((2, 3, 5, 4), (2, 1, 4, 4)),
        ((2, 3, 5, 4), (2, 3, 5, 4)),
        ((2, 3, 5, 4), (2, 5, 4)),
        ((2, 1, 5), (2, 1, 5)),
        ((6, 4), (6, 1)),
    ],
)
def test_shapes_that_do_not_fit_are_told(loss: nn.Module, scores: tuple[int, ...], target: tuple[int, ...]) -> None:
    with pytest.raises(ValueError) as raised:
        loss(torch.rand(scores), torch.zeros(target))
    assert str(scores) in str(raised.value)
    assert str(target) in str(raised.value)


@pytest.mark.parametrize("options", [{}, {"softmax": True}, {"to_onehot_y": True}], ids=str)
def test_another_form_than_a_soft_max_of_class_index_is_refused(options: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match="to_onehot_y, softmax"):
        DiceCELoss(**options)
