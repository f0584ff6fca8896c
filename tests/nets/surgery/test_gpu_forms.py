from __future__ import annotations

import copy

import pytest
import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode

from hasten.nets.surgery.gpu_forms import gpu_forms
from tests.nets.examples import image_of, laid_out, network_of


def always(image: Tensor) -> bool:
    return True


class Seen(TorchDispatchMode):
    """Shapes that are concatenated and convolved."""

    def __init__(self) -> None:
        super().__init__()
        self.calls: list[tuple[str, tuple[int, ...]]] = []

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):  # type: ignore[no-untyped-def]
        if func is torch.ops.aten.cat.default:
            self.calls.append(("cat", tuple(args[0][0].shape)))
        elif func is torch.ops.aten.convolution.default:
            self.calls.append(("convolution", tuple(args[0].shape)))
        return func(*args, **(kwargs or {}))


@pytest.mark.parametrize("name", ["unet", "dynunet", "segresnet", "plainconvunet", "residualencoderunet", "mednext"])
@pytest.mark.parametrize("dims", [2, 3])
@pytest.mark.parametrize(("least", "kernels"), [(1, True), (1, False), (2**16, False)])
def test_outputs_and_gradients_are_those_without(
    name: str, dims: int, least: int, kernels: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("hasten.nets.surgery.gpu_forms._LEAST_VOXELS", least)
    if kernels:
        monkeypatch.setattr("hasten.nets.surgery.gpu_forms._KERNEL_TYPES", (torch.float64,))
    plain, image = laid_out(network_of(name, dims).double(), image_of(name, dims).double(), last=True)
    other = copy.deepcopy(plain)
    wanted = plain(image)
    wanted.square().mean().backward()
    with gpu_forms(takes=always):
        result = other(image)
    result.square().mean().backward()
    torch.testing.assert_close(result, wanted)
    for (key, one), two in zip(plain.named_parameters(), other.parameters(), strict=True):
        if one.grad is not None:
            assert two.grad is not None, key
            torch.testing.assert_close(two.grad, one.grad, msg=key)


@pytest.mark.parametrize("shape", [(2, 3, 4, 5, 6), (1, 1, 1, 1, 1), (2, 5, 4, 3)])
@pytest.mark.parametrize("others", [(4,), (1, 7)])
def test_a_concatenation_is_one_of_rows_and_keeps_the_format(shape: tuple[int, ...], others: tuple[int, ...]) -> None:
    layout = torch.channels_last_3d if len(shape) == 5 else torch.channels_last
    maps = [
        torch.randn(shape[0], width, *shape[2:]).contiguous(memory_format=layout).requires_grad_()
        for width in (shape[1], *others)
    ]
    wanted = torch.cat(maps, 1)
    back = torch.randn(wanted.shape)
    theirs = torch.autograd.grad(wanted, maps, back)
    with gpu_forms(takes=always), Seen() as seen:
        result = torch.cat(maps, dim=1)
    assert seen.calls == []
    assert torch.equal(result, wanted)
    assert result.is_contiguous(memory_format=layout)
    for one, two in zip(torch.autograd.grad(result, maps, back), theirs, strict=True):
        assert torch.equal(one, two)
        assert one.is_contiguous(memory_format=layout)


@pytest.mark.parametrize(("channels", "padded"), [(1, 8), (4, 8), (8, 8), (9, 9)])
def test_a_convolution_of_few_channels_gets_channels_of_zeros(channels: int, padded: int) -> None:
    conv, image = laid_out(nn.Conv3d(channels, 16, 3), torch.randn(2, channels, 6, 6, 6), last=True)
    wanted = conv(image)
    with gpu_forms(takes=always), Seen() as seen:
        result = conv(image)
    assert seen.calls == [("convolution", (2, padded, 6, 6, 6))]
    torch.testing.assert_close(result, wanted)


def test_what_lies_otherwise_is_left_alone() -> None:
    one, two = torch.randn(2, 3, 4, 4, 4), torch.randn(2, 3, 4, 4, 4)
    grouped = nn.Conv3d(4, 8, 3, groups=4)
    with gpu_forms(takes=always), Seen() as seen:
        assert torch.equal(torch.cat([one, two], 1), torch.cat([one, two], 1))
        torch.cat([one, two])
        torch.cat([one, two], -1)
        grouped(torch.randn(1, 4, 6, 6, 6))
        nn.Conv3d(2, 8, 3)(one[:, :2])
    assert all(len(shape) == 5 for name, shape in seen.calls if name == "cat")
    assert [shape[1] for name, shape in seen.calls if name == "convolution"] == [4, 2]
