"""Counts a network's parameters, and the floating-point operations of one forward pass."""

from __future__ import annotations

import copy
import itertools
from collections.abc import Iterator, Sequence
from math import prod

import torch
from torch import Tensor, nn
from torch.utils.flop_counter import FlopCounterMode

from hasten.config.settled import PlannedNetwork

_CONVS = (nn.Conv2d, nn.Conv3d, nn.ConvTranspose2d, nn.ConvTranspose3d)


def count_parameters(network: nn.Module) -> int:
    """Numbers in its weights, each weight counted once."""
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
    """As `count_flops`, of a network that multiplies by convolutions only; saves the import of torch's compiler."""
    counted = 0

    def count(module: nn.Module, inputs: tuple[Tensor], output: Tensor) -> None:
        nonlocal counted
        assert isinstance(module, _CONVS)
        over = inputs[0] if module.transposed else output
        counted += 2 * module.weight.numel() * len(over) * prod(over.shape[2:])

    network_copy = copy.deepcopy(network).to("meta").eval()
    for module in network_copy.modules():
        if isinstance(module, _CONVS):
            module.register_forward_hook(count)
    with torch.no_grad():
        network_copy(torch.empty(*shape, device="meta"))
    return counted


def unet_size(config: PlannedNetwork, inputs: int, outputs: int, patch: Sequence[int]) -> tuple[int, int]:
    """What `count_parameters` and `count_flops` give for network.name=unet and one patch (*S), by arithmetic.

    MONAI, which takes seconds to import, is not needed for it.
    """
    dims = len(patch)
    strides = [stride[3 - dims :] for stride in config.strides]
    voxels = [prod(patch), *(prod(patch) // by for by in itertools.accumulate(map(prod, strides), int.__mul__))]
    followed = 2 * (config.norm == "batch")
    slope = int(config.act in (None, "prelu"))
    parameters = flops = 0
    for before, after, side, level, norm_act in _unet_layers(config, inputs, outputs):
        weights = before * after * side**dims
        parameters += weights + after + (followed * after + slope if norm_act else 0)
        flops += 2 * weights * voxels[level]
    return parameters, flops


def _unet_layers(config: PlannedNetwork, inputs: int, outputs: int) -> Iterator[tuple[int, int, int, int, bool]]:
    """Each convolution of MONAI's UNet: channels in and out, side of its kernel, the level that it works at, and
    whether a norm and an activation follow."""
    channels, units = config.channels, config.num_res_units
    halved = [prod(stride) > 1 for stride in config.strides]
    bottom = len(config.strides)
    for level, (before, after) in enumerate(itertools.pairwise([inputs, *channels])):
        at, strided = min(level + 1, bottom), level < bottom and halved[level]
        for number in range(max(1, units)):
            yield after if number else before, after, 3, at, True
        if units and (strided or before != after):
            yield before, after, 3 if strided else 1, at, False
    for level in range(bottom):
        below = channels[level + 1] if level + 1 == bottom else channels[level]
        after = channels[level - 1] if level else outputs
        yield channels[level] + below, after, 3, level + 1, level > 0 or units > 0
        if units:
            yield after, after, 3, level, level > 0
