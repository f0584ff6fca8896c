from __future__ import annotations

from dataclasses import replace
from typing import Any, Literal

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from hasten.config.networks import network_mistake
from hasten.config.schema import LossConfig, NetworkConfig
from hasten.nets.build import build_loss, build_network, divisor

Name = Literal["unet", "dynunet", "segresnet"]
NAMES: list[Name] = ["unet", "dynunet", "segresnet"]


def small(name: Name, spatial_dims: int, **settings: Any) -> NetworkConfig:
    stride = (2, 2, 2) if spatial_dims == 3 else (1, 2, 2)
    return NetworkConfig(**{"name": name, "channels": (4, 8, 16), "strides": (stride, stride), **settings})


def build(config: NetworkConfig, *, channels: int = 1, classes: int = 2, dims: int = 3) -> nn.Module:
    torch.manual_seed(0)
    return build_network(config, num_channels=channels, num_classes=classes, spatial_dims=dims)


@settings(max_examples=15, deadline=None)
@given(
    st.lists(st.sampled_from([(1, 2, 2), (2, 2, 2), (2, 1, 1), (1, 1, 1)]), min_size=1, max_size=3),
    # An instance norm has nothing to scale where a single voxel is left.
    st.tuples(*[st.integers(1, 3)] * 3).filter(lambda times: max(times) > 1),
    st.sampled_from(["unet", "dynunet"]),
    st.sampled_from(["instance", "batch"]),
    st.sampled_from([0, 2]),
)
def test_any_multiple_of_the_divisor_goes_through(
    strides: list[tuple[int, int, int]], times: tuple[int, int, int], name: Name, norm: str, units: int
) -> None:
    strides = strides if name == "unet" else [*strides, (1, 1, 1)]
    channels = tuple(4 for _ in range(len(strides) + 1))
    config = NetworkConfig(
        name=name,
        channels=channels,
        strides=tuple(strides),
        norm=norm,  # type: ignore[arg-type]
        num_res_units=units,
    )
    sides = [by * count for by, count in zip(divisor(config), times, strict=True)]
    with torch.no_grad():
        assert build(config).eval()(torch.randn(1, 1, *sides)).shape[2:] == tuple(sides)


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("act", ["prelu", "relu", "leakyrelu"])
@pytest.mark.parametrize("norm", ["instance", "batch"])
def test_norm_activation_and_dropout_are_those_asked_for(name: Name, act: str, norm: str) -> None:
    network = build(small(name, 3, norm=norm, act=act, dropout=0.25))
    kinds = {type(module) for module in network.modules()}
    # MONAI's segresnet takes no activation with weights.
    wanted = {"prelu": nn.PReLU, "relu": nn.ReLU, "leakyrelu": nn.LeakyReLU}[act if name != "segresnet" else "relu"]
    if name != "segresnet" or act != "leakyrelu":
        assert wanted in kinds
    assert {"instance": nn.InstanceNorm3d, "batch": nn.BatchNorm3d}[norm] in kinds
    assert {"instance": nn.BatchNorm3d, "batch": nn.InstanceNorm3d}[norm] not in kinds
    rates = {module.p for module in network.modules() if isinstance(module, nn.modules.dropout._DropoutNd)}
    assert 0.25 in rates
    plain = build(small(name, 3))
    assert not any(module.p for module in plain.modules() if isinstance(module, nn.modules.dropout._DropoutNd))


def test_the_divisor_multiplies_strides_per_axis() -> None:
    assert divisor(NetworkConfig(name="unet", strides=((1, 2, 2), (2, 2, 3), (2, 1, 2)))) == (4, 4, 12)
    assert divisor(NetworkConfig(name="unet", strides=())) == (1, 1, 1)


@pytest.mark.parametrize(
    ("config", "dims", "words"),
    [
        (small("unet", 3, channels=(4, 8)), 3, ["network.strides", "2 strides for 2 levels", "give 1"]),
        (small("unet", 3), 2, ["network.strides", "2-D", "[[1, 2, 2], [1, 2, 2]]"]),
        (small("dynunet", 3, channels=(4, 8), strides=((2, 2, 2),)), 3, ["network.channels", "dynunet has 3 or more"]),
        (small("segresnet", 3, channels=(4, 8, 8)), 3, ["network.channels", "[4, 8, 16]", "unet"]),
        (small("segresnet", 3, strides=((1, 2, 2), (2, 2, 2))), 3, ["[[2, 2, 2], [2, 2, 2]]", "unet"]),
        (small("segresnet", 2, strides=((1, 1, 2), (1, 2, 2))), 2, ["[[1, 2, 2], [1, 2, 2]]", "unet"]),
    ],
)
def test_a_network_that_does_not_exist_is_one_clear_error(config: NetworkConfig, dims: int, words: list[str]) -> None:
    with pytest.raises(ValueError) as raised:
        build(config, dims=dims)
    message = str(raised.value)
    assert message == network_mistake(config, dims)
    assert "\n" not in message
    assert all(word in message for word in words), message


@pytest.mark.parametrize("dims", [2, 3])
def test_a_segresnetds_gives_its_coarser_outputs_while_training(dims: int) -> None:
    strides = ((2, 2, 2) if dims == 3 else (1, 2, 2),) * 3
    config = NetworkConfig(name="segresnetds", channels=(4, 8, 16, 32), strides=strides, deep_supervision=2)
    network = build_network(config, num_channels=1, num_classes=3, spatial_dims=dims)
    image = torch.randn(2, 1, *(16,) * dims)
    heads = network.train()(image)
    assert [tuple(head.shape) for head in heads] == [(2, 3, *(side,) * dims) for side in (16, 8, 4)]
    assert network.eval()(image).shape == (2, 3, *(16,) * dims)
    build_loss(LossConfig())(heads, torch.zeros(2, 1, *(16,) * dims, dtype=torch.uint8)).backward()
    assert all(weight.grad is not None for weight in network.parameters())
    dropout = replace(config, dropout=0.1)
    assert "network.dropout" in str(network_mistake(dropout, dims))


@pytest.mark.parametrize(
    ("name", "count", "message"),
    [
        ("unet", 1, "(given 1); leave it out, or use one of dynunet"),
        ("dynunet", 3, "2 or less"),
        ("segresnetds", 3, "2 or less"),
    ],
)
def test_deep_supervision_that_is_not_there_is_told(name: str, count: int, message: str) -> None:
    config = NetworkConfig(name=name, channels=(4, 8, 8, 8), strides=((2, 2, 2),) * 3, deep_supervision=count)  # type: ignore[arg-type]
    assert message in str(network_mistake(config, 3))
