"""Modules that recompute their activations in the backward pass. Names and state dict are unchanged."""

from __future__ import annotations

from contextlib import nullcontext
from functools import partial
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _NormBase
from torch.nn.modules.dropout import _DropoutNd
from torch.utils.checkpoint import checkpoint

from hasten.nets.surgery.reclass import Mixed, become, remove

if TYPE_CHECKING:
    _Module = nn.Module
else:
    _Module = object

_DRAWS = "_recompute_draws"


class Recomputed(Mixed, _Module):
    """Mixin that is put in front of a module's class."""

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        plain = super().forward
        if not (self.training and torch.is_grad_enabled()):
            return plain(*args, **kwargs)
        call = partial(plain, **kwargs) if kwargs else plain
        if torch.compiler.is_compiling():
            # The compiler ensures that buffers are written once.
            return checkpoint(call, *args, use_reentrant=False)
        return checkpoint(
            call,
            *args,
            use_reentrant=False,
            preserve_rng_state=_draws(self),
            context_fn=lambda: (nullcontext(), _PreservedStatistics(self)),
        )


def turn_on(module: nn.Module, *, draws: bool) -> None:
    """Recompute this module from now on. draws: whether its forward pass takes random numbers other than by dropout."""
    if become(module, Recomputed) and draws:
        setattr(module, _DRAWS, True)


def turn_off(module: nn.Module) -> None:
    """Remove this mixin from the module's class; others stay."""
    remove(module, Recomputed)
    module.__dict__.pop(_DRAWS, None)


def _draws(module: nn.Module) -> bool:
    """Whether the second pass must restore the random state; reading it would break a CUDA-graph capture."""
    return hasattr(module, _DRAWS) or any(
        isinstance(part, _DropoutNd) and part.training and part.p > 0 for part in module.modules()
    )


class _PreservedStatistics:
    """Context in which norms of the module update copies of their running statistics.

    In training these are written and not read, so that the copies change no output; the operation still receives
    them, as the second pass must save the same tensors as the first one.
    """

    def __init__(self, module: nn.Module) -> None:
        self._module = module
        self._kept: list[tuple[nn.Module, dict[str, Tensor | None]]] = []

    def __enter__(self) -> None:
        for part in self._module.modules():
            if isinstance(part, _NormBase) and part.training and part.running_mean is not None:
                self._kept.append((part, dict(part._buffers)))
                for name, buffer in part._buffers.items():
                    part._buffers[name] = buffer.clone() if buffer is not None else None

    def __exit__(self, *_: object) -> None:
        while self._kept:
            part, buffers = self._kept.pop()
            part._buffers.update(buffers)
