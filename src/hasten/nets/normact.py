"""Instance norm and activation as one differentiable operation that gives back the memory format it was given.

torch's own two, on a CPU: `instance_norm` leaves channels-last activations contiguous, so that the next convolution
turns them back, and the gradient of a PReLU's slope is taken element by element. The rules are the same; only the order
of rounding differs.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable
from torch.nn import functional

_aten = torch.ops.aten


class _NormAct(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, image: Tensor, slope: Tensor, eps: float) -> Tensor:
        layout, plain = _layout(image), image.contiguous()
        normed, mean, rstd = _aten.native_layer_norm(plain, image.shape[2:], None, None, eps)
        ctx.save_for_backward(plain, normed, mean, rstd, slope)
        ctx.layout = layout
        return functional.leaky_relu(normed, float(slope)).contiguous(memory_format=layout)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, Tensor | None, None]:
        plain, normed, mean, rstd, slope = ctx.saved_tensors
        gradient = gradient.contiguous()
        to_slope = None
        if ctx.needs_input_grad[1]:
            exact = torch.promote_types(normed.dtype, torch.float32)
            to_slope = normed.clamp(max=0).mul_(gradient).sum(dtype=exact).to(slope.dtype).reshape(slope.shape)
        through = _aten.leaky_relu_backward(gradient, normed, float(slope), False)
        shape, only_image = plain.shape[2:], [True, False, False]
        found = _aten.native_layer_norm_backward(through, plain, shape, mean, rstd, None, None, only_image)[0]
        return found.contiguous(memory_format=ctx.layout), to_slope, None


def norm_act(image: Tensor, slope: Tensor, eps: float) -> Tensor:
    """leaky_relu(instance_norm(image)).

    image: (B, C, H, W) or (B, C, D, H, W), of any float type, on a CPU. slope: one element, the factor of what is
    below 0, with a gradient if it asks for one. eps: added to each channel's variance. Differentiable once.
    """
    found: Tensor = _NormAct.apply(image, slope, eps)
    return found


def _layout(image: Tensor) -> torch.memory_format:
    last = torch.channels_last_3d if image.ndim == 5 else torch.channels_last
    return last if image.is_contiguous(memory_format=last) and not image.is_contiguous() else torch.contiguous_format


class NormAct(nn.Module):
    """MONAI's ADN block of an instance norm and an activation, under the same state-dict names.

    Where `norm_act` does not apply (not on a CPU, being compiled, a single voxel) the two run
    one after the other.
    """

    def __init__(self, norm: nn.Module, activation: nn.Module) -> None:
        super().__init__()
        self.N, self.A = norm, activation
        if not isinstance(activation, nn.PReLU):
            slope = activation.negative_slope if isinstance(activation, nn.LeakyReLU) else 0.0
            self.register_buffer("slope", torch.tensor([float(slope)]), persistent=False)

    @staticmethod
    def takes(block: nn.Module) -> bool:
        """Whether a block is an instance norm without weights or running statistics, then a one-slope activation."""
        if isinstance(block, NormAct):
            return False
        children = dict(block.named_children())
        dropout = children.pop("D", None)
        if list(children) != ["N", "A"] or (dropout is not None and getattr(dropout, "p", None) != 0):
            return False
        norm, activation = block.get_submodule("N"), block.get_submodule("A")
        plain = isinstance(norm, nn.InstanceNorm2d | nn.InstanceNorm3d)
        plain = plain and not norm.affine and not norm.track_running_stats
        one_slope = isinstance(activation, nn.PReLU) and activation.num_parameters == 1
        return plain and (one_slope or isinstance(activation, nn.ReLU | nn.LeakyReLU))

    def forward(self, image: Tensor) -> Tensor:
        slope: Tensor = self.A.weight if isinstance(self.A, nn.PReLU) else self.slope  # type: ignore[assignment]
        apart = image.device.type != "cpu" or slope.device.type != "cpu" or torch.compiler.is_compiling()
        if apart or image.shape[2:].numel() == 1:
            found: Tensor = self.A(self.N(image))
            return found
        eps: float = self.N.eps  # type: ignore[assignment]
        return norm_act(image, slope, eps)
