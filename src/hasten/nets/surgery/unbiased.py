"""Convolutions and linear layers that have a bias and do not add it."""

from __future__ import annotations

from typing import Any

from torch import Tensor, nn
from torch.nn import functional

from hasten.nets.surgery.reclass import Mixed, become

_TRANSPOSED = (nn.ConvTranspose1d, nn.ConvTranspose2d, nn.ConvTranspose3d)


class _Unbiased(Mixed):
    def _conv_forward(self: Any, image: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        return super()._conv_forward(image, weight, None)  # type: ignore[misc]


class _UnbiasedTransposed(Mixed):
    def forward(self: Any, image: Tensor, output_size: list[int] | None = None) -> Tensor:
        dims = len(self.kernel_size)
        padding = self._output_padding(
            image, output_size, self.stride, self.padding, self.kernel_size, dims, self.dilation
        )
        convolve = getattr(functional, f"conv_transpose{dims}d")
        return convolve(image, self.weight, None, self.stride, self.padding, padding, self.groups, self.dilation)


class _UnbiasedLinear(Mixed):
    def forward(self: Any, image: Tensor) -> Tensor:
        return functional.linear(image, self.weight)


def to_unbiased(layer: nn.Module) -> bool:
    """Make the layer add no bias, in place. False if its forward is not torch's own, so that this can't be done."""
    forward = type(layer).forward
    if forward in (nn.Conv1d.forward, nn.Conv2d.forward, nn.Conv3d.forward):
        return become(layer, _Unbiased)
    if any(forward is kind.forward for kind in _TRANSPOSED):
        return become(layer, _UnbiasedTransposed)
    return forward is nn.Linear.forward and become(layer, _UnbiasedLinear)


def is_unbiased(layer: nn.Module) -> bool:
    return isinstance(layer, _Unbiased | _UnbiasedTransposed | _UnbiasedLinear)
