"""Counts a network's parameters, and the floating-point operations of one forward pass; its smallest image."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from math import prod

import torch
from torch import Tensor, nn
from torch.utils.flop_counter import FlopCounterMode

_CONVS = (nn.Conv2d, nn.Conv3d, nn.ConvTranspose2d, nn.ConvTranspose3d)


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
    """Floating-point operations of the convolutions and matrix products of a forward pass on one (B, C, *S) image.

    Nothing is computed: shapes alone go through a copy of the network. None where it does not run without values.
    """
    try:
        network_copy = copy.deepcopy(network).to("meta").eval()
        with torch.no_grad(), FlopCounterMode(display=False) as counter:
            network_copy(torch.empty(*shape, device="meta"))
    except Exception:  # the user's code may raise anything
        return None
    return counter.get_total_flops()


def count_conv_flops(network: nn.Module, shape: Sequence[int]) -> int:
    """Like `count_flops`, for a network that multiplies by convolutions only; saves the import of torch's compiler.

    An empty batch goes through the network, on the host: on the meta device, torch's layers import the compiler.
    """
    counted = 0

    def count(module: nn.Module, inputs: tuple[Tensor], output: Tensor) -> None:
        nonlocal counted
        assert isinstance(module, _CONVS)
        over = inputs[0] if module.transposed else output
        counted += 2 * module.weight.numel() * shape[0] * prod(over.shape[2:])

    network_copy = copy.deepcopy(network).cpu().eval()
    for module in network_copy.modules():
        if isinstance(module, _CONVS):
            module.register_forward_hook(count)
        elif isinstance(module, nn.modules.instancenorm._InstanceNorm):
            module.forward = torch.positive  # type: ignore[method-assign] # It refuses an empty batch.
    with torch.no_grad():
        network_copy(torch.empty(0, *shape[1:]))
    return counted
