from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from hasten.nets.surgery.dataflow import see_flow


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.a, self.b, self.idle, self.drop = nn.Linear(2, 2), nn.Linear(2, 2), nn.Dropout(0.0), nn.Dropout(0.5)
        self.act = nn.ReLU(inplace=True)

    def forward(self, image: Tensor) -> dict[str, Any]:
        first = self.a(image)
        second = self.b(self.idle(first))
        third = self.b(self.drop(second))
        fourth = self.a(third)
        self.act(fourth)
        return {"out": [third, fourth + 1]}


def test_uses_are_told_by_the_call_that_they_happened_in() -> None:
    flow = see_flow(Net(), torch.randn(3, 2))
    first, last = flow.calls_of("a")
    consumers = flow.consumers(first.output)
    assert consumers is not None
    assert [call.module for call in consumers] == ["b"]  # a dropout of 0 hands on what it was given
    second, third = flow.calls_of("b")
    consumers = flow.consumers(second.output)
    assert consumers is not None
    assert [call.module for call in consumers] == ["drop"]
    assert flow.consumers(third.output) is None  # it leaves the network
    assert flow.consumers(last.output) is None  # it is added to, outside a module
    first_taker = flow.first_consumer(last.output)
    assert first_taker is not None
    assert first_taker.module == "act"
    assert first_taker.output is last.output


def test_only_a_copy_is_run() -> None:
    network = nn.Sequential(nn.BatchNorm1d(2), nn.Dropout()).eval()
    image, state = torch.randn(4, 2), torch.get_rng_state()
    flow = see_flow(network, (image,))
    assert torch.equal(torch.get_rng_state(), state)
    assert network[0].running_mean is not None
    assert not network[0].running_mean.any()
    assert flow.network is not network
    assert flow.network.training
