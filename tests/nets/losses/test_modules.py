"""The losses against MONAI's, value and gradient, and against the plain formulas where MONAI has none."""

from __future__ import annotations

import warnings
from typing import Any

import monai.losses
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from monai.data import MetaTensor
from torch import Tensor, nn

from hasten.nets.losses.modules import (
    DiceCELoss,
    DiceFocalLoss,
    DiceLoss,
    FocalLoss,
    FocalTverskyLoss,
    GeneralizedDiceLoss,
    TverskyCELoss,
    TverskyLoss,
)

OURS: dict[str, type[nn.Module]] = {
    "DiceLoss": DiceLoss,
    "DiceCELoss": DiceCELoss,
    "DiceFocalLoss": DiceFocalLoss,
    "TverskyLoss": TverskyLoss,
    "GeneralizedDiceLoss": GeneralizedDiceLoss,
    "FocalLoss": FocalLoss,
}
INDEX = {"to_onehot_y": True, "softmax": True}


def scores_of(seed: int, count: int, classes: int, sides: list[int], spread: float) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    return (spread * torch.randn(count, classes, *sides, generator=generator)).requires_grad_()


def index_of(seed: int, count: int, classes: int, sides: list[int], kind: torch.dtype = torch.uint8) -> Tensor:
    """Class index; every third time without the last class."""
    generator = torch.Generator().manual_seed(seed + 1)
    return torch.randint(0, classes - (seed % 3 == 0), (count, 1, *sides), generator=generator).to(kind)


def several_of(seed: int, count: int, classes: int, sides: list[int]) -> Tensor:
    generator = torch.Generator().manual_seed(seed + 1)
    return torch.randint(0, 2, (count, classes, *sides), generator=generator).float()


def agree(name: str, scores: Tensor, target: Tensor, **options: Any) -> None:
    # An argument that MONAI's lacks is an error there, so that no option goes untested.
    ours = OURS[name](**options)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        options = {key: torch.tensor(value) if key == "weight" else value for key, value in options.items()}
        wanted = getattr(monai.losses, name)(**options)(scores, target)
    result = ours(scores, target)
    assert result.shape == wanted.shape
    assert torch.allclose(result, wanted, rtol=1e-5, atol=1e-5)
    slope = torch.linspace(1, 2, result.numel()).reshape(result.shape)
    (mine,), (theirs,) = (torch.autograd.grad((slope * loss).sum(), scores) for loss in (result, wanted))
    assert torch.allclose(mine, theirs, rtol=1e-4, atol=1e-5 * float(theirs.abs().max()) + 1e-9)


sizes = {
    "count": st.integers(1, 3),
    "sides": st.lists(st.integers(1, 6), min_size=2, max_size=3),
    "spread": st.sampled_from([0.1, 1.0, 8.0]),
    "include": st.booleans(),
    "batch": st.booleans(),
    "seed": st.integers(0, 99),
}


@settings(max_examples=80, deadline=None)
@given(
    name=st.sampled_from(["DiceLoss", "DiceCELoss", "DiceFocalLoss", "TverskyLoss", "GeneralizedDiceLoss"]),
    classes=st.integers(2, 5),
    kind=st.sampled_from([torch.uint8, torch.int64, torch.float32]),
    reduction=st.sampled_from(["mean", "sum"]),
    **sizes,
)
def test_of_class_index_they_are_monais(
    name: str,
    classes: int,
    kind: torch.dtype,
    reduction: str,
    count: int,
    sides: list[int],
    spread: float,
    include: bool,
    batch: bool,
    seed: int,
) -> None:
    scores, target = scores_of(seed, count, classes, sides, spread), index_of(seed, count, classes, sides, kind)
    agree(name, scores, target, include_background=include, batch=batch, reduction=reduction, **INDEX)


