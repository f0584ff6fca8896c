"""A norm's output whose computation waits until its consumer is known.

An activation computes it as one operation with the norm. Any other operation gets the plain norm output, so that
unexpected control flow costs time but changes no result.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional
from torch.utils._pytree import tree_map

from hasten.nets.surgery.layout import Slope

Finish = Callable[[Slope, float], Tensor]
"""The norm with a dropout of this share and an activation of this slope."""

_RELU = (functional.relu, torch.relu, Tensor.relu)
FUNCTIONS = (*_RELU, functional.leaky_relu)
"""Functions, not modules, that can be fused with a norm."""

_DROPOUT = (
    functional.dropout,
    functional.dropout1d,
    functional.dropout2d,
    functional.dropout3d,
    functional.alpha_dropout,
    functional.feature_alpha_dropout,
)


class Deferred(Tensor):
    """Stands for a norm's output, of the shape of its image (B, C, ...). `finish(None, 0.0)` computes that."""

    _finish: Finish
    _dropout: float
    _value: Tensor | None
    _graph: bool

    @staticmethod
    def __new__(cls, image: Tensor, finish: Finish, dropout: float = 0.0) -> Deferred:
        graph = torch.is_grad_enabled()
        # The image may be deferred, too: asked for its shape, it would be computed.
        with torch._C.DisableTorchFunctionSubclass():
            deferred: Deferred = Tensor._make_wrapper_subclass(
                cls, image.shape, dtype=image.dtype, device=image.device, requires_grad=graph
            )
            deferred._finish, deferred._value, deferred._graph, deferred._dropout = finish, None, graph, dropout
            if graph:
                deferred.register_hook(_refuse_lost_gradient)
        return deferred

    def __init__(self, image: Tensor, finish: Finish, dropout: float = 0.0) -> None:
        pass

    def value(self) -> Tensor:
        """The norm's output, (B, C, ...), computed once.

        It has an autograd graph if gradients were enabled when the norm ran.
        """
        if self._value is None:
            with torch.set_grad_enabled(self._graph):
                self._value = self._finish(None, self._dropout)
        return self._value

    def activated(self, slope: Slope, *, inplace: bool = False) -> Tensor | None:
        """Norm and activation as one operation, (B, C, ...); None if the norm's output is in use already.

        inplace: this object then stands for the activated output.
        """
        if self._value is not None or torch.is_grad_enabled() != self._graph:
            return None
        output = self._finish(slope, self._dropout)
        if inplace:
            self._value = output
        return output

    def dropped(self, share: float) -> Deferred | None:
        """Stands for the output after a dropout; None if the norm's output is in use already."""
        if self._value is not None or self._dropout or torch.is_grad_enabled() != self._graph:
            return None
        return Deferred(self, self._finish, share)

    @classmethod
    def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if args and isinstance(args[0], Deferred):
            result = _fused_call(func, args, kwargs)
            if result is not None:
                return result
        args, kwargs = tree_map(lambda leaf: leaf.value() if isinstance(leaf, Deferred) else leaf, (args, kwargs))
        return func(*args, **kwargs)

    @classmethod
    def __torch_dispatch__(cls, func: Any, *_: Any) -> Any:
        raise RuntimeError(f"{func}: a norm's output, not computed so far, can't be used below torch functions")


def _fused_call(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Tensor | None:
    deferred: Deferred = args[0]
    if func in _RELU and len(args) == 1 and not kwargs.get("inplace"):
        return deferred.activated(0.0)
    if func is functional.leaky_relu and len(args) == 1 and not kwargs.get("inplace"):
        slope = kwargs.get("negative_slope", 0.01)
        return deferred.activated(float(slope)) if slope >= 0 else None
    if func in _DROPOUT and len(args) == 1 and (kwargs.get("p", 0.5) == 0 or not kwargs.get("training", True)):
        return deferred
    if func is functional.dropout and len(args) == 1 and kwargs.get("p", 0.5) < 1 and not kwargs.get("inplace"):
        return deferred.dropped(kwargs.get("p", 0.5))
    return None


def _refuse_lost_gradient(gradient: Tensor) -> None:
    raise RuntimeError(
        "an autograd function took a norm's output that Hasten had not computed yet, and its gradient would be lost; "
        "leave this network's norms and activations apart: operate(network, probe, fuse=False)"
    )
