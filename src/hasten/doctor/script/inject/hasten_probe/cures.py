"""The changes of one switch that `--try` makes from outside, before the script builds anything."""

from __future__ import annotations

import contextlib
import functools
import inspect
from typing import Any

import torch
from torch import nn
from torch.utils.data import DataLoader, IterableDataset

from .nested import mapped


def apply(switch: str) -> None:
    """`workers=N`: every map-style loader gets N workers. `autocast`: networks run under autocast in bfloat16."""
    name, _, value = switch.partition("=")
    {"workers": _workers, "autocast": _autocast}[name](value)


def _workers(value: str) -> None:
    count, original = int(value), DataLoader.__init__
    signature = inspect.signature(original)

    @functools.wraps(original)
    def __init__(self: Any, *args: Any, **kwargs: Any) -> None:
        options = dict(signature.bind(self, *args, **kwargs).arguments)
        del options["self"]
        options.update(options.pop("kwargs", {}))
        if not isinstance(options["dataset"], IterableDataset):
            options["num_workers"] = count
            if count:
                options["persistent_workers"] = True
                options.setdefault("multiprocessing_context", "fork")
            else:
                for name in ("persistent_workers", "prefetch_factor", "multiprocessing_context", "timeout"):
                    options.pop(name, None)
        original(self, **options)

    DataLoader.__init__ = __init__  # type: ignore[method-assign]


def _autocast(value: str) -> None:
    """Outermost calls of modules with parameters; the outputs are float32, as the script's loss expects."""
    original, depth = nn.Module.__call__, 0

    @functools.wraps(original)
    def __call__(self: Any, *args: Any, **kwargs: Any) -> Any:
        nonlocal depth
        parameter = next(self.parameters(), None)
        if depth or parameter is None:
            return original(self, *args, **kwargs)
        kind = parameter.device.type
        cast = contextlib.nullcontext() if torch.is_autocast_enabled(kind) else torch.autocast(kind, torch.bfloat16)
        depth += 1
        try:
            with cast:
                outputs = original(self, *args, **kwargs)
        finally:
            depth -= 1
        return mapped(outputs, lambda tensor: tensor.float() if tensor.dtype is torch.bfloat16 else tensor)

    nn.Module.__call__ = __call__  # type: ignore[method-assign]
