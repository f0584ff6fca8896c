"""The memory format of an image, and whether Hasten's own operations for a CPU may run."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

Slope = Tensor | float | None
"""The negative slope of an activation, one number or one per channel; None for no activation."""


def per_channel(values: Tensor, image: Tensor) -> Tensor:
    """(C,) or (B, C) values in the shape in which they meet (B, C, ...)."""
    return values.reshape(-1, image.shape[1], *[1] * (image.ndim - 2))


def channels_last_of(image: Tensor) -> torch.memory_format:
    """Channels-last for an image (B, C, H, W) or (B, C, D, H, W)."""
    return torch.channels_last_3d if image.ndim == 5 else torch.channels_last


def as_last(image: Tensor) -> Tensor:
    """The image (B, C, H, W) or (B, C, D, H, W) in channels-last, which is itself if it lies so."""
    return image.contiguous(memory_format=channels_last_of(image))


def as_rows(image: Tensor) -> Tensor:
    """(B, C, *S) in channels-last as (B * prod(S), C), in the same memory."""
    return image.movedim(1, -1).reshape(-1, image.shape[1])


def as_maps(rows: Tensor, batch: int, sides: Sequence[int]) -> Tensor:
    """(B * prod(S), C) as (B, C, *S) in channels-last, in the same memory."""
    return rows.view(batch, *sides, rows.shape[1]).movedim(-1, 1)


def layout_of(image: Tensor) -> torch.memory_format:
    """Channels-last only where that is not contiguous at the same time.

    image: (B, C, H, W) or (B, C, D, H, W); any other shape counts as contiguous.
    """
    if image.ndim not in (4, 5):
        return torch.contiguous_format
    last = channels_last_of(image)
    return last if image.is_contiguous(memory_format=last) and not image.is_contiguous() else torch.contiguous_format


def on_cpu_only(*tensors: Tensor | None) -> bool:
    """Whether Hasten's CPU operations, which are differentiable once, may run now on these tensors.

    They may have any shape, or be None.
    """
    if torch.compiler.is_compiling() or torch.jit.is_tracing() or torch.jit.is_scripting():
        return False
    if torch._C._are_functorch_transforms_active():
        return False
    return all(tensor is None or tensor.device.type == "cpu" for tensor in tensors)
