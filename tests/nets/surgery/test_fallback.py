"""Layers that stay in float32, and which have to on a CPU."""

from __future__ import annotations

import subprocess
import sys

import pytest
import torch
from torch import Tensor, nn

from hasten.nets.surgery.fallback import keep_fp32, slice_strided, tiny_layers
from hasten.nets.surgery.operate import operate
from tests.nets.examples import laid_out, network_of


def test_matching_modules_and_no_others_run_in_float32() -> None:
    network = nn.Sequential(nn.Conv2d(1, 4, 3), nn.Conv2d(4, 4, 3), nn.ReLU(), nn.Conv2d(4, 1, 3))
    assert keep_fp32(network, ["1", "[23]"]) == ("1", "2", "3")
    kinds = []
    for layer in network:
        layer.register_forward_hook(lambda _, given, result: kinds.append((given[0].dtype, result.dtype)))
    with torch.autocast("cpu", torch.bfloat16):
        network(torch.randn(1, 1, 8, 8))
    assert [result for _, result in kinds] == [torch.bfloat16, torch.float32, torch.float32, torch.float32]
    assert list(network.state_dict()) == [f"{number}.{name}" for number in (0, 1, 3) for name in ("weight", "bias")]


def test_a_pattern_that_matches_nothing_is_refused() -> None:
    with pytest.raises(ValueError, match=r"patterns: 'missing.*' matches no module; there are 0"):
        keep_fp32(nn.Sequential(nn.ReLU()), ["0", "missing.*"])


@pytest.mark.parametrize(
    ("layer", "shape", "tiny"),
    [
        (nn.Conv3d(1, 2, 3, padding=1), (3, 3, 3), False),
        (nn.Conv3d(1, 2, 3, padding=1), (2, 8, 8), True),
        (nn.Conv3d(1, 2, 3, padding=1), (8, 8, 1), True),
        (nn.Conv3d(1, 2, 1), (1, 1, 1), False),
        (nn.Conv3d(1, 2, (1, 3, 3), padding=(0, 1, 1)), (1, 8, 8), False),
        (nn.Conv3d(1, 2, 5, padding=2), (4, 8, 8), True),
        (nn.Conv3d(1, 2, 3, padding=2, dilation=2), (4, 8, 8), True),
        (nn.ConvTranspose3d(1, 2, 2, stride=2), (2, 2, 2), False),
        (nn.ConvTranspose3d(1, 2, 2, stride=2), (1, 2, 2), True),
        (nn.Conv2d(1, 2, 3, stride=2, padding=1), (8, 1), True),
        (nn.Conv2d(1, 2, 3, stride=2, padding=1), (8, 3), False),
    ],
)
def test_a_layer_is_tiny_where_its_filter_is_longer_than_its_image(
    layer: nn.Module, shape: tuple[int, ...], tiny: bool
) -> None:
    assert tiny_layers(nn.Sequential(layer), torch.randn(2, 1, *shape)) == (("0",) if tiny else ())


def gradients(network: nn.Module, image: Tensor, *, short: bool) -> dict[str, Tensor]:
    network.zero_grad()
    with torch.autocast("cpu", torch.bfloat16, enabled=short):
        output = network(image)
    output.float().square().mean().backward()
    return {name: value.grad.clone() for name, value in network.named_parameters() if value.grad is not None}


@pytest.mark.parametrize("last", [False, True])
@pytest.mark.parametrize("operated", [False, True])
def test_with_tiny_layers_in_float32_every_gradient_is_right(last: bool, operated: bool) -> None:
    network = network_of("unet batch", 3)
    image = torch.randn(4, 1, 8, 12, 8, generator=torch.Generator().manual_seed(0))
    names = tiny_layers(network, image)
    assert names
    if operated:
        operate(network, image)
    assert len(keep_fp32(network, names)) == len(names)
    network, image = laid_out(network, image, last=last)
    wanted = gradients(network, image, short=False)
    largest = max(value.norm() for value in wanted.values())
    for _ in range(3):
        # What memory holds before it is given out again must not matter.
        junk = [torch.full((1 << size,), 1e9) for size in range(4, 18)]
        del junk
        for name, value in gradients(network, image, short=True).items():
            assert (value - wanted[name]).norm() < 0.1 * wanted[name].norm() + 0.02 * largest, name


STRIDED = """
import torch
from torch import nn
from hasten.nets.surgery import slice_strided

for inputs, stride in ((2, 2), (4, 2), (4, (1, 2)), (7, 3)):
    layers = [nn.Conv2d(inputs, 8, 1, stride=stride) for _ in range(2)]
    layers[1].load_state_dict(layers[0].state_dict())
    last = nn.Sequential(layers[1]).to(memory_format=torch.channels_last)
    assert slice_strided(last) == ("0",)
    for _ in range(6):
        image = torch.randn(2, inputs, 33, 32)
        expected = layers[0](image)
        found = last(image.contiguous(memory_format=torch.channels_last))
        torch.testing.assert_close(found, expected)
        for output in (expected, found):
            output.square().sum().backward()
        for one, other in zip(layers[0].parameters(), last.parameters(), strict=True):
            torch.testing.assert_close(other.grad, one.grad, rtol=1e-4, atol=1e-3)
"""
"""A process of its own, which aborts where memory is corrupted."""


def test_strided_1x1_convolutions_of_few_channels_do_not_end_the_process() -> None:
    result = subprocess.run([sys.executable, "-c", STRIDED], capture_output=True, text=True, check=False)
    assert result.returncode == 0, result.stderr


@pytest.mark.parametrize(
    "layer",
    [
        nn.Conv2d(4, 8, 1),
        nn.Conv2d(1, 8, 1, stride=2),
        nn.Conv2d(8, 8, 1, stride=2),
        nn.Conv2d(4, 8, 3, stride=2),
        nn.Conv2d(4, 8, 1, stride=2, padding=1),
        nn.Conv2d(4, 4, 1, stride=2, groups=2),
        nn.Conv3d(4, 8, 1, stride=2),
    ],
)
def test_other_convolutions_are_not_sliced(layer: nn.Module) -> None:
    assert slice_strided(layer) == ()
