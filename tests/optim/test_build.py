from __future__ import annotations

import io
import math
from typing import Any, get_args, get_type_hints

import pytest
import torch
from torch import Tensor, nn

from hasten.config.schema import OptimizerName, TrainConfig
from hasten.optim.build import build_optimizer, build_schedule, one_cycle
from hasten.optim.lamb import Lamb
from hasten.optim.lars import Lars
from hasten.optim.muon import Muon
from hasten.optim.novograd import Novograd
from hasten.optim.schedule import Schedule, set_rate
from tests.optim.textbook import network, set_gradients

NAMES = get_args(OptimizerName)


def test_one_cycle_by_hand() -> None:
    results = [one_cycle(step, steps=12, peak=1.0, warmup_fraction=1 / 3) for step in range(12)]
    rise = [0.04, 0.28, 0.52, 0.76]
    fall = [0.001 + 0.999 * (1 + math.cos(math.pi * part / 8)) / 2 for part in range(8)]
    assert results == pytest.approx(rise + fall)


class Everything(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv3d(1, 4, 3)
        self.up = nn.ConvTranspose2d(4, 2, 2, bias=False)
        self.line = nn.Linear(3, 2)
        self.instance = nn.InstanceNorm3d(4, affine=True)
        self.batch = nn.BatchNorm3d(4)
        self.act = nn.PReLU()
        self.layer = nn.LayerNorm((8, 8))


def config(**given: Any) -> TrainConfig:
    return TrainConfig(learning_rate=0.1, **given)


def test_names_are_the_configs() -> None:
    assert get_type_hints(TrainConfig)["optimizer"] == OptimizerName


@pytest.mark.parametrize("name", NAMES)
def test_what_decays_does_not_hang_on_the_optimizer(name: Any) -> None:
    made = Everything()
    optimizer = build_optimizer(made, config(optimizer=name, weight_decay=0.3))
    names = {parameter: name for name, parameter in made.named_parameters()}
    results = {names[each]: group["weight_decay"] for group in optimizer.param_groups for each in group["params"]}
    assert results == {name: 0.3 * (name in ("conv.weight", "up.weight", "line.weight")) for name in names.values()}
    assert all(group["lr"] == 0.1 for group in optimizer.param_groups)


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        ("muon", Muon), ("adamw", torch.optim.AdamW), ("sgd", torch.optim.SGD), ("novograd", Novograd),
        ("lamb", Lamb), ("nvlamb", Lamb), ("lars", Lars),
    ],
)  # fmt: skip
def test_every_name_makes_its_optimizer(name: Any, kind: type) -> None:
    optimizer = build_optimizer(network(), config(optimizer=name, momentum=0.7))
    assert type(optimizer) is kind
    assert optimizer._step_supports_amp_scaling  # type: ignore[attr-defined]
    assert optimizer.defaults.get("nvlamb", False) == (name == "nvlamb")
    if name in ("sgd", "lars"):
        assert {group["momentum"] for group in optimizer.param_groups} == {0.7}


@pytest.mark.parametrize("name", NAMES)
def test_a_run_goes_on_in_another_memory_format(name: Any) -> None:
    net, other = network(), network(torch.channels_last_3d)
    given = config(optimizer=name, weight_decay=0.1)
    one, two = build_optimizer(net, given), build_optimizer(other, given)
    for step in range(3):
        set_gradients(net, step)
        one.step()
    file = io.BytesIO()
    torch.save([net.state_dict(), one.state_dict()], file)
    file.seek(0)
    weights, state = torch.load(file, weights_only=True)
    other.load_state_dict(weights)
    two.load_state_dict(state)
    for step in range(3, 6):
        for each, optimizer in ((net, one), (other, two)):
            set_gradients(each, step)
            optimizer.step()
    for result, wanted in zip(other.parameters(), net.parameters(), strict=True):
        assert torch.allclose(result, wanted, rtol=1e-3, atol=1e-4)


def test_the_configs_schedule() -> None:
    given = config(schedule="step", milestones=((0.5, 0.2),), warmup_fraction=0.0)
    result = build_schedule(given, 10, batch_size=8)
    assert [result(step) for step in range(10)] == pytest.approx([0.1] * 5 + [0.02] * 5)
    given = config(schedule="poly", warmup_fraction=0.0)
    assert build_schedule(given, 10, batch_size=8)(5) == pytest.approx(0.1 / 2**0.9)
    default = build_schedule(config(), 40, batch_size=8)
    assert [default(step) for step in range(40)] == [
        one_cycle(step, steps=40, peak=0.1, warmup_fraction=0.05) for step in range(40)
    ]


def test_the_rate_is_scaled_to_the_batch() -> None:
    given = config(schedule="constant", warmup_fraction=0.5, learning_rate_batch=2)
    result = build_schedule(given, 10, batch_size=8)
    assert result == Schedule(
        kind="constant", steps=10, peak=0.4, warmup_fraction=0.5, first=0.25, milestones=given.milestones
    )
    assert result(0) == pytest.approx(0.1)
    assert result(9) == pytest.approx(0.4)
    assert build_schedule(given, 10, batch_size=1)(9) == pytest.approx(0.05)


@pytest.mark.parametrize("name", NAMES)
def test_frozen_parameters_stay_and_factors_count(name: OptimizerName) -> None:
    def trained(rate: float, **given: Any) -> dict[str, Tensor]:
        made = network()
        made[3].requires_grad_(False)
        optimizer = build_optimizer(made, config(optimizer=name, weight_decay=0.3, **given))
        for step in range(4):
            set_gradients(made, step)
            for weight in made[3].parameters():
                weight.grad = None
            set_rate(optimizer, rate)
            optimizer.step()
        return {key: value.detach().clone() for key, value in made.named_parameters()}

    plain, slow = trained(0.01), trained(0.005)
    mixed = trained(0.01, lr_scale={"6.*": 0.5, "0.weight": 0.5})
    for key, start in network().named_parameters():
        expected = slow[key] if key in ("6.weight", "6.bias", "0.weight") else plain[key]
        torch.testing.assert_close(mixed[key], start if key.startswith("3.") else expected)
    assert not torch.equal(plain["6.weight"], slow["6.weight"])
