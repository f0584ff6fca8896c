"""Concatenations and convolutions of few channels in forms that are fast in channels-last on a GPU.

torch concatenates maps of five dimensions in channels-last one element at a time, and cuDNN runs a convolution from or
to fewer than eight channels without matrix units: on an H100, 15 and 11 of the 113 ms of a U-Net's step. As rows of
channels, the first is a copy of rows; with channels of zeros up to eight, the second takes the matrix units. Values
differ by the order of sums alone, and the names and shapes of weights stay.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable
from torch.nn import functional as F
from torch.overrides import TorchFunctionMode

from hasten.kernels.use import kernels_take, triton_runs
from hasten.nets.surgery.few_channels import from_few, takes_few, to_few
from hasten.nets.surgery.rows import FORMATS, as_maps, as_rows

_LEAST_CHANNELS = 8
"""Channels that a tensor core takes at once: 16 bytes of 16-bit floats."""
_LEAST_VOXELS = 2**16
"""Voxels of a batch: on smaller maps, padding the result's channels costs more launches than it saves."""
_KERNEL_TYPES = (torch.bfloat16, torch.float16)
"""Types in which layers of few channels have kernels; in float32 cuDNN computes them with channels of zeros."""
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
            more = self._missing(image, weight, _OUTPUTS[func], *rest)
            if any(more):
                return _of_few(func, image, weight, bias, rest, more)
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

    def _missing(self, image: Tensor, weight: Tensor, output: int, *rest: Any) -> tuple[int, int]:
        """Channels that the image and the result of a convolution lack."""
        # rest: stride, padding, dilation or a transposed one's output_padding, groups.
        groups = rest[3] if len(rest) > 3 else 1
        alone = image.ndim == weight.ndim and image.shape[1] == weight.shape[1 - output] and groups == 1
        if not (alone and _is_last(weight) and self.takes(image)):
            return 0, 0
        inputs, outputs = (max(0, _LEAST_CHANNELS - weight.shape[axis]) for axis in (1 - output, output))
        return inputs, outputs if image.numel() >= _LEAST_VOXELS * image.shape[1] else 0


def _is_last(value: Tensor) -> bool:
    layout = FORMATS.get(value.ndim)
    return layout is not None and value.is_contiguous(memory_format=layout)


def _of_few(
    func: Any, image: Tensor, weight: Tensor, bias: Tensor | None, rest: list[Any], more: tuple[int, int]
) -> Tensor:
    """The convolution by Hasten's kernels where they take it, else with channels of zeros."""
    transposed = _OUTPUTS[func] == 1
    stride, padding = rest[:2]
    plain = len(rest) > 3 and set(rest[4] if transposed else rest[2]) == {1} and isinstance(padding, tuple)
    on = torch.is_autocast_enabled(image.device.type)
    dtype = torch.get_autocast_dtype(image.device.type) if on else image.dtype
    voxels = image[:, 0].numel()
    if not plain or dtype not in _KERNEL_TYPES or voxels < _LEAST_VOXELS:
        return _padded(func, image, weight, bias, rest, more)
    image = image.to(dtype).contiguous(memory_format=FORMATS[image.ndim])
    if not transposed and takes_few(image.shape[1], weight, voxels):
        return from_few(image, weight, bias, stride, padding)
    size = voxels * math.prod(stride) if transposed else voxels
    if (transposed or set(stride) == {1}) and takes_few(weight.shape[_OUTPUTS[func]], weight, size):
        forward = partial(_padded, func, rest=rest, more=more)
        return to_few(forward, image, weight, bias, stride, padding, transposed=transposed)
    return _padded(func, image, weight, bias, rest, more)


def _padded(
    func: Any, image: Tensor, weight: Tensor, bias: Tensor | None, rest: list[Any], more: tuple[int, int]
) -> Tensor:
    """The convolution with so many more channels of zeros in its image and its result; the result without these."""
    layout, sides = FORMATS[image.ndim], [0, 0] * (image.ndim - 2)
    if more[0]:
        if torch.is_autocast_enabled(image.device.type):
            image = image.to(torch.get_autocast_dtype(image.device.type))  # to write less
        image = F.pad(image, [*sides, 0, more[0]]).contiguous(memory_format=layout)
    output = _OUTPUTS[func]
    first, second = more if output else reversed(more)
    weight = F.pad(weight, [*sides, 0, second, 0, first]).contiguous(memory_format=layout)
    if not more[1]:
        return func(image, weight, bias, *rest)
    bias = None if bias is None else F.pad(bias, [0, more[1]])
    return _Narrowed.apply(func(image, weight, bias, *rest), weight.shape[output] - more[1])


class _Narrowed(torch.autograd.Function):
    """maps[:, :width] of maps in channels-last, dense in that format."""

    @staticmethod
    def forward(ctx: Any, maps: Tensor, width: int) -> Tensor:
        rows = as_rows(maps.contiguous(memory_format=FORMATS[maps.ndim]))
        ctx.width = rows.shape[1]
        part = rows.new_empty(len(rows), width)
        _copy(rows[:, :width], part)
        return as_maps(part, len(maps), maps.shape[2:])

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None]:
        part = as_rows(gradient.contiguous(memory_format=FORMATS[gradient.ndim]))
        rows = part.new_zeros(len(part), ctx.width)
        _copy(part, rows[:, : part.shape[1]])
        return as_maps(rows, len(gradient), gradient.shape[2:]), None


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
        rows = as_rows(gradient.contiguous(memory_format=FORMATS[gradient.ndim]))
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
