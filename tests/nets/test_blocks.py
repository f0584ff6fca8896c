from __future__ import annotations

import copy
import shutil

import pytest
import torch
from torch import Tensor, nn

from hasten.nets.blocks import compile_blocks, repeated_blocks


class Block(nn.Module):
    def __init__(self, inputs: int, outputs: int) -> None:
        super().__init__()
        self.conv, self.act = nn.Conv2d(inputs, outputs, 3, padding=1), nn.ReLU()

    def forward(self, image: Tensor) -> Tensor:
        result: Tensor = self.act(self.conv(image))
        return result


class Skip(nn.Module):
    """As MONAI's: a level holds the next one."""

    def __init__(self, inner: nn.Module) -> None:
        super().__init__()
        self.inner = inner

    def forward(self, image: Tensor) -> Tensor:
        result: Tensor = self.inner(image)
        return image + result


def network() -> nn.Module:
    torch.manual_seed(0)
    inner = nn.Sequential(Block(4, 4), Skip(nn.Sequential(Block(4, 4), Skip(Block(4, 4)))))
    return nn.Sequential(Block(2, 4), Skip(inner), nn.Conv2d(4, 3, 1))


def test_blocks_are_the_outermost_modules_that_repeat_and_do_not_nest() -> None:
    assert [name for name, _ in repeated_blocks(network())] == [
        "0",
        "1.inner.0",
        "1.inner.1.inner.0",
        "1.inner.1.inner.1.inner",
    ]


def test_a_network_without_repetition_has_none() -> None:
    assert not list(repeated_blocks(nn.Sequential(Block(2, 4), nn.Conv2d(4, 3, 1))))


def test_monais_unet_is_cut_at_its_units() -> None:
    from monai.networks.nets import UNet

    unet = UNet(spatial_dims=3, in_channels=1, out_channels=2, channels=(4, 8, 16), strides=(2, 2), num_res_units=2)
    kinds = {type(module).__name__ for _, module in repeated_blocks(unet)}
    assert kinds == {"ResidualUnit", "Convolution"}


@pytest.mark.slow
@pytest.mark.skipif(shutil.which("g++") is None, reason="needs a C++ compiler")
def test_compiled_blocks_compute_the_same_and_copies_are_plain() -> None:
    net = network()
    image = torch.randn(2, 2, 8, 8)
    wanted = net(image)
    names = compile_blocks(net)
    assert len(names) == 4
    torch.testing.assert_close(net(image), wanted, rtol=1e-4, atol=1e-5)
    assert list(net.state_dict()) == list(network().state_dict())
    assert all(block._compiled_call_impl is not None for _, block in repeated_blocks(net))
    assert all(block._compiled_call_impl is None for _, block in repeated_blocks(copy.deepcopy(net)))
