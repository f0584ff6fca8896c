"""Telling a lack of memory from any other error."""

from __future__ import annotations

import torch

_TOLD = (
    "out of memory",
    "can't allocate memory",
    "cannot allocate memory",
    "not enough memory",
    "defaultcpuallocator",
    "cublas_status_alloc_failed",
    "cudnn_status_alloc_failed",
)
"""What libraries write that report a lack of memory as any other error."""


def out_of_memory(error: BaseException) -> bool:
    """Whether an error says that memory was short, of the device or of the host."""
    if isinstance(error, torch.OutOfMemoryError | MemoryError):
        return True
    return isinstance(error, RuntimeError) and any(text in str(error).lower() for text in _TOLD)
