"""Values and gradients against torch's own layers; on a CPU by torch, in the kernels' place."""

from __future__ import annotations

from itertools import product
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from hasten.nets.surgery.few_channels import FEW, from_few, takes_few, to_few
from hasten.nets.surgery.gpu_forms import gpu_forms
from hasten.nets.surgery.layout import channels_last_of
from hasten.observe.env import cpu_has_bf16
from tests.nets.examples import laid_out

SIDES = (7, 6, 9)
KINDS: list[tuple[int, Any, int, int]] = list(product((2, 3), (3, (1, 3), 2), (1, 2), (0, 1)))
"""Dimensions, kernel, stride and padding."""


def expanded(dims: int, kernel: Any, stride: int, padding: int) -> tuple[tuple[int, ...], ...]:
    """Kernel, stride and padding along each axis; padding is less than the kernel's side."""
    sides = (kernel,) * dims if isinstance(kernel, int) else (kernel[0],) * (dims - 1) + (kernel[1],)
    return sides, (stride,) * dims, tuple(min(padding, side - 1) for side in sides)


def alike(call: Any, reference: Any, leaves: list[Tensor]) -> None:
    wanted, result = reference(*leaves), call(*leaves)
    torch.testing.assert_close(result, wanted)
    back = torch.randn_like(wanted)
    for one, two in zip(
        torch.autograd.grad(result, leaves, back), torch.autograd.grad(wanted, leaves, back), strict=True
    ):
        torch.testing.assert_close(one, two)


@pytest.mark.parametrize(("dims", "kernel", "stride", "padding"), KINDS)
@pytest.mark.parametrize(("few", "channels"), [(1, 8), (2, 2), (4, 3)])
def test_from_few(dims: int, kernel: Any, stride: int, padding: int, few: int, channels: int) -> None:
    kernel, stride_, padding_ = expanded(dims, kernel, stride, padding)
    convolution = F.conv3d if dims == 3 else F.conv2d
    image, weight, bias = (
        torch.randn(shape, dtype=torch.float64, requires_grad=True)
        for shape in ((2, few, *SIDES[:dims]), (channels, few, *kernel), (channels,))
    )
    alike(
        lambda image, weight, bias: from_few(image, weight, bias, stride_, padding_),
        lambda image, weight, bias: convolution(image, weight, bias, stride_, padding_),
        [image, weight, bias],
    )


@pytest.mark.parametrize(("dims", "kernel", "stride", "padding"), KINDS)
@pytest.mark.parametrize("transposed", [False, True])
def test_to_few(dims: int, kernel: Any, stride: int, padding: int, transposed: bool) -> None:
    if stride > 1 and not transposed:
        return
    kernel, stride_, padding_ = expanded(dims, kernel, stride, padding)
    more = ((stride - 1,) * dims,) if transposed else ()
    names = {(2, False): F.conv2d, (3, False): F.conv3d, (2, True): F.conv_transpose2d, (3, True): F.conv_transpose3d}
    channels = (6, 3) if transposed else (3, 6)
    leaves = [
        torch.randn(shape, dtype=torch.float64, requires_grad=True)
        for shape in ((2, 6, *SIDES[:dims]), (*channels, *kernel), (3,))
    ]
    alike(
        lambda *each: to_few(*each, stride_, padding_, *more),
        lambda *each: names[dims, transposed](*each, stride_, padding_, *more),  # type: ignore[operator]
        leaves,
    )


@pytest.mark.parametrize(
    ("layer", "few"),
    [
        (nn.Conv3d(1, 32, 3, padding=1), "FromFew"),
        (nn.Conv3d(2, 2, 3, padding=1, bias=False), "FromFew"),
        (nn.Conv3d(1, 32, 3, stride=2), "FromFew"),
        (nn.Conv3d(32, 3, 3, padding=1), "ToFew"),
        (nn.ConvTranspose3d(32, 2, 3, stride=2, padding=1, output_padding=1), "ToFew"),
        (nn.Conv2d(3, 16, 5, padding=2), "FromFew"),
        (nn.Conv3d(32, 3, 3, stride=2), ""),
        (nn.Conv3d(1, 32, 3, padding="same"), ""),
        (nn.Conv3d(1, 32, 3, dilation=2), ""),
        (nn.Conv3d(1, 32, 7), ""),
        (nn.Conv3d(5, 6, 3), ""),
        (nn.ConvTranspose3d(2, 32, 3, stride=2), ""),
        (nn.Conv3d(2, 2, 3, groups=2), ""),
    ],
    ids=str,
)
@pytest.mark.skipif(not cpu_has_bf16(), reason="where torch emulates bf16, it gives up channels-last")
def test_which_layers_are_of_few_channels(layer: nn.Module, few: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("hasten.nets.surgery.gpu_forms._LEAST_VOXELS", 1)
    dims = 3 if "3d" in type(layer).__name__ else 2
    image = torch.randn(2, layer.in_channels, *(9,) * dims)  # type: ignore[arg-type]
    net, image = laid_out(layer, image, last=True)
    wanted = net(image)
    with torch.autocast("cpu", torch.bfloat16), gpu_forms(takes=lambda image: True):
        result = net(image)
    name = type(result.grad_fn).__name__
    assert name.startswith(f"_{few}") if few else "Few" not in name
    assert result.dtype == torch.bfloat16
    assert result.is_contiguous(memory_format=channels_last_of(result))
    torch.testing.assert_close(result.float(), wanted, rtol=0.05, atol=0.05)
    with gpu_forms(takes=lambda image: True):
        assert "Few" not in str(net(image).grad_fn)  # of float32


def test_functions_take_numbers_too(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("hasten.nets.surgery.gpu_forms._LEAST_VOXELS", 1)
    image, weight = torch.randn(1, 2, 6, 6, 6), torch.randn(3, 2, 3, 3, 3)
    weight = weight.contiguous(memory_format=torch.channels_last_3d)
    for given in ((), (1,), (1, 1), (1, 1, 1, 1), ((1, 1, 1), (1, 1, 1), (1, 1, 1), 1)):
        wanted = F.conv3d(image, weight, None, *given)
        with torch.autocast("cpu", torch.bfloat16), gpu_forms(takes=lambda image: True):
            result = F.conv3d(image, weight, None, *given)
        torch.testing.assert_close(result.float(), wanted, rtol=0.05, atol=0.1)


def test_maps_that_are_counted_in_64_bits_are_left_to_torch() -> None:
    assert takes_few(2, 27, 2**30 - 1)
    assert not takes_few(2, 27, 2**30)
    assert not takes_few(FEW + 1, 27, 1)
    assert not takes_few(1, 7**3, 1)
