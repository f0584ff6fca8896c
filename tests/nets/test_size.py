from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn
from torch.utils.flop_counter import FlopCounterMode

from hasten.config.schema import NetworkConfig
from hasten.nets.build import build_network
from hasten.nets.size import count_flops, count_parameters


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


@pytest.mark.parametrize("name", ["unet", "plainconvunet", "residualencoderunet", "segresnet", "dynunet"])
@pytest.mark.parametrize("dims", [2, 3])
def test_the_count_is_torchs(name: str, dims: int) -> None:
    config = NetworkConfig(name=name, channels=(8, 16, 32), strides=((1, 2, 2) if dims == 2 else (2, 2, 2),) * 2)
    network = build_network(config, num_channels=2, num_classes=3, spatial_dims=dims)
    image = torch.empty(1, 2, *[16] * dims)
    with torch.no_grad(), FlopCounterMode(display=False) as counter:
        network.eval()(image)
    assert count_flops(network, image.shape) == counter.get_total_flops()
