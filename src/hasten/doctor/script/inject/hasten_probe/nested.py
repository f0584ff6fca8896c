"""Nested arguments, batches and outputs."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any

import torch


def leaves(value: Any) -> Iterator[Any]:
    """The values in nested mappings, lists, tuples and dataclasses."""
    if isinstance(value, Mapping):
        parts: Any = value.values()
    elif isinstance(value, (list, tuple)):
        parts = value
    elif hasattr(value, "__dataclass_fields__"):
        parts = list(getattr(value, "__dict__", {}).values())
    else:
        yield value
        return
    for part in parts:
        yield from leaves(part)


def tensors_in(value: Any) -> Iterator[torch.Tensor]:
    """The tensors, of any shape, in nested arguments, batches or outputs."""
    return (each for each in leaves(value) if isinstance(each, torch.Tensor))


def mapped(value: Any, change: Callable[[torch.Tensor], torch.Tensor]) -> Any:
    """Nested arguments with every tensor, of any shape, changed."""
    if isinstance(value, torch.Tensor):
        return change(value)
    if isinstance(value, Mapping):
        return {key: mapped(part, change) for key, part in value.items()}
    if type(value) in (list, tuple):
        return type(value)(mapped(part, change) for part in value)
    return value


def in_channels_last(tensor: torch.Tensor) -> torch.Tensor:
    """The tensor in channels_last if it is (B, C, H, W) or (B, C, D, H, W), else as it is."""
    layout = {4: torch.channels_last, 5: torch.channels_last_3d}.get(tensor.dim())
    return tensor if layout is None else tensor.contiguous(memory_format=layout)
