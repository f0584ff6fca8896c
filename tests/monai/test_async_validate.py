"""Validation beside the training. Order is made with events, never with time."""

from __future__ import annotations

import threading
from typing import Any

import pytest
import torch
from torch import nn

from hasten.monai.async_validate import AsyncValidation, Validated


class Gate:
    """A validation that waits until the test lets it go on, and tells the bias it saw."""

    def __init__(self) -> None:
        self.began, self.open = threading.Event(), threading.Event()
        self.error: Exception | None = None

    def __call__(self, network: nn.Module) -> float:
        self.began.set()
        assert self.open.wait(60)
        if self.error is not None:
            raise self.error
        assert not network.training
        return float(network.bias)


def network(value: float = 0.0) -> nn.Linear:
    return with_bias(nn.Linear(1, 1), value)


def with_bias(net: nn.Linear, value: float) -> nn.Linear:
    with torch.no_grad():
        net.bias.fill_(value)
    return net


def results(validated: list[Validated[float]]) -> list[tuple[int, float]]:
    return [(one.step, one.result) for one in validated]


def test_a_result_belongs_to_the_weights_of_its_step_and_comes_later() -> None:
    gate, net, got = Gate(), network(1.0), []
    validation = AsyncValidation(gate, got.append, like=net)
    assert validation.request(net, 10)
    assert gate.began.wait(60)
    with_bias(net, 2.0)  # the training goes on
    validation.poll()
    assert got == []
    assert validation.busy
    gate.open.set()
    validation.finish()
    assert results(got) == [(10, 1.0)]
    assert float(got[0].network.bias) == 1.0
    assert not validation.busy
    assert validation.seconds == got[0].seconds > 0
    assert validation.request(net, 20)
    validation.finish()
    assert results(got) == [(10, 1.0), (20, 2.0)]


def test_buffers_are_copied_and_the_copy_is_apart() -> None:
    net = nn.Sequential(nn.Conv2d(1, 2, 1), nn.BatchNorm2d(2))
    net(torch.randn(4, 1, 3, 3) + 5)
    got: list[Any] = []
    with AsyncValidation(lambda one: one[1].running_mean.clone(), got.append, like=net) as validation:
        validation.request(net, 1)
    assert torch.equal(got[0].result, net[1].running_mean)
    assert not any(weight.requires_grad for weight in validation.network.parameters())
    shared = {weight.data_ptr() for weight in net.parameters()} & {
        weight.data_ptr() for weight in validation.network.parameters()
    }
    assert not shared
    assert net.training


@pytest.mark.parametrize(
    ("settings", "words"), [({"when_busy": "drop"}, "when_busy='drop'"), ({"threads": 0}, "threads=0")]
)
def test_wrong_arguments_are_named(settings: dict[str, Any], words: str) -> None:
    with pytest.raises(ValueError, match=words):
        AsyncValidation(lambda one: None, lambda validated: None, like=network(), **settings)
