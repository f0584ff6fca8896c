"""Concatenations and convolutions of few channels in forms that are fast in channels-last on a GPU.

torch concatenates maps of five dimensions in channels-last one element at a time, and cuDNN runs a convolution of one
to seven channels without matrix units: on an H100, 15 and 7 of the 113 ms of a U-Net's step. As rows of channels, the
first is a copy of rows; with channels of zeros up to eight, the second takes the matrix units. Values differ by the
order of sums alone, and the names and shapes of weights stay.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable
from torch.nn import functional as F
from torch.overrides import TorchFunctionMode

from hasten.kernels.use import kernels_take, triton_runs

_LEAST_CHANNELS = 8
"""Channels that a tensor core takes at once: 16 bytes of 16-bit floats."""
FORMATS = {4: torch.channels_last, 5: torch.channels_last_3d}
_CONVOLUTIONS = (torch.conv2d, torch.conv3d)


def gpu_forms(on: bool = True, takes: Callable[[Tensor], bool] = kernels_take) -> AbstractContextManager[object]:
    """A context in which a network's forward pass runs in these forms, on the tensors that `takes` accepts.

    `takes` is asked about tensors (B, C, ...) alone. Does nothing unless `on`, and while a network is compiled, as the
    compiler chooses its own forms.
    """
    return _Forms(takes) if on else nullcontext()


class _Forms(TorchFunctionMode):
    def __init__(self, takes: Callable[[Tensor], bool]) -> None:
        super().__init__()
        self.takes = takes

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        dim = args[1] if len(args) > 1 else kwargs.get("dim", 0)
        if func is torch.cat and args and dim == 1 and self._joins(args[0]):
            return _Join.apply(*args[0])
        if func in _CONVOLUTIONS and self._pads(args):
            image, weight, *rest = args
            return func(*_padded(image, weight), *rest, **kwargs)
        return func(*args, **kwargs)

    def _joins(self, maps: Any) -> bool:
        """Maps of one type, all in channels-last; of one channel they are contiguous as well, and stay so."""
        if not isinstance(maps, list | tuple) or not all(isinstance(each, Tensor) for each in maps):
            return False
        first = maps[0]
        return all(
            each.ndim == first.ndim and each.dtype == first.dtype and _is_last(each) and self.takes(each)
            for each in maps
        )

    def _pads(self, args: tuple[Any, ...]) -> bool:
        if len(args) < 2:
            return False
        image, weight = args[:2]
        whole = image.ndim == weight.ndim and image.ndim in FORMATS and image.shape[1] == weight.shape[1]
        return whole and weight.shape[1] < _LEAST_CHANNELS <= weight.shape[0] and _is_last(weight) and self.takes(image)


def _is_last(value: Tensor) -> bool:
    layout = FORMATS.get(value.ndim)
    return layout is not None and value.is_contiguous(memory_format=layout)


def _padded(image: Tensor, weight: Tensor) -> tuple[Tensor, Tensor]:
    """Image and weight padded with channels of zeros, in channels-last; under autocast in its type, to write less."""
    layout = FORMATS[image.ndim]
    if torch.is_autocast_enabled(image.device.type):
        image = image.to(torch.get_autocast_dtype(image.device.type))
    extra = [0, 0] * (image.ndim - 2) + [0, _LEAST_CHANNELS - image.shape[1]]
    return tuple(F.pad(each, extra).contiguous(memory_format=layout) for each in (image, weight))  # type: ignore[return-value]


class _Join(torch.autograd.Function):
    """torch.cat(maps, 1) of maps in channels-last."""

    @staticmethod
    def forward(ctx: Any, *maps: Tensor) -> Tensor:
        ctx.widths = [each.shape[1] for each in maps]
        parts = [_as_rows(each) for each in maps]
        rows = parts[0].new_empty(len(parts[0]), sum(ctx.widths))
        for part, place in zip(parts, rows.split(ctx.widths, 1), strict=True):
            _copy(part, place)
        return _as_maps(rows, maps[0])

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, ...]:
        rows = _as_rows(gradient.contiguous(memory_format=FORMATS[gradient.ndim]))
        parts = [rows.new_empty(len(rows), width) for width in ctx.widths]
        for part, place in zip(parts, rows.split(ctx.widths, 1), strict=True):
            _copy(place, part)
        return tuple(_as_maps(part, gradient) for part in parts)


def _copy(source: Tensor, target: Tensor) -> None:
    """target.copy_(source) of matrices with contiguous rows, which torch copies one element at a time on a GPU."""
    if triton_runs(source):
        from hasten.kernels.columns import copy_columns

        copy_columns(source, target)
    else:
        target.copy_(source)


def _as_rows(image: Tensor) -> Tensor:
    """(B, C, *S) in channels-last as (B * prod(S), C), in the same memory."""
    return image.movedim(1, -1).reshape(-1, image.shape[1])


def _as_maps(rows: Tensor, like: Tensor) -> Tensor:
    """The other way round, with the batch and the sides of `like`."""
    return rows.view(like.shape[0], *like.shape[2:], rows.shape[1]).movedim(-1, 1)
