from __future__ import annotations

from collections.abc import Callable
from typing import get_args

import pytest
import torch
from monai.networks.nets import DynUNet, SegResNet, UNet
from torch import nn

from hasten.config.schema import OptimizerName
from hasten.config.settled import PlannedTrain
from hasten.optim.build import build_optimizer
from hasten.optim.groups import delay_rates, exempt_parameters, param_groups, scale_rates, transposed_filters
from hasten.optim.schedule import set_rate

NETWORKS: dict[str, Callable[[], nn.Module]] = {
    "UNet": lambda: UNet(3, 1, 2, channels=(4, 8, 16), strides=(2, 2), num_res_units=2),
    "UNet, batch": lambda: UNet(2, 1, 2, channels=(4, 8), strides=(2,), norm="batch", act="relu"),
    "DynUNet": lambda: DynUNet(
        3, 1, 2, kernel_size=[3, 3, 3], strides=[1, 2, 2], upsample_kernel_size=[2, 2], filters=[4, 8, 16],
        norm_name=("INSTANCE", {"affine": True}), deep_supervision=True, deep_supr_num=1,
    ),
    "SegResNet": lambda: SegResNet(3, init_filters=8, blocks_down=(1, 1), blocks_up=(1,)),
}  # fmt: skip


@pytest.mark.parametrize("name", NETWORKS)
def test_of_monais_networks_only_filters_decay(name: str) -> None:
    network = NETWORKS[name]()
    decay, rest = param_groups(network, weight_decay=0.3)
    filters = {
        id(module.weight)
        for module in network.modules()
        if isinstance(module, (nn.Conv2d, nn.Conv3d, nn.ConvTranspose2d, nn.ConvTranspose3d))
    }
    assert {id(each) for each in decay["params"]} == filters
    assert (decay["weight_decay"], rest["weight_decay"]) == (0.3, 0.0)
    listed = [id(each) for each in (*decay["params"], *rest["params"])]
    assert sorted(listed) == sorted(id(each) for each in network.parameters())
    order = [id(each) for each in network.parameters()]
    for group in (decay, rest):
        places = [order.index(id(each)) for each in group["params"]]
        assert places == sorted(places)
    torch.optim.SGD([decay, rest], lr=0.1)