@settings(max_examples=60, deadline=None)
@given(
    name=st.sampled_from(["DiceLoss", "DiceCELoss", "DiceFocalLoss", "TverskyLoss", "GeneralizedDiceLoss"]),
    classes=st.integers(1, 4),
    reduction=st.sampled_from(["mean", "sum"]),
    **sizes,
)
def test_of_several_labels_a_voxel_they_are_monais(
    name: str,
    classes: int,
    reduction: str,
    count: int,
    sides: list[int],
    spread: float,
    include: bool,
    batch: bool,
    seed: int,
) -> None:
    scores, target = scores_of(seed, count, classes, sides, spread), several_of(seed, count, classes, sides)
    agree(name, scores, target, include_background=include, batch=batch, reduction=reduction, sigmoid=True)


@settings(max_examples=60, deadline=None)
@given(
    classes=st.integers(2, 4),
    gamma=st.sampled_from([0.0, 1.5, 2.0, 4.0]),
    alpha=st.sampled_from([None, 0.25]),
    reduction=st.sampled_from(["mean", "sum", "none"]),
    ignore=st.sampled_from([None, 1, 255]),
    weigh=st.booleans(),
    count=st.integers(1, 3),
    sides=st.lists(st.integers(1, 6), min_size=2, max_size=3),
    include=st.booleans(),
    seed=st.integers(0, 99),
)
def test_the_focal_loss_is_monais(
    classes: int,
    gamma: float,
    alpha: float | None,
    reduction: str,
    ignore: int | None,
    weigh: bool,
    count: int,
    sides: list[int],
    include: bool,
    seed: int,
) -> None:
    scores, target = scores_of(seed, count, classes, sides, 2.0), index_of(seed, count, classes, sides, torch.int64)
    if ignore == 255:
        target[..., 0] = 255
    weight = [0.5, 2.0, 1.0, 0.0][: classes - (not include)] if weigh and classes - (not include) > 1 else None
    options = {"include_background": include, "reduction": reduction, "ignore_index": ignore, "alpha": alpha}
    options |= {"weight": weight} if weight else {}
    agree("FocalLoss", scores, target, to_onehot_y=True, gamma=gamma, **options)


@pytest.mark.parametrize("include", [False, True])
@pytest.mark.parametrize(
    ("name", "options"),
    [
        ("DiceLoss", {"weight": [1.0, 0.5, 3.0]}),
        ("DiceLoss", {"weight": 2.0}),
        ("DiceLoss", {"jaccard": True}),
        ("DiceLoss", {"squared_pred": True}),
        ("DiceLoss", {"squared_pred": True, "jaccard": True, "ignore_index": 2}),
        ("DiceLoss", {"smooth_nr": 0.1, "smooth_dr": 1.0}),
        ("DiceLoss", {"reduction": "none"}),
        ("DiceLoss", {"reduction": "none", "batch": True}),
        ("DiceLoss", {"ignore_index": 1}),
        ("DiceLoss", {"ignore_index": -1}),
        ("TverskyLoss", {"alpha": 0.3, "beta": 0.7}),
        ("TverskyLoss", {"reduction": "none", "alpha": 0.9}),
        ("TverskyLoss", {"ignore_index": 1}),
        ("TverskyLoss", {"ignore_index": -1}),
        ("GeneralizedDiceLoss", {"w_type": "simple"}),
        ("GeneralizedDiceLoss", {"w_type": "uniform", "batch": True}),
        ("GeneralizedDiceLoss", {"reduction": "none"}),
        ("DiceCELoss", {"lambda_dice": 0.3, "lambda_ce": 2.0}),
        ("DiceCELoss", {"weight": [0.2, 1.0, 0.5, 3.0]}),
        ("DiceCELoss", {"weight": [0.2, 1.0, 0.5, 3.0], "reduction": "sum"}),
        ("DiceCELoss", {"label_smoothing": 0.1, "weight": [0.2, 1.0, 0.5, 3.0]}),
        ("DiceCELoss", {"jaccard": True, "batch": True}),
        ("DiceCELoss", {"smooth_nr": 0.0}),
        ("DiceCELoss", {"squared_pred": True}),
        ("DiceFocalLoss", {"gamma": 1.0, "lambda_dice": 0.3, "lambda_focal": 2.0}),
        ("DiceFocalLoss", {"weight": [1.0, 0.5, 3.0]}),
        ("DiceFocalLoss", {"alpha": 0.7, "reduction": "sum"}),
    ],
)
def test_an_option_is_monais(name: str, options: dict[str, Any], include: bool) -> None:
    scores, target = scores_of(3, 2, 4, [5, 4, 3], 2.0), index_of(1, 2, 4, [5, 4, 3], torch.int64)
    if options.get("ignore_index") == -1:
        target[:, :, 0] = -1
    if include and len(options.get("weight", []) if isinstance(options.get("weight"), list) else []) == 3:
        options = options | {"weight": [*options["weight"], 0.7]}
    agree(name, scores, target, include_background=include, **INDEX, **options)


