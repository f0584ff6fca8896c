"""The memory format of an image, and whether Hasten's own operations for a CPU may run."""

from __future__ import annotations

import torch
from torch import Tensor


def channels_last_of(image: Tensor) -> torch.memory_format:
    """Channels-last for an image (B, C, H, W) or (B, C, D, H, W)."""
    return torch.channels_last_3d if image.ndim == 5 else torch.channels_last


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
