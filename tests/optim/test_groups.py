from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from monai.networks.nets import DynUNet, SegResNet, UNet
from torch import nn

from hasten.optim.groups import exempt_parameters, param_groups, scale_rates
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


def test_norms_of_several_axes_do_not_decay() -> None:
    network = ClassSwap()
    names = {id(each): name for name, each in network.named_parameters()}
    assert {names[id(each)] for each in exempt_parameters(network)} == {"line.bias", "norm.weight", "norm.bias"}


def test_a_group_that_would_be_empty_is_left_out() -> None:
    assert [group["weight_decay"] for group in param_groups(nn.Linear(2, 2, bias=False), weight_decay=0.1)] == [0.1]
    assert [group["weight_decay"] for group in param_groups(nn.BatchNorm3d(4), weight_decay=0.1)] == [0.0]


def test_rates_are_scaled_by_name() -> None:
    net = nn.Sequential(nn.Conv2d(1, 4, 3), nn.Conv2d(4, 4, 3), nn.Conv2d(4, 2, 1))
    optimizer = torch.optim.AdamW(param_groups(net, weight_decay=0.1), lr=0.5)
    scale_rates(optimizer, net, {"0.weight": 0.5, "0.*": 0.1, "2.*": 2.0})
    set_rate(optimizer, 0.4)
    rates = {id(weight): group["lr"] for group in optimizer.param_groups for weight in group["params"]}
    decays = {id(weight): group["weight_decay"] for group in optimizer.param_groups for weight in group["params"]}
    expected = {"0.weight": 0.2, "0.bias": 0.04, "1.weight": 0.4, "1.bias": 0.4, "2.weight": 0.8, "2.bias": 0.8}
    assert {name: rates[id(weight)] for name, weight in net.named_parameters()} == pytest.approx(expected)
    assert {name: decays[id(weight)] for name, weight in net.named_parameters()} == {
        name: 0.1 if name.endswith("weight") else 0.0 for name in expected
    }
    assert all("lr_scale" not in group for group in optimizer.param_groups if group["lr"] == 0.4)
    with pytest.raises(ValueError, match=r"^train\.lr_scale: '9\.\*' fits no parameter"):
        scale_rates(optimizer, net, {"9.*": 0.5}, at="train.lr_scale")