@pytest.mark.parametrize("name", ["DiceLoss", "DiceCELoss", "DiceFocalLoss", "TverskyLoss"])
def test_a_soft_max_against_one_channel_a_class_is_monais(name: str) -> None:
    scores, target = scores_of(3, 2, 4, [5, 4, 3], 2.0), index_of(1, 2, 4, [5, 4, 3], torch.int64)
    hot = nn.functional.one_hot(target[:, 0], 4).movedim(-1, 1)
    agree(name, scores, hot.float(), softmax=True)
    result = OURS[name](softmax=True)(scores, hot)
    assert torch.allclose(result, OURS[name](**INDEX)(scores, target), rtol=1e-5)


def test_shares_as_they_are_and_another_activation() -> None:
    scores, target = scores_of(3, 2, 3, [5, 4], 0.5), several_of(3, 2, 3, [5, 4])
    agree("DiceLoss", scores, target)
    agree("DiceLoss", scores, target, other_act=torch.tanh)


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
    weight = torch.tensor([0.1, 1.0, 2.0, 0.5])
    entropy = nn.functional.cross_entropy(scores, target[:, 0].long(), weight)
    pairs = [
        (FocalTverskyLoss(gamma=gamma, **common), (each**gamma).mean()),
        (TverskyCELoss(weight=weight, lambda_ce=0.5, **common), each.mean() + 0.5 * entropy),
    ]
    for loss, wanted in pairs:
        value = loss(scores, target)
        assert torch.allclose(value, wanted, rtol=1e-5)
        (mine,), (theirs,) = (torch.autograd.grad(one, scores, retain_graph=True) for one in (value, wanted))
        assert torch.allclose(mine, theirs, rtol=1e-4, atol=1e-7)


def test_a_perfect_class_has_a_finite_slope_in_focal_tversky() -> None:
    target = index_of(1, 2, 3, [4, 4])
    scores = (100 * nn.functional.one_hot(target[:, 0].long(), 3).movedim(-1, 1).float()).requires_grad_()
    loss = FocalTverskyLoss(**INDEX)(scores, target)
    loss.backward()
    assert loss < 1e-3
    assert scores.grad is not None
    assert scores.grad.isfinite().all()


ALL = [
    DiceLoss(**INDEX),
    DiceCELoss(**INDEX),
    DiceCELoss(**INDEX, lambda_ce=0.5),
    DiceFocalLoss(**INDEX),
    TverskyLoss(**INDEX),
    TverskyCELoss(**INDEX),
    FocalTverskyLoss(**INDEX),
    GeneralizedDiceLoss(**INDEX),
    FocalLoss(to_onehot_y=True),
    DiceLoss(softmax=True, to_onehot_y=True, ignore_index=1),
    DiceLoss(softmax=True, to_onehot_y=True, squared_pred=True),
    FocalLoss(to_onehot_y=True, use_softmax=True, alpha=[0.2, 0.3, 0.5]),
]


def name_of(loss: nn.Module) -> str:
    return type(loss).__name__


@pytest.mark.parametrize("loss", ALL, ids=name_of)
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


