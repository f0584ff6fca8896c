"""What releases of torch have under different names. The oldest that is watched is 2.1."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

# TorchDynamo knows either function, and takes it for True.
is_compiling: Callable[[], bool] = getattr(torch.compiler, "is_compiling", None) or torch._utils.is_compiling
GradScaler: Any = getattr(torch.amp, "GradScaler", None) or torch.cuda.amp.GradScaler


def autocast_dtype(device: str) -> str:
    """Such as `torch.bfloat16` where autocast is on for this kind of device, else ""."""
    if hasattr(torch, "get_autocast_dtype"):
        return str(torch.get_autocast_dtype(device)) if torch.is_autocast_enabled(device) else ""
    if device == "cpu":
        return str(torch.get_autocast_cpu_dtype()) if torch.is_autocast_cpu_enabled() else ""
    return str(torch.get_autocast_gpu_dtype()) if torch.is_autocast_enabled() else ""
