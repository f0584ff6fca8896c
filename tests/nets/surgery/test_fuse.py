"""Outputs that wait for the activation behind them, whatever else may come."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.utils.checkpoint import checkpoint

from hasten.nets.surgery.dataflow import see_flow
from hasten.nets.surgery.deferred import Deferred
from hasten.nets.surgery.fuse import fuse
from hasten.nets.surgery.normact import group_norm_act
from hasten.nets.surgery.operate import operate

IMAGE = torch.randn(2, 4, 6, 5, generator=torch.Generator().manual_seed(0))


class Pair(nn.Module):
    """A norm and an activation, put together by a function that can be changed after the surgery."""

    def __init__(self, act: nn.Module) -> None:
        super().__init__()
        self.norm, self.act = nn.InstanceNorm2d(4, affine=True), act
        self.own: Callable[[Pair, Tensor], Any] = lambda net, image: net.act(net.norm(image))

    def forward(self, image: Tensor) -> Any:
        return self.own(self, image)


def pairs(act: nn.Module) -> tuple[Pair, Pair]:
    plain = Pair(copy.deepcopy(act))
    other = copy.deepcopy(plain)
    assert operate(other, IMAGE).pairs == ("norm",)
    return plain, other


def agree(plain: Pair, other: Pair) -> None:
    results = []
    for network in (plain, other):
        image = IMAGE.clone().requires_grad_()
        scores = network(image)
        scores.square().sum().backward()
        results.append([scores, image.grad, *(value.grad for value in network.parameters())])
    for scores, wanted in zip(results[1], results[0], strict=True):
        assert (scores is None) == (wanted is None)
        assert scores is None or torch.allclose(scores, wanted, atol=1e-4)


def both_used(net: Pair, image: Tensor) -> Tensor:
    normed = net.norm(image)
    return net.act(normed.clone()) + normed + net.act(normed.clone())


def not_at_all(net: Pair, image: Tensor) -> Tensor:
    return net.norm(image)


def changed_in_place(net: Pair, image: Tensor) -> Tensor:
    normed = net.norm(image)
    normed += 1
    normed[:, 0] = 0
    return net.act(normed)


def measured(net: Pair, image: Tensor) -> Tensor:
    normed = net.norm(image)
    with torch.no_grad():
        scale = normed.abs().mean()
    assert normed.shape == image.shape
    assert normed.requires_grad
    return net.act(normed) * scale


def functions(net: Pair, image: Tensor) -> Tensor:
    first = torch.relu(net.norm(image)) + net.norm(image).relu() + functional.relu(net.norm(image), inplace=True)
    return first + functional.leaky_relu(net.norm(image), 0.3) + functional.leaky_relu(net.norm(image), -0.3)


def dropped(net: Pair, image: Tensor) -> Tensor:
    return net.act(functional.dropout(net.norm(image), 0.0)) + functional.dropout(net.norm(image), training=False)


def recomputed(net: Pair, image: Tensor) -> Tensor:
    return checkpoint(lambda given: net.act(net.norm(given)), image, use_reentrant=False)


def recomputed_across(net: Pair, image: Tensor) -> Tensor:
    return checkpoint(lambda given: net.act(given.clone()), net.norm(image), use_reentrant=False)


FLOWS = [both_used, not_at_all, changed_in_place, measured, functions, dropped, recomputed, recomputed_across]


@pytest.mark.parametrize("flow", FLOWS)
@pytest.mark.parametrize("act", [nn.PReLU(), nn.ReLU(), nn.ReLU(inplace=True), nn.LeakyReLU(0.2, inplace=True)])
def test_another_flow_than_the_one_that_was_seen_changes_nothing(flow: Any, act: nn.Module) -> None:
    plain, other = pairs(act)
    plain.own = other.own = flow
    agree(plain, other)


@pytest.mark.parametrize("act", [nn.PReLU(), nn.PReLU(4), nn.ReLU(), nn.LeakyReLU(0.2), nn.LeakyReLU(inplace=True)])
def test_the_seen_flow_is_one_operation(act: nn.Module) -> None:
    plain, other = pairs(act)
    agree(plain, other)
    waiting = other.norm(IMAGE)
    assert isinstance(waiting, Deferred)
    result = other.act(waiting)
    assert type(result) is Tensor
    assert "NormAct" in str(result.grad_fn)


@pytest.mark.parametrize("act", [nn.GELU(), nn.SiLU(), nn.ELU(), nn.LeakyReLU(-0.5), nn.Tanh()])
def test_other_activations_come_after_a_norm_that_keeps_the_format(act: nn.Module) -> None:
    plain = Pair(act)
    other = copy.deepcopy(plain)
    done = operate(other, IMAGE)
    assert (done.pairs, done.norms) == ((), ("norm",))
    agree(plain, other)
    image = IMAGE.contiguous(memory_format=torch.channels_last)
    assert other(image).is_contiguous(memory_format=torch.channels_last)


def test_a_dropout_between_them_is_part_of_one_operation(monkeypatch: pytest.MonkeyPatch) -> None:
    network = nn.Sequential(nn.InstanceNorm2d(4, affine=True), nn.Dropout(0.5), nn.PReLU())
    assert operate(network, IMAGE).pairs == ("0",)
    calls = []

    def counted(*args: Any) -> Tensor:
        calls.append(args[4:])
        return group_norm_act(*args)

    monkeypatch.setattr("hasten.nets.surgery.fuse.group_norm_act", counted)
    result = network(IMAGE)
    assert calls == [(network[2].weight, 1e-5, 0.5)]
    assert 0.3 < float((result == 0).float().mean()) < 0.7


def test_an_autograd_function_that_takes_an_output_too_early_is_told_of() -> None:
    class Twice(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, image: Tensor) -> Tensor:
            return image * 2

        @staticmethod
        def backward(ctx: Any, gradient: Tensor) -> Tensor:
            return gradient * 2

    _, other = pairs(nn.ReLU())
    other.own = lambda net, image: Twice.apply(net.norm(image))
    with pytest.raises(RuntimeError, match="fuse=False"):
        other(IMAGE).sum().backward()


@pytest.mark.parametrize(
    "norm",
    [
        nn.InstanceNorm2d(4, track_running_stats=True),
        nn.InstanceNorm2d(4, affine=True),
        nn.GroupNorm(2, 4),
        nn.GroupNorm(4, 4, affine=False),
        nn.BatchNorm2d(4),
    ],
)
@pytest.mark.parametrize("training", [True, False])
def test_a_norm_of_any_kind_gives_back_its_format_and_counts_as_before(norm: nn.Module, training: bool) -> None:
    plain = nn.Sequential(norm, nn.PReLU())
    other = copy.deepcopy(plain)
    operate(other, IMAGE)
    image = IMAGE.contiguous(memory_format=torch.channels_last)
    for network in (plain, other):
        network.train(training)
    for _ in range(2):
        result = other(image)
        assert torch.allclose(result, plain(image), atol=1e-5)
    assert result.is_contiguous(memory_format=torch.channels_last)
    for one, another in zip(plain.buffers(), other.buffers(), strict=True):
        assert torch.allclose(one, another)


@pytest.mark.parametrize("shape", [(1, 4, 1, 1), (2, 3, 5, 5), (4, 6, 5)])
def test_what_torch_refuses_or_warns_of_it_still_does(shape: tuple[int, ...]) -> None:
    network = nn.Sequential(nn.InstanceNorm2d(4, affine=True), nn.ReLU())
    other = copy.deepcopy(network)
    operate(other, IMAGE)
    results: list[Any] = []
    for each in (network, other):
        try:
            results.append(each(torch.ones(shape)).tolist())
        except ValueError as error:
            results.append(str(error))
    assert results[0] == results[1]


def test_a_user_s_own_norm_or_activation_is_left_alone() -> None:
    class Norm(nn.InstanceNorm2d):
        pass

    class Act(nn.ReLU):
        pass

    network = nn.Sequential(Norm(4), nn.ReLU(), nn.InstanceNorm2d(4), Act())
    done = fuse(network, see_flow(network, IMAGE))
    assert (done.norms, done.pairs) == (("2",), ())


def test_functional_transforms_run_torchs_own_operations() -> None:
    _, other = pairs(nn.PReLU())
    parameters = {name: value.detach() for name, value in other.named_parameters()}

    def loss(values: dict[str, Tensor], image: Tensor) -> Tensor:
        return torch.func.functional_call(other, values, (image,)).square().sum()

    result = torch.func.grad(loss)(parameters, IMAGE)
    other(IMAGE).square().sum().backward()
    for name, value in other.named_parameters():
        assert value.grad is not None
        assert torch.allclose(result[name], value.grad, atol=1e-4)