class ClassSwap(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.positions = nn.Parameter(torch.zeros(1, 5, 8))
        self.line = nn.Linear(8, 8)
        self.norm = nn.LayerNorm((5, 8))
        self.shared = self.line


def test_norms_of_several_axes_and_named_ones_do_not_decay() -> None:
    network = ClassSwap()
    names = {id(each): name for name, each in network.named_parameters()}
    assert {names[id(each)] for each in exempt_parameters(network)} == {"line.bias", "norm.weight", "norm.bias"}
    decay, rest = param_groups(network, weight_decay=0.1, exempt=["pos*"])
    assert [names[id(each)] for each in decay["params"]] == ["line.weight"]
    assert {names[id(each)] for each in rest["params"]} == {"positions", "line.bias", "norm.weight", "norm.bias"}
    with pytest.raises(ValueError, match=r"exempt: 'nothing\*' fits no .*there are positions"):
        param_groups(network, weight_decay=0.1, exempt=["nothing*"])


def test_a_group_that_would_be_empty_is_left_out() -> None:
    assert [group["weight_decay"] for group in param_groups(nn.Linear(2, 2, bias=False), weight_decay=0.1)] == [0.1]
    assert [group["weight_decay"] for group in param_groups(nn.BatchNorm3d(4), weight_decay=0.1)] == [0.0]


def test_transposed_filters_are_found() -> None:
    network = nn.Sequential(nn.Conv2d(2, 2, 3), nn.ConvTranspose2d(2, 2, 2), nn.ConvTranspose3d(1, 1, 2, bias=False))
    assert [tuple(each.shape) for each in transposed_filters(network)] == [(2, 2, 2, 2), (1, 1, 2, 2, 2)]


def test_rates_are_scaled_by_name() -> None:
    net = nn.Sequential(nn.Conv2d(1, 4, 3), nn.Conv2d(4, 4, 3), nn.Conv2d(4, 2, 1))
    optimizer = torch.optim.AdamW(param_groups(net, weight_decay=0.1), lr=0.5)
    scale_rates(optimizer, net, {"0.weight": 0.5, "0.*": 0.1, "2.*": 2.0})
    set_rate(optimizer, 0.4, 0)
    rates = {id(weight): group["lr"] for group in optimizer.param_groups for weight in group["params"]}
    decays = {id(weight): group["weight_decay"] for group in optimizer.param_groups for weight in group["params"]}
    expected = {"0.weight": 0.2, "0.bias": 0.04, "1.weight": 0.4, "1.bias": 0.4, "2.weight": 0.8, "2.bias": 0.8}
    assert {name: rates[id(weight)] for name, weight in net.named_parameters()} == pytest.approx(expected)
    assert {name: decays[id(weight)] for name, weight in net.named_parameters()} == {
        name: 0.1 if name.endswith("weight") else 0.0 for name in expected
    }
    assert all("lr_scale" not in group for group in optimizer.param_groups if group["lr"] == 0.4)


def test_rates_that_wait_for_the_head() -> None:
    net = nn.Sequential(nn.Conv2d(1, 4, 3), nn.Conv2d(4, 4, 3), nn.Conv2d(4, 2, 1))
    optimizer = torch.optim.AdamW(param_groups(net, weight_decay=0.1), lr=0.5)
    scale_rates(optimizer, net, {"*.bias": 0.5})
    delay_rates(optimizer, net, ["2.*"], 3)
    for step in range(5):
        set_rate(optimizer, 0.4, step)
        rates = {id(weight): group["lr"] for group in optimizer.param_groups for weight in group["params"]}
        body = 0.4 if step >= 3 else 0.0
        expected = {f"{layer}.{kind}": (0.4 if layer == 2 else body) * (0.5 if kind == "bias" else 1.0)
                    for layer in range(3) for kind in ("weight", "bias")}  # fmt: skip
        assert {name: rates[id(weight)] for name, weight in net.named_parameters()} == pytest.approx(expected)
        for weight in net.parameters():
            weight.grad = torch.ones_like(weight)
        optimizer.step()
    with pytest.raises(ValueError, match=r"^train\.head: '9\.\*' fits no parameter"):
        delay_rates(optimizer, net, ["9.*"], 3, at="train.head")


@pytest.mark.parametrize("name", get_args(OptimizerName))
def test_a_rate_of_0_moves_nothing(name: OptimizerName) -> None:
    net = nn.Sequential(nn.Conv2d(1, 4, 3), nn.GroupNorm(2, 4), nn.Conv2d(4, 2, 1))
    settings = PlannedTrain(
        optimizer=name, learning_rate=0.5, head_steps=2, head=("2.*",), steps=3, validate_every=3, checkpoint_every=3
    )
    optimizer = build_optimizer(net, settings)
    before = {key: value.clone() for key, value in net.state_dict().items()}
    for step in range(3):
        set_rate(optimizer, 0.5, step)
        net(torch.randn(2, 1, 6, 6)).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()
        moved = {key.split(".")[0] for key, value in net.state_dict().items() if not torch.equal(value, before[key])}
        assert moved == ({"2"} if step < 2 else {"0", "1", "2"})


def test_a_factor_for_nothing_is_refused() -> None:
    net = nn.Sequential(nn.Conv2d(1, 4, 3))
    optimizer = torch.optim.SGD(net.parameters(), lr=0.5)
    with pytest.raises(ValueError, match=r"^train\.lr_scale: '1\.\*' fits no parameter"):
        scale_rates(optimizer, net, {"1.*": 0.5}, at="train.lr_scale")
