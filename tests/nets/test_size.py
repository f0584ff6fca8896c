from __future__ import annotations

import torch
from torch import Tensor, nn

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
