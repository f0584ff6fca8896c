"""Cures around the outermost call of a network: its precision and its memory layout."""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable
from typing import Any

import torch
from torch import nn

from .nested import in_channels_last, mapped


def _around_roots(call: Callable[[nn.Module, Callable[..., Any], tuple, dict], Any]) -> None:
    """`call(module, original, args, kwargs)` in place of each outermost call of a module that has parameters.

    A loss has none and is left as it is.
    """
    original = nn.Module.__call__
    depth = [0]

    @functools.wraps(original)
    def __call__(self: Any, *args: Any, **kwargs: Any) -> Any:
        if depth[0] or next(self.parameters(), None) is None:
            return original(self, *args, **kwargs)
        depth[0] += 1
        try:
            return call(self, original, args, kwargs)
        finally:
            depth[0] -= 1

    nn.Module.__call__ = __call__  # type: ignore[method-assign]


def autocast(dtype: str) -> str:
    """Forward under autocast, the outputs given in float32 so that the script's loss sees what it did before."""
    if dtype not in ("", "bf16", "bfloat16"):
        raise ValueError(f"autocast={dtype}: only bfloat16 can be put in from outside, as float16 needs a GradScaler")

    def call(module: nn.Module, original: Any, args: Any, kwargs: Any) -> Any:
        kind = next(module.parameters()).device.type
        cast = (
            contextlib.nullcontext() if torch.is_autocast_enabled(kind) else torch.autocast(kind, dtype=torch.bfloat16)
        )
        with cast:
            outputs = original(module, *args, **kwargs)
        return mapped(outputs, lambda tensor: tensor.float() if tensor.dtype is torch.bfloat16 else tensor)

    _around_roots(call)
    return "networks run under autocast in bfloat16, outputs in float32"


def channels_last(value: str) -> str:
    converted: set[int] = set()

    def call(module: nn.Module, original: Any, args: Any, kwargs: Any) -> Any:
        if id(module) not in converted:
            converted.add(id(module))
            for parameter in module.parameters():
                parameter.data = in_channels_last(parameter.data)
        return original(module, *mapped(args, in_channels_last), **mapped(kwargs, in_channels_last))

    _around_roots(call)
    return "networks and their inputs are laid out in channels_last"
