from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from monai.networks.nets import BasicUNet, UNet
from torch import nn

from hasten.nets.surgery.operate import operate


def unet(**settings: Any) -> nn.Module:
    torch.manual_seed(0)
    shared = {"spatial_dims": 3, "in_channels": 1, "out_channels": 3, "channels": (4, 8, 16), "strides": (2, 2)}
    return UNet(**{**shared, "num_res_units": 2, **settings})


def outcome(network: nn.Module, dims: int = 3) -> tuple[torch.Tensor, dict[str, torch.Tensor]]:
    image = torch.randn(2, 1, *[16] * dims, generator=torch.Generator().manual_seed(1))
    output = network(image)
    output.square().mean().backward()
    return output, {name: value.grad for name, value in network.named_parameters() if value.grad is not None}


@pytest.mark.parametrize("dims", [2, 3])
@pytest.mark.parametrize("layout", ["contiguous", "channels_last"])
@pytest.mark.parametrize("units", [0, 2])
def test_output_and_gradients_are_those_before(dims: int, layout: str, units: int) -> None:
    last = torch.channels_last_3d if dims == 3 else torch.channels_last
    kind = last if layout == "channels_last" else torch.contiguous_format
    plain = unet(spatial_dims=dims, num_res_units=units).to(memory_format=kind)  # type: ignore[call-overload]
    operated = copy.deepcopy(plain)
    done = operate(operated)
    assert done.fused > 0
    assert done.biases == done.fused
    wanted, theirs = outcome(plain, dims)
    result, mine = outcome(operated, dims)
    assert torch.allclose(result, wanted, atol=1e-4)
    assert len(set(theirs) - set(mine)) == done.biases
    for name, gradient in mine.items():
        assert torch.allclose(gradient, theirs[name], atol=1e-4), name
    for name in set(theirs) - set(mine):
        assert theirs[name].abs().max() < 1e-5, f"{name} is not taken away again"


@pytest.mark.parametrize("norm", ["batch", ("instance", {"affine": True}), ("group", {"num_groups": 1})])
def test_other_norms_are_left_as_they_are(norm: Any) -> None:
    network = unet(norm=norm)
    before = repr(network)
    done = operate(network)
    assert (done.fused, done.biases) == (0, 0)
    assert repr(network) == before


def test_a_norm_that_is_not_behind_its_convolution_keeps_the_bias() -> None:
    network = BasicUNet(spatial_dims=3, in_channels=1, out_channels=2, features=(4, 4, 8, 8, 8, 4))
    assert operate(network).fused == 0