@pytest.mark.parametrize("loss", ALL, ids=name_of)
def test_the_derivative_is_the_numerical_one(loss: nn.Module) -> None:
    scores = scores_of(3, 2, 3, [2, 3], 1.0).detach().double().requires_grad_()
    target = index_of(1, 2, 3, [2, 3])
    assert torch.autograd.gradcheck(lambda given: loss(given, target), (scores,))


@pytest.mark.parametrize("loss", ALL, ids=name_of)
def test_it_compiles_whole(loss: nn.Module) -> None:
    torch._dynamo.reset()
    scores, target = scores_of(3, 2, 3, [5, 4, 3], 2.0), index_of(1, 2, 3, [5, 4, 3])
    result = torch.compile(loss, backend="aot_eager", fullgraph=True)(scores, target)
    wanted = loss(scores, target)
    assert torch.allclose(result, wanted, rtol=1e-6)
    (mine,), (theirs,) = (torch.autograd.grad(one, scores) for one in (result, wanted))
    assert torch.allclose(mine, theirs, rtol=1e-5, atol=1e-7)


@pytest.mark.parametrize("loss", ALL, ids=name_of)
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


def test_sure_and_wrong_scores_stay_finite() -> None:
    target = torch.tensor([[[1, 0]]])
    for loss in ALL[:-1]:
        scores = torch.tensor([[[500.0, -500.0], [-500.0, 500.0]]], requires_grad=True)
        value = loss(scores, target)
        (gradient,) = torch.autograd.grad(value, scores)
        assert value.isfinite()
        assert gradient.isfinite().all()


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: DiceLoss(softmax=True, sigmoid=True), ["softmax", "choose one"]),
        (lambda: DiceLoss(reduction="all"), ["reduction", "'all'", "mean"]),  # type: ignore[arg-type]
        (lambda: DiceCELoss(reduction="none"), ["reduction", "'none'", "mean, sum"]),
        (lambda: DiceCELoss(lambda_ce=-1.0), ["lambda_ce", "-1"]),
        (lambda: DiceFocalLoss(gamma=-1.0), ["gamma", "-1"]),
        (lambda: FocalTverskyLoss(gamma=0.0), ["gamma", "0"]),
        (lambda: TverskyCELoss(sigmoid=True), ["softmax", "to_onehot_y"]),
        (lambda: GeneralizedDiceLoss(w_type="cube"), ["w_type", "'cube'", "square"]),  # type: ignore[arg-type]
        (lambda: DiceLoss(weight=[1.0, -1.0]), ["weight", "-1"]),
    ],
)
def test_a_mistake_is_told_when_the_loss_is_made(make: Any, words: list[str]) -> None:
    with pytest.raises(ValueError) as raised:
        make()
    assert all(word in str(raised.value) for word in words), raised.value


@pytest.mark.parametrize(
    ("loss", "target", "words"),
    [
        (DiceLoss(**INDEX), (2, 1, 4, 4), ["(2, 1, 4, 4)", "(2, 3, 5, 4)"]),
        (DiceLoss(softmax=True), (2, 1, 5, 4), ["(2, 1, 5, 4)", "to_onehot_y=True"]),
        (DiceCELoss(**INDEX), (2, 5, 4), ["(2, 5, 4)"]),
        (DiceLoss(weight=[1.0, 2.0], **INDEX), (2, 1, 5, 4), ["weight: 2 for 3"]),
        (FocalLoss(weight=[1.0, 2.0], to_onehot_y=True), (2, 1, 5, 4), ["weight: 2 for 3"]),
    ],
)
def test_a_target_or_weight_that_does_not_fit_is_told(
    loss: nn.Module, target: tuple[int, ...], words: list[str]
) -> None:
    with pytest.raises(ValueError) as raised:
        loss(torch.zeros(2, 3, 5, 4), torch.zeros(target, dtype=torch.int64))
    assert all(word in str(raised.value) for word in words), raised.value


