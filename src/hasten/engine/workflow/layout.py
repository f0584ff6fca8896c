"""Channels-last memory format for user networks and images."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

_FORMATS = {4: torch.channels_last, 5: torch.channels_last_3d}


def lay_out(network: nn.Module) -> None:
    """Convert the weights of 2-D and 3-D convolutions to channels-last; they stay the same Parameters."""
    for weight in network.parameters():
        if weight.ndim in _FORMATS:
            weight.data = weight.data.contiguous(memory_format=_FORMATS[weight.ndim])


def as_laid_out(image: Any) -> Any:
    """An image (B, C, H, W) or (B, C, D, H, W) in channels-last order; others as they are."""
    if isinstance(image, Tensor) and image.ndim in _FORMATS:
        return image.contiguous(memory_format=_FORMATS[image.ndim])
    return image
