"""Norm and activation as one differentiable operation that keeps the memory format.

The operation for a GPU is in `normact_triton`; what follows is about a CPU.

torch's `instance_norm` returns contiguous activations for channels-last ones, so that the next convolution converts
them back; its `group_norm` converts them in its backward pass. A conversion costs several times the norm itself. The
formulas are the same here; only the order of rounding differs. Between forward and backward only the image is kept,
which is the output of the convolution before, and on request the output, which the next layer keeps anyway.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable
from torch.overrides import handle_torch_function, has_torch_function

from hasten.kernels.use import kernels_take
from hasten.nets.surgery.activate import Slope, activate_, gradient_before, gradient_of_slope
from hasten.nets.surgery.moments import (
    backward_in_groups,
    backward_last,
    group_moments,
    layout_of,
    normalise,
    on_cpu_only,
)

_aten = torch.ops.aten


class _GroupNormAct(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        image: Tensor,
        weight: Tensor | None,
        bias: Tensor | None,
        slope: Slope,
        groups: int,
        eps: float,
        keep_output: bool,
    ) -> Tensor:
        layout = layout_of(image)
        image, scale, offset = image.contiguous(memory_format=layout), *_affine(image, weight, bias)
        if layout is torch.contiguous_format:
            sizes = (*image.shape[:2], image[0, 0].numel(), groups)
            normed, mean, rstd = _aten.native_group_norm(image, scale, offset, *sizes, eps)
        else:
            mean, var = group_moments(image, groups)
            rstd = (var + eps).rsqrt()
            normed = normalise(image, mean, rstd, scale, offset)
        output = activate_(normed, slope)
        learned = slope if isinstance(slope, Tensor) else None
        ctx.save_for_backward(image, weight, bias, learned, mean, rstd, output if keep_output else None)
        ctx.slope = None if learned is not None else slope
        ctx.groups = groups
        return output

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        image, weight, bias, mean, rstd, gradient, to_slope = _open(ctx, gradient)
        scale, _ = _affine(image, weight, bias)
        mask = list(ctx.needs_input_grad[:3])
        if layout_of(image) is torch.contiguous_format:
            sizes = (*image.shape[:2], image[0, 0].numel(), ctx.groups)
            grads = _aten.native_group_norm_backward(gradient, image, mean, rstd, scale, *sizes, mask)
        elif ctx.groups == image.shape[1]:
            grads = backward_last(gradient, image, mean, rstd, scale, mask)
        else:
            grads = backward_in_groups(gradient, image, mean, rstd, scale, mask)
        return grads[0], _like(grads[1], weight), _like(grads[2], bias), to_slope, None, None, None


def _open(ctx: Any, gradient: Tensor) -> tuple[Any, ...]:
    """The saved tensors, the gradient before the activation, and that of the slope."""
    image, weight, bias, learned, mean, rstd, output = ctx.saved_tensors
    slope = learned if learned is not None else ctx.slope
    gradient = gradient.contiguous(memory_format=layout_of(image))
    to_slope = None
    if slope is not None:
        normed = output if output is not None else normalise(image, mean, rstd, *_affine(image, weight, bias))
        if ctx.needs_input_grad[3]:
            to_slope = gradient_of_slope(gradient, normed, slope)
        gradient = gradient_before(gradient, normed, slope)
    return image, weight, bias, mean, rstd, gradient, to_slope


def _affine(image: Tensor, weight: Tensor | None, bias: Tensor | None) -> tuple[Tensor, Tensor]:
    """Weight and bias in the type of the statistics, which torch keeps short for a short image that has neither."""
    exact = torch.promote_types(image.dtype, torch.float32)
    scale = weight.to(exact) if weight is not None else image.new_ones(image.shape[1], dtype=exact)
    return scale, bias.to(exact) if bias is not None else image.new_zeros(image.shape[1], dtype=exact)


def _like(gradient: Tensor | None, value: Tensor | None) -> Tensor | None:
    return gradient.to(value.dtype) if gradient is not None and value is not None else None


def group_norm_act(
    image: Tensor,
    groups: int,
    weight: Tensor | None = None,
    bias: Tensor | None = None,
    slope: Slope = None,
    eps: float = 1e-5,
    *,
    keep_output: bool = False,
) -> Tensor:
    """prelu(group_norm(image)); an instance norm where `groups` is the number of channels.

    image: (B, C, H, W) or (B, C, D, H, W), of any float type, on a CPU, or on a GPU where `kernels_take` it. weight,
    bias: (C,). slope: None for no activation, a number, or a tensor of one element or C. eps: added to each variance.
    keep_output: keep the output for the backward pass on a CPU and spare it a computation; as for a ReLU, it must not
    be changed then, and `slope` must be a number that is not negative. Differentiable once.
    """
    assert not keep_output or slope is None or (isinstance(slope, float | int) and slope >= 0)
    if image.is_cuda:
        from hasten.nets.surgery.normact_triton import triton_norm_act

        return triton_norm_act(image, groups, weight, bias, slope, eps)
    if has_torch_function((image,)):
        return handle_torch_function(
            group_norm_act, (image,), image, groups, weight, bias, slope, eps, keep_output=keep_output
        )
    keep_output = keep_output and slope is not None
    output = _GroupNormAct.apply(image, weight, bias, slope, groups, eps, keep_output)
    return output


class NormAct(nn.Module):
    """MONAI's ADN block of an instance norm and an activation, under the same state-dict names.

    (B, C, *S) to the same shape. Where `group_norm_act` does not apply (on a GPU unless `fused_norms` switched it on,
    being compiled, a single voxel) the two run one after the other.
    """

    hasten_kernels: bool = False
    """Whether Triton kernels compute norm and activation on a GPU; see `fused_norms`."""

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
        ours = on_cpu_only(image, slope) or (self.hasten_kernels and kernels_take(image))
        if not ours or image.shape[2:].numel() == 1:
            return self.A(self.N(image))
        eps: float = self.N.eps  # type: ignore[assignment]
        return group_norm_act(image, image.shape[1], None, None, slope, eps)
