# mypy: disallow-untyped-defs = False, disallow-incomplete-defs = False
"""A minimal Triton kernel that tests whether any can be built. Importing this needs Triton."""

from __future__ import annotations

import torch
import triton
import triton.language as tl


@triton.jit
def _add_sum(source, out, BLOCK: tl.constexpr):
    at = tl.arange(0, BLOCK)
    values = tl.load(source + at)
    tl.store(out + at, values + tl.sum(values, 0))


def launch(device: torch.device) -> None:
    """Build the kernel for `device`, launch it and compare its values. Raises whatever Triton raises."""
    with torch.cuda.device(device):
        source = torch.arange(32.0, device=device)
        result = torch.empty_like(source)
        _add_sum[(1,)](source, result, BLOCK=32)
        if not torch.equal(result, source + source.sum()):
            raise RuntimeError("a kernel gives other values than torch")
