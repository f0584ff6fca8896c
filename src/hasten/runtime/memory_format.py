"""The memory format of a network and its input."""

from __future__ import annotations

import torch
from torch import Tensor, nn


def memory_format(spatial_dims: int, channels_last: bool) -> torch.memory_format:
    if not channels_last:
        return torch.contiguous_format
    return torch.channels_last_3d if spatial_dims == 3 else torch.channels_last


def to_layout(image: Tensor, spatial_dims: int, layout: torch.memory_format) -> Tensor:
    """(B, C, D, H, W) as a network takes it: D squeezed away in 2-D, in the chosen memory format."""
    return (image if spatial_dims == 3 else image[:, :, 0]).contiguous(memory_format=layout)


def to_memory_format(network: nn.Module, spatial_dims: int, channels_last: bool) -> nn.Module:
    """The network itself, its weights in the memory format."""
    network.to(memory_format=memory_format(spatial_dims, channels_last))  # type: ignore[call-overload]
    return network