@pytest.mark.parametrize("name", ["DiceLoss", "TverskyLoss", "GeneralizedDiceLoss", "DiceCELoss", "FocalLoss"])
@pytest.mark.parametrize("argument", [{"softmax": True}, {"to_onehot_y": True}, {"include_background": False}])
def test_what_one_channel_makes_meaningless_is_ignored_with_a_warning_as_in_monai(
    name: str, argument: dict[str, bool]
) -> None:
    if name == "FocalLoss" and "softmax" in argument:
        argument = {"include_background": False}
    scores, target = torch.rand(2, 1, 5, 4), several_of(3, 2, 1, [5, 4])
    with pytest.warns(UserWarning, match=f"single channel prediction, `{next(iter(argument))}="):
        result = OURS[name](**argument)(scores, target)
    with pytest.warns(UserWarning, match="single channel"):
        wanted = getattr(monai.losses, name)(**argument)(scores, target)
    assert torch.allclose(result, wanted, rtol=1e-5)


@settings(max_examples=40, deadline=None)
@given(
    name=st.sampled_from(["DiceLoss", "TverskyLoss", "GeneralizedDiceLoss"]),
    sigmoid=st.booleans(),
    squared=st.booleans(),
    seed=st.integers(0, 99),
)
def test_soft_labels_are_monais(name: str, sigmoid: bool, squared: bool, seed: int) -> None:
    scores = scores_of(seed, 2, 3, [5, 4], 1.0)
    target = torch.rand(2, 3, 5, 4, generator=torch.Generator().manual_seed(seed))
    options = {"squared_pred": squared} if name == "DiceLoss" else {}
    agree(name, scores, target, sigmoid=sigmoid, softmax=not sigmoid, soft_label=True, **options)


@pytest.mark.parametrize("reduction", ["mean", "sum", "none"])
@pytest.mark.parametrize("softmax", [False, True])
@pytest.mark.parametrize(
    "options",
    [{}, {"alpha": 0.3}, {"alpha": [0.2, 0.5, 0.9]}, {"weight": [0.2, 1.0, 3.0]}, {"ignore_index": 1}, {"gamma": 0.0}],
)
def test_the_focal_loss_of_a_soft_max_and_of_an_alpha_for_each_class_is_monais(
    options: dict[str, Any], softmax: bool, reduction: str
) -> None:
    scores, target = scores_of(3, 2, 3, [5, 4], 2.0), index_of(1, 2, 3, [5, 4], torch.int64)
    agree("FocalLoss", scores, target, to_onehot_y=True, use_softmax=softmax, reduction=reduction, **options)


def test_an_alpha_of_another_number_of_classes_and_one_that_has_no_background_are_told() -> None:
    scores, target = torch.rand(2, 3, 5), index_of(1, 2, 3, [5])
    with pytest.raises(ValueError, match="alpha: 2 for 3 classes"):
        FocalLoss(to_onehot_y=True, alpha=[0.1, 0.2])(scores, target)
    with pytest.warns(UserWarning, match="scalar `alpha` ignored"):
        FocalLoss(to_onehot_y=True, alpha=0.1, use_softmax=True, include_background=False)(scores, target)


@pytest.mark.parametrize("reduction", ["mean", "none"])
@pytest.mark.parametrize("softmax", [False, True])
def test_the_focal_loss_takes_scores_without_space(softmax: bool, reduction: str) -> None:
    scores = scores_of(3, 6, 4, [], 2.0)
    target = torch.randint(0, 4, (6, 1))
    agree("FocalLoss", scores, target, to_onehot_y=True, use_softmax=softmax, reduction=reduction)


@pytest.mark.parametrize("weight", [None, [1.0, 0.5, 3.0]])
def test_dice_with_focal_loss_of_each_voxel_is_monais(weight: list[float] | None) -> None:
    scores, target = scores_of(3, 2, 3, [5, 4], 2.0), index_of(1, 2, 3, [5, 4], torch.int64)
    options = {} if weight is None else {"weight": weight}
    agree("DiceFocalLoss", scores, target, reduction="none", alpha=0.4, **INDEX, **options)
