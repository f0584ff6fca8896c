"""Which images the Triton kernels for networks take, and how the lengths of their tiles are chosen."""

from __future__ import annotations

import torch
from torch import Tensor

from hasten.kernels.use import triton_runs

DTYPES = (torch.float32, torch.bfloat16, torch.float16)
"""What the kernels read and write; they compute in float32."""


def power_of_two(least: int) -> int:
    """The smallest power of two that is not below it, as for the sides of a tile."""
    return 1 << (least - 1).bit_length()


def kernels_take(image: Tensor) -> bool:
    """Whether Triton kernels for a network may run now on this tensor; see `triton_runs`."""
    return image.dtype in DTYPES and triton_runs(image)
