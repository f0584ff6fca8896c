"""Concatenations and convolutions of few channels in forms that are fast in channels-last on a GPU.

torch concatenates maps of five dimensions in channels-last one element at a time, and cuDNN is slow for convolutions
from or to few channels: 15 ms of the 113 of a U-Net's step on an H100, and 9 of the 85 on an H200. As rows of
channels, the first is a copy of rows. The others have kernels, or get channels of zeros up to eight, without which
cuDNN takes no matrix units. Values differ by the order of sums alone, and the names and shapes of weights stay.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable
from torch.nn import functional as F
from torch.overrides import TorchFunctionMode

from hasten.kernels.use import kernels_take, triton_runs
from hasten.nets.surgery.few_channels import from_few, takes_few, to_few
from hasten.nets.surgery.layout import as_last, as_maps, as_rows, channels_last_of

_LEAST_CHANNELS = 8
"""Channels that a tensor core takes at once: 16 bytes of 16-bit floats."""
_LEAST_VOXELS = 2**16
"""Voxels of a batch: on smaller maps, launches take longer than the convolutions."""
_KERNEL_TYPES = (torch.bfloat16, torch.float16)
"""Types in which convolutions of few channels have kernels."""
_OUTPUTS = {torch.conv2d: 0, torch.conv3d: 0, torch.conv_transpose2d: 1, torch.conv_transpose3d: 1}
"""Convolutions, and the axis of their weights along which the result's channels lie."""


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
        if func in _OUTPUTS and len(args) > 2 and not kwargs:
            image, weight, bias, *rest = args
            if self._has_few(image, weight, _OUTPUTS[func], *rest):
                return _of_few(func, image, weight, bias, rest)
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

    def _has_few(self, image: Tensor, weight: Tensor, output: int, *rest: Any) -> bool:
        """Whether a convolution of one group has few channels on one side."""
        # rest: stride, padding, dilation or a transposed one's output_padding, groups.
        groups = rest[3] if len(rest) > 3 else 1
        alone = image.ndim == weight.ndim and image.shape[1] == weight.shape[1 - output] and groups == 1
        return alone and min(weight.shape[:2]) < _LEAST_CHANNELS and _is_last(weight) and self.takes(image)


def _is_last(value: Tensor) -> bool:
    return value.ndim in (4, 5) and value.is_contiguous(memory_format=channels_last_of(value))


def _of_few(func: Any, image: Tensor, weight: Tensor, bias: Tensor | None, rest: list[Any]) -> Tensor:
    """The convolution by Hasten's kernels where they take it; else with channels of zeros where the image has few."""
    transposed = bool(_OUTPUTS[func])
    on = torch.is_autocast_enabled(image.device.type)
    dtype = torch.get_autocast_dtype(image.device.type) if on else image.dtype
    numbers = [each for each in rest if isinstance(each, tuple)]  # as modules give them: all but the groups
    plain = len(numbers) == (4 if transposed else 3) and set(numbers[-1]) == {1}  # the last is the dilation
    voxels, taps = image[:, 0].numel(), weight.shape[2:].numel()
    if plain and dtype in _KERNEL_TYPES and voxels >= _LEAST_VOXELS:
        stride, padding = numbers[:2]
        rows = as_last(image.to(dtype))
        if transposed and takes_few(weight.shape[1], taps, voxels * math.prod(stride)):
            return to_few(rows, weight, bias, stride, padding, rest[2])
        if not transposed and takes_few(weight.shape[1], taps, voxels):
            return from_few(rows, weight, bias, stride, padding)
        if not transposed and set(stride) == {1} and takes_few(len(weight), taps, voxels):
            return to_few(rows, weight, bias, stride, padding)
    more = _LEAST_CHANNELS - image.shape[1]
    if more <= 0:
        return func(image, weight, bias, *rest)
    sides = [0, 0] * (image.ndim - 2)
    image = F.pad(image.to(dtype), [*sides, 0, more])
    weight = F.pad(weight, [*sides, 0, 0, 0, more] if transposed else [*sides, 0, more])
    return func(as_last(image), as_last(weight), bias, *rest)


class _Join(torch.autograd.Function):
    """torch.cat(maps, 1) of maps in channels-last."""

    @staticmethod
    def forward(ctx: Any, *maps: Tensor) -> Tensor:
        ctx.widths = [each.shape[1] for each in maps]
        parts = [as_rows(each) for each in maps]
        rows = parts[0].new_empty(len(parts[0]), sum(ctx.widths))
        for part, place in zip(parts, rows.split(ctx.widths, 1), strict=True):
            _copy(part, place)
        return as_maps(rows, len(maps[0]), maps[0].shape[2:])

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, ...]:
        rows = as_rows(as_last(gradient))
        parts = [rows.new_empty(len(rows), width) for width in ctx.widths]
        for part, place in zip(parts, rows.split(ctx.widths, 1), strict=True):
            _copy(place, part)
        return tuple(as_maps(part, len(gradient), gradient.shape[2:]) for part in parts)


def _copy(source: Tensor, target: Tensor) -> None:
    """target.copy_(source) of matrices with contiguous rows, which torch copies one element at a time on a GPU."""
    if triton_runs(source):
        from hasten.kernels.columns import copy_columns

        copy_columns(source, target)
    else:
        target.copy_(source)
