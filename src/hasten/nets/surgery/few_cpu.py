"""Convolutions to and between a few channels, in channels-last on a CPU, as C++ functions: `nets/cpu/few_channels.cpp`.

The last layers of a UNet have a channel for each class and the image's resolution. oneDNN computes such a convolution
as if it had 16 channels; of the step of a small network that was a fifth.
"""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

from hasten.nets.cpu.kernels import call
from hasten.nets.surgery.bias import is_unbiased
from hasten.nets.surgery.few_channels import FEW
from hasten.nets.surgery.layout import channels_last_of, layout_of, on_cpu_only
from hasten.nets.surgery.normact import DTYPES, cpu_kernel_takes
from hasten.nets.surgery.reclass import ClassSwap, remove, swap_class


class _Size(ctypes.Structure):
    """`FewChannels` of `few_channels.cpp`."""

    _fields_ = (
        *((name, ctypes.c_int64) for name in ("samples", "inputs", "outputs", "depth", "height", "width", "taps")),
        *((name, ctypes.c_int32) for name in ("bfloat16", "threads")),
    )


def _size_of(image: Tensor, outputs: int) -> _Size:
    sides = (1,) * (5 - image.ndim) + image.shape[2:]
    taps, bfloat16 = 3 if image.ndim == 5 else 1, image.dtype == torch.bfloat16
    return _Size(len(image), image.shape[1], outputs, *sides, taps, bfloat16, torch.get_num_threads())


def _convolved(image: Tensor, filters: Tensor, bias: Tensor | None) -> Tensor:
    """(B, K, *S) of an image (B, C, *S) and filters (C, *taps, K), in the image's type."""
    filters = filters.transpose(-3, -2).contiguous()
    output = _empty(image, filters.shape[-1], image.shape[2:])
    call("few_conv", _size_of(image, filters.shape[-1]), (image, filters, bias, output))
    return output


class _FewConv(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, image: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        ctx.save_for_backward(image, weight)
        return _convolved(image, weight.movedim(0, -1), bias)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        image, weight = ctx.saved_tensors
        gradient = gradient.contiguous(memory_format=channels_last_of(image))
        to_image = to_weight = to_bias = None
        if ctx.needs_input_grad[0]:
            to_image = _convolved(gradient, weight.flip(tuple(range(2, weight.ndim))).movedim(1, -1), None)
        if any(ctx.needs_input_grad[1:]):
            filters = torch.empty_like(weight.movedim(0, -1), memory_format=torch.contiguous_format)
            to_bias = weight.new_empty(len(weight))
            call("few_conv_filter", _size_of(image, len(weight)), (gradient, image, filters, to_bias))
            to_weight = filters.movedim(-1, 0)
        return to_image, to_weight, to_bias if ctx.needs_input_grad[2] else None


class _FewTransposed(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, image: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        ctx.save_for_backward(image, weight)
        output = _empty(image, weight.shape[1], [2 * side for side in image.shape[2:]])
        call("few_transposed", _size_of(image, weight.shape[1]), (image, weight.contiguous(), bias, output))
        return output

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        image, weight = ctx.saved_tensors
        dims = image.ndim - 2
        wanted = [ctx.needs_input_grad[0], ctx.needs_input_grad[1], False]
        twos, ones = [2] * dims, [1] * dims
        gradient = gradient.contiguous(memory_format=channels_last_of(image))
        filters = weight.to(image.dtype)
        to_image, to_weight, _ = torch.ops.aten.convolution_backward(
            gradient, image, filters, None, twos, ones, ones, True, ones, 1, wanted
        )
        to_bias = gradient.float().sum((0, *range(2, gradient.ndim))) if ctx.needs_input_grad[2] else None
        return to_image, None if to_weight is None else to_weight.to(weight.dtype), to_bias


def _empty(image: Tensor, channels: int, sides: Sequence[int]) -> Tensor:
    shape = (len(image), channels, *sides)
    return torch.empty(shape, dtype=image.dtype, memory_format=channels_last_of(image))


class _FewChannels(ClassSwap):
    def forward(self: Any, image: Tensor, *more: Any) -> Tensor:
        bias = None if is_unbiased(self) else self.bias
        ready = None if more or image.shape[1:2] != (self.in_channels,) else _ready(image, self.weight, bias)
        if ready is None:
            return super().forward(image, *more)  # type: ignore[misc]
        function = _FewTransposed if self.transposed else _FewConv
        return function.apply(ready, self.weight, bias)


def _ready(image: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor | None:
    """The image as the C++ functions take it; None where they can't."""
    fits = image.ndim == weight.ndim and weight.dtype == torch.float32
    if not (fits and on_cpu_only(image, weight, bias) and cpu_kernel_takes(image)):
        return None
    if torch.is_autocast_enabled("cpu"):
        image = image.to(torch.get_autocast_dtype("cpu"))
    takes = image.dtype in DTYPES and layout_of(image) is not torch.contiguous_format
    return image if takes else None


def few_channel_layers(network: nn.Module) -> tuple[str, ...]:
    """Let the C++ functions compute the layers that they can, in place; returns their names.

    They run on a CPU in channels-last, in float32 and bf16; anywhere else such a layer is torch's own.
    """
    for layer in network.modules():
        if _has_few(layer):
            swap_class(layer, _FewChannels)
    return tuple(name for name, layer in network.named_modules() if isinstance(layer, _FewChannels))


def _has_few(layer: nn.Module) -> bool:
    kinds = (nn.Conv2d, nn.Conv3d, nn.ConvTranspose2d, nn.ConvTranspose3d)
    if not isinstance(layer, kinds) or not (is_unbiased(layer) or type(layer) in kinds):
        return False
    if layer.out_channels > FEW or layer.weight.device.type != "cpu":
        return False
    shape = {"kernel_size": 3, "padding": 1, "dilation": 1, "stride": 2 if layer.transposed else 1}
    shape["output_padding"] = int(layer.transposed)
    same = all(set(getattr(layer, name)) == {value} for name, value in shape.items())
    fits = layer.in_channels <= FEW or layer.transposed
    return same and fits and layer.groups == 1 and layer.padding_mode == "zeros"


def undo_few_channels(layer: nn.Module) -> None:
    """Undo `few_channel_layers` on one module."""
    remove(layer, _FewChannels)
