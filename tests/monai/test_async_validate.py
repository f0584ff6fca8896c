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


def test_a_request_while_busy_is_skipped() -> None:
    gate, got = Gate(), []
    with AsyncValidation(gate, got.append, like=network()) as validation:
        assert validation.request(network(1.0), 1)
        assert not validation.request(network(2.0), 2)
        assert not validation.request(network(3.0), 3)
        gate.open.set()
        assert validation.request(network(4.0), 4, when_busy="wait")
    assert results(got) == [(1, 1.0), (4, 4.0)]
    assert validation.skipped == 2


def test_a_request_while_busy_waits_where_asked_to_and_delivers_before_the_weights_change() -> None:
    gate, seen = Gate(), []

    def deliver(validated: Validated[float]) -> None:
        seen.append((validated.step, validated.result, float(validated.network.bias)))

    with AsyncValidation(gate, deliver, like=network(), when_busy="wait") as validation:
        validation.request(network(1.0), 1)
        assert gate.began.wait(60)
        threading.Timer(0.01, gate.open.set).start()
        validation.request(network(2.0), 2)
        assert seen == [(1, 1.0, 1.0)]
    assert seen == [(1, 1.0, 1.0), (2, 2.0, 2.0)]
    assert validation.blocked_seconds > 0


def test_an_error_is_raised_where_the_training_is() -> None:
    gate = Gate()
    gate.error = RuntimeError("no such file")
    gate.open.set()
    validation = AsyncValidation(gate, lambda validated: None, like=network())
    validation.request(network(), 7)
    with pytest.raises(RuntimeError, match="no such file") as caught:
        validation.finish()
    assert caught.value.__notes__ == ["while the weights of step 7 were validated"]
    assert not validation.busy
    validation.finish()


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
