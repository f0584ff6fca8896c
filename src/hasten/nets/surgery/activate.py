"""PReLU on a CPU. torch takes the gradient of its slope element by element; here it is one sum."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable
from torch.nn import functional

Slope = Tensor | float | None
"""The negative slope, one number or one per channel; None for no activation."""


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
        to_image = to_slope = None
        if ctx.needs_input_grad[0]:
            factor = slope.to(gradient.dtype)
            scaled = gradient * (factor if slope.numel() == 1 else per_channel(factor, image))
            to_image = torch.where(image > 0, gradient, scaled)
        if ctx.needs_input_grad[1]:
            product = image.clamp(max=0).mul_(gradient)
            dims = list(range(image.ndim)) if slope.numel() == 1 else [0, *range(2, image.ndim)]
            exact = product.sum(dims, dtype=torch.promote_types(image.dtype, torch.float32))
            to_slope = exact.to(slope.dtype).reshape(slope.shape)
        return to_image, to_slope


def prelu(image: Tensor, slope: Tensor) -> Tensor:
    """PReLU of (B, C, ...) on a CPU. slope: one element, or one per channel. Differentiable once."""
    return _PReLU.apply(image, slope)
