# mypy: disallow-untyped-defs = False, disallow-incomplete-defs = False
"""A minimal Triton kernel that tests whether any can be built. Importing this needs Triton."""

from __future__ import annotations

import torch
import triton
import triton.language as tl


@triton.jit
def _one(out, BLOCK: tl.constexpr):
    tl.store(out + tl.arange(0, BLOCK), tl.full((BLOCK,), 1.0, tl.float32))


def launch(device: torch.device) -> None:
    """Build the kernel for `device` and launch it. Raises whatever Triton raises."""
    with torch.cuda.device(device):
        _one[(1,)](torch.empty(32, device=device), BLOCK=32)
