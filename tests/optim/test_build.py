from __future__ import annotations

import math
from itertools import pairwise
from typing import get_args, get_type_hints

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from hasten.config.schema import TrainConfig
from hasten.optim.build import build_optimizer, one_cycle


@given(st.integers(1, 400), st.floats(1e-6, 10), st.floats(0, 0.99))
def test_one_cycle_rises_to_its_peak_and_falls(steps: int, peak: float, warmup_fraction: float) -> None:
    def rate(step: int) -> float:
        return one_cycle(step, steps=steps, peak=peak, warmup_fraction=warmup_fraction)

    rates = [rate(step) for step in range(steps)]
    warmup = max(1, round(steps * warmup_fraction))
    assert all(0 < found <= peak * (1 + 1e-12) for found in rates)
    rise, fall = rates[: warmup + 1], rates[warmup:]
    assert all(later > earlier for earlier, later in pairwise(rise))
    assert all(later < earlier for earlier, later in pairwise(fall))
    if warmup < steps:
        assert rates[warmup] == pytest.approx(peak) == max(rates)
        # Beyond its end, as in a last epoch that is rounded up, it stays at its floor.
        assert rate(steps) == rate(steps + 5) == pytest.approx(peak / 1000)
    # Pure: neither the order of the calls nor their number matters.
    assert [rate(step) for step in reversed(range(steps))] == rates[::-1]


def test_one_cycle_by_hand() -> None:
    found = [one_cycle(step, steps=12, peak=1.0, warmup_fraction=1 / 3) for step in range(12)]
    rise = [0.04, 0.28, 0.52, 0.76]
    fall = [0.001 + 0.999 * (1 + math.cos(math.pi * part / 8)) / 2 for part in range(8)]
    assert found == pytest.approx(rise + fall)


class Everything(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv3d(1, 4, 3)
        self.up = nn.ConvTranspose2d(4, 2, 2, bias=False)
        self.line = nn.Linear(3, 2)
        self.instance = nn.InstanceNorm3d(4, affine=True)
        self.batch = nn.BatchNorm3d(4)
        self.act = nn.PReLU()


def test_only_convolutions_and_linear_layers_decay() -> None:
    network = Everything()
    optimizer = build_optimizer(network, TrainConfig(optimizer="adamw", learning_rate=0.1, weight_decay=0.3))
    names = {parameter: name for name, parameter in network.named_parameters()}
    decaying, kept = (
        {names[parameter] for parameter in group["params"]}
        for group in sorted(optimizer.param_groups, key=lambda group: -group["weight_decay"])
    )
    assert decaying == {"conv.weight", "up.weight", "line.weight"}
    assert kept == set(names.values()) - decaying
    assert {group["weight_decay"] for group in optimizer.param_groups} == {0.3, 0.0}
    assert all(group["lr"] == 0.1 for group in optimizer.param_groups)


@pytest.mark.parametrize("network", [nn.Linear(3, 2), nn.Linear(3, 2, bias=False), nn.PReLU()])
def test_a_step_is_adamws(network: nn.Module) -> None:
    optimizer = build_optimizer(network, TrainConfig(optimizer="adamw", learning_rate=0.1, weight_decay=0.5))
    before = [parameter.detach().clone() for parameter in network.parameters()]
    for parameter in network.parameters():
        parameter.grad = torch.full_like(parameter, -2.0)
    optimizer.step()
    for parameter, start in zip(network.parameters(), before, strict=True):
        # The first step of Adam is the learning rate against the gradient's sign, after the decay.
        decayed = start * (1 - 0.1 * 0.5) if parameter.ndim > 1 else start
        assert torch.allclose(parameter, decayed + 0.1)


def test_what_decays_does_not_hang_on_the_optimizer() -> None:
    network = Everything()
    for name in get_args(get_type_hints(TrainConfig)["optimizer"]):
        optimizer = build_optimizer(network, TrainConfig(optimizer=name, learning_rate=0.1, weight_decay=0.3))
        listed = [(id(each), group["weight_decay"]) for group in optimizer.param_groups for each in group["params"]]
        assert sorted(listed) == sorted((id(each), 0.3 * (each.ndim > 1)) for each in network.parameters())
        assert all(group["lr"] == 0.1 for group in optimizer.param_groups)
