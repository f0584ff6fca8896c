from __future__ import annotations

from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

from hasten.config.schema import NetworkConfig
from hasten.nets.build import build_network, divisor
from hasten.nets.size import count_conv_flops, count_flops, count_parameters, unet_size


def test_parameters_and_flops_by_hand() -> None:
    first = nn.Conv3d(2, 3, 3, padding=1)
    network = nn.Sequential(first, nn.BatchNorm3d(3), nn.Conv3d(3, 4, 1, bias=False))
    assert count_parameters(network) == 2 * 3 * 27 + 3 + 6 + 12
    # A multiplication and an addition for each weight at each voxel.
    assert count_flops(network, (1, 2, 4, 5, 6)) == 2 * 4 * 5 * 6 * (2 * 3 * 27 + 3 * 4)
    assert first.weight.device == torch.device("cpu")


def test_a_network_that_needs_values_has_no_count() -> None:
    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.conv = nn.Conv2d(1, 1, 1)

        def forward(self, x: Tensor) -> Tensor:
            return self.conv(x) if x.mean() > 0 else x

    assert count_flops(Net(), (1, 1, 4, 4)) is None
    assert count_parameters(Net()) == 2


@pytest.mark.parametrize("name", ["plainconvunet", "residualencoderunet"])
@pytest.mark.parametrize("dims", [2, 3])
def test_nnunets_networks_are_counted_by_their_convolutions(name: str, dims: int) -> None:
    config = NetworkConfig(name=name, channels=(4, 8, 8), strides=((1, 2, 2), (1, 2, 2) if dims == 2 else (2, 2, 2)))
    network = build_network(config, num_channels=2, num_classes=3, spatial_dims=dims)
    shape = (1, 2, *[16] * dims)
    assert count_conv_flops(network, shape) == count_flops(network, shape)


@settings(deadline=None, max_examples=40)
@given(data=st.data(), dims=st.sampled_from([2, 3]), levels=st.integers(2, 4), inputs=st.integers(1, 3))
def test_a_unet_is_counted_as_monais(data: st.DataObject, dims: int, levels: int, inputs: int) -> None:
    flat, deep = [(1, 2, 2), (1, 1, 1), (1, 1, 2)], [(2, 2, 2), (2, 1, 1), (3, 1, 2)]
    strides = st.sampled_from(flat if dims == 2 else [*flat, *deep])
    channels = data.draw(st.tuples(*[st.sampled_from([2, 3, 4])] * levels))
    more: dict[str, Any] = {
        "num_res_units": data.draw(st.integers(0, 3)),
        "norm": data.draw(st.sampled_from(["instance", "batch"])),
        "act": data.draw(st.sampled_from([None, "prelu", "relu", "leakyrelu"])),
        "dropout": data.draw(st.sampled_from([0.0, 0.1])),
    }
    config = NetworkConfig(
        name="unet", channels=channels, strides=data.draw(st.tuples(*[strides] * (levels - 1))), **more
    )
    outputs = data.draw(st.integers(2, 4))
    network = build_network(config, num_channels=inputs, num_classes=outputs, spatial_dims=dims)
    patch = [2 * by for by in divisor(config)[-dims:]]
    wanted = count_parameters(network), count_flops(network, (1, inputs, *patch))
    assert unet_size(config, inputs, outputs, patch) == wanted
