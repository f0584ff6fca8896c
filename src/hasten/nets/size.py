"""Counts a network's parameters, and the floating-point operations of one forward pass; its smallest image."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from math import prod

import torch
from torch import Tensor, nn

_COUNTED = (nn.Conv2d, nn.Conv3d, nn.ConvTranspose2d, nn.ConvTranspose3d, nn.Linear)


def small_image(patch: Sequence[int], divisor: Sequence[int], channels: int, dims: int) -> Tensor:
    """The smallest image (2, C, *S) with several values for each norm, of a network that Hasten builds.

    patch, divisor: (D, H, W), as the run's patch and what its sides are a multiple of.
    """
    sides = [min(side, 2 * unit) for side, unit in zip(patch, divisor, strict=True)]
    # Two, as a batch norm has but one value of each where the coarsest features are a single voxel.
    return torch.randn(2, channels, *sides[3 - dims :], generator=torch.Generator().manual_seed(0))


def count_parameters(network: nn.Module) -> int:
    """Number of parameters, shared ones counted once."""
    return sum(weight.numel() for weight in network.parameters())


def count_flops(network: nn.Module, shape: Sequence[int]) -> int | None:
    """Floating-point operations of the convolutions and linear layers of a forward pass on one (B, C, *S) image.

    Nothing is computed: an empty batch goes through a copy of the network, on the host, as torch's counter and its meta
    device import the compiler. None where the network takes no empty batch, or computes nothing of one.
    """
    counted = 0

    def count(module: nn.Module, inputs: tuple[Tensor], output: Tensor) -> None:
        nonlocal counted
        if isinstance(module, nn.Linear):
            positions = prod(output.shape[1:-1])
        else:
            positions = prod((inputs[0] if getattr(module, "transposed", False) else output).shape[2:])
        weight = module.weight
        assert isinstance(weight, Tensor)
        counted += 2 * weight.numel() * shape[0] * positions

    network_copy = copy.deepcopy(network).cpu().eval()
    for module in network_copy.modules():
        if isinstance(module, _COUNTED):
            module.register_forward_hook(count)
        elif isinstance(module, nn.modules.instancenorm._InstanceNorm):
            module.forward = torch.positive  # type: ignore[method-assign] # It refuses an empty batch.
    try:
        with torch.no_grad():
            network_copy(torch.empty(0, *shape[1:]))
    except Exception:  # the user's code may raise anything
        return None
    return counted or None
