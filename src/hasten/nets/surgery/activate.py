"""leaky_relu, ReLU and PReLU on a CPU, in place on a norm's output, and their derivatives.

torch's own gradient of a PReLU's slope is taken element by element on a CPU; here it is one sum.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable
from torch.nn import functional

Slope = Tensor | float | None
"""The negative slope, one number or one per channel; None for no activation."""

_aten = torch.ops.aten


def activate_(normed: Tensor, slope: Slope) -> Tensor:
    """The activation of (B, C, ...), in its memory where there is one slope."""
    if slope is None:
        return normed
    if isinstance(slope, Tensor) and slope.numel() > 1:
        return functional.prelu(normed, slope.to(normed.dtype))
    factor = float(slope)
    return functional.relu_(normed) if factor == 0 else functional.leaky_relu_(normed, factor)


def gradient_before(gradient: Tensor, normed: Tensor, slope: Slope) -> Tensor:
    """The gradient (B, C, ...) before the activation from that after it, of one shape with `normed`.

    Only the sign of `normed` is used.
    """
    if slope is None:
        return gradient
    if isinstance(slope, Tensor) and slope.numel() > 1:
        return torch.where(normed > 0, gradient, gradient * per_channel(slope.to(gradient.dtype), normed))
    factor = float(slope)
    result: Tensor
    if factor == 0:
        result = _aten.threshold_backward(gradient, normed, 0)
    else:
        result = _aten.leaky_relu_backward(gradient, normed, factor, False)
    return result


def gradient_of_slope(gradient: Tensor, normed: Tensor, slope: Tensor) -> Tensor:
    """The gradient of a slope of one element, or (C,), in its type and shape.

    gradient: of the activation's output, (B, C, ...); normed: its input, in the same shape.
    """
    exact = torch.promote_types(normed.dtype, torch.float32)
    product = normed.clamp(max=0).mul_(gradient)
    if slope.numel() == 1:
        return product.sum(dtype=exact).to(slope.dtype).reshape(slope.shape)
    return product.sum([0, *range(2, normed.ndim)], dtype=exact).to(slope.dtype)


def per_channel(values: Tensor, image: Tensor) -> Tensor:
    """(C,) or (B, C) values in the shape in which they meet (B, C, ...)."""
    return values.reshape(-1, image.shape[1], *[1] * (image.ndim - 2))


class _PReLU(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, image: Tensor, slope: Tensor) -> Tensor:
        ctx.save_for_backward(image, slope)
        if slope.numel() > 1:
            return functional.prelu(image, slope.to(image.dtype))
        return functional.leaky_relu(image, float(slope))

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, Tensor | None]:
        image, slope = ctx.saved_tensors
        through = gradient_before(gradient, image, slope) if ctx.needs_input_grad[0] else None
        return through, gradient_of_slope(gradient, image, slope) if ctx.needs_input_grad[1] else None


def prelu(image: Tensor, slope: Tensor) -> Tensor:
    """PReLU of (B, C, ...) on a CPU. slope: one element, or one per channel. Differentiable once."""
    return _PReLU.apply(image, slope)
