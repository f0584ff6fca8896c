"""Convolutions from or to few channels on a GPU, in channels-last, without cuDNN where it is slow.

On an H200, cuDNN takes 9 ms forward and backward for 2 channels to 2 at 7 x 128^3, whose maps are read in 0.1 ms, and
19 ms for the first and the last layer of a U-Net whose step takes 85. All that such layers compute is one of three
products: a convolution from few channels, the gradient of its filters, and a convolution to few channels. On other
devices these are torch's, as the reference.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable
from torch.nn import functional as F
from torch.nn import grad

from hasten.kernels.use import triton_runs
from hasten.nets.surgery.layout import as_last, as_maps, as_rows

FEW = 4
"""Channels at most, on the side that has few; `kMost` of `few_channels.cpp`."""
_MOST_TAPS = 128
_MOST_ELEMENTS = 2**31
"""Elements of a map at most, as the kernels count in 32 bits."""
_CONVOLUTIONS: dict[int, Any] = {4: F.conv2d, 5: F.conv3d}
_TRANSPOSED: dict[int, Any] = {4: F.conv_transpose2d, 5: F.conv_transpose3d}
_GRADIENTS: dict[int, Any] = {4: grad.conv2d_weight, 5: grad.conv3d_weight}

Sides = tuple[int, ...]


def from_few(image: Tensor, weight: Tensor, bias: Tensor | None, stride: Sides, padding: Sides) -> Tensor:
    """The convolution of (B, few, *S) in channels-last, in its type. weight: (C, few, *k), of any float type."""
    return _FromFew.apply(image, weight, bias, stride, padding)


def to_few(
    image: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    stride: Sides,
    padding: Sides,
    output_padding: Sides | None = None,
) -> Tensor:
    """The convolution of stride 1 of (B, C, *S) in channels-last, in its type, or, with `output_padding`, a transposed
    one of any stride. weight: (few, C, *k), transposed (C, few, *k)."""
    return _ToFew.apply(image, weight, bias, stride, padding, output_padding)


def takes_few(channels: int, taps: int, voxels: int) -> bool:
    """Whether the kernels take a map of so many channels and voxels, and filters of so many taps."""
    return channels <= FEW and taps <= _MOST_TAPS and channels * voxels < _MOST_ELEMENTS


class _FromFew(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, image: Tensor, weight: Tensor, bias: Tensor | None, stride: Sides, padding: Sides) -> Tensor:
        ctx.save_for_backward(image, weight)
        ctx.stride, ctx.padding = stride, padding
        result = convolved(image, weight.to(image.dtype), stride, padding)
        return result if bias is None else result.add_(bias.view(-1, *[1] * (image.ndim - 2)))

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        image, weight = ctx.saved_tensors
        gradient = as_last(gradient)
        of_image = of_weight = None
        if ctx.needs_input_grad[0]:
            of_image = _image_gradient(gradient, image, weight.to(image.dtype), ctx.stride, ctx.padding)
        if ctx.needs_input_grad[1]:
            of_weight = filters_gradient(image, gradient, weight, ctx.stride, ctx.padding)
        return of_image, of_weight, _bias_gradient(gradient, ctx.needs_input_grad[2]), None, None


class _ToFew(torch.autograd.Function):
    """Backward, the gradient is the image of few channels. output_padding: None unless it is transposed."""

    @staticmethod
    def forward(
        ctx: Any,
        image: Tensor,
        weight: Tensor,
        bias: Tensor | None,
        stride: Sides,
        padding: Sides,
        output_padding: Sides | None,
    ) -> Tensor:
        ctx.save_for_backward(image, weight)
        ctx.stride, ctx.padding, ctx.transposed = stride, padding, output_padding is not None
        weight, bias = weight.to(image.dtype), None if bias is None else bias.to(image.dtype)
        return narrowed(image, weight, bias, stride, padding, output_padding)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        image, weight = ctx.saved_tensors
        gradient = as_last(gradient)
        filters, stride, padding = weight, ctx.stride, ctx.padding
        if not ctx.transposed:
            filters, padding = _mirrored(weight), _mirrored_padding(weight, padding)
        of_image = of_weight = None
        if ctx.needs_input_grad[0]:
            of_image = convolved(gradient, filters.to(gradient.dtype), stride, padding)
        if ctx.needs_input_grad[1]:
            of_weight = filters_gradient(gradient, image, filters, stride, padding)
            of_weight = of_weight if ctx.transposed else _mirrored(of_weight)
        return of_image, of_weight, _bias_gradient(gradient, ctx.needs_input_grad[2]), None, None, None


def _image_gradient(gradient: Tensor, image: Tensor, weight: Tensor, stride: Sides, padding: Sides) -> Tensor:
    if max(stride) == 1 and takes_few(len(weight), weight.shape[2:].numel(), gradient[:, 0].numel()):
        return convolved(gradient, _mirrored(weight), stride, _mirrored_padding(weight, padding))
    dims = image.ndim - 2
    return torch.ops.aten.convolution_backward(
        gradient, image, weight, None, stride, padding, [1] * dims, False, [0] * dims, 1, [True, False, False]
    )[0]


def _mirrored(weight: Tensor) -> Tensor:
    """The filters that lead back, in a convolution of stride 1."""
    return weight.transpose(0, 1).flip(*range(2, weight.ndim))


def _mirrored_padding(weight: Tensor, padding: Sides) -> Sides:
    return tuple(side - 1 - pad for side, pad in zip(weight.shape[2:], padding, strict=True))


def _bias_gradient(gradient: Tensor, needed: bool) -> Tensor | None:
    if not needed:
        return None
    return gradient.sum([0, *range(2, gradient.ndim)], dtype=torch.promote_types(gradient.dtype, torch.float32))


def convolved(image: Tensor, weight: Tensor, stride: Sides, padding: Sides) -> Tensor:
    """The convolution (B, C, *S') in channels-last. image: (B, few, *S), weight: (C, few, *k), of one type."""
    if not triton_runs(image):
        return _CONVOLUTIONS[image.ndim](image, weight, None, stride, padding)
    from hasten.nets.surgery.few_triton import convolve, geometry_of

    sides = _sides(image, weight, stride, padding)
    rows = image.new_empty(len(image) * sides.numel(), len(weight))
    geometry = geometry_of(image.shape[2:], sides, weight.shape[2:], stride, padding)
    convolve(as_rows(image), weight.flatten(2).contiguous(), rows, geometry)
    return as_maps(rows, len(image), sides)


def narrowed(
    image: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    stride: Sides,
    padding: Sides,
    output_padding: Sides | None,
) -> Tensor:
    """The convolution (B, few, *S') in channels-last, transposed if it has an output_padding.

    image: (B, C, *S), weight: (few, C, *k), or (C, few, *k) if transposed, bias: (few,), of one type.
    """
    transposed = output_padding is not None
    if not triton_runs(image):
        if transposed:
            return _TRANSPOSED[image.ndim](image, weight, bias, stride, padding, output_padding)
        return _CONVOLUTIONS[image.ndim](image, weight, bias, stride, padding)
    from hasten.nets.surgery.few_triton import geometry_of, narrow

    filters = weight.movedim((0, 1), (-2, -1) if transposed else (-1, -2))
    sides = _sides(image, weight, stride, padding, output_padding)
    rows = image.new_empty(len(image) * sides.numel(), filters.shape[-1])
    geometry = geometry_of(image.shape[2:], sides, weight.shape[2:], stride, padding)
    products = filters.reshape(-1, *filters.shape[-2:]).contiguous()
    narrow(as_rows(image), products, bias, rows, geometry, transposed=transposed)
    return as_maps(rows, len(image), sides)


def _sides(
    image: Tensor,
    weight: Tensor,
    stride: Sides,
    padding: Sides,
    output_padding: Sides | None = None,
) -> torch.Size:
    """Sides of a convolution's result, of a transposed one's if there is an output_padding."""
    axes = zip(image.shape[2:], weight.shape[2:], stride, padding, strict=True)
    if output_padding is None:
        return torch.Size((side + 2 * pad - kernel) // step + 1 for side, kernel, step, pad in axes)
    return torch.Size(
        (side - 1) * step - 2 * pad + kernel + more
        for (side, kernel, step, pad), more in zip(axes, output_padding, strict=True)
    )


def filters_gradient(image: Tensor, gradient: Tensor, weight: Tensor, stride: Sides, padding: Sides) -> Tensor:
    """(C, few, *k), in the type of `weight`, which has this shape. image: (B, few, *S). gradient: (B, C, *S')."""
    if not triton_runs(image):
        return _GRADIENTS[image.ndim](image, weight.shape, gradient, stride, padding).to(weight.dtype)
    from hasten.nets.surgery.few_triton import geometry_of, outer_products

    geometry = geometry_of(image.shape[2:], gradient.shape[2:], weight.shape[2:], stride, padding)
    sums = outer_products(as_rows(image), as_rows(gradient), geometry)
    return sums.view(weight.shape).to(weight.dtype)
