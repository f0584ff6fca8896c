"""The order of an optimizer's moments in memory, which must be that of their parameters."""

from __future__ import annotations

import torch
from torch import Tensor


def lay_out_moments(optimizer: torch.optim.Optimizer) -> None:
    """Convert the moments to their parameter's memory format, which may have changed since they were saved.

    torch's fused kernels walk both as flat memory and are silently wrong where they differ (torch 2.13).
    """
    for parameter, values in (*optimizer.state.items(), *innermost(optimizer).state.items()):
        for name, value in values.items():
            if not isinstance(value, Tensor):
                continue
            if value.shape == parameter.shape and value.stride() != parameter.stride():
                values[name] = laid_as(parameter, value)


def laid_as(like: Tensor, value: Tensor) -> Tensor:
    """`value` itself, or a copy of it, with the strides and on the device of `like`."""
    if value.stride() == like.stride() and value.device == like.device:
        return value
    return torch.empty_like(like, dtype=value.dtype, requires_grad=False).copy_(value)


def innermost(optimizer: torch.optim.Optimizer) -> torch.optim.Optimizer:
    """The optimizer inside a Lookahead; any other optimizer itself."""
    inner = getattr(optimizer, "inner", None)
    return innermost(inner) if isinstance(inner, torch.optim.Optimizer) else optimizer
